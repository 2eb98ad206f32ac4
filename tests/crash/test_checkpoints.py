"""SQLite moves what is committed from its log into the file, page by page. Death between two pages loses nothing."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from lash.store.opening import open_store
from lash.testing import check_database
from tests.crash.databases import SqliteFile
from tests.crash.processes import Process, process
from tests.crash.rounds import LONG
from tests.postgres import in_a_loop_of_its_own

PAGE = 4096
LARGE = 24 * 1024 * 1024
"""The size of the file before a worker comes: more than its log will have, so that the limit strikes in the file."""
BLOBS = 24


@pytest.fixture(scope="module")
def large_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("large") / "large.db"

    async def fill() -> None:
        async with await open_store(f"sqlite:///{path}") as store:
            for number in range(BLOBS):
                await store.put_blob(bytes([number]) * (LARGE // BLOBS))

    in_a_loop_of_its_own(fill)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return path


@pytest.fixture
def database(large_file: Path, tmp_path: Path) -> SqliteFile:
    """A large file without a log."""
    return SqliteFile(Path(shutil.copy(large_file, tmp_path)))


def in_the_middle(path: Path) -> bool:
    """Whether a checkpoint has begun and not come to its end: what the log holds is not all marked as moved.

    The marks are in the file that connections share as memory: the last frame of the log at byte 16, how many frames
    were moved at byte 96.
    """
    shared = path.with_name(f"{path.name}-shm").read_bytes()
    frames, moved = (int.from_bytes(shared[at : at + 4], "little") for at in (16, 96))
    return moved < frames


async def look(database: SqliteFile, dead: Process) -> None:
    """Everything that was acknowledged is there, and others can go on."""
    with closing(sqlite3.connect(database.path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    (await check_database(database.place.url)).raise_if_broken()
    there = {row["hash"] for row in (await database.tables())["blobs"]}
    acknowledged = {call.given["blob"] for call in dead.calls if call.acknowledged}
    assert acknowledged <= there
    assert len(there - acknowledged) <= BLOBS + 1, "at most one was under way"
    async with process("successor", database.place) as successor:
        await successor.repeat(dead.calls[-3:])
        assert all(call.acknowledged for call in successor.calls)
        await successor.end()
    assert {call.given["blob"] for call in dead.calls} <= {row["hash"] for row in (await database.tables())["blobs"]}


@pytest.mark.parametrize("pages", [0, 1, 10, 100, 300] if LONG else [0, 100])
async def test_death_between_two_pages_of_a_checkpoint_loses_nothing(database: SqliteFile, pages: int) -> None:
    limit = database.path.stat().st_size // PAGE * PAGE + pages * PAGE
    async with process("doomed", database.place) as doomed:
        doomed.order("grow", prefix="p", size=20_000, file_limit=limit)
        assert await doomed.ended() == -signal.SIGXFSZ
        assert in_the_middle(database.path)
        assert database.path.stat().st_size == limit, "it was written up to the limit, and no further"
        assert database.path.with_name(f"{database.path.name}-wal").stat().st_size < limit, "it was not the log"
        await look(database, doomed)


@pytest.mark.parametrize("seed", range(20 if LONG else 1))
async def test_a_kill_while_the_file_is_being_written_loses_nothing(database: SqliteFile, seed: int) -> None:
    async with process("doomed", database.place) as doomed:
        before = database.path.stat().st_mtime_ns
        doomed.order("grow", prefix="p", size=60_000)
        await doomed.until(lambda: database.path.stat().st_mtime_ns != before)  # only a checkpoint writes to it
        await asyncio.sleep(seed / 2000)
        os.kill(doomed.pid, signal.SIGKILL)
        assert await doomed.ended() == -signal.SIGKILL
        await look(database, doomed)
