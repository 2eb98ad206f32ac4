"""A database with a rich and healthy history, and copies of it that a test may damage by hand."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from datetime import timedelta

from lash.commit.outbox import Owed
from lash.commit.parts import Changed
from lash.commit.plan import CommitPlan
from lash.commit.usage import Tokens, UsageDelta
from lash.graph.frames import RESET
from lash.graph.nodes import MessageReceived, PluginRecorded
from lash.graph.parts import File, Image, Text, ToolResult
from lash.ids import BlobHash, ItemId, SessionUid
from lash.inbox.items import Message, NewItem
from lash.store.contract import Store
from lash.store.opening import open_store
from lash.testing.builders import (
    a_fork,
    a_message,
    a_request_id,
    a_session,
    a_wait,
    an_effect,
    append,
    commit_nodes,
    finished,
    leaf_of,
    must_acquire,
    must_open,
    new_id,
    open_with,
    opens,
    plan_nodes,
    plan_of,
    rewind,
    run_turn,
    says,
    settle_turn,
    take_at,
)
from lash.turn.journal import Started
from tests.postgres import execute
from tests.store.sample import _TABLES, PostgresCopy, PostgresSamples, Sample, SqliteCopy, SqliteSamples, build

VICTIM, HEALTHY, CHILD, PARKED, RICH, GONE, HEIR, IDLE = range(1, 9)
"""The numbers of the sessions in the tables. The first three are those of ``tests.store.sample``."""


async def build_rich(store: Store) -> Sample:
    sample = await build(store)
    await enrich(store, sample.healthy)
    return sample


async def enrich(store: Store, healthy: SessionUid) -> None:
    await _parked(store)
    await _rich(store, healthy)
    await _gone(store)
    idle = await a_session(store, "idle")
    await store.admit(idle.uid, a_message("later", available_at=idle.created_at + timedelta(days=1)))


async def _parked(store: Store) -> None:
    """A turn that sleeps on a wait which one of its effects handed out, with an item aimed at it."""
    driven = await open_with(store, (await a_session(store, "parked")).uid)
    wait = a_wait(turn=driven.turn.id)
    asks = Started(an_effect("tool:1").key, an_effect("tool:1").identity, wait=wait.id)
    await store.record(driven.lease, driven.turn.id, [asks], waits=[wait])
    await store.admit(driven.lease.session, a_message("hurry", when="now"))
    await store.park(driven.lease, driven.turn.id, waits=[wait.id])


async def _rich(store: Store, other: SessionUid) -> None:
    """Six commits: a turn with everything in it, one without nodes that owes, a reset, a rewind, a cancelled turn, and
    one that gives its item back.

    Branch 0 has depths 0 to 3, the reset's branch 3 depths 0 and 1; branch 4 grew from depth 3 of branch 0 and has
    depths 4 and 5.
    """
    uid = (await a_session(store, "rich")).uid
    picture, paper = await store.put_blob(b"a picture"), await store.put_blob(b"a paper" * 20_000)
    await _everything(store, uid, picture, paper)
    lease = await must_acquire(store, uid)
    owed = Owed(other, Message(parts=(Image(blob=picture, media_type="image/png"),)))
    plan = await plan_nodes(store, lease)
    receipt = await store.commit(replace(plan, owes=(owed, owed), documents={"metadata": {"color": "red"}}))
    debts = [debt for debt in await store.debts() if debt.operation == receipt.operation]
    await store.deliver(debts[0])
    before = leaf_of(receipt)
    await commit_nodes(store, lease, opens(RESET), says("afresh"))
    await rewind(store, lease, before)
    cancelled = await open_with(store, uid, "stop this")
    request = a_request_id()
    await store.request_cancel(uid, cancelled.turn.id, request, reason="the user pressed stop")
    await settle_turn(store, cancelled, cancelled_by=request)
    returned = await open_with(store, uid, "not now")
    await settle_turn(store, returned, gives_back=returned.items, release=True)


async def _everything(store: Store, uid: SessionUid, picture: BlobHash, paper: BlobHash) -> None:
    image, file = Image(blob=picture, media_type="image/png"), File(blob=paper, media_type="text/plain", name="p")
    await store.admit(uid, NewItem(ItemId(new_id()), Message(parts=(image, Text(text="look")))))
    driven = await must_open(store, uid)
    kept, revoked = a_wait(turn=driven.turn.id), a_wait(turn=driven.turn.id)
    effect = an_effect("model:1")
    await store.record(driven.lease, driven.turn.id, [effect, finished(effect, {"n": 1.5})], waits=[kept, revoked])
    await store.answer(await store.wait_key(uid, kept.id), None)
    await store.admit(uid, a_message("and this", when="now"))
    joined = await take_at(store, driven)
    await store.admit(uid, a_message("too late", when="now", boundary="before_completion"))
    heard = MessageReceived(parts=(image, Text(text="x" * 100_000)))
    result = MessageReceived(parts=(ToolResult(call_id="c", tool="t", content=(file,)),))
    plan = await plan_of(store, driven, heard, result, PluginRecorded(plugin="p", refers_to=(paper,)))
    spent = UsageDelta("agent", "scripted", Tokens(10, 1, 2, 5, 3))
    settles = replace(plan.settles or _none(), completes=frozenset(i.id for i in (*driven.items, *joined)))
    parts = {"tools": Changed(b"v1"), "plugin:p": Changed(b"v2")}
    documents = {"config": {"model": "b"}, "catalog": {"tools": []}}
    await store.commit(
        replace(plan, settles=settles, usage=(spent, spent), parts=parts, documents=documents)  # type: ignore[arg-type]
    )


def _none() -> None:
    raise AssertionError("the plan of a turn settles it")


async def _gone(store: Store) -> None:
    """A deleted session, and a living one that was forked from it."""
    gone = (await a_session(store, "gone")).uid
    first = await run_turn(store, gone, "one")
    await run_turn(store, gone, "two")
    heir = await store.fork(a_fork(gone, leaf_of(first), "heir"))
    lease = await must_acquire(store, heir.uid)
    session = await store.find(heir.uid)
    plan = await plan_nodes(store, lease)
    delta = append(session, plan.operation, says("inherited"))
    await store.commit(CommitPlan(plan.operation, lease, base=0, delta=delta, release=True))
    await store.delete(gone)


# -- copies to damage --------------------------------------------------------------------------------------------------

_UNIQUE = (
    "CREATE UNIQUE INDEX IF NOT EXISTS lash_sessions_name_ix ON lash_sessions (name) WHERE state = 'live'",
    "CREATE UNIQUE INDEX IF NOT EXISTS lash_turns_unsettled_ix ON lash_turns (session) WHERE state <> 'settled'",
)


class RichSqlite(SqliteSamples):
    async def _build(self) -> Sample:
        async with await open_store(f"sqlite:///{self._path}") as store:
            return await build_rich(store)


class RichPostgres(PostgresSamples):
    async def _build(self) -> Sample:
        sample = await super()._build()
        async with await open_store(self.url) as store:
            await enrich(store, sample.healthy)
        keep = [f"CREATE TABLE kept.{table} AS TABLE public.{table}" for table in _TABLES]
        await execute(self.location, "DROP SCHEMA kept CASCADE", "CREATE SCHEMA kept", *keep)
        return sample

    @asynccontextmanager
    async def copy(self) -> AsyncIterator[PostgresCopy]:
        async with super().copy() as copy:
            for statement in _UNIQUE:
                await copy.execute(statement)
            yield copy


async def damage(copy: SqliteCopy | PostgresCopy, *statements: str) -> None:
    """Change a copy by hand, with nothing to stop it: no foreign keys, no checks."""
    if isinstance(copy, SqliteCopy):
        with closing(sqlite3.connect(copy.path)) as connection, connection:
            connection.execute("PRAGMA ignore_check_constraints = ON")
            for statement in statements:
                connection.execute(statement)
        return
    await copy.execute("SET session_replication_role = replica")
    for statement in statements:
        await copy.execute(re.sub(r"x'([0-9a-f]*)'", r"'\\x\1'::bytea", statement))
