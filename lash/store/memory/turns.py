"""Who may run a session, and its turns with their journal, from opening to settlement."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from copy import deepcopy
from dataclasses import replace
from datetime import datetime, timedelta

from lash import lease as leases
from lash.errors import LeaseLost, SessionBusy, SessionDeleted, SessionNotFound, TurnNotFound, TurnSettled, WaitNotFound
from lash.ids import OperationId, OwnerId, ReplayKey, RequestId, SessionUid, TurnId, WaitId
from lash.inbox import taking
from lash.inbox.items import Boundary, InboxItem
from lash.lease import Acquired, ExecutionLease, LeaseRecord
from lash.limits import check_id, check_owner, check_ttl
from lash.store.checks import (
    check_agents,
    check_checkpoint,
    check_effect,
    check_limit,
    check_opening,
    check_reason,
    check_record,
    check_time,
    check_wait,
)
from lash.store.contract import CancelRequested, OpenedTurn, ReadySession, TurnOpening
from lash.store.keeper import Renewal, ThreadKeeper, attempt_time
from lash.store.memory.data import SessionRows, own_json
from lash.store.memory.handle import Handle
from lash.store.memory.inbox import Admitting, own_item
from lash.store.memory.waits import Waiting
from lash.turn import journal, record
from lash.turn.journal import Finished, Identity, JournalEntry, JournalRecord, Started
from lash.turn.record import CancelRequest, Turn
from lash.waits import NewWait


class MemoryLeases(Handle):
    async def acquire(self, uid: SessionUid, owner: OwnerId, *, ttl: timedelta) -> Acquired:
        check_owner(owner)
        check_ttl(ttl)
        now = self.now()
        with self.changing(uid, now) as rows:
            acquired = leases.acquire(rows.lease, uid, owner, now=now, ttl=ttl)
            rows.lease = leases.record_of(acquired.lease)
        return acquired

    async def renew(self, lease: ExecutionLease, *, ttl: timedelta) -> ExecutionLease:
        check_ttl(ttl)
        now = self.now()
        with self.changing(lease.session, now) as rows:
            renewed = leases.renew(rows.lease, lease, now=now, ttl=ttl)
            rows.lease = leases.record_of(renewed)
        return renewed

    async def release(self, lease: ExecutionLease) -> None:
        with self.changing(lease.session, self.now()) as rows:
            held = rows.lease
            rows.lease = leases.release(held, lease)
            turn = rows.unsettled
            # Somebody who held the lease and never took the turn up has no attempt to take back.
            if held.owner is not None and turn is not None and turn.generation == lease.generation:
                rows.turns[turn.id] = record.hand_over(turn)

    async def lease_keeper(self, *, ttl: timedelta, every: timedelta | None = None) -> ThreadKeeper:
        self.data  # noqa: B018 (refuses when the store is closed)
        keeper = ThreadKeeper(_Renewer(self, ttl), ttl=ttl, every=every)
        self.keepers.add(keeper)
        return keeper

    async def lease(self, uid: SessionUid) -> LeaseRecord:
        return self.living(uid).lease

    async def ready(self, agents: Collection[str], *, limit: int = 100) -> list[ReadySession]:
        check_limit(limit)
        check_agents(agents)
        now = self.now()
        sessions = [rows.session for rows in self.data.sessions.values() if rows.session.agent in agents]
        due = [ReadySession(s.uid, s.name, s.agent, s.ready_at) for s in sessions if s.ready_at and s.ready_at <= now]
        return sorted(due, key=lambda session: session.ready_at)[:limit]


class _Renewer:
    """The rows belong to the event loop, so it is asked to renew. While it is busy nobody else can take a lease."""

    def __init__(self, store: MemoryLeases, ttl: timedelta) -> None:
        self._store = store
        self._ttl = ttl
        self._loop = asyncio.get_running_loop()

    def renew(self, leases: Sequence[ExecutionLease], *, patient: bool) -> list[Renewal]:
        asked = asyncio.run_coroutine_threadsafe(self._renew(leases), self._loop)
        try:
            return asked.result(attempt_time(self._ttl).total_seconds())
        finally:
            asked.cancel()

    async def _renew(self, leases: Sequence[ExecutionLease]) -> list[Renewal]:
        return [await self._renewal(lease) for lease in leases]

    async def _renewal(self, lease: ExecutionLease) -> Renewal:
        try:
            return await self._store.renew(lease, ttl=self._ttl)
        except (LeaseLost, SessionDeleted, SessionNotFound) as refusal:
            return refusal

    def close(self) -> None:
        pass


class MemoryTurns(Admitting, Waiting):
    # -- opening -------------------------------------------------------------------------------------------------------

    async def open_turn(self, opening: TurnOpening) -> OpenedTurn:
        check_opening(opening)
        arriving = None if opening.admits is None else own_item(opening.admits)
        now = self.now()
        with self.changing(opening.session, now) as rows:
            known = rows.turns.get(opening.turn)
            # A vacuum may have taken the turn's own row; its receipt stays.
            committed = (opening.session, OperationId(opening.turn)) in self.data.commits
            if committed if known is None else not known.unsettled:
                raise TurnSettled(opening.turn)
            admitted = None if arriving is None else self.admit_into(rows, arriving, now)
            opened = _take_over(rows, opening, now) or _open_fresh(rows, opening, now)
            if admitted is not None:  # as it is now: the new turn may have taken it
                admitted = rows.items[admitted.id]
            return deepcopy(replace(opened, admitted=admitted))

    async def take(
        self, lease: ExecutionLease, turn: TurnId, checkpoint: Boundary, *, key: ReplayKey, identity: Identity
    ) -> tuple[InboxItem, ...]:
        check_checkpoint(checkpoint)
        check_effect(key, identity)
        now = self.now()
        with self.changing(lease.session, now) as rows:
            driven = record.require_driven(rows.unsettled, turn, lease, rows.lease)
            known = rows.journal.get(key)
            if known is not None:
                journal.require_same(known, identity)
            if known is not None and known.state != "started":
                return deepcopy(tuple(rows.items[item] for item in journal.items_taken(known)))
            items = taking.at_checkpoint(rows.items.values(), turn, checkpoint)
            if not items:
                return ()
            ids = tuple(item.id for item in items)
            _write(rows, [Finished(key, identity, journal.taking(items))], now)
            taken = tuple(item.after(taking.taken(turn)) for item in items)
            rows.keep_items(taken)
            rows.turns[turn] = record.progress(replace(driven, items=driven.items + ids))
            return deepcopy(taken)

    # -- at work -------------------------------------------------------------------------------------------------------

    async def record(
        self, lease: ExecutionLease, turn: TurnId, records: Sequence[JournalRecord], *, waits: Sequence[NewWait] = ()
    ) -> tuple[JournalEntry, ...]:
        for wait in waits:
            check_wait(wait)
        for new in records:
            check_record(new)
        own = [_own_record(new) for new in records]
        now = self.now()
        with self.changing(lease.session, now) as rows:
            driven = record.require_driven(rows.unsettled, turn, lease, rows.lease)
            for wait in waits:
                self.open_in(rows, wait, now)
            if _write(rows, own, now):
                rows.turns[turn] = record.progress(driven)
            return deepcopy(tuple(rows.journal[new.key] for new in own))

    async def journal(self, uid: SessionUid, turn: TurnId) -> list[JournalEntry]:
        rows = self.living(uid)
        if rows.unsettled is None or rows.unsettled.id != turn:
            return []
        return deepcopy(sorted(rows.journal.values(), key=lambda entry: entry.seq))

    async def park(
        self, lease: ExecutionLease, turn: TurnId, *, waits: Sequence[WaitId] = (), until: datetime | None = None
    ) -> Turn:
        check_time("until", until)
        now = self.now()
        with self.changing(lease.session, now) as rows:
            unsettled = rows.unsettled
            if record.parked_by(unsettled, turn, lease, rows.lease):
                return deepcopy(unsettled)
            driven = record.require_driven(rows.unsettled, turn, lease, rows.lease)
            if any(wait not in rows.waits for wait in waits):
                raise WaitNotFound
            named = [rows.waits[wait].as_of(now) for wait in waits]
            cancelled = turn in rows.cancel_requests
            parked = record.park(driven, record.sleeps_until(named, until, now=now, cancelled=cancelled), waits)
            rows.turns[turn] = parked
            rows.lease = leases.release(rows.lease, lease)
            return deepcopy(parked)

    async def turn(self, uid: SessionUid, turn: TurnId) -> Turn:
        return deepcopy(_known(self.living(uid), turn))

    async def unsettled_turn(self, uid: SessionUid) -> Turn | None:
        return deepcopy(self.living(uid).unsettled)

    # -- cancelling ----------------------------------------------------------------------------------------------------

    async def request_cancel(
        self, uid: SessionUid, turn: TurnId, request: RequestId, *, reason: str
    ) -> CancelRequested:
        check_id("a request id", request)
        check_reason(reason)
        now = self.now()
        with self.changing(uid, now) as rows:
            known = _known(rows, turn)
            if not known.unsettled:
                raise TurnSettled(turn)
            standing = rows.cancel_requests.get(turn)
            if standing is None:
                standing = CancelRequest(request, uid, turn, reason, now)
                rows.cancel_requests[turn] = standing
                rows.turns[turn] = record.wake(known, now)
            return CancelRequested(standing, first=standing.id == request)

    async def cancel_request(self, uid: SessionUid, turn: TurnId) -> CancelRequest | None:
        return self.living(uid).cancel_requests.get(turn)


def _take_over(rows: SessionRows, opening: TurnOpening, now: datetime) -> OpenedTurn | None:
    """The unsettled turn, whole, for whoever gets the lease; None when there is none."""
    turn = rows.unsettled
    if turn is None:
        return None
    acquired = _acquire(rows, opening, now)
    if acquired is None:
        return OpenedTurn(held_by=rows.lease)
    repeated = record.has_open(turn, acquired.lease.generation)
    taken_up = turn if repeated else record.attempt(turn, acquired.lease.generation)
    rows.turns[turn.id] = taken_up
    return OpenedTurn(
        acquired=acquired, turn=taken_up, items=rows.taken_by(turn.id), fresh=repeated and turn.id == opening.turn
    )


def _open_fresh(rows: SessionRows, opening: TurnOpening, now: datetime) -> OpenedTurn:
    items = taking.at_opening(list(rows.items.values()), now)
    if not items:
        return OpenedTurn(held_by=rows.lease if rows.lease.holds_off(opening.owner, now) else None)
    acquired = _acquire(rows, opening, now)
    if acquired is None:
        return OpenedTurn(held_by=rows.lease)
    turn = record.begin(opening.turn, rows.session, items, acquired.lease, now=now)
    rows.turns[turn.id] = turn
    taken = tuple(item.after(taking.taken(turn.id)) for item in items)
    rows.keep_items(taken)
    _write(rows, opening.starts, now)
    return OpenedTurn(acquired=acquired, turn=turn, items=taken, fresh=True)


def _acquire(rows: SessionRows, opening: TurnOpening, now: datetime) -> Acquired | None:
    """The lease for this opening; None when another driver has it."""
    try:
        acquired = leases.acquire(rows.lease, rows.session.uid, opening.owner, now=now, ttl=opening.ttl)
    except SessionBusy:
        return None
    rows.lease = leases.record_of(acquired.lease)
    return acquired


def _known(rows: SessionRows, turn: TurnId) -> Turn:
    if turn not in rows.turns:
        raise TurnNotFound(turn)
    return rows.turns[turn]


def _write(rows: SessionRows, records: Sequence[JournalRecord], now: datetime) -> bool:
    """Journal the records, each that changes something under the next seq; False when all were repetitions."""
    entries = []
    for new in records:
        entry = journal.write(rows.journal.get(new.key), new, seq=rows.session.seq + 1, now=now)
        if entry is not None:
            rows.next_seq()
            rows.journal[entry.key] = entry
            entries.append(entry)
    if any(entry.wait is not None and entry.wait not in rows.waits for entry in entries):
        raise WaitNotFound
    return bool(entries)


def _own_record(new: JournalRecord) -> JournalRecord:
    """The record as the store will keep it."""
    match new:
        case Started():
            return new
        case Finished():
            return replace(new, outcome=own_json(new.outcome, what="outcome"))
