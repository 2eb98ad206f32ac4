"""asyncpg on one kept connection, with prepared statements: one set statement for each table."""

from __future__ import annotations

import time
from typing import Any

import asyncpg

from bench.bare import FenceBroken, Step, journal_row, rows_of
from bench.work import Ready

_HEAD = """
UPDATE lash_sessions s SET revision=n.revision, leaf=n.leaf, depth=n.depth, seq=n.seq, ready_at=n.ready_at
FROM unnest($1::bigint[], $2::text[], $3::int[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[], $8::bigint[])
    AS n(revision, leaf, depth, seq, ready_at, id, base, generation)
WHERE s.id=n.id AND s.revision=n.base AND s.lease_generation=n.generation RETURNING s.id
"""
_RETIRE = """
DELETE FROM lash_journal j USING unnest($1::bigint[], $2::bytea[]) AS n(session, turn)
WHERE j.session=n.session AND j.turn=n.turn
"""
_RECEIPT = """
INSERT INTO lash_commits SELECT * FROM unnest($1::bigint[], $2::bytea[], $3::bigint[], $4::bytea[], $5::bigint[],
    $6::bigint[], $7::bigint[], $8::int[], $9::int[], $10::text[], $11::bigint[])
"""
_NODE = """
INSERT INTO lash_nodes SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::int[], $4::int[], $5::bigint[], $6::text[],
    $7::text[], $8::bigint[], $9::bigint[])
"""
_ITEM = """
UPDATE lash_inbox i SET state=n.state, settled_at=n.settled_at
FROM unnest($1::text[], $2::bigint[], $3::bigint[], $4::bigint[]) AS n(state, settled_at, session, seq)
WHERE i.session=n.session AND i.seq=n.seq
"""
_TURN = """
UPDATE lash_turns t SET state=n.state, outcome=n.outcome, summary=n.summary, settled_at=n.settled_at
FROM unnest($1::text[], $2::text[], $3::text[], $4::bigint[], $5::bigint[], $6::bytea[])
    AS n(state, outcome, summary, settled_at, session, id)
WHERE t.session=n.session AND t.id=n.id
"""
_SEQ = "UPDATE lash_sessions SET seq=$1 WHERE id=$2 AND lease_generation=$3 RETURNING id"
_JOURNAL = (
    "INSERT INTO lash_journal (session, turn, key, identity, state, seq, started_at, finished_at, outcome)"
    " VALUES ($1,$2,$3,$4,$5,$6,$7,$8,$9)"
)


def _columns(rows: list[tuple[Any, ...]]) -> list[list[Any]]:
    return [list(column) for column in zip(*rows, strict=True)]


class BarePostgres:
    def __init__(self, connection: asyncpg.Connection, statements: dict[str, Any]) -> None:
        self._connection = connection
        self._prepared = statements

    @classmethod
    async def connect(cls, url: str) -> BarePostgres:
        connection = await asyncpg.connect(url)
        statements = (_HEAD, _RETIRE, _RECEIPT, _NODE, _ITEM, _TURN, _SEQ, _JOURNAL)
        return cls(connection, {statement: await connection.prepare(statement) for statement in statements})

    async def commit(self, turns: list[Ready]) -> None:
        now = time.time_ns() // 1_000
        rows = [rows_of(turn, now) for turn in turns]
        run = self._prepared
        async with self._connection.transaction():
            if len(await run[_HEAD].fetch(*_columns([row.head for row in rows]))) != len(rows):
                raise FenceBroken
            await run[_RETIRE].fetch(*_columns([row.journal for row in rows]))
            await run[_RECEIPT].fetch(*_columns([row.receipt for row in rows]))
            await run[_NODE].fetch(*_columns([node for row in rows for node in row.nodes]))
            await run[_ITEM].fetch(*_columns([item for row in rows for item in row.items]))
            await run[_TURN].fetch(*_columns([row.turn for row in rows]))

    async def journal(self, step: Step) -> None:
        row = journal_row(step, time.time_ns() // 1_000)
        async with self._connection.transaction():
            fence = (step.seq, step.ready.number, step.ready.driven.lease.generation)
            if not await self._prepared[_SEQ].fetch(*fence):
                raise FenceBroken
            await self._prepared[_JOURNAL].fetch(*row)

    async def number(self, uid: str) -> int:
        found = await self._connection.fetchval("SELECT id FROM lash_sessions WHERE uid=$1", bytes.fromhex(uid))
        return int(found)

    async def aclose(self) -> None:
        await self._connection.close()
