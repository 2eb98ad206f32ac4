"""What arrives: admission, listing, cancelling."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import assert_never

from sqlalchemy import Connection, select

from lash.ids import ItemId, SessionUid
from lash.inbox import admission, cancelling
from lash.inbox.cancelling import Cancelled, From, Keyed, Selection, These
from lash.inbox.items import InboxItem, ItemChange, NewItem, blobs_of_item
from lash.limits import is_key
from lash.store import schema
from lash.store.checks import check_arriving, check_limit, check_selection, read_cursor
from lash.store.contract import Page
from lash.store.rows import Row, SessionRow, item_change_values, item_values, read_item, read_turn
from lash.store.sql.blobs import hold, numbers_of
from lash.store.sql.questions import BEHIND, EARLIEST, ITEM, ITEM_BY_KEY, UNSETTLED, WAITING, Remaining
from lash.store.sql.sessions import find_row, keep_session
from lash.store.sql.steps import Steps, Work, Write, answer_to, answers_to_each
from lash.turn.record import Turn, available_from


def admit(uid: SessionUid, item: NewItem) -> Write[InboxItem]:
    size = check_arriving(item)

    def steps(work: Work) -> Steps[InboxItem]:
        row = work.session(uid)
        turn, known = yield from turn_and_known(row, item)
        admitted, after = yield from admit_into(work, row, item, turn, known)
        if after is not row:
            keep_session(work, row, after, was=turn, turn=turn)
        return admitted

    return Write((uid,), steps, size=size)


@dataclass(frozen=True, slots=True)
class Known:
    """The items that a new one could be a repetition of."""

    by_key: Row | None = None
    by_id: Row | None = None


def turn_and_known(row: SessionRow, item: NewItem) -> Steps[tuple[Turn | None, Known]]:
    """The unsettled turn, and what is known under the key and the id of a new item."""
    asks = (UNSETTLED(row.id), ITEM((row.id, item.id)))
    if item.key is None:
        unsettled, by_id = yield asks
        return read_unsettled(unsettled, row), Known(None, by_id)
    unsettled, by_id, by_key = yield (*asks, ITEM_BY_KEY((row.id, item.key)))
    return read_unsettled(unsettled, row), Known(by_key, by_id)


def admit_into(
    work: Work, row: SessionRow, item: NewItem, turn: Turn | None, known: Known
) -> Steps[tuple[InboxItem, SessionRow]]:
    """The item as it is kept, and the session's row after it. The same row comes back when it was known before."""
    admitted = admission.admit(
        item,
        by_key=None if known.by_key is None else read_item(known.by_key, row.uid),
        by_id=None if known.by_id is None else read_item(known.by_id, row.uid),
        session=row.uid,
        seq=row.seq + 1,
        unsettled_turn=None if turn is None else turn.id,
        now=work.now,
    )
    if admitted.seq != row.seq + 1:
        return admitted, row
    blobs = blobs_of_item(item)
    numbers = yield from numbers_of(blobs)
    work.changes.insert(schema.inbox, item_values(row.id, admitted))
    hold(work, row.id, ("item", admitted.seq, 0), blobs, numbers)
    due = row.next_item_at
    if admitted.target is None:
        due = min(due or available_from(admitted), available_from(admitted))
    return admitted, row._replace(seq=admitted.seq, next_item_at=due)


def unsettled_turn(row: SessionRow) -> Steps[Turn | None]:
    return read_unsettled((yield from answer_to(UNSETTLED(row.id))), row)


def read_unsettled(found: Row | None, row: SessionRow) -> Turn | None:
    return None if found is None else read_turn(found, row.uid).turn


def update_items(work: Work, row: SessionRow, seqs: Iterable[int], change: ItemChange) -> None:
    for seq in seqs:
        work.changes.update(schema.inbox, {"session": row.id, "seq": seq}, item_change_values(change))


# -- cancelling --------------------------------------------------------------------------------------------------------


def cancel(uid: SessionUid, selection: Selection) -> Write[list[Cancelled]]:
    check_selection(selection)

    def steps(work: Work) -> Steps[list[Cancelled]]:
        row = work.session(uid)
        turn = yield from unsettled_turn(row)
        answers = yield from _answers(work, row, selection)
        gone = frozenset(answer.item.seq for answer in answers if answer.answer == "cancelled" and answer.item)
        if not gone:
            return answers
        update_items(work, row, gone, cancelling.cancelled(work.now))
        due = None
        if turn is None:
            suffix = isinstance(selection, From)
            left = Remaining(row.id, before=min(gone)) if suffix else Remaining(row.id, without=gone)
            due = yield from answer_to(EARLIEST(left))
        keep_session(work, row, row._replace(next_item_at=due), was=turn, turn=turn)
        return answers

    return Write((uid,), steps, urgent=True, repeatable=False)


def _answers(work: Work, row: SessionRow, selection: Selection) -> Steps[list[Cancelled]]:
    match selection:
        case These(items=ids):
            found = yield from answers_to_each([ITEM((row.id, item)) for item in ids])
            by_id: dict[str, InboxItem] = {key[1]: read_item(item, row.uid) for key, item in found.items()}
            return _one_by_one(work, ids, by_id)
        case Keyed(keys=keys):
            found = yield from answers_to_each([ITEM_BY_KEY((row.id, key)) for key in keys if is_key(key)])
            by_key = {key[1]: read_item(item, row.uid) for key, item in found.items()}
            return _one_by_one(work, keys, by_key)
        case From(anchor=anchor):
            first = yield from answer_to(ITEM((row.id, anchor)))
            if first is None:
                return cancelling.cancel_from(None, anchor, [], work.now)
            item = read_item(first, row.uid)
            behind = yield from answer_to(BEHIND((row.id, item.seq)))
            return cancelling.cancel_from(item, anchor, [read_item(r, row.uid) for r in behind or ()], work.now)
        case _:
            assert_never(selection)


def _one_by_one(work: Work, names: Iterable[str], known: dict[str, InboxItem]) -> list[Cancelled]:
    """An answer for each name in turn; one that is named twice was cancelled by the first."""
    answers: list[Cancelled] = []
    for name in names:
        answer = cancelling.cancel(name, known.get(name), work.now)
        answers.append(answer)
        if answer.item is not None:
            known[name] = answer.item
    return answers


# -- reading -----------------------------------------------------------------------------------------------------------


def item(connection: Connection, uid: SessionUid, wanted: ItemId) -> InboxItem | None:
    row = find_row(connection, uid)
    found = ITEM.now(connection, (row.id, wanted))
    return None if found is None else read_item(found, uid)


def page(connection: Connection, uid: SessionUid, *, terminal: bool, after: str | None, limit: int) -> Page[InboxItem]:
    check_limit(limit)
    start = read_cursor(after)
    row = find_row(connection, uid)
    table = schema.inbox.c
    statement = select(schema.inbox).where(table.session == row.id, table.seq > start)
    if not terminal:
        statement = statement.where(WAITING)
    found = connection.execute(statement.order_by(table.seq).limit(limit + 1)).mappings().all()
    items = tuple(read_item(r, uid) for r in found[:limit])
    return Page(items, str(items[-1].seq) if len(found) > limit else None)
