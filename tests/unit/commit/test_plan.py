from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from lash.commit.outbox import Owed
from lash.commit.parts import Changed, Kept
from lash.commit.plan import CommitPlan, check_plan, content_hash
from lash.commit.usage import Tokens, UsageDelta
from lash.errors import InvalidId, InvalidKey, InvalidValue, TooLarge
from lash.graph.delta import Append, MoveHead, Unchanged
from lash.graph.nodes import Node
from lash.ids import BlobHash, NodeId, OperationId, OwnerId
from lash.lease import ExecutionLease
from lash.turn.record import TurnSettlement

from ..samples import (
    LEASE,
    MINUTE,
    NOW,
    OPERATION,
    OTHER_OPERATION,
    OTHER_REQUEST,
    OTHER_SESSION,
    OTHER_TURN,
    REQUEST,
    SESSION,
    TURN,
    item_id,
    words,
)

NODE = Node(
    NodeId(f"{SESSION}-{OPERATION}-0"), NodeId("p"), 4, 2, "noted", '{"about":"x","parts":[],"v":1}', NOW, seq=5
)
SETTLEMENT = TurnSettlement(
    TURN,
    "cancelled",
    completes=frozenset({item_id(1), item_id(2)}),
    gives_back=frozenset({item_id(3)}),
    cancelled_by=REQUEST,
    summary={"attempts": 1},
)
USAGE = UsageDelta("agent", "m", Tokens(5, 4, 3, 2, 1))
OWED = Owed(OTHER_SESSION, words("done"))
PLAN = CommitPlan(
    OPERATION,
    LEASE,
    base=3,
    delta=Append((NODE, replace(NODE, id=NodeId(f"{SESSION}-{OPERATION}-1")))),
    settles=SETTLEMENT,
    parts={"tools": Changed(b"state"), "plugin": Kept(BlobHash("a" * 64))},
    usage=(USAGE,),
    owes=(OWED,),
    documents={"config": {"model": "m"}},
)


def with_node(**changes: Any) -> CommitPlan:
    assert isinstance(PLAN.delta, Append)
    first, second = PLAN.delta.nodes
    return replace(PLAN, delta=Append((replace(first, **changes), second)))


def settling(**changes: Any) -> CommitPlan:
    return replace(PLAN, settles=replace(SETTLEMENT, **changes))


def using(**changes: Any) -> CommitPlan:
    return replace(PLAN, usage=(replace(USAGE, **changes),))


def owing(**changes: Any) -> CommitPlan:
    return replace(PLAN, owes=(replace(OWED, **changes),))


def documented(documents: dict[Any, Any]) -> CommitPlan:
    return replace(PLAN, documents=documents)


SAME: dict[str, CommitPlan] = {
    "lease": replace(PLAN, lease=ExecutionLease(SESSION, OwnerId("other"), 9, NOW + MINUTE * 9)),
    "base": replace(PLAN, base=7),
    "release": replace(PLAN, release=True),
    "node.parent": with_node(parent=NodeId("q")),
    "node.no parent": with_node(parent=None),
    "node.depth": with_node(depth=8),
    "node.frame": with_node(frame=8),
    "node.at": with_node(at=NOW + MINUTE),
    "node.seq": with_node(seq=99),
    "node.encoded": with_node(encoded="x"),
    "node.blobs": with_node(blobs=frozenset({BlobHash("b" * 64)})),
    "settles.summary": settling(summary={"attempts": 2}),
    "owes.available_at": owing(available_at=NOW),
    "parts in another order": replace(PLAN, parts={"plugin": Kept(BlobHash("a" * 64)), "tools": Changed(b"state")}),
}

