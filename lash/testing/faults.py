"""Stores that fail when they are told to: the faults that a real store shows once a year, on the call you name.

    store = faulty(store, {"commit": {1: LOSE_ANSWER}, "admit": {2: Refuse(DiskFull("no space left"))}})

The first commit settles and its caller dies without hearing of it; the second admit is refused and writes nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol, Self, cast

from lash.errors import LashError, StoreUnavailable, UsageError
from lash.store.contract import Store


class Died(BaseException):
    """The process is gone. No ``except Exception`` survives it."""


@dataclass(frozen=True, slots=True)
class Die:
    """The process dies: ``before`` the call, or ``after`` it was settled and with its answer lost."""

    when: Literal["before", "after"]


DIE_BEFORE = Die("before")
LOSE_ANSWER = Die("after")


@dataclass(frozen=True, slots=True)
class Refuse:
    """The store cannot answer and does nothing: DiskFull, StoreLocked, StoreUnavailable."""

    error: StoreUnavailable


@dataclass(frozen=True, slots=True)
class Slow:
    """The call is made once ``until`` is set; ``reached`` says that it has come so far."""

    until: asyncio.Event
    reached: asyncio.Event = field(default_factory=asyncio.Event)


Fault = Die | Refuse | Slow
Plan = Mapping[str, Mapping[int, Fault]]
"""What happens, by the name of a method and the number of its call, counted from 1."""

METHODS = frozenset(name for name in dir(Store) if not name.startswith("_"))


class FaultyStore:
    """A store seen through a plan of faults. ``calls`` counts what was asked of it, by method.

    A dead process calls nothing: after a death every call dies, so that a ``finally`` which would release a lease does
    not. Only ``aclose`` goes through, as the operating system would close the files.
    """

    def __init__(self, store: Store, plan: Plan) -> None:
        for method in plan:
            if method not in METHODS:
                raise UsageError(f"a store has no method {method!r} that could fail; see lash.store.contract")
        self._store = store
        self._plan = plan
        self._dead = False
        self.calls: Counter[str] = Counter()

    def unreached(self) -> list[tuple[str, int]]:
        """Planned faults that have not happened: a test whose faults never struck shows nothing."""
        return [(method, n) for method, faults in self._plan.items() for n in faults if n > self.calls[method]]

    def __getattr__(self, name: str) -> object:
        attribute: object = getattr(self._store, name)
        if name not in METHODS or name == "aclose":
            return attribute
        method = cast(Callable[..., Awaitable[object]], attribute)

        async def call(*args: object, **options: object) -> object:
            return await self._call(name, lambda: method(*args, **options))

        return call

    async def _call(self, name: str, make: Callable[[], Awaitable[object]]) -> object:
        if self._dead:
            raise Died(f"{name} was called by a process that had died")
        self.calls[name] += 1
        number = self.calls[name]
        match fault := self._plan.get(name, {}).get(number):
            case Die(when="before"):
                raise self._death(name, number)
            case Die():
                with contextlib.suppress(LashError):  # a refusal is an answer too, and lost with the rest
                    await make()
                raise self._death(name, number)
            case Refuse(error=error):
                raise error
            case Slow():
                fault.reached.set()
                await fault.until.wait()
        return await make()

    def _death(self, name: str, number: int) -> Died:
        self._dead = True
        return Died(f"{name}, call {number}")

    async def __aenter__(self) -> Self:
        await self._store.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._store.__aexit__(*exc)


class Faulty(Store, Protocol):
    """A store that fails as planned, with what a test may ask it afterwards."""

    calls: Counter[str]

    def unreached(self) -> list[tuple[str, int]]: ...


def faulty(store: Store, plan: Plan) -> Faulty:
    """A FaultyStore as the type checker sees it: a Store that can be asked what happened."""
    return cast(Faulty, FaultyStore(store, plan))
