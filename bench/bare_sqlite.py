"""The stdlib's sqlite3 behind one thread hop: a thread with a queue, WAL, ``synchronous=FULL``."""

from __future__ import annotations

import asyncio
import queue
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.bare import JOURNAL_COLUMNS, FenceBroken, Rows, Step, check_fence, journal_row, rows_of
from bench.work import Ready
from lash.store.sql.questions import ENTRY, SETTLING, UNSETTLED
from lash.store.sql.statements import SQLITE

_SESSION = "SELECT * FROM lash_sessions WHERE uid=?"
_SETTLING = SETTLING.statement.on(SQLITE).sql
_UNSETTLED = UNSETTLED.statement.on(SQLITE).sql
_ENTRY = ENTRY.statement.on(SQLITE).sql
_HEAD = "UPDATE lash_sessions SET revision=?, leaf=?, depth=?, seq=?, ready_at=? WHERE id=?"
_RECEIPT = "INSERT INTO lash_commits VALUES (?,?,?,?,?,?,?,?,?,?,?)"
_NODE = "INSERT INTO lash_nodes VALUES (?,?,?,?,?,?,?,?,?)"
_ITEM = "UPDATE lash_inbox SET state=?, settled_at=? WHERE session=? AND seq=?"
_TURN = "UPDATE lash_turns SET state=?, outcome=?, summary=?, settled_at=? WHERE session=? AND id=?"
_RETIRE = "DELETE FROM lash_journal WHERE session=? AND turn=?"
_SEQ = "UPDATE lash_sessions SET seq=? WHERE id=?"
_JOURNAL = f"INSERT INTO lash_journal ({', '.join(JOURNAL_COLUMNS)}) VALUES (?,?,?,?,?,?,?,?,?)"  # noqa: S608


def _settling_values(row: Rows) -> list[object]:
    rendered = SETTLING.statement.on(SQLITE)
    given = (row.number, row.operation, *rendered.constants)
    return [given[at] for at, _ in rendered.takes]


class BareSqlite:
    def __init__(self, path: Path) -> None:
        self._jobs: queue.SimpleQueue[tuple[Callable[[sqlite3.Connection], Any], Any] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, args=(path,), name="bare-sqlite")
        self._thread.start()

    def _work(self, path: Path) -> None:
        connection = sqlite3.connect(path, isolation_level=None)
        connection.row_factory = sqlite3.Row
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON", "busy_timeout=5000"):
            connection.execute(f"PRAGMA {pragma}")
        while (job := self._jobs.get()) is not None:
            change, answer = job
            loop = answer.get_loop()
            try:
                result = change(connection)
            except Exception as error:
                connection.rollback()
                loop.call_soon_threadsafe(answer.set_exception, error)
            else:
                loop.call_soon_threadsafe(answer.set_result, result)
        connection.close()

    async def _run(self, change: Callable[[sqlite3.Connection], Any]) -> Any:
        answer = asyncio.get_running_loop().create_future()
        self._jobs.put((change, answer))
        return await answer

    async def commit(self, turns: list[Ready]) -> None:
        now = time.time_ns() // 1_000
        rows = [rows_of(turn, now) for turn in turns]

        def change(connection: sqlite3.Connection) -> None:
            connection.execute("BEGIN IMMEDIATE")
            for row in rows:
                session = connection.execute(_SESSION, (row.uid,)).fetchone()
                known = connection.execute(_SETTLING, _settling_values(row)).fetchone()
                check_fence(row.expected, session, known)
            connection.executemany(_HEAD, [row.head for row in rows])
            connection.executemany(_RETIRE, [row.journal for row in rows])
            connection.executemany(_RECEIPT, [row.receipt for row in rows])
            connection.executemany(_NODE, [node for row in rows for node in row.nodes])
            connection.executemany(_ITEM, [item for row in rows for item in row.items])
            connection.executemany(_TURN, [row.turn for row in rows])
            connection.execute("COMMIT")

        await self._run(change)

    async def journal(self, step: Step) -> None:
        row = journal_row(step, time.time_ns() // 1_000)
        lease, number, turn, key = step.ready.driven.lease, *row[:3]

        def change(connection: sqlite3.Connection) -> None:
            connection.execute("BEGIN IMMEDIATE")
            session = connection.execute(_SESSION, (bytes.fromhex(lease.session),)).fetchone()
            unsettled = connection.execute(_UNSETTLED, (number,)).fetchone()
            entry = connection.execute(_ENTRY, (number, turn, key)).fetchone()
            if session["lease_generation"] != lease.generation or unsettled["id"] != turn or entry is not None:
                raise FenceBroken
            connection.execute(_SEQ, (step.seq, number))
            connection.execute(_JOURNAL, row)
            connection.execute("COMMIT")

        await self._run(change)

    async def number(self, uid: str) -> int:
        def look(connection: sqlite3.Connection) -> int:
            found = connection.execute("SELECT id FROM lash_sessions WHERE uid=?", (bytes.fromhex(uid),))
            return int(found.fetchone()[0])

        found: int = await self._run(look)
        return found

    async def aclose(self) -> None:
        self._jobs.put(None)
        await asyncio.to_thread(self._thread.join)
