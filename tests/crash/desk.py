"""What all hands of a worker share, and every write they make: one method for each, which tells all that the judge must
know to check it."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from lash.commit.outbox import Debt
from lash.commit.plan import CommitPlan, CommitReceipt
from lash.graph.delta import Append
from lash.graph.session import NewFork, NewSession
from lash.ids import BlobHash, ItemId, RequestId, SessionUid, TurnId, WaitId, mint_id
from lash.inbox.cancelling import These
from lash.inbox.items import InboxItem, Message, NewItem, Wake
from lash.lease import ExecutionLease
from lash.store.contract import OpenedTurn, Store, TurnOpening
from lash.turn.journal import Finished, Identity, JournalRecord
from lash.waits import Answered, NewWait
from tests.crash.telling import Teller

TTL = timedelta(seconds=1)
"""Short, so that nobody waits long for a dead owner."""


def new_id() -> str:
    return mint_id(datetime.now(UTC))


def soon(milliseconds: int) -> datetime:
    """By the time of day, whatever the store's clock shows."""
    return datetime.now(UTC) + timedelta(milliseconds=milliseconds)


def digest(text: str | bytes) -> str:
    return hashlib.sha256(text if isinstance(text, bytes) else text.encode()).hexdigest()


def words_of(item: InboxItem | NewItem) -> str:
    """What an item says: a message of one text, or a wake with a text in it."""
    match item.body:
        case Message(parts=parts):
            return str(getattr(parts[0], "text", parts[0]))
        case Wake(data=data):
            return str(data)
        case _:
            raise AssertionError(f"nobody sends a {item.body.kind}")


