"""A wall clock that jumps while sessions are leased, parked and delayed."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tests.crash.databases import Database
from tests.crash.rounds import LONG, story

HOUR = timedelta(hours=1)
ON_TIME = timedelta(0)


@pytest.mark.parametrize("seed", range(40 if LONG else 1))
async def test_a_clock_that_jumps_costs_leases_and_no_work(database: Database, seed: int) -> None:
    async with story(database, f"clock-{seed}") as told:
        stays, dies = await told.workers(2)
        jumps = told.random.sample([HOUR, -HOUR, HOUR, -HOUR, ON_TIME], 3)
        for ahead in jumps:
            await stays.heard(len(stays.calls) + told.random.randint(5, 25))
            await database.set_clock(ahead)
        await dies.heard(len(dies.calls) + 5)
        await dies.kill()
        await stays.heard(len(stays.calls) + 10)
        await database.set_clock(ON_TIME)
        await stays.heard(len(stays.calls) + 10)
        await told.is_over_for(stays)
        await told.look([stays, dies])
        await told.finish([stays, dies])
