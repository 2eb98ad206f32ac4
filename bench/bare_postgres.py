"""asyncpg on one kept connection, with prepared statements: lash's own texts."""

from __future__ import annotations

import time
from typing import Any

import asyncpg

from bench.bare import JOURNAL_COLUMNS, FenceBroken, Step, check_fence, journal_row, rows_of
from bench.work import Ready
from lash.store import schema
from lash.store.sql import link
from lash.store.sql.questions import ENTRY, SETTLING, UNSETTLED
from lash.store.sql.statements import POSTGRES, Change, changes_on_postgres, joined_on_postgres

_LOCK = link._SKIPPING
_SETTLING = joined_on_postgres((SETTLING.statement,))
_KNOWN = joined_on_postgres((UNSETTLED.statement, ENTRY.statement))
_COMMIT = changes_on_postgres(
    (
        Change("delete", schema.journal, ("session", "turn"), ()),
        Change("insert", schema.commits, (), tuple(schema.commits.c.keys())),
        Change("insert", schema.nodes, (), tuple(schema.nodes.c.keys())),
        Change("update", schema.inbox, ("session", "seq"), ("state", "settled_at")),
        Change("update", schema.turns, ("session", "id"), ("state", "outcome", "summary", "settled_at")),
        Change("update", schema.sessions, ("id",), ("revision", "leaf", "depth", "seq", "ready_at")),
    )
)
_RECORD = changes_on_postgres(
    (
        Change("insert", schema.journal, (), JOURNAL_COLUMNS),
        Change("update", schema.sessions, ("id",), ("seq",)),
    )
)


_SETTLING_COLUMNS = SETTLING.statement.on(POSTGRES).columns


def _key_first(row: tuple[Any, ...], keys: int) -> tuple[Any, ...]:
    return row[-keys:] + row[:-keys]


def _columns(rows: list[tuple[Any, ...]]) -> list[list[Any]]:
    return [list(column) for column in zip(*rows, strict=True)]


class BarePostgres:
    def __init__(self, connection: asyncpg.Connection, statements: dict[str, Any]) -> None:
        self._connection = connection
        self._prepared = statements

    @classmethod
    async def connect(cls, url: str) -> BarePostgres:
        connection = await asyncpg.connect(url)
        statements = (_LOCK, _SETTLING, _KNOWN, _COMMIT, _RECORD)
        return cls(connection, {statement: await connection.prepare(statement) for statement in statements})

    async def commit(self, turns: list[Ready]) -> None:
        now = time.time_ns() // 1_000
        rows = [rows_of(turn, now) for turn in turns]
        run = self._prepared
        async with self._connection.transaction():
            locked = {row["id"]: row for row in await run[_LOCK].fetch([row.uid for row in rows])}
            keys = ([row.number for row in rows], [row.operation for row in rows])
            for _, at, found in await run[_SETTLING].fetch(*keys):
                known = dict(zip(_SETTLING_COLUMNS, found, strict=True))
                check_fence(rows[at].expected, locked[rows[at].number], known)
            await run[_COMMIT].fetch(
                *_columns([row.journal for row in rows]),
                *_columns([row.receipt for row in rows]),
                *_columns([node for row in rows for node in row.nodes]),
                *_columns([_key_first(item, 2) for row in rows for item in row.items]),
                *_columns([_key_first(row.turn, 2) for row in rows]),
                *_columns([_key_first(row.head, 1) for row in rows]),
            )

    async def journal(self, step: Step) -> None:
        row = journal_row(step, time.time_ns() // 1_000)
        lease, number, turn, key = step.ready.driven.lease, *row[:3]
        run = self._prepared
        async with self._connection.transaction():
            [session] = await run[_LOCK].fetch([bytes.fromhex(lease.session)])
            found = await run[_KNOWN].fetch([number], [number], [turn], [key])
            if session["lease_generation"] != lease.generation or [one[0] for one in found] != [0]:
                raise FenceBroken
            await run[_RECORD].fetch(*_columns([row]), [number], [step.seq])

    async def number(self, uid: str) -> int:
        found = await self._connection.fetchval("SELECT id FROM lash_sessions WHERE uid=$1", bytes.fromhex(uid))
        return int(found)

    async def aclose(self) -> None:
        await self._connection.close()
