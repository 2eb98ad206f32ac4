"""A lash and a database that are too old or too new for each other say so, and name both."""

from __future__ import annotations

from pathlib import Path

import pytest

from lash.errors import DatabaseMissing, DatabaseTooOld, ForeignDatabase, RuntimeTooOld
from lash.store import migrate, open_store
from lash.testing.builders import a_session, run_turn, said
from lash.version import VERSION
from tests.migration.databases import TestedDatabase
from tests.migration.revisions import NEWEST
from tests.postgres import PostgresServer

NEEDS_A_NEWER_LASH = "UPDATE lash_meta SET value = '99.0.1' WHERE name = 'oldest_runtime'"
OF_A_LATER_RELEASE = "UPDATE lash_version SET version_num = '0099'"


async def test_a_database_that_is_too_old_is_refused(database: TestedDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    await database.upgrade("0001")
    monkeypatch.setattr(migrate, "OLDEST_REVISION", "0002")
    with pytest.raises(DatabaseTooOld) as refused:
        await open_store(database.url, upgrade=False)
    told = str(refused.value)
    assert "0001" in told
    assert f"lash {VERSION}" in told
    assert "0002" in told
    assert "lash db upgrade" in told


async def test_a_lash_that_is_too_old_is_refused(database: TestedDatabase) -> None:
    await database.upgrade()
    await database.execute(NEEDS_A_NEWER_LASH)
    with pytest.raises(RuntimeTooOld) as refused:
        await open_store(database.url)
    told = str(refused.value)
    assert f"lash {VERSION}" in told
    assert f"revision {NEWEST}" in told
    assert "lash 99.0.1" in told


async def test_versions_are_compared_as_numbers(database: TestedDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    await database.upgrade()
    await database.execute("UPDATE lash_meta SET value = '0.9.0' WHERE name = 'oldest_runtime'")
    monkeypatch.setattr(migrate, "VERSION", "0.10.0")
    await (await open_store(database.url)).aclose()
    monkeypatch.setattr(migrate, "VERSION", "0.8.12")
    with pytest.raises(RuntimeTooOld):
        await open_store(database.url)


async def test_a_newer_database_that_still_serves_this_lash_is_opened_and_left_as_it_is(
    database: TestedDatabase,
) -> None:
    await database.upgrade()
    await database.execute(OF_A_LATER_RELEASE)
    async with await open_store(database.url) as store:
        session = await a_session(store)
        await run_turn(store, session.uid, "hello")
        assert await said(store, session.uid) == ["hello", "re: hello"]


async def test_a_newer_database_that_does_not_serve_this_lash_is_refused(database: TestedDatabase) -> None:
    await database.upgrade()
    await database.execute(f"{OF_A_LATER_RELEASE}; {NEEDS_A_NEWER_LASH}")
    with pytest.raises(RuntimeTooOld, match=r"revision 0099, needs lash 99\.0\.1"):
        await open_store(database.url)


async def test_tables_of_our_names_that_somebody_else_made_are_left_alone(database: TestedDatabase) -> None:
    await database.execute("CREATE TABLE lash_nodes (theirs integer)")
    with pytest.raises(ForeignDatabase, match="lash_nodes"):
        await open_store(database.url)
    with pytest.raises(ForeignDatabase, match="lash_nodes"):
        await database.upgrade()
    assert await database.tables() == ["lash_nodes"]


@pytest.mark.parametrize("held", ["INSERT INTO lash_version VALUES ('feature-x')", "SELECT 1"])
async def test_a_table_of_revisions_without_a_revision_of_ours_is_foreign(database: TestedDatabase, held: str) -> None:
    await database.execute(f"CREATE TABLE lash_version (version_num varchar(32)); {held}")
    with pytest.raises(ForeignDatabase, match="lash_version"):
        await open_store(database.url)


async def test_the_tables_of_an_application_are_no_obstacle_and_stay(database: TestedDatabase) -> None:
    await database.execute("CREATE TABLE customers (id integer); CREATE TABLE alembic_version (version_num varchar)")
    await database.upgrade()
    await (await open_store(database.url)).aclose()
    assert {"customers", "alembic_version"} < set(await database.tables())


async def test_a_database_without_our_tables_is_missing_unless_it_may_be_made(database: TestedDatabase) -> None:
    with pytest.raises(DatabaseMissing, match="lash db upgrade"):
        await open_store(database.url, upgrade=False)
    assert await database.tables() == []


async def test_a_postgres_database_is_never_made_by_opening_it(postgres: PostgresServer) -> None:
    database = TestedDatabase(postgres.blank())
    with pytest.raises(DatabaseMissing, match="lash db upgrade"):
        await open_store(database.url)
    assert await database.tables() == []


async def test_a_postgres_server_without_that_database_says_which_one(postgres: PostgresServer) -> None:
    url = postgres.url("nobody_made_this").render_as_string(hide_password=False)
    with pytest.raises(DatabaseMissing, match="nobody_made_this"):
        await open_store(url)


async def test_a_sqlite_file_is_made_by_opening_it(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'folder' / 'new.db'}"
    async with await open_store(url) as store:
        session = await a_session(store, "first")
    async with await open_store(url, upgrade=False) as store:
        assert (await store.get(session.name)).uid == session.uid
