"""Listing sessions: in order of creation, page by page. Needs an empty database."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from lash.errors import InvalidValue
from lash.graph.session import Session
from lash.ids import SessionName, SessionUid
from lash.store.contract import Page, SessionFilter, Store
from lash.testing.builders import (
    a_fork,
    a_message,
    a_new_session,
    a_session,
    leaf_of,
    new_id,
    open_with,
    plan_of,
    run_turn,
)
from lash.testing.harness import StoreContract, StoreHarness, opened

EVERYTHING = SessionFilter()
LISTS: dict[str, Callable[[Store, SessionUid, int], Awaitable[object]]] = {
    "sessions": lambda store, uid, limit: store.sessions(limit=limit),
    "items": lambda store, uid, limit: store.items(uid, limit=limit),
    "debts": lambda store, uid, limit: store.debts(limit=limit),
    "ready": lambda store, uid, limit: store.ready(["default"], limit=limit),
}
NO_CURSORS = [
    "",
    " ",
    "x",
    "-1",
    "+1",
    " 1",
    "1 ",
    "1\n",
    "1.5",
    "0x1",
    "1_0",
    "\u0661",
    "9" * 19,
    "9" * 5000,
    "\x00",
    "\ud800",
]


async def _create(store: Store, *names: str, agent: str = "default") -> list[Session]:
    return [await a_session(store, name, agent=agent) for name in names]


async def _pages(store: Store, where: SessionFilter = EVERYTHING, *, limit: int) -> list[list[str]]:
    """The names, page by page, to the last page."""
    found: list[list[str]] = []
    after: str | None = None
    while True:
        page = await store.sessions(where, after=after, limit=limit)
        found.append([session.name for session in page.rows])
        if page.next is None:
            return found
        after = page.next


async def _names(store: Store, where: SessionFilter = EVERYTHING) -> list[str]:
    return [session.name for session in (await store.sessions(where)).rows]


class ListingContract(StoreContract):
    """All living sessions of an otherwise empty database."""

    async def test_an_empty_database_has_one_empty_page(self, store: Store) -> None:
        assert await store.sessions() == Page(rows=(), next=None)

    async def test_sessions_are_listed_as_they_are_now(self, store: Store) -> None:
        for session in await _create(store, "a", "b"):
            await run_turn(store, session.uid, "hello")
        page = await store.sessions()
        assert list(page.rows) == [await store.get(SessionName(name)) for name in ("a", "b")]

    async def test_sessions_are_listed_in_order_of_creation(self, store: Store) -> None:
        uids = sorted((SessionUid(new_id()) for _ in range(4)), reverse=True)
        names = ["d", "B", "ä", "c"]
        for uid, name in zip(uids, names, strict=True):
            await store.create(replace(a_new_session(name), uid=uid))
        assert await _names(store) == names

    async def test_work_does_not_change_the_order(self, store: Store) -> None:
        first, _ = await _create(store, "first", "second")
        await run_turn(store, first.uid, "hello")
        await store.put_document(first.uid, "metadata", {"n": 1}, expected=0)
        assert await _names(store) == ["first", "second"]

    @pytest.mark.parametrize(
        ("limit", "pages"),
        [
            (1, [["a"], ["b"], ["c"], ["d"]]),
            (2, [["a", "b"], ["c", "d"]]),
            (3, [["a", "b", "c"], ["d"]]),
            (4, [["a", "b", "c", "d"]]),
            (5, [["a", "b", "c", "d"]]),
        ],
    )
    async def test_pages_follow_each_other_without_gap_or_repetition(
        self, store: Store, limit: int, pages: list[list[str]]
    ) -> None:
        await _create(store, "a", "b", "c", "d")
        assert await _pages(store, limit=limit) == pages

    async def test_a_page_is_a_hundred_unless_asked_otherwise(self, store: Store) -> None:
        await _create(store, *(f"s{n}" for n in range(101)))
        page = await store.sessions()
        assert len(page.rows) == 100
        assert [s.name for s in (await store.sessions(after=page.next)).rows] == ["s100"]

    async def test_a_session_created_meanwhile_is_on_a_later_page(self, store: Store) -> None:
        await _create(store, "b", "c", "d")
        first = await store.sessions(limit=2)
        await _create(store, "a")
        rest = await store.sessions(after=first.next, limit=2)
        assert [session.name for session in (*first.rows, *rest.rows)] == ["b", "c", "d", "a"]

    async def test_deleting_the_end_of_a_page_does_not_lose_the_place(self, store: Store) -> None:
        sessions = await _create(store, "a", "b", "c", "d")
        first = await store.sessions(limit=2)
        await store.delete(sessions[1].uid)
        await store.delete(sessions[0].uid)
        rest = await store.sessions(after=first.next, limit=2)
        assert [session.name for session in rest.rows] == ["c", "d"]
        assert rest.next is None

    async def test_a_cursor_is_good_for_another_process(self, harness: StoreHarness) -> None:
        async with opened(harness) as first:
            await _create(first, "a", "b", "c")
            page = await first.sessions(limit=2)
        async with opened(harness) as second:
            assert [s.name for s in (await second.sessions(after=page.next)).rows] == ["c"]

    async def test_deleted_sessions_are_not_listed(self, store: Store) -> None:
        sessions = await _create(store, "a", "b", "c")
        await store.delete(sessions[1].uid)
        assert await _names(store) == ["a", "c"]
        assert await _pages(store, limit=1) == [["a"], ["c"]]

    async def test_a_name_that_is_used_again_is_listed_as_the_new_session_it_is(self, store: Store) -> None:
        sessions = await _create(store, "a", "b")
        await store.delete(sessions[0].uid)
        (again,) = await _create(store, "a")
        page = await store.sessions()
        assert [session.uid for session in page.rows] == [sessions[1].uid, again.uid]

    async def test_a_failed_create_leaves_no_trace(self, store: Store) -> None:
        (a,) = await _create(store, "a")
        assert (await store.open(a_new_session("a"))).created is False
        assert [session.uid for session in (await store.sessions()).rows] == [a.uid]

    async def test_forks_are_listed_like_any_other_session(self, store: Store) -> None:
        (a,) = await _create(store, "a", agent="orders")
        receipt = await run_turn(store, a.uid, "hello")
        await store.fork(a_fork(a.uid, leaf_of(receipt), "fork"))
        assert await _names(store, SessionFilter(agent="orders")) == ["a", "fork"]

    # -- bad input -----------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("call", LISTS.values(), ids=LISTS)
    @pytest.mark.parametrize("limit", [0, -1, 1001, 2**70])
    async def test_a_limit_that_is_no_size_of_a_page_is_refused(
        self, store: Store, call: Callable[[Store, SessionUid, int], Awaitable[object]], limit: int
    ) -> None:
        """Also where there is nothing to list."""
        uid = (await a_session(store)).uid
        with pytest.raises(InvalidValue, match="1000"):
            await call(store, uid, limit)

    @pytest.mark.parametrize("call", LISTS.values(), ids=LISTS)
    @pytest.mark.parametrize("limit", [1, 1000])
    async def test_the_smallest_and_the_largest_page_are_served(
        self, store: Store, call: Callable[[Store, SessionUid, int], Awaitable[object]], limit: int
    ) -> None:
        await call(store, (await a_session(store)).uid, limit)

    @pytest.mark.parametrize("cursor", NO_CURSORS, ids=lambda cursor: ascii(cursor[:20]))
    async def test_a_cursor_that_no_page_ended_with_is_refused(self, store: Store, cursor: str) -> None:
        uid = (await a_session(store)).uid
        await store.admit(uid, a_message())
        with pytest.raises(InvalidValue, match="cursor"):
            await store.sessions(after=cursor)
        with pytest.raises(InvalidValue, match="cursor"):
            await store.items(uid, after=cursor)

    # -- filters -------------------------------------------------------------------------------------------------------

    async def test_sessions_of_one_agent(self, store: Store) -> None:
        await _create(store, "a", "c", agent="orders")
        await _create(store, "b", agent="Orders")
        assert await _names(store, SessionFilter(agent="orders")) == ["a", "c"]
        assert await _names(store, SessionFilter(agent="Orders")) == ["b"]
        assert await _names(store, SessionFilter(agent="order")) == []

    @pytest.mark.parametrize(
        ("prefix", "names"),
        [
            ("", ["a_1", "a_2", "aX1", "A_1", "注文1", "注文2"]),
            ("a", ["a_1", "a_2", "aX1"]),
            ("a_", ["a_1", "a_2"]),
            ("A", ["A_1"]),
            ("注文", ["注文1", "注文2"]),
            ("a_1", ["a_1"]),
            ("%", []),
            ("a%1", []),
            ("_", []),
            ("a*", []),
            ("a_1x", []),
            ("\\", []),
        ],
    )
    async def test_sessions_whose_name_begins_so(self, store: Store, prefix: str, names: list[str]) -> None:
        await _create(store, "a_1", "a_2", "aX1", "A_1", "注文1", "注文2")
        assert await _names(store, SessionFilter(name_prefix=prefix)) == names

    async def test_sessions_with_and_without_an_unsettled_turn(self, store: Store) -> None:
        _, waiting, at_work, asleep, done = await _create(store, "new", "done", "open", "parked", "settled")
        await run_turn(store, waiting.uid, "hello")
        await open_with(store, at_work.uid)
        sleeping = await open_with(store, asleep.uid)
        await store.park(sleeping.lease, sleeping.turn.id)
        settled = await open_with(store, done.uid)
        assert await _names(store, SessionFilter(unsettled=True)) == ["open", "parked", "settled"]
        await store.commit(await plan_of(store, settled))
        assert await _names(store, SessionFilter(unsettled=True)) == ["open", "parked"]
        assert await _names(store, SessionFilter(unsettled=False)) == ["new", "done", "settled"]

    async def test_filters_apply_together_and_to_every_page(self, store: Store) -> None:
        for n in range(4):
            await _create(store, f"x{n}", f"y{n}", agent="orders")
            await _create(store, f"x{n}-other", agent="other")
        where = SessionFilter(agent="orders", name_prefix="x", unsettled=False)
        assert await _pages(store, where, limit=2) == [["x0", "x1"], ["x2", "x3"]]
        assert await _names(store, replace(where, unsettled=True)) == []

    # -- races ---------------------------------------------------------------------------------------------------------

    async def test_sessions_created_at_once_are_each_listed_once(self, harness: StoreHarness) -> None:
        async with opened(harness) as one, opened(harness) as two:
            names = [f"s{n}" for n in range(20)]
            await asyncio.gather(*(a_session(store, name) for store, name in zip((one, two) * 10, names, strict=True)))
            listed = [name for page in await _pages(one, limit=3) for name in page]
        assert sorted(listed) == sorted(names)

    async def test_a_walk_through_the_pages_while_others_create_sees_nobody_twice_and_misses_nobody_who_was_there(
        self, harness: StoreHarness
    ) -> None:
        """Those created meanwhile are found or not: one may become visible behind the place that was reached."""
        async with opened(harness) as one, opened(harness) as two, opened(harness) as three, opened(harness) as reader:
            await _create(one, "a", "b", "c")
            names = [[f"{n}-{m}" for m in range(10)] for n in range(3)]
            creating = asyncio.gather(*(_create(s, *own) for s, own in zip((one, two, three), names, strict=True)))
            walked: list[str] = []
            after: str | None = None
            while not creating.done():
                page = await reader.sessions(after=after, limit=1)
                if page.next is not None:
                    walked += [session.name for session in page.rows]
                    after = page.next
                await asyncio.sleep(0)  # a store that never waits must let the others run
            await creating
            walked += [session.name for session in (await reader.sessions(after=after)).rows]
            listed = await _names(reader)
        assert walked == [name for name in listed if name in walked]
        assert walked[:3] == ["a", "b", "c"]
        assert len(listed) == 33
