"""A real store behind the words of the model: plain values in, plain values out, refusals by name, times in ticks.

A tick is longer than a whole history takes. On a clock that stands still an instant is exactly on a tick; on one that
runs by itself (Postgres) it is a little later, which no rule may notice: leases, deadlines and jumps are whole ticks.
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Any, cast

from hypothesis import HealthCheck, Phase, settings
from pydantic import JsonValue

from lash.commit import outbox
from lash.commit.parts import Changed, Kept, StateParts
from lash.commit.plan import CommitPlan, CommitReceipt
from lash.commit.usage import Tokens, UsageDelta
from lash.encoding import JsonObject
from lash.errors import LashError
from lash.graph import nodes, session
from lash.graph.delta import GraphDelta, MoveHead, Unchanged, chain
from lash.graph.parts import File, Text
from lash.graph.session import DocumentKind, NewFork, NewSession
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
from lash.inbox import items
from lash.inbox.cancelling import From, Keyed, Selection, These
from lash.inbox.items import Boundary, InboxItem, NewItem
from lash.lease import Acquired, ExecutionLease, LeaseRecord
from lash.store.contract import Store, TurnOpening
from lash.testing.harness import StoreHarness
from lash.turn import record
from lash.turn.journal import Finished, Identity, JournalEntry, JournalRecord, Started
from lash.turn.record import TurnSettlement
from lash.waits import NewWait
from tests.contract.stores import postgres_harness
from tests.postgres import PostgresServer

from . import store_model as plain
from .store_model import (
    Arriving,
    Entry,
    Grow,
    Head,
    Item,
    Lease,
    Letter,
    Node,
    Owing,
    Payload,
    Plan,
    Promise,
    Receipt,
    Record,
    Refused,
    SessionRow,
    Settling,
    Turn,
    View,
    Wait,
    hash_of,
)

LONG = bool(os.environ.get("LASH_LONG"))
LONG_ENOUGH = 36000 if LONG else 300
"""How many seconds a test may take, time to shorten a failing history included."""
TICK = timedelta(minutes=2)
AGENTS = ("writer", "reader")


class PlainStore:
    """One store, spoken to as the model is. ``exact`` says that its clock stands still."""

    def __init__(self, harness: StoreHarness, start: datetime, *, exact: bool) -> None:
        self.harness = harness
        self.start = start
        self.exact = exact
        self.now = 0
        self.keys: dict[str, str] = {}
        self.store: Store

    @classmethod
    async def begin(cls, harness: StoreHarness, *, exact: bool) -> PlainStore:
        store = cls(harness, await harness.now(), exact=exact)
        store.store = await harness.open()
        return store

    async def attempt(self, method: str, *args: object) -> Any:
        try:
            return await getattr(self, method)(*args)
        except LashError as error:
            return Refused(type(error).__name__)

    async def aclose(self) -> None:
        await self.store.aclose()

    async def reopen(self) -> None:
        await self.store.aclose()
        self.store = await self.harness.open()

    async def advance(self, ticks: int) -> None:
        self.now += ticks
        await self.harness.advance(ticks * TICK)

    def at(self, tick: float) -> datetime:
        return self.start + tick * TICK

    def when(self, tick: int | None) -> datetime | None:
        return None if tick is None else self.at(tick)

    def tick(self, at: datetime) -> int:
        ticks, late = divmod(at - self.start, TICK)
        assert not late or not self.exact, f"{at} is on no tick"
        assert late < TICK / 2, "this history took too long for its ticks"
        return ticks

    def ticked(self, at: datetime | None) -> int | None:
        return None if at is None else self.tick(at)

    # -- sessions ------------------------------------------------------------------------------------------------------

    async def create(self, uid: str, name: str, agent: str) -> SessionRow:
        return self._row(await self.store.create(NewSession(SessionUid(uid), SessionName(name), agent)))

    async def open(self, uid: str, name: str, agent: str) -> tuple[SessionRow, bool]:
        opened = await self.store.open(NewSession(SessionUid(uid), SessionName(name), agent))
        return self._row(opened.session), opened.created

    async def fork(self, uid: str, name: str, parent: str, at: str) -> SessionRow:
        new = NewFork(SessionUid(uid), SessionName(name), SessionUid(parent), NodeId(at))
        return self._row(await self.store.fork(new))

    async def get(self, name: str) -> SessionRow:
        return self._row(await self.store.get(SessionName(name)))

    async def find(self, uid: str) -> SessionRow:
        return self._row(await self.store.find(SessionUid(uid)))

    async def delete(self, uid: str) -> bool:
        return await self.store.delete(SessionUid(uid))

    async def put_document(self, uid: str, kind: str, text: str, expected: int) -> tuple[int, str]:
        body = json.loads(text)
        kept = await self.store.put_document(SessionUid(uid), cast(DocumentKind, kind), body, expected=expected)
        return kept.revision, _text_of(kept.body)

    async def document(self, uid: str, kind: str, revision: int) -> str:
        return _text_of((await self.store.document(SessionUid(uid), cast(DocumentKind, kind), revision)).body)

    def _row(self, found: session.Session) -> SessionRow:
        head = found.head
        return SessionRow(
            found.uid,
            found.name,
            found.agent,
            Head(head.revision, head.leaf, head.depth, head.frame),
            self.tick(found.created_at),
            self.ticked(found.ready_at),
            found.seq,
            (found.config_revision, found.catalog_revision, found.metadata_revision),
            found.forked_from,
        )

    # -- the graph -----------------------------------------------------------------------------------------------------

    async def node(self, uid: str, node: str) -> Node:
        return _node(await self.store.node(SessionUid(uid), NodeId(node)))

    async def on_active_path(self, uid: str, node: str) -> bool:
        return await self.store.on_active_path(SessionUid(uid), NodeId(node))

    # -- the inbox -----------------------------------------------------------------------------------------------------

    async def admit(self, uid: str, arriving: Arriving) -> Item:
        return self._item(await self.store.admit(SessionUid(uid), self._new_item(arriving)))

    async def cancel(self, uid: str, by: str, names: tuple[str, ...]) -> list[tuple[str, str, Item | None]]:
        selection: Selection = These(tuple(map(ItemId, names)))
        if by != "ids":
            selection = Keyed(names) if by == "keys" else From(ItemId(names[0]))
        answers = await self.store.cancel(SessionUid(uid), selection)
        return [(a.named, a.answer, None if a.item is None else self._item(a.item)) for a in answers]

    def _new_item(self, arriving: Arriving) -> NewItem:
        letter = arriving.letter
        return NewItem(
            ItemId(arriving.id),
            _body(letter),
            key=letter.key,
            when=arriving.when,
            boundary=letter.boundary,
            merge_key=letter.merge,
            options=_options(letter),
            available_at=self.when(letter.due),
        )

    def _item(self, item: InboxItem) -> Item:
        text, blob = _said(item.body)
        option = item.options.get("mode")
        letter = Letter(
            text,
            item.body.kind,
            key=item.key,
            boundary=item.boundary,
            merge=item.merge_key,
            option=None if option is None else str(option),
            due=self.ticked(item.available_at),
            blob=blob,
        )
        return Item(
            item.id,
            letter,
            item.when,
            item.seq,
            self.tick(item.admitted_at),
            item.state,
            item.target,
            item.turn,
            self.ticked(item.settled_at),
        )

    # -- leases --------------------------------------------------------------------------------------------------------

    async def acquire(self, uid: str, owner: str, ttl: int) -> tuple[Lease, Lease | None]:
        return self._acquired(await self.store.acquire(SessionUid(uid), OwnerId(owner), ttl=ttl * TICK))

    async def renew(self, lease: Lease, ttl: int) -> Lease:
        return self._lease(await self.store.renew(self._held(lease), ttl=ttl * TICK))

    async def release(self, lease: Lease) -> None:
        await self.store.release(self._held(lease))

    def _held(self, lease: Lease) -> ExecutionLease:
        expires_at = self.at(lease.expires_at or 0)
        return ExecutionLease(SessionUid(lease.session), OwnerId(lease.owner or "nobody"), lease.generation, expires_at)

    def _lease(self, lease: ExecutionLease) -> Lease:
        return Lease(lease.session, lease.owner, lease.generation, self.tick(lease.expires_at))

    def _lease_row(self, uid: str, row: LeaseRecord) -> Lease:
        return Lease(uid, row.owner, row.generation, self.ticked(row.expires_at))

    def _acquired(self, acquired: Acquired) -> tuple[Lease, Lease | None]:
        lease, put_out = acquired.lease, acquired.displaced
        displaced = None
        if put_out is not None:
            displaced = Lease(lease.session, put_out.owner, put_out.generation, self.tick(put_out.expires_at))
        return self._lease(lease), displaced

    async def ready(self) -> list[tuple[int, str]]:
        found = await self.store.ready(AGENTS)
        waited = [session.ready_at for session in found]
        assert waited == sorted(waited), "those that have waited longest come first"
        return sorted((self.tick(session.ready_at), session.uid) for session in found)

    # -- turns ---------------------------------------------------------------------------------------------------------

    async def open_turn(
        self, uid: str, owner: str, turn: str, ttl: int, admits: Arriving | None, starts: tuple[Record, ...]
    ) -> plain.Opened:
        opening = TurnOpening(
            SessionUid(uid),
            OwnerId(owner),
            TurnId(turn),
            ttl * TICK,
            admits=None if admits is None else self._new_item(admits),
            starts=tuple(_started(start) for start in starts),
        )
        opened = await self.store.open_turn(opening)
        lease, displaced = (None, None) if opened.acquired is None else self._acquired(opened.acquired)
        return plain.Opened(
            admitted=None if opened.admitted is None else self._item(opened.admitted),
            lease=lease,
            displaced=displaced,
            turn=None if opened.turn is None else self._turn(opened.turn),
            items=tuple(map(self._item, opened.items)),
            fresh=opened.fresh,
            held_by=None if opened.held_by is None else self._lease_row(uid, opened.held_by),
        )

    async def take(self, lease: Lease, turn: str, checkpoint: str, key: str, effect: str) -> tuple[Item, ...]:
        taken = await self.store.take(
            self._held(lease),
            TurnId(turn),
            cast(Boundary, checkpoint),
            key=ReplayKey(key),
            identity=Identity(effect, 1),
        )
        return tuple(map(self._item, taken))

    async def park(self, lease: Lease, turn: str, waits: tuple[str, ...], until: int | None) -> Turn:
        named = [WaitId(wait) for wait in waits]
        return self._turn(await self.store.park(self._held(lease), TurnId(turn), waits=named, until=self.when(until)))

    async def turn(self, uid: str, turn: str) -> Turn:
        return self._turn(await self.store.turn(SessionUid(uid), TurnId(turn)))

    async def request_cancel(self, uid: str, turn: str, request: str) -> tuple[plain.Cancel, bool]:
        asked = await self.store.request_cancel(SessionUid(uid), TurnId(turn), RequestId(request), reason="stop")
        return self._cancel(asked.request), asked.first

    def _cancel(self, request: record.CancelRequest) -> plain.Cancel:
        return plain.Cancel(request.id, request.turn, self.tick(request.requested_at))

    def _turn(self, turn: record.Turn) -> Turn:
        option = turn.options.get("mode")
        return Turn(
            turn.id,
            turn.state,
            turn.attempts,
            turn.generation,
            turn.base_revision,
            turn.config_revision,
            turn.catalog_revision,
            self.tick(turn.opened_at),
            None if option is None else str(option),
            turn.items,
            self.ticked(turn.parked_until),
            turn.parked_on,
            turn.outcome,
            self.ticked(turn.settled_at),
        )

    # -- the journal ---------------------------------------------------------------------------------------------------

    async def record(
        self, lease: Lease, turn: str, records: tuple[Record, ...], waits: tuple[Promise, ...]
    ) -> tuple[Entry, ...]:
        news = [_started(new) if new.ends is None else _finished(new) for new in records]
        opened = [self._new_wait(promise) for promise in waits]
        entries = await self.store.record(self._held(lease), TurnId(turn), news, waits=opened)
        for wait in opened:
            self.keys[wait.id] = await self.store.wait_key(SessionUid(lease.session), wait.id)
        return tuple(map(self._entry, entries))

    async def journal(self, uid: str, turn: str) -> tuple[Entry, ...]:
        return tuple(map(self._entry, await self.store.journal(SessionUid(uid), TurnId(turn))))

    def _entry(self, entry: JournalEntry) -> Entry:
        return Entry(
            entry.key,
            entry.identity.kind,
            entry.state,
            entry.seq,
            self.tick(entry.started_at),
            _outcome(entry.outcome),
            self.ticked(entry.finished_at),
            entry.wait,
        )

    # -- waits ---------------------------------------------------------------------------------------------------------

    async def open_wait(self, uid: str, promise: Promise) -> None:
        key = await self.store.open_wait(SessionUid(uid), self._new_wait(promise))
        assert self.keys.setdefault(promise.id, key) == key, "a wait has one key for ever"

    async def wait(self, uid: str, wait: str) -> Wait:
        return self._wait(await self.store.wait(SessionUid(uid), WaitId(wait)))

    async def answer(self, wait: str, value: str, genuine: bool) -> tuple[Wait, bool]:
        key = self.keys.get(wait, wait)
        answered = await self.store.answer(key if genuine else f"{wait}.{'0' * 40}", value)
        return self._wait(answered.wait), answered.accepted

    async def revoke(self, uid: str, waits: tuple[str, ...]) -> list[Wait]:
        return [self._wait(wait) for wait in await self.store.revoke(SessionUid(uid), [WaitId(w) for w in waits])]

    def _new_wait(self, promise: Promise) -> NewWait:
        turn = None if promise.turn is None else TurnId(promise.turn)
        return NewWait(WaitId(promise.id), "approval", turn=turn, expires_at=self.when(promise.expires_at))

    def _wait(self, wait: Any) -> Wait:
        return Wait(
            wait.id,
            wait.turn,
            self.tick(wait.created_at),
            self.ticked(wait.expires_at),
            wait.state,
            wait.answer,
            self.ticked(wait.settled_at),
        )

    # -- commits -------------------------------------------------------------------------------------------------------

    async def commit(self, plan: Plan) -> Receipt:
        return self._receipt(await self.store.commit(self._plan(plan)))

    async def receipt(self, uid: str, operation: str) -> Receipt | None:
        found = await self.store.receipt(SessionUid(uid), OperationId(operation))
        return None if found is None else self._receipt(found)

    def _receipt(self, receipt: CommitReceipt) -> Receipt:
        at = self.tick(receipt.committed_at)
        return Receipt(receipt.operation, receipt.revision, receipt.leaf, receipt.seq, at)

    def _plan(self, plan: Plan) -> CommitPlan:
        return CommitPlan(
            OperationId(plan.operation),
            self._held(plan.lease),
            plan.base,
            delta=self._delta(plan),
            settles=None if plan.settles is None else _settlement(plan.settles),
            parts=None if plan.parts is None else _parts(plan.parts),
            usage=tuple(UsageDelta("agent", model, Tokens(input=count)) for model, count in plan.usage),
            owes=tuple(self._owed(owing) for owing in plan.owes),
            documents=cast(Mapping[DocumentKind, JsonObject], {kind: json.loads(t) for kind, t in plan.documents}),
            release=plan.release,
        )

    def _delta(self, plan: Plan) -> GraphDelta:
        match plan.delta:
            case None:
                return Unchanged()
            case plain.Move(to=to):
                return MoveHead(NodeId(to))
            case Grow(after=after, payloads=payloads):
                leaf = None if after.leaf is None else NodeId(after.leaf)
                head = session.Head(after.revision, leaf, after.depth, after.frame)
                uid, operation = SessionUid(plan.lease.session), OperationId(plan.operation)
                return chain(uid, operation, [_payload(p) for p in payloads], after=head, at=self.at(self.now))

    def _owed(self, owing: Owing) -> outbox.Owed:
        letter = owing.letter
        return outbox.Owed(
            SessionUid(owing.to),
            _body(letter),
            owing.when,
            letter.boundary,
            letter.merge,
            _options(letter),
            self.when(letter.due),
        )

    # -- debts, blobs, retention ---------------------------------------------------------------------------------------

    async def debts(self) -> list[tuple[str, str, int]]:
        return sorted((debt.session, debt.operation, debt.ordinal) for debt in await self.store.debts())

    async def deliver(self, place: tuple[str, str, int]) -> Item | None:
        uid, operation, ordinal = place
        words = outbox.Owed(SessionUid("0" * 32), items.Wake(source="whatever the caller says"))
        paid = await self.store.deliver(outbox.Debt(SessionUid(uid), OperationId(operation), ordinal, words))
        return None if paid is None else self._item(paid)

    async def put_blob(self, text: str) -> str:
        return await self.store.put_blob(text.encode())

    async def blob(self, text: str) -> str:
        return (await self.store.blob(BlobHash(hash_of(text)))).decode()

    async def vacuum(self, keeps: int, dry_run: bool) -> dict[str, int]:
        """Half a tick earlier than it says, so that nothing hangs on instants that are equal on one clock only."""
        report = await self.store.vacuum(before=self.at(self.now - keeps - 0.5), dry_run=dry_run)
        return {name: getattr(report, name) for name in report.__slots__}

    # -- everything that can be read -----------------------------------------------------------------------------------

    async def sessions(self) -> list[str]:
        return [found.uid for found in (await self.store.sessions()).rows]

    async def look(self, uid: str) -> View:
        store, name = self.store, SessionUid(uid)
        snapshot = await store.snapshot(name)
        turn = snapshot.turn
        cancel = None if turn is None else await store.cancel_request(name, turn.id)
        waits = [self._wait(wait) for wait in await store.waits(name)]
        return View(
            row=self._row(snapshot.session),
            path=tuple(map(_node, await store.nodes(name))),
            frame=tuple(node.id for node in snapshot.nodes),
            parts=tuple(sorted(snapshot.parts.items())),
            config=_text_of(snapshot.config.body),
            items=tuple(map(self._item, (await store.items(name, terminal=True)).rows)),
            turn=None if turn is None else self._turn(turn),
            cancel=None if cancel is None else self._cancel(cancel),
            lease=self._lease_row(uid, await store.lease(name)),
            journal=() if turn is None else await self.journal(uid, turn.id),
            waits=tuple(sorted(waits, key=lambda wait: (wait.created_at, wait.id))),
            usage=tuple((total.model, total.tokens.input) for total in await store.usage(name)),
        )


# -- plain values and lash's own ---------------------------------------------------------------------------------------


def _text_of(body: JsonObject) -> str:
    return json.dumps(body)


def _options(letter: Letter) -> JsonObject:
    return {} if letter.option is None else {"mode": letter.option}


def _file(text: str) -> File:
    return File(blob=BlobHash(hash_of(text)), media_type="text/plain", name=text)


def _body(letter: Letter) -> items.Message | items.Command | items.Wake:
    match letter.kind:
        case "command":
            return items.Command(name=letter.text)
        case "wake":
            return items.Wake(source=letter.text)
        case "message":
            file = () if letter.blob is None else (_file(letter.blob),)
            return items.Message(parts=(Text(text=letter.text), *file))


def _said(body: items.Message | items.Command | items.Wake) -> tuple[str, str | None]:
    match body:
        case items.Command(name=text) | items.Wake(source=text):
            return text, None
        case items.Message(parts=(Text(text=text), *files)):
            return text, next((file.name for file in files if isinstance(file, File)), None)
        case _:
            raise AssertionError(f"nobody sent {body}")


def _payload(payload: Payload) -> nodes.Payload:
    match payload:
        case ("opens", reason):
            return nodes.FrameOpened(reason=reason)
        case ("says", text):
            return nodes.ModelReplied(parts=(Text(text=text),), model="scripted")
        case (_, text):
            return nodes.MessageReceived(parts=(_file(text),))


def _node(node: nodes.Node) -> Node:
    match node.payload:
        case nodes.FrameOpened(reason=reason):
            payload: Payload = ("opens", reason)
        case nodes.ModelReplied(parts=(Text(text=text),)):
            payload = ("says", text)
        case nodes.MessageReceived(parts=(File(name=name),)):
            payload = ("shows", name)
        case _:
            raise AssertionError(f"nobody committed {node}")
    return Node(node.id, node.parent, node.depth, node.frame, payload, node.seq)


def _started(new: Record) -> Started:
    wait = None if new.wait is None else WaitId(new.wait)
    return Started(ReplayKey(new.key), Identity(new.effect, 1), wait=wait)


def _finished(new: Record) -> JournalRecord:
    return Finished(ReplayKey(new.key), Identity(new.effect, 1), new.outcome, failed=new.ends == "failed")


def _outcome(outcome: JsonValue) -> object:
    match outcome:
        case {"items": list(ids)}:
            return tuple(ids)
        case _:
            return outcome


def _settlement(settles: Settling) -> TurnSettlement:
    return TurnSettlement(
        TurnId(settles.turn),
        settles.outcome,
        completes=frozenset(map(ItemId, settles.completes)),
        gives_back=frozenset(map(ItemId, settles.gives_back)),
        cancelled_by=None if settles.cancelled_by is None else RequestId(settles.cancelled_by),
    )


def _parts(parts: tuple[tuple[str, str, bool], ...]) -> StateParts:
    return {name: Changed(text.encode()) if brought else Kept(BlobHash(hash_of(text))) for name, text, brought in parts}


def same_histories(count: int) -> settings:
    """So many histories, the same in every run; with LASH_LONG fifty times as many, others in every run."""
    return settings(
        max_examples=count * 50 if LONG else count,
        derandomize=not LONG,
        database=None,
        deadline=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )


@asynccontextmanager
async def own_postgres(server: PostgresServer) -> AsyncIterator[StoreHarness]:
    """A database of its own for one history, gone with it: there may be many."""
    url = server.fresh()
    try:
        async with postgres_harness(url) as harness:
            yield harness
    finally:
        server.execute(f"DROP DATABASE {url.database} WITH (FORCE)")


# -- plans -------------------------------------------------------------------------------------------------------------


def grown(head: Head, text: str) -> tuple[Payload, ...]:
    """A text after a head. In an empty session it opens the first frame."""
    said: Payload = ("says", text)
    return (said,) if head.leaf is not None else (("opens", "initial"), said)


def settled(view: View, lease: Lease, text: str, *, gives_back: bool = False) -> Plan:
    """The plan that settles the turn of this session, as cancelled when somebody asked for that."""
    assert view.turn is not None
    turn, cancel = view.turn.id, view.cancel
    taken = frozenset(item.id for item in view.items if item.state == "taken")
    settles = Settling(
        turn,
        "finished" if cancel is None else "cancelled",
        completes=frozenset() if gives_back else taken,
        gives_back=taken if gives_back else frozenset(),
        cancelled_by=None if cancel is None else cancel.request,
    )
    head = view.row.head
    return Plan(turn, lease, head.revision, Grow(head, grown(head, text)), settles)
