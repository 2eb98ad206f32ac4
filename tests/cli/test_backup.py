"""``lash db backup`` while others write, when it is killed, and what a copy is good for."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from lash.ids import SessionUid
from lash.store.contract import OpenedTurn, Store
from lash.store.opening import open_store
from lash.testing import check_database
from lash.testing.builders import (
    Driven,
    a_message,
    a_session,
    a_wait,
    an_opening,
    hears,
    must_acquire,
    plan_of,
    run_turn,
    said,
    says,
)
from tests.cli.command import LASH, lash
from tests.migration.revisions import NEWEST
from tests.postgres import PostgresServer


def url_of(path: Path) -> str:
    return f"sqlite:///{path}"


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def is_sound(path: Path) -> bool:
    return asyncio.run(check_database(url_of(path))).ok


async def make(path: Path) -> None:
    """A database with one session in which something was said."""
    async with await open_store(url_of(path)) as store:
        uid = (await a_session(store, "one")).uid
        await run_turn(store, uid, "hello")
        await store.release(await must_acquire(store, uid))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    path = tmp_path / "data" / "lash.db"
    asyncio.run(make(path))
    return path


@pytest.fixture
def uid(source: Path) -> SessionUid:
    """The session in it."""
    with closing(sqlite3.connect(source)) as connection:
        [found] = connection.execute("SELECT uid FROM lash_sessions").fetchone()
        return SessionUid(found.hex())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where copies go."""
    made = tmp_path / "copies"
    made.mkdir()
    return made


def test_a_backup_is_one_file_that_holds_everything_and_says_so(source: Path, folder: Path) -> None:
    source.chmod(0o640)
    made = lash("db", "backup", "copy.db", "--url", url_of(source), "--json", cwd=folder)
    assert made.status == 0, made.err
    copy = folder / "copy.db"
    size = copy.stat().st_size
    assert made.answer == {"url": url_of(source), "file": str(copy), "size": size, "revision": NEWEST, "sessions": 1}
    assert names(folder) == ["copy.db"]
    assert copy.stat().st_mode & 0o777 == 0o640
    with closing(sqlite3.connect(f"file:{copy}?mode=ro", uri=True)) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("delete",), "it would need a log beside it"
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert connection.execute("SELECT name FROM lash_sessions").fetchall() == [("one",)]
    assert is_sound(copy)


def test_a_file_that_is_there_is_overwritten_only_when_that_is_said(source: Path, folder: Path) -> None:
    copy = folder / "copy.db"
    copy.write_text("precious")
    refused = lash("db", "backup", "copy.db", "--url", url_of(source), cwd=folder)
    assert (refused.status, refused.out) == (2, "")
    assert refused.err.splitlines() == [
        f"lash: {copy} exists; name another file, or say --overwrite",
        "(usage.invalid_target, exit code 2)",
    ]
    assert copy.read_text() == "precious"
    made = lash("db", "backup", "copy.db", "--overwrite", cwd=folder, env={"LASH_URL": url_of(source)})
    assert made.out.splitlines() == [
        f"{url_of(source)} is backed up to {copy}",
        f"size      {copy.stat().st_size:,} bytes",
        f"revision  {NEWEST}",
        "sessions  1",
        f"To check it: lash fsck {url_of(copy)}",
    ]
    assert names(folder) == ["copy.db"]
    assert is_sound(copy)


def test_on_postgres_it_says_what_to_use_instead(postgres: PostgresServer, folder: Path) -> None:
    url = postgres.shared.render_as_string(hide_password=False)
    refused = lash("db", "backup", "copy.db", "--url", url, cwd=folder)
    assert (refused.status, refused.out) == (7, "")
    assert "pg_dump" in refused.err
    assert "pg_basebackup" in refused.err
    assert names(folder) == []


def test_a_disk_without_room_is_told_and_keeps_no_half_copy(source: Path, folder: Path) -> None:
    unshare = shutil.which("unshare")
    small = f"mount -t tmpfs -o size=64k tmpfs {folder}"
    if unshare is None or subprocess.run([unshare, "-rm", "sh", "-c", small], capture_output=True).returncode:
        pytest.skip("no small disk can be made here: unshare or mount is not allowed")
    script = (
        f"{small} && cd {folder} && {LASH} db backup copy.db --json --url {url_of(source)}; code=$?; ls -A; exit $code"
    )
    ended = subprocess.run([unshare, "-rm", "sh", "-c", script], capture_output=True, text=True, timeout=60)
    told = json.loads(ended.stderr)
    assert (ended.returncode, told["error"]) == (6, "unavailable.disk_full")
    assert f"the backup {folder / 'copy.db'}" in told["message"]
    assert "free some space" in told["message"]
    assert ended.stdout == ""


# -- while others write ------------------------------------------------------------------------------------------------


@dataclass
class Writer:
    """A process that commits one node after another, and what it was told is committed."""

    process: subprocess.Popen[str]
    acknowledged: list[str] = field(default_factory=list)

    def hear(self, count: int) -> None:
        assert self.process.stdout is not None
        for _ in range(count):
            self.acknowledged.append(json.loads(self.process.stdout.readline())["text"])


@contextmanager
def writing(source: Path, uid: SessionUid, who: str) -> Iterator[Writer]:
    command = [sys.executable, "-m", "tests.store.programs", "grow", url_of(source), uid, who]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Writer(process)
        finally:
            process.kill()


