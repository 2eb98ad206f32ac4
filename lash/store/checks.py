"""What every store refuses before it writes: values that no store could keep, the same for all."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from typing import get_args

from lash.commit.outbox import DEBT_KEY, Debt, decode_owed
from lash.commit.plan import CommitPlan, check_plan
from lash.encoding import canonical, canonical_object, utf8_size
from lash.errors import InvalidKey, InvalidValue
from lash.graph.delta import Append
from lash.graph.session import DOCUMENT_KINDS, NewFork, NewSession
from lash.ids import ReplayKey
from lash.inbox.cancelling import From, Selection, These
from lash.inbox.items import Boundary, NewItem, check_item, encode_body
from lash.limits import check_blob_hash, check_id, check_key, check_name, check_owner, check_size, check_ttl
from lash.store.contract import SessionFilter, TurnOpening
from lash.turn.journal import Finished, Identity, JournalRecord
from lash.waits import NewWait

MAX_PAGE = 1000


def check_limit(limit: int) -> None:
    if not 1 <= limit <= MAX_PAGE:
        raise InvalidValue("limit", f"{limit} is not a number of rows from 1 to {MAX_PAGE}")


def read_cursor(after: str | None) -> int:
    """The number of the row that a page ended with; -1 for the first page."""
    if after is None:
        return -1
    if not re.match(r"[0-9]{1,18}\Z", after):
        raise InvalidValue("after", f"{after[:80]!r} is not a cursor that a page ended with")
    return int(after)


def check_time(where: str, at: datetime | None) -> None:
    """An instant without a time zone could be compared with none that is stored, and one near the end of time read by
    nobody."""
    if at is None or at.tzinfo is UTC:
        return
    if at.utcoffset() is None:
        raise InvalidValue(where, f"{at.isoformat()} has no time zone")
    try:
        at.astimezone(UTC)
    except OverflowError:
        raise InvalidValue(where, f"{at.isoformat()} lies beyond the years 1 to 9999 in UTC") from None


def check_cutoff(before: datetime) -> None:
    if not isinstance(before, datetime):
        raise InvalidValue("before", "say before which instant things must have ended to be removed")
    check_time("before", before)


def check_filter(where: SessionFilter) -> None:
    for name, text in (("agent", where.agent), ("name_prefix", where.name_prefix)):
        if text is not None:
            _check_text(name, text)


def check_agents(agents: Collection[str]) -> None:
    for agent in agents:
        _check_text("agent", agent)


def check_kind(kind: str) -> None:
    if kind not in DOCUMENT_KINDS:
        raise InvalidValue("document", f"{kind!r} is none of {', '.join(DOCUMENT_KINDS)}")


def check_document(kind: str, body: object) -> None:
    check_kind(kind)
    canonical_object(body, what=kind)


def check_new(new: NewSession) -> None:
    check_id("a session uid", new.uid)
    check_name(new.name)
    check_key(new.agent)
    canonical_object(new.config, what="config")
    canonical_object(new.metadata, what="metadata")


def check_fork(new: NewFork) -> None:
    check_id("a session uid", new.uid)
    check_name(new.name)
    canonical_object(new.metadata, what="metadata")


def check_arriving(item: NewItem) -> int:
    """Refuse an item that could not be kept; returns about how many bytes it has."""
    check_item(item)
    if item.key is not None and item.key.startswith(DEBT_KEY):
        raise InvalidKey(item.key, f"keys that begin with {DEBT_KEY!r} are kept for what sessions owe each other")
    check_time("available_at", item.available_at)
    return len(encode_body(item.body)) + len(canonical_object(item.options, what="options"))


def check_selection(selection: Selection) -> None:
    match selection:
        case From():
            return
        case These(items=names):
            named: Sequence[str] = names
        case _:
            named = selection.keys
    if len(named) > MAX_PAGE:
        raise InvalidValue("selection", f"it names {len(named)} items; at most {MAX_PAGE} can be cancelled in one call")


def check_wait(wait: NewWait) -> None:
    check_id("a wait id", wait.id)
    check_key(wait.name)
    if wait.turn is not None:
        check_id("a turn id", wait.turn)
    check_time("expires_at", wait.expires_at)


def check_reason(reason: str) -> None:
    _check_text("reason", reason)


def _check_text(where: str, text: str) -> None:
    """A text that goes into a column of its own. Postgres keeps no NUL there."""
    check_size(where, utf8_size(text, what=where))
    if "\0" in text:
        raise InvalidValue(where, f"character {text.index(chr(0))} is NUL, which cannot be stored")


def check_checkpoint(checkpoint: str) -> None:
    if checkpoint not in get_args(Boundary):
        raise InvalidValue("checkpoint", f"{checkpoint!r} is none of {', '.join(get_args(Boundary))}")


def check_effect(key: ReplayKey, identity: Identity) -> int:
    check_key(key)
    return len(canonical(identity.encode(), what="identity"))


def check_record(new: JournalRecord) -> int:
    """Refuse a record that could not be kept; returns about how many bytes it has."""
    size = check_effect(new.key, new.identity)
    if new.composition is not None:
        _check_text("composition", new.composition)
    return size + (len(canonical(new.outcome, what="outcome")) if isinstance(new, Finished) else 0)


def check_opening(opening: TurnOpening) -> int:
    """Refuse an opening that could not be kept; returns about how many bytes it has."""
    check_owner(opening.owner)
    check_ttl(opening.ttl)
    check_id("a turn id", opening.turn)
    size = 0 if opening.admits is None else check_arriving(opening.admits)
    return size + sum(check_record(start) for start in opening.starts)


def check_commit(plan: CommitPlan) -> None:
    check_plan(plan)
    for kind, body in plan.documents.items():
        check_document(kind, body)
    if isinstance(plan.delta, Append):
        for node in plan.delta.nodes:
            check_time(f"node {node.id}", node.at)
            _check_seq(f"node {node.id}", node.seq)
            for blob in node.blobs:
                check_blob_hash(blob)


def _check_seq(where: str, seq: int) -> None:
    if type(seq) is not int or not 0 <= seq < 2**63:
        raise InvalidValue(where, f"{seq!r} is no number of an event")


def debts_of(plan: CommitPlan) -> list[Debt]:
    """What the plan owes, as a store will keep it.

    A debt that could never be delivered would be tried for ever, so it is checked as its admission will be.
    """
    return [_debt(plan, ordinal) for ordinal in range(len(plan.owes))]


def _debt(plan: CommitPlan, ordinal: int) -> Debt:
    owed = plan.owes[ordinal]
    check_id("the receiver of an outbox item", owed.to)
    check_time("available_at", owed.available_at)
    check_item(Debt(plan.lease.session, plan.operation, ordinal, owed).item())
    canonical_object(owed.options, what="options")
    kept = decode_owed(owed.encode(), what=f"outbox item {ordinal} of operation {plan.operation}")
    return Debt(plan.lease.session, plan.operation, ordinal, kept)
