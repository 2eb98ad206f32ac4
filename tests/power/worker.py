"""The program that loses its power: ``python -m tests.power.worker URL ACKNOWLEDGED``.

It does one of everything, in steps. What the store has acknowledged it writes, as a line, to the file that it is given;
the writes of one step are under way at the same time, and a step begins when all of the last one are acknowledged.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from dataclasses import replace
from itertools import count

from lash.commit.outbox import Owed
from lash.commit.parts import Changed
from lash.commit.plan import CommitReceipt
from lash.graph.frames import COMPACTION
from lash.graph.nodes import Payload
from lash.ids import ReplayKey, SessionUid
from lash.inbox.items import NewItem, Wake
from lash.lease import ExecutionLease
from lash.store.opening import open_store
from lash.store.sql.store import SqlStore
from lash.testing.builders import (
    Driven,
    a_fork,
    a_message,
    a_request_id,
    a_session,
    a_wait,
    commit_nodes,
    hears,
    leaf_of,
    must_acquire,
    must_open,
    opens,
    plan_of,
    rewind,
    says,
)
from lash.turn.journal import Finished, Identity

OFTEN = 40
"""After how many pages SQLite moves its log into the database. Each of these moments is one to lose power at."""


class Worker:
    def __init__(self, url: str, acknowledged: int) -> None:
        self._url = url
        self._acknowledged = acknowledged
        self._steps = count(1)
        self._step = 0
        self._store: SqlStore

    async def open(self) -> None:
        self._store = await open_store(self._url)
        setting = f"PRAGMA wal_autocheckpoint={OFTEN}"
        await self._store._database.transact(lambda connection: connection.exec_driver_sql(setting))

    async def close(self) -> None:
        await self._store.aclose()

    def _next(self) -> None:
        self._step = next(self._steps)

    def tell(self, kind: str, **facts: object) -> None:
        line = json.dumps({"kind": kind, "step": self._step, **facts}) + "\n"
        os.write(self._acknowledged, line.encode())

    async def session(self, name: str) -> SessionUid:
        self._next()
        made = await a_session(self._store, name)
        self.tell("session", uid=made.uid)
        return made.uid

    async def send(self, *arriving: tuple[SessionUid, NewItem]) -> None:
        """Several at once."""

        async def one(uid: SessionUid, item: NewItem) -> None:
            await self._store.admit(uid, item)
            self.tell("item", id=item.id)

        self._next()
        await asyncio.gather(*(one(uid, item) for uid, item in arriving))

    async def turn(self, uid: SessionUid, text: str, *, size: int = 10) -> None:
        """A whole turn: a message, a journaled call, an answered wait, a commit with everything that it can say."""
        await self.send((uid, a_message(text, key=f"{uid} {text}")))
        driven = await self._opened(uid)
        self._next()
        effect = Finished(ReplayKey("model:1"), Identity("model", 1), {"text": "x" * size})
        await self._store.record(driven.lease, driven.turn.id, [effect])
        self.tell("effect", turn=driven.turn.id, key=effect.key)
        await self._ask(uid, driven)
        self._next()
        plan = await plan_of(self._store, driven, hears(text), says("y" * size), release=True)
        owed = Owed(uid, Wake(source=text))
        self._committed(await self._store.commit(replace(plan, owes=(owed,), parts={"tools": Changed(text.encode())})))

    async def _opened(self, uid: SessionUid) -> Driven:
        self._next()
        driven = await must_open(self._store, uid)
        self.tell("turn", id=driven.turn.id)
        return driven

    async def _ask(self, uid: SessionUid, driven: Driven) -> None:
        self._next()
        wait = a_wait(turn=driven.turn.id)
        key = await self._store.open_wait(uid, wait)
        self.tell("wait", id=wait.id)
        self._next()
        await self._store.answer(key, "yes")
        self.tell("answer", id=wait.id)

    async def give_up(self, uid: SessionUid) -> None:
        """A turn that somebody asks to stop and that its owner puts down; the wakes that are owed are delivered."""
        driven = await self._opened(uid)
        self._next()
        await self._store.request_cancel(uid, driven.turn.id, a_request_id(), reason="enough")
        self.tell("cancel", turn=driven.turn.id)
        self._next()
        await self._store.release(driven.lease)
        self.tell("released", uid=uid, generation=driven.lease.generation)
        for debt in await self._store.debts():
            self._next()
            paid = await self._store.deliver(debt)
            assert paid is not None
            self.tell("item", id=paid.id)

    async def history(self, uid: SessionUid) -> None:
        """Outside any turn: documents, blobs, a compaction, a rewind, a fork, and a session that is deleted."""
        self._next()
        document = await self._store.put_document(uid, "config", {"model": "scripted"}, expected=0)
        self.tell("document", uid=uid, revision=document.revision)
        self._next()
        self.tell("blob", hash=await self._store.put_blob(os.urandom(30_000)))
        lease = await self._lease(uid)
        boundary = await self._commit(lease, says("kept"))
        await self._commit(lease, opens(COMPACTION), says("a summary"))
        self._next()
        self._committed(await rewind(self._store, lease, leaf_of(boundary)))
        self._next()
        fork = await self._store.fork(a_fork(uid, leaf_of(boundary)))
        self.tell("session", uid=fork.uid)
        gone = await self.session("soon-gone")
        self._next()
        assert await self._store.delete(gone)
        self.tell("deleted", uid=gone)

    async def _lease(self, uid: SessionUid) -> ExecutionLease:
        self._next()
        lease = await must_acquire(self._store, uid)
        self.tell("lease", uid=uid, generation=lease.generation)
        return lease

    async def _commit(self, lease: ExecutionLease, *payloads: Payload) -> CommitReceipt:
        self._next()
        return self._committed(await commit_nodes(self._store, lease, *payloads))

    def _committed(self, receipt: CommitReceipt) -> CommitReceipt:
        self.tell("commit", operation=receipt.operation, revision=receipt.revision)
        return receipt


async def work(worker: Worker) -> None:
    await worker.open()
    worker.tell("opened")
    first, second, third = [await worker.session(name) for name in ("first", "second", "third")]
    await worker.turn(first, "one")
    await worker.turn(second, "one", size=20_000)
    await worker.history(first)
    await worker.close()  # the log is removed, and begun anew
    await worker.open()
    for number in range(3):
        await worker.send(*((uid, a_message(f"burst {number}")) for uid in (first, second, third) for _ in range(2)))
        await worker.turn(third, f"turn {number}", size=5_000)
    await worker.give_up(second)
    await worker.turn(third, "the last one")
    await worker.close()


if __name__ == "__main__":
    asyncio.run(work(Worker(sys.argv[1], os.open(sys.argv[2], os.O_WRONLY | os.O_APPEND))))
