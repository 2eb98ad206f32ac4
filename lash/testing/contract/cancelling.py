"""Cancelling what waits in the inbox: one item, a set, a suffix; all in one transaction, with an answer for each."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lash.errors import SessionDeleted, SessionNotFound
from lash.ids import ItemId, ReplayKey, SessionUid
from lash.inbox.cancelling import Cancelled, From, Keyed, Selection, These
from lash.inbox.items import InboxItem, NewItem
from lash.store.contract import OpenedTurn, Store
from lash.testing.builders import (
    TTL,
    a_command,
    a_message,
    a_session,
    a_wake,
    an_opening,
    ids_of,
    must_open,
    new_id,
    open_with,
    race,
    settle_turn,
    text_of,
)
from lash.testing.harness import StoreContract, StoreHarness, opened
from lash.turn.journal import Identity

NOBODY = ItemId("0" * 32)


async def _send(store: Store, uid: SessionUid, *texts: str) -> list[InboxItem]:
    return [await store.admit(uid, a_message(text, key=text)) for text in texts]


async def _waiting(store: Store, uid: SessionUid) -> list[str]:
    return [text_of(item) for item in (await store.items(uid)).rows if item.state == "pending"]


def _answers(cancelled: list[Cancelled]) -> list[tuple[str, str]]:
    return [(c.named, c.answer) for c in cancelled]


class CancellingContract(StoreContract):
    """InboxStore.cancel."""

    @pytest.mark.parametrize("new", [a_message(), a_command(), a_wake()], ids=lambda new: new.body.kind)
    async def test_an_item_of_any_kind_can_be_cancelled_while_it_waits(
        self, harness: StoreHarness, store: Store, new: NewItem
    ) -> None:
        uid = (await a_session(store)).uid
        before = await harness.now()
        item = await store.admit(uid, replace(new, id=ItemId(new_id())))
        [cancelled] = await store.cancel(uid, These((item.id,)))
        assert (cancelled.named, cancelled.answer) == (item.id, "cancelled")
        assert cancelled.item is not None
        assert (cancelled.item.id, cancelled.item.state) == (item.id, "cancelled")
        assert cancelled.item.settled_at is not None
        assert before <= cancelled.item.settled_at <= await harness.now()
        async with opened(harness) as other:
            assert await other.item(uid, item.id) == cancelled.item

    async def test_a_cancelled_item_is_never_taken(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        first, _ = await _send(store, uid, "a", "b")
        await store.cancel(uid, These((first.id,)))
        assert [text_of(item) for item in (await must_open(store, uid)).items] == ["b"]

    async def test_a_cancelled_item_stays_as_evidence(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        [item] = await _send(store, uid, "a")
        await store.cancel(uid, These((item.id,)))
        assert [(i.id, i.state) for i in (await store.items(uid, terminal=True)).rows] == [(item.id, "cancelled")]

    async def test_a_session_whose_only_item_is_cancelled_needs_no_worker(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        [item] = await _send(store, uid, "a")
        await store.cancel(uid, These((item.id,)))
        assert (await store.find(uid)).ready_at is None
        assert (await store.open_turn(an_opening(uid))).turn is None

    async def test_a_postponed_item_can_be_cancelled(self, harness: StoreHarness, store: Store) -> None:
        uid = (await a_session(store)).uid
        item = await store.admit(uid, a_message(available_at=await harness.now() + TTL))
        assert _answers(await store.cancel(uid, These((item.id,)))) == [(item.id, "cancelled")]
        await harness.advance(2 * TTL)
        assert (await store.open_turn(an_opening(uid))).turn is None

    async def test_an_item_aimed_at_the_running_turn_can_be_cancelled_until_it_enters(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        driven = await open_with(store, uid)
        item = await store.admit(uid, a_message(when="now"))
        assert _answers(await store.cancel(uid, These((item.id,)))) == [(item.id, "cancelled")]
        key, identity = ReplayKey("take:1"), Identity("take", 1)
        taken = await store.take(driven.lease, driven.turn.id, "before_completion", key=key, identity=identity)
        assert taken == ()

    async def test_a_cancelled_item_is_not_brought_back_when_its_turn_settles(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        driven = await open_with(store, uid)
        item = await store.admit(uid, a_message(when="now"))
        [cancelled] = await store.cancel(uid, These((item.id,)))
        await settle_turn(store, driven)
        assert await store.item(uid, item.id) == cancelled.item

    async def test_an_item_that_was_deferred_can_be_cancelled(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        driven = await open_with(store, uid)
        item = await store.admit(uid, a_message(when="now"))
        await settle_turn(store, driven)
        assert _answers(await store.cancel(uid, These((item.id,)))) == [(item.id, "cancelled")]

    async def test_an_item_that_was_given_back_can_be_cancelled(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        driven = await open_with(store, uid)
        await settle_turn(store, driven, gives_back=driven.items)
        [item] = driven.items
        assert _answers(await store.cancel(uid, These((item.id,)))) == [(item.id, "cancelled")]

    # -- what cannot be cancelled --------------------------------------------------------------------------------------

    async def test_a_taken_item_belongs_to_its_turn(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        driven = await open_with(store, uid)
        [item] = driven.items
        [answer] = await store.cancel(uid, These((item.id,)))
        assert (answer.answer, answer.item) == ("already_taken", item)
        assert await store.item(uid, item.id) == item

    async def test_a_taken_item_still_belongs_to_its_turn_when_nobody_drives_it(
        self, harness: StoreHarness, store: Store
    ) -> None:
        uid = (await a_session(store)).uid
        driven = await open_with(store, uid)
        [item] = driven.items
        await harness.advance(2 * TTL)
        assert _answers(await store.cancel(uid, These((item.id,)))) == [(item.id, "already_taken")]
        await store.release(driven.lease)
        assert _answers(await store.cancel(uid, These((item.id,)))) == [(item.id, "already_taken")]

    async def test_a_completed_item_stays_completed(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        driven = await open_with(store, uid)
        await settle_turn(store, driven)
        completed = await store.item(uid, driven.items[0].id)
        [answer] = await store.cancel(uid, These((driven.items[0].id,)))
        assert (answer.answer, answer.item) == ("already_completed", completed)

    async def test_cancelling_twice_keeps_the_first_time(self, harness: StoreHarness, store: Store) -> None:
        uid = (await a_session(store)).uid
        [item] = await _send(store, uid, "a")
        [first] = await store.cancel(uid, These((item.id,)))
        await harness.advance(TTL)
        [second] = await store.cancel(uid, These((item.id,)))
        assert (second.answer, second.item) == ("already_cancelled", first.item)

    async def test_an_unknown_item_is_not_found(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        assert await store.cancel(uid, These((NOBODY,))) == [Cancelled(NOBODY, "not_found", None)]

    async def test_an_item_of_another_session_is_not_found_and_stays(self, store: Store) -> None:
        mine, other = await a_session(store), await a_session(store)
        [item] = await _send(store, other.uid, "a")
        for selection in (These((item.id,)), Keyed(("a",)), From(item.id)):
            assert [c.answer for c in await store.cancel(mine.uid, selection)] == ["not_found"]
        assert await _waiting(store, other.uid) == ["a"]

    # -- a set ---------------------------------------------------------------------------------------------------------

    async def test_a_set_gets_an_answer_for_each_in_the_order_asked(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        taken, done, waits, other = await _send(store, uid, "taken", "done", "waits", "other")
        await store.cancel(uid, These((done.id,)))
        await must_open(store, uid)
        asked = (waits.id, NOBODY, done.id, taken.id)
        assert _answers(await store.cancel(uid, These(asked))) == [
            (waits.id, "cancelled"),
            (NOBODY, "not_found"),
            (done.id, "already_cancelled"),
            (taken.id, "already_taken"),
        ]
        assert await _waiting(store, uid) == ["other"]
        assert (await store.item(uid, other.id)) == other

    async def test_items_can_be_cancelled_by_their_keys(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        items = await _send(store, uid, "a", "b", "c")
        cancelled = await store.cancel(uid, Keyed(("c", "nobody", "a")))
        assert _answers(cancelled) == [("c", "cancelled"), ("nobody", "not_found"), ("a", "cancelled")]
        assert [c.item.id for c in cancelled if c.item is not None] == [items[2].id, items[0].id]
        assert await _waiting(store, uid) == ["b"]

    @pytest.mark.parametrize("selection", [These(()), Keyed(())], ids=["no ids", "no keys"])
    async def test_an_empty_selection_cancels_nothing(self, store: Store, selection: Selection) -> None:
        uid = (await a_session(store)).uid
        await _send(store, uid, "a")
        assert await store.cancel(uid, selection) == []
        assert await _waiting(store, uid) == ["a"]

    # -- a suffix ------------------------------------------------------------------------------------------------------

    async def test_a_suffix_is_the_item_and_all_that_waits_behind_it(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        items = await _send(store, uid, "a", "b", "c", "d")
        cancelled = await store.cancel(uid, From(items[1].id))
        assert _answers(cancelled) == [(item.id, "cancelled") for item in items[1:]]
        assert await _waiting(store, uid) == ["a"]

    async def test_a_suffix_behind_a_taken_item_leaves_that_item_to_its_turn(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        items = await _send(store, uid, "taken", "b", "c")
        await must_open(store, uid)
        assert _answers(await store.cancel(uid, From(items[0].id))) == [
            (items[0].id, "already_taken"),
            (items[1].id, "cancelled"),
            (items[2].id, "cancelled"),
        ]
        found = await store.item(uid, items[0].id)
        assert found is not None
        assert found.state == "taken"

    async def test_a_suffix_can_begin_at_an_item_that_has_ended(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        items = await _send(store, uid, "a", "b")
        await settle_turn(store, await must_open(store, uid))
        answers = _answers(await store.cancel(uid, From(items[0].id)))
        assert answers == [(items[0].id, "already_completed"), (items[1].id, "cancelled")]

    async def test_a_suffix_passes_over_what_is_no_longer_waiting(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        items = await _send(store, uid, "a", "b", "c")
        await store.cancel(uid, These((items[1].id,)))
        answers = _answers(await store.cancel(uid, From(items[0].id)))
        assert answers == [(items[0].id, "cancelled"), (items[2].id, "cancelled")]

    async def test_a_suffix_reaches_what_is_aimed_at_the_running_turn_and_what_is_postponed(
        self, harness: StoreHarness, store: Store
    ) -> None:
        uid = (await a_session(store)).uid
        driven = await open_with(store, uid)
        aimed = await store.admit(uid, a_message(when="now"))
        later = await store.admit(uid, a_message(available_at=await harness.now() + TTL))
        cancelled = await store.cancel(uid, From(driven.items[0].id))
        assert _answers(cancelled)[1:] == [(aimed.id, "cancelled"), (later.id, "cancelled")]

    async def test_a_suffix_from_an_unknown_item_cancels_nothing(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        await _send(store, uid, "a", "b")
        assert await store.cancel(uid, From(NOBODY)) == [Cancelled(NOBODY, "not_found", None)]
        assert await _waiting(store, uid) == ["a", "b"]

    async def test_what_arrives_after_a_suffix_was_cancelled_is_served(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        items = await _send(store, uid, "a", "b")
        await store.cancel(uid, From(items[0].id))
        await _send(store, uid, "c")
        assert [text_of(item) for item in (await must_open(store, uid)).items] == ["c"]

    # -- races ---------------------------------------------------------------------------------------------------------

    async def test_an_item_is_either_cancelled_or_taken_never_both(self, harness: StoreHarness, store: Store) -> None:
        uid = (await a_session(store)).uid
        [item] = await _send(store, uid, "a")
        async with opened(harness) as other:
            ends, refused = await race(store.cancel(uid, These((item.id,))), other.open_turn(an_opening(uid)))
        assert refused == []
        cancelled, opening = ends
        assert isinstance(cancelled, list)
        assert isinstance(opening, OpenedTurn)
        won = [c.answer for c in cancelled] == ["cancelled"]
        assert won or [c.answer for c in cancelled] == ["already_taken"]
        assert ids_of(opening.items) == (set() if won else {item.id})

    async def test_of_two_processes_that_cancel_at_once_one_does(self, harness: StoreHarness, store: Store) -> None:
        uid = (await a_session(store)).uid
        items = await _send(store, uid, "a", "b", "c")
        async with opened(harness) as other:
            ends, _ = await race(store.cancel(uid, From(items[0].id)), other.cancel(uid, From(items[0].id)))
        answers = sorted([c.answer for c in cancelled] for cancelled in ends)
        assert answers == [["already_cancelled"], ["cancelled", "cancelled", "cancelled"]]

    async def test_a_suffix_is_cancelled_whole_while_more_arrives(self, harness: StoreHarness, store: Store) -> None:
        uid = (await a_session(store)).uid
        items = await _send(store, uid, "a", "b", "c")
        async with opened(harness) as other:
            await race(store.cancel(uid, From(items[0].id)), other.admit(uid, a_message("late")))
        assert await _waiting(store, uid) in ([], ["late"])

    # -- no such session -----------------------------------------------------------------------------------------------

    async def test_nothing_can_be_cancelled_without_a_session(self, store: Store) -> None:
        with pytest.raises(SessionNotFound):
            await store.cancel(SessionUid(new_id()), These((NOBODY,)))
        session = await a_session(store)
        await store.delete(session.uid)
        with pytest.raises(SessionDeleted):
            await store.cancel(session.uid, These((NOBODY,)))
