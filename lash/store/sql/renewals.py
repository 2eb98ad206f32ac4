# ruff: noqa: S608 (only names and numbers of our own are put into these texts)
"""Renewing many leases in one transaction, past the writer: the keeper's way to the database.

What a renewal changes is decided by ``lash.lease.renew`` and ``lash.turn.record.ready_at``. Here the same is said in
SQL, so that one statement does it for all leases, whatever their number; a test holds the two against each other.

On SQLite that statement is all there is. On Postgres the rows are locked first, in the order of their ids as in every
write transaction, and without those that somebody holds. Only a later statement may look at the turns: its snapshot is
from after the locks. A lease for which nothing was changed is looked up: its row tells a lease that is lost from one
whose row was held.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from lash import lease as rules
from lash.clock import MICROSECOND, Clock, from_micros, to_micros
from lash.errors import LashError, LeaseLost, SessionDeleted, SessionNotFound, StoreLocked
from lash.lease import ExecutionLease, LeaseRecord
from lash.limits import MAX_TTL
from lash.store.keeper import Renewal, attempt_time
from lash.store.sql.faults import translated
from lash.store.sql.gate import Gate
from lash.store.sql.steps import Unsettled

_Id = tuple[bytes, str, int]
"""A lease as its row knows it: uid, owner, generation."""

_FURTHEST = 2 * MAX_TTL // MICROSECOND
"""An expiry that is further away was written by a broken clock, and is replaced."""
_PATIENCE = "250ms"
_LOCK_NOT_AVAILABLE = "55P03"
_GOODBYE = timedelta(seconds=1)
_MAX_VALUES = 10_000
"""Leases in one statement of SQLite, which takes 32,766 values."""

_LOOK = "SELECT uid, state, lease_owner, lease_generation FROM lash_sessions WHERE uid"
_RETURNING = "RETURNING uid, lease_owner, lease_generation, lease_expires_at"


def _renewed(now: str, ttl: str) -> str:
    """The new values of a session's row: the lease never ends sooner than it did, and the session's place among the
    ready follows from when it ends, unless its turn sleeps."""
    later = f"{now} + {ttl}"
    lasts = f"lease_expires_at > {later} AND lease_expires_at <= {now} + {_FURTHEST}"
    expiry = f"CASE WHEN {lasts} THEN lease_expires_at ELSE {later} END"
    return f"""
        lease_expires_at = {expiry},
        ready_at = CASE (SELECT state FROM lash_turns WHERE session = lash_sessions.id AND state <> 'settled')
            WHEN 'parked' THEN ready_at
            WHEN 'open' THEN {expiry}
            ELSE CASE WHEN next_item_at IS NULL OR next_item_at > {expiry} THEN next_item_at ELSE {expiry} END
        END"""


def _id(lease: ExecutionLease) -> _Id:
    return bytes.fromhex(lease.session), lease.owner, lease.generation


def _missing(leases: Sequence[ExecutionLease], expiries: Mapping[_Id, int]) -> list[ExecutionLease]:
    return [lease for lease in leases if _id(lease) not in expiries]


def _answers(
    leases: Sequence[ExecutionLease], expiries: Mapping[_Id, int], found: Iterable[Sequence[Any]]
) -> list[Renewal]:
    """``expiries`` are of the leases that were renewed, ``found`` the rows of all others."""
    rows = {bytes(row[0]): row for row in found}
    answers: list[Renewal] = []
    for lease in leases:
        expiry = expiries.get(_id(lease))
        if expiry is None:
            answers.append(_refusal(lease, rows.get(_id(lease)[0])))
        else:
            answers.append(ExecutionLease(lease.session, lease.owner, lease.generation, from_micros(expiry)))
    return answers


def _refusal(lease: ExecutionLease, row: Sequence[Any] | None) -> LashError | None:
    """Why a lease was not renewed. None when its row says that it could have been: it was held, no more than that."""
    if row is None:
        return SessionNotFound(lease.session)
    _, state, owner, generation = row
    if state == "deleted":
        return SessionDeleted(lease.session)
    try:
        rules.require(LeaseRecord(owner, generation), lease)
    except LeaseLost as lost:
        return lost
    return None


@contextlib.contextmanager
def _refusals_unwrapped() -> Iterator[None]:
    try:
        yield
    except Unsettled as error:
        raise error.refusal from error


# -- SQLite ------------------------------------------------------------------------------------------------------------


# The join is said to be CROSS so that SQLite looks up each lease by its uid. Left to itself it reads all sessions.
_HELD_BY = """
    SELECT held.id FROM (VALUES {given}) AS given CROSS JOIN lash_sessions AS held
    ON held.uid = given.column1 AND held.lease_owner = given.column2 AND held.lease_generation = given.column3
