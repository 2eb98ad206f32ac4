"""What may wait, and how long: one session does not fill the line, one lock is waited for once, nothing piles up."""

from __future__ import annotations

import asyncio
import gc
import os
import tracemalloc
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from lash.errors import StoreLocked
from lash.inbox.items import InboxItem
from lash.store import writer as writer_module
from lash.store.opening import open_store
from lash.store.sql.store import SqlStore
from lash.store.writer import MAX_QUEUED_BYTES, PATIENCE, Backlog, Writer
from lash.testing.builders import a_message, a_session
from tests.contract.stores import SqliteHarness
from tests.postgres import PostgresServer
from tests.store.holding import beside, file_locked, holding, process, until_waiting
from tests.store.world import World, healthy_writes_until, submitted

MIB = 1024 * 1024
LONG = bool(os.environ.get("LASH_LONG"))


# -- one session -------------------------------------------------------------------------------------------------------


async def test_others_get_through_while_more_than_fits_in_line_waits_for_a_held_session(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module, "MAX_QUEUED", 128)
    url = postgres.fresh().render_as_string(hide_password=False)
    async with await process(url, "writer") as store, beside(url) as query:
        held, other = await a_session(store, "held"), await a_session(store, "other")
        items = [a_message(f"{number}") for number in range(400)]
        async with holding(url, "SELECT 1 FROM lash_sessions WHERE name = 'held' FOR UPDATE"):
            waiting = [asyncio.create_task(store.admit(held.uid, item)) for item in items]
            await until_waiting(query, "writer")
            for number in range(1, 11):
                assert (await store.admit(other.uid, a_message(f"{number}"))).seq == number
            assert store.backlog.writes == 64  # type: ignore[attr-defined]
            assert store.backlog.callers == 336  # type: ignore[attr-defined]
            assert not any(task.done() for task in waiting)
        assert [item.seq for item in await asyncio.gather(*waiting)] == list(range(1, 401))
        kept = (await store.items(held.uid, limit=1000)).rows
        assert [item.id for item in kept] == [item.id for item in items]


async def test_who_waited_as_long_behind_a_held_session_is_refused_with_it(world: World) -> None:
    """Not one share of the session after the other."""
    world.held.add("held")
    writer = Writer(world.settle)
    early = await submitted(writer, world, *(("held", f"early {number}") for number in range(200)))
    await healthy_writes_until(writer, world, PATIENCE / 2)
    late = await submitted(writer, world, *(("held", f"late {number}") for number in range(200)))
    await healthy_writes_until(writer, world, PATIENCE + 1.5)
    assert [type(task.exception()) for task in early] == [StoreLocked] * 200
    assert not any(task.done() for task in late)
    world.held.clear()
    await healthy_writes_until(writer, world, PATIENCE + 6)
    assert [await task for task in late] == [f"late {number}" for number in range(200)]
    await writer.aclose()


# -- one lock ----------------------------------------------------------------------------------------------------------


def count_attempts(store: SqlStore) -> tuple[list[int], asyncio.Event]:
    """The sizes of the batches that it tries to settle, and that it has begun with the first."""
    attempts, begun = list[int](), asyncio.Event()
    settle = store._writer._settle

    async def counted(writes: Any, *, patient: bool) -> Any:
        attempts.append(len(writes))
        begun.set()
        return await settle(writes, patient=patient)

    store._writer._settle = counted  # type: ignore[assignment]
    return attempts, begun


async def test_a_locked_file_is_waited_for_once_by_all_who_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those in line, and those for whom there was no room in it. Who comes later waits for itself."""
    monkeypatch.setattr(writer_module, "MAX_QUEUED", 400)
    url = SqliteHarness(tmp_path / "locked.db").url
    async with await open_store(url, busy_timeout=timedelta(milliseconds=500)) as store:
        uids = [(await a_session(store)).uid for _ in range(10)]
        attempts, begun = count_attempts(store)
        with file_locked(url):
            calls = [store.admit(uids[number % 10], a_message(f"{number}")) for number in range(800)]
            tasks = [asyncio.create_task(call) for call in calls]
            await asyncio.sleep(0)  # all have come
            assert (store.backlog.writes, store.backlog.callers) == (400, 400)
            await asyncio.wait_for(begun.wait(), 10)
            later = asyncio.create_task(store.admit(uids[0], a_message("later")))
            ends = await asyncio.gather(*tasks, return_exceptions=True)
            assert [type(end) for end in ends] == [StoreLocked] * 800
            assert [size for size in attempts if size > 1] == [256]
            assert not later.done()
        assert (await later).seq == 1
        assert attempts == [256, 1]
        assert store.backlog == Backlog(0, 0, 0)
        assert [len((await store.items(uid)).rows) for uid in uids] == [1, *[0] * 9]


# -- memory ------------------------------------------------------------------------------------------------------------


async def test_what_waits_in_line_is_bounded_in_bytes_and_a_caller_can_see_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert MAX_QUEUED_BYTES == 64 * MIB
    monkeypatch.setattr(writer_module, "MAX_QUEUED_BYTES", 2 * MIB)
    async with await open_store(SqliteHarness(tmp_path / "bytes.db").url) as store:
        uids = [(await a_session(store)).uid for _ in range(30)]
        large = "x" * (MIB // 10)
        tasks = [asyncio.create_task(store.admit(uid, a_message(large))) for uid in uids]
        await asyncio.sleep(0)
        seen = [store.backlog]
        for task in asyncio.as_completed(tasks):
            await task
            seen.append(store.backlog)
        assert seen[0].callers > 0
        assert 1.8 * MIB < max(backlog.bytes for backlog in seen) <= 2 * MIB
        assert seen[-1] == Backlog(0, 0, 0)


async def test_nothing_piles_up_over_a_long_run(url: str) -> None:
    async with await open_store(url) as store:
        await _runs_for_long(store, rounds=200 if LONG else 5)


async def _runs_for_long(store: SqlStore, rounds: int) -> None:
    uids = [(await a_session(store)).uid for _ in range(10)]

    async def some_writes() -> int:
        calls = [store.admit(uids[number % 10], a_message("x" * 1000)) for number in range(100)]
        ends = await asyncio.gather(*calls)
        return sum(isinstance(end, InboxItem) for end in ends)

    for _ in range(3):
        await some_writes()
    tracemalloc.start()
    try:
        await some_writes()
        gc.collect()
        before, _ = tracemalloc.get_traced_memory()
        assert sum([await some_writes() for _ in range(rounds)]) == 100 * rounds
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 100_000, "the writes of one round alone are more than that"
