"""Counting what an operation costs: statements and transactions as they are sent, round trips as they cross the
wire."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from sqlalchemy import Engine, event
from sqlalchemy.engine import URL

from lash.store.sql.link import PostgresLink, SqliteLink


@dataclass
class Cost:
    statements: list[str] = field(default_factory=list)
    transactions: int = 0


@contextlib.contextmanager
def counting() -> Iterator[Cost]:
    """What every engine of this process does inside the block."""
    cost = Cost()

    def began(_: Any) -> None:
        cost.transactions += 1

    def executed(_c: Any, cursor: Any, statement: str, _p: Any, _x: Any, _m: bool) -> None:
        if not statement.startswith(("BEGIN", "PRAGMA")):
            cost.statements.append(statement)

    event.listen(Engine, "begin", began)
    event.listen(Engine, "before_cursor_execute", executed)
    try:
        with _bare_drivers_counted(cost):
            yield cost
    finally:
        event.remove(Engine, "begin", began)
        event.remove(Engine, "before_cursor_execute", executed)


@contextlib.contextmanager
def _bare_drivers_counted(cost: Cost) -> Iterator[None]:
    """Writes go by the bare drivers: each transaction has a link of its own, and all of its statements pass there."""
    with contextlib.ExitStack() as patches:
        for link, names in ((SqliteLink, ("_execute", "_execute_many")), (PostgresLink, ("_fetch",))):
            patches.enter_context(mock.patch.object(link, "__init__", _counted_beginning(cost, link.__init__)))
            for name in names:
                counted = _counted_statement(cost, getattr(link, name))
                patches.enter_context(mock.patch.object(link, name, counted))
        yield


def _counted_beginning(cost: Cost, begin: Any) -> Any:
    def __init__(self: Any, *given: Any, **more: Any) -> None:  # noqa: N807
        cost.transactions += 1
        begin(self, *given, **more)

    return __init__


def _counted_statement(cost: Cost, run: Any) -> Any:
    def counted(self: Any, sql: str, values: Any) -> Any:
        cost.statements.append(sql)
        return run(self, sql, values)

    return counted


class Wire:
    """A proxy in front of a Postgres socket. Each ReadyForQuery that passes is the end of one round trip."""

    def __init__(self, server: Path) -> None:
        self._server = server
        self.round_trips = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_server, to_server = await asyncio.open_unix_connection(str(self._server))
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._pass(reader, to_server))
                tasks.create_task(self._count(from_server, writer))
        except* (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()
            to_server.close()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.write_eof()

    async def _count(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head = await reader.readexactly(1)
            if head == b"N":  # the answer to the request for SSL is one byte, not a message
                writer.write(head)
                continue
            size = await reader.readexactly(4)
            body = await reader.readexactly(struct.unpack("!I", size)[0] - 4)
            self.round_trips += head == b"Z"
            writer.write(head + size + body)
            await writer.drain()


@contextlib.asynccontextmanager
async def wired(url: URL, folder: Path) -> AsyncIterator[tuple[str, Wire]]:
    """A URL that goes through a counting proxy, and the proxy."""
    wire = Wire(Path(str(url.query["host"])) / ".s.PGSQL.5432")
    server = await asyncio.start_unix_server(wire.serve, folder / ".s.PGSQL.5432")
    try:
        yield url.update_query_dict({"host": str(folder)}).render_as_string(hide_password=False), wire
    finally:
        server.close()
