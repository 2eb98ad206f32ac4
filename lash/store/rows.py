"""Rows and the values they hold, side by side: how each is written, how each is read."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from operator import attrgetter
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from lash.commit.outbox import Debt, decode_owed
from lash.commit.plan import CommitReceipt
from lash.encoding import JsonObject, canonical, check_version, read_record, record
from lash.errors import CorruptData, CorruptGraph, CorruptRecord
from lash.graph.session import SESSION_VERSION, DocumentKind, Head, Session
from lash.ids import (
    ItemId,
    NodeId,
    OperationId,
    OwnerId,
    ReplayKey,
    RequestId,
    SessionName,
    SessionUid,
    TurnId,
    WaitId,
    node_id,
)
from lash.inbox.items import InboxItem, ItemChange, decode_body, encode_body
from lash.lease import LeaseRecord
from lash.turn.journal import Identity, JournalEntry
from lash.turn.record import CancelRequest, Settled, Turn, available_from
from lash.waits import Wait

R = TypeVar("R")


class Row(Protocol):
    """A row as it comes out of the database, by the names of its columns."""

    def __getitem__(self, name: str, /) -> Any: ...


MAX_COUNTER = 2**63 - 1
MAX_SMALL = 2**31 - 1
RECORD_VERSION = 1
"""Of options, summaries, identities, outcomes, answers and documents, which all are JSON of somebody else's making."""


class SessionRow(NamedTuple):
    """A session's row, whole. The only row that is locked, and the first in every write."""

    id: int
    uid: SessionUid
    state: Literal["live", "deleted", "origin"]
    name: SessionName | None
    agent: str
    version: int
    created_at: datetime
    deleted_at: datetime | None
    forked_from: NodeId | None
    revision: int
    leaf: NodeId | None
    depth: int
    frame: int
    branch: int
    state_set: int
    seq: int
    lease_owner: OwnerId | None
    lease_generation: int
    lease_expires_at: datetime | None
    next_item_at: datetime | None
    ready_at: datetime | None
    config_revision: int
    catalog_revision: int
    metadata_revision: int

    @property
    def head(self) -> Head:
        return Head(self.revision, self.leaf, self.depth, self.frame)

    @property
    def lease(self) -> LeaseRecord:
        return LeaseRecord(self.lease_owner, self.lease_generation, self.lease_expires_at)

    def with_lease(self, lease: LeaseRecord) -> SessionRow:
        return self._replace(
            lease_owner=lease.owner, lease_generation=lease.generation, lease_expires_at=lease.expires_at
        )

    def document_revision(self, kind: DocumentKind) -> int:
        match kind:
            case "config":
                return self.config_revision
            case "catalog":
                return self.catalog_revision
            case "metadata":
                return self.metadata_revision

    def session(self) -> Session:
        if self.name is None:
            raise CorruptRecord(f"session {self.uid}", "a living session without a name")
        return Session(
            uid=self.uid,
            name=self.name,
            agent=self.agent,
            head=self.head,
            created_at=self.created_at,
            ready_at=self.ready_at,
            seq=self.seq,
            config_revision=self.config_revision,
            catalog_revision=self.catalog_revision,
            metadata_revision=self.metadata_revision,
            forked_from=self.forked_from,
        )


_MOVING = (
    *("revision", "leaf", "depth", "frame", "branch", "state_set", "seq"),
    *("lease_owner", "lease_generation", "lease_expires_at", "next_item_at", "ready_at"),
)
_RARE = ("state", "name", "deleted_at", "config_revision", "catalog_revision", "metadata_revision")
_moving, _rare = attrgetter(*_MOVING), attrgetter(*_RARE)
_but_counter = attrgetter(*(name for name in SessionRow._fields if name != "seq"))


