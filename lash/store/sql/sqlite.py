"""SQLite: a writer thread with a connection of its own, and aiosqlite for reads.

WAL lets reads go on beside the writer; ``synchronous=FULL`` syncs the log before a commit is acknowledged, and only who
asks for ``NORMAL`` does without; a write transaction begins with BEGIN IMMEDIATE, so that it never has to upgrade a
lock that somebody else holds.

Whatever may change the file or its log passes the gate: batches, migrations, WAL checkpoints. Connections are closed
there too, because SQLite checkpoints by itself when the last one is closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sqlite3
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import URL
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import StaticPool

from lash.clock import Clock
from lash.errors import StoreLocked, WriteUnknown
from lash.store.sql.faults import is_io_error, translated
from lash.store.sql.gate import Gate
from lash.store.sql.link import SqliteLink
from lash.store.sql.owners import Owners
from lash.store.sql.renewals import SqliteRenewer
from lash.store.sql.steps import Settled, Write, settle
from lash.store.sql.wal import Wal

R = TypeVar("R")
MAX_READS = 8
"""How many reads go on at once. Half as many connections are kept while nobody reads."""
PATIENCE_TO_CLOSE = 1.0
"""Seconds to wait at the gate for closing. Who stays inside for longer has the file open, so that we are not the last,
and our closing changes nothing."""
_log = logging.getLogger("lash.store")


class SqliteDatabase:
    def __init__(self, path: Path, *, clock: Clock, busy_timeout: timedelta, synchronous: str = "FULL") -> None:
        self.where = f"the database {path}"
        self._path = path.resolve()  # SQLite names its own files after the real one, too
        self._synchronous = synchronous
        self._clock = clock
        self._patience = busy_timeout.total_seconds()
        self._gate = Gate(self._path, self.where)
        self._wal = Wal(self._path)
        self._owners = Owners(self._path)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="lash-sqlite")
        self._engine = writing_engine(path, busy_timeout)
        self._bare: object = None
        self._readers = _reading_engine(path, busy_timeout)
        self._seats = asyncio.Semaphore(MAX_READS)
        self._reading: set[asyncio.Task[Any]] = set()

    async def settle(self, writes: Sequence[Write[Any]], *, patient: bool = False) -> list[Settled[Any] | None]:
        return await self._on_thread(partial(self._settle, writes))

    def _settle(self, writes: Sequence[Write[Any]]) -> list[Settled[Any] | None]:
        with translated(self.where):
            for write in writes:
                if write.owner is not None:
                    self._owners.register(write.owner)
            with self._gate.passed(self._patience):
                settled = self._transaction(writes)
                due = self._wal.is_due()
        if due:
            self._thread.submit(self._fold_log)  # next on this thread, when the callers have their answers
        return settled

    def _transaction(self, writes: Sequence[Write[Any]]) -> list[Settled[Any] | None]:
        driver = self._driver()
        driver.execute("BEGIN IMMEDIATE")
        try:
            settled = settle(SqliteLink(driver, self._clock, self._owners.died), writes)
            _commit(driver, self.where)
        except BaseException:
            if driver.in_transaction:
                driver.execute("ROLLBACK")
            raise
        return settled

    def _fold_log(self) -> None:
        try:
            with self._gate.passed(self._patience):
                self._wal.fold(self._driver())
        except Exception as error:  # no caller waits for it, and a later batch tries again
            _log.warning("the log of %s could not be folded in: %s", self.where, error)

    async def _on_thread(self, work: Callable[[], R]) -> R:
        """Run something on the writer's thread. ``run_in_executor`` does it too and takes longer, and every write waits
        for it."""
        answer: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._thread.submit(_answer, answer, work)
        return await answer

    def _driver(self) -> sqlite3.Connection:
        """The connection of the writer's thread, as the driver knows it."""
        if self._bare is None:
            with self._engine.connect() as connection:
                self._bare = connection.connection.driver_connection
        assert isinstance(self._bare, sqlite3.Connection)
        return self._bare

    async def transact(self, change: Callable[[Connection], R]) -> R:
        def run() -> R:
            with translated(self.where), self._gate.passed(self._patience), self._engine.begin() as connection:
                return change(connection)

        return await self._on_thread(run)

    async def read(self, look: Callable[[Connection], R]) -> R:
        """A read that has begun comes to its end, even if its caller is cancelled: broken off, its connection would be
        left behind in the middle of a transaction, and keep the log from being folded in."""
        await self._seats.acquire()
        reading = asyncio.create_task(self._read(look), name="lash-read")
        self._reading.add(reading)
        reading.add_done_callback(self._has_read)
        return await asyncio.shield(reading)

    def _has_read(self, reading: asyncio.Task[Any]) -> None:
        self._reading.discard(reading)
        self._seats.release()
        if not reading.cancelled():
            reading.exception()  # whoever still waits hears of it

    async def _read(self, look: Callable[[Connection], R]) -> R:
        with translated(self.where):
            async with self._readers.connect() as connection:
                return await connection.run_sync(look)

    def renewer(self, ttl: timedelta) -> SqliteRenewer:
        return SqliteRenewer(self._path, Gate(self._path, self.where), clock=self._clock, ttl=ttl)

    async def begin_service(self) -> None:
        """Switch to WAL, which stays with the file. Only now: somebody else's file is left as it was found, and a
        migration, which may run without WAL, is synced as it should be.

        What a crashed process left in the log is folded in.
        """
        give_up_at = time.monotonic() + self._patience

        def run() -> None:
            with translated(self.where), self._gate.passed(self._patience):
                driver = self._driver()
                switch_to_wal(driver, give_up_at)
                driver.execute(f"PRAGMA synchronous={self._synchronous}")
                self._wal.fold(driver)

        await self._on_thread(run)

    def now(self, connection: Connection) -> datetime:
        return self._clock.now()

    async def aclose(self) -> None:
        while self._reading:
            await asyncio.wait(self._reading)
        inside = await self._on_thread(self._enter_to_close)
        try:
            await self._readers.dispose()
            await self._on_thread(self._engine.dispose)
        finally:
            await self._on_thread(partial(self._leave, inside))
            self._thread.shutdown()

    def _enter_to_close(self) -> bool:
        try:
            self._gate.enter(min(self._patience, PATIENCE_TO_CLOSE))
        except (StoreLocked, OSError):  # where nothing may be written, closing changes nothing
            return False
        return True

    def _leave(self, inside: bool) -> None:
        with contextlib.suppress(OSError):
            self._owners.close()
        self._wal.close()
        if inside:
            if not self._wal.exists:  # we were the last, and SQLite took the log away
                self._gate.remove()
            self._gate.leave()
        self._gate.close()


