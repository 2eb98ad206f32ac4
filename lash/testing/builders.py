"""Short words for the values and steps that store tests are made of."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TypeVar

from lash.commit.plan import CommitPlan, CommitReceipt
from lash.encoding import JsonObject
from lash.errors import LashError
from lash.graph.delta import Append, MoveHead, Unchanged, chain
from lash.graph.frames import INITIAL
from lash.graph.nodes import FrameOpened, MessageReceived, ModelReplied, Payload
from lash.graph.parts import Text
from lash.graph.session import Head, NewFork, NewSession, Session
from lash.ids import (
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
    mint_id,
)
from lash.inbox.items import Boundary, Command, InboxItem, Message, NewItem, Wake, When
from lash.lease import ExecutionLease
from lash.store.contract import OpenedTurn, Store, TurnOpening
from lash.testing.harness import StoreHarness
from lash.turn.journal import Finished, Identity, Started
from lash.turn.record import CANCELLED, Turn, TurnSettlement
from lash.waits import NewWait

__all__ = [
    "AT",
    "TTL",
    "Driven",
    "a_command",
    "a_fork",
    "a_held_session",
    "a_message",
    "a_new_session",
    "a_request_id",
    "a_session",
    "a_wait",
    "a_wait_id",
    "a_wake",
    "an_effect",
    "an_opening",
    "an_operation",
    "append",
    "append_to",
    "attempts_of",
    "commit_nodes",
    "displace",
    "finished",
    "fresh_name",
    "hears",
    "ids_of",
    "is_ready",
    "leaf_of",
    "must_acquire",
    "must_find",
    "must_open",
    "new_id",
    "open_with",
    "opens",
    "plan_nodes",
    "plan_of",
    "race",
    "rewind",
    "run_turn",
    "said",
    "says",
    "settle_turn",
    "settlement",
    "take_at",
    "take_over",
    "text_of",
    "texts_of",
]

T = TypeVar("T")
TTL = timedelta(seconds=30)
AT = datetime(2026, 1, 1, tzinfo=UTC)
"""A time for nodes whose time does not matter."""


def new_id() -> str:
    return mint_id(datetime.now(UTC))


def fresh_name(prefix: str = "s") -> SessionName:
    return SessionName(f"{prefix}-{uuid.uuid4().hex}")


def a_new_session(name: str | None = None, *, agent: str = "default", metadata: JsonObject | None = None) -> NewSession:
    chosen = fresh_name() if name is None else SessionName(name)
    return NewSession(SessionUid(new_id()), chosen, agent=agent, metadata=metadata or {})


def a_message(
    text: str = "hello",
    *,
    key: str | None = None,
    when: When = "next",
    boundary: Boundary = "after_work",
    merge_key: str | None = None,
    options: JsonObject | None = None,
    available_at: datetime | None = None,
) -> NewItem:
    return NewItem(
        ItemId(new_id()),
        Message(parts=(Text(text=text),)),
        key=key,
        when=when,
        boundary=boundary,
        merge_key=merge_key,
        options=options or {},
        available_at=available_at,
    )


def a_command(name: str = "refresh_tools", *, key: str | None = None) -> NewItem:
    return NewItem(ItemId(new_id()), Command(name=name), key=key)


def a_wake(source: str = "timer", *, key: str | None = None, merge_key: str | None = None) -> NewItem:
    return NewItem(ItemId(new_id()), Wake(source=source), key=key, merge_key=merge_key)


def text_of(item: InboxItem) -> str:
    """The words of a message made by ``a_message``."""
    assert isinstance(item.body, Message)
    part = item.body.parts[0]
    assert isinstance(part, Text)
    return part.text


def opens(reason: str = INITIAL) -> FrameOpened:
    return FrameOpened(reason=reason)


def hears(text: str) -> MessageReceived:
    return MessageReceived(parts=(Text(text=text),))


def says(text: str) -> ModelReplied:
    return ModelReplied(parts=(Text(text=text),), model="scripted")


def an_effect(key: str = "model:1", *, kind: str = "model", step: int = 1, call_id: str | None = None) -> Started:
    return Started(ReplayKey(key), Identity(kind, step, call_id=call_id))


def finished(started: Started, outcome: object = "done", *, failed: bool = False) -> Finished:
    return Finished(started.key, started.identity, outcome, failed=failed)  # type: ignore[arg-type]  # JSON by use


def append(session: Session, operation: OperationId, *payloads: Payload) -> Append:
    """These payloads after the session's head; a first commit opens the initial frame by itself."""
    return append_to(session.uid, session.head, operation, payloads)


