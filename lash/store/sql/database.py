"""What the store needs of a database: one transaction at a time for writes, and consistent reads beside them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any, Protocol, TypeVar

from sqlalchemy import Connection

from lash.store.keeper import Renewer
from lash.store.sql.steps import Settled, Write

R = TypeVar("R")


class Database(Protocol):
    """SQLite or Postgres. A transaction is one function over a Connection, the same for both: SQLite runs it whole on
    the writer's thread, Postgres as one coroutine on a connection that is kept for it."""

    where: str
    """The database in words that may be shown to anybody: no password."""

    async def settle(self, writes: Sequence[Write[Any]], *, patient: bool = False) -> list[Settled[Any] | None]:
        """Settle a batch of writes in one transaction; None for each that met something held. Unsettled when one of
        them may be to blame for a failure. ``patient`` waits a moment for what is held, and others wait with it."""
        ...

    async def transact(self, change: Callable[[Connection], R]) -> R:
        """Run one change that is no batch of writes in a transaction of its own. It may run twice: when the connection
        was lost before anything was committed."""
        ...

    async def read(self, look: Callable[[Connection], R]) -> R:
        """Run some statements on one snapshot, beside the writer."""
        ...

    def renewer(self, ttl: timedelta) -> Renewer:
        """What renews leases for so long, from another thread, beside the writer. Connects when it is first asked."""
        ...

    async def begin_service(self) -> None:
        """The database was accepted: settle how it is run from now on."""
        ...

    def now(self, connection: Connection) -> datetime:
        """The store's time."""
        ...

    async def aclose(self) -> None: ...
