"""Parking: a turn sleeps, nobody holds it, and what it waits for wakes it."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from lash.errors import (
    TurnParked,
    TurnSettled,
    WaitNotFound,
)
from lash.ids import TurnId
from lash.lease import LeaseRecord
from lash.store.contract import Store
from lash.testing.builders import (
    TTL,
    a_message,
    a_session,
    a_wait,
    a_wait_id,
    is_ready,
    must_acquire,
    must_open,
    new_id,
    open_with,
    race,
    settle_turn,
    take_over,
    texts_of,
)
from lash.testing.harness import StoreContract, StoreHarness, opened


class ParkingContract(StoreContract):
    """Turns that wait for an answer or a time."""

    async def test_a_parked_turn_holds_no_lease_and_keeps_its_items(self, harness: StoreHarness, store: Store) -> None:
        uid = (await a_session(store)).uid
        driven = await open_with(store, uid)
        until = await harness.now() + timedelta(days=30)
        parked = await store.park(driven.lease, driven.turn.id, until=until)
        assert (parked.state, parked.parked_until, parked.items) == ("parked", until, driven.turn.items)
        assert await store.lease(uid) == LeaseRecord(None, driven.lease.generation, None)
        async with opened(harness) as other:
            assert await other.unsettled_turn(uid) == parked
            assert [item.state for item in (await other.items(uid)).rows] == ["taken"]

    async def test_a_parked_turn_needs_nobody_until_its_time_comes(self, harness: StoreHarness, store: Store) -> None:
        uid = (await a_session(store)).uid
        driven = await open_with(store, uid)
        await store.park(driven.lease, driven.turn.id, until=await harness.now() + timedelta(days=30))
        assert not await is_ready(harness, store, uid)
        await harness.advance(timedelta(days=29))
        assert not await is_ready(harness, store, uid)
        await harness.advance(timedelta(days=2))
        assert await is_ready(harness, store, uid)

    async def test_a_turn_parked_until_a_time_that_has_passed_is_ready_at_once(
        self, harness: StoreHarness, store: Store
    ) -> None:
        uid = (await a_session(store)).uid
        driven = await open_with(store, uid)
        await store.park(driven.lease, driven.turn.id, until=await harness.now() - TTL)
        assert await is_ready(harness, store, uid)

    async def test_an_answer_wakes_the_turn_that_sleeps_on_it(self, harness: StoreHarness, store: Store) -> None:
        uid = (await a_session(store)).uid
        driven = await open_with(store, uid)
        waits = [a_wait(turn=driven.turn.id) for _ in range(2)]
        keys = [await store.open_wait(uid, wait) for wait in waits]
        await store.park(driven.lease, driven.turn.id, waits=[wait.id for wait in waits])
        assert not await is_ready(harness, store, uid)
        async with opened(harness) as other:
            await other.answer(keys[1], "yes")
        assert await is_ready(harness, store, uid)

    async def test_an_answer_to_a_wait_that_was_opened_before_any_turn_wakes_the_turn_that_sleeps_on_it(
        self, harness: StoreHarness, store: Store
    ) -> None:
        uid = (await a_session(store)).uid
        wait = a_wait()
        key = await store.open_wait(uid, wait)
        driven = await open_with(store, uid)
        await store.park(driven.lease, driven.turn.id, waits=[wait.id])
        assert not await is_ready(harness, store, uid)
        await store.answer(key, "yes")
        assert await is_ready(harness, store, uid)

    async def test_an_answer_to_a_wait_of_another_turn_wakes_the_turn_that_sleeps_on_it(
        self, harness: StoreHarness, store: Store
    ) -> None:
        uid = (await a_session(store)).uid
        driven = await open_with(store, uid)
        wait = a_wait(turn=TurnId(new_id()))
        key = await store.open_wait(uid, wait)
        await store.park(driven.lease, driven.turn.id, waits=[wait.id])
        assert not await is_ready(harness, store, uid)
        await store.answer(key, "yes")
        assert await is_ready(harness, store, uid)

    @pytest.mark.parametrize("how", ["answered", "revoked", "timed out"])
    async def test_a_wait_that_the_turn_does_not_sleep_on_wakes_nobody(
        self, harness: StoreHarness, store: Store, how: str
    ) -> None:
        uid = (await a_session(store)).uid
        driven = await open_with(store, uid)
        slept_on = a_wait(turn=driven.turn.id)
        key = await store.open_wait(uid, slept_on)
        deadline = await harness.now() + TTL if how == "timed out" else None
        unrelated = [a_wait(turn=turn, expires_at=deadline) for turn in (None, driven.turn.id)]
        keys = [await store.open_wait(uid, wait) for wait in unrelated]
        parked = await store.park(driven.lease, driven.turn.id, waits=[slept_on.id])
        match how:
            case "answered":
                for other in keys:
                    await store.answer(other, "yes")
            case "revoked":
                await store.revoke(uid, [wait.id for wait in unrelated])
            case _:
                await harness.advance(2 * TTL)
        assert not await is_ready(harness, store, uid)
        assert await store.unsettled_turn(uid) == parked
        await store.answer(key, "yes")
        assert await is_ready(harness, store, uid)

    async def test_an_answer_in_another_session_wakes_nobody_here(self, harness: StoreHarness, store: Store) -> None:
        uid, other = (await a_session(store)).uid, (await a_session(store)).uid
        driven = await open_with(store, uid)
        foreign = a_wait(turn=driven.turn.id)
        key = await store.open_wait(other, foreign)
        with pytest.raises(WaitNotFound):
            await store.park(driven.lease, driven.turn.id, waits=[foreign.id])
        await store.park(driven.lease, driven.turn.id)
        await store.answer(key, "yes")
        assert not await is_ready(harness, store, uid)

    async def test_a_parked_turn_says_what_it_sleeps_on(self, harness: StoreHarness, store: Store) -> None:
        uid = (await a_session(store)).uid
        driven = await open_with(store, uid)
        waits = [a_wait(), a_wait(turn=driven.turn.id), a_wait()]
        for wait in waits:
            await store.open_wait(uid, wait)
        named = (waits[2].id, waits[1].id)
        assert driven.turn.parked_on == ()
        parked = await store.park(driven.lease, driven.turn.id, waits=named)
        assert parked.parked_on == named
        assert await store.park(driven.lease, driven.turn.id, waits=named) == parked
        async with opened(harness) as other:
            assert await other.turn(uid, driven.turn.id) == parked
            assert await other.unsettled_turn(uid) == parked
            assert (await other.snapshot(uid)).turn == parked

    async def test_a_turn_that_is_due_still_says_what_it_sleeps_on_until_it_is_taken_up(
        self, harness: StoreHarness, store: Store
    ) -> None:
        uid = (await a_session(store)).uid
        driven = await open_with(store, uid)
        wait = a_wait(turn=driven.turn.id)
        key = await store.open_wait(uid, wait)
        await store.park(driven.lease, driven.turn.id, waits=[wait.id])
        await store.answer(key, "yes")
        due = await store.turn(uid, driven.turn.id)
        assert (due.state, due.parked_on) == ("parked", (wait.id,))
        await store.release(await must_acquire(store, uid, "onlooker"))
        assert await store.turn(uid, driven.turn.id) == due
        again = await must_open(store, uid, "b")
        assert (again.turn.state, again.turn.parked_on, again.turn.parked_until) == ("open", (), None)
        assert await store.turn(uid, driven.turn.id) == again.turn
        redriven = await take_over(harness, store, uid, "c")
        assert (redriven.turn.id, redriven.turn.parked_on) == (driven.turn.id, ())
        await settle_turn(store, redriven)
        assert (await store.turn(uid, driven.turn.id)).parked_on == ()

    async def test_a_turn_that_parks_again_sleeps_only_on_what_it_names_then(
        self, harness: StoreHarness, store: Store
    ) -> None:
        uid = (await a_session(store)).uid
        driven = await open_with(store, uid)
        before, after = a_wait(turn=driven.turn.id), a_wait(turn=driven.turn.id)
        keys = [await store.open_wait(uid, wait) for wait in (before, after)]
        await store.park(driven.lease, driven.turn.id, waits=[before.id])
        again = await must_open(store, uid, "b")
        parked = await store.park(again.lease, again.turn.id, waits=[after.id])
        assert parked.parked_on == (after.id,)
        await store.answer(keys[0], "yes")
        assert not await is_ready(harness, store, uid)
        await store.answer(keys[1], "yes")
        assert await is_ready(harness, store, uid)

    async def test_an_answer_that_came_early_leaves_the_parked_session_ready(
        self, harness: StoreHarness, store: Store
    ) -> None:
        uid = (await a_session(store)).uid
        driven = await open_with(store, uid)
        answered, pending = a_wait(turn=driven.turn.id), a_wait(turn=driven.turn.id)
        key = await store.open_wait(uid, answered)
        await store.open_wait(uid, pending)
        await store.answer(key, "yes")
        parked = await store.park(driven.lease, driven.turn.id, waits=[pending.id, answered.id])
        assert parked.state == "parked"
        assert await is_ready(harness, store, uid)

    async def test_an_answer_and_a_parking_at_once_never_leave_the_turn_asleep(
        self, harness: StoreHarness, store: Store
    ) -> None:
        uid = (await a_session(store)).uid
        driven = await open_with(store, uid)
        wait = a_wait(turn=driven.turn.id)
        key = await store.open_wait(uid, wait)
        async with opened(harness) as other:
            _, refused = await race(store.park(driven.lease, driven.turn.id, waits=[wait.id]), other.answer(key, "yes"))
        assert refused == []
        assert await is_ready(harness, store, uid)

    async def test_a_wait_that_times_out_wakes_the_turn_that_sleeps_on_it(
        self, harness: StoreHarness, store: Store
    ) -> None:
        uid = (await a_session(store)).uid
        driven = await open_with(store, uid)
        wait = a_wait(turn=driven.turn.id, expires_at=await harness.now() + TTL)
        await store.open_wait(uid, wait)
        await store.park(driven.lease, driven.turn.id, waits=[wait.id], until=await harness.now() + timedelta(days=9))
        assert not await is_ready(harness, store, uid)
        await harness.advance(2 * TTL)
        assert await is_ready(harness, store, uid)

    async def test_a_wait_that_is_revoked_wakes_the_turn_that_sleeps_on_it(
        self, harness: StoreHarness, store: Store
    ) -> None:
        uid = (await a_session(store)).uid
        driven = await open_with(store, uid)
        wait = a_wait(turn=driven.turn.id)
        await store.open_wait(uid, wait)
        await store.park(driven.lease, driven.turn.id, waits=[wait.id])
        await store.revoke(uid, [wait.id])
        assert await is_ready(harness, store, uid)

    async def test_input_to_a_parked_session_is_kept_and_wakes_nobody(
        self, harness: StoreHarness, store: Store
    ) -> None:
        uid = (await a_session(store)).uid
        driven = await open_with(store, uid)
        await store.admit(uid, a_message("before"))
        await store.park(driven.lease, driven.turn.id)
        assert not await is_ready(harness, store, uid)
        await store.admit(uid, a_message("next"))
        await store.admit(uid, a_message("now", when="now"))
        assert not await is_ready(harness, store, uid)
        assert [item.state for item in (await store.items(uid)).rows] == ["taken", "pending", "pending", "pending"]

    async def test_a_parked_turn_is_taken_up_whole(self, harness: StoreHarness, store: Store) -> None:
        uid = (await a_session(store)).uid
        driven = await open_with(store, uid, "first")
        await store.park(driven.lease, driven.turn.id, until=await harness.now() + TTL)
        await store.admit(uid, a_message("second"))
        await harness.advance(2 * TTL)
        async with opened(harness) as other:
            again = await must_open(other, uid, "b")
        assert (again.turn.id, again.turn.state, again.opened.fresh) == (driven.turn.id, "open", False)
        assert (again.turn.parked_until, texts_of(again.items)) == (None, ["first"])
        assert again.lease.generation == driven.lease.generation + 1

    async def test_a_parked_turn_can_be_taken_up_before_its_time(self, harness: StoreHarness, store: Store) -> None:
        uid = (await a_session(store)).uid
        driven = await open_with(store, uid)
        await store.park(driven.lease, driven.turn.id, until=await harness.now() + timedelta(days=30))
        again = await must_open(store, uid, "b")
        assert (again.turn.id, again.turn.state, again.items) == (driven.turn.id, "open", driven.items)

    async def test_a_parked_turn_can_be_taken_up_and_parked_again(self, harness: StoreHarness, store: Store) -> None:
        uid = (await a_session(store)).uid
        driven = await open_with(store, uid)
        for _ in range(3):
            await store.park(driven.lease, driven.turn.id, until=await harness.now() + TTL)
            await harness.advance(2 * TTL)
            driven = await must_open(store, uid)
        await settle_turn(store, driven)
        assert (await store.turn(uid, driven.turn.id)).state == "settled"

    async def test_a_parking_that_is_repeated_leaves_the_turn_parked(self, harness: StoreHarness, store: Store) -> None:
        uid = (await a_session(store)).uid
        driven = await open_with(store, uid)
        until = await harness.now() + timedelta(days=1)
        parked = await store.park(driven.lease, driven.turn.id, until=until)
        assert await store.park(driven.lease, driven.turn.id, until=until) == parked
        assert await store.unsettled_turn(uid) == parked

    async def test_a_turn_cannot_sleep_on_a_wait_that_nobody_opened(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        driven = await open_with(store, uid)
        with pytest.raises(WaitNotFound):
            await store.park(driven.lease, driven.turn.id, waits=[a_wait_id()])
        assert await store.unsettled_turn(uid) == driven.turn
        assert (await store.lease(uid)).owner == driven.lease.owner

    async def test_only_a_running_turn_can_be_parked(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        driven = await open_with(store, uid)
        with pytest.raises(TurnSettled):
            await store.park(driven.lease, TurnId(new_id()))
        await settle_turn(store, driven)
        with pytest.raises(TurnSettled):
            await store.park(driven.lease, driven.turn.id)
        assert (await store.turn(uid, driven.turn.id)).state == "settled"

    async def test_a_parked_turn_must_be_taken_up_before_it_can_be_settled(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        driven = await open_with(store, uid)
        await store.park(driven.lease, driven.turn.id)
        lease = await must_acquire(store, uid, "b")
        with pytest.raises(TurnParked):
            await settle_turn(store, replace(driven, lease=lease))
        turn = await store.unsettled_turn(uid)
        assert turn is not None
        assert turn.state == "parked"
