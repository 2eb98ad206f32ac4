"""A database with one of everything, built through the store, and copies of it that a test may damage by hand."""

from __future__ import annotations

import json
import shutil
import sqlite3
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import asyncpg

from lash.commit.outbox import Debt, Owed
from lash.commit.parts import Changed
from lash.commit.plan import CommitPlan
from lash.graph.frames import COMPACTION
from lash.ids import BlobHash, ItemId, NodeId, SessionUid, TurnId, WaitId
from lash.inbox.items import Wake
from lash.lease import ExecutionLease
from lash.store import schema
from lash.store.contract import Store
from lash.store.migrate import VERSION_TABLE
from lash.store.opening import open_store
from lash.testing.builders import (
    a_fork,
    a_message,
    a_session,
    a_wait,
    an_effect,
    an_operation,
    commit_nodes,
    finished,
    leaf_of,
    must_acquire,
    must_open,
    opens,
    plan_nodes,
    rewind,
    run_turn,
    says,
)
from tests.postgres import PostgresServer, connect, execute, in_a_loop_of_its_own


@dataclass(frozen=True, slots=True)
class Sample:
    """What the sample holds.

    The path of ``victim`` is: depths 0 to 2 on branch 0 (frame, message, reply); 3 and 4 on ``branch``, which a rewind
    began; 5 and 6 the frame of a compaction and its summary, where the head is. Depths 3 and 4 of branch 0 were left
    behind by the rewind. Its turn is open, with one item taken; another item waits. ``child`` is a fork of it at depth
    2, and ``healthy`` has nothing to do with either. In the tables they have the numbers 1, 3 and 2.
    """

    victim: SessionUid
    healthy: SessionUid
    child: SessionUid
    branch: int
    boundary: NodeId
    left_behind: NodeId
    leaf: NodeId
    lease: ExecutionLease
    turn: TurnId
    settled_turn: TurnId
    taken: ItemId
    pending: ItemId
    answered: WaitId
    answered_key: str
    debt: Debt
    blob: BlobHash


async def build(store: Store) -> Sample:
    victim, healthy = (await a_session(store, "victim")).uid, (await a_session(store, "healthy")).uid
    await run_turn(store, healthy, "hello")
    first = await run_turn(store, victim, "one")
    left_behind = await run_turn(store, victim, "two")
    lease = await must_acquire(store, victim)
    branch = (await rewind(store, lease, leaf_of(first))).revision
    settled = await run_turn(store, victim, "three")
    blob = await store.put_blob(b"a picture")
    await _owe(store, lease, healthy)
    leaf = leaf_of(await commit_nodes(store, lease, opens(COMPACTION), says("a summary")))
    await store.put_document(victim, "config", {"model": "scripted"}, expected=0)
    await store.admit(victim, a_message("four", options={"depth": 1}))
    driven = await must_open(store, victim)
    waiting = await store.admit(victim, a_message("five", key="five"))
    wait = a_wait(turn=driven.turn.id)
    await store.record(
        driven.lease, driven.turn.id, [finished(an_effect("model:1"), {"text": "hi"}), an_effect("tool:1", kind="tool")]
    )
    key = await store.open_wait(victim, wait)
    await store.answer(key, {"approved": True})
    child = await store.fork(a_fork(victim, leaf_of(first), "child"))
    return Sample(
        victim=victim,
        healthy=healthy,
        child=child.uid,
        branch=branch,
        boundary=leaf_of(first),
        left_behind=leaf_of(left_behind),
        leaf=leaf,
        lease=driven.lease,
        turn=driven.turn.id,
        settled_turn=TurnId(settled.operation),
        taken=driven.items[0].id,
        pending=waiting.id,
        answered=wait.id,
        answered_key=key,
        debt=(await store.debts())[0],
        blob=blob,
    )


async def _owe(store: Store, lease: ExecutionLease, to: SessionUid) -> None:
    plan = await plan_nodes(store, lease)
    owed = Owed(to, Wake(source="victim"))
    await store.commit(
        CommitPlan(an_operation(), lease, base=plan.base, owes=(owed,), parts={"tools": Changed(b"state")})
    )


