from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from lash.inbox.items import Boundary, Command, InboxItem, ItemState, Wake
from lash.inbox.taking import at_checkpoint, at_opening, completed, deferred, given_back, taken

from ..samples import NOW, OTHER_TURN, SECOND, TURN, an_item

RESET = Command(name="reset")
TIMER = Wake(source="timer")


def opened_with(*items: InboxItem) -> list[int]:
    return [item.seq for item in at_opening(items, NOW)]


def test_nothing_ready_means_nothing_taken() -> None:
    assert opened_with() == []
    assert opened_with(an_item(1, state="taken"), an_item(2, available_at=NOW + SECOND), an_item(3, target=TURN)) == []


def test_a_message_sent_on_its_own_gets_a_turn_of_its_own() -> None:
    assert opened_with(an_item(1), an_item(2)) == [1]


def test_the_oldest_ready_item_is_taken_and_those_that_are_not_ready_hold_up_nobody() -> None:
    assert opened_with(
        an_item(1, state="completed"),
        an_item(2, state="cancelled"),
        an_item(3, available_at=NOW + SECOND),
        an_item(4, target=OTHER_TURN),
        an_item(5),
        an_item(6),
    ) == [5]


def test_items_directly_behind_with_the_same_merge_key_join() -> None:
    assert opened_with(*(an_item(seq, merge_key="m") for seq in (1, 2, 3)), an_item(4)) == [1, 2, 3]


@pytest.mark.parametrize(
    "second",
    [
        an_item(2),
        an_item(2, merge_key="other"),
        an_item(2, merge_key="m", body=TIMER),
        an_item(2, merge_key="m", options={"max_steps": 1}),
        an_item(2, body=RESET),
    ],
    ids=["no key", "another key", "another kind", "other options", "a command"],
)
def test_an_item_that_does_not_join_ends_the_group_even_for_those_behind_it(second: InboxItem) -> None:
    assert opened_with(an_item(1, merge_key="m"), second, an_item(3, merge_key="m")) == [1]


def test_items_join_by_an_explicit_key_only() -> None:
    assert opened_with(an_item(1, merge_key=None), an_item(2, merge_key=None)) == [1]


def test_wakes_join_like_messages() -> None:
    assert opened_with(an_item(1, body=TIMER, merge_key="m"), an_item(2, body=TIMER, merge_key="m")) == [1, 2]


def test_equal_options_join_in_whatever_order_they_were_written() -> None:
    first = an_item(1, merge_key="m", options={"a": 1, "b": 2})
    assert opened_with(first, an_item(2, merge_key="m", options={"b": 2, "a": 1})) == [1, 2]
    assert opened_with(first, an_item(2, merge_key="m", options={"b": 2, "a": 1.0})) == [1]


@pytest.mark.parametrize("neighbour", [RESET, TIMER, None])
def test_a_command_is_always_alone(neighbour: Command | Wake | None) -> None:
    assert opened_with(an_item(1, body=RESET), an_item(2, body=neighbour)) == [1]
    assert opened_with(an_item(1, body=neighbour), an_item(2, body=RESET)) == [1]


def test_at_most_64_items_open_a_turn_and_the_rest_wait() -> None:
    line = [an_item(seq, merge_key="m") for seq in range(1, 101)]
    assert opened_with(*line[:64]) == list(range(1, 65))
    assert opened_with(*line) == list(range(1, 65))
    assert opened_with(*line[64:]) == list(range(65, 101))


AFTER_WORK = an_item(1, when="now", boundary="after_work", target=TURN)
BEFORE_COMPLETION = an_item(2, when="now", boundary="before_completion", target=TURN)


@pytest.mark.parametrize(
    ("checkpoint", "boundary", "enters"),
    [
        ("after_work", "after_work", True),
        ("after_work", "before_completion", False),
        ("before_completion", "after_work", True),
        ("before_completion", "before_completion", True),
    ],
)
def test_every_boundary_at_every_checkpoint(checkpoint: Boundary, boundary: Boundary, enters: bool) -> None:
    item = an_item(1, when="now", boundary=boundary, target=TURN)
    assert at_checkpoint([item], TURN, checkpoint) == ((item,) if enters else ())


@pytest.mark.parametrize("checkpoint", ["after_work", "before_completion"])
@pytest.mark.parametrize(
    "item",
    [
        an_item(1),
        an_item(1, when="now", target=OTHER_TURN),
        *(an_item(1, when="now", target=TURN, state=state) for state in ("taken", "completed", "cancelled")),
    ],
    ids=["next", "aimed at another turn", "taken", "completed", "cancelled"],
)
def test_nothing_else_enters_a_running_turn(checkpoint: Boundary, item: InboxItem) -> None:
    assert at_checkpoint([item], TURN, checkpoint) == ()


def test_items_enter_in_order_and_need_no_merge_key() -> None:
    line: Sequence[InboxItem] = [AFTER_WORK, BEFORE_COMPLETION, replace(AFTER_WORK, seq=3)]
    assert [item.seq for item in at_checkpoint(line, TURN, "after_work")] == [1, 3]
    assert [item.seq for item in at_checkpoint(line, TURN, "before_completion")] == [1, 2, 3]


def test_a_taken_item_belongs_to_its_turn() -> None:
    assert an_item(1).after(taken(TURN)) == an_item(1, state="taken", turn=TURN)


def test_a_completed_item_says_when_and_by_which_turn() -> None:
    done = an_item(1).after(taken(TURN)).after(completed(NOW))
    assert done == replace(an_item(1, state="completed", turn=TURN), settled_at=NOW)


def test_an_item_given_back_waits_at_its_old_place_for_a_turn_of_its_own() -> None:
    entered = an_item(5, when="now", target=TURN, boundary="before_completion").after(taken(TURN))
    back = entered.after(given_back())
    assert back == an_item(5, boundary="before_completion")
    assert back.ready(NOW)


def test_an_item_that_missed_its_turn_becomes_input_for_the_next_one_and_cannot_miss_again() -> None:
    missed = an_item(5, when="now", target=TURN).after(deferred())
    assert missed == an_item(5)
    assert at_opening([missed], NOW) == (missed,)
    assert at_checkpoint([missed], TURN, "before_completion") == ()
    assert missed.after(deferred()) == missed


@pytest.mark.parametrize("state", ["pending", "taken", "completed", "cancelled"])
def test_only_pending_items_open_a_turn(state: ItemState) -> None:
    assert opened_with(an_item(1, state=state)) == ([1] if state == "pending" else [])
