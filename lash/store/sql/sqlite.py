"""SQLite: a writer thread with a connection of its own, and aiosqlite for reads.

WAL lets reads go on beside the writer; ``synchronous=FULL`` syncs the log before a commit is acknowledged, and only who
asks for ``NORMAL`` does without; a write transaction begins with BEGIN IMMEDIATE, so that it never has to upgrade a
lock that somebody else holds.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import URL
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import StaticPool

from lash.clock import Clock
from lash.errors import WriteUnknown
from lash.store.sql.faults import is_io_error, translated
from lash.store.sql.link import SqliteLink
from lash.store.sql.steps import Settled, Write, settle

R = TypeVar("R")


class SqliteDatabase:
    def __init__(self, path: Path, *, clock: Clock, busy_timeout: timedelta, synchronous: str = "FULL") -> None:
        self.where = f"the database {path}"
        self._synchronous = synchronous
        self._clock = clock
        self._busy_timeout = busy_timeout
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="lash-sqlite")
        self._engine = writing_engine(path, busy_timeout)
        self._bare: object = None
        self._readers = _reading_engine(path, busy_timeout)

    async def settle(self, writes: Sequence[Write[Any]], *, patient: bool = False) -> list[Settled[Any] | None]:
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._settle, writes)

    def _settle(self, writes: Sequence[Write[Any]]) -> list[Settled[Any] | None]:
        with translated(self.where):
            driver = self._driver()
            driver.execute("BEGIN IMMEDIATE")
            try:
                settled = settle(SqliteLink(driver, self._clock), writes)
                _commit(driver, self.where)
            except BaseException:
                if driver.in_transaction:
                    driver.execute("ROLLBACK")
                raise
            return settled

    def _driver(self) -> sqlite3.Connection:
        """The connection of the writer's thread, as the driver knows it."""
        if self._bare is None:
            with self._engine.connect() as connection:
                self._bare = connection.connection.driver_connection
        assert isinstance(self._bare, sqlite3.Connection)
        return self._bare

    async def transact(self, change: Callable[[Connection], R]) -> R:
        def run() -> R:
            with translated(self.where), self._engine.begin() as connection:
                return change(connection)

        return await asyncio.get_running_loop().run_in_executor(self._thread, run)

    async def read(self, look: Callable[[Connection], R]) -> R:
        with translated(self.where):
            async with self._readers.connect() as connection:
                return await connection.run_sync(look)

    async def begin_service(self) -> None:
        """Switch to WAL, which stays with the file. Only now: somebody else's file is left as it was found, and a
        migration, which may run without WAL, is synced as it should be."""
        give_up_at = time.monotonic() + self._busy_timeout.total_seconds()

        def run() -> None:
            with translated(self.where), self._engine.connect() as connection:
                driver: Any = connection.connection.driver_connection
                switch_to_wal(driver, give_up_at)
                driver.execute(f"PRAGMA synchronous={self._synchronous}")

        await asyncio.get_running_loop().run_in_executor(self._thread, run)

    def now(self, connection: Connection) -> datetime:
        return self._clock.now()

    async def aclose(self) -> None:
        await self._readers.dispose()
        await asyncio.get_running_loop().run_in_executor(self._thread, self._engine.dispose)
        self._thread.shutdown()


def _commit(driver: sqlite3.Connection, where: str) -> None:
    try:
        driver.execute("COMMIT")
    except sqlite3.OperationalError as error:
        if is_io_error(error):  # the log may have reached the disk or not
            raise WriteUnknown(f"{where} failed during a commit; repeat the call") from error
        raise


def writing_engine(path: Path, busy_timeout: timedelta) -> Engine:
    """An engine with one connection for one thread."""
    engine = create_engine(URL.create("sqlite+pysqlite", database=str(path)), poolclass=StaticPool)
    _configure(engine, busy_timeout, begin="BEGIN IMMEDIATE", pragmas=("synchronous=FULL",))
    return engine


def switch_to_wal(connection: Any, give_up_at: float) -> None:
    """SQLite does not wait for others when it changes the mode of a file, so we do."""
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > give_up_at:
                raise
            time.sleep(0.01)
        else:
            return


def _reading_engine(path: Path, busy_timeout: timedelta) -> AsyncEngine:
    engine = create_async_engine(URL.create("sqlite+aiosqlite", database=str(path)), pool_size=4, max_overflow=4)
    _configure(engine.sync_engine, busy_timeout, begin="BEGIN", pragmas=("query_only=ON",))
    return engine


def _configure(engine: Engine, busy_timeout: timedelta, *, begin: str, pragmas: Sequence[str]) -> None:
    milliseconds = int(busy_timeout / timedelta(milliseconds=1))

    @event.listens_for(engine, "connect")
    def connected(connection: Any, _: object) -> None:
        connection.isolation_level = None  # the driver begins no transaction by itself; the next listener does
        cursor = connection.cursor()
        for pragma in (f"busy_timeout={milliseconds}", *pragmas, "foreign_keys=ON"):
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()

    @event.listens_for(engine, "begin")
    def begins(connection: Connection) -> None:
        connection.exec_driver_sql(begin)