@contextmanager
def stopped_in_the_middle(source: Path, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A backup that has copied something and not everything, and stands still there."""
    words = [sys.executable, "-m", "tests.cli.stopping", "db", "backup", folder / "copy.db", "--url", url_of(source)]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            state = os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
            assert state is not None
            assert state.si_code == os.CLD_STOPPED
            yield process
        finally:
            process.kill()


def replies(path: Path) -> int:
    with closing(sqlite3.connect(path)) as connection:
        [count] = connection.execute("SELECT count(*) FROM lash_nodes WHERE kind = 'model_replied'").fetchone()
        return int(count)


async def _said(path: Path, uid: SessionUid) -> list[str]:
    async with await open_store(url_of(path)) as store:
        return await said(store, uid)


def test_writers_go_on_during_a_backup_which_is_one_snapshot_from_its_beginning(
    source: Path, uid: SessionUid, folder: Path
) -> None:
    with writing(source, uid, "busy") as writer:
        writer.hear(20)
        before = list(writer.acknowledged)
        with stopped_in_the_middle(source, folder) as backup:
            began_with_at_most = replies(source)
            while replies(source) < began_with_at_most + 100:  # nobody waits for the one that stands still
                writer.hear(1)
            backup.send_signal(signal.SIGCONT)
            _, err = backup.communicate(timeout=60)
            assert backup.returncode == 0, err
    words = asyncio.run(_said(folder / "copy.db", uid))
    assert words[:2] == ["hello", "re: hello"]
    assert words[2:] == [f"busy {number}" for number in range(len(words) - 2)]
    assert words[2 : 2 + len(before)] == before
    assert replies(folder / "copy.db") <= began_with_at_most, "what was written after the copy began is not in it"
    assert is_sound(folder / "copy.db")


def test_every_backup_among_several_writers_is_sound_and_has_what_was_acknowledged(source: Path, folder: Path) -> None:
    async def two_more() -> list[SessionUid]:
        async with await open_store(url_of(source)) as store:
            return [(await a_session(store)).uid for _ in range(2)]

    first, second = asyncio.run(two_more())
    with writing(source, first, "a") as one, writing(source, second, "b") as two:
        for number in range(2):
            one.hear(10)
            two.hear(10)
            copy = folder / f"{number}.db"
            made = lash("db", "backup", copy.name, "--url", url_of(source), cwd=folder)
            assert made.status == 0, made.err
            assert is_sound(copy)
            for writer, uid in ((one, first), (two, second)):
                assert asyncio.run(_said(copy, uid))[: len(writer.acknowledged)] == writer.acknowledged


def test_a_killed_backup_leaves_no_copy_and_the_next_one_cleans_up(source: Path, uid: SessionUid, folder: Path) -> None:
    with stopped_in_the_middle(source, folder) as backup:
        backup.kill()
        assert backup.wait() == -signal.SIGKILL
    assert [name for name in names(folder) if not name.startswith(".copy.db.")] == []
    assert names(folder) != [], "it was killed before it had begun"
    with stopped_in_the_middle(source, folder) as other:
        assert len(names(folder)) == 1, "the abandoned copy is gone"
        made = lash("db", "backup", "copy.db", "--url", url_of(source), cwd=folder)
        assert made.status == 0, made.err
        assert len(names(folder)) == 2, "a copy that somebody is writing stays"
        other.send_signal(signal.SIGCONT)
        _, err = other.communicate(timeout=60)
        assert "exists" in err, "it came second, and was not told to overwrite"
    assert names(folder) == ["copy.db"]
    assert is_sound(folder / "copy.db")
    assert asyncio.run(_said(folder / "copy.db", uid)) == ["hello", "re: hello"]


def test_an_interrupted_backup_leaves_nothing(source: Path, folder: Path) -> None:
    with stopped_in_the_middle(source, folder) as backup:
        backup.send_signal(signal.SIGINT)
        backup.send_signal(signal.SIGCONT)
        backup.communicate(timeout=60)
        assert backup.returncode == 130
    assert names(folder) == []


# -- what a copy is good for -------------------------------------------------------------------------------------------


async def _take_over(store: Store, uid: SessionUid) -> OpenedTurn:
    """Ask until the lease of the one who is not here has run out."""
    while True:
        opened = await store.open_turn(an_opening(uid, "successor"))
        if opened.turn is not None:
            return opened
        await asyncio.sleep(0.05)


async def test_a_copy_made_in_the_middle_of_a_turn_goes_on_from_there(source: Path, folder: Path) -> None:
    async with await open_store(url_of(source)) as store:
        uid = (await a_session(store)).uid
        await store.admit(uid, a_message("a question"))
        wait = a_wait()
        key = await store.open_wait(uid, wait)
    command = [sys.executable, "-m", "tests.store.programs", "start_a_turn", url_of(source), uid, "1.0"]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    started = json.loads(await process.stdout.readline())
    made = await asyncio.to_thread(lash, "db", "backup", "copy.db", "--url", url_of(source), cwd=folder)
    assert made.status == 0, made.err
    process.kill()
    await process.wait()
    async with await open_store(url_of(folder / "copy.db")) as store:
        opened = await _take_over(store, uid)
        assert opened.turn is not None
        assert opened.acquired is not None
        assert (opened.turn.id, opened.fresh) == (started["turn"], False)
        [entry] = await store.journal(uid, opened.turn.id)
        assert entry.outcome == {"text": "recorded before the crash"}
        driven = Driven(opened.acquired.lease, opened.turn, opened.items, opened)
        await store.commit(await plan_of(store, driven, hears("a question"), says("an answer")))
        assert await said(store, uid) == ["a question", "an answer"]
        assert (await store.answer(key, "yes")).accepted, "keys that were handed out open the copy's waits, too"
    (await check_database(url_of(folder / "copy.db"))).raise_if_broken()
