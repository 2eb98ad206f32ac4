"""Explicit retention: a vacuum takes what ended and nobody needs, and nothing else. Needs an empty database."""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import replace
from datetime import timedelta

import pytest

from lash.commit.outbox import Owed
from lash.commit.parts import Changed
from lash.commit.usage import Tokens, UsageDelta, UsageTotal
from lash.errors import (
    BlobMissing,
    BlobNotFound,
    InvalidValue,
    KeyReused,
    SessionDeleted,
    StoreClosed,
    TurnNotFound,
    TurnSettled,
    WaitNotFound,
)
from lash.graph.frames import RESET
from lash.graph.nodes import MessageReceived
from lash.graph.parts import Image
from lash.graph.session import Document, Session
from lash.ids import BlobHash, ItemId, NodeId, SessionUid
from lash.inbox.cancelling import These
from lash.inbox.items import Message, NewItem, Wake
from lash.lease import ExecutionLease
from lash.store.contract import Store, TurnOpening, Vacuumed
from lash.testing.builders import (
    Driven,
    a_fork,
    a_held_session,
    a_message,
    a_session,
    a_wait,
    an_opening,
    commit_nodes,
    leaf_of,
    must_acquire,
    must_open,
    new_id,
    open_with,
    opens,
    plan_nodes,
    plan_of,
    rewind,
    run_turn,
    said,
    says,
    settle_turn,
    text_of,
)
from lash.testing.harness import StoreContract, StoreHarness, opened

HOUR = timedelta(hours=1)


async def _sweep(harness: StoreHarness, store: Store) -> Vacuumed:
    """Let an hour pass and vacuum everything that ended until then."""
    await harness.advance(HOUR)
    return await store.vacuum(before=await harness.now())


async def _grow(store: Store, lease: ExecutionLease, *texts: str) -> list[NodeId]:
    return [leaf_of(await commit_nodes(store, lease, says(text))) for text in texts]


async def _forked(store: Store, parent: SessionUid, at: NodeId) -> ExecutionLease:
    return await must_acquire(store, (await store.fork(a_fork(parent, at))).uid)


def _showing(blob: BlobHash) -> MessageReceived:
    return MessageReceived(parts=(Image(blob=blob, media_type="image/png"),))


def _message_with(blob: BlobHash) -> NewItem:
    return NewItem(ItemId(new_id()), Message(parts=(Image(blob=blob, media_type="image/png"),)))


async def _is_stored(store: Store, blob: BlobHash) -> bool:
    try:
        await store.blob(blob)
    except BlobNotFound:
        return False
    return True


async def _clutter(store: Store) -> Vacuumed:
    """Leave something of every kind that a vacuum removes; how much that is."""
    uid, gone = (await a_session(store)).uid, await a_held_session(store)
    answered = await store.open_wait(uid, a_wait())
    await store.answer(answered, "yes")
    driven = await open_with(store, uid)
    await store.open_wait(uid, a_wait(turn=driven.turn.id))  # revoked when its turn settles
    await store.commit(replace(await plan_of(store, driven), owes=(Owed(gone.session, Wake(source="s")),)))
    [debt] = await store.debts()
    await store.deliver(debt)
    unwanted = await store.admit(uid, _message_with(await store.put_blob(b"of a cancelled item")))
    await store.cancel(uid, These((unwanted.id,)))
    await store.put_document(uid, "config", {"n": 1}, expected=0)
    await store.put_blob(b"unused")
    shown = await store.put_blob(b"of a deleted node")
    plan = await plan_nodes(store, gone, _showing(shown))
    await store.commit(replace(plan, parts={"p": Changed(b"of a deleted session")}))
    await store.delete(gone.session)
    return Vacuumed(items=2, turns=1, waits=2, outbox=1, documents=1, nodes=2, commits=1, blobs=4)


async def _settled(store: Store, opening: TurnOpening) -> None:
    """The whole turn that an opening asks for."""
    result = await store.open_turn(opening)
    assert result.acquired is not None
    assert result.turn is not None
    await settle_turn(store, Driven(result.acquired.lease, result.turn, result.items, result))


