"""A session that is killed twice and goes on. Run it with ``make run``; it needs no network and no model.

Three worker processes serve one message, one after the other. The first is killed with SIGKILL after the model's answer
was journaled and before the tool ran; the second after its commit landed and before anybody heard of it. The third only
has to look. This program starts them, kills them when they say where they are, and in the end checks that everything
that was acknowledged is there and that nothing ran twice.

The "model" and the "tool" are two functions that write a line to a file: that file is the world, and it shows how often
each was really asked.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from rich.console import Console

from lash.store import (
    CommitPlan,
    Finished,
    FrameOpened,
    Fresh,
    Identity,
    ItemId,
    Message,
    MessageReceived,
    ModelReplied,
    NewItem,
    NewSession,
    Node,
    OpenedTurn,
    OperationId,
    OwnerId,
    Payload,
    Replay,
    ReplayKey,
    Session,
    SessionName,
    SessionUid,
    Started,
    Store,
    Text,
    ToolCall,
    ToolResult,
    ToolsReturned,
    TurnId,
    TurnOpening,
    TurnSettlement,
    chain,
    mint_id,
    open_store,
    recall,
)

TTL = timedelta(seconds=2)
"""A short lease, so that the demo need not wait long for a dead owner's to run out."""
QUESTION = "Where is my order 7?"
KEY = "message-1"
MODEL = "a-model-of-paper"


# -- the worker: one process, which may be killed at any moment --------------------------------------------------------


def tell(what: str, **facts: Any) -> None:
    """One line to the parent, which prints it. What was told before a kill is what the outside world knows."""
    print(json.dumps({"what": what, **facts}), flush=True)


def wait_for_the_kill(moment: str) -> None:
    tell("moment", moment=moment)
    signal.pause()


class Worker:
    def __init__(self, store: Store, world: Path, dies: str) -> None:
        self.store, self.world, self.dies = store, world, dies
        self.owner = OwnerId(f"worker-{os.getpid()}")

    async def serve(self) -> None:
        """Take the message up, wherever it is, and bring it to its end."""
        name = SessionName("customer-42")
        uid = (await self.store.open(NewSession(SessionUid(new_id()), name))).session.uid
        text = Message(parts=(Text(text=QUESTION),))
        item = await self.store.admit(uid, NewItem(ItemId(new_id()), text, key=KEY))
        tell("admitted", item=item.id, state=item.state)
        if item.terminal and item.turn is not None:
            await self.report(uid, item.turn)
            return
        opened = await self.open_turn(uid)
        await self.drive(uid, opened)

    async def open_turn(self, uid: SessionUid) -> OpenedTurn:
        opening = TurnOpening(uid, self.owner, TurnId(new_id()), TTL)
        opened = await self.store.open_turn(opening)
        while opened.held_by is not None and opened.held_by.expires_at is not None:
            left = opened.held_by.expires_at - datetime.now(UTC)
            tell("busy", holder=opened.held_by.owner, seconds=round(max(0.0, left.total_seconds()), 1))
            await asyncio.sleep(max(0.01, left.total_seconds()))
            opened = await self.store.open_turn(opening)
        return opened

    async def drive(self, uid: SessionUid, opened: OpenedTurn) -> None:
        assert opened.turn is not None
        assert opened.acquired is not None
        lease, turn = opened.acquired.lease, opened.turn
        tell("opened", turn=turn.id, generation=lease.generation, fresh=opened.fresh, items=len(opened.items))
        call = ToolCall(call_id="call-1", tool="find_order", arguments={"order": 7})

        asked = await self.effect(opened, "model:1", Identity("model", 1), call.encode())
        if self.dies == "before the commit":
            wait_for_the_kill(self.dies)
        found = await self.effect(opened, "tool:1", Identity("tool", 2, call_id="call-1"), "it is on its way")

        await self.store.commit(plan(await self.store.find(uid), opened, asked, str(found)))
        if self.dies == "after the commit":
            wait_for_the_kill(self.dies)
        await self.report(uid, turn.id)

    async def effect(self, opened: OpenedTurn, name: str, identity: Identity, answer: Any) -> Any:
        """What the journal has for this effect; else what the world answers, journaled before anything follows."""
        assert opened.turn is not None
        assert opened.acquired is not None
        lease, turn, key = opened.acquired.lease, opened.turn.id, ReplayKey(name)
        entries = {entry.key: entry for entry in await self.store.journal(lease.session, turn)}
        match recall(entries.get(key), identity):
            case Replay(outcome=outcome):
                tell("replayed", effect=name)
                return outcome
            case Fresh():
                await self.store.record(lease, turn, [Started(key, identity)])
                with self.world.open("a") as world:
                    world.write(f"{name}\n")
                tell("ran", effect=name)
                await self.store.record(lease, turn, [Finished(key, identity, answer)])
                tell("journaled", effect=name, turn=turn)
                return answer
            case unknown:
                raise SystemExit(f"{name} was started and nobody knows how it ended: {unknown}")

    async def report(self, uid: SessionUid, turn: TurnId) -> None:
        receipt = await self.store.receipt(uid, OperationId(turn))
        assert receipt is not None
        tell("committed", turn=turn, revision=receipt.revision)


