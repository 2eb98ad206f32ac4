"""One-shot promises that outlive processes."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from datetime import datetime

from pydantic import JsonValue

from lash import waits as rules
from lash.errors import WaitNotFound
from lash.ids import SessionUid, WaitId
from lash.store.checks import check_wait
from lash.store.memory.data import SessionRows, own_json
from lash.store.memory.handle import Handle
from lash.turn.record import wake
from lash.waits import Answered, NewWait, Wait


class Waiting(Handle):
    def find_wait(self, wait: WaitId) -> Wait | None:
        """A wait of whatever session: keys do not say which."""
        return next((rows.waits[wait] for rows in self.data.sessions.values() if wait in rows.waits), None)

    def open_in(self, rows: SessionRows, new: NewWait, now: datetime) -> None:
        known = rows.waits.get(new.id) or self.find_wait(new.id)
        rows.waits[new.id] = rules.open_wait(known, new, rows.session.uid, now)


class MemoryWaits(Waiting):
    async def open_wait(self, uid: SessionUid, wait: NewWait) -> str:
        check_wait(wait)
        now = self.now()
        with self.changing(uid, now) as rows:
            self.open_in(rows, wait, now)
        return rules.sign(wait.id, self.data.secret)

    async def wait_key(self, uid: SessionUid, wait: WaitId) -> str:
        if wait not in self.living(uid).waits:
            raise WaitNotFound
        return rules.sign(wait, self.data.secret)

    async def answer(self, key: str, value: JsonValue) -> Answered:
        wait = self.find_wait(rules.verify(key, self.data.secret))
        now = self.now()
        answered = rules.answer(wait, own_json(value, what="answer"), now)
        with self.changing(answered.wait.session, now) as rows:
            if answered.wait.state == "answered":
                _settle(rows, answered.wait, now)
        return deepcopy(answered)

    async def wait(self, uid: SessionUid, wait: WaitId) -> Wait:
        rows = self.living(uid)
        if wait not in rows.waits:
            raise WaitNotFound
        return deepcopy(rows.waits[wait].as_of(self.now()))

    async def waits(self, uid: SessionUid) -> list[Wait]:
        now = self.now()
        waits = sorted(self.living(uid).waits.values(), key=lambda wait: (wait.created_at, wait.id))
        return deepcopy([wait.as_of(now) for wait in waits])

    async def revoke(self, uid: SessionUid, waits: Sequence[WaitId]) -> list[Wait]:
        now = self.now()
        with self.changing(uid, now) as rows:
            if any(wait not in rows.waits for wait in waits):
                raise WaitNotFound
            revoked = [rules.revoke(rows.waits[wait], now) for wait in waits]
            for wait in revoked:
                _settle(rows, wait, now)
        return deepcopy(revoked)


def _settle(rows: SessionRows, wait: Wait, now: datetime) -> None:
    """Keep a wait that was answered or revoked just now, and wake the turn that sleeps on it."""
    if rows.waits[wait.id].state != "pending" or wait.state == "timed_out":
        return
    rows.waits[wait.id] = wait
    turn = rows.unsettled
    if turn is not None and wait.id in turn.parked_on:
        rows.turns[turn.id] = wake(turn, now)
