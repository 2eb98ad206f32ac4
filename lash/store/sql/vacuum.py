"""Explicit retention: what ended long enough ago, and nothing needs any more, is removed.

A sweep goes through the sessions a few at a time, the youngest first: a fork is younger than what it was forked from,
so by the time a deleted session is looked at, the branches that still grow from it are those that somebody needs. Each
small transaction locks the sessions that it sweeps, as every other write does. Blobs come last: what the other rows let
go of is unused by then.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

from sqlalchemy import ColumnElement, Connection, Table, and_, delete, exists, func, or_, select

from lash.errors import CorruptGraph
from lash.store import schema
from lash.store.contract import Vacuumed

_SESSIONS = 100
_BLOBS = 1000
"""How many rows one transaction locks."""


@dataclass(frozen=True, slots=True)
class Look:
    """A part of a sweep that only reads."""

    run: Callable[[Connection], Any]


@dataclass(frozen=True, slots=True)
class Change:
    """A part of a sweep that is a transaction of its own. ``rehearsed`` changes are undone: they need no locks."""

    run: Callable[[bool, Connection], Vacuumed]


Now = Callable[[Connection], datetime]
Sweep = Generator[Look | Change, Any, Vacuumed]


def sweep(before: datetime, clock: Now) -> Sweep:
    """All parts of a sweep, in order; it is sent the result of each."""
    report = Vacuumed()
    below = None
    while found := (yield Look(partial(_sessions_to_sweep, before=before, clock=clock, below=below))):
        report += yield Change(partial(_sweep_sessions, found, before, clock))
        below = found[-1]
    after = 0
    while found := (yield Look(partial(_blobs_to_sweep, before=before, after=after))):
        report += yield Change(partial(_sweep_blobs, found, before))
        after = found[-1]
    return report


def rehearse(connection: Connection, parts: Sweep) -> Vacuumed:
    """Run a whole sweep inside one transaction, for the report."""
    answer: Any = None
    while True:
        try:
            part = parts.send(answer)
        except StopIteration as end:
            report: Vacuumed = end.value
            return report
        answer = part.run(connection) if isinstance(part, Look) else part.run(True, connection)


def _delete(connection: Connection, table: Table, *where: ColumnElement[bool]) -> int:
    return connection.execute(delete(table).where(*where)).rowcount


# -- what ended --------------------------------------------------------------------------------------------------------


def _ended(before: datetime, now: datetime) -> dict[Table, ColumnElement[bool]]:
    """Which rows of a session have had their time, by table."""
    items, turns, waits, debts, documents = (
        schema.inbox.c,
        schema.turns.c,
        schema.waits.c,
        schema.outbox.c,
        schema.documents.c,
    )
    timed_out = and_(waits.state == "pending", waits.expires_at < before, waits.expires_at <= now)
    # An unsettled turn may have yet to read an answer, and runs with the documents that it pinned.
    unsettled = schema.turns.alias("unsettled")
    waited_for = exists().where(unsettled.c.session == waits.session, unsettled.c.state != "settled")
    pinned = exists().where(
        unsettled.c.session == documents.session,
        unsettled.c.state != "settled",
        or_(
            and_(documents.kind == "config", unsettled.c.config_revision == documents.revision),
            and_(documents.kind == "catalog", unsettled.c.catalog_revision == documents.revision),
        ),
    )
    return {
        schema.inbox: and_(items.state.in_(("completed", "cancelled")), items.settled_at < before),
        schema.turns: and_(turns.state == "settled", turns.settled_at < before),
        schema.waits: and_(or_(waits.settled_at < before, timed_out), ~waited_for),
        schema.outbox: and_(debts.state != "owed", debts.settled_at < before),
        schema.documents: and_(documents.superseded_at < before, ~pinned),
    }


def _doomed(before: datetime) -> ColumnElement[bool]:
    """Sessions that were deleted long enough ago and have left something behind."""
    sessions = schema.sessions.c
    left_behind = exists().where(schema.branches.c.session == sessions.id)
    return and_(sessions.state == "deleted", sessions.deleted_at < before, left_behind)


def _sessions_to_sweep(connection: Connection, *, before: datetime, clock: Now, below: int | None) -> list[int]:
    sessions = schema.sessions.c
    rules = _ended(before, clock(connection))
    ended = [exists().where(table.c.session == sessions.id, rule) for table, rule in rules.items()]
    wanted = select(sessions.id).where(or_(_doomed(before), *ended)).order_by(sessions.id.desc()).limit(_SESSIONS)
    return list(connection.execute(wanted if below is None else wanted.where(sessions.id < below)).scalars())


def _sweep_sessions(
    numbers: Sequence[int], before: datetime, clock: Now, rehearsed: bool, connection: Connection
) -> Vacuumed:
    sessions = schema.sessions.c
    if not rehearsed:
        rows = select(sessions.id).where(sessions.id.in_(numbers)).order_by(sessions.id)
        connection.execute(rows.with_for_update()).all()
    gone = {
        table.name.removeprefix("lash_"): _delete(connection, table, table.c.session.in_(numbers), rule)
        for table, rule in _ended(before, clock(connection)).items()
    }
    _drop_references(connection, numbers)
    doomed = connection.execute(select(sessions.id).where(sessions.id.in_(numbers), _doomed(before))).scalars()
    left = [_sweep_deleted(connection, number) for number in sorted(doomed, reverse=True)]
    return sum(left, Vacuumed(items=gone.pop("inbox"), **gone))


def _drop_references(connection: Connection, numbers: Sequence[int]) -> None:
    """Items and debts that are gone hold no blobs."""
    items, debts, refs = schema.inbox.c, schema.outbox.c, schema.blob_refs.c
    by_item = exists().where(items.session == refs.session, items.seq == refs.major)
    by_debt = exists().where(debts.session == refs.session, debts.revision == refs.major, debts.ordinal == refs.minor)
    for holder, held in (("item", by_item), ("debt", by_debt)):
        _delete(connection, schema.blob_refs, refs.session.in_(numbers), refs.holder == holder, ~held)


# -- what deleted sessions left behind ---------------------------------------------------------------------------------


def _sweep_deleted(connection: Connection, session: int) -> Vacuumed:
    """Nodes of a deleted session go, except those at or above a point that another session's branch grew from."""
    nodes, refs, branches = schema.nodes.c, schema.blob_refs.c, schema.branches.c
    needed = _needed(connection, session)
    gone = 0
    for number in connection.execute(select(branches.branch).where(branches.session == session)).scalars().all():
        depth = needed.get(number, -1)
        held = (refs.session == session, refs.holder == "node", refs.major == number, refs.minor > depth)
        _delete(connection, schema.blob_refs, *held)
        gone += _delete(connection, schema.nodes, nodes.session == session, nodes.branch == number, nodes.depth > depth)
        if number not in needed:
            _delete(connection, schema.branches, branches.session == session, branches.branch == number)
    return Vacuumed(nodes=gone, commits=_sweep_commits(connection, session))


