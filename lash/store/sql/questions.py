"""Everything that a write can ask of the database. One statement each, built once."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import Connection, RowMapping, Select, bindparam, or_, select, text, tuple_

from lash.ids import BlobHash, SessionName, SessionUid, TurnId
from lash.inbox.taking import MAX_TAKEN
from lash.store import schema
from lash.store.rows import SessionRow, read_session
from lash.store.sql.steps import Question, Rows, each, rows_by

# -- sessions ----------------------------------------------------------------------------------------------------------

_SESSIONS = select(schema.sessions)
_BY_UID = _SESSIONS.where(schema.sessions.c.uid.in_(bindparam("uids", expanding=True)))
_IN_ORDER = _BY_UID.order_by(schema.sessions.c.id)
_UNHELD = _IN_ORDER.with_for_update(skip_locked=True)
_AWAITED = _IN_ORDER.with_for_update()
_A_MOMENT = text("SET LOCAL lock_timeout = '250ms'")
_BY_NAME = _SESSIONS.where(
    schema.sessions.c.name.in_(bindparam("names", expanding=True)), text("lash_sessions.state = 'live'")
)


def _by_uid(statement: Select[Any], connection: Connection, uids: Sequence[SessionUid]) -> Rows:
    rows = [read_session(row) for row in connection.execute(statement, {"uids": uids}).mappings()]
    return {row.uid: row for row in rows}


def lock_unheld(connection: Connection, uids: Sequence[SessionUid]) -> Rows:
    """Lock the rows that nobody holds. On SQLite, where only one transaction writes at a time, that is all of them."""
    return _by_uid(_UNHELD, connection, uids)


def lock_patiently(connection: Connection, uids: Sequence[SessionUid]) -> Rows:
    """Wait for those that hold the rows."""
    return _by_uid(_AWAITED, connection, uids)


@contextlib.contextmanager
def patience(connection: Connection) -> Iterator[None]:
    """Inside, claims and locks wait a moment for what is held."""
    connection.execute(_A_MOMENT)
    connection.info["lash_patient"] = True
    try:
        yield
    finally:
        del connection.info["lash_patient"]


def is_patient(connection: Connection) -> bool:
    return "lash_patient" in connection.info


def _by_name(connection: Connection, names: Sequence[SessionName]) -> dict[SessionName, SessionRow]:
    rows = [read_session(row) for row in connection.execute(_BY_NAME, {"names": names}).mappings()]
    return {row.name: row for row in rows if row.name is not None}


BY_UID: Question[SessionUid, SessionRow] = Question(lambda connection, uids: _by_uid(_BY_UID, connection, uids))
BY_NAME = Question(_by_name)
DOCUMENT = rows_by(schema.documents.c.session, schema.documents.c.kind, schema.documents.c.revision)

# -- items -------------------------------------------------------------------------------------------------------------

# The words of the partial indexes, letter by letter: with bound parameters they would not be used.
WAITING = text("lash_inbox.state IN ('pending', 'taken')")
_pending = text("lash_inbox.state = 'pending'")
_taken = text("lash_inbox.state = 'taken'")

_inbox = schema.inbox.c
_READY_ITEMS = (
    select(schema.inbox)
    .where(
        _inbox.session == bindparam("session"),
        WAITING,
        _pending,
        _inbox.target.is_(None),
        or_(_inbox.available_at.is_(None), _inbox.available_at <= bindparam("now", type_=schema.Micros)),
    )
    .order_by(_inbox.seq)
    .limit(MAX_TAKEN)
)
_AIMED = (
    select(schema.inbox)
    .where(_inbox.session == bindparam("session"), _pending, _inbox.target == bindparam("turn"))
    .order_by(_inbox.seq)
)
_TAKEN = (
    select(schema.inbox)
    .where(_inbox.session == bindparam("session"), _taken, _inbox.turn == bindparam("turn"))
    .order_by(_inbox.seq)
)
_BEHIND = (
    select(schema.inbox)
    .where(_inbox.session == bindparam("session"), WAITING, _pending, _inbox.seq > bindparam("seq"))
    .order_by(_inbox.seq)
)
# All that wait, whatever they aim at: what aims at a turn that is being settled becomes input for the next one.
_NEXT_ITEM = (
    select(_inbox.due_at)
    .where(_inbox.session == bindparam("session"), _pending, _inbox.seq.not_in(bindparam("without", expanding=True)))
    .order_by(_inbox.due_at)
    .limit(1)
)
_NEXT_ITEM_BEFORE = _NEXT_ITEM.where(_inbox.seq < bindparam("before"))


def _ready_items(connection: Connection, key: tuple[int, datetime]) -> Sequence[RowMapping]:
    return connection.execute(_READY_ITEMS, {"session": key[0], "now": key[1]}).mappings().all()


def _aimed(connection: Connection, key: tuple[int, TurnId]) -> Sequence[RowMapping]:
    return connection.execute(_AIMED, {"session": key[0], "turn": key[1]}).mappings().all()


def _taken_items(connection: Connection, key: tuple[int, TurnId]) -> Sequence[RowMapping]:
    return connection.execute(_TAKEN, {"session": key[0], "turn": key[1]}).mappings().all()


def _behind(connection: Connection, key: tuple[int, int]) -> Sequence[RowMapping]:
    return connection.execute(_BEHIND, {"session": key[0], "seq": key[1]}).mappings().all()


class Remaining(NamedTuple):
    """The pending items of a session, some left out: those from one place in line on, and those named."""

    session: int
    without: frozenset[int] = frozenset()
    before: int | None = None


def _next_item(connection: Connection, key: Remaining) -> datetime | None:
    place: dict[str, Any] = {"session": key.session, "without": list(key.without)}
    if key.before is None:
        found = connection.execute(_NEXT_ITEM, place)
    else:
        found = connection.execute(_NEXT_ITEM_BEFORE, place | {"before": key.before})
    due: datetime | None = found.scalar_one_or_none()
    return due


ITEM = rows_by(_inbox.session, _inbox.id)
ITEM_BY_KEY = rows_by(_inbox.session, _inbox.key)
READY_ITEMS = each(_ready_items)
"""The first items that a new turn could take. Ready ones only, so that no number of others can hide them."""
AIMED = each(_aimed)
TAKEN = each(_taken_items)
BEHIND = each(_behind)
NEXT_ITEM = each(_next_item)
"""When the earliest of them is available."""

# -- turns, journal, waits ---------------------------------------------------------------------------------------------

_UNSETTLED = select(schema.turns).where(
    schema.turns.c.session.in_(bindparam("sessions", expanding=True)), text("lash_turns.state <> 'settled'")
)
_TURN_WAITS = select(schema.waits).where(
    schema.waits.c.session == bindparam("session"),
    schema.waits.c.turn == bindparam("turn"),
    schema.waits.c.state == "pending",
)


def _unsettled(connection: Connection, sessions: Sequence[int]) -> dict[int, RowMapping]:
    return {row["session"]: row for row in connection.execute(_UNSETTLED, {"sessions": sessions}).mappings()}


def _turn_waits(connection: Connection, key: tuple[int, TurnId]) -> Sequence[RowMapping]:
    return connection.execute(_TURN_WAITS, {"session": key[0], "turn": key[1]}).mappings().all()


UNSETTLED = Question(_unsettled)
TURN = rows_by(schema.turns.c.session, schema.turns.c.id)
ENTRY = rows_by(schema.journal.c.session, schema.journal.c.turn, schema.journal.c.key)
WAIT = rows_by(schema.waits.c.id)
TURN_WAITS = each(_turn_waits)

# -- graph, commits, blobs ---------------------------------------------------------------------------------------------

_NUMBERS = select(schema.blobs.c.hash, schema.blobs.c.id).where(
    schema.blobs.c.hash.in_(bindparam("hashes", expanding=True))
)
_PARTS = (
    select(
        schema.state_parts.c.session,
        schema.state_parts.c.state_set,
        schema.state_parts.c.name,
        schema.blobs.c.hash,
    )
    .join_from(schema.state_parts, schema.blobs, schema.blobs.c.id == schema.state_parts.c.blob)
    .where(tuple_(schema.state_parts.c.session, schema.state_parts.c.state_set).in_(bindparam("keys", expanding=True)))
)


def _numbers(connection: Connection, hashes: Sequence[BlobHash]) -> dict[BlobHash, int]:
    return {BlobHash(found): number for found, number in connection.execute(_NUMBERS, {"hashes": hashes})}


def _parts(connection: Connection, keys: Sequence[tuple[int, int]]) -> dict[tuple[int, int], dict[str, BlobHash]]:
    found: dict[tuple[int, int], dict[str, BlobHash]] = defaultdict(dict)
    for row in connection.execute(_PARTS, {"keys": keys}):
        found[row.session, row.state_set][row.name] = BlobHash(row.hash)
    return {key: found.get(key, {}) for key in keys}


COMMIT = rows_by(schema.commits.c.session, schema.commits.c.operation)
NODE = rows_by(schema.nodes.c.session, schema.nodes.c.branch, schema.nodes.c.depth)
PARTS = Question(_parts)
BLOB = Question(_numbers)
DEBT = rows_by(schema.outbox.c.session, schema.outbox.c.operation, schema.outbox.c.ordinal)
