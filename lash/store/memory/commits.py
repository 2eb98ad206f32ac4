"""Settling operations, and the blobs that they refer to."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import assert_never

from lash import lease as leases
from lash import waits as wait_rules
from lash.commit.fence import check_fence
from lash.commit.outbox import Debt
from lash.commit.parts import Changed, hash_of, resolve
from lash.commit.plan import CommitPlan, CommitReceipt, check_own_operation, content_hash
from lash.commit.usage import UsageTotal, totals
from lash.encoding import canonical
from lash.errors import BlobMissing, BlobNotFound
from lash.graph.delta import Append, MoveHead, Unchanged, check_append, check_seqs
from lash.graph.nodes import Node
from lash.graph.session import Head
from lash.ids import BlobHash, OperationId, SessionUid
from lash.inbox import taking
from lash.inbox.items import blobs_of_item
from lash.limits import MAX_BLOB, check_blob_hash, check_size
from lash.store.checks import check_commit, debts_of
from lash.store.memory.data import BlobRow, CommitRow, MemoryData, OutboxRow, SessionRows, own_object
from lash.store.memory.graph import boundary
from lash.store.memory.handle import Handle
from lash.turn import record


@dataclass(frozen=True, slots=True)
class Growth:
    """What a delta comes to: the head it leads to, the nodes it adds, the state parts that hold there."""

    head: Head
    nodes: tuple[Node, ...]
    parts: Mapping[str, BlobHash]


class MemoryCommits(Handle):
    async def commit(self, plan: CommitPlan) -> CommitReceipt:
        check_commit(plan)
        debts = debts_of(plan)
        fingerprint = content_hash(plan)
        uid, now, data = plan.lease.session, self.now(), self.data
        with self.changing(uid, now) as rows:
            receipt = _fence(data, rows, plan, fingerprint)
            if receipt is not None:
                return receipt
            _settle_turn(rows, plan, now)
            growth = _grow(data, rows, plan)
            bodies = _bodies(plan, now)
            stored = ChainMap(bodies, data.blobs)
            parts = growth.parts if plan.parts is None else resolve(plan.parts, stored)
            _require_blobs(growth.nodes, debts, stored)
            for kind, body in plan.documents.items():
                rows.replace_document(kind, canonical(body, what=kind), now)
            if plan.release:
                rows.lease = leases.release(rows.lease, plan.lease)
            seq = rows.next_seq()
            rows.parts = parts
            rows.session = replace(rows.session, head=growth.head)
            receipt = CommitReceipt(
                uid, plan.operation, growth.head.revision, growth.head.leaf, fingerprint, committed_at=now, seq=seq
            )
        data.commits[uid, plan.operation] = CommitRow(receipt, parts, plan.usage)
        data.nodes.update((node.id, node if node.seq else replace(node, seq=seq)) for node in growth.nodes)
        data.blobs.update(bodies)
        data.outbox.update(((uid, plan.operation, debt.ordinal), OutboxRow(debt)) for debt in debts)
        return receipt

    async def receipt(self, uid: SessionUid, operation: OperationId) -> CommitReceipt | None:
        self.living(uid)
        commit = self.data.commits.get((uid, operation))
        return None if commit is None else commit.receipt

    async def parts(self, uid: SessionUid) -> dict[str, BlobHash]:
        return dict(self.living(uid).parts)

    async def usage(self, uid: SessionUid) -> tuple[UsageTotal, ...]:
        self.living(uid)
        commits = (commit for (session, _), commit in self.data.commits.items() if session == uid)
        return totals(delta for commit in commits for delta in commit.usage)

    async def put_blob(self, body: bytes) -> BlobHash:
        data = self.data
        check_size("a blob", len(body), MAX_BLOB)
        found = hash_of(body)
        # Put again, it is as young as new: whoever put it must have time to refer to it before a vacuum.
        data.blobs[found] = BlobRow(bytes(body), self.now())
        return found

    async def blob(self, blob: BlobHash) -> bytes:
        blobs = self.data.blobs
        check_blob_hash(blob)
        if blob not in blobs:
            raise BlobNotFound(blob)
        return blobs[blob].body


def _fence(data: MemoryData, rows: SessionRows, plan: CommitPlan, fingerprint: str) -> CommitReceipt | None:
    known = data.commits.get((rows.session.uid, plan.operation))
    receipt = None if known is None else known.receipt
    return check_fence(plan, fingerprint, receipt=receipt, lease=rows.lease, head=rows.session.head)


def _settle_turn(rows: SessionRows, plan: CommitPlan, now: datetime) -> None:
    turn, settles = rows.unsettled, plan.settles
    request = None if turn is None else rows.cancel_requests.get(turn.id)
    taken = () if turn is None else rows.taken_by(turn.id)
    record.check_settlement(turn, settles, request, frozenset(item.id for item in taken))
    check_own_operation(plan)
    if turn is None or settles is None:
        return
    for item in taken:
        done = item.id in settles.completes
        rows.keep_items([item.after(taking.completed(now) if done else taking.given_back())])
    missed = [item for item in rows.items.values() if item.state == "pending" and item.target == turn.id]
    rows.keep_items(item.after(taking.deferred()) for item in missed)
    own = replace(settles, summary=own_object(settles.summary, what="turn summary"))
    rows.turns[turn.id] = replace(turn, **record.settled(own, now))
    rows.journal = {}
    for wait in rows.waits.values():
        if wait.turn == turn.id and wait.as_of(now).state == "pending":
            rows.waits[wait.id] = wait_rules.revoke(wait, now)


def _grow(data: MemoryData, rows: SessionRows, plan: CommitPlan) -> Growth:
    head, uid = rows.session.head, rows.session.uid
    revision = head.revision + 1
    match plan.delta:
        case Unchanged():
            return Growth(replace(head, revision=revision), (), rows.parts)
        case MoveHead(to=to):
            node, parts = boundary(data, rows, to)
            return Growth(Head(revision, node.id, node.depth, node.frame), (), parts)
        case Append(nodes=nodes):
            check_append(uid, plan.operation, nodes, head)
            check_seqs(nodes, rows.session.seq)
            leaf = nodes[-1]
            return Growth(Head(revision, leaf.id, leaf.depth, leaf.frame), nodes, rows.parts)
        case _:
            assert_never(plan.delta)


def _bodies(plan: CommitPlan, now: datetime) -> dict[BlobHash, BlobRow]:
    """The bodies that changed state parts bring along, as blobs."""
    changed = (part for part in (plan.parts or {}).values() if isinstance(part, Changed))
    return {part.hash: BlobRow(bytes(part.body), now) for part in changed}


def _require_blobs(nodes: tuple[Node, ...], debts: list[Debt], stored: Collection[BlobHash]) -> None:
    wanted = [node.blobs for node in nodes] + [blobs_of_item(debt.item()) for debt in debts]
    for blob in sorted(frozenset().union(*wanted)):
        if blob not in stored:
            raise BlobMissing(blob)
