"""Leases that are kept on real databases, while loops hang, processes are stopped and connections break."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.engine import make_url

from lash.clock import MICROSECOND, SystemClock, to_micros
from lash.errors import LeaseLost, LeaseOverdue, SessionBusy, StoreLocked, StoreUnavailable
from lash.ids import OwnerId, SessionUid
from lash.lease import ExecutionLease, LeaseRecord
from lash.store import keeper as keeping
from lash.store.contract import KeptLease, LeaseKeeper, Store
from lash.store.keeper import Renewal
from lash.store.opening import open_store
from lash.store.sql import renewals
from lash.store.sql.gate import Gate
from lash.store.sql.postgres import connecting_engine
from lash.store.sql.renewals import PostgresRenewer, SqliteRenewer
from lash.testing import check_database
from lash.testing.builders import TTL, Driven, a_message, a_session, an_effect, must_acquire, must_open
from lash.testing.contract.keeping import OFTEN, expiry, fate, keep, renewed, until
from tests.postgres import PostgresServer
from tests.store.holding import Query, beside, file_locked, holding
from tests.store.test_processes import running

SHORT = timedelta(seconds=1.5)
"""So long last leases that run out within a test, or are seen not to."""


@pytest.fixture(params=["sqlite", "postgres"])
async def url(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[str]:
    """A database that goes by the real time, and is sound in the end."""
    on_sqlite = request.param == "sqlite"
    url: str = f"sqlite:///{tmp_path}/renewals.db" if on_sqlite else request.getfixturevalue("postgres_url")
    yield url
    (await check_database(url)).raise_if_broken()


@pytest.fixture
def postgres_url(postgres: PostgresServer) -> str:
    return postgres.fresh().render_as_string(hide_password=False)


@pytest.fixture
async def store(url: str) -> AsyncIterator[Store]:
    async with await open_store(url, busy_timeout=timedelta(seconds=1)) as store:
        yield store


async def keep_turn(store: Store, keeper: LeaseKeeper) -> tuple[KeptLease, Driven]:
    """A session in the middle of a turn, whose lease is kept."""
    uid = (await a_session(store)).uid
    await store.admit(uid, a_message())
    asked_at = keeper.time()
    driven = await must_open(store, uid, ttl=keeper.ttl)
    return keeper.keep(driven.lease, asked_at=asked_at), driven


@contextlib.contextmanager
def rival(url: str, uid: SessionUid) -> Iterator[subprocess.Popen[str]]:
    """A process that wants the session, and that one can wait for without an event loop."""
    program = [sys.executable, "-m", "tests.store.programs", "want", url, uid, "rival"]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def told(process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdout is not None
    return dict(json.loads(process.stdout.readline()))


def compute(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        sum(range(1000))


# -- the event loop ----------------------------------------------------------------------------------------------------


async def test_a_loop_that_is_busy_for_most_of_a_ttl_again_and_again_loses_nothing(store: Store, url: str) -> None:
    async with await store.lease_keeper(ttl=SHORT) as keeper:
        kept, driven = await keep_turn(store, keeper)
        async with running("want", url, kept.lease.session, "rival") as process:
            assert await process.told() == {"ready": True}
            for block in (time.sleep, compute):
                block(0.8 * SHORT.total_seconds())
                await asyncio.sleep(0)
            await process.kill()
            assert await process.rest() == [], "somebody took the session over"
        assert kept.sure
        assert not kept.gone.done()
        await store.record(kept.lease, driven.turn.id, [an_effect()])


async def test_a_loop_that_hangs_gives_its_sessions_up_and_hears_the_truth_when_it_comes_back(
    store: Store, url: str
) -> None:
    async with await store.lease_keeper(ttl=SHORT / 2) as keeper:
        kept, driven = await keep_turn(store, keeper)
        free, _ = await keep_turn(store, keeper)
        with rival(url, kept.lease.session) as process:
            assert told(process) == {"ready": True}
            assert told(process) == {"generation": 2}  # the loop hangs here until somebody else has the session
            assert not kept.sure
            assert not free.sure
            for gone in (await fate(kept), await fate(free)):
                assert isinstance(gone, LeaseOverdue)
            with pytest.raises(LeaseLost):
                await store.record(kept.lease, driven.turn.id, [an_effect()])
            with pytest.raises(SessionBusy):  # as long as the other one lives
                await store.acquire(kept.lease.session, kept.lease.owner, ttl=SHORT)
        again = await keep(store, keeper, free.lease.owner, uid=free.lease.session, ttl=SHORT)
        assert again.lease.generation == free.lease.generation


# -- processes ---------------------------------------------------------------------------------------------------------


async def test_a_process_that_was_stopped_for_too_long_renews_nothing_of_its_successor(store: Store, url: str) -> None:
    uid = (await a_session(store)).uid
    async with running("keep", url, uid, TTL.total_seconds(), 0.1) as process:
        assert await process.told() == {"generation": 1}
        first = await expiry(store, uid)
        await until(lambda: _lasts_longer(store, uid, first))
        async with await open_store(await two_ttls_later(url), clock=LATE, busy_timeout=A_MOMENT) as late:
            successor = await _stop_and_take_over(late, process._process, uid)
        process._process.send_signal(signal.SIGCONT)
        assert await process.told() == {"gone": "LeaseLost", "found": 2, "sure": False}
    assert await store.lease(uid) == LeaseRecord(successor.owner, 2, successor.expires_at)


A_MOMENT = timedelta(seconds=1)


class LateClock:
    """For SQLite: what time it is once the lease of who is stopped now has run out."""

    def now(self) -> datetime:
        return datetime.now(UTC) + 2 * TTL


LATE = LateClock()


async def two_ttls_later(url: str) -> str:
    """The same for Postgres: a way to the database for which it is later."""
    if url.startswith("sqlite"):
        return url
    async with beside(url) as query:
        await query(f"INSERT INTO lash_clock_offsets (name, micros) VALUES ('late', {2 * TTL // MICROSECOND})")
    return make_url(url).update_query_dict({"lash.clock": "late"}).render_as_string(hide_password=False)


async def _lasts_longer(store: Store, uid: SessionUid, than: datetime) -> bool:
    return await expiry(store, uid) > than


async def _stop_and_take_over(late: Store, process: asyncio.subprocess.Process, uid: SessionUid) -> ExecutionLease:
    while True:
        process.send_signal(signal.SIGSTOP)
        try:
            return (await late.acquire(uid, OwnerId("successor"), ttl=TTL)).lease
        except StoreLocked:  # stopped in the middle of a renewal: on SQLite everybody waits for it
            process.send_signal(signal.SIGCONT)
            await asyncio.sleep(0.02)


FORGETFUL = """
import asyncio, sys
from datetime import timedelta
from lash.store.opening import open_store
from lash.testing.builders import a_session, must_acquire

