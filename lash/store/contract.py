"""What a store promises. The docstrings are the contract; the classes in ``lash.testing`` execute it on any store.

Every method but ``vacuum`` is atomic: it settles everything it says in one transaction, or raises and changes nothing.
Every write may be repeated after a lost answer, because its ids are minted by the caller. Any method that names a
session raises SessionNotFound for a uid that never was, and SessionDeleted for one that was deleted. "Now" is the
store's own time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Generic, Protocol, Self, TypeVar

from pydantic import JsonValue

from lash.commit.outbox import Debt
from lash.commit.plan import CommitPlan, CommitReceipt
from lash.commit.usage import UsageTotal
from lash.encoding import JsonObject
from lash.errors import LashError
from lash.graph.nodes import Node
from lash.graph.session import Document, DocumentKind, NewFork, NewSession, Session
from lash.ids import (
    BlobHash,
    ItemId,
    NodeId,
    OperationId,
    OwnerId,
    ReplayKey,
    RequestId,
    SessionName,
    SessionUid,
    TurnId,
    WaitId,
)
from lash.inbox.cancelling import Cancelled, Selection
from lash.inbox.items import Boundary, InboxItem, NewItem
from lash.lease import Acquired, ExecutionLease, LeaseRecord
from lash.turn.journal import Identity, JournalEntry, JournalRecord, Started
from lash.turn.record import CancelRequest, Turn
from lash.waits import Answered, NewWait, Wait

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """Some rows, and where to go on. ``next`` is None on the last page."""

    rows: tuple[T, ...]
    next: str | None = None


@dataclass(frozen=True, slots=True)
class Opened:
    session: Session
    created: bool


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a cold open needs, from one consistent read. Its size is that of the current frame, not of the session."""

    session: Session
    nodes: tuple[Node, ...]
    parts: dict[str, BlobHash]
    config: Document
    turn: Turn | None


@dataclass(frozen=True, slots=True)
class TurnOpening:
    """A request to drive a session. ``turn`` is the id a new turn would get.

    ``admits`` is admitted first, in the same transaction, and stays admitted even when nothing can be opened.
    ``starts`` are journaled with a new turn, so that its first effect needs no write of its own.
    """

    session: SessionUid
    owner: OwnerId
    turn: TurnId
    ttl: timedelta
    admits: NewItem | None = None
    starts: tuple[Started, ...] = ()


@dataclass(frozen=True, slots=True)
class OpenedTurn:
    """What came of a TurnOpening.

    With a turn: this owner holds ``acquired`` and must drive it; ``fresh`` tells a new turn from one taken over.
    Without a turn nothing was acquired: ``held_by`` says who has the session, and when that is free too, nothing was
    ready.
    """

    admitted: InboxItem | None = None
    acquired: Acquired | None = None
    turn: Turn | None = None
    items: tuple[InboxItem, ...] = ()
    fresh: bool = False
    held_by: LeaseRecord | None = None


@dataclass(frozen=True, slots=True)
class CancelRequested:
    """The request that stands. ``first`` is False when it was an earlier one than the caller's."""

    request: CancelRequest
    first: bool


@dataclass(frozen=True, slots=True)
class Vacuumed:
    """How many rows of each kind a vacuum removed, or would remove."""

    items: int = 0
    turns: int = 0
    waits: int = 0
    outbox: int = 0
    documents: int = 0
    nodes: int = 0
    commits: int = 0
    blobs: int = 0

    @property
    def total(self) -> int:
        return sum(getattr(self, name) for name in self.__slots__)

    def __add__(self, other: Vacuumed) -> Vacuumed:
        return Vacuumed(**{name: getattr(self, name) + getattr(other, name) for name in self.__slots__})


@dataclass(frozen=True, slots=True)
class SessionFilter:
    agent: str | None = None
    name_prefix: str | None = None
    unsettled: bool | None = None
    """Whether the session has a turn that is open or parked."""


@dataclass(frozen=True, slots=True)
class ReadySession:
    uid: SessionUid
    name: SessionName
    agent: str
    ready_at: datetime


