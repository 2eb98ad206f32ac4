"""The journal: what is recorded is authoritative, fenced by the lease, and retired with its turn."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from pydantic import JsonValue

from lash.errors import (
    InvalidValue,
    LashError,
    LeaseLost,
    OutcomeRecorded,
    ReplayMismatch,
    SessionDeleted,
    TooLarge,
    TurnParked,
    TurnSettled,
    WaitNotFound,
)
from lash.ids import ReplayKey, TurnId
from lash.limits import MAX_BODY
from lash.store.contract import Store
from lash.testing.builders import (
    TTL,
    a_session,
    a_wait,
    a_wait_id,
    an_effect,
    an_opening,
    finished,
    must_acquire,
    new_id,
    open_with,
    race,
    settle_turn,
    take_over,
)
from lash.testing.harness import StoreContract, StoreHarness, opened
from lash.turn.journal import (
    Finished,
    Fresh,
    Identity,
    JournalEntry,
    JournalRecord,
    Pending,
    Replay,
    Started,
    Unknown,
    recall,
)

TOOL = Identity("tool", 2, call_id="c1", tool_id="search", arguments_hash="abc")
OTHERS = {
    "kind": replace(TOOL, kind="model"),
    "step": replace(TOOL, step=3),
    "call_id": replace(TOOL, call_id="c2"),
    "tool_id": replace(TOOL, tool_id=None),
    "arguments_hash": replace(TOOL, arguments_hash="abd"),
}
"""TOOL with one thing changed, by the name of what differs."""

OUTCOMES: dict[str, JsonValue] = {
    "null": None,
    "false": False,
    "zero": 0,
    "a whole float": 1.0,
    "a large integer": 2**53 + 1,
    "an empty text": "",
    "text": 'quotes " and \\ and ünïcödé 🐙 and \u0000',
    "a tree": {"b": [1, {"c": None}], "a": {}},
}


def _exactly(value: JsonValue) -> str:
    """A text that tells 1 from 1.0 and from true."""
    return json.dumps(value, sort_keys=True)


def _by_key(journal: list[JournalEntry]) -> dict[str, JournalEntry]:
    return {entry.key: entry for entry in journal}


class JournalContract(StoreContract):
    """JournalStore."""

    # -- recording -----------------------------------------------------------------------------------------------------

    async def test_a_new_turn_has_an_empty_journal(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        driven = await open_with(store, uid)
        assert await store.journal(uid, driven.turn.id) == []
        assert recall(None, TOOL) == Fresh()

    async def test_a_started_marker_says_that_the_outcome_is_unknown(self, harness: StoreHarness, store: Store) -> None:
        uid = (await a_session(store)).uid
        driven, before = await open_with(store, uid), await harness.now()
        [kept] = await store.record(driven.lease, driven.turn.id, [Started(ReplayKey("tool:2"), TOOL, "digest")])
        assert (kept.key, kept.identity, kept.state, kept.composition) == ("tool:2", TOOL, "started", "digest")
        assert (kept.outcome, kept.finished_at, kept.wait) == (None, None, None)
        assert before <= kept.started_at <= await harness.now()
        async with opened(harness) as other:
            assert await other.journal(uid, driven.turn.id) == [kept]
        assert recall(kept, TOOL) == Unknown()

    async def test_a_started_marker_with_a_wait_is_pending(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        driven = await open_with(store, uid)
        wait = a_wait(turn=driven.turn.id)
        started = Started(ReplayKey("tool:2"), TOOL, wait=wait.id)
        await store.record(driven.lease, driven.turn.id, [started], waits=[wait])
        [entry] = await store.journal(uid, driven.turn.id)
        assert recall(entry, TOOL) == Pending(wait.id)

    async def test_an_attempt_that_hands_out_a_key_while_it_runs_becomes_pending(
        self, harness: StoreHarness, store: Store
    ) -> None:
        uid = (await a_session(store)).uid
        driven = await open_with(store, uid)
        await store.record(driven.lease, driven.turn.id, [Started(ReplayKey("tool:2"), TOOL)])
        wait = a_wait(turn=driven.turn.id)
        handed_out = Started(ReplayKey("tool:2"), TOOL, wait=wait.id)
        [kept] = await store.record(driven.lease, driven.turn.id, [handed_out], waits=[wait])
        async with opened(harness) as other:
            assert await other.journal(uid, driven.turn.id) == [kept]
        assert recall(kept, TOOL) == Pending(wait.id)

    @pytest.mark.parametrize("outcome", OUTCOMES.values(), ids=OUTCOMES.keys())
    async def test_a_completed_outcome_is_replayed_as_it_was(
        self, harness: StoreHarness, store: Store, outcome: JsonValue
    ) -> None:
        uid = (await a_session(store)).uid
        driven = await open_with(store, uid)
        await store.record(driven.lease, driven.turn.id, [Finished(ReplayKey("tool:2"), TOOL, outcome)])
        async with opened(harness) as other:
            [entry] = await other.journal(uid, driven.turn.id)
        replayed = recall(entry, TOOL)
        assert isinstance(replayed, Replay)
        assert (_exactly(replayed.outcome), replayed.failed) == (_exactly(outcome), False)

    async def test_a_failure_is_replayed_as_a_failure(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        driven = await open_with(store, uid)
        failure = Finished(ReplayKey("tool:2"), TOOL, {"error": "no such order"}, failed=True)
        [kept] = await store.record(driven.lease, driven.turn.id, [failure])
        assert kept.state == "failed"
        [entry] = await store.journal(uid, driven.turn.id)
        assert recall(entry, TOOL) == Replay({"error": "no such order"}, failed=True, composition_changed=False)

    async def test_a_marker_and_its_outcome_are_one_entry(self, harness: StoreHarness, store: Store) -> None:
        uid = (await a_session(store)).uid
        driven = await open_with(store, uid)
        wait = a_wait(turn=driven.turn.id)
        started = Started(ReplayKey("tool:2"), TOOL, "digest", wait.id)
        [marker] = await store.record(driven.lease, driven.turn.id, [started], waits=[wait])
        before = await harness.now()
        await store.record(driven.lease, driven.turn.id, [finished(started, "found")])
        [entry] = await store.journal(uid, driven.turn.id)
        assert (entry.state, entry.outcome, entry.started_at) == ("completed", "found", marker.started_at)
        assert (entry.composition, entry.wait) == ("digest", wait.id)
        assert entry.finished_at is not None
        assert before <= entry.finished_at <= await harness.now()

    async def test_a_marker_and_its_outcome_can_be_recorded_in_one_write(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        driven, effect = await open_with(store, uid), an_effect()
        await store.record(driven.lease, driven.turn.id, [effect, finished(effect, "hi")])
        [entry] = await store.journal(uid, driven.turn.id)
        assert (entry.state, entry.outcome) == ("completed", "hi")

    async def test_what_a_call_was_composed_of_may_change_and_the_outcome_is_used(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        driven, effect = await open_with(store, uid), replace(an_effect(), composition="before the deploy")
        await store.record(driven.lease, driven.turn.id, [effect, finished(effect, "hi")])
        await store.record(driven.lease, driven.turn.id, [replace(effect, composition="after the deploy")])
        [entry] = await store.journal(uid, driven.turn.id)
        again = recall(entry, effect.identity, "after the deploy")
        assert again == Replay("hi", failed=False, composition_changed=True)

    async def test_entries_are_returned_in_the_order_of_the_records(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        driven = await open_with(store, uid)
        effects = [an_effect(f"tool:{n}", step=n) for n in (3, 1, 2)]
        kept = await store.record(driven.lease, driven.turn.id, effects)
        assert [entry.key for entry in kept] == ["tool:3", "tool:1", "tool:2"]

    async def test_effects_may_finish_in_any_order(self, harness: StoreHarness, store: Store) -> None:
        uid = (await a_session(store)).uid
        driven = await open_with(store, uid)
        effects = [an_effect(f"tool:{n}", kind="tool", call_id=f"c{n}") for n in range(4)]
        await store.record(driven.lease, driven.turn.id, effects)
        for n in (2, 0, 3):
            await store.record(driven.lease, driven.turn.id, [finished(effects[n], n)])
        again = await take_over(harness, store, uid)
        journal = _by_key(await store.journal(uid, again.turn.id))
        found = [recall(journal[effect.key], effect.identity) for effect in effects]
        done = [Replay(n, failed=False, composition_changed=False) for n in range(4)]
        assert found == [done[0], Unknown(), done[2], done[3]]

    async def test_outcomes_recorded_at_once_are_all_kept(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        driven = await open_with(store, uid)
        effects = [an_effect(f"tool:{n}", call_id=f"c{n}") for n in range(6)]
        _, refused = await race(*(store.record(driven.lease, driven.turn.id, [finished(e, "ok")]) for e in effects))
        assert refused == []
        journal = await store.journal(uid, driven.turn.id)
        assert set(_by_key(journal)) == {effect.key for effect in effects}

    async def test_the_journal_is_in_the_order_of_its_events(self, store: Store) -> None:
        session = await a_session(store)
        driven = await open_with(store, session.uid)
        effects = [an_effect(f"tool:{n}") for n in range(3)]
        await store.record(driven.lease, driven.turn.id, effects)
        await store.record(driven.lease, driven.turn.id, [finished(effects[1])])
        seqs = [entry.seq for entry in await store.journal(session.uid, driven.turn.id)]
        assert seqs == sorted(set(seqs))
        assert driven.items[0].seq < seqs[0]
        assert seqs[-1] <= (await store.find(session.uid)).seq

    async def test_journals_of_two_sessions_are_apart(self, store: Store) -> None:
        one, two = await a_session(store), await a_session(store)
        first, second = await open_with(store, one.uid), await open_with(store, two.uid)
        effect = an_effect("model:1")
        await store.record(first.lease, first.turn.id, [finished(effect, "one")])
        await store.record(second.lease, second.turn.id, [finished(effect, "two")])
        assert [entry.outcome for entry in await store.journal(one.uid, first.turn.id)] == ["one"]
        assert [entry.outcome for entry in await store.journal(two.uid, second.turn.id)] == ["two"]

    # -- repeating -----------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("failed", [False, True], ids=["completed", "failed"])
    async def test_repeating_a_record_changes_nothing(self, harness: StoreHarness, store: Store, failed: bool) -> None:
        uid = (await a_session(store)).uid
        driven, effect = await open_with(store, uid), an_effect()
        records: list[JournalRecord] = [effect, finished(effect, {"a": 1, "b": 2}, failed=failed)]
        kept = await store.record(driven.lease, driven.turn.id, records)
        session, journal = await store.find(uid), await store.journal(uid, driven.turn.id)
        await harness.advance(TTL / 10)
        again = await store.record(driven.lease, driven.turn.id, [finished(effect, {"b": 2, "a": 1}, failed=failed)])
        assert again[-1] == kept[-1]
        assert await store.journal(uid, driven.turn.id) == journal
        assert await store.find(uid) == session

    async def test_a_late_marker_does_not_hide_an_outcome(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        driven, effect = await open_with(store, uid), an_effect()
        await store.record(driven.lease, driven.turn.id, [effect, finished(effect, "hi")])
        [entry] = await store.record(driven.lease, driven.turn.id, [effect])
        assert (entry.state, entry.outcome) == ("completed", "hi")

    @pytest.mark.parametrize(
        ("first", "second"),
        [
            (Finished(ReplayKey("k"), TOOL, "yes"), Finished(ReplayKey("k"), TOOL, "no")),
            (Finished(ReplayKey("k"), TOOL, "yes"), Finished(ReplayKey("k"), TOOL, "yes", failed=True)),
            (Finished(ReplayKey("k"), TOOL, "yes", failed=True), Finished(ReplayKey("k"), TOOL, "yes")),
            (Finished(ReplayKey("k"), TOOL, 1), Finished(ReplayKey("k"), TOOL, 1.0)),
        ],
        ids=["other outcome", "now failed", "no longer failed", "another number"],
    )
    async def test_the_first_outcome_stands(self, store: Store, first: Finished, second: Finished) -> None:
        uid = (await a_session(store)).uid
        driven = await open_with(store, uid)
        await store.record(driven.lease, driven.turn.id, [first])
        before = await store.journal(uid, driven.turn.id)
        with pytest.raises(OutcomeRecorded) as refusal:
            await store.record(driven.lease, driven.turn.id, [second])
        assert refusal.value.key == "k"
        assert await store.journal(uid, driven.turn.id) == before

    @pytest.mark.parametrize(("differs", "other"), OTHERS.items(), ids=OTHERS.keys())
    @pytest.mark.parametrize("known", ["started", "completed"])
    async def test_another_effect_under_a_known_key_is_refused_and_named(
        self, store: Store, differs: str, other: Identity, known: str
    ) -> None:
        uid = (await a_session(store)).uid
        driven, key = await open_with(store, uid), ReplayKey("tool:2")
        first = Started(key, TOOL) if known == "started" else Finished(key, TOOL, "found")
        await store.record(driven.lease, driven.turn.id, [first])
        before = await store.journal(uid, driven.turn.id)
        for record in (Started(key, other), Finished(key, other, "found")):
            with pytest.raises(ReplayMismatch) as refusal:
                await store.record(driven.lease, driven.turn.id, [record])
            assert (refusal.value.key, refusal.value.differs) == (key, (differs,))
        assert await store.journal(uid, driven.turn.id) == before

    # -- all or none ---------------------------------------------------------------------------------------------------

    async def test_when_one_record_is_refused_none_is_kept(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        driven, effect, wait = await open_with(store, uid), an_effect(), a_wait()
        await store.record(driven.lease, driven.turn.id, [finished(effect, "first")])
        session, journal = await store.find(uid), await store.journal(uid, driven.turn.id)
        with pytest.raises(OutcomeRecorded):
            await store.record(
                driven.lease, driven.turn.id, [an_effect("model:2"), finished(effect, "other")], waits=[wait]
            )
        assert await store.journal(uid, driven.turn.id) == journal
        assert await store.find(uid) == session
        with pytest.raises(WaitNotFound):
            await store.wait(uid, wait.id)

    @pytest.mark.parametrize(
        ("outcome", "error"),
        [(float("nan"), InvalidValue), ({"a": ["\ud800"]}, InvalidValue), ("x" * (MAX_BODY + 1), TooLarge)],
        ids=["not a number", "a lone surrogate", "too large"],
    )
    async def test_an_outcome_that_cannot_be_kept_is_refused(
        self, store: Store, outcome: JsonValue, error: type[LashError]
    ) -> None:
        uid = (await a_session(store)).uid
        driven = await open_with(store, uid)
        with pytest.raises(error):
            await store.record(driven.lease, driven.turn.id, [an_effect("a"), finished(an_effect("b"), outcome)])
        assert await store.journal(uid, driven.turn.id) == []
        assert await store.unsettled_turn(uid) == driven.turn

    async def test_a_marker_cannot_refer_to_a_wait_that_nobody_opened(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        driven = await open_with(store, uid)
        with pytest.raises(WaitNotFound):
            await store.record(driven.lease, driven.turn.id, [replace(an_effect(), wait=a_wait_id())])
        assert await store.journal(uid, driven.turn.id) == []

    async def test_waits_are_kept_with_the_markers_that_refer_to_them(
        self, harness: StoreHarness, store: Store
    ) -> None:
        uid = (await a_session(store)).uid
        driven = await open_with(store, uid)
        wait = a_wait("approve", turn=driven.turn.id)
        await store.record(driven.lease, driven.turn.id, [replace(an_effect(), wait=wait.id)], waits=[wait])
        async with opened(harness) as other:
            kept = await other.wait(uid, wait.id)
            assert (kept.name, kept.turn, kept.state) == ("approve", driven.turn.id, "pending")
            answered = await other.answer(await other.wait_key(uid, wait.id), "yes")
        assert answered.accepted

    async def test_repeating_a_record_with_its_wait_keeps_the_answer(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        driven = await open_with(store, uid)
        wait = a_wait(turn=driven.turn.id)
        started = replace(an_effect(), wait=wait.id)
        await store.record(driven.lease, driven.turn.id, [started], waits=[wait])
        await store.answer(await store.wait_key(uid, wait.id), "yes")
        await store.record(driven.lease, driven.turn.id, [started], waits=[wait])
        kept = await store.wait(uid, wait.id)
        assert (kept.state, kept.answer) == ("answered", "yes")

    # -- the fence -----------------------------------------------------------------------------------------------------

    async def test_a_displaced_owner_records_nothing(self, harness: StoreHarness, store: Store) -> None:
        uid = (await a_session(store)).uid
        slow, effect, wait = await open_with(store, uid, owner="slow"), an_effect(), a_wait()
        await store.record(slow.lease, slow.turn.id, [effect])
        before = await store.journal(uid, slow.turn.id)
        await take_over(harness, store, uid, "fast")
        with pytest.raises(LeaseLost):
            await store.record(slow.lease, slow.turn.id, [finished(effect)], waits=[wait])
        assert await store.journal(uid, slow.turn.id) == before
        assert await store.waits(uid) == []

    async def test_a_displaced_owner_cannot_even_repeat_a_record(self, harness: StoreHarness, store: Store) -> None:
        uid = (await a_session(store)).uid
        slow, effect = await open_with(store, uid, owner="slow"), an_effect()
        await store.record(slow.lease, slow.turn.id, [effect])
        await take_over(harness, store, uid, "fast")
        with pytest.raises(LeaseLost):
            await store.record(slow.lease, slow.turn.id, [effect])

    async def test_a_redrive_reads_what_the_dead_attempt_recorded(self, harness: StoreHarness, store: Store) -> None:
        uid = (await a_session(store)).uid
        dead = await open_with(store, uid, owner="dead")
        first, second = an_effect("model:1"), an_effect("tool:1", kind="tool")
        await store.record(dead.lease, dead.turn.id, [first, finished(first, "call the tool"), second])
        before = await store.journal(uid, dead.turn.id)
        async with opened(harness) as other:
            again = await take_over(harness, other, uid)
            assert await other.journal(uid, again.turn.id) == before
            await other.record(again.lease, again.turn.id, [finished(second, "done")])
        entry = _by_key(await store.journal(uid, dead.turn.id))["tool:1"]
        assert (entry.state, entry.outcome) == ("completed", "done")

    async def test_a_record_and_a_takeover_at_once_leave_one_story(self, harness: StoreHarness, store: Store) -> None:
        """What the late owner was told is recorded is there for its successor, and nothing else."""
        uid = (await a_session(store)).uid
        late = await open_with(store, uid, owner="late")
        await harness.advance(2 * TTL)
        async with opened(harness) as other:
            _, refused = await race(
                store.record(late.lease, late.turn.id, [an_effect()]), other.open_turn(an_opening(uid, "fast"))
            )
        recorded = [entry.state for entry in await store.journal(uid, late.turn.id)] == ["started"]
        assert [type(error) for error in refused] == ([] if recorded else [LeaseLost])

    async def test_a_parked_turn_records_nothing(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        driven = await open_with(store, uid)
        await store.park(driven.lease, driven.turn.id)
        with pytest.raises(LeaseLost):
            await store.record(driven.lease, driven.turn.id, [an_effect()])
        lease = await must_acquire(store, uid, "b")
        with pytest.raises(TurnParked):
            await store.record(lease, driven.turn.id, [an_effect()])
        assert await store.journal(uid, driven.turn.id) == []

    async def test_only_the_unsettled_turn_records(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        driven = await open_with(store, uid)
        with pytest.raises(TurnSettled):
            await store.record(driven.lease, TurnId(new_id()), [an_effect()])
        await settle_turn(store, driven)
        with pytest.raises(TurnSettled):
            await store.record(driven.lease, driven.turn.id, [an_effect()])

    async def test_a_deleted_session_has_no_journal(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        driven = await open_with(store, uid)
        await store.delete(uid)
        with pytest.raises(SessionDeleted):
            await store.record(driven.lease, driven.turn.id, [an_effect()])
        with pytest.raises(SessionDeleted):
            await store.journal(uid, driven.turn.id)

    # -- parking and settling ------------------------------------------------------------------------------------------

    async def test_a_parked_turn_keeps_its_journal(self, harness: StoreHarness, store: Store) -> None:
        uid = (await a_session(store)).uid
        driven, effect = await open_with(store, uid), an_effect()
        await store.record(driven.lease, driven.turn.id, [effect, finished(effect, "hi")])
        before = await store.journal(uid, driven.turn.id)
        await store.park(driven.lease, driven.turn.id)
        async with opened(harness) as other:
            assert await other.journal(uid, driven.turn.id) == before

    async def test_the_journal_is_retired_by_the_commit_that_settles_the_turn(
        self, harness: StoreHarness, store: Store
    ) -> None:
        uid = (await a_session(store)).uid
        driven, effect = await open_with(store, uid), an_effect()
        await store.record(driven.lease, driven.turn.id, [effect, finished(effect)])
        await settle_turn(store, driven)
        async with opened(harness) as other:
            assert await other.journal(uid, driven.turn.id) == []

    async def test_a_refused_commit_keeps_the_journal(self, harness: StoreHarness, store: Store) -> None:
        uid = (await a_session(store)).uid
        slow, effect = await open_with(store, uid, owner="slow"), an_effect()
        await store.record(slow.lease, slow.turn.id, [effect, finished(effect)])
        before = await store.journal(uid, slow.turn.id)
        await take_over(harness, store, uid, "fast")
        with pytest.raises(LeaseLost):
            await settle_turn(store, slow)
        assert await store.journal(uid, slow.turn.id) == before

    async def test_the_same_keys_are_fresh_in_the_next_turn(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        first, effect = await open_with(store, uid), an_effect("model:1")
        await store.record(first.lease, first.turn.id, [finished(effect, "one")])
        await settle_turn(store, first)
        second = await open_with(store, uid)
        [kept] = await store.record(second.lease, second.turn.id, [Finished(effect.key, TOOL, "two")])
        assert (kept.identity, kept.outcome) == (TOOL, "two")

    async def test_settling_one_session_retires_no_journal_of_another(self, store: Store) -> None:
        one, two = await a_session(store), await a_session(store)
        first, second = await open_with(store, one.uid), await open_with(store, two.uid)
        await store.record(second.lease, second.turn.id, [an_effect()])
        await settle_turn(store, first)
        assert len(await store.journal(two.uid, second.turn.id)) == 1
