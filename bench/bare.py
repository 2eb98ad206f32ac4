"""The bare drivers: a fenced commit and a journal write as one would write them by hand, on lash's own tables.

They run the statements that lash runs, in as many round trips: they read the session's row and what else a commit must
know, compare fence and receipt, and change the same rows. They encode and hash the same payloads. What they leave out
is everything that is not the database's: values and their checks, the line in which writes wait, and answers.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from bench.work import Ready
from lash.clock import to_micros
from lash.testing.builders import AT

_encode = json.JSONEncoder(ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode
_AT = to_micros(AT)


class FenceBroken(Exception):
    """The session has moved, or belongs to somebody else."""


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of one commit, as tuples of what their statements take, and what must be there before."""

    uid: bytes
    number: int
    operation: bytes
    expected: Expected
    head: tuple[Any, ...]
    receipt: tuple[Any, ...]
    nodes: list[tuple[Any, ...]]
    items: list[tuple[Any, ...]]
    turn: tuple[Any, ...]
    journal: tuple[Any, ...]


class Expected(NamedTuple):
    """What makes the fence: the owner's name, the generation of his lease, the head he knows, the items he took."""

    owner: str
    generation: int
    revision: int
    items: bytes


def check_fence(expected: Expected, session: Any, settling: Any) -> None:
    """Compare what was read: the session's row, and what belongs to the turn."""
    found = (session["lease_owner"], session["lease_generation"], session["revision"])
    if settling["commit.revision"] is not None or found != expected[:3] or settling["turn.items"] != expected.items:
        raise FenceBroken


def rows_of(ready: Ready, now: int) -> Rows:
    """Encode and hash a turn."""
    lease, number, turn = ready.driven.lease, ready.number, bytes.fromhex(ready.driven.turn.id)
    uid, operation = lease.session, ready.operation
    revision, seq, first = ready.head.revision + 1, ready.seq + 1, ready.head.depth + 1
    count = len(ready.said.bodies)
    texts = [operation, f"append {count}"]
    nodes: list[tuple[Any, ...]] = []
    for ordinal, (kind, fields) in enumerate(ready.said.bodies):
        body = _encode(fields)
        texts += (f"{uid}-{operation}-{ordinal}", kind, body)
        nodes.append((number, 0, first + ordinal, ready.head.frame, revision, kind, body, _AT, seq))
    settlement = {
        "turn": ready.driven.turn.id,
        "outcome": "finished",
        "completes": sorted(item.id for item in ready.driven.items),
        "gives_back": [],
        "cancelled_by": None,
    }
    fingerprint = _digest([*texts, _encode(settlement), "null", "[]", "{}"])
    leaf = f"{uid}-{operation}-{count - 1}"
    return Rows(
        uid=bytes.fromhex(uid),
        number=number,
        operation=turn,
        expected=Expected(
            lease.owner,
            lease.generation,
            ready.head.revision,
            bytes.fromhex("".join(item.id for item in ready.driven.items)),
        ),
        head=(revision, leaf, first + count - 1, seq, None, number),
        receipt=(number, turn, revision, fingerprint, now, seq, 0, first, count, None, 0),
        nodes=nodes,
        items=[("completed", now, number, item.seq) for item in ready.driven.items],
        turn=("settled", "finished", '{"json":{},"v":1}', now, number, turn),
        journal=(number, turn),
    )


def _digest(texts: list[str]) -> bytes:
    running = hashlib.sha256(b"lash:commit:1:")
    for text in texts:
        data = text.encode()
        running.update(b"%d:" % len(data))
        running.update(data)
    return running.digest()


@dataclass(frozen=True, slots=True)
class Step:
    """One finished effect to be journaled."""

    ready: Ready
    seq: int
    key: str
    identity: dict[str, Any]
    outcome: Any


JOURNAL_COLUMNS = (
    *("session", "turn", "key", "identity", "state"),
    *("seq", "started_at", "finished_at", "outcome"),
)


def journal_row(step: Step, now: int) -> tuple[Any, ...]:
    return (
        step.ready.number,
        bytes.fromhex(step.ready.driven.turn.id),
        step.key,
        _encode({**step.identity, "v": 1}),
        "completed",
        step.seq,
        now,
        now,
        _encode({"json": step.outcome, "v": 1}),
    )


class Bare(Protocol):
    async def commit(self, turns: list[Ready]) -> None:
        """Commit these turns in one transaction, or raise FenceBroken and change nothing."""
        ...

    async def journal(self, step: Step) -> None:
        """Write an outcome under the lease, in a transaction of its own."""
        ...

    async def number(self, uid: str) -> int:
        """The number of a session's row."""
        ...

    async def aclose(self) -> None: ...