class SessionStore(Protocol):
    """Sessions by uid and by name."""

    async def create(self, new: NewSession) -> Session:
        """Create a session. The same uid with the same name and agent again returns it untouched; a name that a living
        session has is SessionExists; a uid that names anything else is IdReused, one that was deleted
        SessionDeleted."""
        ...

    async def open(self, new: NewSession) -> Opened:
        """The living session of that name, whatever its uid; created as ``new`` says when there is none. Sent again
        after a lost answer, it was created all the same."""
        ...

    async def get(self, name: SessionName) -> Session:
        """The living session of that name, or SessionNotFound. Never creates one."""
        ...

    async def find(self, uid: SessionUid) -> Session: ...

    async def sessions(
        self, where: SessionFilter = SessionFilter(), *, after: str | None = None, limit: int = 100
    ) -> Page[Session]:
        """Living sessions in order of creation, 1 to 1000 a page; a cursor that no page ended with is InvalidValue.

        No session that is there throughout is missed or seen twice. One that is created meanwhile may be found or not.
        Deleting the session that a page ended with does not lose the place. A session that this runtime cannot read is
        left out, and says why when it is asked for by itself.
        """
        ...

    async def delete(self, uid: SessionUid) -> bool:
        """Delete a session: its name is free, its inbox, waits, journal, turns and lease are gone, every handle on it
        is refused from now on. Nodes that a fork shares stay. False when it was deleted before."""
        ...

    async def document(self, uid: SessionUid, kind: DocumentKind, revision: int | None = None) -> Document:
        """The current config, catalog or metadata, or the one of an earlier revision that a turn has pinned. A revision
        that is not kept is RevisionMoved."""
        ...

    async def put_document(self, uid: SessionUid, kind: DocumentKind, body: JsonObject, *, expected: int) -> Document:
        """Replace a document whose revision is still ``expected``, else RevisionMoved. The same body again, one
        revision on, is a repetition and returns what is there."""
        ...


class GraphStore(Protocol):
    """The graph, read by ranges of the active path."""

    async def snapshot(self, uid: SessionUid) -> Snapshot:
        """Everything a driver needs to go on: the head, the nodes of the current frame, state parts, config, turn."""
        ...

    async def nodes(self, uid: SessionUid, *, first: int = 0, last: int | None = None) -> list[Node]:
        """The active path from depth ``first`` to ``last``, both included, or to the leaf. Depths are dense, so pages
        in both directions are ranges. A missing or contradictory row is CorruptGraph, naming the place."""
        ...

    async def node(self, uid: SessionUid, node: NodeId) -> Node:
        """A node of this session, on whatever branch, or one at or above the point it was forked from; else
        NodeNotFound."""
        ...

    async def on_active_path(self, uid: SessionUid, node: NodeId) -> bool:
        """Whether a node is an ancestor of the head, or the head. False for a node of an abandoned branch, or none."""
        ...

    async def fork(self, new: NewFork) -> Session:
        """Create a session that goes on from a commit boundary of another, sharing its nodes. Creates as ``create``
        does; a node that is no commit boundary of the parent is InvalidDelta, an unknown one NodeNotFound."""
        ...


class InboxStore(Protocol):
    """What arrives. Needs no lease."""

    async def admit(self, uid: SessionUid, item: NewItem) -> InboxItem:
        """Keep an item, durably, before this returns.

        The same key, or the same id, with the same content returns the stored item, whatever became of it; other
        content is KeyReused or IdReused. ``seq`` is the order in which admissions committed. ``now`` aims at the
        unsettled turn and becomes ``next`` where there is none. A blob that the item refers to must be stored, else
        BlobMissing.
        """
        ...

    async def item(self, uid: SessionUid, item: ItemId) -> InboxItem | None: ...

    async def items(
        self, uid: SessionUid, *, terminal: bool = False, after: str | None = None, limit: int = 100
    ) -> Page[InboxItem]:
        """Items in order of ``seq``: those that wait or are taken, or, with ``terminal``, every one that is kept."""
        ...

    async def cancel(self, uid: SessionUid, selection: Selection) -> list[Cancelled]:
        """Cancel what the selection names, all in one transaction, with an answer for each. Only pending items can be
        cancelled; a taken one belongs to its turn (see ``request_cancel``)."""
        ...


class KeptLease(Protocol):
    """A lease that a keeper renews."""

    @property
    def lease(self) -> ExecutionLease:
        """As it was last renewed."""
        ...

    @property
    def sure(self) -> bool:
        """Whether its time still runs, by this machine's own clock: then nobody can have taken the session over.

        It may be asked from any thread, is true to the moment, and turns False before anything else is heard. Ask it
        before an effect that must not run twice. Only a write tells for certain: the fence is the generation.
        """
        ...

    @property
    def gone(self) -> asyncio.Future[LashError | None]:
        """Done when the keeper no longer renews the lease, with the reason.

        LeaseLost: somebody took it over, and every write of this owner is refused. SessionDeleted: there is nothing
        left to run. LeaseOverdue: it could not be renewed in time; its ``__cause__`` is what the store said, if it said
        anything. None: it was let go or released, or the keeper was closed.

        There is no way back from here but to acquire the lease anew and keep that. The same owner may find its old
        generation, and then nobody was there in between.
        """
        ...


