"""The one place that all writes of an open store pass through.

Writes queue here and are settled in batches, one transaction each: a batch is whatever queued up while the last one was
being settled, so nothing waits for a timer and a busy store shares its syncs. A submitted write is never withdrawn:
cancelling its caller leaves it to its fate, and its id tells later how it went.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from lash.errors import CorruptData, LashError, StoreClosed
from lash.store.sql.steps import Settled, Unsettled, Write

R = TypeVar("R")
Batch = list[tuple[Write[Any], "asyncio.Future[Settled[Any]]"]]

MAX_BATCH = 256
"""Writes in one transaction. More would keep the first of them waiting for the last."""


MAX_RETRIES = 3
"""How often a write is tried again on its own. A rerun reads the rows anew, so what was a broken constraint becomes the
answer that belongs to it."""


class Writer:
    """Settles writes in the order in which they came. ``settle`` settles a batch in one transaction."""

    def __init__(self, settle: Callable[[Sequence[Write[Any]]], Awaitable[list[Settled[Any]]]]) -> None:
        self._settle = settle
        self._queue: deque[tuple[Write[Any], asyncio.Future[Settled[Any]]]] = deque()
        self._busy: asyncio.Task[None] | None = None
        self._turn = asyncio.Lock()
        self._closed = False

    async def write(self, write: Write[R]) -> R:
        if self._closed:
            raise StoreClosed("this store was closed; open it again")
        answer: asyncio.Future[Settled[R]] = asyncio.get_running_loop().create_future()
        self._queue.append((write, answer))
        if self._busy is None or self._busy.done():
            self._busy = asyncio.create_task(self._drain(), name="lash-writer")
        return (await answer).unwrap()

    async def alone(self, change: Callable[[], Awaitable[R]]) -> R:
        """Run a change that is no batch of writes, when no batch is being settled."""
        if self._closed:
            raise StoreClosed("this store was closed; open it again")
        async with self._turn:
            return await change()

    async def aclose(self) -> None:
        """Take nothing new, settle what was submitted, then stop."""
        self._closed = True
        if self._busy is not None:
            await asyncio.shield(self._busy)  # who is tired of waiting must not take the writes of others with him
        async with self._turn:
            pass

    async def _drain(self) -> None:
        try:
            await self._settle_all()
        except BaseException as error:  # the loop is being torn down: nobody is left waiting for an answer
            _refuse(list(self._queue), error)
            self._queue.clear()
            raise

    async def _settle_all(self) -> None:
        while self._queue:
            async with self._turn:
                batch = [self._queue.popleft() for _ in range(min(MAX_BATCH, len(self._queue)))]
                await self._settle_batch(batch)

    async def _settle_batch(self, batch: Batch, tried: int = 0) -> None:
        try:
            settled = await self._settle([write for write, _ in batch])
        except CorruptData as error:  # a row of one session: the others must not hear of it
            await self._settle_apart(batch, tried, error)
        except LashError as error:
            _refuse(batch, error)
        except Exception as error:
            await self._settle_apart(batch, tried, error)
        except BaseException as error:
            _refuse(batch, error)
            raise
        else:
            for (_, answer), outcome in zip(batch, settled, strict=True):
                if not answer.done():
                    answer.set_result(outcome)

    async def _settle_apart(self, batch: Batch, tried: int, error: Exception) -> None:
        """One write spoiled the batch, and nothing of it was written: each goes on its own, and answers for itself."""
        if len(batch) > 1:
            for one in batch:
                await self._settle_batch([one])
        elif isinstance(error, Unsettled) and tried < MAX_RETRIES:
            await self._settle_batch(batch, tried + 1)
        else:
            _refuse(batch, error.refusal if isinstance(error, Unsettled) else error)


def _refuse(batch: Batch, error: BaseException) -> None:
    for _, answer in batch:
        if answer.done():
            continue
        if isinstance(error, LashError):
            answer.set_result(Settled(error=error))
        else:
            answer.set_exception(error)
