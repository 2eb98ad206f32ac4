"""Turns: opened with their lease and items, handed on whole, counted, settled by one commit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from lash.commit.outbox import Owed
from lash.commit.plan import CommitPlan
from lash.errors import (
    Conflict,
    InvalidValue,
    KeyReused,
    LeaseLost,
    TurnNotFound,
    TurnSettled,
    UnsettledItems,
)
from lash.ids import OwnerId, TurnId
from lash.inbox.items import Wake
from lash.lease import LeaseRecord
from lash.store.contract import OpenedTurn, Store
from lash.testing.builders import (
    TTL,
    Driven,
    a_message,
    a_session,
    an_effect,
    an_opening,
    attempts_of,
    displace,
    finished,
    hears,
    ids_of,
    is_ready,
    must_acquire,
    must_find,
    must_open,
    new_id,
    open_with,
    plan_of,
    race,
    settle_turn,
    settlement,
    take_at,
    take_over,
    text_of,
    texts_of,
)
from lash.testing.harness import StoreContract, StoreHarness, opened
from lash.turn.record import TurnSettlement

NO_OBJECTS: list[Any] = [[], ["x"], "", "text", None, 5, True]
NOT_OBJECTS_IN_A_COMMIT: dict[str, Callable[[CommitPlan, Any], dict[str, Any]]] = {
    "a config": lambda plan, body: {"documents": {"config": body}},
    "a catalog": lambda plan, body: {"documents": {"catalog": body}},
    "metadata": lambda plan, body: {"documents": {"metadata": body}},
    "the summary of the turn": lambda plan, body: {"settles": replace(_settles(plan), summary=body)},
    "the options of what is owed": lambda plan, body: {
        "owes": (Owed(plan.lease.session, Wake(source="s"), options=body),)
    },
}


def _settles(plan: CommitPlan) -> TurnSettlement:
    assert plan.settles is not None
    return plan.settles


class TurnContract(StoreContract):
    """Opening, handing on, attempts, settling."""

    # -- opening -------------------------------------------------------------------------------------------------------

    async def test_a_turn_opens_with_the_lease_and_the_item_in_one_step(
        self, harness: StoreHarness, store: Store
    ) -> None:
        uid = (await a_session(store)).uid
        item = await store.admit(uid, a_message("hello"))
        opening = an_opening(uid, "a")
        result = await store.open_turn(opening)
        assert result.turn is not None
        assert (result.turn.id, result.turn.state, result.fresh) == (opening.turn, "open", True)
        assert result.turn.items == (item.id,)
        assert [(i.id, i.state, i.turn) for i in result.items] == [(item.id, "taken", opening.turn)]
        assert result.acquired is not None
        async with opened(harness) as other:
            assert await other.unsettled_turn(uid) == result.turn == await other.turn(uid, opening.turn)
            assert await must_find(other, uid, item.id) == result.items[0]
            assert (await other.lease(uid)).owner == "a"

    async def test_a_turn_knows_what_it_began_with(self, harness: StoreHarness, store: Store) -> None:
        session = await a_session(store, agent="orders")
        uid = session.uid
        await settle_turn(store, await open_with(store, uid))
        await store.put_document(uid, "config", {"model": "m"}, expected=0)
        await store.put_document(uid, "catalog", {"tools": []}, expected=0)
        await store.put_document(uid, "catalog", {"tools": ["t"]}, expected=1)
        await store.admit(uid, a_message(options={"steps": 5}))
        before = await harness.now()
        turn = (await must_open(store, uid)).turn
        assert (turn.session, turn.agent, turn.base_revision) == (uid, "orders", 1)
        assert (turn.config_revision, turn.catalog_revision) == (1, 2)
        assert turn.options == {"steps": 5}
        assert before <= turn.opened_at <= await harness.now()
        assert (turn.outcome, turn.settled_at, turn.parked_until) == (None, None, None)

    async def test_config_and_catalog_stay_pinned_when_they_change_under_a_turn(
        self, harness: StoreHarness, store: Store
    ) -> None:
        uid = (await a_session(store)).uid
        driven = await open_with(store, uid)
        await store.put_document(uid, "config", {"model": "new"}, expected=0)
        again = await take_over(harness, store, uid)
        assert (driven.turn.config_revision, again.turn.config_revision) == (0, 0)
        await settle_turn(store, again)
        assert (await open_with(store, uid, owner="successor")).turn.config_revision == 1

    async def test_when_nothing_is_ready_the_lease_is_not_touched(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        assert await store.open_turn(an_opening(uid)) == OpenedTurn()
        assert await store.lease(uid) == LeaseRecord()
        assert await store.unsettled_turn(uid) is None

    async def test_an_idle_owner_that_finds_nothing_keeps_the_lease_as_it_was(
        self, harness: StoreHarness, store: Store
    ) -> None:
        uid = (await a_session(store)).uid
        await must_acquire(store, uid)
        before = await store.lease(uid)
        await harness.advance(TTL / 2)
        assert (await store.open_turn(an_opening(uid))).turn is None
        assert await store.lease(uid) == before

    async def test_a_session_that_another_owner_holds_opens_nothing_and_says_who(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        lease = await must_acquire(store, uid, "a")
        item = await store.admit(uid, a_message())
        result = await store.open_turn(an_opening(uid, "b"))
        assert (result.turn, result.acquired, result.items) == (None, None, ())
        assert result.held_by == LeaseRecord(OwnerId("a"), lease.generation, lease.expires_at)
        assert await must_find(store, uid, item.id) == item

    async def test_an_owner_opens_turn_after_turn_under_one_generation(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        lease = await must_acquire(store, uid, "a")
        first = await open_with(store, uid, owner="a")
        await settle_turn(store, first)
        second = await open_with(store, uid, owner="a")
        assert first.turn.id != second.turn.id
        assert [d.lease.generation for d in (first, second)] == [lease.generation] * 2

    async def test_opening_a_turn_over_an_expired_lease_reports_whom_it_displaced(
        self, harness: StoreHarness, store: Store
    ) -> None:
        uid = (await a_session(store)).uid
        idle = await must_acquire(store, uid, "idle")
        await harness.advance(2 * TTL)
        driven = await open_with(store, uid, owner="b")
        assert driven.opened.acquired is not None
        displaced = driven.opened.acquired.displaced
        assert displaced is not None
        assert (displaced.owner, displaced.generation) == ("idle", idle.generation)
        assert driven.lease.generation == driven.turn.generation == idle.generation + 1

    async def test_of_two_processes_that_open_at_once_one_gets_the_turn(
        self, harness: StoreHarness, store: Store
    ) -> None:
        uid = (await a_session(store)).uid
        item = await store.admit(uid, a_message())
        async with opened(harness) as other:
            ends, refused = await race(store.open_turn(an_opening(uid, "a")), other.open_turn(an_opening(uid, "b")))
        assert refused == []
        [winner] = [end for end in ends if end.turn is not None]
        [loser] = [end for end in ends if end.turn is None]
        assert ids_of(winner.items) == {item.id}
        assert winner.acquired is not None
        assert loser.held_by is not None
        assert loser.held_by.owner == winner.acquired.lease.owner
        assert await store.unsettled_turn(uid) == winner.turn

    async def test_a_session_has_at_most_one_unsettled_turn(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        first = await open_with(store, uid, "first")
        await store.admit(uid, a_message("second"))
        again = await must_open(store, uid)
        assert (again.turn.id, again.opened.fresh) == (first.turn.id, False)
        assert texts_of(again.items) == ["first"]

    async def test_an_opening_whose_answer_was_lost_can_be_repeated(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        opening = an_opening(uid, admits=a_message("hello"), starts=(an_effect(),))
        first = await store.open_turn(opening)
        again = await store.open_turn(opening)
        assert first.turn is not None
        assert again.turn is not None
        assert again.acquired is not None
        assert first.acquired is not None
        assert again.turn == first.turn, "its owner had not seen the turn yet: no attempt is counted"
        assert again.fresh
        assert again.acquired.lease.generation == first.acquired.lease.generation
        assert again.items == first.items
        assert len((await store.items(uid, terminal=True)).rows) == 1
        assert len(await store.journal(uid, opening.turn)) == 1

    async def test_a_takeover_whose_answer_was_lost_can_be_repeated(self, harness: StoreHarness, store: Store) -> None:
        """Its owner had not seen the turn yet: it counts once, and it is still the turn of somebody else."""
        uid = (await a_session(store)).uid
        crashed = await open_with(store, uid, owner="crashed")
        await harness.advance(2 * TTL)
        opening = an_opening(uid, "successor", admits=a_message("more", key="k"))
        first = await store.open_turn(opening)
        async with opened(harness) as other:
            for again in (await store.open_turn(opening), await other.open_turn(opening)):
                assert again.turn == first.turn
                assert again.items == first.items == crashed.items
                assert again.fresh is first.fresh is False
                assert again.acquired is not None
                assert again.acquired.lease.generation == crashed.lease.generation + 1
        assert await attempts_of(store, uid) == 2
        assert [item.state for item in (await store.items(uid)).rows] == ["taken", "pending"]

    async def test_a_repeated_takeover_of_a_parked_turn_counts_once(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        sleeping = await open_with(store, uid, owner="first")
        await store.park(sleeping.lease, sleeping.turn.id)
        opening = an_opening(uid, "second")
        ends = [await store.open_turn(opening) for _ in range(3)]
        assert [(end.turn and end.turn.attempts, end.fresh) for end in ends] == [(1, False)] * 3

    async def test_a_settled_turn_is_not_opened_again_by_a_late_repetition(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        opening = an_opening(uid, admits=a_message("hello"))
        result = await store.open_turn(opening)
        assert result.acquired is not None
        assert result.turn is not None
        await settle_turn(store, Driven(result.acquired.lease, result.turn, result.items, result))
        await store.admit(uid, a_message("next"))
        with pytest.raises(TurnSettled):
            await store.open_turn(opening)
        assert (await store.turn(uid, opening.turn)).state == "settled"

    async def test_an_unknown_turn_is_not_found(self, store: Store) -> None:
        mine, other = await a_session(store), await a_session(store)
        driven = await open_with(store, other.uid)
        with pytest.raises(TurnNotFound):
            await store.turn(mine.uid, TurnId(new_id()))
        with pytest.raises(TurnNotFound):
            await store.turn(mine.uid, driven.turn.id)
        assert await store.unsettled_turn(mine.uid) is None

    # -- admitting with the opening ------------------------------------------------------------------------------------

    async def test_an_item_can_be_admitted_and_taken_in_one_step(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        item = a_message("hello")
        result = await store.open_turn(an_opening(uid, admits=item))
        assert result.admitted is not None
        assert result.admitted.id == item.id
        assert ids_of(result.items) == {item.id}

    async def test_an_item_admitted_with_an_opening_stands_behind_what_waits(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        await store.admit(uid, a_message("older"))
        result = await store.open_turn(an_opening(uid, admits=a_message("newer")))
        assert texts_of(result.items) == ["older"]
        assert result.admitted is not None
        assert result.admitted.state == "pending"

    async def test_an_item_stays_admitted_when_another_owner_holds_the_session(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        await must_acquire(store, uid, "a")
        result = await store.open_turn(an_opening(uid, "b", admits=a_message("hello")))
        assert result.turn is None
        assert result.admitted is not None
        assert await must_find(store, uid, result.admitted.id) == result.admitted

    async def test_an_item_for_now_reaches_the_turn_that_another_owner_drives(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        driven = await open_with(store, uid, owner="a")
        result = await store.open_turn(an_opening(uid, "b", admits=a_message(when="now")))
        assert result.admitted is not None
        assert result.admitted.target == driven.turn.id

    async def test_an_item_stays_admitted_when_it_is_not_yet_due(self, harness: StoreHarness, store: Store) -> None:
        uid = (await a_session(store)).uid
        item = a_message(available_at=await harness.now() + TTL)
        result = await store.open_turn(an_opening(uid, admits=item))
        assert (result.turn, result.acquired) == (None, None)
        assert (await must_find(store, uid, item.id)).state == "pending"

    async def test_an_item_admitted_while_a_turn_is_taken_over_waits(self, harness: StoreHarness, store: Store) -> None:
        uid = (await a_session(store)).uid
        dead = await open_with(store, uid, "first", "dead")
        await harness.advance(2 * TTL)
        result = await store.open_turn(an_opening(uid, "b", admits=a_message("second")))
        assert result.turn is not None
        assert (result.turn.id, texts_of(result.items)) == (dead.turn.id, ["first"])
        assert result.admitted is not None
        assert result.admitted.state == "pending"

    async def test_a_refused_item_opens_nothing(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        await store.admit(uid, a_message("first", key="k"))
        with pytest.raises(KeyReused):
            await store.open_turn(an_opening(uid, admits=a_message("other", key="k")))
        assert await store.unsettled_turn(uid) is None
        assert await store.lease(uid) == LeaseRecord()

    async def test_a_request_that_was_served_before_opens_no_second_turn(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        await store.admit(uid, a_message("hello", key="k"))
        await settle_turn(store, await must_open(store, uid))
        result = await store.open_turn(an_opening(uid, admits=a_message("hello", key="k")))
        assert result.turn is None
        assert result.admitted is not None
        assert result.admitted.state == "completed"

    async def test_the_first_effect_of_a_new_turn_can_be_journaled_with_it(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        effect = an_effect("model:1")
        opening = an_opening(uid, admits=a_message(), starts=(effect,))
        await store.open_turn(opening)
        [entry] = await store.journal(uid, opening.turn)
        assert (entry.key, entry.identity, entry.state) == (effect.key, effect.identity, "started")

    async def test_the_journal_of_a_turn_that_is_taken_over_gets_no_new_starts(
        self, harness: StoreHarness, store: Store
    ) -> None:
        uid = (await a_session(store)).uid
        dead = await open_with(store, uid)
        await store.record(dead.lease, dead.turn.id, [an_effect("model:1")])
        before = await store.journal(uid, dead.turn.id)
        await harness.advance(2 * TTL)
        await store.open_turn(an_opening(uid, "b", starts=(an_effect("model:2"),)))
        assert await store.journal(uid, dead.turn.id) == before

    # -- handed on whole -----------------------------------------------------------------------------------------------

    async def test_after_a_crash_the_turn_passes_whole_to_the_next_owner(
        self, harness: StoreHarness, store: Store
    ) -> None:
        uid = (await a_session(store)).uid
        dead = await open_with(store, uid, "hello", "dead")
        async with opened(harness) as other:
            again = await take_over(harness, other, uid)
        assert (again.turn.id, again.turn.state, again.opened.fresh) == (dead.turn.id, "open", False)
        assert again.turn.opened_at == dead.turn.opened_at
        assert again.items == dead.items
        assert again.lease.generation == again.turn.generation == dead.lease.generation + 1

    async def test_a_redrive_works_on_exactly_the_items_of_the_dead_attempt(
        self, harness: StoreHarness, store: Store
    ) -> None:
        """Not even what would have joined is added; a third owner gets the same again."""
        uid = (await a_session(store)).uid
        for text in ("a", "b"):
            await store.admit(uid, a_message(text, merge_key="m"))
        first = await must_open(store, uid, "first")
        await store.admit(uid, a_message("late", merge_key="m"))
        second = await take_over(harness, store, uid, "second")
        third = await take_over(harness, store, uid, "third")
        for driven in (first, second, third):
            assert texts_of(driven.items) == ["a", "b"]
        await settle_turn(store, third)
        assert texts_of((await must_open(store, uid, "third")).items) == ["late"]

    async def test_a_redrive_has_what_entered_at_checkpoints_too(self, harness: StoreHarness, store: Store) -> None:
        uid = (await a_session(store)).uid
        dead = await open_with(store, uid, "first", "dead")
        await store.admit(uid, a_message("entered", when="now"))
        await take_at(store, dead)
        await store.admit(uid, a_message("aimed", when="now"))
        again = await take_over(harness, store, uid)
        assert sorted(texts_of(again.items)) == ["entered", "first"]
        assert set(again.turn.items) == ids_of(again.items)

    async def test_what_is_aimed_at_a_turn_enters_it_after_a_takeover(
        self, harness: StoreHarness, store: Store
    ) -> None:
        uid = (await a_session(store)).uid
        await open_with(store, uid, owner="dead")
        item = await store.admit(uid, a_message(when="now"))
        again = await take_over(harness, store, uid)
        assert ids_of(await take_at(store, again)) == {item.id}

    async def test_of_two_processes_that_take_over_at_once_one_gets_the_turn(
        self, harness: StoreHarness, store: Store
    ) -> None:
        uid = (await a_session(store)).uid
        dead = await open_with(store, uid, owner="dead")
        await harness.advance(2 * TTL)
        async with opened(harness) as other:
            ends, refused = await race(store.open_turn(an_opening(uid, "a")), other.open_turn(an_opening(uid, "b")))
        assert refused == []
        assert [end.turn.id for end in ends if end.turn is not None] == [dead.turn.id]
        assert await attempts_of(store, uid) == 2

    # -- handing over --------------------------------------------------------------------------------------------------

    async def test_a_turn_that_is_put_down_stays_open_for_the_next_owner_at_once(
        self, harness: StoreHarness, store: Store
    ) -> None:
        uid = (await a_session(store)).uid
        driven = await open_with(store, uid, owner="a")
        await store.release(driven.lease)
        turn = await store.unsettled_turn(uid)
        assert turn is not None
        assert (turn.id, turn.state, turn.items) == (driven.turn.id, "open", driven.turn.items)
        assert await is_ready(harness, store, uid)
        again = await must_open(store, uid, "b")
        assert (again.turn.id, again.items, again.opened.fresh) == (driven.turn.id, driven.items, False)
        assert again.lease.generation == driven.lease.generation + 1

    async def test_handing_over_counts_no_attempt(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        await store.admit(uid, a_message())
        for owner in ("a", "b", "c"):
            driven = await must_open(store, uid, owner)
            assert driven.turn.attempts == 1
            await store.release(driven.lease)
        assert await attempts_of(store, uid) == 0

    async def test_handing_over_takes_back_only_its_own_attempt(self, harness: StoreHarness, store: Store) -> None:
        uid = (await a_session(store)).uid
        await open_with(store, uid, owner="dead")
        second = await take_over(harness, store, uid, "second")
        assert second.turn.attempts == 2
        await store.release(second.lease)
        assert (await must_open(store, uid, "third")).turn.attempts == 2

    async def test_letting_go_of_a_lease_without_having_taken_up_the_turn_takes_back_no_attempt(
        self, harness: StoreHarness, store: Store
    ) -> None:
        uid = (await a_session(store)).uid
        await open_with(store, uid, owner="first")
        await take_over(harness, store, uid, "second")
        await store.release(await displace(harness, store, uid, "bystander"))
        assert await attempts_of(store, uid) == 2

    async def test_handing_over_twice_takes_back_one_attempt(self, harness: StoreHarness, store: Store) -> None:
        uid = (await a_session(store)).uid
        await open_with(store, uid, owner="dead")
        driven = await take_over(harness, store, uid)
        await store.release(driven.lease)
        await store.release(driven.lease)
        assert await attempts_of(store, uid) == 1

    # -- attempts ------------------------------------------------------------------------------------------------------

    async def test_every_opening_without_progress_counts_before_anything_runs(
        self, harness: StoreHarness, store: Store
    ) -> None:
        uid = (await a_session(store)).uid
        first = await open_with(store, uid, owner="first")
        counts = [first.turn.attempts, await attempts_of(store, uid)]
        for owner in ("second", "third"):
            counts += [(await take_over(harness, store, uid, owner)).turn.attempts, await attempts_of(store, uid)]
        assert counts == [1, 1, 2, 2, 3, 3]

    async def test_something_new_in_the_journal_starts_the_count_afresh(
        self, harness: StoreHarness, store: Store
    ) -> None:
        uid = (await a_session(store)).uid
        await open_with(store, uid, owner="first")
        second = await take_over(harness, store, uid, "second")
        await store.record(second.lease, second.turn.id, [an_effect()])
        assert await attempts_of(store, uid) == 0
        assert (await take_over(harness, store, uid, "third")).turn.attempts == 1

    async def test_taking_items_at_a_checkpoint_starts_the_count_afresh(
        self, harness: StoreHarness, store: Store
    ) -> None:
        uid = (await a_session(store)).uid
        driven = await open_with(store, uid)
        await store.admit(uid, a_message(when="now"))
        await take_at(store, driven)
        assert (await take_over(harness, store, uid)).turn.attempts == 1

    async def test_repeating_what_is_recorded_is_no_progress(self, harness: StoreHarness, store: Store) -> None:
        """A turn that dies at the same effect each time must come to an end."""
        uid = (await a_session(store)).uid
        driven, effect = await open_with(store, uid), an_effect()
        await store.record(driven.lease, driven.turn.id, [effect, finished(effect)])
        for n, owner in enumerate(("b", "c", "d"), start=1):
            again = await take_over(harness, store, uid, owner)
            await store.record(again.lease, again.turn.id, [effect, finished(effect)])
            assert await attempts_of(store, uid) == n

    async def test_input_is_no_progress(self, harness: StoreHarness, store: Store) -> None:
        uid = (await a_session(store)).uid
        await open_with(store, uid)
        for n, owner in enumerate(("b", "c"), start=2):
            await store.admit(uid, a_message(when="now"))
            assert (await take_over(harness, store, uid, owner)).turn.attempts == n

    async def test_a_parked_turn_that_is_taken_up_counts_from_one(self, harness: StoreHarness, store: Store) -> None:
        uid = (await a_session(store)).uid
        await open_with(store, uid, owner="first")
        second = await take_over(harness, store, uid, "second")
        assert (await store.park(second.lease, second.turn.id)).attempts == 0
        assert (await must_open(store, uid, "third")).turn.attempts == 1

    # -- settling ------------------------------------------------------------------------------------------------------

    async def test_a_settled_turn_keeps_its_outcome_and_summary(self, harness: StoreHarness, store: Store) -> None:
        uid = (await a_session(store)).uid
        driven = await open_with(store, uid)
        plan, before = await plan_of(store, driven), await harness.now()
        ending = replace(settlement(driven, "step_limit"), summary={"attempts": 1, "replayed": []})
        await store.commit(replace(plan, settles=ending))
        async with opened(harness) as other:
            turn = await other.turn(uid, driven.turn.id)
            assert await other.unsettled_turn(uid) is None
        assert (turn.state, turn.outcome) == ("settled", "step_limit")
        assert turn.summary == {"attempts": 1, "replayed": []}
        assert turn.settled_at is not None
        assert before <= turn.settled_at <= await harness.now()

    async def test_settling_completes_the_items_of_the_turn(self, harness: StoreHarness, store: Store) -> None:
        uid = (await a_session(store)).uid
        driven = await open_with(store, uid)
        entered = await store.admit(uid, a_message(when="now"))
        taken = await take_at(store, driven)
        before = await harness.now()
        await settle_turn(store, driven, also=taken)
        for item in (driven.items[0].id, entered.id):
            completed = await must_find(store, uid, item)
            assert (completed.state, completed.turn) == ("completed", driven.turn.id)
            assert completed.settled_at is not None
            assert before <= completed.settled_at <= await harness.now()

    async def test_a_completed_item_is_never_taken_again(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        await settle_turn(store, await open_with(store, uid))
        assert (await store.open_turn(an_opening(uid))).turn is None

    async def test_an_item_that_is_given_back_waits_again_at_its_old_place(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        driven = await open_with(store, uid, "first")
        await store.admit(uid, a_message("second"))
        await settle_turn(store, driven, gives_back=driven.items)
        [given, _] = (await store.items(uid)).rows
        assert (given.id, given.seq) == (driven.items[0].id, driven.items[0].seq)
        assert (given.state, given.turn, given.target, given.settled_at) == ("pending", None, None, None)
        again = await must_open(store, uid)
        assert (again.opened.fresh, texts_of(again.items)) == (True, ["first"])

    async def test_a_turn_can_complete_some_items_and_give_back_others(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        driven = await open_with(store, uid, "first")
        await store.admit(uid, a_message("entered", when="now"))
        taken = await take_at(store, driven)
        await settle_turn(store, driven, also=taken, gives_back=taken)
        states = [(text_of(i), i.state, i.when) for i in (await store.items(uid, terminal=True)).rows]
        assert states == [("first", "completed", "next"), ("entered", "pending", "next")]

    @pytest.mark.parametrize("fault", ["left out", "not its own", "both ways"])
    async def test_a_turn_must_account_for_exactly_its_items(self, store: Store, fault: str) -> None:
        uid = (await a_session(store)).uid
        driven = await open_with(store, uid)
        mine, foreign = driven.items[0].id, (await store.admit(uid, a_message())).id
        wrong = {
            "left out": TurnSettlement(driven.turn.id, "finished"),
            "not its own": TurnSettlement(driven.turn.id, "finished", completes=frozenset({mine, foreign})),
            "both ways": TurnSettlement(driven.turn.id, "finished", frozenset({mine}), frozenset({mine})),
        }[fault]
        named = {"left out": ((mine,), ()), "not its own": ((), (foreign,)), "both ways": ((), (mine,))}[fault]
        plan = await plan_of(store, driven)
        with pytest.raises(UnsettledItems) as refusal:
            await store.commit(replace(plan, settles=wrong))
        assert (refusal.value.missing, refusal.value.foreign) == named
        assert [item.state for item in (await store.items(uid)).rows] == ["taken", "pending"]
        assert await store.unsettled_turn(uid) == driven.turn

    async def test_what_entered_at_a_checkpoint_must_be_accounted_for(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        driven = await open_with(store, uid)
        item = await store.admit(uid, a_message(when="now"))
        await take_at(store, driven)
        with pytest.raises(UnsettledItems) as refusal:
            await settle_turn(store, driven)
        assert refusal.value.missing == (item.id,)

    @pytest.mark.parametrize("body", NO_OBJECTS, ids=repr)
    @pytest.mark.parametrize("field", NOT_OBJECTS_IN_A_COMMIT)
    async def test_a_commit_with_something_that_must_be_an_object_and_is_none_is_refused_whole(
        self, store: Store, field: str, body: Any
    ) -> None:
        uid = (await a_session(store)).uid
        driven = await open_with(store, uid)
        plan, before = await plan_of(store, driven), await store.snapshot(uid)
        with pytest.raises(InvalidValue):
            await store.commit(replace(plan, **NOT_OBJECTS_IN_A_COMMIT[field](plan, body)))
        assert await store.snapshot(uid) == before
        assert await store.receipt(uid, plan.operation) is None
        assert [debt for debt in await store.debts() if debt.session == uid] == []
        await store.commit(plan)

    @pytest.mark.parametrize("body", NO_OBJECTS, ids=repr)
    async def test_options_that_are_no_object_admit_nothing(self, store: Store, body: Any) -> None:
        session = await a_session(store)
        item = replace(a_message(), options=body)
        with pytest.raises(InvalidValue):
            await store.admit(session.uid, item)
        with pytest.raises(InvalidValue):
            await store.open_turn(an_opening(session.uid, admits=item))
        assert await store.find(session.uid) == session
        assert (await store.items(session.uid, terminal=True)).rows == ()

    async def test_a_displaced_owner_settles_nothing(self, harness: StoreHarness, store: Store) -> None:
        uid = (await a_session(store)).uid
        slow = await open_with(store, uid, owner="slow")
        fast = await take_over(harness, store, uid, "fast")
        with pytest.raises(LeaseLost):
            await settle_turn(store, slow)
        assert [item.state for item in (await store.items(uid)).rows] == ["taken"]
        await settle_turn(store, fast)
        assert (await store.find(uid)).head.revision == 1

    async def test_a_turn_settles_once(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        driven = await open_with(store, uid)
        receipt = await settle_turn(store, driven)
        session = await store.find(uid)
        again = replace(await plan_of(store, driven, hears("other")), operation=receipt.operation)
        with pytest.raises(Conflict):
            await store.commit(again)
        assert await store.find(uid) == session
