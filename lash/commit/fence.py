"""May this plan still land? The order of the checks is the promise: receipt, then lease, then head.

A receipt is looked for first, so that a commit whose answer was lost can be asked for again by anybody, at any time,
with no lease at all. Then the lease: a displaced owner can write nothing. Then the head: a plan made from an older one
is stale.
"""

from __future__ import annotations

from lash.commit.plan import CommitPlan, CommitReceipt
from lash.errors import HeadMoved, OperationReused
from lash.graph.session import Head
from lash.lease import LeaseRecord, require


def check_fence(
    plan: CommitPlan, content_hash: str, *, receipt: CommitReceipt | None, lease: LeaseRecord, head: Head
) -> CommitReceipt | None:
    """The receipt of an earlier, identical commit; None when the plan may land; else the refusal is raised."""
    session = plan.lease.session
    if receipt is not None:
        if receipt.content_hash != content_hash:
            raise OperationReused(session, plan.operation)
        return receipt
    require(lease, plan.lease)
    if head.revision != plan.base:
        raise HeadMoved(session, expected=plan.base, found=head.revision)
    return None