def changing_session_values(before: SessionRow, after: SessionRow) -> dict[str, Any]:
    """The columns of a session that a write changes.

    They come in three sets only, so that few statements serve every write: the counter of events, which is all that a
    journal entry moves; what commits and leases move; and everything that ever changes.
    """
    if _but_counter(before) == _but_counter(after):
        return {"seq": after.seq}
    values = dict(zip(_MOVING, _moving(after), strict=True))
    if _rare(before) != _rare(after):
        values |= zip(_RARE, _rare(after), strict=True)
    return values


def readable(read: Callable[[Row], R], rows: Iterable[Row]) -> list[R]:
    """The rows of a listing that can be read. One that is damaged, or newer than this runtime, must not hide the others
    for ever; whoever asks for it by itself hears what is wrong with it."""
    found: list[R] = []
    for row in rows:
        with contextlib.suppress(CorruptData):
            found.append(read(row))
    return found


def read_session(row: Row) -> SessionRow:
    what = f"session {row['uid']}"
    check_version(row["version"], what=what, supported=SESSION_VERSION)
    if max(row["revision"], row["seq"], row["lease_generation"]) >= MAX_COUNTER:
        raise CorruptRecord(what, "one of its counters has run out")
    documents = (row["config_revision"], row["catalog_revision"], row["metadata_revision"])
    if not all(0 <= revision < MAX_SMALL for revision in documents):
        raise CorruptRecord(what, f"its documents have the revisions {documents}")
    begun = row["leaf"] is not None
    if not (0 <= row["frame"] <= row["depth"] < MAX_SMALL if begun else row["frame"] == row["depth"] == -1):
        head = f"depth {row['depth']}, frame {row['frame']} and leaf {row['leaf']}"
        raise CorruptGraph(f"the head of {what} says {head}")
    return SessionRow._make([row[name] for name in SessionRow._fields])


def new_session_values(*, uid: SessionUid, name: SessionName, agent: str, now: datetime, **more: Any) -> dict[str, Any]:
    """The row of a session that begins; ``more`` overrides what a fork brings along."""
    return {
        "uid": uid,
        "state": "live",
        "name": name,
        "agent": agent,
        "version": SESSION_VERSION,
        "created_at": now,
        "forked_from": None,
        "revision": 0,
        "leaf": None,
        "depth": -1,
        "frame": -1,
        "branch": 0,
        "state_set": 0,
        "seq": 0,
        "lease_generation": 0,
        "config_revision": 0,
        "catalog_revision": 0,
        "metadata_revision": 0,
        **more,
    }


_NOTHING = f'{{"json":{{}},"v":{RECORD_VERSION}}}'
"""No options, no summary: most rows say just that."""


def write_json(value: Any, *, what: str) -> str:
    """JSON of somebody else's making, wrapped so that it carries a record version."""
    if value == {}:
        return _NOTHING
    return f'{{"json":{canonical(value, what=what)},"v":{RECORD_VERSION}}}'


def read_json(text: str, *, what: str) -> Any:
    fields = read_record(text, what=what, supported=RECORD_VERSION)
    if "json" not in fields:
        raise CorruptRecord(what, "the value is missing")
    return fields["json"]


def read_object(text: str | None, *, what: str) -> JsonObject:
    if text == _NOTHING:
        return {}
    value = None if text is None else read_json(text, what=what)
    if not isinstance(value, dict):
        raise CorruptRecord(what, f"a JSON object was expected, not {type(value).__name__}")
    return value


def _outcome(text: str | None, *, settled: bool, what: str) -> Any:
    """What a row holds once it is settled, and only then."""
    if settled != (text is not None):
        raise CorruptRecord(what, "it is settled without an outcome, or has one without being settled")
    return None if text is None else read_json(text, what=what)


def item_values(session: int, item: InboxItem) -> dict[str, Any]:
    return {
        "session": session,
        "seq": item.seq,
        "id": item.id,
        "kind": item.body.kind,
        "key": item.key,
        "content_hash": item.content_hash,
        "body": encode_body(item.body),
        "boundary": item.boundary,
        "merge_key": item.merge_key,
        "options": write_json(item.options, what="options"),
        "available_at": item.available_at,
        "admitted_at": item.admitted_at,
        "due_at": available_from(item),
        "state": item.state,
        "aim": item.when,
        "target": item.target,
        "turn": item.turn,
        "settled_at": item.settled_at,
    }


