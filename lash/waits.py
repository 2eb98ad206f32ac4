"""A wait: one durable, one-shot promise.

Approvals, webhooks, timers and "tell me how turn T ended" are all this. The row exists before anybody sees the key. The
first answer wins; an answer may come before anyone waits for it. Past its deadline a wait has timed out, whether or not
anybody has looked: the state is a function of the row and the store's clock, so no sweeper is needed and two readers
cannot disagree.

The key is the wait's id with a signature under a secret that was created with the database and is kept in it. A forged
key, an unknown one and a revoked one get the same answer.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Literal

from pydantic import JsonValue

from lash.encoding import canonical
from lash.errors import IdReused, WaitNotFound
from lash.ids import ID_PATTERN, SessionUid, TurnId, WaitId

WaitState = Literal["pending", "answered", "timed_out", "revoked"]


@dataclass(frozen=True, slots=True)
class NewWait:
    """A wait to be opened. ``turn`` is the turn that will sleep on it, if one will."""

    id: WaitId
    name: str
    turn: TurnId | None = None
    expires_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Wait:
    id: WaitId
    session: SessionUid
    name: str
    turn: TurnId | None
    created_at: datetime
    expires_at: datetime | None = None
    state: WaitState = "pending"
    answer: JsonValue = None
    settled_at: datetime | None = None

    def as_of(self, now: datetime) -> Wait:
        """The wait as it stands now: a pending one past its deadline has timed out."""
        if self.state == "pending" and self.expires_at is not None and self.expires_at <= now:
            return replace(self, state="timed_out", settled_at=self.expires_at)
        return self


@dataclass(frozen=True, slots=True)
class Answered:
    """What became of an answer. ``accepted`` is False when something else had settled the wait first."""

    wait: Wait
    accepted: bool


def open_wait(known: Wait | None, new: NewWait, session: SessionUid, now: datetime) -> Wait:
    """The wait to keep. Opening the same one again returns it as it is, answered or not."""
    if known is None:
        return Wait(new.id, session, new.name, new.turn, created_at=now, expires_at=new.expires_at)
    if (known.session, known.name, known.turn) != (session, new.name, new.turn):
        raise IdReused("wait", new.id)
    return known


def answer(wait: Wait | None, value: JsonValue, now: datetime) -> Answered:
    """Settle a wait with an answer, unless something settled it before. The same answer again counts as accepted."""
    if wait is None:
        raise WaitNotFound
    current = wait.as_of(now)
    match current.state:
        case "pending":
            return Answered(replace(current, state="answered", answer=value, settled_at=now), accepted=True)
        case "answered":
            return Answered(current, accepted=canonical(current.answer) == canonical(value))
        case "timed_out":
            return Answered(current, accepted=False)
        case "revoked":
            raise WaitNotFound


def revoke(wait: Wait, now: datetime) -> Wait:
    """Nobody needs the answer any more. What was already settled stays as it is."""
    current = wait.as_of(now)
    return replace(current, state="revoked", settled_at=now) if current.state == "pending" else current


def sign(wait: WaitId, secret: bytes) -> str:
    """The key to hand out."""
    return f"{wait}.{_signature(wait, secret)}"


def verify(key: str, secret: bytes) -> WaitId:
    """The wait that a key opens, or WaitNotFound when the key is not genuine."""
    wait, _, signature = key.partition(".")
    genuine = ID_PATTERN.match(wait) and hmac.compare_digest(
        signature.encode("utf-8", "surrogatepass"), _signature(wait, secret).encode()
    )
    if not genuine:
        raise WaitNotFound
    return WaitId(wait)


def _signature(wait: str, secret: bytes) -> str:
    return hmac.new(secret, b"lash:wait:1:" + wait.encode(), hashlib.sha256).hexdigest()[:40]
