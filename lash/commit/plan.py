"""CommitPlan: all that one operation settles, in one value. And its content hash, which makes a retry recognisable."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from pydantic import JsonValue

from lash.commit.outbox import Owed
from lash.commit.parts import StateParts, check_parts
from lash.commit.usage import UsageDelta, check_usage
from lash.encoding import JsonObject, canonical, canonical_object, digest, utf8_size
from lash.errors import InvalidValue
from lash.graph.delta import Append, GraphDelta, MoveHead, Unchanged
from lash.graph.session import DocumentKind
from lash.ids import NodeId, OperationId, SessionUid
from lash.lease import ExecutionLease
from lash.limits import check_id, check_key, check_size
from lash.turn.record import TurnSettlement

PLAN_VERSION = 1


@dataclass(frozen=True, slots=True)
class CommitPlan:
    """One operation of one session. ``base`` is the head revision that the plan was made from; 0 means never committed.

    ``parts`` is the complete set of state parts after this commit; None leaves it as it is. ``release`` lets the lease
    go in the same transaction.
    """

    operation: OperationId
    lease: ExecutionLease
    base: int
    delta: GraphDelta = field(default_factory=Unchanged)
    settles: TurnSettlement | None = None
    parts: StateParts | None = None
    usage: tuple[UsageDelta, ...] = ()
    owes: tuple[Owed, ...] = ()
    documents: Mapping[DocumentKind, JsonObject] = field(default_factory=dict)
    release: bool = False


@dataclass(frozen=True, slots=True)
class CommitReceipt:
    """Proof that an operation was committed.

    The same operation with the same content gets the same receipt, for ever.
    """

    session: SessionUid
    operation: OperationId
    revision: int
    leaf: NodeId | None
    content_hash: str
    committed_at: datetime
    seq: int


def check_plan(plan: CommitPlan) -> None:
    """Refuse values that no store could keep."""
    check_id("an operation id", plan.operation)
    if plan.settles is not None:
        check_key(plan.settles.outcome)
        canonical_object(plan.settles.summary, what="turn summary")
    if plan.parts is not None:
        check_parts(plan.parts)
    for delta in plan.usage:
        check_usage(delta)
    if isinstance(plan.delta, Append):
        for node in plan.delta.nodes:
            utf8_size(node.id + node.kind, what="a node")
            if not node.made_here:
                check_size(f"node {node.id}", utf8_size(node.body, what=f"node {node.id}"))
    if isinstance(plan.delta, MoveHead):
        utf8_size(plan.delta.to, what="a node id")


def check_own_operation(plan: CommitPlan) -> None:
    """A commit that settles a turn is the turn's own: by its receipt the turn is known for ever."""
    if plan.settles is not None and OperationId(plan.settles.turn) != plan.operation:
        raise InvalidValue("operation", f"turn {plan.settles.turn} is settled by the operation of the same id")


def content_hash(plan: CommitPlan) -> str:
    """What makes two commits under one operation the same.

    It covers what the commit says: nodes, moves, settlement, state parts, usage, debts, documents. It leaves out what
    may differ when the same thing is said again: the lease, the base revision, parents, times, and the turn's timings.
    """
    return digest("commit", PLAN_VERSION, _texts(plan))


def _texts(plan: CommitPlan) -> Iterator[str]:
    yield plan.operation
    match plan.delta:
        case Unchanged():
            yield "unchanged"
        case MoveHead(to=to):
            yield f"move {to}"
        case Append(nodes=nodes):
            yield f"append {len(nodes)}"
            for node in nodes:
                yield node.id
                yield node.kind
                yield node.body
    yield "null" if plan.settles is None else canonical(_settlement(plan.settles))
    yield "null" if plan.parts is None else canonical({name: part.hash for name, part in plan.parts.items()})
    yield canonical([delta.encode() for delta in plan.usage]) if plan.usage else "[]"
    yield from (canonical(owed.content(), what="an outbox item") for owed in plan.owes)
    documents: JsonObject = {str(kind): body for kind, body in plan.documents.items()}
    yield canonical(documents, what="documents") if documents else "{}"


def _settlement(settles: TurnSettlement) -> JsonValue:
    return {
        "turn": settles.turn,
        "outcome": settles.outcome,
        "completes": [*sorted(settles.completes)],
        "gives_back": [*sorted(settles.gives_back)],
        "cancelled_by": settles.cancelled_by,
    }
