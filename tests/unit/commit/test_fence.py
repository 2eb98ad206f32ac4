from __future__ import annotations

from dataclasses import replace

import pytest

from lash.commit.fence import check_fence
from lash.commit.plan import CommitPlan, CommitReceipt
from lash.errors import HeadMoved, LeaseLost, OperationReused
from lash.graph.session import Head
from lash.ids import NodeId, OwnerId
from lash.lease import LeaseRecord

from ..samples import LEASE, MINUTE, NOW, OPERATION, SESSION

HASH = "a" * 64
PLAN = CommitPlan(OPERATION, LEASE, base=3)
RECEIPT = CommitReceipt(SESSION, OPERATION, 4, NodeId("n"), HASH, NOW, seq=9)
HELD = LeaseRecord(LEASE.owner, LEASE.generation, LEASE.expires_at)
LOST = LeaseRecord(OwnerId("other"), LEASE.generation + 1, NOW + MINUTE)
HEAD, MOVED = Head(revision=3), Head(revision=4)


def test_a_plan_lands_under_its_lease_on_the_head_it_read() -> None:
    assert check_fence(PLAN, HASH, receipt=None, lease=HELD, head=HEAD) is None


@pytest.mark.parametrize("lease", [HELD, LOST, LeaseRecord()], ids=["held", "lost", "free"])
@pytest.mark.parametrize("head", [HEAD, MOVED], ids=["same head", "moved head"])
def test_a_commit_that_landed_returns_its_receipt_whatever_happened_since(lease: LeaseRecord, head: Head) -> None:
    assert check_fence(PLAN, HASH, receipt=RECEIPT, lease=lease, head=head) is RECEIPT


@pytest.mark.parametrize("lease", [HELD, LOST], ids=["held", "lost"])
@pytest.mark.parametrize("head", [HEAD, MOVED], ids=["same head", "moved head"])
def test_other_content_under_the_same_operation_is_a_conflict_before_anything_else(
    lease: LeaseRecord, head: Head
) -> None:
    with pytest.raises(OperationReused) as refused:
        check_fence(PLAN, "b" * 64, receipt=RECEIPT, lease=lease, head=head)
    assert (refused.value.session, refused.value.operation) == (SESSION, OPERATION)


@pytest.mark.parametrize("head", [HEAD, MOVED], ids=["same head", "moved head"])
@pytest.mark.parametrize(
    "lease",
    [LOST, LeaseRecord(), LeaseRecord(generation=LEASE.generation), replace(HELD, generation=LEASE.generation + 1)],
    ids=["taken over", "never held", "released", "a later generation"],
)
def test_the_lease_is_looked_at_before_the_head(lease: LeaseRecord, head: Head) -> None:
    with pytest.raises(LeaseLost):
        check_fence(PLAN, HASH, receipt=None, lease=lease, head=head)


def test_an_expired_lease_that_nobody_took_still_commits() -> None:
    expired = replace(HELD, expires_at=NOW - MINUTE)
    assert check_fence(PLAN, HASH, receipt=None, lease=expired, head=HEAD) is None


@pytest.mark.parametrize("found", [0, 2, 4])
def test_a_plan_made_from_another_head_is_stale(found: int) -> None:
    with pytest.raises(HeadMoved) as refused:
        check_fence(PLAN, HASH, receipt=None, lease=HELD, head=Head(revision=found))
    assert (refused.value.session, refused.value.expected, refused.value.found) == (SESSION, 3, found)
