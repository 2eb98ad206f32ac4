from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lash.testing import check_database
from tests.crash.databases import Database, PostgresDatabase, SqliteFile
from tests.postgres import PostgresServer, in_a_loop_of_its_own

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


@pytest.fixture(scope="module")
def shared_database(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    """One database of the kind that is asked for, for all tests of a module, which leave each other's sessions alone.
    It must be in order when they are done."""
    database = a_database(request.param, request, tmp_path_factory.mktemp("crash"))
    yield database
    in_a_loop_of_its_own(lambda: check_database(database.place.url)).raise_if_broken()
