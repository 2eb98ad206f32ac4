from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from lash.store.writer import Writer
from tests.postgres import PostgresServer
from tests.store.sample import Copy, PostgresCopy, PostgresSamples, SqliteCopy, SqliteSamples
from tests.store.world import World


@pytest.fixture(scope="session")
def sqlite_samples(tmp_path_factory: pytest.TempPathFactory) -> SqliteSamples:
    return SqliteSamples(tmp_path_factory.mktemp("samples"))


@pytest.fixture(scope="session")
def postgres_samples(request: pytest.FixtureRequest) -> PostgresSamples:
    return PostgresSamples(request.getfixturevalue("postgres"))


@pytest.fixture
def sqlite_copy(sqlite_samples: SqliteSamples) -> SqliteCopy:
    """A database with one of everything, for this test alone."""
    return sqlite_samples.copy()


@pytest.fixture
async def postgres_copy(postgres_samples: PostgresSamples) -> AsyncIterator[PostgresCopy]:
    """A database with one of everything, for this test alone."""
    async with postgres_samples.copy() as copy:
        yield copy


@pytest.fixture(params=["sqlite", "postgres"])
def copy(request: pytest.FixtureRequest) -> Copy:
    """A database with one of everything, for this test alone, on each kind of database."""
    made: Copy = request.getfixturevalue(f"{request.param}_copy")
    return made


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A new database, on each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/lash.db"
    server: PostgresServer = request.getfixturevalue("postgres")
    return server.fresh().render_as_string(hide_password=False)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    world = World()
    monkeypatch.setattr(Writer, "_time", lambda _: world.time)
    return world
