"""Everything that a write can ask of the database. One statement each, built once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import bindparam, literal_column, or_, select, text

from lash.ids import BlobHash
from lash.inbox.taking import MAX_TAKEN
from lash.store import schema
from lash.store.rows import Row, SessionRow, read_session
from lash.store.sql.link import Link
from lash.store.sql.statements import Statement
from lash.store.sql.steps import Question, each, row_by, row_of, rows_of

# -- sessions ----------------------------------------------------------------------------------------------------------


def _session_by(rows: Question[tuple[Any, ...], Row]) -> Question[Any, SessionRow]:
    def load(link: Link, keys: Sequence[Any]) -> dict[Any, SessionRow]:
        found = rows.load(link, [(key,) for key in keys])
        return {key[0]: read_session(row) for key, row in found.items()}

    return Question(load)


_named = select(schema.sessions).where(
    schema.sessions.c.name == bindparam("name"), text("lash_sessions.state = 'live'")
)
BY_UID = _session_by(row_by(schema.sessions.c.uid))
BY_NAME = _session_by(row_of(Statement(_named), "name"))
DOCUMENT = row_by(schema.documents.c.session, schema.documents.c.kind, schema.documents.c.revision)

# -- items -------------------------------------------------------------------------------------------------------------

# The words of the partial indexes, letter by letter: with bound parameters they would not be used.
WAITING = text("lash_inbox.state IN ('pending', 'taken')")
_pending = text("lash_inbox.state = 'pending'")
_taken = text("lash_inbox.state = 'taken'")

_inbox = schema.inbox.c
_items = select(schema.inbox).where(_inbox.session == bindparam("session")).order_by(_inbox.seq)
_ready = or_(_inbox.available_at.is_(None), _inbox.available_at <= bindparam("now"))
_ready_items = _items.where(WAITING, _pending, _inbox.target.is_(None), _ready).limit(literal_column(str(MAX_TAKEN)))
_aimed = _items.where(_pending, _inbox.target == bindparam("turn"))
_taken_items = _items.where(_taken, _inbox.turn == bindparam("turn"))
_behind = _items.where(WAITING, _pending, _inbox.seq > bindparam("seq"))

ITEM = row_by(_inbox.session, _inbox.id)
ITEM_BY_KEY = row_by(_inbox.session, _inbox.key)
READY_ITEMS = rows_of(Statement(_ready_items), "session", "now")
"""The first items that a new turn could take. Ready ones only, so that no number of others can hide them."""
AIMED = rows_of(Statement(_aimed), "session", "turn")
TAKEN = rows_of(Statement(_taken_items), "session", "turn")
BEHIND = rows_of(Statement(_behind), "session", "seq")

# All that wait, whatever they aim at: what aims at a turn that is being settled becomes input for the next one.
_due = (
    select(_inbox.seq, _inbox.due_at)
    .where(_inbox.session == bindparam("session"), _pending)
    .order_by(_inbox.due_at, _inbox.seq)
)
NEXT_ITEM = row_of(Statement(_due.limit(literal_column("1"))), "session")
"""The pending item that is available first."""

_PAGE = 100
_due_page = Statement(_due.limit(literal_column(str(_PAGE))).offset(bindparam("offset")))
_due_before = Statement(_due.where(_inbox.seq < bindparam("before")).limit(literal_column("1")))


class Remaining(NamedTuple):
    """The pending items of a session, some left out: those from one place in line on, and those named."""

    session: int
    without: frozenset[int] = frozenset()
    before: int | None = None


def _earliest(link: Link, key: Remaining) -> datetime | None:
    if key.before is not None:
        found = link.rows(_due_before, {"session": key.session, "before": key.before})
        return found[0]["due_at"] if found else None
    offset = 0
    while page := link.rows(_due_page, {"session": key.session, "offset": offset}):
        for row in page:
            if row["seq"] not in key.without:
                due: datetime = row["due_at"]
                return due
        offset += _PAGE
    return None


EARLIEST = each(_earliest)
"""When the earliest of them is available."""

# -- turns, journal, waits ---------------------------------------------------------------------------------------------

_unsettled = select(schema.turns).where(
    schema.turns.c.session == bindparam("session"), text("lash_turns.state <> 'settled'")
)
_turn_waits = select(schema.waits).where(
    schema.waits.c.session == bindparam("session"),
    schema.waits.c.turn == bindparam("turn"),
    text("lash_waits.state = 'pending'"),
)
UNSETTLED = row_of(Statement(_unsettled), "session")
TURN = row_by(schema.turns.c.session, schema.turns.c.id)
ENTRY = row_by(schema.journal.c.session, schema.journal.c.turn, schema.journal.c.key)
WAIT = row_by(schema.waits.c.id)
TURN_WAITS = rows_of(Statement(_turn_waits), "session", "turn")

# -- graph, commits, blobs ---------------------------------------------------------------------------------------------

_parts = (
    select(schema.state_parts.c.name, schema.blobs.c.hash)
    .join_from(schema.state_parts, schema.blobs, schema.blobs.c.id == schema.state_parts.c.blob)
    .where(
        schema.state_parts.c.session == bindparam("session"), schema.state_parts.c.state_set == bindparam("state_set")
    )
)
_number = row_of(Statement(select(schema.blobs.c.id).where(schema.blobs.c.hash == bindparam("hash"))), "hash")
_part_rows = rows_of(Statement(_parts), "session", "state_set")


def _numbers(link: Link, hashes: Sequence[BlobHash]) -> dict[BlobHash, int]:
    found = _number.load(link, [(wanted,) for wanted in hashes])
    return {key[0]: row["id"] for key, row in found.items()}


def _parts_of(link: Link, keys: Sequence[tuple[int, int]]) -> dict[tuple[int, int], dict[str, BlobHash]]:
    found: dict[tuple[int, int], dict[str, BlobHash]] = defaultdict(dict)
    for key, rows in _part_rows.load(link, keys).items():
        found[key[0], key[1]] = {row["name"]: BlobHash(row["hash"]) for row in rows}
    return found


COMMIT = row_by(schema.commits.c.session, schema.commits.c.operation)
NODE = row_by(schema.nodes.c.session, schema.nodes.c.branch, schema.nodes.c.depth)
PARTS = Question(_parts_of)
BLOB = Question(_numbers)
DEBT = row_by(schema.outbox.c.session, schema.outbox.c.operation, schema.outbox.c.ordinal)