async def begin():
    store = await open_store(sys.argv[1])
    keeper = await store.lease_keeper(ttl=timedelta(seconds=30), every=timedelta(milliseconds=10))
    lease = await must_acquire(store, (await a_session(store)).uid)
    kept = keeper.keep(lease, asked_at=keeper.time())
    while kept.lease == lease:
        await asyncio.sleep(0.01)
    return store, keeper

forgotten = asyncio.new_event_loop().run_until_complete(begin())
print("done", flush=True)
"""


async def test_a_keeper_that_was_forgotten_does_not_keep_the_process_from_ending(url: str) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-W", "ignore", "-c", FORGETFUL, url), stdout=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(30):
        output, _ = await process.communicate()
    assert (output, process.returncode) == (b"done\n", 0)


# -- threads and connections -------------------------------------------------------------------------------------------


def keepers_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "lash-keeper"]


async def test_a_keeper_without_a_lease_to_renew_has_no_thread_and_no_connection(store: Store, url: str) -> None:
    lease = await must_acquire(store, (await a_session(store)).uid)
    before = await connections(url)
    async with await store.lease_keeper(ttl=TTL) as keeper:
        assert keepers_threads() == []
        keeper.keep(lease, asked_at=keeper.time())
        assert len(keepers_threads()) == 1
        keeper.let_go(lease)
        assert await connections(url) == before
    assert keepers_threads() == []


async def test_a_keeper_has_one_thread_and_one_connection_and_leaves_none(store: Store, url: str) -> None:
    lease = await must_acquire(store, (await a_session(store)).uid)
    before = await connections(url)
    for _ in range(3):
        async with await store.lease_keeper(ttl=TTL, every=OFTEN) as keeper:
            kept = keeper.keep(lease, asked_at=keeper.time())
            await _renewed_again(kept)
            assert len(keepers_threads()) == 1
            assert len(await connections(url) - before) == 1
        assert keepers_threads() == []
        if not url.startswith("sqlite"):  # which closes a file that it has locked with the last connection to it
            await until(lambda: _same(url, before))


async def _renewed_again(kept: KeptLease) -> None:
    first = kept.lease

    async def changed() -> bool:
        return kept.lease.expires_at > first.expires_at

    await until(changed)


async def _same(url: str, before: set[str]) -> bool:
    return await connections(url) == before


async def connections(url: str) -> set[str]:
    """How a store is connected to its database: the server's processes, or our open files."""
    if url.startswith("sqlite"):
        return open_files(Path(str(make_url(url).database)))
    async with beside(url) as query:
        ours = "datname = current_database() AND application_name = 'lash'"
        return {str(row["pid"]) for row in await query(f"SELECT pid FROM pg_stat_activity WHERE {ours}")}


