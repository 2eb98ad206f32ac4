"""Processes on one SQLite file take turns: in order, and whatever becomes of the others."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from lash.errors import StoreLocked
from lash.store.opening import open_store
from lash.store.sql.gate import BATCHES_WHILE_ANOTHER_WAITS, MOMENT, Gate
from lash.testing.builders import a_message, a_session, commit_nodes, must_acquire, said, says
from tests.store.crowds import Program, at_the_gate, database_of, started, state_of, until

SOON = 10.0
"""Seconds that are long for a process that has only a moment to wait, and short beside any patience here."""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "crowded.db"
    path.touch()
    return path


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/crowded.db"


@contextlib.asynccontextmanager
async def waiting(file: Path) -> AsyncIterator[Program]:
    """A process that stands in line. Somebody must be inside."""
    before = entries(file)
    async with at_the_gate(file) as program:
        assert await program.told() == {"ready": True}
        await until(lambda: entries(file) > before)
        yield program


def entries(file: Path) -> int:
    gate = Gate(file, "the line")
    try:
        return len(gate._line())
    finally:
        gate.close()


# -- order -------------------------------------------------------------------------------------------------------------


async def test_no_process_commits_more_than_the_stated_number_of_batches_while_another_waits(url: str) -> None:
    """Numbers of items are given out in the order of the commits, so they tell who came between."""
    crowd, writes = 3, 100
    async with await open_store(url) as store, contextlib.AsyncExitStack() as stack:
        uid = (await a_session(store)).uid
        programs = [
            await stack.enter_async_context(started("saturate", url, uid, name, writes)) for name in range(crowd)
        ]
        assert [await program.told() for program in programs] == [{"ready": True}] * crowd
        await asyncio.gather(*(program.go() for program in programs))
        told = await asyncio.gather(*(program.rest() for program in programs))
    whose = {write["seq"]: name for name, writes_ in enumerate(told) for write in writes_}
    assert sorted(whose) == list(range(1, crowd * writes + 1))
    waits = [write for writes_ in told for write in writes_ if write["began_after"] is not None]
    awake = [write for write in waits if write["absence"] < MOMENT]
    assert len(awake) > len(whose) / 2, "they did not get in each other's way, so this shows nothing"
    for write in awake:
        between = Counter(whose[seq] for seq in range(write["began_after"] + 1, write["seq"]))
        assert max(between.values(), default=0) <= BATCHES_WHILE_ANOTHER_WAITS


async def test_the_gate_is_entered_in_the_order_of_asking(file: Path) -> None:
    gates = [Gate(file, "the test") for _ in range(12)]
    order: list[int] = []
    gates[0].enter(60)

    def run(number: int) -> None:
        with gates[number].passed(60):
            order.append(number)

    threads = [threading.Thread(target=run, args=[number]) for number in range(1, 12)]
    for waiting_now, thread in enumerate(threads, 1):
        thread.start()
        await until(lambda count=waiting_now: entries(file) == count)  # type: ignore[misc]
    gates[0].leave()
    for thread in threads:
        thread.join()
    assert order == list(range(1, 12))
    for gate in gates:
        gate.close()


def test_threads_that_share_a_gate_exclude_each_other(file: Path) -> None:
    gate = Gate(file, "the test")
    inside = [0]
    met: list[int] = []

    def run() -> None:
        for _ in range(200):
            with gate.passed(60):
                inside[0] += 1
                met.append(inside[0])
                os.stat(file)  # lets another thread run
                inside[0] -= 1

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    gate.close()
    assert met == [1] * 800


async def test_two_stores_in_one_process_take_turns_like_two_processes(url: str) -> None:
    async with await open_store(url) as one, await open_store(url, busy_timeout=timedelta(milliseconds=50)) as two:
        uid = (await a_session(one)).uid
        with database_of(one)._gate.passed(60), pytest.raises(StoreLocked):
            await two.admit(uid, a_message("now"))
        assert (await two.admit(uid, a_message("later"))).seq == 1


# -- who dies or stops -------------------------------------------------------------------------------------------------


async def test_who_dies_inside_keeps_nobody_out(file: Path) -> None:
    gate = Gate(file, "the test")
    async with at_the_gate(file) as doomed:
        assert [await doomed.told(), await doomed.told()] == [{"ready": True}, {"inside": True}]
        with pytest.raises(StoreLocked):
            gate.enter(0.05)
        await doomed.kill()
    with gate.passed(SOON):
        assert entries(file) == 0
    gate.close()


@pytest.mark.parametrize("fate", ["killed", "stopped"])
async def test_who_dies_or_stops_in_line_holds_up_the_others_for_a_moment_and_once(file: Path, fate: str) -> None:
    gate = Gate(file, "the test")
    gate.enter(60)
    async with waiting(file) as lost:
        await (lost.kill() if fate == "killed" else lost.stop())
        gate.leave()
        began = time.monotonic()
        with gate.passed(SOON):
            held_up = time.monotonic() - began
            assert entries(file) == 0, "it was struck out"
        assert held_up > MOMENT, "it had no chance"
        began = time.monotonic()
        for _ in range(20):
            with gate.passed(SOON):
                pass
        assert time.monotonic() - began < 20 * MOMENT / 2, "nobody waits for it again"
        if fate == "stopped":
            gate.enter(60)
            lost.signal(signal.SIGCONT)
            await until(lambda: entries(file) == 1)
            gate.leave()
            assert await lost.told() == {"inside": True}, "it found itself struck out and wrote itself in again"
            await lost.go()
            assert await lost.told() == {"outside": True}
    gate.close()


async def test_who_was_struck_out_gets_its_old_place_back(file: Path) -> None:
    gate = Gate(file, "the test")
    gate.enter(60)
    async with waiting(file) as stopped:
        await stopped.stop()
        gate.leave()
        with gate.passed(SOON):
            pass
        gate.enter(60)
        async with waiting(file) as younger:
            stopped.signal(signal.SIGCONT)
            await until(lambda: entries(file) == 2)
            gate.leave()
            assert await stopped.told() == {"inside": True}
            await stopped.go()
            assert await younger.told() == {"inside": True}
            await younger.go()
    gate.close()


async def test_who_stops_inside_is_waited_for_until_patience_ends(url: str, tmp_path: Path) -> None:
    async with await open_store(url, busy_timeout=timedelta(milliseconds=300)) as store:
        uid = (await a_session(store)).uid
        async with at_the_gate(tmp_path / "crowded.db") as stopped:
            assert [await stopped.told(), await stopped.told()] == [{"ready": True}, {"inside": True}]
            await stopped.stop()
            began = time.monotonic()
            with pytest.raises(StoreLocked, match=str(tmp_path)):
                await store.admit(uid, a_message("too early"))
            assert 0.3 <= time.monotonic() - began < SOON
            stopped.signal(signal.SIGCONT)
            await stopped.go()
            assert await stopped.told() == {"outside": True}
        assert (await store.admit(uid, a_message("now"))).seq == 1


async def test_children_that_outlive_a_process_keep_neither_the_gate_nor_its_owner(url: str) -> None:
    async with await open_store(url) as store:
        uid = (await a_session(store)).uid
        async with started("leave_children", url, uid, "parent") as parent:
            children: list[int] = (await parent.told())["children"]
            try:
                await parent.kill()
                async with asyncio.timeout(SOON):
                    assert (await must_acquire(store, uid, "successor")).generation == 2
                assert [state_of(child) for child in children] == ["S", "S"]
            finally:
                for child in children:
                    os.kill(child, signal.SIGKILL)


# -- the file ----------------------------------------------------------------------------------------------------------


async def test_a_gate_that_somebody_removed_is_made_anew_by_whoever_comes_next(file: Path) -> None:
    gate, other = Gate(file, "the test"), Gate(file, "another")
    gate.enter(60)
    async with waiting(file) as waits:
        gate.remove()
        gate.leave()
        assert await waits.told() == {"inside": True}
        for late in (gate, other):
            with pytest.raises(StoreLocked):
                late.enter(0.05)
        await waits.go()
        assert await waits.told() == {"outside": True}
    with gate.passed(SOON), pytest.raises(StoreLocked):
        other.enter(0.05)
    gate.close()
    other.close()


async def test_a_link_to_a_database_leads_to_the_same_gate(url: str, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    link = tmp_path / "elsewhere" / "link"
    link.symlink_to(tmp_path / "crowded.db")
    soon = timedelta(milliseconds=50)
    async with await open_store(url) as store, await open_store(f"sqlite:///{link}", busy_timeout=soon) as linked:
        uid = (await a_session(store)).uid
        with database_of(store)._gate.passed(60), pytest.raises(StoreLocked):
            await linked.admit(uid, a_message("now"))
        lease = await must_acquire(linked, uid)
        assert sorted(path.name for path in link.parent.iterdir()) == ["link"]
        await commit_nodes(linked, lease, says("through the link"))
        assert await said(store, uid) == ["through the link"]


def test_entries_from_before_the_machine_was_started_are_forgotten(file: Path) -> None:
    gate = Gate(file, "the test")
    Path(f"{file}-gate").write_bytes((2**62).to_bytes(8, "little") + (7).to_bytes(8, "little"))
    with gate.passed(SOON):
        assert gate._line() == []
    gate.close()


def test_more_can_wait_than_the_line_has_places(file: Path) -> None:
    gates = [Gate(file, "the test") for _ in range(80)]
    passed: list[int] = []
    gates[0].enter(60)

    def run(number: int) -> None:
        with gates[number].passed(60):
            passed.append(number)

    threads = [threading.Thread(target=run, args=[number]) for number in range(1, 80)]
    for thread in threads:
        thread.start()
    while entries(file) < 64:
        time.sleep(0.001)
    gates[0].leave()
    for thread in threads:
        thread.join()
    assert sorted(passed) == list(range(1, 80))
    assert entries(file) == 0
    for gate in gates:
        gate.close()


async def test_what_lies_beside_a_database_may_be_used_by_whoever_may_use_that(url: str, tmp_path: Path) -> None:
    path = tmp_path / "crowded.db"
    async with await open_store(url):
        pass
    path.chmod(0o660)
    async with await open_store(url) as store:
        await must_acquire(store, (await a_session(store)).uid)
        owners = f"{path}-owners"
        [own] = os.listdir(owners)
        assert [rights(name) for name in (f"{path}-gate", owners, f"{owners}/{own}")] == [0o660, 0o770, 0o660]
    assert os.listdir(tmp_path) == ["crowded.db"], "the last one takes all of it away"


def rights(name: str) -> int:
    return os.stat(name).st_mode & 0o777
