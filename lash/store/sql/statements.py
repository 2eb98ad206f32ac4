# ruff: noqa: S608 (all names in these texts are names of our own tables and columns)
"""Statements described with SQLAlchemy, rendered once for each database, and run on the bare driver.

Every write runs a handful of them, and to send one through SQLAlchemy's execution costs more than SQLite's own work. A
statement is written for one key. Asked for many keys, SQLite runs it for each, which costs microseconds; Postgres joins
it laterally to the keys, and joins several statements into one, so that all of a step crosses the wire once.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from sqlalchemy import ColumnElement, Dialect, Executable, Table, bindparam
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.dialects.postgresql import asyncpg
from sqlalchemy.dialects.sqlite import pysqlite
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.elements import ClauseElement
from sqlalchemy.types import TypeEngine

from lash.store.rows import Row
from lash.store.schema import Stored

Key = tuple[Any, ...]

SQLITE: Dialect = pysqlite.dialect(dbapi=sqlite3)
POSTGRES: Dialect = asyncpg.dialect()  # type: ignore[no-untyped-call]

_PLACEHOLDER = re.compile(r"\$(\d+)::([A-Z]+)")


def insert_into(table: Table, names: Sequence[str], finish: Callable[[Any], Executable]) -> Statement:
    """An insert that ends with what only the databases' own kinds of insert can say."""
    values = {name: bindparam(name, type_=table.c[name].type) for name in names}
    kinds: dict[str, Any] = {SQLITE.name: sqlite.insert, POSTGRES.name: postgresql.insert}
    return Statement(lambda dialect: finish(kinds[dialect.name](table).values(values)), *names)


def part(name: str, table: Table) -> list[ColumnElement[Any]]:
    """All columns of a table that is joined to others: in the row they become a row of their own, under this name, or
    None when there was nothing to join."""
    return [column.label(f"{name}.{column.name}") for column in table.c]


class Statement:
    """One statement for both databases, or what makes one for each. ``names`` are those of its key's values."""

    def __init__(self, described: Executable | Callable[[Dialect], Executable], *names: str) -> None:
        self._described = described
        self.names = names
        self._rendered: dict[str, Rendered] = {}

    def on(self, dialect: Dialect) -> Rendered:
        found = self._rendered.get(dialect.name)
        if found is None:
            described = self._described if isinstance(self._described, Executable) else self._described(dialect)
            found = self._rendered[dialect.name] = _render(described, self.names, dialect)
        return found


Convert = Callable[[Any], Any] | None


def writer_of(type_: TypeEngine[Any], dialect: Dialect) -> Convert:
    """What turns a value into what the driver takes; None when it takes the value as it is."""
    return type_.write if isinstance(type_, Stored) else type_.bind_processor(dialect)


def _reader_of(type_: TypeEngine[Any], dialect: Dialect) -> Convert:
    return type_.read if isinstance(type_, Stored) else type_.result_processor(dialect, None)


@dataclass(frozen=True, slots=True)
class Rendered:
    """A statement as the driver takes it. ``takes`` says, for each of its placeholders, where in the key the value
    stands, or behind it, among the constants; ``parts`` say which columns are a row of their own."""

    sql: str
    takes: tuple[tuple[int, Convert], ...]
    constants: Key
    columns: tuple[str, ...]
    readers: tuple[tuple[int, Callable[[Any], Any]], ...]
    parts: tuple[Part, ...]

    def values(self, key: Key) -> list[Any]:
        given = key + self.constants
        return [given[at] if convert is None or given[at] is None else convert(given[at]) for at, convert in self.takes]

    def row(self, found: Sequence[Any]) -> Row:
        values = list(found)
        for at, read in self.readers:
            if values[at] is not None:
                values[at] = read(values[at])
        if not self.parts:
            return dict(zip(self.columns, values, strict=True))
        row = dict(zip(self.columns[self.parts[-1].last :], values[self.parts[-1].last :], strict=True))
        for each in self.parts:
            present = values[each.first] is not None
            row[each.name] = dict(zip(each.columns, values[each.first : each.last], strict=True)) if present else None
        return row


@dataclass(frozen=True, slots=True)
class Part:
    """Columns of a row that are a row of their own. Parts stand before all other columns."""

    name: str
    first: int
    last: int
    columns: tuple[str, ...]


