"""A network between a store and its Postgres that can be cut, or fall silent, at a chosen request."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import count
from typing import Literal

from sqlalchemy.engine import URL

Fault = Literal[
    "cut before",  # the request does not arrive
    "cut within",  # half of it does
    "cut after",  # it does, and all of its answer is lost
    "cut within the answer",  # half of the answer comes back
    "killed",  # the backend is killed before the request reaches it
    "silent before",  # nothing arrives any more, and nobody is told
    "silent after",  # it does, and nothing comes back
]
FAULTS: tuple[Fault, ...] = Fault.__args__  # type: ignore[attr-defined]

_CANCEL = 80877102
_ENDS_OF_REQUESTS = b"QSHX"  # Query, Sync, Flush, Terminate
_ENDS_OF_ANSWERS = {b"Q": b"Z", b"S": b"Z", b"H": b"TnE", b"X": b""}

Where = Callable[[bytes], bool]
"""Whether to strike at a request."""


def statement(text: str) -> Where:
    """The requests that carry these words."""
    return lambda request: text.encode() in request


def nth(number: int) -> Where:
    """The request with this number, counted from 1 over all connections."""
    numbers = count(1)
    return lambda _: next(numbers) == number


class _Cut(Exception):
    """This connection has had its fault."""


class Network:
    """Passes on requests and answers. One that was armed has a fault at the first request that it is asked about and
    says yes to, and then passes on whatever comes over new connections."""

    def __init__(self, server: URL) -> None:
        self._server = server
        self._fault: Fault | None = None
        self._strikes: Where = lambda _: False
        self._kill: Callable[[int], Awaitable[None]] | None = None
        self.struck: bytes | None = None
        """The request that the fault struck."""
        self._stays_down = False
        self._swallows = False
        self._served: list[_Connection] = []
        self._open: set[asyncio.StreamWriter] = set()

    def arm(
        self,
        fault: Fault,
        strikes: Where,
        kill: Callable[[int], Awaitable[None]] | None = None,
        *,
        stays_down: bool = False,
    ) -> None:
        """``stays_down`` lets no new connection through after the fault."""
        self._fault, self._strikes, self._kill, self._stays_down = fault, strikes, kill, stays_down
        self.struck = None

    def disarm(self) -> None:
        self._fault = None

    def swallow_everything(self) -> None:
        """From now on nothing is passed on, and new connections are accepted and never hear a word."""
        self._swallows = True

    def silence_all(self) -> None:
        """Nothing is passed on over the connections that there are; new ones are served."""
        for connection in self._served:
            connection.silent = True

    def recover(self) -> None:
        """New connections are served again."""
        self._swallows = False

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        if self._swallows:
            await swallow(reader)
            return
        from_server, to_server = await self._connect()
        self._open.add(to_server)
        connection = _Connection(self, reader, writer, from_server, to_server)
        self._served.append(connection)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, _Cut):
            await connection.run()
        for end in (writer, to_server):
            end.transport.abort()
            self._open.discard(end)

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        host, port = self._server.host or self._server.query.get("host") or "localhost", self._server.port or 5432
        if str(host).startswith("/"):
            return await asyncio.open_unix_connection(f"{host}/.s.PGSQL.{port}")
        return await asyncio.open_connection(str(host), port)

    def close(self) -> None:
        for writer in self._open:
            writer.transport.abort()

    def fault_at(self, request: bytes) -> Fault | None:
        """The fault that strikes this request."""
        if self._swallows:
            return "silent before"
        if self._fault is None or not self._strikes(request):
            return None
        fault, self._fault = self._fault, None
        self.struck = request
        self._swallows = self._stays_down
        return fault

    async def kill(self, backend: int) -> None:
        assert self._kill is not None
        await self._kill(backend)


class _Connection:
    def __init__(
        self,
        network: Network,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        from_server: asyncio.StreamReader,
        to_server: asyncio.StreamWriter,
    ) -> None:
        self._network = network
        self._reader, self._writer = reader, writer
        self._from_server, self._to_server = from_server, to_server
        self._backend = 0
        self.silent = False
        self._lost_until: bytes | None = None
        self._keeps_half = False
        self._answer = b""

    async def run(self) -> None:
        size = await self._reader.readexactly(4)
        opening = await self._reader.readexactly(struct.unpack("!I", size)[0] - 4)
        self._to_server.write(size + opening)
        if struct.unpack("!I", opening[:4])[0] == _CANCEL:
            await self._reader.read()
            return
        ways = [asyncio.create_task(self._requests()), asyncio.create_task(self._answers())]
        try:
            done, _ = await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            for way in done:
                way.result()
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)

    async def _requests(self) -> None:
        request = b""
        while True:
            kind, message = await _message(self._reader)
            request += message
            if kind not in _ENDS_OF_REQUESTS:
                continue
            await self._pass_on(kind, request)
            request = b""

    async def _pass_on(self, kind: bytes, request: bytes) -> None:
        fault = "silent before" if self.silent else self._network.fault_at(request)
        match fault:
            case "cut before":
                raise _Cut
            case "cut within":
                self._to_server.write(request[: len(request) // 2])
                await self._to_server.drain()
                raise _Cut
            case "cut after" | "cut within the answer":
                self._lost_until = _ENDS_OF_ANSWERS[kind]
                self._keeps_half = fault == "cut within the answer"
            case "killed":
                await self._network.kill(self._backend)
            case "silent before" | "silent after":
                self.silent = True
        if fault != "silent before":
            self._to_server.write(request)
            await self._to_server.drain()
        if self.silent:
            await swallow(self._reader)

    async def _answers(self) -> None:
        while True:
            try:
                kind, message = await _message(self._from_server)
            except asyncio.IncompleteReadError:
                if self.silent:  # nobody is told that the server has closed the connection
                    await asyncio.Event().wait()
                raise
            if kind == b"K":
                self._backend = struct.unpack("!I", message[5:9])[0]
            if self.silent:
                continue
            if self._lost_until is not None:
                self._lose(kind, message)
                continue
            self._writer.write(message)
            await self._writer.drain()

    def _lose(self, kind: bytes, message: bytes) -> None:
        """All of an answer, or its second half, once it is whole: then whatever was asked for has happened."""
        assert self._lost_until is not None
        self._answer += message
        if kind in self._lost_until:
            if self._keeps_half:
                self._writer.write(self._answer[: len(self._answer) // 2])
            raise _Cut


async def swallow(reader: asyncio.StreamReader) -> None:
    with contextlib.suppress(ConnectionError):
        while await reader.read(65536):
            pass


async def _message(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    head = await reader.readexactly(5)
    return head[:1], head + await reader.readexactly(struct.unpack("!I", head[1:])[0] - 4)


@contextlib.asynccontextmanager
async def behind_a_network(url: URL) -> AsyncIterator[tuple[str, Network]]:
    """A URL of the same database that goes through a network, and the network."""
    network = Network(url)
    server = await asyncio.start_server(network.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    rest = {name: value for name, value in url.query.items() if name != "host"}
    through = url.set(host="127.0.0.1", port=port, query={**rest, "sslmode": "disable", "timeout": "1"})
    try:
        yield through.render_as_string(hide_password=False), network
    finally:
        server.close()
        network.close()
