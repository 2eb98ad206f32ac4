# ruff: noqa: S608 (all names in these texts are names of our own tables and columns)
"""Statements described with SQLAlchemy, rendered once for each database, and run on the bare driver.

Every write runs a dozen of them, and to send one through SQLAlchemy's execution costs more than SQLite's own work. A
statement is written for one key. Asked for many keys, SQLite runs it for each, which costs microseconds; Postgres joins
it laterally to the keys, so that it crosses the wire once.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from sqlalchemy import Dialect, Executable, Table, bindparam
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.dialects.postgresql import asyncpg
from sqlalchemy.dialects.sqlite import pysqlite
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.elements import ClauseElement
from sqlalchemy.types import TypeEngine

from lash.store.rows import Row

Values = Mapping[str, Any]

SQLITE: Dialect = pysqlite.dialect(dbapi=sqlite3)
POSTGRES: Dialect = asyncpg.dialect()  # type: ignore[no-untyped-call]

_PLACEHOLDER = re.compile(r"\$(\d+)::([A-Z]+)")


def insert_into(table: Table, names: Sequence[str], finish: Callable[[Any], Executable]) -> Statement:
    """An insert that ends with what only the databases' own kinds of insert can say."""
    values = {name: bindparam(name, type_=table.c[name].type) for name in names}
    kinds: dict[str, Any] = {SQLITE.name: sqlite.insert, POSTGRES.name: postgresql.insert}
    return Statement(lambda dialect: finish(kinds[dialect.name](table).values(values)))


class Statement:
    """One statement for both databases, or what makes one for each."""

    def __init__(self, described: Executable | Callable[[Dialect], Executable]) -> None:
        self._described = described
        self._rendered: dict[str, Rendered] = {}
        self._for_many: dict[tuple[str, ...], RenderedForMany] = {}

    def on(self, dialect: Dialect) -> Rendered:
        found = self._rendered.get(dialect.name)
        if found is None:
            described = self._described if isinstance(self._described, Executable) else self._described(dialect)
            found = self._rendered[dialect.name] = _render(described, dialect)
        return found

    def for_many(self, names: tuple[str, ...]) -> RenderedForMany:
        """For Postgres: one statement for a list of keys, whose values have these names."""
        found = self._for_many.get(names)
        if found is None:
            found = self._for_many[names] = _render_for_many(self.on(POSTGRES), names)
        return found


@dataclass(frozen=True, slots=True)
class Bind:
    name: str
    convert: Callable[[Any], Any] | None

    def value(self, given: Any) -> Any:
        return given if self.convert is None or given is None else self.convert(given)


def bind(name: str, type_: TypeEngine[Any], dialect: Dialect) -> Bind:
    return Bind(name, type_.bind_processor(dialect))


@dataclass(frozen=True, slots=True)
class Rendered:
    """A statement as the driver takes it: its text, its values in order, its columns."""

    sql: str
    binds: tuple[Bind, ...]
    columns: tuple[str, ...]
    readers: tuple[tuple[str, Callable[[Any], Any]], ...]
    constants: Values

    def values(self, given: Values) -> list[Any]:
        constants = self.constants
        return [each.value(given[each.name] if each.name in given else constants[each.name]) for each in self.binds]

    def row(self, found: Sequence[Any]) -> Row:
        row = dict(zip(self.columns, found, strict=False))  # a number of the key may stand behind the columns
        for name, read in self.readers:
            if row[name] is not None:
                row[name] = read(row[name])
        return row


@dataclass(frozen=True, slots=True)
class RenderedForMany:
    """The same for a list of keys. Each row that it finds ends with the number of its key, beginning with 1."""

    sql: str
    one: Rendered
    keys: tuple[Bind, ...]
    others: tuple[Bind, ...]

    def values(self, given: Sequence[Values]) -> list[Any]:
        lists = [[each.value(values[each.name]) for values in given] for each in self.keys]
        return lists + [each.value(self.one.constants[each.name]) for each in self.others]


