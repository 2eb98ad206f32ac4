"""What arrives."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from datetime import datetime
from typing import assert_never

from lash.errors import BlobMissing
from lash.ids import ItemId, SessionUid
from lash.inbox import admission, cancelling
from lash.inbox.cancelling import Cancelled, From, Keyed, Selection, These
from lash.inbox.items import InboxItem, NewItem, blobs_of_item, decode_body, encode_body
from lash.store.checks import check_arriving, check_selection
from lash.store.contract import Page
from lash.store.memory.data import SessionRows, own_object
from lash.store.memory.handle import Handle, page


def own_item(item: NewItem) -> NewItem:
    """The item as the store will keep it, checked."""
    check_arriving(item)
    body = decode_body(encode_body(item.body), what=f"item {item.id}")
    return replace(item, body=body, options=own_object(item.options, what="options"))


class Admitting(Handle):
    def admit_into(self, rows: SessionRows, arriving: NewItem, now: datetime) -> InboxItem:
        """Admit an item that is the store's own (see ``own_item``)."""
        unsettled = rows.unsettled
        item = admission.admit(
            arriving,
            by_key=_by_key(rows, arriving.key),
            by_id=rows.items.get(arriving.id),
            session=rows.session.uid,
            seq=rows.session.seq + 1,
            unsettled_turn=None if unsettled is None else unsettled.id,
            now=now,
        )
        if item.id not in rows.items:
            missing = sorted(blobs_of_item(arriving) - self.data.blobs.keys())
            if missing:
                raise BlobMissing(missing[0])
            rows.next_seq()
            rows.keep_items([item])
        return item


class MemoryInbox(Admitting):
    async def admit(self, uid: SessionUid, item: NewItem) -> InboxItem:
        arriving, now = own_item(item), self.now()
        with self.changing(uid, now) as rows:
            return deepcopy(self.admit_into(rows, arriving, now))

    async def item(self, uid: SessionUid, item: ItemId) -> InboxItem | None:
        return deepcopy(self.living(uid).items.get(item))

    async def items(
        self, uid: SessionUid, *, terminal: bool = False, after: str | None = None, limit: int = 100
    ) -> Page[InboxItem]:
        items = [item for item in self.living(uid).items.values() if terminal or not item.terminal]
        return deepcopy(page(items, lambda item: item.seq, after=after, limit=limit))

    async def cancel(self, uid: SessionUid, selection: Selection) -> list[Cancelled]:
        check_selection(selection)
        now = self.now()
        with self.changing(uid, now) as rows:
            return deepcopy(_cancel(rows, selection, now))


def _cancel(rows: SessionRows, selection: Selection, now: datetime) -> list[Cancelled]:
    match selection:
        case These(items=ids):
            return [_cancel_one(rows, item, rows.items.get(item), now) for item in ids]
        case Keyed(keys=keys):
            return [_cancel_one(rows, key, _by_key(rows, key), now) for key in keys]
        case From(anchor=anchor):
            answers = cancelling.cancel_from(rows.items.get(anchor), anchor, list(rows.items.values()), now)
            _keep(rows, answers)
            return answers
        case _:
            assert_never(selection)


def _cancel_one(rows: SessionRows, named: str, item: InboxItem | None, now: datetime) -> Cancelled:
    answer = cancelling.cancel(named, item, now)
    _keep(rows, [answer])
    return answer


def _keep(rows: SessionRows, answers: Sequence[Cancelled]) -> None:
    rows.keep_items(answer.item for answer in answers if answer.item is not None)


def _by_key(rows: SessionRows, key: str | None) -> InboxItem | None:
    return None if key is None else next((item for item in rows.items.values() if item.key == key), None)
