from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from lash.errors import LeaseLost, SessionBusy
from lash.ids import OwnerId
from lash.lease import Displaced, ExecutionLease, LeaseRecord, acquire, record_of, release, renew, require

from .samples import MINUTE, NOW, SECOND, SESSION

HOUR = timedelta(hours=1)
LONGEST, TWICE_THE_LONGEST = timedelta(minutes=10), timedelta(minutes=20)
"""The longest lease, and the furthest expiry that a clock can have meant."""
MICROSECOND = timedelta(microseconds=1)
TTL = timedelta(seconds=30)
ME, OTHER = OwnerId("me"), OwnerId("other")

NEVER_HELD = LeaseRecord()
RELEASED = LeaseRecord(generation=7)
MINE = LeaseRecord(ME, 7, NOW + MINUTE)
HELD = LeaseRecord(OTHER, 7, NOW + MINUTE)
EXPIRED = LeaseRecord(OTHER, 7, NOW - SECOND)
MY_LEASE = ExecutionLease(SESSION, ME, 7, NOW + MINUTE)


@pytest.mark.parametrize(
    ("record", "expired"),
    [
        (NEVER_HELD, True),
        (RELEASED, True),
        (LeaseRecord(OTHER, 7, NOW + MICROSECOND), False),
        (LeaseRecord(OTHER, 7, NOW), True),
        (LeaseRecord(OTHER, 7, NOW - MICROSECOND), True),
        (LeaseRecord(OTHER, 7, NOW + TWICE_THE_LONGEST), False),
        (LeaseRecord(OTHER, 7, NOW + TWICE_THE_LONGEST + MICROSECOND), True),
        (LeaseRecord(OTHER, 7, NOW + timedelta(days=365_000)), True),
        (LeaseRecord(OTHER, 7, None), True),
        (LeaseRecord(None, 7, NOW + MINUTE), True),
    ],
)
def test_a_lease_may_be_taken_over_when_it_is_free_ran_out_or_makes_no_sense(
    record: LeaseRecord, expired: bool
) -> None:
    assert record.expired(NOW) is expired


@pytest.mark.parametrize(
    ("record", "generation", "displaced"),
    [
        (NEVER_HELD, 1, None),
        (RELEASED, 8, None),
        (EXPIRED, 8, Displaced(OTHER, 7, NOW - SECOND)),
        (LeaseRecord(OTHER, 7, NOW), 8, Displaced(OTHER, 7, NOW)),
        (LeaseRecord(OTHER, 7, NOW + HOUR * 2), 8, Displaced(OTHER, 7, NOW + HOUR * 2)),
        (LeaseRecord(OTHER, 7, None), 8, None),
    ],
)
def test_another_owner_gets_the_next_generation_and_is_told_whom_it_put_out(
    record: LeaseRecord, generation: int, displaced: Displaced | None
) -> None:
    acquired = acquire(record, SESSION, ME, now=NOW, ttl=TTL)
    assert acquired.lease == ExecutionLease(SESSION, ME, generation, NOW + TTL)
    assert acquired.displaced == displaced


def test_a_lease_that_is_held_is_busy_and_says_by_whom_and_until_when() -> None:
    with pytest.raises(SessionBusy) as refused:
        acquire(HELD, SESSION, ME, now=NOW, ttl=TTL)
    busy = refused.value
    assert (busy.session, busy.holder, busy.expires_at) == (SESSION, OTHER, NOW + MINUTE)


def test_the_lease_of_a_holder_that_is_proven_dead_is_taken_at_once() -> None:
    acquired = acquire(HELD, SESSION, ME, now=NOW, ttl=TTL, holder_died=True)
    assert acquired.lease.generation == 8
    assert acquired.displaced == Displaced(OTHER, 7, NOW + MINUTE)


@pytest.mark.parametrize("holder_died", [True, False])
def test_the_same_owner_gets_its_generation_again(holder_died: bool) -> None:
    acquired = acquire(MINE, SESSION, ME, now=NOW, ttl=LONGEST, holder_died=holder_died)
    assert acquired.lease == ExecutionLease(SESSION, ME, 7, NOW + LONGEST)
    assert acquired.displaced is None


def test_re_entry_after_expiry_keeps_the_generation_when_nobody_took_over() -> None:
    acquired = acquire(replace(MINE, expires_at=NOW - HOUR), SESSION, ME, now=NOW, ttl=TTL)
    assert acquired.lease == ExecutionLease(SESSION, ME, 7, NOW + TTL)


def test_an_owner_that_released_its_lease_comes_back_with_the_next_generation() -> None:
    acquired = acquire(release(MINE, MY_LEASE), SESSION, ME, now=NOW, ttl=TTL)
    assert acquired.lease.generation == 8
    assert acquired.displaced is None


