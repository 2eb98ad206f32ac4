"""Pages and look-ups on one snapshot. Every statement is plain SQL that both databases understand.

A table is read in the order of its key, a page at a time, and each page is a statement of its own: several tables can
be read side by side, and nothing but the present page of each is in memory. A value that is too large for a page is
fetched alone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, Generic, TypeVar

from sqlalchemy import Connection, TextClause, bindparam, inspect, text

from lash.clock import SystemClock
from lash.fsck.decoding import Malformed
from lash.fsck.report import Findings
from lash.fsck.tables import EXPRESSIONS, Key, Row, Table
from lash.store.mounts import MOUNT_TABLE
from lash.store.opening import BUSY_TIMEOUT, connect, parse_url

PAGE = 500
INLINE = 64 * 1024
"""A longer text is not read with its page."""
HEAVY = 16 * 1024 * 1024
"""How many characters of long texts are in memory at once, but for the last one."""
PIECE = 4 * 1024 * 1024
_LENGTH_OF = "length_of_"
R = TypeVar("R")
T = TypeVar("T")


async def on_one_snapshot(url: str, look: Callable[[Connection], R]) -> R:
    """Run ``look`` on a connection that reads one snapshot and cannot write, beside whoever writes meanwhile."""
    database = connect(
        parse_url(url), create=False, clock=SystemClock(), busy_timeout=BUSY_TIMEOUT, mount_table=MOUNT_TABLE
    )
    try:
        return await database.read(look)
    finally:
        await database.aclose()


class Reader:
    def __init__(self, connection: Connection, findings: Findings) -> None:
        self._connection = connection
        self.findings = findings
        self._statements: dict[tuple[str, ...], TextClause] = {}

    def table_names(self) -> set[str]:
        return set(inspect(self._connection).get_table_names())

    def ask(self, statement: str, **values: Any) -> Sequence[Any]:
        """The rows that a statement gives, as they are."""
        return self._connection.execute(self._statement(statement), values).all()

    def _statement(self, statement: str, *lists: str) -> TextClause:
        known = self._statements.get((statement, *lists))
        if known is None:
            known = text(statement).bindparams(*(bindparam(name, expanding=True) for name in lists))
            self._statements[statement, *lists] = known
        return known

    # -- pages ---------------------------------------------------------------------------------------------------------

    def pages(self, table: Table) -> Iterator[list[Row]]:
        """The rows of a table in the order of its key. Rows that cannot be read are reported and left out."""
        names = ", ".join(table.key)
        after = ", ".join(f":after{place}" for place in range(len(table.key)))
        start, end = f"SELECT {_columns(table)} FROM {table.name}", f"ORDER BY {names} LIMIT {PAGE}"  # noqa: S608
        later = f"{start} WHERE ({names}) > ({after}) {end}"
        found = self.ask(f"{start} {end}")
        while found:
            self.findings.rows[table.name] += len(found)
            for part in _light([dict(row._mapping) for row in found]):
                decoded = (self._decoded(table, self._whole(table, row)) for row in part)
                yield [row for row in decoded if row is not None]
            if len(found) < PAGE:
                return
            last = {f"after{place}": found[-1]._mapping[name] for place, name in enumerate(table.key)}
            found = self.ask(later, **last)

    def rows(self, table: Table) -> Iterator[Row]:
        for page in self.pages(table):
            yield from page

    def _whole(self, table: Table, row: Row) -> Row:
        """The row with the values that were too long for its page."""
        for name in [name for name in row if name.startswith(_LENGTH_OF)]:
            column, length = name.removeprefix(_LENGTH_OF), row.pop(name)
            if row[column] is None and length is not None:
                where = " AND ".join(f"{key} = :{key}" for key in table.key)
                place = {key: row[key] for key in table.key}
                [[row[column]]] = self.ask(f"SELECT {column} FROM {table.name} WHERE {where}", **place)  # noqa: S608
        return row

    def _decoded(self, table: Table, row: Row) -> Row | None:
        """The row as it is meant, or None when a column of it cannot be read."""
        decoded: Row = {}
        broken = False
        for name, value in row.items():
            try:
                decoded[name] = table.columns[name](value)
            except Malformed as problem:
                broken = True
                key = table.key_of(row)
                self.findings.add(
                    problem.code, table.name, key, expected=f"{name}: {problem.expected}", found=problem.found
                )
        return None if broken else decoded

    # -- look-ups ------------------------------------------------------------------------------------------------------

    def find(
        self, table: Table, by: tuple[str, ...], keys: Collection[Key], *columns: str
    ) -> dict[Key, list[dict[str, Any]]]:
        """Rows by the values of some columns, which an index begins with. Those that cannot be read are left out: they
        are reported where their own table is read."""
        found: dict[Key, list[Row]] = {}
        as_hex = [table.columns[name].is_hex for name in by]
        wanted = sorted({_bound(key, as_hex) for key in keys})
        names = dict.fromkeys((*by, *columns))
        order = ", ".join(table.key)
        statement = self._statement(
            f"SELECT {', '.join(names)} FROM {table.name} WHERE ({', '.join(by)}) IN :keys ORDER BY {order}",  # noqa: S608
            "keys",
        )
        for at in range(0, len(wanted), PAGE):
            for raw in self._connection.execute(statement, {"keys": wanted[at : at + PAGE]}).mappings():
                try:
                    row = {name: table.columns[name](raw[name]) for name in names}
                except Malformed:
                    continue
                found.setdefault(tuple(row[name] for name in by), []).append(row)
        return found

    def find_one(self, table: Table, by: tuple[str, ...], keys: Collection[Key], *columns: str) -> dict[Key, Row]:
        """The same for columns that name one row."""
        return {key: rows[0] for key, rows in self.find(table, by, keys, *columns).items()}

    def blob_pieces(self, number: int, length: int) -> Iterator[bytes]:
        for start in range(1, length + 1, PIECE):
            [[piece]] = self.ask(
                f"SELECT substr(body, :start, {PIECE}) FROM lash_blobs WHERE id = :number",  # noqa: S608
                start=start,
                number=number,
            )
            yield bytes(piece)


def _light(rows: list[Row]) -> Iterator[list[Row]]:
    """A page in parts that, with the long texts that they still lack, are no heavier than a page should be."""
    part: list[Row] = []
    weight = 0
    for row in rows:
        weight += sum(value or 0 for name, value in row.items() if name.startswith(_LENGTH_OF))
        part.append(row)
        if weight > HEAVY:
            yield part
            part, weight = [], 0
    if part:
        yield part


def _columns(table: Table) -> str:
    """What a page asks for: long texts only by their length."""
    asked: list[str] = []
    for name, kind in table.columns.items():
        if kind.large:
            asked.append(f"CASE WHEN length({name}) <= {INLINE} THEN {name} END AS {name}")
            asked.append(f"length({name}) AS {_LENGTH_OF}{name}")
        elif name in EXPRESSIONS:
            asked.append(f"{EXPRESSIONS[name]} AS {name}")
        else:
            asked.append(name)
    return ", ".join(asked)


def _bound(key: Key, as_hex: Sequence[bool]) -> Key:
    """A key as the database keeps it."""
    return tuple(bytes.fromhex(value) if is_hex else value for value, is_hex in zip(key, as_hex, strict=True))


class Stream(Generic[T]):
    """Rows in order of their session, handed out session by session."""

    def __init__(self, rows: Iterator[T], session_of: Callable[[T], int], orphan: Callable[[T], None]) -> None:
        self._rows = rows
        self._session_of = session_of
        self._orphan = orphan
        self._next: T | None = next(rows, None)

    def of(self, session: int) -> Iterator[T]:
        """The rows of this session. Rows of sessions before it that nobody asked for belong to no session."""
        while self._next is not None and self._session_of(self._next) < session:
            self._orphan(self._next)
            self._advance()
        while self._next is not None and self._session_of(self._next) == session:
            row = self._next
            self._advance()
            yield row

    def rest(self) -> None:
        """No session is left: whatever remains belongs to none."""
        while self._next is not None:
            self._orphan(self._next)
            self._advance()

    def _advance(self) -> None:
        self._next = next(self._rows, None)
