"""Waits: one durable, one-shot promise, answered by a key that nobody can guess."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest
from pydantic import JsonValue

from lash.errors import (
    HeadMoved,
    IdReused,
    InvalidValue,
    NotFound,
    SessionDeleted,
    SessionNotFound,
    TooLarge,
    WaitNotFound,
)
from lash.ids import SessionUid, TurnId, WaitId
from lash.limits import MAX_BODY
from lash.store.contract import Store
from lash.testing.builders import (
    TTL,
    a_request_id,
    a_session,
    a_wait,
    a_wait_id,
    an_effect,
    is_ready,
    must_open,
    new_id,
    open_with,
    plan_of,
    race,
    settle_turn,
)
from lash.testing.harness import StoreContract, StoreHarness, opened
from lash.waits import Answered, NewWait

ANSWERS: dict[str, JsonValue] = {
    "null": None,
    "false": False,
    "a whole float": 2.0,
    "text": "ünïcödé 🐙",
    "a tree": {"approved": True, "by": ["a", None]},
}


def _other(text: str) -> str:
    """The same text with its first character changed to another hex digit."""
    return ("1" if text[0] == "0" else "0") + text[1:]


FORGERIES: dict[str, Callable[[str], str]] = {
    "another id": _other,
    "another signature": lambda key: key[:33] + _other(key[33:]),
    "no signature": lambda key: key[:32],
    "an empty signature": lambda key: key[:33],
    "a shorter signature": lambda key: key[:-1],
    "a longer signature": lambda key: key + "0",
    "a new line": lambda key: key + "\n",
    "a lone surrogate": lambda key: key[:-1] + "\ud800",
    "nothing": lambda key: "",
}


async def _pending(store: Store) -> tuple[SessionUid, NewWait, str]:
    """A session with one open wait, and the key that answers it."""
    uid = (await a_session(store)).uid
    wait = a_wait()
    return uid, wait, await store.open_wait(uid, wait)


class WaitContract(StoreContract):
    """WaitStore. That an answer wakes a parked turn is shown with the turns."""

    # -- opening -------------------------------------------------------------------------------------------------------

    async def test_a_wait_is_there_before_anybody_sees_its_key(self, harness: StoreHarness, store: Store) -> None:
        uid = (await a_session(store)).uid
        driven, before = await open_with(store, uid), await harness.now()
        new = a_wait("approval", turn=driven.turn.id, expires_at=before + timedelta(days=1))
        key = await store.open_wait(uid, new)
        async with opened(harness) as other:
            wait = await other.wait(uid, new.id)
            assert await other.wait_key(uid, new.id) == key
        assert (wait.id, wait.session, wait.name, wait.turn) == (new.id, uid, "approval", driven.turn.id)
        assert (wait.state, wait.answer, wait.settled_at) == ("pending", None, None)
        assert wait.expires_at == before + timedelta(days=1)
        assert before <= wait.created_at <= await harness.now()

    async def test_opening_a_wait_again_gives_the_same_key(self, harness: StoreHarness, store: Store) -> None:
        uid, new, key = await _pending(store)
        first = await store.wait(uid, new.id)
        async with opened(harness) as other:
            assert await other.open_wait(uid, new) == key
        assert await store.waits(uid) == [first]

    async def test_opening_a_wait_again_keeps_its_answer(self, store: Store) -> None:
        uid, new, key = await _pending(store)
        answered = await store.answer(key, "yes")
        await store.open_wait(uid, new)
        assert await store.wait(uid, new.id) == answered.wait

    async def test_two_waits_have_two_keys(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        keys = {await store.open_wait(uid, a_wait("same name")) for _ in range(2)}
        assert len(keys) == 2

    async def test_another_wait_under_the_same_id_is_a_conflict(self, store: Store) -> None:
        uid, new, _ = await _pending(store)
        with pytest.raises(IdReused):
            await store.open_wait(uid, NewWait(new.id, "another name"))
        assert (await store.wait(uid, new.id)).name == new.name

    async def test_the_id_of_another_sessions_wait_is_a_conflict(self, store: Store) -> None:
        uid, new, _ = await _pending(store)
        other = await a_session(store)
        with pytest.raises(IdReused):
            await store.open_wait(other.uid, new)
        assert (await store.wait(uid, new.id)).session == uid
        assert await store.waits(other.uid) == []

    async def test_waits_are_listed_in_order_of_creation(self, harness: StoreHarness, store: Store) -> None:
        uid, other = (await a_session(store)).uid, (await a_session(store)).uid
        names = ["c", "a", "b"]
        for name in names:
            await store.open_wait(uid, a_wait(name))
            await store.open_wait(other, a_wait("not mine"))
            await harness.advance(timedelta(seconds=1))
        assert [wait.name for wait in await store.waits(uid)] == names

    async def test_a_session_without_waits_lists_none(self, store: Store) -> None:
        assert await store.waits((await a_session(store)).uid) == []

    async def test_a_wait_that_never_was_is_not_found(self, store: Store) -> None:
        uid, new, _ = await _pending(store)
        other = await a_session(store)
        for session, wait in ((uid, a_wait_id()), (other.uid, new.id)):
            with pytest.raises(WaitNotFound):
                await store.wait(session, wait)
            with pytest.raises(WaitNotFound):
                await store.wait_key(session, wait)

    # -- answering -----------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("value", ANSWERS.values(), ids=ANSWERS.keys())
    async def test_an_answer_from_another_process_is_kept_as_it_was(
        self, harness: StoreHarness, store: Store, value: JsonValue
    ) -> None:
        uid, new, key = await _pending(store)
        before = await harness.now()
        async with opened(harness) as other:
            answered = await other.answer(key, value)
        assert answered.accepted
        async with opened(harness) as third:
            wait = await third.wait(uid, new.id)
        assert wait == answered.wait
        assert (wait.state, json.dumps(wait.answer)) == ("answered", json.dumps(value))
        assert wait.settled_at is not None
        assert before <= wait.settled_at <= await harness.now()

    async def test_an_answer_may_come_before_anybody_waits(self, store: Store) -> None:
        uid, new, key = await _pending(store)
        await store.answer(key, "early")
        await open_with(store, uid)
        assert (await store.wait(uid, new.id)).answer == "early"

    async def test_the_first_answer_stands_and_later_ones_learn_it(self, harness: StoreHarness, store: Store) -> None:
        uid, new, key = await _pending(store)
        first = await store.answer(key, "yes")
        await harness.advance(TTL)
        second = await store.answer(key, "no")
        assert (second.wait, second.accepted) == (first.wait, False)
        assert await store.wait(uid, new.id) == first.wait

    async def test_the_same_answer_again_counts_as_accepted(self, harness: StoreHarness, store: Store) -> None:
        _, _, key = await _pending(store)
        first = await store.answer(key, {"a": 1, "b": 2})
        await harness.advance(TTL)
        assert await store.answer(key, {"b": 2, "a": 1}) == first

    async def test_of_two_answers_at_once_one_stands(self, harness: StoreHarness, store: Store) -> None:
        uid, new, key = await _pending(store)
        async with opened(harness) as other:
            ends, refused = await race(store.answer(key, "yes"), other.answer(key, "no"))
        assert refused == []
        assert sorted(end.accepted for end in ends) == [False, True]
        assert ends[0].wait == ends[1].wait == await store.wait(uid, new.id)

    async def test_an_answer_settles_one_wait_only(self, store: Store) -> None:
        uid, new, key = await _pending(store)
        sibling = a_wait()
        await store.open_wait(uid, sibling)
        await store.answer(key, "yes")
        states = {wait.id: wait.state for wait in await store.waits(uid)}
        assert states == {new.id: "answered", sibling.id: "pending"}

    @pytest.mark.parametrize("forge", FORGERIES.values(), ids=FORGERIES.keys())
    async def test_a_key_that_is_not_genuine_opens_nothing(self, store: Store, forge: Callable[[str], str]) -> None:
        uid, new, key = await _pending(store)
        with pytest.raises(WaitNotFound):
            await store.answer(forge(key), "yes")
        assert [(wait.id, wait.state) for wait in await store.waits(uid)] == [(new.id, "pending")]

    async def test_the_signature_of_one_wait_does_not_open_another(self, store: Store) -> None:
        uid, new, key = await _pending(store)
        other = a_wait()
        other_key = await store.open_wait(uid, other)
        with pytest.raises(WaitNotFound):
            await store.answer(key.replace(new.id, other.id), "yes")
        assert key.replace(new.id, other.id) != other_key
        assert (await store.wait(uid, other.id)).state == "pending"

    @pytest.mark.parametrize("value", [float("nan"), "\ud800"], ids=["not a number", "a lone surrogate"])
    async def test_an_answer_that_is_no_json_is_refused_and_the_wait_stays_open(
        self, store: Store, value: JsonValue
    ) -> None:
        uid, new, key = await _pending(store)
        with pytest.raises(InvalidValue):
            await store.answer(key, value)
        assert (await store.wait(uid, new.id)).state == "pending"
        assert (await store.answer(key, "yes")).accepted

    async def test_an_answer_that_is_too_large_is_refused_and_the_wait_stays_open(self, store: Store) -> None:
        uid, new, key = await _pending(store)
        with pytest.raises(TooLarge):
            await store.answer(key, "x" * (MAX_BODY + 1))
        assert (await store.wait(uid, new.id)).state == "pending"

    # -- deadlines -----------------------------------------------------------------------------------------------------

    async def _with_deadline(self, harness: StoreHarness, store: Store) -> tuple[SessionUid, NewWait, str]:
        uid = (await a_session(store)).uid
        wait = a_wait(expires_at=await harness.now() + TTL)
        return uid, wait, await store.open_wait(uid, wait)

    async def test_past_its_deadline_a_wait_has_timed_out_for_every_reader(
        self, harness: StoreHarness, store: Store
    ) -> None:
        uid, new, _ = await self._with_deadline(harness, store)
        assert (await store.wait(uid, new.id)).state == "pending"
        await harness.advance(2 * TTL)
        wait = await store.wait(uid, new.id)
        assert (wait.state, wait.settled_at, wait.answer) == ("timed_out", new.expires_at, None)
        async with opened(harness) as other:
            assert await other.waits(uid) == [wait]

    async def test_an_answer_after_the_deadline_learns_that_it_is_too_late(
        self, harness: StoreHarness, store: Store
    ) -> None:
        uid, new, key = await self._with_deadline(harness, store)
        await harness.advance(2 * TTL)
        late = await store.answer(key, "yes")
        assert (late.accepted, late.wait.state, late.wait.answer) == (False, "timed_out", None)
        assert (await store.wait(uid, new.id)).state == "timed_out"

    async def test_an_answer_before_the_deadline_outlives_it(self, harness: StoreHarness, store: Store) -> None:
        uid, new, key = await self._with_deadline(harness, store)
        answered = await store.answer(key, "yes")
        await harness.advance(2 * TTL)
        assert await store.wait(uid, new.id) == answered.wait

    async def test_a_wait_without_a_deadline_waits_for_ever(self, harness: StoreHarness, store: Store) -> None:
        uid, new, key = await _pending(store)
        await harness.advance(timedelta(days=400))
        assert (await store.wait(uid, new.id)).state == "pending"
        assert (await store.answer(key, "at last")).accepted

    # -- revoking ------------------------------------------------------------------------------------------------------

    async def test_the_key_of_a_revoked_wait_opens_nothing(self, harness: StoreHarness, store: Store) -> None:
        uid, new, key = await _pending(store)
        before = await harness.now()
        [revoked] = await store.revoke(uid, [new.id])
        assert (revoked.id, revoked.state) == (new.id, "revoked")
        assert revoked.settled_at is not None
        assert before <= revoked.settled_at <= await harness.now()
        async with opened(harness) as other:
            with pytest.raises(WaitNotFound):
                await other.answer(key, "yes")
            assert await other.wait(uid, new.id) == revoked

    async def test_revoking_leaves_other_waits_open(self, store: Store) -> None:
        uid, new, _ = await _pending(store)
        kept = a_wait()
        key = await store.open_wait(uid, kept)
        await store.revoke(uid, [new.id])
        assert (await store.answer(key, "yes")).accepted

    async def test_several_waits_are_revoked_in_the_order_asked(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        waits = [a_wait(name) for name in ("a", "b", "c")]
        for wait in waits:
            await store.open_wait(uid, wait)
        revoked = await store.revoke(uid, [waits[2].id, waits[0].id])
        assert [(wait.name, wait.state) for wait in revoked] == [("c", "revoked"), ("a", "revoked")]
        assert (await store.wait(uid, waits[1].id)).state == "pending"

    async def test_what_was_answered_cannot_be_revoked(self, store: Store) -> None:
        uid, new, key = await _pending(store)
        answered = await store.answer(key, "yes")
        assert await store.revoke(uid, [new.id]) == [answered.wait]
        assert (await store.answer(key, "yes")).accepted

    async def test_what_timed_out_cannot_be_revoked(self, harness: StoreHarness, store: Store) -> None:
        uid, new, _ = await self._with_deadline(harness, store)
        await harness.advance(2 * TTL)
        assert [wait.state for wait in await store.revoke(uid, [new.id])] == ["timed_out"]
        assert (await store.wait(uid, new.id)).state == "timed_out"

    async def test_revoking_twice_is_revoking_once(self, harness: StoreHarness, store: Store) -> None:
        uid, new, _ = await _pending(store)
        first = await store.revoke(uid, [new.id])
        await harness.advance(TTL)
        assert await store.revoke(uid, [new.id]) == first

    async def test_a_revoked_wait_stays_revoked_when_it_is_opened_again(self, store: Store) -> None:
        uid, new, _ = await _pending(store)
        await store.revoke(uid, [new.id])
        with contextlib.suppress(WaitNotFound):
            await store.open_wait(uid, new)
        assert (await store.wait(uid, new.id)).state == "revoked"

    async def test_another_sessions_wait_cannot_be_revoked(self, store: Store) -> None:
        uid, new, key = await _pending(store)
        other = await a_session(store)
        with contextlib.suppress(WaitNotFound):
            await store.revoke(other.uid, [new.id])
        assert (await store.wait(uid, new.id)).state == "pending"
        assert (await store.answer(key, "yes")).accepted

    async def test_an_answer_and_a_revocation_at_once_agree_on_who_won(
        self, harness: StoreHarness, store: Store
    ) -> None:
        uid, new, key = await _pending(store)
        async with opened(harness) as other:
            ends, refused = await race(store.answer(key, "yes"), other.revoke(uid, [new.id]))
        wait = await store.wait(uid, new.id)
        if wait.state == "answered":
            assert [end for end in ends if isinstance(end, Answered)] == [Answered(wait, accepted=True)]
        else:
            assert (wait.state, [type(error) for error in refused]) == ("revoked", [WaitNotFound])
        assert [end for end in ends if isinstance(end, list)] == [[wait]]

    # -- the session and its turns -------------------------------------------------------------------------------------

    async def test_an_answer_wakes_no_session_that_does_not_sleep(self, store: Store) -> None:
        uid, _, key = await _pending(store)
        await store.answer(key, "yes")
        assert (await store.find(uid)).ready_at is None

    async def test_an_answer_to_a_running_turn_does_not_call_a_second_worker(
        self, harness: StoreHarness, store: Store
    ) -> None:
        uid = (await a_session(store)).uid
        driven = await open_with(store, uid)
        key = await store.open_wait(uid, a_wait(turn=driven.turn.id))
        await store.answer(key, "yes")
        assert not await is_ready(harness, store, uid)

    async def test_a_wait_outlives_the_turn_that_opened_it(self, harness: StoreHarness, store: Store) -> None:
        uid = (await a_session(store)).uid
        driven, wait = await open_with(store, uid), a_wait()
        key = await store.open_wait(uid, wait)
        await settle_turn(store, driven)
        assert (await store.answer(key, "late")).accepted
        assert (await store.wait(uid, wait.id)).answer == "late"

    async def test_a_turn_that_settles_revokes_what_it_still_waits_for(
        self, harness: StoreHarness, store: Store
    ) -> None:
        uid = (await a_session(store)).uid
        driven = await open_with(store, uid)
        wait = a_wait(turn=driven.turn.id)
        key = await store.open_wait(uid, wait)
        receipt = await settle_turn(store, driven)
        revoked = await store.wait(uid, wait.id)
        assert (revoked.state, revoked.answer, revoked.settled_at) == ("revoked", None, receipt.committed_at)
        async with opened(harness) as webhook:
            with pytest.raises(WaitNotFound):
                await webhook.answer(key, "too late")
        assert await store.waits(uid) == [revoked]

    async def test_a_turn_that_settles_leaves_what_was_answered_or_timed_out(
        self, harness: StoreHarness, store: Store
    ) -> None:
        uid = (await a_session(store)).uid
        driven = await open_with(store, uid)
        answered = a_wait(turn=driven.turn.id)
        late = a_wait(turn=driven.turn.id, expires_at=await harness.now() + timedelta(seconds=1))
        keys = [await store.open_wait(uid, wait) for wait in (answered, late)]
        first = await store.answer(keys[0], "yes")
        await harness.advance(timedelta(seconds=2))
        await settle_turn(store, driven)
        assert await store.wait(uid, answered.id) == first.wait
        assert await store.answer(keys[0], "yes") == first
        assert not (await store.answer(keys[0], "no")).accepted
        timed_out = await store.wait(uid, late.id)
        assert (timed_out.state, timed_out.settled_at) == ("timed_out", late.expires_at)

    async def test_a_turn_that_settles_leaves_the_waits_of_others(self, store: Store) -> None:
        uid, other = (await a_session(store)).uid, (await a_session(store)).uid
        driven = await open_with(store, uid)
        of_another_turn = a_wait(turn=TurnId(new_id()))
        of_another_session = a_wait(turn=driven.turn.id)
        keys = [await store.open_wait(uid, of_another_turn), await store.open_wait(other, of_another_session)]
        await settle_turn(store, driven)
        assert [(await store.answer(key, "yes")).accepted for key in keys] == [True, True]

    async def test_a_wait_that_was_kept_with_the_journal_is_revoked_with_its_turn(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        driven = await open_with(store, uid)
        wait = a_wait(turn=driven.turn.id)
        await store.record(driven.lease, driven.turn.id, [replace(an_effect(), wait=wait.id)], waits=[wait])
        await settle_turn(store, driven)
        assert (await store.wait(uid, wait.id)).state == "revoked"

    async def test_a_turn_that_is_cancelled_revokes_what_it_still_waits_for(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        driven = await open_with(store, uid)
        wait = a_wait(turn=driven.turn.id)
        await store.open_wait(uid, wait)
        request = a_request_id()
        await store.request_cancel(uid, driven.turn.id, request, reason="stop")
        assert (await store.wait(uid, wait.id)).state == "pending"
        await settle_turn(store, driven, cancelled_by=request)
        assert (await store.wait(uid, wait.id)).state == "revoked"

    async def test_a_refused_commit_revokes_nothing(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        driven = await open_with(store, uid)
        wait = a_wait(turn=driven.turn.id)
        key = await store.open_wait(uid, wait)
        plan = await plan_of(store, driven)
        with pytest.raises(HeadMoved):
            await store.commit(replace(plan, base=plan.base + 1))
        assert (await store.wait(uid, wait.id)).state == "pending"
        assert (await store.answer(key, "in time")).accepted

    async def test_an_answer_and_the_settlement_of_its_turn_at_once_agree_on_who_won(
        self, harness: StoreHarness, store: Store
    ) -> None:
        uid = (await a_session(store)).uid
        driven = await open_with(store, uid)
        wait = a_wait(turn=driven.turn.id)
        key = await store.open_wait(uid, wait)
        plan = await plan_of(store, driven)
        async with opened(harness) as other:
            ends, refused = await race(store.commit(plan), other.answer(key, "yes"))
        kept = await store.wait(uid, wait.id)
        answers = [end for end in ends if isinstance(end, Answered)]
        if kept.state == "answered":
            assert (answers, refused) == ([Answered(kept, accepted=True)], [])
        else:
            assert (kept.state, answers) == ("revoked", [])
            assert [type(error) for error in refused] == [WaitNotFound]

    async def test_an_owner_that_died_while_parked_is_succeeded_by_one_that_finds_the_answer(
        self, harness: StoreHarness, store: Store
    ) -> None:
        uid = (await a_session(store)).uid
        driven = await open_with(store, uid)
        wait = a_wait(turn=driven.turn.id)
        key = await store.open_wait(uid, wait)
        await store.park(driven.lease, driven.turn.id, waits=[wait.id])
        async with opened(harness) as webhook:
            await webhook.answer(key, "approved")
        async with opened(harness) as worker:
            again = await must_open(worker, uid, "b")
            assert again.turn.id == driven.turn.id
            assert (await worker.wait(uid, wait.id)).answer == "approved"

    async def test_the_waits_of_a_deleted_session_are_gone(self, store: Store) -> None:
        uid, new, key = await _pending(store)
        await store.delete(uid)
        with pytest.raises(NotFound):
            await store.answer(key, "yes")
        with pytest.raises(SessionDeleted):
            await store.wait(uid, new.id)
        with pytest.raises(SessionDeleted):
            await store.waits(uid)
        with pytest.raises(SessionDeleted):
            await store.open_wait(uid, a_wait())
        with pytest.raises(SessionDeleted):
            await store.revoke(uid, [new.id])

    async def test_there_is_no_wait_without_a_session(self, store: Store) -> None:
        uid = SessionUid(new_id())
        with pytest.raises(SessionNotFound):
            await store.open_wait(uid, a_wait())
        with pytest.raises(SessionNotFound):
            await store.wait(uid, WaitId(new_id()))
