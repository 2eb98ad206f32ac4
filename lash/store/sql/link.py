"""The way to the database: statements go out, rows come back. One kind for each driver, and one for reads."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import cache
from typing import Any, Protocol

from sqlalchemy import AdaptedConnection, Connection, bindparam, select

from lash.clock import Clock, from_micros
from lash.ids import OwnerId, SessionUid
from lash.store import schema
from lash.store.rows import Row
from lash.store.sql.statements import (
    POSTGRES,
    SQLITE,
    Bind,
    Change,
    Statement,
    Values,
    bind,
    change_on_sqlite,
    changes_on_postgres,
)

Rows = Mapping[Change, Sequence[Sequence[Any]]]
"""The rows of each change, as lists of values in the order of its names."""


class Link(Protocol):
    postgres: bool
    patient: bool
    """Whether to wait a moment for what is held, instead of leaving it out."""

    def rows(self, statement: Statement, values: Values) -> list[Row]:
        """What a statement finds."""
        ...

    def rows_for_each(self, statement: Statement, keys: Sequence[Values]) -> list[list[Row]]:
        """What it finds for each of some keys, which all have the same names."""
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

_SESSION = Statement(select(schema.sessions).where(schema.sessions.c.uid == bindparam("uid")))


@cache
def _binds_on_sqlite(change: Change) -> tuple[Bind, ...]:
    """An update names its values before its key."""
    order = change.columns + change.key
    return tuple(bind(name, change.table.c[name].type, SQLITE) for name in order)


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

    def rows(self, statement: Statement, values: Values) -> list[Row]:
        rendered = statement.on(SQLITE)
        return [rendered.row(found) for found in self._execute(rendered.sql, rendered.values(values))]

    def _execute(self, sql: str, values: Sequence[Any]) -> sqlite3.Cursor:
        return self._driver.execute(sql, values)

    def rows_for_each(self, statement: Statement, keys: Sequence[Values]) -> list[list[Row]]:
        return [self.rows(statement, key) for key in keys]

    def lock(self, uids: Sequence[SessionUid]) -> tuple[list[Row], datetime]:
        return [row for uid in uids for row in self.rows(_SESSION, {"uid": uid})], self._clock.now()

    def change(self, rows: Rows) -> None:
        for change, values in rows.items():
            binds = _binds_on_sqlite(change)
            keys = len(change.key)
            ordered = ([*row[keys:], *row[:keys]] for row in values)
            self._execute_many(
                change_on_sqlite(change),
                [[each.value(value) for each, value in zip(binds, row, strict=True)] for row in ordered],
            )

    def _execute_many(self, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        self._driver.executemany(sql, rows)

    def died(self, owner: OwnerId) -> bool:
        return self._died(owner)


# -- Postgres ----------------------------------------------------------------------------------------------------------

_COLUMNS = ", ".join(column.name for column in schema.sessions.c)
_READ_SESSION = Statement(select(schema.sessions))
_LOCK = """
WITH locked AS MATERIALIZED (
    SELECT {columns} FROM lash_sessions WHERE uid = ANY($1::BYTEA[]) ORDER BY id FOR UPDATE {held}
)
SELECT locked.*, lash_now() FROM locked
"""
_SKIPPING = _LOCK.format(columns=_COLUMNS, held="SKIP LOCKED")
_WAITING = _LOCK.format(columns=_COLUMNS, held="")


_uid = bind("uid", schema.sessions.c.uid.type, POSTGRES)


@cache
def _binds_on_postgres(change: Change) -> tuple[Bind, ...]:
    return tuple(bind(name, change.table.c[name].type, POSTGRES) for name in change.names)


class PostgresLink:
    """The writer's own connection."""

    postgres = True

    def __init__(self, driver: AdaptedConnection, *, patient: bool) -> None:
        self._driver = driver
        self.patient = patient

    def _fetch(self, sql: str, values: Sequence[Any]) -> list[Any]:
        found: list[Any] = self._driver.run_async(lambda connection: connection.fetch(sql, *values))
        return found

    def rows(self, statement: Statement, values: Values) -> list[Row]:
        rendered = statement.on(POSTGRES)
        return [rendered.row(tuple(found)) for found in self._fetch(rendered.sql, rendered.values(values))]

    def rows_for_each(self, statement: Statement, keys: Sequence[Values]) -> list[list[Row]]:
        if len(keys) == 1:
            return [self.rows(statement, keys[0])]
        rendered = statement.for_many(tuple(keys[0]))
        answers: list[list[Row]] = [[] for _ in keys]
        for found in self._fetch(rendered.sql, rendered.values(keys)):
            answers[found[-1] - 1].append(rendered.one.row(tuple(found)))
        return answers

    def lock(self, uids: Sequence[SessionUid]) -> tuple[list[Row], datetime]:
        ids = [_uid.value(uid) for uid in uids]
        found = self._fetch(_WAITING if self.patient else _SKIPPING, [ids]) if ids else []
        # Read after the rows were locked, each after its own; the last one was read after all of them.
        now = max(row[-1] for row in found) if found else self._fetch("SELECT lash_now()", ())[0][0]
        rendered = _READ_SESSION.on(POSTGRES)
        return [rendered.row(tuple(row)) for row in found], from_micros(now)

    def change(self, rows: Rows) -> None:
        values: list[list[Any]] = []
        for change, given in rows.items():
            for each, column in zip(_binds_on_postgres(change), zip(*given, strict=True), strict=True):
                values.append([each.value(value) for value in column])
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

    def rows(self, statement: Statement, values: Values) -> list[Row]:
        rendered = statement.on(POSTGRES if self.postgres else SQLITE)
        found = self._connection.exec_driver_sql(rendered.sql, tuple(rendered.values(values)))
        return [rendered.row(tuple(row)) for row in found]

    def rows_for_each(self, statement: Statement, keys: Sequence[Values]) -> list[list[Row]]:
        return [self.rows(statement, key) for key in keys]
