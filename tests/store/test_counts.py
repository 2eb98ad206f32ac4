"""What operations cost, in counts: transactions, statements, round trips, rows. None may grow with the session."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, text

from lash.commit.plan import CommitPlan
from lash.ids import OperationId, SessionUid
from lash.inbox.cancelling import These
from lash.store.contract import Store
from lash.store.opening import migrating, open_store, parse_url
from lash.store.sql import commits, graph, inbox, leases, sessions, turns
from lash.store.sql.questions import LOCKED
from lash.store.sql.steps import Write, settle
from lash.testing.builders import (
    AT,
    TTL,
    Driven,
    a_message,
    a_new_session,
    a_session,
    an_effect,
    an_opening,
    append_to,
    commit_nodes,
    finished,
    hears,
    must_acquire,
    new_id,
    open_with,
    opens,
    plan_of,
    run_turn,
    says,
)
from tests.postgres import PostgresServer
from tests.store.counting import counting, wired


@dataclass
class Scene:
    """A session with a turn at work, and the plan that would settle it."""

    store: Store
    driven: Driven
    plan: CommitPlan


async def a_scene(store: Store) -> Scene:
    session = await a_session(store)
    await run_turn(store, session.uid, "one")
    driven = await open_with(store, session.uid, "two")
    plan = await plan_of(store, driven, hears("two"), says("re: two"))
    return Scene(store, driven, plan)


@dataclass(frozen=True)
class Price:
    """What an operation may cost on Postgres. On SQLite it is one statement less: the clock is not asked for there."""

    statements: int
    round_trips: int


Operation = Callable[[Scene], Awaitable[object]]

OPERATIONS: dict[str, tuple[Operation, Price]] = {
    "create": (lambda at: at.store.create(a_new_session()), Price(6, 8)),
    "admit": (lambda at: at.store.admit(at.driven.lease.session, a_message("x")), Price(6, 8)),
    "admit by key": (lambda at: at.store.admit(at.driven.lease.session, a_message("x", key=new_id())), Price(7, 9)),
    "acquire": (lambda at: must_acquire(at.store, at.driven.lease.session), Price(4, 6)),
    "renew": (lambda at: at.store.renew(at.driven.lease, ttl=TTL), Price(4, 6)),
    "release": (lambda at: at.store.release(at.driven.lease), Price(5, 7)),
    "take over": (lambda at: at.store.open_turn(an_opening(at.driven.lease.session)), Price(7, 9)),
    "record a start": (
        lambda at: at.store.record(at.driven.lease, at.driven.turn.id, [an_effect()]),
        Price(7, 9),
    ),
    "record five": (
        lambda at: at.store.record(
            at.driven.lease, at.driven.turn.id, [finished(an_effect(f"tool:{n}")) for n in range(5)]
        ),
        Price(7, 9),
    ),
    "commit": (lambda at: at.store.commit(at.plan), Price(14, 16)),
    "put a blob": (lambda at: at.store.put_blob(b"some bytes"), Price(3, 5)),
}


@pytest.fixture
async def sqlite_store(tmp_path: Path) -> AsyncIterator[Store]:
    async with await open_store(f"sqlite:///{tmp_path}/counts.db") as store:
        yield store


@pytest.mark.parametrize("name", OPERATIONS)
async def test_a_write_is_one_transaction_of_few_statements_on_sqlite(name: str, sqlite_store: Store) -> None:
    operation, price = OPERATIONS[name]
    scene = await a_scene(sqlite_store)
    with counting() as cost:
        await operation(scene)
    assert cost.transactions == 1
    assert len(cost.statements) <= price.statements - 1, "\n".join(cost.statements)


@pytest.mark.parametrize("name", OPERATIONS)
async def test_a_write_is_one_transaction_of_few_round_trips_on_postgres(
    name: str, postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory
) -> None:
    if "host" not in postgres.shared.query:
        pytest.skip("counting round trips needs a server on a Unix socket")
    operation, price = OPERATIONS[name]
    async with (
        wired(postgres.shared, tmp_path_factory.mktemp("wire")) as (url, wire),
        await open_store(url) as store,
    ):
        await operation(await a_scene(store))  # asyncpg prepares a statement when it meets it for the first time
        scene = await a_scene(store)
        before = wire.round_trips
        with counting() as cost:
            await operation(scene)
        assert cost.transactions == 1
        assert len(cost.statements) <= price.statements, "\n".join(cost.statements)
        assert wire.round_trips - before <= price.round_trips


async def test_the_hundredth_turn_costs_what_the_second_did(sqlite_store: Store) -> None:
    session = await a_session(sqlite_store)
    costs: list[int] = []
    for number in range(100):
        with counting() as cost:
            await run_turn(sqlite_store, session.uid, f"message {number}")
        costs.append(len(cost.statements))
    assert costs[1:] == [costs[1]] * 99


async def test_a_quiescent_checkpoint_writes_nothing(sqlite_store: Store) -> None:
    scene = await a_scene(sqlite_store)
    effect = an_effect("checkpoint:1", kind="checkpoint")
    with counting() as cost:
        taken = await scene.store.take(
            scene.driven.lease, scene.driven.turn.id, "after_work", key=effect.key, identity=effect.identity
        )
    assert taken == ()
    assert all(statement.startswith("SELECT") for statement in cost.statements)


async def test_many_writes_at_once_share_transactions(sqlite_store: Store) -> None:
    owners = [await a_session(sqlite_store) for _ in range(50)]
    await sqlite_store.admit(owners[0].uid, a_message("warm-up"))
    with counting() as cost:
        async with asyncio.TaskGroup() as together:
            for session in owners:
                together.create_task(sqlite_store.admit(session.uid, a_message("at once")))
    # The first goes alone, because nothing else has queued up yet; the rest goes together.
    assert cost.transactions <= 3
    assert sum(statement.startswith("INSERT INTO lash_inbox") for statement in cost.statements) <= 3


# -- flat cost ---------------------------------------------------------------------------------------------------------


async def with_waiting_items(store: Store, uid: SessionUid) -> None:
    for number in range(MANY):
        await store.admit(uid, a_message(f"waits {number}"))


async def with_old_items(store: Store, uid: SessionUid) -> None:
    items = [await store.admit(uid, a_message(f"old {number}")) for number in range(MANY)]
    await store.cancel(uid, These(tuple(item.id for item in items)))


async def with_old_turns(store: Store, uid: SessionUid) -> None:
    for number in range(MANY // 4):
        await run_turn(store, uid, f"turn {number}")


async def with_other_sessions(store: Store, uid: SessionUid) -> None:
    for _ in range(MANY // 4):
        other = await a_session(store)
        await run_turn(store, other.uid, "elsewhere")
        await store.admit(other.uid, a_message("pending elsewhere"))


MANY = 400
WRITES: dict[str, Callable[[Driven, CommitPlan], Write[Any]]] = {
    "admit": lambda driven, _: inbox.admit(driven.lease.session, a_message("x", key=new_id())),
    "take over": lambda driven, _: turns.open_turn(an_opening(driven.lease.session)),
    "record": lambda driven, _: turns.record_effects(driven.lease, driven.turn.id, [finished(an_effect())], ()),
    "take": lambda driven, _: turns.take(
        driven.lease,
        driven.turn.id,
        "before_completion",
        key=an_effect("checkpoint").key,
        identity=an_effect("checkpoint").identity,
    ),
    "renew": lambda driven, _: leases.renew(driven.lease, TTL),
    "commit": lambda _, plan: commits.commit(plan),
}


@pytest.mark.parametrize("history", [with_waiting_items, with_old_items, with_old_turns, with_other_sessions])
async def test_what_a_turn_writes_costs_the_same_however_much_there_is(
    history: Callable[[Store, SessionUid], Awaitable[None]], tmp_path: Path
) -> None:
    """Counted in the instructions of SQLite's virtual machine, which say what was read, not how long it took."""
    url = f"sqlite:///{tmp_path}/flat.db"
    async with await open_store(url) as store:
        scene = await a_scene(store)
        before = await steps_of_writes(url, scene)
        await history(store, scene.driven.lease.session)
        after = await steps_of_writes(url, await settled_and_reopened(scene))
    assert {name: steps for name, steps in after.items() if steps > 1.25 * before[name] + 20} == {}