DIFFERENT: dict[str, CommitPlan] = {
    "operation": replace(PLAN, operation=OTHER_OPERATION),
    "delta.unchanged": replace(PLAN, delta=Unchanged()),
    "delta.move": replace(PLAN, delta=MoveHead(NODE.id)),
    "delta.move elsewhere": replace(PLAN, delta=MoveHead(NodeId(f"{SESSION}-{OPERATION}-1"))),
    "delta.fewer nodes": replace(PLAN, delta=Append((NODE,))),
    "delta.no nodes": replace(PLAN, delta=Append(())),
    "node.id": with_node(id=NodeId(f"{SESSION}-{OPERATION}-7")),
    "node.kind": with_node(kind="plugin_recorded"),
    "node.body": with_node(body='{"about":"y","parts":[],"v":1}'),
    "settles.nothing": replace(PLAN, settles=None),
    "settles.turn": settling(turn=OTHER_TURN),
    "settles.outcome": settling(outcome="finished"),
    "settles.completes": settling(completes=frozenset({item_id(1)})),
    "settles.gives_back": settling(gives_back=frozenset()),
    "settles.completes and gives_back swapped": settling(
        completes=SETTLEMENT.gives_back, gives_back=SETTLEMENT.completes
    ),
    "settles.cancelled_by": settling(cancelled_by=OTHER_REQUEST),
    "settles.cancelled_by nobody": settling(cancelled_by=None),
    "parts.left as they are": replace(PLAN, parts=None),
    "parts.none": replace(PLAN, parts={}),
    "parts.body": replace(PLAN, parts={**PLAN.parts, "tools": Changed(b"other")}),  # type: ignore[dict-item]
    "parts.kept": replace(PLAN, parts={**PLAN.parts, "plugin": Kept(BlobHash("b" * 64))}),  # type: ignore[dict-item]
    "parts.name": replace(PLAN, parts={"tools": Changed(b"state"), "plugin2": Kept(BlobHash("a" * 64))}),
    "usage.none": replace(PLAN, usage=()),
    "usage.twice": replace(PLAN, usage=(USAGE, USAGE)),
    "usage.source": using(source="compaction"),
    "usage.model": using(model="n"),
    "usage.input": using(tokens=Tokens(6, 4, 3, 2, 1)),
    "usage.cache_read": using(tokens=Tokens(5, 5, 3, 2, 1)),
    "usage.cache_write": using(tokens=Tokens(5, 4, 4, 2, 1)),
    "usage.output": using(tokens=Tokens(5, 4, 3, 3, 1)),
    "usage.reasoning": using(tokens=Tokens(5, 4, 3, 2, 2)),
    "owes.nothing": replace(PLAN, owes=()),
    "owes.twice": replace(PLAN, owes=(OWED, OWED)),
    "owes.to": owing(to=SESSION),
    "owes.body": owing(body=words("failed")),
    "owes.when": owing(when="now"),
    "owes.boundary": owing(boundary="before_completion"),
    "owes.merge_key": owing(merge_key="m"),
    "owes.options": owing(options={"a": 1}),
    "documents.none": documented({}),
    "documents.kind": documented({"metadata": {"model": "m"}}),
    "documents.body": documented({"config": {"model": "n"}}),
    "documents.more": documented({"config": {"model": "m"}, "metadata": {}}),
}


@pytest.mark.parametrize("again", SAME.values(), ids=SAME.keys())
def test_a_commit_said_again_from_another_place_and_time_is_the_same_commit(again: CommitPlan) -> None:
    assert content_hash(again) == content_hash(PLAN)


@pytest.mark.parametrize("other", DIFFERENT.values(), ids=DIFFERENT.keys())
def test_a_commit_that_says_anything_else_is_another_commit(other: CommitPlan) -> None:
    assert content_hash(other) != content_hash(PLAN)


def test_all_these_other_commits_differ_from_each_other() -> None:
    assert len({content_hash(plan) for plan in DIFFERENT.values()}) == len(DIFFERENT)


