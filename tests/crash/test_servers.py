"""A Postgres server that dies beneath its clients: in part, altogether, or by order."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.crash.rounds import LONG, story
from tests.crash.servers import MortalServer, mortal_server

pytestmark = pytest.mark.skipif("LASH_TEST_POSTGRES" in os.environ, reason="a server that is not ours is not killed")


@pytest.fixture(scope="module")
def server() -> Iterator[MortalServer]:
    with mortal_server() as started:
        yield started


@pytest.mark.parametrize("seed", range(20 if LONG else 1))
async def test_workers_outlive_their_server_and_lose_nothing(server: MortalServer, seed: int) -> None:
    async with story(server.database, f"server-{seed}", sweeps=seed % 2 == 1) as told:
        workers = await told.workers(2)

        async def go_on() -> None:
            for worker in workers:
                await worker.heard(sum(call.acknowledged for call in worker.calls) + told.random.randint(5, 40))

        await go_on()
        await server.kill_backend(told.random)
        await go_on()
        server.kill()
        server.start()
        await go_on()
        server.stop()
        server.start()
        await go_on()
        await workers[0].kill()
        await told.is_over_for(workers[1])
        await told.look(workers)
        await told.finish(workers)
        assert any(call.unsure for call in told.ledger.calls), "nobody has noticed"