"""


class SqliteRenewer:
    """A connection of its own, in the thread that first asks, and a place of its own at the gate.

    A renewal is not synced: the power cut that takes it takes its owner too, and the next write that is synced takes it
    along.
    """

    def __init__(self, path: Path, gate: Gate, *, clock: Clock, ttl: timedelta) -> None:
        self._where = f"the database {path}"
        self._path = path
        self._clock = clock
        self._ttl = ttl
        self._gate = gate
        self._patience = attempt_time(ttl)
        self._connection: sqlite3.Connection | None = None

    def renew(self, leases: Sequence[ExecutionLease], *, patient: bool) -> list[Renewal]:
        """One process writes at a time: no row is ever held."""
        with _refusals_unwrapped(), translated(self._where), self._gate.passed(self._patience.total_seconds()):
            try:
                return self._renew(self._connected(), leases)
            except BaseException:
                self._close()  # which rolls back
                raise

    def _renew(self, connection: sqlite3.Connection, leases: Sequence[ExecutionLease]) -> list[Renewal]:
        connection.execute("BEGIN IMMEDIATE")
        now = to_micros(self._clock.now())
        answers: list[Renewal] = []
        for start in range(0, len(leases), _MAX_VALUES):
            answers += self._renew_some(connection, leases[start : start + _MAX_VALUES], now)
        connection.execute("COMMIT")
        return answers

    def _renew_some(self, connection: sqlite3.Connection, leases: Sequence[ExecutionLease], now: int) -> list[Renewal]:
        given = ", ".join(["(?, ?, ?)"] * len(leases))
        update = (
            f"UPDATE lash_sessions SET {_renewed('?1', '?2')} WHERE id IN ({_HELD_BY.format(given=given)}) {_RETURNING}"
        )
        values = [now, self._ttl // MICROSECOND, *(value for lease in leases for value in _id(lease))]
        expiries = {row[:3]: row[3] for row in connection.execute(update, values)}
        found: list[Any] = []
        if missing := _missing(leases, expiries):
            look = f"{_LOOK} IN ({', '.join('?' * len(missing))})"
            found = connection.execute(look, [_id(lease)[0] for lease in missing]).fetchall()
        return _answers(leases, expiries, found)

    def _connected(self) -> sqlite3.Connection:
        if self._connection is None:
            # By URI, which can say that a file which is not there shall not be made.
            self._connection = sqlite3.connect(f"{self._path.as_uri()}?mode=rw", uri=True, isolation_level=None)
            busy = max(1, self._patience // timedelta(milliseconds=1))
            for pragma in (f"busy_timeout={busy}", "synchronous=NORMAL", "wal_autocheckpoint=0"):
                self._connection.execute(f"PRAGMA {pragma}")
        return self._connection

    def close(self) -> None:
        """Behind the gate: SQLite folds the log in when we are the last. If somebody stays inside, we are not."""
        if self._connection is not None:
            with contextlib.suppress(StoreLocked), self._gate.passed(self._patience.total_seconds()):
                self._close()
        self._close()
        self._gate.close()

    def _close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


# -- Postgres ----------------------------------------------------------------------------------------------------------

_LOCK = """
SELECT lash_sessions.id
FROM unnest($1::BYTEA[], $2::TEXT[], $3::BIGINT[]) AS given(uid, owner, generation)
JOIN lash_sessions ON lash_sessions.uid = given.uid
    AND lash_sessions.lease_owner = given.owner AND lash_sessions.lease_generation = given.generation
