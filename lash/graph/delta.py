"""GraphDelta: the one way a graph changes. Nodes are added at the head, or the head moves; nothing is rewritten.

``check_append`` holds the laws of growth. They are checked by the store, against the head it has locked, before
anything is written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from lash.errors import CorruptData, InvalidDelta
from lash.graph.frames import RESET
from lash.graph.nodes import FrameOpened, Node, Payload, encode_payload
from lash.graph.session import Head
from lash.ids import NodeId, OperationId, SessionUid, node_id


@dataclass(frozen=True, slots=True)
class Unchanged:
    """The commit settles something, but the graph stays as it is."""


@dataclass(frozen=True, slots=True)
class Append:
    """A chain of nodes after the leaf. A chain that begins a new root must open a frame with reason ``reset``."""

    nodes: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class MoveHead:
    """Rewind: go on from an earlier commit boundary. What came after it stays, on a branch of its own."""

    to: NodeId


GraphDelta = Unchanged | Append | MoveHead

BOUNDARY_LAW = "the head moves to a commit boundary"


def chain(
    session: SessionUid,
    operation: OperationId,
    payloads: Sequence[Payload],
    *,
    after: Head,
    at: datetime,
    seqs: Sequence[int] = (),
) -> Append:
    """The nodes that these payloads become when they are appended to ``after``.

    A first payload that resets begins a new root. ``seqs`` are the events that the payloads came with, where known.
    """
    if seqs and len(seqs) != len(payloads):
        raise InvalidDelta("each node came with one event", f"{len(payloads)} payloads, {len(seqs)} seqs")
    parent, depth, frame = after.leaf, after.depth, after.frame
    if payloads and _resets(payloads[0]):
        parent, depth, frame = None, -1, -1
    nodes: list[Node] = []
    for ordinal, payload in enumerate(payloads):
        depth += 1
        frame = depth if isinstance(payload, FrameOpened) else frame
        body = encode_payload(payload)
        node = Node(
            id=node_id(session, operation, ordinal),
            parent=parent,
            depth=depth,
            frame=frame,
            kind=payload.kind,
            body=body,
            at=at,
            seq=seqs[ordinal] if seqs else 0,
            blobs=payload.blobs(),
            encoded=body,
        )
        nodes.append(node)
        parent = node.id
    return Append(tuple(nodes))


def check_append(session: SessionUid, operation: OperationId, nodes: Sequence[Node], head: Head) -> bool:
    """Refuse an append that breaks a law of growth. True when it begins a new root."""
    if not nodes:
        raise InvalidDelta("an append has nodes", "an empty append cannot move the head; use Unchanged")
    ids = [node.id for node in nodes]
    if len(set(ids)) != len(ids):
        raise InvalidDelta("ids are unique", "the append names a node twice")
    first = nodes[0]
    new_root = first.parent is None and head.leaf is not None
    if new_root and not (first.opens_frame and _resets(_check_body(first))):
        raise InvalidDelta("a new root resets", f"node {first.id} has no parent and does not open a frame with 'reset'")
    if first.parent is None and not first.opens_frame:
        raise InvalidDelta("a root opens a frame", f"node {first.id} has no parent and is {first.kind!r}")
    parent, depth, frame = (None, -1, -1) if first.parent is None else (head.leaf, head.depth, head.frame)
    for ordinal, node in enumerate(nodes):
        _check_place(node, node_id(session, operation, ordinal), parent, depth + 1, frame)
        if not node.made_here and _check_body(node).blobs() != node.blobs:
            raise InvalidDelta("a node names its blobs", f"the body of {node.id} refers to others than node.blobs")
        parent, depth, frame = node.id, node.depth, node.frame
    return new_root


def check_seqs(nodes: Sequence[Node], counted: int) -> None:
    """A node keeps the number of the event it came from, which the session has counted by now; 0 is the commit's."""
    for node in nodes:
        if node.seq > counted:
            raise InvalidDelta("events are counted", f"{node.id} says event {node.seq}; the session counted {counted}")


def _check_place(node: Node, derived: NodeId, parent: NodeId | None, depth: int, frame: int) -> None:
    if node.id != derived:
        raise InvalidDelta("ids are derived", f"{node.id} should be {derived}")
    if node.parent != parent:
        raise InvalidDelta("nodes form one chain from the leaf", f"the parent of {node.id} should be {parent}")
    expected_frame = depth if node.opens_frame else frame
    if (node.depth, node.frame) != (depth, expected_frame):
        raise InvalidDelta(
            "depth and frame follow from the place",
            f"{node.id} says depth {node.depth}, frame {node.frame}; it stands at {depth}, {expected_frame}",
        )


def _check_body(node: Node) -> Payload:
    """A node that nobody could read would make its session unusable, so it never gets in."""
    try:
        return node.payload
    except CorruptData as error:
        raise InvalidDelta("a node can be read", str(error)) from None


def _resets(payload: Payload) -> bool:
    return isinstance(payload, FrameOpened) and payload.reason == RESET
