"""Session: one durable piece of agent work, and the head from which it goes on."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from lash.encoding import JsonObject
from lash.ids import NodeId, SessionName, SessionUid

SESSION_VERSION = 1

DocumentKind = Literal["config", "catalog", "metadata"]
DOCUMENT_KINDS: tuple[DocumentKind, ...] = ("config", "catalog", "metadata")


@dataclass(frozen=True, slots=True)
class Head:
    """Where a session stands. Revision 0 means that nothing was ever committed.

    ``depth`` is the leaf's and ``frame`` that of the FrameOpened node at or above it; both are -1 in an empty session.
    """

    revision: int = 0
    leaf: NodeId | None = None
    depth: int = -1
    frame: int = -1


@dataclass(frozen=True, slots=True)
class NewSession:
    """A session to be created. The caller mints ``uid``, so that asking again after a lost answer is safe."""

    uid: SessionUid
    name: SessionName
    agent: str = "default"
    config: JsonObject = field(default_factory=dict)
    metadata: JsonObject = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NewFork:
    """A session that goes on from a commit boundary of another one. Nodes are shared, never copied.

    It takes over the agent and the present config, and the state parts as of that boundary; no pending input, no waits,
    no usage. Its catalog is empty.
    """

    uid: SessionUid
    name: SessionName
    parent: SessionUid
    at: NodeId
    metadata: JsonObject = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Document:
    """A session's config, catalog or metadata, with a revision of its own.

    Revision 0 is the one it was created with.
    """

    revision: int
    body: JsonObject


@dataclass(frozen=True, slots=True)
class Session:
    """A session as its row says it. ``seq`` counts its events; ``ready_at`` is when it next needs a worker."""

    uid: SessionUid
    name: SessionName
    agent: str
    head: Head
    created_at: datetime
    ready_at: datetime | None = None
    seq: int = 0
    config_revision: int = 0
    catalog_revision: int = 0
    metadata_revision: int = 0
    forked_from: NodeId | None = None
