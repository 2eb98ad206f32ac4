"""How long an occasional writer waits beside processes that write without a pause, on one SQLite file."""

from __future__ import annotations

import asyncio
import multiprocessing
import statistics
import time
from typing import Any

from bench.databases import Backend
from bench.rows import Row, row
from bench.timing import quartiles
from lash.ids import SessionUid
from lash.store.opening import open_store
from lash.testing.builders import a_message, a_session

CROWD = 3
PAUSE = 0.01
"""Seconds between two writes of the occasional writer."""
CEILING = 20.0
"""Its turn comes after the batch that is under way and one of each other process. On top of that come its own batch, a
WAL checkpoint now and then, and the time until a process that sleeps runs again, for each of them in turn; with fewer
processors than writers that is longer than a batch. Ratios of 4 to 6 were seen on two processors, 12 with both of them
busy otherwise. Without an order it was 60 to 170."""


def _saturate(url: str, uid: str, ready: Any, stop: Any, done: Any) -> None:
    async def run() -> None:
        async with await open_store(url) as store:
            ready.wait()
            count, began = 0, time.perf_counter()
            while not stop.is_set():
                await store.admit(SessionUid(uid), a_message("from the crowd"))
                count += 1
            done.put((count, time.perf_counter() - began))

    asyncio.run(run())


async def waits_of(url: str, writes: int) -> tuple[list[float], float]:
    """The occasional writer's times, and that of one batch of the crowd, when all of them write."""
    context = multiprocessing.get_context("spawn")
    ready, stop, done = context.Barrier(CROWD + 1), context.Event(), context.Queue()
    async with await open_store(url) as store:
        mine, theirs = [(await a_session(store)).uid for _ in range(2)]
        crowd = [context.Process(target=_saturate, args=(url, theirs, ready, stop, done)) for _ in range(CROWD)]
        for process in crowd:
            process.start()
        await asyncio.to_thread(ready.wait, 60)
        times: list[float] = []
        for _ in range(writes):
            await asyncio.sleep(PAUSE)
            began = time.perf_counter()
            await store.admit(mine, a_message("now and then"))
            times.append(time.perf_counter() - began)
        stop.set()
        found = [await asyncio.to_thread(done.get, timeout=60) for _ in crowd]
        for process in crowd:
            await asyncio.to_thread(process.join)
    batches = sum(count for count, _ in found) + writes
    return times, max(seconds for _, seconds in found) / batches


@row("fairness", "sqlite")
async def fairness(backend: Backend, effort: float) -> Row:
    rounds, writes = max(1, round(5 * effort)), max(50, round(300 * effort))
    ratios: list[float] = []
    waits: list[float] = []
    ideals: list[float] = []
    for _ in range(rounds):
        times, batch = await waits_of(backend.fresh(), writes)
        waits.append(statistics.quantiles(times, n=100)[98])
        ideals.append(CROWD * batch)
        ratios.append(waits[-1] / ideals[-1])
    return Row(
        "fairness",
        backend.name,
        value=statistics.median(waits) * 1e3,
        unit="ms (p99)",
        baseline=statistics.median(ideals) * 1e3,
        ratio=statistics.median(ratios),
        spread=quartiles(ratios),
        ceiling=CEILING,
    )
