"""Names and contents that two transactions could insert at the same time.

Postgres makes the second one wait for the first, with all that it has locked by then, and two such waits can close a
circle. So whoever inserts under a name that others may insert too claims it first. A claim does not wait, except in an
attempt that is made alone and has locked its sessions before. SQLite has one writer at a time: every claim is granted.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Text, bindparam, func, select

from lash.ids import BlobHash, SessionName
from lash.store.sql.link import Link
from lash.store.sql.statements import Statement
from lash.store.sql.steps import Held, Question, Steps, answers_to_each

_number = func.hashtextextended(bindparam("name", type_=Text), 0)
_TRY = Statement(select(func.pg_try_advisory_xact_lock(_number).label("granted")), "name")
_WAIT = Statement(select(func.pg_advisory_xact_lock(_number).label("granted")), "name")


class Claimed(Question[str, bool]):
    """Whether a claim was granted."""

    def load(self, link: Link, keys: Sequence[str]) -> dict[str, bool]:
        if not link.postgres:
            return dict.fromkeys(keys, True)
        if link.patient:
            for name in sorted(keys):
                link.rows(_WAIT, (name,))
            return dict.fromkeys(keys, True)
        found = link.look_up({_TRY: [(name,) for name in keys]})[_TRY]
        return {name: True for (name,), [row] in found.items() if row["granted"]}


CLAIMED = Claimed()


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
