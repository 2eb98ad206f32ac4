"""Fenced commits of a turn: one session, 64 at once, 64 beside a stale one, short and long sessions."""

from __future__ import annotations

import asyncio
import contextlib
import statistics
from collections.abc import AsyncIterator
from dataclasses import replace

from bench.databases import Backend, Side
from bench.rows import Cost, Row, row
from bench.syncs import COUNTED, Counted, counted_syncs
from bench.timing import Job, cpu, interleaved, quartiles, seconds, speed_ratios
from bench.work import Ready, Seat, all_ready
from lash.commit.plan import CommitPlan
from lash.errors import LeaseLost
from lash.store.contract import Store
from lash.testing.builders import append_to, settlement

CROWD = 64


def plan_of(turn: Ready) -> CommitPlan:
    """Encodes the payloads; the store hashes them."""
    delta = append_to(turn.driven.lease.session, turn.head, turn.operation, turn.said.payloads)
    return CommitPlan(
        turn.operation, turn.driven.lease, base=turn.head.revision, delta=delta, settles=settlement(turn.driven)
    )


async def commit_all(store: Store, turns: list[Ready]) -> None:
    await asyncio.gather(*(store.commit(plan_of(turn)) for turn in turns))


async def by_lash(side: Side, seats: list[Seat]) -> Job:
    turns = await all_ready(side.store, seats)
    return lambda: commit_all(side.store, turns)


async def by_hand(side: Side, seats: list[Seat]) -> Job:
    turns = await all_ready(side.store, seats)
    return lambda: side.bare.commit(turns)


def _counted(sessions: int) -> Counted:
    async def turns(side: Side) -> list[Ready]:
        return await all_ready(side.store, await side.seats(sessions))

    return Counted(
        sessions, turns, lambda side, turns: commit_all(side.store, turns), lambda side, turns: side.bare.commit(turns)
    )


COUNTED["commit1"] = _counted(1)
COUNTED["commit64"] = _counted(CROWD)


@contextlib.asynccontextmanager
async def both_sides(backend: Backend) -> AsyncIterator[tuple[Side, Side]]:
    async with backend.open(backend.fresh()) as ours, backend.open(backend.fresh()) as theirs:
        yield ours, theirs


@row("commit1", "sqlite", "postgres")
async def commit1(backend: Backend, effort: float) -> Row:
    """One session, one commit after the other."""
    return await _against_hand(backend, "commit1", sessions=1, rounds=round(300 * effort))


@row("commit64", "sqlite", "postgres")
async def commit64(backend: Backend, effort: float) -> Row:
    """64 sessions commit at once; by hand they are one transaction."""
    return await _against_hand(backend, "commit64", sessions=CROWD, rounds=round(40 * effort))