def item_change_values(change: ItemChange) -> dict[str, Any]:
    return {_ITEM_COLUMNS.get(name, name): value for name, value in change.items()}


_ITEM_COLUMNS = {"when": "aim"}


def read_item(row: Row, uid: SessionUid) -> InboxItem:
    what = f"item {row['id']}"
    return InboxItem(
        id=ItemId(row["id"]),
        session=uid,
        seq=row["seq"],
        body=decode_body(row["body"], what=what),
        content_hash=row["content_hash"],
        admitted_at=row["admitted_at"],
        key=row["key"],
        when=row["aim"],
        boundary=row["boundary"],
        merge_key=row["merge_key"],
        options=read_object(row["options"], what=what),
        available_at=row["available_at"],
        state=row["state"],
        target=row["target"],
        turn=row["turn"],
        settled_at=row["settled_at"],
    )


@dataclass(frozen=True, slots=True)
class TurnRow:
    """A turn and the cancel request that stands against it."""

    turn: Turn
    cancel: CancelRequest | None


def turn_values(session: int, turn: Turn) -> dict[str, Any]:
    return {
        "session": session,
        "id": turn.id,
        "agent": turn.agent,
        "base_revision": turn.base_revision,
        "config_revision": turn.config_revision,
        "catalog_revision": turn.catalog_revision,
        "options": write_json(turn.options, what="options"),
        "opened_at": turn.opened_at,
        **changing_turn_values(turn),
    }


def changing_turn_values(turn: Turn) -> dict[str, Any]:
    return {
        "state": turn.state,
        "attempts": turn.attempts,
        "generation": turn.generation,
        "items": bytes.fromhex("".join(turn.items)),
        "parked_until": turn.parked_until,
        "parked_on": bytes.fromhex("".join(turn.parked_on)),
        "outcome": turn.outcome,
        "summary": write_json(turn.summary, what="turn summary"),
        "settled_at": turn.settled_at,
    }


def settled_turn_values(settled: Settled) -> dict[str, Any]:
    return {**settled, "summary": write_json(settled["summary"], what="turn summary")}


def _unpacked(packed: bytes, *, what: str) -> list[str]:
    """Ids that are kept one behind the other, 16 bytes each."""
    if len(packed) % 16:
        raise CorruptRecord(what, f"a list of its has {len(packed)} bytes, which is no number of ids")
    return [bytes(packed[at : at + 16]).hex() for at in range(0, len(packed), 16)]


def read_turn(row: Row, uid: SessionUid) -> TurnRow:
    what = f"turn {row['id']}"
    turn = Turn(
        id=TurnId(row["id"]),
        session=uid,
        agent=row["agent"],
        state=row["state"],
        attempts=row["attempts"],
        generation=row["generation"],
        base_revision=row["base_revision"],
        config_revision=row["config_revision"],
        catalog_revision=row["catalog_revision"],
        opened_at=row["opened_at"],
        options=read_object(row["options"], what=what),
        items=tuple(ItemId(item) for item in _unpacked(row["items"], what=what)),
        parked_until=row["parked_until"],
        parked_on=tuple(WaitId(wait) for wait in _unpacked(row["parked_on"], what=what)),
        outcome=row["outcome"],
        summary=read_object(row["summary"], what=what),
        settled_at=row["settled_at"],
    )
    if row["cancel_request"] is None:
        return TurnRow(turn, None)
    request = CancelRequest(
        RequestId(row["cancel_request"]), uid, turn.id, row["cancel_reason"], row["cancel_requested_at"]
    )
    return TurnRow(turn, request)


