"""Names and contents that two transactions could insert at the same time.

Postgres makes the second one wait for the first, with all that it has locked by then, and two such waits can close a
circle. So whoever inserts under a name that others may insert too claims it first. A claim does not wait, except in an
attempt that is made alone and has locked its sessions before. SQLite has one writer at a time: every claim is granted.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, text

from lash.ids import BlobHash, SessionName
from lash.store.sql.questions import is_patient
from lash.store.sql.steps import Held, Question, Steps, answers_to_each

_GRANTED = text("""
    SELECT name FROM unnest(CAST(:names AS text[])) AS name WHERE pg_try_advisory_xact_lock(hashtextextended(name, 0))
""")


_AWAITED = text("""
    SELECT pg_advisory_xact_lock(number) FROM (
        SELECT hashtextextended(name, 0) AS number FROM unnest(CAST(:names AS text[])) AS name ORDER BY number
    ) AS numbers
""")


def _claim(connection: Connection, names: Sequence[str]) -> dict[str, bool]:
    if connection.dialect.name != "postgresql":
        return dict.fromkeys(names, True)
    if is_patient(connection):
        connection.execute(_AWAITED, {"names": list(names)})
        return dict.fromkeys(names, True)
    return dict.fromkeys(connection.execute(_GRANTED, {"names": list(names)}).scalars(), True)


CLAIMED = Question(_claim)


def claim_name(name: SessionName) -> Steps[None]:
    """Be the only one who creates or deletes a session of this name, until the transaction ends; else Held."""
    yield from _claim_all([f"lash session {name}"])


def claim_blobs(blobs: Sequence[BlobHash]) -> Steps[None]:
    """Be the only one who stores these contents, until the transaction ends; else Held."""
    yield from _claim_all([f"lash blob {blob}" for blob in blobs])


def _claim_all(names: Sequence[str]) -> Steps[None]:
    granted = yield from answers_to_each([CLAIMED(name) for name in names])
    if len(granted) < len(set(names)):
        raise Held
