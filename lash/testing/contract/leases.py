"""Leases: who may run a session. The fence is the generation; expiry only permits a takeover."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta

import pytest

from lash.commit.plan import CommitPlan
from lash.errors import InvalidId, InvalidValue, LeaseLost, SessionBusy, SessionDeleted, SessionNotFound
from lash.graph.session import Head
from lash.ids import OperationId, OwnerId, ReplayKey, SessionUid
from lash.lease import ExecutionLease, LeaseRecord
from lash.store.contract import Store
from lash.testing.builders import (
    TTL,
    Driven,
    a_message,
    a_session,
    an_effect,
    an_opening,
    append_to,
    commit_nodes,
    displace,
    must_acquire,
    new_id,
    open_with,
    plan_of,
    race,
    says,
    settlement,
    take_over,
)
from lash.testing.harness import StoreContract, StoreHarness, opened
from lash.turn.journal import Identity

A, B = OwnerId("a"), OwnerId("b")


async def _commit(store: Store, driven: Driven) -> object:
    operation = OperationId(driven.turn.id)
    delta = append_to(driven.lease.session, Head(), operation, [says("hi")])
    return await store.commit(CommitPlan(operation, driven.lease, base=0, delta=delta, settles=settlement(driven)))


async def _record(store: Store, driven: Driven) -> object:
    return await store.record(driven.lease, driven.turn.id, [an_effect("tool:9")])


async def _take(store: Store, driven: Driven) -> object:
    key, identity = ReplayKey("take:1"), Identity("take", 1)
    return await store.take(driven.lease, driven.turn.id, "after_work", key=key, identity=identity)


async def _park(store: Store, driven: Driven) -> object:
    return await store.park(driven.lease, driven.turn.id)


async def _renew(store: Store, driven: Driven) -> object:
    return await store.renew(driven.lease, ttl=TTL)


async def _release(store: Store, driven: Driven) -> object:
    await store.release(driven.lease)
    return None


FENCED = {
    "commit": _commit,
    "record": _record,
    "take": _take,
    "park": _park,
    "renew": _renew,
    "release": _release,
}
"""Everything that an owner does with its lease."""

fenced = pytest.mark.parametrize("act", FENCED.values(), ids=FENCED.keys())
Act = Callable[[Store, Driven], Awaitable[object]]


async def _all_there_is(store: Store, uid: SessionUid) -> tuple[object, ...]:
    """What an owner's writes could change."""
    turn = await store.unsettled_turn(uid)
    journal = [] if turn is None else await store.journal(uid, turn.id)
    nodes = await store.nodes(uid)
    return await store.lease(uid), turn, journal, nodes, (await store.items(uid, terminal=True)).rows


