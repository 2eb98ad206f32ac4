"""A database of either kind, to be put into any state by hand."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy.engine import URL

from lash.store import migrate
from lash.store.opening import migrating, parse_url
from tests.postgres import PostgresServer, connect


class TestedDatabase:
    """A database without any table at first."""

    __test__ = False

    def __init__(self, url: URL) -> None:
        self.parsed = url

    @property
    def url(self) -> str:
        return self.parsed.render_as_string(hide_password=False)

    @property
    def on_sqlite(self) -> bool:
        return self.parsed.get_backend_name() == "sqlite"

    async def upgrade(self, to: str = "head") -> None:
        async with migrating(self.parsed, create=True) as transact:
            await transact(lambda connection: migrate.upgrade(connection, to))

    async def execute(self, statement: str) -> None:
        if self.on_sqlite:
            with closing(sqlite3.connect(self.parsed.database or "")) as connection:
                connection.executescript(statement)
            return
        postgres = await connect(self.parsed)
        await postgres.execute(statement)
        await postgres.close()

    async def tables(self) -> list[str]:
        if self.on_sqlite:
            with closing(sqlite3.connect(self.parsed.database or "")) as connection:
                return sorted(name for (name,) in connection.execute("SELECT name FROM sqlite_master"))
        postgres = await connect(self.parsed)
        found = await postgres.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
        await postgres.close()
        return sorted(row[0] for row in found)


@pytest.fixture(params=["sqlite", "postgres"])
async def database(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[TestedDatabase]:
    if request.param == "sqlite":
        yield TestedDatabase(parse_url(f"sqlite:///{tmp_path / 'tested.db'}"))
    else:
        server: PostgresServer = request.getfixturevalue("postgres")
        yield TestedDatabase(server.blank())
