"""Callers that do not wait for their answers: their writes happen wholly or not at all, and the others go on."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import pytest

from lash.ids import SessionUid
from lash.store import writer as writer_module
from lash.store.opening import open_store
from lash.store.sql.steps import Settled, Write
from lash.store.sql.store import SqlStore
from lash.store.writer import Backlog
from lash.testing.builders import a_message, a_session, text_of
from lash.testing.checking import check_database
from tests.store.mixture import SUBMITTED_AT_ONCE, Prepared, check_answers, landed, prepare

Batch = Sequence[Write[Any]]
Settle = Callable[[], Awaitable[list[Settled[Any] | None]]]


@pytest.fixture
async def store(url: str) -> AsyncIterator[SqlStore]:
    async with await open_store(url) as store:
        yield store


def when_settling(store: SqlStore, do: Callable[[Settle], Awaitable[list[Settled[Any] | None]]]) -> list[int]:
    """Do something in place of settling the next batch. The sizes of all batches from now on."""
    sizes: list[int] = []
    inner = store._writer._settle

    async def settle(writes: Batch, *, patient: bool) -> list[Settled[Any] | None]:
        sizes.append(len(writes))
        if len(sizes) > 1:
            return await inner(writes, patient=patient)
        return await do(lambda: inner(writes, patient=patient))

    store._writer._settle = settle  # type: ignore[assignment]
    return sizes


def start(store: SqlStore, writes: Sequence[Prepared]) -> list[asyncio.Task[object]]:
    async def make(write: Prepared) -> object:
        return await write.make(store)

    return [asyncio.create_task(make(write)) for write in writes]


async def check_that_it_goes_on(url: str, store: SqlStore, writes: Sequence[Prepared], ends: Sequence[object]) -> None:
    await check_answers(url, store, writes, ends)
    assert store.backlog == Backlog(0, 0, 0)
    (await check_database(url)).raise_if_broken()


async def test_a_caller_cancelled_while_it_waits_for_room_has_written_nothing(
    url: str, store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes = await prepare(store, of_each=1, kinds=SUBMITTED_AT_ONCE)
    monkeypatch.setattr(writer_module, "MAX_QUEUED", 4)
    tasks = start(store, writes)

    async def cancel_who_waits_for_room(settle: Settle) -> list[Settled[Any] | None]:
        assert (store.backlog.writes, store.backlog.callers) == (4, 11)
        for task in tasks[4:]:
            task.cancel()
        await asyncio.wait(tasks[4:])
        return await settle()

    sizes = when_settling(store, cancel_who_waits_for_room)
    ends = await asyncio.gather(*tasks, return_exceptions=True)
    assert [isinstance(end, asyncio.CancelledError) for end in ends] == [False] * 4 + [True] * 11
    assert sizes == [4]
    assert await landed(url, writes) == [True] * 4 + [False] * 11
    await check_that_it_goes_on(url, store, writes, ends)


async def test_a_caller_cancelled_while_its_batch_is_settled_has_written_all_the_same(
    url: str, store: SqlStore
) -> None:
    writes = await prepare(store, of_each=4, kinds=SUBMITTED_AT_ONCE)
    tasks = start(store, writes)

    async def cancel_all(settle: Settle) -> list[Settled[Any] | None]:
        settling = asyncio.ensure_future(settle())
        await asyncio.sleep(0)  # it has begun
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        assert not settling.done()
        return await settling

    sizes = when_settling(store, cancel_all)
    ends = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(end, asyncio.CancelledError) for end in ends)
    await store.put_blob(b"whoever is next waits for the batch before")
    assert sizes == [60, 1]
    assert all(await landed(url, writes))
    await check_that_it_goes_on(url, store, writes, ends)


async def test_a_caller_cancelled_while_its_answer_is_on_its_way_has_written(url: str, store: SqlStore) -> None:
    writes = await prepare(store, of_each=4, kinds=SUBMITTED_AT_ONCE)
    tasks = start(store, writes)

    def cancel() -> None:
        assert store.backlog == Backlog(0, 0, 0), "everybody was answered"
        assert not any(task.done() for task in tasks), "and nobody has heard it yet"
        for task in tasks:
            task.cancel()

    async def cancel_after(settle: Settle) -> list[Settled[Any] | None]:
        settled = await settle()
        asyncio.get_running_loop().call_soon(cancel)  # after the writer has answered, and before a caller goes on
        return settled

    sizes = when_settling(store, cancel_after)
    ends = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(end, asyncio.CancelledError) for end in ends)
    assert sizes == [60]
    assert all(await landed(url, writes))
    await check_that_it_goes_on(url, store, writes, ends)


async def test_a_caller_that_ran_out_of_time_can_ask_what_became_of_its_write(url: str, store: SqlStore) -> None:
    writes = await prepare(store, of_each=4, kinds=SUBMITTED_AT_ONCE)
    gone = asyncio.Event()

    async def hurried(write: Prepared) -> object:
        async with asyncio.timeout(0.05):
            return await write.make(store)

    async def wait_for_them_to_go(settle: Settle) -> list[Settled[Any] | None]:
        await gone.wait()
        return await settle()

    when_settling(store, wait_for_them_to_go)
    ends = await asyncio.gather(*map(hurried, writes), return_exceptions=True)
    gone.set()
    assert [type(end) for end in ends] == [TimeoutError] * 60
    await check_that_it_goes_on(url, store, writes, [asyncio.CancelledError()] * 60)


async def test_a_group_of_callers_that_fails_leaves_the_writes_of_the_others_whole(url: str, store: SqlStore) -> None:
    writes = await prepare(store, of_each=4, kinds=SUBMITTED_AT_ONCE)
    begun = asyncio.Event()

    async def say_so(settle: Settle) -> list[Settled[Any] | None]:
        begun.set()
        return await settle()

    async def fail() -> None:
        await begun.wait()
        raise ZeroDivisionError

    async def make(write: Prepared) -> None:
        await write.make(store)

    async def all_together() -> None:
        async with asyncio.TaskGroup() as group:
            for write in writes:
                group.create_task(make(write))
            group.create_task(fail())

    when_settling(store, say_so)
    with pytest.raises(ExceptionGroup) as failed:
        await all_together()
    assert [type(error) for error in failed.value.exceptions] == [ZeroDivisionError]
    await store.put_blob(b"next")
    assert all(await landed(url, writes))
    await check_that_it_goes_on(url, store, writes, [asyncio.CancelledError()] * 60)


# -- when the event loop ends ------------------------------------------------------------------------------------------

LEAVES = """
import asyncio, sys
from lash.ids import SessionUid
from lash.store import open_store
from lash.testing.builders import a_message

