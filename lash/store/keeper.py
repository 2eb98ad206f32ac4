"""Renews the leases of a process, from a thread of its own.

The event loop cannot do it: a tool that computes for half a minute would lose its session, and with it the work that it
is doing. So a thread does, with a connection of its own, past the writer, which belongs to the loop. It renews all
leases at once, a little more often than ``every`` so often, so that the processes of a fleet drift apart.

Three things can go wrong, and each has its answer.

- The store refuses: somebody took the lease over, or the session is gone. It is reported as it is.
- The store does not answer, or somebody holds the row. The attempt is repeated after a short while. When the lease's
  time has run out meanwhile, it is overdue, and that is what is reported: not that it was lost, which nobody knows. An
  attempt that comes late, because the process was stopped, still counts: an owner that nobody displaced may renew.
- The event loop does not answer. The thread puts a question into it at each renewal; once one has waited for a whole
  ``ttl`` the thread gives all leases up. They run out, and other processes can go on with the sessions.

Two clocks are at work. The store's own says when a lease runs out for others. How long this process may believe in it
is counted from before the request was sent, on a clock that nobody sets and that goes on while the machine sleeps.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol, Self

from lash.errors import InvalidValue, LashError, LeaseLost, LeaseOverdue, StoreClosed
from lash.ids import OwnerId, SessionUid
from lash.lease import ExecutionLease
from lash.limits import check_id, check_owner, check_renewals

_ATTEMPT = timedelta(seconds=5)
"""How long one attempt may take, unless a third of the ``ttl`` is less."""
_RETRIES = 4
"""How many attempts fit between two renewals, when one has failed."""
_EARLIEST = 0.8
"""The pause between two renewals is a random part of ``every``, from here to the whole."""
_NEVER = float("-inf")
_MAX_GENERATION = 2**63 - 1

Renewal = ExecutionLease | LashError | None
"""The lease as renewed, why it is not, or None: somebody holds its row, and nothing is known."""
_Key = tuple[SessionUid, OwnerId, int]


class Renewer(Protocol):
    """Renews leases in one kind of store. It lives in the keeper's thread, and connects when it is first asked."""

    def renew(self, leases: Sequence[ExecutionLease], *, patient: bool) -> list[Renewal]:
        """Renew all of them in one transaction; an answer for each. ``patient`` waits a moment for rows that are held,
        instead of leaving them out. Raises when the store does not answer in time, and may be asked again."""
        ...

    def close(self) -> None: ...


