"""The outbox: what a commit owes another session, written with the commit and delivered later, exactly once.

Delivery is an ordinary admission whose id and key follow from the debt, so that any worker may repeat it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from lash.clock import from_micros, to_micros
from lash.encoding import JsonObject, read_record, record
from lash.errors import CorruptRecord
from lash.ids import ItemId, OperationId, SessionUid, id_from
from lash.inbox.items import Boundary, Command, Message, NewItem, Wake, When, decode_body, encode_body

OUTBOX_VERSION = 1


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

    def encode(self) -> str:
        fields: JsonObject = {
            "to": self.to,
            "body": encode_body(self.body),
            "when": self.when,
            "boundary": self.boundary,
            "merge_key": self.merge_key,
            "options": self.options,
            "available_at": None if self.available_at is None else to_micros(self.available_at),
        }
        return record(OUTBOX_VERSION, fields, what="an outbox item")


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
            key=f"outbox:{self.session}:{self.operation}:{self.ordinal}",
            body=self.owed.body,
            when=self.owed.when,
            boundary=self.owed.boundary,
            merge_key=self.owed.merge_key,
            options=self.owed.options,
            available_at=self.owed.available_at,
        )


def decode_owed(text: str, *, what: str) -> Owed:
    fields = read_record(text, what=what, supported=OUTBOX_VERSION)
    try:
        due = fields["available_at"]
        return Owed(
            to=SessionUid(str(fields["to"])),
            body=decode_body(str(fields["body"]), what=what),
            when=fields["when"],  # type: ignore[arg-type]  # written by encode
            boundary=fields["boundary"],  # type: ignore[arg-type]
            merge_key=fields["merge_key"],  # type: ignore[arg-type]
            options=fields["options"],  # type: ignore[arg-type]
            available_at=None if due is None else from_micros(int(due)),  # type: ignore[arg-type]
        )
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptRecord(what, f"not an outbox item ({error})") from None
