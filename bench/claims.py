"""Claiming and completing inbox items with four worker processes on Postgres.

By lash an item is claimed by the opening of a turn and completed by the commit that settles it, with a receipt; a
worker does so for many sessions at once. By hand it is a loop that takes one row with SKIP LOCKED, and completes it.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import random
import statistics
import time
from collections.abc import Awaitable, Callable
from typing import Any

import asyncpg
from sqlalchemy.engine import make_url

from bench.databases import Backend, Postgres
from bench.rows import Cost, Row, row
from bench.timing import quartiles
from lash.commit.plan import CommitPlan
from lash.ids import OperationId, OwnerId, SessionUid, TurnId
from lash.store.contract import OpenedTurn, Store, TurnOpening
from lash.store.opening import open_store
from lash.testing.builders import TTL, a_message, a_session, new_id
from lash.turn.record import TurnSettlement
from tests.postgres import execute

WORKERS = 4
AT_ONCE = 32
"""Sessions that a worker of lash drives at a time."""
ITEMS_PER_SESSION = 4

_CLAIM = """
UPDATE lash_inbox SET state = 'taken', turn = $1 WHERE (session, seq) = (
    SELECT session, seq FROM lash_inbox WHERE state = 'pending' ORDER BY session, due_at LIMIT 1 FOR UPDATE SKIP LOCKED
) RETURNING session, seq
"""
_COMPLETE = "UPDATE lash_inbox SET state = 'completed', settled_at = $3 WHERE session = $1 AND seq = $2"


async def fill(url: str, items: int) -> None:
    async with await open_store(url) as store:
        sessions = await asyncio.gather(*(a_session(store) for _ in range(items // ITEMS_PER_SESSION)))
        for number in range(ITEMS_PER_SESSION):
            await asyncio.gather(*(store.admit(each.uid, a_message(f"item {number}")) for each in sessions))
    await execute(make_url(url), "VACUUM ANALYZE")  # so that both sides are planned for what is there


# -- the workers -------------------------------------------------------------------------------------------------------


async def lash_worker(url: str, begin: Callable[[], None]) -> int:
    async with await open_store(url) as store:
        await store.ready(["default"])
        begin()
        done = 0
        while ready := await store.ready(["default"], limit=WORKERS * AT_ONCE * 2):
            mine = random.sample(ready, min(AT_ONCE, len(ready)))  # so that workers rarely meet
            done += sum(await asyncio.gather(*(_drive(store, session.uid) for session in mine)))
        return done


async def _drive(store: Store, uid: SessionUid) -> int:
    """Turn after turn, until nothing waits, or somebody else drives the session."""
    owner = OwnerId(new_id())
    done = 0
    while True:
        opened = await store.open_turn(TurnOpening(uid, owner, TurnId(new_id()), TTL))
        if opened.turn is None:
            return done
        await store.commit(_completed(opened))
        done += len(opened.items)


def _completed(opened: OpenedTurn) -> CommitPlan:
    assert opened.turn is not None
    assert opened.acquired is not None
    settles = TurnSettlement(opened.turn.id, "finished", completes=frozenset(item.id for item in opened.items))
    operation = OperationId(opened.turn.id)
    return CommitPlan(operation, opened.acquired.lease, base=opened.turn.base_revision, settles=settles, release=True)


async def bare_worker(url: str, begin: Callable[[], None]) -> int:
    connection = await asyncpg.connect(url)
    claim, complete = await connection.prepare(_CLAIM), await connection.prepare(_COMPLETE)
    begin()
    done = 0
    while (found := await claim.fetchrow(bytes.fromhex(new_id()))) is not None:
        await complete.fetch(found["session"], found["seq"], time.time_ns() // 1_000)
        done += 1
    await connection.close()
    return done


# -- four of them ------------------------------------------------------------------------------------------------------

Worker = Callable[[str, Callable[[], None]], Awaitable[int]]


def _process(worker: Worker, url: str, barrier: Any, ends: Any) -> None:
    async def run() -> int:
        return await worker(url, lambda: barrier.wait())

    cpu = time.process_time()
    done = asyncio.run(run())
    ends.put((done, time.perf_counter(), time.process_time() - cpu))


def run_workers(worker: Worker, url: str, items: int) -> tuple[float, float]:
    """Seconds from the common start to the last item, and CPU seconds of all workers."""
    context = multiprocessing.get_context("spawn")
    barrier, ends = context.Barrier(WORKERS + 1), context.Queue()
    processes = [context.Process(target=_process, args=(worker, url, barrier, ends)) for _ in range(WORKERS)]
    for process in processes:
        process.start()
    barrier.wait(60)
    began = time.perf_counter()  # CLOCK_MONOTONIC: the same in every process
    found = [ends.get(timeout=120) for _ in processes]
    for process in processes:
        process.join()
    assert sum(done for done, _, _ in found) == items, "every item once"
    return max(at for _, at, _ in found) - began, sum(cpu for _, _, cpu in found)


@row("claims", "postgres")
async def claims(backend: Backend, effort: float) -> Row:
    assert isinstance(backend, Postgres)
    items, rounds = max(400, round(2_000 * effort / 100) * 100), max(1, round(3 * effort))
    times: dict[str, list[float]] = {"lash": [], "bare": []}
    cpus: dict[str, list[float]] = {"lash": [], "bare": []}
    syncs: dict[str, list[float]] = {"lash": [], "bare": []}
    for _ in range(rounds):
        for name, worker in (("lash", lash_worker), ("bare", bare_worker)):
            url = backend.fresh()
            await fill(url, items)
            before = await backend.wal_syncs()
            seconds, cpu = await asyncio.to_thread(run_workers, worker, url, items)
            times[name].append(seconds / items)
            cpus[name].append(cpu / items * 1e6)
            syncs[name].append((await backend.wal_syncs() - before) / items)
    ratios = [bare / lash for lash, bare in zip(times["lash"], times["bare"], strict=True)]
    cost = {name: Cost(statistics.median(cpus[name]), statistics.median(syncs[name])) for name in times}
    return Row(
        "claims",
        backend.name,
        value=1 / statistics.median(times["lash"]),
        unit="items/s",
        baseline=1 / statistics.median(times["bare"]),
        ratio=statistics.median(ratios),
        spread=quartiles(ratios),
        floor=0.8,
        cost=cost["lash"],
        baseline_cost=cost["bare"],
    )
