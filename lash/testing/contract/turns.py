"""Turns: opened with their items, passed on whole, settled once; and the requests that cancel them."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from datetime import timedelta

import pytest

from lash.errors import (
    Conflict,
    EvidenceMissing,
    KeyReused,
    LeaseLost,
    ReplayMismatch,
    SessionBusy,
    TurnCancelRequested,
    TurnNotFound,
    TurnParked,
    TurnSettled,
    UnsettledItems,
    WaitNotFound,
)
from lash.ids import ItemId, OwnerId, ReplayKey, SessionUid, TurnId
from lash.inbox.items import Boundary, InboxItem, NewItem, Wake
from lash.lease import LeaseRecord
from lash.store.contract import OpenedTurn, Store
from lash.testing.builders import (
    TTL,
    Driven,
    a_command,
    a_message,
    a_request_id,
    a_session,
    a_wait,
    a_wait_id,
    a_wake,
    an_effect,
    an_opening,
    displace,
    finished,
    hears,
    ids_of,
    is_ready,
    must_acquire,
    must_open,
    new_id,
    open_with,
    plan_of,
    race,
    settle_turn,
    settlement,
    take_over,
    text_of,
)
from lash.testing.harness import StoreContract, StoreHarness, opened
from lash.turn.journal import Identity
from lash.turn.record import TurnSettlement

BOUNDARIES: tuple[Boundary, Boundary] = ("after_work", "before_completion")


def _texts(items: tuple[InboxItem, ...]) -> list[str]:
    return [text_of(item) for item in items]


async def _take(
    store: Store, driven: Driven, checkpoint: Boundary = "after_work", *, key: str = "take:1", step: int = 1
) -> tuple[InboxItem, ...]:
    identity = Identity("take", step)
    return await store.take(driven.lease, driven.turn.id, checkpoint, key=ReplayKey(key), identity=identity)


async def _item(store: Store, uid: SessionUid, item: ItemId) -> InboxItem:
    found = await store.item(uid, item)
    assert found is not None
    return found


async def _attempts(store: Store, uid: SessionUid) -> int:
    turn = await store.unsettled_turn(uid)
    assert turn is not None
    return turn.attempts


class TurnContract(StoreContract):
    """TurnStore, and the settlement of a turn by its commit."""

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
            assert await _item(other, uid, item.id) == result.items[0]
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
        assert await _item(store, uid, item.id) == item

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
        assert _texts(again.items) == ["first"]

    async def test_an_opening_whose_answer_was_lost_can_be_repeated(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        opening = an_opening(uid, admits=a_message("hello"), starts=(an_effect(),))
        first = await store.open_turn(opening)
        again = await store.open_turn(opening)
        assert first.turn is not None
        assert again.turn is not None
        assert again.acquired is not None
        assert first.acquired is not None
        assert (again.turn.id, again.turn.items) == (first.turn.id, first.turn.items)
        assert again.acquired.lease.generation == first.acquired.lease.generation
        assert again.items == first.items
        assert len((await store.items(uid, terminal=True)).rows) == 1
        assert len(await store.journal(uid, opening.turn)) == 1

    async def test_a_settled_turn_is_not_opened_again_by_a_late_repetition(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        opening = an_opening(uid, admits=a_message("hello"))
        result = await store.open_turn(opening)
        assert result.acquired is not None
        assert result.turn is not None
        await settle_turn(store, Driven(result.acquired.lease, result.turn, result.items, result))
        await store.admit(uid, a_message("next"))
        with contextlib.suppress(Conflict):
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
        assert _texts(result.items) == ["older"]
        assert result.admitted is not None
        assert result.admitted.state == "pending"

    async def test_an_item_stays_admitted_when_another_owner_holds_the_session(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        await must_acquire(store, uid, "a")
        result = await store.open_turn(an_opening(uid, "b", admits=a_message("hello")))
        assert result.turn is None
        assert result.admitted is not None
        assert await _item(store, uid, result.admitted.id) == result.admitted

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
        assert (await _item(store, uid, item.id)).state == "pending"

    async def test_an_item_admitted_while_a_turn_is_taken_over_waits(self, harness: StoreHarness, store: Store) -> None:
        uid = (await a_session(store)).uid
        dead = await open_with(store, uid, "first", "dead")
        await harness.advance(2 * TTL)
        result = await store.open_turn(an_opening(uid, "b", admits=a_message("second")))
        assert result.turn is not None
        assert (result.turn.id, _texts(result.items)) == (dead.turn.id, ["first"])
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

    # -- what a turn takes at its opening ------------------------------------------------------------------------------

    async def test_messages_sent_on_their_own_get_turns_of_their_own_in_order(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        for text in ("a", "b", "c"):
            await store.admit(uid, a_message(text))
        taken = []
        for _ in range(3):
            driven = await must_open(store, uid)
            taken.append(_texts(driven.items))
            await settle_turn(store, driven)
        assert taken == [["a"], ["b"], ["c"]]

    async def test_items_with_the_same_merge_key_and_options_join_one_turn(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        for text in ("a", "b", "c"):
            await store.admit(uid, a_message(text, merge_key="m", options={"steps": 1}))
        driven = await must_open(store, uid)
        assert _texts(driven.items) == ["a", "b", "c"]
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
        assert _texts((await must_open(store, uid)).items) == ["a"]

    async def test_a_turn_opens_with_a_bounded_number_of_items_and_the_rest_wait(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        for n in range(66):
            await store.admit(uid, a_message(f"m{n}", merge_key="m"))
        first = await must_open(store, uid)
        assert _texts(first.items) == [f"m{n}" for n in range(64)]
        await settle_turn(store, first)
        assert _texts((await must_open(store, uid)).items) == ["m64", "m65"]

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
        assert _texts(driven.items) == ["at once"]
        await settle_turn(store, driven)
        assert (await store.open_turn(an_opening(uid))).turn is None

    async def test_an_item_that_has_become_due_goes_by_its_old_place(self, harness: StoreHarness, store: Store) -> None:
        uid = (await a_session(store)).uid
        await store.admit(uid, a_message("later", available_at=await harness.now() + TTL))
        await store.admit(uid, a_message("newer"))
        await harness.advance(2 * TTL)
        assert _texts((await must_open(store, uid)).items) == ["later"]

    async def test_a_turn_takes_nothing_from_other_sessions(self, store: Store) -> None:
        mine, other = await a_session(store), await a_session(store)
        await store.admit(other.uid, a_message("not mine", merge_key="m"))
        await store.admit(mine.uid, a_message("mine", merge_key="m"))
        assert _texts((await must_open(store, mine.uid)).items) == ["mine"]
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
        taken = await _take(store, driven, checkpoint)
        assert ids_of(taken) == ({item.id} if enters else set())
        after = await _item(store, uid, item.id)
        expected = ("taken", driven.turn.id) if enters else ("pending", None)
        assert (after.state, after.turn) == expected

    async def test_items_enter_in_the_order_in_which_they_were_sent(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        driven = await open_with(store, uid)
        for text, boundary in (("a", BOUNDARIES[1]), ("b", BOUNDARIES[0]), ("c", BOUNDARIES[1])):
            await store.admit(uid, a_message(text, when="now", boundary=boundary))
        assert _texts(await _take(store, driven, "before_completion")) == ["a", "b", "c"]

    async def test_items_for_the_next_turn_do_not_enter_this_one(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        driven = await open_with(store, uid)
        await store.admit(uid, a_message("next"))
        await store.admit(uid, a_command())
        assert await _take(store, driven, "before_completion") == ()

    async def test_a_wake_can_enter_the_running_turn(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        driven = await open_with(store, uid)
        wake = replace(a_wake("child"), when="now")
        await store.admit(uid, wake)
        assert ids_of(await _take(store, driven)) == {wake.id}

    async def test_where_there_is_nothing_to_take_nothing_is_written(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        driven = await open_with(store, uid)
        session = await store.find(uid)
        assert await _take(store, driven) == ()
        assert await store.journal(uid, driven.turn.id) == []
        assert await store.find(uid) == session
        assert await store.unsettled_turn(uid) == driven.turn

    async def test_a_checkpoint_that_took_nothing_can_be_asked_again(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        driven = await open_with(store, uid)
        await _take(store, driven)
        await store.admit(uid, a_message("late", when="now"))
        assert _texts(await _take(store, driven)) == ["late"]

    async def test_what_entered_is_journaled_and_belongs_to_the_turn(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        driven = await open_with(store, uid)
        item = await store.admit(uid, a_message(when="now"))
        await _take(store, driven)
        [entry] = await store.journal(uid, driven.turn.id)
        assert (entry.key, entry.identity, entry.state) == ("take:1", Identity("take", 1), "completed")
        turn = await store.unsettled_turn(uid)
        assert turn is not None
        assert set(turn.items) == {driven.items[0].id, item.id}

    async def test_a_checkpoint_asked_again_gives_the_recorded_items(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        driven = await open_with(store, uid)
        await store.admit(uid, a_message("first", when="now"))
        taken = await _take(store, driven)
        await store.admit(uid, a_message("second", when="now"))
        journal = await store.journal(uid, driven.turn.id)
        assert await _take(store, driven) == taken
        assert await store.journal(uid, driven.turn.id) == journal
        assert _texts(await _take(store, driven, key="take:2", step=2)) == ["second"]

    async def test_a_redrive_gets_the_recorded_items_of_a_checkpoint(self, harness: StoreHarness, store: Store) -> None:
        uid = (await a_session(store)).uid
        dead = await open_with(store, uid, owner="dead")
        await store.admit(uid, a_message("first", when="now"))
        await _take(store, dead)
        await store.admit(uid, a_message("second", when="now"))
        async with opened(harness) as other:
            again = await take_over(harness, other, uid)
            assert _texts(await _take(other, again)) == ["first"]

    async def test_a_checkpoint_that_differs_from_the_recorded_one_is_refused(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        driven = await open_with(store, uid)
        await store.admit(uid, a_message(when="now"))
        await _take(store, driven)
        late = await store.admit(uid, a_message(when="now"))
        with pytest.raises(ReplayMismatch) as refusal:
            await _take(store, driven, step=2)
        assert refusal.value.differs == ("step",)
        assert await _item(store, uid, late.id) == late

    async def test_a_displaced_owner_takes_nothing(self, harness: StoreHarness, store: Store) -> None:
        uid = (await a_session(store)).uid
        slow = await open_with(store, uid, owner="slow")
        item = await store.admit(uid, a_message(when="now"))
        fast = await take_over(harness, store, uid, "fast")
        with pytest.raises(LeaseLost):
            await _take(store, slow)
        assert await _item(store, uid, item.id) == item
        assert ids_of(await _take(store, fast)) == {item.id}

    async def test_a_settled_turn_takes_nothing(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        driven = await open_with(store, uid)
        await settle_turn(store, driven)
        with pytest.raises(TurnSettled):
            await _take(store, driven)

    async def test_a_parked_turn_takes_nothing(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        driven = await open_with(store, uid)
        await store.park(driven.lease, driven.turn.id)
        lease = await must_acquire(store, uid, "b")
        with pytest.raises(TurnParked):
            await _take(store, replace(driven, lease=lease))

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
            assert _texts(driven.items) == ["a", "b"]
        await settle_turn(store, third)
        assert _texts((await must_open(store, uid, "third")).items) == ["late"]

    async def test_a_redrive_has_what_entered_at_checkpoints_too(self, harness: StoreHarness, store: Store) -> None:
        uid = (await a_session(store)).uid
        dead = await open_with(store, uid, "first", "dead")
        await store.admit(uid, a_message("entered", when="now"))
        await _take(store, dead)
        await store.admit(uid, a_message("aimed", when="now"))
        again = await take_over(harness, store, uid)
        assert sorted(_texts(again.items)) == ["entered", "first"]
        assert set(again.turn.items) == ids_of(again.items)

    async def test_what_is_aimed_at_a_turn_enters_it_after_a_takeover(
        self, harness: StoreHarness, store: Store
    ) -> None:
        uid = (await a_session(store)).uid
        await open_with(store, uid, owner="dead")
        item = await store.admit(uid, a_message(when="now"))
        again = await take_over(harness, store, uid)
        assert ids_of(await _take(store, again)) == {item.id}

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
        assert await _attempts(store, uid) == 2

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
        assert await _attempts(store, uid) == 0

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
        assert await _attempts(store, uid) == 2

    async def test_handing_over_twice_takes_back_one_attempt(self, harness: StoreHarness, store: Store) -> None:
        uid = (await a_session(store)).uid
        await open_with(store, uid, owner="dead")
        driven = await take_over(harness, store, uid)
        await store.release(driven.lease)
        await store.release(driven.lease)
        assert await _attempts(store, uid) == 1

    # -- attempts ------------------------------------------------------------------------------------------------------

    async def test_every_opening_without_progress_counts_before_anything_runs(
        self, harness: StoreHarness, store: Store
    ) -> None:
        uid = (await a_session(store)).uid
        first = await open_with(store, uid, owner="first")
        counts = [first.turn.attempts, await _attempts(store, uid)]
        for owner in ("second", "third"):
            counts += [(await take_over(harness, store, uid, owner)).turn.attempts, await _attempts(store, uid)]
        assert counts == [1, 1, 2, 2, 3, 3]

    async def test_something_new_in_the_journal_starts_the_count_afresh(
        self, harness: StoreHarness, store: Store
    ) -> None:
        uid = (await a_session(store)).uid
        await open_with(store, uid, owner="first")
        second = await take_over(harness, store, uid, "second")
        await store.record(second.lease, second.turn.id, [an_effect()])
        assert await _attempts(store, uid) == 0
        assert (await take_over(harness, store, uid, "third")).turn.attempts == 1

    async def test_taking_items_at_a_checkpoint_starts_the_count_afresh(
        self, harness: StoreHarness, store: Store
    ) -> None:
        uid = (await a_session(store)).uid
        driven = await open_with(store, uid)
        await store.admit(uid, a_message(when="now"))
        await _take(store, driven)
        assert (await take_over(harness, store, uid)).turn.attempts == 1

    async def test_repeating_what_is_recorded_is_no_progress(self, harness: StoreHarness, store: Store) -> None:
        """A turn that dies at the same effect each time must come to an end."""
        uid = (await a_session(store)).uid
        driven, effect = await open_with(store, uid), an_effect()
        await store.record(driven.lease, driven.turn.id, [effect, finished(effect)])
        for n, owner in enumerate(("b", "c", "d"), start=1):
            again = await take_over(harness, store, uid, owner)
            await store.record(again.lease, again.turn.id, [effect, finished(effect)])
            assert await _attempts(store, uid) == n

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

    # -- parking -------------------------------------------------------------------------------------------------------

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
        assert (again.turn.parked_until, _texts(again.items)) == (None, ["first"])
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
        with contextlib.suppress(LeaseLost):
            await store.park(driven.lease, driven.turn.id, until=until)
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
        taken = await _take(store, driven)
        before = await harness.now()
        await settle_turn(store, driven, also=taken)
        for item in (driven.items[0].id, entered.id):
            completed = await _item(store, uid, item)
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
        assert (again.opened.fresh, _texts(again.items)) == (True, ["first"])

    async def test_a_turn_can_complete_some_items_and_give_back_others(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        driven = await open_with(store, uid, "first")
        await store.admit(uid, a_message("entered", when="now"))
        taken = await _take(store, driven)
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
        await _take(store, driven)
        with pytest.raises(UnsettledItems) as refusal:
            await settle_turn(store, driven)
        assert refusal.value.missing == (item.id,)

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

    # -- input that missed its turn ------------------------------------------------------------------------------------

    @pytest.mark.parametrize("boundary", BOUNDARIES)
    async def test_input_that_missed_the_last_checkpoint_is_for_the_next_turn(
        self, store: Store, boundary: Boundary
    ) -> None:
        uid = (await a_session(store)).uid
        driven = await open_with(store, uid)
        late = await store.admit(uid, a_message("late", when="now", boundary=boundary))
        await settle_turn(store, driven)
        deferred = await _item(store, uid, late.id)
        assert deferred == replace(late, when="next", target=None)
        assert _texts((await must_open(store, uid)).items) == ["late"]

    async def test_deferred_input_keeps_its_place_in_line(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        driven = await open_with(store, uid)
        await store.admit(uid, a_message("missed", when="now"))
        await store.admit(uid, a_message("behind"))
        await settle_turn(store, driven)
        assert _texts((await must_open(store, uid)).items) == ["missed"]

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
        assert await _item(store, uid, aimed.id) == aimed

    async def test_settling_leaves_the_input_of_other_sessions_alone(self, store: Store) -> None:
        mine, other = await a_session(store), await a_session(store)
        driven = await open_with(store, mine.uid)
        await open_with(store, other.uid)
        aimed = await store.admit(other.uid, a_message(when="now"))
        await settle_turn(store, driven)
        assert await _item(store, other.uid, aimed.id) == aimed

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
            item = await _item(store, uid, new.id)
            assert (item.state, item.when, item.target) == ("pending", "next", None)

    # -- cancel requests -----------------------------------------------------------------------------------------------

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
