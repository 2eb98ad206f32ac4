"""Random histories of one session's lease, with clocks that go both ways and owners that never give up."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from hypothesis import given
from hypothesis import strategies as st

from lash.errors import LeaseLost, SessionBusy
from lash.ids import OwnerId, SessionUid
from lash.lease import Acquired, ExecutionLease, LeaseRecord, acquire, record_of, release, renew, require

from .values import hundred_examples

SESSION = SessionUid("5" * 32)
OWNERS = [OwnerId(name) for name in ("a", "b", "c")]
START = datetime(2026, 1, 1, tzinfo=UTC)
LONGEST, FURTHEST = timedelta(minutes=10), timedelta(minutes=20)
"""The longest lease, and the furthest expiry that a clock can have meant."""
Step = tuple[Any, ...]
"""What happens, and to whom: one of ``steps``."""

ttls = st.sampled_from([timedelta(seconds=1), timedelta(seconds=30), LONGEST])
jumps = st.sampled_from([timedelta(seconds=s) for s in (1, 31, 601, -1, -31, -601, -1201)])
steps = st.lists(
    st.one_of(
        st.tuples(st.just("acquire"), st.sampled_from(OWNERS), ttls, st.booleans()),
        st.tuples(st.just("renew"), st.integers(0, 99), ttls),
        st.tuples(st.just("release"), st.integers(0, 99)),
        st.tuples(st.just("time"), jumps),
    ),
    max_size=40,
)


@dataclass
class History:
    """The row, the time, and every lease that was ever handed out."""

    record: LeaseRecord = field(default_factory=LeaseRecord)
    now: datetime = START
    handed_out: list[ExecutionLease] = field(default_factory=list)

    def do(self, step: Step) -> Literal["done", "refused"]:
        try:
            match step:
                case ("acquire", owner, ttl, died):
                    self.keep(acquire(self.record, SESSION, owner, now=self.now, ttl=ttl, holder_died=died).lease)
                case ("renew", number, ttl) if self.handed_out:
                    self.keep(renew(self.record, self.pick(number), now=self.now, ttl=ttl))
                case ("release", number) if self.handed_out:
                    self.record = release(self.record, self.pick(number))
                case ("time", by):
                    self.now += by
        except (SessionBusy, LeaseLost):
            return "refused"
        return "done"

    def keep(self, lease: ExecutionLease) -> None:
        self.record = record_of(lease)
        self.handed_out.append(lease)

    def pick(self, number: int) -> ExecutionLease:
        return self.handed_out[number % len(self.handed_out)]

    def passing(self) -> set[tuple[OwnerId, int]]:
        """Owner and generation of every lease that the fence would let through now."""
        found = set()
        for lease in self.handed_out:
            try:
                require(self.record, lease)
            except LeaseLost:
                continue
            found.add((lease.owner, lease.generation))
        return found


@hundred_examples
@given(steps)
def test_at_most_one_owner_passes_the_fence_at_any_time(history: list[Step]) -> None:
    session = History()
    for step in history:
        session.do(step)
        passing = session.passing()
        assert len(passing) <= 1
        assert bool(passing) == (session.record.owner is not None)


@hundred_examples
@given(steps)
def test_the_generation_never_falls_and_names_one_owner_for_ever(history: list[Step]) -> None:
    session = History()
    owners: dict[int, OwnerId] = {}
    for step in history:
        before = session.record.generation
        session.do(step)
        assert before <= session.record.generation <= before + 1
        if session.record.owner is not None:
            assert owners.setdefault(session.record.generation, session.record.owner) == session.record.owner


@hundred_examples
@given(steps)
def test_once_out_an_owner_never_comes_back_under_its_old_generation(history: list[Step]) -> None:
    session = History()
    lost: set[tuple[OwnerId, int]] = set()
    for step in history:
        before = session.passing()
        session.do(step)
        after = session.passing()
        lost |= before - after
        assert not after & lost


@hundred_examples
@given(steps, st.sampled_from(OWNERS), ttls, st.booleans())
def test_acquiring_is_refused_exactly_when_another_owner_s_lease_is_running(
    history: list[Step],
    owner: OwnerId,
    ttl: timedelta,
    died: bool,
) -> None:
    session = History()
    for step in history:
        session.do(step)
    record, now = session.record, session.now
    running = record.expires_at is not None and now < record.expires_at <= now + FURTHEST
    answer: Acquired | None
    try:
        answer = acquire(record, SESSION, owner, now=now, ttl=ttl, holder_died=died)
    except SessionBusy:
        answer = None
    assert (answer is None) == (record.owner not in (None, owner) and running and not died)
    if answer is not None:
        same = record.owner == owner
        assert answer.lease.generation == record.generation + (0 if same else 1)
        assert now + ttl <= answer.lease.expires_at <= now + FURTHEST
        assert (answer.displaced is not None) == (record.owner not in (None, owner))


@hundred_examples
@given(steps, st.integers(0, 99), ttls)
def test_a_renewal_gives_a_later_expiry_and_changes_nothing_else(
    history: list[Step],
    number: int,
    ttl: timedelta,
) -> None:
    session = History()
    for step in [("acquire", OWNERS[0], LONGEST, True), *history]:
        session.do(step)
    lease, before = session.pick(number), session.record
    if session.do(("renew", number, ttl)) == "refused":
        assert session.record == before
        return
    assert before.expires_at is not None
    asked, furthest = session.now + ttl, session.now + FURTHEST
    later = asked if before.expires_at > furthest else max(asked, before.expires_at)
    assert session.record == LeaseRecord(lease.owner, lease.generation, later)
