"""Postgres: one connection kept for writes, a pool for reads, and the database's own clock.

A server or a network may fall silent without ending a connection. So a statement that is not answered in time is given
up, and its connection with it: what it carried is then decided as for any connection that broke.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
from collections.abc import Awaitable, Callable, Iterator, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any, TypeVar, cast

from sqlalchemy import AdaptedConnection, Connection, event, text
from sqlalchemy.engine import URL, ExceptionContext
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.pool import AsyncAdaptedQueuePool, NullPool

from lash.clock import from_micros
from lash.errors import LashError, MissingExtra, StoreLocked, StoreUnavailable, UnsupportedUrl, WriteUnknown
from lash.store.sql.faults import translated
from lash.store.sql.link import PostgresLink
from lash.store.sql.renewals import PostgresRenewer
from lash.store.sql.steps import Settled, Unsettled, Write, settle

R = TypeVar("R")
_NOW = text("SELECT lash_now()")
LOCK_TIMEOUT = "10s"
ANSWER_TIMEOUT = 30.0
"""Seconds that a statement may stay without an answer. Longer than a lock is waited for: that is an answer too."""
GOODBYE_TIMEOUT = 2.0
"""Seconds to wait for a server to close a connection in good order."""
_BEGIN_PATIENTLY = "BEGIN; SET LOCAL lock_timeout = '250ms'"
_ABANDONED = {"idle_in_transaction_session_timeout": "5s"}
"""A process that was stopped in the middle of a write must not keep its rows locked for longer than others wait."""
_SSL = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")
_SETTINGS = ("application_name", "host", "port", "sslmode", "timeout")
"""What may stand behind the question mark of a URL, besides settings of the server, which have a dot in their name."""


class PostgresDatabase:
    def __init__(self, url: URL, *, in_time: bool) -> None:
        """``in_time`` says that every statement has to be answered in ANSWER_TIMEOUT."""
        self.where = f"the database {shown(url)}"
        self._url = url
        timeout = ANSWER_TIMEOUT if in_time else None
        # No pool for the writer: when its connection is lost, others that lie in one are likely to be lost too.
        self._engine = connecting_engine(url, answer_timeout=timeout, pooled=False)
        self._pool = connecting_engine(url, answer_timeout=timeout)
        self._readers = self._pool.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
        self._turn = asyncio.Lock()
        self._writer: AsyncConnection | None = None

    async def settle(self, writes: Sequence[Write[Any]], *, patient: bool = False) -> list[Settled[Any] | None]:
        async def attempt(connection: AsyncConnection) -> list[Settled[Any] | None]:
            with translated(self.where):
                adapted = await _adapted(connection)
                driver = adapted.driver_connection
                link = PostgresLink(adapted, patient=patient)
                with _dropped_when_silent(driver):
                    await driver.execute(_BEGIN_PATIENTLY if patient else "BEGIN")
                    settled = await connection.run_sync(lambda _: settle(link, writes))
            await self._commit(connection, lambda: _answered(driver, "COMMIT"))
            return settled

        try:
            return await self._in_turn(attempt)
        except Unsettled as error:
            if patient and isinstance(error.refusal, StoreLocked):
                return [None] * len(writes)
            raise

    async def transact(self, change: Callable[[Connection], R]) -> R:
        async def attempt(connection: AsyncConnection) -> R:
            with translated(self.where):
                result = await connection.run_sync(change)
            await self._commit(connection, connection.commit)
            return result

        return await self._in_turn(attempt)

    async def _in_turn(self, attempt: Callable[[AsyncConnection], Awaitable[R]]) -> R:
        async with self._turn:
            kept = self._writer is not None
            try:
                return await self._attempt(attempt)
            except WriteUnknown:
                raise
            except StoreUnavailable:
                if not kept or self._writer is not None:
                    raise
                # The connection that was kept had died, and nothing was committed: a new one may do.
                return await self._attempt(attempt)

    async def _attempt(self, attempt: Callable[[AsyncConnection], Awaitable[R]]) -> R:
        connection = await self._connected()
        try:
            return await attempt(connection)
        except BaseException as error:
            await self._undo(connection, error)
            raise

    async def _connected(self) -> AsyncConnection:
        if self._writer is None:
            with translated(self.where):
                self._writer = await self._engine.connect()
        return self._writer

    async def _commit(self, connection: AsyncConnection, commit: Callable[[], Awaitable[object]]) -> None:
        try:
            with translated(self.where):
                await commit()
        except (LashError, Unsettled) as error:
            if await _is_lost(connection):
                raise WriteUnknown(f"the connection to {self.where} broke during a commit; repeat the call") from error
            raise

    async def _undo(self, connection: AsyncConnection, error: BaseException) -> None:
        """Make ready for the next write: roll back, or, when even that fails, connect anew."""
        try:
            lost = await _is_lost(connection)
            if not lost:
                driver = (await _adapted(connection)).driver_connection
                await connection.rollback()
                if driver.is_in_transaction():
                    await driver.execute("ROLLBACK")
        except Exception as failure:
            error.add_note(f"the rollback failed too: {failure}")
            lost = True
        if lost:
            self._writer = None
            await connection.invalidate()
            await connection.close()

    async def read(self, look: Callable[[Connection], R]) -> R:
        try:
            return await self._look(look)
        except StoreUnavailable:
            # Perhaps a connection that died while it lay in the pool. Asking each one how it is would cost every read
            # three round trips; the failure has emptied the pool, so the next attempt meets a server or nobody.
            return await self._look(look)

    async def _look(self, look: Callable[[Connection], R]) -> R:
        with translated(self.where):
            async with self._readers.connect() as connection:
                return await connection.run_sync(look)

    def renewer(self, ttl: timedelta) -> PostgresRenewer:
        return PostgresRenewer(partial(connecting_engine, self._url), self.where, ttl=ttl)

    async def begin_service(self) -> None:
        pass

    def now(self, connection: Connection) -> datetime:
        return from_micros(connection.execute(_NOW).scalar_one())

    async def aclose(self) -> None:
        async with self._turn:
            if self._writer is not None:
                await _says_goodbye(self._writer.close)
                self._writer = None
        while not await _says_goodbye(self._pool.dispose):
            pass  # one connection of the pool was not answered and is dropped; the others are still to come


async def _says_goodbye(close: Callable[[], Awaitable[None]]) -> bool:
    """Close in good order, if the server answers to that. A connection that it does not answer on is dropped."""
    try:
        async with asyncio.timeout(GOODBYE_TIMEOUT):
            await close()
    except TimeoutError:
        return False
    return True


@contextlib.contextmanager
def _dropped_when_silent(driver: Any) -> Iterator[None]:
    """A connection on which something was not answered is of no more use: even a rollback would wait for its turn."""
    try:
        yield
    except TimeoutError:
        driver.terminate()
        raise


async def _answered(driver: Any, statement: str) -> None:
    with _dropped_when_silent(driver):
        await driver.execute(statement)


async def _is_lost(connection: AsyncConnection) -> bool:
    if connection.invalidated or connection.closed:
        return True
    return bool((await _adapted(connection)).driver_connection.is_closed())


async def _adapted(connection: AsyncConnection) -> AdaptedConnection:
    """The driver's connection, as code inside ``run_sync`` can use it."""
    return cast(AdaptedConnection, (await connection.get_raw_connection()).dbapi_connection)


