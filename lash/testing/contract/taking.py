"""What a turn takes, when it opens and at its checkpoints, and what becomes of the rest."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lash.errors import (
    InvalidValue,
    LeaseLost,
    ReplayMismatch,
    TurnParked,
    TurnSettled,
)
from lash.ids import ItemId
from lash.inbox.items import Boundary, NewItem, Wake
from lash.store.contract import Store
from lash.testing.builders import (
    TTL,
    a_command,
    a_message,
    a_session,
    a_wake,
    an_effect,
    an_opening,
    ids_of,
    must_acquire,
    must_find,
    must_open,
    new_id,
    open_with,
    plan_of,
    race,
    settle_turn,
    take_at,
    take_over,
    texts_of,
)
from lash.testing.harness import StoreContract, StoreHarness, opened
from lash.turn.journal import Identity

BOUNDARIES: tuple[Boundary, Boundary] = ("after_work", "before_completion")


class TakingContract(StoreContract):
    """Which items a turn gets, in which order, and when."""

    # -- what a turn takes at its opening ------------------------------------------------------------------------------

    async def test_messages_sent_on_their_own_get_turns_of_their_own_in_order(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        for text in ("a", "b", "c"):
            await store.admit(uid, a_message(text))
        taken = []
        for _ in range(3):
            driven = await must_open(store, uid)
            taken.append(texts_of(driven.items))
            await settle_turn(store, driven)
        assert taken == [["a"], ["b"], ["c"]]

    async def test_items_with_the_same_merge_key_and_options_join_one_turn(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        for text in ("a", "b", "c"):
            await store.admit(uid, a_message(text, merge_key="m", options={"steps": 1}))
        driven = await must_open(store, uid)
        assert texts_of(driven.items) == ["a", "b", "c"]
        assert driven.turn.items == tuple(item.id for item in driven.items)

    async def test_wakes_with_the_same_merge_key_join_one_turn(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        for source in ("timer", "child"):
            await store.admit(uid, a_wake(source, merge_key="wakes"))
        driven = await must_open(store, uid)
        assert [item.body for item in driven.items] == [Wake(source="timer"), Wake(source="child")]

    @pytest.mark.parametrize(
        "stranger",
        [
            a_message("b"),
            a_message("b", merge_key="other"),
            a_message("b", merge_key="m", options={"steps": 2}),
            a_wake(merge_key="m"),
            a_command(),
        ],
        ids=["no merge key", "another merge key", "other options", "another kind", "a command"],
    )
    async def test_joining_ends_at_the_first_item_that_differs(self, store: Store, stranger: NewItem) -> None:
        uid = (await a_session(store)).uid
        await store.admit(uid, a_message("a", merge_key="m"))
        await store.admit(uid, replace(stranger, id=ItemId(new_id())))
        await store.admit(uid, a_message("c", merge_key="m"))
        assert texts_of((await must_open(store, uid)).items) == ["a"]

    async def test_a_turn_opens_with_a_bounded_number_of_items_and_the_rest_wait(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        for n in range(66):
            await store.admit(uid, a_message(f"m{n}", merge_key="m"))
        first = await must_open(store, uid)
        assert texts_of(first.items) == [f"m{n}" for n in range(64)]
        await settle_turn(store, first)
        assert texts_of((await must_open(store, uid)).items) == ["m64", "m65"]

    async def test_a_command_runs_alone_and_nothing_jumps_it(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        await store.admit(uid, a_command("compact"))
        await store.admit(uid, a_command("reset"))
        await store.admit(uid, a_message("after"))
        kinds = []
        for _ in range(3):
            driven = await must_open(store, uid)
            kinds.append([item.body.kind for item in driven.items])
            await settle_turn(store, driven)
        assert kinds == [["command"], ["command"], ["message"]]

    async def test_an_item_that_is_not_yet_due_lets_others_pass(self, harness: StoreHarness, store: Store) -> None:
        uid = (await a_session(store)).uid
        await store.admit(uid, a_message("later", available_at=await harness.now() + TTL))
        await store.admit(uid, a_message("at once"))
        driven = await must_open(store, uid)
        assert texts_of(driven.items) == ["at once"]
        await settle_turn(store, driven)
        assert (await store.open_turn(an_opening(uid))).turn is None

    async def test_an_item_that_has_become_due_goes_by_its_old_place(self, harness: StoreHarness, store: Store) -> None:
        uid = (await a_session(store)).uid
        await store.admit(uid, a_message("later", available_at=await harness.now() + TTL))
        await store.admit(uid, a_message("newer"))
        await harness.advance(2 * TTL)
        assert texts_of((await must_open(store, uid)).items) == ["later"]

    async def test_a_turn_takes_nothing_from_other_sessions(self, store: Store) -> None:
        mine, other = await a_session(store), await a_session(store)
        await store.admit(other.uid, a_message("not mine", merge_key="m"))
        await store.admit(mine.uid, a_message("mine", merge_key="m"))
        assert texts_of((await must_open(store, mine.uid)).items) == ["mine"]
        assert [item.state for item in (await store.items(other.uid)).rows] == ["pending"]

    # -- checkpoints ---------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize(
        ("boundary", "checkpoint", "enters"),
        [
            ("after_work", "after_work", True),
            ("after_work", "before_completion", True),
            ("before_completion", "after_work", False),
            ("before_completion", "before_completion", True),
        ],
    )
    async def test_an_item_enters_at_its_boundary_or_later(
        self, store: Store, boundary: Boundary, checkpoint: Boundary, enters: bool
    ) -> None:
        uid = (await a_session(store)).uid
        driven = await open_with(store, uid)
        item = await store.admit(uid, a_message(when="now", boundary=boundary))
        taken = await take_at(store, driven, checkpoint)
        assert ids_of(taken) == ({item.id} if enters else set())
        after = await must_find(store, uid, item.id)
        expected = ("taken", driven.turn.id) if enters else ("pending", None)
        assert (after.state, after.turn) == expected

    async def test_items_enter_in_the_order_in_which_they_were_sent(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        driven = await open_with(store, uid)
        for text, boundary in (("a", BOUNDARIES[1]), ("b", BOUNDARIES[0]), ("c", BOUNDARIES[1])):
            await store.admit(uid, a_message(text, when="now", boundary=boundary))
        assert texts_of(await take_at(store, driven, "before_completion")) == ["a", "b", "c"]

    async def test_items_for_the_next_turn_do_not_enter_this_one(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        driven = await open_with(store, uid)
        await store.admit(uid, a_message("next"))
        await store.admit(uid, a_command())
        assert await take_at(store, driven, "before_completion") == ()

    async def test_a_wake_can_enter_the_running_turn(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        driven = await open_with(store, uid)
        wake = replace(a_wake("child"), when="now")
        await store.admit(uid, wake)
        assert ids_of(await take_at(store, driven)) == {wake.id}

    async def test_where_there_is_nothing_to_take_nothing_is_written(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        driven = await open_with(store, uid)
        session = await store.find(uid)
        assert await take_at(store, driven) == ()
        assert await store.journal(uid, driven.turn.id) == []
        assert await store.find(uid) == session
        assert await store.unsettled_turn(uid) == driven.turn

    async def test_a_checkpoint_that_took_nothing_can_be_asked_again(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        driven = await open_with(store, uid)
        await take_at(store, driven)
        await store.admit(uid, a_message("late", when="now"))
        assert texts_of(await take_at(store, driven)) == ["late"]

    async def test_what_entered_is_journaled_and_belongs_to_the_turn(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        driven = await open_with(store, uid)
        item = await store.admit(uid, a_message(when="now"))
        await take_at(store, driven)
        [entry] = await store.journal(uid, driven.turn.id)
        assert (entry.key, entry.identity, entry.state) == ("take:1", Identity("take", 1), "completed")
        turn = await store.unsettled_turn(uid)
        assert turn is not None
        assert set(turn.items) == {driven.items[0].id, item.id}

    async def test_a_checkpoint_asked_again_gives_the_recorded_items(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        driven = await open_with(store, uid)
        await store.admit(uid, a_message("first", when="now"))
        taken = await take_at(store, driven)
        await store.admit(uid, a_message("second", when="now"))
        journal = await store.journal(uid, driven.turn.id)
        assert await take_at(store, driven) == taken
        assert await store.journal(uid, driven.turn.id) == journal
        assert texts_of(await take_at(store, driven, key="take:2", step=2)) == ["second"]

    async def test_a_redrive_gets_the_recorded_items_of_a_checkpoint(self, harness: StoreHarness, store: Store) -> None:
        uid = (await a_session(store)).uid
        dead = await open_with(store, uid, owner="dead")
        await store.admit(uid, a_message("first", when="now"))
        await take_at(store, dead)
        await store.admit(uid, a_message("second", when="now"))
        async with opened(harness) as other:
            again = await take_over(harness, other, uid)
            assert texts_of(await take_at(other, again)) == ["first"]

    async def test_a_checkpoint_that_there_is_not_is_refused(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        driven = await open_with(store, uid)
        await store.admit(uid, a_message(when="now"))
        with pytest.raises(InvalidValue):
            await take_at(store, driven, "before_complete")  # type: ignore[arg-type]  # a slip of the pen
        assert await store.journal(uid, driven.turn.id) == []

    async def test_a_checkpoint_that_differs_from_the_recorded_one_is_refused(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        driven = await open_with(store, uid)
        await store.admit(uid, a_message(when="now"))
        await take_at(store, driven)
        late = await store.admit(uid, a_message(when="now"))
        with pytest.raises(ReplayMismatch) as refusal:
            await take_at(store, driven, step=2)
        assert refusal.value.differs == ("step",)
        assert await must_find(store, uid, late.id) == late

    async def test_a_checkpoint_that_differs_from_the_one_started_is_refused_though_there_is_nothing_to_take(
        self, store: Store
    ) -> None:
        uid = (await a_session(store)).uid
        driven = await open_with(store, uid)
        started = an_effect("checkpoint:1", kind="checkpoint", step=1)
        await store.record(driven.lease, driven.turn.id, [started])
        other = replace(started.identity, step=2)
        with pytest.raises(ReplayMismatch):
            await store.take(driven.lease, driven.turn.id, "after_work", key=started.key, identity=other)

    async def test_a_displaced_owner_takes_nothing(self, harness: StoreHarness, store: Store) -> None:
        uid = (await a_session(store)).uid
        slow = await open_with(store, uid, owner="slow")
        item = await store.admit(uid, a_message(when="now"))
        fast = await take_over(harness, store, uid, "fast")
        with pytest.raises(LeaseLost):
            await take_at(store, slow)
        assert await must_find(store, uid, item.id) == item
        assert ids_of(await take_at(store, fast)) == {item.id}

    async def test_a_settled_turn_takes_nothing(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        driven = await open_with(store, uid)
        await settle_turn(store, driven)
        with pytest.raises(TurnSettled):
            await take_at(store, driven)

    async def test_a_parked_turn_takes_nothing(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        driven = await open_with(store, uid)
        await store.park(driven.lease, driven.turn.id)
        lease = await must_acquire(store, uid, "b")
        with pytest.raises(TurnParked):
            await take_at(store, replace(driven, lease=lease))

    # -- input that missed its turn ------------------------------------------------------------------------------------

    @pytest.mark.parametrize("boundary", BOUNDARIES)
    async def test_input_that_missed_the_last_checkpoint_is_for_the_next_turn(
        self, store: Store, boundary: Boundary
    ) -> None:
        uid = (await a_session(store)).uid
        driven = await open_with(store, uid)
        late = await store.admit(uid, a_message("late", when="now", boundary=boundary))
        await settle_turn(store, driven)
        deferred = await must_find(store, uid, late.id)
        assert deferred == replace(late, when="next", target=None)
        assert texts_of((await must_open(store, uid)).items) == ["late"]

    async def test_deferred_input_keeps_its_place_in_line(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        driven = await open_with(store, uid)
        await store.admit(uid, a_message("missed", when="now"))
        await store.admit(uid, a_message("behind"))
        await settle_turn(store, driven)
        assert texts_of((await must_open(store, uid)).items) == ["missed"]

    async def test_input_is_deferred_once_however_often_the_commit_is_repeated(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        driven = await open_with(store, uid)
        plan = await plan_of(store, driven)
        await store.admit(uid, a_message("missed", when="now"))
        receipt = await store.commit(plan)
        second = await must_open(store, uid)
        await store.admit(uid, a_message("for the second", when="now"))
        before = (await store.items(uid, terminal=True)).rows
        assert await store.commit(plan) == receipt
        assert (await store.items(uid, terminal=True)).rows == before
        assert before[-1].target == second.turn.id

    async def test_a_refused_commit_defers_nothing(self, harness: StoreHarness, store: Store) -> None:
        uid = (await a_session(store)).uid
        slow = await open_with(store, uid, owner="slow")
        aimed = await store.admit(uid, a_message(when="now"))
        await take_over(harness, store, uid)
        with pytest.raises(LeaseLost):
            await settle_turn(store, slow)
        assert await must_find(store, uid, aimed.id) == aimed

    async def test_settling_leaves_the_input_of_other_sessions_alone(self, store: Store) -> None:
        mine, other = await a_session(store), await a_session(store)
        driven = await open_with(store, mine.uid)
        await open_with(store, other.uid)
        aimed = await store.admit(other.uid, a_message(when="now"))
        await settle_turn(store, driven)
        assert await must_find(store, other.uid, aimed.id) == aimed

    async def test_input_that_races_with_the_end_of_a_turn_is_never_stuck(
        self, harness: StoreHarness, store: Store
    ) -> None:
        uid = (await a_session(store)).uid
        driven = await open_with(store, uid)
        plan = await plan_of(store, driven)
        late = [a_message(f"m{n}", when="now") for n in range(3)]
        async with opened(harness) as other:
            _, refused = await race(
                other.admit(uid, late[0]), store.commit(plan), other.admit(uid, late[1]), store.admit(uid, late[2])
            )
        assert refused == []
        for new in late:
            item = await must_find(store, uid, new.id)
            assert (item.state, item.when, item.target) == ("pending", "next", None)
