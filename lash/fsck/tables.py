"""The tables as their documentation describes them: the key of each, and what each column holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lash.fsck.decoding import BODY, HASH, ID, IDS, JSON, OBJECT, RECORD, Kind, number, raw, text, time, version, word

Row = dict[str, Any]
"""A row that was read: numbers as int, ids and hashes as hex, records as their fields."""
Key = tuple[Any, ...]


@dataclass(frozen=True)
class Table:
    name: str
    key: tuple[str, ...]
    columns: dict[str, Kind]

    def key_of(self, row: Row) -> str:
        return " ".join(f"{name}={_shown(row[name])}" for name in self.key)


def _shown(value: object) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)


COUNT = number()
SMALL = number(0, 2**31 - 1)
DEPTH = number(-1, 2**31 - 1)
MAYBE_ID = raw(16, optional=True)
MAYBE_TIME = time(optional=True)
MAYBE_TEXT = text(optional=True)
DOCUMENTS = ("config", "catalog", "metadata")
BUCKETS = ("input", "cache_read", "cache_write", "output", "reasoning")
MAX_TOKENS = 10**12

sessions = Table(
    "lash_sessions",
    ("id",),
    {
        "id": COUNT,
        "uid": ID,
        "state": word("live", "deleted", "origin"),
        "name": MAYBE_TEXT,
        "agent": text(),
        "version": version(1),
        "created_at": time(),
        "deleted_at": MAYBE_TIME,
        "forked_from": MAYBE_TEXT,
        "revision": COUNT,
        "leaf": MAYBE_TEXT,
        "depth": DEPTH,
        "frame": DEPTH,
        "branch": COUNT,
        "state_set": COUNT,
        "seq": COUNT,
        "lease_owner": MAYBE_TEXT,
        "lease_generation": COUNT,
        "lease_expires_at": MAYBE_TIME,
        "next_item_at": MAYBE_TIME,
        "ready_at": MAYBE_TIME,
        "config_revision": SMALL,
        "catalog_revision": SMALL,
        "metadata_revision": SMALL,
    },
)
documents = Table(
    "lash_documents",
    ("session", "kind", "revision"),
    {
        "session": COUNT,
        "kind": word(*DOCUMENTS),
        "revision": SMALL,
        "body": OBJECT,
        "superseded_at": MAYBE_TIME,
    },
)
branches = Table(
    "lash_branches",
    ("session", "branch"),
    {
        "session": COUNT,
        "branch": COUNT,
        "parent_session": number(optional=True),
        "parent_branch": number(optional=True),
        "parent_depth": number(0, 2**31 - 1, optional=True),
    },
)
commits = Table(
    "lash_commits",
    ("session", "revision"),
    {
        "session": COUNT,
        "operation": ID,
        "revision": number(1),
        "content_hash": HASH,
        "committed_at": time(),
        "seq": COUNT,
        "branch": COUNT,
        "first_depth": SMALL,
        "nodes": SMALL,
        "leaf": MAYBE_TEXT,
        "state_set": COUNT,
    },
)
nodes = Table(
    "lash_nodes",
    ("session", "branch", "depth"),
    {
        "session": COUNT,
        "branch": COUNT,
        "depth": SMALL,
        "frame": SMALL,
        "revision": number(1),
        "kind": text(),
        "body": BODY,
        "at": time(),
        "seq": COUNT,
    },
)
blobs = Table("lash_blobs", ("id",), {"id": COUNT, "hash": HASH, "stored_at": time()})
"""Without the bodies, which are read piece by piece."""
blob_refs = Table(
    "lash_blob_refs",
    ("session", "holder", "major", "minor", "blob"),
    {"session": COUNT, "holder": word("node", "item", "debt"), "major": COUNT, "minor": COUNT, "blob": COUNT},
)
state_parts = Table(
    "lash_state_parts",
    ("session", "state_set", "name"),
    {"session": COUNT, "state_set": COUNT, "name": text(), "blob": COUNT},
)
turns = Table(
    "lash_turns",
    ("session", "id"),
    {
        "session": COUNT,
        "id": ID,
        "state": word("open", "parked", "settled"),
        "agent": text(),
        "attempts": SMALL,
        "generation": number(1),
        "base_revision": COUNT,
        "config_revision": SMALL,
        "catalog_revision": SMALL,
        "options": OBJECT,
        "items": IDS,
        "opened_at": time(),
        "parked_until": MAYBE_TIME,
        "parked_on": IDS,
        "outcome": MAYBE_TEXT,
        "summary": OBJECT,
        "settled_at": MAYBE_TIME,
        "cancel_request": MAYBE_ID,
        "cancel_reason": MAYBE_TEXT,
        "cancel_requested_at": MAYBE_TIME,
    },
)
inbox = Table(
    "lash_inbox",
    ("session", "seq"),
    {
        "session": COUNT,
        "seq": number(1),
        "id": ID,
        "kind": word("message", "command", "wake"),
        "state": word("pending", "taken", "completed", "cancelled"),
        "key": MAYBE_TEXT,
        "content_hash": HASH,
        "body": RECORD,
        "aim": word("now", "next"),
        "boundary": word("after_work", "before_completion"),
        "merge_key": MAYBE_TEXT,
        "options": OBJECT,
        "available_at": MAYBE_TIME,
        "admitted_at": time(),
        "due_at": time(),
        "target": MAYBE_ID,
        "turn": MAYBE_ID,
        "settled_at": MAYBE_TIME,
    },
)
journal = Table(
    "lash_journal",
    ("session", "turn", "key"),
    {
        "session": COUNT,
        "turn": ID,
        "key": text(),
        "identity": RECORD,
        "state": word("started", "completed", "failed"),
        "seq": number(1),
        "started_at": time(),
        "finished_at": MAYBE_TIME,
        "outcome": JSON,
        "has_outcome": SMALL,
        "composition": MAYBE_TEXT,
        "wait": MAYBE_ID,
    },
)
waits = Table(
    "lash_waits",
    ("id",),
    {
        "id": ID,
        "session": COUNT,
        "name": text(),
        "turn": MAYBE_ID,
        "state": word("pending", "answered", "timed_out", "revoked"),
        "created_at": time(),
        "expires_at": MAYBE_TIME,
        "answer": JSON,
        "has_answer": SMALL,
        "settled_at": MAYBE_TIME,
    },
)
usage = Table(
    "lash_usage",
    ("session", "revision", "ordinal"),
    {
        "session": COUNT,
        "revision": number(1),
        "ordinal": SMALL,
        "source": text(),
        "model": text(),
        **dict.fromkeys(BUCKETS, number(0, MAX_TOKENS)),
    },
)
outbox = Table(
    "lash_outbox",
    ("session", "operation", "ordinal"),
    {
        "session": COUNT,
        "operation": ID,
        "ordinal": SMALL,
        "revision": number(1),
        "body": RECORD,
        "state": word("owed", "delivered", "dropped"),
        "owed_at": time(),
        "settled_at": MAYBE_TIME,
    },
)
live_events = Table(
    "lash_live_events",
    ("session", "seq", "ordinal"),
    {"session": COUNT, "seq": COUNT, "ordinal": SMALL, "body": BODY, "at": time()},
)
meta = Table("lash_meta", ("name",), {"name": text(), "value": text()})
revisions = Table("lash_version", ("version_num",), {"version_num": text()})
clock_offsets = Table("lash_clock_offsets", ("name",), {"name": text(), "micros": number(-(2**63), 2**63 - 1)})

TABLES = (
    sessions,
    documents,
    branches,
    commits,
    nodes,
    blobs,
    blob_refs,
    state_parts,
    turns,
    inbox,
    journal,
    waits,
    usage,
    outbox,
    live_events,
    meta,
    revisions,
    clock_offsets,
)
EXPRESSIONS = {
    "has_outcome": "CASE WHEN outcome IS NULL THEN 0 ELSE 1 END",
    "has_answer": "CASE WHEN answer IS NULL THEN 0 ELSE 1 END",
}
"""Columns that are asked for and not kept: a JSON null and no value at all look the same once they are read."""
