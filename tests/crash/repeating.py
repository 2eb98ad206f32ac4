"""Calls made again, exactly as they were made before, by somebody who only knows what was asked for.

Only those that need no lease: what an owner asks for under its lease ends with it.
"""

from __future__ import annotations

import contextlib
from typing import Any

from lash.commit.outbox import Debt, Owed
from lash.errors import NotFound, RevisionMoved, TurnSettled
from lash.graph.parts import Text
from lash.graph.session import NewFork, NewSession
from lash.ids import ItemId, NodeId, OperationId, RequestId, SessionName, SessionUid, TurnId, WaitId
from lash.inbox.items import Message, NewItem, Wake
from tests.crash.desk import Desk

REPEATABLE = frozenset(
    {"open", "fork", "delete", "put_document", "put_blob", "admit", "cancel", "deliver", "request_cancel", "answer"}
)


async def repeat(desk: Desk, op: str, given: dict[str, Any]) -> None:
    """What was deleted, swept or settled meanwhile may be refused; everything else must be answered."""
    with contextlib.suppress(NotFound, RevisionMoved, TurnSettled):
        await _repeat(desk, op, given, SessionUid(given["session"] or ""))


async def _repeat(desk: Desk, op: str, given: dict[str, Any], uid: SessionUid) -> None:
    match op:
        case "open":
            await desk.open(NewSession(uid, SessionName(given["name"])))
        case "fork":
            parent, at = SessionUid(given["parent"]), NodeId(given["at"])
            await desk.fork(NewFork(uid, SessionName(given["name"]), parent, at))
        case "delete":
            await desk.delete(uid)
        case "put_document":
            await desk.put_document(uid, given["word"], given["expected"])
        case "put_blob":
            await desk.put_blob(given["word"], given["size"])
        case "admit":
            await desk.admit(uid, item_of(given))
        case "cancel":
            await desk.cancel(uid, ItemId(given["id"]))
        case "deliver":
            # What was committed is delivered, whatever the debt that is handed in says.
            owed = Owed(uid, Wake(source="nobody"))
            source, operation = SessionUid(given["source"]), OperationId(given["operation"])
            await desk.deliver(Debt(source, operation, given["ordinal"], owed))
        case "request_cancel":
            await desk.request_cancel(uid, TurnId(given["turn"]), RequestId(given["request"]))
        case "answer":
            await desk.answer(uid, WaitId(given["wait"]), given["value"])
        case _:
            raise AssertionError(f"nobody can repeat {op!r}")


def item_of(given: dict[str, Any]) -> NewItem:
    body = Message(parts=(Text(text=given["text"]),))
    return NewItem(ItemId(given["id"]), body, key=given["key"], when=given["when"], merge_key=given["merge_key"])
