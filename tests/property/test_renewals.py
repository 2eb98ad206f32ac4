"""The statement that renews many leases does what the pure rules say about each of them."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy.engine import make_url

from lash import lease as rules
from lash.clock import MICROSECOND, from_micros, to_micros
from lash.errors import LeaseLost
from lash.ids import OwnerId, SessionUid
from lash.lease import ExecutionLease, LeaseRecord
from lash.limits import MAX_TTL
from lash.store.contract import Store
from lash.store.keeper import Renewer
from lash.store.opening import open_store
from lash.store.sql.gate import Gate
from lash.store.sql.postgres import connecting_engine
from lash.store.sql.renewals import PostgresRenewer, SqliteRenewer
from lash.testing import ManualClock
from lash.testing.builders import a_session, open_with
from lash.turn.record import Turn, ready_at
from tests.postgres import PostgresServer, in_a_loop_of_its_own
from tests.property.machine_steps import same_histories

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
TTL = timedelta(seconds=30)
ME, OTHER = OwnerId("me"), OwnerId("other")
GENERATION = 7
SLEEPS_UNTIL = NOW + timedelta(seconds=10)
KINDS = ("no turn", "open turn", "parked turn", "parked for ever")

EDGES = [
    NOW + distance + away * MICROSECOND
    for distance in (timedelta(0), timedelta(seconds=10), TTL, MAX_TTL, 2 * MAX_TTL)
    for away in (-1, 0, 1)
]
instants = st.sampled_from(EDGES) | st.integers(-(10**12), 10**12).map(lambda micros: NOW + micros * MICROSECOND)


@dataclass(frozen=True)
class Row:
    """What decides a renewal, as far as it stands in the session's row."""

    lease: LeaseRecord
    next_item_at: datetime | None
    ready_at: datetime | None = None


records = st.builds(
    LeaseRecord,
    st.sampled_from([ME, ME, ME, OTHER]),
    st.sampled_from([GENERATION, GENERATION, GENERATION, GENERATION - 1, GENERATION + 1]),
    instants,
) | st.builds(LeaseRecord, st.none(), st.just(GENERATION), st.none())
rows = st.builds(Row, records, st.none() | instants)


class Database:
    """Sessions of every kind, whose rows are then written by hand, at a time that stands still."""

    renewer: Renewer
    turns: dict[SessionUid, Turn | None]

    async def fill(self, store: Store) -> None:
        self.turns = {}
        for kind in KINDS * 2:
            uid = (await a_session(store)).uid
            if kind != "no turn":
                driven = await open_with(store, uid)
                if kind == "parked turn":
                    await store.park(driven.lease, driven.turn.id, until=SLEEPS_UNTIL)
                elif kind == "parked for ever":
                    await store.park(driven.lease, driven.turn.id)
            self.turns[uid] = await store.unsettled_turn(uid)

    def write(self, values: list[tuple[Any, ...]]) -> None: ...

    def read(self) -> dict[SessionUid, Row]: ...  # type: ignore[empty-body]


WRITE = """
UPDATE lash_sessions SET lease_owner = {0}1, lease_generation = {0}2, lease_expires_at = {0}3, next_item_at = {0}4,
    ready_at = {0}5 WHERE uid = {0}6
"""
READ = "SELECT uid, lease_owner, lease_generation, lease_expires_at, next_item_at, ready_at FROM lash_sessions"


def _instant(micros: int | None) -> datetime | None:
    return None if micros is None else from_micros(micros)


def _micros(at: datetime | None) -> int | None:
    return None if at is None else to_micros(at)


def _row(found: Any) -> tuple[SessionUid, Row]:
    uid, owner, generation, expires_at, next_item_at, ready = found
    record = LeaseRecord(owner, generation, _instant(expires_at))
    return SessionUid(bytes(uid).hex()), Row(record, _instant(next_item_at), _instant(ready))


