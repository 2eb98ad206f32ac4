"""The one place that all writes of an open store pass through.

Writes queue here and are settled in batches, one transaction each: a batch is whatever queued up while the last one was
being settled, so nothing waits for a timer and a busy store shares its syncs. A submitted write is never withdrawn:
cancelling its caller leaves it to its fate, and its id tells later how it went.

The line is bounded, and so is what one session may have in it: who comes when there is no room waits until there is,
and has submitted nothing before that.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from lash.errors import CorruptData, LashError, StoreClosed, StoreLocked, StoreUnavailable, WriteUnknown
from lash.ids import SessionUid
from lash.store.entrance import Entrance
from lash.store.line import Line, Submitted
from lash.store.sql.steps import Settled, Unsettled, Write

R = TypeVar("R")

MAX_QUEUED = 4096
MAX_QUEUED_BYTES = 64 * 1024 * 1024
"""How much may wait. One write is always let in, however large."""
MAX_RETRIES = 3
"""How often a write is tried again on its own. A rerun reads the rows anew, so what was a broken constraint becomes the
answer that belongs to it."""
PATIENCE = 10.0
"""Seconds after which a write is refused whose session stays held."""
_CLOSED = "this store was closed; open it again"
_STOPPED = "somebody cancelled the writer of this store"
_HELD = (
    "another process holds the session, the name or the content that this write needs, and does not let go; try again"
)


class Settle(Protocol):
    """Settles a batch in one transaction; None for a write that met something held. ``patient`` waits for it."""

    def __call__(self, writes: Sequence[Write[Any]], *, patient: bool) -> Awaitable[list[Settled[Any] | None]]: ...


@dataclass(frozen=True, slots=True)
class Backlog:
    """How much waits to be written: writes and bytes in line, and callers for whom the line had no room.

    Callers that wait are the sign to slow down. What they want to write is kept by them, and is not counted in
    ``bytes``; they wait for the line, or for their own session, of which too much is in line already.
    """

    writes: int
    bytes: int
    callers: int


class Writer:
    """Settles writes in the order in which they came."""

    def __init__(self, settle: Settle) -> None:
        self._settle = settle
        self._line = Line()
        self._entrance = Entrance()
        self._arrival = asyncio.Event()
        self._settling: set[Submitted] = set()
        self._busy: asyncio.Task[None] | None = None
        self._turn = asyncio.Lock()
        self._closed = False

    @property
    def backlog(self) -> Backlog:
        return Backlog(self._line.writes, self._line.bytes, self._entrance.waiting)

    async def write(self, write: Write[R]) -> R:
        self._check_open()
        one = Submitted(write, asyncio.get_running_loop().create_future(), came_at=self._time())
        self._entrance.come(one)
        self._let_in()
        try:
            settled: Settled[R] = await one.answer
        except asyncio.CancelledError:
            if self._entrance.give_up(one):
                self._let_in()
            raise
        return settled.unwrap()

    async def alone(self, change: Callable[[], Awaitable[R]]) -> R:
        """Run a change that is no batch of writes, when no batch is being settled."""
        self._check_open()
        async with self._turn:
            return await change()

    async def aclose(self) -> None:
        """Take nothing new, settle what was submitted, then stop."""
        self._closed = True
        self._turn_away(self._entrance.everyone(), StoreClosed(_CLOSED))
        while self._busy is not None and (self._line.writes or not self._busy.done()):
            self._let_in()
            await asyncio.wait([self._busy])  # who is tired of waiting must not take the writes of others with him
        async with self._turn:
            pass

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosed(_CLOSED)

    # -- room in line --------------------------------------------------------------------------------------------------

    def _let_in(self) -> None:
        """Let callers join the line, first come, first served, as long as there is room."""
        while (first := self._entrance.first) is not None and self._has_room(first.write):
            self._line.join(self._entrance.join_line())
            self._arrival.set()
        if self._line.writes and (self._busy is None or self._busy.done()):
            self._busy = asyncio.create_task(self._drain(), name="lash-writer")

    def _has_room(self, write: Write[Any]) -> bool:
        line = self._line
        return line.writes == 0 or (line.writes < MAX_QUEUED and line.bytes + write.size <= MAX_QUEUED_BYTES)

    # -- settling ------------------------------------------------------------------------------------------------------

    async def _drain(self) -> None:
        try:
            await self._settle_all()
        except BaseException as error:  # somebody cancels everything: nobody is left waiting for an answer
            unknown, unheard = list(self._settling), [*self._line.everyone(), *self._entrance.everyone()]
            self._settling.clear()
            self._line, self._entrance = Line(), Entrance()
            for one in unknown:
                one.hear(Settled(error=WriteUnknown(f"{_STOPPED} in the middle of this write; repeat the call")))
            for one in unheard:
                one.hear(Settled(error=StoreUnavailable(f"{_STOPPED} before this write; repeat the call")))
            raise error

    async def _settle_all(self) -> None:
        patience = True
        while self._line.writes:
            if not self._line.due:
                await self._pause()
            now = self._time()
            self._refuse_overdue(now - PATIENCE)
            self._line.bring_back(now)
            batch = self._line.next_batch(now, patience=patience)
            alone = bool(batch) and batch[0].patient
            if batch:
                self._settling.update(batch)
                async with self._turn:
                    missed = await self._settle_batch(batch, patient=alone)
                self._line.go_back(missed, self._time())
                self._settling.clear()
            patience = not alone  # the others wait with it, so they come next

    async def _pause(self) -> None:
        """Until somebody arrives, or it is time to try again what was set aside."""
        self._arrival.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(self._line.next_try - self._time(), 0)):
                await self._arrival.wait()

    async def _settle_batch(
        self, batch: Sequence[Submitted], *, patient: bool = False, tried: int = 0
    ) -> list[Submitted]:
        """Answer everybody in a batch, except those that met something held: they are returned."""
        began = self._time()
        try:
            settled = await self._settle([one.write for one in batch], patient=patient)
        except WriteUnknown as error:
            return await self._ask_again(batch, tried, error)
        except CorruptData as error:  # a row of one session: the others must not hear of it
            return await self._settle_apart(batch, tried, error)
        except LashError as error:
            waited_as_long: Sequence[Submitted] = ()
            if isinstance(error, StoreLocked):  # all of the database is
                self._turn_away([one for one in self._entrance.everyone() if one.came_at <= began], error)
                waited_as_long = self._line.came_by(began)
            self._refuse([*batch, *waited_as_long], error)
        except Exception as error:
            return await self._settle_apart(batch, tried, error)
        else:
            missed: list[Submitted] = []
            for one, outcome in zip(batch, settled, strict=True):
                if outcome is None:
                    missed.append(one)
                else:
                    self._answer(one, outcome)
            return missed
        return []

    async def _ask_again(self, batch: Sequence[Submitted], tried: int, error: WriteUnknown) -> list[Submitted]:
        """Nobody knows whether the batch landed. Those that are recognised by their id are told so by a second run."""
        again = [one for one in batch if one.write.repeatable and one.unknown is None]
        self._refuse([one for one in batch if one not in again], error)
        for one in again:
            one.unknown = error
        return await self._settle_batch(again, tried=tried) if again else []

    async def _settle_apart(self, batch: Sequence[Submitted], tried: int, error: Exception) -> list[Submitted]:
        """One write spoiled the batch, and nothing of it was written: each goes on its own, and answers for itself."""
        if len(batch) > 1:
            return await self._settle_one_by_one(batch)
        if isinstance(error, Unsettled) and tried < MAX_RETRIES:
            return await self._settle_batch(batch, tried=tried + 1)
        self._refuse(batch, error.refusal if isinstance(error, Unsettled) else error)
        return []

    async def _settle_one_by_one(self, batch: Sequence[Submitted]) -> list[Submitted]:
        missed: list[Submitted] = []
        held: set[SessionUid] = set()
        for one in batch:
            # One that follows a write of its session that has yet to be settled must not overtake it.
            missed_now = [one] if one.follows(held) else await self._settle_batch([one])
            for each in missed_now:
                held.update(each.write.sessions)
            missed += missed_now
        return missed

    def _time(self) -> float:
        return asyncio.get_running_loop().time()

    # -- answering -----------------------------------------------------------------------------------------------------

    def _answer(self, one: Submitted, outcome: Settled[Any]) -> None:
        self._settling.discard(one)
        self._line.leave(one)
        self._entrance.done(one)
        one.hear(outcome)
        self._let_in()

    def _refuse(self, batch: Sequence[Submitted], error: Exception) -> None:
        for one in batch:
            # A run that came to nothing says nothing about an earlier one that may have landed.
            heard = one.unknown or error
            self._answer(one, Settled(error=_own(heard) if isinstance(heard, LashError) else heard))

    def _refuse_overdue(self, since: float) -> None:
        """Those whose session stays held, and those that have waited behind them for as long."""
        error = StoreLocked(_HELD)
        late = self._line.overdue(since)
        if late:
            behind = self._entrance.behind({uid for one in late for uid in one.write.sessions})
            self._turn_away([one for one in behind if one.came_at < since], error)
            self._refuse(late, error)

    def _turn_away(self, callers: Sequence[Submitted], error: LashError) -> None:
        """Refuse those for whom there was no room yet. They have submitted nothing."""
        for one in callers:
            self._entrance.give_up(one)
            one.hear(Settled(error=_own(error)))


def _own(error: LashError) -> LashError:
    """The same error for one caller alone: each adds to its traceback, and may add notes."""
    own = type(error).__new__(type(error))
    own.args = error.args
    own.__dict__.update(error.__dict__)
    own.__dict__.pop("__notes__", None)
    own.__cause__ = error
    return own