async def settled_and_reopened(scene: Scene) -> Scene:
    """The same scene again, after what has happened meanwhile."""
    uid = scene.driven.lease.session
    if await scene.store.unsettled_turn(uid) is not None:
        await scene.store.commit(await plan_of(scene.store, scene.driven, says("done")))
    driven = await open_with(scene.store, uid, "again")
    return Scene(scene.store, driven, await plan_of(scene.store, driven, hears("again"), says("re: again")))


async def steps_of_writes(url: str, scene: Scene) -> dict[str, int]:
    async with migrating(parse_url(url)) as transact:
        return {
            name: await transact(partial(_write_steps, write(scene.driven, scene.plan)))
            for name, write in WRITES.items()
        }


def _write_steps(write: Write[Any], connection: Connection) -> int:
    """What a write costs; it is rolled back, so that the next one finds the same."""
    with connection.begin_nested() as savepoint:
        steps = _vm_steps(connection, lambda: settle(connection, [write], lock=LOCKED, clock=lambda _: AT)[0].unwrap())
        savepoint.rollback()
    return steps


def _vm_steps(connection: Connection, work: Callable[[], object]) -> int:
    steps = 0

    def step() -> int:
        nonlocal steps
        steps += 1
        return 0

    driver: Any = connection.connection.driver_connection
    driver.set_progress_handler(step, 1)
    try:
        work()
    finally:
        driver.set_progress_handler(None, 0)
    return steps


