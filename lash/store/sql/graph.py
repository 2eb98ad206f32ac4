"""The graph by ranges: finding a path, reading it, moving the head, forking.

A path is a list of segments (see ``lash.graph.graph``), each a range of the nodes' key. A missing row, a node that no
commit wrote, a leaf that is not where the head says: each is CorruptGraph, never healed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    Column,
    Connection,
    FromClause,
    Integer,
    ScalarSelect,
    Select,
    and_,
    bindparam,
    case,
    cast,
    func,
    select,
    true,
)

from lash.encoding import JsonObject
from lash.errors import CorruptGraph, IdReused, InvalidDelta, NodeNotFound
from lash.graph.delta import BOUNDARY_LAW
from lash.graph.graph import Branch, Place, Segment, on_path, segments
from lash.graph.nodes import Node
from lash.graph.session import NewFork, Session
from lash.ids import BlobHash, NodeId, OperationId, SessionUid, node_id, split_node_id
from lash.store import schema
from lash.store.checks import check_fork
from lash.store.rows import Row, SessionRow, new_session_values, read_object
from lash.store.sql.blobs import numbers_of
from lash.store.sql.questions import BY_UID, COMMIT, DOCUMENT, NODE, PARTS
from lash.store.sql.sessions import NO_PARENT, begin_documents, find_row, insert_session, missing_document, require_new
from lash.store.sql.statements import Statement
from lash.store.sql.steps import Steps, Work, Write, answer_to, answers_to, ask_now, rows_of

MAX_DEPTH = 2**31 - 1
"""Deeper than any node can be."""

_branches = schema.branches.c
_CHAIN = select(schema.branches, cast(bindparam("last", type_=Integer), Integer).label("last")).where(
    _branches.session == bindparam("session"), _branches.branch == bindparam("branch")
)
_chain = _CHAIN.cte("chain", recursive=True)
_chain = _chain.union(
    select(
        schema.branches,
        case((_chain.c.parent_depth < _chain.c.last, _chain.c.parent_depth), else_=_chain.c.last),
    )
    .join_from(
        _chain,
        schema.branches,
        (_branches.session == _chain.c.parent_session) & (_branches.branch == _chain.c.parent_branch),
    )
    .where(_chain.c.parent_depth >= bindparam("first", type_=Integer))
)
"""The branches that a path crosses, from its leaf down, and how deep each of them reaches on it. It ends by itself even
where rows form a ring: UNION takes no row twice."""

_BRANCHES = select(_chain)
_in_chain = (
    schema.nodes.c.session == _chain.c.session,
    schema.nodes.c.branch == _chain.c.branch,
    schema.nodes.c.depth > func.coalesce(_chain.c.parent_depth, -1),
    schema.nodes.c.depth.between(bindparam("first"), _chain.c.last),
)


def _nodes(nodes: FromClause, joined: FromClause) -> Select[Any]:
    """Nodes of a chain with the commits that wrote them, and the uids of their sessions. The two are looked up for each
    node: a join would leave it to the planner to read the whole table."""

    def commit(column: Column[Any]) -> ScalarSelect[Any]:
        own = (schema.commits.c.session == nodes.c.session) & (schema.commits.c.revision == nodes.c.revision)
        return select(column).where(own).scalar_subquery()

    return (
        select(
            nodes,
            commit(schema.commits.c.operation).label("operation"),
            commit(schema.commits.c.first_depth).label("first_depth"),
            commit(schema.commits.c.nodes).label("count"),
            select(schema.sessions.c.uid).where(schema.sessions.c.id == nodes.c.session).scalar_subquery().label("uid"),
        )
        .select_from(joined)
        .order_by(nodes.c.depth)
    )


_fenced = select(schema.nodes).where(*_in_chain).offset(0).lateral("nodes")
_NODES = {
    "sqlite": _nodes(schema.nodes, _chain.join(schema.nodes, and_(*_in_chain))),
    # Behind OFFSET Postgres reads the nodes branch by branch, by the whole of their key. Left to itself it may read a
    # session's nodes and throw away those of other branches.
    "postgresql": _nodes(_fenced, _chain.join(_fenced, true())),
}


def parent_of(branch: Row | None, place: Place) -> Place | None:
    """The node that the branch of ``place`` grew from; None when it begins at a root."""
    if branch is None:
        raise CorruptGraph(f"branch {branch_name(place)} is on a path and is not stored")
    if branch["parent_session"] is None:
        return None
    return Place(branch["parent_session"], branch["parent_branch"], branch["parent_depth"])


def missing_node(place: Place) -> CorruptGraph:
    return CorruptGraph(f"the node at depth {place.depth} on branch {branch_name(place)} is missing")


def branch_name(place: Place) -> str:
    return f"{place.branch} of session number {place.origin}"


# -- paths -------------------------------------------------------------------------------------------------------------


CROSSED = rows_of(Statement(_BRANCHES, "session", "branch", "first", "last"))


def path_to(leaf: Place, *, down_to: int = 0) -> Steps[list[Segment]]:
    """The path that ends at ``leaf``, down to a depth, root first. One statement, however many branches it crosses."""
    found = yield from answer_to(CROSSED((leaf.origin, leaf.branch, down_to, leaf.depth)))
    crossed = {(row["session"], row["branch"]): row for row in found or ()}

    def branch_at(place: Place) -> Branch:
        key = (place.origin, place.branch)
        return Branch(*key, parent_of(crossed.get(key), place))

    return segments(leaf, branch_at, down_to=down_to)


@dataclass(frozen=True, slots=True)
class Located:
    """Where a node is kept, and the commit that wrote it as its ``ordinal``-th."""

    place: Place
    commit: Row
    ordinal: int


def locate(row: SessionRow, wanted: NodeId) -> Steps[Located]:
    """A node of this session, or one that it inherited; else NodeNotFound."""
    named = split_node_id(wanted)
    if named is None:
        raise NodeNotFound(wanted)
    uid, operation, ordinal = named
    origin = row if uid == row.uid else (yield from answer_to(BY_UID(uid)))
    if origin is None:
        raise NodeNotFound(wanted)
    commit = yield from answer_to(COMMIT((origin.id, operation)))
    if commit is None or ordinal >= commit["nodes"]:
        raise NodeNotFound(wanted)
    place = Place(origin.id, commit["branch"], commit["first_depth"] + ordinal)
    if origin.id != row.id:
        begin = Place(row.id, 0, MAX_DEPTH)  # the end of a fork's first branch, which grew from the point of the fork
        ancestors = yield from path_to(begin)
        if not on_path(ancestors, place):
            raise NodeNotFound(wanted)
    return Located(place, commit, ordinal)


# -- reading -----------------------------------------------------------------------------------------------------------


def read_path(connection: Connection, row: SessionRow, *, first: int, last: int | None = None) -> list[Node]:
    """The active path from one depth to another, or to the leaf."""
    first = max(first, 0)
    whole = last is None or last >= row.depth
    end = row.depth if last is None else min(last, row.depth)
    if end < first:
        return []
    # One node more than asked for: the first one's parent.
    nodes = _read_nodes(connection, Place(row.id, row.branch, row.depth), max(first - 1, 0), end)
    if whole and nodes[-1].id != row.leaf:
        raise CorruptGraph(f"the head of session {row.uid} says {row.leaf}; its path ends with {nodes[-1].id}")
    return nodes if first == 0 else nodes[1:]


def _read_nodes(connection: Connection, leaf: Place, first: int, last: int) -> list[Node]:
    """The nodes of some depths on the path that ends at ``leaf``, in one statement. The first one lacks its parent."""
    place = {"session": leaf.origin, "branch": leaf.branch, "first": first, "last": min(leaf.depth, last)}
    nodes: list[Node] = []
    for row in connection.execute(_NODES[connection.dialect.name], place).mappings():
        if row["depth"] != first + len(nodes):
            break
        nodes.append(_node(row, nodes[-1].id if nodes else None))
    else:
        if len(nodes) == last - first + 1:
            return nodes
    raise _hole(connection, leaf, first + len(nodes))


def _hole(connection: Connection, leaf: Place, depth: int) -> CorruptGraph:
    """Why a path has nothing, or too much, at a depth."""
    for segment in ask_now(connection, path_to(leaf, down_to=depth)):
        if segment.first <= depth <= segment.last:
            return missing_node(Place(segment.origin, segment.branch, depth))
    return CorruptGraph(f"the path on branch {branch_name(leaf)} has no depth {depth}")


def _node(row: Row, parent: NodeId | None) -> Node:
    place = Place(row["session"], row["branch"], row["depth"])
    ordinal = -1 if row["first_depth"] is None else row["depth"] - row["first_depth"]
    if not 0 <= ordinal < (row["count"] or 0):
        raise CorruptGraph(f"no commit wrote the node at depth {place.depth} on branch {branch_name(place)}")
    if not 0 <= row["frame"] <= row["depth"]:
        raise CorruptGraph(f"the node at depth {place.depth} on branch {branch_name(place)} says frame {row['frame']}")
    return Node(
        id=node_id(SessionUid(row["uid"]), OperationId(row["operation"]), ordinal),
        parent=parent,
        depth=row["depth"],
        frame=row["frame"],
        kind=row["kind"],
        body=row["body"],
        at=row["at"],
        seq=row["seq"],
    )


def read_frame(connection: Connection, row: SessionRow) -> list[Node]:
    """The nodes of the current frame, which begin with the one that opened it."""
    nodes = read_path(connection, row, first=row.frame)
    opened = bool(nodes) and nodes[0].depth == row.frame and nodes[0].opens_frame
    if row.leaf is not None and not opened:
        raise CorruptGraph(f"the head of session {row.uid} says that its frame opened at depth {row.frame}")
    return nodes


def read_node(connection: Connection, uid: SessionUid, wanted: NodeId) -> Node:
    place = ask_now(connection, locate(find_row(connection, uid), wanted)).place
    return _read_nodes(connection, place, max(place.depth - 1, 0), place.depth)[-1]


def on_active_path(connection: Connection, uid: SessionUid, wanted: NodeId) -> bool:
    row = find_row(connection, uid)
    try:
        place = ask_now(connection, locate(row, wanted)).place
    except NodeNotFound:
        return False
    leaf = Place(row.id, row.branch, row.depth)
    return on_path(ask_now(connection, path_to(leaf, down_to=place.depth)), place)


# -- boundaries, for moving the head and for forking -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BoundaryNode:
    """The last node of a commit, and the state parts that hold there.

    ``own_set`` is their number when they are a set of the session itself, and need no copy.
    """

    place: Place
    frame: int
    parts: dict[str, BlobHash]
    own_set: int | None


def boundary(work: Work, row: SessionRow, wanted: NodeId) -> Steps[BoundaryNode]:
    """A commit boundary that the session can reach, else NodeNotFound or InvalidDelta."""
    found = yield from locate(row, wanted)
    place, commit = found.place, found.commit
    if found.ordinal != commit["nodes"] - 1:
        raise InvalidDelta(BOUNDARY_LAW, f"{wanted} is not the last node of a commit")
    state = (place.origin, commit["state_set"])
    if wanted == row.leaf:  # the present parts hold, which a commit without nodes may have changed since
        state = (row.id, row.state_set)
    elif wanted == row.forked_from:  # those that the fork began with
        state = (row.id, 0)
    node, parts = yield from answers_to(NODE((place.origin, place.branch, place.depth)), PARTS(state))
    if node is None:
        raise missing_node(place)
    return BoundaryNode(place, node["frame"], parts or {}, state[1] if state[0] == row.id else None)


def insert_parts(
    work: Work, session: int, state_set: int, parts: Mapping[str, BlobHash], numbers: Mapping[BlobHash, int]
) -> None:
    """Keep a set of state parts whose bodies are stored."""
    for name, found in sorted(parts.items()):
        row = {"session": session, "state_set": state_set, "name": name, "blob": numbers[found]}
        work.changes.insert(schema.state_parts, row)


def fork(new: NewFork) -> Write[Session]:
    check_fork(new)
    place = split_node_id(new.at)
    # The origin of the node is locked too, so that no vacuum takes the node away meanwhile.
    touched = tuple(dict.fromkeys((new.uid, new.parent, place[0] if place else new.parent)))
    return Write(touched, lambda work: _fork(work, new), creates=new.uid)


def _fork(work: Work, new: NewFork) -> Steps[Session]:
    known = work.rows.get(new.uid)
    if known is None:
        parent = work.session(new.parent)
        begin = yield from boundary(work, parent, new.at)
        config = yield from _config_of(parent)
        numbers = yield from numbers_of(set(begin.parts.values()))
        head = {"forked_from": new.at, "leaf": new.at, "depth": begin.place.depth, "frame": begin.frame}
        values = new_session_values(uid=new.uid, name=new.name, agent=parent.agent, now=work.now, **head)
        number = yield from insert_session(new.name, values)  # from here on nothing may be refused any more
        if number is not None:
            begin_documents(work, number, config=config, metadata=new.metadata)
            work.changes.insert(schema.branches, {"session": number, "branch": 0} | grows_from(begin.place))
            insert_parts(work, number, 0, begin.parts, numbers)
        known = yield from answer_to(BY_UID(new.uid))
    row = require_new(known, new.uid)
    if (row.name, row.forked_from) != (new.name, new.at):
        raise IdReused("session", new.uid)
    return row.session()


def _config_of(row: SessionRow) -> Steps[JsonObject]:
    found = yield from answer_to(DOCUMENT((row.id, "config", row.config_revision)))
    if found is None:
        raise missing_document(row, "config", row.config_revision)
    return read_object(found["body"], what=f"config of session {row.uid}")


def grows_from(place: Place | None) -> dict[str, int | None]:
    if place is None:
        return dict(NO_PARENT)
    return {"parent_session": place.origin, "parent_branch": place.branch, "parent_depth": place.depth}
