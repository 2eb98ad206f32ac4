from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.fsck.sample import RichPostgres, RichSqlite
from tests.store.sample import PostgresCopy, SqliteCopy


@pytest.fixture(scope="session")
def rich_sqlite(tmp_path_factory: pytest.TempPathFactory) -> RichSqlite:
    return RichSqlite(tmp_path_factory.mktemp("rich"))


@pytest.fixture(scope="session")
def rich_postgres(request: pytest.FixtureRequest) -> RichPostgres:
    return RichPostgres(request.getfixturevalue("postgres"))


@pytest.fixture(params=["sqlite", "postgres"])
async def copy(request: pytest.FixtureRequest) -> AsyncIterator[SqliteCopy | PostgresCopy]:
    """A database with a rich history, for this test alone, on each kind of database."""
    if request.param == "sqlite":
        samples: RichSqlite = request.getfixturevalue("rich_sqlite")
        yield samples.copy()
        return
    server: RichPostgres = request.getfixturevalue("rich_postgres")
    async with server.copy() as made:
        yield made
