from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.postgres import PostgresServer, running_server


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A Postgres server with a migrated template."""
    folder = Path(tempfile.mkdtemp(prefix="lash-postgres-"))
    try:
        with running_server(folder / "data") as url:
            server = PostgresServer(url)
            yield server
            server.drop_all()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
