"""Turns from their opening to the moment before their settlement, and their journal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from sqlalchemy import Connection, bindparam, select

from lash import lease as leases
from lash.errors import CorruptRecord, SessionBusy, TurnNotFound, TurnSettled
from lash.ids import ReplayKey, RequestId, SessionUid, TurnId, WaitId
from lash.inbox import taking
from lash.inbox.items import Boundary, InboxItem
from lash.lease import Acquired, ExecutionLease
from lash.limits import check_id
from lash.store import schema
from lash.store.checks import (
    check_checkpoint,
    check_effect,
    check_opening,
    check_reason,
    check_record,
    check_time,
    check_wait,
)
from lash.store.contract import CancelRequested, OpenedTurn, TurnOpening
from lash.store.rows import (
    Row,
    SessionRow,
    changing_entry_values,
    changing_turn_values,
    entry_values,
    read_entry,
    read_item,
    read_turn,
    turn_values,
)
from lash.store.sql.inbox import admit_into, read_unsettled, turn_and_known, update_items
from lash.store.sql.questions import AIMED, COMMIT, ENTRY, ITEM, READY_ITEMS, TAKEN, TURN, UNSETTLED
from lash.store.sql.sessions import find_row, keep_session
from lash.store.sql.steps import Steps, Work, Write, answer_to, answers_to, answers_to_each
from lash.store.sql.waits import named_waits, open_into
from lash.turn import journal as rules
from lash.turn import record
from lash.turn.journal import Finished, Identity, JournalEntry, JournalRecord
from lash.turn.record import CancelRequest, Turn
from lash.waits import NewWait, Wait

_JOURNAL = (
    select(schema.journal)
    .where(schema.journal.c.session == bindparam("session"), schema.journal.c.turn == bindparam("turn"))
    .order_by(schema.journal.c.seq)
)


def update_turn(work: Work, row: SessionRow, turn: Turn) -> None:
    work.changes.update(schema.turns, {"session": row.id, "id": turn.id}, changing_turn_values(turn))


# -- opening -----------------------------------------------------------------------------------------------------------


def open_turn(opening: TurnOpening) -> Write[OpenedTurn]:
    size = check_opening(opening)

    def steps(work: Work) -> Steps[OpenedTurn]:
        before = row = work.session(opening.session)
        found, receipt, unsettled, waiting = yield from answers_to(
            TURN((row.id, opening.turn)),
            COMMIT((row.id, opening.turn)),
            UNSETTLED(row.id),
            READY_ITEMS((row.id, work.now)),
        )
        # The receipt stays when a vacuum has taken the turn's own row.
        if receipt is not None or (found is not None and found["state"] == "settled"):
            raise TurnSettled(opening.turn)
        turn = read_unsettled(unsettled, row)
        admitted = None
        if opening.admits is not None:
            _, known = yield from turn_and_known(row, opening.admits)
            admitted, row = yield from admit_into(work, row, opening.admits, turn, known)
        arrived = admitted if admitted is not None and row is not before else None
        if turn is None:
            items = [read_item(item, row.uid) for item in waiting or ()]
            opened, row = yield from _open_fresh(work, row, opening, [*items, *([arrived] if arrived else [])])
        else:
            opened, row = yield from _take_over(work, row, opening, turn)
        if row is not before:
            keep_session(work, before, row, was=turn, turn=opened.turn or turn)
        taken = {item.id: item for item in opened.items}
        return replace(opened, admitted=None if admitted is None else taken.get(admitted.id, admitted))

    return Write((opening.session,), steps, size=size, owner=opening.owner)


def _take_over(work: Work, row: SessionRow, opening: TurnOpening, turn: Turn) -> Steps[tuple[OpenedTurn, SessionRow]]:
    """The unsettled turn, whole, for whoever gets the lease."""
    acquired = _acquired(work, row, opening)
    if acquired is None:
        return OpenedTurn(held_by=row.lease), row
    repeated = record.has_open(turn, acquired.lease.generation)
    taken_up = turn if repeated else record.attempt(turn, acquired.lease.generation)
    update_turn(work, row, taken_up)
    found = yield from answer_to(TAKEN((row.id, turn.id)))
    items = tuple(read_item(item, row.uid) for item in found or ())
    _require_items(turn, items)
    after = row.with_lease(leases.record_of(acquired.lease))
    return OpenedTurn(acquired=acquired, turn=taken_up, items=items, fresh=repeated and turn.id == opening.turn), after


def _require_items(turn: Turn, items: Sequence[InboxItem]) -> None:
    """A turn is handed on with exactly what it took, or not at all."""
    differing = sorted(set(turn.items) ^ {item.id for item in items})
    if differing:
        raise CorruptRecord(f"turn {turn.id}", f"item {differing[0]} is not among what it took, or is lost")


def _open_fresh(
    work: Work, row: SessionRow, opening: TurnOpening, waiting: Sequence[InboxItem]
) -> Steps[tuple[OpenedTurn, SessionRow]]:
    """A new turn on the oldest ready item. The last one may have been admitted a moment ago."""
    items = taking.at_opening(waiting, work.now)
    if not items:
        held = row.lease.holds_off(opening.owner, work.now) and not work.holder_died(row.lease, opening.owner)
        return OpenedTurn(held_by=row.lease if held else None), row
    acquired = _acquired(work, row, opening)
    if acquired is None:
        return OpenedTurn(held_by=row.lease), row
    turn = record.begin(opening.turn, row.session(), items, acquired.lease, now=work.now)
    taken = taking.taken(turn.id)
    work.changes.insert(schema.turns, turn_values(row.id, turn))
    update_items(work, row, (item.seq for item in items), taken)
    # While a turn is unsettled no item can open another; the commit that settles it looks again.
    row = row.with_lease(leases.record_of(acquired.lease))._replace(next_item_at=None)
    written = yield from _write(work, row, turn.id, opening.starts, {})
    given = tuple(item.after(taken) for item in items)
    return OpenedTurn(acquired=acquired, turn=turn, items=given, fresh=True), written.row


def _acquired(work: Work, row: SessionRow, opening: TurnOpening) -> Acquired | None:
    """The lease for this opening; None when another driver has it."""
    died = work.holder_died(row.lease, opening.owner)
    try:
        return leases.acquire(row.lease, row.uid, opening.owner, now=work.now, ttl=opening.ttl, holder_died=died)
    except SessionBusy:
        return None


# -- at work -----------------------------------------------------------------------------------------------------------


def take(
    lease: ExecutionLease, turn: TurnId, checkpoint: Boundary, *, key: ReplayKey, identity: Identity
) -> Write[tuple[InboxItem, ...]]:
    check_checkpoint(checkpoint)
    check_effect(key, identity)

    def steps(work: Work) -> Steps[tuple[InboxItem, ...]]:
        row = work.session(lease.session)
        unsettled, known, aimed = yield from answers_to(
            UNSETTLED(row.id), ENTRY((row.id, turn, key)), AIMED((row.id, turn))
        )
        driven = record.require_driven(read_unsettled(unsettled, row), turn, lease, row.lease)
        if known is not None:
            entry = read_entry(known)
            rules.require_same(entry, identity)
            if entry.state != "started":
                return (yield from _recorded_items(row, entry))
        items = taking.at_checkpoint([read_item(item, row.uid) for item in aimed or ()], turn, checkpoint)
        if not items:
            return ()
        ids = tuple(item.id for item in items)
        finished = Finished(key, identity, rules.taking(items))
        written = yield from _write(work, row, turn, [finished], {} if known is None else {key: known})
        taken = taking.taken(turn)
        update_items(work, row, (item.seq for item in items), taken)
        after = record.progress(replace(driven, items=driven.items + ids))
        update_turn(work, row, after)
        keep_session(work, row, written.row, was=driven, turn=after)
        return tuple(item.after(taken) for item in items)

    return Write((lease.session,), steps)


def _recorded_items(row: SessionRow, entry: JournalEntry) -> Steps[tuple[InboxItem, ...]]:
    ids = rules.items_taken(entry)
    found = yield from answers_to_each([ITEM((row.id, item)) for item in ids])
    lost = [item for item in ids if (row.id, item) not in found]
    if lost:
        raise CorruptRecord(f"journal entry {entry.key!r}", f"item {lost[0]} that it took is not stored")
    return tuple(read_item(found[row.id, item], row.uid) for item in ids)


def record_effects(
    lease: ExecutionLease, turn: TurnId, records: Sequence[JournalRecord], waits: Sequence[NewWait]
) -> Write[tuple[JournalEntry, ...]]:
    for wait in waits:
        check_wait(wait)
    size = sum(check_record(new) for new in records)

    def steps(work: Work) -> Steps[tuple[JournalEntry, ...]]:
        row = work.session(lease.session)
        keys = list(dict.fromkeys(new.key for new in records))
        unsettled, *entries = yield (UNSETTLED(row.id), *(ENTRY((row.id, turn, key)) for key in keys))
        driven = record.require_driven(read_unsettled(unsettled, row), turn, lease, row.lease)
        stored = {key: entry for key, entry in zip(keys, entries, strict=True) if entry is not None}
        opened = yield from open_into(work, row, waits)
        written = yield from _write(work, row, turn, records, stored, opened)
        if written.changed:
            after = record.progress(driven)
            if after != driven:
                update_turn(work, row, after)
            keep_session(work, row, written.row, was=driven, turn=after)
        return tuple(written.entries[new.key] for new in records)

    return Write((lease.session,), steps, size=size)


@dataclass(frozen=True, slots=True)
class Written:
    """The journal after some records, as far as they name it, and the session's row with its counter raised."""

    row: SessionRow
    entries: dict[ReplayKey, JournalEntry]
    changed: bool


