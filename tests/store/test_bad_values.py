"""Values that no database can keep: a clear error and nothing written. Whatever is accepted comes back equal."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from lash.commit import parts as commit_parts
from lash.commit.outbox import Owed
from lash.commit.parts import Changed
from lash.commit.plan import CommitPlan, CommitReceipt
from lash.commit.usage import MAX_TOKENS, Tokens, UsageDelta
from lash.encoding import JsonObject
from lash.errors import (
    Conflict,
    InvalidValue,
    LashError,
    LeaseLost,
    NotFound,
    OutboxNotFound,
    RevisionMoved,
    TooLarge,
    UsageError,
)
from lash.graph.delta import Append
from lash.graph.nodes import PluginRecorded
from lash.ids import ItemId, OperationId, OwnerId, ReplayKey, SessionName
from lash.inbox.items import Command, Wake
from lash.limits import MAX_BODY
from lash.store.contract import SessionFilter, Store
from lash.store.sql import store as sql_store
from lash.testing.builders import (
    TTL,
    a_fork,
    a_message,
    a_new_session,
    a_request_id,
    a_wait,
    an_effect,
    an_opening,
    append,
    finished,
    says,
)
from lash.turn.journal import Identity, Started
from lash.turn.record import TurnSettlement
from lash.waits import NewWait
from tests.store.sample import Copy, Sample

Call = Callable[[Store, Sample, Any], Awaitable[Any]]


async def settle(
    store: Store, sample: Sample, *, outcome: str = "finished", summary: Any = None, **more: Any
) -> object:
    """Commit the open turn, with something in it that may be refused."""
    session = await store.find(sample.victim)
    settles = TurnSettlement(
        sample.turn, outcome, completes=frozenset([sample.taken]), summary={} if summary is None else summary
    )
    plan = CommitPlan(OperationId(sample.turn), sample.lease, base=session.head.revision, settles=settles)
    return await store.commit(replace(plan, **more))


async def say(store: Store, sample: Sample, payload: Any, **changes: Any) -> CommitReceipt:
    """Commit the open turn with one node, changed before it is sent."""
    session = await store.find(sample.victim)
    delta = append(session, OperationId(sample.turn), payload)
    nodes = tuple(replace(node, **changes) for node in delta.nodes)
    return await settle(store, sample, delta=Append(nodes))  # type: ignore[return-value]


async def all_refused(copy: Copy, calls: dict[str, Call], value: object, *errors: type[LashError]) -> None:
    """Every one of these calls refuses the value with one of these errors, and nothing is written."""
    before = await copy.dump()
    async with await copy.open() as store:
        answers = {what: await _outcome(call(store, copy.sample, value)) for what, call in calls.items()}
    assert {what: answer for what, answer in answers.items() if not isinstance(answer, errors)} == {}
    assert await copy.dump() == before


async def _outcome(call: Awaitable[object]) -> object:
    [outcome] = await asyncio.gather(call, return_exceptions=True)
    return outcome


# -- JSON --------------------------------------------------------------------------------------------------------------

JSON: dict[str, Call] = {
    "the config of a new session": lambda store, s, x: store.create(replace(a_new_session(), config={"x": x})),
    "the metadata of a new session": lambda store, s, x: store.open(a_new_session(metadata={"x": x})),
    "the metadata of a fork": lambda store, s, x: store.fork(a_fork(s.victim, s.boundary, metadata={"x": x})),
    "a document": lambda store, s, x: store.put_document(s.victim, "metadata", {"x": x}, expected=0),
    "a document of a commit": lambda store, s, x: settle(store, s, documents={"catalog": {"x": x}}),
    "the options of an item": lambda store, s, x: store.admit(s.victim, a_message(options={"x": x})),
    "the arguments of a command": lambda store, s, x: store.admit(
        s.victim, replace(a_message(), body=Command.model_construct(name="x", arguments={"x": x}))
    ),
    "the data of a wake": lambda store, s, x: store.admit(
        s.victim, replace(a_message(), body=Wake.model_construct(source="x", data=x))
    ),
    "an item of an opening": lambda store, s, x: store.open_turn(
        an_opening(s.victim, admits=a_message(options={"x": x}))
    ),
    "an outcome": lambda store, s, x: store.record(s.lease, s.turn, [finished(an_effect("new"), [x])]),
    "an answer": lambda store, s, x: store.answer(s.answered_key, {"x": x}),
    "a turn's summary": lambda store, s, x: settle(store, s, summary={"x": x}),
    "a plugin's node": lambda store, s, x: say(store, s, PluginRecorded.model_construct(plugin="p", data=x)),
    "what is owed": lambda store, s, x: settle(
        store, s, owes=(Owed(s.healthy, Wake.model_construct(source="x", data=x)),)
    ),
    "the options of what is owed": lambda store, s, x: settle(
        store, s, owes=(Owed(s.healthy, Wake(source="x"), options={"x": x}),)
    ),
}


def _nested(levels: int) -> Any:
    value: Any = 0
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("value", "error"),
    [
        pytest.param(float("nan"), InvalidValue, id="NaN"),
        pytest.param(float("-inf"), InvalidValue, id="minus infinity"),
        pytest.param("\ud800", InvalidValue, id="a lone surrogate"),
        pytest.param({"deep": ["\udfff"]}, InvalidValue, id="a lone surrogate deep inside"),
        pytest.param({1: "x"}, InvalidValue, id="a key that is a number"),
        pytest.param(b"x", InvalidValue, id="bytes"),
        pytest.param({1, 2}, InvalidValue, id="a set"),
        pytest.param(10**5000, InvalidValue, id="a number of 5,000 digits"),
        pytest.param(_nested(100_000), InvalidValue, id="a hundred thousand levels"),
        pytest.param("x" * MAX_BODY, TooLarge, id="more than 16 MiB"),
    ],
)
async def test_json_that_cannot_be_kept_is_refused_everywhere(
    copy: Copy, value: object, error: type[LashError]
) -> None:
    await all_refused(copy, JSON, value, error)


KEPT = {"nul\x00": "a\x00b", "large": 2**70, "small": -(2**70), "zero": -0.0, "float": 1.5e308, "deep": _nested(150)}


async def test_json_that_is_accepted_comes_back_equal(copy: Copy) -> None:
    sample = copy.sample
    async with await copy.open() as store:
        await store.put_document(sample.healthy, "metadata", KEPT, expected=0)
        assert (await store.document(sample.healthy, "metadata")).body == KEPT
        item = a_message(options=KEPT)
        await store.admit(sample.healthy, item)
        kept = await store.item(sample.healthy, item.id)
        assert kept is not None
        assert kept.options == KEPT
        await store.record(sample.lease, sample.turn, [finished(an_effect("new"), KEPT)])
        assert (await store.journal(sample.victim, sample.turn))[-1].outcome == KEPT
        wait = a_wait()
        await store.answer(await store.open_wait(sample.victim, wait), KEPT)
        assert (await store.wait(sample.victim, wait.id)).answer == KEPT


async def test_a_body_of_exactly_16_mib_is_kept_and_one_byte_more_is_not(copy: Copy) -> None:
    fits: JsonObject = {"x": "y" * (16 * 1024 * 1024 - len('{"x":""}'))}
    async with await copy.open() as store:
        await store.put_document(copy.sample.healthy, "config", fits, expected=0)
        assert (await store.document(copy.sample.healthy, "config")).body == fits
        with pytest.raises(TooLarge, match="16,777,217"):
            await store.put_document(copy.sample.healthy, "config", {"xx": fits["x"]}, expected=1)


async def test_a_blob_beyond_the_limit_is_refused(copy: Copy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sql_store, "MAX_BLOB", 10)
    monkeypatch.setattr(commit_parts, "MAX_BLOB", 10)
    calls: dict[str, Call] = {
        "a blob": lambda store, s, x: store.put_blob(x),
        "a state part": lambda store, s, x: settle(store, s, parts={"tools": Changed(x)}),
    }
    await all_refused(copy, calls, b"x" * 11, TooLarge)
    async with await copy.open() as store:
        assert await store.blob(await store.put_blob(b"x" * 10)) == b"x" * 10


OBJECTS: dict[str, Call] = {
    "the config of a new session": lambda store, s, x: store.create(replace(a_new_session(), config=x)),
    "the metadata of a new session": lambda store, s, x: store.open(replace(a_new_session(), metadata=x)),
    "the metadata of a fork": lambda store, s, x: store.fork(replace(a_fork(s.victim, s.boundary), metadata=x)),
    "a document": lambda store, s, x: store.put_document(s.victim, "metadata", x, expected=0),
    "a document of a commit": lambda store, s, x: settle(store, s, documents={"catalog": x}),
    "the options of an item": lambda store, s, x: store.admit(s.victim, replace(a_message(), options=x)),
    "an item of an opening": lambda store, s, x: store.open_turn(
        an_opening(s.victim, admits=replace(a_message(), options=x))
    ),
    "a turn's summary": lambda store, s, x: settle(
        store, s, settles=TurnSettlement(s.turn, "finished", completes=frozenset([s.taken]), summary=x)
    ),
    "the options of what is owed": lambda store, s, x: settle(
        store, s, owes=(Owed(s.healthy, Wake(source="x"), options=x),)
    ),
}


@pytest.mark.parametrize("value", [[], ["x"], "", "text", None, 5, True], ids=repr)
async def test_what_must_be_an_object_and_is_none_is_refused_everywhere(copy: Copy, value: object) -> None:
    await all_refused(copy, OBJECTS, value, InvalidValue)


# -- text in columns ---------------------------------------------------------------------------------------------------

TEXTS: dict[str, Call] = {
    "a name": lambda store, s, x: store.create(a_new_session(x)),
    "an agent": lambda store, s, x: store.create(a_new_session(agent=x)),
    "the name of a fork": lambda store, s, x: store.fork(a_fork(s.victim, s.boundary, x)),
    "a key": lambda store, s, x: store.admit(s.victim, a_message(key=x)),
    "a merge key": lambda store, s, x: store.admit(s.victim, a_message(merge_key=x)),
    "an item's id": lambda store, s, x: store.admit(s.victim, replace(a_message(), id=ItemId(x))),
    "an owner": lambda store, s, x: store.acquire(s.healthy, OwnerId(x), ttl=TTL),
    "the owner of an opening": lambda store, s, x: store.open_turn(an_opening(s.victim, x)),
    "a reason": lambda store, s, x: store.request_cancel(s.victim, s.turn, a_request_id(), reason=x),
    "a replay key": lambda store, s, x: store.record(s.lease, s.turn, [an_effect(x)]),
    "a composition": lambda store, s, x: store.record(
        s.lease, s.turn, [Started(ReplayKey("new"), Identity("model", 1), composition=x)]
    ),
    "the name of a wait": lambda store, s, x: store.open_wait(s.victim, a_wait(x)),
    "an outcome": lambda store, s, x: settle(store, s, outcome=x),
    "the name of a part": lambda store, s, x: settle(store, s, parts={x: Changed(b"")}),
    "the source of usage": lambda store, s, x: settle(store, s, usage=(UsageDelta(x, "m", Tokens()),)),
    "the model of usage": lambda store, s, x: settle(store, s, usage=(UsageDelta("agent", x, Tokens()),)),
    "a node's kind": lambda store, s, x: say(store, s, says("hi"), kind=x),
    "a node's body": lambda store, s, x: say(store, s, says("hi"), body=x),
    "the merge key of what is owed": lambda store, s, x: settle(
        store, s, owes=(Owed(s.healthy, Wake(source="x"), merge_key=x),)
    ),
    "an agent to list": lambda store, s, x: store.sessions(SessionFilter(agent=x)),
    "a prefix to list": lambda store, s, x: store.sessions(SessionFilter(name_prefix=x)),
    "an agent to work for": lambda store, s, x: store.ready([x]),
}


@pytest.mark.parametrize("text", ["a\x00b", "a\ud800b"], ids=ascii)
async def test_text_that_no_column_can_hold_is_refused_as_bad_input(copy: Copy, text: str) -> None:
    await all_refused(copy, TEXTS, text, UsageError)


async def test_a_name_that_cannot_be_is_not_found(copy: Copy) -> None:
    calls: dict[str, Call] = {"get": lambda store, s, x: store.get(SessionName(x))}
    for text in ("a\x00b", "a\ud800b", "", "n" * 100_000):
        await all_refused(copy, calls, text, NotFound)


# -- numbers -----------------------------------------------------------------------------------------------------------

HUGE = 2**70


@pytest.mark.parametrize("count", [HUGE, MAX_TOKENS + 1, -1, True, 1.5])
async def test_a_count_of_tokens_that_cannot_be_is_refused(copy: Copy, count: int) -> None:
    calls: dict[str, Call] = {
        bucket: lambda store, s, x, bucket=bucket: settle(  # type: ignore[misc]
            store, s, usage=(UsageDelta("agent", "m", Tokens(**{bucket: x})),)
        )
        for bucket in ("input", "cache_read", "cache_write", "output", "reasoning")
    }
    await all_refused(copy, calls, count, InvalidValue)


@pytest.mark.parametrize("seq", [HUGE, 2**63, -1, "one"])
async def test_a_nodes_event_that_cannot_be_is_refused(copy: Copy, seq: object) -> None:
    await all_refused(copy, {"seq": lambda store, s, x: say(store, s, says("hi"), seq=x)}, seq, UsageError)


@pytest.mark.parametrize(
    "ordinal",
    [
        -1,
        HUGE,
    ],
)
async def test_a_debt_that_cannot_be_is_not_found(copy: Copy, ordinal: int) -> None:
    deliver: Call = lambda store, s, x: store.deliver(replace(s.debt, ordinal=x))  # noqa: E731
    await all_refused(copy, {"deliver": deliver}, ordinal, OutboxNotFound)


async def test_numbers_that_no_row_has_are_answered_as_such(copy: Copy) -> None:
    calls: dict[str, Call] = {
        "the revision of a document": lambda store, s, x: store.document(s.victim, "config", x),
        "the revision to replace": lambda store, s, x: store.put_document(s.victim, "config", {}, expected=x),
    }
    for revision in (HUGE, 2**40, -1):
        await all_refused(copy, calls, revision, RevisionMoved)
    renew: Call = lambda store, s, x: store.renew(replace(s.lease, generation=x), ttl=TTL)  # noqa: E731
    await all_refused(copy, {"a generation": renew}, HUGE, LeaseLost)
    async with await copy.open() as store:
        assert await store.nodes(copy.sample.victim, first=HUGE) == []
        assert len(await store.nodes(copy.sample.victim, first=-HUGE, last=HUGE)) == 7


@pytest.mark.parametrize("ttl", [timedelta(0), timedelta(seconds=-1), timedelta(minutes=11), timedelta.max], ids=str)
async def test_a_lease_that_lasts_no_time_or_for_ever_is_refused(copy: Copy, ttl: timedelta) -> None:
    calls: dict[str, Call] = {
        "acquire": lambda store, s, x: store.acquire(s.healthy, OwnerId("owner"), ttl=x),
        "renew": lambda store, s, x: store.renew(s.lease, ttl=x),
        "open_turn": lambda store, s, x: store.open_turn(an_opening(s.victim, ttl=x)),
    }
    await all_refused(copy, calls, ttl, InvalidValue)


# -- times -------------------------------------------------------------------------------------------------------------

TIMES: dict[str, Call] = {
    "an item's time": lambda store, s, at: store.admit(s.victim, a_message(available_at=at)),
    "a wait's deadline": lambda store, s, at: store.open_wait(s.victim, NewWait(a_wait().id, "w", expires_at=at)),
    "the end of a sleep": lambda store, s, at: store.park(s.lease, s.turn, until=at),
    "a node's time": lambda store, s, at: say(store, s, says("hi"), at=at),
    "the time of what is owed": lambda store, s, at: settle(
        store, s, owes=(Owed(s.healthy, Wake(source="x"), available_at=at),)
    ),
    "the time of a vacuum": lambda store, s, at: store.vacuum(before=at),
}
EAST, WEST = timezone(timedelta(hours=14)), timezone(timedelta(hours=-12))


@pytest.mark.parametrize(
    "at",
    [
        datetime(2026, 1, 1),  # noqa: DTZ001
        datetime(1, 1, 1, tzinfo=EAST),
        datetime(9999, 12, 31, 23, 59, tzinfo=WEST),
    ],
    ids=str,
)
async def test_a_time_that_is_no_instant_is_refused(copy: Copy, at: datetime) -> None:
    await all_refused(copy, TIMES, at, InvalidValue)


@pytest.mark.parametrize("at", [datetime(1, 1, 1, tzinfo=UTC), datetime.max.replace(tzinfo=UTC)], ids=["1", "9999"])
async def test_the_first_and_the_last_instant_come_back_equal(copy: Copy, at: datetime) -> None:
    sample = copy.sample
    async with await copy.open() as store:
        item, wait = a_message(available_at=at), NewWait(a_wait().id, "w", expires_at=at)
        await store.admit(sample.victim, item)
        await store.open_wait(sample.victim, wait)
        await say(store, sample, says("hi"), at=at)
        kept = await store.item(sample.victim, item.id)
        assert kept is not None
        assert kept.available_at == at
        assert (await store.wait(sample.victim, wait.id)).expires_at == at
        assert (await store.nodes(sample.victim))[-1].at == at
        await store.vacuum(before=at, dry_run=True)


# -- ids ---------------------------------------------------------------------------------------------------------------

IDS: dict[str, Call] = {
    "find": lambda store, s, x: store.find(x),
    "snapshot": lambda store, s, x: store.snapshot(x),
    "admit": lambda store, s, x: store.admit(x, a_message()),
    "delete": lambda store, s, x: store.delete(x),
    "renew": lambda store, s, x: store.renew(replace(s.lease, session=x), ttl=TTL),
    "commit": lambda store, s, x: settle(store, s, lease=replace(s.lease, session=x)),
    "fork": lambda store, s, x: store.fork(a_fork(x, s.boundary)),
    "create": lambda store, s, x: store.create(replace(a_new_session(), uid=x)),
    "turn": lambda store, s, x: store.turn(s.victim, x),
    "record": lambda store, s, x: store.record(s.lease, x, [an_effect("new")]),
    "park": lambda store, s, x: store.park(s.lease, s.turn, waits=[x]),
    "wait": lambda store, s, x: store.wait(s.victim, x),
    "revoke": lambda store, s, x: store.revoke(s.victim, [x]),
    "request_cancel": lambda store, s, x: store.request_cancel(s.victim, s.turn, x, reason="enough"),
    "operation": lambda store, s, x: settle(store, s, operation=x),
    "cancelled_by": lambda store, s, x: settle(
        store, s, settles=TurnSettlement(s.turn, "cancelled", completes=frozenset([s.taken]), cancelled_by=x)
    ),
    "completes": lambda store, s, x: settle(
        store, s, settles=TurnSettlement(s.turn, "finished", completes=frozenset([x]))
    ),
    "node": lambda store, s, x: store.node(s.victim, x),
    "blob": lambda store, s, x: store.blob(x),
    "deliver": lambda store, s, x: store.deliver(replace(s.debt, operation=x)),
    "owed to": lambda store, s, x: settle(store, s, owes=(Owed(x, Wake(source="x")),)),
}


@pytest.mark.parametrize("text", ["", "nope", "a\x00b", "\ud800", "ab", "A" * 32, "f" * 999], ids=ascii)
async def test_an_id_that_nobody_minted_is_bad_input_or_not_found(copy: Copy, text: str) -> None:
    await all_refused(copy, IDS, text, UsageError, NotFound, Conflict)
