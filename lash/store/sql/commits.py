"""Settling operations: the one transaction that keeps all of a plan, or nothing."""

from __future__ import annotations

from dataclasses import astuple, dataclass
from datetime import datetime
from typing import assert_never

from sqlalchemy import Connection, bindparam, func, select

from lash import lease as leases
from lash import waits as wait_rules
from lash.commit.fence import check_fence
from lash.commit.outbox import Debt
from lash.commit.parts import Changed, StateParts, resolve
from lash.commit.plan import CommitPlan, CommitReceipt, check_own_operation, content_hash
from lash.commit.usage import Tokens, UsageTotal
from lash.errors import BlobMissing, InvariantBroken
from lash.graph.delta import Append, MoveHead, Unchanged, check_append, check_seqs
from lash.graph.nodes import Node
from lash.graph.session import Head
from lash.ids import BlobHash, OperationId, SessionUid, TurnId, split_node_id
from lash.inbox import taking
from lash.inbox.items import blobs_of_item
from lash.store import schema
from lash.store.checks import check_commit, debts_of
from lash.store.rows import (
    CommitRow,
    Row,
    SessionRow,
    changing_wait_values,
    commit_values,
    item_change_values,
    read_commit,
    read_turn,
    read_wait,
    settled_turn_values,
)
from lash.store.sql.blobs import hold, numbers_of, store_blobs
from lash.store.sql.graph import boundary, grows_from, insert_parts
from lash.store.sql.inbox import update_items
from lash.store.sql.questions import AIMED, BLOB, COMMIT, PARTS, SETTLING, TAKEN, TURN_WAITS
from lash.store.sql.sessions import find_row, keep_session, replace_document
from lash.store.sql.steps import Steps, Work, Write, answer_to, answers_to_each
from lash.turn import record
from lash.turn.record import Turn, TurnSettlement

_USAGE = (
    select(
        schema.usage.c.source,
        schema.usage.c.model,
        *(func.sum(schema.usage.c[bucket]).label(bucket) for bucket in Tokens.__slots__),
    )
    .where(schema.usage.c.session == bindparam("session"))
    .group_by(schema.usage.c.source, schema.usage.c.model)
)


def commit(plan: CommitPlan) -> Write[CommitReceipt]:
    check_commit(plan)
    debts = debts_of(plan)
    fingerprint = content_hash(plan)
    return Write(_touched(plan), lambda work: _commit(work, plan, debts, fingerprint), size=_size(plan))


def _touched(plan: CommitPlan) -> tuple[SessionUid, ...]:
    """The session, and where its head moves to a node of another: that one, lest a vacuum take the node meanwhile."""
    own = plan.lease.session
    place = split_node_id(plan.delta.to) if isinstance(plan.delta, MoveHead) else None
    return (own,) if place is None or place[0] == own else (own, place[0])


def _size(plan: CommitPlan) -> int:
    nodes = plan.delta.nodes if isinstance(plan.delta, Append) else ()
    changed = (part for part in (plan.parts or {}).values() if isinstance(part, Changed))
    return sum(len(node.body) for node in nodes) + sum(len(part.body) for part in changed)


def _commit(work: Work, plan: CommitPlan, debts: list[Debt], fingerprint: str) -> Steps[CommitReceipt]:
    row = work.session(plan.lease.session)
    found = yield from answer_to(SETTLING((row.id, plan.operation)))
    if found is None:
        raise InvariantBroken(f"session {row.uid} was locked and is not there")
    stored = None if found["commit"] is None else read_commit(found["commit"], row.uid).receipt
    receipt = check_fence(plan, fingerprint, receipt=stored, lease=row.lease, head=row.head)
    if receipt is not None:
        return receipt
    settled = yield from _settle_turn(work, row, plan, found)
    growth = yield from _grow(work, row, plan)
    numbers = yield from _blobs(work, growth.nodes, debts, plan.parts)
    head = growth.head
    after = row._replace(
        revision=head.revision,
        leaf=head.leaf,
        depth=head.depth,
        frame=head.frame,
        branch=growth.branch,
        state_set=_keep_parts(work, row, growth, plan.parts, numbers),
        seq=row.seq + 1,
        next_item_at=settled.next_item_at,
    )
    receipt = CommitReceipt(row.uid, plan.operation, after.revision, after.leaf, fingerprint, work.now, after.seq)
    placed = CommitRow(receipt, after.branch, growth.first_depth, len(growth.nodes), after.state_set)
    work.changes.insert(schema.commits, commit_values(row.id, placed))
    _insert_nodes(work, after, growth.nodes, numbers)
    _insert_usage(work, after, plan)
    _insert_debts(work, after, debts, numbers)
    for kind, body in plan.documents.items():
        after = replace_document(work, after, kind, body)
    if plan.release:
        after = after.with_lease(leases.release(after.lease, plan.lease))
    keep_session(work, row, after, was=settled.turn, turn=None)
    return receipt