class LeaseKeeper(Protocol):
    """Renews leases as long as the event loop lives. It belongs to the loop that it was made on: use it there.

    An event loop that is busy loses nothing; one that has not answered for a whole ``ttl`` is taken for dead, and all
    leases are given up, so that a program that hangs does not hold its sessions for ever. It hears of that when it
    comes back. Open it with ``async with``. Leaving ends the renewals and releases nothing.
    """

    ttl: timedelta

    def time(self) -> float:
        """The time that ``keep`` asks for: seconds on a clock that nobody sets."""
        ...

    def keep(self, lease: ExecutionLease, *, asked_at: float) -> KeptLease:
        """Renew a lease from now on. It was acquired with the keeper's ``ttl``, by a call made at ``asked_at``: its
        time runs from then on, not from the answer. Keeping a lease that is kept returns the same KeptLease."""
        ...

    def let_go(self, lease: ExecutionLease) -> None:
        """Renew it no more; a renewal that is under way may still land. Before the lease is released or after:
        released is not lost. One that is not kept is left alone."""
        ...

    async def aclose(self) -> None: ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *exc: object) -> None: ...


class LeaseStore(Protocol):
    """Who may run a session."""

    async def acquire(self, uid: SessionUid, owner: OwnerId, *, ttl: timedelta) -> Acquired:
        """Take the lease, or SessionBusy. The same owner gets its generation again; anybody else the next one, once the
        lease is free or expired, and is told whom it displaced."""
        ...

    async def renew(self, lease: ExecutionLease, *, ttl: timedelta) -> ExecutionLease:
        """Extend a lease that nobody took, even an expired one. Never shortens it. LeaseLost when it is not held."""
        ...

    async def release(self, lease: ExecutionLease) -> None:
        """Let the lease go.

        An open turn that this owner took up is thereby handed over: it stays open, the session is ready at once, and
        the attempt does not count. Releasing twice is releasing once; a displaced owner is LeaseLost.
        """
        ...

    async def lease_keeper(self, *, ttl: timedelta, every: timedelta | None = None) -> LeaseKeeper:
        """What renews the leases of a process, all of them together and a little more often than ``every`` so often,
        which is a third of ``ttl`` at most. Each is changed as ``renew`` would. It opens nothing before it has a lease
        to renew, and ends with the store."""
        ...

    async def lease(self, uid: SessionUid) -> LeaseRecord:
        """What the row says, for diagnosis: expired leases are shown as they are. Never changes anything."""
        ...

    async def ready(self, agents: Collection[str], *, limit: int = 100) -> list[ReadySession]:
        """Living sessions of these agents that need a worker now, those that have waited longest first. More input does
        not change a session's place."""
        ...


class TurnStore(Protocol):
    """Turns from their opening to their settlement, which is a commit."""

    async def open_turn(self, opening: TurnOpening) -> OpenedTurn:
        """Admit, acquire, take and open, in one transaction.

        An unsettled turn comes first: it is handed whole, with exactly the items it took, to whoever gets the lease,
        and its attempts are counted. Otherwise the oldest ready item, and what joins it, is taken by a new turn. When
        nothing is ready the lease is not touched. Opening again by the owner that has the turn open is a repetition and
        counts nothing; ``starts`` are no progress. The id of a settled turn is TurnSettled.
        """
        ...

    async def take(
        self, lease: ExecutionLease, turn: TurnId, checkpoint: Boundary, *, key: ReplayKey, identity: Identity
    ) -> tuple[InboxItem, ...]:
        """Take the items that are aimed at this turn and may enter at this checkpoint, and journal which.

        Nothing to take: nothing is written. Asked again under a recorded key it returns the recorded items.
        """
        ...

    async def park(
        self, lease: ExecutionLease, turn: TurnId, *, waits: Sequence[WaitId] = (), until: datetime | None = None
    ) -> Turn:
        """Put the turn to sleep and release the lease.

        It sleeps until one of the waits is answered, revoked or past its deadline, until ``until``, or until somebody
        asks it to stop; where one of these has happened already the session is ready at once. A wait that nobody
        opened is WaitNotFound. Parking again what this lease has parked is a repetition.
        """
        ...

    async def turn(self, uid: SessionUid, turn: TurnId) -> Turn: ...

    async def unsettled_turn(self, uid: SessionUid) -> Turn | None: ...

    async def request_cancel(
        self, uid: SessionUid, turn: TurnId, request: RequestId, *, reason: str
    ) -> CancelRequested:
        """Ask an unsettled turn to stop, from anywhere. The first request stands. A parked turn becomes ready, so that
        somebody settles it. A turn that is settled is TurnSettled: it won the race."""
        ...

    async def cancel_request(self, uid: SessionUid, turn: TurnId) -> CancelRequest | None: ...