@pytest.mark.parametrize(
    ("values", "prefix", "elsewhere"),
    [
        (CommitPlan, "", {"delta", "settles", "parts", "usage", "owes", "documents"}),
        (Node, "node.", set()),
        (TurnSettlement, "settles.", set()),
        (Owed, "owes.", set()),
        (UsageDelta, "usage.", {"tokens"}),
        (Tokens, "usage.", set()),
    ],
)
def test_every_field_of_a_commit_was_decided_to_be_content_or_not(
    values: Any, prefix: str, elsewhere: set[str]
) -> None:
    tried = {*SAME, *DIFFERENT}
    assert {field for field in values.__slots__ if prefix + field not in tried} == elsewhere


def test_a_part_that_was_changed_and_one_that_is_kept_are_the_same_content_when_their_bytes_are() -> None:
    # printf 'state' | sha256sum
    stored = BlobHash("4ba69735ca53765ed6a709edb56c6ea236b7193a3b29a6b390c346f0f4340e4e")
    kept = replace(PLAN, parts={**PLAN.parts, "tools": Kept(stored)})  # type: ignore[dict-item]
    assert content_hash(kept) == content_hash(PLAN)


def test_the_order_in_which_documents_were_written_is_no_content() -> None:
    left = documented({"config": {"a": 1, "b": 2}, "metadata": {}})
    assert content_hash(documented({"metadata": {}, "config": {"b": 2, "a": 1}})) == content_hash(left)


def test_the_order_of_usage_and_debts_is_content() -> None:
    other_usage, other_debt = replace(USAGE, source="tool"), replace(OWED, body=words("second"))
    plan = replace(PLAN, usage=(USAGE, other_usage), owes=(OWED, other_debt))
    assert content_hash(replace(plan, usage=plan.usage[::-1])) != content_hash(plan)
    assert content_hash(replace(plan, owes=plan.owes[::-1])) != content_hash(plan)


@pytest.mark.parametrize(
    ("plan", "where"),
    [
        (documented({"config": {"x": float("nan")}}), "documents.config.x"),
        (owing(options={"x": "\ud800"}), "an outbox item.options.x"),
    ],
)
def test_content_that_json_cannot_carry_is_refused_and_the_place_is_named(plan: CommitPlan, where: str) -> None:
    with pytest.raises(InvalidValue) as refused:
        content_hash(plan)
    assert refused.value.where == where


def test_an_ordinary_plan_passes_its_check() -> None:
    check_plan(PLAN)
    check_plan(CommitPlan(OPERATION, LEASE, base=0))


@pytest.mark.parametrize(
    ("plan", "error"),
    [
        (replace(PLAN, operation=OperationId("op-1")), InvalidId),
        (settling(outcome=""), InvalidKey),
        (settling(outcome="a\nb"), InvalidKey),
        (settling(summary={"x": float("inf")}), InvalidValue),
        (settling(summary={"x": "\ud800"}), InvalidValue),
        (replace(PLAN, parts={"": Changed(b"")}), InvalidKey),
        (replace(PLAN, parts={"x": Kept(BlobHash("a" * 63))}), InvalidId),
        (using(source=""), InvalidKey),
        (using(tokens=Tokens(input=-1)), InvalidValue),
        (with_node(body="x" * (16 * 1024 * 1024 + 1)), TooLarge),
    ],
)
def test_a_plan_with_a_value_that_no_store_could_keep_is_refused(plan: CommitPlan, error: type[Exception]) -> None:
    with pytest.raises(error):
        check_plan(plan)


@pytest.mark.parametrize(
    "plan",
    [
        with_node(body='"\ud800"'),
        with_node(kind="\ud800"),
        with_node(id=NodeId("\ud800")),
        replace(PLAN, delta=MoveHead(NodeId("\ud800"))),
    ],
    ids=["body", "kind", "id", "move"],
)
def test_a_delta_that_no_encoding_can_store_is_refused(plan: CommitPlan) -> None:
    with pytest.raises(InvalidValue, match="lone surrogate"):
        check_plan(plan)
