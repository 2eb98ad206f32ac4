"""The laws of growth, each broken one at a time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lash.errors import InvalidDelta
from lash.graph.delta import chain, check_append
from lash.graph.nodes import FrameOpened, MessageReceived, ModelReplied, Node, Payload
from lash.graph.parts import Image, Text
from lash.graph.session import Head
from lash.ids import BlobHash, NodeId

from ..samples import MINUTE, NOW, OPERATION, OTHER_OPERATION, OTHER_SESSION, SESSION

EMPTY = Head()
LEAF = NodeId(f"{SESSION}-{OTHER_OPERATION}-4")
GROWN = Head(revision=3, leaf=LEAF, depth=9, frame=6)

INITIAL = FrameOpened(reason="initial")
COMPACTED = FrameOpened(reason="compaction")
RESET = FrameOpened(reason="reset")
HEARD = MessageReceived(parts=(Text(text="hello"),))
SAID = ModelReplied(parts=(Text(text="hi"),), model="m")


def node_of(ordinal: int) -> NodeId:
    return NodeId(f"{SESSION}-{OPERATION}-{ordinal}")


def nodes_of(head: Head, *payloads: Payload) -> tuple[Node, ...]:
    return chain(SESSION, OPERATION, payloads, after=head, at=NOW).nodes


def places(nodes: tuple[Node, ...]) -> list[tuple[NodeId, NodeId | None, int, int]]:
    return [(node.id, node.parent, node.depth, node.frame) for node in nodes]


def test_the_first_nodes_of_a_session_begin_at_depth_0_in_a_frame_of_their_own() -> None:
    assert places(nodes_of(EMPTY, INITIAL, HEARD)) == [
        (node_of(0), None, 0, 0),
        (node_of(1), node_of(0), 1, 0),
    ]


def test_later_nodes_continue_from_the_leaf_in_its_frame() -> None:
    assert places(nodes_of(GROWN, HEARD, SAID)) == [
        (node_of(0), LEAF, 10, 6),
        (node_of(1), node_of(0), 11, 6),
    ]


def test_a_frame_opened_in_the_middle_holds_what_comes_after_it() -> None:
    assert places(nodes_of(GROWN, HEARD, COMPACTED, SAID)) == [
        (node_of(0), LEAF, 10, 6),
        (node_of(1), node_of(0), 11, 11),
        (node_of(2), node_of(1), 12, 11),
    ]


def test_a_reset_begins_a_new_root() -> None:
    assert places(nodes_of(GROWN, RESET, HEARD)) == [
        (node_of(0), None, 0, 0),
        (node_of(1), node_of(0), 1, 0),
    ]


def test_a_node_carries_its_kind_body_time_seq_and_blobs() -> None:
    picture = Image(blob=BlobHash("a" * 64), media_type="image/png")
    nodes = chain(
        SESSION, OPERATION, [HEARD, MessageReceived(parts=(picture,))], after=GROWN, at=NOW, seqs=[17, 18]
    ).nodes
    assert [node.kind for node in nodes] == ["message_received", "message_received"]
    assert nodes[0].body == '{"parts":[{"kind":"text","text":"hello"}],"v":1}'
    assert [node.at for node in nodes] == [NOW, NOW]
    assert [node.seq for node in nodes] == [17, 18]
    assert [node.blobs for node in nodes] == [frozenset(), frozenset({"a" * 64})]


def test_no_payloads_give_no_nodes() -> None:
    assert nodes_of(GROWN) == ()


@pytest.mark.parametrize(
    ("head", "payloads", "new_root"),
    [
        (EMPTY, (INITIAL,), False),
        (EMPTY, (RESET, HEARD), False),
        (EMPTY, (FrameOpened(reason="whatever a plugin says"), HEARD, SAID), False),
        (GROWN, (HEARD, SAID), False),
        (GROWN, (COMPACTED, SAID), False),
        (GROWN, (RESET,), True),
        (GROWN, (RESET, HEARD, COMPACTED, SAID), True),
    ],
)
def test_a_chain_is_accepted_and_only_a_reset_of_a_grown_session_begins_a_new_root(
    head: Head, payloads: tuple[Payload, ...], new_root: bool
) -> None:
    assert check_append(SESSION, OPERATION, nodes_of(head, *payloads), head) is new_root


def refusal(nodes: tuple[Node, ...], head: Head = GROWN) -> str:
    with pytest.raises(InvalidDelta) as refused:
        check_append(SESSION, OPERATION, nodes, head)
    return refused.value.law


def test_an_empty_append_cannot_move_the_head() -> None:
    assert refusal(()) == "an append has nodes"


def test_a_node_named_twice_is_refused() -> None:
    first, second = nodes_of(GROWN, HEARD, SAID)
    assert refusal((first, replace(second, id=first.id))) == "ids are unique"


@pytest.mark.parametrize("payload", [HEARD, INITIAL, COMPACTED])
def test_a_second_root_is_begun_only_by_a_reset(payload: Payload) -> None:
    (node,) = nodes_of(GROWN, payload)
    root = replace(node, parent=None, depth=0, frame=0)
    assert refusal((root,)) == "a new root resets"


def test_a_first_root_must_open_a_frame() -> None:
    assert refusal(nodes_of(EMPTY, HEARD), EMPTY) == "a root opens a frame"


@pytest.mark.parametrize(
    "wrong",
    [
        f"{SESSION}-{OPERATION}-1",
        f"{SESSION}-{OPERATION}-00",
        f"{OTHER_SESSION}-{OPERATION}-0",
        f"{SESSION}-{OTHER_OPERATION}-0",
        "n-1",
        "",
    ],
)
def test_an_id_that_does_not_follow_from_the_place_is_refused(wrong: str) -> None:
    (node,) = nodes_of(GROWN, HEARD)
    assert refusal((replace(node, id=NodeId(wrong)),)) == "ids are derived"


def test_nodes_out_of_order_are_refused() -> None:
    first, second = nodes_of(GROWN, HEARD, SAID)
    assert refusal((second, first)) == "ids are derived"


@pytest.mark.parametrize(
    "parent",
    [f"{SESSION}-{OTHER_OPERATION}-3", f"{OTHER_SESSION}-{OTHER_OPERATION}-4", "", str(node_of(0))],
    ids=["not the leaf", "foreign", "empty", "itself"],
)
def test_a_first_node_that_does_not_follow_the_leaf_is_refused(parent: str) -> None:
    (node,) = nodes_of(GROWN, HEARD)
    assert refusal((replace(node, parent=NodeId(parent)),)) == "nodes form one chain from the leaf"


@pytest.mark.parametrize("parent", [None, LEAF, node_of(2), node_of(1)])
def test_a_later_node_that_does_not_follow_the_one_before_is_refused(parent: NodeId | None) -> None:
    first, second, third = nodes_of(GROWN, HEARD, SAID, HEARD)
    if parent == node_of(1):
        broken = (first, second, replace(third, parent=node_of(0)))
    else:
        broken = (first, replace(second, parent=parent), third)
    assert refusal(broken) == "nodes form one chain from the leaf"


def test_a_parent_in_an_empty_session_is_refused() -> None:
    (node,) = nodes_of(EMPTY, INITIAL)
    assert refusal((replace(node, parent=LEAF),), EMPTY) == "nodes form one chain from the leaf"


@pytest.mark.parametrize(("depth", "frame"), [(9, 6), (11, 6), (-1, 6), (10, 9), (10, 10), (10, -1)])
def test_a_depth_or_frame_that_does_not_follow_from_the_place_is_refused(depth: int, frame: int) -> None:
    (node,) = nodes_of(GROWN, HEARD)
    assert refusal((replace(node, depth=depth, frame=frame),)) == "depth and frame follow from the place"


def test_a_frame_that_does_not_begin_at_its_own_depth_is_refused() -> None:
    (node,) = nodes_of(GROWN, COMPACTED)
    assert refusal((replace(node, frame=6),)) == "depth and frame follow from the place"


def test_a_node_after_an_opened_frame_cannot_stay_in_the_old_one() -> None:
    first, second = nodes_of(GROWN, COMPACTED, HEARD)
    assert refusal((first, replace(second, frame=6))) == "depth and frame follow from the place"


def test_a_root_does_not_begin_deeper_than_0() -> None:
    (node,) = nodes_of(GROWN, RESET)
    assert refusal((replace(node, depth=10, frame=10),)) == "depth and frame follow from the place"


def test_times_and_seqs_are_free() -> None:
    nodes = tuple(replace(node, at=NOW - MINUTE * 7, seq=99) for node in nodes_of(GROWN, HEARD, SAID))
    assert check_append(SESSION, OPERATION, nodes, GROWN) is False


def test_a_refusal_names_the_node_and_what_was_expected() -> None:
    (node,) = nodes_of(GROWN, HEARD)
    with pytest.raises(InvalidDelta, match=f"the parent of {node_of(0)} should be {LEAF}"):
        check_append(SESSION, OPERATION, (replace(node, parent=NodeId("x")),), GROWN)


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("nonsense", '{"v":1}'),
        ("noted", "not json"),
        ("noted", '{"v":1}'),
        ("noted", '{"about":"x","parts":[]}'),
        ("noted", '{"about":"x","parts":[],"v":2}'),
        ("noted", '{"about":"x","parts":[],"v":"1"}'),
        ("noted", '{"about":NaN,"parts":[],"v":1}'),
    ],
)
@pytest.mark.parametrize("place", [0, 1])
def test_a_hand_made_node_that_could_never_be_read_is_refused(kind: str, body: str, place: int) -> None:
    nodes = list(nodes_of(GROWN, HEARD, SAID))
    nodes[place] = replace(nodes[place], kind=kind, body=body)
    assert refusal(tuple(nodes)) == "a node can be read"


@pytest.mark.parametrize("head", [EMPTY, GROWN])
def test_a_root_that_could_never_be_read_is_the_caller_s_mistake_and_no_corrupt_data(head: Head) -> None:
    (root,) = nodes_of(head, RESET)
    assert refusal((replace(root, body="not json"),), head) == "a node can be read"


def test_a_hand_made_node_that_can_be_read_is_accepted() -> None:
    (node,) = nodes_of(GROWN, HEARD)
    made = Node(node.id, LEAF, 10, 6, "noted", '{"about":"x","parts":[],"v":1}', NOW)
    assert check_append(SESSION, OPERATION, (made,), GROWN) is False


def test_only_a_node_that_was_just_encoded_is_believed_unread() -> None:
    (node,) = nodes_of(GROWN, HEARD)
    assert node.encoded is node.body
    assert Node(node.id, LEAF, 10, 6, node.kind, node.body, NOW).encoded is None