# -- a long session ----------------------------------------------------------------------------------------------------

NODES = 10_000


async def a_long_session(store: Store, older: int) -> Any:
    """A session whose current frame has 5 nodes, after ``older`` of them in frames that are hidden by it."""
    session = await a_session(store)
    lease = await must_acquire(store, session.uid)
    head = session.head
    while older > head.depth + 1:
        operation = OperationId(new_id())
        count = min(2_000, older - head.depth - 1)
        words = [says(f"word {number}") for number in range(count)]
        payloads = [opens("initial"), *words[1:]] if head.leaf is None else words
        await store.commit(
            CommitPlan(operation, lease, base=head.revision, delta=append_to(session.uid, head, operation, payloads))
        )
        head = (await store.find(session.uid)).head
    await commit_nodes(store, lease, opens("compaction"), *(says(f"new {number}") for number in range(4)))
    return session.uid


async def test_opening_a_frame_of_a_long_session_takes_sqlite_no_more_steps(tmp_path: Path) -> None:
    """Counted in the instructions of SQLite's virtual machine, which say what was read, not how long it took."""
    url = f"sqlite:///{tmp_path}/long.db"
    async with await open_store(url) as store:
        short, long = await a_long_session(store, 10), await a_long_session(store, NODES)
        assert len((await store.snapshot(long)).nodes) == 5
    async with migrating(parse_url(url)) as transact:
        steps = [
            await transact(lambda c, uid=uid: _vm_steps(c, lambda: _read_frame(c, uid)))  # type: ignore[misc]
            for uid in (short, long)
        ]
    assert steps[1] <= 1.2 * steps[0]


async def test_opening_a_frame_of_a_long_session_reads_its_rows_and_no_others_on_postgres(
    postgres: PostgresServer,
) -> None:
    url = postgres.shared.render_as_string(hide_password=False)
    async with await open_store(url) as store:
        uid = await a_long_session(store, NODES)

    def rows_read(connection: Connection) -> int:
        connection.execute(text("SET LOCAL enable_seqscan = off"))  # a small table would be scanned whole
        _read_frame(connection, uid)
        read = text("SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_xact_user_tables WHERE relname = 'lash_nodes'")
        return int(connection.execute(read).scalar_one())

    async with migrating(postgres.shared) as transact:
        assert await transact(rows_read) == 6  # the frame, and the node before it, whose id is the first one's parent


def _read_frame(connection: Connection, uid: Any) -> None:
    row = sessions.find_row(connection, uid)
    assert len(graph.read_path(connection, row, first=row.frame)) == 5