if sys.platform == "linux":

    def elapsed() -> float:
        """Seconds since some moment in the past, with those in which the machine slept."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

else:

    def elapsed() -> float:
        return time.monotonic()


class Kept:
    """A lease that is renewed. The thread writes its fields, and anybody may read them."""

    def __init__(self, lease: ExecutionLease, gone: asyncio.Future[LashError | None], *, due_at: float) -> None:
        self.lease = lease
        self.gone = gone
        self.due_at = due_at
        self.sure_until = _NEVER
        self.held = False  # somebody held its row at the last attempt

    @property
    def sure(self) -> bool:
        return elapsed() < self.sure_until

    def overdue(self, problem: str, cause: BaseException | None = None) -> LeaseOverdue:
        lease = self.lease
        error = LeaseOverdue(lease.session, owner=lease.owner, generation=lease.generation, problem=problem)
        error.__cause__ = cause
        return error

    def tell(self, error: LashError | None) -> None:
        if not self.gone.done():
            self.gone.set_result(error)


@dataclass(frozen=True, slots=True)
class _Attempt:
    """To renew all leases, or, patiently, those whose rows were held the last time."""

    started_at: float
    batch: list[Kept]
    patient: bool


def attempt_time(ttl: timedelta) -> timedelta:
    """How long one attempt to renew may take."""
    return min(ttl / 3, _ATTEMPT)


class ThreadKeeper:
    """A LeaseKeeper for the running event loop. The thread begins with the first lease."""

    def __init__(self, renewer: Renewer, *, ttl: timedelta, every: timedelta | None = None) -> None:
        check_renewals(ttl, ttl / 3 if every is None else every)
        self.ttl = ttl
        self._every = (ttl / 3 if every is None else every).total_seconds()
        self._renewer = renewer
        self._loop = asyncio.get_running_loop()
        self._ended = asyncio.Event()
        self._thread: threading.Thread | None = None
        self._changed = threading.Condition()  # guards what follows
        self._kept: dict[_Key, Kept] = {}
        self._wakes_at = float("inf")
        self._closed = False
        self._answered = threading.Event()
        self._answered.set()
        self._asked_at = _NEVER

    # -- on the event loop ---------------------------------------------------------------------------------------------

    def time(self) -> float:
        return elapsed()

    def keep(self, lease: ExecutionLease, *, asked_at: float) -> Kept:
        _check(lease)  # one that the database cannot even be asked for would fail the renewals of all others
        asked_at = min(asked_at, elapsed())
        self._answered.set()  # whoever calls is no dead loop
        with self._changed:
            if self._closed:
                raise StoreClosed("this keeper of leases was closed; make another")
            kept = self._kept.get(_key(lease))
            if kept is None:
                kept = Kept(lease, self._loop.create_future(), due_at=asked_at + self._pause())
                self._kept[_key(lease)] = kept
            kept.lease = max(kept.lease, lease, key=lambda each: each.expires_at)
            kept.sure_until = max(kept.sure_until, asked_at + self.ttl.total_seconds())
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="lash-keeper", daemon=True)
                self._thread.start()
            elif kept.due_at < self._wakes_at:
                self._changed.notify()
        return kept

    def let_go(self, lease: ExecutionLease) -> None:
        with self._changed:
            kept = self._kept.get(_key(lease))
            if kept is not None:
                self._drop(kept)
        if kept is not None:
            kept.tell(None)

    async def aclose(self) -> None:
        with self._changed:
            self._closed = True
            left = list(self._kept.values())
            for kept in left:
                self._drop(kept)
            self._changed.notify()
        for kept in left:
            kept.tell(None)
        if self._thread is not None:
            await self._ended.wait()
            self._thread.join()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    # -- in the thread -------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        trouble: BaseException | None = None
        try:
            while self._wait():
                self._tick()
        except BaseException as error:
            trouble = error
            raise
        finally:
            with self._changed:
                self._closed = True
            self._give_up(self._everyone(), "the thread that renews leases has ended", trouble)
            with contextlib.suppress(Exception):  # what could not be closed goes with the process
                self._renewer.close()
            self._post(self._ended.set)

    def _wait(self) -> bool:
        """Sleep until the next renewal. False when the keeper is closed."""
        with self._changed:
            while not self._closed:
                self._wakes_at = min((kept.due_at for kept in self._kept.values()), default=float("inf"))
                left = self._wakes_at - elapsed()
                if left <= 0:
                    return True
                self._changed.wait(min(left, threading.TIMEOUT_MAX))
            return False

    def _tick(self) -> None:
        started = elapsed()
        if self._loop_is_silent(started):
            self._give_up(self._everyone(), f"the event loop has not answered for {self.ttl}")
            return
        everyone = self._everyone()
        held = [kept for kept in everyone if kept.held]
        attempt = _Attempt(started, held or everyone, patient=bool(held))
        if not attempt.batch or self._closed:
            return
        trouble: Exception | None = None
        answers: list[Renewal] = [None] * len(attempt.batch)
        try:
            answers = self._renewer.renew([kept.lease for kept in attempt.batch], patient=attempt.patient)
        except Exception as error:  # whatever it is, the next attempt may pass; if none does, this is the cause
            trouble = error
        self._settle(attempt, answers, trouble)

    def _loop_is_silent(self, now: float) -> bool:
        """Whether a question that was put into the event loop has waited for too long.

        The time in which both of them were stopped does not count: a question that was answered before it is not open.
        """
        if self._answered.is_set():
            self._answered.clear()
            self._asked_at = now
            self._post(self._answered.set)
        return now - self._asked_at >= self.ttl.total_seconds()

    def _settle(self, attempt: _Attempt, answers: Sequence[Renewal], trouble: Exception | None) -> None:
        next_at, retry_at = attempt.started_at + self._pause(), elapsed() + self._every / _RETRIES
        ends: list[tuple[Kept, LashError | None]] = []
        with self._changed:
            for kept, answer in zip(attempt.batch, answers, strict=True):
                kept.held = False
                if self._kept.get(_key(kept.lease)) is not kept:
                    continue  # let go meanwhile
                if isinstance(answer, ExecutionLease):
                    kept.lease = answer
                    kept.sure_until = max(kept.sure_until, attempt.started_at + self.ttl.total_seconds())
                    kept.due_at = next_at
                elif answer is not None:
                    released = isinstance(answer, LeaseLost) and answer.released
                    ends.append((kept, None if released else answer))
                elif kept.sure:
                    kept.due_at = retry_at
                    kept.held = trouble is None and not attempt.patient  # after waiting in vain it goes with the others
                elif trouble is not None:
                    ends.append((kept, kept.overdue(str(trouble), trouble)))
                else:
                    ends.append((kept, kept.overdue("somebody holds the session's row and does not let go")))
            for kept, _ in ends:
                self._drop(kept)
        self._report(ends)

    def _give_up(self, given_up: Sequence[Kept], problem: str, cause: BaseException | None = None) -> None:
        with self._changed:
            for kept in given_up:
                self._drop(kept)
        self._report([(kept, kept.overdue(problem, cause)) for kept in given_up])

    # -- both ----------------------------------------------------------------------------------------------------------

    def _everyone(self) -> list[Kept]:
        with self._changed:
            return list(self._kept.values())

    def _drop(self, kept: Kept) -> None:
        kept.sure_until = _NEVER
        if self._kept.get(_key(kept.lease)) is kept:
            del self._kept[_key(kept.lease)]

    def _pause(self) -> float:
        return self._every * random.uniform(_EARLIEST, 1)  # noqa: S311 (nobody gains by guessing it)

    def _report(self, ends: Sequence[tuple[Kept, LashError | None]]) -> None:
        def report() -> None:
            for kept, error in ends:
                kept.tell(error)

        if ends:
            self._post(report)

    def _post(self, callback: Callable[[], None]) -> None:
        """Let the event loop do something when it comes to it. One that was closed never does: nobody listens."""
        try:
            self._loop.call_soon_threadsafe(callback)
        except RuntimeError:
            with self._changed:
                self._closed = True


def _key(lease: ExecutionLease) -> _Key:
    return lease.session, lease.owner, lease.generation


def _check(lease: ExecutionLease) -> None:
    check_id("a session", lease.session)
    check_owner(lease.owner)
    if not 0 < lease.generation <= _MAX_GENERATION:
        raise InvalidValue("generation", f"{lease.generation} is the generation of no lease")
