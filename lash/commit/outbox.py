"""The outbox: what a commit owes another session, written with the commit and delivered later, exactly once.

Delivery is an ordinary admission whose id and key follow from the debt, so that any worker may repeat it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from lash.clock import from_micros, to_micros
from lash.encoding import JsonObject, read_record, record
from lash.errors import CorruptRecord
from lash.ids import ID_PATTERN, ItemId, OperationId, SessionUid, id_from
from lash.inbox.items import Boundary, Command, Message, NewItem, Wake, When, decode_body, encode_body

OUTBOX_VERSION = 1
DEBT_KEY = "outbox:"
"""How the keys of items that pay a debt begin; nobody else may use such keys."""


@dataclass(frozen=True, slots=True)
class Owed:
    """An item for another session's inbox."""

    to: SessionUid
    body: Message | Command | Wake
    when: When = "next"
    boundary: Boundary = "after_work"
    merge_key: str | None = None
    options: JsonObject = field(default_factory=dict)
    available_at: datetime | None = None

    def content(self) -> JsonObject:
        """What is owed. When it becomes available is no part of it, as in an item: a retry would say another time."""
        return {
            "to": self.to,
            "body": encode_body(self.body),
            "when": self.when,
            "boundary": self.boundary,
            "merge_key": self.merge_key,
            "options": self.options,
        }

    def encode(self) -> str:
        due = None if self.available_at is None else to_micros(self.available_at)
        return record(OUTBOX_VERSION, {**self.content(), "available_at": due}, what="an outbox item")


class _Stored(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    to: str = Field(pattern=ID_PATTERN.pattern.removesuffix(r"\Z") + "$")
    body: str
    when: When
    boundary: Boundary
    merge_key: str | None
    options: JsonObject
    available_at: int | None


@dataclass(frozen=True, slots=True)
class Debt:
    """An undelivered outbox item, and the commit that owes it."""

    session: SessionUid
    operation: OperationId
    ordinal: int
    owed: Owed

    def item(self) -> NewItem:
        """The admission that pays it."""
        return NewItem(
            id=ItemId(id_from("outbox", self.session, self.operation, str(self.ordinal))),
            key=f"{DEBT_KEY}{self.session}:{self.operation}:{self.ordinal}",
            body=self.owed.body,
            when=self.owed.when,
            boundary=self.owed.boundary,
            merge_key=self.owed.merge_key,
            options=self.owed.options,
            available_at=self.owed.available_at,
        )


def decode_owed(text: str, *, what: str) -> Owed:
    fields: dict[str, Any] = dict(read_record(text, what=what, supported=OUTBOX_VERSION))
    try:
        stored = _Stored.model_validate(fields)
        due = None if stored.available_at is None else from_micros(stored.available_at)
    except (ValidationError, OverflowError) as error:
        raise CorruptRecord(what, f"not an outbox item ({type(error).__name__})") from None
    return Owed(
        to=SessionUid(stored.to),
        body=decode_body(stored.body, what=what),
        when=stored.when,
        boundary=stored.boundary,
        merge_key=stored.merge_key,
        options=stored.options,
        available_at=due,
    )
