"""Work: which sessions need a worker now. Needs an empty database."""

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta

import pytest

from lash.errors import LeaseLost
from lash.inbox.cancelling import From
from lash.store.contract import Store
from lash.testing.builders import (
    TTL,
    a_command,
    a_message,
    a_request_id,
    a_session,
    a_wait,
    displace,
    must_acquire,
    must_open,
    open_with,
    settle_turn,
)
from lash.testing.harness import StoreContract, StoreHarness, opened

AGENT = "default"


async def _ready(store: Store, agents: Collection[str] = (AGENT,)) -> list[str]:
    """The names of the sessions that need a worker now."""
    return [ready.name for ready in await store.ready(agents)]


class WorkContract(StoreContract):
    """LeaseStore.ready. Needs an empty database for each test, because it asks for the work of everybody."""

    # -- the list ------------------------------------------------------------------------------------------------------

    async def test_an_empty_store_has_no_work(self, store: Store) -> None:
        assert await store.ready([AGENT]) == []

    async def test_an_idle_session_needs_nobody(self, store: Store) -> None:
        session = await a_session(store)
        assert session.ready_at is None
        assert await _ready(store) == []

    async def test_a_session_with_input_needs_a_worker(self, harness: StoreHarness, store: Store) -> None:
        session, before = await a_session(store), await harness.now()
        await store.admit(session.uid, a_message())
        async with opened(harness) as worker:
            [ready] = await worker.ready([AGENT])
        assert (ready.uid, ready.name, ready.agent) == (session.uid, session.name, AGENT)
        assert before <= ready.ready_at <= await harness.now()
        assert (await store.find(session.uid)).ready_at == ready.ready_at

    async def test_those_that_have_waited_longest_come_first(self, harness: StoreHarness, store: Store) -> None:
        sessions = {name: await a_session(store, name) for name in ("c", "a", "b")}
        for name in ("b", "c", "a"):
            await store.admit(sessions[name].uid, a_message())
            await harness.advance(timedelta(seconds=1))
        assert await _ready(store) == ["b", "c", "a"]

    async def test_a_session_waits_since_its_first_item(self, harness: StoreHarness, store: Store) -> None:
        first, second = await a_session(store, "first"), await a_session(store, "second")
        for uid in (first.uid, second.uid, first.uid):
            await store.admit(uid, a_message())
            await harness.advance(timedelta(seconds=1))
        assert await _ready(store) == ["first", "second"]

    async def test_work_can_be_limited(self, harness: StoreHarness, store: Store) -> None:
        for name in ("a", "b", "c"):
            await store.admit((await a_session(store, name)).uid, a_message())
            await harness.advance(timedelta(seconds=1))
        assert [ready.name for ready in await store.ready([AGENT], limit=2)] == ["a", "b"]

    @pytest.mark.parametrize(
        ("agents", "names"),
        [(["x"], ["of-x"]), (["y", "x"], ["of-x", "of-y"]), (["z"], []), ([], [])],
        ids=["one", "several", "of nobody", "none"],
    )
    async def test_a_worker_gets_the_sessions_of_the_agents_it_serves(
        self, store: Store, agents: list[str], names: list[str]
    ) -> None:
        for agent in ("x", "y", "w"):
            session = await a_session(store, f"of-{agent}", agent=agent)
            await store.admit(session.uid, a_message())
        assert sorted(await _ready(store, agents)) == names

    async def test_a_deleted_session_needs_nobody(self, store: Store) -> None:
        session = await a_session(store)
        await store.admit(session.uid, a_message())
        await store.delete(session.uid)
        assert await _ready(store) == []

    async def test_asking_for_work_changes_nothing(self, store: Store) -> None:
        session = await a_session(store)
        await store.admit(session.uid, a_message())
        before = await store.find(session.uid)
        assert await store.ready([AGENT]) == await store.ready([AGENT])
        assert await store.find(session.uid) == before

    # -- input ---------------------------------------------------------------------------------------------------------

    async def test_a_command_is_work_too(self, store: Store) -> None:
        session = await a_session(store)
        await store.admit(session.uid, a_command())
        assert await _ready(store) == [session.name]

    async def test_postponed_input_is_work_when_its_time_comes(self, harness: StoreHarness, store: Store) -> None:
        session = await a_session(store)
        await store.admit(session.uid, a_message(available_at=await harness.now() + TTL))
        assert await _ready(store) == []
        await harness.advance(2 * TTL)
        assert await _ready(store) == [session.name]

    async def test_the_earliest_of_several_items_decides(self, harness: StoreHarness, store: Store) -> None:
        session, now = await a_session(store), await harness.now()
        for delay in (3 * TTL, TTL, 2 * TTL):
            await store.admit(session.uid, a_message(available_at=now + delay))
        await harness.advance(1.5 * TTL)
        assert await _ready(store) == [session.name]

    async def test_cancelled_input_is_no_work(self, harness: StoreHarness, store: Store) -> None:
        session = await a_session(store)
        first = await store.admit(session.uid, a_message())
        await store.admit(session.uid, a_message(available_at=await harness.now() + TTL))
        await store.cancel(session.uid, From(first.id))
        await harness.advance(2 * TTL)
        assert await _ready(store) == []

    async def test_when_the_first_item_is_cancelled_the_next_one_decides(
        self, harness: StoreHarness, store: Store
    ) -> None:
        session = await a_session(store)
        await store.admit(session.uid, a_message(available_at=await harness.now() + 2 * TTL))
        first = await store.admit(session.uid, a_message())
        await store.cancel(session.uid, From(first.id))
        assert await _ready(store) == []
        await harness.advance(3 * TTL)
        assert await _ready(store) == [session.name]

    # -- a session at work ---------------------------------------------------------------------------------------------

    async def test_a_session_at_work_needs_no_second_worker(self, store: Store) -> None:
        session = await a_session(store)
        await open_with(store, session.uid)
        await store.admit(session.uid, a_message())
        assert await _ready(store) == []

    async def test_a_turn_whose_owner_died_needs_a_worker_once_its_lease_runs_out(
        self, harness: StoreHarness, store: Store
    ) -> None:
        session = await a_session(store)
        await open_with(store, session.uid)
        await harness.advance(TTL / 2)
        assert await _ready(store) == []
        await harness.advance(TTL)
        assert await _ready(store) == [session.name]

    async def test_a_turn_whose_owner_renews_needs_nobody(self, harness: StoreHarness, store: Store) -> None:
        session = await a_session(store)
        driven = await open_with(store, session.uid)
        for _ in range(4):
            await harness.advance(TTL / 2)
            await store.renew(driven.lease, ttl=TTL)
        assert await _ready(store) == []
        await harness.advance(2 * TTL)
        assert await _ready(store) == [session.name]

    async def test_a_turn_that_is_taken_over_needs_no_third_worker(self, harness: StoreHarness, store: Store) -> None:
        session = await a_session(store)
        await open_with(store, session.uid, owner="dead")
        await harness.advance(2 * TTL)
        await must_open(store, session.uid, "b")
        assert await _ready(store) == []

    async def test_a_lease_that_is_taken_without_the_turn_postpones_the_turn(
        self, harness: StoreHarness, store: Store
    ) -> None:
        session = await a_session(store)
        await open_with(store, session.uid, owner="dead")
        await displace(harness, store, session.uid, "b")
        assert await _ready(store) == []
        await harness.advance(2 * TTL)
        assert await _ready(store) == [session.name]

    async def test_a_turn_that_is_handed_over_needs_a_worker_at_once(self, store: Store) -> None:
        session = await a_session(store)
        driven = await open_with(store, session.uid)
        await store.release(driven.lease)
        assert await _ready(store) == [session.name]

    async def test_a_turn_that_was_handed_over_keeps_its_place_when_more_input_arrives(
        self, harness: StoreHarness, store: Store
    ) -> None:
        first, second = await a_session(store, "first"), await a_session(store, "second")
        await store.release((await open_with(store, first.uid)).lease)
        await harness.advance(timedelta(seconds=1))
        await store.admit(second.uid, a_message())
        await harness.advance(timedelta(seconds=1))
        await store.admit(first.uid, a_message())
        assert await _ready(store) == ["first", "second"]

    async def test_a_refused_release_hands_nothing_over(self, harness: StoreHarness, store: Store) -> None:
        session = await a_session(store)
        slow = await open_with(store, session.uid, owner="slow")
        await harness.advance(2 * TTL)
        await must_open(store, session.uid, "fast")
        with pytest.raises(LeaseLost):
            await store.release(slow.lease)
        assert await _ready(store) == []

    # -- a held session without a turn ---------------------------------------------------------------------------------

    async def test_input_to_a_held_session_is_work_for_its_holder_until_the_lease_runs_out(
        self, harness: StoreHarness, store: Store
    ) -> None:
        session = await a_session(store)
        await must_acquire(store, session.uid)
        await store.admit(session.uid, a_message())
        assert await _ready(store) == []
        await harness.advance(2 * TTL)
        assert await _ready(store) == [session.name]

    async def test_input_that_waits_is_work_once_the_holder_lets_go(self, store: Store) -> None:
        session = await a_session(store)
        lease = await must_acquire(store, session.uid)
        await store.admit(session.uid, a_message())
        await store.release(lease)
        assert await _ready(store) == [session.name]

    async def test_acquiring_a_session_takes_its_input_off_the_list(self, store: Store) -> None:
        session = await a_session(store)
        await store.admit(session.uid, a_message())
        await must_acquire(store, session.uid)
        assert await _ready(store) == []

    async def test_letting_go_of_an_idle_session_makes_no_work(self, store: Store) -> None:
        session = await a_session(store)
        await store.release(await must_acquire(store, session.uid))
        assert await _ready(store) == []

    # -- after a turn --------------------------------------------------------------------------------------------------

    async def test_a_session_whose_turn_is_settled_needs_nobody(self, harness: StoreHarness, store: Store) -> None:
        session = await a_session(store)
        await settle_turn(store, await open_with(store, session.uid))
        await harness.advance(10 * TTL)
        assert (await store.find(session.uid)).ready_at is None
        assert await _ready(store) == []

    @pytest.mark.parametrize("aimed", [False, True], ids=["for the next turn", "for the turn that ended"])
    async def test_what_is_left_after_a_commit_that_lets_go_is_work_at_once(self, store: Store, aimed: bool) -> None:
        session = await a_session(store)
        driven = await open_with(store, session.uid)
        await store.admit(session.uid, a_message(when="now" if aimed else "next"))
        await settle_turn(store, driven, release=True)
        assert await _ready(store) == [session.name]

    async def test_what_a_turn_gives_back_is_work_again(self, store: Store) -> None:
        session = await a_session(store)
        driven = await open_with(store, session.uid)
        await settle_turn(store, driven, gives_back=driven.items, release=True)
        assert await _ready(store) == [session.name]

    async def test_what_is_left_after_a_commit_is_for_the_holder_while_it_holds_on(
        self, harness: StoreHarness, store: Store
    ) -> None:
        session = await a_session(store)
        driven = await open_with(store, session.uid)
        await store.admit(session.uid, a_message())
        await settle_turn(store, driven)
        assert await _ready(store) == []
        await harness.advance(2 * TTL)
        assert await _ready(store) == [session.name]

    # -- a parked turn -------------------------------------------------------------------------------------------------

    async def test_a_parked_turn_needs_nobody_until_its_time(self, harness: StoreHarness, store: Store) -> None:
        session = await a_session(store)
        driven = await open_with(store, session.uid)
        await store.park(driven.lease, driven.turn.id, until=await harness.now() + timedelta(days=30))
        await store.admit(session.uid, a_message())
        await harness.advance(timedelta(days=29))
        assert await _ready(store) == []
        await harness.advance(timedelta(days=2))
        assert await _ready(store) == [session.name]

    async def test_a_turn_parked_without_a_time_sleeps_until_something_wakes_it(
        self, harness: StoreHarness, store: Store
    ) -> None:
        session = await a_session(store)
        driven = await open_with(store, session.uid)
        await store.park(driven.lease, driven.turn.id)
        await harness.advance(timedelta(days=4000))
        assert await _ready(store) == []
        assert (await store.find(session.uid)).ready_at is None

    async def test_an_answer_makes_work_of_a_parked_turn(self, harness: StoreHarness, store: Store) -> None:
        session = await a_session(store)
        driven = await open_with(store, session.uid)
        wait = a_wait(turn=driven.turn.id)
        key = await store.open_wait(session.uid, wait)
        until = await harness.now() + timedelta(days=30)
        await store.park(driven.lease, driven.turn.id, waits=[wait.id], until=until)
        async with opened(harness) as webhook:
            await webhook.answer(key, "yes")
        assert await _ready(store) == [session.name]

    async def test_a_repeated_answer_does_not_wake_a_turn_that_sleeps_on_something_else(
        self, harness: StoreHarness, store: Store
    ) -> None:
        session = await a_session(store)
        driven = await open_with(store, session.uid)
        first, second = a_wait(turn=driven.turn.id), a_wait(turn=driven.turn.id)
        key = await store.open_wait(session.uid, first)
        await store.open_wait(session.uid, second)
        await store.answer(key, "yes")
        await store.park(driven.lease, driven.turn.id, waits=[second.id])
        await store.answer(key, "yes")
        assert await _ready(store) == []

    async def test_a_cancel_request_makes_work_of_a_parked_turn(self, store: Store) -> None:
        session = await a_session(store)
        driven = await open_with(store, session.uid)
        await store.park(driven.lease, driven.turn.id)
        await store.request_cancel(session.uid, driven.turn.id, a_request_id(), reason="stop")
        assert await _ready(store) == [session.name]

    async def test_a_cancel_request_to_a_turn_at_work_calls_no_second_worker(self, store: Store) -> None:
        session = await a_session(store)
        driven = await open_with(store, session.uid)
        await store.request_cancel(session.uid, driven.turn.id, a_request_id(), reason="stop")
        assert await _ready(store) == []

    async def test_a_woken_turn_stays_ready_until_somebody_takes_it_up(self, store: Store) -> None:
        session = await a_session(store)
        driven = await open_with(store, session.uid)
        wait = a_wait(turn=driven.turn.id)
        key = await store.open_wait(session.uid, wait)
        await store.park(driven.lease, driven.turn.id, waits=[wait.id])
        await store.answer(key, "yes")
        await store.admit(session.uid, a_message())
        await store.put_document(session.uid, "metadata", {"title": "t"}, expected=0)
        assert await _ready(store) == [session.name]
        await must_open(store, session.uid, "b")
        assert await _ready(store) == []

    async def test_a_woken_turn_stays_ready_when_the_lease_comes_and_goes(self, store: Store) -> None:
        session = await a_session(store)
        driven = await open_with(store, session.uid)
        wait = a_wait(turn=driven.turn.id)
        key = await store.open_wait(session.uid, wait)
        await store.park(driven.lease, driven.turn.id, waits=[wait.id])
        await store.answer(key, "yes")
        await store.release(await must_acquire(store, session.uid, "b"))
        assert await _ready(store) == [session.name]

    # -- the loop of a worker ------------------------------------------------------------------------------------------

    async def test_what_is_listed_can_be_opened_and_what_is_served_leaves_the_list(self, store: Store) -> None:
        for name in ("a", "b", "c"):
            await store.admit((await a_session(store, name)).uid, a_message())
        served = []
        for _ in range(3):
            [ready] = await store.ready([AGENT], limit=1)
            served.append(ready.name)
            await settle_turn(store, await must_open(store, ready.uid, "worker"), release=True)
        assert sorted(served) == ["a", "b", "c"]
        assert await store.ready([AGENT]) == []
