"""The line in which writes wait for the writer.

Writes of one session keep their order. Urgent ones (leases, cancels) go before others, though never before an earlier
write of their own session. A write whose session another process holds goes back to the front; when that has happened
often enough it is tried alone, and then set aside for a while, with all that follows it in its session.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lash.ids import SessionUid
from lash.store.sql.steps import Settled, Write

MAX_BATCH = 256
"""Writes in one transaction. More would keep the first of them waiting for the last."""
MAX_BATCH_BYTES = 4 * 1024 * 1024
MAX_MISSES = 3
"""How often a write that met something held is tried again with others, before it is tried alone."""


@dataclass(slots=True, eq=False)
class Submitted:
    """A write in line, and where its caller waits. ``missed_at`` is when it first met something held."""

    write: Write[Any]
    answer: asyncio.Future[Settled[Any]]
    misses: int = 0
    missed_at: float | None = None

    @property
    def patient(self) -> bool:
        return self.misses >= MAX_MISSES


class Line:
    def __init__(self) -> None:
        self._urgent: deque[Submitted] = deque()
        self._waiting: deque[Submitted] = deque()
        self._aside: list[Submitted] = []
        self._sessions: Counter[SessionUid] = Counter()
        self.writes = 0
        self.bytes = 0

    @property
    def due(self) -> bool:
        """Whether somebody is in line who was not set aside."""
        return bool(self._urgent or self._waiting)

    @property
    def has_aside(self) -> bool:
        return bool(self._aside)

    def join(self, submitted: Submitted) -> None:
        overtakes = submitted.write.urgent and not any(self._sessions[uid] for uid in submitted.write.sessions)
        (self._urgent if overtakes else self._waiting).append(submitted)
        self._count(submitted, 1)

    def leave(self, submitted: Submitted) -> None:
        """It has its answer. Until then it counts, also while it is being settled."""
        self._count(submitted, -1)

    def go_back(self, batch: Sequence[Submitted]) -> None:
        """To the front, in the order that they had."""
        self._waiting.extendleft(reversed(batch))

    def set_aside(self, submitted: Submitted) -> None:
        self._aside.append(submitted)

    def bring_back(self) -> None:
        """Those that were set aside go to the front."""
        self.go_back(self._aside)
        self._aside = []

    def next_batch(self) -> list[Submitted]:
        """Whoever is first, as many as go into one transaction; one that has missed too often goes alone."""
        blocked = {uid for submitted in self._aside for uid in submitted.write.sessions}
        batch: list[Submitted] = []
        size = 0
        while len(batch) < MAX_BATCH and self.due:
            source = self._urgent or self._waiting
            first = source[0]
            if batch and (first.patient or size + first.write.size > MAX_BATCH_BYTES):
                break
            source.popleft()
            if not blocked.isdisjoint(first.write.sessions):
                blocked.update(first.write.sessions)
                self._aside.append(first)
                continue
            batch.append(first)
            size += first.write.size
            if first.patient:
                break
        return batch

    def everyone(self) -> list[Submitted]:
        return [*self._urgent, *self._waiting, *self._aside]

    def _count(self, submitted: Submitted, by: int) -> None:
        self.writes += by
        self.bytes += by * submitted.write.size
        for uid in submitted.write.sessions:
            self._sessions[uid] += by
            if not self._sessions[uid]:
                del self._sessions[uid]
