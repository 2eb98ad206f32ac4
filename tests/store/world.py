"""A database that is none, for counting what the writer asks of it while some sessions are held."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

from lash.ids import SessionUid
from lash.store.sql.steps import Settled, Steps, Work, Write
from lash.store.writer import Writer


@dataclass(frozen=True)
class Attempt:
    patient: bool
    writes: tuple[str, ...]


@dataclass
class World:
    """Settles everything but the writes of sessions that are held, and what follows those. Its time passes by hand."""

    time: float = 0.0
    held: set[str] = field(default_factory=set)
    attempts: list[Attempt] = field(default_factory=list)
    landed: list[str] = field(default_factory=list)
    names: dict[Write[Any], str] = field(default_factory=dict)

    def write(self, session: str, name: str) -> Write[str]:
        def never(_: Work) -> Steps[str]:
            raise AssertionError("nothing is settled here")

        write = Write((SessionUid(session),), never)
        self.names[write] = name
        return write

    async def settle(self, writes: Sequence[Write[Any]], *, patient: bool) -> list[Settled[Any] | None]:
        self.attempts.append(Attempt(patient, tuple(self.names[write] for write in writes)))
        await asyncio.sleep(0)  # others may come meanwhile
        return [None if self.held.intersection(write.sessions) else self._land(write) for write in writes]

    def _land(self, write: Write[Any]) -> Settled[Any]:
        self.landed.append(self.names[write])
        return Settled(result=self.names[write])

    def patient_before(self, name: str, *, since: int) -> int:
        """How many patient attempts, of those since a number of them, came before the one that this write is in."""
        attempts = takewhile(lambda attempt: name not in attempt.writes, self.attempts[since:])
        return sum(attempt.patient for attempt in attempts)

    @property
    def patient(self) -> list[Attempt]:
        return [attempt for attempt in self.attempts if attempt.patient]


async def submitted(writer: Writer, world: World, *writes: tuple[str, str]) -> list[asyncio.Task[str]]:
    """Writes, by session and name, that are in line and wait for their answers."""
    tasks = [asyncio.create_task(writer.write(world.write(*write))) for write in writes]
    await asyncio.sleep(0)
    return tasks


async def healthy_writes_until(writer: Writer, world: World, end: float) -> None:
    """A write of somebody else every tenth of a second. Each waits with one patient attempt at most."""
    while world.time < end:
        world.time = min(world.time + 0.1, end)
        name = f"healthy at {world.time:.1f}"
        before = len(world.attempts)
        assert await writer.write(world.write("healthy", name)) == name
        assert world.patient_before(name, since=before) <= 1, name