def plan(session: Session, opened: OpenedTurn, asked: Any, found: str) -> CommitPlan:
    """All that the turn settles: what was said, and the message that it answered."""
    assert opened.turn is not None
    assert opened.acquired is not None
    operation = OperationId(opened.turn.id)
    result = ToolResult(call_id="call-1", tool="find_order", content=(Text(text=found),))
    payloads: list[Payload] = [
        FrameOpened(reason="initial"),
        MessageReceived(parts=(Text(text=QUESTION),), item=opened.items[0].id),
        ModelReplied(parts=(ToolCall.model_validate(asked),), model=MODEL, finish="tool_calls"),
        ToolsReturned(parts=(result,)),
        ModelReplied(parts=(Text(text=f"Your order 7: {found}."),), model=MODEL),
    ]
    return CommitPlan(
        operation,
        opened.acquired.lease,
        base=session.head.revision,
        delta=chain(session.uid, operation, payloads, after=session.head, at=datetime.now(UTC)),
        settles=TurnSettlement(opened.turn.id, "finished", completes=frozenset(item.id for item in opened.items)),
        release=True,
    )


def new_id() -> str:
    return mint_id(datetime.now(UTC))


async def work(url: str, world: Path, dies: str) -> None:
    async with await open_store(url) as store:
        await Worker(store, world, dies).serve()


# -- the parent: starts workers, kills them, checks what is left -------------------------------------------------------

TOLD = {
    "admitted": "acknowledged: message {item} is kept ({state})",
    "busy": "{holder} still holds the lease; waiting {seconds} s until it runs out",
    "opened": "has turn {turn}, lease generation {generation}, {items} message taken",
    "ran": "asked the world: {effect}",
    "journaled": "acknowledged: the outcome of {effect} is journaled",
    "replayed": "replayed {effect} from the journal; the world was not asked",
    "committed": "acknowledged: turn {turn} is committed as revision {revision}",
}


class Demo:
    def __init__(self, folder: Path) -> None:
        self.url, self.world = f"sqlite:///{folder / 'demo.db'}", folder / "world.txt"
        self.acknowledged: list[dict[str, Any]] = []
        self.screen = Console(highlight=False, soft_wrap=True)

    def worker(self, title: str, dies: str = "never") -> None:
        """Run one worker, and kill it at the moment it is told to die at."""
        self.screen.print(f"\n[bold]{title}[/bold]")
        command = [sys.executable, __file__, "work", self.url, str(self.world), dies]
        child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        for told in _lines(child):
            if told["what"] == "moment":
                os.kill(child.pid, signal.SIGKILL)
                self.screen.print(f"  [red]{told['moment']}: killed with SIGKILL[/red]")
            else:
                self.hear(told)
        ended = child.wait()
        expected = 0 if dies == "never" else -signal.SIGKILL
        if ended != expected:
            raise SystemExit(f"the worker ended with {ended}, not {expected}")

    def hear(self, told: dict[str, Any]) -> None:
        words = TOLD[told["what"]].format_map(told)
        if words.startswith("acknowledged"):
            self.acknowledged.append(told)
        colour = {"replayed": "cyan", "busy": "yellow"}.get(
            told["what"], "green" if "acknowledged" in words else "white"
        )
        self.screen.print(f"  [{colour}]{words}[/{colour}]")

    async def check(self) -> bool:
        """Whether everything acknowledged is there, and nothing happened twice."""
        self.screen.print("\n[bold]What is left[/bold]")
        async with await open_store(self.url) as store:
            session = await store.get(SessionName("customer-42"))
            nodes = await store.nodes(session.uid)
            turns = {told["turn"] for told in self.acknowledged if "turn" in told}
            items = {told["item"] for told in self.acknowledged if told["what"] == "admitted"}
            kept = [await store.item(session.uid, item) for item in items]
            receipts = [await store.receipt(session.uid, OperationId(turn)) for turn in turns]
            settled = [await store.turn(session.uid, turn) for turn in turns]
        asked = self.world.read_text().split()
        self.screen.print(f"  the session says: {_last_words(nodes)}")
        results = {
            "the message is there, once, and was answered": [item and item.state for item in kept] == ["completed"],
            "its turn was committed once": [r and r.revision for r in receipts] == [1] == [session.head.revision],
            "the turn is settled": [turn.state for turn in settled] == ["settled"],
            "the history is whole": [node.kind for node in nodes]
            == ["frame_opened", "message_received", "model_replied", "tools_returned", "model_replied"],
            "the model was asked once and the tool was run once": asked == ["model:1", "tool:1"],
        }
        for claim, holds in results.items():
            self.screen.print(f"  [{'green' if holds else 'red'}]{'yes' if holds else 'NO '}[/] {claim}")
        return all(results.values())


def _last_words(nodes: list[Node]) -> str:
    payload = nodes[-1].payload if nodes else None
    parts = payload.parts if isinstance(payload, ModelReplied) else ()
    return " ".join(part.text for part in parts if isinstance(part, Text))


def _lines(child: subprocess.Popen[str]) -> Iterator[dict[str, Any]]:
    assert child.stdout is not None
    with child.stdout:
        for line in child.stdout:
            yield json.loads(line)


def main() -> int:
    if sys.argv[1:2] == ["work"]:
        url, world, dies = sys.argv[2:]
        asyncio.run(work(url, Path(world), dies))
        return 0
    folder = Path(tempfile.mkdtemp(prefix="lash-demo-"))
    try:
        demo = Demo(folder)
        demo.worker("The first worker", dies="before the commit")
        demo.worker("The second worker goes on from there", dies="after the commit")
        demo.worker("The third worker is sent the same message again, because nobody ever got an answer")
        return 0 if asyncio.run(demo.check()) else 1
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
