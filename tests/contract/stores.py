"""The stores that the contract is held against, as mixins for its classes."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from pathlib import Path

import asyncpg
import pytest
from sqlalchemy.engine import URL

from lash.clock import MICROSECOND, from_micros
from lash.store.contract import Store
from lash.store.memory import MemoryData, MemoryStore
from lash.store.opening import open_store
from lash.testing import ManualClock
from lash.testing.harness import StoreHarness
from tests.postgres import PostgresServer, connect

KINDS = ("memory", "sqlite", "postgres")


class MemoryHarness:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.data = MemoryData()

    async def open(self) -> Store:
        return MemoryStore(clock=self.clock, data=self.data)

    async def advance(self, by: timedelta) -> None:
        self.clock.advance(by)

    async def now(self) -> datetime:
        return self.clock.now()


class SqliteHarness:
    def __init__(self, path: Path) -> None:
        self.clock = ManualClock()
        self.path = path

    @property
    def url(self) -> str:
        return f"sqlite:///{self.path}"

    async def open(self) -> Store:
        return await open_store(self.url, clock=self.clock)

    async def advance(self, by: timedelta) -> None:
        self.clock.advance(by)

    async def now(self) -> datetime:
        return self.clock.now()


class PostgresHarness:
    """Time passes by itself, and faster when the offset row that this harness alone names is moved."""

    def __init__(self, url: URL) -> None:
        self._clock = uuid.uuid4().hex
        self._database = url
        self._connection: asyncpg.Connection | None = None

    @property
    def url(self) -> str:
        return self._database.update_query_dict({"lash.clock": self._clock}).render_as_string(hide_password=False)

    async def open(self) -> Store:
        return await open_store(self.url)

    async def advance(self, by: timedelta) -> None:
        connection = await self._connected()
        await connection.execute(
            "INSERT INTO lash_clock_offsets (name, micros) VALUES ($1, $2)"
            " ON CONFLICT (name) DO UPDATE SET micros = lash_clock_offsets.micros + excluded.micros",
            self._clock,
            by // MICROSECOND,
        )

    async def now(self) -> datetime:
        return from_micros(await (await self._connected()).fetchval("SELECT lash_now()"))

    async def _connected(self) -> asyncpg.Connection:
        if self._connection is None:
            self._connection = await connect(self._database, **{"lash.clock": self._clock})
        return self._connection

    async def aclose(self) -> None:
        if self._connection is not None:
            await self._connection.close()


@asynccontextmanager
async def postgres_harness(url: URL) -> AsyncIterator[PostgresHarness]:
    harness = PostgresHarness(url)
    try:
        yield harness
    finally:
        await harness.aclose()


class OnEveryStore:
    """Runs a contract class on every store, on a database that the tests share where that is possible."""

    @pytest.fixture(params=KINDS)
    async def harness(
        self, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
    ) -> AsyncIterator[StoreHarness]:
        match request.param:
            case "memory":
                yield MemoryHarness()
            case "sqlite":
                yield SqliteHarness(tmp_path_factory.getbasetemp() / "shared.db")
            case _:
                server: PostgresServer = request.getfixturevalue("postgres")
                async with postgres_harness(server.shared) as harness:
                    yield harness


class OnEveryEmptyStore:
    """Runs a contract class on every store, each test on an empty database of its own."""

    @pytest.fixture(params=KINDS)
    async def harness(self, request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[StoreHarness]:
        match request.param:
            case "memory":
                yield MemoryHarness()
            case "sqlite":
                yield SqliteHarness(tmp_path / "empty.db")
            case _:
                server: PostgresServer = request.getfixturevalue("postgres")
                async with postgres_harness(server.fresh()) as harness:
                    yield harness
