"""What the store contract cannot see: handles share their data, a refusal leaves every row alone, nobody holds a
reference into the store."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from copy import deepcopy
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import pytest

from lash.commit.outbox import Owed
from lash.commit.parts import Changed, Kept
from lash.commit.plan import CommitPlan
from lash.encoding import JsonObject
from lash.errors import (
    BlobMissing,
    CorruptGraph,
    HeadMoved,
    InvalidDelta,
    InvalidId,
    InvalidItem,
    InvalidValue,
    LashError,
    LeaseLost,
    OperationReused,
    OutcomeRecorded,
    PartMissing,
    RevisionMoved,
    SessionExists,
    StoreClosed,
    TurnSettled,
    UnsettledItems,
    WaitNotFound,
)
from lash.graph.delta import Append, MoveHead
from lash.graph.nodes import PluginRecorded
from lash.graph.parts import Image
from lash.graph.session import NewFork, NewSession
from lash.ids import BlobHash, ItemId, OwnerId, SessionName, SessionUid, TurnId
from lash.inbox.cancelling import These
from lash.inbox.items import Command, Message, NewItem, Wake
from lash.store.contract import Store, TurnOpening
from lash.store.memory import MemoryData, MemoryStore
from lash.testing import ManualClock
from lash.testing.builders import (
    TTL,
    Driven,
    a_fork,
    a_held_session,
    a_message,
    a_session,
    a_wait_id,
    an_effect,
    an_opening,
    append,
    finished,
    fresh_name,
    leaf_of,
    must_open,
    new_id,
    open_with,
    plan_nodes,
    plan_of,
    rewind,
    run_turn,
    said,
    says,
    settlement,
)
from lash.waits import NewWait

NOWHERE = BlobHash("0" * 64)
"""The hash of a blob that nobody put."""
NAIVE = datetime(2026, 1, 1)  # noqa: DTZ001  # what is refused


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def data() -> MemoryData:
    return MemoryData()


@pytest.fixture
def store(clock: ManualClock, data: MemoryData) -> MemoryStore:
    return MemoryStore(clock=clock, data=data)


# -- handles -----------------------------------------------------------------------------------------------------------


async def test_handles_on_the_same_data_see_each_others_writes(clock: ManualClock, data: MemoryData) -> None:
    one: Store = MemoryStore(clock=clock, data=data)
    other: Store = MemoryStore(clock=clock, data=data)
    session = await a_session(one)
    await run_turn(one, session.uid, "hello")
    assert await said(other, session.uid) == ["hello", "re: hello"]


async def test_a_wait_is_answered_by_its_key_through_another_handle(clock: ManualClock, data: MemoryData) -> None:
    one, other = MemoryStore(clock=clock, data=data), MemoryStore(clock=clock, data=data)
    session = await a_session(one)
    wait = a_wait_id()
    key = await one.open_wait(session.uid, NewWait(wait, "approval"))
    await other.answer(key, "yes")
    assert (await one.wait(session.uid, wait)).answer == "yes"


async def test_stores_without_shared_data_are_strangers(clock: ManualClock) -> None:
    one, other = MemoryStore(clock=clock), MemoryStore(clock=clock)
    session = await a_session(one)
    key = await one.open_wait(session.uid, NewWait(a_wait_id(), "approval"))
    assert (await other.sessions()).rows == ()
    with pytest.raises(WaitNotFound):
        await other.answer(key, "yes")


async def test_closing_one_handle_leaves_the_others_open(clock: ManualClock, data: MemoryData) -> None:
    one, other = MemoryStore(clock=clock, data=data), MemoryStore(clock=clock, data=data)
    session = await a_session(one)
    await one.aclose()
    with pytest.raises(StoreClosed):
        await one.find(session.uid)
    assert await other.find(session.uid) == session


# -- all or nothing ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class World:
    """A session with a past, an open turn with a journaled effect, and an earlier lease that lost its place."""

    store: MemoryStore
    uid: SessionUid
    driven: Driven
    plan: CommitPlan

    async def commit(self, **changes: object) -> None:
        await self.store.commit(replace(self.plan, **changes))  # type: ignore[arg-type]

    def append(self, *payloads: PluginRecorded) -> Append:
        head = self.store.data.sessions[self.uid].session
        return append(head, self.plan.operation, *payloads)


@pytest.fixture
async def world(store: MemoryStore) -> World:
    session = await a_session(store, "taken-name")
    await run_turn(store, session.uid, "the past")
    driven = await open_with(store, session.uid, "the present")
    await store.record(driven.lease, driven.turn.id, [an_effect("m1"), finished(an_effect("m1"), {"text": "one"})])
    await store.admit(session.uid, a_message("aimed", when="now"))
    return World(store, session.uid, driven, await plan_of(store, driven, says("now"), release=True))


def a_picture(blob: BlobHash) -> NewItem:
    return NewItem(ItemId(new_id()), Message(parts=(Image(blob=blob, media_type="image/png"),)))


Refused = Callable[[World], Awaitable[object]]

REFUSED: dict[str, tuple[type[LashError], Refused]] = {
    "a second session of a living name": (
        SessionExists,
        lambda w: w.store.create(NewSession(SessionUid(new_id()), SessionName("taken-name"))),
    ),
    "an existing session, opened with an id that nobody minted": (
        InvalidId,
        lambda w: w.store.open(NewSession(SessionUid("mine"), SessionName("taken-name"))),
    ),
    "a fork under a living name": (
        SessionExists,
        lambda w: w.store.fork(
            NewFork(SessionUid(new_id()), SessionName("taken-name"), w.uid, list(w.store.data.nodes)[-1])
        ),
    ),
    "a fork at a node inside a commit": (
        InvalidDelta,
        lambda w: w.store.fork(NewFork(SessionUid(new_id()), fresh_name(), w.uid, next(iter(w.store.data.nodes)))),
    ),
    "a document that moved": (
        RevisionMoved,
        lambda w: w.store.put_document(w.uid, "config", {"x": 1}, expected=4),
    ),
    "an item with a blob that is not stored": (
        BlobMissing,
        lambda w: w.store.open_turn(
            TurnOpening(w.uid, OwnerId("owner"), TurnId(new_id()), TTL, admits=a_picture(NOWHERE))
        ),
    ),
    "an item for a time without a zone": (
        InvalidValue,
        lambda w: w.store.admit(w.uid, a_message(available_at=NAIVE)),
    ),
    "cancelling more items than one call may name": (
        InvalidValue,
        lambda w: w.store.cancel(w.uid, These(tuple(ItemId(new_id()) for _ in range(1001)))),
    ),
    "records of which the last contradicts the journal": (
        OutcomeRecorded,
        lambda w: w.store.record(
            w.driven.lease,
            w.driven.turn.id,
            [an_effect("m2"), finished(an_effect("m1"), "another")],
            waits=[NewWait(a_wait_id(), "opened with them")],
        ),
    ),
    "a record that names an unknown wait": (
        WaitNotFound,
        lambda w: w.store.record(
            w.driven.lease, w.driven.turn.id, [an_effect("m2"), replace(an_effect("m3"), wait=a_wait_id())]
        ),
    ),
    "parking on an unknown wait": (
        WaitNotFound,
        lambda w: w.store.park(w.driven.lease, w.driven.turn.id, waits=[a_wait_id()]),
    ),
    "revoking a set with an unknown wait": (WaitNotFound, lambda w: w.store.revoke(w.uid, [a_wait_id()])),
    "opening a turn that was settled": (
        TurnSettled,
        lambda w: w.store.open_turn(
            replace(an_opening(w.uid), turn=next(iter(w.store.data.sessions[w.uid].turns)), admits=a_message("more"))
        ),
    ),
    "a commit by a displaced owner": (
        LeaseLost,
        lambda w: w.commit(lease=replace(w.plan.lease, generation=0)),
    ),
    "a commit on a head that moved": (HeadMoved, lambda w: w.commit(base=0)),
    "a commit that leaves an item out": (
        UnsettledItems,
        lambda w: w.commit(settles=replace(settlement(w.driven), completes=frozenset())),
    ),
    "a commit with a wrong depth": (
        InvalidDelta,
        lambda w: w.commit(delta=Append((replace(w.plan.delta.nodes[0], depth=9),))),  # type: ignore[union-attr]
    ),
    "a commit that rewinds into the middle of another": (
        InvalidDelta,
        lambda w: w.commit(delta=MoveHead(next(iter(w.store.data.nodes)))),
    ),
    "a commit with a part that is not stored": (
        PartMissing,
        lambda w: w.commit(parts={"tools": Changed(b"new"), "memory": Kept(NOWHERE)}, documents={"config": {"x": 1}}),
    ),
    "a commit with a blob that is not stored": (
        BlobMissing,
        lambda w: w.commit(
            delta=w.append(PluginRecorded(plugin="p", refers_to=(NOWHERE,))),
            parts={"tools": Changed(b"new")},
            owes=(Owed(w.uid, Wake(source="child")),),
        ),
    ),
    "a commit that owes what no inbox would take": (
        InvalidItem,
        lambda w: w.commit(owes=(Owed(w.uid, Command(name="reset"), when="now"),)),
    ),
    "another commit under a settled operation": (
        OperationReused,
        lambda w: w.commit(operation=next(iter(w.store.data.commits))[1], delta=w.plan.delta),
    ),
}


@pytest.mark.parametrize("case", REFUSED)
async def test_what_is_refused_leaves_every_row_as_it_was(world: World, data: MemoryData, case: str) -> None:
    error, operation = REFUSED[case]
    before = deepcopy(data)
    with pytest.raises(error):
        await operation(world)
    assert data == before


async def test_a_dry_run_of_a_vacuum_counts_what_the_vacuum_removes_and_touches_nothing(
    store: MemoryStore, clock: ManualClock, data: MemoryData
) -> None:
    session = await a_session(store)
    await run_turn(store, session.uid, "hello")
    await store.delete(session.uid)
    clock.advance(timedelta(days=1))
    before = deepcopy(data)
    announced = await store.vacuum(before=clock.now(), dry_run=True)
    assert data == before
    assert (announced.nodes, announced.commits) == (3, 1)
    assert await store.vacuum(before=clock.now()) == announced
    assert data.nodes == {}


async def test_a_failing_vacuum_removes_nothing(store: MemoryStore, clock: ManualClock, data: MemoryData) -> None:
    session = await a_session(store)
    receipt = await run_turn(store, session.uid, "hello")
    assert receipt.leaf is not None
    await store.fork(NewFork(SessionUid(new_id()), fresh_name(), session.uid, receipt.leaf))
    await store.delete(session.uid)
    del data.nodes[receipt.leaf]
    clock.advance(timedelta(days=1))
    before = deepcopy(data)
    with pytest.raises(CorruptGraph):
        await store.vacuum(before=clock.now())
    assert data == before


# -- nobody holds a reference into the store ---------------------------------------------------------------------------


def spoil(value: JsonObject) -> None:
    value.clear()
    value["spoiled"] = True


async def test_an_admitted_item_does_not_change_with_the_senders_values(store: MemoryStore) -> None:
    session = await a_session(store)
    arguments: JsonObject = {"deep": {"list": [1, 2]}}
    options: JsonObject = {"model": {"name": "m"}}
    item = NewItem(ItemId(new_id()), Command(name="refresh", arguments=arguments), options=options)
    admitted = await store.admit(session.uid, item)
    for reference in (arguments, options, admitted.options, admitted.body.arguments):  # type: ignore[union-attr]
        spoil(reference)
    stored = await store.item(session.uid, item.id)
    assert stored is not None
    assert stored.body == Command(name="refresh", arguments={"deep": {"list": [1, 2]}})
    assert stored.options == {"model": {"name": "m"}}


async def test_documents_do_not_change_with_the_callers_values(store: MemoryStore) -> None:
    config: JsonObject = {"a": {"b": 1}}
    session = await store.create(NewSession(SessionUid(new_id()), fresh_name(), config=config, metadata=config))
    catalog: JsonObject = {"tools": ["t"]}
    put = await store.put_document(session.uid, "catalog", catalog, expected=0)
    read = await store.document(session.uid, "config")
    for reference in (config, catalog, put.body, read.body, (await store.snapshot(session.uid)).config.body):
        spoil(reference)
    assert (await store.document(session.uid, "config")).body == {"a": {"b": 1}}
    assert (await store.document(session.uid, "metadata")).body == {"a": {"b": 1}}
    assert (await store.document(session.uid, "catalog")).body == {"tools": ["t"]}


async def test_a_turn_does_not_change_with_the_drivers_values(store: MemoryStore) -> None:
    session = await a_session(store)
    await store.admit(session.uid, a_message(options={"temperature": 1}))
    driven = await must_open(store, session.uid)
    summary: JsonObject = {"steps": 1}
    plan = await plan_of(store, driven)
    spoil(driven.turn.options)
    spoil(driven.items[0].options)
    await store.commit(replace(plan, settles=replace(settlement(driven), summary=summary)))
    spoil(summary)
    turn = await store.turn(session.uid, driven.turn.id)
    assert (turn.options, turn.summary) == ({"temperature": 1}, {"steps": 1})


async def test_an_outcome_does_not_change_with_the_performers_values(store: MemoryStore) -> None:
    session = await a_session(store)
    driven = await open_with(store, session.uid)
    outcome: JsonObject = {"parts": [{"text": "one"}]}
    [kept] = await store.record(driven.lease, driven.turn.id, [finished(an_effect(), outcome)])
    [read] = await store.journal(session.uid, driven.turn.id)
    for reference in (outcome, kept.outcome, read.outcome):
        assert isinstance(reference, dict)
        spoil(reference)
    assert [entry.outcome for entry in await store.journal(session.uid, driven.turn.id)] == [
        {"parts": [{"text": "one"}]}
    ]


async def test_an_answer_does_not_change_with_the_answerers_values(store: MemoryStore) -> None:
    session = await a_session(store)
    wait = a_wait_id()
    key = await store.open_wait(session.uid, NewWait(wait, "approval"))
    value: JsonObject = {"approved": ["a"]}
    answered = await store.answer(key, value)
    spoil(value)
    assert isinstance(answered.wait.answer, dict)
    spoil(answered.wait.answer)
    assert (await store.wait(session.uid, wait)).answer == {"approved": ["a"]}


async def test_a_debt_does_not_change_with_the_values_of_who_committed_or_listed_it(store: MemoryStore) -> None:
    session = await a_session(store)
    driven = await open_with(store, session.uid)
    options: JsonObject = {"priority": 1}
    owed = Owed(session.uid, Wake(source="child"), options=options)
    await store.commit(replace(await plan_of(store, driven), owes=(owed,)))
    [listed] = await store.debts()
    spoil(options)
    spoil(listed.owed.options)
    delivered = await store.deliver(listed)
    assert delivered is not None
    assert delivered.options == {"priority": 1}


async def test_state_parts_do_not_change_with_the_readers_dict(store: MemoryStore) -> None:
    session = await a_session(store)
    driven = await open_with(store, session.uid)
    body = Changed(b"state")
    await store.commit(replace(await plan_of(store, driven), parts={"tools": body}))
    (await store.parts(session.uid)).clear()
    (await store.snapshot(session.uid)).parts.clear()
    assert await store.parts(session.uid) == {"tools": body.hash}


async def test_a_node_that_was_read_has_to_prove_its_body_when_it_is_committed_elsewhere(store: MemoryStore) -> None:
    session = await a_session(store)
    receipt = await run_turn(store, session.uid, "hello")
    assert receipt.leaf is not None
    read = [*(await store.snapshot(session.uid)).nodes, *await store.nodes(session.uid)]
    for node in (*read, await store.node(session.uid, receipt.leaf)):
        assert not node.encoded


# -- state parts -------------------------------------------------------------------------------------------------------


async def test_at_the_leaf_the_present_state_parts_hold_though_no_node_came_with_them(store: MemoryStore) -> None:
    lease = await a_held_session(store)
    first = await store.commit(replace(await plan_nodes(store, lease, says("hello")), parts={"p": Changed(b"then")}))
    await store.commit(replace(await plan_nodes(store, lease), parts={"p": Changed(b"now")}))
    fork = await store.fork(a_fork(lease.session, leaf_of(first)))
    await rewind(store, lease, leaf_of(first))
    assert await store.parts(fork.uid) == await store.parts(lease.session) == {"p": Changed(b"now").hash}


# -- what only walking finds -------------------------------------------------------------------------------------------


async def test_a_path_with_a_hole_is_refused_and_names_the_missing_node(store: MemoryStore, data: MemoryData) -> None:
    session = await a_session(store)
    await run_turn(store, session.uid, "hello")
    hole = next(iter(data.nodes))
    del data.nodes[hole]
    with pytest.raises(CorruptGraph, match=hole):
        await store.nodes(session.uid)


async def test_a_path_whose_depths_contradict_each_other_is_refused(store: MemoryStore, data: MemoryData) -> None:
    session = await a_session(store)
    await run_turn(store, session.uid, "hello")
    root = next(iter(data.nodes))
    data.nodes[root] = replace(data.nodes[root], depth=5)
    with pytest.raises(CorruptGraph, match=root):
        await store.nodes(session.uid)