class _StoredIdentity(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    kind: str
    step: int
    call_id: str | None = None
    tool_id: str | None = None
    arguments_hash: str | None = None


def entry_values(session: int, turn: TurnId, entry: JournalEntry) -> dict[str, Any]:
    return {
        "session": session,
        "turn": turn,
        "key": entry.key,
        "identity": record(RECORD_VERSION, entry.identity.encode(), what="identity"),
        "started_at": entry.started_at,
        **changing_entry_values(entry),
    }


def changing_entry_values(entry: JournalEntry) -> dict[str, Any]:
    return {
        "state": entry.state,
        "seq": entry.seq,
        "finished_at": entry.finished_at,
        "outcome": None if entry.state == "started" else write_json(entry.outcome, what="outcome"),
        "composition": entry.composition,
        "wait": entry.wait,
    }


def read_entry(row: Row) -> JournalEntry:
    what = f"journal entry {row['key']!r}"
    fields = read_record(row["identity"], what=what, supported=RECORD_VERSION)
    try:
        stored = _StoredIdentity.model_validate(fields)
    except ValidationError as error:
        raise CorruptRecord(what, f"not an identity: {error.error_count()} fields are wrong") from None
    return JournalEntry(
        key=ReplayKey(row["key"]),
        identity=Identity(**stored.model_dump()),
        state=row["state"],
        seq=row["seq"],
        started_at=row["started_at"],
        outcome=_outcome(row["outcome"], settled=row["state"] != "started", what=what),
        finished_at=row["finished_at"],
        composition=row["composition"],
        wait=row["wait"],
    )


def wait_values(session: int, wait: Wait) -> dict[str, Any]:
    return {
        "id": wait.id,
        "session": session,
        "name": wait.name,
        "turn": wait.turn,
        "created_at": wait.created_at,
        "expires_at": wait.expires_at,
        **changing_wait_values(wait),
    }


def changing_wait_values(wait: Wait) -> dict[str, Any]:
    answered = wait.state == "answered"
    return {
        "state": wait.state,
        "answer": write_json(wait.answer, what="answer") if answered else None,
        "settled_at": wait.settled_at,
    }


def read_wait(row: Row, uid: SessionUid) -> Wait:
    what = f"wait {row['id']}"
    return Wait(
        id=WaitId(row["id"]),
        session=uid,
        name=row["name"],
        turn=row["turn"],
        created_at=row["created_at"],
        expires_at=row["expires_at"],
        state=row["state"],
        answer=_outcome(row["answer"], settled=row["state"] == "answered", what=what),
        settled_at=row["settled_at"],
    )


@dataclass(frozen=True, slots=True)
class CommitRow:
    """A receipt, and where the commit's nodes are kept. ``nodes`` is 0 for a commit that appended none."""

    receipt: CommitReceipt
    branch: int
    first_depth: int
    nodes: int
    state_set: int


def commit_values(session: int, commit: CommitRow) -> dict[str, Any]:
    receipt = commit.receipt
    return {
        "session": session,
        "operation": receipt.operation,
        "revision": receipt.revision,
        "content_hash": receipt.content_hash,
        "committed_at": receipt.committed_at,
        "seq": receipt.seq,
        "branch": commit.branch,
        "first_depth": commit.first_depth,
        "nodes": commit.nodes,
        "leaf": receipt.leaf if commit.nodes == 0 else None,
        "state_set": commit.state_set,
    }


def read_commit(row: Row, uid: SessionUid) -> CommitRow:
    operation = OperationId(row["operation"])
    leaf = node_id(uid, operation, row["nodes"] - 1) if row["nodes"] else row["leaf"]
    receipt = CommitReceipt(uid, operation, row["revision"], leaf, row["content_hash"], row["committed_at"], row["seq"])
    return CommitRow(receipt, row["branch"], row["first_depth"], row["nodes"], row["state_set"])


def read_debt(row: Row, uid: SessionUid) -> Debt:
    what = f"outbox item {row['ordinal']} of operation {row['operation']}"
    return Debt(uid, OperationId(row["operation"]), row["ordinal"], decode_owed(row["body"], what=what))
