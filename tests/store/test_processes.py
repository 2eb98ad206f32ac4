"""Several processes on one database: real ones, some of them really killed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from lash.errors import StoreLocked
from lash.ids import OwnerId, SessionUid
from lash.lease import ExecutionLease
from lash.store.contract import OpenedTurn, Store
from lash.store.opening import open_store
from lash.testing.builders import (
    TTL,
    a_message,
    a_session,
    a_wait,
    an_opening,
    open_with,
    plan_nodes,
    said,
    says,
    text_of,
)
from tests.contract.stores import SqliteHarness, postgres_harness
from tests.postgres import PostgresServer

SHORT = "1.0"
"""Seconds that a lease of a process lasts that will be killed. The successor waits for as long as it takes."""


@pytest.fixture(params=["sqlite", "postgres"])
async def url(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[str]:
    if request.param == "sqlite":
        yield SqliteHarness(tmp_path / "processes.db").url
        return
    server: PostgresServer = request.getfixturevalue("postgres")
    async with postgres_harness(server.shared) as harness:
        yield harness.url


@pytest.fixture
async def store(url: str) -> AsyncIterator[Store]:
    async with await open_store(url) as store:
        yield store


class Program:
    """A running program of ``tests.store.programs``."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def told(self) -> dict[str, Any]:
        """The next thing it says."""
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        assert line, "the program ended without a word"
        return dict(json.loads(line))

    async def rest(self) -> list[dict[str, Any]]:
        assert self._process.stdout is not None
        return [json.loads(line) for line in (await self._process.stdout.read()).splitlines()]

    async def go(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")
        await self._process.stdin.drain()

    async def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        assert await self._process.wait() == -signal.SIGKILL


@contextlib.asynccontextmanager
async def running(name: str, url: str, *arguments: object) -> AsyncIterator[Program]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.store.programs", name, url, *map(str, arguments)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        yield Program(process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def take_over(store: Store, uid: SessionUid) -> OpenedTurn:
    """Ask until the dead owner's lease has run out and the turn is ours."""
    while True:
        opened = await store.open_turn(an_opening(uid, "successor"))
        if opened.turn is not None:
            return opened
        assert opened.held_by is not None
        await asyncio.sleep(0.05)


async def test_order_is_commit_order_when_several_processes_send_at_once(store: Store, url: str) -> None:
    uid = (await a_session(store)).uid
    async with contextlib.AsyncExitStack() as stack:
        senders = [await stack.enter_async_context(running("enqueue", url, uid, who, 50)) for who in ("a", "b", "c")]
        acknowledged = [told for told in await asyncio.gather(*(sender.rest() for sender in senders)) for told in told]
    assert sorted(told["seq"] for told in acknowledged) == list(range(1, 151))
    kept = (await store.items(uid, limit=1000)).rows
    assert {told["seq"]: told["text"] for told in acknowledged} == {item.seq: text_of(item) for item in kept}


async def test_a_turn_passes_whole_from_a_killed_process_to_the_next_one(store: Store, url: str) -> None:
    uid = (await a_session(store)).uid
    first = await store.admit(uid, a_message("first"))
    async with running("start_a_turn", url, uid, SHORT) as doomed:
        told = await doomed.told()
        await store.admit(uid, a_message("second"))
        await doomed.kill()
    opened = await take_over(store, uid)
    assert opened.turn is not None
    assert opened.acquired is not None
    assert opened.acquired.displaced is not None
    assert (opened.turn.id, opened.fresh) == (told["turn"], False)
    assert opened.acquired.displaced.owner == "doomed"
    assert opened.acquired.lease.generation == told["generation"] + 1
    assert [item.id for item in opened.items] == [first.id]
    [entry] = await store.journal(uid, opened.turn.id)
    assert entry.outcome == {"text": "recorded before the crash"}


async def test_a_process_that_wakes_up_late_can_write_nothing(store: Store, url: str) -> None:
    uid = (await a_session(store)).uid
    async with running("grow", url, uid, "zombie") as zombie:
        acknowledged = [(await zombie.told())["text"] for _ in range(3)]
        lease = await store.lease(uid)
        zombies = ExecutionLease(uid, OwnerId("zombie"), lease.generation, lease.expires_at)  # type: ignore[arg-type]
        while True:
            zombie._process.send_signal(signal.SIGSTOP)
            try:
                await store.release(zombies)
                break
            except StoreLocked:  # stopped in the middle of a write: on SQLite everybody waits for it
                zombie._process.send_signal(signal.SIGCONT)
                acknowledged.append((await zombie.told())["text"])
        fast = (await store.acquire(uid, OwnerId("fast"), ttl=TTL)).lease
        receipt = await store.commit(await plan_nodes(store, fast, says("fast")))
        zombie._process.send_signal(signal.SIGCONT)
        acknowledged += [told["text"] for told in await zombie.rest()]
    words = await said(store, uid)
    assert words[-1] == "fast"
    assert set(acknowledged) <= set(words)
    assert (await store.find(uid)).head.revision == receipt.revision


async def test_what_was_acknowledged_survives_a_kill_at_any_moment(store: Store, url: str) -> None:
    uid = (await a_session(store)).uid
    async with running("grow", url, uid, "doomed") as doomed:
        acknowledged = [(await doomed.told())["text"] for _ in range(25)]
        await doomed.kill()
        acknowledged += [told["text"] for told in await doomed.rest()]
    words = await said(store, uid)
    assert words[: len(acknowledged)] == acknowledged
    assert len(words) <= len(acknowledged) + 1, "at most one commit was under way and had no answer yet"


async def test_the_same_commit_by_two_processes_at_once_applies_once(store: Store, url: str) -> None:
    uid = (await a_session(store)).uid
    driven = await open_with(store, uid, "hello", "both")
    async with (
        running("commit_again", url, uid, driven.turn.id, 0) as one,
        running("commit_again", url, uid, driven.turn.id, 0) as two,
    ):
        assert (await one.told(), await two.told()) == ({"ready": True}, {"ready": True})
        await asyncio.gather(one.go(), two.go())
        first, second = await asyncio.gather(one.told(), two.told())
    assert first == second
    assert first["revision"] == 1
    assert await said(store, uid) == ["hello", "hi"]


async def test_an_answer_from_another_process_reaches_a_turn_before_and_after_it_sleeps(store: Store, url: str) -> None:
    uid = (await a_session(store)).uid
    driven = await open_with(store, uid)
    early, late = a_wait(turn=driven.turn.id), a_wait(turn=driven.turn.id)
    keys = [await store.open_wait(uid, wait) for wait in (early, late)]
    async with running("answer", url, keys[0], "before") as other:
        assert await other.told() == {"accepted": True, "answer": "before"}
    await store.park(driven.lease, driven.turn.id, waits=[late.id])
    assert (await store.find(uid)).ready_at is None
    async with running("answer", url, keys[1], "after") as other:
        assert await other.told() == {"accepted": True, "answer": "after"}
    async with running("answer", url, keys[1], "too late") as other:
        assert await other.told() == {"accepted": False, "answer": "after"}
    assert (await store.find(uid)).ready_at is not None
    assert [(await store.wait(uid, wait.id)).answer for wait in (early, late)] == ["before", "after"]