def _write(
    work: Work,
    row: SessionRow,
    turn: TurnId,
    records: Sequence[JournalRecord],
    found: Mapping[ReplayKey, Row],
    opened: dict[WaitId, Wait] | None = None,
) -> Steps[Written]:
    """Write records over the entries that were found under their keys."""
    keys = list(dict.fromkeys(new.key for new in records))
    stored = {key: read_entry(entry) for key, entry in found.items()}
    entries, seq = dict(stored), row.seq
    for new in records:
        entry = rules.write(entries.get(new.key), new, seq=seq + 1, now=work.now)
        if entry is not None:
            entries[entry.key], seq = entry, entry.seq
    new_keys = [key for key in keys if entries[key] != stored.get(key)]
    referred_to = {entries[key].wait for key in new_keys} - {None, *(opened or ())}
    yield from named_waits(row, sorted(wait for wait in referred_to if wait is not None))
    for key in new_keys:
        if key in stored:
            place = {"session": row.id, "turn": turn, "key": key}
            work.changes.update(schema.journal, place, changing_entry_values(entries[key]))
        else:
            work.changes.insert(schema.journal, entry_values(row.id, turn, entries[key]))
    return Written(row._replace(seq=seq), entries, changed=bool(new_keys))


def park(lease: ExecutionLease, turn: TurnId, waits: Sequence[WaitId], until: datetime | None) -> Write[Turn]:
    check_time("until", until)

    def steps(work: Work) -> Steps[Turn]:
        row = work.session(lease.session)
        found = yield from answer_to(UNSETTLED(row.id))
        unsettled = None if found is None else read_turn(found, row.uid)
        if unsettled is not None and record.parked_by(unsettled.turn, turn, lease, row.lease):
            return unsettled.turn
        driven = record.require_driven(None if unsettled is None else unsettled.turn, turn, lease, row.lease)
        cancelled = unsettled is not None and unsettled.cancel is not None
        named = yield from named_waits(row, waits)
        as_of_now = [wait.as_of(work.now) for wait in named]
        until_then = record.sleeps_until(as_of_now, until, now=work.now, cancelled=cancelled)
        parked = record.park(driven, until_then, waits)
        update_turn(work, row, parked)
        keep_session(work, row, row.with_lease(leases.release(row.lease, lease)), was=driven, turn=parked)
        return parked

    return Write((lease.session,), steps)


