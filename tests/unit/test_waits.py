from __future__ import annotations

from dataclasses import replace
from datetime import datetime

import pytest
from pydantic import JsonValue

from lash.errors import IdReused, WaitNotFound
from lash.ids import WaitId
from lash.waits import NewWait, Wait, WaitState, answer, open_wait, revoke, sign, verify

from .samples import MINUTE, NOW, OTHER_SESSION, OTHER_TURN, SECOND, SESSION, TURN

WAIT = WaitId("0123456789abcdef" * 2)
SECRET = b"a secret of 32 bytes, or so it is"
PENDING = Wait(WAIT, SESSION, "approval", TURN, created_at=NOW, expires_at=NOW + MINUTE)
ANSWERED = replace(PENDING, state="answered", answer={"ok": True}, settled_at=NOW + SECOND)
TIMED_OUT = replace(PENDING, state="timed_out", settled_at=NOW + MINUTE)
REVOKED = replace(PENDING, state="revoked", settled_at=NOW + SECOND)
BEFORE, AT_DEADLINE, AFTER = NOW + SECOND * 2, NOW + MINUTE, NOW + MINUTE * 2


@pytest.mark.parametrize(
    ("wait", "now", "state", "settled_at"),
    [
        (PENDING, BEFORE, "pending", None),
        (PENDING, AT_DEADLINE, "timed_out", NOW + MINUTE),
        (PENDING, AFTER, "timed_out", NOW + MINUTE),
        (replace(PENDING, expires_at=None), AFTER, "pending", None),
        (ANSWERED, AFTER, "answered", NOW + SECOND),
        (TIMED_OUT, BEFORE, "timed_out", NOW + MINUTE),
        (REVOKED, AFTER, "revoked", NOW + SECOND),
    ],
)
def test_a_wait_past_its_deadline_has_timed_out_whoever_looks(
    wait: Wait, now: datetime, state: WaitState, settled_at: datetime | None
) -> None:
    seen = wait.as_of(now)
    assert (seen.state, seen.settled_at) == (state, settled_at)
    assert replace(seen, state=wait.state, settled_at=wait.settled_at) == wait


def test_a_new_wait_is_pending() -> None:
    new = NewWait(WAIT, "approval", TURN, NOW + MINUTE)
    assert open_wait(None, new, SESSION, NOW) == PENDING


@pytest.mark.parametrize("known", [PENDING, ANSWERED, TIMED_OUT, REVOKED], ids=lambda w: w.state)
def test_opening_a_wait_again_returns_it_as_it_is(known: Wait) -> None:
    again = NewWait(WAIT, "approval", TURN, NOW + MINUTE)
    assert open_wait(known, again, SESSION, AFTER) == known


def test_a_redrive_that_computes_a_new_deadline_keeps_the_first_one() -> None:
    assert open_wait(PENDING, NewWait(WAIT, "approval", TURN, AFTER), SESSION, BEFORE) == PENDING


def test_a_wait_id_that_means_something_else_is_refused() -> None:
    for new in (NewWait(WAIT, "payment", TURN), NewWait(WAIT, "approval", OTHER_TURN), NewWait(WAIT, "approval")):
        with pytest.raises(IdReused, match=WAIT):
            open_wait(PENDING, new, SESSION, NOW)
    with pytest.raises(IdReused, match=WAIT):
        open_wait(PENDING, NewWait(WAIT, "approval", TURN), OTHER_SESSION, NOW)


def test_the_first_answer_settles_a_wait() -> None:
    answered = answer(PENDING, {"ok": True}, NOW + SECOND)
    assert answered.accepted
    assert answered.wait == ANSWERED


@pytest.mark.parametrize(
    ("value", "accepted"), [({"ok": True}, True), ({"ok": 1}, False), (None, False), ("no", False)]
)
@pytest.mark.parametrize("now", [BEFORE, AFTER])
def test_a_later_answer_changes_nothing_and_the_same_one_counts_as_accepted(
    value: JsonValue, accepted: bool, now: datetime
) -> None:
    answered = answer(ANSWERED, value, now)
    assert answered.wait == ANSWERED
    assert answered.accepted is accepted


@pytest.mark.parametrize(("wait", "now"), [(PENDING, AT_DEADLINE), (PENDING, AFTER), (TIMED_OUT, BEFORE)])
def test_an_answer_after_the_deadline_is_too_late(wait: Wait, now: datetime) -> None:
    answered = answer(wait, {"ok": True}, now)
    assert not answered.accepted
    assert answered.wait == TIMED_OUT


@pytest.mark.parametrize("wait", [None, REVOKED], ids=["unknown", "revoked"])
def test_an_unknown_wait_and_a_revoked_one_look_the_same(wait: Wait | None) -> None:
    with pytest.raises(WaitNotFound) as refused:
        answer(wait, "yes", BEFORE)
    assert str(refused.value) == (
        "no wait answers to this: it is unknown, not genuine, or was revoked; ask for a new key"
    )


@pytest.mark.parametrize(
    ("wait", "now", "after"),
    [
        (PENDING, NOW + SECOND, REVOKED),
        (PENDING, AFTER, TIMED_OUT),
        (ANSWERED, AFTER, ANSWERED),
        (TIMED_OUT, AFTER, TIMED_OUT),
        (REVOKED, AFTER, REVOKED),
    ],
)
def test_revoking_ends_only_a_wait_that_is_still_pending(wait: Wait, now: datetime, after: Wait) -> None:
    assert revoke(wait, now) == after


def test_a_genuine_key_opens_its_wait() -> None:
    assert verify(sign(WAIT, SECRET), SECRET) == WAIT


def test_a_key_is_the_wait_s_id_and_an_hmac_under_the_database_s_secret() -> None:
    # printf 'lash:wait:1:0123456789abcdef0123456789abcdef' | openssl dgst -sha256 -hmac "$SECRET" | cut -c1-40
    assert sign(WAIT, SECRET) == f"{WAIT}.59673e9c3e46fab1a6c8bc5210e6ae92e6fbe40d"


def test_a_key_with_any_one_character_changed_opens_nothing() -> None:
    key = sign(WAIT, SECRET)
    for place, character in enumerate(key):
        for other in ("0", "f", "A", ".", "ü", "\ud800", ""):
            if other != character:
                with pytest.raises(WaitNotFound):
                    verify(key[:place] + other + key[place + 1 :], SECRET)


def test_a_key_cut_short_or_made_longer_opens_nothing() -> None:
    key = sign(WAIT, SECRET)
    for forged in [*(key[:length] for length in range(len(key))), f"{key}0", f"{key}\n", f" {key}", f"{key}.{key}"]:
        with pytest.raises(WaitNotFound):
            verify(forged, SECRET)


@pytest.mark.parametrize(
    "forged", [WAIT, f"{WAIT}.", ".", "...", "ключ.ключ", "\udcff", f"{WAIT.upper()}.{'0' * 40}", "x" * 100_000]
)
def test_text_that_was_never_a_key_opens_nothing(forged: str) -> None:
    with pytest.raises(WaitNotFound):
        verify(forged, SECRET)


def test_a_key_of_another_database_opens_nothing() -> None:
    with pytest.raises(WaitNotFound):
        verify(sign(WAIT, b"another secret"), SECRET)


def test_the_signature_of_one_wait_does_not_open_another() -> None:
    _, signature = sign(WAIT, SECRET).split(".")
    with pytest.raises(WaitNotFound):
        verify(f"{'1' * 32}.{signature}", SECRET)
