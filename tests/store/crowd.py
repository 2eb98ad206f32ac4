"""One of several processes that do everything at once on the same few sessions: ``python -m tests.store.crowd URL …``.

It ends by itself and says in one line what it was told: the traces of the writes that were acknowledged and of those
that were refused, errors that nobody should see, and how often the database reported what kind of contention.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest import mock

from lash.commit.outbox import Owed
from lash.commit.parts import Changed
from lash.commit.plan import CommitPlan
from lash.errors import Conflict, LashError, NotFound, TryAgain
from lash.ids import OperationId, OwnerId, SessionUid
from lash.inbox.cancelling import These
from lash.inbox.items import Wake
from lash.lease import ExecutionLease
from lash.store.opening import open_store
from lash.store.sql import faults
from lash.store.sql.store import SqlStore
from lash.testing.builders import (
    Driven,
    a_fork,
    a_message,
    a_new_session,
    a_request_id,
    a_wait,
    an_effect,
    an_opening,
    an_operation,
    append,
    finished,
    hears,
    plan_of,
    says,
)

FAR = datetime(2100, 1, 1, tzinfo=UTC)
TTL = timedelta(seconds=1)
WORKERS = 4
EXPECTED = (Conflict, TryAgain, NotFound)
"""What several who want the same have to live with."""


class Process:
    def __init__(self, store: SqlStore, who: str, uids: list[SessionUid], seed: int) -> None:
        self.store, self.who, self.uids = store, who, uids
        self.chance = random.Random(seed)
        self.acknowledged: list[tuple[str, str]] = []
        self.refused: list[tuple[str, str]] = []
        self.unexpected: list[str] = []
        self.counts: Counter[str] = Counter()

    async def run(self, rounds: int) -> None:
        steps = [self.admit, self.commit, self.turn, self.document, self.fork, self.name, self.owe, self.wait]
        steps += [self.cancel, self.blob, self.vacuum, self.admit, self.commit, self.turn]

        async def work(number: int) -> None:
            for _ in range(rounds):
                for step in self.chance.sample(steps, len(steps)):
                    await self._try(step, f"{self.who}-{number}")

        await asyncio.gather(*map(work, range(WORKERS)))

    async def _try(self, step: Callable[[str], Awaitable[None]], owner: str) -> None:
        try:
            await step(owner)
            self.counts[step.__name__] += 1
        except EXPECTED as error:
            self.counts[type(error).__name__] += 1
        except Exception as error:
            self.unexpected.append(f"{step.__name__}: {error!r}")

    async def _traced(self, trace: str, id_: str, write: Awaitable[object]) -> None:
        try:
            await write
        except LashError:
            self.refused.append((trace, id_))
            raise
        self.acknowledged.append((trace, id_))

    def _any(self) -> SessionUid:
        return self.chance.choice(self.uids)

    async def _lease(self, owner: str) -> ExecutionLease:
        return (await self.store.acquire(self._any(), OwnerId(owner), ttl=TTL)).lease

    # -- what it does --------------------------------------------------------------------------------------------------

    async def admit(self, owner: str) -> None:
        """One item that no turn takes for a long time, and one for the next turn."""
        later = a_message(owner, available_at=FAR)
        await self._traced("lash_inbox WHERE id = {}", later.id, self.store.admit(self._any(), later))
        await self.store.admit(self._any(), a_message(owner))

    async def commit(self, owner: str) -> None:
        lease = await self._lease(owner)
        session = await self.store.find(lease.session)
        operation = an_operation()
        plan = CommitPlan(
            operation,
            lease,
            base=session.head.revision,
            delta=append(session, operation, says(owner), says("and more")),
            parts={"tools": Changed(b"state %d" % self.chance.randrange(4))},
        )
        await self._commit(operation, plan)
        if self.chance.random() < 0.5:
            await self.store.renew(lease, ttl=TTL)
        await self.store.release(lease)

    async def _commit(self, operation: OperationId, plan: CommitPlan) -> None:
        await self._traced("lash_commits WHERE operation = {}", operation, self.store.commit(plan))

    async def turn(self, owner: str) -> None:
        opened = await self.store.open_turn(an_opening(self._any(), owner, ttl=TTL))
        if opened.turn is None or opened.acquired is None:
            return
        lease, turn = opened.acquired.lease, opened.turn
        effect = an_effect(f"model:{self.chance.randrange(10**9)}")
        await self.store.record(lease, turn.id, [effect])
        await self.store.record(lease, turn.id, [finished(effect)])
        if self.chance.random() < 0.2:
            await self.store.release(lease)  # handed over
            return
        if self.chance.random() < 0.2:
            await self.store.request_cancel(lease.session, turn.id, a_request_id(), reason="changed my mind")
        driven = Driven(lease, turn, opened.items, opened)
        plan = await plan_of(self.store, driven, hears(owner), says(owner), release=True)
        await self.store.commit(plan)
        # Not traced when it is refused: whoever takes the turn over commits the same operation.
        self.acknowledged.append(("lash_commits WHERE operation = {}", turn.id))

    async def document(self, _: str) -> None:
        uid = self._any()
        found = await self.store.document(uid, "config")
        await self.store.put_document(uid, "config", {"n": found.revision}, expected=found.revision)

    async def fork(self, _: str) -> None:
        parent = await self.store.find(self._any())
        if parent.head.leaf is None:
            return
        new = a_fork(parent.uid, parent.head.leaf)
        await self._traced("lash_sessions WHERE uid = {}", new.uid, self.store.fork(new))
        if self.chance.random() < 0.8:
            await self.store.delete(new.uid)

    async def name(self, _: str) -> None:
        opened = await self.store.open(a_new_session(f"crowd-{self.chance.randrange(3)}"))
        if self.chance.random() < 0.5:
            await self.store.delete(opened.session.uid)
        new = a_new_session(f"crowd-{self.chance.randrange(3)}")
        await self._traced("lash_sessions WHERE uid = {}", new.uid, self.store.create(new))

    async def owe(self, owner: str) -> None:
        lease = await self._lease(owner)
        session = await self.store.find(lease.session)
        debts = tuple(Owed(self._any(), Wake(source=owner)) for _ in range(2))
        operation = an_operation()
        await self._commit(operation, CommitPlan(operation, lease, base=session.head.revision, owes=debts))
        for debt in await self.store.debts(limit=3):
            await self.store.deliver(debt)

    async def wait(self, _: str) -> None:
        key = await self.store.open_wait(self._any(), a_wait())
        await self.store.answer(key, "yes")

    async def cancel(self, _: str) -> None:
        uid = self._any()
        items = (await self.store.items(uid)).rows
        mine = tuple(item.id for item in items if item.available_at is None)
        if mine:
            await self.store.cancel(uid, These((self.chance.choice(mine),)))

    async def blob(self, _: str) -> None:
        await self.store.put_blob(b"picture %d" % self.chance.randrange(4))

    async def vacuum(self, _: str) -> None:
        await self.store.vacuum(before=FAR)


@contextmanager
def contention_counted() -> Any:
    """What Postgres says when a transaction may pass only if it is tried again."""
    seen: Counter[str] = Counter()
    translate = faults._from_postgres

    def counted(code: str, error: BaseException, where: str) -> Any:
        seen[code] += 1
        return translate(code, error, where)

    with mock.patch.object(faults, "_from_postgres", counted):
        yield seen


async def main(url: str, who: str, rounds: str, *uids: str) -> None:
    with contention_counted() as contention:
        async with await open_store(url) as store:
            print("ready", flush=True)
            sys.stdin.readline()
            process = Process(store, who, [SessionUid(uid) for uid in uids], seed=int(who))
            await process.run(int(rounds))
    report = {**vars(process), "contention": contention}
    print(json.dumps({name: value for name, value in report.items() if name not in ("store", "uids", "chance")}))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