# -- cancelling --------------------------------------------------------------------------------------------------------


def request_cancel(uid: SessionUid, turn: TurnId, request: RequestId, reason: str) -> Write[CancelRequested]:
    check_id("a request id", request)
    check_reason(reason)

    def steps(work: Work) -> Steps[CancelRequested]:
        row = work.session(uid)
        known = yield from answer_to(TURN((row.id, turn)))
        if known is None:
            raise TurnNotFound(turn)
        found = read_turn(known, uid)
        if not found.turn.unsettled:
            raise TurnSettled(turn)
        if found.cancel is not None:
            return CancelRequested(found.cancel, first=found.cancel.id == request)
        standing = CancelRequest(request, uid, turn, reason, work.now)
        after = record.wake(found.turn, work.now)
        asked = {"cancel_request": request, "cancel_reason": reason, "cancel_requested_at": work.now}
        work.changes.update(schema.turns, {"session": row.id, "id": turn}, changing_turn_values(after) | asked)
        if after != found.turn:
            keep_session(work, row, row, was=found.turn, turn=after)
        return CancelRequested(standing, first=True)

    return Write((uid,), steps, urgent=True)


# -- reading -----------------------------------------------------------------------------------------------------------


def find(connection: Connection, uid: SessionUid, turn: TurnId) -> Turn:
    row = find_row(connection, uid)
    found = TURN.now(connection, (row.id, turn))
    if found is None:
        raise TurnNotFound(turn)
    return read_turn(found, uid).turn


def find_unsettled(connection: Connection, row: SessionRow) -> Turn | None:
    found = UNSETTLED.now(connection, row.id)
    return None if found is None else read_turn(found, row.uid).turn


def cancel_request(connection: Connection, uid: SessionUid, turn: TurnId) -> CancelRequest | None:
    row = find_row(connection, uid)
    found = TURN.now(connection, (row.id, turn))
    return None if found is None else read_turn(found, uid).cancel


def journal(connection: Connection, uid: SessionUid, turn: TurnId) -> list[JournalEntry]:
    row = find_row(connection, uid)
    found = connection.execute(_JOURNAL, {"session": row.id, "turn": turn}).mappings()
    return [read_entry(entry) for entry in found]
