"""Any order of markers and outcomes, from redrives that agree and from ones that do not."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import takewhile

from hypothesis import given
from hypothesis import strategies as st
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
    Replay,
    Started,
    Unknown,
    recall,
    write,
)

from .values import hundred_examples

START = datetime(2026, 1, 1, tzinfo=UTC)
WAITS = [WaitId("8" * 32), WaitId("9" * 32)]
KEYS = [ReplayKey(key) for key in ("model:1", "tool:1:a", "tool:1:b")]

keys = st.sampled_from(KEYS)
identities = st.sampled_from([Identity("tool", 1, call_id="a")] * 4 + [Identity("tool", 2, call_id="a")])
started = st.builds(
    Started,
    keys,
    identities,
    composition=st.sampled_from([None, "c1", "c2"]),
    wait=st.sampled_from([None, *WAITS]),
)
finished = st.builds(
    Finished,
    keys,
    identities,
    st.sampled_from([None, 1, 1.0, {"a": 1}]),
    failed=st.booleans(),
    composition=st.sampled_from([None, "c1", "c2"]),
)
histories = st.lists(started | finished, max_size=25)


def play(history: list[JournalRecord]) -> tuple[dict[ReplayKey, JournalEntry], list[JournalRecord]]:
    """The journal after a history, and the records that it accepted."""
    journal: dict[ReplayKey, JournalEntry] = {}
    accepted: list[JournalRecord] = []
    for seq, new in enumerate(history):
        try:
            entry = write(journal.get(new.key), new, seq=seq, now=START + timedelta(seconds=seq))
        except (ReplayMismatch, OutcomeRecorded):
            continue
        accepted.append(new)
        if entry is not None:
            journal[new.key] = entry
    return journal, accepted


def typed(value: JsonValue) -> str:
    """Tells 1 from 1.0, which == does not."""
    return repr(value)


@hundred_examples
@given(histories)
def test_the_first_effect_and_its_first_outcome_stand(history: list[JournalRecord]) -> None:
    journal, _ = play(history)
    for key in KEYS:
        records = [new for new in history if new.key == key]
        if not records:
            assert key not in journal
            continue
        identity = records[0].identity
        outcomes = [new for new in records if isinstance(new, Finished) and new.identity == identity]
        entry = journal[key]
        assert entry.identity == identity
        if outcomes:
            first = outcomes[0]
            assert entry.state == ("failed" if first.failed else "completed")
            assert typed(entry.outcome) == typed(first.outcome)
        else:
            assert (entry.state, entry.outcome, entry.finished_at) == ("started", None, None)


@hundred_examples
@given(histories)
def test_the_first_key_that_an_effect_hands_out_before_its_outcome_stands(history: list[JournalRecord]) -> None:
    journal, _ = play(history)
    for key, entry in journal.items():
        same = [new for new in history if new.key == key and new.identity == entry.identity]
        before = takewhile(lambda new: isinstance(new, Started), same)
        waits = [new.wait for new in before if isinstance(new, Started) and new.wait is not None]
        assert entry.wait == (waits[0] if waits else None)


@hundred_examples
@given(histories)
def test_a_redrive_that_repeats_everything_changes_nothing(history: list[JournalRecord]) -> None:
    journal, accepted = play(history)
    again, _ = play([*history, *accepted])
    assert again == journal


def waits_elsewhere(known: JournalEntry, new: JournalRecord) -> bool:
    """Whether an effect that still runs is said to wait for something else."""
    return isinstance(new, Started) and known.finished_at is None and {known.wait, new.wait} == set(WAITS)


@hundred_examples
@given(histories)
def test_an_effect_is_refused_exactly_when_it_differs_from_what_is_recorded(history: list[JournalRecord]) -> None:
    seen: dict[ReplayKey, JournalEntry] = {}
    for seq, new in enumerate(history):
        known = seen.get(new.key)
        other = known is not None and (known.identity != new.identity or waits_elsewhere(known, new))
        settled = known is not None and known.finished_at is not None and isinstance(new, Finished)
        changed = (
            settled
            and isinstance(new, Finished)
            and known is not None
            and (typed(known.outcome), known.state == "failed") != (typed(new.outcome), new.failed)
        )
        try:
            entry = write(known, new, seq=seq, now=START)
        except ReplayMismatch:
            assert other
        except OutcomeRecorded:
            assert changed
            assert not other
        else:
            assert not other
            assert not changed
            if entry is not None:
                seen[new.key] = entry


@hundred_examples
@given(histories, keys)
def test_recall_runs_only_what_was_never_started(history: list[JournalRecord], key: ReplayKey) -> None:
    journal, _ = play(history)
    entry = journal.get(key)
    if entry is None:
        assert recall(entry, Identity("model", 9)) == Fresh()
        return
    answer = recall(entry, entry.identity, "c2")
    match entry.state:
        case "started":
            assert answer == (Pending(entry.wait) if entry.wait else Unknown())
        case state:
            changed = entry.composition == "c1"
            assert answer == Replay(entry.outcome, failed=state == "failed", composition_changed=changed)