def open_files(path: Path) -> set[str]:
    found = set()
    for file in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the one that reads this folder
            if file.readlink() == path:
                found.add(file.name)
    return found


# -- what a renewal costs ----------------------------------------------------------------------------------------------


class Recording:
    """A renewer, used by hand, that writes down its statements."""

    def __init__(self, url: str) -> None:
        self.said: list[str] = []
        if url.startswith("sqlite"):
            path = Path(str(make_url(url).database))
            sqlite = SqliteRenewer(path, Gate(path, "the database"), clock=SystemClock(), ttl=TTL)
            sqlite._connected().set_trace_callback(self.said.append)
            self.renewer: SqliteRenewer | PostgresRenewer = sqlite
        else:
            postgres = PostgresRenewer(partial(connecting_engine, make_url(url)), "the database", ttl=TTL)
            postgres._runner = asyncio.Runner()
            driver = postgres._runner.run(postgres._connected())
            driver.add_query_logger(lambda record: self.said.append(record.query))
            self.renewer = postgres

    def renew(self, leases: Sequence[ExecutionLease]) -> tuple[list[str], list[Renewal]]:
        """The first words of each statement, and the answers."""
        self.said.clear()
        answers = self.renewer.renew(leases, patient=False)
        return [said.split()[0] for said in self.said], answers

    def run(self, leases: Sequence[ExecutionLease]) -> list[tuple[list[str], list[Renewal]]]:
        """The second time, when everything is known. Then one lease, then all and one that was lost."""
        try:
            self.renew(leases)
            lost = ExecutionLease(leases[0].session, OwnerId("another"), 1, leases[0].expires_at)
            return [self.renew(leases), self.renew(leases[:1]), self.renew([*leases, lost])]
        finally:
            self.renewer.close()


async def test_a_renewal_of_five_hundred_sessions_costs_as_many_statements_as_that_of_one(
    store: Store, url: str
) -> None:
    sessions = await asyncio.gather(*(a_session(store) for _ in range(500)))
    leases = await asyncio.gather(*(must_acquire(store, session.uid) for session in sessions))
    all_, one, one_lost = await asyncio.to_thread(lambda: Recording(url).run(leases))
    locked = [] if url.startswith("sqlite") else ["SELECT"]
    assert all_[0] == one[0] == ["BEGIN", *locked, *(["UPDATE"] if not locked else ["WITH"]), "COMMIT"]
    assert one_lost[0] == [*all_[0][:-1], "SELECT", "COMMIT"]
    for _, answers in (all_, one, one_lost):
        assert [type(answer) for answer in answers[:500]] == [ExecutionLease] * min(500, len(answers))
    assert isinstance(one_lost[1][500], LeaseLost)


