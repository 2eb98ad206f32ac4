"""Forks: sessions that go on from a commit boundary of another, sharing its nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from lash.commit.parts import Changed, hash_of
from lash.commit.plan import CommitPlan
from lash.commit.usage import Tokens, UsageDelta
from lash.errors import (
    IdReused,
    InvalidDelta,
    InvalidName,
    InvalidValue,
    NodeNotFound,
    SessionDeleted,
    SessionExists,
    SessionNotFound,
)
from lash.graph.delta import chain
from lash.graph.frames import COMPACTION, RESET
from lash.graph.nodes import Node
from lash.graph.session import Document, Session
from lash.ids import NodeId, SessionName, SessionUid, node_id
from lash.lease import ExecutionLease, LeaseRecord
from lash.store.contract import Store
from lash.testing.builders import (
    AT,
    a_fork,
    a_held_session,
    a_message,
    a_new_session,
    a_session,
    a_wait,
    an_operation,
    commit_nodes,
    hears,
    leaf_of,
    must_acquire,
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


async def _grow(store: Store, lease: ExecutionLease, *texts: str) -> list[NodeId]:
    """One commit for each text; the boundaries that they leave."""
    return [leaf_of(await commit_nodes(store, lease, says(text))) for text in texts]


async def _forked(store: Store, parent: SessionUid, at: NodeId) -> ExecutionLease:
    """A fork, held by somebody who will let it grow."""
    return await must_acquire(store, (await store.fork(a_fork(parent, at))).uid)


def _ids(nodes: list[Node]) -> list[NodeId]:
    return [node.id for node in nodes]


async def _goes_on(store: Store, lease: ExecutionLease, first: NodeId) -> NodeId:
    return (await _grow(store, lease, "later"))[0]


async def _goes_back_and_on(store: Store, lease: ExecutionLease, first: NodeId) -> NodeId:
    await rewind(store, lease, first)
    return (await _grow(store, lease, "later"))[0]


async def _opens_a_frame(store: Store, lease: ExecutionLease, first: NodeId) -> NodeId:
    return leaf_of(await commit_nodes(store, lease, opens(COMPACTION), says("later")))


async def _resets(store: Store, lease: ExecutionLease, first: NodeId) -> NodeId:
    return leaf_of(await commit_nodes(store, lease, opens(RESET), says("later")))


Later = Callable[[Store, ExecutionLease, NodeId], Awaitable[NodeId]]
LATER: dict[str, Later] = {
    "on the same branch": _goes_on,
    "on a branch beside it": _goes_back_and_on,
    "in a new frame": _opens_a_frame,
    "after a reset": _resets,
}
"""Where a parent may go after it was forked. Each returns the boundary that it came to."""
each_later = pytest.mark.parametrize("later", LATER.values(), ids=LATER.keys())


async def _left_by_its_parent(store: Store, later: Later) -> tuple[ExecutionLease, NodeId]:
    """A fork that says "a" and "b", and a node that its parent made after it."""
    lease = await a_held_session(store)
    a, b = await _grow(store, lease, "a", "b")
    fork = await _forked(store, lease.session, b)
    return fork, await later(store, lease, a)


class ForkContract(StoreContract):
    """A fork shares history and nothing else."""

    async def test_a_fork_goes_on_from_where_it_was_made(self, store: Store) -> None:
        lease = await a_held_session(store)
        _, b = await _grow(store, lease, "a", "b")
        parent = await store.find(lease.session)
        new = a_fork(lease.session, b)
        fork = await store.fork(new)
        assert (fork.uid, fork.name, fork.forked_from) == (new.uid, new.name, b)
        assert (fork.head.leaf, fork.head.depth, fork.head.frame) == (b, parent.head.depth, parent.head.frame)
        assert await store.get(new.name) == await store.find(new.uid) == fork
        assert await store.nodes(fork.uid) == await store.nodes(lease.session)

    async def test_a_fork_may_begin_at_any_earlier_commit(self, store: Store) -> None:
        lease = await a_held_session(store)
        a, _, _ = await _grow(store, lease, "a", "b", "c")
        fork = await _forked(store, lease.session, a)
        await _grow(store, fork, "B")
        assert await said(store, fork.session) == ["a", "B"]
        assert await said(store, lease.session) == ["a", "b", "c"]

    async def test_a_fork_may_begin_on_an_abandoned_branch(self, store: Store) -> None:
        lease = await a_held_session(store)
        a, b = await _grow(store, lease, "a", "b")
        await rewind(store, lease, a)
        await _grow(store, lease, "B")
        fork = await _forked(store, lease.session, b)
        await _grow(store, fork, "c")
        assert await said(store, fork.session) == ["a", "b", "c"]

    async def test_a_fork_begins_only_at_the_end_of_a_commit(self, store: Store) -> None:
        lease = await a_held_session(store)
        await commit_nodes(store, lease, hears("a"), says("b"))
        new = a_fork(lease.session, (await store.nodes(lease.session))[1].id)
        with pytest.raises(InvalidDelta):
            await store.fork(new)
        with pytest.raises(SessionNotFound):
            await store.get(new.name)

    async def test_a_fork_does_not_begin_at_what_is_not_there(self, store: Store) -> None:
        lease, elsewhere = await a_held_session(store), await a_held_session(store, "another")
        (foreign,) = await _grow(store, elsewhere, "theirs")
        await _grow(store, lease, "mine")
        for node in (foreign, node_id(lease.session, an_operation(), 0), NodeId("nonsense")):
            with pytest.raises(NodeNotFound):
                await store.fork(a_fork(lease.session, node))

    async def test_either_side_grows_without_the_other(self, store: Store) -> None:
        lease = await a_held_session(store)
        (a,) = await _grow(store, lease, "a")
        fork = await _forked(store, lease.session, a)
        await _grow(store, fork, "fork 1")
        await _grow(store, lease, "parent 1")
        await _grow(store, fork, "fork 2")
        assert await said(store, fork.session) == ["a", "fork 1", "fork 2"]
        assert await said(store, lease.session) == ["a", "parent 1"]

    async def test_a_fork_is_not_moved_by_its_parent(self, store: Store) -> None:
        lease = await a_held_session(store)
        a, b = await _grow(store, lease, "a", "b")
        fork = await store.fork(a_fork(lease.session, b))
        await rewind(store, lease, a)
        await commit_nodes(store, lease, opens(RESET), says("new"))
        assert await store.find(fork.uid) == fork
        assert await said(store, fork.uid) == ["a", "b"]

    async def test_the_same_operation_in_parent_and_fork_makes_different_nodes(self, store: Store) -> None:
        lease = await a_held_session(store)
        (a,) = await _grow(store, lease, "a")
        fork = await _forked(store, lease.session, a)
        operation = an_operation()
        await commit_nodes(store, lease, says("parent"), operation=operation)
        await commit_nodes(store, fork, says("fork"), operation=operation)
        assert await said(store, lease.session) == ["a", "parent"]
        assert await said(store, fork.session) == ["a", "fork"]

    async def test_a_fork_of_a_fork_of_a_fork_reads_one_path(self, store: Store) -> None:
        lease = await a_held_session(store)
        said_so_far, inherited = ["0", "0!"], _ids([])
        await _grow(store, lease, "0", "0!")
        for n in range(1, 5):
            inherited = _ids(await store.nodes(lease.session))
            lease = await _forked(store, lease.session, inherited[-1])
            await _grow(store, lease, str(n), f"{n}!")
            said_so_far += [str(n), f"{n}!"]
        nodes = await store.nodes(lease.session)
        assert await said(store, lease.session) == said_so_far
        assert _ids(nodes)[: len(inherited)] == inherited
        assert [node.depth for node in nodes] == list(range(11))
        assert await store.nodes(lease.session, first=3, last=8) == nodes[3:9]
        assert [await store.on_active_path(lease.session, node.id) for node in nodes] == [True] * 11

    async def test_a_fork_finds_the_nodes_it_shares(self, store: Store) -> None:
        lease = await a_held_session(store)
        a, b = await _grow(store, lease, "a", "b")
        fork = await _forked(store, lease.session, b)
        (own,) = await _grow(store, fork, "c")
        for node in (a, b, own):
            assert (await store.node(fork.session, node)).id == node
            assert await store.on_active_path(fork.session, node)
        with pytest.raises(NodeNotFound):
            await store.node(lease.session, own)

    async def test_a_fork_does_not_grow_from_what_its_parent_did_later(self, store: Store) -> None:
        lease = await a_held_session(store)
        (a,) = await _grow(store, lease, "a")
        fork = await _forked(store, lease.session, a)
        await _grow(store, lease, "later")
        base = (await store.find(fork.session)).head.revision
        foreign = (await store.find(lease.session)).head
        operation = an_operation()
        delta = chain(fork.session, operation, [says("b")], after=foreign, at=AT)
        with pytest.raises(InvalidDelta):
            await store.commit(CommitPlan(operation, fork, base=base, delta=delta))
        assert await said(store, fork.session) == ["a"]

    @each_later
    async def test_a_fork_does_not_see_what_its_parent_did_later(self, store: Store, later: Later) -> None:
        fork, node = await _left_by_its_parent(store, later)
        with pytest.raises(NodeNotFound):
            await store.node(fork.session, node)
        assert await store.on_active_path(fork.session, node) is False

    @each_later
    async def test_a_fork_does_not_move_to_what_its_parent_did_later(self, store: Store, later: Later) -> None:
        fork, node = await _left_by_its_parent(store, later)
        before = await store.snapshot(fork.session)
        with pytest.raises(NodeNotFound):
            await rewind(store, fork, node)
        assert await store.snapshot(fork.session) == before
        assert await said(store, fork.session) == ["a", "b"]

    @each_later
    async def test_a_fork_is_not_forked_at_what_its_parent_did_later(self, store: Store, later: Later) -> None:
        fork, node = await _left_by_its_parent(store, later)
        new = a_fork(fork.session, node)
        with pytest.raises(NodeNotFound):
            await store.fork(new)
        with pytest.raises(SessionNotFound):
            await store.get(new.name)

    @each_later
    async def test_a_grandchild_knows_nothing_of_what_anybody_above_it_did_later(
        self, store: Store, later: Later
    ) -> None:
        lease = await a_held_session(store)
        a, b = await _grow(store, lease, "a", "b")
        child = await _forked(store, lease.session, b)
        (c,) = await _grow(store, child, "c")
        grandchild = await _forked(store, child.session, c)
        for node in (await later(store, child, b), await later(store, lease, a)):
            with pytest.raises(NodeNotFound):
                await store.node(grandchild.session, node)
            with pytest.raises(NodeNotFound):
                await rewind(store, grandchild, node)
            with pytest.raises(NodeNotFound):
                await store.fork(a_fork(grandchild.session, node))
            assert await store.on_active_path(grandchild.session, node) is False
        assert await said(store, grandchild.session) == ["a", "b", "c"]

    async def test_a_fork_does_not_inherit_the_branches_that_its_parent_had_left(self, store: Store) -> None:
        lease = await a_held_session(store)
        a, left = await _grow(store, lease, "a", "left")
        await rewind(store, lease, a)
        (b,) = await _grow(store, lease, "b")
        fork = await _forked(store, lease.session, b)
        with pytest.raises(NodeNotFound):
            await store.node(fork.session, left)
        with pytest.raises(NodeNotFound):
            await rewind(store, fork, left)
        assert await store.on_active_path(fork.session, left) is False

    async def test_a_session_that_was_rewound_many_times_is_forked_anywhere(self, store: Store) -> None:
        lease = await a_held_session(store)
        kept, left = [], []
        for n in range(40):
            kept += await _grow(store, lease, str(n))
            left += await _grow(store, lease, f"{n}!")
            await rewind(store, lease, kept[-1])
        at_the_end = await _forked(store, lease.session, kept[-1])
        await _grow(store, at_the_end, "on")
        assert await said(store, at_the_end.session) == [*map(str, range(40)), "on"]
        on_path = [await store.on_active_path(at_the_end.session, node) for node in (*kept, *left)]
        assert on_path == [True] * 40 + [False] * 40
        beside = await _forked(store, lease.session, left[20])
        assert await said(store, beside.session) == [*map(str, range(21)), "20!"]
        assert (await store.snapshot(beside.session)).nodes == tuple(await store.nodes(beside.session))
        await rewind(store, beside, kept[10])
        assert await said(store, beside.session) == [*map(str, range(11))]

    async def test_a_fork_shows_the_current_frame_as_of_its_beginning(self, store: Store) -> None:
        lease = await a_held_session(store)
        await _grow(store, lease, "long ago")
        receipt = await commit_nodes(store, lease, opens(COMPACTION), says("summary"))
        fork = await _forked(store, lease.session, leaf_of(receipt))
        await _grow(store, fork, "more")
        snapshot = await store.snapshot(fork.session)
        assert [node.depth for node in snapshot.nodes] == [2, 3, 4]
        assert snapshot.session.head.frame == 2

    async def test_a_fork_rewinds_to_its_beginning_and_behind_it(self, store: Store) -> None:
        lease = await a_held_session(store)
        a, b = await _grow(store, lease, "a", "b")
        fork = await _forked(store, lease.session, b)
        await _grow(store, fork, "c")
        await rewind(store, fork, b)
        assert await said(store, fork.session) == ["a", "b"]
        await rewind(store, fork, a)
        await _grow(store, fork, "B")
        assert await said(store, fork.session) == ["a", "B"]
        assert not await store.on_active_path(fork.session, b)
        assert await said(store, lease.session) == ["a", "b"]

    async def test_a_fork_may_be_reset(self, store: Store) -> None:
        lease = await a_held_session(store)
        (a,) = await _grow(store, lease, "a")
        fork = await _forked(store, lease.session, a)
        await commit_nodes(store, fork, opens(RESET), says("new"))
        assert await said(store, fork.session) == ["new"]
        assert await said(store, lease.session) == ["a"]

    # -- what it takes along -------------------------------------------------------------------------------------------

    async def test_a_fork_takes_over_agent_and_config_and_brings_its_own_metadata(self, store: Store) -> None:
        new = replace(a_new_session(agent="orders", metadata={"of": "parent"}), config={"model": "m"})
        parent = await store.create(new)
        (a,) = await _grow(store, await must_acquire(store, parent.uid), "a")
        fork = await store.fork(a_fork(parent.uid, a, metadata={"of": "fork"}))
        assert fork.agent == "orders"
        assert await store.document(fork.uid, "config") == Document(0, {"model": "m"})
        assert await store.document(fork.uid, "metadata") == Document(0, {"of": "fork"})

    async def test_documents_of_parent_and_fork_are_replaced_apart(self, store: Store) -> None:
        lease = await a_held_session(store)
        (a,) = await _grow(store, lease, "a")
        fork = await store.fork(a_fork(lease.session, a))
        await store.put_document(fork.uid, "config", {"of": "fork"}, expected=0)
        await store.put_document(lease.session, "config", {"of": "parent"}, expected=0)
        assert (await store.document(fork.uid, "config")).body == {"of": "fork"}
        assert (await store.document(lease.session, "config")).body == {"of": "parent"}

    async def test_a_fork_has_the_state_parts_as_of_its_beginning(self, store: Store) -> None:
        lease = await a_held_session(store)
        first = replace(await plan_nodes(store, lease, says("a")), parts={"tool": Changed(b"then")})
        a = leaf_of(await store.commit(first))
        await store.commit(replace(await plan_nodes(store, lease, says("b")), parts={"tool": Changed(b"now")}))
        fork = await store.fork(a_fork(lease.session, a))
        assert await store.parts(fork.uid) == (await store.snapshot(fork.uid)).parts == {"tool": hash_of(b"then")}

    async def test_a_fork_takes_no_input_waits_usage_turn_lease_or_receipts(self, store: Store) -> None:
        lease = await a_held_session(store)
        spent = (UsageDelta("agent", "m", Tokens(input=9)),)
        receipt = await store.commit(replace(await plan_nodes(store, lease, says("a")), usage=spent))
        await store.admit(lease.session, a_message("pending", key="k"))
        await open_with(store, lease.session, "taken")
        await store.open_wait(lease.session, a_wait())
        fork = (await store.fork(a_fork(lease.session, leaf_of(receipt)))).uid
        assert (await store.items(fork, terminal=True)).rows == ()
        assert await store.waits(fork) == []
        assert await store.usage(fork) == ()
        assert await store.unsettled_turn(fork) is None
        assert await store.lease(fork) == LeaseRecord()
        assert await store.receipt(fork, receipt.operation) is None
        assert (await store.find(fork)).ready_at is None
        assert (await store.admit(fork, a_message("a key of its own", key="k"))).session == fork

    async def test_forking_needs_no_lease_and_disturbs_no_turn(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        receipt = await run_turn(store, uid, "one")
        driven = await open_with(store, uid, "two")
        before = await store.snapshot(uid), await store.lease(uid)
        fork = await store.fork(a_fork(uid, leaf_of(receipt)))
        assert await said(store, fork.uid) == ["one", "re: one"]
        assert (await store.snapshot(uid), await store.lease(uid)) == before
        assert await store.unsettled_turn(uid) == driven.turn

    async def test_a_fork_takes_turns_of_its_own(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        receipt = await run_turn(store, uid, "one")
        fork = await store.fork(a_fork(uid, leaf_of(receipt)))
        await run_turn(store, fork.uid, "two", owner="another")
        assert await said(store, fork.uid) == ["one", "re: one", "two", "re: two"]
        assert await said(store, uid) == ["one", "re: one"]

    # -- creating it ---------------------------------------------------------------------------------------------------

    async def test_forking_again_after_a_lost_answer_returns_the_fork_untouched(self, store: Store) -> None:
        lease = await a_held_session(store)
        (a,) = await _grow(store, lease, "a")
        new = a_fork(lease.session, a, metadata={"n": 1})
        await store.fork(new)
        await run_turn(store, new.uid, "hello")
        again = await store.fork(replace(new, metadata={"n": 2}))
        assert again == await store.find(new.uid)
        assert await said(store, new.uid) == ["a", "hello", "re: hello"]
        assert (await store.document(new.uid, "metadata")).body == {"n": 1}

    async def test_the_uid_of_a_fork_names_nothing_else(self, store: Store) -> None:
        lease = await a_held_session(store)
        a, b = await _grow(store, lease, "a", "b")
        new = a_fork(lease.session, a)
        await store.fork(new)
        with pytest.raises(IdReused):
            await store.fork(replace(new, at=b))
        with pytest.raises(IdReused):
            await store.fork(replace(new, name=SessionName(f"{new.name}-2")))
        with pytest.raises(IdReused):
            await store.fork(replace(a_fork(lease.session, a), uid=lease.session))
        assert await said(store, new.uid) == ["a"]

    async def test_a_fork_is_refused_as_a_create_would_be(self, store: Store) -> None:
        lease = await a_held_session(store)
        (a,) = await _grow(store, lease, "a")
        name = (await store.find(lease.session)).name
        with pytest.raises(SessionExists):
            await store.fork(a_fork(lease.session, a, name))
        with pytest.raises(InvalidName):
            await store.fork(a_fork(lease.session, a, "not a name"))
        with pytest.raises(InvalidValue):
            await store.fork(a_fork(lease.session, a, metadata={"x": float("nan")}))
        gone = a_fork(lease.session, a)
        await store.fork(gone)
        await store.delete(gone.uid)
        with pytest.raises(SessionDeleted):
            await store.fork(gone)

    async def test_a_session_that_is_not_there_cannot_be_forked(self, store: Store) -> None:
        lease = await a_held_session(store)
        (a,) = await _grow(store, lease, "a")
        with pytest.raises(SessionNotFound):
            await store.fork(a_fork(SessionUid(new_id()), a))
        await store.delete(lease.session)
        new = a_fork(lease.session, a)
        with pytest.raises(SessionDeleted):
            await store.fork(new)
        with pytest.raises(SessionNotFound):
            await store.get(new.name)

    # -- deleting ------------------------------------------------------------------------------------------------------

    async def test_a_fork_outlives_its_parent(self, store: Store) -> None:
        lease = await a_held_session(store)
        a, b = await _grow(store, lease, "a", "b")
        fork = await _forked(store, lease.session, b)
        await store.delete(lease.session)
        await _grow(store, fork, "c")
        assert await said(store, fork.session) == ["a", "b", "c"]
        assert await store.on_active_path(fork.session, a)
        again = await _forked(store, fork.session, b)
        assert await said(store, again.session) == ["a", "b"]

    async def test_a_parent_outlives_its_fork(self, store: Store) -> None:
        lease = await a_held_session(store)
        (a,) = await _grow(store, lease, "a")
        fork = await _forked(store, lease.session, a)
        await _grow(store, fork, "b")
        await store.delete(fork.session)
        await _grow(store, lease, "c")
        assert await said(store, lease.session) == ["a", "c"]

    async def test_a_grandchild_outlives_everybody_above_it(self, store: Store) -> None:
        lease = await a_held_session(store)
        (a,) = await _grow(store, lease, "a")
        child = await _forked(store, lease.session, a)
        (b,) = await _grow(store, child, "b")
        grandchild = await _forked(store, child.session, b)
        await store.delete(child.session)
        await store.delete(lease.session)
        await _grow(store, grandchild, "c")
        assert await said(store, grandchild.session) == ["a", "b", "c"]

    async def test_a_fork_of_a_deleted_parent_still_rewinds_into_it(self, store: Store) -> None:
        lease = await a_held_session(store)
        first = replace(await plan_nodes(store, lease, says("a")), parts={"tool": Changed(b"then")})
        a = leaf_of(await store.commit(first))
        (b,) = await _grow(store, lease, "b")
        fork = await _forked(store, lease.session, b)
        await store.delete(lease.session)
        await rewind(store, fork, a)
        assert await said(store, fork.session) == ["a"]
        assert await store.parts(fork.session) == {"tool": hash_of(b"then")}

    # -- races ---------------------------------------------------------------------------------------------------------

    async def test_a_fork_that_races_the_deletion_of_its_parent_is_whole_or_refused(
        self, harness: StoreHarness
    ) -> None:
        async with opened(harness) as one, opened(harness) as two:
            for _ in range(4):
                lease = await a_held_session(one)
                a, b = await _grow(one, lease, "a", "b")
                news = [a_fork(lease.session, node) for node in (a, b)]
                ends = await asyncio.gather(
                    one.fork(news[0]), two.delete(lease.session), one.fork(news[1]), return_exceptions=True
                )
                for new, end, words in ((news[0], ends[0], ["a"]), (news[1], ends[2], ["a", "b"])):
                    if isinstance(end, Session):
                        assert await said(two, new.uid) == words
                    else:
                        assert isinstance(end, SessionDeleted)

    async def test_the_same_fork_twice_at_once_is_one(self, harness: StoreHarness) -> None:
        async with opened(harness) as one, opened(harness) as two:
            lease = await a_held_session(one)
            (a,) = await _grow(one, lease, "a")
            new = a_fork(lease.session, a)
            ends = await asyncio.gather(one.fork(new), two.fork(new), one.fork(new))
        assert {end.uid for end in ends} == {new.uid}

    async def test_forks_of_one_name_at_once_have_one_winner(self, harness: StoreHarness) -> None:
        async with opened(harness) as one, opened(harness) as two:
            lease = await a_held_session(one)
            (a,) = await _grow(one, lease, "a")
            name = a_fork(lease.session, a).name
            forked, refused = await race(*(store.fork(a_fork(lease.session, a, name)) for store in (one, two) * 2))
            assert [await one.get(name)] == forked
        assert [type(error) for error in refused] == [SessionExists] * 3

    async def test_a_fork_that_races_a_commit_of_its_parent_shares_what_it_names(self, harness: StoreHarness) -> None:
        async with opened(harness) as one, opened(harness) as two:
            lease = await a_held_session(one)
            (a,) = await _grow(one, lease, "a")
            plan = await plan_nodes(one, lease, says("b"))
            new = a_fork(lease.session, a)
            await asyncio.gather(one.commit(plan), two.fork(new))
            assert await said(one, new.uid) == ["a"]
            assert await said(one, lease.session) == ["a", "b"]
