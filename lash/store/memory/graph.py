"""The graph as nodes with parents. A path is found by walking it, from the leaf up."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import replace

from lash.encoding import canonical
from lash.errors import CorruptGraph, CorruptRecord, IdReused, InvalidDelta, NodeNotFound
from lash.graph.delta import BOUNDARY_LAW
from lash.graph.nodes import Node
from lash.graph.session import Head, NewFork, Session
from lash.ids import BlobHash, NodeId, SessionUid, split_node_id
from lash.store.checks import check_fork
from lash.store.contract import Snapshot
from lash.store.memory.data import MemoryData, SessionRows
from lash.store.memory.sessions import Creating


def walk(data: MemoryData, leaf: NodeId | None) -> Iterator[Node]:
    """The nodes from ``leaf`` to its root. A hole, or a depth that does not fit, is CorruptGraph."""
    place, depth = leaf, None
    while place is not None:
        node = data.nodes.get(place)
        if node is None:
            raise CorruptGraph(f"node {place} is on a path and is not stored")
        if depth is not None and node.depth != depth - 1:
            raise CorruptGraph(f"node {place} says depth {node.depth}; the one after it stands at {depth}")
        yield node
        place, depth = node.parent, node.depth
    if depth:
        raise CorruptGraph(f"the path of node {leaf} begins at depth {depth} instead of a root")


def active_path(data: MemoryData, head: Head, *, down_to: int = 0) -> list[Node]:
    """The nodes from the depth ``down_to`` to the head's leaf, in that order."""
    found: list[Node] = []
    for node in walk(data, head.leaf):
        if node.depth < down_to:
            break
        found.append(_shown(node))
    if found and found[0].depth != head.depth:
        raise CorruptGraph(f"the leaf {head.leaf} says depth {found[0].depth}; the head says {head.depth}")
    return found[::-1]


def _shown(node: Node) -> Node:
    """The node as readers get it: what it said about itself for its commit is no part of it."""
    return replace(node, blobs=frozenset(), encoded=None)


def reachable(data: MemoryData, rows: SessionRows, wanted: NodeId) -> Node:
    """A node of this session on whatever branch, or one at or above the point it was forked from."""
    node = data.nodes.get(wanted)
    place = split_node_id(wanted)
    if node is None or place is None:
        raise NodeNotFound(wanted)
    inherited = place[0] != rows.session.uid
    if inherited and all(above.id != wanted for above in walk(data, rows.session.forked_from)):
        raise NodeNotFound(wanted)
    return node


def boundary(data: MemoryData, rows: SessionRows, wanted: NodeId) -> tuple[Node, Mapping[str, BlobHash]]:
    """The last node of a commit, and the state parts that hold there."""
    node = reachable(data, rows, wanted)
    place = split_node_id(wanted)
    commit = None if place is None else data.commits.get(place[:2])
    if commit is None or commit.receipt.leaf != wanted:
        raise InvalidDelta(BOUNDARY_LAW, f"{wanted} is not the last node of a commit")
    if wanted == rows.session.head.leaf:  # the present parts hold, which a commit without nodes may have changed since
        return node, rows.parts
    return node, rows.first_parts if wanted == rows.session.forked_from else commit.parts


class MemoryGraph(Creating):
    async def snapshot(self, uid: SessionUid) -> Snapshot:
        rows = self.living(uid)
        head, revision = rows.session.head, rows.session.config_revision
        config = rows.document("config", revision)
        if config is None:
            raise CorruptRecord(f"session {uid}", f"it has no config of its current revision {revision}")
        nodes = tuple(active_path(self.data, head, down_to=head.frame))
        return Snapshot(rows.session, nodes, dict(rows.parts), config, deepcopy(rows.unsettled))

    async def nodes(self, uid: SessionUid, *, first: int = 0, last: int | None = None) -> list[Node]:
        path = active_path(self.data, self.living(uid).session.head, down_to=first)
        return [node for node in path if last is None or node.depth <= last]

    async def node(self, uid: SessionUid, node: NodeId) -> Node:
        return _shown(reachable(self.data, self.living(uid), node))

    async def on_active_path(self, uid: SessionUid, node: NodeId) -> bool:
        return any(found.id == node for found in walk(self.data, self.living(uid).session.head.leaf))

    async def fork(self, new: NewFork) -> Session:
        check_fork(new)
        metadata = canonical(new.metadata, what="metadata")
        known = self.known(new.uid)
        if known is not None:
            if (known.name, known.forked_from) != (new.name, new.at):
                raise IdReused("session", new.uid)
            return known
        parent = self.living(new.parent)
        node, parts = boundary(self.data, parent, new.at)
        head = Head(leaf=node.id, depth=node.depth, frame=node.frame)
        session = Session(new.uid, new.name, parent.session.agent, head, self.now(), forked_from=new.at)
        rows = SessionRows(session, self.data.created + 1, parts=parts, first_parts=parts)
        config = parent.documents["config", parent.session.config_revision].text
        return self.keep_new(rows, config=config, metadata=metadata)