def append_to(uid: SessionUid, head: Head, operation: OperationId, payloads: Sequence[Payload]) -> Append:
    first = () if head.leaf is not None or (payloads and payloads[0].kind == FrameOpened.kind) else (opens(),)
    return chain(uid, operation, [*first, *payloads], after=head, at=AT)


async def a_session(store: Store, name: str | None = None, *, agent: str = "default") -> Session:
    return await store.create(a_new_session(name, agent=agent))


async def must_acquire(store: Store, uid: SessionUid, owner: str = "owner", *, ttl: timedelta = TTL) -> ExecutionLease:
    return (await store.acquire(uid, OwnerId(owner), ttl=ttl)).lease


def an_opening(uid: SessionUid, owner: str = "owner", *, ttl: timedelta = TTL, **more: object) -> TurnOpening:
    return TurnOpening(uid, OwnerId(owner), TurnId(new_id()), ttl, **more)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Driven:
    """A turn that was opened: everything that a driver has in hand."""

    lease: ExecutionLease
    turn: Turn
    items: tuple[InboxItem, ...]
    opened: OpenedTurn


async def must_open(store: Store, uid: SessionUid, owner: str = "owner", *, ttl: timedelta = TTL) -> Driven:
    """Open a turn on what is pending, or fail the test."""
    opened = await store.open_turn(an_opening(uid, owner, ttl=ttl))
    assert opened.turn is not None, "no turn could be opened"
    assert opened.acquired is not None
    return Driven(opened.acquired.lease, opened.turn, opened.items, opened)


async def open_with(store: Store, uid: SessionUid, text: str = "hello", owner: str = "owner") -> Driven:
    """Admit a message and open the turn that takes it."""
    await store.admit(uid, a_message(text))
    return await must_open(store, uid, owner)


def settlement(driven: Driven, outcome: str = "finished", *, cancelled_by: RequestId | None = None) -> TurnSettlement:
    return TurnSettlement(
        driven.turn.id, outcome, completes=frozenset(item.id for item in driven.items), cancelled_by=cancelled_by
    )


async def plan_of(store: Store, driven: Driven, *payloads: Payload, release: bool = False) -> CommitPlan:
    """The plan that settles a turn with these nodes, made from the session's present head."""
    session = await store.find(driven.lease.session)
    operation = OperationId(driven.turn.id)
    return CommitPlan(
        operation,
        driven.lease,
        base=session.head.revision,
        delta=append(session, operation, *(payloads or (says("hi"),))),
        settles=settlement(driven),
        release=release,
    )


async def commit_nodes(
    store: Store, lease: ExecutionLease, *payloads: Payload, operation: OperationId | None = None
) -> CommitReceipt:
    """Commit some nodes outside any turn."""
    session = await store.find(lease.session)
    chosen = operation or OperationId(new_id())
    delta = append(session, chosen, *payloads)
    return await store.commit(CommitPlan(chosen, lease, base=session.head.revision, delta=delta))


async def run_turn(store: Store, uid: SessionUid, text: str, owner: str = "owner") -> CommitReceipt:
    """One whole turn: a message in, a reply out, committed; the lease stays with its owner."""
    driven = await open_with(store, uid, text, owner)
    return await store.commit(await plan_of(store, driven, hears(text), says(f"re: {text}")))


async def said(store: Store, uid: SessionUid) -> list[str]:
    """What was said on the active path, in order: the texts of messages and replies."""
    found: list[str] = []
    for node in await store.nodes(uid):
        payload = node.payload
        if isinstance(payload, MessageReceived | ModelReplied):
            found += [part.text for part in payload.parts if isinstance(part, Text)]
    return found


def a_wait_id() -> WaitId:
    return WaitId(new_id())


def an_operation() -> OperationId:
    return OperationId(new_id())


def a_request_id() -> RequestId:
    return RequestId(new_id())


def a_fork(parent: SessionUid, at: NodeId, name: str | None = None, *, metadata: JsonObject | None = None) -> NewFork:
    chosen = fresh_name("fork") if name is None else SessionName(name)
    return NewFork(SessionUid(new_id()), chosen, parent, at, metadata=metadata or {})


