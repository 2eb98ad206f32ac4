from __future__ import annotations

from dataclasses import replace
from datetime import datetime

import pytest

from lash.errors import EvidenceMissing, TurnCancelRequested, TurnParked, TurnSettled, TurnUnsettled, UnsettledItems
from lash.ids import ItemId, OwnerId, TurnId, WaitId
from lash.lease import ExecutionLease, LeaseRecord
from lash.turn.record import (
    CancelRequest,
    Turn,
    TurnSettlement,
    attempt,
    available_from,
    check_settlement,
    hand_over,
    has_open,
    park,
    parked_by,
    progress,
    ready_at,
    settled,
    sleeps_until,
    wake,
)
from lash.waits import Wait, WaitState

from ..samples import (
    A_REQUEST,
    LEASE,
    MINUTE,
    NOW,
    OTHER_REQUEST,
    OTHER_TURN,
    REQUEST,
    SESSION,
    TURN,
    a_turn,
    an_item,
    item_id,
)

OPEN = a_turn("open")
PARKED = a_turn("parked", attempts=0, parked_until=NOW + MINUTE)
RELEASED = LeaseRecord(generation=4)
"""The lease under which PARKED was parked, let go."""
ONE, TWO, THREE = item_id(1), item_id(2), item_id(3)
TAKEN = frozenset({ONE, TWO})
FINISHED = TurnSettlement(TURN, "finished", completes=TAKEN)
CANCELLED = TurnSettlement(TURN, "cancelled", completes=TAKEN, cancelled_by=REQUEST)


def test_taking_up_a_turn_counts_an_attempt_under_the_new_generation() -> None:
    assert attempt(a_turn("open", attempts=2), 9) == replace(OPEN, attempts=3, generation=9)


def test_taking_up_a_parked_turn_opens_it() -> None:
    assert attempt(PARKED, 9) == replace(OPEN, attempts=1, generation=9)


def test_an_owner_that_opens_the_turn_it_has_open_has_lost_an_answer() -> None:
    assert has_open(OPEN, 4)


@pytest.mark.parametrize(
    ("turn", "generation"),
    [(OPEN, 5), (OPEN, 3), (PARKED, 4), (a_turn("settled"), 4)],
    ids=["after a takeover", "by a displaced owner", "of a parked turn", "of a settled turn"],
)
def test_another_opening_is_an_attempt_of_its_own(turn: Turn, generation: int) -> None:
    assert not has_open(turn, generation)


def test_progress_starts_the_count_afresh() -> None:
    assert progress(a_turn(attempts=5)) == a_turn(attempts=0)


def test_handing_over_takes_the_present_attempt_back_and_leaves_the_turn_open() -> None:
    assert hand_over(a_turn(attempts=3)) == a_turn(attempts=2)


def test_handing_over_after_progress_has_no_attempt_to_take_back() -> None:
    assert hand_over(a_turn(attempts=0)) == a_turn(attempts=0)


@pytest.mark.parametrize("until", [NOW + MINUTE, None])
def test_parking_counts_as_progress_and_remembers_until_when(until: datetime | None) -> None:
    assert park(a_turn(attempts=3), until) == a_turn("parked", attempts=0, parked_until=until)


def test_parking_is_recognised_when_it_is_asked_for_again_by_the_lease_that_parked() -> None:
    assert parked_by(PARKED, TURN, LEASE, LeaseRecord(generation=4))
    woken = replace(PARKED, parked_until=NOW)
    assert parked_by(woken, TURN, LEASE, LeaseRecord(generation=4))


@pytest.mark.parametrize(
    ("turn", "asked_for", "lease", "record"),
    [
        (None, TURN, LEASE, RELEASED),
        (PARKED, OTHER_TURN, LEASE, RELEASED),
        (OPEN, TURN, LEASE, RELEASED),
        (a_turn("settled"), TURN, LEASE, RELEASED),
        (PARKED, TURN, LEASE, LeaseRecord(LEASE.owner, 4, LEASE.expires_at)),
        (PARKED, TURN, LEASE, LeaseRecord(generation=5)),
        (PARKED, TURN, replace(LEASE, generation=3), RELEASED),
        (replace(PARKED, generation=3), TURN, replace(LEASE, generation=3), RELEASED),
        (replace(PARKED, generation=3), TURN, LEASE, RELEASED),
    ],
    ids=[
        "there is no turn",
        "another turn",
        "the turn was handed over",
        "the turn is settled",
        "the lease is held again",
        "others had the lease since",
        "an older lease asks",
        "an older lease parked it",
        "a later lease asks",
    ],
)
def test_parking_that_this_lease_has_not_carried_out_is_no_repetition(
    turn: Turn | None, asked_for: TurnId, lease: ExecutionLease, record: LeaseRecord
) -> None:
    assert not parked_by(turn, asked_for, lease, record)


def wait_(state: WaitState = "pending", expires_at: datetime | None = None) -> Wait:
    return Wait(WaitId("9" * 32), SESSION, "approval", TURN, NOW - MINUTE, expires_at=expires_at, state=state)


