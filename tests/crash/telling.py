"""How a worker says what it does. A line is sent before the next step is taken, so a kill loses no word."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import Awaitable, Callable
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from lash.errors import LashError, StoreUnavailable

R = TypeVar("R")
GIVE_UP = 60.0
"""Seconds for which a call is repeated that the store cannot answer."""


class Teller:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._numbers = itertools.count(1)

    def say(self, **facts: Any) -> None:
        self._connection.send_bytes(json.dumps(facts).encode())

    async def call(
        self, op: str, make: Callable[[], Awaitable[R]], answer: Callable[[R], Any] = lambda _: None, **given: Any
    ) -> R:
        """Make one call of the store, and tell of it before and after. While the store cannot answer it is repeated, as
        it is: same ids, same content."""
        number = next(self._numbers)
        self.say(call=number, op=op, given=given, at=time.monotonic_ns())
        give_up_at = time.monotonic() + GIVE_UP
        while True:
            try:
                result = await make()
            except StoreUnavailable as error:
                if time.monotonic() > give_up_at:
                    raise
                self.say(call=number, unsure=type(error).__name__)
                await asyncio.sleep(0.02)
            except LashError as error:
                self.say(call=number, refused=type(error).__name__, at=time.monotonic_ns())
                raise
            else:
                self.say(call=number, answer=answer(result), at=time.monotonic_ns())
                return result


async def look(read: Callable[[], Awaitable[R]]) -> R:
    """Read, and read again as long as the store cannot answer. Nobody is told."""
    give_up_at = time.monotonic() + GIVE_UP
    while True:
        try:
            return await read()
        except StoreUnavailable:
            if time.monotonic() > give_up_at:
                raise
            await asyncio.sleep(0.02)
