from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from pydantic import JsonValue

from lash.errors import OutcomeRecorded, ReplayMismatch
from lash.ids import ReplayKey, WaitId
from lash.turn.journal import (
    Finished,
    Fresh,
    Identity,
    JournalEntry,
    JournalRecord,
    Pending,
    Recall,
    Replay,
    Started,
    Unknown,
    recall,
    write,
)

from ..samples import MINUTE, NOW

KEY = ReplayKey("tool:1:a")
TOOL = Identity("tool", 1, call_id="a", tool_id="find_order", arguments_hash="f" * 64)
WAIT, OTHER_WAIT = WaitId("9" * 32), WaitId("a" * 32)
LATER = NOW + MINUTE

STARTED = JournalEntry(KEY, TOOL, "started", seq=3, started_at=NOW, composition="c1")
PENDING = replace(STARTED, wait=WAIT)
COMPLETED = replace(STARTED, state="completed", seq=4, outcome={"ok": 1}, finished_at=NOW)
FAILED = replace(COMPLETED, state="failed")

OTHER_IDENTITIES: dict[str, dict[str, Any]] = {
    "kind": {"kind": "model"},
    "step": {"step": 2},
    "call_id": {"call_id": "b"},
    "tool_id": {"tool_id": None},
    "arguments_hash": {"arguments_hash": "e" * 64},
}


# -- write -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wait", [None, WAIT])
def test_a_started_marker_is_kept_with_its_composition_and_wait(wait: WaitId | None) -> None:
    entry = write(None, Started(KEY, TOOL, composition="c1", wait=wait), seq=3, now=NOW)
    assert entry == replace(STARTED, wait=wait)


@pytest.mark.parametrize("known", [STARTED, PENDING, COMPLETED, FAILED])
def test_starting_again_changes_nothing(known: JournalEntry) -> None:
    assert write(known, Started(KEY, TOOL, composition="c1", wait=known.wait), seq=9, now=LATER) is None


def test_an_attempt_that_hands_out_a_key_while_it_runs_becomes_pending() -> None:
    entry = write(STARTED, Started(KEY, TOOL, wait=WAIT), seq=9, now=LATER)
    assert entry == replace(PENDING, seq=9)
    assert recall(entry, TOOL) == Pending(WAIT)


def test_an_attempt_that_handed_out_a_key_stays_pending_when_it_is_started_again_without_one() -> None:
    assert write(PENDING, Started(KEY, TOOL), seq=9, now=LATER) is None


def test_an_attempt_cannot_be_pending_on_two_waits() -> None:
    with pytest.raises(ReplayMismatch) as refused:
        write(PENDING, Started(KEY, TOOL, wait=OTHER_WAIT), seq=9, now=LATER)
    assert (refused.value.key, refused.value.differs) == (KEY, ("wait",))


@pytest.mark.parametrize("known", [COMPLETED, FAILED, replace(COMPLETED, wait=WAIT)])
def test_an_attempt_that_is_over_hands_out_no_key(known: JournalEntry) -> None:
    assert write(known, Started(KEY, TOOL, wait=OTHER_WAIT), seq=9, now=LATER) is None


@pytest.mark.parametrize(("failed", "state"), [(False, "completed"), (True, "failed")])
@pytest.mark.parametrize(
    ("known", "started_at", "composition", "wait"),
    [(None, LATER, None, None), (STARTED, NOW, "c1", None), (PENDING, NOW, "c1", WAIT)],
    ids=["no marker", "started", "pending"],
)
def test_the_first_outcome_is_kept_with_what_the_marker_said(
    known: JournalEntry | None, started_at: Any, composition: str | None, wait: WaitId | None, failed: bool, state: Any
) -> None:
    entry = write(known, Finished(KEY, TOOL, {"ok": 1}, failed=failed), seq=9, now=LATER)
    assert entry == JournalEntry(
        KEY, TOOL, state, 9, started_at, outcome={"ok": 1}, finished_at=LATER, composition=composition, wait=wait
    )


def test_the_composition_of_the_outcome_is_the_one_that_counts() -> None:
    entry = write(STARTED, Finished(KEY, TOOL, None, composition="c2"), seq=9, now=LATER)
    assert entry is not None
    assert entry.composition == "c2"


