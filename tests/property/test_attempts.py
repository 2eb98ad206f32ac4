"""Attempts against a model that remembers every process that ever took the turn up."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from lash.ids import SessionUid, TurnId
from lash.turn.record import Turn, attempt, hand_over, park, progress

from .values import hundred_examples

NOW = datetime(2026, 1, 1, tzinfo=UTC)

drives = st.tuples(st.integers(0, 2), st.sampled_from(["dies", "dies", "hands over", "parks"]))
"""One process with the turn: how often it journals something new, and how it ends."""


def a_fresh_turn() -> Turn:
    return Turn(
        id=TurnId("7" * 32),
        session=SessionUid("5" * 32),
        agent="default",
        state="open",
        attempts=0,
        generation=0,
        base_revision=0,
        config_revision=0,
        catalog_revision=0,
        opened_at=NOW,
    )


@dataclass
class Model:
    """The attempts that count: those since the last progress that did not end on purpose."""

    counting: list[int] = field(default_factory=list)

    def drive(self, number: int, journals: int, ends: str) -> None:
        self.counting.append(number)
        if journals or ends == "parks":
            self.counting.clear()
        elif ends == "hands over":
            self.counting.remove(number)


def drive(turn: Turn, generation: int, journals: int, ends: str) -> Turn:
    turn = attempt(turn, generation)
    for _ in range(journals):
        turn = progress(turn)
    match ends:
        case "hands over":
            return hand_over(turn)
        case "parks":
            return park(turn, None)
        case _:
            return turn


@hundred_examples
@given(st.lists(drives, max_size=20))
def test_only_deaths_without_progress_count(history: list[tuple[int, str]]) -> None:
    turn, model = a_fresh_turn(), Model()
    for number, (journals, ends) in enumerate(history, start=1):
        turn = drive(turn, number, journals, ends)
        model.drive(number, journals, ends)
        assert turn.attempts == len(model.counting)
        assert turn.generation == number
        assert turn.state == ("parked" if ends == "parks" else "open")


@hundred_examples
@given(st.lists(drives, max_size=5), st.integers(1, 10))
def test_a_turn_that_keeps_dying_is_noticed_after_as_many_deaths(history: list[tuple[int, str]], deaths: int) -> None:
    turn = progress(a_fresh_turn())
    for number, (journals, ends) in enumerate(history):
        turn = drive(turn, number, journals, ends)
    before = turn.attempts
    for number in range(deaths):
        turn = drive(turn, number, 0, "dies")
    assert turn.attempts == before + deaths


@hundred_examples
@given(st.integers(1, 50))
def test_handing_over_for_ever_never_looks_like_a_crash_loop(times: int) -> None:
    turn = a_fresh_turn()
    for number in range(times):
        turn = drive(turn, number, 0, "hands over")
    assert turn.attempts == 0
