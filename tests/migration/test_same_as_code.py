"""Migrating an empty database to the newest revision gives the tables that the code describes."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import asyncpg
import pytest
from sqlalchemy.engine import URL

from lash.store import migrate
from lash.store.opening import migrating, parse_url
from lash.store.schema import metadata
from tests.migration.catalogs import differences, normalised, postgres_catalog, sqlite_catalog
from tests.postgres import PostgresServer, connect

POSTGRES_ALTERATIONS = {
    "a nullable column": "ALTER TABLE lash_waits ALTER COLUMN name DROP NOT NULL",
    "another type": "ALTER TABLE lash_turns ALTER COLUMN attempts TYPE bigint",
    "a default": "ALTER TABLE lash_turns ALTER COLUMN attempts SET DEFAULT 0",
    "another identity": "ALTER TABLE lash_sessions ALTER COLUMN id SET GENERATED ALWAYS",
    "a column more": "ALTER TABLE lash_nodes ADD COLUMN note text",
    "a table more": "CREATE TABLE lash_extra (id bigint)",
    "a constraint less": "ALTER TABLE lash_inbox DROP CONSTRAINT lash_inbox_state_ck",
    "another check": """
        ALTER TABLE lash_inbox DROP CONSTRAINT lash_inbox_state_ck;
        ALTER TABLE lash_inbox ADD CONSTRAINT lash_inbox_state_ck CHECK (state IN ('pending', 'taken'))""",
    "a foreign key less": "ALTER TABLE lash_nodes DROP CONSTRAINT lash_nodes_session_fk",
    "another predicate": """
        DROP INDEX lash_turns_unsettled_ix;
        CREATE UNIQUE INDEX lash_turns_unsettled_ix ON lash_turns (session) WHERE state = 'open'""",
    "another function": """
        CREATE OR REPLACE FUNCTION lash_now() RETURNS bigint LANGUAGE sql VOLATILE AS $$ SELECT 0::bigint $$""",
    "a function less volatile": "ALTER FUNCTION lash_now() STABLE",
    "a logged table": "ALTER TABLE lash_live_events SET LOGGED",
}
SQLITE_ALTERATIONS = {
    "a nullable column": """
        DROP TABLE lash_meta;
        CREATE TABLE lash_meta (name TEXT NOT NULL, value TEXT, CONSTRAINT lash_meta_pk PRIMARY KEY (name))""",
    "another type": """
        DROP TABLE lash_meta;
        CREATE TABLE lash_meta (name TEXT NOT NULL, value BLOB NOT NULL, CONSTRAINT lash_meta_pk PRIMARY KEY (name))""",
    "columns in another order": """
        DROP TABLE lash_meta;
        CREATE TABLE lash_meta (value TEXT NOT NULL, name TEXT NOT NULL, CONSTRAINT lash_meta_pk PRIMARY KEY (name))""",
    "a column more": "ALTER TABLE lash_nodes ADD COLUMN note TEXT",
    "a column less": "ALTER TABLE lash_waits DROP COLUMN answer",
    "a table more": "CREATE TABLE lash_extra (id INTEGER)",
    "an index less": "DROP INDEX lash_state_parts_blob_ix",
    "another predicate": """
        DROP INDEX lash_turns_unsettled_ix;
        CREATE UNIQUE INDEX lash_turns_unsettled_ix ON lash_turns (session) WHERE state = 'open'""",
    "a trigger": "CREATE TRIGGER t AFTER INSERT ON lash_meta BEGIN DELETE FROM lash_meta; END",
}


async def create_all(url: URL) -> None:
    async with migrating(url, create=True) as transact:
        await transact(metadata.create_all)


async def migrate_to_head(url: URL) -> None:
    async with migrating(url, create=True) as transact:
        await transact(migrate.upgrade)


@pytest.fixture
async def migrated_postgres(postgres: PostgresServer) -> AsyncIterator[asyncpg.Connection]:
    url = postgres.blank()
    await migrate_to_head(url)
    connection = await connect(url)
    yield connection
    await connection.close()


@pytest.fixture
async def migrated_sqlite(tmp_path: Path) -> AsyncIterator[sqlite3.Connection]:
    await migrate_to_head(parse_url(f"sqlite:///{tmp_path / 'migrated.db'}"))
    with closing(sqlite3.connect(tmp_path / "migrated.db")) as connection:
        yield connection


async def test_migrations_build_on_postgres_what_the_code_describes(
    postgres: PostgresServer, migrated_postgres: asyncpg.Connection
) -> None:
    url = postgres.blank()
    await create_all(url)
    described = await connect(url)
    try:
        assert differences(await postgres_catalog(migrated_postgres), await postgres_catalog(described)) == []
    finally:
        await described.close()


async def test_migrations_build_on_sqlite_what_the_code_describes(
    tmp_path: Path, migrated_sqlite: sqlite3.Connection
) -> None:
    await create_all(parse_url(f"sqlite:///{tmp_path / 'described.db'}"))
    with closing(sqlite3.connect(tmp_path / "described.db")) as described:
        assert differences(sqlite_catalog(migrated_sqlite), sqlite_catalog(described)) == []


async def test_every_table_of_the_code_is_seen_by_the_comparison(
    migrated_postgres: asyncpg.Connection, migrated_sqlite: sqlite3.Connection
) -> None:
    for catalog, kind in (
        (await postgres_catalog(migrated_postgres), "columns"),
        (sqlite_catalog(migrated_sqlite), "sql"),
    ):
        seen = {value for row in catalog[kind] for value in row if isinstance(value, str)}
        assert set(metadata.tables) <= seen


async def test_a_postgres_database_that_was_altered_is_seen_to_differ(migrated_postgres: asyncpg.Connection) -> None:
    before = await postgres_catalog(migrated_postgres)
    for what, statement in POSTGRES_ALTERATIONS.items():
        altered = migrated_postgres.transaction()
        await altered.start()
        await migrated_postgres.execute(statement)
        assert differences(before, await postgres_catalog(migrated_postgres)), what
        await altered.rollback()
    assert await postgres_catalog(migrated_postgres) == before


@pytest.mark.parametrize("what", SQLITE_ALTERATIONS)
def test_a_sqlite_database_that_was_altered_is_seen_to_differ(migrated_sqlite: sqlite3.Connection, what: str) -> None:
    before = sqlite_catalog(migrated_sqlite)
    migrated_sqlite.executescript(SQLITE_ALTERATIONS[what])
    assert differences(before, sqlite_catalog(migrated_sqlite))


def test_how_a_table_is_written_down_makes_no_difference_but_what_it_says_does() -> None:
    table = "CREATE TABLE t (\n a TEXT,\n b TEXT, CONSTRAINT one CHECK (a IN ('x', 'y')), CONSTRAINT two UNIQUE (a, b))"
    same = "CREATE TABLE t (a TEXT, b TEXT, CONSTRAINT two UNIQUE (a, b), CONSTRAINT one CHECK (a IN ('x', 'y')))"
    assert normalised(table) == normalised(same)
    assert normalised(table) != normalised(same.replace("'y'", "'z'"))
