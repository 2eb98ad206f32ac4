from __future__ import annotations

import pytest
from pydantic import ValidationError

from lash.errors import (
    CorruptRecord,
    InvalidValue,
    RecordVersionMalformed,
    RecordVersionMissing,
    RecordVersionUnsupported,
)
from lash.graph.nodes import (
    PAYLOADS,
    FrameOpened,
    MessageReceived,
    ModelReplied,
    Node,
    Noted,
    Payload,
    PluginRecorded,
    ToolsReturned,
    decode_payload,
    encode_payload,
)
from lash.graph.parts import File, Image, Reasoning, Text, ToolCall, ToolResult, blobs_of
from lash.ids import BlobHash, ItemId, NodeId

from ..samples import NOW

PICTURE, REPORT, LOG = BlobHash("a" * 64), BlobHash("b" * 64), BlobHash("c" * 64)
HI = Text(text="hi")

CASES: list[tuple[Payload, str]] = [
    (FrameOpened(reason="initial"), '{"reason":"initial","v":1}'),
    (
        FrameOpened(reason="compaction", config={"b": 1, "a": 2}, protocol_options={"steps": 3}),
        '{"config":{"a":2,"b":1},"protocol_options":{"steps":3},"reason":"compaction","v":1}',
    ),
    (MessageReceived(parts=()), '{"parts":[],"v":1}'),
    (
        MessageReceived(parts=(HI,), item=ItemId("e" * 32)),
        '{"item":"' + "e" * 32 + '","parts":[{"kind":"text","text":"hi"}],"v":1}',
    ),
    (
        ModelReplied(parts=(Reasoning(text="hm"), Reasoning(text="so", signature="s=")), model="m"),
        '{"finish":"stop","model":"m","parts":[{"kind":"reasoning","text":"hm"},'
        '{"kind":"reasoning","signature":"s=","text":"so"}],"v":1}',
    ),
    (
        ModelReplied(parts=(ToolCall(call_id="1", tool="t"),), model="m", finish="tool_calls"),
        '{"finish":"tool_calls","model":"m","parts":'
        '[{"arguments":null,"call_id":"1","kind":"tool_call","tool":"t"}],"v":1}',
    ),
    (
        ToolsReturned(parts=(ToolResult(call_id="1", tool="t", content=(HI,), failed=True),)),
        '{"parts":[{"call_id":"1","content":[{"kind":"text","text":"hi"}],"failed":true,"kind":"tool_result",'
        '"tool":"t"}],"v":1}',
    ),
    (
        ToolsReturned(parts=(ToolResult(call_id="1", tool="t"),)),
        '{"parts":[{"call_id":"1","content":[],"kind":"tool_result","tool":"t"}],"v":1}',
    ),
    (Noted(parts=(HI,), about="summary"), '{"about":"summary","parts":[{"kind":"text","text":"hi"}],"v":1}'),
    (PluginRecorded(plugin="notes"), '{"data":null,"plugin":"notes","v":1}'),
    (
        PluginRecorded(plugin="notes", data=[1, 2.5], refers_to=(REPORT, PICTURE)),
        '{"data":[1,2.5],"plugin":"notes","refers_to":["' + "b" * 64 + '","' + "a" * 64 + '"],"v":1}',
    ),
]


@pytest.mark.parametrize(("payload", "body"), CASES, ids=lambda value: getattr(value, "kind", None))
def test_a_payload_is_written_without_what_is_absent_and_reads_back_the_same(payload: Payload, body: str) -> None:
    assert encode_payload(payload) == body
    assert decode_payload(payload.kind, body, what="node n") == payload


def test_every_kind_of_payload_is_covered_here_and_known_to_the_reader() -> None:
    assert {payload.kind for payload, _ in CASES} == set(PAYLOADS)
    assert set(PAYLOADS) == {
        "frame_opened",
        "message_received",
        "model_replied",
        "tools_returned",
        "noted",
        "plugin_recorded",
    }


def test_the_three_faults_of_a_version_are_three_errors_and_come_before_the_kind() -> None:
    with pytest.raises(RecordVersionMissing):
        decode_payload("nonsense", '{"reason":"initial"}', what="node n")
    with pytest.raises(RecordVersionMalformed):
        decode_payload("nonsense", '{"reason":"initial","v":"1"}', what="node n")
    with pytest.raises(RecordVersionUnsupported):
        decode_payload("nonsense", '{"reason":"initial","v":2}', what="node n")


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("nonsense", '{"v":1}'),
        ("frame_opened", '{"v":1}'),
        ("frame_opened", '{"reason":"","v":1}'),
        ("frame_opened", '{"reason":7,"v":1}'),
        ("frame_opened", '{"reason":"initial","color":"red","v":1}'),
        ("frame_opened", '{"config":[],"reason":"initial","v":1}'),
        ("message_received", '{"parts":[{"kind":"smell"}],"v":1}'),
        ("message_received", '{"parts":[{"text":"no kind"}],"v":1}'),
        ("model_replied", '{"parts":[],"v":1}'),
        ("noted", "not json"),
        ("noted", "[]"),
    ],
)
def test_a_body_that_is_not_what_its_kind_says_is_corrupt_and_the_node_is_named(kind: str, body: str) -> None:
    with pytest.raises(CorruptRecord, match="node n"):
        decode_payload(kind, body, what="node n")


def test_a_payload_that_json_cannot_carry_is_refused_and_the_place_is_named() -> None:
    with pytest.raises(InvalidValue) as refused:
        encode_payload(PluginRecorded(plugin="p", data={"x": [1, float("nan")]}))
    assert refused.value.where == "a node 'plugin_recorded'.data.x[1]"
    with pytest.raises(InvalidValue) as refused:
        encode_payload(MessageReceived(parts=(HI, Text(text="\ud800"))))
    assert refused.value.where == "a node 'message_received'.parts[1].text"


def test_a_payload_cannot_be_changed() -> None:
    payload = FrameOpened(reason="initial")
    with pytest.raises(ValidationError):
        payload.reason = "reset"


def test_the_blobs_of_a_message_are_found_inside_tool_results_too() -> None:
    image = Image(blob=PICTURE, media_type="image/png")
    file = File(blob=REPORT, media_type="text/plain", name="report.txt")
    inside = File(blob=LOG, media_type="text/plain", name="log.txt")
    result = ToolResult(call_id="1", tool="t", content=(HI, image, inside))
    assert blobs_of((HI, Reasoning(text="x"), ToolCall(call_id="1", tool="t"))) == frozenset()
    assert blobs_of((image, image)) == {PICTURE}
    assert blobs_of((file, result)) == {PICTURE, REPORT, LOG}
    assert ToolsReturned(parts=(result,)).blobs() == {PICTURE, LOG}
    assert PluginRecorded(plugin="p", refers_to=(LOG,)).blobs() == {LOG}
    assert FrameOpened(reason="initial").blobs() == frozenset()


def test_a_node_reads_its_payload_and_names_itself_when_it_cannot() -> None:
    node = Node(NodeId("n-1"), None, 0, 0, "frame_opened", '{"reason":"initial","v":1}', NOW)
    assert node.payload == FrameOpened(reason="initial")
    assert node.opens_frame
    broken = Node(NodeId("n-2"), None, 0, 0, "noted", "{}", NOW)
    assert not broken.opens_frame
    with pytest.raises(RecordVersionMissing, match="node n-2"):
        _ = broken.payload
