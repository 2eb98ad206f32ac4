"""How the contract gets at stores of one kind: the one thing to write for a store of your own."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from typing import Protocol

import pytest

from lash.store.contract import Store


class StoreHarness(Protocol):
    """One database, and its time. Made afresh for each test; several tests may share the database behind it."""

    async def open(self) -> Store:
        """A new handle on the same database, as another process would open it."""
        ...

    async def advance(self, by: timedelta) -> None:
        """Let the store's time pass for this test alone. A negative time sets its clock back."""
        ...

    async def now(self) -> datetime:
        """The store's time."""
        ...


class StoreContract:
    """The base of the contract classes. Subclass one and override ``harness``; every test gets an open ``store``.

    Tests use fresh session names, so a database may be shared by them all; the classes that say so need an empty one
    per test.
    """

    @pytest.fixture
    async def harness(self) -> StoreHarness:
        raise NotImplementedError("override the fixture 'harness' with one for your store")

    @pytest.fixture
    async def store(self, harness: StoreHarness) -> AsyncIterator[Store]:
        async with opened(harness) as store:
            yield store


@contextlib.asynccontextmanager
async def opened(harness: StoreHarness) -> AsyncIterator[Store]:
    """A handle that is closed afterwards."""
    store = await harness.open()
    try:
        yield store
    finally:
        await store.aclose()
