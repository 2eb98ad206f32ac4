"""Sessions, names and contents that somebody else holds: their writes wait, and nobody else's."""

from __future__ import annotations

import asyncio
from unittest import mock

import pytest

from lash.errors import SessionExists, StoreLocked
from lash.store.writer import PATIENCE, Writer
from lash.testing.builders import a_message, a_new_session, a_session
from tests.postgres import PostgresServer
from tests.store.holding import beside, holding, process, until_waiting
from tests.store.world import World, healthy_writes_until, submitted

# -- counted, on a database that is none -------------------------------------------------------------------------------


def never_two_patient_attempts_in_a_row(world: World) -> bool:
    return not any(
        one.patient and next_.patient for one, next_ in zip(world.attempts, world.attempts[1:], strict=False)
    )


async def test_a_write_of_another_session_waits_with_one_of_thirty_held_ones_at_most(world: World) -> None:
    names = [f"held {number}" for number in range(30)]
    world.held.update(names)
    writer = Writer(world.settle)
    tasks = await submitted(writer, world, *((name, name) for name in names))
    await healthy_writes_until(writer, world, PATIENCE - 1)
    assert never_two_patient_attempts_in_a_row(world)
    assert {len(attempt.writes) for attempt in world.patient} == {1}
    assert not any(task.done() for task in tasks)
    await writer_lets_all_in(writer, world, tasks)
    assert [await task for task in tasks] == names


async def test_each_of_several_held_sessions_is_waited_for_in_its_turn(world: World) -> None:
    """One that is held again and again for short times would else be met at a bad moment each time."""
    world.held.update("abc")
    writer = Writer(world.settle)
    tasks = await submitted(writer, world, ("a", "a"), ("b", "b"), ("c", "c"))
    await healthy_writes_until(writer, world, PATIENCE - 1)
    assert {attempt.writes for attempt in world.patient} == {("a",), ("b",), ("c",)}
    await writer_lets_all_in(writer, world, tasks)


async def test_only_the_first_of_many_writes_to_a_held_session_is_waited_for(world: World) -> None:
    names = [f"write {number}" for number in range(80)]
    world.held.add("held")
    writer = Writer(world.settle)
    tasks = await submitted(writer, world, *(("held", name) for name in names))
    await healthy_writes_until(writer, world, PATIENCE - 1)
    assert never_two_patient_attempts_in_a_row(world)
    assert {attempt.writes for attempt in world.patient} == {("write 0",)}
    assert not any(task.done() for task in tasks)
    await writer_lets_all_in(writer, world, tasks)
    assert [name for name in world.landed if name.startswith("write")] == names


async def writer_lets_all_in(writer: Writer, world: World, tasks: list[asyncio.Task[str]]) -> None:
    """Whoever held something lets go, and everybody gets an answer."""
    world.held.clear()
    await healthy_writes_until(writer, world, PATIENCE)
    async with asyncio.timeout(5):
        await asyncio.gather(*tasks)
        await writer.aclose()


async def test_writes_of_sessions_that_are_held_and_let_go_by_turns_keep_their_order(world: World) -> None:
    names = {session: [f"{session}{number}" for number in range(20)] for session in "abc"}
    world.held.update("abc")
    writer = Writer(world.settle)
    tasks = await submitted(writer, world, *((n[0], n) for group in zip(*names.values(), strict=True) for n in group))
    for number in range(40):
        world.held = set("abc") - {"abc"[number % 3]} if number % 5 else set("abc")
        tasks += await submitted(writer, world, ("c", f"c later {number}"))
        await healthy_writes_until(writer, world, world.time + 0.2)
    await writer_lets_all_in(writer, world, tasks)
    later = [f"c later {number}" for number in range(40)]
    for session, mine in names.items():
        assert [name for name in world.landed if name[0] == session] == (mine + later if session == "c" else mine)


