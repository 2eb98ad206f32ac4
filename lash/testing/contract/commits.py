"""Commits: receipts, the order of the checks, lost answers, and all or nothing."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta

import pytest

from lash.commit.outbox import Debt, Owed
from lash.commit.parts import Changed, Kept, hash_of
from lash.commit.plan import CommitPlan
from lash.commit.usage import Tokens, UsageDelta, UsageTotal
from lash.errors import (
    BlobMissing,
    DiskFull,
    EvidenceMissing,
    HeadMoved,
    InvalidDelta,
    InvalidId,
    InvalidItem,
    InvalidKey,
    InvalidValue,
    LashError,
    LeaseLost,
    OperationReused,
    OutboxNotFound,
    PartMissing,
    TurnCancelRequested,
    TurnSettled,
    TurnUnsettled,
    UnsettledItems,
)
from lash.graph.delta import Append, MoveHead, Unchanged
from lash.graph.nodes import MessageReceived, Node
from lash.graph.parts import File
from lash.graph.session import DOCUMENT_KINDS, Document, Head
from lash.ids import ItemId, NodeId, OperationId, OwnerId, SessionUid, TurnId
from lash.inbox.items import Command, InboxItem, Wake
from lash.lease import LeaseRecord
from lash.store.contract import Store
from lash.testing.builders import (
    AT,
    TTL,
    Driven,
    a_held_session,
    a_message,
    a_request_id,
    a_session,
    an_effect,
    an_operation,
    append_to,
    commit_nodes,
    displace,
    finished,
    hears,
    leaf_of,
    must_acquire,
    must_open,
    new_id,
    open_with,
    plan_nodes,
    plan_of,
    race,
    rewind,
    run_turn,
    said,
    says,
    settlement,
)
from lash.testing.faults import DIE_BEFORE, LOSE_ANSWER, Died, Refuse, faulty
from lash.testing.harness import StoreContract, StoreHarness, opened

KEPT, NEW, PICTURE = b"a part that stays", b"a part that changed", b"a picture"
SPENT = UsageDelta("agent", "m", Tokens(input=10, output=5, reasoning=2))


@dataclass(frozen=True, slots=True)
class Scene:
    """A turn at work, and a plan that settles something of everything."""

    driven: Driven
    late: InboxItem
    receiver: SessionUid
    plan: CommitPlan

    @property
    def uid(self) -> SessionUid:
        return self.driven.lease.session

    @property
    def debt(self) -> Debt:
        return Debt(self.uid, self.plan.operation, 0, self.plan.owes[0])


async def a_scene(store: Store) -> Scene:
    """One earlier commit, a turn that took an item and journaled an outcome, and a late item that is aimed at it."""
    lease = await a_held_session(store)
    uid, receiver = lease.session, (await a_session(store)).uid
    await store.commit(replace(await plan_nodes(store, lease, says("earlier")), parts={"kept": Changed(KEPT)}))
    driven = await open_with(store, uid, "hello")
    await store.record(driven.lease, driven.turn.id, [finished(an_effect())])
    late = await store.admit(uid, a_message("late", when="now"))
    picture = await store.put_blob(PICTURE)
    shown = MessageReceived(parts=(File(blob=picture, media_type="image/png", name="p.png"),))
    plan = replace(
        await plan_of(store, driven, hears("hello"), shown, says("hi")),
        parts={"kept": Kept(hash_of(KEPT)), "new": Changed(NEW)},
        usage=(SPENT,),
        owes=(Owed(receiver, Wake(source="child", data={"done": True})),),
        documents={"catalog": {"tools": ["find"]}},
        release=True,
    )
    return Scene(driven, late, receiver, plan)


async def _everything(store: Store, scene: Scene) -> tuple[object, ...]:
    """All that the commit could change, but for the outbox."""
    uid, turn = scene.uid, scene.driven.turn.id
    return (
        await store.snapshot(uid),
        await store.lease(uid),
        await store.nodes(uid),
        (await store.items(uid, terminal=True)).rows,
        await store.turn(uid, turn),
        await store.journal(uid, turn),
        await store.usage(uid),
        await store.receipt(uid, scene.plan.operation),
        [await store.document(uid, kind) for kind in DOCUMENT_KINDS],
        (await store.items(scene.receiver, terminal=True)).rows,
    )


Change = Callable[[CommitPlan], CommitPlan]


def _nodes(plan: CommitPlan) -> tuple[Node, ...]:
    assert isinstance(plan.delta, Append)
    return plan.delta.nodes


def _with_last(plan: CommitPlan, **fields: object) -> CommitPlan:
    *rest, last = _nodes(plan)
    changed = replace(last, **fields)  # type: ignore[arg-type]  # each is right for its field
    return replace(plan, delta=Append((*rest, changed)))


def _settling(plan: CommitPlan, **fields: object) -> CommitPlan:
    assert plan.settles is not None
    return replace(plan, settles=replace(plan.settles, **fields))  # type: ignore[arg-type]


def _missing_file(plan: CommitPlan) -> CommitPlan:
    missing = hash_of(b"nobody put this")
    nodes = _nodes(plan)
    return replace(plan, delta=Append((*nodes[:-1], replace(nodes[-1], blobs=frozenset({missing})))))


SPOILED: dict[str, tuple[Change, type[LashError]]] = {
    "a displaced generation": (
        lambda plan: replace(plan, lease=replace(plan.lease, generation=plan.lease.generation - 1)),
        LeaseLost,
    ),
    "another owner": (lambda plan: replace(plan, lease=replace(plan.lease, owner=OwnerId("thief"))), LeaseLost),
    "an old head": (lambda plan: replace(plan, base=plan.base - 1), HeadMoved),
    "a head to come": (lambda plan: replace(plan, base=plan.base + 1), HeadMoved),
    "no turn": (lambda plan: replace(plan, settles=None), TurnUnsettled),
    "another turn": (lambda plan: _settling(plan, turn=TurnId(new_id())), TurnUnsettled),
    "an item left out": (lambda plan: _settling(plan, completes=frozenset()), UnsettledItems),
    "an item it never took": (
        lambda plan: _settling(plan, gives_back=frozenset({ItemId(new_id())})),
        UnsettledItems,
    ),
    "an item settled twice": (
        lambda plan: _settling(plan, gives_back=plan.settles.completes if plan.settles else frozenset()),
        UnsettledItems,
    ),
    "a cancel that nobody asked for": (lambda plan: _settling(plan, outcome="cancelled"), EvidenceMissing),
    "evidence of no cancel": (lambda plan: _settling(plan, cancelled_by=a_request_id()), EvidenceMissing),
    "no nodes": (lambda plan: replace(plan, delta=Append(())), InvalidDelta),
    "a law of growth": (lambda plan: _with_last(plan, depth=99), InvalidDelta),
    "a part that is not stored": (
        lambda plan: replace(plan, parts={"kept": Kept(hash_of(b"nobody stored this"))}),
        PartMissing,
    ),
    "a blob that is not stored": (_missing_file, BlobMissing),
    "an outcome that is no word": (lambda plan: _settling(plan, outcome=" "), InvalidKey),
    "a summary that is no JSON": (lambda plan: _settling(plan, summary={"x": float("nan")}), InvalidValue),
    "an unnamed part": (lambda plan: replace(plan, parts={"": Changed(b"x")}), InvalidKey),
    "a part by no hash": (lambda plan: replace(plan, parts={"kept": Kept("abc")}), InvalidId),  # type: ignore[arg-type]
    "impossible usage": (
        lambda plan: replace(plan, usage=(UsageDelta("agent", "m", Tokens(input=-1)),)),
        InvalidValue,
    ),
    "a document that is no JSON": (
        lambda plan: replace(plan, documents={"config": {"x": "\ud800"}}),
        InvalidValue,
    ),
    "a debt that cannot be delivered": (
        lambda plan: replace(plan, owes=(*plan.owes, replace(plan.owes[0], body=Command(name="reset"), when="now"))),
        InvalidItem,
    ),
    "an operation that is no id": (lambda plan: replace(plan, operation=OperationId("mine")), InvalidId),
}
"""Ways to spoil the plan of a scene, and what each is refused with."""

IN_ORDER = [
    "a displaced generation",
    "an old head",
    "an item left out",
    "a law of growth",
    "a part that is not stored",
]
"""One of each check that a plan passes after its receipt, in the order of the checks. They can all be wrong at once."""

SAME: dict[str, Change] = {
    "as it was": lambda plan: plan,
    "another base": lambda plan: replace(plan, base=99),
    "another lease": lambda plan: replace(plan, lease=replace(plan.lease, owner=OwnerId("b"), generation=7)),
    "without letting go": lambda plan: replace(plan, release=False),
    "nodes of another time": lambda plan: replace(
        plan, delta=Append(tuple(replace(node, at=AT + timedelta(days=1)) for node in _nodes(plan)))
    ),
    "nodes planned from another head": lambda plan: replace(
        plan, delta=Append(tuple(replace(node, parent=None, depth=0, frame=0) for node in _nodes(plan)))
    ),
    "other timings": lambda plan: _settling(plan, summary={"took": "longer"}),
    "parts by their hash": lambda plan: replace(
        plan, parts={name: Kept(part.hash) for name, part in (plan.parts or {}).items()}
    ),
    "parts in another order": lambda plan: replace(plan, parts=dict(sorted((plan.parts or {}).items(), reverse=True))),
    "debts that fall due at another time": lambda plan: replace(
        plan, owes=tuple(replace(owed, available_at=AT + timedelta(days=1)) for owed in plan.owes)
    ),
}
"""Ways to say the same commit again."""

OTHER: dict[str, Change] = {
    "another body": lambda plan: _with_last(plan, body='{"finish":"stop","model":"m","parts":[],"v":1}'),
    "another kind": lambda plan: _with_last(plan, kind="noted"),
    "another id": lambda plan: _with_last(plan, id=NodeId("x")),
    "a node more": lambda plan: replace(plan, delta=Append((*_nodes(plan), _nodes(plan)[0]))),
    "a node less": lambda plan: replace(plan, delta=Append(_nodes(plan)[:-1])),
    "nodes in another order": lambda plan: replace(plan, delta=Append(_nodes(plan)[::-1])),
    "no nodes": lambda plan: replace(plan, delta=Unchanged()),
    "a move": lambda plan: replace(plan, delta=MoveHead(_nodes(plan)[-1].id)),
    "another outcome": lambda plan: _settling(plan, outcome="failed"),
    "items given back": lambda plan: _settling(
        plan, completes=frozenset(), gives_back=plan.settles.completes if plan.settles else frozenset()
    ),
    "evidence": lambda plan: _settling(plan, cancelled_by=a_request_id()),
    "no turn": lambda plan: replace(plan, settles=None),
    "another part": lambda plan: replace(plan, parts={**(plan.parts or {}), "new": Changed(b"other")}),
    "a part more": lambda plan: replace(plan, parts={**(plan.parts or {}), "more": Changed(NEW)}),
    "no parts": lambda plan: replace(plan, parts={}),
    "parts left alone": lambda plan: replace(plan, parts=None),
    "other usage": lambda plan: replace(plan, usage=(replace(SPENT, tokens=Tokens(input=11)),)),
    "usage twice": lambda plan: replace(plan, usage=(SPENT, SPENT)),
    "another debt": lambda plan: replace(plan, owes=(replace(plan.owes[0], body=Wake(source="other")),)),
    "another receiver": lambda plan: replace(plan, owes=(replace(plan.owes[0], to=SessionUid("0" * 32)),)),
    "no debt": lambda plan: replace(plan, owes=()),
    "another document": lambda plan: replace(plan, documents={"catalog": {"tools": []}}),
    "a document of another kind": lambda plan: replace(plan, documents={"config": {"tools": ["find"]}}),
}
"""Ways to say another commit under the same operation."""

spoiled = pytest.mark.parametrize(("spoil", "error"), SPOILED.values(), ids=SPOILED.keys())


class CommitContract(StoreContract):
    """One operation, one commit."""

    # -- receipts ------------------------------------------------------------------------------------------------------

    async def test_a_commit_leaves_a_receipt(self, store: Store, harness: StoreHarness) -> None:
        lease = await a_held_session(store)
        plan = await plan_nodes(store, lease, says("hi"))
        assert await store.receipt(lease.session, plan.operation) is None
        before = await harness.now()
        receipt = await store.commit(plan)
        assert (receipt.session, receipt.operation, receipt.revision) == (lease.session, plan.operation, 1)
        assert receipt.leaf == _nodes(plan)[-1].id
        assert before <= receipt.committed_at <= await harness.now()
        assert await store.receipt(lease.session, plan.operation) == receipt

    async def test_every_commit_is_one_revision_on(self, store: Store) -> None:
        lease = await a_held_session(store)
        a = await commit_nodes(store, lease, says("a"))
        unchanged = await store.commit(await plan_nodes(store, lease))
        b = await commit_nodes(store, lease, says("b"))
        back = await rewind(store, lease, leaf_of(a))
        assert [done.revision for done in (a, unchanged, b, back)] == [1, 2, 3, 4]
        assert (await store.find(lease.session)).head.revision == 4

    async def test_a_commit_without_nodes_leaves_the_head_where_it_is(self, store: Store) -> None:
        lease = await a_held_session(store)
        empty = await store.commit(await plan_nodes(store, lease))
        assert (empty.leaf, (await store.find(lease.session)).head) == (None, Head(revision=1))
        a = await commit_nodes(store, lease, says("a"))
        assert (await store.commit(await plan_nodes(store, lease))).leaf == a.leaf

    async def test_event_numbers_rise_with_every_commit(self, store: Store) -> None:
        lease = await a_held_session(store)
        first = await commit_nodes(store, lease, says("a"))
        admitted = await store.admit(lease.session, a_message())
        driven = await open_with(store, lease.session)
        (entry,) = await store.record(driven.lease, driven.turn.id, [finished(an_effect())])
        second = await store.commit(await plan_of(store, driven))
        assert first.seq < admitted.seq < entry.seq < second.seq <= (await store.find(lease.session)).seq

    @pytest.mark.parametrize("same", SAME.values(), ids=SAME.keys())
    async def test_the_same_commit_again_returns_the_first_receipt(self, store: Store, same: Change) -> None:
        scene = await a_scene(store)
        receipt = await store.commit(scene.plan)
        before = await _everything(store, scene)
        assert await store.commit(same(scene.plan)) == receipt
        assert await _everything(store, scene) == before

    @pytest.mark.parametrize("other", OTHER.values(), ids=OTHER.keys())
    async def test_other_content_under_the_same_operation_is_a_conflict(self, store: Store, other: Change) -> None:
        scene = await a_scene(store)
        await store.commit(scene.plan)
        before = await _everything(store, scene)
        with pytest.raises(OperationReused) as refused:
            await store.commit(other(scene.plan))
        assert (refused.value.session, refused.value.operation) == (scene.uid, scene.plan.operation)
        assert await _everything(store, scene) == before

    async def test_the_store_finds_out_itself_whether_content_is_the_same(self, store: Store) -> None:
        lease = await a_held_session(store)
        operations = [an_operation(), an_operation()]
        first, second = [await commit_nodes(store, lease, says("x"), operation=operation) for operation in operations]
        assert len(first.content_hash) == 64
        assert first.content_hash != second.content_hash

    async def test_an_operation_belongs_to_its_session(self, store: Store) -> None:
        one, two = await a_held_session(store), await a_held_session(store, "another")
        operation = an_operation()
        await commit_nodes(store, one, says("one"), operation=operation)
        assert await store.receipt(two.session, operation) is None
        await commit_nodes(store, two, says("two"), operation=operation)
        assert await said(store, one.session) == ["one"]
        assert await said(store, two.session) == ["two"]

    async def test_a_receipt_is_asked_for_by_anybody_at_any_time(self, store: Store, harness: StoreHarness) -> None:
        scene = await a_scene(store)
        receipt = await store.commit(scene.plan)
        await run_turn(store, scene.uid, "others went on", owner="another")
        async with opened(harness) as other:
            assert await other.receipt(scene.uid, scene.plan.operation) == receipt
            assert await other.commit(scene.plan) == receipt

    # -- repeating -----------------------------------------------------------------------------------------------------

    async def test_a_commit_is_repeated_safely_after_its_answer_was_lost(self, store: Store) -> None:
        scene = await a_scene(store)
        with pytest.raises(Died):
            await faulty(store, {"commit": {1: LOSE_ANSWER}}).commit(scene.plan)
        before = await _everything(store, scene)
        receipt = await store.commit(scene.plan)
        assert receipt.revision == scene.plan.base + 1
        assert await _everything(store, scene) == before

    async def test_a_commit_lands_after_its_first_attempt_died_before_the_store(self, store: Store) -> None:
        scene = await a_scene(store)
        before = await _everything(store, scene)
        with pytest.raises(Died):
            await faulty(store, {"commit": {1: DIE_BEFORE}}).commit(scene.plan)
        assert await _everything(store, scene) == before
        assert (await store.commit(scene.plan)).revision == scene.plan.base + 1

    async def test_a_commit_lands_once_the_store_has_room_again(self, store: Store) -> None:
        scene = await a_scene(store)
        full = faulty(store, {"commit": {1: Refuse(DiskFull("no space left on device"))}})
        with pytest.raises(DiskFull):
            await full.commit(scene.plan)
        assert (await full.commit(scene.plan)).revision == scene.plan.base + 1

    async def test_a_repeated_commit_needs_no_lease(self, store: Store) -> None:
        lease = await a_held_session(store)
        plan = await plan_nodes(store, lease, says("hi"))
        receipt = await store.commit(plan)
        await store.release(lease)
        assert await store.commit(plan) == receipt
        assert await store.lease(lease.session) == LeaseRecord(generation=lease.generation)

    async def test_a_displaced_owner_may_ask_for_its_receipt_again(self, store: Store, harness: StoreHarness) -> None:
        lease = await a_held_session(store)
        plan = await plan_nodes(store, lease, says("hi"))
        receipt = await store.commit(plan)
        successor = await displace(harness, store, lease.session)
        assert await store.commit(plan) == receipt
        assert await store.commit(replace(plan, lease=successor)) == receipt

    async def test_a_commit_is_repeated_after_others_committed_and_rewound(self, store: Store) -> None:
        lease = await a_held_session(store)
        await commit_nodes(store, lease, says("a"))
        a = (await store.find(lease.session)).head.leaf
        plan = await plan_nodes(store, lease, says("b"))
        receipt = await store.commit(plan)
        await commit_nodes(store, lease, says("c"))
        assert await store.commit(plan) == receipt
        assert a is not None
        await rewind(store, lease, a)
        assert await store.commit(plan) == receipt
        assert await said(store, lease.session) == ["a"]

    async def test_a_commit_is_repeated_on_a_store_that_was_opened_again(self, harness: StoreHarness) -> None:
        async with opened(harness) as first:
            scene = await a_scene(first)
            receipt = await first.commit(scene.plan)
            before = await _everything(first, scene)
        async with opened(harness) as second:
            assert await second.commit(scene.plan) == receipt
            assert await _everything(second, scene) == before

    async def test_a_commit_whose_caller_gave_up_lands_once_or_never(self, store: Store) -> None:
        lease = await a_held_session(store)
        plan = await plan_nodes(store, lease, says("hi"))
        call = asyncio.create_task(store.commit(plan))
        await asyncio.sleep(0)  # so that it has begun
        call.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await call
        receipt = await store.commit(plan)
        assert receipt.revision == 1
        assert await said(store, lease.session) == ["hi"]

    # -- the fence -----------------------------------------------------------------------------------------------------

    async def test_a_commit_needs_a_lease_that_was_given(self, store: Store) -> None:
        lease = await a_held_session(store)
        plan = await plan_nodes(store, lease, says("hi"))
        forged = [
            replace(lease, generation=lease.generation + 1),
            replace(lease, generation=0),
            replace(lease, owner=OwnerId("thief")),
        ]
        for lie in forged:
            with pytest.raises(LeaseLost):
                await store.commit(replace(plan, lease=lie))
        assert await store.nodes(lease.session) == []

    async def test_a_commit_to_a_session_that_nobody_holds_is_refused(self, store: Store) -> None:
        lease = await a_held_session(store)
        other = await a_session(store)
        with pytest.raises(LeaseLost):
            await store.commit(CommitPlan(an_operation(), replace(lease, session=other.uid), base=0))
        assert await store.find(other.uid) == other

    async def test_a_displaced_owner_cannot_commit(self, store: Store, harness: StoreHarness) -> None:
        lease = await a_held_session(store)
        plan = await plan_nodes(store, lease, says("too late"))
        successor = await displace(harness, store, lease.session)
        with pytest.raises(LeaseLost) as lost:
            await store.commit(plan)
        assert (lost.value.generation, lost.value.found) == (lease.generation, successor.generation)
        assert await store.nodes(lease.session) == []
        assert (await store.commit(replace(plan, lease=successor))).revision == 1

    async def test_a_released_lease_cannot_commit(self, store: Store) -> None:
        lease = await a_held_session(store)
        plan = await plan_nodes(store, lease, says("too late"))
        await store.release(lease)
        with pytest.raises(LeaseLost):
            await store.commit(plan)
        assert await store.nodes(lease.session) == []

    async def test_an_expired_lease_that_nobody_took_still_commits(self, store: Store, harness: StoreHarness) -> None:
        lease = await a_held_session(store)
        await harness.advance(10 * TTL)
        await commit_nodes(store, lease, says("slow"))
        assert await said(store, lease.session) == ["slow"]

    async def test_a_commit_may_let_the_lease_go(self, store: Store) -> None:
        lease = await a_held_session(store)
        await store.commit(replace(await plan_nodes(store, lease, says("hi")), release=True))
        assert await store.lease(lease.session) == LeaseRecord(generation=lease.generation)
        assert (await must_acquire(store, lease.session, "next")).generation == lease.generation + 1

    async def test_a_commit_keeps_the_lease_unless_it_says_so(self, store: Store) -> None:
        lease = await a_held_session(store)
        before = await store.lease(lease.session)
        await commit_nodes(store, lease, says("hi"))
        assert await store.lease(lease.session) == before

    async def test_a_stale_plan_is_told_where_the_head_is(self, store: Store) -> None:
        lease = await a_held_session(store)
        plan = await plan_nodes(store, lease, says("stale"))
        await commit_nodes(store, lease, says("first"))
        with pytest.raises(HeadMoved) as moved:
            await store.commit(plan)
        assert (moved.value.expected, moved.value.found) == (0, 1)
        assert await said(store, lease.session) == ["first"]

    # -- the order of the checks ---------------------------------------------------------------------------------------

    @pytest.mark.parametrize("wrong", range(len(IN_ORDER)), ids=IN_ORDER)
    async def test_of_several_faults_the_first_in_order_is_told(self, store: Store, wrong: int) -> None:
        scene = await a_scene(store)
        plan = scene.plan
        for fault in IN_ORDER[wrong:]:
            plan = SPOILED[fault][0](plan)
        with pytest.raises(SPOILED[IN_ORDER[wrong]][1]):
            await store.commit(plan)

    async def test_a_receipt_is_looked_for_before_everything_else(self, store: Store) -> None:
        scene = await a_scene(store)
        await store.commit(scene.plan)
        plan = scene.plan
        for fault in IN_ORDER:
            plan = SPOILED[fault][0](plan)
        with pytest.raises(OperationReused):
            await store.commit(plan)

    async def test_a_broken_graph_is_told_before_a_missing_blob(self, store: Store) -> None:
        scene = await a_scene(store)
        with pytest.raises(InvalidDelta):
            await store.commit(_with_last(_missing_file(scene.plan), depth=99))

    async def test_a_cancel_request_is_seen_before_the_graph(self, store: Store) -> None:
        scene = await a_scene(store)
        await store.request_cancel(scene.uid, scene.driven.turn.id, a_request_id(), reason="stop")
        with pytest.raises(TurnCancelRequested):
            await store.commit(_with_last(scene.plan, depth=99))

    # -- all or nothing ------------------------------------------------------------------------------------------------

    async def test_a_commit_settles_everything_it_says_at_once(self, store: Store) -> None:
        scene = await a_scene(store)
        receipt = await store.commit(scene.plan)
        uid, turn = scene.uid, await store.turn(scene.uid, scene.driven.turn.id)
        assert (await store.find(uid)).head.leaf == receipt.leaf == _nodes(scene.plan)[-1].id
        assert await said(store, uid) == ["earlier", "hello", "hi"]
        assert await store.parts(uid) == {"kept": hash_of(KEPT), "new": hash_of(NEW)}
        assert await store.usage(uid) == (UsageTotal("agent", "m", SPENT.tokens),)
        assert await store.document(uid, "catalog") == Document(1, {"tools": ["find"]})
        assert (turn.state, turn.outcome, turn.settled_at) == ("settled", "finished", receipt.committed_at)
        assert await store.unsettled_turn(uid) is None
        assert await store.journal(uid, turn.id) == []
        assert await store.lease(uid) == LeaseRecord(generation=scene.plan.lease.generation)
        items = {item.id: item for item in (await store.items(uid, terminal=True)).rows}
        assert items[scene.driven.items[0].id].state == "completed"
        late = items[scene.late.id]
        assert (late.state, late.when, late.target, late.seq) == ("pending", "next", None, scene.late.seq)
        delivered = await store.deliver(scene.debt)
        assert delivered is not None
        assert delivered.body == Wake(source="child", data={"done": True})
        assert delivered.session == scene.receiver

    async def test_the_journal_of_a_settled_turn_does_not_reach_the_next_one(self, store: Store) -> None:
        scene = await a_scene(store)
        await store.commit(scene.plan)
        following = await must_open(store, scene.uid)
        assert await store.journal(scene.uid, following.turn.id) == []
        other = an_effect(kind="another")
        (entry,) = await store.record(following.lease, following.turn.id, [finished(other, "new")])
        assert (entry.identity, entry.outcome) == (other.identity, "new")

    @spoiled
    async def test_a_refused_commit_changes_nothing(self, store: Store, spoil: Change, error: type[LashError]) -> None:
        scene = await a_scene(store)
        before = await _everything(store, scene)
        with pytest.raises(error):
            await store.commit(spoil(scene.plan))
        assert await _everything(store, scene) == before
        with pytest.raises(OutboxNotFound):
            await store.deliver(scene.debt)

    @spoiled
    async def test_a_refused_commit_does_not_stand_in_the_way_of_the_right_one(
        self, store: Store, spoil: Change, error: type[LashError]
    ) -> None:
        scene = await a_scene(store)
        with pytest.raises(error):
            await store.commit(spoil(scene.plan))
        receipt = await store.commit(scene.plan)
        assert receipt.revision == scene.plan.base + 1
        assert await said(store, scene.uid) == ["earlier", "hello", "hi"]

    async def test_while_a_turn_is_unsettled_only_it_moves_the_head(self, store: Store) -> None:
        scene = await a_scene(store)
        before = await _everything(store, scene)
        with pytest.raises(TurnUnsettled):
            await commit_nodes(store, scene.driven.lease, says("beside the turn"))
        assert await _everything(store, scene) == before

    async def test_a_turn_that_never_was_cannot_be_settled(self, store: Store) -> None:
        scene = await a_scene(store)
        await store.commit(replace(scene.plan, release=False))
        plan = await plan_nodes(store, scene.driven.lease, says("again"))
        with pytest.raises(TurnSettled):
            await store.commit(replace(plan, settles=settlement(scene.driven)))
        assert await said(store, scene.uid) == ["earlier", "hello", "hi"]

    # -- races ---------------------------------------------------------------------------------------------------------

    async def test_the_same_commit_many_times_at_once_lands_once(self, harness: StoreHarness) -> None:
        async with opened(harness) as one, opened(harness) as two:
            scene = await a_scene(one)
            receipts = await asyncio.gather(*(store.commit(scene.plan) for store in (one, two) * 4))
            assert set(receipts) == {await two.receipt(scene.uid, scene.plan.operation)}
            assert receipts[0].revision == scene.plan.base + 1
            assert await said(two, scene.uid) == ["earlier", "hello", "hi"]
            assert await two.usage(scene.uid) == (UsageTotal("agent", "m", SPENT.tokens),)
            assert (await two.document(scene.uid, "catalog")).revision == 1

    async def test_different_content_under_one_operation_at_once_has_one_winner(self, harness: StoreHarness) -> None:
        async with opened(harness) as one, opened(harness) as two:
            lease = await a_held_session(one)
            operation = an_operation()
            plans = [
                CommitPlan(
                    operation, lease, base=0, delta=append_to(lease.session, Head(), operation, [says(str(number))])
                )
                for number in range(4)
            ]
            calls = (store.commit(plan) for store, plan in zip((one, two) * 2, plans, strict=True))
            landed, refused = await race(*calls)
            assert landed == [await one.receipt(lease.session, operation)]
            assert len(await said(one, lease.session)) == 1
        assert [type(error) for error in refused] == [OperationReused] * 3

    async def test_a_commit_and_a_cancel_at_once_agree_on_who_came_first(self, harness: StoreHarness) -> None:
        async with opened(harness) as one, opened(harness) as two:
            for _ in range(4):
                scene = await a_scene(one)
                turn = scene.driven.turn.id
                committed, cancelled = await asyncio.gather(
                    one.commit(scene.plan),
                    two.request_cancel(scene.uid, turn, a_request_id(), reason="stop"),
                    return_exceptions=True,
                )
                if isinstance(committed, BaseException):
                    assert isinstance(committed, TurnCancelRequested)
                    assert not isinstance(cancelled, BaseException)
                    assert (await one.turn(scene.uid, turn)).unsettled
                else:
                    assert isinstance(cancelled, TurnSettled)
                    assert (await one.turn(scene.uid, turn)).outcome == "finished"

    async def test_a_commit_and_a_takeover_at_once_agree_on_who_came_first(self, harness: StoreHarness) -> None:
        async with opened(harness) as one, opened(harness) as two:
            for _ in range(4):
                lease = await a_held_session(one)
                plan = await plan_nodes(one, lease, says("old owner"))
                await harness.advance(2 * TTL)
                committed, acquired = await asyncio.gather(
                    one.commit(plan), two.acquire(lease.session, OwnerId("new"), ttl=TTL), return_exceptions=True
                )
                assert not isinstance(acquired, BaseException)
                assert isinstance(committed, LeaseLost) or not isinstance(committed, BaseException)
                landed = not isinstance(committed, BaseException)
                assert await said(two, lease.session) == (["old owner"] if landed else [])

    async def test_commits_of_many_sessions_at_once_are_judged_one_by_one(self, harness: StoreHarness) -> None:
        async with opened(harness) as one, opened(harness) as two:
            leases = [await a_held_session(one) for _ in range(12)]
            plans = [await plan_nodes(one, lease, says("hi")) for lease in leases]
            plans[3] = replace(plans[3], base=5)
            plans[7] = replace(plans[7], lease=replace(leases[7], generation=9))
            plans[8] = replace(plans[8], parts={"x": Kept(hash_of(b"nobody stored this"))})
            calls = (store.commit(plan) for store, plan in zip((one, two) * 6, plans, strict=True))
            ends = await asyncio.gather(*calls, return_exceptions=True)
            refused = {n: type(end) for n, end in enumerate(ends) if isinstance(end, BaseException)}
            assert refused == {3: HeadMoved, 7: LeaseLost, 8: PartMissing}
            words = [await said(two, lease.session) for lease in leases]
        assert words == [[] if n in refused else ["hi"] for n in range(12)]

    async def test_what_is_sent_while_a_turn_commits_is_not_lost(self, harness: StoreHarness) -> None:
        async with opened(harness) as one, opened(harness) as two:
            for _ in range(4):
                scene = await a_scene(one)
                _, sent = await asyncio.gather(
                    one.commit(scene.plan), two.admit(scene.uid, a_message("meanwhile", when="now"))
                )
                item = await one.item(scene.uid, sent.id)
                assert item is not None
                assert (item.state, item.when, item.target) == ("pending", "next", None)
