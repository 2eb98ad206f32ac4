"""Files, servers and machines that are not as they should be: a clear error, nothing half-written, no password told."""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from sqlalchemy.engine import URL

from lash.errors import (
    AccessDenied,
    BlobNotFound,
    CorruptFile,
    DatabaseMissing,
    DiskFull,
    LashError,
    NetworkFileSystem,
    ReadOnlyStore,
    StoreLocked,
    StoreUnavailable,
    UnsupportedUrl,
    WriteUnknown,
)
from lash.store.contract import Store, Vacuumed
from lash.store.mounts import check_local
from lash.store.opening import open_store
from lash.store.sql import postgres as postgres_database
from lash.testing.builders import a_message, a_session, run_turn, said, text_of
from tests.postgres import PostgresServer, connect, control, execute, running_server
from tests.store.sample import Copy, PostgresCopy, PostgresSamples, SqliteCopy, SqliteSamples

PASSWORD = "hunter2"


def check_silent(error: BaseException | None) -> None:
    """Nothing that a traceback would show of this error tells the password."""
    while error is not None:
        for text in (str(error), repr(error), *getattr(error, "__notes__", ())):
            assert PASSWORD not in text
        error = error.__cause__ or error.__context__


async def refusal(url: str, **settings: object) -> LashError:
    with pytest.raises(LashError) as refused:
        await open_store(url, **settings)  # type: ignore[arg-type]
    check_silent(refused.value)
    return refused.value


