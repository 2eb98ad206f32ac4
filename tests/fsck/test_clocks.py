"""Histories under a clock that was set back are clean; what is wrong with ``ready_at`` is found all the same."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from lash.commit.outbox import Owed
from lash.ids import SessionUid
from lash.inbox.cancelling import These
from lash.inbox.items import Wake
from lash.store.contract import Store
from lash.testing import check_database
from lash.testing.builders import (
    a_message,
    a_session,
    is_ready,
    must_acquire,
    must_open,
    open_with,
    plan_of,
    run_turn,
    settle_turn,
)
from lash.testing.harness import StoreHarness, opened
from tests.contract.stores import PostgresHarness, SqliteHarness, postgres_harness
from tests.postgres import PostgresServer

BACK = timedelta(hours=-1)
LONGEST = timedelta(minutes=10)

Timed = SqliteHarness | PostgresHarness
History = Callable[[StoreHarness, Store, SessionUid], Awaitable[None]]


@pytest.fixture(params=["sqlite", "postgres"])
async def harness(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Timed]:
    if request.param == "sqlite":
        yield SqliteHarness(tmp_path / "clock.db")
        return
    server: PostgresServer = request.getfixturevalue("postgres")
    async with postgres_harness(server.fresh()) as made:
        yield made


async def a_turn_is_committed_and_an_item_waits(harness: StoreHarness, store: Store, uid: SessionUid) -> None:
    await store.admit(uid, a_message("one"))
    driven = await must_open(store, uid)
    await store.admit(uid, a_message("two"))
    await harness.advance(BACK)
    await settle_turn(store, driven)


async def the_clock_is_back_by_little_more_than_a_lease(harness: StoreHarness, store: Store, uid: SessionUid) -> None:
    await store.admit(uid, a_message("one"))
    driven = await must_open(store, uid, ttl=LONGEST)
    await store.admit(uid, a_message("two"))
    await harness.advance(-LONGEST - timedelta(minutes=1))
    await settle_turn(store, driven)


async def an_item_is_put_off_until_shortly_before_the_lease_ends(
    harness: StoreHarness, store: Store, uid: SessionUid
) -> None:
    await must_acquire(store, uid)
    await harness.advance(BACK)
    await store.admit(uid, a_message(available_at=await harness.now() + timedelta(minutes=55)))


async def the_first_of_two_items_is_cancelled(harness: StoreHarness, store: Store, uid: SessionUid) -> None:
    await must_acquire(store, uid)
    now = await harness.now()
    first = await store.admit(uid, a_message(available_at=now + timedelta(seconds=5)))
    await store.admit(uid, a_message(available_at=now + timedelta(seconds=10)))
    await harness.advance(BACK)
    await store.cancel(uid, These((first.id,)))


HISTORIES = (
    a_turn_is_committed_and_an_item_waits,
    the_clock_is_back_by_little_more_than_a_lease,
    an_item_is_put_off_until_shortly_before_the_lease_ends,
    the_first_of_two_items_is_cancelled,
)


@pytest.mark.parametrize("history", HISTORIES, ids=lambda history: history.__name__)
async def test_a_lease_from_the_future_is_free_and_no_finding(harness: Timed, history: History) -> None:
    async with opened(harness) as store:
        uid = (await a_session(store)).uid
        await history(harness, store, uid)
        (await check_database(harness.url)).raise_if_broken()
        await harness.advance(-BACK + timedelta(seconds=10))
        assert await is_ready(harness, store, uid)
        (await check_database(harness.url)).raise_if_broken()


@pytest.mark.parametrize("damage", ["NULL", "ready_at - 1", "ready_at + 1", "0"])
@pytest.mark.parametrize("history", HISTORIES, ids=lambda history: history.__name__)
async def test_a_wrong_ready_at_is_found_whatever_the_clock_did(tmp_path: Path, history: History, damage: str) -> None:
    harness = SqliteHarness(tmp_path / "clock.db")
    async with opened(harness) as store:
        await history(harness, store, (await a_session(store)).uid)
    with closing(sqlite3.connect(harness.path)) as connection, connection:
        connection.execute(f"UPDATE lash_sessions SET ready_at = {damage}")
    report = await check_database(harness.url)
    assert [(finding.code, finding.key) for finding in report.findings] == [("ready-at-wrong", "id=1")]


@pytest.mark.parametrize("lived", [timedelta(0), timedelta(minutes=9)])
async def test_a_session_that_is_called_up_while_its_lease_runs_is_found_without_a_jump(
    tmp_path: Path, lived: timedelta
) -> None:
    harness = SqliteHarness(tmp_path / "clock.db")
    async with opened(harness) as store:
        uid = (await a_session(store)).uid
        await store.admit(uid, a_message())
        await harness.advance(lived)
        await must_acquire(store, uid, ttl=LONGEST)
    with closing(sqlite3.connect(harness.path)) as connection, connection:
        connection.execute("UPDATE lash_sessions SET ready_at = next_item_at")
    report = await check_database(harness.url)
    assert [finding.code for finding in report.findings] == ["ready-at-wrong"]


async def test_a_debt_that_was_swept_before_the_turn_that_made_it_is_no_finding(harness: Timed) -> None:
    async with opened(harness) as store:
        uid, other = (await a_session(store)).uid, (await a_session(store)).uid
        await harness.advance(-BACK)
        driven = await open_with(store, uid)
        plan = await plan_of(store, driven, release=True)
        await store.commit(replace(plan, owes=(Owed(other, Wake(source="child")),)))
        await harness.advance(BACK)
        [debt] = await store.debts()
        await store.deliver(debt)
        if isinstance(harness, SqliteHarness):  # whose time is long past: only what comes later tells
            await run_turn(store, uid, "and on")
        assert (await store.vacuum(before=await harness.now() + timedelta(minutes=1))).outbox == 1
        assert (await store.turn(uid, driven.turn.id)).outcome == "finished"
    (await check_database(harness.url)).raise_if_broken()


async def test_a_changed_commit_is_found_when_the_clock_was_not_set_back(tmp_path: Path) -> None:
    harness = SqliteHarness(tmp_path / "clock.db")
    async with opened(harness) as store:
        uid = (await a_session(store)).uid
        await run_turn(store, uid, "one")
        await harness.advance(-BACK)
        await run_turn(store, uid, "two")
    with closing(sqlite3.connect(harness.path)) as connection, connection:
        connection.execute("UPDATE lash_nodes SET body = replace(body, 'one', 'two')")
    found = [(finding.code, finding.key) for finding in (await check_database(harness.url)).findings]
    assert found == [("commit-hash-wrong", "session=1 revision=1")]
