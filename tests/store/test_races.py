"""What meets at one moment: the moment is made, by holding what both need, and then let go."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from sqlalchemy.engine import make_url

from lash.errors import LashError, SessionDeleted, SessionExists, SessionNotFound, StoreClosed, StoreLocked
from lash.graph.session import Session
from lash.ids import NodeId, SessionUid
from lash.store.contract import Opened, Store, Vacuumed
from lash.store.opening import open_store
from lash.store.sql import postgres as postgres_database
from lash.store.sql.link import PostgresLink
from lash.testing.builders import (
    a_fork,
    a_held_session,
    a_message,
    a_new_session,
    a_session,
    commit_nodes,
    leaf_of,
    said,
    says,
)
from tests.postgres import PostgresServer, execute, in_a_loop_of_its_own
from tests.store.holding import beside, file_locked, holding, process, until_waiting

FAR = datetime(2100, 1, 1, tzinfo=UTC)


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/races.db"


@pytest.fixture
def postgres_url(postgres: PostgresServer) -> str:
    return postgres.fresh().render_as_string(hide_password=False)


async def a_grandchild_to_be(store: Store) -> tuple[SessionUid, NodeId]:
    """A living fork of a session that was deleted, and the node that they share."""
    lease = await a_held_session(store)
    shared = leaf_of(await commit_nodes(store, lease, says("shared")))
    child = await store.fork(a_fork(lease.session, shared))
    await store.delete(lease.session)
    return child.uid, shared


# -- vacuum, fork and delete -------------------------------------------------------------------------------------------


async def test_a_fork_a_delete_and_a_vacuum_that_waited_for_one_file_are_settled_in_order(sqlite_url: str) -> None:
    async with await open_store(sqlite_url) as store:
        child, shared = await a_grandchild_to_be(store)
        with file_locked(sqlite_url):
            calls = (store.fork(a_fork(child, shared)), store.delete(child), store.vacuum(before=FAR))
            tasks = [asyncio.ensure_future(call) for call in calls]
            await asyncio.sleep(0)  # each has submitted what it wants
        forked, deleted, report = await asyncio.gather(*tasks)
        assert isinstance(forked, Session)
        assert deleted is True
        assert isinstance(report, Vacuumed)
        assert report.nodes == 0
        await store.vacuum(before=FAR)
        assert await said(store, forked.uid) == ["shared"]


@pytest.mark.parametrize("first", ["fork", "delete"])
async def test_a_fork_and_a_delete_that_wait_for_one_session_are_settled_one_after_the_other(
    postgres_url: str, first: str
) -> None:
    """A fork that came first is whole, whatever a vacuum takes; one that came second is refused."""
    async with (
        await process(postgres_url, "fork") as one,
        await process(postgres_url, "delete") as two,
        await process(postgres_url, "vacuum") as three,
        beside(postgres_url) as query,
    ):
        child, shared = await a_grandchild_to_be(one)
        new = a_fork(child, shared)
        calls: dict[str, Callable[[], Awaitable[Any]]] = {
            "fork": lambda: one.fork(new),
            "delete": lambda: two.delete(child),
        }
        second = "delete" if first == "fork" else "fork"
        tasks: dict[str, asyncio.Future[Any]] = {}
        async with holding(postgres_url, "SELECT 1 FROM lash_sessions WHERE state = 'live' FOR UPDATE"):
            tasks[first] = asyncio.ensure_future(calls[first]())
            await until_waiting(query, first)
            tasks[second] = asyncio.ensure_future(calls[second]())
            vacuum = asyncio.ensure_future(three.vacuum(before=FAR))
            await until_waiting(query, first, second)
        assert await tasks["delete"] is True
        if first == "fork":
            assert (await tasks["fork"]).uid == new.uid
        else:
            with pytest.raises(SessionDeleted):
                await tasks["fork"]
        gone = (await vacuum) + await three.vacuum(before=FAR)
        if first == "fork":
            assert (gone.nodes, await said(two, new.uid)) == (0, ["shared"])
        else:
            assert gone.nodes == 2


async def test_a_fork_that_waits_with_a_vacuum_for_an_origin_is_refused_when_its_parent_is_deleted(
    postgres_url: str,
) -> None:
    """The delete needs nothing that is held, and does not wait."""
    async with (
        await process(postgres_url, "fork") as one,
        await process(postgres_url, "delete") as two,
        await process(postgres_url, "vacuum") as three,
        beside(postgres_url) as query,
    ):
        child, shared = await a_grandchild_to_be(one)
        async with holding(postgres_url, "SELECT 1 FROM lash_sessions WHERE state = 'deleted' FOR UPDATE"):
            vacuum = asyncio.ensure_future(three.vacuum(before=FAR))
            await until_waiting(query, "vacuum")
            fork = asyncio.ensure_future(one.fork(a_fork(child, shared)))
            await until_waiting(query, "vacuum", "fork")
            assert await two.delete(child) is True
        with pytest.raises(SessionDeleted):
            await fork
        assert ((await vacuum) + await three.vacuum(before=FAR)).nodes == 2


# -- closing -----------------------------------------------------------------------------------------------------------


async def closing_is_given_up_and_happens(store: Store, uid: SessionUid, let_go: Callable[[], Awaitable[None]]) -> None:
    item = a_message("submitted before")
    write = asyncio.create_task(store.admit(uid, item))
    await asyncio.sleep(0)  # it is submitted, and cannot land
    impatient = asyncio.create_task(store.aclose())
    await asyncio.sleep(0)
    impatient.cancel()
    with pytest.raises(asyncio.CancelledError):
        await impatient
    with pytest.raises(StoreClosed):
        await store.admit(uid, a_message("after"))
    assert not write.done()
    await let_go()
    assert (await write).id == item.id
    await store.aclose()


async def test_closing_a_file_goes_on_when_its_caller_is_cancelled(sqlite_url: str) -> None:
    store = await open_store(sqlite_url)
    uid = (await a_session(store)).uid
    lock = file_locked(sqlite_url)
    lock.__enter__()

    async def let_go() -> None:
        lock.__exit__(None, None, None)

    await closing_is_given_up_and_happens(store, uid, let_go)
    folder = Path(str(make_url(sqlite_url).database)).parent
    assert sorted(path.name for path in folder.iterdir()) == ["races.db"], "the last to close a file takes its log away"


async def test_closing_connections_goes_on_when_its_caller_is_cancelled(postgres_url: str) -> None:
    store = await open_store(postgres_url)
    uid = (await a_session(store)).uid
    async with beside(postgres_url) as query:
        await query("BEGIN")
        await query("SELECT 1 FROM lash_sessions FOR UPDATE")

        async def let_go() -> None:
            await query("COMMIT")

        await closing_is_given_up_and_happens(store, uid, let_go)
        ours = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'lash'"
        async with asyncio.timeout(10):
            while await query(ours):  # a server hears a little later that a connection was closed
                pass


# -- names -------------------------------------------------------------------------------------------------------------


@contextmanager
def right_after(beginning: str, mentions: str, work: Callable[[], None]) -> Iterator[None]:
    """Do something once, between a statement that begins so and whatever follows it in its transaction."""
    done = False
    fetch = PostgresLink._fetch

    def fetch_and_work(self: PostgresLink, statement: str, values: Any) -> list[Any]:
        nonlocal done
        found = fetch(self, statement, values)
        if not done and statement.startswith(beginning) and mentions in statement:
            done = True
            work()
        return found

    with mock.patch.object(PostgresLink, "_fetch", fetch_and_work):
        yield
    assert done, "the moment never came"


DELETION = "UPDATE lash_sessions SET state = 'deleted', name = NULL, deleted_at = 1 WHERE name = '{}'"


def deleting(url: str, name: str) -> Callable[[], None]:
    return lambda: in_a_loop_of_its_own(lambda: execute(make_url(url), DELETION.format(name)))


async def test_a_session_that_is_deleted_while_its_name_is_opened_may_be_the_answer_once(postgres_url: str) -> None:
    """It was there when it was looked for. The next one to ask gets a new session."""
    async with await open_store(postgres_url) as store:
        old, new = await a_session(store, "wanted"), a_new_session("wanted")
        with right_after("SELECT", "lash_sessions.name = ", deleting(postgres_url, "wanted")):
            assert (await store.open(new)).session.uid == old.uid
        assert await store.open(new) == Opened(await store.get(new.name), created=True)
        assert (await store.get(new.name)).uid == new.uid


async def test_a_name_that_is_just_being_given_up_is_taken_until_then(postgres_url: str) -> None:
    """The deletion holds what every deletion holds: the claim on the name, and the row."""
    async with await open_store(postgres_url) as store, beside(postgres_url) as query:
        await a_session(store, "wanted")
        await query("BEGIN")
        await query("SELECT pg_advisory_xact_lock(hashtextextended('lash session wanted', 0))")
        await query(DELETION.format("wanted"))
        new = a_new_session("wanted")
        with pytest.raises(SessionExists):
            await store.create(new)
        await query("COMMIT")
        assert (await store.create(new)).uid == new.uid
        assert (await store.get(new.name)).uid == new.uid


async def test_a_name_whose_deletion_is_taken_back_is_not_free(postgres_url: str) -> None:
    async with await open_store(postgres_url) as store, beside(postgres_url) as query:
        old = await a_session(store, "wanted")
        await query("BEGIN")
        await query(DELETION.format("wanted"))
        opening = asyncio.create_task(store.open(a_new_session("wanted")))
        creating = asyncio.create_task(store.create(a_new_session("wanted")))
        assert (await opening).session.uid == old.uid
        await query("ROLLBACK")
        with pytest.raises(LashError, match="exists"):
            await creating


async def test_opening_and_deleting_a_name_on_one_file_agree_on_who_came_first(sqlite_url: str) -> None:
    async with await open_store(sqlite_url) as one, await open_store(sqlite_url) as two:
        old = await a_session(one, "wanted")
        new = a_new_session("wanted")
        with file_locked(sqlite_url):
            deleting = asyncio.create_task(one.delete(old.uid))
            opening = asyncio.create_task(two.open(new))
            await asyncio.sleep(0)
        assert await deleting is True
        match await opening:
            case Opened(session=session, created=True):
                assert session.uid == new.uid == (await one.get(new.name)).uid
            case Opened(session=session):
                assert session.uid == old.uid
                with pytest.raises(SessionNotFound):
                    await one.get(new.name)


# -- tables that are locked --------------------------------------------------------------------------------------------

READS: dict[str, Callable[[Store, SessionUid], Awaitable[object]]] = {
    "find": lambda store, uid: store.find(uid),
    "snapshot": lambda store, uid: store.snapshot(uid),
    "sessions": lambda store, uid: store.sessions(),
    "ready": lambda store, uid: store.ready(["default"]),
    "vacuum": lambda store, uid: store.vacuum(before=FAR),
    "dry run": lambda store, uid: store.vacuum(before=FAR, dry_run=True),
}


async def test_a_read_of_a_locked_table_is_refused_as_locked(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_database, "LOCK_TIMEOUT", "20ms")
    async with await open_store(postgres_url) as store:
        uid = (await a_session(store)).uid
        async with holding(postgres_url, "LOCK TABLE lash_sessions IN ACCESS EXCLUSIVE MODE"):
            for read in READS.values():
                with pytest.raises(StoreLocked, match="try again"):
                    await read(store, uid)
        assert (await store.find(uid)).uid == uid


async def test_opening_a_store_whose_tables_are_locked_is_refused_as_locked(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_database, "LOCK_TIMEOUT", "20ms")
    async with holding(postgres_url, "LOCK TABLE lash_meta, lash_version IN ACCESS EXCLUSIVE MODE"):
        with pytest.raises(StoreLocked):
            await open_store(postgres_url)


async def test_opening_a_file_that_is_being_written_waits_no_longer_than_it_was_told(sqlite_url: str) -> None:
    async with await open_store(sqlite_url):
        pass
    with file_locked(sqlite_url), pytest.raises(StoreLocked):
        await open_store(sqlite_url, busy_timeout=timedelta(milliseconds=20))
