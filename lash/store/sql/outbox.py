"""What commits owe other sessions."""

from __future__ import annotations

from sqlalchemy import Connection, select

from lash.commit.outbox import Debt
from lash.errors import OutboxNotFound
from lash.ids import SessionUid
from lash.inbox.items import InboxItem
from lash.store import schema
from lash.store.checks import check_limit
from lash.store.rows import read_debt, read_item
from lash.store.sql.inbox import admit_into, unsettled_turn
from lash.store.sql.questions import DEBT, ITEM
from lash.store.sql.sessions import keep_session
from lash.store.sql.steps import Steps, Work, Write, answer_to

_OWED = (
    select(schema.outbox, schema.sessions.c.uid)
    .join_from(schema.outbox, schema.sessions, schema.sessions.c.id == schema.outbox.c.session)
    .where(schema.outbox.c.state == "owed")
    .order_by(schema.outbox.c.owed_at, schema.outbox.c.session, schema.outbox.c.revision, schema.outbox.c.ordinal)
)


def debts(connection: Connection, limit: int) -> list[Debt]:
    check_limit(limit)
    found = connection.execute(_OWED.limit(limit)).mappings()
    return [read_debt(row, SessionUid(row["uid"])) for row in found]


def deliver(debt: Debt) -> Write[InboxItem | None]:
    place = (debt.session, debt.operation, debt.ordinal)

    def steps(work: Work) -> Steps[InboxItem | None]:
        source = work.rows.get(debt.session)
        if source is None:
            raise OutboxNotFound(*place)
        row = yield from answer_to(DEBT((source.id, debt.operation, debt.ordinal)))
        if row is None:
            raise OutboxNotFound(*place)
        owed = read_debt(row, debt.session)
        if owed.owed.to != debt.owed.to:  # the caller named, and so locked, another receiver than the one it is owed to
            raise OutboxNotFound(*place)
        receiver = work.rows.get(owed.owed.to)
        living = receiver if receiver is not None and receiver.state == "live" else None
        arriving = owed.item()
        if row["state"] != "owed":
            known = None if living is None else (yield from answer_to(ITEM((living.id, arriving.id))))
            return None if known is None or living is None else read_item(known, living.uid)
        key = {"session": source.id, "operation": debt.operation, "ordinal": debt.ordinal}
        paid = "dropped" if living is None else "delivered"
        work.changes.update(schema.outbox, key, {"state": paid, "settled_at": work.now})
        if living is None:
            return None
        turn = yield from unsettled_turn(living)
        item, after = yield from admit_into(work, living, arriving, turn)
        if after is not living:
            keep_session(work, living, after, was=turn, turn=turn)
        return item

    return Write(tuple(dict.fromkeys((debt.session, debt.owed.to))), steps)
