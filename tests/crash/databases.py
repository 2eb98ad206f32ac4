"""The databases of the crash tests, seen from outside: every row as it is, and the clock that stores on them go by."""

from __future__ import annotations

import sqlite3
import uuid
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Protocol

import asyncpg
from sqlalchemy.engine import URL

from lash.clock import MICROSECOND, Clock, SystemClock
from tests.postgres import connect

Row = dict[str, Any]
Tables = dict[str, list[Row]]
"""Every row of every table of lash, without the prefix of the names. Bytes are hex digits."""


class FileClock:
    """The time of day, moved by as many microseconds as a file says. The file may change at any moment."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def now(self) -> datetime:
        return datetime.now(UTC) + timedelta(microseconds=int(self._path.read_text()))


@dataclass(frozen=True)
class Place:
    """All that a process needs to open the database."""

    url: str
    clock_file: str | None = None

    def clock(self) -> Clock:
        return SystemClock() if self.clock_file is None else FileClock(Path(self.clock_file))


class Database(Protocol):
    place: Place

    async def tables(self) -> Tables:
        """One snapshot, read with plain SQL."""
        ...

    async def set_clock(self, ahead: timedelta) -> None:
        """What the store's clock shows from now on, compared with the time of day."""
        ...


class SqliteFile:
    def __init__(self, path: Path) -> None:
        self.path = path
        self._offset = path.with_name(f"{path.name}.clock")
        self._write(timedelta(0))
        self.place = Place(f"sqlite:///{path}", str(self._offset))

    async def tables(self) -> Tables:
        with closing(sqlite3.connect(self.path, isolation_level=None)) as connection:
            connection.row_factory = sqlite3.Row
            connection.execute("BEGIN")
            named = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND name LIKE 'lash_%'")
            return {
                name.removeprefix("lash_"): [_row(row) for row in connection.execute(f"SELECT * FROM {name}")]
                for [name] in named.fetchall()
            }

    async def set_clock(self, ahead: timedelta) -> None:
        self._write(ahead)

    def _write(self, ahead: timedelta) -> None:
        new = self._offset.with_suffix(".new")
        new.write_text(str(ahead // MICROSECOND))
        new.replace(self._offset)  # at once: a reader sees the old file or the new one


class PostgresDatabase:
    def __init__(self, url: URL) -> None:
        self._url = url
        self._clock = uuid.uuid4().hex
        self.place = Place(url.update_query_dict({"lash.clock": self._clock}).render_as_string(hide_password=False))

    async def tables(self) -> Tables:
        connection = await connect(self._url)
        try:
            async with connection.transaction(isolation="repeatable_read", readonly=True):
                return await _all_rows(connection)
        finally:
            await connection.close()

    async def set_clock(self, ahead: timedelta) -> None:
        connection = await connect(self._url)
        try:
            await connection.execute(
                "INSERT INTO lash_clock_offsets VALUES ($1, $2)"
                " ON CONFLICT (name) DO UPDATE SET micros = excluded.micros",
                self._clock,
                ahead // MICROSECOND,
            )
        finally:
            await connection.close()


async def _all_rows(connection: asyncpg.Connection) -> Tables:
    named = "SELECT tablename FROM pg_tables WHERE schemaname = 'public' AND tablename LIKE 'lash\\_%'"
    return {
        name.removeprefix("lash_"): [_row(row) for row in await connection.fetch(f"SELECT * FROM {name}")]
        for [name] in await connection.fetch(named)
    }


def _row(row: Any) -> Row:
    return {name: value.hex() if isinstance(value, bytes) else value for name, value in dict(row).items()}
