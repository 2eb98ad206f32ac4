"""One bad write in a batch of many: only its owner hears of it. That it was one batch is counted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Sequence
from typing import Any

import pytest

from lash.errors import BlobMissing, HeadMoved, InvariantBroken, KeyReused, TooLarge
from lash.graph.parts import Image
from lash.ids import BlobHash, ItemId
from lash.inbox.items import InboxItem, Message, NewItem
from lash.store import schema
from lash.store.opening import open_store
from lash.store.sql.steps import Steps, Work, Write
from lash.store.sql.store import SqlStore
from lash.testing.builders import a_message, a_session, commit_nodes, must_acquire, new_id, plan_nodes, said, says
from lash.testing.checking import check_database
from tests.store.mixture import SUBMITTED_AT_ONCE, check_answers, prepare

MIB = 1024 * 1024


@pytest.fixture
async def store(url: str) -> AsyncIterator[SqlStore]:
    async with await open_store(url) as store:
        yield store


async def among_others(url: str, store: SqlStore, *bad: Awaitable[object]) -> tuple[list[object], list[int]]:
    """Make some writes in the middle of sixty good ones, which must not notice. How the bad ones ended, and the sizes
    of the batches that all of them were settled in."""
    writes = await prepare(store, of_each=4, kinds=SUBMITTED_AT_ONCE)
    sizes: list[int] = []
    settle = store._writer._settle

    async def counted(batch: Sequence[Write[Any]], *, patient: bool) -> Any:
        sizes.append(len(batch))
        return await settle(batch, patient=patient)

    store._writer._settle = counted  # type: ignore[assignment]
    good = [write.make(store) for write in writes]
    ends = await asyncio.gather(*good[:30], *bad, *good[30:], return_exceptions=True)
    store._writer._settle = settle
    acknowledged = ends[:30] + ends[30 + len(bad) :]
    assert [end for end in acknowledged if isinstance(end, BaseException)] == []
    await check_answers(url, store, writes, acknowledged)
    (await check_database(url)).raise_if_broken()
    return ends[30 : 30 + len(bad)], sizes


async def test_stale_and_conflicting_writes_do_not_even_make_their_batch_run_again(url: str, store: SqlStore) -> None:
    lease = await must_acquire(store, (await a_session(store)).uid)
    stale = await plan_nodes(store, lease, says("made from an old head"))
    await commit_nodes(store, lease, says("first"))
    keyed = (await a_session(store)).uid
    await store.admit(keyed, a_message("one content", key="k"))
    image = Message(parts=(Image(blob=BlobHash("0" * 64), media_type="image/png"),))
    ends, sizes = await among_others(
        url,
        store,
        store.commit(stale),
        store.admit(keyed, a_message("other content", key="k")),
        store.admit(keyed, NewItem(ItemId(new_id()), image)),
    )
    assert [type(end) for end in ends] == [HeadMoved, KeyReused, BlobMissing]
    assert sizes == [63]
    assert len((await store.items(keyed)).rows) == 1
    assert await said(store, lease.session) == ["first"]


async def test_a_write_that_breaks_a_constraint_is_refused_alone(url: str, store: SqlStore) -> None:
    bad = (await a_session(store)).uid

    def break_a_constraint(work: Work) -> Steps[None]:
        yield from ()
        twice = {"branch": 0, "parent_session": None, "parent_branch": None, "parent_depth": None}
        work.changes.insert(schema.branches, {"session": work.session(bad).id, **twice})

    ends, sizes = await among_others(url, store, store._writer.write(Write((bad,), break_a_constraint)))
    assert [type(end) for end in ends] == [InvariantBroken]
    assert sizes[0] == 61
    assert len(sizes) > 61, "each was settled alone then"


async def test_a_bug_in_a_write_is_its_callers_alone(url: str, store: SqlStore) -> None:
    uid = (await a_session(store)).uid

    def trip(_: Work) -> Steps[None]:
        yield from ()
        raise ZeroDivisionError

    ends, sizes = await among_others(url, store, store._writer.write(Write((uid,), trip)))
    assert [type(end) for end in ends] == [ZeroDivisionError]
    assert sizes[0] == 61


async def test_a_write_that_is_too_large_is_refused_before_it_joins_and_a_large_one_goes_alone(
    url: str, store: SqlStore
) -> None:
    uid = (await a_session(store)).uid
    ends, sizes = await among_others(
        url, store, store.admit(uid, a_message("x" * (17 * MIB))), store.admit(uid, a_message("x" * (5 * MIB)))
    )
    assert isinstance(ends[0], TooLarge)
    assert isinstance(ends[1], InboxItem)
    assert sizes.count(1) == 1
    assert sum(sizes) == 61


async def test_of_two_writes_of_one_session_in_a_batch_the_second_is_refused_for_what_the_first_did(
    url: str, store: SqlStore
) -> None:
    uid = (await a_session(store)).uid
    calls = (store.admit(uid, a_message(text, key="k")) for text in ("first", "second"))
    ends, sizes = await among_others(url, store, *calls)
    assert isinstance(ends[0], InboxItem)
    assert isinstance(ends[1], KeyReused)
    assert sizes == [62]
