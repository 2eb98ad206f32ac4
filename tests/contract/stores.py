"""The stores that the contract is held against, as mixins for its classes."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from lash.store.contract import Store
from lash.store.memory import MemoryData, MemoryStore
from lash.testing import ManualClock
from lash.testing.harness import StoreHarness


class MemoryHarness:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.data = MemoryData()

    async def open(self) -> Store:
        return MemoryStore(clock=self.clock, data=self.data)

    async def advance(self, by: timedelta) -> None:
        self.clock.advance(by)

    async def now(self) -> datetime:
        return self.clock.now()


class OnEveryStore:
    """Runs a contract class on every store, on a database that tests share where that is possible."""

    @pytest.fixture
    async def harness(self) -> StoreHarness:
        return MemoryHarness()


class OnEveryEmptyStore:
    """Runs a contract class on every store, each test on an empty database of its own."""

    @pytest.fixture
    async def harness(self) -> StoreHarness:
        return MemoryHarness()
