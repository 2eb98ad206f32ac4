from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import cast

import pytest

from lash.errors import DiskFull, SessionNotFound, StoreClosed, StoreUnavailable, UsageError
from lash.store.contract import Store
from lash.store.memory import MemoryData, MemoryStore
from lash.testing import ManualClock
from lash.testing.builders import a_new_session, fresh_name
from lash.testing.faults import DIE_BEFORE, LOSE_ANSWER, Died, FaultyStore, Plan, Refuse, Slow, faulty


@pytest.fixture
async def sound() -> AsyncIterator[Store]:
    async with MemoryStore(clock=ManualClock(), data=MemoryData()) as store:
        yield store


def as_store(store: FaultyStore) -> Store:
    return cast(Store, store)


async def exists(store: Store, name: str) -> bool:
    with contextlib.suppress(SessionNotFound):
        return bool(await store.get(name))  # type: ignore[arg-type]
    return False


async def test_without_a_plan_every_call_goes_through(sound: Store) -> None:
    store = faulty(sound, {})
    new = a_new_session()
    assert await store.create(new) == await sound.get(new.name)
    with pytest.raises(SessionNotFound):
        await store.get(fresh_name())


async def test_who_dies_before_a_call_has_written_nothing(sound: Store) -> None:
    new = a_new_session()
    with pytest.raises(Died):
        await faulty(sound, {"create": {1: DIE_BEFORE}}).create(new)
    assert not await exists(sound, new.name)


async def test_who_dies_with_the_answer_lost_has_written_everything(sound: Store) -> None:
    new = a_new_session()
    with pytest.raises(Died):
        await faulty(sound, {"create": {1: LOSE_ANSWER}}).create(new)
    assert await exists(sound, new.name)


async def test_a_lost_answer_may_have_been_a_refusal(sound: Store) -> None:
    with pytest.raises(Died):
        await faulty(sound, {"get": {1: LOSE_ANSWER}}).get(fresh_name())


@pytest.mark.parametrize("error", [DiskFull("no space left on device"), StoreUnavailable("gone away")])
async def test_a_refusal_writes_nothing_and_the_same_call_may_be_repeated(
    sound: Store, error: StoreUnavailable
) -> None:
    new = a_new_session()
    store = faulty(sound, {"create": {1: Refuse(error)}})
    with pytest.raises(StoreUnavailable) as refused:
        await store.create(new)
    assert refused.value is error
    assert not await exists(sound, new.name)
    assert (await store.create(new)).uid == new.uid


async def test_a_slow_call_is_made_when_the_test_says_so(sound: Store) -> None:
    new = a_new_session()
    slow = Slow(until=asyncio.Event())
    call = asyncio.create_task(faulty(sound, {"create": {1: slow}}).create(new))
    await slow.reached.wait()
    assert not await exists(sound, new.name)
    slow.until.set()
    assert (await call).uid == new.uid


@pytest.mark.parametrize("number", [1, 2, 3])
async def test_a_fault_strikes_on_the_call_it_was_planned_for(sound: Store, number: int) -> None:
    store = FaultyStore(sound, {"create": {number: Refuse(DiskFull("full"))}})
    refused = []
    for call in range(1, 4):
        try:
            await as_store(store).create(a_new_session())
        except DiskFull:
            refused.append(call)
    assert refused == [number]
    assert store.calls == {"create": 3}


async def test_the_calls_of_each_method_are_counted_apart(sound: Store) -> None:
    store = FaultyStore(sound, {"create": {2: DIE_BEFORE}})
    await as_store(store).create(a_new_session())
    await as_store(store).sessions()
    with pytest.raises(Died):
        await as_store(store).create(a_new_session())
    assert store.calls == {"create": 2, "sessions": 1}


async def test_a_dead_process_calls_nothing_more(sound: Store) -> None:
    new = a_new_session()
    store = faulty(sound, {"sessions": {1: DIE_BEFORE}})
    with pytest.raises(Died):
        await store.sessions()
    with pytest.raises(Died):
        await store.create(new)
    assert not await exists(sound, new.name)


async def test_death_passes_through_except_exception(sound: Store) -> None:
    async def careless() -> None:
        with contextlib.suppress(Exception):
            await faulty(sound, {"sessions": {1: DIE_BEFORE}}).sessions()

    with pytest.raises(Died):
        await careless()


async def test_a_planned_fault_that_never_struck_is_told(sound: Store) -> None:
    plan: Plan = {"create": {1: Refuse(DiskFull("full")), 3: DIE_BEFORE}, "commit": {1: LOSE_ANSWER}}
    store = FaultyStore(sound, plan)
    with pytest.raises(DiskFull):
        await as_store(store).create(a_new_session())
    assert store.unreached() == [("create", 3), ("commit", 1)]


async def test_a_plan_for_a_method_that_no_store_has_is_refused(sound: Store) -> None:
    with pytest.raises(UsageError, match="comit"):
        faulty(sound, {"comit": {1: DIE_BEFORE}})


async def test_leaving_a_faulty_store_closes_the_sound_one_even_after_a_death(sound: Store) -> None:
    with pytest.raises(Died):
        async with faulty(sound, {"sessions": {1: DIE_BEFORE}}) as store:
            await store.sessions()
    with pytest.raises(StoreClosed):
        await sound.sessions()
