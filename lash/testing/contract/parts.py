"""State parts: kept by reference, complete with every commit, and found again by rewinds and forks."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace

import pytest

from lash.commit.parts import Changed, Kept
from lash.commit.plan import CommitPlan, CommitReceipt
from lash.errors import HeadMoved, InvalidId, InvalidKey, PartMissing
from lash.graph.delta import MoveHead
from lash.graph.frames import RESET
from lash.ids import BlobHash
from lash.lease import ExecutionLease
from lash.store.contract import Store
from lash.testing.builders import (
    a_fork,
    a_held_session,
    an_operation,
    commit_nodes,
    leaf_of,
    must_acquire,
    opens,
    plan_nodes,
    rewind,
    says,
)
from lash.testing.harness import StoreContract, StoreHarness, opened

BODIES = {
    "empty": b"",
    "text": "Ärger 注文 🙂".encode(),
    "every byte": bytes(range(256)),
    "large": b"".join(n.to_bytes(3, "big") for n in range(1_000_003 // 3)),
}


def _hash(body: bytes) -> BlobHash:
    return BlobHash(hashlib.sha256(body).hexdigest())


async def _commit(store: Store, lease: ExecutionLease, parts: Mapping[str, Changed | Kept] | None) -> CommitReceipt:
    return await store.commit(replace(await plan_nodes(store, lease, says("x")), parts=parts))


class PartContract(StoreContract):
    """What tools and plugins remember, as of each commit."""

    async def test_a_new_session_has_no_parts(self, store: Store) -> None:
        lease = await a_held_session(store)
        assert await store.parts(lease.session) == {}

    @pytest.mark.parametrize("body", BODIES.values(), ids=BODIES.keys())
    async def test_a_part_comes_back_as_it_was_written(self, store: Store, body: bytes) -> None:
        lease = await a_held_session(store)
        await _commit(store, lease, {"tool:find": Changed(body)})
        assert await store.parts(lease.session) == {"tool:find": _hash(body)}
        assert await store.blob(_hash(body)) == body

    async def test_a_part_that_stays_is_only_referred_to(self, store: Store) -> None:
        lease = await a_held_session(store)
        await _commit(store, lease, {"a": Changed(b"1"), "b": Changed(b"2")})
        await _commit(store, lease, {"a": Kept(_hash(b"1")), "b": Changed(b"3")})
        assert await store.parts(lease.session) == {"a": _hash(b"1"), "b": _hash(b"3")}

    async def test_a_name_that_is_left_out_is_gone(self, store: Store) -> None:
        lease = await a_held_session(store)
        await _commit(store, lease, {"a": Changed(b"1"), "b": Changed(b"2")})
        await _commit(store, lease, {"b": Kept(_hash(b"2"))})
        assert await store.parts(lease.session) == {"b": _hash(b"2")}
        await _commit(store, lease, {})
        assert await store.parts(lease.session) == {}

    async def test_a_commit_that_says_nothing_leaves_the_parts_alone(self, store: Store) -> None:
        lease = await a_held_session(store)
        await _commit(store, lease, {"a": Changed(b"1")})
        await _commit(store, lease, None)
        await store.commit(await plan_nodes(store, lease))
        await commit_nodes(store, lease, opens(RESET), says("y"))
        assert await store.parts(lease.session) == {"a": _hash(b"1")}

    async def test_two_names_may_have_the_same_content(self, store: Store) -> None:
        lease = await a_held_session(store)
        await _commit(store, lease, {"a": Changed(b"same"), "b": Changed(b"same")})
        await _commit(store, lease, {"a": Changed(b"other"), "b": Kept(_hash(b"same"))})
        assert await store.parts(lease.session) == {"a": _hash(b"other"), "b": _hash(b"same")}
        assert await store.blob(_hash(b"same")) == b"same"

    async def test_a_part_may_refer_to_any_content_that_is_stored(self, store: Store) -> None:
        lease = await a_held_session(store)
        blob = await store.put_blob(b"put before")
        await _commit(store, lease, {"a": Kept(blob), "renamed": Kept(blob)})
        assert await store.parts(lease.session) == {"a": blob, "renamed": blob}

    async def test_a_missing_part_fails_the_commit(self, store: Store) -> None:
        lease = await a_held_session(store)
        await _commit(store, lease, {"a": Changed(b"1")})
        before = await store.snapshot(lease.session)
        unknown = _hash(f"never stored, {lease.session}".encode())
        brought = f"brought along, {lease.session}".encode()
        with pytest.raises(PartMissing) as missing:
            await _commit(store, lease, {"a": Kept(_hash(b"1")), "b": Kept(unknown), "c": Changed(brought)})
        assert (missing.value.name, missing.value.hash) == ("b", unknown)
        assert await store.snapshot(lease.session) == before
        with pytest.raises(PartMissing):
            await _commit(store, lease, {"c": Kept(_hash(brought))})

    @pytest.mark.parametrize("name", ["", " ", "a\nb", "\ud800", "n" * 257], ids=ascii)
    async def test_a_part_needs_a_proper_name(self, store: Store, name: str) -> None:
        lease = await a_held_session(store)
        with pytest.raises(InvalidKey):
            await _commit(store, lease, {name: Changed(b"1")})
        assert await store.nodes(lease.session) == []

    @pytest.mark.parametrize("found", ["", "abc", "G" * 64, "A" * 64, "0" * 63])
    async def test_a_part_needs_a_proper_hash(self, store: Store, found: str) -> None:
        lease = await a_held_session(store)
        with pytest.raises(InvalidId):
            await _commit(store, lease, {"a": Kept(BlobHash(found))})
        assert await store.nodes(lease.session) == []

    async def test_a_refused_commit_changes_no_part(self, store: Store) -> None:
        lease = await a_held_session(store)
        await _commit(store, lease, {"a": Changed(b"1")})
        plan = replace(await plan_nodes(store, lease, says("y")), parts={"a": Changed(b"2")}, base=7)
        with pytest.raises(HeadMoved):
            await store.commit(plan)
        assert await store.parts(lease.session) == {"a": _hash(b"1")}

    async def test_a_snapshot_has_the_parts_as_of_the_head(self, store: Store) -> None:
        lease = await a_held_session(store)
        await _commit(store, lease, {"a": Changed(b"1")})
        await _commit(store, lease, {"a": Changed(b"2")})
        assert (await store.snapshot(lease.session)).parts == {"a": _hash(b"2")}

    async def test_one_process_writes_parts_another_refers_to_them_a_third_reads_them(
        self, harness: StoreHarness
    ) -> None:
        async with opened(harness) as first:
            lease = await a_held_session(first)
            await _commit(first, lease, {"known": Changed(b"1"), "unknown to the next": Changed(b"2")})
        async with opened(harness) as second:
            kept = {name: Kept(found) for name, found in (await second.parts(lease.session)).items()}
            await _commit(second, lease, {**kept, "mine": Changed(b"3")})
        async with opened(harness) as third:
            bodies = {name: await third.blob(found) for name, found in (await third.parts(lease.session)).items()}
        assert bodies == {"known": b"1", "unknown to the next": b"2", "mine": b"3"}

    # -- going back ----------------------------------------------------------------------------------------------------

    async def test_a_rewind_finds_the_parts_as_they_were(self, store: Store) -> None:
        lease = await a_held_session(store)
        then = await _commit(store, lease, {"a": Changed(b"1"), "gone later": Changed(b"2")})
        await _commit(store, lease, {"a": Changed(b"3"), "new": Changed(b"4")})
        await rewind(store, lease, leaf_of(then))
        assert await store.parts(lease.session) == {"a": _hash(b"1"), "gone later": _hash(b"2")}
        assert (await store.snapshot(lease.session)).parts == await store.parts(lease.session)

    async def test_a_rewind_finds_parts_that_its_commit_had_left_alone(self, store: Store) -> None:
        lease = await a_held_session(store)
        await _commit(store, lease, {"a": Changed(b"1")})
        quiet = await _commit(store, lease, None)
        await _commit(store, lease, {"a": Changed(b"2")})
        await rewind(store, lease, leaf_of(quiet))
        assert await store.parts(lease.session) == {"a": _hash(b"1")}

    async def test_a_rewind_to_a_time_without_parts_has_none(self, store: Store) -> None:
        lease = await a_held_session(store)
        bare = await _commit(store, lease, None)
        await _commit(store, lease, {"a": Changed(b"1")})
        await rewind(store, lease, leaf_of(bare))
        assert await store.parts(lease.session) == {}

    async def test_a_rewind_may_bring_parts_of_its_own(self, store: Store) -> None:
        lease = await a_held_session(store)
        then = await _commit(store, lease, {"a": Changed(b"1")})
        await _commit(store, lease, {"a": Changed(b"2")})
        move = CommitPlan(an_operation(), lease, base=2, delta=MoveHead(leaf_of(then)), parts={"a": Changed(b"3")})
        await store.commit(move)
        assert await store.parts(lease.session) == {"a": _hash(b"3")}

    async def test_what_grows_after_a_rewind_keeps_its_own_parts(self, store: Store) -> None:
        lease = await a_held_session(store)
        first = await _commit(store, lease, {"a": Changed(b"1")})
        await _commit(store, lease, {"a": Changed(b"2")})
        await rewind(store, lease, leaf_of(first))
        beside = await _commit(store, lease, None)
        await _commit(store, lease, {"a": Changed(b"4")})
        await rewind(store, lease, leaf_of(beside))
        assert await store.parts(lease.session) == {"a": _hash(b"1")}

    async def test_parts_of_parent_and_fork_change_apart(self, store: Store) -> None:
        lease = await a_held_session(store)
        then = await _commit(store, lease, {"a": Changed(b"1")})
        fork = await must_acquire(store, (await store.fork(a_fork(lease.session, leaf_of(then)))).uid)
        await _commit(store, fork, {"a": Kept(_hash(b"1")), "fork": Changed(b"2")})
        await _commit(store, lease, {"a": Changed(b"3")})
        assert await store.parts(fork.session) == {"a": _hash(b"1"), "fork": _hash(b"2")}
        assert await store.parts(lease.session) == {"a": _hash(b"3")}

    async def test_at_the_present_leaf_the_present_parts_hold(self, store: Store) -> None:
        lease = await a_held_session(store)
        then = await _commit(store, lease, {"a": Changed(b"1")})
        await store.commit(replace(await plan_nodes(store, lease), parts={"a": Changed(b"2")}))
        fork = await store.fork(a_fork(lease.session, leaf_of(then)))
        await rewind(store, lease, leaf_of(then))
        assert await store.parts(fork.uid) == {"a": _hash(b"2")}
        assert await store.parts(lease.session) == {"a": _hash(b"2")}

    async def test_a_fork_that_rewinds_to_its_beginning_finds_the_parts_it_began_with(self, store: Store) -> None:
        lease = await a_held_session(store)
        then = await _commit(store, lease, {"a": Changed(b"1")})
        await store.commit(replace(await plan_nodes(store, lease), parts={"a": Changed(b"2")}))
        fork = await must_acquire(store, (await store.fork(a_fork(lease.session, leaf_of(then)))).uid)
        await _commit(store, fork, {"a": Changed(b"3")})
        await rewind(store, fork, leaf_of(then))
        assert await store.parts(fork.session) == {"a": _hash(b"2")}

    async def test_a_fork_that_rewinds_behind_its_beginning_finds_the_parts_of_its_parent(self, store: Store) -> None:
        lease = await a_held_session(store)
        first = await _commit(store, lease, {"a": Changed(b"1")})
        second = await _commit(store, lease, {"a": Changed(b"2")})
        fork = await must_acquire(store, (await store.fork(a_fork(lease.session, leaf_of(second)))).uid)
        await _commit(store, fork, {"a": Changed(b"3")})
        await rewind(store, fork, leaf_of(first))
        assert await store.parts(fork.session) == {"a": _hash(b"1")}