def _render(described: Executable, names: tuple[str, ...], dialect: Dialect) -> Rendered:
    assert isinstance(described, ClauseElement)
    compiled = described.compile(dialect=dialect)
    assert isinstance(compiled, SQLCompiler)
    types = {name: named.type for named, name in compiled.bind_names.items()}
    placed = compiled.positiontup or ()
    others = tuple(dict.fromkeys(name for name in placed if name not in names))
    where = {name: at for at, name in enumerate(names + others)}
    columns = [(entry.keyname, entry.type) for entry in compiled._result_columns]
    readers = [(at, _reader_of(type_, dialect)) for at, (_, type_) in enumerate(columns)]
    return Rendered(
        compiled.string,
        tuple((where[name], writer_of(types[name], dialect)) for name in placed),
        tuple(compiled.params[name] for name in others),
        tuple(name for name, _ in columns),
        tuple((at, read) for at, read in readers if read is not None),
        _parts([name for name, _ in columns]),
    )


def _parts(columns: list[str]) -> tuple[Part, ...]:
    parts: list[Part] = []
    for name in dict.fromkeys(column.partition(".")[0] for column in columns if "." in column):
        own = [column for column in columns if column.startswith(f"{name}.")]
        first = columns.index(own[0])
        parts.append(Part(name, first, first + len(own), tuple(column.partition(".")[2] for column in own)))
    return tuple(parts)


# -- many keys, many statements ----------------------------------------------------------------------------------------


@cache
def joined_on_postgres(statements: tuple[Statement, ...]) -> str:
    """Several statements as one, each asked for a list of keys. A row that it finds is the number of its statement, the
    number of its key, both beginning with 0, and what was found. It takes the lists of the keys' values, statement by
    statement, and behind those of each its constants."""
    parts: list[str] = []
    taken = 0
    for number, statement in enumerate(statements):
        one = statement.on(POSTGRES)
        keys = len(statement.names)
        types: dict[int, str] = {}

        def place(
            found: re.Match[str],
            one: Rendered = one,
            statement: Statement = statement,
            types: dict[int, str] = types,
            taken: int = taken,
        ) -> str:
            at, _ = one.takes[int(found[1]) - 1]
            types[at] = found[2]
            return f"given.{statement.names[at]}" if at < len(statement.names) else f"${taken + at + 1}::{found[2]}"

        inner = _PLACEHOLDER.sub(place, one.sql)
        lists = ", ".join(f"${taken + at + 1}::{types[at]}[]" for at in range(keys))
        parts.append(
            f"SELECT {number}, given.number - 1, found FROM unnest({lists})"
            f" WITH ORDINALITY AS given({', '.join(statement.names)}, number) CROSS JOIN LATERAL ({inner}) AS found"
        )
        taken += keys + len(one.constants)
    return " UNION ALL ".join(parts)


def lists_of(statement: Statement, keys: Sequence[Key]) -> list[Any]:
    """What the statement takes as its part of a joined one."""
    one = statement.on(POSTGRES)
    converts = dict(one.takes)
    lists = [_converted(column, converts[at]) for at, column in enumerate(zip(*keys, strict=True))]
    return lists + [_converted([value], converts[len(lists) + at])[0] for at, value in enumerate(one.constants)]


def _converted(values: Sequence[Any], convert: Convert) -> list[Any]:
    if convert is None:
        return list(values)
    return [None if value is None else convert(value) for value in values]


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
def _writers(change: Change, dialect: Dialect) -> tuple[tuple[int, Callable[[Any], Any]], ...]:
    """Which of its values must be turned into something else, and how."""
    found = [(at, writer_of(change.table.c[name].type, dialect)) for at, name in enumerate(change.names)]
    return tuple((at, convert) for at, convert in found if convert is not None)


def rows_on_sqlite(change: Change, rows: Sequence[Sequence[Any]]) -> list[list[Any]]:
    """The rows as SQLite takes them. An update names its values before its key."""
    keys = len(change.key)
    writers = _writers(change, SQLITE)
    given: list[list[Any]] = []
    for row in rows:
        values = list(row)
        for at, convert in writers:
            if values[at] is not None:
                values[at] = convert(values[at])
        given.append(values[keys:] + values[:keys] if keys else values)
    return given


def columns_on_postgres(change: Change, rows: Sequence[Sequence[Any]]) -> list[list[Any]]:
    """The rows as Postgres takes them: a list for each column."""
    columns = [list(column) for column in zip(*rows, strict=True)]
    for at, convert in _writers(change, POSTGRES):
        columns[at] = _converted(columns[at], convert)
    return columns


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