class LeaseContract(StoreContract):
    """LeaseStore, and the fence in every call that takes a lease."""

    # -- acquiring -----------------------------------------------------------------------------------------------------

    async def test_a_session_that_was_never_run_has_a_free_lease(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        assert await store.lease(uid) == LeaseRecord(owner=None, generation=0, expires_at=None)

    async def test_the_first_owner_gets_generation_one_and_displaces_nobody(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        acquired = await store.acquire(uid, A, ttl=TTL)
        assert (acquired.lease.session, acquired.lease.owner, acquired.lease.generation) == (uid, A, 1)
        assert acquired.displaced is None

    async def test_a_lease_lasts_as_long_as_was_asked_for(self, harness: StoreHarness, store: Store) -> None:
        uid = (await a_session(store)).uid
        before = await harness.now()
        lease = await must_acquire(store, uid, ttl=timedelta(seconds=50))
        after = await harness.now()
        assert before + timedelta(seconds=50) <= lease.expires_at <= after + timedelta(seconds=50)

    async def test_the_same_owner_gets_the_same_generation_again(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        first = await store.acquire(uid, A, ttl=TTL)
        again = await store.acquire(uid, A, ttl=TTL)
        assert again.lease.generation == first.lease.generation
        assert again.displaced is None

    async def test_re_entry_extends_the_lease_and_never_shortens_it(self, harness: StoreHarness, store: Store) -> None:
        uid = (await a_session(store)).uid
        first = await must_acquire(store, uid, ttl=TTL)
        shorter = await must_acquire(store, uid, ttl=timedelta(seconds=1))
        await harness.advance(TTL / 2)
        later = await must_acquire(store, uid, ttl=TTL)
        assert shorter.expires_at == first.expires_at < later.expires_at

    async def test_the_same_owner_keeps_its_generation_even_when_it_comes_back_late(
        self, harness: StoreHarness, store: Store
    ) -> None:
        uid = (await a_session(store)).uid
        first = await must_acquire(store, uid)
        await harness.advance(2 * TTL)
        again = await store.acquire(uid, first.owner, ttl=TTL)
        assert (again.lease.generation, again.displaced) == (first.generation, None)
        assert again.lease.expires_at > await harness.now()

    async def test_a_held_lease_is_busy_and_names_its_holder(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        held = await must_acquire(store, uid, "a")
        with pytest.raises(SessionBusy) as refusal:
            await store.acquire(uid, B, ttl=TTL)
        assert (refusal.value.session, refusal.value.holder) == (uid, A)
        assert refusal.value.expires_at == held.expires_at

    async def test_a_refused_acquisition_leaves_the_holder_untouched(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        held = await must_acquire(store, uid, "a")
        with pytest.raises(SessionBusy):
            await store.acquire(uid, B, ttl=TTL)
        assert await store.lease(uid) == LeaseRecord(A, held.generation, held.expires_at)

    async def test_leases_of_two_sessions_are_independent(self, store: Store) -> None:
        one, two = await a_session(store), await a_session(store)
        await must_acquire(store, one.uid, "a")
        lease = await must_acquire(store, two.uid, "b")
        assert (lease.owner, lease.generation) == (B, 1)

    async def test_a_lease_is_seen_by_other_processes(self, harness: StoreHarness, store: Store) -> None:
        uid = (await a_session(store)).uid
        held = await must_acquire(store, uid, "a")
        async with opened(harness) as other:
            assert await other.lease(uid) == LeaseRecord(A, held.generation, held.expires_at)
            with pytest.raises(SessionBusy):
                await other.acquire(uid, B, ttl=TTL)

    @pytest.mark.parametrize("ttl", [timedelta(0), timedelta(seconds=-1), timedelta(hours=2)], ids=str)
    async def test_a_lease_of_senseless_length_is_refused(self, store: Store, ttl: timedelta) -> None:
        uid = (await a_session(store)).uid
        with pytest.raises(InvalidValue):
            await store.acquire(uid, A, ttl=ttl)
        assert await store.lease(uid) == LeaseRecord()

    @pytest.mark.parametrize("ttl", [timedelta(0), timedelta(seconds=-1), timedelta(hours=2)], ids=str)
    async def test_a_renewal_of_senseless_length_is_refused(self, store: Store, ttl: timedelta) -> None:
        uid = (await a_session(store)).uid
        lease = await must_acquire(store, uid)
        with pytest.raises(InvalidValue):
            await store.renew(lease, ttl=ttl)
        assert (await store.lease(uid)).expires_at == lease.expires_at

    @pytest.mark.parametrize("owner", ["", "two words", "x" * 129], ids=["empty", "with a space", "too long"])
    async def test_an_owner_that_is_no_name_is_refused(self, store: Store, owner: str) -> None:
        uid = (await a_session(store)).uid
        with pytest.raises(InvalidId):
            await store.acquire(uid, OwnerId(owner), ttl=TTL)
        assert await store.lease(uid) == LeaseRecord()

    # -- taking over ---------------------------------------------------------------------------------------------------

    async def test_an_expired_lease_is_taken_over_under_the_next_generation(
        self, harness: StoreHarness, store: Store
    ) -> None:
        uid = (await a_session(store)).uid
        first = await must_acquire(store, uid, "a")
        await harness.advance(2 * TTL)
        second = await must_acquire(store, uid, "b")
        assert (second.owner, second.generation) == (B, first.generation + 1)

    async def test_a_takeover_reports_whom_it_displaced(self, harness: StoreHarness, store: Store) -> None:
        uid = (await a_session(store)).uid
        first = await must_acquire(store, uid, "a")
        await harness.advance(2 * TTL)
        displaced = (await store.acquire(uid, B, ttl=TTL)).displaced
        assert displaced is not None
        assert (displaced.owner, displaced.generation) == (A, first.generation)
        assert displaced.expires_at == first.expires_at

    async def test_only_the_takeover_itself_reports_the_displaced_owner(
        self, harness: StoreHarness, store: Store
    ) -> None:
        uid = (await a_session(store)).uid
        await must_acquire(store, uid, "a")
        await displace(harness, store, uid, "b")
        assert (await store.acquire(uid, B, ttl=TTL)).displaced is None

    async def test_a_lease_that_a_clock_cannot_have_meant_counts_as_expired(
        self, harness: StoreHarness, store: Store
    ) -> None:
        uid = (await a_session(store)).uid
        first = await must_acquire(store, uid, "a")
        await harness.advance(timedelta(hours=-3))  # the clock that wrote the expiry was three hours fast
        acquired = await store.acquire(uid, B, ttl=TTL)
        assert acquired.lease.generation == first.generation + 1
        assert acquired.displaced is not None
        assert acquired.lease.expires_at < first.expires_at

    async def test_generations_only_ever_rise(self, harness: StoreHarness, store: Store) -> None:
        uid = (await a_session(store)).uid
        leases = [await must_acquire(store, uid, "a")]
        leases.append(await displace(harness, store, uid, "b"))
        await store.release(leases[-1])
        leases.append(await must_acquire(store, uid, "b"))
        leases.append(await displace(harness, store, uid, "a"))
        assert [lease.generation for lease in leases] == [1, 2, 3, 4]

    async def test_a_displaced_owner_that_comes_back_needs_the_next_generation(
        self, harness: StoreHarness, store: Store
    ) -> None:
        uid = (await a_session(store)).uid
        first = await must_acquire(store, uid, "a")
        await displace(harness, store, uid, "b")
        with pytest.raises(SessionBusy):
            await store.acquire(uid, A, ttl=TTL)
        again = await displace(harness, store, uid, "a")
        assert again.generation == first.generation + 2

    # -- the fence -----------------------------------------------------------------------------------------------------

    @fenced
    async def test_a_displaced_owner_is_refused_everywhere_and_changes_nothing(
        self, harness: StoreHarness, store: Store, act: Act
    ) -> None:
        uid = (await a_session(store)).uid
        slow = await open_with(store, uid, owner="slow")
        await store.admit(uid, a_message("aimed", when="now"))
        await take_over(harness, store, uid, "fast")
        before = await _all_there_is(store, uid)
        with pytest.raises(LeaseLost):
            await act(store, slow)
        assert await _all_there_is(store, uid) == before

    @fenced
    async def test_an_owner_that_was_displaced_through_another_process_is_refused(
        self, harness: StoreHarness, store: Store, act: Act
    ) -> None:
        uid = (await a_session(store)).uid
        slow = await open_with(store, uid, owner="slow")
        async with opened(harness) as other:
            await take_over(harness, other, uid, "fast")
        with pytest.raises(LeaseLost):
            await act(store, slow)

    @fenced
    async def test_an_owner_that_lets_go_can_do_no_more(self, store: Store, act: Act) -> None:
        uid = (await a_session(store)).uid
        driven = await open_with(store, uid)
        await store.admit(uid, a_message("aimed", when="now"))
        await store.release(driven.lease)
        before = await _all_there_is(store, uid)
        if act is _release:
            await act(store, driven)  # releasing twice is releasing once
        else:
            with pytest.raises(LeaseLost):
                await act(store, driven)
        assert await _all_there_is(store, uid) == before

    @fenced
    async def test_the_right_generation_under_the_wrong_owner_is_refused(self, store: Store, act: Act) -> None:
        uid = (await a_session(store)).uid
        driven = await open_with(store, uid, owner="a")
        await store.admit(uid, a_message("aimed", when="now"))
        before = await _all_there_is(store, uid)
        with pytest.raises(LeaseLost):
            await act(store, replace(driven, lease=replace(driven.lease, owner=B)))
        assert await _all_there_is(store, uid) == before

    @fenced
    @pytest.mark.parametrize("off", [-1, 1])
    async def test_the_right_owner_with_another_generation_is_refused(self, store: Store, act: Act, off: int) -> None:
        uid = (await a_session(store)).uid
        await store.release(await must_acquire(store, uid))
        driven = await open_with(store, uid)
        await store.admit(uid, a_message("aimed", when="now"))
        before = await _all_there_is(store, uid)
        forged = replace(driven.lease, generation=driven.lease.generation + off)
        with pytest.raises(LeaseLost):
            await act(store, replace(driven, lease=forged))
        assert await _all_there_is(store, uid) == before

    @fenced
    async def test_an_expired_owner_that_nobody_displaced_may_still_act(
        self, harness: StoreHarness, store: Store, act: Act
    ) -> None:
        uid = (await a_session(store)).uid
        driven = await open_with(store, uid)
        await store.admit(uid, a_message("aimed", when="now"))
        await harness.advance(2 * TTL)
        before = await _all_there_is(store, uid)
        await act(store, driven)
        assert await _all_there_is(store, uid) != before

    @fenced
    async def test_the_expiry_an_owner_remembers_does_not_matter(
        self, harness: StoreHarness, store: Store, act: Act
    ) -> None:
        uid = (await a_session(store)).uid
        driven = await open_with(store, uid)
        await harness.advance(timedelta(seconds=1))
        await store.renew(driven.lease, ttl=TTL)
        await act(store, driven)

    async def test_lease_lost_names_both_generations(self, harness: StoreHarness, store: Store) -> None:
        uid = (await a_session(store)).uid
        first = await must_acquire(store, uid, "a")
        second = await displace(harness, store, uid, "b")
        with pytest.raises(LeaseLost) as refusal:
            await commit_nodes(store, first, says("too late"))
        lost = refusal.value
        assert (lost.owner, lost.generation, lost.found) == (A, first.generation, second.generation)

    # -- renewing ------------------------------------------------------------------------------------------------------

    async def test_a_renewal_moves_the_expiry_and_keeps_the_generation(
        self, harness: StoreHarness, store: Store
    ) -> None:
        uid = (await a_session(store)).uid
        lease = await must_acquire(store, uid, "a")
        await harness.advance(TTL / 2)
        before = await harness.now()
        renewed = await store.renew(lease, ttl=TTL)
        assert (renewed.owner, renewed.generation) == (A, lease.generation)
        assert before + TTL <= renewed.expires_at <= await harness.now() + TTL
        assert await store.lease(uid) == LeaseRecord(A, lease.generation, renewed.expires_at)

    async def test_a_renewed_lease_stays_busy_past_its_first_expiry(self, harness: StoreHarness, store: Store) -> None:
        uid = (await a_session(store)).uid
        lease = await must_acquire(store, uid, "a", ttl=TTL)
        await store.renew(lease, ttl=4 * TTL)
        await harness.advance(2 * TTL)
        with pytest.raises(SessionBusy):
            await store.acquire(uid, B, ttl=TTL)

    async def test_a_renewal_never_shortens_a_lease(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        lease = await must_acquire(store, uid, ttl=TTL)
        renewed = await store.renew(lease, ttl=timedelta(seconds=1))
        assert renewed.expires_at == lease.expires_at
        assert (await store.lease(uid)).expires_at == lease.expires_at

    async def test_an_expired_lease_that_nobody_took_is_renewed(self, harness: StoreHarness, store: Store) -> None:
        uid = (await a_session(store)).uid
        lease = await must_acquire(store, uid, "a")
        await harness.advance(10 * TTL)
        renewed = await store.renew(lease, ttl=TTL)
        assert renewed.generation == lease.generation
        with pytest.raises(SessionBusy):
            await store.acquire(uid, B, ttl=TTL)

    async def test_a_lease_that_nobody_ever_acquired_cannot_be_renewed(
        self, harness: StoreHarness, store: Store
    ) -> None:
        uid = (await a_session(store)).uid
        invented = ExecutionLease(uid, A, 1, await harness.now() + TTL)
        with pytest.raises(LeaseLost):
            await store.renew(invented, ttl=TTL)
        assert await store.lease(uid) == LeaseRecord()

    # -- letting go ----------------------------------------------------------------------------------------------------

    async def test_a_released_lease_is_free_and_remembers_its_generation(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        lease = await must_acquire(store, uid)
        await store.release(lease)
        assert await store.lease(uid) == LeaseRecord(owner=None, generation=lease.generation, expires_at=None)

    @pytest.mark.parametrize("owner", ["a", "b"])
    async def test_after_a_release_everybody_gets_the_next_generation(self, store: Store, owner: str) -> None:
        uid = (await a_session(store)).uid
        first = await must_acquire(store, uid, "a")
        await store.release(first)
        acquired = await store.acquire(uid, OwnerId(owner), ttl=TTL)
        assert (acquired.lease.generation, acquired.displaced) == (first.generation + 1, None)

    async def test_releasing_twice_is_releasing_once(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        lease = await must_acquire(store, uid)
        await store.release(lease)
        after_once = await store.lease(uid)
        await store.release(lease)
        assert await store.lease(uid) == after_once

    async def test_a_late_release_leaves_the_successor_alone(self, harness: StoreHarness, store: Store) -> None:
        uid = (await a_session(store)).uid
        first = await must_acquire(store, uid, "a")
        second = await displace(harness, store, uid, "b")
        with pytest.raises(LeaseLost):
            await store.release(first)
        assert await store.lease(uid) == LeaseRecord(B, second.generation, second.expires_at)

    async def test_a_late_release_is_refused_even_after_the_successor_let_go(
        self, harness: StoreHarness, store: Store
    ) -> None:
        uid = (await a_session(store)).uid
        first = await must_acquire(store, uid, "a")
        await store.release(await displace(harness, store, uid, "b"))
        with pytest.raises(LeaseLost):
            await store.release(first)

    # -- races ---------------------------------------------------------------------------------------------------------

    async def test_of_two_processes_that_acquire_at_once_one_wins(self, harness: StoreHarness, store: Store) -> None:
        uid = (await a_session(store)).uid
        async with opened(harness) as other:
            won, refused = await race(store.acquire(uid, A, ttl=TTL), other.acquire(uid, B, ttl=TTL))
        assert (len(won), [type(error) for error in refused]) == (1, [SessionBusy])
        assert (await store.lease(uid)).owner == won[0].lease.owner

    async def test_of_two_processes_that_take_over_at_once_one_displaces_the_dead_owner(
        self, harness: StoreHarness, store: Store
    ) -> None:
        uid = (await a_session(store)).uid
        await must_acquire(store, uid, "dead")
        await harness.advance(2 * TTL)
        async with opened(harness) as other:
            won, refused = await race(store.acquire(uid, A, ttl=TTL), other.acquire(uid, B, ttl=TTL))
        assert [type(error) for error in refused] == [SessionBusy]
        assert [acquired.lease.generation for acquired in won] == [2]
        assert won[0].displaced is not None
        assert won[0].displaced.owner == "dead"

    async def test_a_late_renewal_and_a_takeover_never_both_succeed(self, harness: StoreHarness, store: Store) -> None:
        uid = (await a_session(store)).uid
        late = await must_acquire(store, uid, "a")
        await harness.advance(2 * TTL)
        async with opened(harness) as other:
            won, refused = await race(store.renew(late, ttl=TTL), other.acquire(uid, B, ttl=TTL))
        assert (len(won), len(refused)) == (1, 1)
        held = (await store.lease(uid)).owner
        assert type(refused[0]) is (SessionBusy if held == A else LeaseLost)

    async def test_a_late_commit_and_a_takeover_leave_one_story(self, harness: StoreHarness, store: Store) -> None:
        """The commit lands before the takeover or not at all."""
        uid = (await a_session(store)).uid
        late = await open_with(store, uid, owner="late")
        plan = await plan_of(store, late)
        await harness.advance(2 * TTL)
        async with opened(harness) as other:
            _, refused = await race(store.commit(plan), other.open_turn(an_opening(uid, "fast")))
        committed = (await store.find(uid)).head.revision == 1
        assert [type(error) for error in refused] == ([] if committed else [LeaseLost])
        assert (await store.unsettled_turn(uid) is None) == committed

    # -- looking -------------------------------------------------------------------------------------------------------

    async def test_an_expired_lease_is_shown_as_it_is(self, harness: StoreHarness, store: Store) -> None:
        uid = (await a_session(store)).uid
        lease = await must_acquire(store, uid, "a")
        await harness.advance(2 * TTL)
        assert await store.lease(uid) == LeaseRecord(A, lease.generation, lease.expires_at)

    async def test_looking_at_a_lease_changes_nothing(self, harness: StoreHarness, store: Store) -> None:
        uid = (await a_session(store)).uid
        lease = await must_acquire(store, uid, "a")
        await harness.advance(2 * TTL)
        session = await store.find(uid)
        assert await store.lease(uid) == await store.lease(uid)
        assert await store.find(uid) == session
        assert (await store.renew(lease, ttl=TTL)).generation == lease.generation

    # -- no such session -----------------------------------------------------------------------------------------------

    async def test_there_is_no_lease_on_a_session_that_never_was(self, store: Store) -> None:
        uid = SessionUid(new_id())
        with pytest.raises(SessionNotFound):
            await store.acquire(uid, A, ttl=TTL)
        with pytest.raises(SessionNotFound):
            await store.lease(uid)
        with pytest.raises(SessionNotFound):
            await store.open_turn(an_opening(uid))

    @fenced
    async def test_an_owner_whose_session_was_deleted_is_told_so(self, store: Store, act: Act) -> None:
        uid = (await a_session(store)).uid
        driven = await open_with(store, uid)
        await store.delete(uid)
        with pytest.raises(SessionDeleted):
            await act(store, driven)

    async def test_a_deleted_session_cannot_be_acquired(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        await store.delete(uid)
        with pytest.raises(SessionDeleted):
            await store.acquire(uid, A, ttl=TTL)
        with pytest.raises(SessionDeleted):
            await store.open_turn(an_opening(uid))
