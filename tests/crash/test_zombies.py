"""Processes that stand still, and wake up when others have taken over."""

from __future__ import annotations

import asyncio
import signal
from datetime import timedelta
from pathlib import Path

import pytest

from lash.errors import StoreLocked
from lash.ids import OwnerId, SessionUid
from lash.store.opening import open_store
from lash.testing import check_database
from lash.testing.builders import a_message, a_session, must_open, settle_turn
from tests.crash.databases import Database, PostgresDatabase, SqliteFile
from tests.crash.desk import TTL
from tests.crash.processes import process
from tests.crash.rounds import LONG, story
from tests.crash.writes import WRITES
from tests.postgres import PostgresServer

LEASED = ("renew", "release", "record", "take", "park", "commit")
LATER = timedelta(hours=1)
"""By then every lease has run out."""


@pytest.mark.parametrize("seed", range(40 if LONG else 1))
async def test_whoever_wakes_up_late_finds_that_others_went_on(database: Database, seed: int) -> None:
    async with story(database, f"zombie-{seed}", sweeps=seed % 2 == 1) as told:
        zombie, other = await told.worker(), await told.worker(busy_timeout=0.2)
        await zombie.heard(told.random.randint(10, 60))
        await asyncio.sleep(told.random.random() * 0.02)
        zombie.stop()
        await asyncio.sleep(1.2 * TTL.total_seconds())
        zombie.go_on()
        await other.heard(len(other.calls) + told.random.randint(5, 40))
        await told.is_over_for(zombie, other)
        await told.look([zombie, other])
        await told.finish([zombie, other])


async def test_nothing_that_a_displaced_owner_asks_for_is_done(database: Database) -> None:
    async with await open_store(database.place.url, clock=database.place.clock()) as store:
        given = {kind: await WRITES[kind].prepare(store) for kind in LEASED}
        async with process("zombie", database.place) as zombie:
            zombie.stop()
            await zombie.stopped()
            for kind in LEASED:
                zombie.order("write", kind=kind, given=given[kind])
            await database.set_clock(LATER)
            for kind in LEASED:
                uid = SessionUid(given[kind]["session"])
                acquired = await store.acquire(uid, OwnerId("successor"), ttl=LATER / 10)
                assert acquired.displaced is not None
            before = await database.tables()
            zombie.go_on()
            await zombie.obeyed(len(LEASED))
            assert [(call.op, call.refused) for call in zombie.calls] == [(kind, "LeaseLost") for kind in LEASED]
            assert await database.tables() == before
    (await check_database(database.place.url)).raise_if_broken()


@pytest.mark.parametrize("point", ["after BEGIN", "before COMMIT"])
async def test_on_sqlite_all_wait_for_one_that_stands_still_in_a_transaction(tmp_path: Path, point: str) -> None:
    database = SqliteFile(tmp_path / "crash.db")
    async with await open_store(database.place.url, busy_timeout=timedelta(seconds=0.2)) as store:
        commit = WRITES["commit"]
        given = await commit.prepare(store)
        other = (await a_session(store)).uid
        before = await database.tables()
        async with process("zombie", database.place) as zombie:
            zombie.order("write", kind="commit", given=given, point=point, sends=signal.SIGSTOP)
            await zombie.stopped()
            item = a_message("is anybody there?")
            with pytest.raises(StoreLocked):
                await store.admit(other, item)
            assert await database.tables() == before, "reading goes on"
            zombie.go_on()
            await zombie.obeyed(1)
            assert [call.answer for call in zombie.calls] == [commit.answer(given)], "nobody had displaced it"
            assert (await store.admit(other, item)).seq == 1
    (await check_database(database.place.url)).raise_if_broken()


async def test_on_postgres_the_rows_of_one_that_stands_still_in_a_transaction_are_freed(
    postgres: PostgresServer,
) -> None:
    database = PostgresDatabase(postgres.fresh())
    async with await open_store(database.place.url) as store:
        given = await WRITES["commit"].prepare(store)
        uid, other = SessionUid(given["session"]), (await a_session(store)).uid
        async with process("zombie", database.place) as zombie:
            zombie.order("write", kind="commit", given=given, point="before COMMIT", sends=signal.SIGSTOP)
            await zombie.stopped()
            assert (await store.admit(other, a_message())).seq == 1, "other sessions do not even notice"
            assert (await store.admit(uid, a_message("next"))).seq == 4, "the server has put the zombie out"
            await database.set_clock(LATER)
            driven = await must_open(store, uid, "successor")
            assert driven.turn.id == given["turn"]
            before = await database.tables()
            zombie.go_on()
            await zombie.obeyed(1)
            assert [call.refused for call in zombie.calls] == ["LeaseLost"]
            assert await database.tables() == before
        await settle_turn(store, driven)
    (await check_database(database.place.url)).raise_if_broken()
