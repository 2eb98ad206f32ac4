"""The journal: outcomes by replay key, kept so that a redrive repeats nothing.

A row is *started* before its effect runs and *completed* or *failed* after. What is recorded is authoritative: a
redrive must ask for the same effect under the same key, else the turn decided differently and stops with
ReplayMismatch. What a model call was composed of is only evidence: it may differ after a deploy, and the outcome is
used all the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime
from typing import Literal

from pydantic import JsonValue

from lash.encoding import JsonObject, canonical
from lash.errors import OutcomeRecorded, ReplayMismatch
from lash.ids import ItemId, ReplayKey, WaitId
from lash.inbox.items import InboxItem

EntryState = Literal["started", "completed", "failed"]


@dataclass(frozen=True, slots=True)
class Identity:
    """What an effect is, apart from how it turned out. A redrive must come to the same one."""

    kind: str
    step: int
    call_id: str | None = None
    tool_id: str | None = None
    arguments_hash: str | None = None

    def encode(self) -> JsonObject:
        return {f.name: value for f in fields(self) if (value := getattr(self, f.name)) is not None}


@dataclass(frozen=True, slots=True)
class Started:
    """An effect is about to run. With ``wait`` its answer comes from outside, so it is pending rather than unknown."""

    key: ReplayKey
    identity: Identity
    composition: str | None = None
    wait: WaitId | None = None


@dataclass(frozen=True, slots=True)
class Finished:
    key: ReplayKey
    identity: Identity
    outcome: JsonValue
    failed: bool = False
    composition: str | None = None


JournalRecord = Started | Finished


@dataclass(frozen=True, slots=True)
class JournalEntry:
    key: ReplayKey
    identity: Identity
    state: EntryState
    seq: int
    started_at: datetime
    outcome: JsonValue = None
    finished_at: datetime | None = None
    composition: str | None = None
    wait: WaitId | None = None


@dataclass(frozen=True, slots=True)
class Fresh:
    """Nothing is recorded: run it."""


@dataclass(frozen=True, slots=True)
class Replay:
    """It was recorded: use this and do not run it again. A recorded failure is replayed as a failure."""

    outcome: JsonValue
    failed: bool
    composition_changed: bool


@dataclass(frozen=True, slots=True)
class Unknown:
    """It was started and nobody knows how it ended."""


@dataclass(frozen=True, slots=True)
class Pending:
    """It was started and its answer will come, or has come, through this wait."""

    wait: WaitId


Recall = Fresh | Replay | Unknown | Pending


def recall(entry: JournalEntry | None, identity: Identity, composition: str | None = None) -> Recall:
    """What the journal knows about an effect that is about to run."""
    if entry is None:
        return Fresh()
    require_same(entry, identity)
    if entry.state == "started":
        return Unknown() if entry.wait is None else Pending(entry.wait)
    changed = composition is not None and entry.composition is not None and composition != entry.composition
    return Replay(entry.outcome, failed=entry.state == "failed", composition_changed=changed)


def write(known: JournalEntry | None, new: JournalRecord, *, seq: int, now: datetime) -> JournalEntry | None:
    """The entry to keep, or None when this was recorded before and nothing changes.

    A first outcome stands: the same one again is a repetition, another one is a conflict.
    """
    if known is not None:
        require_same(known, new.identity)
    match new:
        case Started():
            if known is not None:
                return _with_wait(known, new, seq)
            return JournalEntry(new.key, new.identity, "started", seq, now, composition=new.composition, wait=new.wait)
        case Finished():
            state: EntryState = "failed" if new.failed else "completed"
            if known is not None and known.state != "started":
                if known.state == state and canonical(known.outcome) == canonical(new.outcome):
                    return None
                raise OutcomeRecorded(new.key)
            return JournalEntry(
                new.key,
                new.identity,
                state,
                seq,
                known.started_at if known else now,
                outcome=new.outcome,
                finished_at=now,
                composition=new.composition or (known.composition if known else None),
                wait=known.wait if known else None,
            )


def taking(items: Sequence[InboxItem]) -> JsonObject:
    """The outcome of a checkpoint at which a turn took these items."""
    return {"items": [item.id for item in items]}


def items_taken(entry: JournalEntry) -> list[ItemId]:
    """The items that a checkpoint took, as the journal has them."""
    match entry:
        case JournalEntry(state="completed", outcome={"items": list(items)}):
            return [ItemId(str(item)) for item in items]
        case _:
            raise OutcomeRecorded(entry.key)


def _with_wait(known: JournalEntry, new: Started, seq: int) -> JournalEntry | None:
    """An effect that was started may still hand out a completion key; from then on it is pending, not unknown."""
    if new.wait is None or new.wait == known.wait or known.state != "started":
        return None
    if known.wait is not None:
        raise ReplayMismatch(new.key, ["wait"])
    return replace(known, wait=new.wait, seq=seq)


def require_same(entry: JournalEntry, identity: Identity) -> None:
    """A recorded effect and the one asked for now must be the same. The error names what differs."""
    differs = [f.name for f in fields(identity) if getattr(entry.identity, f.name) != getattr(identity, f.name)]
    if differs:
        raise ReplayMismatch(entry.key, differs)
