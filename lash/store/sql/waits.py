"""One-shot promises that outlive processes."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import JsonValue
from sqlalchemy import Connection, bindparam, select

from lash import waits as rules
from lash.encoding import canonical
from lash.errors import IdReused, WaitNotFound
from lash.ids import SessionUid, WaitId
from lash.store import schema
from lash.store.checks import check_wait
from lash.store.rows import SessionRow, changing_wait_values, read_wait, wait_values
from lash.store.sql.inbox import unsettled_turn
from lash.store.sql.questions import WAIT
from lash.store.sql.sessions import find_row, keep_session
from lash.store.sql.steps import Steps, Work, Write, answers_to_each
from lash.turn.record import wake
from lash.waits import Answered, NewWait, Wait

_SESSION_OF = (
    select(schema.sessions.c.uid)
    .join_from(schema.sessions, schema.waits, schema.waits.c.session == schema.sessions.c.id)
    .where(schema.waits.c.id == bindparam("wait"))
)
_WAITS = (
    select(schema.waits)
    .where(schema.waits.c.session == bindparam("session"))
    .order_by(schema.waits.c.created_at, schema.waits.c.id)
)


def open_wait(uid: SessionUid, wait: NewWait) -> Write[None]:
    check_wait(wait)

    def steps(work: Work) -> Steps[None]:
        yield from open_into(work, work.session(uid), [wait])

    return Write((uid,), steps)


def open_into(work: Work, row: SessionRow, waits: Sequence[NewWait]) -> Steps[dict[WaitId, Wait]]:
    """Keep the waits that are new; returns all of them as they are kept."""
    found = yield from answers_to_each([WAIT(wait.id) for wait in waits])
    opened: dict[WaitId, Wait] = {}
    for new in waits:
        stored = found.get(new.id)
        if stored is not None and stored["session"] != row.id:
            raise IdReused("wait", new.id)
        known = opened.get(new.id) if stored is None else read_wait(stored, row.uid)
        opened[new.id] = rules.open_wait(known, new, row.uid, work.now)
        if known is None:
            work.changes.insert(schema.waits, wait_values(row.id, opened[new.id]))
    return opened


def answer(uid: SessionUid, wait: WaitId, value: JsonValue) -> Write[Answered]:
    size = len(canonical(value, what="answer"))

    def steps(work: Work) -> Steps[Answered]:
        row = work.rows.get(uid)
        if row is None or row.state != "live":  # deleted since the key was looked up: as if the wait had never been
            raise WaitNotFound
        [known] = yield from named_waits(row, [wait])
        answered = rules.answer(known, value, work.now)
        if answered.wait.state == "answered":
            yield from _settle(work, row, [known], [answered.wait])
        return answered

    return Write((uid,), steps, size=size)


def revoke(uid: SessionUid, waits: Sequence[WaitId]) -> Write[list[Wait]]:
    def steps(work: Work) -> Steps[list[Wait]]:
        row = work.session(uid)
        known = yield from named_waits(row, waits)
        revoked = [rules.revoke(wait, work.now) for wait in known]
        yield from _settle(work, row, known, revoked)
        return revoked

    return Write((uid,), steps)


def named_waits(row: SessionRow, waits: Sequence[WaitId]) -> Steps[list[Wait]]:
    """The waits of these ids, which must be the session's own, else WaitNotFound."""
    found = yield from answers_to_each([WAIT(wait) for wait in waits])
    if any(wait not in found or found[wait]["session"] != row.id for wait in waits):
        raise WaitNotFound
    return [read_wait(found[wait], row.uid) for wait in waits]


def _settle(work: Work, row: SessionRow, before: Sequence[Wait], after: Sequence[Wait]) -> Steps[None]:
    """Keep waits that were answered or revoked just now, and wake the turn that sleeps on one of them."""
    settled = [
        new for old, new in zip(before, after, strict=True) if old.state == "pending" and new.state != "timed_out"
    ]
    if not settled:
        return
    for wait in {wait.id: wait for wait in settled}.values():
        work.changes.update(schema.waits, {"id": wait.id}, changing_wait_values(wait))
    turn = yield from unsettled_turn(row)
    if turn is not None and any(wait.id in turn.parked_on for wait in settled):
        woken = wake(turn, work.now)
        if woken != turn:
            place = {"session": row.id, "id": turn.id}
            work.changes.update(schema.turns, place, {"parked_until": woken.parked_until})
            keep_session(work, row, row, was=turn, turn=woken)


# -- reading -----------------------------------------------------------------------------------------------------------


def session_of(connection: Connection, wait: WaitId) -> SessionUid:
    """The session that a wait belongs to, which never changes."""
    uid = connection.execute(_SESSION_OF, {"wait": wait}).scalar_one_or_none()
    if uid is None:
        raise WaitNotFound
    return SessionUid(uid)


def find(connection: Connection, uid: SessionUid, wait: WaitId) -> Wait:
    row = find_row(connection, uid)
    found = WAIT.now(connection, wait)
    if found is None or found["session"] != row.id:
        raise WaitNotFound
    return read_wait(found, uid)


def of_session(connection: Connection, uid: SessionUid) -> list[Wait]:
    row = find_row(connection, uid)
    return [read_wait(wait, uid) for wait in connection.execute(_WAITS, {"session": row.id}).mappings()]
