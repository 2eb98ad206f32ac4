"""Everything that a write can ask of the database. One statement each, built once."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from sqlalchemy import Select, and_, bindparam, case, exists, literal_column, or_, select, text

from lash.ids import BlobHash
from lash.inbox.taking import MAX_TAKEN
from lash.store import schema
from lash.store.rows import Row, read_session
from lash.store.sql.link import Link
from lash.store.sql.statements import Statement, part
from lash.store.sql.steps import Each, Lookup, by, read_of, row_by, row_of, rows_of

# -- sessions ----------------------------------------------------------------------------------------------------------

_named = select(schema.sessions).where(
    schema.sessions.c.name == bindparam("name"), text("lash_sessions.state = 'live'")
)
BY_UID = read_of(by(schema.sessions.c.uid), read_session)
BY_NAME = read_of(Statement(_named, "name"), read_session)
DOCUMENT = row_by(schema.documents.c.session, schema.documents.c.kind, schema.documents.c.revision)

# -- items -------------------------------------------------------------------------------------------------------------

# The words of the partial indexes, letter by letter: with bound parameters they would not be used.
WAITING = text("lash_inbox.state IN ('pending', 'taken')")
_pending = text("lash_inbox.state = 'pending'")
_taken = text("lash_inbox.state = 'taken'")

_inbox = schema.inbox.c
_items = select(schema.inbox).where(_inbox.session == bindparam("session")).order_by(_inbox.seq)
_ready = or_(_inbox.available_at.is_(None), _inbox.available_at <= bindparam("now"))
_unsettled_too = exists().where(schema.turns.c.session == bindparam("session"), text("lash_turns.state <> 'settled'"))
# As a condition it would be asked of every item that waits.
_how_many = select(case((_unsettled_too, literal_column("0")), else_=literal_column(str(MAX_TAKEN)))).scalar_subquery()
_ready_items = _items.where(WAITING, _pending, _inbox.target.is_(None), _ready).limit(_how_many)
_aimed = _items.where(_pending, _inbox.target == bindparam("turn"))
_taken_items = _items.where(_taken, _inbox.turn == bindparam("turn"))
_behind = _items.where(WAITING, _pending, _inbox.seq > bindparam("seq"))


def _in_line(statement: Select[tuple[object, ...]], *names: str) -> Lookup[tuple[object, ...], list[Row]]:
    """Items in the order of their coming, which a statement that is joined to others does not promise."""
    return Lookup(Statement(statement, *names), lambda rows: sorted(rows, key=lambda row: row["seq"]))


ITEM = row_by(_inbox.session, _inbox.id)
ITEM_BY_KEY = row_by(_inbox.session, _inbox.key)
READY_ITEMS = _in_line(_ready_items, "session", "now")
"""The first items that a new turn could take; none as long as there is an unsettled one. Ready ones only, so that no
number of others can hide them."""
AIMED = _in_line(_aimed, "session", "turn")
TAKEN = _in_line(_taken_items, "session", "turn")
BEHIND = _in_line(_behind, "session", "seq")

# All that wait, whatever they aim at: what aims at a turn that is being settled becomes input for the next one.
_due = (
    select(_inbox.seq, _inbox.due_at)
    .where(_inbox.session == bindparam("session"), _pending)
    .order_by(_inbox.due_at, _inbox.seq)
)

_PAGE = 100
_due_page = Statement(_due.limit(literal_column(str(_PAGE))).offset(bindparam("offset")), "session", "offset")
_due_before = Statement(_due.where(_inbox.seq < bindparam("before")).limit(literal_column("1")), "session", "before")


class Remaining(NamedTuple):
    """The pending items of a session, some left out: those from one place in line on, and those named."""

    session: int
    without: frozenset[int] = frozenset()
    before: int | None = None


def _earliest(link: Link, key: Remaining) -> datetime | None:
    if key.before is not None:
        found = link.rows(_due_before, (key.session, key.before))
        return found[0]["due_at"] if found else None
    offset = 0
    while page := link.rows(_due_page, (key.session, offset)):
        for row in page:
            if row["seq"] not in key.without:
                due: datetime = row["due_at"]
                return due
        offset += _PAGE
    return None


EARLIEST = Each(_earliest)
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
UNSETTLED = row_of(Statement(_unsettled, "session"))
TURN = row_by(schema.turns.c.session, schema.turns.c.id)
ENTRY = row_by(schema.journal.c.session, schema.journal.c.turn, schema.journal.c.key)
WAIT = row_by(schema.waits.c.id)
TURN_WAITS = rows_of(Statement(_turn_waits, "session", "turn"))

# -- graph, commits, blobs ---------------------------------------------------------------------------------------------

_parts = (
    select(schema.state_parts.c.name, schema.blobs.c.hash)
    .join_from(schema.state_parts, schema.blobs, schema.blobs.c.id == schema.state_parts.c.blob)
    .where(
        schema.state_parts.c.session == bindparam("session"), schema.state_parts.c.state_set == bindparam("state_set")
    )
)
_number = select(schema.blobs.c.id).where(schema.blobs.c.hash == bindparam("hash"))

COMMIT = row_by(schema.commits.c.session, schema.commits.c.operation)
NODE = row_by(schema.nodes.c.session, schema.nodes.c.branch, schema.nodes.c.depth)
PARTS: Lookup[tuple[int, int], dict[str, BlobHash]] = Lookup(
    Statement(_parts, "session", "state_set"), lambda rows: {row["name"]: BlobHash(row["hash"]) for row in rows}
)
BLOB = read_of(Statement(_number, "hash"), lambda row: int(row["id"]))
DEBT = row_by(schema.outbox.c.session, schema.outbox.c.operation, schema.outbox.c.ordinal)

# -- settling a turn ---------------------------------------------------------------------------------------------------

_own_commit = and_(
    schema.commits.c.session == schema.sessions.c.id, schema.commits.c.operation == bindparam("operation")
)
_own_turn = and_(schema.turns.c.session == schema.sessions.c.id, text("lash_turns.state <> 'settled'"))
_settling = (
    select(
        *part("commit", schema.commits),
        *part("turn", schema.turns),
        _due.with_only_columns(_inbox.due_at).limit(literal_column("1")).scalar_subquery().label("next_item_at"),
        exists()
        .where(_inbox.session == bindparam("session"), _pending, _inbox.target == schema.turns.c.id)
        .label("aimed"),
        exists()
        .where(
            schema.waits.c.session == bindparam("session"),
            schema.waits.c.turn == schema.turns.c.id,
            text("lash_waits.state = 'pending'"),
        )
        .label("waits"),
    )
    .select_from(schema.sessions.outerjoin(schema.commits, _own_commit).outerjoin(schema.turns, _own_turn))
    .where(schema.sessions.c.id == bindparam("session"))
)
SETTLING = row_of(Statement(_settling, "session", "operation"))
"""What a commit must know: its receipt, if it was committed before; the unsettled turn; when the pending item is
available that is first; whether items are aimed at the turn, and whether it has pending waits."""
