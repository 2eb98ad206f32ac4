from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest

from lash.errors import (
    CorruptRecord,
    InvalidId,
    InvalidItem,
    InvalidKey,
    InvalidValue,
    RecordVersionMalformed,
    RecordVersionMissing,
    RecordVersionUnsupported,
    TooLarge,
)
from lash.graph.parts import File, Image, Text, ToolResult
from lash.ids import BlobHash, ItemId
from lash.inbox.items import (
    Command,
    ItemState,
    Message,
    NewItem,
    Wake,
    blobs_of_item,
    check_item,
    content_hash,
    decode_body,
    encode_body,
)

from ..samples import MINUTE, NOW, SECOND, TURN, an_item, item_id, words

MESSAGE = NewItem(item_id(1), words("hello"))
COMMAND = NewItem(item_id(2), Command(name="reset"))
WAKE = NewItem(item_id(3), Wake(source="timer"))

BODIES: list[tuple[Message | Command | Wake, str]] = [
    (words("hello"), '{"kind":"message","parts":[{"kind":"text","text":"hello"}],"v":1}'),
    (Command(name="reset"), '{"arguments":{},"kind":"command","name":"reset","v":1}'),
    (
        Command(name="compact", arguments={"keep": "the order numbers"}),
        '{"arguments":{"keep":"the order numbers"},"kind":"command","name":"compact","v":1}',
    ),
    (Wake(source="timer"), '{"data":null,"kind":"wake","source":"timer","v":1}'),
    (Wake(source="child", data={"b": 1, "a": [2]}), '{"data":{"a":[2],"b":1},"kind":"wake","source":"child","v":1}'),
]


@pytest.mark.parametrize(("body", "text"), BODIES)
def test_a_body_is_written_canonically_and_reads_back_the_same(body: Message | Command | Wake, text: str) -> None:
    assert encode_body(body) == text
    assert decode_body(text, what="item i") == body


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ('{"kind":"wake","source":"x"}', RecordVersionMissing),
        ('{"kind":"wake","source":"x","v":null}', RecordVersionMalformed),
        ('{"kind":"dream","v":2}', RecordVersionUnsupported),
        ('{"kind":"dream","v":1}', CorruptRecord),
        ('{"v":1}', CorruptRecord),
        ('{"kind":"message","parts":[],"v":1}', CorruptRecord),
        ('{"kind":"wake","source":"x","extra":1,"v":1}', CorruptRecord),
        ('{"kind":"command","name":"","v":1}', CorruptRecord),
        ("nonsense", CorruptRecord),
    ],
)
def test_a_stored_body_that_cannot_be_read_says_why(text: str, error: type[Exception]) -> None:
    with pytest.raises(error, match="item i"):
        decode_body(text, what="item i")


@pytest.mark.parametrize("item", [MESSAGE, COMMAND, WAKE], ids=lambda i: i.body.kind)
def test_items_of_every_kind_are_accepted(item: NewItem) -> None:
    check_item(item)
    check_item(replace(item, key="k", available_at=NOW))


@pytest.mark.parametrize("item", [MESSAGE, WAKE], ids=lambda i: i.body.kind)
def test_messages_and_wakes_may_aim_at_the_running_turn_and_may_merge(item: NewItem) -> None:
    check_item(replace(item, when="now", boundary="before_completion", merge_key="m"))


