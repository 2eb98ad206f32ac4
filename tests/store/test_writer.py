"""Batches: writes that are settled together succeed or fail each on its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from sqlalchemy import Connection

from lash.errors import BlobMissing, HeadMoved, InvariantBroken, KeyReused, LeaseLost, StoreClosed, TooLarge
from lash.graph.parts import Image, Text
from lash.ids import BlobHash, ItemId, SessionUid
from lash.inbox.items import InboxItem, Message, NewItem
from lash.store import schema
from lash.store.contract import Store
from lash.store.opening import open_store
from lash.store.sql.steps import Steps, Work, Write
from lash.store.sql.store import SqlStore
from lash.testing.builders import (
    a_message,
    a_session,
    commit_nodes,
    must_acquire,
    new_id,
    plan_nodes,
    said,
    says,
)
from tests.contract.stores import KINDS, SqliteHarness, postgres_harness
from tests.postgres import PostgresServer


@pytest.fixture(params=[kind for kind in KINDS if kind != "memory"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[SqlStore]:
    if request.param == "sqlite":
        async with await open_store(SqliteHarness(tmp_path / "batch.db").url) as store:
            yield store
        return
    server: PostgresServer = request.getfixturevalue("postgres")
    async with postgres_harness(server.shared) as harness, await open_store(harness.url) as store:
        yield store


async def sessions(store: Store, count: int) -> list[SessionUid]:
    return [(await a_session(store)).uid for _ in range(count)]


async def test_one_bad_write_in_a_batch_is_heard_of_only_by_its_owner(store: SqlStore) -> None:
    good, stale, keyed, missing = await sessions(store, 4)
    lease = await must_acquire(store, stale)
    await commit_nodes(store, lease, says("first"))
    old_plan = await plan_nodes(store, lease, says("second"))
    await commit_nodes(store, lease, says("in between"))
    await store.admit(keyed, a_message("one content", key="k"))
    image = Message(parts=(Image(blob=BlobHash("0" * 64), media_type="image/png"),))
    answers = await asyncio.gather(
        store.admit(good, a_message("before")),
        store.commit(old_plan),
        store.admit(keyed, a_message("other content", key="k")),
        store.admit(missing, NewItem(ItemId(new_id()), image)),
        store.admit(good, a_message("after")),
        return_exceptions=True,
    )
    assert isinstance(answers[0], InboxItem)
    assert isinstance(answers[1], HeadMoved)
    assert isinstance(answers[2], KeyReused)
    assert isinstance(answers[3], BlobMissing)
    assert isinstance(answers[4], InboxItem)
    assert answers[0].seq < answers[4].seq
    assert (await store.items(missing)).rows == ()
    assert await said(store, stale) == ["first", "in between"]


async def test_a_write_that_breaks_a_constraint_does_not_take_the_others_with_it(store: SqlStore) -> None:
    good, bad = await sessions(store, 2)

    def break_a_constraint(work: Work) -> Steps[None]:
        yield from ()
        row = work.session(bad)
        twice = {"session": row.id, "branch": 0, "parent_session": None, "parent_branch": None, "parent_depth": None}
        work.changes.insert(schema.branches, twice)

    answers = await asyncio.gather(
        store.admit(good, a_message("one")),
        store._writer.write(Write((bad,), break_a_constraint)),
        store.admit(good, a_message("two")),
        return_exceptions=True,
    )
    assert isinstance(answers[1], InvariantBroken)
    assert [item.seq for item in (await store.items(good)).rows] == [1, 2]


async def test_a_bug_in_a_write_reaches_its_caller_alone(store: SqlStore) -> None:
    uid, other = await sessions(store, 2)

    def trip(work: Work) -> Steps[None]:
        yield from ()
        raise ZeroDivisionError

    answers = await asyncio.gather(
        store.admit(other, a_message("warm-up")),
        store._writer.write(Write((uid,), trip)),
        store.admit(other, a_message("beside it")),
        return_exceptions=True,
    )
    assert isinstance(answers[1], ZeroDivisionError)
    assert isinstance(answers[2], InboxItem)
    assert (await store.admit(uid, a_message("still here"))).seq == 1


async def test_writes_of_one_session_keep_their_order_within_a_batch(store: SqlStore) -> None:
    [uid, other] = await sessions(store, 2)
    sent = [a_message(f"{number}") for number in range(20)]
    admissions = [store.admit(uid if number % 3 else other, item) for number, item in enumerate(sent)]
    await asyncio.gather(*admissions)
    ids = [item.id for item in (await store.items(uid)).rows]
    assert ids == [item.id for number, item in enumerate(sent) if number % 3]


async def test_a_displaced_owner_in_the_same_batch_as_its_successor_writes_nothing(store: SqlStore) -> None:
    [uid] = await sessions(store, 1)
    slow = await must_acquire(store, uid, "slow")
    await store.release(slow)
    fast = await must_acquire(store, uid, "fast")
    landed, refused = await asyncio.gather(
        store.commit(await plan_nodes(store, fast, says("fast"))),
        store.commit(await plan_nodes(store, slow, says("slow"))),
        return_exceptions=True,
    )
    assert not isinstance(landed, BaseException)
    assert isinstance(refused, LeaseLost)
    assert await said(store, uid) == ["fast"]


async def test_cancelling_a_caller_does_not_withdraw_its_write(store: SqlStore) -> None:
    [uid] = await sessions(store, 1)
    item = a_message("sent anyway")
    caller = asyncio.create_task(store.admit(uid, item))
    await asyncio.sleep(0)  # it has submitted the write and waits for the answer
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert (await store.admit(uid, item)).seq == 1
    assert len((await store.items(uid)).rows) == 1


async def test_closing_settles_what_was_submitted_and_refuses_what_comes_after(store: SqlStore) -> None:
    [uid] = await sessions(store, 1)
    submitted = [asyncio.create_task(store.admit(uid, a_message(f"{number}"))) for number in range(10)]
    await asyncio.sleep(0)
    await store.aclose()
    assert sorted(item.seq for item in await asyncio.gather(*submitted)) == list(range(1, 11))
    with pytest.raises(StoreClosed):
        await store.admit(uid, a_message("too late"))
    await store.aclose()


async def test_what_is_too_large_is_refused_before_it_is_queued(store: SqlStore) -> None:
    [uid] = await sessions(store, 1)
    huge = Message(parts=(Text(text="x" * (17 * 1024 * 1024)),))
    with pytest.raises(TooLarge):
        await store.admit(uid, NewItem(ItemId(new_id()), huge))
    assert (await store.items(uid)).rows == ()


async def test_a_commit_on_sqlite_is_synced_before_it_is_acknowledged(tmp_path: Path) -> None:
    async with await open_store(SqliteHarness(tmp_path / "synced.db").url) as store:

        def settings(connection: Connection) -> list[object]:
            return [connection.exec_driver_sql(f"PRAGMA {name}").scalar() for name in ("synchronous", "journal_mode")]

        assert await store._database.transact(settings) == [2, "wal"]  # 2 is FULL


async def test_a_commit_on_postgres_is_synced_as_the_server_says(postgres: PostgresServer) -> None:
    async with await open_store(postgres.shared.render_as_string(hide_password=False)) as store:

        def source(connection: Connection) -> object:
            return connection.exec_driver_sql(
                "SELECT source FROM pg_settings WHERE name = 'synchronous_commit'"
            ).scalar()

        assert await store._database.transact(source) not in ("client", "session")
