"""The usage ledger: counted once, summed by source and model."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from lash.commit.plan import CommitReceipt
from lash.commit.usage import MAX_TOKENS, Tokens, UsageDelta, UsageTotal
from lash.errors import HeadMoved, InvalidKey, InvalidValue, OperationReused
from lash.lease import ExecutionLease
from lash.store.contract import Store
from lash.testing.builders import (
    a_fork,
    a_held_session,
    commit_nodes,
    leaf_of,
    must_acquire,
    plan_nodes,
    rewind,
    says,
)
from lash.testing.harness import StoreContract, StoreHarness, opened

ALL_BUCKETS = Tokens(input=1, cache_read=20, cache_write=300, output=4_000, reasoning=50)


def _delta(tokens: Tokens, *, source: str = "agent", model: str = "m") -> UsageDelta:
    return UsageDelta(source, model, tokens)


async def _spend(store: Store, lease: ExecutionLease, *deltas: UsageDelta) -> CommitReceipt:
    return await store.commit(replace(await plan_nodes(store, lease, says("x")), usage=deltas))


class UsageContract(StoreContract):
    """What was spent, never twice and never lost."""

    async def test_a_new_session_has_spent_nothing(self, store: Store) -> None:
        lease = await a_held_session(store)
        await commit_nodes(store, lease, says("free of charge"))
        assert await store.usage(lease.session) == ()

    async def test_the_buckets_are_counted_apart(self, store: Store) -> None:
        lease = await a_held_session(store)
        await _spend(store, lease, _delta(ALL_BUCKETS))
        assert await store.usage(lease.session) == (UsageTotal("agent", "m", ALL_BUCKETS),)

    @pytest.mark.parametrize("bucket", ["input", "cache_read", "cache_write", "output"])
    async def test_a_delta_in_a_single_bucket_is_kept(self, store: Store, bucket: str) -> None:
        lease = await a_held_session(store)
        tokens = Tokens(**{bucket: 7})
        await _spend(store, lease, _delta(tokens))
        assert await store.usage(lease.session) == (UsageTotal("agent", "m", tokens),)

    async def test_output_that_was_all_reasoning_is_kept(self, store: Store) -> None:
        lease = await a_held_session(store)
        await _spend(store, lease, _delta(Tokens(output=7, reasoning=7)))
        assert await store.usage(lease.session) == (UsageTotal("agent", "m", Tokens(output=7, reasoning=7)),)

    async def test_deltas_of_one_commit_and_of_many_add_up(self, store: Store) -> None:
        lease = await a_held_session(store)
        await _spend(store, lease, _delta(Tokens(input=1)), _delta(Tokens(input=2, output=1)))
        await _spend(store, lease, _delta(Tokens(input=4, cache_read=8)))
        assert await store.usage(lease.session) == (UsageTotal("agent", "m", Tokens(input=7, cache_read=8, output=1)),)

    async def test_totals_are_by_source_and_model_in_that_order(self, store: Store) -> None:
        lease = await a_held_session(store)
        places = [("tool", "m"), ("agent", "n"), ("agent", "m"), ("Agent", "m"), ("ärger", "m"), ("agent", "M")]
        await _spend(store, lease, *(_delta(Tokens(input=1), source=source, model=model) for source, model in places))
        totals = [(total.source, total.model) for total in await store.usage(lease.session)]
        assert totals == [("Agent", "m"), ("agent", "M"), ("agent", "m"), ("agent", "n"), ("tool", "m"), ("ärger", "m")]

    async def test_sums_beyond_what_a_float_can_count_are_exact(self, store: Store) -> None:
        lease = await a_held_session(store)
        await _spend(store, lease, *[_delta(Tokens(input=10**12))] * 10_000, _delta(Tokens(input=1)))
        assert await store.usage(lease.session) == (UsageTotal("agent", "m", Tokens(input=10**16 + 1)),)

    @pytest.mark.parametrize(
        "tokens",
        [Tokens(input=-1), Tokens(cache_write=MAX_TOKENS + 1), Tokens(output=1, reasoning=2), Tokens(reasoning=1)],
        ids=repr,
    )
    async def test_counts_that_cannot_be_are_refused(self, store: Store, tokens: Tokens) -> None:
        lease = await a_held_session(store)
        with pytest.raises(InvalidValue):
            await _spend(store, lease, _delta(Tokens(input=1)), _delta(tokens))
        assert await store.usage(lease.session) == ()
        assert await store.nodes(lease.session) == []

    async def test_source_and_model_need_proper_names(self, store: Store) -> None:
        lease = await a_held_session(store)
        for delta in (_delta(Tokens(), source=""), _delta(Tokens(), model="a\x00b")):
            with pytest.raises(InvalidKey):
                await _spend(store, lease, delta)
        assert await store.nodes(lease.session) == []

    async def test_a_repeated_commit_is_not_counted_again(self, store: Store) -> None:
        lease = await a_held_session(store)
        plan = replace(await plan_nodes(store, lease, says("x")), usage=(_delta(Tokens(input=5)),))
        await store.commit(plan)
        await store.commit(plan)
        assert await store.usage(lease.session) == (UsageTotal("agent", "m", Tokens(input=5)),)

    async def test_a_repeated_commit_cannot_change_what_was_counted(self, store: Store) -> None:
        lease = await a_held_session(store)
        plan = replace(await plan_nodes(store, lease, says("x")), usage=(_delta(Tokens(input=5)),))
        await store.commit(plan)
        with pytest.raises(OperationReused):
            await store.commit(replace(plan, usage=(_delta(Tokens(input=6)),)))
        assert await store.usage(lease.session) == (UsageTotal("agent", "m", Tokens(input=5)),)

    async def test_a_refused_commit_counts_nothing(self, store: Store) -> None:
        lease = await a_held_session(store)
        plan = replace(await plan_nodes(store, lease, says("x")), usage=(_delta(Tokens(input=5)),), base=7)
        with pytest.raises(HeadMoved):
            await store.commit(plan)
        assert await store.usage(lease.session) == ()

    async def test_commits_at_once_are_counted_once_each(self, harness: StoreHarness) -> None:
        async with opened(harness) as one, opened(harness) as two:
            lease = await a_held_session(one)
            plan = replace(await plan_nodes(one, lease, says("x")), usage=(_delta(Tokens(input=5)),))
            await asyncio.gather(*(store.commit(plan) for store in (one, two) * 3))
            assert await two.usage(lease.session) == (UsageTotal("agent", "m", Tokens(input=5)),)

    async def test_a_rewind_does_not_give_anything_back(self, store: Store) -> None:
        lease = await a_held_session(store)
        first = await _spend(store, lease, _delta(Tokens(input=1)))
        await _spend(store, lease, _delta(Tokens(input=2)))
        await rewind(store, lease, leaf_of(first))
        assert await store.usage(lease.session) == (UsageTotal("agent", "m", Tokens(input=3)),)

    async def test_a_fork_and_its_parent_count_apart(self, store: Store) -> None:
        lease = await a_held_session(store)
        first = await _spend(store, lease, _delta(Tokens(input=1)))
        fork = await store.fork(a_fork(lease.session, leaf_of(first)))
        held = await must_acquire(store, fork.uid)
        await _spend(store, held, _delta(Tokens(input=2)))
        assert await store.usage(fork.uid) == (UsageTotal("agent", "m", Tokens(input=2)),)
        assert await store.usage(lease.session) == (UsageTotal("agent", "m", Tokens(input=1)),)

    async def test_the_ledger_outlives_the_handle(self, harness: StoreHarness) -> None:
        async with opened(harness) as first:
            lease = await a_held_session(first)
            await _spend(first, lease, _delta(ALL_BUCKETS))
        async with opened(harness) as second:
            assert await second.usage(lease.session) == (UsageTotal("agent", "m", ALL_BUCKETS),)
