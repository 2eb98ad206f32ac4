"""Postgres behind a network that breaks or falls silent in the middle of a batch: everybody gets a true answer."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import asyncpg
import pytest
from sqlalchemy.engine import URL

from lash.errors import StoreUnavailable, WriteUnknown
from lash.ids import SessionUid
from lash.store.contract import Store
from lash.store.opening import open_store
from lash.store.sql import postgres as postgres_database
from lash.store.sql.store import SqlStore
from lash.testing.builders import a_message, a_session
from lash.testing.checking import check_database
from tests.postgres import PostgresServer
from tests.store.mixture import SUBMITTED_AT_ONCE, check_answers, landed, prepare
from tests.store.proxy import FAULTS, Fault, Network, Where, behind_a_network, nth, statement

LONG = bool(os.environ.get("LASH_LONG"))
OF_EACH = 4
"""Writes of each kind in a batch."""
FAR = datetime(2100, 1, 1, tzinfo=UTC)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits long for an answer, and a server does not wait long for the next statement."""
    monkeypatch.setattr(postgres_database, "ANSWER_TIMEOUT", 1.0)
    monkeypatch.setattr(postgres_database, "GOODBYE_TIMEOUT", 0.1)
    monkeypatch.setattr(postgres_database, "_ABANDONED", {"idle_in_transaction_session_timeout": "300ms"})


@dataclass
class Place:
    """A store behind a network, one that goes there directly, and the sizes of the batches that the first settled."""

    url: str
    store: SqlStore
    direct: SqlStore
    network: Network
    kill: Callable[[int], Awaitable[None]]
    batches: list[int] = field(default_factory=list)

    def count_batches(self) -> None:
        settle = self.store._writer._settle

        async def counted(writes: Any, *, patient: bool) -> Any:
            self.batches.append(len(writes))
            return await settle(writes, patient=patient)

        self.store._writer._settle = counted  # type: ignore[assignment]


@asynccontextmanager
async def a_place(url: URL) -> AsyncIterator[Place]:
    plain = url.render_as_string(hide_password=False)
    beside = await asyncpg.connect(plain)

    async def kill(backend: int) -> None:
        await beside.execute(f"SELECT pg_terminate_backend({backend})")
        async with asyncio.timeout(10):
            while await beside.fetch(f"SELECT 1 FROM pg_stat_activity WHERE pid = {backend}"):
                pass

    try:
        async with (
            behind_a_network(url) as (through, network),
            await open_store(plain) as direct,
            await open_store(through) as store,
        ):
            place = Place(plain, store, direct, network, kill)
            place.count_batches()
            yield place
    finally:
        await beside.close()


@pytest.fixture
async def place(postgres: PostgresServer) -> AsyncIterator[Place]:
    async with a_place(postgres.fresh()) as place:
        yield place


# -- writes ------------------------------------------------------------------------------------------------------------


async def strike(place: Place, fault: Fault, where: Where) -> bytes | None:
    """Make many writes at once, with a fault at a request. The request that it struck, unless it met none."""
    writes = await prepare(place.direct, of_each=OF_EACH, kinds=SUBMITTED_AT_ONCE)
    place.batches.clear()
    place.network.arm(fault, where, place.kill)
    async with asyncio.timeout(30):
        ends = await asyncio.gather(*(write.make(place.store) for write in writes), return_exceptions=True)
    place.network.disarm()
    assert place.batches[0] == len(writes) == 60
    await check_answers(place.url, place.direct, writes, ends)
    return place.network.struck


def places_to_strike() -> Iterator[Where]:
    """The begin and the commit of a batch, and some requests between them; with LASH_LONG every request of it."""
    yield statement("BEGIN")
    yield statement("COMMIT")
    yield from map(nth, range(1, 1000) if LONG else (8,))


@pytest.mark.timeout(600)
@pytest.mark.parametrize("fault", FAULTS)
async def test_a_fault_at_any_request_of_a_batch_leaves_everybody_with_a_true_answer(
    place: Place, fault: Fault
) -> None:
    struck = 0
    for where in places_to_strike():
        if await strike(place, fault, where) is None:
            break  # the batch has no more requests
        struck += 1
    assert struck > 12 if LONG else struck == 3
    (await check_database(place.url)).raise_if_broken()


