"""Admission: the same request is the same item, however often it is sent.

Durable before it is acknowledged, and free of any lease: whoever knows the session may send to it.
"""

from __future__ import annotations

from datetime import datetime

from lash.errors import IdReused, KeyReused
from lash.ids import SessionUid, TurnId
from lash.inbox.items import InboxItem, NewItem, content_hash


def admit(
    arriving: NewItem,
    *,
    by_key: InboxItem | None,
    by_id: InboxItem | None,
    session: SessionUid,
    seq: int,
    unsettled_turn: TurnId | None,
    now: datetime,
) -> InboxItem:
    """The item to keep: the known one when this is a repetition, else a new one with the given place in line.

    A known item is returned as it is, completed and cancelled ones too. ``now`` aims at the unsettled turn and becomes
    ``next`` where there is none.
    """
    fingerprint = content_hash(arriving)
    if by_key is not None and arriving.key is not None:
        if by_key.content_hash != fingerprint:
            raise KeyReused(arriving.key, by_key.id)
        return by_key
    if by_id is not None:
        if by_id.content_hash != fingerprint or by_id.key != arriving.key:
            raise IdReused("item", arriving.id)
        return by_id
    aimed = arriving.when == "now" and unsettled_turn is not None
    return InboxItem(
        id=arriving.id,
        session=session,
        seq=seq,
        body=arriving.body,
        content_hash=fingerprint,
        admitted_at=now,
        key=arriving.key,
        when="now" if aimed else "next",
        boundary=arriving.boundary,
        merge_key=arriving.merge_key,
        options=arriving.options,
        available_at=arriving.available_at,
        target=unsettled_turn if aimed else None,
    )