class MaintenanceContract(StoreContract):
    """Vacuuming an otherwise empty database."""

    async def test_an_empty_database_has_nothing_to_remove(self, store: Store, harness: StoreHarness) -> None:
        report = await _sweep(harness, store)
        assert report == Vacuumed()
        assert report.total == 0

    async def test_items_that_ended_go_and_the_others_stay(self, store: Store, harness: StoreHarness) -> None:
        uid, other = (await a_session(store)).uid, (await a_session(store)).uid
        await run_turn(store, uid, "completed")
        unwanted = await store.admit(uid, a_message("cancelled"))
        await store.cancel(uid, These((unwanted.id,)))
        pending = await store.admit(uid, a_message("pending"))
        taken = (await open_with(store, other, "taken")).items[0]
        report = await _sweep(harness, store)
        assert (report.items, report.turns) == (2, 1)
        assert (await store.items(uid, terminal=True)).rows == (pending,)
        assert (await store.items(other, terminal=True)).rows == (taken,)

    async def test_settled_turns_go_and_unsettled_ones_stay(self, store: Store, harness: StoreHarness) -> None:
        done, at_work, asleep = [(await a_session(store)).uid for _ in range(3)]
        driven = await open_with(store, done)
        await store.commit(await plan_of(store, driven))
        working = await open_with(store, at_work)
        sleeping = await open_with(store, asleep)
        await store.park(sleeping.lease, sleeping.turn.id)
        assert (await _sweep(harness, store)).turns == 1
        with pytest.raises(TurnNotFound):
            await store.turn(done, driven.turn.id)
        assert await store.unsettled_turn(at_work) == working.turn
        parked = await store.unsettled_turn(asleep)
        assert parked is not None
        assert (parked.id, parked.state) == (sleeping.turn.id, "parked")

    async def test_which_turn_consumed_an_input_is_still_told_when_the_item_and_the_turn_are_gone(
        self, store: Store, harness: StoreHarness
    ) -> None:
        """A node names the item that it came from, and its own id the operation, which is the turn."""
        uid = (await a_session(store)).uid
        consumed = []
        for _ in range(2):
            driven = await open_with(store, uid)
            heard = MessageReceived(parts=(), item=driven.items[0].id)
            await store.commit(await plan_of(store, driven, heard, says("hi")))
            consumed.append((driven.items[0].id, driven.turn.id))
        report = await _sweep(harness, store)
        assert (report.items, report.turns) == (2, 2)
        told = [(node.payload, node.id.split("-")[1]) for node in await store.nodes(uid)]
        assert [(heard.item, turn) for heard, turn in told if isinstance(heard, MessageReceived)] == consumed

    async def test_history_receipts_and_usage_of_living_sessions_stay(
        self, store: Store, harness: StoreHarness
    ) -> None:
        uid = (await a_session(store)).uid
        driven = await open_with(store, uid)
        spent = (UsageDelta("agent", "m", Tokens(input=5)),)
        plan = replace(await plan_of(store, driven, says("hi")), usage=spent, parts={"a": Changed(b"state")})
        receipt = await store.commit(plan)
        report = await _sweep(harness, store)
        assert (report.nodes, report.commits, report.blobs) == (0, 0, 0)
        assert await store.receipt(uid, plan.operation) == receipt
        assert await store.commit(plan) == receipt
        assert await said(store, uid) == ["hi"]
        assert await store.usage(uid) == (UsageTotal("agent", "m", Tokens(input=5)),)
        assert await store.blob((await store.parts(uid))["a"]) == b"state"

    async def test_abandoned_branches_of_living_sessions_stay(self, store: Store, harness: StoreHarness) -> None:
        lease = await a_held_session(store)
        a, b = await _grow(store, lease, "a", "b")
        await rewind(store, lease, a)
        await commit_nodes(store, lease, opens(RESET), says("new"))
        assert (await _sweep(harness, store)).total == 0
        await rewind(store, lease, b)
        assert await said(store, lease.session) == ["a", "b"]

    async def test_waits_that_ended_go_and_pending_ones_stay(self, store: Store, harness: StoreHarness) -> None:
        uid = (await a_session(store)).uid
        deadline = await harness.now() + timedelta(minutes=1)
        answered, revoked, late, pending = a_wait(), a_wait(), a_wait(expires_at=deadline), a_wait()
        keys = [await store.open_wait(uid, wait) for wait in (answered, revoked, late, pending)]
        await store.answer(keys[0], "yes")
        await store.revoke(uid, [revoked.id])
        assert (await _sweep(harness, store)).waits == 3
        assert [wait.id for wait in await store.waits(uid)] == [pending.id]
        with pytest.raises(WaitNotFound):
            await store.wait(uid, answered.id)
        assert (await store.answer(keys[3], "at last")).accepted

    async def test_an_answer_that_a_turn_has_yet_to_read_stays(self, store: Store, harness: StoreHarness) -> None:
        uid = (await a_session(store)).uid
        driven = await open_with(store, uid)
        wait = a_wait(turn=driven.turn.id)
        key = await store.open_wait(uid, wait)
        await store.park(driven.lease, driven.turn.id, waits=[wait.id])
        await store.answer(key, "yes")
        assert (await _sweep(harness, store)).waits == 0
        assert (await store.wait(uid, wait.id)).answer == "yes"
        again = await must_open(store, uid, "another")
        await store.commit(await plan_of(store, again))
        assert (await _sweep(harness, store)).waits == 1

    async def test_delivered_debts_go_and_open_ones_stay(self, store: Store, harness: StoreHarness) -> None:
        lease, receiver = await a_held_session(store), await a_session(store)
        owes = (Owed(receiver.uid, Wake(source="first")), Owed(receiver.uid, Wake(source="second")))
        await store.commit(replace(await plan_nodes(store, lease), owes=owes))
        first, second = await store.debts()
        await store.deliver(first)
        assert (await _sweep(harness, store)).outbox == 1
        assert await store.debts() == [second]
        assert await store.deliver(second) is not None
        assert (await _sweep(harness, store)).outbox == 1

    async def test_superseded_documents_go_unless_a_turn_has_pinned_them(
        self, store: Store, harness: StoreHarness
    ) -> None:
        uid = (await a_session(store)).uid
        await store.put_document(uid, "config", {"n": 1}, expected=0)
        driven = await open_with(store, uid)
        await store.put_document(uid, "config", {"n": 2}, expected=1)
        await store.put_document(uid, "config", {"n": 3}, expected=2)
        await store.put_document(uid, "catalog", {"n": 1}, expected=0)
        assert (await _sweep(harness, store)).documents == 2  # config 0 and 2; config 1 and catalog 0 are pinned
        assert await store.document(uid, "config", driven.turn.config_revision) == Document(1, {"n": 1})
        assert await store.document(uid, "catalog", driven.turn.catalog_revision) == Document(0, {})
        await store.commit(await plan_of(store, driven))
        assert (await _sweep(harness, store)).documents == 2
        assert await store.document(uid, "config") == Document(3, {"n": 3})
        assert await store.document(uid, "catalog") == Document(1, {"n": 1})
        assert (await store.snapshot(uid)).config == Document(3, {"n": 3})

    # -- deleted sessions ----------------------------------------------------------------------------------------------

    async def test_nodes_and_receipts_of_a_deleted_session_go(self, store: Store, harness: StoreHarness) -> None:
        lease = await a_held_session(store)
        a, _ = await _grow(store, lease, "a", "b")
        await rewind(store, lease, a)
        await _grow(store, lease, "B")
        await store.delete(lease.session)
        report = await _sweep(harness, store)
        assert (report.nodes, report.commits) == (4, 4)
        assert (await _sweep(harness, store)).total == 0

    async def test_a_deleted_session_stays_deleted(self, store: Store, harness: StoreHarness) -> None:
        session = await a_session(store)
        await run_turn(store, session.uid, "hello")
        await store.delete(session.uid)
        await _sweep(harness, store)
        with pytest.raises(SessionDeleted):
            await store.find(session.uid)
        assert await store.delete(session.uid) is False

    async def test_what_a_fork_shares_stays_and_the_rest_goes(self, store: Store, harness: StoreHarness) -> None:
        lease = await a_held_session(store)
        a, b, _ = await _grow(store, lease, "a", "b", "c")
        fork = await _forked(store, lease.session, b)
        await store.delete(lease.session)
        assert (await _sweep(harness, store)).nodes == 1
        await _grow(store, fork, "C")
        assert await said(store, fork.session) == ["a", "b", "C"]
        await rewind(store, fork, a)
        assert await said(store, fork.session) == ["a"]

    async def test_an_unused_fork_point_is_a_reason_to_stay(self, store: Store, harness: StoreHarness) -> None:
        lease = await a_held_session(store)
        (a,) = await _grow(store, lease, "a")
        fork = await _forked(store, lease.session, a)
        await commit_nodes(store, fork, opens(RESET), says("new"))
        await store.delete(lease.session)
        assert (await _sweep(harness, store)).nodes == 0
        await rewind(store, fork, a)
        assert await said(store, fork.session) == ["a"]

    async def test_shared_nodes_go_with_the_last_who_shares_them(self, store: Store, harness: StoreHarness) -> None:
        lease = await a_held_session(store)
        (a,) = await _grow(store, lease, "a")
        child = await _forked(store, lease.session, a)
        (b,) = await _grow(store, child, "b")
        grandchild = await _forked(store, child.session, b)
        await _grow(store, grandchild, "c")
        await store.delete(lease.session)
        await store.delete(child.session)
        assert (await _sweep(harness, store)).nodes == 0
        assert await said(store, grandchild.session) == ["a", "b", "c"]
        await store.delete(grandchild.session)
        report = await _sweep(harness, store)
        assert (report.nodes, report.commits) == (4, 3)

    async def test_a_deleted_fork_takes_nothing_of_its_parent_along(self, store: Store, harness: StoreHarness) -> None:
        lease = await a_held_session(store)
        (a,) = await _grow(store, lease, "a")
        fork = await _forked(store, lease.session, a)
        await _grow(store, fork, "b", "c")
        await store.delete(fork.session)
        assert (await _sweep(harness, store)).nodes == 2
        await _grow(store, lease, "d")
        assert await said(store, lease.session) == ["a", "d"]

    async def test_a_fork_of_a_later_branch_keeps_the_path_below_it_and_no_more(
        self, store: Store, harness: StoreHarness
    ) -> None:
        lease = await a_held_session(store)
        a, _ = await _grow(store, lease, "a", "left")
        await rewind(store, lease, a)
        x, _ = await _grow(store, lease, "x", "unshared")
        fork = await _forked(store, lease.session, x)
        await store.delete(lease.session)
        assert (await _sweep(harness, store)).nodes == 2
        assert await said(store, fork.session) == ["a", "x"]

    async def test_what_several_forks_share_stays_as_far_as_the_deepest_of_them(
        self, store: Store, harness: StoreHarness
    ) -> None:
        lease = await a_held_session(store)
        a, b, c, _ = await _grow(store, lease, "a", "b", "c", "unshared")
        await rewind(store, lease, a)
        (x,) = await _grow(store, lease, "x")
        forks = [await _forked(store, lease.session, node) for node in (b, c, x)]
        await store.delete(lease.session)
        assert (await _sweep(harness, store)).nodes == 1
        paths = [await said(store, fork.session) for fork in forks]
        assert paths == [["a", "b"], ["a", "b", "c"], ["a", "x"]]

    async def test_a_fork_keeps_the_state_parts_of_its_deleted_parent(
        self, store: Store, harness: StoreHarness
    ) -> None:
        lease = await a_held_session(store)
        early = replace(await plan_nodes(store, lease, says("a")), parts={"p": Changed(b"early")})
        a = leaf_of(await store.commit(early))
        late = replace(await plan_nodes(store, lease, says("b")), parts={"p": Changed(b"late")})
        fork = await _forked(store, lease.session, leaf_of(await store.commit(late)))
        await store.delete(lease.session)
        assert (await _sweep(harness, store)).blobs == 0
        assert await store.blob((await store.parts(fork.session))["p"]) == b"late"
        await rewind(store, fork, a)
        assert await store.blob((await store.parts(fork.session))["p"]) == b"early"

    # -- blobs ---------------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("taken", [False, True], ids=["pending", "taken"])
    async def test_the_blob_of_an_item_goes_with_the_session_that_it_was_sent_to(
        self, store: Store, harness: StoreHarness, taken: bool
    ) -> None:
        gone, kept = (await a_session(store)).uid, (await a_session(store)).uid
        lonely, shared = await store.put_blob(b"lonely"), await store.put_blob(b"shared")
        for blob in (shared, lonely):
            await store.admit(gone, _message_with(blob))
        await store.admit(kept, _message_with(shared))
        if taken:
            await must_open(store, gone)
        await store.delete(gone)
        assert (await _sweep(harness, store)).blobs == 1
        assert not await _is_stored(store, lonely)
        assert await store.blob(shared) == b"shared"

    async def test_a_blob_stays_that_the_history_of_another_session_shows(
        self, store: Store, harness: StoreHarness
    ) -> None:
        gone, lease = (await a_session(store)).uid, await a_held_session(store)
        blob = await store.put_blob(b"shown")
        await store.admit(gone, _message_with(blob))
        await commit_nodes(store, lease, _showing(blob))
        await store.delete(gone)
        assert (await _sweep(harness, store)).blobs == 0
        assert await store.blob(blob) == b"shown"

    async def test_the_blob_of_a_deleted_session_stays_until_its_time_comes(
        self, store: Store, harness: StoreHarness
    ) -> None:
        uid, before = (await a_session(store)).uid, await harness.now()
        await harness.advance(HOUR)
        blob = await store.put_blob(b"young")
        await store.admit(uid, _message_with(blob))
        await store.delete(uid)
        assert (await store.vacuum(before=before)).blobs == 0
        assert await _is_stored(store, blob)
        assert (await _sweep(harness, store)).blobs == 1

    async def test_a_blob_that_nothing_refers_to_goes(self, store: Store, harness: StoreHarness) -> None:
        blob = await store.put_blob(b"unused")
        assert (await _sweep(harness, store)).blobs == 1
        assert not await _is_stored(store, blob)

    async def test_a_young_blob_stays_for_whoever_is_about_to_use_it(self, store: Store, harness: StoreHarness) -> None:
        before = await harness.now()
        await harness.advance(HOUR)
        blob = await store.put_blob(b"young")
        assert await store.vacuum(before=before) == Vacuumed()
        assert await _is_stored(store, blob)

    async def test_a_blob_that_was_put_again_is_young_again(self, store: Store, harness: StoreHarness) -> None:
        blob = await store.put_blob(b"twice")
        await harness.advance(HOUR)
        between = await harness.now()
        await harness.advance(HOUR)
        await store.put_blob(b"twice")
        await store.vacuum(before=between)
        assert await _is_stored(store, blob)

    async def test_blobs_of_nodes_items_debts_and_parts_stay(self, store: Store, harness: StoreHarness) -> None:
        lease, receiver = await a_held_session(store), await a_session(store)
        in_node, in_item, in_debt = [await store.put_blob(body) for body in (b"node", b"item", b"debt")]
        await store.admit(receiver.uid, _message_with(in_item))
        plan = replace(
            await plan_nodes(store, lease, _showing(in_node)),
            parts={"p": Changed(b"part")},
            owes=(Owed(receiver.uid, _message_with(in_debt).body),),
        )
        await store.commit(plan)
        assert (await _sweep(harness, store)).blobs == 0
        in_part = (await store.parts(lease.session))["p"]
        assert [await _is_stored(store, blob) for blob in (in_node, in_item, in_debt, in_part)] == [True] * 4

    async def test_parts_that_a_rewind_could_need_stay(self, store: Store, harness: StoreHarness) -> None:
        lease = await a_held_session(store)
        early = replace(await plan_nodes(store, lease, says("a")), parts={"p": Changed(b"early")})
        a = leaf_of(await store.commit(early))
        await store.commit(replace(await plan_nodes(store, lease, says("b")), parts={}))
        assert (await _sweep(harness, store)).blobs == 0
        await rewind(store, lease, a)
        assert await store.blob((await store.parts(lease.session))["p"]) == b"early"

    async def test_a_shared_blob_goes_with_the_last_who_refers_to_it(self, store: Store, harness: StoreHarness) -> None:
        blob = await store.put_blob(b"shared")
        leases = [await a_held_session(store), await a_held_session(store)]
        for lease in leases:
            await commit_nodes(store, lease, _showing(blob))
        await store.delete(leases[0].session)
        assert (await _sweep(harness, store)).blobs == 0
        assert await store.blob(blob) == b"shared"
        await store.delete(leases[1].session)
        assert (await _sweep(harness, store)).blobs == 1
        assert not await _is_stored(store, blob)

    async def test_a_part_and_a_node_may_share_a_blob(self, store: Store, harness: StoreHarness) -> None:
        one, two = await a_held_session(store), await a_held_session(store)
        await store.commit(replace(await plan_nodes(store, one), parts={"p": Changed(b"both")}))
        blob = (await store.parts(one.session))["p"]
        await commit_nodes(store, two, _showing(blob))
        await store.delete(one.session)
        await _sweep(harness, store)
        assert await store.blob(blob) == b"both"

    async def test_the_blob_of_an_item_goes_after_the_item(self, store: Store, harness: StoreHarness) -> None:
        uid = (await a_session(store)).uid
        blob = await store.put_blob(b"of an item")
        item = await store.admit(uid, _message_with(blob))
        assert (await _sweep(harness, store)).total == 0
        await store.cancel(uid, These((item.id,)))
        removed = [await _sweep(harness, store), await _sweep(harness, store)]
        assert sum(report.items for report in removed) == 1
        assert sum(report.blobs for report in removed) == 1
        assert not await _is_stored(store, blob)

    # -- how it works --------------------------------------------------------------------------------------------------

    async def test_what_ended_after_the_given_time_stays(self, store: Store, harness: StoreHarness) -> None:
        uid, gone = (await a_session(store)).uid, (await a_held_session(store))
        await _grow(store, gone, "a")
        key = await store.open_wait(uid, a_wait())
        await harness.advance(HOUR)
        before = await harness.now()
        await harness.advance(HOUR)
        await run_turn(store, uid, "hello")
        await store.put_document(uid, "metadata", {"n": 1}, expected=0)
        await store.answer(key, "yes")
        await store.delete(gone.session)
        assert await store.vacuum(before=before) == Vacuumed()
        report = await _sweep(harness, store)
        assert (report.items, report.turns, report.waits, report.documents, report.nodes) == (1, 1, 1, 1, 2)

    async def test_a_rehearsal_reports_the_same_and_removes_nothing(self, store: Store, harness: StoreHarness) -> None:
        uid, gone = (await a_session(store)).uid, await a_held_session(store)
        await run_turn(store, uid, "hello")
        await _grow(store, gone, "a")
        await store.delete(gone.session)
        blob = await store.put_blob(b"unused")
        await harness.advance(HOUR)
        before = await harness.now()
        rehearsed = await store.vacuum(before=before, dry_run=True)
        assert len((await store.items(uid, terminal=True)).rows) == 1
        assert await _is_stored(store, blob)
        assert await store.vacuum(before=before) == rehearsed
        assert (rehearsed.items, rehearsed.turns, rehearsed.nodes, rehearsed.blobs) == (1, 1, 2, 1)

    @pytest.mark.parametrize("dry_run", [True, False])
    async def test_a_vacuum_without_a_time_is_refused_and_removes_nothing(
        self, store: Store, harness: StoreHarness, dry_run: bool
    ) -> None:
        expected = await _clutter(store)
        with pytest.raises(InvalidValue):
            await store.vacuum(before=None, dry_run=dry_run)  # type: ignore[arg-type]  # wrong on purpose
        assert await _sweep(harness, store) == expected

    async def test_a_second_vacuum_finds_nothing(self, store: Store, harness: StoreHarness) -> None:
        uid = (await a_session(store)).uid
        await run_turn(store, uid, "hello")
        await store.put_blob(b"unused")
        assert (await _sweep(harness, store)).total == 3
        assert await _sweep(harness, store) == Vacuumed()

    async def test_a_rehearsal_foretells_every_number(self, store: Store, harness: StoreHarness) -> None:
        expected = await _clutter(store)
        await harness.advance(HOUR)
        before = await harness.now()
        assert await store.vacuum(before=before, dry_run=True) == expected
        assert await store.vacuum(before=before, dry_run=True) == expected, "the rehearsal removed something"
        assert await store.vacuum(before=before) == expected

    async def test_after_a_vacuum_there_is_nothing_left_of_any_kind(self, store: Store, harness: StoreHarness) -> None:
        expected = await _clutter(store)
        await harness.advance(HOUR)
        before = await harness.now()
        assert await store.vacuum(before=before) == expected
        assert await store.vacuum(before=before, dry_run=True) == Vacuumed()
        assert await store.vacuum(before=before) == Vacuumed()
        assert await _sweep(harness, store) == Vacuumed()

    async def test_everything_of_many_sessions_goes_in_one_vacuum(self, store: Store, harness: StoreHarness) -> None:
        for n in range(30):
            lease = await a_held_session(store)
            await commit_nodes(store, lease, *(says(f"{n}.{m}") for m in range(20)))
            await store.delete(lease.session)
        report = await _sweep(harness, store)
        assert (report.nodes, report.commits) == (30 * 21, 30)

    async def test_a_session_goes_on_as_if_nothing_had_happened(self, store: Store, harness: StoreHarness) -> None:
        uid = (await a_session(store)).uid
        await run_turn(store, uid, "one")
        await store.admit(uid, a_message("two"))
        await _sweep(harness, store)
        driven = await must_open(store, uid)
        await store.commit(await plan_of(store, driven, says("re: two")))
        await run_turn(store, uid, "three")
        assert await said(store, uid) == ["one", "re: one", "re: two", "three", "re: three"]

    async def test_a_settled_turn_is_not_opened_again_after_a_vacuum(self, store: Store, harness: StoreHarness) -> None:
        uid = (await a_session(store)).uid
        opening = an_opening(uid, admits=a_message("served", key="k"))
        await _settled(store, opening)
        assert (await _sweep(harness, store)).turns == 1
        waiting = await store.admit(uid, a_message("next"))
        lease = await store.lease(uid)
        with pytest.raises(TurnSettled):
            await store.open_turn(opening)
        assert await store.unsettled_turn(uid) is None
        assert (await store.items(uid, terminal=True)).rows == (waiting,)
        assert await store.lease(uid) == lease

    async def test_a_settled_turn_is_not_opened_again_after_a_vacuum_while_another_is_at_work(
        self, store: Store, harness: StoreHarness
    ) -> None:
        uid = (await a_session(store)).uid
        opening = an_opening(uid, admits=a_message("served", key="k"))
        await _settled(store, opening)
        await _sweep(harness, store)
        at_work = await open_with(store, uid, "next", owner="another")
        with pytest.raises(TurnSettled):
            await store.open_turn(opening)
        assert await store.unsettled_turn(uid) == at_work.turn
        assert (await store.items(uid, terminal=True)).rows == at_work.items

    @pytest.mark.parametrize("text", ["the same", "another"])
    async def test_the_key_of_an_item_that_is_gone_names_nothing_any_more(
        self, store: Store, harness: StoreHarness, text: str
    ) -> None:
        uid = (await a_session(store)).uid
        served = an_opening(uid, admits=a_message("the same", key="k"))
        await _settled(store, served)
        unwanted = await store.admit(uid, a_message("the same", key="cancelled"))
        await store.cancel(uid, These((unwanted.id,)))
        assert (await _sweep(harness, store)).items == 2
        again = [await store.admit(uid, a_message(text, key=key)) for key in ("k", "cancelled")]
        assert [(item.state, text_of(item)) for item in again] == [("pending", text)] * 2
        assert (await store.items(uid, terminal=True)).rows == tuple(again)

    async def test_the_id_of_an_item_that_is_gone_names_nothing_any_more(
        self, store: Store, harness: StoreHarness
    ) -> None:
        uid, message = (await a_session(store)).uid, a_message("hello", key="k")
        first = await store.admit(uid, message)
        await store.cancel(uid, These((first.id,)))
        await _sweep(harness, store)
        assert await store.item(uid, first.id) is None
        again = await store.admit(uid, message)
        assert (again.id, again.state) == (first.id, "pending")
        assert again.seq > first.seq

    async def test_the_key_of_an_item_that_stays_is_recognised_after_a_vacuum(
        self, store: Store, harness: StoreHarness
    ) -> None:
        uid = (await a_session(store)).uid
        pending = await store.admit(uid, a_message("hello", key="k"))
        await _sweep(harness, store)
        assert await store.admit(uid, a_message("hello", key="k")) == pending
        with pytest.raises(KeyReused):
            await store.admit(uid, a_message("other", key="k"))

    async def test_a_failure_is_never_an_empty_report(self, harness: StoreHarness) -> None:
        store = await harness.open()
        await store.put_blob(b"unused")
        await store.aclose()
        with pytest.raises(StoreClosed):
            await store.vacuum(before=await harness.now())

    # -- races ---------------------------------------------------------------------------------------------------------

    async def test_a_blob_is_used_or_collected_and_never_both(self, harness: StoreHarness) -> None:
        async with opened(harness) as one, opened(harness) as two:
            for n in range(6):
                body = b"blob %d" % n
                blob = await one.put_blob(body)
                await harness.advance(HOUR)
                lease = await a_held_session(one)
                plan = await plan_nodes(one, lease, _showing(blob))
                committed, report = await asyncio.gather(
                    one.commit(plan), two.vacuum(before=await harness.now()), return_exceptions=True
                )
                assert isinstance(report, Vacuumed), repr(report)
                if isinstance(committed, BaseException):
                    assert isinstance(committed, BlobMissing)
                    assert await one.nodes(lease.session) == []
                    assert report.blobs == 1
                else:
                    assert await two.blob(blob) == body
                    assert report.blobs == 0

    async def test_a_part_is_written_or_collected_and_never_both(self, harness: StoreHarness) -> None:
        async with opened(harness) as one, opened(harness) as two:
            for n in range(6):
                body = b"part %d" % n
                await one.put_blob(body)
                await harness.advance(HOUR)
                lease = await a_held_session(one)
                plan = replace(await plan_nodes(one, lease), parts={"p": Changed(body)})
                await asyncio.gather(one.commit(plan), two.vacuum(before=await harness.now()))
                assert await two.blob(BlobHash(hashlib.sha256(body).hexdigest())) == body

    async def test_a_fork_racing_delete_and_vacuum_is_whole_or_refused(self, harness: StoreHarness) -> None:
        async with opened(harness) as one, opened(harness) as two, opened(harness) as three:
            for _ in range(6):
                lease = await a_held_session(one)
                _, b = await _grow(one, lease, "a", "b")
                new = a_fork(lease.session, b)
                forked, _, report = await asyncio.gather(
                    one.fork(new),
                    two.delete(lease.session),
                    three.vacuum(before=await harness.now() + HOUR),
                    return_exceptions=True,
                )
                assert isinstance(report, Vacuumed), repr(report)
                if isinstance(forked, Session):
                    await _sweep(harness, two)
                    assert await said(three, new.uid) == ["a", "b"]
                else:
                    assert isinstance(forked, SessionDeleted)

    async def test_vacuums_at_once_remove_everything_once(self, harness: StoreHarness) -> None:
        async with opened(harness) as one, opened(harness) as two:
            gone = await a_held_session(one)
            await _grow(one, gone, "a", "b")
            await one.delete(gone.session)
            await run_turn(one, (await a_session(one)).uid, "hello")
            await harness.advance(HOUR)
            before = await harness.now()
            reports = await asyncio.gather(one.vacuum(before=before), two.vacuum(before=before))
        for kind, expected in {"nodes": 3, "commits": 2, "items": 1, "turns": 1}.items():
            assert sum(getattr(report, kind) for report in reports) == expected