# -- the turn and its items --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SettledTurn:
    """The turn that the commit settles, if any, and when the earliest item that is pending afterwards is available."""

    turn: Turn | None
    next_item_at: datetime | None


def _settle_turn(work: Work, row: SessionRow, plan: CommitPlan, found: Row) -> Steps[SettledTurn]:
    if found["turn"] is None:
        record.check_settlement(None, plan.settles, None, frozenset())
        return SettledTurn(None, row.next_item_at)
    unsettled = read_turn(found["turn"], row.uid)
    turn = unsettled.turn
    record.check_settlement(turn, plan.settles, unsettled.cancel, frozenset(turn.items))
    check_own_operation(plan)
    if plan.settles is None:
        raise InvariantBroken("a commit that settles no turn passed the check that it must")
    completed = item_change_values(taking.completed(work.now))
    for item in plan.settles.completes:
        work.changes.update(schema.inbox, {"session": row.id, "id": item}, completed)
    due = yield from _give_back(work, row, plan.settles)
    if found["aimed"]:
        missed = yield from answer_to(AIMED((row.id, turn.id)))
        update_items(work, row, (item["seq"] for item in missed or ()), taking.deferred())
    if found["waits"]:
        yield from _revoke_waits(work, row, turn.id)
    ended = settled_turn_values(record.settled(plan.settles, work.now))
    work.changes.update(schema.turns, {"session": row.id, "id": turn.id}, ended)
    work.changes.delete(schema.journal, session=row.id, turn=turn.id)
    pending = [*due, *([] if found["next_item_at"] is None else [found["next_item_at"]])]
    return SettledTurn(turn, min(pending, default=None))


def _give_back(work: Work, row: SessionRow, settles: TurnSettlement) -> Steps[list[datetime]]:
    """When the items are available that the turn leaves to the next one."""
    if not settles.gives_back:
        return []
    taken = yield from answer_to(TAKEN((row.id, settles.turn)))
    back = [item for item in taken or () if item["id"] in settles.gives_back]
    update_items(work, row, (item["seq"] for item in back), taking.given_back())
    return [item["due_at"] for item in back]


def _revoke_waits(work: Work, row: SessionRow, turn: TurnId) -> Steps[None]:
    waits = yield from answer_to(TURN_WAITS((row.id, turn)))
    for wait in (read_wait(wait, row.uid) for wait in waits or ()):
        revoked = wait_rules.revoke(wait, work.now)
        if revoked.state == "revoked":
            work.changes.update(schema.waits, {"id": wait.id}, changing_wait_values(revoked))


# -- the graph ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Growth:
    """What a delta comes to: the new head, the branch and the state set it stands on, and the nodes to add."""

    head: Head
    branch: int
    state_set: int
    nodes: tuple[Node, ...] = ()
    first_depth: int = 0


def _grow(work: Work, row: SessionRow, plan: CommitPlan) -> Steps[Growth]:
    revision = row.revision + 1
    match plan.delta:
        case Unchanged():
            return Growth(Head(revision, row.leaf, row.depth, row.frame), row.branch, row.state_set)
        case MoveHead(to=to):
            begin = yield from boundary(work, row, to)
            _insert_branch(work, row, revision, grows_from(begin.place))
            state_set = revision if begin.own_set is None else begin.own_set
            if begin.own_set is None and plan.parts is None:
                numbers = yield from numbers_of(set(begin.parts.values()))
                insert_parts(work, row.id, state_set, begin.parts, numbers)
            head = Head(revision, to, begin.place.depth, begin.frame)
            return Growth(head, branch=revision, state_set=state_set)
        case Append(nodes=nodes):
            new_root = check_append(row.uid, plan.operation, nodes, row.head)
            check_seqs(nodes, row.seq)
            if new_root:
                _insert_branch(work, row, revision, grows_from(None))
            leaf = nodes[-1]
            head = Head(revision, leaf.id, leaf.depth, leaf.frame)
            return Growth(head, revision if new_root else row.branch, row.state_set, nodes, first_depth=nodes[0].depth)
        case _:
            assert_never(plan.delta)


