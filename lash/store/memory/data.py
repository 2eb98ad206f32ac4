"""The rows of the memory store: dicts of frozen values.

JSON that callers can reach is normalised through its canonical text on the way in and copied on the way out, so that
nobody holds a reference into the store.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Mapping
from copy import copy
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TypeVar

from pydantic import JsonValue

from lash.commit.outbox import Debt
from lash.commit.plan import CommitReceipt
from lash.commit.usage import UsageDelta
from lash.encoding import JsonObject, canonical
from lash.graph.nodes import Node
from lash.graph.session import Document, DocumentKind, Session
from lash.ids import BlobHash, ItemId, NodeId, OperationId, ReplayKey, SessionName, SessionUid, TurnId, WaitId
from lash.inbox.items import InboxItem
from lash.lease import LeaseRecord
from lash.turn.journal import JournalEntry
from lash.turn.record import CancelRequest, Turn, available_from
from lash.waits import Wait


@dataclass(frozen=True, slots=True)
class DocumentRow:
    text: str
    superseded_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class BlobRow:
    body: bytes
    put_at: datetime


@dataclass(frozen=True, slots=True)
class OutboxRow:
    """``settled_at`` is when the debt was delivered, or ended because its receiver is gone."""

    debt: Debt
    settled_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class CommitRow:
    """What stays of a commit; ``parts`` are the state parts that it left behind."""

    receipt: CommitReceipt
    parts: Mapping[str, BlobHash]
    usage: tuple[UsageDelta, ...]


@dataclass
class SessionRows:
    """All that goes when the session is deleted. ``number`` is its place in the order of creation.

    Items stand in order of ``seq``; the journal is that of the unsettled turn; ``first_parts`` are the state parts that
    a fork began with.
    """

    session: Session
    number: int
    parts: Mapping[str, BlobHash] = field(default_factory=dict)
    first_parts: Mapping[str, BlobHash] = field(default_factory=dict)
    lease: LeaseRecord = field(default_factory=LeaseRecord)
    documents: dict[tuple[DocumentKind, int], DocumentRow] = field(default_factory=dict)
    items: dict[ItemId, InboxItem] = field(default_factory=dict)
    turns: dict[TurnId, Turn] = field(default_factory=dict)
    cancel_requests: dict[TurnId, CancelRequest] = field(default_factory=dict)
    journal: dict[ReplayKey, JournalEntry] = field(default_factory=dict)
    waits: dict[WaitId, Wait] = field(default_factory=dict)

    def copy(self) -> SessionRows:
        """Rows that can be changed while these stay as they are. The values are frozen and shared."""
        return _copied(self)

    def next_seq(self) -> int:
        self.session = replace(self.session, seq=self.session.seq + 1)
        return self.session.seq

    @property
    def unsettled(self) -> Turn | None:
        return next((turn for turn in self.turns.values() if turn.unsettled), None)

    def taken_by(self, turn: TurnId) -> tuple[InboxItem, ...]:
        return tuple(item for item in self.items.values() if item.state == "taken" and item.turn == turn)

    def keep_items(self, items: Iterable[InboxItem]) -> None:
        self.items.update((item.id, item) for item in items)

    @property
    def next_item_at(self) -> datetime | None:
        waiting = (item for item in self.items.values() if item.state == "pending" and item.target is None)
        return min(map(available_from, waiting), default=None)

    def revision(self, kind: DocumentKind) -> int:
        revisions = {
            "config": self.session.config_revision,
            "catalog": self.session.catalog_revision,
            "metadata": self.session.metadata_revision,
        }
        return revisions[kind]

    def document(self, kind: DocumentKind, revision: int) -> Document | None:
        row = self.documents.get((kind, revision))
        return None if row is None else Document(revision, json.loads(row.text))

    def replace_document(self, kind: DocumentKind, text: str, now: datetime) -> int:
        """Put a new revision in front of the present one, which stays until a vacuum; returns its number."""
        old = self.revision(kind)
        self.documents[kind, old] = replace(self.documents[kind, old], superseded_at=now)
        self.documents[kind, old + 1] = DocumentRow(text)
        match kind:
            case "config":
                self.session = replace(self.session, config_revision=old + 1)
            case "catalog":
                self.session = replace(self.session, catalog_revision=old + 1)
            case "metadata":
                self.session = replace(self.session, metadata_revision=old + 1)
        return old + 1


@dataclass(frozen=True, slots=True)
class Tombstone:
    deleted_at: datetime
    forked_from: NodeId | None


@dataclass
class MemoryData:
    """One database. What outlives a deleted session, for its forks and its debtors' sake, is kept apart from it."""

    secret: bytes = field(default_factory=lambda: secrets.token_bytes(32))
    created: int = 0
    sessions: dict[SessionUid, SessionRows] = field(default_factory=dict)
    names: dict[SessionName, SessionUid] = field(default_factory=dict)
    deleted: dict[SessionUid, Tombstone] = field(default_factory=dict)
    nodes: dict[NodeId, Node] = field(default_factory=dict)
    commits: dict[tuple[SessionUid, OperationId], CommitRow] = field(default_factory=dict)
    outbox: dict[tuple[SessionUid, OperationId, int], OutboxRow] = field(default_factory=dict)
    blobs: dict[BlobHash, BlobRow] = field(default_factory=dict)

    def draft(self) -> MemoryData:
        """A copy to try a change on that touches everything."""
        draft = _copied(self)
        draft.sessions = {uid: rows.copy() for uid, rows in self.sessions.items()}
        return draft


R = TypeVar("R", SessionRows, MemoryData)


def _copied(rows: R) -> R:
    twin = copy(rows)
    for name, table in vars(rows).items():
        if isinstance(table, dict):
            setattr(twin, name, dict(table))
    return twin


# -- what callers hand in ----------------------------------------------------------------------------------------------


def own_json(value: JsonValue, *, what: str) -> JsonValue:
    """The value as the store will keep it: nobody else's, and exactly what JSON gives back."""
    kept: JsonValue = json.loads(canonical(value, what=what))
    return kept


def own_object(value: JsonObject, *, what: str) -> JsonObject:
    kept: JsonObject = json.loads(canonical(value, what=what))
    return kept
