"""What operations cost, in counts: transactions, statements, round trips, rows. None may grow with the session."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, text

from lash.commit.outbox import Debt, Owed
from lash.commit.plan import CommitPlan
from lash.graph.nodes import Payload
from lash.ids import ItemId, NodeId, OperationId, SessionName, SessionUid, TurnId, WaitId
from lash.inbox.cancelling import These
from lash.inbox.items import Wake
from lash.store.contract import Store
from lash.store.opening import migrating, open_store, parse_url
from lash.store.sql import commits, graph, inbox, leases, sessions, turns
from lash.store.sql.link import SqliteLink
from lash.store.sql.steps import Write, settle
from lash.testing import ManualClock
from lash.testing.builders import (
    AT,
    TTL,
    Driven,
    a_fork,
    a_held_session,
    a_message,
    a_new_session,
    a_request_id,
    a_session,
    a_wait,
    an_effect,
    an_opening,
    append_to,
    commit_nodes,
    finished,
    hears,
    leaf_of,
    must_acquire,
    new_id,
    open_with,
    opens,
    plan_nodes,
    plan_of,
    rewind,
    run_turn,
    said,
    says,
    take_at,
)
from tests.postgres import PostgresServer, execute
from tests.store.counting import counting, wired


@dataclass
class Scene:
    """A session with a turn at work and the plan that would settle it. Another one whose turn has input to take. And
    one that is idle, with history, something that waits and a debt to the first."""

    store: Store
    driven: Driven
    plan: CommitPlan
    wait: WaitId
    key: str
    steered: Driven
    idle: SessionUid
    pending: ItemId
    boundary: NodeId
    debt: Debt
    name: SessionName

    @property
    def uid(self) -> SessionUid:
        return self.driven.lease.session

    @property
    def turn(self) -> TurnId:
        return self.driven.turn.id


async def a_scene(store: Store) -> Scene:
    session = await a_session(store)
    await run_turn(store, session.uid, "one")
    driven = await open_with(store, session.uid, "two")
    plan = await plan_of(store, driven, hears("two"), says("re: two"))
    wait = a_wait(turn=driven.turn.id)
    steered = await open_with(store, (await a_session(store)).uid)
    await store.admit(steered.lease.session, a_message("by the way", when="now"))
    idle = await a_held_session(store)
    owed = Owed(session.uid, Wake(source="idle"))
    first = replace(await plan_nodes(store, idle, says("first")), owes=(owed,))
    boundary = leaf_of(await store.commit(first))
    return Scene(
        store=store,
        driven=driven,
        plan=plan,
        wait=wait.id,
        key=await store.open_wait(session.uid, wait),
        steered=steered,
        idle=idle.session,
        pending=(await store.admit(idle.session, a_message("waits"))).id,
        boundary=boundary,
        debt=Debt(idle.session, first.operation, 0, owed),
        name=session.name,
    )


Operation = Callable[[Scene], Awaitable[object]]

LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)
WRITES_OF_A_STORE: dict[str, Operation] = {
    "create": lambda at: at.store.create(a_new_session()),
    "open, created": lambda at: at.store.open(a_new_session()),
    "fork": lambda at: at.store.fork(a_fork(at.idle, at.boundary)),
    "delete": lambda at: at.store.delete(at.uid),
    "put_document": lambda at: at.store.put_document(at.uid, "config", {"a": 1}, expected=0),
    "admit": lambda at: at.store.admit(at.uid, a_message("x")),
    "admit by key": lambda at: at.store.admit(at.uid, a_message("x", key=new_id())),
    "cancel": lambda at: at.store.cancel(at.idle, These((at.pending,))),
    "acquire": lambda at: must_acquire(at.store, at.uid),
    "renew": lambda at: at.store.renew(at.driven.lease, ttl=TTL),
    "release": lambda at: at.store.release(at.driven.lease),
    "open_turn, fresh": lambda at: at.store.open_turn(an_opening(at.idle)),
    "open_turn, taken over": lambda at: at.store.open_turn(an_opening(at.uid)),
    "take": lambda at: take_at(at.store, at.steered),
    "park": lambda at: at.store.park(at.driven.lease, at.turn, waits=[at.wait]),
    "request_cancel": lambda at: at.store.request_cancel(at.uid, at.turn, a_request_id(), reason="enough"),
    "record a start": lambda at: at.store.record(at.driven.lease, at.turn, [an_effect()]),
    "record five": lambda at: at.store.record(
        at.driven.lease, at.turn, [finished(an_effect(f"tool:{n}")) for n in range(5)]
    ),
    "open_wait": lambda at: at.store.open_wait(at.uid, a_wait()),
    "answer": lambda at: at.store.answer(at.key, "yes"),
    "revoke": lambda at: at.store.revoke(at.uid, [at.wait]),
    "commit": lambda at: at.store.commit(at.plan),
    "deliver": lambda at: at.store.deliver(at.debt),
    "put_blob": lambda at: at.store.put_blob(b"some bytes"),
    "vacuum of nothing": lambda at: at.store.vacuum(before=LONG_AGO),
}
READS_OF_A_STORE: dict[str, Operation] = {
    "get": lambda at: at.store.get(at.name),
    "find": lambda at: at.store.find(at.uid),
    "snapshot": lambda at: at.store.snapshot(at.uid),
    "nodes": lambda at: at.store.nodes(at.uid),
    "items": lambda at: at.store.items(at.uid),
    "ready": lambda at: at.store.ready(["default"]),
    "unsettled_turn": lambda at: at.store.unsettled_turn(at.uid),
    "journal": lambda at: at.store.journal(at.uid, at.turn),
    "waits": lambda at: at.store.waits(at.uid),
    "receipt": lambda at: at.store.receipt(at.idle, at.debt.operation),
    "usage": lambda at: at.store.usage(at.uid),
}
OPERATIONS = WRITES_OF_A_STORE | READS_OF_A_STORE


@dataclass(frozen=True)
class Price:
    """What an operation costs, exactly. A price that went down is corrected here, so that it cannot go up again."""

    statements: int
    round_trips: int | None = None
    transactions: int = 1


ON_SQLITE = {
    "create": Price(6),
    "open, created": Price(6),
    "fork": Price(10),
    "delete": Price(9),
    "put_document": Price(4),
    "admit": Price(5),
    "admit by key": Price(6),
    "cancel": Price(7),
    "acquire": Price(3),
    "renew": Price(3),
    "release": Price(4),
    "open_turn, fresh": Price(8),
    "open_turn, taken over": Price(8),
    "take": Price(8),
    "park": Price(5),
    "request_cancel": Price(3),
    "record a start": Price(6),
    "record five": Price(10),
    "open_wait": Price(3),
    "answer": Price(5, transactions=2),
    "revoke": Price(4),
    "commit": Price(10),
    "deliver": Price(11, transactions=2),
    "put_blob": Price(1),
    "vacuum of nothing": Price(2, transactions=2),
    "get": Price(1),
    "find": Price(1),
    "snapshot": Price(5),
    "nodes": Price(2),
    "items": Price(2),
    "ready": Price(1),
    "unsettled_turn": Price(2),
    "journal": Price(2),
    "waits": Price(2),
    "receipt": Price(2),
    "usage": Price(2),
}
ON_POSTGRES = {
    "create": Price(7, 9),
    "open, created": Price(7, 9),
    "fork": Price(8, 10),
    "delete": Price(3, 5),
    "put_document": Price(2, 4),
    "admit": Price(3, 5),
    "admit by key": Price(3, 5),
    "cancel": Price(6, 8),
    "acquire": Price(3, 5),
    "renew": Price(3, 5),
    "release": Price(3, 5),
    "open_turn, fresh": Price(3, 5),
    "open_turn, taken over": Price(4, 6),
    "take": Price(3, 5),
    "park": Price(4, 6),
    "request_cancel": Price(3, 5),
    "record a start": Price(3, 5),
    "record five": Price(3, 5),
    "open_wait": Price(3, 5),
    "answer": Price(5, 9, transactions=2),
    "revoke": Price(4, 6),
    "commit": Price(4, 6),
    "deliver": Price(6, 10, transactions=2),
    "put_blob": Price(3, 5),
    "vacuum of nothing": Price(3, 7, transactions=2),
    "get": Price(1, 3),
    "find": Price(1, 3),
    "snapshot": Price(5, 7),
    "nodes": Price(2, 4),
    "items": Price(2, 4),
    "ready": Price(2, 4),
    "unsettled_turn": Price(2, 4),
    "journal": Price(2, 4),
    "waits": Price(3, 5),
    "receipt": Price(2, 4),
    "usage": Price(2, 4),
}
"""One statement asks for the clock; beginning and committing are a round trip each."""


@pytest.fixture
async def sqlite_store(tmp_path: Path) -> AsyncIterator[Store]:
    async with await open_store(f"sqlite:///{tmp_path}/counts.db") as store:
        yield store


@pytest.mark.parametrize("name", OPERATIONS)
async def test_the_price_of_an_operation_on_sqlite(name: str, sqlite_store: Store) -> None:
    scene = await a_scene(sqlite_store)
    with counting() as cost:
        await OPERATIONS[name](scene)
    found = Price(len(cost.statements), transactions=cost.transactions)
    assert found == ON_SQLITE[name], "\n".join(cost.statements)


@pytest.mark.parametrize("name", OPERATIONS)
async def test_the_price_of_an_operation_on_postgres(
    name: str, postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory
) -> None:
    if "host" not in postgres.shared.query:
        pytest.skip("counting round trips needs a server on a Unix socket")
    async with (
        wired(postgres.shared, tmp_path_factory.mktemp("wire")) as (url, wire),
        await open_store(url) as store,
    ):
        await OPERATIONS[name](await a_scene(store))  # asyncpg prepares a statement when it meets it for the first time
        scene = await a_scene(store)
        before = wire.round_trips
        with counting() as cost:
            await OPERATIONS[name](scene)
        found = Price(len(cost.statements), wire.round_trips - before, cost.transactions)
        assert found == ON_POSTGRES[name], "\n".join(cost.statements)


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
    plan = await plan_of(scene.store, driven, hears("again"), says("re: again"))
    return replace(scene, driven=driven, plan=plan)


async def steps_of_writes(url: str, scene: Scene) -> dict[str, int]:
    async with migrating(parse_url(url)) as transact:
        return {
            name: await transact(partial(_write_steps, write(scene.driven, scene.plan)))
            for name, write in WRITES.items()
        }


def _write_steps(write: Write[Any], connection: Connection) -> int:
    """What a write costs; it is rolled back, so that the next one finds the same."""
    with connection.begin_nested() as savepoint:
        steps = _vm_steps(connection, lambda: _settle_one(connection, write))
        savepoint.rollback()
    return steps


def _settle_one(connection: Connection, write: Write[Any]) -> None:
    driver: Any = connection.connection.driver_connection
    [settled] = settle(SqliteLink(driver, ManualClock(AT)), [write])
    assert settled is not None, "nobody holds the session"
    settled.unwrap()


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
        payloads: list[Payload] = [opens("initial"), *words[1:]] if head.leaf is None else [*words]
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


def _read_frame(connection: Connection, uid: Any) -> None:
    assert len(graph.read_frame(connection, sessions.find_row(connection, uid))) == 5


# -- what Postgres reads -----------------------------------------------------------------------------------------------


async def a_session_beside_abandoned_branches(store: Store) -> SessionUid:
    """Five nodes, and sixty branches of twenty that were given up after the second of them."""
    lease = await a_held_session(store)
    root = leaf_of(await commit_nodes(store, lease, says("root")))
    for number in range(60):
        await commit_nodes(store, lease, *(says(f"{number}.{word}, given up") for word in range(20)))
        await rewind(store, lease, root)
    await commit_nodes(store, lease, says("a"), says("b"), says("c"))
    return lease.session


async def with_short_sessions(store: Store) -> None:
    for _ in range(200):
        await commit_nodes(store, await a_held_session(store), *(says("elsewhere") for _ in range(10)))


def _rows_fetched(connection: Connection) -> int:
    read = text("SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_xact_user_tables WHERE relname = 'lash_nodes'")
    return int(connection.execute(read).scalar_one())


def _rows_of(uid: SessionUid, first: int, last: int | None, connection: Connection) -> tuple[int, int]:
    """How many nodes a read returns, and how many rows of the table it fetches for them."""
    before = _rows_fetched(connection)
    nodes = graph.read_path(connection, sessions.find_row(connection, uid), first=first, last=last)
    return len(nodes), _rows_fetched(connection) - before


async def test_reading_a_part_of_a_session_fetches_its_rows_and_no_others_on_postgres(postgres: PostgresServer) -> None:
    """Whatever the planner knows of the tables. Nobody gathers statistics behind the test's back, as a server would."""
    url = postgres.fresh()
    tables = ("lash_nodes", "lash_branches", "lash_commits", "lash_sessions")
    await execute(url, *(f"ALTER TABLE {table} SET (autovacuum_enabled = off)" for table in tables))
    async with await open_store(url.render_as_string(hide_password=False)) as store:
        long = await a_long_session(store, NODES)
        await with_short_sessions(store)
        beside = await a_session_beside_abandoned_branches(store)
    reads = {
        "a page at the start": (long, 0, 9),
        "a page in the middle": (long, 5_000, 5_009),
        "the current frame": (long, NODES, None),
        "beside abandoned branches": (beside, 2, None),
        "across the point where they were given up": (beside, 0, None),
    }
    # One more than are returned: the node before the first, whose id is its parent. The root has none.
    fetched = {
        "a page at the start": (10, 10),
        "a page in the middle": (10, 11),
        "the current frame": (5, 6),
        "beside abandoned branches": (3, 4),
        "across the point where they were given up": (5, 5),
    }
    for statistics in ("never gathered", "up to date"):
        if statistics == "up to date":
            await execute(url, "ANALYZE")
        async with migrating(url) as transact:
            found = {name: await transact(partial(_rows_of, *part)) for name, part in reads.items()}
        assert found == fetched, f"statistics: {statistics}"