@pytest.mark.parametrize(
    ("item", "error", "says"),
    [
        (replace(MESSAGE, id=ItemId("7")), InvalidId, "is not an item id"),
        (replace(MESSAGE, key=""), InvalidKey, "is not a key"),
        (replace(MESSAGE, merge_key="a\nb"), InvalidKey, "is not a key"),
        (replace(COMMAND, when="now"), InvalidItem, "send it with when='next'"),
        (replace(COMMAND, merge_key="m"), InvalidItem, "it takes no merge key"),
        (replace(MESSAGE, when="now", available_at=NOW), InvalidItem, "leave out available_at or use when='next'"),
        (replace(WAKE, when="now", available_at=NOW), InvalidItem, "cannot be postponed"),
    ],
)
def test_an_item_that_could_never_be_served_is_refused_and_told_the_way_out(
    item: NewItem, error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        check_item(item)


DIFFERENT: dict[str, dict[str, Any]] = {
    "body": {"body": words("other")},
    "kind": {"body": Wake(source="timer")},
    "when": {"when": "now"},
    "boundary": {"boundary": "before_completion"},
    "merge_key": {"merge_key": "m"},
    "options": {"options": {"max_steps": 3}},
}
SAME: dict[str, dict[str, Any]] = {
    "id": {"id": item_id(9)},
    "key": {"key": "msg-117"},
    "available_at": {"available_at": NOW},
}


@pytest.mark.parametrize("change", DIFFERENT.values(), ids=DIFFERENT.keys())
def test_other_content_has_another_hash(change: dict[str, Any]) -> None:
    assert content_hash(replace(MESSAGE, **change)) != content_hash(MESSAGE)


@pytest.mark.parametrize("change", SAME.values(), ids=SAME.keys())
def test_what_is_no_content_does_not_change_the_hash(change: dict[str, Any]) -> None:
    assert content_hash(replace(MESSAGE, **change)) == content_hash(MESSAGE)


def test_every_field_of_an_item_was_decided_to_be_content_or_not() -> None:
    assert set(DIFFERENT) - {"kind"} | set(SAME) == set(NewItem.__slots__)


def test_the_order_of_options_is_no_content() -> None:
    assert content_hash(replace(MESSAGE, options={"a": 1, "b": 2})) == content_hash(
        replace(MESSAGE, options={"b": 2, "a": 1})
    )


def test_options_that_json_cannot_carry_are_refused_and_the_place_is_named() -> None:
    with pytest.raises(InvalidValue) as refused:
        content_hash(replace(MESSAGE, options={"limits": [float("inf")]}))
    assert refused.value.where == "options.limits[0]"


def test_a_message_too_large_for_a_row_is_refused() -> None:
    with pytest.raises(TooLarge, match="a message has"):
        content_hash(NewItem(item_id(1), words("x" * (16 * 1024 * 1024))))


@pytest.mark.parametrize(
    ("state", "target", "available_at", "ready"),
    [
        ("pending", None, None, True),
        ("pending", None, NOW, True),
        ("pending", None, NOW - MINUTE, True),
        ("pending", None, NOW + SECOND, False),
        ("pending", TURN, None, False),
        ("taken", None, None, False),
        ("completed", None, None, False),
        ("cancelled", None, None, False),
    ],
)
def test_a_new_turn_may_take_an_item_that_is_pending_unaimed_and_due(
    state: ItemState, target: Any, available_at: datetime | None, ready: bool
) -> None:
    assert an_item(1, state=state, target=target, available_at=available_at).ready(NOW) is ready


@pytest.mark.parametrize(
    ("state", "terminal"), [("pending", False), ("taken", False), ("completed", True), ("cancelled", True)]
)
def test_completed_and_cancelled_items_are_done_for_ever(state: ItemState, terminal: bool) -> None:
    assert an_item(1, state=state).terminal is terminal


def test_the_blobs_of_an_item_are_those_of_its_message() -> None:
    one, two = BlobHash("a" * 64), BlobHash("b" * 64)
    message = Message(
        parts=(
            Text(text="look"),
            Image(blob=one, media_type="image/png"),
            ToolResult(call_id="1", tool="t", content=(File(blob=two, media_type="text/plain", name="f"),)),
        )
    )
    assert blobs_of_item(NewItem(item_id(1), message)) == {one, two}
    assert blobs_of_item(COMMAND) == frozenset()
    assert blobs_of_item(WAKE) == frozenset()