class OnSqlite(Database):
    def __init__(self, path: Path) -> None:
        async def fill() -> None:
            async with await open_store(f"sqlite:///{path}", clock=ManualClock(NOW)) as store:
                await self.fill(store)

        in_a_loop_of_its_own(fill)
        self._path = path
        self.renewer = SqliteRenewer(path, Gate(path, "the database"), clock=ManualClock(NOW), ttl=TTL)

    def write(self, values: list[tuple[Any, ...]]) -> None:
        with closing(sqlite3.connect(self._path)) as connection, connection:
            connection.executemany(WRITE.format("?"), values)

    def read(self) -> dict[SessionUid, Row]:
        with closing(sqlite3.connect(self._path)) as connection:
            return dict(map(_row, connection.execute(READ)))


class OnPostgres(Database):
    def __init__(self, url: str, runner: asyncio.Runner) -> None:
        async def connect() -> asyncpg.Connection:
            connection = await asyncpg.connect(url)
            stands_still = f"SELECT {to_micros(NOW)}::bigint"
            await connection.execute(
                f"CREATE OR REPLACE FUNCTION lash_now() RETURNS bigint LANGUAGE sql VOLATILE AS $$ {stands_still} $$"
            )
            async with await open_store(url) as store:
                await self.fill(store)
            return connection

        self._runner = runner
        self._connection = runner.run(connect())
        self.renewer = PostgresRenewer(partial(connecting_engine, make_url(url)), "the database", ttl=TTL)

    def write(self, values: list[tuple[Any, ...]]) -> None:
        self._runner.run(self._connection.executemany(WRITE.format("$"), values))

    def read(self) -> dict[SessionUid, Row]:
        return dict(map(_row, self._runner.run(self._connection.fetch(READ))))

    def close(self) -> None:
        self._runner.run(self._connection.close())


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    if request.param == "sqlite":
        on_sqlite = OnSqlite(tmp_path_factory.mktemp("renewals") / "renewals.db")
        yield on_sqlite
        on_sqlite.renewer.close()
        return
    server: PostgresServer = request.getfixturevalue("postgres")
    with asyncio.Runner() as runner:
        on_postgres = OnPostgres(server.fresh().render_as_string(hide_password=False), runner)
        yield on_postgres
        on_postgres.renewer.close()
        on_postgres.close()


def by_the_rules(
    before: Row, lease: ExecutionLease, turn: Turn | None
) -> tuple[Row, ExecutionLease | tuple[type[LeaseLost], int]]:
    """The row after a renewal, and the answer to it."""
    try:
        renewed = rules.renew(before.lease, lease, now=NOW, ttl=TTL)
    except LeaseLost as lost:
        return before, (LeaseLost, lost.found)
    record = rules.record_of(renewed)
    return Row(record, before.next_item_at, ready_at(record, turn, before.next_item_at, NOW)), renewed


@same_histories(60)
@given(data=st.data(), patient=st.booleans())
def test_renewing_many_leases_in_one_statement_is_renewing_each_by_the_rules(
    database: Database, data: st.DataObject, patient: bool
) -> None:
    uids = list(database.turns)
    drawn = dict(zip(uids, data.draw(st.lists(rows, min_size=len(uids), max_size=len(uids))), strict=True))
    before = {
        uid: Row(row.lease, row.next_item_at, ready_at(row.lease, database.turns[uid], row.next_item_at, NOW))
        for uid, row in drawn.items()
    }
    leases = [ExecutionLease(uid, ME, GENERATION, NOW) for uid in uids]
    database.write(
        [
            (
                row.lease.owner,
                row.lease.generation,
                _micros(row.lease.expires_at),
                _micros(row.next_item_at),
                _micros(row.ready_at),
                bytes.fromhex(uid),
            )
            for uid, row in before.items()
        ]
    )
    assert database.read() == before

    expected = {
        lease.session: by_the_rules(before[lease.session], lease, database.turns[lease.session]) for lease in leases
    }
    answers = database.renewer.renew(leases, patient=patient)
    told = [(type(answer), answer.found) if isinstance(answer, LeaseLost) else answer for answer in answers]
    assert told == [expected[lease.session][1] for lease in leases]
    assert database.read() == {uid: row for uid, (row, _) in expected.items()}


def test_the_sessions_are_of_every_kind(database: Database) -> None:
    states = [None if turn is None else (turn.state, turn.parked_until) for turn in database.turns.values()]
    assert set(states) == {None, ("open", None), ("parked", SLEEPS_UNTIL), ("parked", None)}