async def test_a_batch_that_landed_while_its_answer_was_lost_is_acknowledged(place: Place) -> None:
    """Each write is recognised by its id, where it can be."""
    writes = await prepare(place.direct, of_each=OF_EACH, kinds=SUBMITTED_AT_ONCE)
    place.network.arm("cut after", statement("COMMIT"))
    ends = await asyncio.gather(*(write.make(place.store) for write in writes), return_exceptions=True)
    unknown = {write.kind for write, end in zip(writes, ends, strict=True) if isinstance(end, BaseException)}
    assert unknown == {"cancel", "delete"}, "a second run of these would answer otherwise"
    assert place.batches == [60, 52]


@pytest.mark.parametrize("fault", ["cut before", "cut after", "silent after"])
async def test_a_batch_whose_fate_nobody_could_ask_for_is_unknown_to_all_of_it(place: Place, fault: Fault) -> None:
    """Nothing goes through any more after the fault, so the second run that would tell comes to nothing."""
    writes = await prepare(place.direct, of_each=1, kinds=SUBMITTED_AT_ONCE)
    place.network.arm(fault, statement("COMMIT"), stays_down=True)
    ends = await asyncio.gather(*(write.make(place.store) for write in writes), return_exceptions=True)
    assert [type(end) for end in ends] == [WriteUnknown] * len(writes)
    assert await landed(place.url, writes) == [fault != "cut before"] * len(writes)
    place.network.recover()
    await check_answers(place.url, place.store, writes, ends)


# -- silence -----------------------------------------------------------------------------------------------------------

READS: dict[str, Callable[[Store, SessionUid], Awaitable[object]]] = {
    "snapshot": lambda store, uid: store.snapshot(uid),
    "vacuum": lambda store, uid: store.vacuum(before=FAR),
}


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("fault", ["silent before", "silent after"])
async def test_a_read_that_is_not_answered_is_asked_again_on_a_new_connection(
    place: Place, read: str, fault: Fault
) -> None:
    uid = (await a_session(place.direct)).uid
    first = await READS[read](place.store, uid)
    place.network.arm(fault, nth(1))
    async with asyncio.timeout(20):
        assert await READS[read](place.store, uid) == first
    assert place.network.struck is not None


@pytest.mark.parametrize("call", ["write", "read"])
async def test_connections_that_all_fell_silent_are_replaced_by_new_ones(place: Place, call: str) -> None:
    """None of those that lie in the pool is tried first."""
    uid, item = (await a_session(place.direct)).uid, a_message()
    await place.store.admit(uid, a_message())
    await asyncio.gather(*(place.store.find(uid) for _ in range(4)))
    place.network.silence_all()
    async with asyncio.timeout(20):
        if call == "write":
            assert (await place.store.admit(uid, item)).id == item.id
        else:
            assert (await place.store.find(uid)).uid == uid


async def test_a_network_that_swallows_everything_is_unavailable_until_it_does_not(place: Place) -> None:
    uid, items = (await a_session(place.direct)).uid, [a_message(f"{number}") for number in range(3)]
    await place.store.admit(uid, items[0])
    place.network.swallow_everything()
    async with asyncio.timeout(20):
        write, read = await asyncio.gather(
            place.store.admit(uid, items[1]), place.store.find(uid), return_exceptions=True
        )
    assert [type(write), type(read)] == [StoreUnavailable] * 2
    assert await place.direct.item(uid, items[1].id) is None
    place.network.recover()
    assert [(await place.store.admit(uid, item)).seq for item in items] == [1, 2, 3]


async def test_a_store_on_a_silent_network_cannot_be_opened_and_can_be_closed(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody waits for an answer to a goodbye for as long as for one to a question."""
    monkeypatch.setattr(postgres_database, "ANSWER_TIMEOUT", 60.0)
    async with behind_a_network(postgres.shared) as (url, network):
        store = await open_store(url)
        await asyncio.gather(*(store.sessions(limit=1) for _ in range(4)))
        network.swallow_everything()
        async with asyncio.timeout(20):
            with pytest.raises(StoreUnavailable):
                await open_store(url)
            await store.aclose()


async def test_a_store_whose_opening_is_not_answered_at_some_request_is_refused(postgres: PostgresServer) -> None:
    """Also one that asks the server about itself, before the first statement of ours."""
    async with behind_a_network(postgres.shared) as (url, network):
        for number in range(1, 10) if LONG else (7,):
            network.arm("silent before", nth(number))
            async with asyncio.timeout(20):
                with pytest.raises(StoreUnavailable):
                    await open_store(url)
            assert network.struck is not None
