"""Two open stores on one database in one process: in one event loop, and in two loops of two threads."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from lash.errors import LeaseLost, SessionBusy
from lash.ids import OwnerId, SessionUid
from lash.store.contract import Store
from lash.store.opening import open_store
from lash.testing.builders import TTL, a_message, a_session, commit_nodes, must_acquire, said, says, text_of
from lash.testing.checking import check_database
from tests.store.mixture import Prepared, check_answers, landed, prepare


async def send(store: Store, uid: SessionUid, who: str) -> list[tuple[int, str]]:
    """Forty messages, some at a time: the place in line that each got."""
    told: list[tuple[int, str]] = []
    for start in range(0, 40, 10):
        items = await asyncio.gather(
            *(store.admit(uid, a_message(f"{who} {number}")) for number in range(start, start + 10))
        )
        told += [(item.seq, text_of(item)) for item in items]
    return told


async def check_places(store: Store, uid: SessionUid, told: list[tuple[int, str]]) -> None:
    kept = [(item.seq, text_of(item)) for item in (await store.items(uid, limit=1000)).rows]
    assert sorted(told) == kept
    assert [seq for seq, _ in kept] == list(range(1, 81))


async def test_two_stores_of_one_loop_behave_like_two_processes(url: str) -> None:
    async with await open_store(url) as two:
        async with await open_store(url) as one:
            shared = (await a_session(one)).uid
            writes = await prepare(one, of_each=2)
            calls = [write.make(two if number % 2 else one) for number, write in enumerate(writes)]
            told, more, *ends = await asyncio.gather(
                send(one, shared, "one"), send(two, shared, "two"), *calls, return_exceptions=True
            )
            assert isinstance(told, list)
            assert isinstance(more, list)
            await check_places(two, shared, told + more)
            assert [end for end in ends if isinstance(end, BaseException)] == []
            await check_answers(url, two, writes, ends)

            lease = await must_acquire(one, shared, "one")
            with pytest.raises(SessionBusy):
                await two.acquire(shared, OwnerId("two"), ttl=TTL)
            await one.release(lease)
            taken = await must_acquire(two, shared, "two")
            with pytest.raises(LeaseLost):
                await commit_nodes(one, lease, says("displaced"))
        await commit_nodes(two, taken, says("the other one was closed"))
        assert await said(two, shared) == ["the other one was closed"]
    (await check_database(url)).raise_if_broken()


def test_two_loops_in_two_threads_write_at_once(url: str) -> None:
    meeting = threading.Barrier(2)

    async def prepared() -> tuple[SessionUid, list[Prepared]]:
        async with await open_store(url) as store:
            return (await a_session(store)).uid, await prepare(store, of_each=4)

    async def work(who: str, writes: list[Prepared]) -> tuple[list[tuple[int, str]], list[object]]:
        async with await open_store(url) as store:
            await asyncio.to_thread(meeting.wait, 30)
            told, *ends = await asyncio.gather(send(store, uid, who), *(write.make(store) for write in writes))
            return told, ends

    uid, writes = asyncio.run(prepared())
    with ThreadPoolExecutor(max_workers=2) as threads:
        runs = [
            threads.submit(lambda who=who, mine=mine: asyncio.run(work(who, mine)))  # type: ignore[misc]
            for who, mine in (("one", writes[::2]), ("two", writes[1::2]))
        ]
        results = [run.result(timeout=60) for run in runs]

    async def check() -> None:
        assert all(await landed(url, writes))
        async with await open_store(url) as store:
            await check_places(store, uid, results[0][0] + results[1][0])
        (await check_database(url)).raise_if_broken()

    asyncio.run(check())