class JournalStore(Protocol):
    """Outcomes of the unsettled turn."""

    async def record(
        self, lease: ExecutionLease, turn: TurnId, records: Sequence[JournalRecord], *, waits: Sequence[NewWait] = ()
    ) -> tuple[JournalEntry, ...]:
        """Write started markers and outcomes, all or none, with the waits they refer to; returns the entries as kept.

        Repeating a record changes nothing. Another identity under a known key is ReplayMismatch, another outcome
        OutcomeRecorded, a wait that nobody opened WaitNotFound. Anything new starts the count of attempts afresh.
        Retired by the commit that settles the turn.
        """
        ...

    async def journal(self, uid: SessionUid, turn: TurnId) -> list[JournalEntry]:
        """All entries of the turn in order of ``seq``; empty once it is settled."""
        ...


class WaitStore(Protocol):
    """One-shot promises that outlive processes."""

    async def open_wait(self, uid: SessionUid, wait: NewWait) -> str:
        """Keep a wait and return the key that answers it. The row is there before anybody sees the key."""
        ...

    async def wait_key(self, uid: SessionUid, wait: WaitId) -> str:
        """The key of a wait that exists, or WaitNotFound."""
        ...

    async def answer(self, key: str, value: JsonValue) -> Answered:
        """Settle a wait by its key, from any process, before or after anybody waits for it. The first answer stands and
        is returned to later ones. The session of a turn that is parked on it becomes ready in the same transaction."""
        ...

    async def wait(self, uid: SessionUid, wait: WaitId) -> Wait:
        """The wait as of now: past its deadline it has timed out."""
        ...

    async def waits(self, uid: SessionUid) -> list[Wait]:
        """The session's waits in order of creation; those opened at one instant in order of id."""
        ...

    async def revoke(self, uid: SessionUid, waits: Sequence[WaitId]) -> list[Wait]:
        """Take back waits that are still pending; their keys open nothing from now on."""
        ...


class CommitStore(Protocol):
    """Settling operations."""

    async def commit(self, plan: CommitPlan) -> CommitReceipt:
        """Settle the plan in one transaction, or raise and change nothing.

        Checked in this order: the receipt (the same operation with the same content returns the first one, other
        content is OperationReused), the lease (LeaseLost), the head (HeadMoved), the unsettled turn with its cancel
        request and its items, the laws of the graph, the state parts and blobs. Items aimed at the turn that never
        entered become input for the next one; waits of the turn that are still pending are revoked; its journal is
        retired.
        """
        ...

    async def receipt(self, uid: SessionUid, operation: OperationId) -> CommitReceipt | None: ...

    async def parts(self, uid: SessionUid) -> dict[str, BlobHash]:
        """The state parts as of the head."""
        ...

    async def usage(self, uid: SessionUid) -> tuple[UsageTotal, ...]: ...


class OutboxStore(Protocol):
    """What commits owe other sessions."""

    async def debts(self, *, limit: int = 100) -> list[Debt]:
        """Undelivered outbox items, oldest first. One that cannot be read is left out and holds up no other."""
        ...

    async def deliver(self, debt: Debt) -> InboxItem | None:
        """Admit what is owed and mark it delivered, in one transaction; None when the receiver is gone, which ends the
        debt too. Delivering twice is delivering once; what was committed is delivered, whatever the given debt says."""
        ...


class BlobStore(Protocol):
    """Content by its hash."""

    async def put_blob(self, body: bytes) -> BlobHash:
        """Keep some bytes. The same bytes are kept once, and are as young as new when they are put again. What nothing
        refers to may be collected by a vacuum."""
        ...

    async def blob(self, blob: BlobHash) -> bytes: ...


class MaintenanceStore(Protocol):
    """Explicit retention: nothing is removed on its own."""

    async def vacuum(self, *, before: datetime, dry_run: bool = False) -> Vacuumed:
        """Remove what ended before that time and nothing needs any more.

        That is: completed and cancelled items, settled turns, settled waits, delivered debts, superseded documents that
        no unsettled turn has pinned, nodes and receipts of deleted sessions that no other session reaches which is
        living or was deleted since, blobs that nothing refers to. Receipts and nodes of living sessions stay. The key
        of an item that is gone names nothing any more: sent again, it is a new item.

        A large store is swept piece by piece. A failure raises, and is never an empty report; what was removed before
        it stays removed. ``dry_run`` reports what would go and removes nothing.
        """
        ...


class Store(
    SessionStore,
    GraphStore,
    InboxStore,
    LeaseStore,
    TurnStore,
    JournalStore,
    WaitStore,
    CommitStore,
    OutboxStore,
    BlobStore,
    MaintenanceStore,
    Protocol,
):
    """A whole store. Open it with ``async with``; after ``aclose`` every call is StoreClosed."""

    async def aclose(self) -> None: ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *exc: object) -> None: ...
