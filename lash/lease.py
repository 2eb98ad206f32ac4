"""Who may run a session, until when, and the number that proves it.

The fence is the generation. Expiry only permits a takeover: an owner whose lease ran out, and whom nobody displaced,
still holds it and may renew it. Whoever takes over raises the generation in that very transaction, and from then on the
old owner can write nothing. These functions decide for every store; a store only reads and keeps the record.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from lash.errors import LeaseLost, SessionBusy
from lash.ids import OwnerId, SessionUid
from lash.limits import MAX_TTL


@dataclass(frozen=True, slots=True)
class ExecutionLease:
    """The right to run one session, as its owner holds it. Renewals change only ``expires_at``."""

    session: SessionUid
    owner: OwnerId
    generation: int
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class LeaseRecord:
    """What the session's row says about its lease. Generation 0 means that nobody ever held it."""

    owner: OwnerId | None = None
    generation: int = 0
    expires_at: datetime | None = None

    def expired(self, now: datetime) -> bool:
        """Whether another owner may take over.

        A free lease is expired; so is one whose expiry no clock can have meant.
        """
        return self.free_from(now) <= now

    def holds_off(self, owner: OwnerId, now: datetime) -> bool:
        """Whether this owner must wait for another."""
        return self.owner != owner and not self.expired(now)

    def free_from(self, now: datetime) -> datetime:
        """When another owner may take over: from now on, unless somebody holds it and says until when."""
        if self.owner is None or self.expires_at is None or self.expires_at > now + 2 * MAX_TTL:
            return now
        return self.expires_at


@dataclass(frozen=True, slots=True)
class Displaced:
    """The owner that a takeover put out. Only the winner can report it."""

    owner: OwnerId
    generation: int
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class Acquired:
    """A lease. Who was displaced is said once: a repetition after a lost answer is a re-entry and displaces nobody."""

    lease: ExecutionLease
    displaced: Displaced | None = None


def acquire(
    record: LeaseRecord,
    session: SessionUid,
    owner: OwnerId,
    *,
    now: datetime,
    ttl: timedelta,
    holder_died: bool = False,
) -> Acquired:
    """The lease that ``owner`` gets, or SessionBusy.

    The same owner gets the same generation again. Everybody else gets the next one, and only when the lease is free,
    has expired, or its holder is proven dead.
    """
    if record.owner == owner:
        return Acquired(_extended(record, session, owner, now=now, ttl=ttl))
    displaced = None
    if record.owner is not None and record.expires_at is not None:
        if not record.expired(now) and not holder_died:
            raise SessionBusy(session, holder=record.owner, expires_at=record.expires_at)
        displaced = Displaced(record.owner, record.generation, record.expires_at)
    return Acquired(ExecutionLease(session, owner, record.generation + 1, now + ttl), displaced)


def renew(record: LeaseRecord, lease: ExecutionLease, *, now: datetime, ttl: timedelta) -> ExecutionLease:
    """The lease with a later expiry and the same generation, or LeaseLost. A renewal never shortens a lease."""
    require(record, lease)
    return _extended(record, lease.session, lease.owner, now=now, ttl=ttl)


def release(record: LeaseRecord, lease: ExecutionLease) -> LeaseRecord:
    """The record after its owner let go: free, with the generation kept, so that the next owner's is higher.

    Releasing twice is the same as once. A displaced owner is refused: the lease is not its to release.
    """
    if record.owner is None and record.generation == lease.generation:
        return record
    require(record, lease)
    return LeaseRecord(generation=record.generation)


def require(record: LeaseRecord, lease: ExecutionLease) -> None:
    """The fence: every write of an owner passes here, under the session row's lock."""
    if record.owner != lease.owner or record.generation != lease.generation:
        raise LeaseLost(lease.session, owner=lease.owner, generation=lease.generation, found=record.generation)


def record_of(lease: ExecutionLease) -> LeaseRecord:
    return LeaseRecord(lease.owner, lease.generation, lease.expires_at)


def _extended(
    record: LeaseRecord, session: SessionUid, owner: OwnerId, *, now: datetime, ttl: timedelta
) -> ExecutionLease:
    later = ExecutionLease(session, owner, record.generation, now + ttl)
    if record.expires_at is not None and not record.expired(now) and record.expires_at > later.expires_at:
        return replace(later, expires_at=record.expires_at)
    return later
