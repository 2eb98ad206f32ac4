"""The row of a turn, from its opening to its settlement, and when a session next needs somebody.

A session has at most one unsettled turn, and while there is one only it may move the head. It is *open* while it works,
*parked* while it waits for an answer or a time and no process holds it, and *settled* for ever after. Whoever acquires
the lease gets the unsettled turn whole, with exactly the items it took.

Attempts count openings without progress, before any user code runs. New journal rows are progress and start the count
afresh; parking is progress; handing over takes the present attempt back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Literal, TypedDict, TypeGuard

from lash import lease as leases
from lash.encoding import JsonObject
from lash.errors import EvidenceMissing, TurnCancelRequested, TurnParked, TurnSettled, TurnUnsettled, UnsettledItems
from lash.graph.session import Session
from lash.ids import ItemId, RequestId, SessionUid, TurnId, WaitId
from lash.inbox.items import InboxItem
from lash.lease import ExecutionLease, LeaseRecord
from lash.waits import Wait

TurnState = Literal["open", "parked", "settled"]
CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class Turn:
    """One pass from taken items to a commit. Config and catalog are the revisions that were current at its opening."""

    id: TurnId
    session: SessionUid
    agent: str
    state: TurnState
    attempts: int
    generation: int
    base_revision: int
    config_revision: int
    catalog_revision: int
    opened_at: datetime
    options: JsonObject = field(default_factory=dict)
    items: tuple[ItemId, ...] = ()
    parked_until: datetime | None = None
    parked_on: tuple[WaitId, ...] = ()
    """The waits it was parked on; kept when it becomes due, empty once it is taken up or settled."""
    outcome: str | None = None
    summary: JsonObject = field(default_factory=dict)
    settled_at: datetime | None = None

    @property
    def unsettled(self) -> bool:
        return self.state != "settled"


@dataclass(frozen=True, slots=True)
class CancelRequest:
    """Somebody asked a turn to stop. The first request stands and is the evidence of a cancelled turn."""

    id: RequestId
    session: SessionUid
    turn: TurnId
    reason: str
    requested_at: datetime


@dataclass(frozen=True, slots=True)
class TurnSettlement:
    """How a turn ends.

    Every item it took is either completed or given back; ``cancelled_by`` is the evidence of a cancel.
    """

    turn: TurnId
    outcome: str
    completes: frozenset[ItemId] = frozenset()
    gives_back: frozenset[ItemId] = frozenset()
    cancelled_by: RequestId | None = None
    summary: JsonObject = field(default_factory=dict)


def begin(turn: TurnId, session: Session, items: Sequence[InboxItem], lease: ExecutionLease, *, now: datetime) -> Turn:
    """A new turn on these items. Config and catalog are pinned as they are now."""
    return Turn(
        id=turn,
        session=session.uid,
        agent=session.agent,
        state="open",
        attempts=1,
        generation=lease.generation,
        base_revision=session.head.revision,
        config_revision=session.config_revision,
        catalog_revision=session.catalog_revision,
        opened_at=now,
        options=items[0].options,
        items=tuple(item.id for item in items),
    )


def require_driven(unsettled: Turn | None, turn: TurnId, lease: ExecutionLease, record: LeaseRecord) -> Turn:
    """The turn, which its owner must be driving: the lease held, the turn unsettled and not asleep."""
    leases.require(record, lease)
    if unsettled is None or unsettled.id != turn:
        raise TurnSettled(turn)
    if unsettled.state == "parked":
        raise TurnParked(turn)
    return unsettled


def attempt(turn: Turn, generation: int) -> Turn:
    """Somebody takes up an unsettled turn: to redrive it, resume it, or settle it."""
    return replace(
        turn, state="open", attempts=turn.attempts + 1, generation=generation, parked_until=None, parked_on=()
    )


def has_open(turn: Turn, generation: int) -> bool:
    """Whether the owner of this generation has the turn open. If it opens the turn again, an answer got lost: it cannot
    have failed to get on with what it has not seen, and no attempt is counted. Whoever crashed comes back as another
    owner, with another generation."""
    return turn.state == "open" and turn.generation == generation


def parked_by(turn: Turn | None, asked_for: TurnId, lease: ExecutionLease, record: LeaseRecord) -> TypeGuard[Turn]:
    """Whether a request to park a turn is one that was carried out already, sent again after a lost answer."""
    return (
        turn is not None
        and turn.id == asked_for
        and turn.state == "parked"
        and record.owner is None
        and turn.generation == record.generation == lease.generation
    )


def progress(turn: Turn) -> Turn:
    return replace(turn, attempts=0) if turn.attempts else turn


def hand_over(turn: Turn) -> Turn:
    """The turn is put down unfinished, on purpose: it stays open and this attempt does not count."""
    return replace(turn, attempts=max(0, turn.attempts - 1))


def park(turn: Turn, until: datetime | None, waits: Sequence[WaitId] = ()) -> Turn:
    """The turn sleeps until a time, or, without one, until one of the waits or something else wakes it."""
    return replace(turn, state="parked", attempts=0, parked_until=until, parked_on=tuple(waits))


def sleeps_until(waits: Sequence[Wait], until: datetime | None, *, now: datetime, cancelled: bool) -> datetime | None:
    """How long a turn that parks on these waits sleeps. Not at all when one of them is settled, or when somebody has
    asked the turn to stop: nobody would be left to wake it."""
    if cancelled or any(wait.state != "pending" for wait in waits):
        return now
    deadlines = [at for at in (until, *(wait.expires_at for wait in waits)) if at is not None]
    return min(deadlines, default=None)


def wake(turn: Turn, now: datetime) -> Turn:
    """A parked turn gets what it slept for, or must be settled: it is due now, or has been. Others stay as they are."""
    if turn.state != "parked":
        return turn
    return replace(turn, parked_until=min(turn.parked_until or now, now))


class Settled(TypedDict):
    """What a settlement changes about its turn, which was open and so slept on nothing."""

    state: TurnState
    outcome: str
    summary: JsonObject
    settled_at: datetime


def settled(settlement: TurnSettlement, now: datetime) -> Settled:
    return {
        "state": "settled",
        "outcome": settlement.outcome,
        "summary": settlement.summary,
        "settled_at": now,
    }


def check_settlement(
    unsettled: Turn | None, settlement: TurnSettlement | None, request: CancelRequest | None, taken: frozenset[ItemId]
) -> None:
    """Refuse a commit that does not settle the unsettled turn, or settles it without its items or against a cancel."""
    if unsettled is None:
        if settlement is not None:
            raise TurnSettled(settlement.turn)
        return
    if settlement is None or settlement.turn != unsettled.id:
        raise TurnUnsettled(unsettled.id)
    if unsettled.state == "parked":
        raise TurnParked(unsettled.id)
    settled = settlement.completes | settlement.gives_back
    twice = settlement.completes & settlement.gives_back
    if settled != taken or twice:
        raise UnsettledItems(unsettled.id, missing=sorted(taken - settled), foreign=sorted(settled - taken | twice))
    if request is not None and (settlement.cancelled_by, settlement.outcome) != (request.id, CANCELLED):
        raise TurnCancelRequested(unsettled.id, request.id)
    if (settlement.outcome == CANCELLED or settlement.cancelled_by is not None) and request is None:
        raise EvidenceMissing(unsettled.id)


def ready_at(
    lease: LeaseRecord, unsettled: Turn | None, next_item_at: datetime | None, now: datetime
) -> datetime | None:
    """When a session next needs a worker; None when it needs nobody.

    A turn at work needs one when its lease runs out, a turn put down needs one now, a parked one when its time comes.
    Without a turn it is the earliest pending item that counts, once nobody holds the session.
    """
    if unsettled is not None:
        if unsettled.state == "parked":
            return unsettled.parked_until
        return lease.free_from(now)
    if next_item_at is None or lease.owner is None:
        return next_item_at
    return max(next_item_at, lease.free_from(now))


def causes(lease: LeaseRecord, unsettled: Turn | None, next_item_at: datetime | None) -> tuple[object, ...]:
    """What ``ready_at`` follows from. As long as it stays the same, the session keeps its place among the ready."""
    return lease, unsettled, next_item_at if unsettled is None else None


def available_from(item: InboxItem) -> datetime:
    return item.available_at or item.admitted_at