def _insert_branch(work: Work, row: SessionRow, branch: int, parent: dict[str, int | None]) -> None:
    work.changes.insert(schema.branches, {"session": row.id, "branch": branch} | parent)


def _insert_nodes(work: Work, row: SessionRow, nodes: tuple[Node, ...], numbers: dict[BlobHash, int]) -> None:
    for node in nodes:
        values = {
            "session": row.id,
            "branch": row.branch,
            "depth": node.depth,
            "frame": node.frame,
            "revision": row.revision,
            "kind": node.kind,
            "body": node.body,
            "at": node.at,
            "seq": node.seq or row.seq,
        }
        work.changes.insert(schema.nodes, values)
        if node.blobs:
            hold(work, row.id, ("node", row.branch, node.depth), node.blobs, numbers)


# -- parts, blobs, usage, debts ----------------------------------------------------------------------------------------


def _blobs(
    work: Work, nodes: tuple[Node, ...], debts: list[Debt], parts: StateParts | None
) -> Steps[dict[BlobHash, int]]:
    """The rows of every blob that the commit refers to; bodies of changed parts are stored on the way."""
    bodies = {part.hash: part.body for part in (parts or {}).values() if isinstance(part, Changed)}
    kept = {part.hash for part in (parts or {}).values() if not isinstance(part, Changed)}
    wanted = {blob for node in nodes for blob in node.blobs}
    wanted.update(*(blobs_of_item(debt.item()) for debt in debts))
    if not wanted and parts is None:
        return {}
    known = yield from answers_to_each([BLOB(found) for found in sorted(wanted | kept | bodies.keys())])
    if parts is not None:
        resolve(parts, known.keys() | bodies.keys())
    for blob in sorted(wanted - bodies.keys()):
        if blob not in known:
            raise BlobMissing(blob)
    stored = yield from store_blobs(work, {found: body for found, body in bodies.items() if found not in known})
    return known | stored


def _keep_parts(
    work: Work, row: SessionRow, growth: Growth, parts: StateParts | None, numbers: dict[BlobHash, int]
) -> int:
    """The number of the state set that holds after the commit: a new one when the plan names its parts."""
    if parts is None:
        return growth.state_set
    revision = growth.head.revision
    insert_parts(work, row.id, revision, {name: part.hash for name, part in parts.items()}, numbers)
    return revision


def _insert_usage(work: Work, row: SessionRow, plan: CommitPlan) -> None:
    for ordinal, delta in enumerate(plan.usage):
        place = {"session": row.id, "revision": row.revision, "ordinal": ordinal}
        counts = dict(zip(Tokens.__slots__, astuple(delta.tokens), strict=True))
        work.changes.insert(schema.usage, place | {"source": delta.source, "model": delta.model} | counts)


def _insert_debts(work: Work, row: SessionRow, debts: list[Debt], numbers: dict[BlobHash, int]) -> None:
    for debt in debts:
        values = {
            "session": row.id,
            "operation": debt.operation,
            "ordinal": debt.ordinal,
            "revision": row.revision,
            "body": debt.owed.encode(),
            "state": "owed",
            "owed_at": work.now,
            "settled_at": None,
        }
        work.changes.insert(schema.outbox, values)
        hold(work, row.id, ("debt", row.revision, debt.ordinal), blobs_of_item(debt.item()), numbers)


# -- reading -----------------------------------------------------------------------------------------------------------


def receipt(connection: Connection, uid: SessionUid, operation: OperationId) -> CommitReceipt | None:
    row = find_row(connection, uid)
    found = COMMIT.now(connection, (row.id, operation))
    return None if found is None else read_commit(found, uid).receipt


def parts(connection: Connection, row: SessionRow) -> dict[str, BlobHash]:
    return PARTS.now(connection, (row.id, row.state_set)) or {}


def usage(connection: Connection, uid: SessionUid) -> tuple[UsageTotal, ...]:
    row = find_row(connection, uid)
    totals = [
        UsageTotal(total.source, total.model, Tokens(*(int(total._mapping[bucket]) for bucket in Tokens.__slots__)))
        for total in connection.execute(_USAGE, {"session": row.id})
    ]
    return tuple(sorted(totals, key=lambda total: (total.source, total.model)))