async def _against_hand(backend: Backend, name: str, *, sessions: int, rounds: int) -> Row:
    async with both_sides(backend) as (ours, theirs):
        our_seats, their_seats = await ours.seats(sessions), await theirs.seats(sessions)
        samples = await interleaved(
            {"lash": lambda: by_lash(ours, our_seats), "bare": lambda: by_hand(theirs, their_seats)},
            rounds=max(rounds, 4),
            warmup=max(2, rounds // 10),
        )
        await _check_same(ours, theirs, our_seats, their_seats)
    ratios = speed_ratios(samples["lash"], samples["bare"])
    lash_syncs, bare_syncs = await counted_syncs(backend, name)
    return Row(
        name,
        backend.name,
        value=sessions / seconds(samples["lash"]),
        unit="commits/s",
        baseline=sessions / seconds(samples["bare"]),
        ratio=statistics.median(ratios),
        spread=quartiles(ratios),
        floor=0.6,
        cost=Cost(cpu(samples["lash"]) / sessions * 1e6, lash_syncs),
        baseline_cost=Cost(cpu(samples["bare"]) / sessions * 1e6, bare_syncs),
    )


async def _check_same(ours: Side, theirs: Side, our_seats: list[Seat], their_seats: list[Seat]) -> None:
    """What the bare driver wrote is what lash would have written, or the comparison is worth nothing."""
    for our, their in zip(our_seats, their_seats, strict=True):
        mine, other = await ours.store.find(our.uid), await theirs.store.find(their.uid)
        assert (mine.head.revision, mine.head.depth) == (other.head.revision, other.head.depth)
        assert (mine.seq, mine.ready_at) == (other.seq, other.ready_at)
    [turn] = await all_ready(theirs.store, their_seats[:1])
    await theirs.bare.commit([turn])
    receipt = await theirs.store.commit(plan_of(turn))  # known already: it must be the very same content
    assert receipt.revision == turn.head.revision + 1
    nodes = await theirs.store.nodes(turn.driven.lease.session, first=turn.head.depth + 1)
    assert [node.payload for node in nodes] == list(turn.said.payloads)


@row("commit64_stale", "sqlite", "postgres")
async def commit64_stale(backend: Backend, effort: float) -> Row:
    """64 commits beside one whose lease was lost long ago, against 64 without."""
    async with both_sides(backend) as (with_stale, without):
        stale_seats, seats = await with_stale.seats(CROWD), await without.seats(CROWD)
        stale = await _a_stale_plan(with_stale)
        samples = await interleaved(
            {
                "stale": lambda: _beside(with_stale, stale_seats, stale),
                "without": lambda: by_lash(without, seats),
            },
            rounds=max(4, round(30 * effort)),
            warmup=2,
        )
    ratios = speed_ratios(samples["stale"], samples["without"])
    return Row(
        "commit64_stale",
        backend.name,
        value=CROWD / seconds(samples["stale"]),
        unit="commits/s",
        baseline=CROWD / seconds(samples["without"]),
        ratio=statistics.median(ratios),
        spread=quartiles(ratios),
        floor=0.5,
        cost=Cost(cpu(samples["stale"]) / CROWD * 1e6),
        baseline_cost=Cost(cpu(samples["without"]) / CROWD * 1e6),
    )


async def _a_stale_plan(side: Side) -> CommitPlan:
    """A commit under a generation that was never current, which no repetition can mend."""
    [turn] = await all_ready(side.store, [await side.seat()])
    plan = plan_of(turn)
    return replace(plan, lease=replace(plan.lease, generation=plan.lease.generation - 1))


async def _beside(side: Side, seats: list[Seat], stale: CommitPlan) -> Job:
    turns = await all_ready(side.store, seats)

    async def refused() -> None:
        try:
            await side.store.commit(stale)
        except LeaseLost:
            return
        raise AssertionError("a stale commit was accepted")

    async def job() -> None:
        half = len(turns) // 2
        await asyncio.gather(
            *(side.store.commit(plan_of(turn)) for turn in turns[:half]),
            refused(),
            *(side.store.commit(plan_of(turn)) for turn in turns[half:]),
        )

    return job


@row("commit_growth", "sqlite", "postgres")
async def commit_growth(backend: Backend, effort: float) -> Row:
    """What a commit to a session of 10,000 nodes takes, as a multiple of one to a session of 10."""
    rounds = max(4, round(150 * effort))
    async with both_sides(backend) as (ours, theirs):
        seats = {
            (name, nodes): await side.seat(nodes=nodes)
            for nodes in (10, 10_000)
            for name, side in (("lash", ours), ("bare", theirs))
        }
        samples = await interleaved(
            {
                "lash short": lambda: by_lash(ours, [seats["lash", 10]]),
                "bare short": lambda: by_hand(theirs, [seats["bare", 10]]),
                "lash long": lambda: by_lash(ours, [seats["lash", 10_000]]),
                "bare long": lambda: by_hand(theirs, [seats["bare", 10_000]]),
            },
            rounds=rounds,
            warmup=max(2, rounds // 10),
        )
    growth = {
        name: [
            long.seconds / short.seconds
            for long, short in zip(samples[f"{name} long"], samples[f"{name} short"], strict=True)
        ]
        for name in ("lash", "bare")
    }
    ours_grew, theirs_grew = statistics.median(growth["lash"]), statistics.median(growth["bare"])
    return Row(
        "commit_growth",
        backend.name,
        value=ours_grew,
        unit="x",
        baseline=theirs_grew,
        ratio=ours_grew / theirs_grew,
        ceiling=1.1,
        cost=Cost(cpu(samples["lash long"]) * 1e6),
        baseline_cost=Cost(cpu(samples["bare long"]) * 1e6),
    )
