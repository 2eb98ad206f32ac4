"""Fixed values that the unit tests are made of. Nothing here is computed by the rules under test."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from lash.encoding import JsonObject
from lash.graph.parts import Text
from lash.ids import ItemId, OperationId, OwnerId, RequestId, SessionUid, TurnId
from lash.inbox.items import Boundary, Command, InboxItem, ItemState, Message, Wake, When
from lash.lease import ExecutionLease
from lash.turn.record import CancelRequest, Turn, TurnState

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)

SESSION = SessionUid("5" * 32)
OTHER_SESSION = SessionUid("6" * 32)
TURN = TurnId("7" * 32)
OTHER_TURN = TurnId("8" * 32)
OPERATION = OperationId("0" * 31 + "1")
OTHER_OPERATION = OperationId("0" * 31 + "2")
REQUEST = RequestId("c" * 32)
OTHER_REQUEST = RequestId("d" * 32)

LEASE = ExecutionLease(SESSION, OwnerId("me"), generation=4, expires_at=NOW + MINUTE)


def item_id(number: int) -> ItemId:
    return ItemId(f"{number:032x}")


def words(text: str) -> Message:
    return Message(parts=(Text(text=text),))


def an_item(
    seq: int,
    *,
    body: Message | Command | Wake | None = None,
    key: str | None = None,
    state: ItemState = "pending",
    when: When = "next",
    boundary: Boundary = "after_work",
    merge_key: str | None = None,
    options: JsonObject | None = None,
    available_at: datetime | None = None,
    target: TurnId | None = None,
    turn: TurnId | None = None,
) -> InboxItem:
    """An admitted item at this place in line."""
    return InboxItem(
        id=item_id(seq),
        session=SESSION,
        seq=seq,
        body=body or words(f"message {seq}"),
        content_hash="f" * 64,
        admitted_at=NOW - MINUTE,
        key=key,
        when=when,
        boundary=boundary,
        merge_key=merge_key,
        options=options or {},
        available_at=available_at,
        state=state,
        target=target,
        turn=turn,
    )


def a_turn(state: TurnState = "open", *, attempts: int = 1, parked_until: datetime | None = None) -> Turn:
    return Turn(
        id=TURN,
        session=SESSION,
        agent="default",
        state=state,
        attempts=attempts,
        generation=4,
        base_revision=0,
        config_revision=0,
        catalog_revision=0,
        opened_at=NOW - MINUTE,
        items=(item_id(1), item_id(2)),
        parked_until=parked_until,
    )


A_REQUEST = CancelRequest(REQUEST, SESSION, TURN, "the user pressed stop", NOW)
