"""Effects journaled one by one, each durable before the next begins."""

from __future__ import annotations

import itertools
import statistics

from bench.bare import Step
from bench.commits import both_sides
from bench.databases import Backend, Side
from bench.rows import Cost, Row, row
from bench.syncs import COUNTED, Counted, counted_syncs
from bench.timing import Job, cpu, interleaved, quartiles, seconds, speed_ratios
from bench.work import Ready, all_ready
from lash.ids import ReplayKey
from lash.turn.journal import Finished, Identity

STEPS = 10


def steps_of(turn: Ready, first: int) -> list[Step]:
    return [
        Step(turn, turn.seq + number, f"tool:{number}", {"kind": "tool", "step": number}, {"step": number})
        for number in range(first, first + STEPS)
    ]


async def by_lash(side: Side, steps: list[Step]) -> None:
    for step in steps:
        identity = Identity(step.identity["kind"], step.identity["step"])
        driven = step.ready.driven
        await side.store.record(driven.lease, driven.turn.id, [Finished(ReplayKey(step.key), identity, step.outcome)])


async def by_hand(side: Side, steps: list[Step]) -> None:
    for step in steps:
        await side.bare.journal(step)


async def _steps(side: Side) -> list[Step]:
    [turn] = await all_ready(side.store, [await side.seat()])
    return steps_of(turn, 1)


COUNTED["journal"] = Counted(STEPS, _steps, by_lash, by_hand)


@row("journal", "sqlite", "postgres")
async def journal(backend: Backend, effort: float) -> Row:
    rounds = max(4, round(40 * effort))
    async with both_sides(backend) as (ours, theirs):
        [our_turn] = await all_ready(ours.store, [await ours.seat()])
        [their_turn] = await all_ready(theirs.store, [await theirs.seat()])
        our_steps, their_steps = itertools.count(1, STEPS), itertools.count(1, STEPS)

        async def lash() -> Job:
            steps = steps_of(our_turn, next(our_steps))
            return lambda: by_lash(ours, steps)

        async def bare() -> Job:
            steps = steps_of(their_turn, next(their_steps))
            return lambda: by_hand(theirs, steps)

        samples = await interleaved({"lash": lash, "bare": bare}, rounds=rounds, warmup=max(2, rounds // 10))
        uid = their_turn.driven.lease.session
        kept = await theirs.store.journal(uid, their_turn.driven.turn.id)
        assert len(kept) == next(their_steps) - 1, "the bare driver wrote what lash can read"
    ratios = speed_ratios(samples["lash"], samples["bare"])
    lash_syncs, bare_syncs = await counted_syncs(backend, "journal")
    return Row(
        "journal",
        backend.name,
        value=STEPS / seconds(samples["lash"]),
        unit="steps/s",
        baseline=STEPS / seconds(samples["bare"]),
        ratio=statistics.median(ratios),
        spread=quartiles(ratios),
        floor=0.5,
        cost=Cost(cpu(samples["lash"]) / STEPS * 1e6, lash_syncs),
        baseline_cost=Cost(cpu(samples["bare"]) / STEPS * 1e6, bare_syncs),
    )
