from __future__ import annotations

import pytest

from tests.store.sample import Copy, PostgresSamples, SqliteSamples


@pytest.fixture(scope="session")
def sqlite_samples(tmp_path_factory: pytest.TempPathFactory) -> SqliteSamples:
    return SqliteSamples(tmp_path_factory.mktemp("samples"))


@pytest.fixture(scope="session")
def postgres_samples(request: pytest.FixtureRequest) -> PostgresSamples:
    return PostgresSamples(request.getfixturevalue("postgres"))


@pytest.fixture(params=["sqlite", "postgres"])
def copy(request: pytest.FixtureRequest) -> Copy:
    """A database with one of everything, for this test alone."""
    samples: SqliteSamples | PostgresSamples = request.getfixturevalue(f"{request.param}_samples")
    return samples.copy()