async def test_sqlite_finds_the_sessions_to_renew_without_reading_all_others(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/plan.db"
    async with await open_store(url) as store:
        leases = [await must_acquire(store, (await a_session(store)).uid) for _ in range(20)]
    recording = Recording(url)
    recording.renew(leases)
    update = next(said for said in recording.said if said.startswith("UPDATE"))
    recording.renewer.close()
    with contextlib.closing(sqlite3.connect(tmp_path / "plan.db")) as connection:
        plan = [step[3] for step in connection.execute(f"EXPLAIN QUERY PLAN {update}")]
    assert any(step.startswith("SEARCH lash_sessions") for step in plan)
    assert not any(step.startswith("SCAN") and "CONSTANT" not in step and "given" not in step for step in plan), plan


# -- what somebody holds -----------------------------------------------------------------------------------------------


async def test_a_row_that_is_held_holds_up_no_other_and_is_waited_for_later(postgres_url: str) -> None:
    async with (
        await open_store(postgres_url) as store,
        await store.lease_keeper(ttl=TTL, every=OFTEN) as keeper,
        beside(postgres_url) as query,
    ):
        held, free = await keep(store, keeper), await keep(store, keeper)
        async with holding(postgres_url, _lock_row(held.lease.session)):
            was = await expiry(store, held.lease.session)
            await renewed(store, free.lease, until_at=free.lease.expires_at + 5 * OFTEN)
            await until(lambda: _somebody_waits(query))
            assert await expiry(store, held.lease.session) == was
        await renewed(store, held.lease, until_at=was + timedelta(milliseconds=1))
        assert not held.gone.done()
    (await check_database(postgres_url)).raise_if_broken()


def _lock_row(uid: SessionUid) -> str:
    return f"SELECT 1 FROM lash_sessions WHERE uid = '\\x{uid}' FOR UPDATE"


async def _somebody_waits(query: Query) -> bool:
    waiting = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    return bool(await query(waiting))


async def test_a_row_that_is_held_for_longer_than_the_lease_lasts_makes_that_lease_overdue(postgres_url: str) -> None:
    async with await open_store(postgres_url) as store, await store.lease_keeper(ttl=SHORT, every=SHORT / 20) as keeper:
        held = await keep(store, keeper, ttl=SHORT)
        async with holding(postgres_url, _lock_row(held.lease.session)):
            gone = await fate(held)
        assert isinstance(gone, LeaseOverdue)
        assert not held.sure
        again = await keep(store, keeper, held.lease.owner, uid=held.lease.session, ttl=SHORT)
        assert again.lease.generation == held.lease.generation


async def test_nobody_waits_long_with_a_row_that_is_held(postgres_url: str) -> None:
    renewer = PostgresRenewer(partial(connecting_engine, make_url(postgres_url)), "the database", ttl=TTL)
    async with await open_store(postgres_url) as store:
        leases = [await must_acquire(store, (await a_session(store)).uid) for _ in range(3)]
        async with holding(postgres_url, _lock_row(leases[1].session)):
            answers = await asyncio.to_thread(renewer.renew, leases, patient=True)
        await asyncio.to_thread(renewer.close)
        assert [type(answer) for answer in answers] == [ExecutionLease, type(None), ExecutionLease]
        ends = [await expiry(store, lease.session) for lease in leases]
        assert [end > lease.expires_at for end, lease in zip(ends, leases, strict=True)] == [True, False, True]


async def test_a_renewal_that_waits_for_a_row_holds_none_behind_it(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All take rows in the order of their ids, so that nobody waits for who waits for him."""
    monkeypatch.setattr(renewals, "_PATIENCE", "10s")
    renewer = PostgresRenewer(partial(connecting_engine, make_url(postgres_url)), "the database", ttl=TTL)
    async with (
        await open_store(postgres_url) as store,
        beside(postgres_url) as holder,
        beside(postgres_url) as onlooker,
    ):
        first, second = [await must_acquire(store, (await a_session(store)).uid) for _ in range(2)]
        for way in ("seqscan", "hashjoin", "mergejoin"):  # as in a large table: rows are found as they are asked for
            await holder(f"ALTER DATABASE {make_url(postgres_url).database} SET enable_{way} = off")
        await holder("BEGIN")
        await holder(_lock_row(first.session))
        renewing = asyncio.create_task(asyncio.to_thread(renewer.renew, [second, first], patient=True))
        await until(lambda: _somebody_waits(onlooker))
        assert await holder(f"{_lock_row(second.session)} NOWAIT")
        await holder("COMMIT")
        assert [type(answer) for answer in await renewing] == [ExecutionLease, ExecutionLease]
        await asyncio.to_thread(renewer.close)


async def test_a_renewal_that_waited_for_a_row_sees_the_turn_as_it_is_then(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The turn went to sleep in the transaction that held the row."""
    monkeypatch.setattr(renewals, "_PATIENCE", "10s")
    renewer = PostgresRenewer(partial(connecting_engine, make_url(postgres_url)), "the database", ttl=2 * TTL)
    async with (
        await open_store(postgres_url) as store,
        beside(postgres_url) as holder,
        beside(postgres_url) as onlooker,
    ):
        uid = (await a_session(store)).uid
        await store.admit(uid, a_message())
        lease = (await must_open(store, uid)).lease
        wakes_at = lease.expires_at + timedelta(hours=1)
        await holder("BEGIN")
        await holder(f"UPDATE lash_sessions SET ready_at = {to_micros(wakes_at)} WHERE uid = '\\x{uid}'")
        await holder(f"UPDATE lash_turns SET state = 'parked', parked_until = {to_micros(wakes_at)}")
        renewing = asyncio.create_task(asyncio.to_thread(renewer.renew, [lease], patient=True))
        await until(lambda: _somebody_waits(onlooker))
        await holder("COMMIT")
        [answer] = await renewing
        await asyncio.to_thread(renewer.close)
        assert isinstance(answer, ExecutionLease)
        assert answer.expires_at > lease.expires_at
        assert (await store.find(uid)).ready_at == wakes_at


# -- what breaks -------------------------------------------------------------------------------------------------------


async def _renewers_process(url: str, others: set[str]) -> int:
    """The server's process that serves the renewals. There may be none for a moment, after an attempt that failed."""
    found: set[str] = set()

    async def there_is_one() -> bool:
        found.clear()
        found.update(await connections(url) - others)
        return len(found) == 1

    await until(there_is_one)
    return int(found.pop())


async def test_a_connection_that_broke_is_replaced(postgres_url: str) -> None:
    async with (
        await open_store(postgres_url) as store,
        await store.lease_keeper(ttl=TTL, every=OFTEN) as keeper,
        beside(postgres_url) as query,
    ):
        lease = await must_acquire(store, (await a_session(store)).uid)
        before = await connections(postgres_url)
        kept = keeper.keep(lease, asked_at=keeper.time())
        await _renewed_again(kept)
        for _ in range(2):
            pid = await _renewers_process(postgres_url, before)
            await query(f"SELECT pg_terminate_backend({pid})")
            await _renewed_again(kept)
        assert not kept.gone.done()


@pytest.mark.skipif("LASH_TEST_POSTGRES" in os.environ, reason="the processes of a server that is not ours are let run")
async def test_a_connection_that_does_not_answer_is_replaced_in_time(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeping, "_ATTEMPT", timedelta(seconds=0.5))
    async with await open_store(postgres_url) as store, await store.lease_keeper(ttl=TTL, every=OFTEN) as keeper:
        lease = await must_acquire(store, (await a_session(store)).uid)
        before = await connections(postgres_url)
        kept = keeper.keep(lease, asked_at=keeper.time())
        await _renewed_again(kept)
        pid = await _renewers_process(postgres_url, before)
        os.kill(pid, signal.SIGSTOP)
        try:
            await _renewed_again(kept)
            assert not kept.gone.done()
        finally:
            os.kill(pid, signal.SIGCONT)


async def test_a_lease_is_overdue_when_the_database_is_out_of_reach_for_too_long(
    postgres_url: str, postgres: PostgresServer
) -> None:
    database = make_url(postgres_url).database
    async with await open_store(postgres_url) as store, await store.lease_keeper(ttl=SHORT) as keeper:
        kept = await keep(store, keeper, ttl=SHORT)
        postgres.execute(
            f"ALTER DATABASE {database} ALLOW_CONNECTIONS false",
            f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{database}'",
        )
        gone = await fate(kept)
        assert isinstance(gone, LeaseOverdue)
        assert isinstance(gone.__cause__, StoreUnavailable)
        assert not kept.sure
        postgres.execute(f"ALTER DATABASE {database} ALLOW_CONNECTIONS true")
        await _recovers(store, keeper, kept.lease)


async def _recovers(store: Store, keeper: LeaseKeeper, lease: ExecutionLease) -> None:
    """Nobody was there in between, so the owner finds its generation; and the keeper comes to renewing again."""

    async def renewed_once() -> bool:
        again = await keep(store, keeper, lease.owner, uid=lease.session, ttl=keeper.ttl)
        assert again.lease.generation == lease.generation
        first = again.lease
        await until(lambda: _changed_or_gone(again, first))
        return again.lease.expires_at > first.expires_at

    await until(renewed_once)


async def _changed_or_gone(kept: KeptLease, first: ExecutionLease) -> bool:
    return kept.gone.done() or kept.lease != first


async def test_a_lease_is_overdue_when_the_file_is_locked_for_too_long(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/locked.db"
    async with await open_store(url) as store, await store.lease_keeper(ttl=SHORT) as keeper:
        kept = await keep(store, keeper, ttl=SHORT)
        with file_locked(url):
            gone = await fate(kept)
        assert isinstance(gone, LeaseOverdue)
        assert isinstance(gone.__cause__, StoreLocked)
        assert not kept.sure
        await _recovers(store, keeper, kept.lease)
