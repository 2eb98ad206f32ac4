"""How a keeper goes about it, with a store that does what it is told."""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta

import pytest

from lash.errors import LashError, LeaseOverdue, StoreClosed
from lash.ids import OwnerId
from lash.lease import ExecutionLease
from lash.store import keeper as keeping
from lash.store.keeper import Renewal, ThreadKeeper

from .samples import NOW, SESSION

TTL = timedelta(seconds=60)
OFTEN = timedelta(milliseconds=10)
LEASE = ExecutionLease(SESSION, OwnerId("me"), 7, NOW + TTL)
LATER = replace(LEASE, expires_at=NOW + 2 * TTL)
Answer = list[Renewal] | Exception


class Scripted:
    """A renewer that waits to be told what each attempt comes to."""

    def __init__(self) -> None:
        self.asked: queue.SimpleQueue[tuple[list[ExecutionLease], bool]] = queue.SimpleQueue()
        self.answers: queue.SimpleQueue[Answer] = queue.SimpleQueue()
        self.closed_by: threading.Thread | None = None

    def renew(self, leases: Sequence[ExecutionLease], *, patient: bool) -> list[Renewal]:
        self.asked.put((list(leases), patient))
        answer = self.answers.get(timeout=30)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def close(self) -> None:
        self.closed_by = threading.current_thread()

    async def attempt(self) -> tuple[list[ExecutionLease], bool]:
        return await asyncio.to_thread(self.asked.get, timeout=30)


