"""Rows as each revision held them, written once through the store of its time and kept in ``written/``.

When a revision is added, run ``python -m tests.migration.data`` with the code that knows it, and commit the file. Files
of released revisions are never written again.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import tempfile
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, MetaData, Table, insert, text

from lash.commit.outbox import Owed
from lash.commit.parts import Changed
from lash.commit.usage import Tokens, UsageDelta
from lash.graph.parts import File
from lash.inbox.items import Message, Wake
from lash.store import Store, migrate, open_store
from lash.store.opening import migrating
from lash.testing import ManualClock
from lash.testing.builders import (
    a_fork,
    a_message,
    a_request_id,
    a_session,
    a_wait,
    an_effect,
    finished,
    hears,
    leaf_of,
    must_acquire,
    must_open,
    open_with,
    plan_of,
    rewind,
    run_turn,
    says,
)
from tests.migration.databases import TestedDatabase

WRITTEN = Path(__file__).with_name("written")
BLOB = b"a picture of a parcel"


async def write_everything(store: Store) -> dict[str, str]:
    """A bit of everything that a store keeps. Answers with what was handed out to the world."""
    await _talk(store)
    await _owe(store)
    await store.delete((await a_session(store, "gone")).uid)
    return {"wait_key": await _park(store)}


async def _talk(store: Store) -> None:
    """A session with two turns and a rewind to the first one, and a fork that went on from the second."""
    talk = await a_session(store, "talk", agent="orders")
    await store.put_document(talk.uid, "metadata", {"customer": 42}, expected=0)
    first = await run_turn(store, talk.uid, "one")
    driven = await open_with(store, talk.uid, "two")
    plan = await plan_of(store, driven, hears("two"), says("re: two"))
    usage = (UsageDelta("agent", "a-model", Tokens(input=100, output=20, reasoning=5)),)
    second = await store.commit(replace(plan, parts={"tools": Changed(b"open")}, usage=usage))
    await store.fork(a_fork(talk.uid, leaf_of(second), "copy"))
    lease = await must_acquire(store, talk.uid)
    await rewind(store, lease, leaf_of(first))
    await store.release(lease)
    await store.admit(talk.uid, a_message("three", key="msg-3"))


async def _owe(store: Store) -> None:
    """A session that owes another one a message, and has a blob in its inbox."""
    owing = await a_session(store, "owing")
    talk = await store.get((await a_session(store, "receiver")).name)
    blob = await store.put_blob(BLOB)
    picture = a_message("a picture")
    parts = (File(blob=blob, media_type="image/png", name="parcel.png"),)
    await store.admit(owing.uid, replace(picture, body=Message(parts=parts), key="picture"))
    driven = await must_open(store, owing.uid)
    plan = await plan_of(store, driven, hears("a picture"))
    await store.commit(replace(plan, owes=(Owed(talk.uid, Wake(source="child", data={"parcel": 7})),), release=True))


async def _park(store: Store) -> str:
    """A session whose turn has asked somebody for an approval and sleeps, and one that was asked to stop."""
    asking = await a_session(store, "asking")
    driven = await open_with(store, asking.uid, "may I?")
    wait = a_wait("approval", turn=driven.turn.id)
    model, tool = an_effect("model:1"), an_effect("tool:1", kind="tool", step=2)
    records = [finished(model, {"text": "I must ask"}), replace(tool, wait=wait.id)]
    await store.record(driven.lease, driven.turn.id, records, waits=[wait])
    await store.park(driven.lease, driven.turn.id, waits=[wait.id])
    stopped = await a_session(store, "stopped")
    running = await open_with(store, stopped.uid, "never mind")
    await store.request_cancel(stopped.uid, running.turn.id, a_request_id(), reason="the user pressed stop")
    return await store.wait_key(asking.uid, wait.id)


# -- to a file and back ------------------------------------------------------------------------------------------------


async def save() -> Path:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "written.db"
        async with await open_store(f"sqlite:///{path}", clock=ManualClock()) as store:
            handed_out = await write_everything(store)
        with closing(sqlite3.connect(path)) as connection:
            rows = _rows(connection)
    saved = WRITTEN / f"{migrate.head()}.json"
    content = {"revision": migrate.head(), "handed_out": handed_out, "rows": rows}
    saved.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n")
    return saved


def _rows(connection: sqlite3.Connection) -> dict[str, list[dict[str, Any]]]:
    connection.row_factory = sqlite3.Row
    tables = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    ours = [table for table in tables if table not in (migrate.VERSION_TABLE, "sqlite_sequence")]
    return {table: [_row(row) for row in connection.execute(f"SELECT * FROM {table}")] for table in ours}


def _row(row: sqlite3.Row) -> dict[str, Any]:
    return {name: _saved(value) for name, value in dict(row).items()}


def _saved(value: Any) -> Any:
    return {"hex": value.hex()} if isinstance(value, bytes) else value


def _loaded(value: Any) -> Any:
    return bytes.fromhex(value["hex"]) if isinstance(value, dict) else value


def written(revision: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((WRITTEN / f"{revision}.json").read_text())
    return content


async def load(database: TestedDatabase, revision: str) -> None:
    """Bring an empty database to a revision and fill it with what was written then."""
    await database.upgrade(revision)
    async with migrating(database.parsed) as transact:
        await transact(lambda connection: _insert(connection, written(revision)["rows"]))


def _insert(connection: Connection, rows: dict[str, list[dict[str, Any]]]) -> None:
    found = MetaData()
    found.reflect(connection)
    for table in found.sorted_tables:
        if rows.get(table.name):
            connection.execute(table.delete())  # what the migration itself put there, as the secret
            connection.execute(insert(table), [{n: _loaded(v) for n, v in row.items()} for row in rows[table.name]])
            _count_on(connection, table)


def _count_on(connection: Connection, table: Table) -> None:
    """Postgres counts on from the highest number, as it would have if it had given the numbers itself."""
    if connection.dialect.name == "postgresql" and table.name in ("lash_sessions", "lash_blobs"):
        highest = f"(SELECT max(id) FROM {table.name})"
        connection.execute(text(f"SELECT setval(pg_get_serial_sequence('{table.name}', 'id'), {highest})"))


if __name__ == "__main__":
    print(asyncio.run(save()))
