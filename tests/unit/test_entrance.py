"""The entrance to the line: who may join it, and who waits for whom."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any, cast
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lash.ids import SessionUid
from lash.store import entrance as entrance_module
from lash.store.entrance import Entrance
from lash.store.line import Submitted
from lash.store.sql.steps import Settled, Steps, Work, Write

MIB = 1024 * 1024
NOBODY = cast("asyncio.Future[Settled[Any]]", None)


def _never(_: Work) -> Steps[None]:
    raise AssertionError("nothing is run here")


def a_write(sessions: str = "a", *, size: int = 0) -> Submitted:
    """A write of sessions with names of one letter."""
    return Submitted(Write(tuple(map(SessionUid, sessions)), _never, size=size), NOBODY)


def an_entrance(*writes: Submitted) -> Entrance:
    entrance = Entrance()
    for write in writes:
        entrance.come(write)
    return entrance


def all_that_may_join(entrance: Entrance) -> list[Submitted]:
    joined = []
    while entrance.first is not None:
        joined.append(entrance.join_line())
    return joined


@pytest.fixture
def two_of_a_session(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entrance_module, "MAX_OF_SESSION", 2)


def test_64_writes_of_a_session_may_be_in_line() -> None:
    writes = [a_write("a") for _ in range(100)]
    entrance = an_entrance(*writes)
    assert (entrance.waiting, all_that_may_join(entrance), entrance.waiting) == (100, writes[:64], 36)


def test_4_mib_of_a_session_may_be_in_line() -> None:
    large, one_byte, other = a_write("a", size=4 * MIB), a_write("a", size=1), a_write("b", size=4 * MIB)
    assert all_that_may_join(an_entrance(large, one_byte, other)) == [large, other]


def test_one_write_of_a_session_may_be_in_line_however_large() -> None:
    huge, next_ = a_write("a", size=9 * MIB), a_write("a")
    entrance = an_entrance(huge, next_)
    assert all_that_may_join(entrance) == [huge]
    entrance.done(huge)
    assert all_that_may_join(entrance) == [next_]


@pytest.mark.usefixtures("two_of_a_session")
def test_a_session_that_has_enough_in_line_keeps_only_its_own_waiting() -> None:
    mine, other = [a_write("a") for _ in range(4)], a_write("b")
    entrance = an_entrance(*mine, other)
    assert all_that_may_join(entrance) == [*mine[:2], other]
    entrance.done(mine[0])
    assert all_that_may_join(entrance) == [mine[2]]
    entrance.done(other)
    assert all_that_may_join(entrance) == []


@pytest.mark.usefixtures("two_of_a_session")
def test_a_small_write_does_not_overtake_a_large_one_of_its_session() -> None:
    first, large, small = a_write("a", size=1), a_write("a", size=4 * MIB), a_write("a", size=1)
    entrance = an_entrance(first, large, small)
    assert all_that_may_join(entrance) == [first]
    entrance.done(first)
    assert all_that_may_join(entrance) == [large]


@pytest.mark.usefixtures("two_of_a_session")
def test_a_write_of_two_sessions_waits_for_both_and_is_overtaken_in_neither() -> None:
    mine, both, after = [a_write("a"), a_write("a")], a_write("ab"), a_write("b")
    entrance = an_entrance(*mine, both, after)
    assert all_that_may_join(entrance) == mine
    entrance.done(mine[0])
    assert all_that_may_join(entrance) == [both, after]


@pytest.mark.usefixtures("two_of_a_session")
def test_who_gives_up_leaves_room_for_who_waits_behind() -> None:
    one, two, three, four = (a_write("a") for _ in range(4))
    entrance = an_entrance(one, two, three, four)
    assert entrance.give_up(three)
    assert entrance.give_up(two)
    assert not entrance.give_up(two)
    assert (entrance.waiting, all_that_may_join(entrance)) == (2, [one, four])
    assert not entrance.give_up(one), "who is in line stays there"


@pytest.mark.usefixtures("two_of_a_session")
def test_who_waits_behind_a_session_is_found() -> None:
    mine, both, other = [a_write("a") for _ in range(3)], a_write("ab"), a_write("b")
    entrance = an_entrance(*mine, both, other)
    assert entrance.behind(["a"]) == [mine[2], both]
    assert entrance.behind(["b"]) == [both, other]
    assert set(entrance.everyone()) == {*mine, both, other}


def test_a_write_that_names_a_session_twice_is_one_write_of_it() -> None:
    twice, next_ = a_write("aa"), a_write("a")
    with mock.patch.object(entrance_module, "MAX_OF_SESSION", 1):
        entrance = an_entrance(twice, next_)
        assert all_that_may_join(entrance) == [twice]
        entrance.done(twice)
        assert all_that_may_join(entrance) == [next_]


# -- any history -------------------------------------------------------------------------------------------------------

coming = st.builds(a_write, st.sampled_from(["", "a", "b", "c", "ab", "bc", "abc"]), size=st.sampled_from([0, 1, MIB]))
going = st.tuples(st.sampled_from(["join", "done", "give up"]), st.integers(0, 9))


@settings(max_examples=200, deadline=None)
@given(st.lists(coming | going, max_size=60))
def test_whoever_comes_and_goes_sessions_keep_their_order_and_their_share_and_nobody_is_stuck(
    history: list[Submitted | tuple[str, int]],
) -> None:
    entrance = Entrance()
    came, waits, in_line, joined = list[Submitted](), list[Submitted](), list[Submitted](), list[Submitted]()

    def join() -> None:
        one = entrance.join_line()
        waits.remove(one)
        in_line.append(one)
        joined.append(one)
        counts = Counter(uid for one in in_line for uid in one.write.sessions)
        assert max(counts.values(), default=0) <= 2

    with mock.patch.object(entrance_module, "MAX_OF_SESSION", 2):
        for what in [*history, *[("join", 0), ("done", 0)] * 60]:
            match what:
                case Submitted():
                    entrance.come(what)
                    came.append(what)
                    waits.append(what)
                case ("join", _) if entrance.first is not None:
                    join()
                case ("done", number) if in_line:
                    entrance.done(in_line.pop(number % len(in_line)))
                case ("give up", number) if waits:
                    one = waits.pop(number % len(waits))
                    assert entrance.give_up(one)
                    came.remove(one)
            assert entrance.waiting == len(waits)
            assert set(entrance.everyone()) == set(waits)
    assert waits == []
    for session in "abc":
        assert [w for w in joined if session in w.write.sessions] == [w for w in came if session in w.write.sessions]
    assert entrance.__dict__ == Entrance().__dict__, "nothing is kept of those that are gone"