ORDER BY lash_sessions.id FOR UPDATE OF lash_sessions {held}
"""
_SKIPPING = _LOCK.format(held="SKIP LOCKED")
_WAITING = _LOCK.format(held="")
_RENEW = f"""
WITH clock AS MATERIALIZED (SELECT lash_now() AS now)
UPDATE lash_sessions SET {_renewed("clock.now", "$2")}
FROM clock WHERE lash_sessions.id = ANY($1::BIGINT[]) {_RETURNING}
"""


def _time() -> float:
    return asyncio.get_running_loop().time()


class PostgresRenewer:
    """A connection and an event loop of its own. The loop runs as long as a renewal does."""

    def __init__(self, connecting: Callable[[], AsyncEngine], where: str, *, ttl: timedelta) -> None:
        self._connecting = connecting
        self._where = where
        self._ttl = ttl
        self._runner: asyncio.Runner | None = None
        self._engine: AsyncEngine | None = None
        self._connection: AsyncConnection | None = None

    def renew(self, leases: Sequence[ExecutionLease], *, patient: bool) -> list[Renewal]:
        if self._runner is None:
            self._runner = asyncio.Runner()
        with _refusals_unwrapped(), translated(self._where):
            return self._runner.run(self._attempt(leases, patient=patient))

    async def _attempt(self, leases: Sequence[ExecutionLease], *, patient: bool) -> list[Renewal]:
        within = attempt_time(self._ttl).total_seconds()
        try:
            async with asyncio.timeout(within):
                driver = await self._connected()
                if not patient:
                    return await self._renew(driver, leases, _SKIPPING)
                return await self._renew_patiently(driver, leases, until=_time() + within / 2)
        except BaseException:
            await self._disconnect()  # whatever state it is in
            raise

    async def _renew_patiently(self, driver: Any, leases: Sequence[ExecutionLease], *, until: float) -> list[Renewal]:
        """Wait for what is held. If that was in vain, each goes alone, so that no other waits with the one that is."""
        answers = await self._wait_for(driver, leases)
        if answers is None and len(leases) > 1:
            alone = [await self._wait_for(driver, [lease]) if _time() < until else None for lease in leases]
            answers = [None if answer is None else answer[0] for answer in alone]
        return answers or [None] * len(leases)

    async def _wait_for(self, driver: Any, leases: Sequence[ExecutionLease]) -> list[Renewal] | None:
        """None when somebody does not let go."""
        try:
            return await self._renew(driver, leases, _WAITING)
        except Exception as error:
            if getattr(error, "sqlstate", None) != _LOCK_NOT_AVAILABLE:
                raise
            await driver.execute("ROLLBACK")
            return None

    async def _renew(self, driver: Any, leases: Sequence[ExecutionLease], lock: str) -> list[Renewal]:
        uids, owners, generations = zip(*map(_id, leases), strict=True)
        await driver.execute("BEGIN" if lock is _SKIPPING else f"BEGIN; SET LOCAL lock_timeout = '{_PATIENCE}'")
        locked = await driver.fetch(lock, uids, owners, generations)
        expiries: dict[_Id, int] = {}
        if locked:
            renewed = await driver.fetch(_RENEW, [row[0] for row in locked], self._ttl // MICROSECOND)
            expiries = {(row[0], row[1], row[2]): row[3] for row in renewed}
        missing = _missing(leases, expiries)
        found = (
            await driver.fetch(f"{_LOOK} = ANY($1::BYTEA[])", [_id(lease)[0] for lease in missing]) if missing else []
        )
        await driver.execute("COMMIT")
        return _answers(leases, expiries, found)

    async def _connected(self) -> Any:
        if self._connection is None:
            self._engine = self._connecting()
            self._connection = await self._engine.connect()
        return (await self._connection.get_raw_connection()).driver_connection

    async def _disconnect(self) -> None:
        engine, connection, self._engine, self._connection = self._engine, self._connection, None, None
        if connection is not None:
            driver: Any = (await connection.get_raw_connection()).driver_connection
            driver.terminate()  # to close it in peace takes a server that answers
            await connection.invalidate()
            await connection.close()
        if engine is not None:
            await engine.dispose()

    async def _say_goodbye(self) -> None:
        try:
            async with asyncio.timeout(_GOODBYE.total_seconds()):
                if self._connection is not None:
                    await (await self._connected()).close()
        finally:
            await self._disconnect()

    def close(self) -> None:
        if self._runner is not None:
            try:
                self._runner.run(self._say_goodbye())
            finally:
                self._runner.close()
                self._runner = None
