"""The process that works, and dies. It does what its parent orders, one order after the other, until it is told to end.

A fork of a server that has everything imported: a real process, in a hundredth of the time that Python needs to start.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import resource
import signal
import sys
import traceback
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

from lash.errors import LashError
from lash.graph.session import NewSession
from lash.ids import SessionName, SessionUid
from lash.store.contract import Store
from lash.store.opening import open_store
from tests.crash.databases import Place
from tests.crash.desk import Desk, new_id
from tests.crash.hands import finish, hands_of, work
from tests.crash.repeating import repeat
from tests.crash.telling import Teller, look
from tests.crash.traps import Trap, watch
from tests.crash.writes import FAR, WRITES


class Worker:
    def __init__(self, name: str, store: Store, connection: Connection, trap: Trap) -> None:
        self.name, self.store, self.trap = name, store, trap
        self.connection, self.teller = connection, Teller(connection)

    async def next_order(self) -> dict[str, Any]:
        loop, arrived = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(self.connection.fileno(), arrived.set)
        try:
            await arrived.wait()
        finally:
            loop.remove_reader(self.connection.fileno())
        return dict(json.loads(self.connection.recv_bytes()))

    async def serve(self) -> None:
        while (order := await self.next_order())["order"] != "end":
            await getattr(self, order.pop("order"))(**order)
            self.teller.say(done=True)

    async def work(self, prefix: str, sessions: list[str], seed: str, sweeps: bool) -> None:
        """Work on these sessions until the next order comes, which must be to stop."""
        desk = Desk(self.store, self.teller, self.name, prefix, sweeps)
        names = [SessionName(f"{prefix}-{name}") for name in sessions]
        desk.main = [await desk.open(NewSession(SessionUid(new_id()), name)) for name in names]
        hands = hands_of(desk, seed)
        working = asyncio.create_task(work(hands))
        stop = asyncio.create_task(self.next_order())
        await asyncio.wait([working, stop], return_when=asyncio.FIRST_COMPLETED)
        for hand in hands:
            hand.stopped = True
        await working
        assert (await stop)["order"] == "stop"

    async def finish(self, prefix: str, seed: str) -> None:
        await finish(Desk(self.store, self.teller, self.name, prefix), seed)

    async def repeat(self, calls: list[dict[str, Any]]) -> None:
        """Make some calls again, exactly as others made them."""
        for call in calls:
            await repeat(Desk(self.store, self.teller, self.name, "repeated"), **call)

    async def retire(self) -> None:
        """Leave nothing of a story but tombstones, so that the next one begins as the first did."""
        for session in (await look(lambda: self.store.sessions(limit=1000))).rows:
            await self.store.delete(session.uid)
        await self.store.vacuum(before=FAR)

    async def write(self, kind: str, given: dict[str, Any], point: str | None = None, sends: int = 9) -> None:
        """One write of ``tests.crash.writes``, with a trap at a point of its transaction."""
        if point is not None:
            self.trap.arm(point, sends)  # type: ignore[arg-type]
        with contextlib.suppress(LashError):  # its parent was told
            await self.teller.call(kind, lambda: WRITES[kind].call(self.store, given), lambda answer: answer, **given)

    async def grow(self, prefix: str, size: int, file_limit: int | None = None) -> None:
        """Put blobs without end. The system kills whoever writes to a file beyond the limit."""
        if file_limit is not None:
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # Python would rather have an error
            resource.setrlimit(resource.RLIMIT_FSIZE, (file_limit, resource.RLIM_INFINITY))
        desk = Desk(self.store, self.teller, self.name, prefix)
        while True:
            await desk.put_blob(desk.token(), size)


async def _run(name: str, place: Place, connection: Connection, busy_timeout: float | None) -> None:
    trap = Trap()
    watch(trap)
    more: dict[str, Any] = {} if busy_timeout is None else {"busy_timeout": timedelta(seconds=busy_timeout)}
    async with await open_store(place.url, clock=place.clock(), **more) as store:
        worker = Worker(name, store, connection, trap)
        worker.teller.say(ready=True)
        await worker.serve()


def run(name: str, place: Place, connection: Connection, busy_timeout: float | None) -> None:
    try:
        asyncio.run(_run(name, place, connection, busy_timeout))
    except BaseException:
        Teller(connection).say(broken=traceback.format_exc())
        sys.exit(1)
