"""Everything that can happen to workers, mixed at random, for as long as you like: ``python -m tests.crash.soak``.

One worker on each database lives through all of it: its memory may not grow without end, and nor may SQLite's log. The
others come and go. Every round is a story with a verdict; what it does follows from its seed, which is printed first,
so that a round that fails can be run again by itself.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import psutil

from tests.crash.databases import Database, SqliteFile
from tests.crash.processes import Process, process
from tests.crash.rounds import Story, story
from tests.crash.servers import MortalServer, mortal_server

MiB = 1024 * 1024
MAX_GROWTH = 64 * MiB
"""How much more memory a worker may have in the end than after its first rounds."""
WARM_UP = 5
MAX_LOG = 64 * MiB
HOUR = timedelta(hours=1)


@dataclass
class Ground:
    """A database, and the worker that lives on it from the first round to the last."""

    database: Database
    old: Process
    server: MortalServer | None = None
    rounds: int = 0
    memory: list[int] = field(default_factory=list)

    def measure(self) -> str:
        """What the old worker and the log have come to; too much of either is a failure."""
        self.memory.append(psutil.Process(self.old.pid).memory_info().rss)
        line = f"memory {self.memory[-1] / MiB:.0f} MiB"
        if len(self.memory) > WARM_UP:
            assert self.memory[-1] <= max(self.memory[:WARM_UP]) + MAX_GROWTH, f"the worker grows: {self.memory}"
        if isinstance(self.database, SqliteFile):
            log = self.database.path.with_name(f"{self.database.path.name}-wal")
            size = log.stat().st_size if log.exists() else 0
            assert size <= MAX_LOG, f"the log has {size} bytes"
            line += f", log {size / MiB:.1f} MiB"
        return line


class Round:
    """One story with some accidents. ``young`` workers may be killed."""

    def __init__(self, ground: Ground, told: Story) -> None:
        self.ground, self.told, self.random = ground, told, told.random
        self.young: list[Process] = []
        self.dead: list[Process] = []

    @property
    def everybody(self) -> list[Process]:
        return [self.ground.old, *self.young, *self.dead]

    async def run(self) -> list[str]:
        old = self.ground.old
        old.calls.clear()
        self.told.set_to_work(old)
        self.young = await self.told.workers(2)
        happened = [await self._accident() for _ in range(self.random.randint(2, 4))]
        await self.ground.database.set_clock(timedelta(0))
        await self._go_on(old)
        for worker in list(self.young):
            if self.random.random() < 0.5:
                await self._kill(worker)
        await self.told.is_over_for(*self.young)
        await old.do("stop")
        await self.told.look(self.everybody)
        await self.told.finish(self.everybody)
        await old.do("retire")
        return happened

    async def _accident(self) -> str:
        await self._go_on(self.random.choice(self.everybody[: 1 + len(self.young)]))
        accidents: list[Callable[[], Awaitable[str]]] = [self._death, self._death, self._standstill, self._jump]
        if self.ground.server is not None:
            accidents += [self._loss_of_a_backend, self._loss_of_the_server]
        return await self.random.choice(accidents)()

    async def _go_on(self, worker: Process) -> None:
        heard = sum(call.acknowledged for call in worker.calls)
        await worker.heard(heard + self.random.randint(1, 40))

    async def _kill(self, worker: Process) -> None:
        await worker.kill()
        self.young.remove(worker)
        self.dead.append(worker)

    async def _death(self) -> str:
        await asyncio.sleep(self.random.random() * 0.05)
        await self._kill(self.random.choice(self.young))
        self.young.append(await self.told.worker())
        return "kill"

    async def _standstill(self) -> str:
        worker = self.random.choice([self.ground.old, *self.young])
        worker.stop()
        await asyncio.sleep(self.random.choice([0.1, 1.3]))
        worker.go_on()
        return "stop"

    async def _jump(self) -> str:
        ahead = self.random.choice([HOUR, -HOUR])
        await self.ground.database.set_clock(ahead)
        await self._go_on(self.ground.old)
        if self.random.random() < 0.5:
            await self.ground.database.set_clock(timedelta(0))
        return f"jump {ahead / HOUR:+.0f} h"

    async def _loss_of_a_backend(self) -> str:
        assert self.ground.server is not None
        await self.ground.server.kill_backend(self.random)
        await self._go_on(self.ground.old)
        return "kill a backend"

    async def _loss_of_the_server(self) -> str:
        assert self.ground.server is not None
        self.random.choice([self.ground.server.kill, self.ground.server.stop])()
        self.ground.server.start()
        await self._go_on(self.ground.old)
        return "kill the server"


async def one_round(ground: Ground, seed: str) -> None:
    began = time.monotonic()
    print(f"{seed}: ", end="", flush=True)
    async with story(ground.database, seed, sweeps=random.Random(seed).random() < 0.5) as told:
        happened = await Round(ground, told).run()
        calls = told.ledger.calls
    ground.rounds += 1
    acknowledged = sum(call.acknowledged for call in calls)
    took = time.monotonic() - began
    print(f"{', '.join(happened)}; {acknowledged} of {len(calls)} calls; {took:.1f} s; {ground.measure()}", flush=True)


async def soak(grounds: Sequence[Ground], seeds: Sequence[str], minutes: float) -> None:
    """The given rounds, or, without any, new ones until the time is over."""
    for seed in seeds:
        await one_round(grounds[0], seed)
    over_at = time.monotonic() + (0 if seeds else minutes * 60)
    number = 0
    while time.monotonic() < over_at:
        await one_round(grounds[number % len(grounds)], secrets.token_hex(4))
        number += 1


async def run(kinds: Sequence[str], seeds: Sequence[str], minutes: float, folder: Path) -> None:
    async with AsyncExitStack() as stack:
        grounds = []
        for kind in kinds:
            server = stack.enter_context(mortal_server()) if kind == "postgres" else None
            database: Database = SqliteFile(folder / "soak.db") if server is None else server.database
            old = await stack.enter_async_context(process("old", database.place))
            grounds.append(Ground(database, old, server))
        await soak(grounds, seeds, minutes)
        for ground in grounds:
            await ground.old.end()
        print(f"{sum(ground.rounds for ground in grounds)} rounds, and every promise was kept")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--kind", choices=["sqlite", "postgres"], action="append", help="only this kind of database")
    parser.add_argument("--seed", action="append", default=[], help="only this round, as it was printed")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="lash-soak-"))
    try:
        asyncio.run(run(given.kind or ["sqlite", "postgres"], given.seed, given.minutes, folder))
    except BaseException:
        print(f"\nwhat is left of SQLite's file is in {folder}", file=sys.stderr)
        raise
    with contextlib.suppress(OSError):
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
