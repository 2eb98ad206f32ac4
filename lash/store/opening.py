"""From a URL to an open store."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TypeVar

from sqlalchemy import Connection
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from lash.clock import Clock, SystemClock
from lash.errors import AccessDenied, CorruptData, DatabaseMissing, UnsupportedUrl
from lash.store import migrate
from lash.store.folders import make_folder
from lash.store.mounts import MOUNT_TABLE, check_local
from lash.store.sql.database import Database
from lash.store.sql.postgres import PostgresDatabase
from lash.store.sql.sqlite import SqliteDatabase
from lash.store.sql.steps import Unsettled
from lash.store.sql.store import SqlStore

R = TypeVar("R")
BUSY_TIMEOUT = timedelta(seconds=15)
"""How long to wait for another program that has locked a SQLite file."""


async def open_store(
    url: str,
    *,
    clock: Clock | None = None,
    upgrade: bool = True,
    busy_timeout: timedelta = BUSY_TIMEOUT,
    mount_table: Path = MOUNT_TABLE,
) -> SqlStore:
    """Open the store at ``sqlite:///FILE`` or ``postgresql://…``.

    What was acknowledged survives a power loss. With ``sqlite:///FILE?synchronous=normal`` it survives the end of the
    process, and a power loss may take the latest writes: see ``docs/reference/cli.md``.

    A SQLite file is created, and brought to the newest revision unless ``upgrade`` is False. A Postgres database is
    upgraded only by ``lash db upgrade``. ``clock`` tells SQLite the time; Postgres asks the database.
    """
    parsed = parse_url(url)
    creates = upgrade and parsed.get_backend_name() == "sqlite"
    database = connect(
        parsed,
        create=creates,
        clock=clock or SystemClock(),
        busy_timeout=busy_timeout,
        mount_table=mount_table,
        in_time=True,
    )
    try:
        secret = await _transact(database, _upgraded if creates else _checked)
        await database.begin_service()
    except BaseException:
        await database.aclose()
        raise
    return SqlStore(database, secret=secret)


@contextlib.asynccontextmanager
async def migrating(
    url: URL, *, create: bool = False
) -> AsyncIterator[Callable[[Callable[[Connection], R]], Awaitable[R]]]:
    """A database to look at or migrate, whatever state it is in: run functions on it, each in a transaction.

    Looking changes nothing; only with ``create`` is a SQLite file made where there is none.
    """
    database = connect(url, create=create, clock=SystemClock(), busy_timeout=BUSY_TIMEOUT, mount_table=MOUNT_TABLE)
    try:
        yield partial(_transact, database)
    finally:
        await database.aclose()


async def _transact(database: Database, change: Callable[[Connection], R]) -> R:
    try:
        return await database.transact(change)
    except Unsettled as error:
        raise error.refusal from error


def connect(
    url: URL, *, create: bool, clock: Clock, busy_timeout: timedelta, mount_table: Path, in_time: bool = False
) -> Database:
    """The database behind a URL. Nothing is read or written yet, except that a new SQLite file's folder is made.

    ``in_time`` gives up on a server that does not answer. Without it a migration may take as long as it takes.
    """
    if url.get_backend_name() == "postgresql":
        return PostgresDatabase(url, in_time=in_time)
    path = local_file(url, create=create, mount_table=mount_table)
    synchronous = str(url.query.get("synchronous", "full")).upper()
    return SqliteDatabase(path, clock=clock, busy_timeout=busy_timeout, synchronous=synchronous)


def local_file(url: URL, *, create: bool, mount_table: Path) -> Path:
    """The file of a SQLite URL, which is there, or may be made."""
    path = Path(url.database or "").absolute()
    check_local(path.resolve().parent, mount_table)
    try:
        if path.is_dir():
            raise UnsupportedUrl(f"{path} is a folder; name a file in it, as in sqlite:///{path}/lash.db")
        if create:
            make_folder(path.parent)
        elif not path.exists():
            raise DatabaseMissing(f"there is no file {path} yet; run 'lash db upgrade'")
    except OSError as error:
        raise AccessDenied(
            f"{path} cannot be opened ({error.strerror}); check the path, its owner and rights"
        ) from error
    return path


def parse_url(url: str) -> URL:
    parsed = None
    # The texts of these errors repeat the URL, and with it the password: they must not even be the context of ours.
    with contextlib.suppress(ArgumentError, ValueError):
        parsed = make_url(url.replace("postgres://", "postgresql://", 1) if url.startswith("postgres://") else url)
    if parsed is None:
        raise UnsupportedUrl(f"that is no database URL, or its port is no number; write {_EXAMPLES}")
    if parsed.drivername not in ("sqlite", "sqlite+aiosqlite", "postgresql", "postgresql+asyncpg"):
        raise UnsupportedUrl(f"lash does not know {parsed.drivername!r} databases; write {_EXAMPLES}")
    if parsed.get_backend_name() == "sqlite":
        _check_sqlite(parsed)
    elif parsed.port is not None and not 0 < parsed.port < 65536:
        raise UnsupportedUrl(f"port {parsed.port} is no port; one has a number from 1 to 65535")
    return parsed


def _check_sqlite(url: URL) -> None:
    name = url.database
    if name in (None, "", ":memory:"):
        raise UnsupportedUrl("a SQLite URL must name a file, as in sqlite:///lash.db; for tests use MemoryStore")
    if url.host is not None or url.username is not None:
        raise UnsupportedUrl(f"a SQLite URL has three slashes before the name of its file: sqlite:///{name}")
    for setting, value in url.query.items():
        if setting != "synchronous":
            raise UnsupportedUrl(f"a SQLite URL has no setting {setting!r}; it may have synchronous=normal")
        if str(value).upper() not in ("FULL", "NORMAL"):
            raise UnsupportedUrl("the setting 'synchronous' of a SQLite URL is full or normal")
    if "\0" in str(name):
        raise UnsupportedUrl("the name of a file cannot contain NUL")


_EXAMPLES = "sqlite:///lash.db or postgresql://user@host/database"


def _upgraded(connection: Connection) -> bytes:
    migrate.upgrade(connection)
    return _checked(connection)


def _checked(connection: Connection) -> bytes:
    migrate.check(connection)
    try:
        return bytes.fromhex(migrate.meta(connection, "secret"))
    except ValueError:
        raise CorruptData("the row 'secret' of the table lash_meta is damaged; restore a backup") from None
