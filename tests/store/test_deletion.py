"""What is gone with a session, and what stays for those who share it: by the tables, which no other call shows."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from sqlalchemy import Connection, Table, func, select

from lash.store import schema
from lash.store.opening import open_store
from lash.store.sql.store import SqlStore
from lash.testing.builders import a_message, a_session, a_wait, an_effect, finished, open_with, run_turn
from tests.contract.stores import KINDS, SqliteHarness
from tests.postgres import PostgresServer

EMPTIED = (schema.inbox, schema.journal, schema.turns, schema.waits, schema.documents)


@pytest.fixture(params=[kind for kind in KINDS if kind != "memory"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[SqlStore]:
    if request.param == "sqlite":
        url = SqliteHarness(tmp_path / "deletion.db").url
    else:
        server: PostgresServer = request.getfixturevalue("postgres")
        url = server.fresh().render_as_string(hide_password=False)
    async with await open_store(url) as store:
        yield store


async def rows(store: SqlStore, *tables: Table) -> dict[str, int]:
    def count(connection: Connection) -> dict[str, int]:
        return {table.name: connection.scalar(select(func.count()).select_from(table)) or 0 for table in tables}

    return await store._database.transact(count)


async def test_a_deleted_session_leaves_no_row_of_its_work(store: SqlStore) -> None:
    uid = (await a_session(store)).uid
    await run_turn(store, uid, "settled")
    driven = await open_with(store, uid, "at work")
    await store.record(driven.lease, driven.turn.id, [finished(an_effect())], waits=[a_wait(turn=driven.turn.id)])
    await store.admit(uid, a_message("pending"))
    assert all((await rows(store, *EMPTIED)).values())
    await store.delete(uid)
    assert await rows(store, *EMPTIED) == {table.name: 0 for table in EMPTIED}
