"""The work that is measured: turns of one shape, made ready by lash for either side.

One turn: two messages that together have 200 characters, a reply with two tool calls, two tool results of 1 kB, a reply
of 500 characters. Five nodes, two settled items.
"""

from __future__ import annotations

import asyncio
import random
import string
from dataclasses import dataclass
from typing import Any

from lash.graph.nodes import MessageReceived, ModelReplied, Payload, ToolsReturned
from lash.graph.parts import Text, ToolCall, ToolResult
from lash.graph.session import Head
from lash.ids import OperationId
from lash.store.contract import Store
from lash.testing.builders import (
    Driven,
    a_message,
    a_session,
    commit_nodes,
    must_acquire,
    must_open,
    new_id,
    opens,
    says,
)

_random = random.Random(1)  # noqa: S311
_WORDS = ["".join(_random.choices(string.ascii_lowercase, k=_random.randint(2, 9))) for _ in range(2_000)]


def words(size: int) -> str:
    text = ""
    while len(text) < size:
        text += _random.choice(_WORDS) + " "
    return text[:size]


@dataclass(frozen=True, slots=True)
class Said:
    """What a turn says: as lash's values, and as the plain data that a bare driver would be handed."""

    items: tuple[str, str]
    payloads: tuple[Payload, ...]
    bodies: tuple[tuple[str, dict[str, Any]], ...]


def something_said() -> Said:
    items = (words(100), words(100))
    calls = [ToolCall(call_id=f"call_{new_id()}", tool="find_order", arguments={"order_id": words(12)}) for _ in "12"]
    results = [ToolResult(call_id=call.call_id, tool=call.tool, content=(Text(text=words(1_000)),)) for call in calls]
    model = "anthropic:claude-sonnet-4-6"
    payloads: tuple[Payload, ...] = (
        MessageReceived(parts=tuple(Text(text=item) for item in items)),
        ModelReplied(parts=tuple(calls), model=model, finish="tool_calls"),
        ToolsReturned(parts=(results[0],)),
        ToolsReturned(parts=(results[1],)),
        ModelReplied(parts=(Text(text=words(500)),), model=model),
    )
    return Said(items, payloads, tuple((payload.kind, {**payload.encode(), "v": 1}) for payload in payloads))


_SAID = [something_said() for _ in range(64)]


@dataclass(frozen=True, slots=True)
class Ready:
    """A turn that was opened and has only to be committed."""

    number: int
    driven: Driven
    head: Head
    seq: int
    said: Said

    @property
    def operation(self) -> OperationId:
        return OperationId(self.driven.turn.id)


@dataclass(slots=True)
class Seat:
    """A session, the number of its row, and what it says next."""

    uid: Any
    number: int
    turns: int = 0

    def says(self) -> Said:
        self.turns += 1
        return _SAID[(self.number + self.turns) % len(_SAID)]


async def ready(store: Store, seat: Seat) -> Ready:
    """Admit two messages and open the turn that takes both."""
    said = seat.says()
    for text in said.items:
        await store.admit(seat.uid, a_message(text, merge_key="both"))
    driven = await must_open(store, seat.uid)
    assert len(driven.items) == 2, "both messages belong to the turn"
    session = await store.find(seat.uid)
    return Ready(seat.number, driven, session.head, session.seq, said)


async def all_ready(store: Store, seats: list[Seat]) -> list[Ready]:
    return await asyncio.gather(*(ready(store, seat) for seat in seats))


async def a_started_session(store: Store, *, nodes: int = 10) -> Any:
    """The uid of a session with this many nodes, all of them in its first frame."""
    session = await a_session(store)
    lease = await must_acquire(store, session.uid)
    await commit_nodes(store, lease, opens(), *(says(words(600)) for _ in range(min(nodes, 1_000) - 1)))
    while (head := (await store.find(session.uid)).head).depth + 1 < nodes:
        more = [says(words(600)) for _ in range(min(1_000, nodes - head.depth - 1))]
        await commit_nodes(store, lease, *more)
    return session.uid