SOON, LATER = NOW + MINUTE, NOW + MINUTE * 2


@pytest.mark.parametrize(
    ("waits", "until", "sleeps"),
    [
        ([], None, None),
        ([], SOON, SOON),
        ([wait_()], None, None),
        ([wait_()], SOON, SOON),
        ([wait_(expires_at=SOON)], None, SOON),
        ([wait_(expires_at=SOON)], LATER, SOON),
        ([wait_(expires_at=LATER)], SOON, SOON),
        ([wait_(), wait_(expires_at=LATER), wait_(expires_at=SOON)], None, SOON),
        ([wait_(), wait_("answered")], LATER, NOW),
        ([wait_("timed_out")], LATER, NOW),
        ([wait_("revoked")], None, NOW),
        ([wait_("answered", expires_at=SOON)], NOW - MINUTE, NOW),
        ([wait_(expires_at=NOW - MINUTE)], LATER, NOW - MINUTE),
    ],
)
def test_a_parked_turn_sleeps_until_the_first_thing_that_can_wake_it(
    waits: list[Wait], until: datetime | None, sleeps: datetime | None
) -> None:
    assert sleeps_until(waits, until, now=NOW, cancelled=False) == sleeps


@pytest.mark.parametrize("waits", [[], [wait_()], [wait_(expires_at=SOON)]])
@pytest.mark.parametrize("until", [None, LATER])
def test_a_turn_that_was_asked_to_stop_does_not_fall_asleep(waits: list[Wait], until: datetime | None) -> None:
    assert sleeps_until(waits, until, now=NOW, cancelled=True) == NOW


@pytest.mark.parametrize(("until", "due"), [(None, NOW), (LATER, NOW), (NOW - MINUTE, NOW - MINUTE)])
def test_waking_a_parked_turn_makes_it_due_unless_it_has_been_so_for_longer(
    until: datetime | None, due: datetime
) -> None:
    assert wake(a_turn("parked", parked_until=until), NOW) == a_turn("parked", parked_until=due)


def test_waking_a_turn_that_is_not_parked_changes_nothing() -> None:
    assert wake(OPEN, NOW) == OPEN
    assert wake(a_turn("settled"), NOW) == a_turn("settled")


def test_a_settled_turn_keeps_its_outcome_summary_and_time_and_its_items() -> None:
    settlement = replace(FINISHED, summary={"replayed": 2})
    ended = replace(a_turn(attempts=2), **settled(settlement, NOW))
    assert ended == replace(a_turn("settled", attempts=2), outcome="finished", summary={"replayed": 2}, settled_at=NOW)
    assert ended.items == (ONE, TWO)


def test_an_open_and_a_parked_turn_are_unsettled() -> None:
    assert [turn.unsettled for turn in (OPEN, PARKED, a_turn("settled"))] == [True, True, False]


# -- check_settlement --------------------------------------------------------------------------------------------------


def test_a_commit_outside_any_turn_may_land_when_no_turn_is_unsettled() -> None:
    check_settlement(None, None, None, frozenset())


@pytest.mark.parametrize(
    "settlement",
    [
        FINISHED,
        replace(FINISHED, outcome="provider_error"),
        replace(FINISHED, completes=frozenset(), gives_back=TAKEN),
        replace(FINISHED, completes=frozenset({ONE}), gives_back=frozenset({TWO})),
    ],
)
def test_a_turn_is_settled_with_every_item_completed_or_given_back(settlement: TurnSettlement) -> None:
    check_settlement(OPEN, settlement, None, TAKEN)


def test_a_turn_that_took_nothing_settles_nothing() -> None:
    check_settlement(OPEN, TurnSettlement(TURN, "finished"), None, frozenset())


def test_a_turn_that_was_asked_to_stop_is_settled_as_cancelled_with_its_evidence() -> None:
    check_settlement(OPEN, CANCELLED, A_REQUEST, TAKEN)


@pytest.mark.parametrize(
    ("unsettled", "settlement", "request_", "error"),
    [
        (None, FINISHED, None, TurnSettled),
        (None, CANCELLED, None, TurnSettled),
        (OPEN, None, None, TurnUnsettled),
        (PARKED, None, None, TurnUnsettled),
        (OPEN, None, A_REQUEST, TurnUnsettled),
        (OPEN, replace(FINISHED, turn=OTHER_TURN), None, TurnUnsettled),
        (PARKED, replace(FINISHED, turn=OTHER_TURN), None, TurnUnsettled),
        (PARKED, FINISHED, None, TurnParked),
        (PARKED, CANCELLED, A_REQUEST, TurnParked),
        (OPEN, FINISHED, A_REQUEST, TurnCancelRequested),
        (OPEN, replace(FINISHED, outcome="cancelled"), A_REQUEST, TurnCancelRequested),
        (OPEN, replace(CANCELLED, cancelled_by=OTHER_REQUEST), A_REQUEST, TurnCancelRequested),
        (OPEN, replace(FINISHED, cancelled_by=REQUEST), A_REQUEST, TurnCancelRequested),
        (OPEN, CANCELLED, None, EvidenceMissing),
        (OPEN, replace(FINISHED, outcome="cancelled"), None, EvidenceMissing),
        (OPEN, replace(FINISHED, cancelled_by=REQUEST), None, EvidenceMissing),
    ],
)
def test_a_commit_that_does_not_settle_the_turn_as_it_must_is_refused(
    unsettled: Turn | None, settlement: TurnSettlement | None, request_: CancelRequest | None, error: type[Exception]
) -> None:
    with pytest.raises(error):
        check_settlement(unsettled, settlement, request_, TAKEN)


