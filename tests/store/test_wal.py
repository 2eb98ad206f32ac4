"""The write-ahead log of a SQLite file: it stays short, and nobody touches it outside the gate."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import random
import re
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import pytest
from sqlalchemy import Connection, text

from lash.errors import StoreLocked
from lash.ids import SessionUid
from lash.store.opening import open_store
from lash.store.sql import wal
from lash.store.sql.gate import Gate
from lash.store.sql.store import SqlStore
from lash.testing import check_database
from lash.testing.builders import a_message, a_session, text_of
from tests.store.crowds import database_of, started, until

LONG = bool(os.environ.get("LASH_LONG"))
PAGE = 4096 + 24


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "logged.db"


@pytest.fixture
def url(path: Path) -> str:
    return f"sqlite:///{path}"


@pytest.fixture
async def store(url: str) -> AsyncIterator[SqlStore]:
    async with await open_store(url) as store:
        yield store


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything happens after a fiftieth of the usual length."""
    monkeypatch.setattr(wal, "STEP", 20)
    monkeypatch.setattr(wal, "LARGE", 80 * PAGE)
    monkeypatch.setattr(wal, "ALARMING", 160 * PAGE)


def log_size(path: Path) -> int:
    return os.stat(f"{path}-wal").st_size


async def write_pages(store: SqlStore, uid: SessionUid, pages: int) -> None:
    """One write of about so many pages."""
    await store.admit(uid, a_message("x" * (pages * 4000)))


async def thread_is_idle(store: SqlStore) -> None:
    """Until what the writer's thread had to do is done."""
    await asyncio.get_running_loop().run_in_executor(database_of(store)._thread, time.monotonic)


@contextlib.contextmanager
def reading(path: Path) -> Iterator[sqlite3.Connection]:
    """A program that reads one state of the database and does not stop."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA wal_autocheckpoint=0")
        connection.execute("BEGIN")
        connection.execute("SELECT count(*) FROM lash_inbox").fetchall()
        yield connection


# -- its length --------------------------------------------------------------------------------------------------------


async def test_the_log_stays_short_over_a_long_run(store: SqlStore, path: Path) -> None:
    """Much more is written than the log may hold."""
    uid = (await a_session(store)).uid
    sizes = []
    for _ in range(100 * (100 if LONG else 1)):
        await write_pages(store, uid, 50)
        sizes.append(log_size(path))
    assert max(sizes) < wal.LARGE / 2
    assert os.stat(path).st_size > wal.LARGE, "it went into the database"


async def test_a_batch_that_is_larger_than_the_log_should_be_is_folded_in_and_the_file_cut(
    store: SqlStore, path: Path
) -> None:
    uid = (await a_session(store)).uid
    for part in range(6):
        await store.put_blob(bytes([part]) * 4_000_000)
        await thread_is_idle(store)
    await write_pages(store, uid, 1)
    assert log_size(path) < wal.LARGE


async def test_sqlite_itself_folds_nothing_in(store: SqlStore, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wal, "STEP", 1_000_000)
    uid, empty = (await a_session(store)).uid, os.stat(path).st_size
    for _ in range(10):
        await write_pages(store, uid, 300)
    assert log_size(path) > 3000 * PAGE
    assert os.stat(path).st_size == empty


@pytest.mark.usefixtures("short")
async def test_readers_that_come_and_go_do_not_let_the_log_grow(store: SqlStore, path: Path) -> None:
    """Each begins before the last one ends, so that at no time nobody reads."""
    uid = (await a_session(store)).uid
    ended = threading.Event()
    reads = [0, 0]

    def read_on_and_on(number: int) -> None:
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
            while not ended.is_set():
                connection.execute("BEGIN")
                connection.execute("SELECT count(*) FROM lash_inbox").fetchall()
                time.sleep(0.02)
                connection.execute("COMMIT")
                reads[number] += 1

    threads = [threading.Thread(target=read_on_and_on, args=[number]) for number in range(2)]
    for thread in threads:
        thread.start()
        await asyncio.sleep(0.01)  # the second one begins in the middle of the first
    try:
        sizes = []
        for _ in range(150):
            await write_pages(store, uid, 5)
            sizes.append(log_size(path))
    finally:
        ended.set()
        for thread in threads:
            thread.join()
    assert min(reads) > 10
    assert max(sizes) < 300 * PAGE, "about 2000 pages were written"


@pytest.mark.usefixtures("short")
async def test_a_reader_that_never_ends_lets_the_log_grow_and_is_warned_of(
    store: SqlStore, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """SQLite cannot do without what somebody reads. Writes go on, and the log shrinks when the reader is gone."""
    uid = (await a_session(store)).uid
    caplog.set_level(logging.WARNING, logger="lash.store")
    with reading(path) as reader:
        for _ in range(80):
            await write_pages(store, uid, 5)
        await thread_is_idle(store)
        grown = log_size(path)
        assert grown > 400 * PAGE
        warnings = [record.getMessage() for record in caplog.records]
        assert 1 <= len(warnings) <= 3, "one each time that it has doubled"
        assert str(path) in warnings[0]
        assert reader.execute("SELECT count(*) FROM lash_inbox").fetchone() == (0,)
    for _ in range(60):
        await write_pages(store, uid, 5)
    await thread_is_idle(store)
    assert log_size(path) < 100 * PAGE


@pytest.mark.usefixtures("short")
async def test_a_reader_that_never_ends_costs_writers_only_a_few_waits(
    store: SqlStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is tried again when the log has grown by a quarter, not after each batch."""
    uid = (await a_session(store)).uid
    tried: list[int] = []
    fold = wal.Wal.fold

    def watched(self: wal.Wal, driver: sqlite3.Connection) -> None:
        tried.append(log_size(path))
        fold(self, driver)

    monkeypatch.setattr(wal.Wal, "fold", watched)
    with reading(path):
        for _ in range(100):
            await write_pages(store, uid, 5)
        await thread_is_idle(store)
    assert 3 <= len(tried) <= 20
    far = [(one, two) for one, two in pairwise(tried) if one > 100 * PAGE]
    assert far
    assert all(two > one * 1.2 for one, two in far)


