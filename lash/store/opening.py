"""From a URL to an open store."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

from sqlalchemy import Connection
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from lash.clock import Clock, SystemClock
from lash.errors import UnsupportedUrl
from lash.store import migrate
from lash.store.mounts import MOUNT_TABLE, check_local
from lash.store.sql.database import Database
from lash.store.sql.postgres import PostgresDatabase
from lash.store.sql.sqlite import SqliteDatabase
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

    A SQLite file is created, and brought to the newest revision unless ``upgrade`` is False. A Postgres database is
    upgraded only by ``lash db upgrade``. ``clock`` tells SQLite the time; Postgres asks the database.
    """
    parsed = parse_url(url)
    database = connect(parsed, clock=clock or SystemClock(), busy_timeout=busy_timeout, mount_table=mount_table)
    try:
        if upgrade and parsed.get_backend_name() == "sqlite":
            secret = await database.transact(_upgraded)
        else:
            secret = await database.transact(_checked)
    except BaseException:
        await database.aclose()
        raise
    return SqlStore(database, secret=secret)


@contextlib.asynccontextmanager
async def migrating(url: URL) -> AsyncIterator[Callable[[Callable[[Connection], R]], Awaitable[R]]]:
    """A database to look at or migrate, whatever state it is in: run functions on it, each in a transaction."""
    database = connect(url, clock=SystemClock(), busy_timeout=BUSY_TIMEOUT, mount_table=MOUNT_TABLE)

    try:
        yield database.transact
    finally:
        await database.aclose()


def connect(url: URL, *, clock: Clock, busy_timeout: timedelta, mount_table: Path) -> Database:
    """The database behind a URL. Nothing is read or written yet, except that a SQLite file's folder is made."""
    if url.get_backend_name() == "postgresql":
        return PostgresDatabase(url)
    path = Path(url.database or "")
    check_local(path.absolute().parent, mount_table)
    if path.is_dir():
        raise UnsupportedUrl(f"{path} is a folder; name a file in it, as in sqlite:///{path}/lash.db")
    path.absolute().parent.mkdir(parents=True, exist_ok=True)
    return SqliteDatabase(path, clock=clock, busy_timeout=busy_timeout)


def parse_url(url: str) -> URL:
    try:
        parsed = make_url(url.replace("postgres://", "postgresql://", 1) if url.startswith("postgres://") else url)
    except ArgumentError:
        raise UnsupportedUrl(f"that is no database URL; write {_EXAMPLES}") from None
    if parsed.drivername not in ("sqlite", "sqlite+aiosqlite", "postgresql", "postgresql+asyncpg"):
        raise UnsupportedUrl(f"lash does not know {parsed.drivername!r} databases; write {_EXAMPLES}")
    if parsed.get_backend_name() == "sqlite" and parsed.database in (None, "", ":memory:"):
        raise UnsupportedUrl("a SQLite URL must name a file, as in sqlite:///lash.db; for tests use MemoryStore")
    return parsed


_EXAMPLES = "sqlite:///lash.db or postgresql://user@host/database"


def _upgraded(connection: Connection) -> bytes:
    found = migrate.revision(connection)
    if found is None or int(found) < int(migrate.head()):
        migrate.upgrade(connection)
    return _checked(connection)


def _checked(connection: Connection) -> bytes:
    migrate.check(connection)
    return bytes.fromhex(migrate.meta(connection, "secret"))