Dump = dict[str, list[tuple[Any, ...]]]


class Copy(Protocol):
    """A database that is one test's own, with a back door."""

    sample: Sample
    url: str

    async def open(self) -> Store: ...

    async def execute(self, statement: str) -> None:
        """Change it by hand, with no store in between."""
        ...

    async def dump(self, *, without: int | None = None) -> Dump:
        """Every row of every table, except those of one session."""
        ...


class SqliteCopy:
    def __init__(self, path: Path, sample: Sample) -> None:
        self.path, self.sample = path, sample
        self.url = f"sqlite:///{path}"

    async def open(self) -> Store:
        return await open_store(self.url)

    async def execute(self, statement: str) -> None:
        with closing(sqlite3.connect(self.path)) as connection, connection:
            connection.execute("PRAGMA foreign_keys = ON")
            connection.execute(statement)

    async def dump(self, *, without: int | None = None) -> Dump:
        with closing(sqlite3.connect(self.path)) as connection:
            connection.row_factory = sqlite3.Row
            tables = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            return {
                table: _rows(table, map(dict, connection.execute(f"SELECT * FROM {table}")), without)
                for table in tables
            }


class PostgresCopy:
    def __init__(self, url: str, connection: asyncpg.Connection, sample: Sample) -> None:
        self.url, self.sample = url, sample
        self._connection = connection

    async def open(self) -> Store:
        return await open_store(self.url)

    async def execute(self, statement: str) -> None:
        await self._connection.execute(statement)

    async def dump(self, *, without: int | None = None) -> Dump:
        found = await self._connection.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
        every = (f"SELECT '{table}', to_jsonb(t)::text FROM {table} t" for (table,) in found)
        rows = [(table, json.loads(row)) for table, row in await self._connection.fetch(" UNION ALL ".join(every))]
        return {table: _rows(table, [row for at, row in rows if at == table], without) for (table,) in found}


def _rows(table: str, rows: Any, without: int | None) -> list[tuple[Any, ...]]:
    owner = "id" if table == "lash_sessions" else "session"
    kept = [tuple(row.values()) for row in rows if without is None or row.get(owner) != without]
    return sorted(kept, key=repr)


class SqliteSamples:
    """Copies of a sample in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path = folder / "sample.db"
        self._sample = in_a_loop_of_its_own(self._build)

    async def _build(self) -> Sample:
        async with await open_store(f"sqlite:///{self._path}") as store:
            return await build(store)

    def copy(self) -> SqliteCopy:
        path = self._folder / f"{uuid.uuid4().hex}.db"
        shutil.copy(self._path, path)
        return SqliteCopy(path, self._sample)


class PostgresSamples:
    """One database on a server, made as good as new for each test. That is quicker than a new one."""

    def __init__(self, server: PostgresServer) -> None:
        self.location = server.fresh()
        self.url = self.location.render_as_string(hide_password=False)
        self.sample = in_a_loop_of_its_own(self._build)

    async def _build(self) -> Sample:
        async with await open_store(self.url) as store:
            sample = await build(store)
        keep = [f"CREATE TABLE kept.{table} AS TABLE public.{table}" for table in _TABLES]
        await execute(self.location, "CREATE SCHEMA kept", *keep)
        return sample

    @asynccontextmanager
    async def copy(self) -> AsyncIterator[PostgresCopy]:
        restore = [f"DELETE FROM public.{table}" for table in reversed(_TABLES)]
        restore += [f"INSERT INTO public.{table} SELECT * FROM kept.{table}" for table in _TABLES]
        connection = await connect(self.location)
        try:
            await connection.execute(";".join(restore))
            yield PostgresCopy(self.url, connection, self.sample)
        finally:
            await connection.close()


_TABLES = [VERSION_TABLE, *(table.name for table in schema.metadata.sorted_tables)]