# -- our own readers ---------------------------------------------------------------------------------------------------


def checkpointed_whole(path: Path) -> bool:
    """Whether nobody at all reads an old state: only then can the log be cut."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None, timeout=0)) as connection:
        [[blocked, _, _]] = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    return not blocked


async def test_no_reader_of_ours_keeps_a_state_open_between_reads(store: SqlStore, path: Path) -> None:
    uid = (await a_session(store)).uid
    items = [await store.admit(uid, a_message(f"{number}")) for number in range(20)]

    def fails(connection: Connection) -> None:
        connection.execute(text("SELECT * FROM lash_inbox")).fetchone()  # the others are never fetched
        raise ZeroDivisionError

    await asyncio.gather(*(store.item(uid, item.id) for item in items))
    for _ in range(10):
        with pytest.raises(ZeroDivisionError):
            await database_of(store).read(fails)
    await store.admit(uid, a_message("one more"))
    assert checkpointed_whole(path)


async def test_a_read_that_was_cancelled_at_any_moment_keeps_no_state_open(store: SqlStore, path: Path) -> None:
    uid = (await a_session(store)).uid
    await asyncio.gather(*(store.admit(uid, a_message(f"{number}")) for number in range(100)))
    chance = random.Random(1)
    ends = {"cancelled": 0, "read": 0}
    for _ in range(150):
        reads = [asyncio.create_task(store.items(uid, limit=100)) for _ in range(3)]
        await asyncio.sleep(chance.random() * 0.004)
        for read in reads:
            read.cancel()
        for end in await asyncio.gather(*reads, return_exceptions=True):
            ends["cancelled" if isinstance(end, asyncio.CancelledError) else "read"] += 1
    assert ends["cancelled"] > 50
    await store.items(uid)
    await store.admit(uid, a_message("one more"))
    async with asyncio.timeout(10):
        await until(lambda: checkpointed_whole(path))  # the last of them may still be on their threads
    assert len((await store.items(uid, limit=1000)).rows) == 101


# -- crashes -----------------------------------------------------------------------------------------------------------


def texts_without_log(path: Path, aside: Path) -> set[str]:
    """What the database itself holds. Another process copies it: to open and close it here would drop our locks."""
    subprocess.run(["cp", path, aside], check=True)
    with contextlib.closing(sqlite3.connect(aside)) as connection:
        return {json.loads(body)["parts"][0]["text"] for [body] in connection.execute("SELECT body FROM lash_inbox")}


async def test_opening_folds_in_what_a_killed_process_left_in_the_log(url: str, path: Path, tmp_path: Path) -> None:
    async with await open_store(url) as store:
        uid = (await a_session(store)).uid
    async with started("hammer", url, uid, "doomed", 1_000_000) as doomed:
        acknowledged = {text for _ in range(20) for text in (await doomed.told())["texts"]}
        await doomed.kill()
        acknowledged |= {text for told in await doomed.rest() for text in told["texts"]}
    async with await open_store(url) as store:
        kept = {text_of(item) for item in (await store.items(uid, limit=1000)).rows}
        assert acknowledged <= kept
        assert texts_without_log(path, tmp_path / "aside.db") == kept


# -- the gate ----------------------------------------------------------------------------------------------------------


def state(path: Path) -> dict[str, tuple[int, int]]:
    """Sizes and times of the database and its log."""
    return {name: (os.stat(name).st_size, os.stat(name).st_mtime_ns) for name in (str(path), f"{path}-wal")}


@pytest.mark.usefixtures("short")
async def test_nothing_moves_while_somebody_else_is_inside_the_gate(url: str, path: Path) -> None:
    soon = timedelta(milliseconds=100)
    gate = Gate(path, "the test")
    async with await open_store(url, busy_timeout=soon) as store:
        uid = (await a_session(store)).uid
        other = await open_store(url, busy_timeout=soon)
        for _ in range(3):
            await write_pages(store, uid, 5)
        with gate.passed(60):
            await thread_is_idle(store)
            before = state(path)
            with pytest.raises(StoreLocked):
                await store.admit(uid, a_message("now"))
            with pytest.raises(StoreLocked):
                await store.vacuum(before=datetime(2020, 1, 1, tzinfo=UTC), dry_run=True)
            with pytest.raises(StoreLocked):
                await open_store(url, busy_timeout=soon)
            database_of(store)._wal._mark = 1
            assert database_of(store)._wal.is_due()
            database_of(store)._thread.submit(database_of(store)._fold_log).result()
            assert len((await store.items(uid)).rows) == 3
            assert (await check_database(url)).ok
            await other.aclose()
            assert state(path) == before
        await store.admit(uid, a_message("later"))
        assert state(path) != before


def written_outside(path: Path, trace: Path) -> tuple[Counter[str], list[str]]:
    """How often each file was written, by the end of its name, and what was written while nobody was in the gate."""
    written: Counter[str] = Counter()
    outside: list[str] = []
    inside = False
    asking: set[str] = set()  # threads whose call the kernel has not answered yet
    for line in trace.read_text().splitlines():
        thread, call = line.split(maxsplit=1)
        if call.startswith("<... flock resumed>") and thread in asking:
            asking.discard(thread)
            inside = inside or call.endswith("= 0")
        named = re.match(r"(\w+)\((?:\d+<|\")(.*?)[>\"]", call)
        if named is None:
            continue
        end = named[2].removesuffix(" (deleted)").removeprefix(str(path))
        if named[1] == "flock" and end == "-gate":
            if "LOCK_UN" in call:
                inside = False
            elif call.endswith("<unfinished ...>"):
                asking.add(thread)
            else:
                inside = inside or call.endswith("= 0")
        elif named[1] != "flock" and end in ("", "-wal", "-journal"):
            written[end] += 1
            if not inside:
                outside.append(line)
    return written, outside


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace shows what a process writes")
async def test_every_byte_is_written_inside_the_gate(url: str, path: Path, tmp_path: Path) -> None:
    """The kernel tells who wrote or removed what when: batches, checkpoints, the last close, a new file."""
    trace = tmp_path / "trace"
    calls = "trace=pwrite64,write,ftruncate,unlink,flock"
    words = [sys.executable, "-m", "tests.store.crowds", "write_a_little", url]
    process = await asyncio.create_subprocess_exec(
        *("strace", "-f", "--seccomp-bpf", "-y", "-qq", "-e", calls, "-o", str(trace), *words)
    )
    assert await process.wait() == 0
    written, outside = written_outside(path, trace)
    assert outside == []
    assert written[""] > 50, "checkpoints wrote the database"
    assert written["-wal"] > 100, "batches wrote the log"
    assert written["-journal"] > 0, "the migration wrote a journal"


# -- together ----------------------------------------------------------------------------------------------------------


async def test_a_crowd_that_writes_checkpoints_opens_closes_and_dies_leaves_a_sound_file(url: str, path: Path) -> None:
    """What releases of SQLite before 3.51.3 can lose: a log that starts anew while somebody else checkpoints it."""
    crowd, lives = (4, 100) if LONG else (3, 2)
    chance = random.Random(3)
    async with await open_store(url) as store:
        uid = (await a_session(store)).uid
    acknowledged: list[str] = []

    async def live_and_die(name: int) -> None:
        for life in range(lives):
            async with started("hammer", url, uid, f"{name}-{life}", 20) as program:
                for _ in range(chance.randrange(20, 80)):
                    acknowledged.extend((await program.told())["texts"])
                await program.kill()
                acknowledged.extend(text for told in await program.rest() for text in told["texts"])

    await asyncio.gather(*(live_and_die(name) for name in range(crowd)))
    async with await open_store(url) as store:
        kept: list[str] = []
        page = await store.items(uid, limit=1000)
        kept += [text_of(item) for item in page.rows]
        while page.next is not None:
            page = await store.items(uid, limit=1000, after=page.next)
            kept += [text_of(item) for item in page.rows]
    assert set(acknowledged) <= set(kept)
    assert len(kept) == len(set(kept))
    assert (await check_database(url)).ok
    with contextlib.closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
