"""SqlStore: the contract on SQLite and on Postgres. Each method is one write for the writer, or one read."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Collection, Sequence
from datetime import datetime, timedelta
from typing import Self, TypeVar

from pydantic import JsonValue
from sqlalchemy import Connection

from lash import waits as wait_rules
from lash.commit.outbox import Debt
from lash.commit.parts import hash_of
from lash.commit.plan import CommitPlan, CommitReceipt
from lash.commit.usage import UsageTotal
from lash.encoding import JsonObject
from lash.errors import StoreClosed, StoreLocked
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
from lash.limits import MAX_BLOB, check_size
from lash.store.checks import check_cutoff, check_kind
from lash.store.contract import (
    CancelRequested,
    Opened,
    OpenedTurn,
    Page,
    ReadySession,
    SessionFilter,
    Snapshot,
    TurnOpening,
    Vacuumed,
)
from lash.store.keeper import ThreadKeeper
from lash.store.sql import blobs, commits, graph, inbox, leases, outbox, sessions, turns
from lash.store.sql import waits as sql_waits
from lash.store.sql.database import Database
from lash.store.sql.steps import Unsettled
from lash.store.sql.vacuum import Change, Look, rehearse, sweep
from lash.store.writer import MAX_RETRIES, Backlog, Writer
from lash.turn.journal import Identity, JournalEntry, JournalRecord
from lash.turn.record import CancelRequest, Turn
from lash.waits import Answered, NewWait, Wait

R = TypeVar("R")


class _Rehearsed(Exception):  # not an error: it carries a report out of a transaction that must not land
    def __init__(self, report: Vacuumed) -> None:
        self.report = report


class SqlStore:
    """An open database. ``secret`` signs the keys of waits; it was created with the database and is kept in it."""

    def __init__(self, database: Database, *, secret: bytes) -> None:
        self._database = database
        self._writer = Writer(database.settle)
        self._secret = secret
        self._closed = False
        self._closing: asyncio.Task[None] | None = None
        self._reads = 0
        self._unread = asyncio.Event()
        self._keepers: weakref.WeakSet[ThreadKeeper] = weakref.WeakSet()

    async def _read(self, look: Callable[[Connection], R]) -> R:
        self._check_open()
        self._reads += 1
        try:
            return await self._database.read(look)
        except Unsettled as error:
            raise error.refusal from error
        finally:
            self._reads -= 1
            if not self._reads:
                self._unread.set()

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosed("this store was closed; open it again")

    @property
    def backlog(self) -> Backlog:
        """How much waits to be written. When callers wait for room, the database is slower than they are."""
        return self._writer.backlog

    # -- sessions ------------------------------------------------------------------------------------------------------

    async def create(self, new: NewSession) -> Session:
        return await self._writer.write(sessions.create(new))

    async def open(self, new: NewSession) -> Opened:
        return await self._writer.write(sessions.open_or_create(new))

    async def get(self, name: SessionName) -> Session:
        return await self._read(lambda connection: sessions.get(connection, name))

    async def find(self, uid: SessionUid) -> Session:
        return await self._read(lambda connection: sessions.find_row(connection, uid).session())

    async def sessions(
        self, where: SessionFilter = SessionFilter(), *, after: str | None = None, limit: int = 100
    ) -> Page[Session]:
        return await self._read(lambda connection: sessions.page(connection, where, after, limit))

    async def delete(self, uid: SessionUid) -> bool:
        return await self._writer.write(sessions.delete(uid))

    async def document(self, uid: SessionUid, kind: DocumentKind, revision: int | None = None) -> Document:
        check_kind(kind)
        return await self._read(
            lambda connection: sessions.document(connection, sessions.find_row(connection, uid), kind, revision)
        )

    async def put_document(self, uid: SessionUid, kind: DocumentKind, body: JsonObject, *, expected: int) -> Document:
        return await self._writer.write(sessions.put_document(uid, kind, body, expected=expected))

    # -- graph ---------------------------------------------------------------------------------------------------------

    async def snapshot(self, uid: SessionUid) -> Snapshot:
        def look(connection: Connection) -> Snapshot:
            row = sessions.find_row(connection, uid)
            return Snapshot(
                session=row.session(),
                nodes=tuple(graph.read_frame(connection, row)),
                parts=commits.parts(connection, row),
                config=sessions.document(connection, row, "config", None),
                turn=turns.find_unsettled(connection, row),
            )

        return await self._read(look)

    async def nodes(self, uid: SessionUid, *, first: int = 0, last: int | None = None) -> list[Node]:
        return await self._read(
            lambda connection: graph.read_path(connection, sessions.find_row(connection, uid), first=first, last=last)
        )

    async def node(self, uid: SessionUid, node: NodeId) -> Node:
        return await self._read(lambda connection: graph.read_node(connection, uid, node))

    async def on_active_path(self, uid: SessionUid, node: NodeId) -> bool:
        return await self._read(lambda connection: graph.on_active_path(connection, uid, node))

    async def fork(self, new: NewFork) -> Session:
        return await self._writer.write(graph.fork(new))

    # -- inbox ---------------------------------------------------------------------------------------------------------

    async def admit(self, uid: SessionUid, item: NewItem) -> InboxItem:
        return await self._writer.write(inbox.admit(uid, item))

    async def item(self, uid: SessionUid, item: ItemId) -> InboxItem | None:
        return await self._read(lambda connection: inbox.item(connection, uid, item))

    async def items(
        self, uid: SessionUid, *, terminal: bool = False, after: str | None = None, limit: int = 100
    ) -> Page[InboxItem]:
        return await self._read(
            lambda connection: inbox.page(connection, uid, terminal=terminal, after=after, limit=limit)
        )

    async def cancel(self, uid: SessionUid, selection: Selection) -> list[Cancelled]:
        return await self._writer.write(inbox.cancel(uid, selection))

    # -- leases --------------------------------------------------------------------------------------------------------

    async def acquire(self, uid: SessionUid, owner: OwnerId, *, ttl: timedelta) -> Acquired:
        return await self._writer.write(leases.acquire(uid, owner, ttl))

    async def renew(self, lease: ExecutionLease, *, ttl: timedelta) -> ExecutionLease:
        return await self._writer.write(leases.renew(lease, ttl))

    async def release(self, lease: ExecutionLease) -> None:
        await self._writer.write(leases.release(lease))

    async def lease_keeper(self, *, ttl: timedelta, every: timedelta | None = None) -> ThreadKeeper:
        self._check_open()
        keeper = ThreadKeeper(self._database.renewer(ttl), ttl=ttl, every=every)
        self._keepers.add(keeper)
        return keeper

    async def lease(self, uid: SessionUid) -> LeaseRecord:
        return await self._read(lambda connection: leases.read(connection, uid))

    async def ready(self, agents: Collection[str], *, limit: int = 100) -> list[ReadySession]:
        return await self._read(
            lambda connection: leases.ready(connection, agents, limit, self._database.now(connection))
        )

    # -- turns ---------------------------------------------------------------------------------------------------------

    async def open_turn(self, opening: TurnOpening) -> OpenedTurn:
        return await self._writer.write(turns.open_turn(opening))

    async def take(
        self, lease: ExecutionLease, turn: TurnId, checkpoint: Boundary, *, key: ReplayKey, identity: Identity
    ) -> tuple[InboxItem, ...]:
        return await self._writer.write(turns.take(lease, turn, checkpoint, key=key, identity=identity))

    async def park(
        self, lease: ExecutionLease, turn: TurnId, *, waits: Sequence[WaitId] = (), until: datetime | None = None
    ) -> Turn:
        return await self._writer.write(turns.park(lease, turn, waits, until))

    async def turn(self, uid: SessionUid, turn: TurnId) -> Turn:
        return await self._read(lambda connection: turns.find(connection, uid, turn))

    async def unsettled_turn(self, uid: SessionUid) -> Turn | None:
        return await self._read(lambda connection: turns.find_unsettled(connection, sessions.find_row(connection, uid)))

    async def request_cancel(
        self, uid: SessionUid, turn: TurnId, request: RequestId, *, reason: str
    ) -> CancelRequested:
        return await self._writer.write(turns.request_cancel(uid, turn, request, reason))

    async def cancel_request(self, uid: SessionUid, turn: TurnId) -> CancelRequest | None:
        return await self._read(lambda connection: turns.cancel_request(connection, uid, turn))

    async def record(
        self, lease: ExecutionLease, turn: TurnId, records: Sequence[JournalRecord], *, waits: Sequence[NewWait] = ()
    ) -> tuple[JournalEntry, ...]:
        return await self._writer.write(turns.record_effects(lease, turn, records, waits))

    async def journal(self, uid: SessionUid, turn: TurnId) -> list[JournalEntry]:
        return await self._read(lambda connection: turns.journal(connection, uid, turn))

    # -- waits ---------------------------------------------------------------------------------------------------------

    async def open_wait(self, uid: SessionUid, wait: NewWait) -> str:
        await self._writer.write(sql_waits.open_wait(uid, wait))
        return wait_rules.sign(wait.id, self._secret)

    async def wait_key(self, uid: SessionUid, wait: WaitId) -> str:
        await self._read(lambda connection: sql_waits.find(connection, uid, wait))
        return wait_rules.sign(wait, self._secret)

    async def answer(self, key: str, value: JsonValue) -> Answered:
        self._check_open()
        wait = wait_rules.verify(key, self._secret)
        uid = await self._read(lambda connection: sql_waits.session_of(connection, wait))
        return await self._writer.write(sql_waits.answer(uid, wait, value))

    async def wait(self, uid: SessionUid, wait: WaitId) -> Wait:
        return await self._read(
            lambda connection: sql_waits.find(connection, uid, wait).as_of(self._database.now(connection))
        )

    async def waits(self, uid: SessionUid) -> list[Wait]:
        def look(connection: Connection) -> list[Wait]:
            now = self._database.now(connection)
            return [wait.as_of(now) for wait in sql_waits.of_session(connection, uid)]

        return await self._read(look)

    async def revoke(self, uid: SessionUid, waits: Sequence[WaitId]) -> list[Wait]:
        return await self._writer.write(sql_waits.revoke(uid, waits))

    # -- commits -------------------------------------------------------------------------------------------------------

    async def commit(self, plan: CommitPlan) -> CommitReceipt:
        return await self._writer.write(commits.commit(plan))

    async def receipt(self, uid: SessionUid, operation: OperationId) -> CommitReceipt | None:
        return await self._read(lambda connection: commits.receipt(connection, uid, operation))

    async def parts(self, uid: SessionUid) -> dict[str, BlobHash]:
        return await self._read(lambda connection: commits.parts(connection, sessions.find_row(connection, uid)))

    async def usage(self, uid: SessionUid) -> tuple[UsageTotal, ...]:
        return await self._read(lambda connection: commits.usage(connection, uid))

    # -- outbox, blobs, maintenance ------------------------------------------------------------------------------------

    async def debts(self, *, limit: int = 100) -> list[Debt]:
        return await self._read(lambda connection: outbox.debts(connection, limit))

    async def deliver(self, debt: Debt) -> InboxItem | None:
        stored = await self._read(lambda connection: outbox.stored(connection, debt))
        return await self._writer.write(outbox.deliver(stored))

    async def put_blob(self, body: bytes) -> BlobHash:
        self._check_open()
        check_size("a blob", len(body), MAX_BLOB)
        return await self._writer.write(blobs.put(hash_of(body), body))

    async def blob(self, blob: BlobHash) -> bytes:
        return await self._read(lambda connection: blobs.get(connection, blob))

    async def vacuum(self, *, before: datetime, dry_run: bool = False) -> Vacuumed:
        check_cutoff(before)
        self._check_open()
        if dry_run:
            return await self._rehearse(before)
        parts = sweep(before, self._database.now)
        answer: object = None
        while True:
            try:
                part = parts.send(answer)
            except StopIteration as end:
                report: Vacuumed = end.value
                return report
            answer = await (self._read(part.run) if isinstance(part, Look) else self._sweep(part))

    async def _sweep(self, part: Change) -> Vacuumed:
        for _ in range(MAX_RETRIES):
            try:
                return await self._alone(lambda connection: part.run(False, connection))
            except StoreLocked:
                continue
        return await self._alone(lambda connection: part.run(False, connection))

    async def _rehearse(self, before: datetime) -> Vacuumed:
        def change(connection: Connection) -> Vacuumed:
            raise _Rehearsed(rehearse(connection, sweep(before, self._database.now)))

        try:
            return await self._alone(change)
        except _Rehearsed as dry:
            return dry.report

    async def _alone(self, change: Callable[[Connection], R]) -> R:
        """One transaction between two batches."""
        try:
            return await self._writer.alone(lambda: self._database.transact(change))
        except Unsettled as error:
            raise error.refusal from error

    # -- life ----------------------------------------------------------------------------------------------------------

    async def aclose(self) -> None:
        """Settle what was submitted, let reads finish, then close. Whoever calls it, however often, waits for the same
        closing."""
        self._closed = True
        if self._closing is None:
            self._closing = asyncio.create_task(self._close(), name="lash-close")
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        try:
            await self._writer.aclose()
            while self._reads:
                self._unread.clear()
                await self._unread.wait()
            for keeper in list(self._keepers):  # last: what is being written needs its leases
                await keeper.aclose()
        finally:
            await self._database.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()
