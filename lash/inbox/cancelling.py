"""Cancelling items that no turn has taken yet: one, a set, or everything from one item on, with an answer for each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from lash.ids import ItemId
from lash.inbox.items import InboxItem, ItemChange

CancelAnswer = Literal["cancelled", "already_taken", "already_completed", "already_cancelled", "not_found"]


@dataclass(frozen=True, slots=True)
class These:
    """Exactly these items."""

    items: tuple[ItemId, ...]


@dataclass(frozen=True, slots=True)
class Keyed:
    """The items sent under these keys."""

    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class From:
    """This item and every pending one behind it in line. When the anchor does not exist nothing is cancelled."""

    anchor: ItemId


Selection = These | Keyed | From


@dataclass(frozen=True, slots=True)
class Cancelled:
    """What became of one item. ``named`` is the id or key that was asked for; ``item`` the row as it is afterwards."""

    named: str
    answer: CancelAnswer
    item: InboxItem | None


def cancelled(now: datetime) -> ItemChange:
    return {"state": "cancelled", "settled_at": now}


def cancel(named: str, item: InboxItem | None, now: datetime) -> Cancelled:
    """The answer for one item. Only a pending one is cancelled; a taken one belongs to its turn."""
    if item is None:
        return Cancelled(named, "not_found", None)
    match item.state:
        case "pending":
            return Cancelled(named, "cancelled", item.after(cancelled(now)))
        case "taken":
            return Cancelled(named, "already_taken", item)
        case "completed":
            return Cancelled(named, "already_completed", item)
        case "cancelled":
            return Cancelled(named, "already_cancelled", item)


def cancel_from(anchor: InboxItem | None, named: ItemId, behind: Sequence[InboxItem], now: datetime) -> list[Cancelled]:
    """Answers for a suffix: the anchor, whatever its state, then the pending items behind it in order."""
    if anchor is None:
        return [Cancelled(named, "not_found", None)]
    rest = [item for item in behind if item.seq > anchor.seq and item.state == "pending"]
    return [cancel(item.id, item, now) for item in (anchor, *rest)]
