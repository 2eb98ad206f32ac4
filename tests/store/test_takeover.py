"""Whose process died for certain is replaced at once; everybody else keeps a lease until it runs out."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from lash.errors import SessionBusy
from lash.ids import OwnerId
from lash.store.contract import Store
from lash.store.opening import open_store
from lash.store.sql import owners
from lash.store.sql.owners import Owners
from lash.store.sql.store import SqlStore
from lash.testing import check_database
from lash.testing.builders import a_message, a_session, an_opening, must_acquire, open_with
from tests.contract.stores import postgres_harness
from tests.postgres import PostgresServer
from tests.store.crowds import started

LONG = timedelta(minutes=10)
SOON = 10.0


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/owned.db"


@pytest.fixture
async def store(url: str) -> AsyncIterator[SqlStore]:
    async with await open_store(url) as store:
        yield store


# -- real processes ----------------------------------------------------------------------------------------------------


async def test_the_session_of_a_killed_process_is_taken_over_at_once(store: Store, url: str) -> None:
    uid = (await a_session(store)).uid
    async with started("hold_a_lease", url, uid, "doomed") as doomed:
        assert await doomed.told() == {"generation": 1}
        with pytest.raises(SessionBusy):
            await store.acquire(uid, OwnerId("successor"), ttl=LONG)
        await doomed.kill()
    async with asyncio.timeout(SOON):
        acquired = await store.acquire(uid, OwnerId("successor"), ttl=LONG)
    assert acquired.lease.generation == 2
    assert acquired.displaced is not None
    assert acquired.displaced.owner == "doomed"
    assert (await check_database(url)).ok


async def test_a_turn_of_a_killed_process_is_opened_again_at_once(store: Store, url: str) -> None:
    uid = (await a_session(store)).uid
    await store.admit(uid, a_message("hello"))
    async with started("hold_a_lease", url, uid, "doomed") as doomed:
        assert await doomed.told() == {"generation": 1}
        held = await store.open_turn(an_opening(uid, "successor", ttl=LONG))
        assert held.turn is None
        assert held.held_by is not None
        assert held.held_by.owner == "doomed"
        await doomed.kill()
    async with asyncio.timeout(SOON):
        opened = await store.open_turn(an_opening(uid, "successor", ttl=LONG))
    assert opened.acquired is not None
    assert opened.acquired.lease.generation == 2


async def test_where_nothing_waits_a_dead_holder_is_not_said_to_hold(store: Store, url: str) -> None:
    uid = (await a_session(store)).uid
    async with started("hold_a_lease", url, uid, "doomed") as doomed:
        assert await doomed.told() == {"generation": 1}
        assert (await store.open_turn(an_opening(uid, "successor"))).held_by is not None
        await doomed.kill()
    assert (await store.open_turn(an_opening(uid, "successor"))).held_by is None


async def test_a_stopped_process_is_not_dead(store: Store, url: str) -> None:
    uid = (await a_session(store)).uid
    async with started("hold_a_lease", url, uid, "sleeper") as sleeper:
        assert await sleeper.told() == {"generation": 1}
        await sleeper.stop()
        with pytest.raises(SessionBusy):
            await store.acquire(uid, OwnerId("successor"), ttl=LONG)
        sleeper.signal(signal.SIGCONT)
        await sleeper.go()
        assert await sleeper.told() == {"closed": True}


async def test_who_closes_without_letting_go_keeps_its_lease_until_it_runs_out(store: Store, url: str) -> None:
    uid = (await a_session(store)).uid
    async with started("hold_a_lease", url, uid, "closer") as closer:
        assert await closer.told() == {"generation": 1}
        await closer.go()
        assert await closer.told() == {"closed": True}
        with pytest.raises(SessionBusy):
            await store.acquire(uid, OwnerId("successor"), ttl=LONG)
        await closer.go()
        assert await closer.ended() == 0
    with pytest.raises(SessionBusy):
        await store.acquire(uid, OwnerId("successor"), ttl=LONG)
    assert (await must_acquire(store, uid, "closer")).generation == 1


async def test_an_owner_that_lives_on_in_another_store_is_not_dead(store: Store, url: str) -> None:
    uid = (await a_session(store)).uid
    async with started("hold_a_lease", url, uid, "twice") as one, await open_store(url) as two:
        assert await one.told() == {"generation": 1}
        assert (await must_acquire(two, uid, "twice")).generation == 1
        await one.kill()
        with pytest.raises(SessionBusy):
            await store.acquire(uid, OwnerId("successor"), ttl=LONG)


async def test_nobody_is_taken_for_dead_on_postgres(postgres: PostgresServer) -> None:
    async with postgres_harness(postgres.shared) as harness, await open_store(harness.url) as store:
        uid = (await a_session(store)).uid
        async with started("hold_a_lease", harness.url, uid, "doomed") as doomed:
            assert await doomed.told() == {"generation": 1}
            await doomed.kill()
        with pytest.raises(SessionBusy):
            await store.acquire(uid, OwnerId("successor"), ttl=LONG)


async def test_two_stores_in_one_process_hold_each_other_off(store: Store, url: str) -> None:
    uid = (await a_session(store)).uid
    async with await open_store(url) as other:
        await open_with(other, uid, "hello", "other")
        with pytest.raises(SessionBusy):
            await store.acquire(uid, OwnerId("mine"), ttl=LONG)


# -- what proves nothing -----------------------------------------------------------------------------------------------


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "owned.db"
    path.touch()
    return path


def left_by_a_dead_process(database: Path, *named: str) -> Path:
    """What a killed process leaves behind: its file, which nobody locks."""
    doomed = Owners(database)
    for owner in named:
        doomed.register(OwnerId(owner))
    assert doomed._file is not None
    doomed._file.close()
    return doomed._file.path


def test_only_an_owner_whose_file_nobody_locks_has_died(database: Path) -> None:
    mine, other = Owners(database), Owners(database)
    mine.register(OwnerId("mine"))
    other.register(OwnerId("other"))
    left_by_a_dead_process(database, "dead", "with others")
    assert [mine.died(OwnerId(owner)) for owner in ("mine", "other", "unheard of", "dead", "with others")] == [
        *(False, False, False, True, True)
    ]
    mine.close()
    other.close()


def test_an_owner_that_somebody_living_acts_for_is_not_dead(database: Path) -> None:
    left_by_a_dead_process(database, "moved")
    mine, other = Owners(database), Owners(database)
    other.register(OwnerId("moved"))
    assert not mine.died(OwnerId("moved"))
    assert not other.died(OwnerId("moved"))
    other.close()
    assert mine.died(OwnerId("moved")), "the one that closed says nothing; the dead one does"


def test_many_may_look_at_the_same_dead_process_at_once(database: Path) -> None:
    left = left_by_a_dead_process(database, "dead")
    fd = os.open(left, os.O_RDONLY)
    try:
        assert owners.lock_now(fd, owners.fcntl.LOCK_SH)  # another process, in the middle of its look
        assert Owners(database).died(OwnerId("dead"))
    finally:
        os.close(fd)


def test_what_may_not_be_read_proves_nothing(database: Path) -> None:
    left = left_by_a_dead_process(database, "dead")
    (left.parent / "strange").symlink_to(left)
    assert not Owners(database).died(OwnerId("dead"))


def test_a_store_remembers_the_latest_owners_and_no_more(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owners, "MAX_OWNERS", 4)
    left = left_by_a_dead_process(database, "a", "b", "c", "d", "a", "e", "f")
    assert left.stat().st_size == 4 * 16
    mine = Owners(database)
    assert [owner for owner in "abcdef" if mine.died(OwnerId(owner))] == ["a", "d", "e", "f"]


def test_a_file_that_somebody_removed_is_written_again(database: Path) -> None:
    mine = Owners(database)
    mine.register(OwnerId("first"))
    assert mine._file is not None
    mine._file.path.unlink()
    mine.register(OwnerId("first"))
    other = Owners(database)
    assert [other.died(OwnerId("first")), other.died(OwnerId("second"))] == [False, False]
    assert os.listdir(f"{database}-owners") == [mine._file.path.name]
    mine.close()


def test_what_dead_processes_left_is_swept_when_it_is_old(database: Path) -> None:
    old, new = left_by_a_dead_process(database, "old"), left_by_a_dead_process(database, "new")
    mine = Owners(database)
    mine.register(OwnerId("mine"))
    assert mine._file is not None
    long_ago = time.time() - owners.KEPT - 60
    os.utime(old, (long_ago, long_ago))
    os.utime(mine._file.path, (long_ago, long_ago))
    other = Owners(database)
    other.register(OwnerId("other"))
    assert (old.exists(), new.exists(), mine._file.path.exists()) == (False, True, True)
    mine.close()
    other.close()
    assert not other.died(OwnerId("old"))
    assert other.died(OwnerId("new"))


def test_closing_takes_the_folder_away_unless_somebody_needs_it(database: Path) -> None:
    folder = Path(f"{database}-owners")
    one, two = Owners(database), Owners(database)
    one.register(OwnerId("one"))
    two.register(OwnerId("two"))
    one.close()
    assert len(os.listdir(folder)) == 1
    two.close()
    assert not folder.exists()
    two.close()
