"""What can wait in an inbox: a message, a command, a wake."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Annotated, Literal, TypedDict, get_args

from pydantic import BaseModel, ConfigDict, Field, JsonValue, TypeAdapter, ValidationError

from lash.encoding import JsonObject, canonical, digest, read_record, record
from lash.errors import CorruptRecord, InvalidItem
from lash.graph.parts import Part, blobs_of, encode_parts
from lash.ids import BlobHash, ItemId, SessionUid, TurnId
from lash.limits import check_id, check_key

ITEM_VERSION = 1

When = Literal["now", "next"]
"""``now`` aims at the running turn and enters it at a checkpoint; ``next`` waits for a turn of its own."""
Boundary = Literal["after_work", "before_completion"]
"""The first checkpoint of a turn at which a ``now`` item may enter."""
ItemState = Literal["pending", "taken", "completed", "cancelled"]


class _Body(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Message(_Body):
    """Words for the model."""

    kind: Literal["message"] = "message"
    parts: tuple[Part, ...] = Field(min_length=1)

    def encode(self) -> JsonObject:
        return {"kind": self.kind, "parts": encode_parts(self.parts)}


class Command(_Body):
    """Something for the session to do:

    reset, compact, refresh the tools. Never prompt text; always alone in its turn.
    """

    kind: Literal["command"] = "command"
    name: str = Field(min_length=1, max_length=64)
    arguments: JsonObject = {}

    def encode(self) -> JsonObject:
        return {"kind": self.kind, "name": self.name, "arguments": self.arguments}


class Wake(_Body):
    """Something happened that the session wanted to know of: a timer, a finished child, a signal."""

    kind: Literal["wake"] = "wake"
    source: str = Field(min_length=1, max_length=128)
    data: JsonValue = None

    def encode(self) -> JsonObject:
        return {"kind": self.kind, "source": self.source, "data": self.data}


ItemBody = Annotated[Message | Command | Wake, Field(discriminator="kind")]
_BODIES: TypeAdapter[Message | Command | Wake] = TypeAdapter(ItemBody)


@dataclass(frozen=True, slots=True)
class NewItem:
    """An item as it is handed in.

    ``key`` makes the request idempotent: the same key with the same content is the same item, however often it is sent.
    ``options`` are the per-turn options, frozen here so that any worker can drive the turn. ``available_at`` postpones
    the item and is no part of its content.
    """

    id: ItemId
    body: Message | Command | Wake
    key: str | None = None
    when: When = "next"
    boundary: Boundary = "after_work"
    merge_key: str | None = None
    options: JsonObject = field(default_factory=dict)
    available_at: datetime | None = None


class ItemChange(TypedDict, total=False):
    """What becomes of an item in the course of its life; the rest of it never changes."""

    state: ItemState
    when: When
    target: TurnId | None
    turn: TurnId | None
    settled_at: datetime


@dataclass(frozen=True, slots=True)
class InboxItem:
    """An admitted item.

    ``seq`` is its place in line; ``target`` the running turn it aims at; ``turn`` the one that has it.
    """

    id: ItemId
    session: SessionUid
    seq: int
    body: Message | Command | Wake
    content_hash: str
    admitted_at: datetime
    key: str | None = None
    when: When = "next"
    boundary: Boundary = "after_work"
    merge_key: str | None = None
    options: JsonObject = field(default_factory=dict)
    available_at: datetime | None = None
    state: ItemState = "pending"
    target: TurnId | None = None
    turn: TurnId | None = None
    settled_at: datetime | None = None

    @property
    def terminal(self) -> bool:
        return self.state in ("completed", "cancelled")

    def after(self, change: ItemChange) -> InboxItem:
        return replace(self, **change)

    def ready(self, now: datetime) -> bool:
        """Whether a new turn may take it: pending, aimed at no turn, and its time has come."""
        due = self.available_at is None or self.available_at <= now
        return self.state == "pending" and self.target is None and due


def check_item(item: NewItem) -> None:
    """Refuse an item that could never be served."""
    check_id("an item id", item.id)
    if item.key is not None:
        check_key(item.key)
    if item.merge_key is not None:
        check_key(item.merge_key)
    if item.when not in get_args(When) or item.boundary not in get_args(Boundary):
        raise InvalidItem(f"when is 'now' or 'next', not {item.when!r}; boundary is one of {get_args(Boundary)}")
    if item.body.kind == "command" and item.when == "now":
        raise InvalidItem("a command runs alone, after the running turn: send it with when='next'")
    if item.body.kind == "command" and item.merge_key is not None:
        raise InvalidItem("a command is always alone in its turn: it takes no merge key")
    if item.when == "now" and item.available_at is not None:
        raise InvalidItem("an item for the running turn cannot be postponed: leave out available_at or use when='next'")


def content_hash(item: NewItem) -> str:
    """What makes two requests under one key the same: body, aim, merge key and options."""
    aim: JsonObject = {"when": item.when, "boundary": item.boundary, "merge_key": item.merge_key}
    return digest(
        "item", ITEM_VERSION, [encode_body(item.body), canonical(aim), canonical(item.options, what="options")]
    )


def encode_body(body: Message | Command | Wake) -> str:
    return record(ITEM_VERSION, body.encode(), what=f"a {body.kind}")


def decode_body(text: str, *, what: str) -> Message | Command | Wake:
    fields = read_record(text, what=what, supported=ITEM_VERSION)
    try:
        return _BODIES.validate_python(fields)
    except ValidationError as error:
        raise CorruptRecord(what, f"not an inbox item: {error.error_count()} fields are wrong") from None


def blobs_of_item(item: NewItem) -> frozenset[BlobHash]:
    return blobs_of(item.body.parts) if isinstance(item.body, Message) else frozenset()
