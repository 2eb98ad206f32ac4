"""Batches: writes that are settled together succeed or fail each on its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from sqlalchemy import Connection

from lash.errors import (
    AccessDenied,
    CorruptFile,
    DatabaseMissing,
    DiskFull,
    InvariantBroken,
    LashError,
    LeaseLost,
    ReadOnlyStore,
    StoreClosed,
    StoreLocked,
    StoreUnavailable,
    TooLarge,
    WriteUnknown,
)
from lash.graph.parts import Text
from lash.ids import ItemId, SessionUid
from lash.inbox.items import InboxItem, Message, NewItem
from lash.store import writer as writer_module
from lash.store.contract import Store
from lash.store.opening import open_store
from lash.store.sql.steps import Settled, Steps, Unsettled, Work, Write
from lash.store.sql.store import SqlStore
from lash.store.writer import Backlog, Writer
from lash.testing.builders import (
    a_message,
    a_session,
    must_acquire,
    new_id,
    plan_nodes,
    said,
    says,
)
from tests.contract.stores import KINDS, SqliteHarness, postgres_harness
from tests.postgres import PostgresServer


@pytest.fixture(params=[kind for kind in KINDS if kind != "memory"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[SqlStore]:
    if request.param == "sqlite":
        async with await open_store(SqliteHarness(tmp_path / "batch.db").url) as store:
            yield store
        return
    server: PostgresServer = request.getfixturevalue("postgres")
    async with postgres_harness(server.shared) as harness, await open_store(harness.url) as store:
        yield store


async def sessions(store: Store, count: int) -> list[SessionUid]:
    return [(await a_session(store)).uid for _ in range(count)]


async def test_writes_of_one_session_keep_their_order_within_a_batch(store: SqlStore) -> None:
    [uid, other] = await sessions(store, 2)
    sent = [a_message(f"{number}") for number in range(20)]
    admissions = [store.admit(uid if number % 3 else other, item) for number, item in enumerate(sent)]
    await asyncio.gather(*admissions)
    ids = [item.id for item in (await store.items(uid)).rows]
    assert ids == [item.id for number, item in enumerate(sent) if number % 3]


async def test_a_displaced_owner_in_the_same_batch_as_its_successor_writes_nothing(store: SqlStore) -> None:
    [uid] = await sessions(store, 1)
    slow = await must_acquire(store, uid, "slow")
    await store.release(slow)
    fast = await must_acquire(store, uid, "fast")
    landed, refused = await asyncio.gather(
        store.commit(await plan_nodes(store, fast, says("fast"))),
        store.commit(await plan_nodes(store, slow, says("slow"))),
        return_exceptions=True,
    )
    assert not isinstance(landed, BaseException)
    assert isinstance(refused, LeaseLost)
    assert await said(store, uid) == ["fast"]


async def test_cancelling_a_caller_does_not_withdraw_its_write(store: SqlStore) -> None:
    [uid] = await sessions(store, 1)
    item = a_message("sent anyway")
    caller = asyncio.create_task(store.admit(uid, item))
    await asyncio.sleep(0)  # it has submitted the write and waits for the answer
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert (await store.admit(uid, item)).seq == 1
    assert len((await store.items(uid)).rows) == 1


async def test_closing_settles_what_was_submitted_and_refuses_what_comes_after(store: SqlStore) -> None:
    [uid] = await sessions(store, 1)
    submitted = [asyncio.create_task(store.admit(uid, a_message(f"{number}"))) for number in range(10)]
    await asyncio.sleep(0)
    await store.aclose()
    assert sorted(item.seq for item in await asyncio.gather(*submitted)) == list(range(1, 11))
    with pytest.raises(StoreClosed):
        await store.admit(uid, a_message("too late"))
    await store.aclose()


async def test_what_is_too_large_is_refused_before_it_is_queued(store: SqlStore) -> None:
    [uid] = await sessions(store, 1)
    huge = Message(parts=(Text(text="x" * (17 * 1024 * 1024)),))
    with pytest.raises(TooLarge):
        await store.admit(uid, NewItem(ItemId(new_id()), huge))
    assert (await store.items(uid)).rows == ()


async def test_a_commit_on_sqlite_is_synced_before_it_is_acknowledged(tmp_path: Path) -> None:
    async with await open_store(SqliteHarness(tmp_path / "synced.db").url) as store:

        def settings(connection: Connection) -> list[object]:
            return [connection.exec_driver_sql(f"PRAGMA {name}").scalar() for name in ("synchronous", "journal_mode")]

        assert await store._database.transact(settings) == [2, "wal"]  # 2 is FULL


async def test_a_commit_on_postgres_is_synced_as_the_server_says(postgres: PostgresServer) -> None:
    async with await open_store(postgres.shared.render_as_string(hide_password=False)) as store:

        def source(connection: Connection) -> object:
            return connection.exec_driver_sql(
                "SELECT source FROM pg_settings WHERE name = 'synchronous_commit'"
            ).scalar()

        assert await store._database.transact(source) not in ("client", "session")


# -- when nobody knows whether a batch landed --------------------------------------------------------------------------

UNKNOWN = WriteUnknown("the connection broke during a commit; repeat the call")
LANDED: Settled[str] = Settled(result="landed")
Answer = BaseException | Settled[str] | None


class Scripted:
    """A database that answers each attempt as it was told to, and remembers whose writes it was asked to settle. It
    is silent as long as ``answers`` is not set."""

    def __init__(self, *answers: Answer) -> None:
        self._answers = list(answers)
        self.attempts: list[list[str]] = []
        self.answers = asyncio.Event()
        self.answers.set()

    async def settle(self, writes: Sequence[Write[Any]], *, patient: bool) -> list[Settled[Any] | None]:
        self.attempts.append([uid for write in writes for uid in write.sessions])
        await asyncio.sleep(0)  # whoever else wants something submits it meanwhile
        await self.answers.wait()
        answer = self._answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return [answer for _ in writes]


def a_write(session: str, *, repeatable: bool = True, size: int = 0) -> Write[str]:
    def never(_: Work) -> Steps[str]:
        raise AssertionError("nothing is settled here")

    return Write((SessionUid(session),), never, size=size, repeatable=repeatable)


async def ends_of(writer: Writer, *writes: Write[str]) -> list[str | BaseException]:
    async with asyncio.timeout(5):
        return await asyncio.gather(*map(writer.write, writes), return_exceptions=True)


REFUSALS = [
    StoreUnavailable("away"),
    StoreLocked("held"),
    DiskFull("full"),
    AccessDenied("no"),
    ReadOnlyStore("a standby"),
    DatabaseMissing("gone"),
    CorruptFile("damaged"),
    Unsettled(StoreLocked("contended")),
    Unsettled(InvariantBroken("refused")),
]


@pytest.mark.parametrize("refusal", REFUSALS, ids=lambda error: f"{type(error).__name__} {error}")
async def test_a_second_run_that_came_to_nothing_does_not_make_the_first_one_known(refusal: Exception) -> None:
    """The commit may have landed, and its answer was lost: to say that nothing was written would be a lie."""
    database = Scripted(UNKNOWN, *[refusal] * 20)
    ends = await ends_of(Writer(database.settle), a_write("a"), a_write("b"))
    assert [type(end) for end in ends] == [WriteUnknown] * 2


async def test_a_second_run_tells_what_became_of_the_first() -> None:
    database = Scripted(UNKNOWN, LANDED)
    assert await ends_of(Writer(database.settle), a_write("a"), a_write("b")) == ["landed", "landed"]
    assert database.attempts == [["a", "b"], ["a", "b"]]


async def test_a_second_run_that_is_unknown_too_is_the_last() -> None:
    database = Scripted(UNKNOWN, UNKNOWN)
    ends = await ends_of(Writer(database.settle), a_write("a"), a_write("b"))
    assert [type(end) for end in ends] == [WriteUnknown] * 2
    assert len(database.attempts) == 2


async def test_what_cannot_be_recognised_is_not_run_again() -> None:
    database = Scripted(UNKNOWN, LANDED)
    once, again = await ends_of(Writer(database.settle), a_write("once", repeatable=False), a_write("again"))
    assert (type(once), again) == (WriteUnknown, "landed")
    assert database.attempts == [["once", "again"], ["again"]]


async def test_what_is_held_when_it_is_run_again_stays_unknown_until_it_is_settled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(writer_module, "PATIENCE", 0.0)
    unknown = await ends_of(Writer(Scripted(UNKNOWN, *[None] * 50).settle), a_write("a"))
    assert [type(end) for end in unknown] == [WriteUnknown]
    assert await ends_of(Writer(Scripted(UNKNOWN, None, None, LANDED).settle), a_write("a")) == ["landed"]


async def test_a_write_that_was_never_unknown_hears_what_it_is_refused_with() -> None:
    ends = await ends_of(Writer(Scripted(StoreUnavailable("away")).settle), a_write("a"))
    assert [type(end) for end in ends] == [StoreUnavailable]


class Elaborate(LashError):
    """An error with more to build it from than a text."""

    def __init__(self, session: str, *, found: int) -> None:
        super().__init__(f"{session} is at {found}")
        self.session, self.found = session, found


@pytest.mark.parametrize("error", [UNKNOWN, StoreUnavailable("away"), Elaborate("s", found=3)], ids=repr)
async def test_each_caller_of_a_refused_batch_gets_an_error_of_its_own(error: LashError) -> None:
    """Each raises it, which adds to its traceback, and may add notes to it that are not for the others."""
    writes = [a_write("a", repeatable=False), a_write("b", repeatable=False), a_write("c", repeatable=False)]
    ends = await ends_of(Writer(Scripted(error).settle), *writes)
    assert len({id(end) for end in [*ends, error]}) == 4
    for end in ends:
        assert isinstance(end, type(error))
        assert (str(end), vars(end), end.__cause__) == (str(error), vars(error), error)
        end.add_note("for me alone")
    assert [getattr(end, "__notes__", None) for end in (*ends, error)] == [["for me alone"]] * 3 + [None]


# -- room in line ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [MemoryError("no room for so much"), StoreUnavailable("away")], ids=repr)
async def test_a_failure_lets_those_in_who_waited_for_room(error: Exception) -> None:
    writer = Writer(Scripted(error, LANDED).settle)
    writes = asyncio.create_task(ends_of(writer, a_write("huge", size=64 * 1024 * 1024), a_write("small", size=1)))
    await asyncio.sleep(0)  # the two have come
    await asyncio.sleep(0)
    assert writer.backlog == Backlog(writes=1, bytes=64 * 1024 * 1024, callers=1)
    refused, landed = await writes
    assert (type(refused), landed) == (type(error), "landed")
    assert writer.backlog == Backlog(0, 0, 0)


async def test_a_caller_who_gives_up_lets_those_in_who_waited_behind_it() -> None:
    """A small write goes at once when the large one before it is no longer wanted."""
    half = 40 * 1024 * 1024
    database = Scripted(LANDED, LANDED)
    database.answers.clear()
    writer = Writer(database.settle)
    first = asyncio.create_task(writer.write(a_write("first", size=half)))
    large = asyncio.create_task(writer.write(a_write("large", size=half)))
    small = asyncio.create_task(writer.write(a_write("small", size=1)))
    await asyncio.sleep(0)
    assert writer.backlog.callers == 2
    large.cancel()
    await asyncio.wait([large])
    assert writer.backlog == Backlog(writes=2, bytes=half + 1, callers=0)
    database.answers.set()
    assert [await first, await small] == ["landed", "landed"]


async def test_closing_while_somebody_who_waits_for_room_gives_up_closes_all_the_same(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module, "MAX_QUEUED", 4)
    [uid] = await sessions(store, 1)
    callers = [asyncio.create_task(store.admit(uid, a_message(f"{number}"))) for number in range(20)]
    await asyncio.sleep(0)
    assert (store.backlog.writes, store.backlog.callers) == (4, 16)
    closing = asyncio.create_task(store.aclose())
    await asyncio.sleep(0)  # it is about to turn those away who wait for room
    callers[10].cancel()
    async with asyncio.timeout(5):
        await closing
        ends = await asyncio.gather(*callers, return_exceptions=True)
    assert [end.seq for end in ends[:4] if isinstance(end, InboxItem)] == [1, 2, 3, 4]
    assert [type(end) for end in ends[4:]] == [StoreClosed] * 6 + [asyncio.CancelledError] + [StoreClosed] * 9
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("lash")] == []


async def test_nobody_is_forgotten_when_somebody_cancels_the_writer() -> None:
    begun, never = asyncio.Event(), asyncio.Event()

    async def settle(writes: Sequence[Write[Any]], *, patient: bool) -> list[Settled[Any] | None]:
        begun.set()
        await never.wait()
        return [Settled(result=None) for _ in writes]

    with mock.patch("lash.store.writer.MAX_QUEUED", 2):
        writer = Writer(settle)
        callers = [asyncio.create_task(writer.write(Write((), _nothing))) for _ in range(4)]
        await begun.wait()
        assert writer._busy is not None
        writer._busy.cancel()
        answers = await asyncio.wait_for(asyncio.gather(*callers, return_exceptions=True), 10)
        assert [type(answer) for answer in answers] == [WriteUnknown, WriteUnknown, StoreUnavailable, StoreUnavailable]
        never.set()
        assert await writer.write(Write((), _nothing)) is None, "the next one is served"
        await asyncio.wait_for(writer.aclose(), 10)


def _nothing(_: Work) -> Steps[None]:
    yield from ()
