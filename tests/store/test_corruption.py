"""What is stored is not what was written: each damage is refused by name, alone, and nothing is mended or written."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import subprocess
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any

import asyncpg
import pytest

from lash.commit.outbox import Owed
from lash.errors import (
    CorruptData,
    CorruptGraph,
    CorruptRecord,
    ForeignDatabase,
    LashError,
    RecordVersionMalformed,
    RecordVersionMissing,
    RecordVersionUnsupported,
)
from lash.ids import ReplayKey, SessionName
from lash.inbox.cancelling import These
from lash.inbox.items import Wake
from lash.store.contract import Store
from lash.testing.builders import (
    TTL,
    Driven,
    a_fork,
    a_message,
    a_new_session,
    a_request_id,
    a_session,
    an_effect,
    an_opening,
    finished,
    must_acquire,
    plan_nodes,
    run_turn,
    said,
    says,
    settle_turn,
    text_of,
)
from lash.turn.journal import Identity
from tests.store.sample import Copy, Sample, SqliteCopy

Call = Callable[[Store, Sample], Awaitable[Any]]


@dataclass(frozen=True)
class Case:
    """A statement that damages the sample, a call that meets the damage, and what it must say.

    The fields of the sample may stand in ``damage`` and ``names`` in braces.
    """

    id: str
    damage: str
    call: Call
    error: type[LashError]
    names: tuple[str, ...]

    def of(self, text: str, sample: Sample) -> str:
        for name in sample.__slots__:
            text = text.replace(f"{{{name}}}", str(getattr(sample, name)))
        return text

    async def inflict(self, copy: Copy) -> None:
        await copy.execute(self.of(self.damage, copy.sample))

    def check(self, refusal: BaseException, sample: Sample) -> None:
        assert type(refusal) is self.error, f"{self.id}: {refusal!r}"
        for name in self.names:
            assert self.of(name, sample) in str(refusal)


def each(*cases: Case) -> pytest.MarkDecorator:
    params = [pytest.param(case, id=case.id) for case in cases]
    return pytest.mark.parametrize("case", params)


async def refused(case: Case, copy: Copy, store: Store) -> None:
    """The damage is met and named, and nothing is written."""
    await case.inflict(copy)
    before = await copy.dump()
    try:
        answer = await case.call(store, copy.sample)
    except Exception as refusal:
        case.check(refusal, copy.sample)
    else:
        pytest.fail(f"{case.id}: answered with {answer!r}")
    assert await copy.dump() == before, case.id


async def goes_on(store: Store, sample: Sample) -> None:
    """A session that has nothing to do with the damage takes its next turn."""
    await run_turn(store, sample.healthy, "still here?")
    assert await said(store, sample.healthy) == ["hello", "re: hello", "still here?", "re: still here?"]


async def refused_alone(case: Case, copy: Copy) -> None:
    async with await copy.open() as store:
        await refused(case, copy, store)
        await goes_on(store, copy.sample)


async def payloads(store: Store, sample: Sample) -> object:
    return [node.payload for node in await store.nodes(sample.victim)]


async def payloads_of_the_frame(store: Store, sample: Sample) -> object:
    return [node.payload for node in (await store.snapshot(sample.victim)).nodes]


async def payload_of_the_leaf(store: Store, sample: Sample) -> object:
    return (await store.node(sample.victim, sample.leaf)).payload


# -- the graph ---------------------------------------------------------------------------------------------------------

NODES = "DELETE FROM lash_nodes WHERE session = 1"
HEAD = "UPDATE lash_sessions SET {} WHERE id = 1"
BRANCH = "UPDATE lash_branches SET parent_session = 1, parent_branch = {}, parent_depth = {} WHERE session = 1"


def graph(
    title: str, damage: str, *names: str, call: Call = lambda store, sample: store.nodes(sample.victim), **more: Any
) -> Case:
    return Case(title, damage, call, CorruptGraph, names, **more)


def snapshot(store: Store, sample: Sample) -> Awaitable[object]:
    return store.snapshot(sample.victim)


@each(
    graph("a node in the middle is missing", f"{NODES} AND depth = 1", "depth 1 on branch 0 of session number 1"),
    graph("the first node is missing", f"{NODES} AND depth = 0", "depth 0 on branch 0 of session number 1"),
    graph("the leaf is missing", f"{NODES} AND depth = 6", "depth 6 on branch {branch} of session number 1"),
    graph("the frame is missing", f"{NODES} AND depth = 5", "depth 5 on branch {branch}", call=snapshot),
    graph("all nodes are missing", NODES, "depth 0 on branch 0 of session number 1"),
    graph(
        "a node is missing in the parent of a fork",
        f"{NODES} AND branch = 0 AND depth = 2",
        "depth 2 on branch 0 of session number 1",
        call=lambda store, sample: store.nodes(sample.child),
    ),
    graph(
        "one node is asked for and missing",
        f"{NODES} AND branch = 0 AND depth = 4",
        "depth 4 on branch 0 of session number 1",
        call=lambda store, sample: store.node(sample.victim, sample.left_behind),
    ),
    graph(
        "a commit is missing",
        "DELETE FROM lash_commits WHERE session = 1 AND revision = 4",
        "no commit wrote the node at depth 3 on branch {branch} of session number 1",
    ),
    graph(
        "a node names a commit that never was",
        "UPDATE lash_nodes SET revision = 99 WHERE session = 1 AND depth = 1",
        "no commit wrote the node at depth 1 on branch 0 of session number 1",
    ),
    graph(
        "a commit wrote fewer nodes than there are",
        "UPDATE lash_commits SET nodes = 1 WHERE session = 1 AND revision = 4",
        "no commit wrote the node at depth 4 on branch {branch} of session number 1",
    ),
    graph(
        "a commit began deeper than its nodes",
        "UPDATE lash_commits SET first_depth = 4 WHERE session = 1 AND revision = 4",
        "no commit wrote the node at depth 3 on branch {branch} of session number 1",
    ),
    graph("the leaf is elsewhere", HEAD.format("leaf = '{boundary}'"), "{victim}", "{boundary}", "{leaf}"),
    graph("there is no leaf", HEAD.format("leaf = NULL"), "{victim}", "depth 6, frame 5 and leaf None"),
    graph("the head is too deep", HEAD.format("depth = 9"), "depth 7 on branch {branch} of session number 1"),
    graph("the head is not deep enough", HEAD.format("depth = 4"), "{victim}", "{leaf}"),
    graph(
        "the head has a leaf and no depth",
        HEAD.format("depth = -1"),
        "{victim}",
    ),
    graph("a node's frame is below it", "UPDATE lash_nodes SET frame = 9 WHERE session = 1 AND depth = 6", "frame 9"),
    graph("a node has no frame", "UPDATE lash_nodes SET frame = -1 WHERE session = 1 AND depth = 1", "depth 1", "-1"),
    graph("the frame is below the head", HEAD.format("frame = 99"), "{victim}", call=snapshot),
    graph("the frame is above the root", HEAD.format("frame = -2"), "{victim}", call=snapshot),
    graph("the frame is no frame", HEAD.format("frame = 2"), "{victim}", call=snapshot),
    graph(
        "the branch of the head is missing",
        "DELETE FROM lash_branches WHERE session = 1 AND branch = {branch}",
        "branch {branch} of session number 1",
    ),
    graph(
        "the branch below is missing",
        "DELETE FROM lash_branches WHERE session = 1 AND branch = 0",
        "branch 0 of session number 1",
        call=lambda store, sample: store.on_active_path(sample.victim, sample.boundary),
    ),
    graph("the head is on a branch that never was", HEAD.format("branch = 77"), "branch 77 of session number 1"),
    graph(
        "a fork's branch is missing",
        "DELETE FROM lash_branches WHERE session = 3",
        "branch 0 of session number 3",
        call=lambda store, sample: store.node(sample.child, sample.boundary),
    ),
    graph(
        "branches grow from each other",
        BRANCH.format("{branch}", 2) + " AND branch = 0",
        "session number 1 grew from itself",
    ),
    graph(
        "a branch grows from itself",
        BRANCH.format("{branch}", 2) + " AND branch = {branch}",
        "branch {branch} of session number 1 grew from itself",
    ),
)
async def test_a_damaged_graph_is_refused_with_the_place(copy: Copy, case: Case) -> None:
    await refused_alone(case, copy)


# -- records -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fault:
    text: str
    error: type[LashError]
    says: str = ""


FAULTS = {
    "not JSON": Fault('{"v":1', CorruptRecord, "not JSON"),
    "empty": Fault("", CorruptRecord, "not JSON"),
    "with a NaN": Fault('{"v":1,"json":NaN}', CorruptRecord, "not JSON"),
    "not an object": Fault("[1]", CorruptRecord, "object"),
    "without a version": Fault('{"json":{}}', RecordVersionMissing),
    "of version null": Fault('{"v":null}', RecordVersionMalformed, "None"),
    "of version '1'": Fault('{"v":"1"}', RecordVersionMalformed, "'1'"),
    "of version 0": Fault('{"v":0}', RecordVersionMalformed, "0"),
    "of version -1": Fault('{"v":-1}', RecordVersionMalformed, "-1"),
    "of version true": Fault('{"v":true}', RecordVersionMalformed, "True"),
    "of version 2": Fault('{"v":2}', RecordVersionUnsupported, "2"),
    "with other fields": Fault('{"v":1,"surprise":true}', CorruptRecord),
}
LEAF_BODY = "lash_nodes SET body = {} WHERE session = 1 AND depth = 6"
RECORDS: dict[str, tuple[str, Call, str]] = {
    "a node": (LEAF_BODY, payloads, "node {leaf}"),
    "a node of the frame": (LEAF_BODY, payloads_of_the_frame, "node {leaf}"),
    "one node": (LEAF_BODY, payload_of_the_leaf, "node {leaf}"),
    "an item": (
        "lash_inbox SET body = {} WHERE session = 1 AND state = 'pending'",
        lambda store, sample: store.item(sample.victim, sample.pending),
        "item {pending}",
    ),
    "an item's options": (
        "lash_inbox SET options = {} WHERE session = 1 AND state = 'taken'",
        lambda store, sample: store.items(sample.victim),
        "item {taken}",
    ),
    "a turn's options": (
        "lash_turns SET options = {} WHERE session = 1 AND state = 'open'",
        lambda store, sample: store.unsettled_turn(sample.victim),
        "turn {turn}",
    ),
    "a turn's summary": (
        "lash_turns SET summary = {} WHERE session = 1 AND state = 'settled'",
        lambda store, sample: store.turn(sample.victim, sample.settled_turn),
        "turn {settled_turn}",
    ),
    "an effect's identity": (
        "lash_journal SET identity = {} WHERE key = 'tool:1'",
        lambda store, sample: store.journal(sample.victim, sample.turn),
        "journal entry 'tool:1'",
    ),
    "an effect's outcome": (
        "lash_journal SET outcome = {} WHERE key = 'model:1'",
        lambda store, sample: store.journal(sample.victim, sample.turn),
        "journal entry 'model:1'",
    ),
    "an answer": (
        "lash_waits SET answer = {}",
        lambda store, sample: store.wait(sample.victim, sample.answered),
        "wait {answered}",
    ),
    "a debt": (
        "lash_outbox SET body = {}",
        lambda store, sample: store.deliver(sample.debt),
        "outbox item 0 of operation",
    ),
    "a document": (
        "lash_documents SET body = {} WHERE session = 1 AND kind = 'config' AND revision = 1",
        snapshot,
        "config of session {victim}",
    ),
}


@pytest.mark.parametrize("record", RECORDS)
async def test_a_damaged_record_is_refused_by_its_name(copy: Copy, record: str) -> None:
    damage, call, name = RECORDS[record]
    async with await copy.open() as store:
        for how, fault in FAULTS.items():
            case = Case(how, f"UPDATE {damage.replace('{}', repr(fault.text))}", call, fault.error, (name, fault.says))
            await refused(case, copy, store)
        await goes_on(store, copy.sample)


NO_CONFIG = "DELETE FROM lash_documents WHERE session = 1 AND kind = 'config' AND revision = 1"
LIST = json.dumps({"json": [1], "v": 1})


def record(title: str, damage: str, name: str, call: Call, **more: Any) -> Case:
    return Case(title, f"UPDATE {damage}", call, CorruptRecord, (name,), **more)


@each(
    record("a node of no known kind", "lash_nodes SET kind = 'surprise' WHERE depth = 6", "'surprise'", payloads),
    record(
        "a node with the fields of another kind",
        "lash_nodes SET kind = 'frame_opened' WHERE session = 1 AND depth = 6",
        "node {leaf}",
        payloads,
    ),
    record(
        "an item's options that are a list",
        f"lash_inbox SET options = '{LIST}' WHERE session = 1 AND state = 'pending'",
        "item {pending}",
        lambda store, sample: store.item(sample.victim, sample.pending),
    ),
    record(
        "a turn's options that are a list",
        f"lash_turns SET options = '{LIST}' WHERE session = 1 AND state = 'open'",
        "turn {turn}",
        snapshot,
    ),
    record(
        "a document that is a list",
        f"lash_documents SET body = '{LIST}' WHERE session = 1",
        "config of session {victim}",
        snapshot,
    ),
    record(
        "an identity with a step that is a word",
        """lash_journal SET identity = '{"kind":"model","step":"one","v":1}'""",
        "journal entry",
        lambda store, sample: store.journal(sample.victim, sample.turn),
    ),
    record(
        "an effect that completed without an outcome",
        "lash_journal SET outcome = NULL",
        "journal entry 'model:1'",
        lambda store, sample: store.journal(sample.victim, sample.turn),
    ),
    record(
        "a wait that was answered with nothing",
        "lash_waits SET answer = NULL",
        "wait {answered}",
        lambda store, sample: store.wait(sample.victim, sample.answered),
    ),
    record(
        "a turn without a summary",
        "lash_turns SET summary = NULL WHERE session = 1",
        "turn {turn}",
        snapshot,
    ),
    record(
        "a turn whose list of items is cut off",
        "lash_turns SET items = substr(items, 1, 9) WHERE session = 1",
        "turn {turn}",
        snapshot,
    ),
    Case(
        "a current document that is missing",
        NO_CONFIG,
        lambda store, sample: store.document(sample.victim, "config"),
        CorruptRecord,
        ("session {victim}", "no config of its current revision 1"),
    ),
    Case(
        "a snapshot without its config",
        NO_CONFIG,
        snapshot,
        CorruptRecord,
        ("session {victim}", "no config of its current revision 1"),
    ),
    Case(
        "a blob with other bytes",
        "UPDATE lash_blobs SET body = hash",
        lambda store, sample: store.blob(sample.blob),
        CorruptRecord,
        ("{blob}",),
    ),
)
async def test_a_record_that_cannot_be_what_was_written_is_refused(copy: Copy, case: Case) -> None:
    await refused_alone(case, copy)


# -- sessions ----------------------------------------------------------------------------------------------------------


def row(title: str, change: str, error: type[LashError], *names: str, **more: Any) -> Case:
    call: Call = more.pop("call", lambda store, sample: store.find(sample.victim))
    return Case(title, HEAD.format(change), call, error, ("session {victim}", *names), **more)


@each(
    row("a newer version", "version = 2", RecordVersionUnsupported, "2", "up to 1"),
    row("version 0", "version = 0", RecordVersionMalformed, "0"),
    row("a negative version", "version = -1", RecordVersionMalformed, "-1"),
    row(
        "a newer version, found by name",
        "version = 2",
        RecordVersionUnsupported,
        call=lambda store, sample: store.get(SessionName("victim")),
    ),
    row("a newer version, opened cold", "version = 2", RecordVersionUnsupported, call=snapshot),
    Case(
        "a time that no calendar has",
        HEAD.format("created_at = 9223372036854775807"),
        lambda store, sample: store.find(sample.victim),
        CorruptRecord,
        ("9223372036854775807 is no instant",),
    ),
)
async def test_a_session_row_that_cannot_be_read_is_refused_by_its_uid(copy: Copy, case: Case) -> None:
    await refused_alone(case, copy)


# -- counters ----------------------------------------------------------------------------------------------------------

LAST = 2**63 - 1
LAST_OF_A_SMALL_ONE = 2**31 - 1


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(lambda store, sample: store.find(sample.victim), id="find"),
        pytest.param(lambda store, sample: store.get(SessionName("victim")), id="get"),
        pytest.param(snapshot, id="snapshot"),
        pytest.param(lambda store, sample: store.admit(sample.victim, a_message()), id="admit"),
        pytest.param(lambda store, sample: store.open_turn(an_opening(sample.victim)), id="open_turn"),
        pytest.param(lambda store, sample: store.renew(sample.lease, ttl=TTL), id="renew"),
        pytest.param(lambda store, sample: store.open(a_new_session("victim")), id="open"),
    ],
)
@pytest.mark.parametrize("counter", ["revision", "seq", "lease_generation"])
async def test_a_counter_that_has_run_out_is_refused_before_anything_is_counted(
    copy: Copy, counter: str, call: Call
) -> None:
    damage = HEAD.format(f"{counter} = {LAST}")
    await refused_alone(Case(counter, damage, call, CorruptRecord, ("session {victim}", "counters")), copy)


async def test_a_session_that_cannot_be_read_does_not_hide_the_others_from_a_listing(copy: Copy) -> None:
    async with await copy.open() as store:
        everybody = [session.uid for session in (await store.sessions()).rows]
        await copy.execute(HEAD.format("version = 99"))
        found = (await store.sessions()).rows
        assert [session.uid for session in found] == [uid for uid in everybody if uid != copy.sample.victim]
        first = await store.sessions(limit=1)
        assert first.next is not None
        assert (await store.sessions(after=first.next)).rows == found[len(first.rows) :]


async def test_a_debt_that_cannot_be_read_does_not_hold_up_the_others(copy: Copy) -> None:
    async with await copy.open() as store:
        debtor = await a_session(store)
        owes = (Owed(copy.sample.healthy, Wake(source="a neighbour")),)
        plan = await plan_nodes(store, await must_acquire(store, debtor.uid), says("owing"))
        await store.commit(replace(plan, owes=owes))
        await copy.execute("UPDATE lash_outbox SET body = 'rubbish' WHERE state = 'owed' AND session = 1")
        assert [debt.session for debt in await store.debts(limit=1)] == [debtor.uid]


NUMBERS = [(counter, value) for counter in ("config_revision", "depth", "frame") for value in (-1, LAST_OF_A_SMALL_ONE)]


@pytest.mark.parametrize(("counter", "value"), NUMBERS)
async def test_a_number_that_nothing_counted_is_refused_by_who_reads_it(copy: Copy, counter: str, value: int) -> None:
    await copy.execute(HEAD.format(f"{counter} = {value}"))
    before = await copy.dump()
    async with await copy.open() as store:
        with pytest.raises(CorruptData, match=f"{copy.sample.victim}|session number 1"):
            await store.snapshot(copy.sample.victim)
        assert await copy.dump() == before
        await goes_on(store, copy.sample)


@pytest.mark.parametrize(("counter", "value"), NUMBERS)
async def test_nothing_is_built_on_a_number_that_nothing_counted(copy: Copy, counter: str, value: int) -> None:
    """It is met as damage, not as an error of arithmetic or as a head to go on from."""
    await copy.execute(HEAD.format(f"{counter} = {value}"))
    before = await copy.dump()
    async with await copy.open() as store:
        with pytest.raises(CorruptData, match=copy.sample.victim):
            await _build_on(counter, value, store, copy.sample)
        after = await copy.dump()
        assert [after[table] for table in GROWING] == [before[table] for table in GROWING]
        await goes_on(store, copy.sample)


GROWING = ("lash_nodes", "lash_commits", "lash_documents")


async def _build_on(counter: str, value: int, store: Store, sample: Sample) -> None:
    if counter == "config_revision":
        await store.put_document(sample.victim, "config", {"a": 1}, expected=value)
    else:
        await driven(sample, store)


async def test_a_version_that_is_a_word_is_refused_where_a_column_takes_one(sqlite_copy: SqliteCopy) -> None:
    await refused_alone(row("a word", "version = 'one'", RecordVersionMalformed, "'one'"), sqlite_copy)


@pytest.mark.parametrize(
    ("damage", "error", "says"),
    [
        pytest.param("DELETE FROM lash_meta WHERE name = 'secret'", CorruptData, "'secret'", id="no secret"),
        pytest.param(
            "DELETE FROM lash_meta WHERE name = 'oldest_runtime'", CorruptData, "'oldest_runtime'", id="no oldest lash"
        ),
        pytest.param(
            "UPDATE lash_meta SET value = 'new' WHERE name = 'oldest_runtime'", CorruptData, "'new'", id="no version"
        ),
        pytest.param(
            "UPDATE lash_meta SET value = 'open sesame' WHERE name = 'secret'",
            CorruptData,
            "'secret'",
            id="a secret that is no hex",
        ),
        pytest.param("DELETE FROM lash_version", ForeignDatabase, "lash_version", id="no revision"),
        pytest.param("UPDATE lash_version SET version_num = 'x'", ForeignDatabase, "'x'", id="a revision not ours"),
    ],
)
async def test_a_database_that_does_not_know_itself_is_not_opened(
    copy: Copy, damage: str, error: type[LashError], says: str
) -> None:
    await copy.execute(damage)
    before = await copy.dump()
    with pytest.raises(error, match=says) as refusal:
        await copy.open()
    assert "sesame" not in str(refusal.value)
    assert await copy.dump() == before


# -- writes ------------------------------------------------------------------------------------------------------------

BODY = """'{"v":2}'"""


def driven(sample: Sample, store: Store) -> Any:
    async def settle() -> None:
        opened = await store.open_turn(an_opening(sample.victim))
        assert opened.turn is not None
        await settle_turn(store, Driven(sample.lease, opened.turn, opened.items, opened))

    return settle()


def write(title: str, damage: str, name: str, call: Call, error: type[LashError] | None = None, **more: Any) -> Case:
    return Case(title, damage, call, error or RecordVersionUnsupported, (name,), **more)


BAD_TURN = f"UPDATE lash_turns SET options = {BODY} WHERE session = 1 AND state = 'open'"
BAD_TAKEN = f"UPDATE lash_inbox SET body = {BODY} WHERE session = 1 AND state = 'taken'"
BAD_PENDING = f"UPDATE lash_inbox SET options = {BODY} WHERE session = 1 AND state = 'pending'"
BAD_ENTRY = f"UPDATE lash_journal SET identity = {BODY} WHERE key = 'model:1'"
BAD_WAIT = f"UPDATE lash_waits SET answer = {BODY}"
BAD_CONFIG = f"UPDATE lash_documents SET body = {BODY} WHERE session = 1"
BAD_SESSION = HEAD.format("version = 2")


@each(
    write(
        "admitting beside a damaged turn", BAD_TURN, "turn {turn}", lambda store, s: store.admit(s.victim, a_message())
    ),
    write(
        "admitting a damaged item again",
        BAD_PENDING,
        "item {pending}",
        lambda store, s: store.admit(s.victim, a_message("five", key="five")),
    ),
    write(
        "cancelling a damaged item",
        BAD_PENDING,
        "item {pending}",
        lambda store, s: store.cancel(s.victim, These((s.pending,))),
    ),
    write(
        "taking over a turn with a damaged item",
        BAD_TAKEN,
        "item {taken}",
        lambda store, s: store.open_turn(an_opening(s.victim)),
    ),
    write("settling a turn with a damaged item", BAD_TAKEN, "item {taken}", lambda store, s: driven(s, store)),
    write("renewing beside a damaged turn", BAD_TURN, "turn {turn}", lambda store, s: store.renew(s.lease, ttl=TTL)),
    write("parking a damaged turn", BAD_TURN, "turn {turn}", lambda store, s: store.park(s.lease, s.turn)),
    write("releasing beside a damaged turn", BAD_TURN, "turn {turn}", lambda store, s: store.release(s.lease)),
    write(
        "asking a damaged turn to stop",
        BAD_TURN,
        "turn {turn}",
        lambda store, s: store.request_cancel(s.victim, s.turn, a_request_id(), reason="enough"),
    ),
    write(
        "recording over a damaged entry",
        BAD_ENTRY,
        "journal entry 'model:1'",
        lambda store, s: store.record(s.lease, s.turn, [finished(an_effect("model:1"), {"text": "hi"})]),
    ),
    write(
        "answering a damaged wait",
        BAD_WAIT,
        "wait {answered}",
        lambda store, s: store.answer(s.answered_key, {"approved": True}),
    ),
    write(
        "revoking a damaged wait",
        BAD_WAIT,
        "wait {answered}",
        lambda store, s: store.revoke(s.victim, [s.answered]),
    ),
    write(
        "delivering a damaged debt",
        f"UPDATE lash_outbox SET body = {BODY}",
        "outbox item 0 of operation",
        lambda store, s: store.deliver(s.debt),
    ),
    write(
        "forking a session with a damaged config",
        BAD_CONFIG,
        "config of session {victim}",
        lambda store, s: store.fork(a_fork(s.victim, s.boundary)),
    ),
    write(
        "forking a session whose config is missing",
        "DELETE FROM lash_documents WHERE session = 1 AND kind = 'config'",
        "{victim}",
        lambda store, s: store.fork(a_fork(s.victim, s.boundary)),
        CorruptRecord,
    ),
    write(
        "forking at a node that is missing",
        f"{NODES} AND branch = 0 AND depth = 2",
        "depth 2 on branch 0 of session number 1",
        lambda store, s: store.fork(a_fork(s.victim, s.boundary)),
        CorruptGraph,
    ),
    write(
        "forking a fork whose branch is missing",
        "DELETE FROM lash_branches WHERE session = 3",
        "branch 0 of session number 3",
        lambda store, s: store.fork(a_fork(s.child, s.boundary)),
        CorruptGraph,
    ),
    write(
        "admitting to a session of a newer version",
        BAD_SESSION,
        "session {victim}",
        lambda store, s: store.admit(s.victim, a_message()),
    ),
    write(
        "opening a session of a newer version by name",
        BAD_SESSION,
        "session {victim}",
        lambda store, s: store.open(a_new_session("victim")),
    ),
    write(
        "deleting a session of a newer version",
        BAD_SESSION,
        "session {victim}",
        lambda store, s: store.delete(s.victim),
    ),
    write(
        "admitting beside a turn without a summary",
        "UPDATE lash_turns SET summary = NULL WHERE session = 1",
        "turn {turn}",
        lambda store, s: store.admit(s.victim, a_message()),
        CorruptRecord,
    ),
    write(
        "taking what the journal says was taken and is gone",
        f"""UPDATE lash_journal SET outcome = '{{"json":{{"items":["{"0" * 32}"]}},"v":1}}' WHERE key = 'model:1'""",
        "0" * 32,
        lambda store, s: store.take(
            s.lease, s.turn, "after_work", key=ReplayKey("model:1"), identity=Identity("model", 1)
        ),
        CorruptRecord,
    ),
    write(
        "taking over a turn of which an item is missing",
        "DELETE FROM lash_inbox WHERE session = 1 AND state = 'taken'",
        "{taken}",
        lambda store, s: store.open_turn(an_opening(s.victim)),
        CorruptRecord,
    ),
)
async def test_a_write_that_meets_damage_fails_alone(copy: Copy, case: Case) -> None:
    await case.inflict(copy)
    before = await copy.dump(without=HEALTHY)
    async with await copy.open() as store:
        item = a_message("beside it")
        refusal, admitted = await asyncio.gather(
            case.call(store, copy.sample), store.admit(copy.sample.healthy, item), return_exceptions=True
        )
        case.check(refusal, copy.sample)
        assert not isinstance(admitted, BaseException), repr(admitted)
        assert await store.item(copy.sample.healthy, item.id) == admitted
        assert text_of(admitted) == "beside it"
    assert await copy.dump(without=HEALTHY) == before


HEALTHY = 2

WALK = """
import asyncio, datetime, resource, sys
from lash.errors import CorruptGraph
from lash.store import open_store
from lash.testing.builders import a_fork

