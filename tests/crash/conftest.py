from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.databases import Database, PostgresDatabase, SqliteFile
from tests.postgres import PostgresServer

KINDS = ("sqlite", "postgres")


def a_database(kind: str, request: pytest.FixtureRequest, folder: Path) -> Database:
    """An empty database of its own. On SQLite the file is made by whoever opens it first."""
    if kind == "sqlite":
        return SqliteFile(folder / "crash.db")
    server: PostgresServer = request.getfixturevalue("postgres")
    return PostgresDatabase(server.fresh())


@pytest.fixture(params=KINDS)
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    return a_database(request.param, request, tmp_path)


@pytest.fixture(scope="module", params=KINDS)
def shared_database(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Database:
    """One database for all tests of a module, which leave each other's sessions alone."""
    return a_database(request.param, request, tmp_path_factory.mktemp("crash"))