def _answer(answer: asyncio.Future[R], work: Callable[[], R]) -> None:
    try:
        result = work()
    except BaseException as error:
        _tell(answer, partial(answer.set_exception, error))
    else:
        _tell(answer, partial(answer.set_result, result))


def _tell(answer: asyncio.Future[R], tell: Callable[[], None]) -> None:
    with contextlib.suppress(RuntimeError):  # the loop was closed, and whoever waited is gone with it
        answer.get_loop().call_soon_threadsafe(lambda: None if answer.done() else tell())


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


def switch_to_wal(connection: sqlite3.Connection, give_up_at: float) -> None:
    """SQLite does not wait for others when it changes the mode of a file, so we do."""
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > give_up_at:
                raise
            time.sleep(0.01)
        else:
            connection.execute("BEGIN IMMEDIATE")  # the change left a snapshot open, which this ends
            connection.execute("COMMIT")
            return


def _reading_engine(path: Path, busy_timeout: timedelta) -> AsyncEngine:
    url, kept = URL.create("sqlite+aiosqlite", database=str(path)), MAX_READS // 2
    engine = create_async_engine(url, pool_size=kept, max_overflow=MAX_READS - kept)
    _configure(engine.sync_engine, busy_timeout, begin="BEGIN", pragmas=("query_only=ON",))
    return engine


def _configure(engine: Engine, busy_timeout: timedelta, *, begin: str, pragmas: Sequence[str]) -> None:
    milliseconds = int(busy_timeout / timedelta(milliseconds=1))

    @event.listens_for(engine, "connect")
    def connected(connection: Any, _: object) -> None:
        connection.isolation_level = None  # the driver begins no transaction by itself; the next listener does
        cursor = connection.cursor()
        for pragma in (f"busy_timeout={milliseconds}", "wal_autocheckpoint=0", *pragmas, "foreign_keys=ON"):
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()

    @event.listens_for(engine, "begin")
    def begins(connection: Connection) -> None:
        connection.exec_driver_sql(begin)