async def main(url, what, uid, node, gone):
    async with await open_store(url) as store:
        await store.delete(gone)
        spent = int(sum(resource.getrusage(resource.RUSAGE_SELF)[:2]))
        resource.setrlimit(resource.RLIMIT_CPU, (spent + 2, spent + 2))
        try:
            if what == "vacuum":
                await store.vacuum(before=datetime.datetime(2100, 1, 1, tzinfo=datetime.UTC))
            else:
                await store.fork(a_fork(uid, node))
        except CorruptGraph as error:
            print(error)

asyncio.run(main(*sys.argv[1:]))
"""
ROUND = (
    "UPDATE lash_branches SET parent_session = 3, parent_branch = 0, parent_depth = 1 WHERE session = 1 AND branch = 0"
)


@pytest.mark.parametrize("what", ["vacuum", "fork"])
async def test_a_walk_along_branches_that_grow_from_each_other_ends(sqlite_copy: SqliteCopy, what: str) -> None:
    await sqlite_copy.execute(ROUND)
    sample = sqlite_copy.sample
    gone = sample.child if what == "vacuum" else sample.healthy
    words = (sqlite_copy.url, what, sample.child, sample.leaf, gone)
    # In a process of its own, with two seconds to think: a writer that never returns could not be ended from here.
    walk = subprocess.run([sys.executable, "-c", WALK, *words], capture_output=True, text=True)
    assert "grew from itself" in walk.stdout


# -- what the tables themselves refuse ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE lash_sessions SET revision = -1",
        "UPDATE lash_sessions SET seq = -1",
        "UPDATE lash_sessions SET lease_generation = -1",
        "UPDATE lash_sessions SET state = 'asleep'",
        "UPDATE lash_sessions SET name = NULL",
        "UPDATE lash_sessions SET state = 'deleted'",
        "UPDATE lash_sessions SET name = 'healthy'",
        "UPDATE lash_sessions SET uid = (SELECT uid FROM lash_sessions WHERE id = 2)",
        "UPDATE lash_turns SET state = 'asleep'",
        "UPDATE lash_turns SET state = 'open' WHERE session = 1",
        "UPDATE lash_inbox SET state = 'lost'",
        "UPDATE lash_inbox SET key = 'same' WHERE session = 1",
        "UPDATE lash_inbox SET id = (SELECT max(id) FROM lash_inbox) WHERE session = 1",
        "UPDATE lash_journal SET state = 'lost'",
        "UPDATE lash_journal SET key = 'same'",
        "UPDATE lash_waits SET state = 'lost'",
        "UPDATE lash_waits SET session = 99",
        "UPDATE lash_outbox SET state = 'lost'",
        "UPDATE lash_commits SET revision = 1 WHERE session = 1",
        "UPDATE lash_branches SET parent_depth = NULL WHERE session = 3",
        "UPDATE lash_nodes SET session = 99",
        "UPDATE lash_nodes SET body = NULL",
        "UPDATE lash_state_parts SET blob = 99",
        "UPDATE lash_documents SET revision = 0 WHERE session = 1",
        "INSERT INTO lash_blob_refs SELECT 1, 'friend', 0, 0, id FROM lash_blobs",
        "DELETE FROM lash_blobs",
        "DELETE FROM lash_sessions",
    ],
)
async def test_the_tables_refuse_what_can_never_be(copy: Copy, statement: str) -> None:
    before = await copy.dump()
    with pytest.raises((sqlite3.IntegrityError, asyncpg.IntegrityConstraintViolationError)):
        await copy.execute(statement)
    assert await copy.dump() == before