async def settled(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not holds():  # noqa: ASYNC110 (a thread changes it)
            await asyncio.sleep(0.001)


async def test_a_lease_that_was_let_go_during_an_attempt_stays_let_go() -> None:
    renewer = Scripted()
    async with ThreadKeeper(renewer, ttl=TTL, every=OFTEN) as keeper:
        other = replace(LEASE, generation=8)
        kept, control = (keeper.keep(lease, asked_at=keeper.time()) for lease in (LEASE, other))
        assert await renewer.attempt() == ([LEASE, other], False)
        keeper.let_go(LEASE)
        renewer.answers.put([LATER, replace(other, expires_at=LATER.expires_at)])
        await settled(lambda: control.lease != other)
        assert (kept.lease, kept.sure) == (LEASE, False)
        assert await renewer.attempt() == ([control.lease], False)
        renewer.answers.put([control.lease])


async def test_what_was_held_is_tried_once_more_patiently_and_alone_and_then_with_the_others() -> None:
    renewer = Scripted()
    async with ThreadKeeper(renewer, ttl=TTL, every=OFTEN) as keeper:
        other = replace(LEASE, generation=8)
        keeper.keep(LEASE, asked_at=keeper.time())
        keeper.keep(other, asked_at=keeper.time())
        attempts = [await renewer.attempt()]
        for answer in ([None, other], [None], [LEASE, other]):
            renewer.answers.put(answer)
            attempts.append(await renewer.attempt())
        assert attempts == [([LEASE, other], False), ([LEASE], True), ([LEASE, other], False), ([LEASE, other], False)]
        renewer.answers.put([LEASE, other])


async def test_a_failure_of_whatever_kind_is_followed_by_another_attempt() -> None:
    renewer = Scripted()
    async with ThreadKeeper(renewer, ttl=TTL, every=OFTEN) as keeper:
        kept = keeper.keep(LEASE, asked_at=keeper.time())
        for failure in (ValueError("a bug"), MemoryError(), TimeoutError()):
            assert await renewer.attempt() == ([LEASE], False)
            renewer.answers.put(failure)
        await renewer.attempt()
        assert (kept.sure, kept.gone.done()) == (True, False)
        renewer.answers.put([LATER])
        await settled(lambda: kept.lease == LATER)
        await renewer.attempt()
        renewer.answers.put([LATER])


async def test_after_a_failure_the_next_attempt_comes_sooner_than_the_next_renewal_would() -> None:
    every = TTL / 3
    renewer = Scripted()
    async with ThreadKeeper(renewer, ttl=TTL, every=every) as keeper:
        kept = keeper.keep(LEASE, asked_at=keeper.time() - every.total_seconds())
        was = kept.due_at
        await renewer.attempt()
        renewer.answers.put(OSError())
        await settled(lambda: kept.due_at != was)
        assert kept.due_at <= keeper.time() + every.total_seconds() / 4


async def test_an_attempt_that_comes_late_and_succeeds_keeps_the_lease() -> None:
    renewer = Scripted()
    async with ThreadKeeper(renewer, ttl=TTL, every=OFTEN) as keeper:
        kept = keeper.keep(LEASE, asked_at=keeper.time() - 2 * TTL.total_seconds())
        assert not kept.sure
        await renewer.attempt()
        renewer.answers.put([LATER])
        await settled(lambda: kept.sure)
        assert not kept.gone.done()
        await renewer.attempt()
        renewer.answers.put([LATER])


async def test_an_attempt_that_comes_late_and_fails_makes_the_lease_overdue() -> None:
    renewer = Scripted()
    async with ThreadKeeper(renewer, ttl=TTL, every=OFTEN) as keeper:
        kept = keeper.keep(LEASE, asked_at=keeper.time() - 2 * TTL.total_seconds())
        await renewer.attempt()
        renewer.answers.put(failure := OSError("no route"))
        gone = await asyncio.wait_for(kept.gone, 30)
        assert isinstance(gone, LeaseOverdue)
        assert (gone.__cause__, gone.problem, gone.generation) == (failure, "no route", 7)


async def test_leaving_waits_for_the_attempt_that_is_under_way_and_closes_what_it_used_in_its_own_thread() -> None:
    renewer = Scripted()
    keeper = ThreadKeeper(renewer, ttl=TTL, every=OFTEN)
    kept = keeper.keep(LEASE, asked_at=keeper.time())
    await renewer.attempt()
    leaving = asyncio.create_task(keeper.aclose())
    assert await asyncio.wait_for(kept.gone, 30) is None
    assert not leaving.done()
    assert renewer.closed_by is None
    renewer.answers.put([LATER])
    await asyncio.wait_for(leaving, 30)
    assert renewer.closed_by is not None
    assert renewer.closed_by.name == "lash-keeper"
    assert not renewer.closed_by.is_alive()
    with pytest.raises(StoreClosed):
        keeper.keep(LEASE, asked_at=keeper.time())


async def test_time_in_which_the_whole_process_was_stopped_is_no_silence_of_the_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stopped_for = 0.0
    now = keeping.elapsed
    monkeypatch.setattr(keeping, "elapsed", lambda: now() + stopped_for)
    renewer = Scripted()
    async with ThreadKeeper(renewer, ttl=TTL, every=OFTEN) as keeper:
        kept = keeper.keep(LEASE, asked_at=keeper.time())
        await renewer.attempt()
        await asyncio.sleep(0)  # the loop has answered what it was asked
        stopped_for = 2 * TTL.total_seconds()
        renewer.answers.put([LATER])
        await renewer.attempt()
        renewer.answers.put([LATER])
        await settled(lambda: kept.sure)
        assert not kept.gone.done()


async def test_a_loop_that_leaves_a_question_unanswered_for_a_ttl_hears_what_came_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hung_for = 0.0
    now = keeping.elapsed
    monkeypatch.setattr(keeping, "elapsed", lambda: now() + hung_for)
    renewer = Scripted()
    async with ThreadKeeper(renewer, ttl=TTL, every=OFTEN) as keeper:
        kept = keeper.keep(LEASE, asked_at=keeper.time())
        renewer.asked.get(timeout=30)  # from here on the loop hangs
        hung_for = 0.9 * TTL.total_seconds()
        for _ in range(2):  # less than a ttl is no reason to give up
            renewer.answers.put([LATER])
            assert renewer.asked.get(timeout=30) == ([LATER], False)
        hung_for = 1.1 * TTL.total_seconds()
        renewer.answers.put([LATER])
        while kept.sure:
            time.sleep(0.001)  # noqa: ASYNC251 (it hangs)
        assert not kept.gone.done()
        gone = await asyncio.wait_for(kept.gone, 30)
        assert isinstance(gone, LeaseOverdue)
        assert gone.problem == "the event loop has not answered for 0:01:00"
        assert renewer.asked.empty()


def test_a_thread_whose_loop_was_closed_ends() -> None:
    renewer = Scripted()
    keepers: list[ThreadKeeper] = []

    async def begin() -> None:
        keeper = ThreadKeeper(renewer, ttl=TTL, every=OFTEN)
        keeper.keep(LEASE, asked_at=keeper.time())
        await renewer.attempt()
        keepers.append(keeper)

    asyncio.run(begin())
    renewer.answers.put([LATER])
    thread = keepers[0]._thread
    assert thread is not None
    thread.join(30)
    assert renewer.closed_by is thread


async def test_a_defect_of_the_keeper_itself_gives_all_leases_up(monkeypatch: pytest.MonkeyPatch) -> None:
    unhandled: list[threading.ExceptHookArgs] = []
    monkeypatch.setattr(threading, "excepthook", unhandled.append)
    renewer = Scripted()
    keeper = ThreadKeeper(renewer, ttl=TTL, every=OFTEN)
    kept = keeper.keep(LEASE, asked_at=keeper.time())
    await renewer.attempt()
    renewer.answers.put([])  # an answer for each lease, says the protocol
    gone: LashError | None = await asyncio.wait_for(kept.gone, 30)
    assert isinstance(gone, LeaseOverdue)
    assert isinstance(gone.__cause__, ValueError)
    await keeper.aclose()
    assert [type(each.exc_value) for each in unhandled] == [ValueError]