def _render(described: Executable, dialect: Dialect) -> Rendered:
    assert isinstance(described, ClauseElement)
    compiled = described.compile(dialect=dialect)
    assert isinstance(compiled, SQLCompiler)
    types = {name: named.type for named, name in compiled.bind_names.items()}
    names = compiled.positiontup or ()
    columns = [(entry.keyname, entry.type) for entry in compiled._result_columns]
    readers = [(name, type_.result_processor(dialect, None)) for name, type_ in columns]
    return Rendered(
        compiled.string,
        tuple(bind(name, types[name], dialect) for name in names),
        tuple(name for name, _ in columns),
        tuple((name, read) for name, read in readers if read is not None),
        compiled.params,
    )


def _render_for_many(one: Rendered, names: tuple[str, ...]) -> RenderedForMany:
    """Where the statement names a value of the key, let it name a column of the list of keys."""
    types: dict[str, str] = {}
    others: list[Bind] = []

    def place(found: re.Match[str]) -> str:
        named = one.binds[int(found[1]) - 1]
        if named.name in names:
            types[named.name] = found[2]
            return f"given.{named.name}"
        if named not in others:
            others.append(named)
        return f"${len(names) + others.index(named) + 1}::{found[2]}"

    inner = _PLACEHOLDER.sub(place, one.sql)
    lists = ", ".join(f"${at}::{types[name]}[]" for at, name in enumerate(names, 1))
    sql = (
        f"SELECT found.*, given.number FROM unnest({lists}) WITH ORDINALITY AS given({', '.join(names)}, number)"
        f" CROSS JOIN LATERAL ({inner}) AS found ORDER BY given.number"
    )
    binds = {each.name: each for each in one.binds}
    return RenderedForMany(sql, one, tuple(binds[name] for name in names), tuple(others))


# -- changes -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Change:
    """Rows of one table to insert, to update or to delete, each with the same columns. ``key`` says which row."""

    kind: str
    table: Table
    key: tuple[str, ...]
    columns: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return self.key + self.columns


@cache
def change_on_sqlite(change: Change) -> str:
    table = change.table.name
    where = " AND ".join(f"{name} = ?" for name in change.key)
    match change.kind:
        case "insert":
            return (
                f"INSERT INTO {table} ({', '.join(change.columns)}) VALUES ({', '.join('?' for _ in change.columns)})"
            )
        case "delete":
            return f"DELETE FROM {table} WHERE {where}"
        case _:
            return f"UPDATE {table} SET {', '.join(f'{name} = ?' for name in change.columns)} WHERE {where}"


@cache
def changes_on_postgres(changes: tuple[Change, ...]) -> str:
    """All of them as one statement: each is a list of rows, and none touches a row that another does."""
    parts: list[str] = []
    at = 0
    for change in changes:
        lists = []
        for name in change.names:
            at += 1
            lists.append(f"${at}::{change.table.c[name].type.compile(POSTGRES)}[]")
        parts.append(_change_on_postgres(change, f"unnest({', '.join(lists)})"))
    first = [f"change_{number} AS ({part})" for number, part in enumerate(parts[:-1])]
    return (f"WITH {', '.join(first)} " if first else "") + parts[-1]


def _change_on_postgres(change: Change, rows: str) -> str:
    table, names = change.table.name, ", ".join(f"{name}_" for name in change.names)
    where = " AND ".join(f"{table}.{name} = given.{name}_" for name in change.key)
    match change.kind:
        case "insert":
            return f"INSERT INTO {table} ({', '.join(change.columns)}) SELECT * FROM {rows}"
        case "delete":
            return f"DELETE FROM {table} USING {rows} AS given({names}) WHERE {where}"
        case _:
            values = ", ".join(f"{name} = given.{name}_" for name in change.columns)
            return f"UPDATE {table} SET {values} FROM {rows} AS given({names}) WHERE {where}"
