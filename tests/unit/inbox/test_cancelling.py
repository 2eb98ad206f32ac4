from __future__ import annotations

from dataclasses import replace

import pytest

from lash.inbox.cancelling import CancelAnswer, Cancelled, cancel, cancel_from
from lash.inbox.items import Command, ItemState, Message, Wake

from ..samples import NOW, TURN, an_item, item_id, words


def test_an_item_that_does_not_exist_is_not_found() -> None:
    assert cancel("msg-1", None, NOW) == Cancelled("msg-1", "not_found", None)


@pytest.mark.parametrize("body", [words("hello"), Command(name="reset"), Wake(source="timer")], ids=lambda b: b.kind)
def test_a_pending_item_of_any_kind_is_cancelled(body: Message | Command | Wake) -> None:
    item = an_item(1, body=body)
    assert cancel("msg-1", item, NOW) == Cancelled(
        "msg-1", "cancelled", replace(item, state="cancelled", settled_at=NOW)
    )


def test_an_item_aimed_at_a_turn_that_has_not_taken_it_is_cancelled() -> None:
    answer = cancel("msg-1", an_item(1, when="now", target=TURN), NOW)
    assert answer.answer == "cancelled"


@pytest.mark.parametrize(
    ("state", "answer"),
    [("taken", "already_taken"), ("completed", "already_completed"), ("cancelled", "already_cancelled")],
)
def test_any_other_item_stays_as_it_is_and_says_why(state: ItemState, answer: CancelAnswer) -> None:
    item = an_item(1, state=state)
    assert cancel("msg-1", item, NOW) == Cancelled("msg-1", answer, item)


def test_a_suffix_is_the_anchor_and_every_pending_item_behind_it_in_order() -> None:
    line = [
        an_item(1),
        an_item(2),
        an_item(3, state="taken"),
        an_item(4),
        an_item(5, state="completed"),
        an_item(6, state="cancelled"),
        an_item(7),
    ]
    answers = cancel_from(line[1], item_id(2), line, NOW)
    assert [(answer.named, answer.answer) for answer in answers] == [
        (item_id(2), "cancelled"),
        (item_id(4), "cancelled"),
        (item_id(7), "cancelled"),
    ]
    assert all(a.item is not None and a.item.state == "cancelled" and a.item.settled_at == NOW for a in answers)


@pytest.mark.parametrize(
    ("state", "answer"),
    [("taken", "already_taken"), ("completed", "already_completed"), ("cancelled", "already_cancelled")],
)
def test_a_suffix_can_hang_from_an_anchor_that_is_done(state: ItemState, answer: CancelAnswer) -> None:
    anchor = an_item(2, state=state)
    answers = cancel_from(anchor, item_id(2), [an_item(1), an_item(3)], NOW)
    assert [(a.named, a.answer) for a in answers] == [(item_id(2), answer), (item_id(3), "cancelled")]


def test_without_the_anchor_nothing_is_cancelled() -> None:
    assert cancel_from(None, item_id(2), [an_item(1), an_item(3)], NOW) == [Cancelled(item_id(2), "not_found", None)]
