"""What is found in a database after a power loss, asked by plain SQL.

A fact that was acknowledged stays true whatever comes later: an item is there in whatever state, an effect is in the
journal or its turn is settled.
"""

from __future__ import annotations

import hashlib
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROOFS = {
    "opened": "SELECT name FROM lash_meta WHERE name = 'secret'",
    "session": "SELECT id FROM lash_sessions WHERE uid = unhex(:uid)",
    "item": "SELECT seq FROM lash_inbox WHERE id = unhex(:id)",
    "turn": "SELECT state FROM lash_turns WHERE id = unhex(:id)",
    "effect": """
        SELECT state FROM lash_journal WHERE turn = unhex(:turn) AND key = :key AND state = 'completed'
        UNION SELECT state FROM lash_turns WHERE id = unhex(:turn) AND state = 'settled'
    """,
    "wait": "SELECT state FROM lash_waits WHERE id = unhex(:id)",
    "answer": "SELECT state FROM lash_waits WHERE id = unhex(:id) AND state = 'answered' AND answer IS NOT NULL",
    "commit": """
        SELECT c.nodes FROM lash_commits c WHERE c.operation = unhex(:operation) AND c.revision = :revision
        AND c.nodes = (SELECT count(*) FROM lash_nodes n WHERE n.session = c.session AND n.revision = c.revision)
    """,
    "cancel": "SELECT cancel_request FROM lash_turns WHERE id = unhex(:turn) AND cancel_request IS NOT NULL",
    "lease": "SELECT id FROM lash_sessions WHERE uid = unhex(:uid) AND lease_generation >= :generation",
    "released": """
        SELECT id FROM lash_sessions WHERE uid = unhex(:uid)
        AND (lease_generation > :generation OR lease_owner IS NULL AND lease_generation = :generation)
    """,
    "document": """
        SELECT kind FROM lash_documents WHERE session = (SELECT id FROM lash_sessions WHERE uid = unhex(:uid))
        AND kind = 'config' AND revision = :revision
    """,
    "blob": "SELECT id FROM lash_blobs WHERE hash = unhex(:hash)",
    "deleted": "SELECT id FROM lash_sessions WHERE uid = unhex(:uid) AND state = 'deleted'",
}


@dataclass(frozen=True, slots=True)
class Found:
    """What a database says of itself: whether it is whole, which of some facts hold, and a digest of all its rows."""

    integrity: list[str]
    holds: list[bool]
    digest: str


def look(path: Path, facts: list[dict[str, Any]]) -> Found:
    """Open a database, as whoever comes first after a power loss does, and look. Without tables nothing holds."""
    with closing(sqlite3.connect(path)) as connection:
        connection.create_function("unhex", 1, bytes.fromhex, deterministic=True)
        integrity = [row[0] for row in connection.execute("PRAGMA integrity_check")]
        tables = [
            row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY 1")
        ]
        digest = hashlib.sha256()
        for table in tables:
            rows = sorted(map(repr, connection.execute(f"SELECT * FROM {table}")))
            digest.update("\n".join([table, *rows]).encode())
        holds = [bool(tables and connection.execute(PROOFS[fact["kind"]], fact).fetchall()) for fact in facts]
    return Found(integrity, holds, digest.hexdigest())
