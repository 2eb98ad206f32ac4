"""One small example of every kind of write: what it needs, the call, what it leaves in the tables, what it answers.

What it leaves and answers is written by hand. A call is made from plain values alone, so that a process can make it,
die, and another one can make it again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from lash.commit.outbox import Debt, Owed
from lash.commit.parts import Changed
from lash.commit.plan import CommitPlan
from lash.commit.usage import Tokens, UsageDelta
from lash.graph.nodes import ModelReplied
from lash.graph.parts import Image, Text
from lash.graph.session import Head, NewFork, NewSession
from lash.ids import ItemId, NodeId, OperationId, OwnerId, ReplayKey, RequestId, SessionName, SessionUid, TurnId, WaitId
from lash.inbox.cancelling import These
from lash.inbox.items import Message, NewItem, Wake
from lash.lease import ExecutionLease
from lash.store.contract import Store, TurnOpening
from lash.testing.builders import (
    AT,
    a_message,
    a_session,
    a_wait,
    an_effect,
    append_to,
    finished,
    fresh_name,
    hears,
    leaf_of,
    must_acquire,
    new_id,
    open_with,
    run_turn,
    says,
)
from lash.turn.journal import Finished, Identity, Started
from lash.turn.record import TurnSettlement
from lash.waits import NewWait
from tests.crash.databases import Row, Tables

Given = dict[str, Any]
TTL = timedelta(minutes=5)
FAR = datetime(2100, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Facts:
    """The tables after a crash, with a short way to the rows of one session."""

    tables: Tables
    given: Given

    def rows(self, table: str) -> list[Row]:
        [number] = [row["id"] for row in self.tables["sessions"] if row["uid"] == self.given["session"]]
        return [row for row in self.tables[table] if row["session"] == number]

    def one(self, table: str) -> Row:
        [row] = self.rows(table)
        return row

    @property
    def session(self) -> Row:
        [row] = [row for row in self.tables["sessions"] if row["uid"] == self.given["session"]]
        return row


@dataclass(frozen=True)
class Kind:
    """``adds`` is how many rows each table gains. ``holds`` looks at what the rows say. ``writes_again`` says that a
    repetition writes too: a lease is extended, a blob is as young as new, a sweep goes on."""

    prepare: Callable[[Store], Awaitable[Given]]
    call: Callable[[Store, Given], Awaitable[Any]]
    answer: Callable[[Given], Any]
    adds: Mapping[str, int] = field(default_factory=dict)
    holds: Callable[[Facts], bool] = lambda facts: True
    writes_again: bool = False


# -- sessions ----------------------------------------------------------------------------------------------------------


async def _a_name(store: Store) -> Given:
    return {"session": new_id(), "name": fresh_name("new")}


def _new(given: Given) -> NewSession:
    return NewSession(SessionUid(given["session"]), SessionName(given["name"]), metadata={"colour": "red"})


async def _create(store: Store, given: Given) -> Any:
    return (await store.create(_new(given))).uid


async def _open(store: Store, given: Given) -> Any:
    opened = await store.open(_new(given))
    return [opened.session.uid, opened.created]


_A_SESSION = {"sessions": 1, "branches": 1, "documents": 3}


def _is_named(facts: Facts) -> bool:
    return (facts.session["state"], facts.session["name"]) == ("live", facts.given["name"])


async def _a_parent(store: Store) -> Given:
    uid = (await a_session(store)).uid
    leaf = leaf_of(await run_turn(store, uid, "one"))
    return {"session": new_id(), "name": fresh_name("fork"), "parent": uid, "at": leaf}


async def _fork(store: Store, given: Given) -> Any:
    new = NewFork(
        SessionUid(given["session"]), SessionName(given["name"]), SessionUid(given["parent"]), NodeId(given["at"])
    )
    return (await store.fork(new)).forked_from


async def _a_busy_session(store: Store) -> Given:
    """One message taken, one waiting, an effect recorded, a wait opened."""
    driven = await open_with(store, (await a_session(store)).uid)
    await store.record(driven.lease, driven.turn.id, [an_effect()], waits=[a_wait(turn=driven.turn.id)])
    await store.admit(driven.lease.session, a_message("later"))
    return {"session": driven.lease.session}


async def _delete(store: Store, given: Given) -> Any:
    await store.delete(SessionUid(given["session"]))
    return await _is_gone(store, given)


async def _is_gone(store: Store, given: Given) -> bool:
    return given["session"] not in {session.uid for session in (await store.sessions(limit=1000)).rows}


async def _put_document(store: Store, given: Given) -> Any:
    put = await store.put_document(SessionUid(given["session"]), "config", {"model": "new"}, expected=0)
    return [put.revision, put.body]


async def _a_bare_session(store: Store) -> Given:
    return {"session": (await a_session(store)).uid}


async def _some_bytes(store: Store) -> Given:
    return {"text": new_id() * 100}


async def _put_blob(store: Store, given: Given) -> Any:
    return (await store.blob(await store.put_blob(given["text"].encode()))).decode()


# -- the inbox ---------------------------------------------------------------------------------------------------------


async def _a_picture(store: Store) -> Given:
    blob = await store.put_blob(new_id().encode())
    return {"session": (await a_session(store)).uid, "item": new_id(), "key": new_id(), "blob": blob}


async def _admit(store: Store, given: Given) -> Any:
    body = Message(parts=(Image(blob=given["blob"], media_type="image/png"), Text(text="look")))
    item = await store.admit(SessionUid(given["session"]), NewItem(ItemId(given["item"]), body, key=given["key"]))
    return [item.id, item.seq, item.state]


async def _an_item(store: Store) -> Given:
    uid = (await a_session(store)).uid
    return {"session": uid, "item": (await store.admit(uid, a_message())).id}


async def _cancel(store: Store, given: Given) -> Any:
    [cancelled] = await store.cancel(SessionUid(given["session"]), These((ItemId(given["item"]),)))
    assert cancelled.item is not None
    return cancelled.item.state


async def _a_debt(store: Store) -> Given:
    uid, source = (await a_session(store)).uid, await must_acquire(store, (await a_session(store)).uid)
    owed = Owed(uid, Wake(source="child", data="done"))
    receipt = await store.commit(CommitPlan(OperationId(new_id()), source, base=0, owes=(owed,)))
    return {"session": uid, "source": source.session, "operation": receipt.operation}


async def _deliver(store: Store, given: Given) -> Any:
    to, source = SessionUid(given["session"]), SessionUid(given["source"])
    item = await store.deliver(Debt(source, OperationId(given["operation"]), 0, Owed(to, Wake(source="child"))))
    assert item is not None
    return [item.seq, item.state, item.body.encode()]


def _is_paid(facts: Facts) -> bool:
    [debt] = [row for row in facts.tables["outbox"] if row["operation"] == facts.given["operation"]]
    return debt["state"] == "delivered" and facts.one("inbox")["state"] == "pending"


# -- leases ------------------------------------------------------------------------------------------------------------


def _lease(given: Given) -> ExecutionLease:
    return ExecutionLease(SessionUid(given["session"]), OwnerId("owner"), 1, AT)


async def _acquire(store: Store, given: Given) -> Any:
    return (await store.acquire(SessionUid(given["session"]), OwnerId("owner"), ttl=TTL)).lease.generation


async def _a_held_session(store: Store) -> Given:
    lease = await must_acquire(store, (await a_session(store)).uid)
    return {"session": lease.session}


async def _renew(store: Store, given: Given) -> Any:
    return (await store.renew(_lease(given), ttl=TTL)).generation


def _lasts_longer(facts: Facts) -> bool:
    """The lease was taken for 30 seconds."""
    held = facts.session["lease_expires_at"] - facts.session["created_at"]
    return held > 200_000_000


async def _release(store: Store, given: Given) -> Any:
    return await store.release(_lease(given))


# -- turns -------------------------------------------------------------------------------------------------------------


async def _a_session_and_a_turn(store: Store) -> Given:
    return {"session": (await a_session(store)).uid, "item": new_id(), "turn": new_id()}


async def _open_turn(store: Store, given: Given) -> Any:
    item = NewItem(ItemId(given["item"]), Message(parts=(Text(text="hello"),)))
    opening = TurnOpening(
        SessionUid(given["session"]),
        OwnerId("owner"),
        TurnId(given["turn"]),
        TTL,
        admits=item,
        starts=(an_effect("model:1"),),
    )
    opened = await store.open_turn(opening)
    assert opened.turn is not None
    return [opened.turn.id, opened.turn.attempts, [item.id for item in opened.items], opened.fresh]


async def _a_turn_put_down(store: Store) -> Given:
    driven = await open_with(store, (await a_session(store)).uid, owner="before")
    await store.record(driven.lease, driven.turn.id, [finished(an_effect())])
    await store.release(driven.lease)
    return {"session": driven.lease.session, "turn": driven.turn.id, "asked": new_id(), "item": driven.items[0].id}


async def _take_over(store: Store, given: Given) -> Any:
    uid, asked = SessionUid(given["session"]), TurnId(given["asked"])
    opened = await store.open_turn(TurnOpening(uid, OwnerId("owner"), asked, TTL))
    assert opened.turn is not None
    assert opened.acquired is not None
    return [opened.turn.id, opened.turn.attempts, [item.id for item in opened.items], opened.acquired.lease.generation]


async def _a_turn(store: Store) -> Given:
    driven = await open_with(store, (await a_session(store)).uid)
    return {"session": driven.lease.session, "turn": driven.turn.id, "item": driven.items[0].id, "wait": new_id()}


async def _record(store: Store, given: Given) -> Any:
    """A model call that came to its end, and a tool that waits for somebody."""
    wait = NewWait(WaitId(given["wait"]), "approval", turn=TurnId(given["turn"]))
    asks = Started(ReplayKey("tool:1"), Identity("tool", 2), wait=wait.id)
    done = Finished(ReplayKey("model:1"), Identity("model", 1), {"text": "hi"})
    entries = await store.record(_lease(given), TurnId(given["turn"]), [done, asks], waits=[wait])
    return [[entry.key, entry.state, entry.seq] for entry in entries]


async def _a_turn_with_news(store: Store) -> Given:
    given = await _a_turn(store)
    aimed = await store.admit(given["session"], a_message("hurry", when="now"))
    return given | {"aimed": aimed.id}


async def _take(store: Store, given: Given) -> Any:
    key, identity = ReplayKey("take:1"), Identity("take", 1)
    items = await store.take(_lease(given), TurnId(given["turn"]), "after_work", key=key, identity=identity)
    return [[item.id, item.state] for item in items]


async def _a_turn_that_waits(store: Store) -> Given:
    given = await _a_turn(store)
    await store.open_wait(given["session"], NewWait(WaitId(given["wait"]), "approval", turn=given["turn"]))
    return given


async def _park(store: Store, given: Given) -> Any:
    parked = await store.park(_lease(given), TurnId(given["turn"]), waits=[WaitId(given["wait"])])
    return [parked.state, list(parked.parked_on)]


def _sleeps(facts: Facts) -> bool:
    return facts.one("turns")["state"] == "parked" and facts.session["lease_owner"] is None


async def _a_sleeping_turn(store: Store) -> Given:
    given = await _a_turn_that_waits(store)
    await _park(store, given)
    return given


async def _open_wait(store: Store, given: Given) -> Any:
    key = await store.open_wait(SessionUid(given["session"]), NewWait(WaitId(given["wait"]), "approval"))
    return key.partition(".")[0]


async def _answer(store: Store, given: Given) -> Any:
    key = await store.wait_key(SessionUid(given["session"]), WaitId(given["wait"]))
    answered = await store.answer(key, "yes")
    return [answered.accepted, answered.wait.answer]


def _is_answered_and_awake(facts: Facts) -> bool:
    return facts.one("waits")["state"] == "answered" and facts.session["ready_at"] is not None


async def _revoke(store: Store, given: Given) -> Any:
    [wait] = await store.revoke(SessionUid(given["session"]), [WaitId(given["wait"])])
    return wait.state


async def _request_cancel(store: Store, given: Given) -> Any:
    turn, request = TurnId(given["turn"]), RequestId(given["wait"])
    asked = await store.request_cancel(SessionUid(given["session"]), turn, request, reason="enough")
    return [asked.request.id, asked.first]


# -- the commit --------------------------------------------------------------------------------------------------------


async def _a_turn_at_its_end(store: Store) -> Given:
    given = await _a_turn(store)
    turn = TurnId(given["turn"])
    await store.record(_lease(given), turn, [finished(an_effect()), an_effect("tool:1")], waits=[a_wait(turn=turn)])
    blob = await store.put_blob(new_id().encode())
    return given | {"blob": blob, "to": (await a_session(store)).uid, "part": new_id()}


async def _commit(store: Store, given: Given) -> Any:
    uid, operation = SessionUid(given["session"]), OperationId(given["turn"])
    shown = ModelReplied(model="m", parts=(Image(blob=given["blob"], media_type="image/png"),))
    receipt = await store.commit(
        CommitPlan(
            operation,
            _lease(given),
            base=0,
            delta=append_to(uid, Head(), operation, [hears("hello"), says("hi"), shown]),
            settles=TurnSettlement(TurnId(operation), "finished", completes=frozenset({ItemId(given["item"])})),
            parts={"tools": Changed(given["part"].encode())},
            usage=(UsageDelta("agent", "m", Tokens(input=3, output=4)), UsageDelta("tool", "m", Tokens(output=1))),
            owes=(Owed(SessionUid(given["to"]), Wake(source="child")),),
            documents={"catalog": {"tools": ["one"]}},
            release=True,
        )
    )
    return [receipt.operation, receipt.revision, receipt.leaf]


def _is_settled(facts: Facts) -> bool:
    return (
        [row["state"] for row in facts.rows("inbox")] == ["completed"]
        and [row["state"] for row in facts.rows("turns")] == ["settled"]
        and [row["state"] for row in facts.rows("waits")] == ["revoked"]
        and (facts.session["revision"], facts.session["depth"], facts.session["lease_owner"]) == (1, 3, None)
        and (facts.session["catalog_revision"], facts.session["ready_at"]) == (1, None)
    )


# -- maintenance -------------------------------------------------------------------------------------------------------


async def _something_to_sweep(store: Store) -> Given:
    """A turn that was settled with its item, and a blob that nobody uses; all else that has ended is swept before."""
    await store.vacuum(before=FAR)
    uid = (await a_session(store)).uid
    await run_turn(store, uid, "one")
    await store.put_blob(new_id().encode())
    return {"session": uid}


async def _vacuum(store: Store, given: Given) -> Any:
    await store.vacuum(before=FAR)
    return (await store.vacuum(before=FAR, dry_run=True)).total


WRITES: dict[str, Kind] = {
    "create": Kind(_a_name, _create, lambda g: g["session"], _A_SESSION, _is_named),
    "open": Kind(_a_name, _open, lambda g: [g["session"], True], _A_SESSION, _is_named),
    "fork": Kind(_a_parent, _fork, lambda g: g["at"], _A_SESSION, _is_named),
    "delete": Kind(
        _a_busy_session,
        _delete,
        lambda g: True,
        {"inbox": -2, "turns": -1, "journal": -1, "waits": -1, "documents": -3},
        lambda facts: (facts.session["state"], facts.session["name"]) == ("deleted", None),
    ),
    "put_document": Kind(
        _a_bare_session,
        _put_document,
        lambda g: [1, {"model": "new"}],
        {"documents": 1},
        lambda facts: facts.session["config_revision"] == 1,
    ),
    "put_blob": Kind(_some_bytes, _put_blob, lambda g: g["text"], {"blobs": 1}, writes_again=True),
    "admit": Kind(
        _a_picture,
        _admit,
        lambda g: [g["item"], 1, "pending"],
        {"inbox": 1, "blob_refs": 1},
        lambda facts: facts.session["ready_at"] == facts.one("inbox")["admitted_at"],
    ),
    "cancel": Kind(
        _an_item,
        _cancel,
        lambda g: "cancelled",
        {},
        lambda facts: facts.one("inbox")["state"] == "cancelled" and facts.session["ready_at"] is None,
    ),
    "deliver": Kind(
        _a_debt,
        _deliver,
        lambda g: [1, "pending", {"kind": "wake", "source": "child", "data": "done"}],
        {"inbox": 1},
        _is_paid,
    ),
    "acquire": Kind(
        _a_bare_session,
        _acquire,
        lambda g: 1,
        {},
        lambda facts: (facts.session["lease_owner"], facts.session["lease_generation"]) == ("owner", 1),
        writes_again=True,
    ),
    "renew": Kind(_a_held_session, _renew, lambda g: 1, {}, _lasts_longer, writes_again=True),
    "release": Kind(
        _a_held_session,
        _release,
        lambda g: None,
        {},
        lambda facts: (facts.session["lease_owner"], facts.session["lease_generation"]) == (None, 1),
    ),
    "open_turn": Kind(
        _a_session_and_a_turn,
        _open_turn,
        lambda g: [g["turn"], 1, [g["item"]], True],
        {"inbox": 1, "turns": 1, "journal": 1},
        lambda facts: facts.one("inbox")["state"] == "taken" and facts.session["lease_owner"] == "owner",
        writes_again=True,
    ),
    "take_over": Kind(
        _a_turn_put_down,
        _take_over,
        lambda g: [g["turn"], 1, [g["item"]], 2],
        {},
        lambda facts: (facts.one("turns")["attempts"], facts.session["lease_owner"]) == (1, "owner"),
        writes_again=True,
    ),
    "record": Kind(
        _a_turn,
        _record,
        lambda g: [["model:1", "completed", 2], ["tool:1", "started", 3]],
        {"journal": 2, "waits": 1},
        lambda facts: facts.session["seq"] == 3 and facts.one("turns")["attempts"] == 0,
    ),
    "take": Kind(
        _a_turn_with_news,
        _take,
        lambda g: [[g["aimed"], "taken"]],
        {"journal": 1},
        lambda facts: [row["state"] for row in facts.rows("inbox")] == ["taken", "taken"],
    ),
    "park": Kind(_a_turn_that_waits, _park, lambda g: ["parked", [g["wait"]]], {}, _sleeps),
    "open_wait": Kind(_a_turn, _open_wait, lambda g: g["wait"], {"waits": 1}),
    "answer": Kind(_a_sleeping_turn, _answer, lambda g: [True, "yes"], {}, _is_answered_and_awake),
    "revoke": Kind(
        _a_sleeping_turn, _revoke, lambda g: "revoked", {}, lambda facts: facts.one("waits")["state"] == "revoked"
    ),
    "request_cancel": Kind(
        _a_sleeping_turn,
        _request_cancel,
        lambda g: [g["wait"], True],
        {},
        lambda facts: (
            facts.one("turns")["cancel_request"] == facts.given["wait"] and facts.session["ready_at"] is not None
        ),
    ),
    "commit": Kind(
        _a_turn_at_its_end,
        _commit,
        lambda g: [g["turn"], 1, f"{g['session']}-{g['turn']}-3"],
        {
            "commits": 1,
            "nodes": 4,
            "usage": 2,
            "blobs": 1,
            "state_parts": 1,
            "blob_refs": 1,
            "outbox": 1,
            "documents": 1,
            "journal": -2,
        },
        _is_settled,
    ),
    "vacuum": Kind(
        _something_to_sweep, _vacuum, lambda g: 0, {"inbox": -1, "turns": -1}, lambda facts: True, writes_again=True
    ),
}
