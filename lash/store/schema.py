"""The tables, one schema for both databases. ``migrations/`` builds the same and a test compares the two.

Rows refer to a session by a small integer; ids are 16 raw bytes; times are microseconds. A node's key is its place:
(session, branch, depth). Its id is not stored: it follows from the session's uid, the operation of the commit that
wrote it and its place in that commit. A branch, and a set of state parts, has the number of the revision that began it.
All names begin with ``lash_``, so that the tables can live beside an application's own.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import (
    DDL,
    BigInteger,
    CheckConstraint,
    Column,
    Dialect,
    ForeignKey,
    Identity,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    Text,
    UniqueConstraint,
    event,
    text,
)
from sqlalchemy.types import TypeDecorator

from lash.clock import from_micros, to_micros
from lash.errors import CorruptRecord

metadata = MetaData(
    naming_convention={
        "pk": "%(table_name)s_pk",
        "fk": "%(table_name)s_%(column_0_name)s_fk",
        "uq": "%(table_name)s_%(column_0_N_name)s_uq",
        "ix": "%(table_name)s_%(column_0_N_name)s_ix",
        "ck": "%(table_name)s_%(constraint_name)s_ck",
    }
)


NO_ID = b""
"""What no row has. Text that is no id, asked for, names nothing; what is to be written was checked before."""


class Stored(TypeDecorator[Any]):
    """A column whose values look otherwise in memory. ``write`` and ``read`` never see a missing one."""

    cache_ok = True

    @staticmethod
    def write(value: Any) -> Any:
        raise NotImplementedError

    @staticmethod
    def read(value: Any) -> Any:
        raise NotImplementedError

    def process_bind_param(self, value: Any, dialect: Dialect) -> Any:
        return None if value is None else self.write(value)

    def process_result_value(self, value: Any, dialect: Dialect) -> Any:
        return None if value is None else self.read(value)


class Hex(Stored):
    """An id or a hash: hex digits in memory, raw bytes in the row."""

    impl = LargeBinary
    cache_ok = True

    @staticmethod
    def write(value: str) -> bytes:
        try:
            found = bytes.fromhex(value)
        except ValueError:
            return NO_ID
        return found if found.hex() == value else NO_ID

    @staticmethod
    def read(value: Any) -> str:
        return bytes(value).hex()


class Micros(Stored):
    """An instant: UTC in memory, microseconds since 1970 in the row."""

    impl = BigInteger
    cache_ok = True

    @staticmethod
    def write(value: datetime) -> int:
        return to_micros(value)

    @staticmethod
    def read(value: Any) -> datetime:
        try:
            return from_micros(value)
        except (OverflowError, TypeError):
            raise CorruptRecord("a stored time", f"{value!r} is no instant") from None


# SQLite gives automatic numbers only to a column that is spelled INTEGER PRIMARY KEY.
Key = BigInteger().with_variant(Integer, "sqlite")


def _session() -> Column[int]:
    return Column("session", BigInteger, ForeignKey("lash_sessions.id"), nullable=False)


def _partial_index(name: str, where: str, *columns: Column[Any], unique: bool = False) -> None:
    """An index over some rows of a table.

    A query is served by it only when it says the same words with the same literals: a bound parameter could be
    anything.
    """
    Index(name, *columns, unique=unique, sqlite_where=text(where), postgresql_where=text(where))


sessions = Table(
    "lash_sessions",
    metadata,
    Column("id", Key, Identity(), primary_key=True),
    Column("uid", Hex, nullable=False, unique=True),
    Column("state", Text, nullable=False),
    Column("name", Text),
    Column("agent", Text, nullable=False),
    Column("version", Integer, nullable=False),
    Column("created_at", Micros, nullable=False),
    Column("deleted_at", Micros),
    Column("forked_from", Text),
    Column("revision", BigInteger, nullable=False),
    Column("leaf", Text),
    Column("depth", Integer, nullable=False),
    Column("frame", Integer, nullable=False),
    Column("branch", BigInteger, nullable=False),
    Column("state_set", BigInteger, nullable=False),
    Column("seq", BigInteger, nullable=False),
    Column("lease_owner", Text),
    Column("lease_generation", BigInteger, nullable=False),
    Column("lease_expires_at", Micros),
    Column("next_item_at", Micros),
    Column("ready_at", Micros),
    Column("config_revision", Integer, nullable=False),
    Column("catalog_revision", Integer, nullable=False),
    Column("metadata_revision", Integer, nullable=False),
    CheckConstraint("state IN ('live', 'deleted', 'origin')", name="state"),
    CheckConstraint("(state = 'live') = (name IS NOT NULL)", name="name"),
    CheckConstraint("revision >= 0 AND seq >= 0 AND lease_generation >= 0", name="counters"),
)
_partial_index("lash_sessions_name_ix", "state = 'live'", sessions.c.name, unique=True)
_partial_index("lash_sessions_ready_ix", "ready_at IS NOT NULL", sessions.c.ready_at)

documents = Table(
    "lash_documents",
    metadata,
    _session(),
    Column("kind", Text, nullable=False),
    Column("revision", Integer, nullable=False),
    Column("body", Text, nullable=False),
    Column("superseded_at", Micros),
    PrimaryKeyConstraint("session", "kind", "revision"),
)

branches = Table(
    "lash_branches",
    metadata,
    _session(),
    Column("branch", BigInteger, nullable=False),
    Column("parent_session", BigInteger, ForeignKey("lash_sessions.id")),
    Column("parent_branch", BigInteger),
    Column("parent_depth", Integer),
    PrimaryKeyConstraint("session", "branch"),
    CheckConstraint(
        "(parent_session IS NULL) = (parent_branch IS NULL) AND (parent_session IS NULL) = (parent_depth IS NULL)",
        name="parent",
    ),
)
Index("lash_branches_parent_ix", branches.c.parent_session)

commits = Table(
    "lash_commits",
    metadata,
    _session(),
    Column("operation", Hex, nullable=False),
    Column("revision", BigInteger, nullable=False),
    Column("content_hash", Hex, nullable=False),
    Column("committed_at", Micros, nullable=False),
    Column("seq", BigInteger, nullable=False),
    Column("branch", BigInteger, nullable=False),
    Column("first_depth", Integer, nullable=False),
    Column("nodes", Integer, nullable=False),
    Column("leaf", Text),  # only where it is not the last node of this very commit
    Column("state_set", BigInteger, nullable=False),
    PrimaryKeyConstraint("session", "operation"),
    UniqueConstraint("session", "revision"),
)

nodes = Table(
    "lash_nodes",
    metadata,
    _session(),
    Column("branch", BigInteger, nullable=False),
    Column("depth", Integer, nullable=False),
    Column("frame", Integer, nullable=False),
    Column("revision", BigInteger, nullable=False),
    Column("kind", Text, nullable=False),
    Column("body", Text, nullable=False),
    Column("at", Micros, nullable=False),
    Column("seq", BigInteger, nullable=False),
    PrimaryKeyConstraint("session", "branch", "depth"),
)

blobs = Table(
    "lash_blobs",
    metadata,
    Column("id", Key, Identity(), primary_key=True),
    Column("hash", Hex, nullable=False, unique=True),
    Column("body", LargeBinary, nullable=False),
    Column("stored_at", Micros, nullable=False),
)

blob_refs = Table(
    "lash_blob_refs",
    metadata,
    _session(),
    Column("holder", Text, nullable=False),
    Column("major", BigInteger, nullable=False),  # a node's branch, an item's seq, a debt's revision
    Column("minor", BigInteger, nullable=False),  # a node's depth, 0 for an item, a debt's ordinal
    Column("blob", BigInteger, ForeignKey("lash_blobs.id"), nullable=False),
    PrimaryKeyConstraint("session", "holder", "major", "minor", "blob"),
    CheckConstraint("holder IN ('node', 'item', 'debt')", name="holder"),
)
Index("lash_blob_refs_blob_ix", blob_refs.c.blob)

state_parts = Table(
    "lash_state_parts",
    metadata,
    _session(),
    Column("state_set", BigInteger, nullable=False),
    Column("name", Text, nullable=False),
    Column("blob", BigInteger, ForeignKey("lash_blobs.id"), nullable=False),
    PrimaryKeyConstraint("session", "state_set", "name"),
)
Index("lash_state_parts_blob_ix", state_parts.c.blob)

turns = Table(
    "lash_turns",
    metadata,
    _session(),
    Column("id", Hex, nullable=False),
    Column("state", Text, nullable=False),
    Column("agent", Text, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("generation", BigInteger, nullable=False),
    Column("base_revision", BigInteger, nullable=False),
    Column("config_revision", Integer, nullable=False),
    Column("catalog_revision", Integer, nullable=False),
    Column("options", Text, nullable=False),
    Column("items", LargeBinary, nullable=False),  # the ids it took, 16 bytes each, in order
    Column("opened_at", Micros, nullable=False),
    Column("parked_until", Micros),
    Column("parked_on", LargeBinary, nullable=False),  # the waits it sleeps on, 16 bytes each
    Column("outcome", Text),
    Column("summary", Text),
    Column("settled_at", Micros),
    Column("cancel_request", Hex),
    Column("cancel_reason", Text),
    Column("cancel_requested_at", Micros),
    PrimaryKeyConstraint("session", "id"),
    CheckConstraint("state IN ('open', 'parked', 'settled')", name="state"),
)
_partial_index("lash_turns_unsettled_ix", "state <> 'settled'", turns.c.session, unique=True)

inbox = Table(
    "lash_inbox",
    metadata,
    _session(),
    Column("seq", BigInteger, nullable=False),
    Column("id", Hex, nullable=False),
    Column("kind", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("key", Text),
    Column("content_hash", Hex, nullable=False),
    Column("body", Text, nullable=False),
    Column("aim", Text, nullable=False),
    Column("boundary", Text, nullable=False),
    Column("merge_key", Text),
    Column("options", Text, nullable=False),
    Column("available_at", Micros),
    Column("admitted_at", Micros, nullable=False),
    Column("due_at", Micros, nullable=False),  # the one or the other
    Column("target", Hex),
    Column("turn", Hex),
    Column("settled_at", Micros),
    PrimaryKeyConstraint("session", "seq"),
    UniqueConstraint("session", "id"),
    CheckConstraint("state IN ('pending', 'taken', 'completed', 'cancelled')", name="state"),
)
_partial_index("lash_inbox_key_ix", "key IS NOT NULL", inbox.c.session, inbox.c.key, unique=True)
_partial_index("lash_inbox_waiting_ix", "state IN ('pending', 'taken')", inbox.c.session, inbox.c.seq)
_partial_index("lash_inbox_due_ix", "state = 'pending'", inbox.c.session, inbox.c.due_at)
_partial_index(
    "lash_inbox_aimed_ix", "state = 'pending' AND target IS NOT NULL", inbox.c.session, inbox.c.target, inbox.c.seq
)
_partial_index("lash_inbox_taken_ix", "state = 'taken'", inbox.c.session, inbox.c.turn, inbox.c.seq)

journal = Table(
    "lash_journal",
    metadata,
    _session(),
    Column("turn", Hex, nullable=False),
    Column("key", Text, nullable=False),
    Column("identity", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("seq", BigInteger, nullable=False),
    Column("started_at", Micros, nullable=False),
    Column("finished_at", Micros),
    Column("outcome", Text),
    Column("composition", Text),
    Column("wait", Hex),
    PrimaryKeyConstraint("session", "turn", "key"),
    CheckConstraint("state IN ('started', 'completed', 'failed')", name="state"),
)

waits = Table(
    "lash_waits",
    metadata,
    Column("id", Hex, primary_key=True),
    _session(),
    Column("name", Text, nullable=False),
    Column("turn", Hex),
    Column("state", Text, nullable=False),
    Column("created_at", Micros, nullable=False),
    Column("expires_at", Micros),
    Column("answer", Text),
    Column("settled_at", Micros),
    CheckConstraint("state IN ('pending', 'answered', 'timed_out', 'revoked')", name="state"),
)
Index("lash_waits_turn_ix", waits.c.session, waits.c.turn)

usage = Table(
    "lash_usage",
    metadata,
    _session(),
    Column("revision", BigInteger, nullable=False),
    Column("ordinal", Integer, nullable=False),
    Column("source", Text, nullable=False),
    Column("model", Text, nullable=False),
    Column("input", BigInteger, nullable=False),
    Column("cache_read", BigInteger, nullable=False),
    Column("cache_write", BigInteger, nullable=False),
    Column("output", BigInteger, nullable=False),
    Column("reasoning", BigInteger, nullable=False),
    PrimaryKeyConstraint("session", "revision", "ordinal"),
)

outbox = Table(
    "lash_outbox",
    metadata,
    _session(),
    Column("operation", Hex, nullable=False),
    Column("ordinal", Integer, nullable=False),
    Column("revision", BigInteger, nullable=False),
    Column("body", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("owed_at", Micros, nullable=False),
    Column("settled_at", Micros),
    PrimaryKeyConstraint("session", "operation", "ordinal"),
    CheckConstraint("state IN ('owed', 'delivered', 'dropped')", name="state"),
)
_partial_index("lash_outbox_owed_ix", "state = 'owed'", outbox.c.owed_at)

# Text deltas of running turns, for observers in other processes. Not logged: a crash loses them, and they say so.
live_events = Table(
    "lash_live_events",
    metadata,
    _session(),
    Column("seq", BigInteger, nullable=False),
    Column("ordinal", Integer, nullable=False),
    Column("body", Text, nullable=False),
    Column("at", Micros, nullable=False),
    PrimaryKeyConstraint("session", "seq", "ordinal"),
)

meta = Table(
    "lash_meta",
    metadata,
    Column("name", Text, primary_key=True),
    Column("value", Text, nullable=False),
)

# A test's stores name a row here when they connect and move their own time with it. Empty in production.
clock_offsets = Table(
    "lash_clock_offsets",
    metadata,
    Column("name", Text, primary_key=True),
    Column("micros", BigInteger, nullable=False),
)

NOW_FUNCTION = """
CREATE FUNCTION lash_now() RETURNS bigint LANGUAGE sql VOLATILE AS $$
    SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint
        + coalesce((SELECT micros FROM lash_clock_offsets WHERE name = current_setting('lash.clock', true)), 0)
$$
"""


def _on_postgres(target: Table | MetaData, statement: str) -> None:
    ddl = DDL(statement.replace("%", "%%"))  # type: ignore[no-untyped-call]
    event.listen(target, "after_create", ddl.execute_if(dialect="postgresql"))


_on_postgres(live_events, "ALTER TABLE lash_live_events SET UNLOGGED")
_on_postgres(metadata, NOW_FUNCTION)