async def send(store, uid):
    for number in range(60):
        asyncio.create_task(store.admit(uid, a_message(str(number))))
    for _ in range(int(steps)):
        await asyncio.sleep(0)

async def main(url, uid):
    if closes == "closes":
        async with await open_store(url) as store:
            await send(store, SessionUid(uid))
    else:
        store = await open_store(url)
        await store.find(SessionUid(uid))
        await send(store, SessionUid(uid))

url, uid, steps, closes = sys.argv[1:]
asyncio.run(main(url, uid))
"""


@pytest.mark.parametrize(("steps", "closes"), [(1, "closes"), (5, "leaves")])
async def test_a_program_that_ends_with_writes_in_flight_ends(url: str, steps: int, closes: str) -> None:
    """Who closes has written all; who just leaves has written so many of them, each whole and in order."""
    async with await open_store(url) as store:
        uid = (await a_session(store)).uid
    words = [sys.executable, "-W", "ignore", "-c", LEAVES, url, uid, str(steps), closes]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout) == (0, ""), ended.stderr
    async with await open_store(url) as store:
        kept = [text_of(item) for item in (await store.items(uid, limit=1000)).rows]
        assert kept == [f"{number}" for number in range(len(kept))]
        if closes == "closes":
            assert len(kept) == 60
    (await check_database(url)).raise_if_broken()


def test_a_loop_that_ends_with_writes_in_flight_leaves_no_thread_once_the_store_is_closed_in_it(url: str) -> None:
    async def main() -> SessionUid:
        async with await open_store(url) as store:
            uid = (await a_session(store)).uid
            tasks = [asyncio.create_task(store.admit(uid, a_message(f"{number}"))) for number in range(60)]
            await asyncio.sleep(0)
        assert all(task.done() and task.exception() is None for task in tasks)
        return uid

    before = set(threading.enumerate())
    asyncio.run(main())
    assert set(threading.enumerate()) <= before