@pytest.mark.parametrize(
    ("known", "outcome", "failed", "repeats"),
    [
        (COMPLETED, {"ok": 1}, False, True),
        (COMPLETED, {"ok": 1}, True, False),
        (COMPLETED, {"ok": 2}, False, False),
        (COMPLETED, {"ok": 1.0}, False, False),
        (COMPLETED, {"ok": True}, False, False),
        (COMPLETED, None, False, False),
        (FAILED, {"ok": 1}, True, True),
        (FAILED, {"ok": 1}, False, False),
        (FAILED, {"ok": 2}, True, False),
    ],
)
def test_a_first_outcome_stands(known: JournalEntry, outcome: JsonValue, failed: bool, repeats: bool) -> None:
    again = Finished(KEY, TOOL, outcome, failed=failed)
    if repeats:
        assert write(known, again, seq=9, now=LATER) is None
    else:
        with pytest.raises(OutcomeRecorded, match=KEY):
            write(known, again, seq=9, now=LATER)


@pytest.mark.parametrize("differs", OTHER_IDENTITIES)
@pytest.mark.parametrize("known", [STARTED, PENDING, COMPLETED, FAILED])
def test_another_effect_under_a_known_key_is_refused_and_says_what_differs(known: JournalEntry, differs: str) -> None:
    other = replace(TOOL, **OTHER_IDENTITIES[differs])
    records: list[JournalRecord] = [Started(KEY, other), Finished(KEY, other, {"ok": 1})]
    for new in records:
        with pytest.raises(ReplayMismatch) as refused:
            write(known, new, seq=9, now=LATER)
        assert refused.value.differs == (differs,)


# -- recall ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("entry", "composition", "known"),
    [
        (None, None, Fresh()),
        (None, "c1", Fresh()),
        (STARTED, "c1", Unknown()),
        (STARTED, "c2", Unknown()),
        (PENDING, "c2", Pending(WAIT)),
        (COMPLETED, "c1", Replay({"ok": 1}, failed=False, composition_changed=False)),
        (COMPLETED, "c2", Replay({"ok": 1}, failed=False, composition_changed=True)),
        (COMPLETED, None, Replay({"ok": 1}, failed=False, composition_changed=False)),
        (replace(COMPLETED, composition=None), "c2", Replay({"ok": 1}, failed=False, composition_changed=False)),
        (FAILED, "c1", Replay({"ok": 1}, failed=True, composition_changed=False)),
        (FAILED, "c2", Replay({"ok": 1}, failed=True, composition_changed=True)),
        (replace(COMPLETED, wait=WAIT), "c1", Replay({"ok": 1}, failed=False, composition_changed=False)),
    ],
)
def test_what_the_journal_knows_decides_whether_an_effect_runs(
    entry: JournalEntry | None, composition: str | None, known: Recall
) -> None:
    assert recall(entry, TOOL, composition) == known


@pytest.mark.parametrize("differs", OTHER_IDENTITIES)
@pytest.mark.parametrize("entry", [STARTED, PENDING, COMPLETED, FAILED])
def test_a_redrive_that_decides_differently_is_stopped_and_told_what_differs(entry: JournalEntry, differs: str) -> None:
    with pytest.raises(ReplayMismatch) as refused:
        recall(entry, replace(TOOL, **OTHER_IDENTITIES[differs]), "c1")
    assert (refused.value.key, refused.value.differs) == (KEY, (differs,))


def test_everything_that_differs_is_named() -> None:
    with pytest.raises(ReplayMismatch) as refused:
        recall(COMPLETED, Identity("model", 2))
    assert refused.value.differs == ("kind", "step", "call_id", "tool_id", "arguments_hash")
    assert "kind, step, call_id, tool_id, arguments_hash" in str(refused.value)


def test_the_identity_has_no_part_that_was_not_tried() -> None:
    assert set(OTHER_IDENTITIES) == set(Identity.__slots__)


def test_an_identity_is_written_without_what_is_absent() -> None:
    assert Identity("model", 0).encode() == {"kind": "model", "step": 0}
    assert TOOL.encode() == {
        "kind": "tool",
        "step": 1,
        "call_id": "a",
        "tool_id": "find_order",
        "arguments_hash": "f" * 64,
    }
