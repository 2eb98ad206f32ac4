"""The way to the database: statements go out, rows come back. One kind for each driver, and one for reads."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol

from sqlalchemy import AdaptedConnection, Connection, bindparam, select

from lash.clock import Clock, from_micros
from lash.ids import OwnerId, SessionUid
from lash.store import schema
from lash.store.rows import Row
from lash.store.sql.statements import (
    POSTGRES,
    SQLITE,
    Change,
    Key,
    Statement,
    change_on_sqlite,
    changes_on_postgres,
    columns_on_postgres,
    joined_on_postgres,
    lists_of,
    rows_on_sqlite,
)

Rows = Mapping[Change, Sequence[Sequence[Any]]]
"""The rows of each change, as lists of values in the order of its names."""
Lookups = Mapping[Statement, Sequence[Key]]
"""What is to be looked up: for each statement, some keys."""
Found = dict[Statement, dict[Key, list[Row]]]
"""What was found, by statement and key."""


class Link(Protocol):
    postgres: bool
    patient: bool
    """Whether to wait a moment for what is held, instead of leaving it out."""

    def rows(self, statement: Statement, key: Key) -> list[Row]:
        """What a statement finds for a key."""
        ...

    def look_up(self, lookups: Lookups) -> Found:
        """What several statements find, each for several keys."""
        ...


class WriteLink(Link, Protocol):
    """A link inside a transaction that writes."""

    def lock(self, uids: Sequence[SessionUid]) -> tuple[list[Row], datetime]:
        """Lock the rows of sessions and read them, and the time after that. Those that somebody holds are missing."""
        ...

    def change(self, rows: Rows) -> None: ...

    def died(self, owner: OwnerId) -> bool:
        """Whether the process of an owner has died for certain."""
        ...


def nobody_can_tell(owner: OwnerId) -> bool:
    """Whether its process died, as far as is known: it may run on another machine."""
    return False


# -- SQLite ------------------------------------------------------------------------------------------------------------

_SESSION = Statement(select(schema.sessions).where(schema.sessions.c.uid == bindparam("uid")), "uid")


class SqliteLink:
    """The writer's own connection. Only one transaction writes at a time, so nothing is ever held."""

    postgres = False
    patient = False

    def __init__(
        self, driver: sqlite3.Connection, clock: Clock, died: Callable[[OwnerId], bool] = nobody_can_tell
    ) -> None:
        self._driver = driver
        self._clock = clock
        self._died = died

    def rows(self, statement: Statement, key: Key) -> list[Row]:
        rendered = statement.on(SQLITE)
        return [rendered.row(found) for found in self._execute(rendered.sql, rendered.values(key))]

    def _execute(self, sql: str, values: Sequence[Any]) -> sqlite3.Cursor:
        return self._driver.execute(sql, values)

    def look_up(self, lookups: Lookups) -> Found:
        return {statement: {key: self.rows(statement, key) for key in keys} for statement, keys in lookups.items()}

    def lock(self, uids: Sequence[SessionUid]) -> tuple[list[Row], datetime]:
        return [row for uid in uids for row in self.rows(_SESSION, (uid,))], self._clock.now()

    def change(self, rows: Rows) -> None:
        for change, given in rows.items():
            self._execute_many(change_on_sqlite(change), rows_on_sqlite(change, given))

    def _execute_many(self, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        self._driver.executemany(sql, rows)

    def died(self, owner: OwnerId) -> bool:
        return self._died(owner)


# -- Postgres ----------------------------------------------------------------------------------------------------------

_COLUMNS = ", ".join(column.name for column in schema.sessions.c)
_READ_SESSION = Statement(select(schema.sessions))
# The time is read after all of the rows were locked: the count needs them all.
_LOCK = """
WITH locked AS MATERIALIZED (
    SELECT {columns} FROM lash_sessions WHERE uid = ANY($1::BYTEA[]) ORDER BY id FOR UPDATE {held}
)
SELECT locked.*, (SELECT lash_now() FROM (SELECT count(*) FROM locked) AS counted) FROM locked
"""
_SKIPPING = _LOCK.format(columns=_COLUMNS, held="SKIP LOCKED")
_WAITING = _LOCK.format(columns=_COLUMNS, held="")


class PostgresLink:
    """The writer's own connection."""

    postgres = True

    def __init__(self, driver: AdaptedConnection, *, patient: bool) -> None:
        self._driver = driver
        self.patient = patient

    def _fetch(self, sql: str, values: Sequence[Any]) -> list[Any]:
        found: list[Any] = self._driver.run_async(lambda connection: connection.fetch(sql, *values))
        return found

    def rows(self, statement: Statement, key: Key) -> list[Row]:
        rendered = statement.on(POSTGRES)
        return [rendered.row(found) for found in self._fetch(rendered.sql, rendered.values(key))]

    def look_up(self, lookups: Lookups) -> Found:
        statements = tuple(lookups)
        if len(statements) == 1 and len(lookups[statements[0]]) == 1:
            [key] = lookups[statements[0]]
            return {statements[0]: {key: self.rows(statements[0], key)}}
        answers: Found = {statement: {key: [] for key in keys} for statement, keys in lookups.items()}
        places = [list(answers[statement].values()) for statement in statements]
        rendered = [statement.on(POSTGRES) for statement in statements]
        values = [value for statement in statements for value in lists_of(statement, lookups[statement])]
        for number, key, found in self._fetch(joined_on_postgres(statements), values):
            places[number][key].append(rendered[number].row(found))
        return answers

    def lock(self, uids: Sequence[SessionUid]) -> tuple[list[Row], datetime]:
        ids = [schema.Hex.write(uid) for uid in uids]
        found = self._fetch(_WAITING if self.patient else _SKIPPING, [ids]) if ids else []
        now = found[0][-1] if found else self._fetch("SELECT lash_now()", ())[0][0]
        rendered = _READ_SESSION.on(POSTGRES)
        return [rendered.row(tuple(row)[:-1]) for row in found], from_micros(now)

    def change(self, rows: Rows) -> None:
        values = [column for change, given in rows.items() for column in columns_on_postgres(change, given)]
        self._fetch(changes_on_postgres(tuple(rows)), values)

    def died(self, owner: OwnerId) -> bool:
        return nobody_can_tell(owner)


# -- reads -------------------------------------------------------------------------------------------------------------


class ReadLink:
    """A connection of the pool, for reads: the same statements, by way of SQLAlchemy."""

    patient = False

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.postgres = connection.dialect.name == "postgresql"

    def rows(self, statement: Statement, key: Key) -> list[Row]:
        rendered = statement.on(POSTGRES if self.postgres else SQLITE)
        found = self._connection.exec_driver_sql(rendered.sql, tuple(rendered.values(key)))
        return [rendered.row(row) for row in found]

    def look_up(self, lookups: Lookups) -> Found:
        return {statement: {key: self.rows(statement, key) for key in keys} for statement, keys in lookups.items()}