def leaf_of(receipt: CommitReceipt) -> NodeId:
    """The node that a commit left the head on."""
    assert receipt.leaf is not None, "the session is empty"
    return receipt.leaf


async def a_held_session(store: Store, owner: str = "owner") -> ExecutionLease:
    """A new session, and the lease to commit to it."""
    return await must_acquire(store, (await a_session(store)).uid, owner)


async def plan_nodes(store: Store, lease: ExecutionLease, *payloads: Payload) -> CommitPlan:
    """The plan of some nodes outside any turn, made from the present head; without nodes the graph stays as it is."""
    session = await store.find(lease.session)
    operation = an_operation()
    delta = append(session, operation, *payloads) if payloads else Unchanged()
    return CommitPlan(operation, lease, base=session.head.revision, delta=delta)


async def rewind(store: Store, lease: ExecutionLease, to: NodeId) -> CommitReceipt:
    session = await store.find(lease.session)
    return await store.commit(CommitPlan(an_operation(), lease, base=session.head.revision, delta=MoveHead(to)))


async def race(*calls: Awaitable[T]) -> tuple[list[T], list[LashError]]:
    """Make some calls at once: what they returned, and what they were refused with. Any other error is raised."""
    ends = await asyncio.gather(*calls, return_exceptions=True)
    for end in ends:
        if isinstance(end, BaseException) and not isinstance(end, LashError):
            raise end
    returned = [end for end in ends if not isinstance(end, BaseException)]
    return returned, [end for end in ends if isinstance(end, LashError)]


async def displace(
    harness: StoreHarness, store: Store, uid: SessionUid, owner: str = "successor", *, ttl: timedelta = TTL
) -> ExecutionLease:
    """Let the present lease run out and give it to somebody else."""
    await harness.advance(2 * TTL)
    return await must_acquire(store, uid, owner, ttl=ttl)


async def take_over(harness: StoreHarness, store: Store, uid: SessionUid, owner: str = "successor") -> Driven:
    """Let the present lease run out, as after a crash, and let somebody else take up the unsettled turn."""
    await harness.advance(2 * TTL)
    return await must_open(store, uid, owner)


async def is_ready(harness: StoreHarness, store: Store, uid: SessionUid) -> bool:
    """Whether the session needs a worker now."""
    ready_at = (await store.find(uid)).ready_at
    return ready_at is not None and ready_at <= await harness.now()


async def settle_turn(
    store: Store,
    driven: Driven,
    *,
    also: Iterable[InboxItem] = (),
    gives_back: Iterable[InboxItem] = (),
    cancelled_by: RequestId | None = None,
    release: bool = False,
) -> CommitReceipt:
    """Commit a turn: it completes what it opened with and ``also`` these, or gives some of them back."""
    plan = await plan_of(store, driven, release=release)
    returned = frozenset(item.id for item in gives_back)
    settles = TurnSettlement(
        driven.turn.id,
        "finished" if cancelled_by is None else CANCELLED,
        completes=frozenset(item.id for item in (*driven.items, *also)) - returned,
        gives_back=returned,
        cancelled_by=cancelled_by,
    )
    return await store.commit(replace(plan, settles=settles))


def a_wait(name: str = "approval", *, turn: TurnId | None = None, expires_at: datetime | None = None) -> NewWait:
    return NewWait(a_wait_id(), name, turn=turn, expires_at=expires_at)


def ids_of(items: Iterable[InboxItem]) -> set[ItemId]:
    return {item.id for item in items}


def texts_of(items: Iterable[InboxItem]) -> list[str]:
    return [text_of(item) for item in items]


async def take_at(
    store: Store, driven: Driven, checkpoint: Boundary = "after_work", *, key: str = "take:1", step: int = 1
) -> tuple[InboxItem, ...]:
    """Take what may enter the turn at a checkpoint."""
    identity = Identity("take", step)
    return await store.take(driven.lease, driven.turn.id, checkpoint, key=ReplayKey(key), identity=identity)


async def must_find(store: Store, uid: SessionUid, item: ItemId) -> InboxItem:
    found = await store.item(uid, item)
    assert found is not None, f"there is no item {item}"
    return found


async def attempts_of(store: Store, uid: SessionUid) -> int:
    """The attempts of the unsettled turn."""
    turn = await store.unsettled_turn(uid)
    assert turn is not None, "no turn is unsettled"
    return turn.attempts
