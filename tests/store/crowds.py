"""Programs that several processes run at once on one SQLite file: ``python -m tests.store.crowds NAME ARGUMENTS``.

Each says on lines of its own what happened to it, so that whoever reads along has a list that does not come from the
database.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from lash.ids import SessionUid
from lash.store.opening import open_store
from lash.store.sql import wal
from lash.store.sql.gate import Entry, Gate
from lash.store.sql.sqlite import SqliteDatabase
from lash.store.sql.store import SqlStore
from lash.testing.builders import a_message, a_session, must_acquire

# -- for the tests that start them -------------------------------------------------------------------------------------


class Program:
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

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    async def stop(self) -> None:
        """Stop it, and wait until the kernel says that it has stopped."""
        self.signal(signal.SIGSTOP)
        await until(lambda: state_of(self._process.pid) == "T")

    async def kill(self) -> None:
        self.signal(signal.SIGKILL)
        assert await self._process.wait() == -signal.SIGKILL

    async def ended(self) -> int:
        return await self._process.wait()


def started(name: str, *arguments: object) -> contextlib.AbstractAsyncContextManager[Program]:
    return _started("tests.store.crowds", name, *map(str, arguments))


def at_the_gate(file: Path) -> contextlib.AbstractAsyncContextManager[Program]:
    return _started("tests.store.at_the_gate", str(file))


@contextlib.asynccontextmanager
async def _started(*words: str) -> AsyncIterator[Program]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", *words),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        yield Program(process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def until(condition: Callable[[], bool]) -> None:
    """Wait for what another process does."""
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.001)


def state_of(process: int) -> str:
    """What the kernel says: R and S for one that lives, T for one that was stopped."""
    return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0]


def database_of(store: SqlStore) -> SqliteDatabase:
    database = store._database
    assert isinstance(database, SqliteDatabase)
    return database


# -- the programs ------------------------------------------------------------------------------------------------------


def tell(**facts: object) -> None:
    print(json.dumps(facts), flush=True)


class WatchedGate(Gate):
    """Notes of each wait what was committed when it began, and for how long at most it did not look."""

    began_after: int | None
    longest_absence: float
    looked_at: float
    reader: sqlite3.Connection

    @classmethod
    def of(cls, database: SqliteDatabase) -> WatchedGate:
        watched = cls(database._gate.database, database.where)
        watched.began_after, watched.longest_absence, watched.looked_at = None, 0.0, 0.0
        watched.reader = sqlite3.connect(f"file:{watched.database}?mode=ro", uri=True, check_same_thread=False)
        return watched

    def _stand_in_line(self, give_up_at: float) -> None:
        self.longest_absence, self.looked_at = 0.0, time.monotonic()
        super()._stand_in_line(give_up_at)
        self._look()

    def _line(self) -> list[Entry]:
        self._look()
        return super()._line()

    def _look(self) -> None:
        now = time.monotonic()
        self.longest_absence, self.looked_at = max(self.longest_absence, now - self.looked_at), now

    def _write_in(self, me: Entry) -> None:
        super()._write_in(me)
        if self.began_after is None:
            [[self.began_after]] = self.reader.execute("SELECT coalesce(max(seq), 0) FROM lash_inbox").fetchall()


async def saturate(url: str, uid: str, who: str, count: str) -> None:
    """Write without a pause, one write in each batch. Tell of each its number, what was committed when it began to wait
    (null when it did not), and for how long at most it did not look."""
    async with await open_store(url) as store:
        database = database_of(store)
        database._gate.close()
        usual, database._gate = database._gate, (gate := WatchedGate.of(database))
        tell(ready=True)
        sys.stdin.readline()
        for number in range(int(count)):
            gate.began_after = None
            item = await store.admit(SessionUid(uid), a_message(f"{who} {number}"))
            tell(seq=item.seq, began_after=gate.began_after, absence=gate.longest_absence)
        database._gate = usual
        gate.reader.close()
        gate.close()


async def hold_a_lease(url: str, uid: str, owner: str) -> None:
    """Take a lease for as long as leases last, and never come back. ``close`` on a line closes the store."""
    async with await open_store(url) as store:
        lease = await must_acquire(store, SessionUid(uid), owner, ttl=timedelta(minutes=10))
        tell(generation=lease.generation)
        sys.stdin.readline()
    tell(closed=True)
    sys.stdin.readline()


async def leave_children(url: str, uid: str, owner: str) -> None:
    """Take a lease, go inside the gate, and leave behind a forked child and a program, both of which outlive us."""
    store = await open_store(url)
    await must_acquire(store, SessionUid(uid), owner, ttl=timedelta(minutes=10))
    database_of(store)._gate.enter(60)
    tell(children=[_a_program(), _a_forked_child()])
    sys.stdin.readline()


def _a_program() -> int:
    return subprocess.Popen(["sleep", "60"], close_fds=False, stdout=subprocess.DEVNULL).pid


def _a_forked_child() -> int:
    child = os.fork()
    if child == 0:
        os.close(1)
        time.sleep(60)
        os._exit(0)
    return child


async def hammer(url: str, uid: str, who: str, step: str) -> None:
    """Write, checkpoint, read, close and open again, without an end. Tell what was acknowledged."""
    wal.STEP = int(step)
    chance = random.Random(who)
    for life in range(1_000_000):
        async with await open_store(url) as store:
            for number in range(chance.randrange(1, 40)):
                sent = [f"{who} {life} {number} {part}" for part in range(chance.randrange(1, 6))]
                await asyncio.gather(*(store.admit(SessionUid(uid), a_message(text)) for text in sent))
                tell(texts=sent)
                if chance.random() < 0.2:
                    await store.items(SessionUid(uid), limit=50)


async def write_a_little(url: str) -> None:
    """Make a database, write, checkpoint often, read, use two stores at once, and close both."""
    wal.STEP = 20
    async with await open_store(url) as store, await open_store(url) as other:
        uid = (await a_session(store)).uid
        for number in range(40):
            await store.admit(uid, a_message("x" * 8000))
            await asyncio.gather(other.admit(uid, a_message(f"{number}")), store.items(uid, limit=5))
        await must_acquire(other, uid)
        for store_ in (store, other):  # too little to be folded in before the last one closes
            await store_.admit(uid, a_message("the last word"))


PROGRAMS = {program.__name__: program for program in (saturate, hold_a_lease, leave_children, hammer, write_a_little)}

if __name__ == "__main__":
    asyncio.run(PROGRAMS[sys.argv[1]](*sys.argv[2:]))