def connecting_engine(url: URL, *, answer_timeout: float | None = None, pooled: bool = True) -> AsyncEngine:
    """An engine for a URL as users write it.

    Settings whose name has a dot are handed to the server: that is how a test names the row that moves its clock
    (``?lash.clock=NAME``).
    """
    if importlib.util.find_spec("asyncpg") is None:
        raise MissingExtra("Postgres", "postgres")
    query = {name: value if isinstance(value, str) else value[-1] for name, value in url.query.items()}
    server = {"application_name": "lash", "lock_timeout": LOCK_TIMEOUT, **_ABANDONED}
    server |= {name: query.pop(name) for name in list(query) if "." in name or name == "application_name"}
    arguments: dict[str, Any] = {"server_settings": server, "command_timeout": answer_timeout}
    for name in list(query):
        match name:
            case "host" | "port":  # for SQLAlchemy, which knows them
                _check(name, name != "port" or query[name].isdigit(), "a number")
            case "sslmode":
                _check(name, query[name] in _SSL, f"one of {', '.join(_SSL)}")
                arguments["ssl"] = query.pop(name)
            case "timeout":
                _check(name, query[name].isdigit() and int(query[name]) > 0, "a number of seconds")
                arguments["timeout"] = int(query.pop(name))
            case _:
                raise UnsupportedUrl(f"a Postgres URL has no setting {name!r}; it may have {', '.join(_SETTINGS)}")
    address = url.set(drivername="postgresql+asyncpg", query=query)
    pool = AsyncAdaptedQueuePool if pooled else NullPool
    engine = create_async_engine(address, connect_args=arguments, poolclass=pool)
    event.listen(engine.sync_engine, "handle_error", _drop_when_silent)
    return engine


def _drop_when_silent(failure: ExceptionContext) -> None:
    """For statements that go by way of SQLAlchemy, which gives such a connection up by itself, though only after asking
    it to close. Those that lie in the pool are not trusted any more either."""
    if isinstance(failure.original_exception, TimeoutError) and failure.connection is not None:
        driver = failure.connection.connection.driver_connection
        assert driver is not None
        driver.terminate()
        failure.invalidate_pool_on_disconnect = True


def _check(name: str, holds: bool, rule: str) -> None:
    if not holds:
        raise UnsupportedUrl(f"the setting {name!r} of a Postgres URL is {rule}")


def shown(url: URL) -> str:
    return url.set(drivername="postgresql", query={}).render_as_string(hide_password=True)