@dataclass
class Desk:
    """``main`` are the sessions that every worker works on, ``own`` those that this one has made, and may delete."""

    store: Store
    teller: Teller
    worker: str
    prefix: str
    sweeps: bool = False
    """Whether its keeper vacuums now and then."""
    main: list[SessionUid] = field(default_factory=list)
    own: list[SessionUid] = field(default_factory=list)
    _tokens: itertools.count[int] = field(default_factory=itertools.count)

    def token(self) -> str:
        """A word that nobody else says, ever."""
        return f"{self.prefix}/{self.worker}/{next(self._tokens)}"

    # -- sessions ------------------------------------------------------------------------------------------------------

    async def open(self, new: NewSession) -> SessionUid:
        opened = await self.teller.call(
            "open",
            lambda: self.store.open(new),
            lambda opened: {"session": opened.session.uid, "created": opened.created},
            session=new.uid,
            name=new.name,
        )
        return opened.session.uid

    async def fork(self, new: NewFork) -> SessionUid:
        await self.teller.call(
            "fork", lambda: self.store.fork(new), session=new.uid, name=new.name, parent=new.parent, at=new.at
        )
        return new.uid

    async def delete(self, uid: SessionUid) -> None:
        await self.teller.call("delete", lambda: self.store.delete(uid), session=uid)

    async def put_document(self, uid: SessionUid, word: str, expected: int) -> None:
        await self.teller.call(
            "put_document",
            lambda: self.store.put_document(uid, "metadata", {"by": word}, expected=expected),
            lambda document: document.revision,
            session=uid,
            word=word,
            expected=expected,
        )

    async def put_blob(self, word: str, size: int) -> BlobHash:
        body = word.encode().ljust(size, b".")
        blob = BlobHash(digest(body))
        await self.teller.call(
            "put_blob", lambda: self.store.put_blob(body), session=None, word=word, size=size, blob=blob
        )
        return blob

    # -- the inbox -----------------------------------------------------------------------------------------------------

    async def admit(self, uid: SessionUid, item: NewItem) -> None:
        await self.teller.call(
            "admit",
            lambda: self.store.admit(uid, item),
            lambda item: {"id": item.id, "seq": item.seq},
            session=uid,
            **_admitted(item),
        )

    async def cancel(self, uid: SessionUid, item: ItemId) -> None:
        await self.teller.call(
            "cancel",
            lambda: self.store.cancel(uid, These((item,))),
            lambda answers: answers[0].answer,
            session=uid,
            id=item,
        )

    async def deliver(self, debt: Debt) -> None:
        await self.teller.call(
            "deliver",
            lambda: self.store.deliver(debt),
            lambda item: None if item is None else item.id,
            session=debt.owed.to,
            source=debt.session,
            operation=debt.operation,
            ordinal=debt.ordinal,
        )

    # -- turns ---------------------------------------------------------------------------------------------------------

    async def open_turn(self, uid: SessionUid, owner: str, admits: NewItem | None = None) -> OpenedTurn:
        opening = TurnOpening(uid, owner, TurnId(new_id()), TTL, admits=admits)  # type: ignore[arg-type]
        return await self.teller.call(
            "open_turn",
            lambda: self.store.open_turn(opening),
            _opened,
            session=uid,
            owner=owner,
            turn=opening.turn,
            admits=None if admits is None else _admitted(admits),
        )

    async def record(
        self, lease: ExecutionLease, turn: TurnId, record: JournalRecord, waits: Sequence[NewWait] = ()
    ) -> None:
        await self.teller.call(
            "record",
            lambda: self.store.record(lease, turn, [record], waits=waits),
            lambda entries: {"seq": entries[0].seq},
            **_held(lease),
            turn=turn,
            key=record.key,
            outcome=record.outcome if isinstance(record, Finished) else None,
            waits=[wait.id for wait in waits],
        )

    async def take(self, lease: ExecutionLease, turn: TurnId, key: str, identity: Identity) -> tuple[InboxItem, ...]:
        return await self.teller.call(
            "take",
            lambda: self.store.take(lease, turn, "before_completion", key=key, identity=identity),  # type: ignore[arg-type]
            lambda items: [item.id for item in items],
            **_held(lease),
            turn=turn,
            key=key,
        )

    async def park(self, lease: ExecutionLease, turn: TurnId, waits: Sequence[WaitId], until: datetime | None) -> None:
        await self.teller.call(
            "park",
            lambda: self.store.park(lease, turn, waits=waits, until=until),
            **_held(lease),
            turn=turn,
        )

    async def renew(self, lease: ExecutionLease) -> None:
        await self.teller.call("renew", lambda: self.store.renew(lease, ttl=TTL), **_held(lease))

    async def release(self, lease: ExecutionLease) -> None:
        await self.teller.call("release", lambda: self.store.release(lease), **_held(lease))

    async def commit(self, plan: CommitPlan) -> CommitReceipt:
        nodes = plan.delta.nodes if isinstance(plan.delta, Append) else ()
        return await self.teller.call(
            "commit",
            lambda: self.store.commit(plan),
            lambda receipt: {"revision": receipt.revision, "seq": receipt.seq, "hash": receipt.content_hash},
            **_held(plan.lease),
            operation=plan.operation,
            base=plan.base,
            nodes=[digest(node.body) for node in nodes],
            outcome=None if plan.settles is None else plan.settles.outcome,
            completes=sorted(plan.settles.completes) if plan.settles else [],
            output=sum(delta.tokens.output for delta in plan.usage),
            owes=[owed.to for owed in plan.owes],
            parts={name: part.hash for name, part in (plan.parts or {}).items()},
            metadata=plan.documents.get("metadata"),
            blobs=sorted(blob for node in nodes for blob in node.blobs),
        )

    async def request_cancel(self, uid: SessionUid, turn: TurnId, request: RequestId) -> None:
        await self.teller.call(
            "request_cancel",
            lambda: self.store.request_cancel(uid, turn, request, reason="enough"),
            lambda asked: asked.request.id,
            session=uid,
            turn=turn,
            request=request,
        )

    async def answer(self, uid: SessionUid, wait: WaitId, value: str) -> None:
        async def make() -> Answered:
            return await self.store.answer(await self.store.wait_key(uid, wait), value)

        await self.teller.call(
            "answer",
            make,
            lambda answered: {"accepted": answered.accepted, "value": answered.wait.answer},
            session=uid,
            wait=wait,
            value=value,
        )

    # -- maintenance ---------------------------------------------------------------------------------------------------

    async def vacuum(self, before: datetime) -> None:
        await self.teller.call(
            "vacuum", lambda: self.store.vacuum(before=before), lambda gone: gone.total, session=None
        )


def _admitted(item: NewItem) -> dict[str, Any]:
    return {
        "id": item.id,
        "key": item.key,
        "text": words_of(item),
        "when": item.when,
        "merge_key": item.merge_key,
    }


def _opened(opened: OpenedTurn) -> dict[str, Any]:
    return {
        "turn": None if opened.turn is None else opened.turn.id,
        "generation": None if opened.acquired is None else opened.acquired.lease.generation,
        "items": [item.id for item in opened.items],
        "admitted": None if opened.admitted is None else {"id": opened.admitted.id, "seq": opened.admitted.seq},
    }


def _held(lease: ExecutionLease) -> dict[str, Any]:
    return {"session": lease.session, "owner": lease.owner, "generation": lease.generation}