async def test_a_write_that_waited_long_enough_is_refused_without_another_attempt_and_so_is_what_followed(
    world: World,
) -> None:
    names = [f"write {number}" for number in range(5)]
    world.held.add("held")
    writer = Writer(world.settle)
    tasks = await submitted(writer, world, *(("held", name) for name in names))
    await healthy_writes_until(writer, world, PATIENCE)
    assert not any(task.done() for task in tasks)
    world.time, before = PATIENCE + 2, len(world.attempts)  # when it would be tried again
    await healthy_writes_until(writer, world, PATIENCE + 2.1)
    async with asyncio.timeout(5):
        refused = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(error) for error in refused] == [StoreLocked] * 5
    assert len(set(map(id, refused))) == 5
    assert [name for attempt in world.attempts[before:] for name in attempt.writes if name in names] == []
    world.held.clear()
    assert await writer.write(world.write("held", "a later one")) == "a later one"
    await writer.aclose()


# -- on Postgres -------------------------------------------------------------------------------------------------------


@pytest.fixture
def postgres_url(postgres: PostgresServer) -> str:
    return postgres.fresh().render_as_string(hide_password=False)


async def test_others_write_while_a_row_is_held_and_its_own_write_lands_afterwards(postgres_url: str) -> None:
    async with await process(postgres_url, "writer") as store, beside(postgres_url) as query:
        held, other = await a_session(store, "held"), await a_session(store, "other")
        item = a_message("patient")
        async with holding(postgres_url, "SELECT 1 FROM lash_sessions WHERE name = 'held' FOR UPDATE"):
            waiting = asyncio.create_task(store.admit(held.uid, item))
            await until_waiting(query, "writer")
            for number in range(1, 21):
                assert (await store.admit(other.uid, a_message(f"{number}"))).seq == number
            assert not waiting.done()
        assert (await waiting).id == item.id
        assert [kept.id for kept in (await store.items(held.uid)).rows] == [item.id]


CLAIM = "SELECT pg_advisory_xact_lock(hashtextextended('lash session {}', 0))"


async def test_a_name_that_somebody_is_about_to_use_is_waited_for(postgres_url: str) -> None:
    async with await process(postgres_url, "creator") as store, beside(postgres_url) as query:
        new = a_new_session("wanted")
        async with holding(postgres_url, CLAIM.format("wanted")):
            creating = asyncio.create_task(store.create(new))
            await until_waiting(query, "creator")
            assert (await store.create(a_new_session("another"))).name == "another"
            assert not creating.done()
        assert (await creating).uid == new.uid
        assert (await store.get(new.name)).uid == new.uid


async def test_a_name_that_was_used_while_it_was_waited_for_is_taken(postgres_url: str) -> None:
    """Whoever claimed the name first has created its session by the time the claim ends."""
    async with await process(postgres_url, "creator") as store, beside(postgres_url) as query:
        first = await a_session(store, "first")
        async with holding(postgres_url, CLAIM.format("wanted")):
            creating = asyncio.create_task(store.create(a_new_session("wanted")))
            await until_waiting(query, "creator")
            await query("UPDATE lash_sessions SET name = 'wanted' WHERE name = 'first'")
        with pytest.raises(SessionExists) as taken:
            await creating
        assert (await store.get(taken.value.name)).uid == first.uid


async def test_content_that_somebody_is_about_to_store_is_waited_for(postgres_url: str) -> None:
    async with await process(postgres_url, "putter") as store, beside(postgres_url) as query:
        hash_ = await store.put_blob(b"wanted")
        await query("DELETE FROM lash_blobs")
        async with holding(postgres_url, CLAIM.format("").replace("session ", f"blob {hash_}")):
            putting = asyncio.create_task(store.put_blob(b"wanted"))
            await until_waiting(query, "putter")
            assert not putting.done()
        assert await putting == hash_
        assert await store.blob(hash_) == b"wanted"


async def test_a_held_session_with_followers_does_not_keep_the_writer_busy(world: World) -> None:
    world.held.add("held")
    writer = Writer(world.settle)
    tasks = await submitted(writer, world, ("held", "first"), ("held", "second"))
    pauses = 0
    pause = writer._pause

    async def counted() -> None:
        nonlocal pauses
        pauses += 1
        await pause()

    with mock.patch.object(writer, "_pause", counted):
        for _ in range(200):
            await asyncio.sleep(0)
    assert pauses <= 1
    world.held.clear()
    world.time += 5
    await asyncio.gather(*tasks)
