"""Cancel requests: the first one stands, survives every takeover, and decides the commit."""

from __future__ import annotations

from datetime import timedelta

import pytest

from lash.errors import (
    EvidenceMissing,
    SessionBusy,
    TurnCancelRequested,
    TurnNotFound,
    TurnSettled,
)
from lash.ids import TurnId
from lash.store.contract import Store
from lash.testing.builders import (
    a_request_id,
    a_session,
    an_effect,
    displace,
    is_ready,
    must_acquire,
    must_open,
    new_id,
    open_with,
    plan_of,
    race,
    settle_turn,
    take_over,
)
from lash.testing.harness import StoreContract, StoreHarness, opened


class CancelRequestContract(StoreContract):
    """Asking a turn to stop, from anywhere."""

    async def test_a_cancel_request_stands_as_evidence(self, harness: StoreHarness, store: Store) -> None:
        uid = (await a_session(store)).uid
        driven, request = await open_with(store, uid), a_request_id()
        before = await harness.now()
        async with opened(harness) as other:
            requested = await other.request_cancel(uid, driven.turn.id, request, reason="enough")
        kept = requested.request
        assert (requested.first, kept.id, kept.session, kept.turn) == (True, request, uid, driven.turn.id)
        assert kept.reason == "enough"
        assert before <= kept.requested_at <= await harness.now()
        assert await store.cancel_request(uid, driven.turn.id) == kept

    async def test_the_first_cancel_request_stands(self, harness: StoreHarness, store: Store) -> None:
        uid = (await a_session(store)).uid
        driven = await open_with(store, uid)
        first = await store.request_cancel(uid, driven.turn.id, a_request_id(), reason="one")
        await harness.advance(timedelta(seconds=1))
        second = await store.request_cancel(uid, driven.turn.id, a_request_id(), reason="two")
        assert (second.request, second.first) == (first.request, False)
        assert await store.cancel_request(uid, driven.turn.id) == first.request

    async def test_a_cancel_request_whose_answer_was_lost_can_be_repeated(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        driven, request = await open_with(store, uid), a_request_id()
        first = await store.request_cancel(uid, driven.turn.id, request, reason="enough")
        assert await store.request_cancel(uid, driven.turn.id, request, reason="enough") == first

    async def test_of_two_cancel_requests_at_once_one_stands(self, harness: StoreHarness, store: Store) -> None:
        uid = (await a_session(store)).uid
        driven = await open_with(store, uid)
        async with opened(harness) as other:
            ends, refused = await race(
                *(s.request_cancel(uid, driven.turn.id, a_request_id(), reason="stop") for s in (store, other))
            )
        assert refused == []
        assert sorted(end.first for end in ends) == [False, True]
        assert ends[0].request == ends[1].request

    async def test_a_turn_that_nobody_asked_to_stop_has_no_request(self, harness: StoreHarness, store: Store) -> None:
        """Losing the lease is never taken for a cancel."""
        uid = (await a_session(store)).uid
        await open_with(store, uid)
        again = await take_over(harness, store, uid)
        assert await store.cancel_request(uid, again.turn.id) is None

    async def test_a_cancel_request_survives_a_takeover(self, harness: StoreHarness, store: Store) -> None:
        uid = (await a_session(store)).uid
        driven, request = await open_with(store, uid), a_request_id()
        await store.request_cancel(uid, driven.turn.id, request, reason="stop")
        again = await take_over(harness, store, uid)
        with pytest.raises(TurnCancelRequested) as refusal:
            await settle_turn(store, again)
        assert refusal.value.request == request
        await settle_turn(store, again, cancelled_by=request)
        assert (await store.turn(uid, driven.turn.id)).outcome == "cancelled"

    async def test_a_turn_that_was_asked_to_stop_can_only_commit_with_the_evidence(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        driven, request = await open_with(store, uid), a_request_id()
        await store.request_cancel(uid, driven.turn.id, request, reason="stop")
        for evidence in (None, a_request_id()):
            with pytest.raises(TurnCancelRequested):
                await settle_turn(store, driven, cancelled_by=evidence)
        assert await store.unsettled_turn(uid) == driven.turn
        await settle_turn(store, driven, cancelled_by=request)
        assert (await store.turn(uid, driven.turn.id)).state == "settled"

    async def test_a_turn_cannot_be_cancelled_without_a_request(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        driven = await open_with(store, uid)
        with pytest.raises(EvidenceMissing):
            await settle_turn(store, driven, cancelled_by=a_request_id())
        assert await store.unsettled_turn(uid) == driven.turn

    async def test_a_settled_turn_cannot_be_asked_to_stop(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        driven = await open_with(store, uid)
        await settle_turn(store, driven)
        with pytest.raises(TurnSettled):
            await store.request_cancel(uid, driven.turn.id, a_request_id(), reason="too late")
        assert await store.cancel_request(uid, driven.turn.id) is None

    async def test_a_turn_that_never_was_cannot_be_asked_to_stop(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        await open_with(store, uid)
        with pytest.raises((TurnSettled, TurnNotFound)):
            await store.request_cancel(uid, TurnId(new_id()), a_request_id(), reason="stop")

    async def test_a_cancel_request_is_for_one_turn_only(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        driven, request = await open_with(store, uid), a_request_id()
        await store.request_cancel(uid, driven.turn.id, request, reason="stop")
        await settle_turn(store, driven, cancelled_by=request)
        following = await open_with(store, uid)
        assert await store.cancel_request(uid, following.turn.id) is None
        await settle_turn(store, following)

    async def test_a_cancel_and_a_commit_at_once_agree_on_who_won(self, harness: StoreHarness, store: Store) -> None:
        uid = (await a_session(store)).uid
        driven = await open_with(store, uid)
        plan = await plan_of(store, driven)
        async with opened(harness) as other:
            _, refused = await race(
                store.commit(plan), other.request_cancel(uid, driven.turn.id, a_request_id(), reason="stop")
            )
        settled = await store.unsettled_turn(uid) is None
        assert [type(error) for error in refused] == [TurnSettled if settled else TurnCancelRequested]

    async def test_a_cancel_request_wakes_a_parked_turn(self, harness: StoreHarness, store: Store) -> None:
        uid = (await a_session(store)).uid
        driven, request = await open_with(store, uid), a_request_id()
        await store.park(driven.lease, driven.turn.id)
        await store.request_cancel(uid, driven.turn.id, request, reason="stop")
        assert await is_ready(harness, store, uid)
        again = await must_open(store, uid, "b")
        await settle_turn(store, again, cancelled_by=request)
        assert (await store.find(uid)).ready_at is None

    async def test_a_turn_that_was_asked_to_stop_before_it_parked_is_ready(
        self, harness: StoreHarness, store: Store
    ) -> None:
        uid = (await a_session(store)).uid
        driven = await open_with(store, uid)
        await store.request_cancel(uid, driven.turn.id, a_request_id(), reason="stop")
        await store.park(driven.lease, driven.turn.id)
        assert await is_ready(harness, store, uid)

    async def test_a_cancel_and_a_parking_at_once_never_leave_the_turn_asleep(
        self, harness: StoreHarness, store: Store
    ) -> None:
        uid = (await a_session(store)).uid
        driven = await open_with(store, uid)
        async with opened(harness) as other:
            await race(
                store.park(driven.lease, driven.turn.id),
                other.request_cancel(uid, driven.turn.id, a_request_id(), reason="stop"),
            )
        assert await is_ready(harness, store, uid)

    async def test_a_cancel_request_does_not_take_the_lease_away(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        driven = await open_with(store, uid, owner="a")
        await store.request_cancel(uid, driven.turn.id, a_request_id(), reason="stop")
        with pytest.raises(SessionBusy):
            await must_acquire(store, uid, "b")
        await store.record(driven.lease, driven.turn.id, [an_effect()])

    async def test_taking_the_lease_alone_leaves_the_turn_as_it_is(self, harness: StoreHarness, store: Store) -> None:
        uid = (await a_session(store)).uid
        driven = await open_with(store, uid)
        await displace(harness, store, uid, "b")
        assert await store.unsettled_turn(uid) == driven.turn
        assert (await must_open(store, uid, "b")).turn.id == driven.turn.id
