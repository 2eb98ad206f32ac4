"""Writes of every kind, each with a trace that it leaves in the tables, so that others than the store can say whether
it is there."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing
from dataclasses import dataclass

import asyncpg
from sqlalchemy.engine import make_url

from lash.commit.parts import hash_of
from lash.errors import LashError, WriteUnknown
from lash.ids import OwnerId
from lash.inbox.cancelling import These
from lash.store.contract import Store
from lash.testing.builders import (
    TTL,
    a_fork,
    a_held_session,
    a_message,
    a_new_session,
    a_request_id,
    a_session,
    a_wait,
    an_effect,
    an_opening,
    commit_nodes,
    hears,
    leaf_of,
    new_id,
    open_with,
    plan_nodes,
    plan_of,
    says,
)


@dataclass(frozen=True)
class Prepared:
    """A write that can be made, also a second time. ``trace`` and ``id`` name the one row that tells that it landed."""

    kind: str
    make: Callable[[Store], Awaitable[object]]
    trace: str
    id: str


# -- the kinds ---------------------------------------------------------------------------------------------------------


async def _admit(store: Store) -> Prepared:
    uid, item = (await a_session(store)).uid, a_message("hello")
    return Prepared("admit", lambda s: s.admit(uid, item), "lash_inbox WHERE id = {}", item.id)


async def _create(_: Store) -> Prepared:
    new = a_new_session()
    return Prepared("create", lambda s: s.create(new), "lash_sessions WHERE uid = {}", new.uid)


async def _delete(store: Store) -> Prepared:
    uid = (await a_session(store)).uid
    trace = "lash_sessions WHERE uid = {} AND state = 'deleted'"
    return Prepared("delete", lambda s: s.delete(uid), trace, uid)


async def _commit(store: Store) -> Prepared:
    plan = await plan_nodes(store, await a_held_session(store), says("a"), says("b"))
    return Prepared("commit", lambda s: s.commit(plan), "lash_commits WHERE operation = {}", plan.operation)


async def _settle_turn(store: Store) -> Prepared:
    driven = await open_with(store, (await a_session(store)).uid)
    plan = await plan_of(store, driven, hears("hello"), says("hi"))
    trace = "lash_turns WHERE id = {} AND state = 'settled'"
    return Prepared("settle a turn", lambda s: s.commit(plan), trace, driven.turn.id)


async def _fork(store: Store) -> Prepared:
    lease = await a_held_session(store)
    new = a_fork(lease.session, leaf_of(await commit_nodes(store, lease, says("a"))))
    return Prepared("fork", lambda s: s.fork(new), "lash_sessions WHERE uid = {}", new.uid)


async def _put_blob(_: Store) -> Prepared:
    body = new_id().encode()
    return Prepared("put_blob", lambda s: s.put_blob(body), "lash_blobs WHERE hash = {}", hash_of(body))


async def _put_document(store: Store) -> Prepared:
    uid = (await a_session(store)).uid
    trace = "lash_sessions WHERE uid = {} AND config_revision = 1"
    return Prepared("put_document", lambda s: s.put_document(uid, "config", {"a": 1}, expected=0), trace, uid)


async def _acquire(store: Store) -> Prepared:
    uid = (await a_session(store)).uid
    trace = "lash_sessions WHERE uid = {} AND lease_owner = 'me'"
    return Prepared("acquire", lambda s: s.acquire(uid, OwnerId("me"), ttl=TTL), trace, uid)


async def _release(store: Store) -> Prepared:
    lease = await a_held_session(store)
    trace = "lash_sessions WHERE uid = {} AND lease_owner IS NULL"
    return Prepared("release", lambda s: s.release(lease), trace, lease.session)


async def _open_turn(store: Store) -> Prepared:
    uid = (await a_session(store)).uid
    await store.admit(uid, a_message())
    opening = an_opening(uid)
    return Prepared("open_turn", lambda s: s.open_turn(opening), "lash_turns WHERE id = {}", opening.turn)


async def _record(store: Store) -> Prepared:
    driven = await open_with(store, (await a_session(store)).uid)
    effects = [an_effect("model:1")]
    make = lambda s: s.record(driven.lease, driven.turn.id, effects)  # noqa: E731
    return Prepared("record", make, "lash_journal WHERE turn = {}", driven.turn.id)


async def _open_wait(store: Store) -> Prepared:
    uid, wait = (await a_session(store)).uid, a_wait()
    return Prepared("open_wait", lambda s: s.open_wait(uid, wait), "lash_waits WHERE id = {}", wait.id)


async def _answer(store: Store) -> Prepared:
    wait = a_wait()
    key = await store.open_wait((await a_session(store)).uid, wait)
    trace = "lash_waits WHERE id = {} AND state = 'answered'"
    return Prepared("answer", lambda s: s.answer(key, "yes"), trace, wait.id)


async def _cancel(store: Store) -> Prepared:
    uid = (await a_session(store)).uid
    item = await store.admit(uid, a_message())
    trace = "lash_inbox WHERE id = {} AND state = 'cancelled'"
    return Prepared("cancel", lambda s: s.cancel(uid, These((item.id,))), trace, item.id)


async def _request_cancel(store: Store) -> Prepared:
    driven, request = await open_with(store, (await a_session(store)).uid), a_request_id()
    make = lambda s: s.request_cancel(driven.lease.session, driven.turn.id, request, reason="stop")  # noqa: E731
    return Prepared("request_cancel", make, "lash_turns WHERE cancel_request = {}", request)


KINDS = (
    _admit,
    _create,
    _delete,
    _commit,
    _settle_turn,
    _fork,
    _put_blob,
    _put_document,
    _acquire,
    _release,
    _open_turn,
    _record,
    _open_wait,
    _answer,
    _cancel,
    _request_cancel,
)


SUBMITTED_AT_ONCE = tuple(kind for kind in KINDS if kind is not _answer)
"""All but the answers to waits, which are looked up first: these are in line as soon as they are called."""

Kind = Callable[[Store], Awaitable[Prepared]]


async def prepare(store: Store, *, of_each: int, kinds: Sequence[Kind] = KINDS) -> list[Prepared]:
    """So many writes of each kind, of sessions of their own, kind after kind."""
    return await asyncio.gather(*(kind(store) for kind in kinds for _ in range(of_each)))


# -- the tables, without the store -------------------------------------------------------------------------------------


async def landed(url: str, writes: Sequence[Prepared]) -> list[bool]:
    """Which of some writes are in the tables."""
    parsed = make_url(url)
    sqlite = parsed.get_backend_name() == "sqlite"
    literal = "x'{}'" if sqlite else r"'\x{}'::bytea"
    counts = (f"SELECT {n}, count(*) FROM " + w.trace.format(literal.format(w.id)) for n, w in enumerate(writes))
    question = " UNION ALL ".join(counts)
    if sqlite:
        with closing(sqlite3.connect(str(parsed.database))) as file:
            rows = file.execute(question).fetchall()
    else:
        connection = await asyncpg.connect(url)
        try:
            rows = await connection.fetch(question)
        finally:
            await connection.close()
    found = {row[0]: row[1] for row in rows}
    assert max(found.values(), default=0) <= 1, "a write has landed twice"
    return [found[number] == 1 for number in range(len(writes))]


End = BaseException | object


async def check_answers(url: str, store: Store, writes: Sequence[Prepared], ends: Sequence[End]) -> None:
    """What each caller was told is true, and whoever was not told that its write is there can still get it there."""
    there = await landed(url, writes)
    for write, end, is_there in zip(writes, ends, there, strict=True):
        match end:
            case WriteUnknown() | asyncio.CancelledError():
                pass
            case LashError():
                assert not is_there, f"{write.kind} was refused with {end!r} and is there"
            case BaseException():
                raise end
            case _:
                assert is_there, f"{write.kind} was acknowledged and is not there"
    again = [(w, e) for w, e in zip(writes, ends, strict=True) if isinstance(e, BaseException)]
    await asyncio.gather(*(write.make(store) for write, _ in again))
    assert all(await landed(url, writes))