async def test_branches_that_were_given_up_are_not_read_even_when_they_are_nearly_the_whole_table(
    postgres: PostgresServer,
) -> None:
    """Then the planner thinks nothing of reading them all and throwing them away."""
    url = postgres.fresh()
    async with await open_store(url.render_as_string(hide_password=False)) as store:
        beside = await a_session_beside_abandoned_branches(store)
    await execute(url, "ANALYZE")
    async with migrating(url) as transact:
        assert await transact(partial(_rows_of, beside, 2, None)) == (3, 4)


# -- many rewinds ------------------------------------------------------------------------------------------------------

REWINDS = 50


async def a_session_of_many_branches(store: Store) -> SessionUid:
    """A session whose path crosses a branch for each rewind: each goes back by one commit and grows by two."""
    lease = await a_held_session(store)
    before = await commit_nodes(store, lease, says("0"))
    for number in range(1, REWINDS + 1):
        await commit_nodes(store, lease, says(f"{number}, given up"))
        await rewind(store, lease, leaf_of(before))
        before = await commit_nodes(store, lease, says(f"{number}"))
    return lease.session


@pytest.fixture(params=["sqlite", "postgres"])
async def either_store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    url = f"sqlite:///{tmp_path}/branches.db"
    if request.param == "postgres":
        url = request.getfixturevalue("postgres").shared.render_as_string(hide_password=False)
    async with await open_store(url) as store:
        yield store


async def test_a_path_over_many_rewinds_is_two_statements(either_store: Store) -> None:
    """One finds the branches, one reads the nodes, however many branches there are."""
    uid = await a_session_of_many_branches(either_store)
    for read in (either_store.nodes, either_store.snapshot):
        with counting() as cost:
            await read(uid)
        assert sum("lash_nodes" in statement for statement in cost.statements) == 1
        assert sum("lash_branches" in statement for statement in cost.statements) <= 1
    words = await said(either_store, uid)
    assert words == [str(number) for number in range(REWINDS + 1)]


async def test_a_node_at_the_root_of_many_rewinds_is_found_in_few_statements(either_store: Store) -> None:
    uid = await a_session_of_many_branches(either_store)
    [root] = await either_store.nodes(uid, last=0)
    with counting() as cost:
        assert await either_store.on_active_path(uid, root.id)
    assert sum("lash_branches" in statement for statement in cost.statements) <= 1
