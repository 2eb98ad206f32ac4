"""The line in which writes wait for the writer.

Writes of one session keep their order. Urgent ones (leases, cancels) go before others, though never before an earlier
write of their own session. A write that met something held goes back to the front; when that has happened often enough
it is set aside for a while, with all that follow it in its session, and tried again now and then: mostly along with
others, leaving it out again if it is still held, and sometimes alone, waiting a moment for it.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Sequence, Set
from dataclasses import dataclass
from itertools import count
from typing import Any

from lash.errors import WriteUnknown
from lash.ids import SessionUid
from lash.store.sql.steps import Settled, Write

MAX_BATCH = 256
"""Writes in one transaction. More would keep the first of them waiting for the last."""
MAX_BATCH_BYTES = 4 * 1024 * 1024
MAX_MISSES = 3
"""How often a write that met something held is tried again at once, before it is set aside."""
_PATIENT = 4
"""Of how many later attempts one waits."""
_FIRST_PAUSE, _LAST_PAUSE = 0.05, 1.0


@dataclass(slots=True, eq=False)
class Submitted:
    """A write in line, and where its caller waits. ``number`` is its place in the order of joining.

    ``came_at`` is when it was submitted; there may have been no room in line for it yet. ``missed_at`` is when it first
    met something held, or followed a write that did; ``try_at`` when it may be tried again. ``unknown`` says that it
    ran once, and nobody knows whether it landed.
    """

    write: Write[Any]
    answer: asyncio.Future[Settled[Any]]
    came_at: float = 0.0
    number: int = 0
    misses: int = 0
    missed_at: float | None = None
    try_at: float = 0.0
    unknown: WriteUnknown | None = None

    @property
    def patient(self) -> bool:
        """Whether it is time to wait for what it needs."""
        return self.misses >= MAX_MISSES and (self.misses - MAX_MISSES) % _PATIENT == 0

    def follows(self, held: Set[SessionUid]) -> bool:
        """Whether it has to wait, because it touches one of these sessions. All that it touches are then held too."""
        return not held.isdisjoint(self.write.sessions)

    def hear(self, outcome: Settled[Any]) -> None:
        """Tell the caller, unless it went away."""
        if not self.answer.done():
            self.answer.set_result(outcome)

    def miss(self, now: float) -> None:
        if self.missed_at is None:
            self.missed_at = now
        self.misses += 1
        self.try_at = now
        if self.misses > MAX_MISSES:
            self.try_at += min(_FIRST_PAUSE * 2.0 ** (self.misses - MAX_MISSES), _LAST_PAUSE)


def _number(one: Submitted) -> int:
    return one.number


class Line:
    def __init__(self) -> None:
        self._urgent: deque[Submitted] = deque()
        self._waiting: deque[Submitted] = deque()
        self._aside: list[Submitted] = []
        self._sessions: Counter[SessionUid] = Counter()
        self._numbers = count()
        self.writes = 0
        self.bytes = 0

    @property
    def due(self) -> bool:
        """Whether somebody is in line who was not set aside."""
        return bool(self._urgent or self._waiting)

    @property
    def next_try(self) -> float:
        """When the first of those that were set aside may be tried again. What follows another waits for that."""
        held: set[SessionUid] = set()
        times: list[float] = []
        for one in sorted(self._aside, key=_number):
            if not one.follows(held):
                times.append(one.try_at)
            held.update(one.write.sessions)
        return min(times, default=0.0)

    def join(self, one: Submitted) -> None:
        one.number = next(self._numbers)
        overtakes = one.write.urgent and not any(self._sessions[uid] for uid in one.write.sessions)
        (self._urgent if overtakes else self._waiting).append(one)
        self._count(one, 1)

    def leave(self, one: Submitted) -> None:
        """It has its answer. Until then it counts, also while it is being settled."""
        self._count(one, -1)

    def go_back(self, missed: Sequence[Submitted], now: float) -> None:
        """To the front, in the order that they had; those that missed too often are set aside."""
        for one in missed:
            one.miss(now)
        self._waiting.extendleft(one for one in reversed(missed) if one.try_at <= now)
        self._aside += [one for one in missed if one.try_at > now]

    def bring_back(self, now: float) -> None:
        """Those whose time has come go to the front, unless an earlier write of their session stays behind."""
        back: list[Submitted] = []
        stay: list[Submitted] = []
        held: set[SessionUid] = set()
        for one in sorted(self._aside, key=_number):
            comes = one.try_at <= now and not one.follows(held)
            (back if comes else stay).append(one)
            if not comes:
                held.update(one.write.sessions)
        self._aside = stay
        if back:  # others that came before them may have gone back meanwhile
            self._waiting = deque(sorted((*back, *self._waiting), key=_number))

    def overdue(self, since: float) -> list[Submitted]:
        """Take those out of line that were set aside before a time."""
        late = [one for one in self._aside if one.missed_at is not None and one.missed_at < since]
        self._aside = [one for one in self._aside if one not in late]
        return late

    def came_by(self, time: float) -> list[Submitted]:
        """Take those out of line that were submitted until then."""
        early = [one for one in self.everyone() if one.came_at <= time]
        self._urgent = deque(one for one in self._urgent if one.came_at > time)
        self._waiting = deque(one for one in self._waiting if one.came_at > time)
        self._aside = [one for one in self._aside if one.came_at > time]
        return early

    def next_batch(self, now: float, *, patience: bool) -> list[Submitted]:
        """Whoever is first, as many as go into one transaction. One whose turn it is to wait for what it needs goes
        alone, and only if the writer has the patience."""
        held = {uid for one in self._aside for uid in one.write.sessions}
        batch: list[Submitted] = []
        size = 0
        while len(batch) < MAX_BATCH and self.due:
            source = self._urgent or self._waiting
            first = source[0]
            alone = patience and first.patient
            if batch and (alone or size + first.write.size > MAX_BATCH_BYTES):
                break
            source.popleft()
            if first.follows(held) or (first.patient and not patience):
                held.update(first.write.sessions)
                first.missed_at = now if first.missed_at is None else first.missed_at
                self._aside.append(first)
                continue
            batch.append(first)
            size += first.write.size
            if alone:
                break
        return batch

    def everyone(self) -> list[Submitted]:
        return [*self._urgent, *self._waiting, *self._aside]

    def _count(self, one: Submitted, by: int) -> None:
        self.writes += by
        self.bytes += by * one.write.size
        for uid in one.write.sessions:
            self._sessions[uid] += by
            if not self._sessions[uid]:
                del self._sessions[uid]