@pytest.mark.parametrize(
    ("stored", "ttl", "expires_at"),
    [
        (NOW + MINUTE, TTL, NOW + MINUTE),
        (NOW + MINUTE, MINUTE, NOW + MINUTE),
        (NOW + MINUTE, LONGEST, NOW + LONGEST),
        (NOW - HOUR, TTL, NOW + TTL),
        (NOW, TTL, NOW + TTL),
        (NOW + LONGEST, TTL, NOW + LONGEST),
        (NOW + TWICE_THE_LONGEST, TTL, NOW + TWICE_THE_LONGEST),
        (NOW + TWICE_THE_LONGEST + MICROSECOND, TTL, NOW + TTL),
        (None, TTL, NOW + TTL),
    ],
    ids=["shorter", "equal", "longer", "expired", "just expired", "longest", "furthest", "absurd", "missing"],
)
def test_renewing_and_re_entering_extend_a_lease_and_never_shorten_it_unless_its_expiry_is_absurd(
    stored: datetime | None, ttl: timedelta, expires_at: datetime
) -> None:
    record = LeaseRecord(ME, 7, stored)
    assert renew(record, MY_LEASE, now=NOW, ttl=ttl) == replace(MY_LEASE, expires_at=expires_at)
    assert acquire(record, SESSION, ME, now=NOW, ttl=ttl).lease == replace(MY_LEASE, expires_at=expires_at)


def test_when_the_clock_goes_back_a_renewal_keeps_the_later_expiry() -> None:
    renewed = renew(MINE, MY_LEASE, now=NOW - SECOND * 20, ttl=TTL)
    assert renewed.expires_at == NOW + MINUTE


@pytest.mark.parametrize("ttl", [TTL, LONGEST])
def test_when_the_clock_goes_back_a_little_a_held_lease_stays_held(ttl: timedelta) -> None:
    held = acquire(NEVER_HELD, SESSION, OTHER, now=NOW, ttl=ttl).lease
    with pytest.raises(SessionBusy):
        acquire(record_of(held), SESSION, ME, now=NOW - LONGEST, ttl=TTL)


def test_when_the_clock_goes_far_back_the_expiry_makes_no_sense_and_the_lease_can_be_taken() -> None:
    acquired = acquire(HELD, SESSION, ME, now=NOW - HOUR * 24, ttl=TTL)
    assert acquired.lease == ExecutionLease(SESSION, ME, 8, NOW - HOUR * 24 + TTL)


NOT_MINE = [
    pytest.param(NEVER_HELD, id="never held"),
    pytest.param(LeaseRecord(ME, 8, NOW + MINUTE), id="a later generation of my own"),
    pytest.param(LeaseRecord(ME, 6, NOW + MINUTE), id="an earlier generation"),
    pytest.param(LeaseRecord(OTHER, 8, NOW + MINUTE), id="taken over"),
    pytest.param(LeaseRecord(OTHER, 7, NOW + MINUTE), id="another owner under my generation"),
    pytest.param(LeaseRecord(generation=8), id="taken over and released"),
]


@pytest.mark.parametrize("record", [*NOT_MINE, pytest.param(RELEASED, id="released")])
def test_a_lease_that_is_not_held_passes_no_fence_and_cannot_be_renewed(record: LeaseRecord) -> None:
    with pytest.raises(LeaseLost) as refused:
        require(record, MY_LEASE)
    lost = refused.value
    assert (lost.session, lost.owner, lost.generation, lost.found) == (SESSION, ME, 7, record.generation)
    with pytest.raises(LeaseLost):
        renew(record, MY_LEASE, now=NOW, ttl=TTL)


@pytest.mark.parametrize("expires_at", [NOW + MINUTE, NOW - HOUR, NOW + HOUR * 99, None])
def test_the_fence_is_the_generation_and_not_the_time(expires_at: datetime | None) -> None:
    require(LeaseRecord(ME, 7, expires_at), replace(MY_LEASE, expires_at=NOW - HOUR * 9))


@pytest.mark.parametrize("record", NOT_MINE)
def test_a_displaced_owner_cannot_release(record: LeaseRecord) -> None:
    with pytest.raises(LeaseLost):
        release(record, MY_LEASE)


def test_a_released_lease_is_free_and_keeps_its_generation() -> None:
    assert release(MINE, MY_LEASE) == LeaseRecord(None, 7, None)


def test_releasing_twice_is_releasing_once() -> None:
    once = release(MINE, MY_LEASE)
    assert release(once, MY_LEASE) == once


def test_an_expired_lease_that_nobody_took_can_be_released() -> None:
    assert release(replace(MINE, expires_at=NOW - HOUR), MY_LEASE) == RELEASED


def test_the_record_of_a_lease_passes_its_own_fence() -> None:
    assert record_of(MY_LEASE) == MINE
    require(record_of(MY_LEASE), MY_LEASE)
