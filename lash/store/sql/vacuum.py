"""Explicit retention: what ended long enough ago, and nothing needs any more, is removed."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, delete, exists, or_, select

from lash.errors import CorruptGraph
from lash.store import schema
from lash.store.contract import Vacuumed

_CHUNK = 1000

Needed = dict[tuple[int, int], int]
"""How deep living sessions reach into each branch of others."""


def sweep(connection: Connection, before: datetime, now: datetime) -> Vacuumed:
    """Remove and count. Blobs come last: what the other rows let go of is unused by then."""
    items = _sweep_items(connection, before)
    turns = _delete(connection, schema.turns, schema.turns.c.state == "settled", schema.turns.c.settled_at < before)
    waits = _sweep_waits(connection, before, now)
    outbox = _sweep_outbox(connection, before)
    documents = _sweep_documents(connection, before)
    nodes, commits = _sweep_deleted_sessions(connection, before)
    blobs = _sweep_blobs(connection, before)
    return Vacuumed(
        items=items,
        turns=turns,
        waits=waits,
        outbox=outbox,
        documents=documents,
        nodes=nodes,
        commits=commits,
        blobs=blobs,
    )


def _delete(connection: Connection, table: Any, *where: ColumnElement[bool]) -> int:
    return connection.execute(delete(table).where(*where)).rowcount


def _sweep_items(connection: Connection, before: datetime) -> int:
    items, refs = schema.inbox.c, schema.blob_refs.c
    gone = _delete(connection, schema.inbox, items.state.in_(("completed", "cancelled")), items.settled_at < before)
    held = exists().where(items.session == refs.session, items.seq == refs.major)
    _delete(connection, schema.blob_refs, refs.holder == "item", ~held)
    return gone


def _sweep_waits(connection: Connection, before: datetime, now: datetime) -> int:
    """A settled wait goes, unless its session has an unsettled turn, which may have yet to read the answer."""
    waits, turns = schema.waits.c, schema.turns.c
    timed_out = and_(waits.state == "pending", waits.expires_at < before, waits.expires_at <= now)
    unsettled = exists().where(turns.session == waits.session, turns.state != "settled")
    return _delete(connection, schema.waits, or_(waits.settled_at < before, timed_out), ~unsettled)


def _sweep_outbox(connection: Connection, before: datetime) -> int:
    debts, refs = schema.outbox.c, schema.blob_refs.c
    gone = _delete(connection, schema.outbox, debts.state != "owed", debts.settled_at < before)
    held = exists().where(debts.session == refs.session, debts.revision == refs.major, debts.ordinal == refs.minor)
    _delete(connection, schema.blob_refs, refs.holder == "debt", ~held)
    return gone


def _sweep_documents(connection: Connection, before: datetime) -> int:
    documents, turns = schema.documents.c, schema.turns.c
    pinned = exists().where(
        turns.session == documents.session,
        turns.state != "settled",
        or_(
            and_(documents.kind == "config", turns.config_revision == documents.revision),
            and_(documents.kind == "catalog", turns.catalog_revision == documents.revision),
        ),
    )
    return _delete(connection, schema.documents, documents.superseded_at < before, ~pinned)


def _sweep_blobs(connection: Connection, before: datetime) -> int:
    """Lock what nothing refers to, then look again: whoever referred to it meanwhile has either landed, and is seen, or
    finds it gone."""
    blobs = schema.blobs.c
    held = exists().where(schema.blob_refs.c.blob == blobs.id)
    kept = exists().where(schema.state_parts.c.blob == blobs.id)
    unused = select(blobs.id).where(blobs.stored_at < before, ~held, ~kept).order_by(blobs.hash)
    numbers = [row.id for row in connection.execute(unused.with_for_update(skip_locked=True))]
    return sum(
        _delete(connection, schema.blobs, blobs.id.in_(numbers[at : at + _CHUNK]), ~held, ~kept)
        for at in range(0, len(numbers), _CHUNK)
    )


# -- what deleted sessions left behind ---------------------------------------------------------------------------------


def _sweep_deleted_sessions(connection: Connection, before: datetime) -> tuple[int, int]:
    """Nodes of deleted sessions go, except those at or above a point that a living session was forked from."""
    sessions, branches = schema.sessions.c, schema.branches.c
    left_behind = exists().where(branches.session == sessions.id)
    doomed = select(sessions.id).where(sessions.state == "deleted", sessions.deleted_at < before, left_behind)
    numbers = [row.id for row in connection.execute(doomed.order_by(sessions.id).with_for_update())]
    # Read after the locks are held: a fork of one of these sessions has either landed and is seen, or waits for us.
    needed = _needed(connection) if numbers else {}
    nodes = sum(_sweep_nodes(connection, number, needed) for number in numbers)
    commits = sum(_sweep_commits(connection, number) for number in numbers)
    return nodes, commits


def _needed(connection: Connection) -> Needed:
    """How deep the branches that living sessions grew from are needed, and the branches that those grew from.

    The living are read first: a fork that lands after that comes from a session that was counted as living, or from one
    that has been locked by this sweep.
    """
    branches, sessions = schema.branches.c, schema.sessions.c
    living = {row.id for row in connection.execute(select(sessions.id).where(sessions.state == "live"))}
    parents = {
        (row.session, row.branch): (row.parent_session, row.parent_branch, row.parent_depth)
        for row in connection.execute(select(schema.branches).where(branches.parent_session.is_not(None)))
    }
    needed: Needed = {}
    for place, parent in parents.items():
        if place[0] in living:
            _need(needed, parents, parent)
    return needed


def _need(needed: Needed, parents: dict[tuple[int, int], tuple[int, int, int]], place: tuple[int, int, int]) -> None:
    """Mark a place and all that it grew from. What was marked as deep before has been followed already."""
    here: tuple[int, int, int] | None = place
    crossed: set[tuple[int, int]] = set()
    while here is not None:
        origin, branch, depth = here
        if (origin, branch) in crossed:
            raise CorruptGraph(f"branch {branch} of session number {origin} grew from itself")
        crossed.add((origin, branch))
        if needed.get((origin, branch), -1) >= depth:
            return
        needed[origin, branch] = depth
        here = parents.get((origin, branch))


def _sweep_nodes(connection: Connection, session: int, needed: Needed) -> int:
    branches, nodes, refs = schema.branches.c, schema.nodes.c, schema.blob_refs.c
    gone = 0
    for row in connection.execute(select(branches.branch).where(branches.session == session)).all():
        depth = needed.get((session, row.branch), -1)
        _delete(
            connection,
            schema.blob_refs,
            refs.session == session,
            refs.holder == "node",
            refs.major == row.branch,
            refs.minor > depth,
        )
        gone += _delete(
            connection, schema.nodes, nodes.session == session, nodes.branch == row.branch, nodes.depth > depth
        )
        if (session, row.branch) not in needed:
            _delete(connection, schema.branches, branches.session == session, branches.branch == row.branch)
    return gone


def _sweep_commits(connection: Connection, session: int) -> int:
    """A commit stays as long as its nodes: rewinds and forks need its state parts."""
    commits, nodes, parts = schema.commits.c, schema.nodes.c, schema.state_parts.c
    has_nodes = exists().where(nodes.session == commits.session, nodes.revision == commits.revision)
    gone = _delete(connection, schema.commits, commits.session == session, ~has_nodes)
    used = exists().where(commits.session == parts.session, commits.state_set == parts.state_set)
    _delete(connection, schema.state_parts, parts.session == session, ~used)
    _delete(connection, schema.usage, schema.usage.c.session == session)
    return gone
