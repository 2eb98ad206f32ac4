"""The graph: how it grows, what its active path is, and how a head moves back."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from lash.commit.parts import Changed
from lash.commit.plan import CommitPlan
from lash.errors import HeadMoved, InvalidDelta, NodeNotFound, TooLarge
from lash.graph.delta import Append, MoveHead, chain
from lash.graph.frames import COMPACTION, INITIAL, RESET, AgentFrame, frame_of
from lash.graph.nodes import (
    FrameOpened,
    MessageReceived,
    ModelReplied,
    Node,
    Noted,
    Payload,
    PluginRecorded,
    ToolsReturned,
)
from lash.graph.parts import Reasoning, Text, ToolCall, ToolResult
from lash.graph.session import Head
from lash.ids import ItemId, NodeId, node_id
from lash.lease import ExecutionLease
from lash.limits import MAX_BODY
from lash.store.contract import Store
from lash.testing.builders import (
    AT,
    a_held_session,
    a_message,
    an_operation,
    append,
    commit_nodes,
    hears,
    leaf_of,
    new_id,
    open_with,
    opens,
    plan_nodes,
    race,
    rewind,
    run_turn,
    said,
    says,
)
from lash.testing.harness import StoreContract, StoreHarness, opened

PAYLOADS: list[Payload] = [
    FrameOpened(reason="whatever a plugin says", config={"model": "m"}, protocol_options={"steps": 3}),
    MessageReceived(parts=(Text(text="Ärger 注文 🙂 \x00 \u2028"),), item=ItemId("0" * 32)),
    ModelReplied(
        parts=(
            Reasoning(text="hm", signature="sealed=="),
            Text(text=""),
            ToolCall(call_id="c1", tool="find", arguments={"n": 1.0}),
        ),
        model="vendor:model",
        finish="tool_calls",
    ),
    ToolsReturned(parts=(ToolResult(call_id="c1", tool="find", content=(Text(text="no"),), failed=True),)),
    Noted(parts=(Text(text="a summary"),), about="compaction"),
    PluginRecorded(plugin="acme.audit", data={"deep": [None, {"a": [1, 2.5, "x"]}]}),
]

Break = Callable[[tuple[Node, ...]], tuple[Node, ...]]


def _change(index: int, **fields: object) -> Break:
    def broken(nodes: tuple[Node, ...]) -> tuple[Node, ...]:
        changed = replace(nodes[index], **fields)  # type: ignore[arg-type]  # each is right for its field
        return (*nodes[:index], changed, *nodes[index + 1 :])

    return broken


LAWS: dict[str, Break] = {
    "an empty append": lambda nodes: (),
    "an id that is not derived": _change(2, id=node_id("f" * 32, "e" * 32, 2)),  # type: ignore[arg-type]
    "an id that is none": _change(2, id="the third"),
    "ids that skip a number": lambda nodes: (nodes[0], replace(nodes[2], parent=nodes[0].id, depth=nodes[1].depth)),
    "ids out of order": lambda nodes: (nodes[1], nodes[0], nodes[2]),
    "a node named twice": lambda nodes: (nodes[0], nodes[1], nodes[1]),
    "a first parent that does not exist": _change(0, parent=node_id("f" * 32, "e" * 32, 0)),  # type: ignore[arg-type]
    "a parent inside that does not exist": _change(2, parent=node_id("f" * 32, "e" * 32, 0)),  # type: ignore[arg-type]
    "a node that is its own parent": lambda nodes: _change(1, parent=nodes[1].id)(nodes),
    "a second root inside": _change(1, parent=None, depth=0, frame=0),
    "a second root that opens no frame": _change(0, parent=None, depth=0, frame=0),
    "a depth that skips": _change(1, depth=99),
    "a frame that is elsewhere": _change(1, frame=1),
    "a kind that claims to open a frame": _change(1, kind=FrameOpened.kind),
}
"""Ways to spoil three good nodes after a head at depth 1."""


def _ids(nodes: list[Node] | tuple[Node, ...]) -> list[NodeId]:
    return [node.id for node in nodes]


def _place(node: Node) -> tuple[object, ...]:
    """All of a node but ``seq``, which the store may fill in."""
    return node.id, node.parent, node.depth, node.frame, node.kind, node.body, node.at


async def _grow(store: Store, lease: ExecutionLease, *texts: str) -> list[NodeId]:
    """One commit for each text; the boundaries that they leave."""
    return [leaf_of(await commit_nodes(store, lease, says(text))) for text in texts]


async def _reset(store: Store, lease: ExecutionLease, *texts: str) -> NodeId:
    return leaf_of(await commit_nodes(store, lease, opens(RESET), *map(says, texts)))


class GraphContract(StoreContract):
    """Append-only, read along the active path."""

    # -- growth --------------------------------------------------------------------------------------------------------

    async def test_what_was_appended_is_read_back_in_order(self, store: Store) -> None:
        lease = await a_held_session(store)
        plan = await plan_nodes(store, lease, *PAYLOADS)
        receipt = await store.commit(plan)
        nodes = await store.nodes(lease.session)
        assert isinstance(plan.delta, Append)
        assert list(map(_place, nodes)) == list(map(_place, plan.delta.nodes))
        assert [node.payload for node in nodes] == PAYLOADS
        head = (await store.find(lease.session)).head
        assert head == Head(revision=1, leaf=nodes[-1].id, depth=len(PAYLOADS) - 1, frame=0)
        assert receipt.leaf == nodes[-1].id

    async def test_ids_follow_from_session_operation_and_place(self, store: Store) -> None:
        lease = await a_held_session(store)
        operation = an_operation()
        await commit_nodes(store, lease, hears("a"), says("b"), operation=operation)
        assert _ids(await store.nodes(lease.session)) == [f"{lease.session}-{operation}-{n}" for n in range(3)]

    async def test_each_commit_grows_from_the_last_leaf(self, store: Store) -> None:
        lease = await a_held_session(store)
        await _grow(store, lease, "a", "b", "c")
        nodes = await store.nodes(lease.session)
        assert [node.parent for node in nodes] == [None, *_ids(nodes)[:-1]]
        assert [node.depth for node in nodes] == [0, 1, 2, 3]
        assert await said(store, lease.session) == ["a", "b", "c"]

    async def test_thousands_of_nodes_land_in_one_commit(self, store: Store) -> None:
        lease = await a_held_session(store)
        await commit_nodes(store, lease, *(says(str(n)) for n in range(3_000)))
        assert await said(store, lease.session) == [str(n) for n in range(3_000)]

    async def test_a_node_keeps_the_event_number_it_came_with(self, store: Store) -> None:
        lease = await a_held_session(store)
        for text in "abcde":
            await store.admit(lease.session, a_message(text))
        operation = an_operation()
        delta = chain(lease.session, operation, [opens(), says("a")], after=Head(), at=AT, seqs=[3, 5])
        await store.commit(CommitPlan(operation, lease, base=0, delta=delta))
        assert [node.seq for node in await store.nodes(lease.session)] == [3, 5]

    async def test_a_node_of_an_event_that_was_never_counted_is_refused(self, store: Store) -> None:
        lease = await a_held_session(store)
        await store.admit(lease.session, a_message("the first event"))
        operation = an_operation()
        delta = chain(lease.session, operation, [opens(), says("a")], after=Head(), at=AT, seqs=[1, 2])
        with pytest.raises(InvalidDelta, match="events are counted"):
            await store.commit(CommitPlan(operation, lease, base=0, delta=delta))
        assert await store.nodes(lease.session) == []

    @pytest.mark.parametrize("spoil", LAWS.values(), ids=LAWS.keys())
    async def test_an_append_that_breaks_a_law_of_growth_is_refused_whole(self, store: Store, spoil: Break) -> None:
        lease = await a_held_session(store)
        await commit_nodes(store, lease, says("kept"))
        before = await store.snapshot(lease.session)
        plan = await plan_nodes(store, lease, says("a"), says("b"), says("c"))
        assert isinstance(plan.delta, Append)
        with pytest.raises(InvalidDelta) as refused:
            await store.commit(replace(plan, delta=Append(spoil(plan.delta.nodes))))
        assert refused.value.law
        assert await store.snapshot(lease.session) == before
        assert await store.receipt(lease.session, plan.operation) is None
        assert (await store.commit(plan)).revision == 2

    @pytest.mark.parametrize("payload", [says("hi"), hears("hi"), PAYLOADS[-1]], ids=lambda payload: payload.kind)
    async def test_a_first_root_must_open_a_frame(self, store: Store, payload: Payload) -> None:
        lease = await a_held_session(store)
        operation = an_operation()
        delta = chain(lease.session, operation, [payload], after=Head(), at=AT)
        with pytest.raises(InvalidDelta):
            await store.commit(CommitPlan(operation, lease, base=0, delta=delta))
        assert await store.nodes(lease.session) == []

    async def test_the_first_node_of_an_empty_session_has_no_parent(self, store: Store) -> None:
        lease = await a_held_session(store)
        elsewhere = await a_held_session(store, "another")
        await commit_nodes(store, elsewhere, says("foreign"))
        operation = an_operation()
        head = (await store.find(elsewhere.session)).head
        delta = chain(lease.session, operation, [says("hi")], after=head, at=AT)
        with pytest.raises(InvalidDelta):
            await store.commit(CommitPlan(operation, lease, base=0, delta=delta))

    async def test_a_node_of_another_session_is_no_parent(self, store: Store) -> None:
        lease = await a_held_session(store)
        elsewhere = await a_held_session(store, "another")
        await _grow(store, lease, "mine")
        await _grow(store, elsewhere, "theirs")
        operation = an_operation()
        foreign = replace((await store.find(elsewhere.session)).head, revision=1)
        delta = chain(lease.session, operation, [says("hi")], after=foreign, at=AT)
        with pytest.raises(InvalidDelta):
            await store.commit(CommitPlan(operation, lease, base=1, delta=delta))
        assert await said(store, lease.session) == ["mine"]
        assert await said(store, elsewhere.session) == ["theirs"]

    async def test_a_chain_from_an_inner_node_is_refused(self, store: Store) -> None:
        lease = await a_held_session(store)
        await _grow(store, lease, "a")
        early = (await store.find(lease.session)).head
        await _grow(store, lease, "b")
        operation = an_operation()
        delta = chain(lease.session, operation, [says("c")], after=early, at=AT)
        with pytest.raises(InvalidDelta):
            await store.commit(CommitPlan(operation, lease, base=2, delta=delta))
        assert await said(store, lease.session) == ["a", "b"]

    @pytest.mark.parametrize("reason", [INITIAL, COMPACTION, "continue_as", "Reset"])
    async def test_only_a_reset_may_begin_a_second_root(self, store: Store, reason: str) -> None:
        lease = await a_held_session(store)
        await _grow(store, lease, "a")
        operation = an_operation()
        delta = chain(lease.session, operation, [opens(reason), says("b")], after=Head(), at=AT)
        with pytest.raises(InvalidDelta):
            await store.commit(CommitPlan(operation, lease, base=1, delta=delta))
        assert await said(store, lease.session) == ["a"]

    async def test_an_oversized_node_is_refused(self, store: Store) -> None:
        lease = await a_held_session(store)
        plan = await plan_nodes(store, lease, says("a"))
        assert isinstance(plan.delta, Append)
        first, second = plan.delta.nodes
        large = replace(second, body=second.body + " " * MAX_BODY)
        with pytest.raises(TooLarge):
            await store.commit(replace(plan, delta=Append((first, large))))
        assert await store.nodes(lease.session) == []

    # -- reading -------------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize(
        ("first", "last", "depths"),
        [
            (0, None, [0, 1, 2, 3, 4]),
            (0, 0, [0]),
            (1, 3, [1, 2, 3]),
            (3, None, [3, 4]),
            (4, 4, [4]),
            (2, 99, [2, 3, 4]),
            (5, None, []),
            (3, 2, []),
        ],
    )
    async def test_a_page_of_the_active_path_is_a_range_of_depths(
        self, store: Store, first: int, last: int | None, depths: list[int]
    ) -> None:
        lease = await a_held_session(store)
        await _grow(store, lease, "a", "b", "c", "d")
        assert [node.depth for node in await store.nodes(lease.session, first=first, last=last)] == depths

    async def test_a_node_is_found_by_its_id(self, store: Store) -> None:
        lease = await a_held_session(store)
        await _grow(store, lease, "a", "b")
        for node in await store.nodes(lease.session):
            assert await store.node(lease.session, node.id) == node

    async def test_nodes_of_other_sessions_and_unknown_ones_are_not_found(self, store: Store) -> None:
        lease = await a_held_session(store)
        elsewhere = await a_held_session(store, "another")
        (foreign,) = await _grow(store, elsewhere, "theirs")
        (mine,) = await _grow(store, lease, "mine")
        strange = [foreign, node_id(lease.session, an_operation(), 0), f"{mine}0", new_id(), ""]
        for node in strange:
            with pytest.raises(NodeNotFound):
                await store.node(lease.session, NodeId(node))

    # -- frames --------------------------------------------------------------------------------------------------------

    async def test_a_snapshot_of_an_empty_session_is_empty(self, store: Store) -> None:
        lease = await a_held_session(store)
        snapshot = await store.snapshot(lease.session)
        assert (snapshot.nodes, snapshot.parts, snapshot.turn) == ((), {}, None)
        assert snapshot.session == await store.find(lease.session)

    async def test_a_snapshot_has_the_nodes_of_the_current_frame_only(self, store: Store) -> None:
        lease = await a_held_session(store)
        await _grow(store, lease, "long", "ago")
        await commit_nodes(store, lease, opens(COMPACTION), says("summary"))
        await _grow(store, lease, "now")
        nodes = await store.nodes(lease.session)
        snapshot = await store.snapshot(lease.session)
        assert snapshot.session.head.frame == 3
        assert list(snapshot.nodes) == nodes[3:]
        assert [node.frame for node in nodes] == [0, 0, 0, 3, 3, 3]

    async def test_a_frame_keeps_what_it_began_with(self, store: Store) -> None:
        lease = await a_held_session(store)
        await _grow(store, lease, "a")
        opening = FrameOpened(reason="acme.topic", config={"model": "m"}, protocol_options={"steps": 3})
        await commit_nodes(store, lease, opening)
        frame = frame_of((await store.snapshot(lease.session)).nodes[0])
        expected = (await store.find(lease.session)).head.leaf
        assert frame == AgentFrame(frame.id, 2, "acme.topic", {"model": "m"}, {"steps": 3})
        assert frame.id == expected

    async def test_several_frames_in_one_commit_leave_the_last_one_current(self, store: Store) -> None:
        lease = await a_held_session(store)
        await commit_nodes(store, lease, opens(), says("a"), opens(COMPACTION), says("b"), opens("topic"), says("c"))
        assert [node.depth for node in (await store.snapshot(lease.session)).nodes] == [4, 5]

    async def test_a_snapshot_has_the_unsettled_turn(self, store: Store) -> None:
        lease = await a_held_session(store)
        await run_turn(store, lease.session, "one")
        assert (await store.snapshot(lease.session)).turn is None
        driven = await open_with(store, lease.session, "two")
        assert (await store.snapshot(lease.session)).turn == driven.turn

    # -- reset ---------------------------------------------------------------------------------------------------------

    async def test_a_reset_begins_a_new_root_and_keeps_what_was(self, store: Store) -> None:
        lease = await a_held_session(store)
        (old,) = await _grow(store, lease, "old")
        await _reset(store, lease, "new")
        nodes = await store.nodes(lease.session)
        assert [(node.depth, node.frame, node.parent is None) for node in nodes] == [(0, 0, True), (1, 0, False)]
        assert await said(store, lease.session) == ["new"]
        assert (await store.node(lease.session, old)).id == old
        assert not await store.on_active_path(lease.session, old)
        assert (await store.find(lease.session)).head.revision == 2

    async def test_a_session_may_be_reset_again_and_again(self, store: Store) -> None:
        lease = await a_held_session(store)
        for n in range(4):
            await _reset(store, lease, f"{n}a")
            await _grow(store, lease, f"{n}b")
        assert await said(store, lease.session) == ["3a", "3b"]

    async def test_a_compaction_within_a_frame_is_no_reset(self, store: Store) -> None:
        lease = await a_held_session(store)
        await _grow(store, lease, "a")
        await commit_nodes(store, lease, opens(COMPACTION), says("b"))
        assert await said(store, lease.session) == ["a", "b"]

    # -- rewind --------------------------------------------------------------------------------------------------------

    async def test_a_rewind_moves_the_head_to_an_earlier_commit(self, store: Store) -> None:
        lease = await a_held_session(store)
        a, b, c = await _grow(store, lease, "a", "b", "c")
        receipt = await rewind(store, lease, a)
        assert (receipt.revision, receipt.leaf) == (4, a)
        assert (await store.find(lease.session)).head == Head(revision=4, leaf=a, depth=1, frame=0)
        assert await said(store, lease.session) == ["a"]
        assert [await store.on_active_path(lease.session, node) for node in (a, b, c)] == [True, False, False]

    async def test_what_a_rewind_left_behind_stays(self, store: Store) -> None:
        lease = await a_held_session(store)
        a, b, _ = await _grow(store, lease, "a", "b", "c")
        before = await store.node(lease.session, b)
        await rewind(store, lease, a)
        await _grow(store, lease, "B")
        assert await store.node(lease.session, b) == before

    async def test_after_a_rewind_a_new_branch_grows_beside_the_old_one(self, store: Store) -> None:
        lease = await a_held_session(store)
        a, b = await _grow(store, lease, "a", "b")
        await rewind(store, lease, a)
        (beside,) = await _grow(store, lease, "B")
        old, new = await store.node(lease.session, b), await store.node(lease.session, beside)
        assert (old.parent, old.depth) == (new.parent, new.depth) == (a, 2)
        assert await said(store, lease.session) == ["a", "B"]
        assert await store.on_active_path(lease.session, beside)
        assert not await store.on_active_path(lease.session, b)

    async def test_a_rewind_goes_back_into_an_earlier_frame(self, store: Store) -> None:
        lease = await a_held_session(store)
        _, b = await _grow(store, lease, "a", "b")
        await commit_nodes(store, lease, opens(COMPACTION), says("summary"))
        await rewind(store, lease, b)
        snapshot = await store.snapshot(lease.session)
        assert snapshot.session.head.frame == 0
        assert [node.depth for node in snapshot.nodes] == [0, 1, 2]

    async def test_a_rewind_goes_back_behind_a_reset(self, store: Store) -> None:
        lease = await a_held_session(store)
        (a,) = await _grow(store, lease, "a")
        await _reset(store, lease, "new")
        await rewind(store, lease, a)
        await _grow(store, lease, "b")
        assert await said(store, lease.session) == ["a", "b"]

    async def test_a_head_may_return_to_a_branch_that_it_left(self, store: Store) -> None:
        lease = await a_held_session(store)
        a, b = await _grow(store, lease, "a", "b")
        await rewind(store, lease, a)
        (beside,) = await _grow(store, lease, "B")
        await rewind(store, lease, b)
        await _grow(store, lease, "c")
        assert await said(store, lease.session) == ["a", "b", "c"]
        assert not await store.on_active_path(lease.session, beside)

    async def test_a_head_moves_only_to_the_end_of_a_commit(self, store: Store) -> None:
        lease = await a_held_session(store)
        await commit_nodes(store, lease, hears("a"), says("b"))
        await _grow(store, lease, "c")
        before = await store.snapshot(lease.session)
        for inner in (await store.nodes(lease.session))[:2]:
            with pytest.raises(InvalidDelta):
                await rewind(store, lease, inner.id)
        assert await store.snapshot(lease.session) == before

    async def test_a_head_does_not_move_to_what_is_not_there(self, store: Store) -> None:
        lease = await a_held_session(store)
        elsewhere = await a_held_session(store, "another")
        (foreign,) = await _grow(store, elsewhere, "theirs")
        await _grow(store, lease, "mine")
        before = await store.snapshot(lease.session)
        for node in (foreign, node_id(lease.session, an_operation(), 0), NodeId("nonsense")):
            with pytest.raises(NodeNotFound):
                await rewind(store, lease, node)
        assert await store.snapshot(lease.session) == before

    async def test_a_rewind_is_made_from_the_head_it_read(self, store: Store) -> None:
        lease = await a_held_session(store)
        a, _ = await _grow(store, lease, "a", "b")
        stale = CommitPlan(an_operation(), lease, base=1, delta=MoveHead(a))
        with pytest.raises(HeadMoved):
            await store.commit(stale)
        assert await said(store, lease.session) == ["a", "b"]

    async def test_a_repeated_rewind_moves_the_head_once(self, store: Store) -> None:
        lease = await a_held_session(store)
        a, _ = await _grow(store, lease, "a", "b")
        plan = CommitPlan(an_operation(), lease, base=2, delta=MoveHead(a))
        receipt = await store.commit(plan)
        await _grow(store, lease, "c")
        assert await store.commit(plan) == receipt
        assert await said(store, lease.session) == ["a", "c"]

    async def test_a_plan_made_before_a_rewind_is_stale_after_it(self, store: Store) -> None:
        lease = await a_held_session(store)
        a, _ = await _grow(store, lease, "a", "b")
        plan = await plan_nodes(store, lease, says("c"))
        await rewind(store, lease, a)
        with pytest.raises(HeadMoved):
            await store.commit(plan)
        with pytest.raises(InvalidDelta):
            await store.commit(replace(plan, base=3))
        assert await said(store, lease.session) == ["a"]

    async def test_many_attempts_from_one_node_leave_one_path(self, store: Store) -> None:
        lease = await a_held_session(store)
        (base,) = await _grow(store, lease, "base")
        left = []
        for n in range(40):
            left += await _grow(store, lease, f"attempt {n}")
            await rewind(store, lease, base)
        (last,) = await _grow(store, lease, "last")
        nodes = await store.nodes(lease.session)
        assert await said(store, lease.session) == ["base", "last"]
        assert (await store.snapshot(lease.session)).nodes == tuple(nodes)
        assert [await store.on_active_path(lease.session, node) for node in (base, last)] == [True, True]
        assert not any([await store.on_active_path(lease.session, node) for node in left])
        assert {(await store.node(lease.session, node)).parent for node in left} == {base}

    async def test_a_path_across_many_rewinds_in_one_frame_reads_as_one(self, store: Store) -> None:
        lease = await a_held_session(store)
        kept, left = [], []
        for n in range(40):
            kept += await _grow(store, lease, str(n))
            left += await _grow(store, lease, f"{n}!")
            await rewind(store, lease, kept[-1])
        nodes = await store.nodes(lease.session)
        assert _ids(nodes)[1:] == kept
        assert [node.parent for node in nodes] == [None, *_ids(nodes)[:-1]]
        assert [node.depth for node in nodes] == list(range(41))
        assert await said(store, lease.session) == [*map(str, range(40))]
        snapshot = await store.snapshot(lease.session)
        assert (snapshot.session.head.frame, snapshot.nodes) == (0, tuple(nodes))
        assert await store.nodes(lease.session, first=13, last=29) == nodes[13:30]
        assert [await store.on_active_path(lease.session, node) for node in kept] == [True] * 40
        assert [await store.on_active_path(lease.session, node) for node in left] == [False] * 40

    @pytest.mark.parametrize("seed", range(3))
    async def test_any_history_of_rewinds_and_resets_reads_as_plain_lists_would(self, store: Store, seed: int) -> None:
        lease = await a_held_session(store)
        dice = random.Random(seed)  # a history that every run repeats
        path: list[NodeId] = []
        kept: dict[NodeId, list[NodeId]] = {}
        for _ in range(40):
            act = dice.choice(["grow", "grow", "grow", "compact", "reset", "rewind"])
            earlier = [node for node in path[:-1] if node in kept]
            if act == "rewind" and earlier:
                target = dice.choice(earlier)
                await rewind(store, lease, target)
                path = kept[target]
                continue
            first = {"compact": [opens(COMPACTION)], "reset": [opens(RESET)]}.get(act, [])
            payloads: list[Payload] = [*first, *(says("x") for _ in range(dice.randint(1, 3)))]
            session, operation = await store.find(lease.session), an_operation()
            delta = append(session, operation, *payloads)
            await store.commit(CommitPlan(operation, lease, base=session.head.revision, delta=delta))
            path = ([] if act == "reset" else path) + _ids(delta.nodes)
            kept[path[-1]] = path
        nodes = await store.nodes(lease.session)
        assert _ids(nodes) == path
        assert [node.depth for node in nodes] == list(range(len(path)))
        middle = len(path) // 2
        assert _ids(await store.nodes(lease.session, first=middle // 2, last=middle)) == path[middle // 2 : middle + 1]
        everything = {node for known in kept.values() for node in known}
        on_path = {node for node in everything if await store.on_active_path(lease.session, node)}
        assert on_path == set(path)

    async def test_appends_at_once_from_one_head_grow_one_branch(self, harness: StoreHarness) -> None:
        async with opened(harness) as one, opened(harness) as two:
            lease = await a_held_session(one)
            await _grow(one, lease, "base")
            plans = [await plan_nodes(one, lease, says(str(n)), says(f"{n}!")) for n in range(6)]
            handles = (one, two) * 3
            landed, refused = await race(*(store.commit(plan) for store, plan in zip(handles, plans, strict=True)))
            winner = next(n for n, plan in enumerate(plans) if plan.operation == landed[0].operation)
            assert await said(two, lease.session) == ["base", str(winner), f"{winner}!"]
        assert len(landed) == 1
        assert [type(error) for error in refused] == [HeadMoved] * 5

    async def test_what_is_read_while_others_commit_fits_together(self, harness: StoreHarness) -> None:
        async with opened(harness) as one, opened(harness) as two:
            lease = await a_held_session(one)
            boundaries = await _grow(one, lease, "a", "b", "c")

            async def write() -> None:
                for n in range(8):
                    text = f"{lease.session} {n}"
                    plan = await plan_nodes(one, lease, opens(COMPACTION), says(text))
                    await one.commit(replace(plan, parts={"last": Changed(text.encode())}))
                    await rewind(one, lease, boundaries[n % 3])

            async def read() -> None:
                for _ in range(16):
                    snapshot, nodes = await two.snapshot(lease.session), await two.nodes(lease.session)
                    assert snapshot.session.head.leaf == snapshot.nodes[-1].id
                    assert snapshot.nodes[0].depth == snapshot.session.head.frame
                    assert bool(snapshot.parts) == (snapshot.session.head.frame > 0)
                    assert [node.parent for node in nodes] == [None, *_ids(nodes)[:-1]]

            await asyncio.gather(write(), read())
