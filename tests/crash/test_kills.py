"""Workers that are killed at random moments, several at once, on the same sessions."""

from __future__ import annotations

import asyncio

import pytest

from tests.crash.databases import Database
from tests.crash.rounds import LONG, story

SEEDS = range(100 if LONG else 2)


@pytest.mark.parametrize("seed", SEEDS)
async def test_workers_killed_at_random_moments_lose_nothing_and_are_succeeded(database: Database, seed: int) -> None:
    async with story(database, f"kill-{seed}", sweeps=seed % 2 == 1) as told:
        workers = await told.workers(3)
        for worker in workers:
            await worker.heard(told.random.randint(5, 120))
            await asyncio.sleep(told.random.random() * 0.05)
            await worker.kill()
        await told.look(workers)
        await told.finish(workers)
