from __future__ import annotations

from dataclasses import replace

import pytest

from lash.errors import IdReused, KeyReused
from lash.ids import TurnId
from lash.inbox.admission import admit
from lash.inbox.items import Boundary, InboxItem, ItemState, NewItem, When

from ..samples import MINUTE, NOW, SESSION, TURN, an_item, item_id, words

FIRST = NewItem(item_id(1), words("hello"), key="k")


def admitted(item: NewItem, *, unsettled_turn: TurnId | None = None) -> InboxItem:
    return admit(item, by_key=None, by_id=None, session=SESSION, seq=7, unsettled_turn=unsettled_turn, now=NOW)


def admit_again(item: NewItem, *, by_key: InboxItem | None = None, by_id: InboxItem | None = None) -> InboxItem:
    return admit(item, by_key=by_key, by_id=by_id, session=SESSION, seq=99, unsettled_turn=None, now=NOW + MINUTE)


def test_a_new_item_gets_its_place_in_line_and_waits() -> None:
    new = replace(FIRST, merge_key="m", options={"a": 1}, available_at=NOW + MINUTE, boundary="before_completion")
    item = admitted(new)
    assert replace(item, content_hash="") == replace(
        an_item(
            1,
            body=words("hello"),
            key="k",
            merge_key="m",
            options={"a": 1},
            available_at=NOW + MINUTE,
            boundary="before_completion",
        ),
        seq=7,
        admitted_at=NOW,
        content_hash="",
    )


@pytest.mark.parametrize("boundary", ["after_work", "before_completion"])
@pytest.mark.parametrize(
    ("asked", "turn", "when", "target"),
    [
        ("next", None, "next", None),
        ("next", TURN, "next", None),
        ("now", None, "next", None),
        ("now", TURN, "now", TURN),
    ],
)
def test_now_aims_at_the_unsettled_turn_and_becomes_next_where_there_is_none(
    asked: When, turn: TurnId | None, when: When, target: TurnId | None, boundary: Boundary
) -> None:
    item = admitted(replace(FIRST, when=asked, boundary=boundary), unsettled_turn=turn)
    assert (item.when, item.target, item.boundary) == (when, target, boundary)


@pytest.mark.parametrize("state", ["pending", "taken", "completed", "cancelled"])
def test_a_repetition_under_the_same_key_returns_the_item_whatever_became_of_it(state: ItemState) -> None:
    known = replace(admitted(FIRST), state=state)
    assert admit_again(replace(FIRST, id=item_id(2)), by_key=known) is known


def test_a_repetition_returns_what_was_admitted_even_when_the_turn_it_aimed_at_is_gone() -> None:
    aimed = replace(FIRST, when="now")
    known = admitted(aimed, unsettled_turn=TURN)
    assert admit_again(aimed, by_key=known, by_id=known).target == TURN


def test_another_due_time_is_no_other_content() -> None:
    known = admitted(FIRST)
    assert admit_again(replace(FIRST, available_at=NOW + MINUTE), by_key=known) is known


SAME, OTHER = words("hello"), words("other")


@pytest.mark.parametrize(
    ("same_id", "key", "body", "answer"),
    [
        (False, "k", SAME, "known"),
        (False, "k", OTHER, KeyReused),
        (True, "k", SAME, "known"),
        (True, "k", OTHER, KeyReused),
        (True, None, SAME, IdReused),
        (True, None, OTHER, IdReused),
        (True, "l", SAME, IdReused),
        (True, "l", OTHER, IdReused),
        (False, None, SAME, "new"),
        (False, None, OTHER, "new"),
        (False, "l", SAME, "new"),
        (False, "l", OTHER, "new"),
    ],
)
def test_key_id_and_content_decide_whether_it_is_the_known_item_a_new_one_or_a_conflict(
    same_id: bool, key: str | None, body: object, answer: object
) -> None:
    known = admitted(FIRST)
    arriving = replace(FIRST, id=FIRST.id if same_id else item_id(2), key=key, body=body)  # type: ignore[arg-type]
    by_key, by_id = (known if key == "k" else None), (known if same_id else None)
    if isinstance(answer, type) and issubclass(answer, Exception):
        with pytest.raises(answer):
            admit_again(arriving, by_key=by_key, by_id=by_id)
    else:
        item = admit_again(arriving, by_key=by_key, by_id=by_id)
        assert (item is known) is (answer == "known")
        assert item.seq == (7 if answer == "known" else 99)


@pytest.mark.parametrize(("body", "conflict"), [(SAME, False), (OTHER, True)])
def test_an_item_without_a_key_is_known_by_its_id(body: object, conflict: bool) -> None:
    keyless = replace(FIRST, key=None)
    known = admitted(keyless)
    again = replace(keyless, body=body)  # type: ignore[arg-type]
    if conflict:
        with pytest.raises(IdReused) as refused:
            admit_again(again, by_id=known)
        assert refused.value.value == FIRST.id
    else:
        assert admit_again(again, by_id=known) is known


def test_a_key_added_to_a_known_id_is_a_conflict() -> None:
    known = admitted(replace(FIRST, key=None))
    with pytest.raises(IdReused):
        admit_again(FIRST, by_id=known)


def test_the_key_decides_when_key_and_id_name_two_items() -> None:
    keyed = admitted(FIRST)
    other = admitted(NewItem(item_id(2), words("hello")))
    assert admit_again(replace(FIRST, id=item_id(2)), by_key=keyed, by_id=other) is keyed


def test_a_key_conflict_names_the_key_and_the_item_that_has_it() -> None:
    with pytest.raises(KeyReused) as refused:
        admit_again(replace(FIRST, id=item_id(2), body=OTHER), by_key=admitted(FIRST))
    assert (refused.value.key, refused.value.item) == ("k", item_id(1))
