"""The reference store: the contract in plain dicts, one module per promise.

    data      the rows
    handle    an open store: who is refused, and how a change becomes visible all at once
    sessions  graph  inbox  turns  waits  commits  outbox  vacuum

Every rule is a call to the pure packages. Nothing awaits inside an operation, so that on one event loop any number of
handles may share a MemoryData, as processes share a database. It is meant to be read, and to be what other stores are
compared with: paths are found by walking from parent to parent, keys and waits by looking at each.
"""

from __future__ import annotations

from typing import Self

from lash.store.memory.commits import MemoryCommits
from lash.store.memory.data import MemoryData
from lash.store.memory.graph import MemoryGraph
from lash.store.memory.inbox import MemoryInbox
from lash.store.memory.outbox import MemoryOutbox
from lash.store.memory.sessions import MemorySessions
from lash.store.memory.turns import MemoryLeases, MemoryTurns
from lash.store.memory.vacuum import MemoryMaintenance
from lash.store.memory.waits import MemoryWaits

__all__ = ["MemoryData", "MemoryStore"]


class MemoryStore(
    MemorySessions,
    MemoryGraph,
    MemoryInbox,
    MemoryLeases,
    MemoryTurns,
    MemoryWaits,
    MemoryCommits,
    MemoryOutbox,
    MemoryMaintenance,
):
    """A store that lives as long as its ``data``. Handles with the same ``data`` are handles on one database."""

    async def aclose(self) -> None:
        self._closed = True
        for keeper in list(self.keepers):
            await keeper.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()
