"""Keeping leases: renewed together, as long as the event loop lives, and honest when they are not."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from lash.errors import (
    InvalidId,
    InvalidValue,
    LeaseLost,
    LeaseOverdue,
    SessionBusy,
    SessionDeleted,
    SessionNotFound,
    StoreClosed,
)
from lash.ids import OwnerId, SessionUid
from lash.lease import ExecutionLease
from lash.store.contract import KeptLease, LeaseKeeper, Store
from lash.testing.builders import (
    AT,
    TTL,
    a_message,
    a_session,
    displace,
    must_acquire,
    new_id,
    open_with,
)
from lash.testing.harness import StoreContract, StoreHarness

OFTEN = timedelta(milliseconds=20)
"""So often does the keeper of these tests renew, while its leases last for TTL: nothing runs out by itself."""
PATIENCE = 30.0


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    """Ask until it holds."""
    async with asyncio.timeout(PATIENCE):
        while not await holds():  # noqa: ASYNC110 (nobody tells when a row changes)
            await asyncio.sleep(0.005)


async def keep(
    store: Store, keeper: LeaseKeeper, owner: str = "owner", *, uid: SessionUid | None = None, ttl: timedelta = TTL
) -> KeptLease:
    asked_at = keeper.time()
    lease = await must_acquire(store, uid or (await a_session(store)).uid, owner, ttl=ttl)
    return keeper.keep(lease, asked_at=asked_at)


async def fate(kept: KeptLease) -> object:
    async with asyncio.timeout(PATIENCE):
        return await kept.gone


async def expiry(store: Store, uid: SessionUid) -> datetime:
    expires_at = (await store.lease(uid)).expires_at
    assert expires_at is not None
    return expires_at


async def renewed(store: Store, lease: ExecutionLease, *, until_at: datetime) -> None:
    """Wait until a lease lasts until then, or longer."""

    async def lasts() -> bool:
        return await expiry(store, lease.session) >= until_at

    await until(lasts)


class KeepingContract(StoreContract):
    """LeaseKeeper."""

    @pytest.fixture
    async def keeper(self, store: Store) -> AsyncIterator[LeaseKeeper]:
        async with await store.lease_keeper(ttl=TTL, every=OFTEN) as keeper:
            yield keeper

    # -- renewing ------------------------------------------------------------------------------------------------------

    async def test_a_kept_lease_goes_on_and_on_under_its_generation(
        self, harness: StoreHarness, store: Store, keeper: LeaseKeeper
    ) -> None:
        kept = await keep(store, keeper)
        first = kept.lease
        for _ in range(3):
            await harness.advance(TTL * 0.8)
            await renewed(store, first, until_at=await harness.now() + TTL * 0.9)
        with pytest.raises(SessionBusy):
            await store.acquire(first.session, OwnerId("rival"), ttl=TTL)
        found = await store.lease(first.session)
        assert (found.owner, found.generation) == (first.owner, first.generation)
        assert kept.sure
        assert not kept.gone.done()

    async def test_a_kept_lease_is_shown_as_it_was_last_renewed(
        self, harness: StoreHarness, store: Store, keeper: LeaseKeeper
    ) -> None:
        kept = await keep(store, keeper)
        first = kept.lease
        await harness.advance(TTL / 2)

        async def shown() -> bool:
            return kept.lease.expires_at > first.expires_at + TTL / 3

        await until(shown)
        assert kept.lease == replace(first, expires_at=kept.lease.expires_at)
        assert kept.lease.expires_at <= await expiry(store, first.session)

    async def test_all_leases_of_a_process_are_kept_whoever_owns_them(
        self, harness: StoreHarness, store: Store, keeper: LeaseKeeper
    ) -> None:
        all_kept = [await keep(store, keeper, f"owner-{number}") for number in range(20)]
        await harness.advance(TTL / 2)
        wanted = await harness.now() + TTL
        for kept in all_kept:
            await renewed(store, kept.lease, until_at=wanted)

    async def test_keeping_does_not_shorten_a_lease(
        self, harness: StoreHarness, store: Store, keeper: LeaseKeeper
    ) -> None:
        long = await keep(store, keeper, ttl=3 * TTL)
        other = await keep(store, keeper)
        first = long.lease
        await harness.advance(TTL / 2)
        await renewed(store, other.lease, until_at=await harness.now() + TTL)
        assert await expiry(store, first.session) == first.expires_at

    async def test_a_lease_that_ran_out_and_that_nobody_took_is_renewed(
        self, harness: StoreHarness, store: Store, keeper: LeaseKeeper
    ) -> None:
        lease = await must_acquire(store, (await a_session(store)).uid)
        await harness.advance(2 * TTL)
        kept = keeper.keep(lease, asked_at=keeper.time())
        await renewed(store, lease, until_at=await harness.now() + TTL / 2)
        assert (await store.lease(lease.session)).generation == lease.generation
        assert not kept.gone.done()

    async def test_keeping_a_lease_again_is_keeping_it_once(
        self, harness: StoreHarness, store: Store, keeper: LeaseKeeper
    ) -> None:
        kept = await keep(store, keeper)
        assert await keep(store, keeper, uid=kept.lease.session) is kept

    # -- when the session needs somebody -------------------------------------------------------------------------------

    async def test_an_open_turn_needs_somebody_when_its_kept_lease_runs_out(
        self, harness: StoreHarness, store: Store, keeper: LeaseKeeper
    ) -> None:
        asked_at = keeper.time()
        driven = await open_with(store, (await a_session(store)).uid)
        keeper.keep(driven.lease, asked_at=asked_at)
        await harness.advance(TTL / 2)
        await renewed(store, driven.lease, until_at=driven.lease.expires_at + TTL / 3)
        await keeper.aclose()
        session = await store.find(driven.lease.session)
        assert session.ready_at == await expiry(store, session.uid)

    async def test_a_parked_turn_sleeps_as_long_as_it_wanted_though_somebody_keeps_the_lease(
        self, harness: StoreHarness, store: Store, keeper: LeaseKeeper
    ) -> None:
        driven = await open_with(store, (await a_session(store)).uid)
        # Until the very moment when the first lease of the next owner runs out, as far as that can be aimed at.
        wakes_at = await harness.now() + TTL
        await store.park(driven.lease, driven.turn.id, until=wakes_at)
        kept = await keep(store, keeper, "looker", uid=driven.lease.session)
        await harness.advance(TTL / 2)
        await renewed(store, kept.lease, until_at=wakes_at + TTL / 3)
        assert (await store.find(driven.lease.session)).ready_at == wakes_at

    async def test_waiting_input_needs_somebody_when_the_kept_lease_runs_out_or_later_if_it_is_due_later(
        self, harness: StoreHarness, store: Store, keeper: LeaseKeeper
    ) -> None:
        idle, due, later = [await keep(store, keeper) for _ in range(3)]
        far = await harness.now() + 5 * TTL
        await store.admit(due.lease.session, a_message())
        await store.admit(later.lease.session, a_message(available_at=far))
        await harness.advance(TTL / 2)
        wanted = await harness.now() + TTL
        for kept in (idle, due, later):
            await renewed(store, kept.lease, until_at=wanted)
        await keeper.aclose()
        found = [(await store.find(kept.lease.session)).ready_at for kept in (idle, due, later)]
        assert found == [None, await expiry(store, due.lease.session), far]

    # -- losing it -----------------------------------------------------------------------------------------------------

    async def test_a_lease_that_somebody_took_over_is_lost_and_stays_as_it_is(
        self, harness: StoreHarness, store: Store, keeper: LeaseKeeper
    ) -> None:
        old = await must_acquire(store, (await a_session(store)).uid)
        new = await displace(harness, store, old.session)
        kept = keeper.keep(old, asked_at=keeper.time())
        lost = await fate(kept)
        assert isinstance(lost, LeaseLost)
        assert (lost.owner, lost.generation, lost.found) == (old.owner, old.generation, new.generation)
        assert not kept.sure
        assert await expiry(store, old.session) == new.expires_at

    async def test_losing_one_lease_is_no_concern_of_the_others(
        self, harness: StoreHarness, store: Store, keeper: LeaseKeeper
    ) -> None:
        old = await must_acquire(store, (await a_session(store)).uid)
        await displace(harness, store, old.session)
        healthy = await keep(store, keeper)
        await fate(keeper.keep(old, asked_at=keeper.time()))
        await harness.advance(TTL / 2)
        await renewed(store, healthy.lease, until_at=await harness.now() + TTL)
        assert not healthy.gone.done()

    async def test_an_owner_that_comes_back_with_a_new_generation_keeps_the_new_one_and_loses_the_old(
        self, harness: StoreHarness, store: Store, keeper: LeaseKeeper
    ) -> None:
        old = await must_acquire(store, (await a_session(store)).uid)
        await displace(harness, store, old.session)
        await harness.advance(2 * TTL)
        new = await keep(store, keeper, uid=old.session)
        assert isinstance(await fate(keeper.keep(old, asked_at=keeper.time())), LeaseLost)
        await harness.advance(TTL / 2)
        await renewed(store, new.lease, until_at=await harness.now() + TTL)
        assert not new.gone.done()

    async def test_the_lease_of_a_session_that_is_gone_is_gone(self, store: Store, keeper: LeaseKeeper) -> None:
        kept = await keep(store, keeper)
        await store.delete(kept.lease.session)
        assert isinstance(await fate(kept), SessionDeleted)
        never = ExecutionLease(SessionUid(new_id()), OwnerId("owner"), 1, AT)
        assert isinstance(await fate(keeper.keep(never, asked_at=keeper.time())), SessionNotFound)

    async def test_a_lease_that_cannot_be_is_refused_at_once(self, store: Store, keeper: LeaseKeeper) -> None:
        lease = await must_acquire(store, (await a_session(store)).uid)
        with pytest.raises(InvalidId):
            keeper.keep(replace(lease, session=SessionUid("nobody")), asked_at=keeper.time())
        with pytest.raises(InvalidId):
            keeper.keep(replace(lease, owner=OwnerId("a\0b")), asked_at=keeper.time())
        for generation in (0, -1, 2**63):
            with pytest.raises(InvalidValue):
                keeper.keep(replace(lease, generation=generation), asked_at=keeper.time())

    # -- letting go ----------------------------------------------------------------------------------------------------

    async def test_a_lease_that_was_let_go_is_renewed_no_more(
        self, harness: StoreHarness, store: Store, keeper: LeaseKeeper
    ) -> None:
        let_go, other = await keep(store, keeper), await keep(store, keeper)
        keeper.let_go(let_go.lease)
        keeper.let_go(let_go.lease)
        assert await fate(let_go) is None
        assert not let_go.sure
        ends: list[datetime] = []
        for _ in range(2):  # a renewal that was under way may have taken it along
            await harness.advance(TTL / 2)
            await renewed(store, other.lease, until_at=await harness.now() + TTL)
            ends.append(await expiry(store, let_go.lease.session))
        assert ends[1] == ends[0]

    async def test_a_lease_that_was_released_is_not_reported_as_lost(self, store: Store, keeper: LeaseKeeper) -> None:
        kept = await keep(store, keeper)
        await store.release(kept.lease)
        assert await fate(kept) is None
        assert (await store.lease(kept.lease.session)).owner is None

    async def test_a_keeper_that_was_left_renews_nothing_and_takes_nothing(
        self, harness: StoreHarness, store: Store, keeper: LeaseKeeper
    ) -> None:
        async with await store.lease_keeper(ttl=TTL, every=OFTEN) as left:
            kept = await keep(store, left)
        assert await fate(kept) is None
        was = await expiry(store, kept.lease.session)
        other = await keep(store, keeper)
        await harness.advance(TTL / 2)
        await renewed(store, other.lease, until_at=await harness.now() + TTL)
        assert (await store.lease(kept.lease.session)).owner == kept.lease.owner
        assert await expiry(store, kept.lease.session) == was
        with pytest.raises(StoreClosed):
            left.keep(kept.lease, asked_at=left.time())
        await left.aclose()

    async def test_a_keeper_ends_with_its_store(self, harness: StoreHarness) -> None:
        store = await harness.open()
        keeper = await store.lease_keeper(ttl=TTL, every=OFTEN)
        kept = await keep(store, keeper)
        await store.aclose()
        assert await fate(kept) is None
        with pytest.raises(StoreClosed):
            keeper.keep(kept.lease, asked_at=keeper.time())

    # -- time ----------------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("ttl", [timedelta(0), timedelta(seconds=-1), timedelta(minutes=10, microseconds=1)])
    async def test_a_keeper_of_senseless_leases_is_refused(self, store: Store, ttl: timedelta) -> None:
        with pytest.raises(InvalidValue):
            await store.lease_keeper(ttl=ttl)

    @pytest.mark.parametrize("every", [timedelta(0), timedelta(seconds=-1), TTL / 3 + timedelta(microseconds=1)])
    async def test_a_lease_survives_two_renewals_that_fail(self, store: Store, every: timedelta) -> None:
        with pytest.raises(InvalidValue):
            await store.lease_keeper(ttl=TTL, every=every)

    async def test_the_time_of_a_lease_runs_from_when_it_was_asked_for(self, store: Store) -> None:
        keeper = await store.lease_keeper(ttl=TTL)  # which does not come to renewing
        lease = await must_acquire(store, (await a_session(store)).uid)
        assert keeper.keep(lease, asked_at=keeper.time()).sure
        keeper.let_go(lease)
        late = keeper.keep(lease, asked_at=keeper.time() - TTL.total_seconds())
        assert not late.sure
        await keeper.aclose()

    async def test_an_event_loop_that_stands_still_for_a_whole_ttl_gives_its_leases_up_and_hears_of_it(
        self, store: Store
    ) -> None:
        ttl = timedelta(milliseconds=300)
        async with await store.lease_keeper(ttl=ttl, every=ttl / 10) as keeper:
            kept = await keep(store, keeper)
            unsure_since, give_up_at = keeper.time(), keeper.time() + PATIENCE
            while keeper.time() < unsure_since + 2 * ttl.total_seconds():  # nothing else runs on this loop
                assert keeper.time() < give_up_at, "the lease of a loop that stands still is kept for ever"
                if kept.sure:
                    unsure_since = keeper.time()
                time.sleep(0.001)  # noqa: ASYNC251 (to stand in the way of everything else is the point)
            overdue = await fate(kept)
            assert isinstance(overdue, LeaseOverdue)
            assert (overdue.session, overdue.generation) == (kept.lease.session, kept.lease.generation)
            again = await keep(store, keeper, uid=kept.lease.session)
            assert (again.lease.generation, again.sure) == (kept.lease.generation, True)
            assert not again.gone.done()