# -- URLs --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("", "no database URL"),
        ("lash.db", "sqlite:///lash.db"),
        ("/var/lib/lash.db", "sqlite:///lash.db"),
        ("sqlite", "no database URL"),
        ("sqlite://", "name a file"),
        ("sqlite:///", "name a file"),
        ("sqlite:///:memory:", "MemoryStore"),
        ("sqlite:///file::memory:?uri=true", "no setting"),
        ("sqlite:///lash.db?mode=memory", "no setting"),
        ("sqlite:///lash.db?mode=ro", "no setting"),
        ("sqlite://folder/lash.db", "sqlite:///"),
        ("sqlite+pysqlcipher:///lash.db", "'sqlite+pysqlcipher'"),
        (f"mysql://me:{PASSWORD}@host/db", "'mysql'"),
        (f"postgresql+psycopg://me:{PASSWORD}@host/db", "'postgresql+psycopg'"),
        (f"postgresql://me:{PASSWORD}@host:{PASSWORD}/db", "port"),
        (f"postgresql://me:{PASSWORD}@127.0.0.1:99999/db", "port"),
        (f"postgresql://me:{PASSWORD}@127.0.0.1:1/db?surprise={PASSWORD}", "surprise"),
        ("sqlite:///a\x00b.db", "name"),
    ],
    ids=ascii,
)
async def test_a_url_that_names_no_database_is_refused_and_says_what_to_write(
    url: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    error = await refusal(url)
    assert type(error) is UnsupportedUrl
    assert says in str(error)
    assert os.listdir(tmp_path) == []


async def test_a_folder_is_no_database_and_the_error_names_a_file_in_it(tmp_path: Path) -> None:
    error = await refusal(f"sqlite:///{tmp_path}")
    assert type(error) is UnsupportedUrl
    assert f"sqlite:///{tmp_path}/lash.db" in str(error)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("path", ["file/lash.db", "n" * 300 + ".db"], ids=["a file for a folder", "too long a name"])
async def test_a_path_that_cannot_be_is_refused(path: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    error = await refusal(f"sqlite:///{tmp_path}/{path}")
    assert type(error) in (AccessDenied, UnsupportedUrl)
    assert str(tmp_path) in str(error)
    assert (tmp_path / "file").read_text() == "not a folder"


NO_EXTRA = """
import asyncio, sys
sys.modules["asyncpg"] = None  # an import of it fails, as where it is not installed
from lash.store import open_store

async def main(url, other):
    async with await open_store(url):
        print("sqlite works")
    try:
        await open_store(other)
    except Exception as error:
        print(type(error).__name__, error)

asyncio.run(main(*sys.argv[1:]))
"""


def test_postgres_without_its_driver_says_what_to_install_and_sqlite_does_without(tmp_path: Path) -> None:
    words = (f"sqlite:///{tmp_path}/lash.db", f"postgresql://me:{PASSWORD}@127.0.0.1:1/db")
    ended = subprocess.run([sys.executable, "-c", NO_EXTRA, *words], capture_output=True, text=True, check=True)
    assert ended.stdout.splitlines() == [
        "sqlite works",
        "MissingExtra Postgres needs an extra: pip install 'lash[postgres]'",
    ]


# -- what this user may not do -----------------------------------------------------------------------------------------

NOBODY = 65534
AS_NOBODY = """
import asyncio, json, os, sys
from lash.errors import LashError
from lash.store import open_store
from lash.testing.builders import a_session

async def attempt(url):
    try:
        async with await open_store(url) as store:
            await a_session(store)
        return "opened", ""
    except LashError as error:
        return type(error).__name__, str(error)
    except Exception as error:
        return "untyped " + type(error).__name__, str(error)

async def main(nobody, warm, *urls):
    await attempt(warm)  # imports everything, while the interpreter can still be read
    if os.getuid() == 0:
        os.setgroups([])
        os.setgid(int(nobody))
        os.setuid(int(nobody))
    return [await attempt(url) for url in urls]

print(json.dumps(asyncio.run(main(*sys.argv[1:]))))
"""


@dataclass(frozen=True)
class Denied:
    """A file in a folder of its own, and who may do what with the two."""

    asks_for: str
    folder: int
    file: int
    errors: frozenset[str]


DENIED = {
    "unreadable": Denied("lash.db", 0o755, 0o000, frozenset({"AccessDenied"})),
    "read-only": Denied("lash.db", 0o777, 0o444, frozenset({"ReadOnlyStore"})),
    "read-only-folder": Denied("lash.db", 0o555, 0o444, frozenset({"ReadOnlyStore", "AccessDenied"})),
    "unreadable-folder": Denied("lash.db", 0o000, 0o666, frozenset({"AccessDenied"})),
    "no-new-file": Denied("new.db", 0o555, 0o444, frozenset({"AccessDenied"})),
    "no-new-folder": Denied("new/lash.db", 0o555, 0o444, frozenset({"AccessDenied"})),
}


@pytest.fixture(scope="module")
def denied(sqlite_samples: SqliteSamples) -> Iterator[dict[str, tuple[str, str]]]:
    """What somebody without rights was told about each of DENIED. It fails when a file was changed or made."""
    root = Path(tempfile.mkdtemp(prefix="lash-denied-"))
    root.chmod(0o755)  # every test folder is root's own; this one must be open to others
    try:
        for name in DENIED:
            (root / name).mkdir()
            shutil.copy(sqlite_samples.copy().path, root / name / "lash.db")
        before = _contents(root)
        told = _ask_nobody(root)
        assert _contents(root) == before
        yield told
    finally:
        shutil.rmtree(root)


def _ask_nobody(root: Path) -> dict[str, tuple[str, str]]:
    for name, modes in DENIED.items():
        (root / name / "lash.db").chmod(modes.file)
        (root / name).chmod(modes.folder)
    urls = [f"sqlite:///{root}/{name}/{modes.asks_for}" for name, modes in DENIED.items()]
    words = (str(NOBODY), f"sqlite:///{root}/warm.db", *urls)
    try:
        ended = subprocess.run([sys.executable, "-c", AS_NOBODY, *words], capture_output=True, text=True, check=True)
    finally:
        for name in DENIED:
            (root / name).chmod(0o755)
            (root / name / "lash.db").chmod(0o644)
    return dict(zip(DENIED, json.loads(ended.stdout), strict=True))


def _contents(root: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in root.glob("*/*.db")}


@pytest.mark.parametrize("what", DENIED)
def test_a_file_that_this_user_may_not_use_is_refused_untouched(what: str, denied: dict[str, tuple[str, str]]) -> None:
    error, text = denied[what]
    assert error in DENIED[what].errors, text
    assert f"/{what}/" in text


# -- files that are damaged --------------------------------------------------------------------------------------------


def _is_text(path: Path) -> None:
    path.write_text("To whom it may concern. " * 100)


def _is_short(path: Path) -> None:
    path.write_text("dear diary")


def _is_cut_off(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def _has_garbage(path: Path) -> None:
    pages = path.read_bytes()
    path.write_bytes(pages[:4096] + random.Random(7).randbytes(len(pages) - 4096))


def _has_a_garbage_header(path: Path) -> None:
    path.write_bytes(b"\x00" * 100 + path.read_bytes()[100:])


@pytest.mark.parametrize(
    "damage",
    [
        _is_text,
        _is_short,
        _is_cut_off,
        _has_garbage,
        _has_a_garbage_header,
    ],
    ids=lambda damage: damage.__name__.strip("_").replace("_", " "),
)
async def test_a_file_that_is_no_sound_database_is_refused_and_left_alone(
    sqlite_copy: SqliteCopy, damage: Callable[[Path], None]
) -> None:
    damage(sqlite_copy.path)
    before = sqlite_copy.path.read_bytes()
    with pytest.raises(CorruptFile) as refused:
        await _use(sqlite_copy)
    assert str(sqlite_copy.path) in str(refused.value)
    assert sqlite_copy.path.read_bytes() == before


async def _use(copy: SqliteCopy) -> None:
    async with await copy.open() as store:
        await store.snapshot(copy.sample.victim)
        await run_turn(store, copy.sample.healthy, "hello?")


async def test_a_page_that_went_bad_fails_those_who_read_it(sqlite_copy: SqliteCopy) -> None:
    with closing(sqlite3.connect(sqlite_copy.path)) as connection:
        page = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'lash_nodes'").fetchone()[0]
    with sqlite_copy.path.open("r+b") as file:
        file.seek((page - 1) * 4096)
        file.write(b"\xff" * 4096)
    before = sqlite_copy.path.read_bytes()
    async with await sqlite_copy.open() as store:
        with pytest.raises(CorruptFile, match=str(sqlite_copy.path)):
            await store.nodes(sqlite_copy.sample.victim)
        assert (await store.get((await store.find(sqlite_copy.sample.victim)).name)).uid == sqlite_copy.sample.victim
    assert sqlite_copy.path.read_bytes() == before


# -- disks and locks ---------------------------------------------------------------------------------------------------


async def _limit_pages(store: Store, limit: int) -> None:
    """Let the writer's file grow to so many pages, as a full disk would; 0 means: not at all."""

    def look(connection: object) -> None:
        used = connection.exec_driver_sql("PRAGMA page_count").scalar()  # type: ignore[attr-defined]
        connection.exec_driver_sql(f"PRAGMA max_page_count = {used + limit}")  # type: ignore[attr-defined]

    await store._database.transact(look)  # type: ignore[attr-defined]  # the limit is the connection's own


async def test_a_full_disk_refuses_the_write_whole_and_is_forgotten_when_there_is_room(
    sqlite_copy: SqliteCopy,
) -> None:
    async with await sqlite_copy.open() as store:
        await _limit_pages(store, 0)
        before = await sqlite_copy.dump()
        large = a_message("x" * 500_000, key="large")
        with pytest.raises(DiskFull, match=str(sqlite_copy.path)):
            await store.admit(sqlite_copy.sample.healthy, large)
        with pytest.raises(DiskFull):
            await store.put_blob(b"x" * 500_000)
        assert await sqlite_copy.dump() == before
        assert await said(store, sqlite_copy.sample.healthy) == ["hello", "re: hello"]
        await _limit_pages(store, 100_000)
        assert (await store.admit(sqlite_copy.sample.healthy, large)).id == large.id


# Deleting a blob takes room here, of which there is none.
FULL_ON_SQLITE = """
CREATE TABLE ballast (body);
CREATE TRIGGER full_disk BEFORE DELETE ON lash_blobs
BEGIN INSERT INTO ballast VALUES (zeroblob(1000000)); END
"""
FULL_ON_POSTGRES = """
CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN RAISE EXCEPTION 'no space left on device' USING ERRCODE = 'disk_full'; END $$;
CREATE TRIGGER full_disk BEFORE DELETE ON lash_blobs FOR EACH ROW EXECUTE FUNCTION full_disk()
"""
FAR = datetime(2100, 1, 1, tzinfo=UTC)


async def _fails_half_way(copy: Copy, store: Store) -> None:
    """Blobs are swept last. Nothing of the piece that failed is gone; what went before it stays gone."""
    before = await copy.dump()
    with pytest.raises(DiskFull):
        await store.vacuum(before=FAR)
    after = await copy.dump()
    assert after["lash_blobs"] == before["lash_blobs"]
    assert len(after["lash_turns"]) < len(before["lash_turns"])
    assert await store.blob(copy.sample.blob) == b"a picture"
    assert await said(store, copy.sample.healthy) == ["hello", "re: hello"]


async def _is_finished_later(copy: Copy, store: Store) -> None:
    assert await store.vacuum(before=FAR) == Vacuumed(blobs=1)
    with pytest.raises(BlobNotFound):
        await store.blob(copy.sample.blob)
    assert (await store.vacuum(before=FAR)).total == 0
    await run_turn(store, copy.sample.healthy, "still here?")


async def test_a_vacuum_of_a_file_that_fails_half_way_says_so_and_is_finished_by_the_next(
    sqlite_copy: SqliteCopy,
) -> None:
    async with await sqlite_copy.open() as store:
        for statement in FULL_ON_SQLITE.strip().split(";\n", 1):
            await sqlite_copy.execute(statement)
        await _limit_pages(store, 0)
        await _fails_half_way(sqlite_copy, store)
        await sqlite_copy.execute("DROP TRIGGER full_disk")
        await _is_finished_later(sqlite_copy, store)


async def test_a_vacuum_of_a_server_that_fails_half_way_says_so_and_is_finished_by_the_next(
    postgres_copy: PostgresCopy,
) -> None:
    await postgres_copy.execute(FULL_ON_POSTGRES)
    try:
        async with await postgres_copy.open() as store:
            await _fails_half_way(postgres_copy, store)
            await postgres_copy.execute("DROP TRIGGER full_disk ON lash_blobs")
            await _is_finished_later(postgres_copy, store)
    finally:
        await postgres_copy.execute("DROP FUNCTION full_disk() CASCADE")


@contextmanager
def locked_by_another_program(path: Path) -> Iterator[None]:
    program = (
        "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); c.execute('BEGIN EXCLUSIVE');"
        "print('locked', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "locked\n"
        try:
            yield
        finally:
            holder.communicate()


async def test_a_file_that_another_program_has_locked_is_waited_for_and_then_refused(
    sqlite_copy: SqliteCopy,
) -> None:
    before = await sqlite_copy.dump()
    async with await open_store(sqlite_copy.url, busy_timeout=timedelta(milliseconds=50)) as store:
        with locked_by_another_program(sqlite_copy.path):
            async with asyncio.timeout(5):
                with pytest.raises(StoreLocked, match=str(sqlite_copy.path)):
                    await run_turn(store, sqlite_copy.sample.healthy, "now")
                assert type(await refusal(sqlite_copy.url, busy_timeout=timedelta(milliseconds=50))) is StoreLocked
            assert await said(store, sqlite_copy.sample.healthy) == ["hello", "re: hello"]
        assert await sqlite_copy.dump() == before
        await run_turn(store, sqlite_copy.sample.healthy, "now")
        assert await said(store, sqlite_copy.sample.healthy) == ["hello", "re: hello", "now", "re: now"]


async def test_a_lock_that_is_let_go_in_time_is_waited_for(sqlite_copy: SqliteCopy) -> None:
    async with await sqlite_copy.open() as store:
        with locked_by_another_program(sqlite_copy.path):
            turn = asyncio.create_task(run_turn(store, sqlite_copy.sample.healthy, "later"))
            assert await said(store, sqlite_copy.sample.healthy) == ["hello", "re: hello"]
        await turn
        assert await said(store, sqlite_copy.sample.healthy) == ["hello", "re: hello", "later", "re: later"]


# -- network file systems ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mounts", "refused_as"),
    [
        ("server:/x {folder} nfs rw 0 0", "nfs"),
        ("server:/x {folder} nfs4 rw 0 0", "nfs4"),
        ("//server/x {folder} cifs rw 0 0", "cifs"),
        ("me@server: {folder} fuse.sshfs rw 0 0", "fuse.sshfs"),
        ("server:/x / nfs rw 0 0", "nfs"),
        ("/dev/sda1 / ext4 rw 0 0\nserver:/x {folder} nfs rw 0 0", "nfs"),
        ("server:/x {folder} nfs rw 0 0\n/dev/sda1 / ext4 rw 0 0", "nfs"),
        ("tmpfs {folder} tmpfs rw 0 0\nserver:/x {folder} nfs rw 0 0", "nfs"),
        ("server:/x {spaced} nfs rw 0 0", "nfs"),
        ("overlay {folder} overlay rw 0 0", None),
        ("tmpfs {folder} tmpfs rw 0 0", None),
        ("thing {folder} some_new_fs rw 0 0", None),
        ("server:/x / nfs rw 0 0\n/dev/sda1 {folder} ext4 rw 0 0", None),
        ("server:/x {folder} nfs rw 0 0\ntmpfs {folder} tmpfs rw 0 0", None),
        ("server:/x {folder}/below nfs rw 0 0", None),
        ("server:/x {folder}-beside nfs rw 0 0", None),
        ("", None),
        ("gibberish\n\nserver:/x", None),
    ],
)
def test_a_network_file_system_is_told_by_the_mount_that_holds_the_folder(
    mounts: str, refused_as: str | None, tmp_path: Path
) -> None:
    folder = tmp_path / "with a space" if "{spaced}" in mounts else tmp_path
    folder.mkdir(exist_ok=True)
    table = tmp_path / "mounts"
    table.write_text(mounts.format(folder=tmp_path, spaced=str(folder).replace(" ", r"\040")))
    if refused_as is None:
        check_local(folder, table)
    else:
        with pytest.raises(NetworkFileSystem) as refused:
            check_local(folder, table)
        assert (refused.value.path, refused.value.kind) == (str(folder), refused_as)


def test_where_there_is_no_mount_table_nothing_is_refused(tmp_path: Path) -> None:
    check_local(tmp_path, tmp_path / "no such table")


@pytest.mark.parametrize(
    "path",
    [
        "share/lash.db",
        "share/new/folder/lash.db",
        "link/lash.db",
        "linked.db",
    ],
)
async def test_a_database_on_a_network_file_system_is_neither_opened_nor_made(path: str, tmp_path: Path) -> None:
    (tmp_path / "share").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "share")
    (tmp_path / "linked.db").symlink_to(tmp_path / "share" / "lash.db")
    table = tmp_path / "mounts"
    table.write_text(f"server:/x {tmp_path}/share nfs rw 0 0\n")
    error = await refusal(f"sqlite:///{tmp_path}/{path}", mount_table=table)
    assert type(error) is NetworkFileSystem
    assert "Postgres" in str(error)
    assert os.listdir(tmp_path / "share") == []


# -- Postgres that is not there ----------------------------------------------------------------------------------------


def _with(url: URL, **changes: object) -> str:
    return url.set(**{"password": PASSWORD, **changes}).render_as_string(hide_password=False)  # type: ignore[arg-type]


@pytest.mark.parametrize("host", ["127.0.0.1:1", "no.such.host.invalid"])
async def test_a_postgres_that_is_not_there_is_unavailable(host: str) -> None:
    error = await refusal(f"postgresql://me:{PASSWORD}@{host}/lash")
    assert type(error) is StoreUnavailable
    assert "postgresql://me:***@" in str(error)


async def test_a_socket_that_is_not_there_is_unavailable(tmp_path: Path) -> None:
    assert type(await refusal(f"postgresql://me:{PASSWORD}@/lash?host={tmp_path}")) is StoreUnavailable


async def test_a_user_whom_postgres_does_not_know_is_denied(postgres: PostgresServer) -> None:
    error = await refusal(_with(postgres.shared, username="nobody_at_all"))
    assert type(error) is AccessDenied
    assert "nobody_at_all" in str(error)


@asynccontextmanager
async def behind_a_password(postgres: PostgresServer, role: str) -> AsyncIterator[None]:
    """Until the end of the block this role needs its password, where everybody else is trusted."""
    connection = await connect(postgres.shared)
    rules = Path(await connection.fetchval("SHOW hba_file"))
    before = _rewritten(rules)
    await connection.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'the right one'")
    try:
        _rewritten(rules, f"local all {role} scram-sha-256\nhost all {role} all scram-sha-256\n{before}")
        await _reload(connection, postgres.shared)
        yield
    finally:
        _rewritten(rules, before)
        await _reload(connection, postgres.shared)
        await connection.execute(f"DROP ROLE {role}")
        await connection.close()


def _rewritten(path: Path, text: str | None = None) -> str:
    """What a file said until now."""
    before = path.read_text()
    if text is not None:
        path.write_text(text)
    return before


async def _reload(connection: asyncpg.Connection, url: URL) -> None:
    """Have the rules read again. A new connection tells by which ones it was let in."""
    before = await connection.fetchval("SELECT pg_conf_load_time()")
    await connection.fetchval("SELECT pg_reload_conf()")
    loaded = before
    while loaded <= before:
        newcomer = await connect(url)
        loaded = await newcomer.fetchval("SELECT pg_conf_load_time()")
        await newcomer.close()


@pytest.mark.skipif("LASH_TEST_POSTGRES" in os.environ, reason="the rules of a server that is not ours are left alone")
async def test_a_wrong_password_is_denied_and_not_repeated(postgres: PostgresServer) -> None:
    async with behind_a_password(postgres, "guarded"):
        error = await refusal(_with(postgres.shared, username="guarded"))
        absent = await refusal(_with(postgres.shared, username="guarded", password=None))
    for denied in (error, absent):
        assert type(denied) is AccessDenied, repr(denied)
        assert "guarded" in str(denied)
        assert "password" in str(denied)


async def test_a_user_without_rights_is_denied(postgres: PostgresServer) -> None:
    url = postgres.fresh()
    postgres.execute(f"CREATE ROLE guest_{url.database} LOGIN")
    try:
        error = await refusal(_with(url, username=f"guest_{url.database}"))
    finally:
        postgres.execute(f"DROP ROLE guest_{url.database}")
    assert type(error) is AccessDenied


async def test_a_database_that_was_never_created_is_missing(postgres: PostgresServer) -> None:
    error = await refusal(_with(postgres.url("no_such_database")))
    assert type(error) is DatabaseMissing
    assert "no_such_database" in str(error)
    assert "lash db upgrade" in str(error)


async def test_a_postgres_database_without_tables_is_missing_and_stays_empty(postgres: PostgresServer) -> None:
    url = postgres.blank()
    error = await refusal(_with(url))
    assert type(error) is DatabaseMissing
    assert "lash db upgrade" in str(error)
    connection = await connect(url)
    assert await connection.fetch("SELECT 1 FROM pg_tables WHERE schemaname = 'public'") == []
    await connection.close()


async def test_a_sqlite_file_is_not_made_where_it_must_not_be_upgraded(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/lash.db"
    assert type(await refusal(url, upgrade=False)) is DatabaseMissing
    assert os.listdir(tmp_path) == []
    async with await open_store(url) as store:
        await a_session(store)
    async with await open_store(url, upgrade=False) as store:
        assert len((await store.sessions()).rows) == 1


async def test_a_postgres_that_only_reads_refuses_writes_and_answers_reads(postgres: PostgresServer) -> None:
    url = postgres.fresh()
    postgres.execute(f"ALTER DATABASE {url.database} SET default_transaction_read_only = on")
    async with await open_store(_with(url)) as store:
        with pytest.raises(ReadOnlyStore) as refused:
            await a_session(store)
        check_silent(refused.value)
        assert (await store.sessions()).rows == ()


# -- Postgres that goes away -------------------------------------------------------------------------------------------

KILL = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
    " WHERE datname = current_database() AND application_name = 'lash'"
)


@asynccontextmanager
async def beside(copy: PostgresCopy) -> AsyncIterator[Callable[[str], Awaitable[list[Any]]]]:
    """Another connection, to run statements on."""
    connection = await asyncpg.connect(copy.url)
    try:
        yield connection.fetch
    finally:
        await connection.close()


@asynccontextmanager
async def healthy_row_locked(copy: PostgresCopy) -> AsyncIterator[None]:
    async with beside(copy) as holder:
        await holder("BEGIN")
        await holder("SELECT 1 FROM lash_sessions WHERE name = 'healthy' FOR UPDATE")
        yield
        await holder("ROLLBACK")


async def test_nobody_notices_a_connection_that_died_before_a_write(postgres_copy: PostgresCopy) -> None:
    healthy, item = postgres_copy.sample.healthy, a_message("again", key="again")
    async with await postgres_copy.open() as store:
        await store.admit(healthy, a_message("first"))
        await postgres_copy.execute(KILL)
        admitted = await store.admit(healthy, item)
        assert text_of(admitted) == "again"
        await postgres_copy.execute(KILL)
        assert await store.item(healthy, item.id) == admitted


async def test_a_connection_that_dies_inside_a_write_leaves_nothing_of_it(postgres_copy: PostgresCopy) -> None:
    healthy, item = postgres_copy.sample.healthy, a_message("stuck")
    before = await postgres_copy.dump()
    async with await postgres_copy.open() as store:
        async with healthy_row_locked(postgres_copy), beside(postgres_copy) as query:
            write = asyncio.create_task(store.admit(healthy, item))
            while not await query(f"{KILL} AND wait_event_type = 'Lock'"):
                pass  # it is not waiting for the row yet
            with pytest.raises(StoreUnavailable):
                await write
        assert await postgres_copy.dump() == before
        assert (await store.admit(healthy, item)).id == item.id


async def test_a_rehearsed_vacuum_on_a_connection_that_died_reports_what_a_healthy_one_does(
    postgres_copy: PostgresCopy,
) -> None:
    before = await postgres_copy.dump()
    async with await postgres_copy.open() as store:
        healthy = await store.vacuum(before=FAR, dry_run=True)
        assert healthy.total > 0
        await postgres_copy.execute(KILL)
        assert await store.vacuum(before=FAR, dry_run=True) == healthy
        await postgres_copy.execute(KILL)
        assert await postgres_copy.dump() == before
        assert await store.vacuum(before=FAR) == healthy


DIE_AT_COMMIT = """
CREATE FUNCTION die() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NULL; END $$;
CREATE CONSTRAINT TRIGGER dies AFTER INSERT ON lash_inbox DEFERRABLE INITIALLY DEFERRED
FOR EACH ROW EXECUTE FUNCTION die()
"""


async def test_a_connection_that_dies_at_the_commit_leaves_the_write_unknown_and_repeatable(
    postgres_copy: PostgresCopy,
) -> None:
    healthy, item = postgres_copy.sample.healthy, a_message("did it land?")
    before = await postgres_copy.dump()
    await postgres_copy.execute(DIE_AT_COMMIT)
    try:
        async with await postgres_copy.open() as store:
            with pytest.raises(WriteUnknown, match="repeat"):
                await store.admit(healthy, item)
            assert await store.item(healthy, item.id) is None
            assert await postgres_copy.dump() == before
            await postgres_copy.execute("DROP TRIGGER dies ON lash_inbox")
            assert (await store.admit(healthy, item)).id == item.id
    finally:
        await postgres_copy.execute("DROP FUNCTION die() CASCADE")


async def test_a_row_that_another_transaction_keeps_is_waited_for_and_then_refused(
    postgres_copy: PostgresCopy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_database, "LOCK_TIMEOUT", "20ms")
    before = await postgres_copy.dump()
    async with await postgres_copy.open() as store:
        async with healthy_row_locked(postgres_copy):
            with pytest.raises(StoreLocked):
                await store.admit(postgres_copy.sample.healthy, a_message())
        assert await postgres_copy.dump() == before
        await store.admit(postgres_copy.sample.healthy, a_message())


@pytest.mark.skipif("LASH_TEST_POSTGRES" in os.environ, reason="a server that is not ours is not restarted")
async def test_a_server_that_is_restarted_is_found_again_without_reopening() -> None:
    folder = Path(tempfile.mkdtemp(prefix="lash-restart-"))
    data = folder / "data"
    try:
        with running_server(data) as url:
            samples = PostgresSamples(PostgresServer(url))
            # The server of the tests acknowledges before it writes; this one must not.
            await execute(url, f"ALTER DATABASE {samples.location.database} SET synchronous_commit = on")
            try:
                await _restart_beneath(samples, data)
            finally:
                control(data, "stop", "-m", "immediate")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def _restart_beneath(samples: PostgresSamples, data: Path) -> None:
    healthy = samples.sample.healthy
    async with await open_store(samples.url) as store:
        first = await store.admit(healthy, a_message("before"))
        control(data, "restart", "-m", "immediate")
        second = await store.admit(healthy, a_message("after"))
        control(data, "stop", "-m", "immediate")
        with pytest.raises(StoreUnavailable):
            await store.find(healthy)
        control(data, "restart")
        assert (await store.items(healthy)).rows == (first, second)
