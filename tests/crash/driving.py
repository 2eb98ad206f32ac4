"""Driving a turn from whatever the journal has of it to its commit.

What a turn does follows from its id, so that every process that takes it up does the same: some effects, perhaps a
wait, perhaps a checkpoint. An effect's outcome is a word that nobody else says; all outcomes end up in the nodes of the
commit, so that one which was recorded and then thrown away, or run twice, shows.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from random import Random
from typing import Any

from lash.commit.outbox import Owed
from lash.commit.parts import Changed
from lash.commit.plan import CommitPlan
from lash.commit.usage import Tokens, UsageDelta
from lash.errors import BlobMissing, OperationReused, TurnCancelRequested
from lash.graph.delta import chain
from lash.graph.frames import INITIAL
from lash.graph.nodes import FrameOpened, MessageReceived, ModelReplied, Payload
from lash.graph.parts import File, Text
from lash.graph.session import Session
from lash.ids import BlobHash, OperationId, ReplayKey, SessionUid, WaitId, id_from
from lash.inbox.items import InboxItem, NewItem, Wake
from lash.lease import ExecutionLease
from lash.turn.journal import Finished, Fresh, Identity, JournalEntry, Pending, Replay, Started, Unknown, recall
from lash.turn.record import CANCELLED, CancelRequest, Turn, TurnSettlement
from lash.waits import NewWait, Wait
from tests.crash.desk import Desk, soon, words_of
from tests.crash.telling import look


class PutDown(Exception):
    """The turn is left as it is: it sleeps, or was handed over."""


def steps_of(turn: Turn) -> list[str]:
    random = Random(turn.id)
    kinds = random.choices(["model", "wait", "take"], weights=[6, 1, 2], k=random.randint(1, 4))
    return [f"{kind}:{number}" for number, kind in enumerate(kinds)]


@dataclass
class Drive:
    """One attempt at one turn."""

    desk: Desk
    random: Random
    lease: ExecutionLease
    turn: Turn
    items: dict[str, InboxItem]
    patient: bool
    """Sleeps for as long as it takes, instead of giving up on an answer now and then."""
    entries: dict[str, JournalEntry] = field(default_factory=dict)
    outcomes: list[str] = field(default_factory=list)

    async def run(self) -> None:
        uid, store = self.lease.session, self.desk.store
        self.entries = {entry.key: entry for entry in await look(lambda: store.journal(uid, self.turn.id))}
        for number, key in enumerate(steps_of(self.turn)):
            await self._interrupt()
            await self._step(key, Identity(key.partition(":")[0], number))
        await self._commit()

    async def _interrupt(self) -> None:
        chance = self.random.random()
        if chance < 0.08:
            await self.desk.renew(self.lease)
        elif chance < 0.11 and not self.patient:
            await self.desk.release(self.lease)
            raise PutDown

    async def _step(self, key: str, identity: Identity) -> None:
        if identity.kind == "take":
            taken = await self.desk.take(self.lease, self.turn.id, key, identity)
            self.items |= {item.id: item for item in taken}
            return
        match recall(self.entries.get(key), identity):
            case Replay(outcome=outcome):
                self.outcomes.append(f"{key}={outcome}")
            case Fresh() if identity.kind == "wait":
                wait = WaitId(id_from("crash", self.turn.id, key))
                started = Started(ReplayKey(key), identity, wait=wait)
                opened = NewWait(wait, "approval", turn=self.turn.id, expires_at=self._deadline())
                await self.desk.record(self.lease, self.turn.id, started, [opened])
                await self._wait_for(key, identity, wait)
            case Pending(wait=wait):
                await self._wait_for(key, identity, wait)
            case Fresh() | Unknown() as known:
                if isinstance(known, Fresh) and self.random.random() < 0.5:
                    await self.desk.record(self.lease, self.turn.id, Started(ReplayKey(key), identity))
                await self._finish(key, identity, self.desk.token())

    def _deadline(self) -> datetime | None:
        return soon(800) if self.random.random() < 0.2 else None

    async def _wait_for(self, key: str, identity: Identity, wait: WaitId) -> None:
        found: Wait = await look(lambda: self.desk.store.wait(self.lease.session, wait))
        if found.state == "pending" and (self.patient or self.random.random() < 0.7):
            until = soon(self.random.randint(50, 500)) if self.random.random() < 0.5 else None
            await self.desk.park(self.lease, self.turn.id, [wait], until)
            raise PutDown
        await self._finish(key, identity, str(found.answer))

    async def _finish(self, key: str, identity: Identity, outcome: str) -> None:
        await self.desk.record(self.lease, self.turn.id, Finished(ReplayKey(key), identity, outcome))
        self.outcomes.append(f"{key}={outcome}")

    # -- the commit ----------------------------------------------------------------------------------------------------

    async def _commit(self) -> None:
        while True:
            session, cancel = await self._present()
            blob = await self._blob() if self._often(0.3) else None
            plan = self._plan(session, cancel, blob)
            try:
                await self.desk.commit(plan)
            except (TurnCancelRequested, BlobMissing):
                continue  # somebody asked for it meanwhile; a vacuum took it meanwhile
            except OperationReused:
                raise PutDown from None  # a successor has settled the turn, in words of its own
            return

    async def _blob(self) -> BlobHash:
        return await self.desk.put_blob(self.desk.token(), self.random.choice([20, 2_000, 60_000]))

    async def _present(self) -> tuple[Session, CancelRequest | None]:
        uid, store = self.lease.session, self.desk.store
        session = await look(lambda: store.find(uid))
        return session, await look(lambda: store.cancel_request(uid, self.turn.id))

    def _often(self, chance: float) -> bool:
        return self.random.random() < chance

    def _plan(self, session: Session, cancel: CancelRequest | None, blob: BlobHash | None) -> CommitPlan:
        operation = OperationId(self.turn.id)
        payloads = self._payloads(session, blob)
        more: dict[str, Any] = {}
        if self._often(0.3):
            more["parts"] = {"tools": Changed(self.desk.token().encode())}
        if self._often(0.2) and self.desk.main:
            to = self.random.choice(self.desk.main)
            more["owes"] = (Owed(to, Wake(source="another", data=self.desk.token())),)
        if self._often(0.1):
            more["documents"] = {"metadata": {"by": self.desk.token()}}
        return CommitPlan(
            operation,
            self.lease,
            base=session.head.revision,
            delta=chain(session.uid, operation, payloads, after=session.head, at=datetime.now(UTC)),
            settles=TurnSettlement(
                self.turn.id,
                "finished" if cancel is None else CANCELLED,
                completes=frozenset(item.id for item in self.items.values()),
                cancelled_by=None if cancel is None else cancel.id,
            ),
            usage=(UsageDelta("agent", "scripted", Tokens(output=1 + len(self.outcomes))),),
            release=self._often(0.5),
            **more,
        )

    def _payloads(self, session: Session, blob: BlobHash | None) -> list[Payload]:
        first: list[Payload] = [FrameOpened(reason=INITIAL)] if session.head.leaf is None else []
        heard = [MessageReceived(parts=(Text(text=words_of(item)),), item=item.id) for item in self.items.values()]
        said = [ModelReplied(parts=(Text(text=outcome),), model="scripted") for outcome in self.outcomes]
        files = (File(blob=blob, media_type="text/plain", name="paper"),) if blob else ()
        return [*first, *heard, *said, ModelReplied(parts=(Text(text=self.desk.token()), *files), model="scripted")]


async def drive(
    desk: Desk,
    random: Random,
    uid: SessionUid,
    owner: str,
    *,
    admits: Callable[[], NewItem] | None = None,
    patient: bool = False,
) -> bool:
    """Take up what a session has to do; False when it had nothing, or somebody else has it."""
    opened = await desk.open_turn(uid, owner, admits() if admits is not None else None)
    if opened.turn is None or opened.acquired is None:
        return False
    items: dict[str, InboxItem] = {item.id: item for item in opened.items}
    with contextlib.suppress(PutDown):
        await Drive(desk, random, opened.acquired.lease, opened.turn, items, patient).run()
    return True
