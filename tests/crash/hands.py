"""What a worker does: several hands at once, each with chances of its own."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from random import Random

from lash.errors import (
    LeaseLost,
    OutboxNotFound,
    RevisionMoved,
    SessionDeleted,
    TurnNotFound,
    TurnSettled,
    WaitNotFound,
)
from lash.graph.parts import Text
from lash.graph.session import NewFork, NewSession
from lash.ids import ItemId, RequestId, SessionName, SessionUid
from lash.inbox.items import Message, NewItem
from lash.store.contract import SessionFilter
from tests.crash.desk import Desk, new_id, soon
from tests.crash.driving import drive
from tests.crash.telling import look

OVERTAKEN = (LeaseLost, SessionDeleted)
"""What happens to anybody when several work on one thing. A hand that hears anything else, and does not say why it
expects that, has met a broken promise."""
MAX_OWN = 3
AGENTS = ["default"]


class Hand:
    """One task of a worker. It goes on until it is told to stop."""

    def __init__(self, desk: Desk, name: str, seed: str) -> None:
        self.desk = desk
        self.name = f"{desk.worker}.{name}"
        self.random = Random(f"{seed}/{self.name}")
        self.stopped = False

    async def work(self) -> None:
        while not self.stopped:
            with contextlib.suppress(*OVERTAKEN):
                await self.step()
            await asyncio.sleep(0)

    async def step(self) -> None:
        raise NotImplementedError

    def any_session(self) -> SessionUid:
        return self.random.choice(self.desk.main + self.desk.own)

    def a_message(self) -> NewItem:
        token, chance = self.desk.token(), self.random.random()
        return NewItem(
            ItemId(new_id()),
            Message(parts=(Text(text=token),)),
            key=token if chance < 0.5 else None,
            when="now" if chance > 0.7 else "next",
            merge_key="m" if 0.3 < chance < 0.5 else None,
            available_at=soon(200) if 0.1 < chance < 0.2 else None,
        )


class Sender(Hand):
    async def step(self) -> None:
        uid = self.any_session()
        await self.desk.admit(uid, self.a_message())
        await asyncio.sleep(self.random.random() * 0.1)  # slower than the drivers, or they never come to an end


class Driver(Hand):
    async def step(self) -> None:
        uid = self.any_session()
        if self.random.random() < 0.7:
            ready = await look(lambda: self.desk.store.ready(AGENTS, limit=20))
            uid = self.random.choice(ready).uid if ready else uid
        admits = self.a_message if self.random.random() < 0.2 else None
        if not await drive(self.desk, self.random, uid, self.name, admits=admits):
            await asyncio.sleep(0.01)


class Keeper(Hand):
    """Everything that is not a message or a turn."""

    async def step(self) -> None:
        chores: dict[Callable[[], Awaitable[None]], int] = {
            self.answer: 6,
            self.deliver: 6,
            self.cancel_items: 1,
            self.cancel_turns: 1,
            self.put_document: 2,
            self.put_blob: 1,
            self.make_session: 2,
            self.delete: 1,
            self.vacuum: 1,
        }
        [chore] = self.random.choices(list(chores), list(chores.values()))
        await chore()
        await asyncio.sleep(self.random.random() * 0.02)

    async def answer(self) -> None:
        uid = self.any_session()
        for wait in await look(lambda: self.desk.store.waits(uid)):
            if wait.state == "pending":
                with contextlib.suppress(WaitNotFound):  # its turn was settled meanwhile
                    await self.desk.answer(uid, wait.id, self.desk.token())

    async def deliver(self) -> None:
        for debt in await look(lambda: self.desk.store.debts(limit=5)):
            with contextlib.suppress(OutboxNotFound):  # delivered by somebody else, and swept
                await self.desk.deliver(debt)

    async def cancel_items(self) -> None:
        uid = self.any_session()
        items = (await look(lambda: self.desk.store.items(uid, limit=10))).rows
        if items:
            await self.desk.cancel(uid, self.random.choice(items).id)

    async def cancel_turns(self) -> None:
        uid = self.any_session()
        turn = await look(lambda: self.desk.store.unsettled_turn(uid))
        if turn is not None:
            with contextlib.suppress(TurnSettled, TurnNotFound):  # settled meanwhile; swept meanwhile
                await self.desk.request_cancel(uid, turn.id, RequestId(new_id()))

    async def put_document(self) -> None:
        uid = self.any_session()
        session = await look(lambda: self.desk.store.find(uid))
        with contextlib.suppress(RevisionMoved):  # somebody else was quicker
            await self.desk.put_document(uid, self.desk.token(), session.metadata_revision)

    async def put_blob(self) -> None:
        await self.desk.put_blob(self.desk.token(), self.random.choice([10, 5_000]))

    async def make_session(self) -> None:
        if len(self.desk.own) >= MAX_OWN:
            return
        parent = await look(lambda: self.desk.store.find(self.random.choice(self.desk.main)))
        uid = SessionUid(new_id())
        name = SessionName(f"{self.desk.prefix}-{uid}")
        if parent.head.leaf is None or self.random.random() < 0.3:
            self.desk.own.append(await self.desk.open(NewSession(uid, name)))
        else:
            self.desk.own.append(await self.desk.fork(NewFork(uid, name, parent.uid, parent.head.leaf)))

    async def delete(self) -> None:
        if self.desk.own and self.random.random() < 0.5:
            await self.desk.delete(self.desk.own.pop())

    async def vacuum(self) -> None:
        if self.desk.sweeps:
            await self.desk.vacuum(datetime.now(UTC) - timedelta(milliseconds=500))


async def work(hands: Sequence[Hand]) -> None:
    """All hands at once, until each was stopped."""
    async with asyncio.TaskGroup() as group:
        for hand in hands:
            group.create_task(hand.work())


def hands_of(desk: Desk, seed: str) -> list[Hand]:
    return [
        Sender(desk, "sender", seed),
        Driver(desk, "driver-1", seed),
        Driver(desk, "driver-2", seed),
        Keeper(desk, "keeper", seed),
    ]


async def finish(desk: Desk, seed: str) -> None:
    """Bring everything to its end: take over what dead owners left, answer every wait, pay every debt. Returns when no
    session has anything left to do."""
    keeper = Keeper(desk, "finisher", seed)
    while True:
        if await _is_finished(desk, keeper):
            return
        await asyncio.sleep(0.02)


async def _is_finished(desk: Desk, keeper: Keeper) -> bool:
    where = SessionFilter(name_prefix=desk.prefix)
    sessions = (await look(lambda: desk.store.sessions(where, limit=1000))).rows
    busy = [uid for uid in [session.uid for session in sessions] if not await _is_idle(desk, keeper, uid)]
    debts = await look(lambda: desk.store.debts())
    for debt in debts:
        await desk.deliver(debt)
    return not busy and not debts


async def _is_idle(desk: Desk, keeper: Keeper, uid: SessionUid) -> bool:
    """Do what there is to do now. A session is idle when that was nothing, and nothing is left for later."""
    for wait in await look(lambda: desk.store.waits(uid)):
        if wait.state == "pending":
            await desk.answer(uid, wait.id, desk.token())
    if await drive(desk, keeper.random, uid, keeper.name, patient=True):
        return False
    turn = await look(lambda: desk.store.unsettled_turn(uid))
    return turn is None and not (await look(lambda: desk.store.items(uid))).rows
