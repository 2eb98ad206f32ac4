"""A wall clock that jumps while sessions are leased, parked and delayed."""

from __future__ import annotations

from datetime import timedelta

import pytest

from lash.store.opening import open_store
from lash.testing.builders import a_session, must_open, open_with
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


@pytest.mark.xfail(
    strict=True, reason="ready_at is not decided anew when the clock makes the lease that it follows absurd"
)
@pytest.mark.parametrize("ahead", [HOUR, ON_TIME])
async def test_a_worker_that_asks_what_is_ready_hears_of_a_lease_that_no_clock_can_mean(
    database: Database, ahead: timedelta
) -> None:
    async with await open_store(database.place.url, clock=database.place.clock()) as store:
        uid = (await a_session(store)).uid
        await database.set_clock(ahead)
        await open_with(store, uid, owner="dead")
        await database.set_clock(ahead - HOUR)
        assert (await must_open(store, uid, "whoever asks by name")).turn.attempts == 2
        await database.set_clock(ahead)
        other = (await a_session(store)).uid
        await open_with(store, other, owner="dead")
        await database.set_clock(ahead - HOUR)
        assert other in [ready.uid for ready in await store.ready(["default"])]
