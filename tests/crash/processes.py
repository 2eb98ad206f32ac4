"""A worker as its parent sees it: a process that can be ordered about, listened to, stopped and killed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import multiprocessing
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import psutil

from tests.crash.calls import Call
from tests.crash.databases import Place
from tests.crash.repeating import REPEATABLE
from tests.crash.worker import run

_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["pytest", "tests.crash.worker", "alembic.command", "aiosqlite", "asyncpg"])


class Broken(AssertionError):
    """The worker met something that must not happen. Its traceback is in the message."""


class Process:
    """``calls`` is all that it has said about its calls so far."""

    def __init__(self, name: str, place: Place, *, busy_timeout: float | None = None) -> None:
        self.name = name
        self.calls: list[Call] = []
        self._numbers: dict[int, Call] = {}
        self._connection, others = _FORKS.Pipe()
        self._process = _FORKS.Process(target=run, args=(name, place, others, busy_timeout), daemon=True)
        self._process.start()
        others.close()
        self._ready = False
        self._done = 0
        self._broken: str | None = None
        self._closed = False
        self._news = asyncio.Event()
        asyncio.get_running_loop().add_reader(self._connection.fileno(), self._hear)

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    # -- listening -----------------------------------------------------------------------------------------------------

    def _hear(self) -> None:
        try:
            while self._connection.poll():
                self._note(json.loads(self._connection.recv_bytes()))
        except (EOFError, ConnectionResetError):  # it has ended; a word that was cut short was never said
            self._close()
        self._news.set()

    def _note(self, said: dict[str, Any]) -> None:
        match said:
            case {"op": op}:
                call = Call(self.name, said["call"], op, said["given"], began=said["at"])
                self._numbers[call.number] = call
                self.calls.append(call)
            case {"call": number, "unsure": _}:
                self._numbers[number].unsure = True
            case {"call": number, "at": ended}:
                call = self._numbers.pop(number)
                call.answer, call.refused = said.get("answer"), said.get("refused")
                call.ended = ended
            case {"ready": True}:
                self._ready = True
            case {"done": True}:
                self._done += 1
            case {"broken": trace}:
                self._broken = trace
            case _:
                raise AssertionError(f"what does {said} mean?")

    def _close(self) -> None:
        if not self._closed:
            self._closed = True
            asyncio.get_running_loop().remove_reader(self._connection.fileno())

    async def until(self, holds: Callable[[], bool], seconds: float = 60.0) -> None:
        """Listen until something holds; the process may not end before."""
        async with asyncio.timeout(seconds):
            while not holds():
                if self._broken is not None:
                    raise Broken(f"{self.name}: {self._broken}")
                assert not self._closed, f"{self.name} has ended too early"
                await self._listen()

    async def _listen(self) -> None:
        """Until it has said something, or for a moment."""
        self._news.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.002):
                await self._news.wait()

    async def ready(self) -> None:
        await self.until(lambda: self._ready)

    async def heard(self, acknowledgements: int) -> None:
        """Listen until it has said so many times that the store has answered."""
        await self.until(lambda: sum(call.acknowledged for call in self.calls) >= acknowledgements)

    # -- orders --------------------------------------------------------------------------------------------------------

    def order(self, what: str, **more: Any) -> None:
        self._connection.send_bytes(json.dumps({"order": what, **more}).encode())

    async def obeyed(self, orders: int, seconds: float = 60.0) -> None:
        """Listen until it has carried out so many orders in all."""
        await self.until(lambda: self._done >= orders, seconds)

    async def do(self, what: str, seconds: float = 60.0, **more: Any) -> None:
        self.order(what, **more)
        await self.obeyed(self._done + 1, seconds)

    async def repeat(self, calls: list[Call]) -> None:
        again = [{"op": call.op, "given": call.given} for call in calls if call.op in REPEATABLE]
        for start in range(0, len(again), 20):
            await self.do("repeat", calls=again[start : start + 20])

    # -- signals -------------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    async def stopped(self) -> None:
        """Wait until it stands still, whoever stopped it."""
        await self.until(lambda: psutil.Process(self.pid).status() == psutil.STATUS_STOPPED)

    def go_on(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    async def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        assert await self.ended() == -signal.SIGKILL

    async def end(self) -> None:
        self.order("end")
        assert await self.ended() == 0, self._broken

    async def ended(self, seconds: float = 60.0) -> int:
        """How it ended. What it said before has been heard by then."""
        async with asyncio.timeout(seconds):
            while not self._closed:
                await self._listen()
        await asyncio.to_thread(self._process.join, seconds)
        if self._broken is not None:
            raise Broken(f"{self.name}: {self._broken}")
        assert self._process.exitcode is not None
        return self._process.exitcode

    async def clear_away(self) -> None:
        """However the test went, nothing of it is left."""
        self._close()
        if self._process.exitcode is None:
            self._process.kill()
        await asyncio.to_thread(self._process.join)
        self._connection.close()
        self._process.close()


@asynccontextmanager
async def process(name: str, place: Place, *, busy_timeout: float | None = None) -> AsyncIterator[Process]:
    """A worker that has opened its store and waits for orders."""
    made = Process(name, place, busy_timeout=busy_timeout)
    try:
        await made.ready()
        yield made
    finally:
        await made.clear_away()
