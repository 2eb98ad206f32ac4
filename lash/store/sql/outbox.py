"""What commits owe other sessions."""

from __future__ import annotations

from sqlalchemy import Connection, select, text

from lash.commit.outbox import Debt
from lash.errors import OutboxNotFound
from lash.ids import SessionUid
from lash.inbox.items import InboxItem
from lash.store import schema
from lash.store.checks import check_limit
from lash.store.rows import read_debt, read_item, readable
from lash.store.sql.inbox import admit_into, turn_and_known
from lash.store.sql.questions import BY_UID, DEBT, ITEM
from lash.store.sql.sessions import keep_session
from lash.store.sql.steps import Steps, Work, Write, answer_to

_OWED = (
    select(schema.outbox, schema.sessions.c.uid)
    .join_from(schema.outbox, schema.sessions, schema.sessions.c.id == schema.outbox.c.session)
    .where(text("lash_outbox.state = 'owed'"))
    .order_by(schema.outbox.c.owed_at, schema.outbox.c.session, schema.outbox.c.revision, schema.outbox.c.ordinal)
)


def debts(connection: Connection, limit: int) -> list[Debt]:
    check_limit(limit)
    owed: list[Debt] = []
    seen = 0
    while len(owed) < limit:
        found = connection.execute(_OWED.limit(limit).offset(seen)).mappings().all()
        owed += readable(lambda row: read_debt(row, SessionUid(row["uid"])), found)
        seen += len(found)
        if len(found) < limit:
            break
    return owed[:limit]


def stored(connection: Connection, debt: Debt) -> Debt:
    """The debt as it was committed, whatever the caller's copy says. It names the sessions that paying it touches."""
    source = BY_UID.now(connection, debt.session)
    key = (source.id if source else 0, debt.operation, debt.ordinal)
    row = DEBT.now(connection, key) if 0 <= debt.ordinal < 2**31 else None
    if row is None:
        raise OutboxNotFound(debt.session, debt.operation, debt.ordinal)
    return read_debt(row, debt.session)


def deliver(debt: Debt) -> Write[InboxItem | None]:
    def steps(work: Work) -> Steps[InboxItem | None]:
        source = work.rows[debt.session]
        row = yield from answer_to(DEBT((source.id, debt.operation, debt.ordinal)))
        if row is None:
            raise OutboxNotFound(debt.session, debt.operation, debt.ordinal)
        receiver = work.rows.get(debt.owed.to)
        living = receiver if receiver is not None and receiver.state == "live" else None
        if row["state"] != "owed":
            known = None if living is None else (yield from answer_to(ITEM((living.id, debt.item().id))))
            return None if known is None or living is None else read_item(known, living.uid)
        key = {"session": source.id, "operation": debt.operation, "ordinal": debt.ordinal}
        paid = "dropped" if living is None else "delivered"
        work.changes.update(schema.outbox, key, {"state": paid, "settled_at": work.now})
        if living is None:
            return None
        turn, known_items = yield from turn_and_known(living, debt.item())
        item, after = yield from admit_into(work, living, debt.item(), turn, known_items)
        if after is not living:
            keep_session(work, living, after, was=turn, turn=turn)
        return item

    return Write(tuple(dict.fromkeys((debt.session, debt.owed.to))), steps)