def _needed(connection: Connection, session: int) -> dict[int, int]:
    """How deep each branch of a session is needed by others, and by its own branches that others need."""
    branches = schema.branches.c
    grown = (
        select(
            branches.parent_branch,
            func.max(branches.parent_depth).label("depth"),
            func.min(branches.session).label("oldest"),
        )
        .where(branches.parent_session == session, branches.session != session)
        .group_by(branches.parent_branch)
    )
    needed: dict[int, int] = {}
    for row in connection.execute(grown):
        if row.oldest < session:
            raise CorruptGraph(f"branch {row.parent_branch} of session number {session} grew from itself")
        needed[row.parent_branch] = row.depth
    own = select(branches.branch, branches.parent_branch, branches.parent_depth).where(
        branches.session == session, branches.parent_session == session
    )
    # A branch has a higher number than the one that it grew from.
    for row in connection.execute(own.order_by(branches.branch.desc())):
        if row.parent_branch >= row.branch:
            raise CorruptGraph(f"branch {row.branch} of session number {session} grew from itself")
        if row.branch in needed:
            needed[row.parent_branch] = max(needed.get(row.parent_branch, -1), row.parent_depth)
    return needed


def _sweep_commits(connection: Connection, session: int) -> int:
    """A commit stays as long as its nodes: rewinds and forks need its state parts."""
    commits, nodes, parts = schema.commits.c, schema.nodes.c, schema.state_parts.c
    has_nodes = exists().where(nodes.session == commits.session, nodes.revision == commits.revision)
    gone = _delete(connection, schema.commits, commits.session == session, ~has_nodes)
    used = exists().where(commits.session == parts.session, commits.state_set == parts.state_set)
    _delete(connection, schema.state_parts, parts.session == session, ~used)
    _delete(connection, schema.usage, schema.usage.c.session == session)
    return gone


# -- blobs -------------------------------------------------------------------------------------------------------------


def _unused(before: datetime) -> ColumnElement[bool]:
    blobs = schema.blobs.c
    held = exists().where(schema.blob_refs.c.blob == blobs.id)
    kept = exists().where(schema.state_parts.c.blob == blobs.id)
    return and_(blobs.stored_at < before, ~held, ~kept)


def _blobs_to_sweep(connection: Connection, *, before: datetime, after: int) -> list[int]:
    blobs = schema.blobs.c
    wanted = select(blobs.id).where(blobs.id > after, _unused(before)).order_by(blobs.id).limit(_BLOBS)
    return list(connection.execute(wanted).scalars())


def _sweep_blobs(numbers: Sequence[int], before: datetime, rehearsed: bool, connection: Connection) -> Vacuumed:
    """Lock what nothing refers to, then look again: whoever referred to it meanwhile has either landed, and is seen, or
    finds it gone."""
    blobs = schema.blobs.c
    if not rehearsed:
        free = select(blobs.id).where(blobs.id.in_(numbers)).order_by(blobs.id).with_for_update(skip_locked=True)
        numbers = list(connection.execute(free).scalars())
    return Vacuumed(blobs=_delete(connection, schema.blobs, blobs.id.in_(numbers), _unused(before)))
