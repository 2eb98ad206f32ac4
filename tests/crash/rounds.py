"""One story: some workers work on the same sessions, something happens to them, and everything is looked at.

After the crash, while nobody writes: is all there that was acknowledged? Then a successor repeats what was not
answered, takes over, and brings every session to its end. Then: is everything done, and nothing twice?
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from random import Random

from lash.testing import check_database
from tests.crash.calls import Ledger
from tests.crash.databases import Database
from tests.crash.judge import last_verdict, verdict
from tests.crash.processes import Process, process

LONG = bool(os.environ.get("LASH_LONG"))
SESSIONS = ("ann", "bob", "cat", "dan")


class Guilty(AssertionError):
    """The judge has found something. The message says what, and how to see it again."""


@dataclass
class Story:
    """``seed`` decides what workers do, and when they die. ``sweeps`` stories vacuum, and so can't repeat admissions:
    the key of an item that was swept names nothing any more."""

    database: Database
    seed: str
    sweeps: bool = False
    ledger: Ledger = field(default_factory=Ledger)
    random: Random = field(init=False)
    _stack: AsyncExitStack = field(default_factory=AsyncExitStack)
    _count: int = 0

    def __post_init__(self) -> None:
        self.random = Random(self.seed)

    @property
    def prefix(self) -> str:
        return f"story-{self.seed}"

    async def worker(self, *, busy_timeout: float | None = None) -> Process:
        """A new process at work."""
        self._count += 1
        made = process(f"w{self._count}", self.database.place, busy_timeout=busy_timeout)
        started = await self._stack.enter_async_context(made)
        self.set_to_work(started)
        return started

    async def workers(self, count: int) -> list[Process]:
        return list(await asyncio.gather(*(self.worker() for _ in range(count))))

    def set_to_work(self, worker: Process) -> None:
        worker.order("work", prefix=self.prefix, sessions=SESSIONS, seed=self.seed, sweeps=self.sweeps)

    async def is_over_for(self, *workers: Process) -> None:
        """They stop on their own, in good order."""
        for worker in workers:
            await worker.do("stop")
        await asyncio.gather(*(worker.end() for worker in workers))

    async def look(self, workers: Sequence[Process]) -> None:
        """The first verdict: nobody writes any more, and whoever was killed has left what it has left."""
        self.ledger.calls = [call for worker in workers for call in worker.calls]
        self._judge(verdict(await self.database.tables(), self.ledger))
        (await check_database(self.database.place.url)).raise_if_broken()

    async def finish(self, workers: Sequence[Process]) -> None:
        """A successor takes over; then the last verdict."""
        async with process("successor", self.database.place) as successor:
            await self.finish_by(successor, workers)
            await successor.end()

    async def finish_by(self, successor: Process, workers: Sequence[Process]) -> None:
        unanswered = [call for worker in workers for call in worker.calls if call.ended is None]
        await successor.repeat([call for call in unanswered if call.op != "admit" or not self.sweeps])
        await successor.do("finish", prefix=self.prefix, seed=self.seed)
        self.ledger.calls = [call for worker in (*workers, successor) for call in worker.calls]
        self._judge(last_verdict(await self.database.tables(), self.ledger))
        (await check_database(self.database.place.url)).raise_if_broken()

    def _judge(self, found: list[str]) -> None:
        if found:
            shown = "\n".join(f"  {problem}" for problem in found[:20])
            raise Guilty(f"story {self.seed!r} (sweeps: {self.sweeps}): {len(found)} promises are broken:\n{shown}")


@asynccontextmanager
async def story(database: Database, seed: str, *, sweeps: bool = False) -> AsyncIterator[Story]:
    """A story, and nothing left of its processes afterwards."""
    told = Story(database, seed, sweeps)
    async with told._stack:
        yield told
