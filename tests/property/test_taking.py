from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from lash.graph.parts import Text
from lash.ids import ItemId, SessionUid, TurnId
from lash.inbox import taking
from lash.inbox.items import Boundary, Command, InboxItem, Message, Wake
from lash.inbox.taking import at_checkpoint, at_opening, completed, deferred, given_back

from .values import hundred_examples

NOW = datetime(2026, 1, 1, tzinfo=UTC)
TURN, OTHER_TURN = TurnId("7" * 32), TurnId("8" * 32)
BODIES: list[Message | Wake | Command] = [
    Message(parts=(Text(text="hi"),)),
    Wake(source="timer"),
    Command(name="reset"),
]


@st.composite
def lines(draw: st.DrawFn) -> list[InboxItem]:
    """Items in order of seq, in runs of the same sort, so that long groups happen."""
    items: list[InboxItem] = []
    for _ in range(draw(st.integers(0, 5))):
        sort = draw(some_items())
        for _ in range(draw(st.sampled_from([1, 1, 2, 3, 40, 70]))):
            seq = len(items) + 1
            items.append(replace(sort, id=ItemId(f"{seq:032x}"), seq=seq))
    return items


@st.composite
def some_items(draw: st.DrawFn) -> InboxItem:
    body = draw(st.sampled_from(BODIES))
    aimed = draw(st.integers(0, 4)) == 0 and not isinstance(body, Command)
    return InboxItem(
        id=ItemId("0" * 32),
        session=SessionUid("5" * 32),
        seq=0,
        body=body,
        content_hash="f" * 64,
        admitted_at=NOW,
        when="now" if aimed else "next",
        boundary=draw(st.sampled_from(["after_work", "before_completion"])),
        merge_key=None if isinstance(body, Command) else draw(st.sampled_from([None, "a", "a", "b"])),
        options=draw(st.sampled_from([{}, {}, {"steps": 1}])),
        available_at=draw(st.sampled_from([None, None, NOW, NOW + timedelta(seconds=1)])),
        state=draw(st.sampled_from(["pending", "pending", "pending", "taken", "completed", "cancelled"])),
        target=draw(st.sampled_from([TURN, OTHER_TURN])) if aimed else None,
    )


def free(items: list[InboxItem]) -> list[InboxItem]:
    """What stands in line for a turn of its own, said without the code under test."""
    return [
        item for item in items if item.state == "pending" and item.target is None and item.available_at in (None, NOW)
    ]


@hundred_examples
@given(lines())
def test_a_turn_opens_with_the_beginning_of_the_line(items: list[InboxItem]) -> None:
    taken, line = list(at_opening(items, NOW)), free(items)
    assert taken == line[: len(taken)]
    assert len(taken) <= 64
    assert bool(taken) == bool(line)


@hundred_examples
@given(lines())
def test_what_a_turn_takes_together_belongs_together(items: list[InboxItem]) -> None:
    taken = at_opening(items, NOW)
    if len(taken) > 1:
        assert all(item.merge_key is not None for item in taken)
        assert not any(isinstance(item.body, Command) for item in taken)
        assert len({(item.merge_key, item.body.kind, len(item.options)) for item in taken}) == 1


@hundred_examples
@given(lines())
def test_an_item_that_could_have_joined_is_never_left(items: list[InboxItem]) -> None:
    taken, line = at_opening(items, NOW), free(items)
    if taken and len(taken) < min(64, len(line)):
        first, left = taken[0], line[len(taken)]
        assert first.merge_key is None or (left.merge_key, left.body.kind, left.options) != (
            first.merge_key,
            first.body.kind,
            first.options,
        )


@hundred_examples
@given(lines())
def test_turn_after_turn_every_item_is_served_once_and_in_order(items: list[InboxItem]) -> None:
    served: list[InboxItem] = []
    rows = {item.id: item for item in items}
    while taken := at_opening(list(rows.values()), NOW):
        served += taken
        rows |= {item.id: item.after(taking.taken(TURN)).after(completed(NOW)) for item in taken}
    assert served == free(items)


@hundred_examples
@given(lines())
def test_items_given_back_are_taken_again_exactly_as_before(items: list[InboxItem]) -> None:
    taken = at_opening(items, NOW)
    rows = {item.id: item for item in items} | {
        item.id: item.after(taking.taken(TURN)).after(given_back()) for item in taken
    }
    assert [item.id for item in at_opening(list(rows.values()), NOW)] == [item.id for item in taken]


CHECKPOINTS: list[Boundary] = ["after_work", "before_completion"]


@hundred_examples
@given(lines(), st.sampled_from(CHECKPOINTS))
def test_exactly_what_is_aimed_at_a_turn_enters_it_and_never_before_its_boundary(
    items: list[InboxItem], checkpoint: Boundary
) -> None:
    entered = at_checkpoint(items, TURN, checkpoint)
    aimed = [item for item in items if item.state == "pending" and item.target == TURN]
    early = {("before_completion", "after_work")}
    assert list(entered) == [item for item in aimed if (item.boundary, checkpoint) not in early]


@hundred_examples
@given(lines())
def test_every_item_aimed_at_a_turn_enters_it_or_stands_in_line_afterwards(items: list[InboxItem]) -> None:
    rows = {item.id: item for item in items}
    for item in at_checkpoint(items, TURN, "after_work"):
        rows[item.id] = item.after(taking.taken(TURN)).after(completed(NOW))
    missed = [item for item in rows.values() if item.state == "pending" and item.target == TURN]
    rows |= {item.id: item.after(deferred()) for item in missed}
    assert not any(item.target == TURN and item.state == "pending" for item in rows.values())
    due = {item.id for item in missed if item.available_at in (None, NOW)}
    assert due <= {item.id for item in free(list(rows.values()))}
