"""A point at which a process dies, or stops: the n-th time that its database driver comes by it.

The drivers are watched, not lash: a transaction begins, changes something, is about to be committed, was committed.
Nothing of the process survives a trap, not even a ``finally``.
"""

from __future__ import annotations

import os
import re
import signal
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import asyncpg
import asyncpg.prepared_stmt

Point = Literal["after BEGIN", "while writing", "before COMMIT", "after COMMIT"]
_READS = "BEGIN DEFERRED"
"""How SQLite's driver is heard to begin a transaction that only reads. On Postgres a plain BEGIN is one that writes."""
_CHANGES = re.compile(r"\b(INSERT INTO|UPDATE lash_|DELETE FROM)")


@dataclass
class Trap:
    """``point`` None springs at nothing. ``sends`` is the signal that the process gets."""

    point: Point | None = None
    sends: int = signal.SIGKILL

    def arm(self, point: Point, sends: int = signal.SIGKILL) -> None:
        self.point, self.sends = point, sends

    def passes(self, point: Point) -> None:
        if point == self.point:
            self.point = None
            os.kill(os.getpid(), self.sends)

    def before(self, sql: str) -> None:
        if sql.startswith("COMMIT"):
            self.passes("before COMMIT")

    def after(self, sql: str) -> None:
        if sql.startswith("COMMIT"):
            self.passes("after COMMIT")
        elif sql.startswith("BEGIN") and sql != _READS and "READ ONLY" not in sql:
            self.passes("after BEGIN")
        elif _CHANGES.search(sql):
            self.passes("while writing")


def watch(trap: Trap) -> None:
    """From now on every connection of this process is watched."""
    _watch_sqlite(trap)
    _watch_postgres(trap)


def _watch_sqlite(trap: Trap) -> None:
    class Cursor(sqlite3.Cursor):
        def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
            return _watched(trap, _spelled(sql), lambda: super(Cursor, self).execute(sql, *values))

        def executemany(self, sql: str, *values: Any) -> sqlite3.Cursor:
            return _watched(trap, sql, lambda: super(Cursor, self).executemany(sql, *values))

    class Connection(sqlite3.Connection):
        def cursor(self, factory: Any = Cursor) -> Any:
            return super().cursor(factory)

        def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
            return _watched(trap, _spelled(sql), lambda: super(Connection, self).execute(sql, *values))

        def executemany(self, sql: str, *values: Any) -> sqlite3.Cursor:
            return _watched(trap, sql, lambda: super(Connection, self).executemany(sql, *values))

        def commit(self) -> None:
            if self.in_transaction:
                _watched(trap, "COMMIT", super().commit)

    connect = sqlite3.connect

    def connect_watched(*given: Any, **more: Any) -> sqlite3.Connection:
        return connect(*given, **{"factory": Connection, **more})

    sqlite3.connect = connect_watched  # type: ignore[assignment]
    sqlite3.dbapi2.connect = connect_watched  # type: ignore[assignment]


def _spelled(sql: str) -> str:
    return _READS if sql == "BEGIN" else sql


def _watched(trap: Trap, sql: str, run: Callable[[], Any]) -> Any:
    trap.before(sql)
    result = run()
    trap.after(sql)
    return result


def _watch_postgres(trap: Trap) -> None:
    execute, fetch = asyncpg.Connection.execute, asyncpg.Connection.fetch
    fetch_prepared = asyncpg.prepared_stmt.PreparedStatement.fetch

    async def execute_watched(self: Any, sql: str, *given: Any, **more: Any) -> Any:
        trap.before(sql)
        result = await execute(self, sql, *given, **more)
        trap.after(sql)
        return result

    async def fetch_watched(self: Any, sql: str, *given: Any, **more: Any) -> Any:
        result = await fetch(self, sql, *given, **more)
        trap.after(sql)
        return result

    async def fetch_prepared_watched(self: Any, *given: Any, **more: Any) -> Any:
        result = await fetch_prepared(self, *given, **more)
        trap.after(self.get_query())
        return result

    asyncpg.Connection.execute = execute_watched
    asyncpg.Connection.fetch = fetch_watched
    asyncpg.prepared_stmt.PreparedStatement.fetch = fetch_prepared_watched