@pytest.mark.parametrize(
    ("completes", "gives_back", "missing", "foreign"),
    [
        ({ONE}, set(), (TWO,), ()),
        (set(), set(), (ONE, TWO), ()),
        ({ONE, TWO, THREE}, set(), (), (THREE,)),
        ({ONE}, {TWO, THREE}, (), (THREE,)),
        ({ONE, THREE}, set(), (TWO,), (THREE,)),
        ({ONE, TWO}, {TWO}, (), (TWO,)),
    ],
    ids=["one left out", "all left out", "one too many", "one too many given back", "another one", "one twice"],
)
@pytest.mark.parametrize("request_", [None, A_REQUEST])
def test_a_commit_that_does_not_settle_exactly_the_items_of_its_turn_is_refused_and_names_them(
    completes: set[ItemId],
    gives_back: set[ItemId],
    missing: tuple[ItemId, ...],
    foreign: tuple[ItemId, ...],
    request_: CancelRequest | None,
) -> None:
    settlement = replace(FINISHED, completes=frozenset(completes), gives_back=frozenset(gives_back))
    with pytest.raises(UnsettledItems) as refused:
        check_settlement(OPEN, settlement, request_, TAKEN)
    assert (refused.value.missing, refused.value.foreign) == (missing, foreign)


def test_a_refused_cancel_names_the_request_to_commit_with() -> None:
    with pytest.raises(TurnCancelRequested) as refused:
        check_settlement(OPEN, FINISHED, A_REQUEST, TAKEN)
    assert (refused.value.turn, refused.value.request) == (TURN, REQUEST)


# -- ready_at ----------------------------------------------------------------------------------------------------------

EARLIER = NOW - MINUTE
FREE = LeaseRecord(generation=3)
HELD = LeaseRecord(OwnerId("other"), 3, SOON)
RAN_OUT = LeaseRecord(OwnerId("other"), 3, EARLIER)


@pytest.mark.parametrize("next_item_at", [None, EARLIER, NOW + MINUTE * 9])
@pytest.mark.parametrize(
    ("lease", "turn", "needed_at"),
    [
        (HELD, OPEN, SOON),
        (RAN_OUT, OPEN, EARLIER),
        (FREE, OPEN, NOW),
        (FREE, a_turn("parked", parked_until=None), None),
        (FREE, PARKED, NOW + MINUTE),
        (FREE, a_turn("parked", parked_until=EARLIER), EARLIER),
    ],
    ids=["at work", "dead", "handed over", "asleep", "asleep until", "its time has come"],
)
def test_an_unsettled_turn_decides_when_its_session_needs_a_worker(
    lease: LeaseRecord, turn: Turn, next_item_at: datetime | None, needed_at: datetime | None
) -> None:
    assert ready_at(lease, turn, next_item_at, NOW) == needed_at


@pytest.mark.parametrize(
    ("lease", "next_item_at", "needed_at"),
    [
        (FREE, None, None),
        (HELD, None, None),
        (RAN_OUT, None, None),
        (FREE, EARLIER, EARLIER),
        (FREE, SOON, SOON),
        (HELD, EARLIER, SOON),
        (HELD, NOW + MINUTE * 9, NOW + MINUTE * 9),
        (RAN_OUT, NOW - MINUTE * 9, EARLIER),
        (RAN_OUT, SOON, SOON),
    ],
)
def test_without_a_turn_the_earliest_item_decides_once_nobody_holds_the_session(
    lease: LeaseRecord, next_item_at: datetime | None, needed_at: datetime | None
) -> None:
    assert ready_at(lease, None, next_item_at, NOW) == needed_at


def test_a_turn_whose_lease_has_no_expiry_needs_a_worker_now() -> None:
    assert ready_at(LeaseRecord(OwnerId("other"), 3, None), OPEN, None, NOW) == NOW


def test_an_item_of_a_session_whose_lease_has_no_expiry_waits_only_for_its_time() -> None:
    assert ready_at(LeaseRecord(OwnerId("other"), 3, None), None, SOON, NOW) == SOON


def test_an_item_is_available_from_its_admission_unless_it_was_postponed() -> None:
    item = an_item(1)
    assert available_from(item) == NOW - MINUTE
    assert available_from(replace(item, available_at=SOON)) == SOON
