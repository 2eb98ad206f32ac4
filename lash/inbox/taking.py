"""Which items a turn takes, when it opens and at each of its checkpoints, and what becomes of those it leaves.

Strict order: a turn takes the oldest ready item, and only what stands directly behind it with the same explicit merge
key joins. So every message that was sent on its own gets a turn of its own, and nothing jumps a command.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

from lash.encoding import canonical
from lash.ids import TurnId
from lash.inbox.items import Boundary, InboxItem, ItemChange

MAX_TAKEN = 64
"""How many merged items one turn opens with; the rest wait for the next one."""


def at_opening(items: Sequence[InboxItem], now: datetime) -> tuple[InboxItem, ...]:
    """The items that a new turn takes from ``items``, which stand in order of ``seq``. None ready: none taken."""
    ready = [item for item in items if item.ready(now)]
    if not ready:
        return ()
    first, taken = ready[0], [ready[0]]
    for item in ready[1:MAX_TAKEN]:
        if not _joins(first, item):
            break
        taken.append(item)
    return tuple(taken)


def at_checkpoint(items: Iterable[InboxItem], turn: TurnId, checkpoint: Boundary) -> tuple[InboxItem, ...]:
    """The items aimed at this turn that enter it at this checkpoint, in order of ``seq``.

    After work only those enter that said so; before completion everything aimed at the turn does.
    """
    return tuple(
        item
        for item in items
        if item.state == "pending"
        and item.target == turn
        and (checkpoint == "before_completion" or item.boundary == "after_work")
    )


def taken(turn: TurnId) -> ItemChange:
    return {"state": "taken", "turn": turn}


def completed(now: datetime) -> ItemChange:
    return {"state": "completed", "settled_at": now}


def given_back() -> ItemChange:
    """The item waits again, at its old place in line, for a turn of its own."""
    return {"state": "pending", "turn": None, "target": None, "when": "next"}


def deferred() -> ItemChange:
    """An item that missed the last checkpoint of its turn becomes input for the next one."""
    return {"target": None, "when": "next"}


def _joins(first: InboxItem, item: InboxItem) -> bool:
    return (
        first.merge_key is not None
        and item.merge_key == first.merge_key
        and item.body.kind == first.body.kind
        and canonical(item.options) == canonical(first.options)
    )
