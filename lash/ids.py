"""Typed ids.

An id is 16 bytes, written as 32 hex digits: 48 bits of milliseconds, then 80 random bits, so that new rows land beside
their neighbours in an index. Whoever asks for a write mints its id; a store never does, so "was it written?" can always
be asked again. A node's id is not minted: it follows from where the node stands.
"""

from __future__ import annotations

import hashlib
import os
import re
from datetime import datetime
from typing import NewType

SessionUid = NewType("SessionUid", str)
"""One session for ever: random, never reused, kept as a tombstone after a delete."""
SessionName = NewType("SessionName", str)
"""What users type; unique among living sessions."""
TurnId = NewType("TurnId", str)
ItemId = NewType("ItemId", str)
WaitId = NewType("WaitId", str)
RequestId = NewType("RequestId", str)
OperationId = NewType("OperationId", str)
"""What a receipt names: a turn's id, a command's item id, or the id derived from a caller's key."""
NodeId = NewType("NodeId", str)
"""``{origin uid}-{operation}-{ordinal}``: derived, so that a retried commit names the same nodes."""
OwnerId = NewType("OwnerId", str)
"""One driver of one open session."""
ReplayKey = NewType("ReplayKey", str)
BlobHash = NewType("BlobHash", str)
"""SHA-256 of a blob's bytes, 64 hex digits."""

ID_PATTERN = re.compile(r"[0-9a-f]{32}\Z")
NODE_ID_PATTERN = re.compile(r"([0-9a-f]{32})-([0-9a-f]{32})-(0|[1-9][0-9]{0,8})\Z")


def mint_id(at: datetime) -> str:
    """A new id that sorts by its time."""
    milliseconds = int(at.timestamp() * 1000)
    return (milliseconds.to_bytes(6, "big") + os.urandom(10)).hex()


def id_from(*words: str) -> str:
    """The id that these words always give, for what must come out the same when it is asked for again."""
    text = "".join(f"{len(word)}:{word}" for word in words)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def node_id(origin: SessionUid, operation: OperationId, ordinal: int) -> NodeId:
    return NodeId(f"{origin}-{operation}-{ordinal}")


def split_node_id(node: NodeId) -> tuple[SessionUid, OperationId, int] | None:
    """Where a node stands, or None when the text is no node id."""
    match = NODE_ID_PATTERN.match(node)
    if match is None:
        return None
    origin, operation, ordinal = match.groups()
    return SessionUid(origin), OperationId(operation), int(ordinal)
