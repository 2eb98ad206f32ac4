"""The line in front of the writer: who goes next, with whom, and who waits."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lash.ids import SessionUid
from lash.store.line import Line, Submitted
from lash.store.sql.steps import Settled, Steps, Work, Write

MIB = 1024 * 1024
NOW, LATER = 0.0, 60.0
NOBODY = cast("asyncio.Future[Settled[Any]]", None)


def _never(_: Work) -> Steps[None]:
    raise AssertionError("the line runs nothing")


def a_write(sessions: str = "a", *, urgent: bool = False, size: int = 0, misses: int = 0) -> Submitted:
    """A write of sessions with names of one letter."""
    return Submitted(Write(tuple(map(SessionUid, sessions)), _never, size=size, urgent=urgent), NOBODY, misses=misses)


def a_line(*writes: Submitted) -> Line:
    line = Line()
    for write in writes:
        line.join(write)
    return line


def next_batch(line: Line) -> list[Submitted]:
    return line.next_batch(NOW, patience=True)


def set_aside(line: Line) -> None:
    """The only one in line has missed too often."""
    (one,) = next_batch(line)
    one.misses = 3
    line.go_back([one], NOW)


# -- order -------------------------------------------------------------------------------------------------------------


def test_writes_leave_in_the_order_in_which_they_came() -> None:
    writes = [a_write("a"), a_write("b"), a_write("a"), a_write("")]
    line = a_line(*writes)
    assert next_batch(line) == writes
    assert not line.due


def test_urgent_writes_go_before_others_and_keep_their_own_order() -> None:
    plain, one, two = a_write("a"), a_write("b", urgent=True), a_write("c", urgent=True)
    assert next_batch(a_line(plain, one, two)) == [one, two, plain]


def test_an_urgent_write_does_not_overtake_its_own_session() -> None:
    other, first, urgent = a_write("b"), a_write("a"), a_write("a", urgent=True)
    assert next_batch(a_line(other, first, urgent)) == [other, first, urgent]


def test_an_urgent_write_of_several_sessions_overtakes_none_of_them() -> None:
    other, first, urgent = a_write("c"), a_write("b"), a_write("ab", urgent=True)
    assert next_batch(a_line(other, first, urgent)) == [other, first, urgent]


def test_a_write_does_not_overtake_an_urgent_one_of_its_session() -> None:
    first, second, third = a_write("a", urgent=True), a_write("a"), a_write("a", urgent=True)
    assert next_batch(a_line(first, second, third)) == [first, second, third]


def test_an_urgent_write_does_not_overtake_one_that_is_being_settled() -> None:
    """It may have to come back."""
    first, urgent = a_write("a"), a_write("a", urgent=True)
    line = a_line(first)
    assert next_batch(line) == [first]
    line.join(urgent)
    line.go_back([first], NOW)
    assert next_batch(line) == [first, urgent]


def test_an_urgent_write_does_not_overtake_one_that_was_set_aside() -> None:
    first, urgent = a_write("a"), a_write("a", urgent=True)
    line = a_line(first)
    set_aside(line)
    line.join(urgent)
    assert next_batch(line) == []
    line.bring_back(LATER)
    assert next_batch(line) == [first, urgent]


def test_an_urgent_write_overtakes_again_once_its_session_has_its_answers() -> None:
    first, other, urgent = a_write("a"), a_write("b"), a_write("a", urgent=True)
    line = a_line(first)
    next_batch(line)
    line.leave(first)
    line.join(other)
    line.join(urgent)
    assert next_batch(line) == [urgent, other]


def test_what_goes_back_is_first_again_in_its_old_order() -> None:
    one, two, three = a_write("a"), a_write("b"), a_write("c")
    line = a_line(one, two)
    batch = next_batch(line)
    line.join(three)
    line.go_back(batch, NOW)
    assert next_batch(line) == [one, two, three]


# -- bounds ------------------------------------------------------------------------------------------------------------


def test_at_most_256_writes_go_together() -> None:
    writes = [a_write(str(n % 10)) for n in range(300)]
    line = a_line(*writes)
    assert [next_batch(line), next_batch(line), next_batch(line)] == [writes[:256], writes[256:], []]


def test_at_most_4_mib_go_together() -> None:
    writes = [a_write("a", size=MIB) for _ in range(5)]
    line = a_line(*writes)
    assert [next_batch(line), next_batch(line)] == [writes[:4], writes[4:]]


def test_one_byte_too_many_waits_for_the_next_batch_and_is_not_overtaken() -> None:
    first, second, small = a_write("a", size=4 * MIB - 1), a_write("b", size=2), a_write("c", size=1)
    line = a_line(first, second, small)
    assert [next_batch(line), next_batch(line)] == [[first], [second, small]]


def test_a_write_that_is_larger_than_a_batch_goes_alone() -> None:
    huge, small = a_write("a", size=9 * MIB), a_write("b", size=1)
    line = a_line(huge, small)
    assert [next_batch(line), next_batch(line)] == [[huge], [small]]


def test_a_write_counts_until_it_has_its_answer() -> None:
    one, two = a_write("a", size=3), a_write("b", size=4)
    line = a_line(one, two)
    next_batch(line)
    assert (line.writes, line.bytes, line.due) == (2, 7, False)
    line.leave(two)
    assert (line.writes, line.bytes) == (1, 3)


# -- those that meet something held ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("misses", "together"), [(0, True), (2, True), (3, False)])
def test_a_write_that_missed_three_times_goes_alone(misses: int, together: bool) -> None:
    before, missed, after = a_write("a"), a_write("b", misses=misses), a_write("c")
    line = a_line(before, missed, after)
    batches = [next_batch(line), next_batch(line), next_batch(line)]
    assert batches == ([[before, missed, after], [], []] if together else [[before], [missed], [after]])


def test_what_follows_a_write_that_was_set_aside_is_set_aside_too() -> None:
    held, other, later = a_write("a"), a_write("b"), a_write("a")
    line = a_line(held)
    set_aside(line)
    line.join(other)
    line.join(later)
    assert next_batch(line) == [other]
    assert not line.due
    line.bring_back(LATER)
    assert next_batch(line) == [held, later]
    assert line.everyone() == []


def test_what_follows_by_way_of_another_session_is_set_aside_too() -> None:
    held, both, later = a_write("a"), a_write("ab"), a_write("b")
    line = a_line(held)
    set_aside(line)
    line.join(both)
    line.join(later)
    assert next_batch(line) == []
    line.bring_back(LATER)
    assert next_batch(line) == [held, both, later]


def test_those_that_are_brought_back_go_before_those_that_came_meanwhile() -> None:
    held, other = a_write("a"), a_write("b")
    line = a_line(held)
    set_aside(line)
    line.join(other)
    line.bring_back(LATER)
    assert next_batch(line) == [held, other]


def test_a_write_that_comes_back_stays_before_a_later_one_that_was_set_aside_for_another_session() -> None:
    held, first, both = a_write("a"), a_write("b"), a_write("ab")
    line = a_line(held)
    set_aside(line)
    line.join(first)
    line.join(both)
    assert next_batch(line) == [first]  # and the one that follows both of them is set aside
    line.go_back([first], NOW)
    line.bring_back(LATER)
    assert [write for write in next_batch(line) if write is not held] == [first, both]


def test_everyone_who_waits_is_found() -> None:
    aside, urgent, plain = a_write("a"), a_write("b", urgent=True), a_write("c")
    line = a_line(aside)
    set_aside(line)
    line.join(urgent)
    line.join(plain)
    assert set(line.everyone()) == {aside, urgent, plain}


# -- any history -------------------------------------------------------------------------------------------------------


def settle(line: Line, held: Collection[str]) -> list[Submitted]:
    """Settle the next batch as the writer does while somebody holds these sessions. Who got an answer is returned."""
    blocked, answered, missed = set(held), [], []
    for one in next_batch(line):
        if blocked.isdisjoint(one.write.sessions):
            line.leave(one)
            answered.append(one)
            continue
        blocked.update(one.write.sessions)
        missed.append(one)
    line.go_back(missed, NOW)
    return answered


joining = st.builds(
    a_write, st.sampled_from(["a", "b", "c", "ab", "bc"]), urgent=st.booleans(), misses=st.sampled_from([0, 0, 3])
)
rounds = st.tuples(
    st.lists(joining, max_size=4),
    st.sampled_from([False, False, True]),
    st.sampled_from(["", "a", "b", "c"]),
)
"""Who joins, whether those set aside come back, and what is held while the next batch is settled."""


@settings(max_examples=300, deadline=None)
@given(st.lists(rounds, min_size=10, max_size=20))
def test_whatever_is_held_the_writes_of_a_session_leave_in_the_order_in_which_they_came(
    history: list[tuple[list[Submitted], bool, str]],
) -> None:
    line, came, left = Line(), list[Submitted](), list[Submitted]()
    for joining, brings_back, held in [*history, *[([], True, "")] * 99]:
        for one in joining:
            line.join(one)
        came += joining
        if brings_back:
            line.bring_back(LATER)
        left += settle(line, held)
    for session in "abc":
        assert [w for w in left if session in w.write.sessions] == [w for w in came if session in w.write.sessions]
    assert (line.writes, line.everyone()) == (0, [])
