"""The same random history on memory, SQLite and Postgres gets the same answers, step by step.

Nobody says here what the right answer is. Calls are made of whatever lies around, few of everything, so that most of
them meet something: ids used before, leases and heads of long ago, nodes of other sessions, turns that sleep.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random
from typing import Any, Literal, TypeVar

import pytest
from hypothesis import given, note
from hypothesis import strategies as st

from tests.contract.stores import MemoryHarness, SqliteHarness
from tests.postgres import PostgresServer

from .machine_steps import AGENTS, LONG_ENOUGH, PlainStore, grown, own_postgres, same_histories
from .store_model import (
    Arriving,
    Grow,
    Head,
    Lease,
    Letter,
    Move,
    Opened,
    Owing,
    Plan,
    Promise,
    Record,
    Refused,
    Settling,
    Turn,
    View,
)

HISTORIES, STEPS = 14, 60
T = TypeVar("T")
Call = tuple[str, tuple[Any, ...]]


def some_ids(kind: int, count: int) -> list[str]:
    return [f"{kind:016x}{number:016x}" for number in range(count)]


UIDS, FORKS, ITEMS, TURNS, OPERATIONS, WAITS, REQUESTS = (
    some_ids(kind, count) for kind, count in enumerate((3, 3, 9, 5, 5, 5, 3), start=1)
)
NAMES = ("red", "green", "blue", "fork")
TEXTS = ("yes", "no")
BLOBS = ("b1", "b2")


REACHED = (
    *("create", "open", "fork", "get", "delete", "put_document", "document", "admit", "cancel"),
    *("acquire", "renew", "release", "a takeover", "a turn opened", "a turn taken up again", "a turn taken over"),
    *("request_cancel", "turn", "record", "take", "items taken", "park", "journal"),
    *("open_wait", "answer", "revoke", "wait", "commit", "receipt", "a turn settled"),
    *("commit NoneType", "commit Grow", "commit Move", "deliver", "put_blob", "blob", "vacuum", "nodes vacuumed"),
    *("node", "on_active_path", "advance", "reopen"),
)
"""What must have come about, and not only been refused, in some of the histories."""


class Chaos:
    """Chooses calls. It knows what there is from the answers of one of the stores."""

    def __init__(self, random: Random, views: dict[str, View], leases: list[Lease], nodes: list[str], now: int) -> None:
        self.random = random
        self.views = views
        self.leases = leases
        self.nodes = nodes
        self.now = now

    def any(self, *choices: T) -> T:
        return self.random.choice(choices)

    def rarely(self) -> bool:
        return self.random.random() < 0.15

    def call(self) -> Call:
        calls: list[Callable[[], Call]] = [self.about_sessions, self.about_items, self.about_leases, self.about_waits]
        calls += [
            self.about_turns,
            self.about_work,
            self.about_work,
            self.about_commits,
            self.about_commits,
            self.about_rest,
        ]
        return self.random.choice(calls)()

    def among(self, *calls: Call) -> Call:
        return self.random.choice(calls)

    # -- what a call is made of ----------------------------------------------------------------------------------------

    def uid(self) -> str:
        return self.any(*UIDS, *FORKS) if self.rarely() or not self.views else self.any(*self.views)

    def view(self) -> View | None:
        return self.views.get(self.uid())

    def lease(self, uid: str) -> Lease:
        """The lease that is held, if one is; else, or sometimes, any that ever was."""
        view = self.views.get(uid)
        if view is not None and view.lease.owner is not None and not self.rarely():
            return view.lease
        return self.any(Lease(uid, "ann", 1, 1), *self.leases)

    def turn(self, uid: str) -> str:
        view = self.views.get(uid)
        if view is None or view.turn is None or self.rarely():
            return self.any(*TURNS)
        return view.turn.id

    def node(self) -> str:
        return self.any(f"{self.uid()}-{self.any(*OPERATIONS)}-{self.any(0, 1)}", *self.nodes[-9:])

    def due(self) -> int | None:
        return self.any(None, None, self.now, self.now + 1, self.now + 3)

    def letter(self) -> Letter:
        return Letter(
            self.any(*TEXTS),
            self.any("message", "message", "command", "wake"),
            key=self.any(None, "k1", "k2"),
            boundary=self.any("after_work", "before_completion"),
            merge=self.any(None, "m"),
            option=self.any(None, "fast"),
            due=self.due(),
        )

    def arriving(self) -> Arriving:
        return Arriving(self.any(*ITEMS), self.letter(), self.any("now", "next"))

    def record(self) -> Record:
        ends: Literal["completed", "failed"] | None = self.any(None, "completed", "failed")
        wait = self.any(None, None, *WAITS) if ends is None else None
        return Record(self.any("e1", "e2"), self.any("model", "tool"), ends, self.any(*TEXTS) if ends else None, wait)

    def promise(self) -> Promise:
        return Promise(self.any(*WAITS), self.any(None, *TURNS), self.due())

    # -- calls ---------------------------------------------------------------------------------------------------------

    def about_sessions(self) -> Call:
        uid, name = self.any(*UIDS, *FORKS), self.any(*NAMES)
        return self.among(
            ("create", (uid, name, self.any(*AGENTS))),
            ("open", (uid, name, self.any(*AGENTS))),
            ("fork", (self.any(*FORKS, uid), name, self.uid(), self.node())),
            ("fork", (self.any(*FORKS), name, self.uid(), self.node())),
            ("get", (name,)),
            ("delete", (uid,)),
            ("put_document", (self.uid(), self.any("config", "catalog"), '{"a": 1}', self.any(0, 1, 2))),
            ("document", (self.uid(), "config", self.any(0, 1, 2))),
        )

    def about_items(self) -> Call:
        by, names = self.any(("ids", ITEMS[:4]), ("ids", ITEMS[3:]), ("keys", ("k1", "k3")), ("from", ITEMS[2:3]))
        return self.among(
            *[("admit", (self.uid(), self.arriving())) for _ in range(4)],
            ("cancel", (self.uid(), by, tuple(names))),
        )

    def about_leases(self) -> Call:
        uid, ttl = self.uid(), self.any(1, 3, 5)
        return self.among(
            ("acquire", (uid, self.any("ann", "bob"), ttl)),
            ("renew", (self.lease(uid), ttl)),
            ("release", (self.lease(uid),)),
        )

    def about_turns(self) -> Call:
        uid = self.uid()
        opening = (uid, self.any("ann", "bob"), self.any(*TURNS), self.any(1, 3), self.any(None, self.arriving()))
        return self.among(
            ("open_turn", (*opening, self.any((), (self.record_start(),)))),
            ("open_turn", (*opening, ())),
            ("request_cancel", (uid, self.turn(uid), self.any(*REQUESTS))),
            ("turn", (uid, self.any(*TURNS))),
        )

    def record_start(self) -> Record:
        return Record(self.any("e1", "e2"), "model", wait=self.any(None, None, WAITS[0]))

    def about_work(self) -> Call:
        uid = self.uid()
        lease, turn = self.lease(uid), self.turn(uid)
        promises = self.any((), (self.promise(),))
        named = self.any((), tuple(self.random.sample(WAITS, 2)), (self.any(*WAITS),))
        checkpoint = self.any("after_work", "before_completion")
        return self.among(
            ("record", (lease, turn, (self.record(),), promises)),
            ("record", (lease, turn, (self.record(), self.record()), promises)),
            ("take", (lease, turn, checkpoint, self.any("e1", "e2", "e3"), self.any("take", "model"))),
            ("park", (lease, turn, named, self.due())),
            ("journal", (uid, turn)),
        )

    def about_waits(self) -> Call:
        wait = self.any(*WAITS)
        return self.among(
            ("open_wait", (self.uid(), self.promise())),
            ("answer", (wait, self.any(*TEXTS), not self.rarely())),
            ("revoke", (self.uid(), (wait, self.any(*WAITS)))),
            ("wait", (self.uid(), wait)),
        )

    def about_commits(self) -> Call:
        uid = self.uid()
        view = self.views.get(uid)
        head = Head() if view is None else view.row.head
        operation = self.any(self.turn(uid), *OPERATIONS)
        plan = Plan(
            operation,
            self.lease(uid),
            head.revision if not self.rarely() else self.any(0, 1, 2),
            self.delta(head),
            None if view is None or view.turn is None or self.rarely() else self.settling(view),
            parts=self.any(None, None, (("state", self.any(*TEXTS), self.any(True, True, False)),)),
            usage=self.any((), (("big", 7),)),
            owes=self.any((), (Owing(self.any(*UIDS, *FORKS), Letter("done", "wake"), self.any("now", "next")),)),
            documents=self.any((), (), (("config", '{"a": 2}'),)),
            release=self.rarely(),
        )
        return self.among(("commit", (plan,)), ("commit", (plan,)), ("commit", (plan,)), ("receipt", (uid, operation)))

    def delta(self, head: Head) -> Grow | Move | None:
        text, shown = self.any(*TEXTS), self.any(*BLOBS)
        choices: tuple[Grow | Move | None, ...] = (
            None,
            Move(self.node()),
            Move(self.node()),
            *[Grow(head, grown(head, text))] * 3,
            Grow(head, (*grown(head, text), ("shows", shown))),
            Grow(head, (("opens", self.any("reset", "compaction", "initial")), ("says", text))),
            Grow(Head(), (("says", text),)),
        )
        return self.random.choice(choices)

    def settling(self, view: View) -> Settling:
        assert view.turn is not None
        taken = [item.id for item in view.items if item.state == "taken"]
        done = frozenset(taken if not self.rarely() else self.random.sample(ITEMS, 2))
        back = frozenset(taken) - done if not self.rarely() else done
        cancel = None if view.cancel is None or self.rarely() else view.cancel.request
        return Settling(view.turn.id, "finished" if cancel is None else "cancelled", done, back, cancel)

    def about_rest(self) -> Call:
        place = (self.uid(), self.any(*OPERATIONS, *TURNS), 0)
        return self.among(
            ("deliver", (place,)),
            ("deliver", (place,)),
            ("put_blob", (self.any(*BLOBS),)),
            ("blob", (self.any(*BLOBS, *TEXTS),)),
            ("vacuum", (self.any(0, 3), self.any(True, False, False))),
            ("node", (self.uid(), self.node())),
            ("on_active_path", (self.uid(), self.node())),
            ("advance", (self.any(1, 2, 6, 40),)),
            ("advance", (self.any(1, 6),)),
            ("reopen", ()),
        )


class Histories:
    """Several stores that live the same history."""

    def __init__(self, stores: list[PlainStore]) -> None:
        self.stores = stores
        self.leases: list[Lease] = []
        self.nodes: list[str] = []
        self.answers: list[Any] = []
        self.saw: Counter[str] = Counter()

    async def live(self, history: bytes) -> None:
        """Make a call for each number but 0. At the end a session goes, and everything that nobody needs."""
        for name in NAMES[:2]:
            await self.ask("create", UIDS[NAMES.index(name)], name, AGENTS[0])
        for step, chance in enumerate(history):
            if chance:
                method, args = await self.choose(Random(f"{step} {chance}"))
                note(f"{method}{args}")
                await self.ask(method, *args)
        await self.ask("look", UIDS[0])
        await self.ask("delete", UIDS[0])
        await self.ask("advance", 6)
        await self.ask("vacuum", 0, False)
        for uid in (*UIDS, *FORKS):
            await self.ask("look", uid)
        for method in ("sessions", "ready", "debts"):
            await self.ask(method)

    async def choose(self, random: Random) -> Call:
        first = self.stores[0]
        views = {uid: await first.look(uid) for uid in await first.sessions()}
        return Chaos(random, views, self.leases[-6:], self.nodes, first.now).call()

    async def ask(self, method: str, *args: Any) -> None:
        answers = [await store.attempt(method, *args) for store in self.stores]
        assert all(answer == answers[0] for answer in answers), f"{method}{args}: {answers}"
        self.remember(answers[0])
        self.count(method, args, answers[0])

    def count(self, method: str, args: tuple[Any, ...], answer: Any) -> None:
        """What kind of step this was, by what came of it."""
        if isinstance(answer, Refused):
            self.saw[f"{method} refused"] += 1
            return
        self.saw[method] += 1
        match method, answer:
            case "acquire", (_, Lease()):
                self.saw["a takeover"] += 1
            case "open_turn", Opened(turn=Turn(), fresh=fresh, displaced=displaced):
                self.saw["a turn opened" if fresh else "a turn taken up again"] += 1
                self.saw["a turn taken over"] += displaced is not None and not fresh
            case "take", (_, *_):
                self.saw["items taken"] += 1
            case "commit", _:
                self.saw[f"commit {type(args[0].delta).__name__}"] += 1
                self.saw["a turn settled"] += args[0].settles is not None
            case "vacuum", {"nodes": nodes} if nodes:
                self.saw["nodes vacuumed"] += 1

    def remember(self, answer: Any) -> None:
        self.answers.append(answer)
        for found in answer if isinstance(answer, tuple) else (answer,):
            lease = found if isinstance(found, Lease) else getattr(found, "lease", None)
            if isinstance(lease, Lease) and lease.owner is not None:
                self.leases.append(lease)
            if isinstance(getattr(found, "leaf", None), str):
                self.nodes.append(found.leaf)


@pytest.mark.timeout(LONG_ENOUGH)
def test_memory_sqlite_and_postgres_give_the_same_answers_to_the_same_history(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    answers: list[Any] = []
    saw: Counter[str] = Counter()

    async def on_all(history: bytes, number: int) -> None:
        async with AsyncExitStack() as stack:
            harness = await stack.enter_async_context(own_postgres(postgres))
            sqlite = SqliteHarness(tmp_path / f"{number}.db")
            stores = [
                await PlainStore.begin(MemoryHarness(), exact=True),
                await PlainStore.begin(sqlite, exact=True),
                await PlainStore.begin(harness, exact=False),
            ]
            for store in stores:
                stack.push_async_callback(store.aclose)
            lived = Histories(stores)
            await lived.live(history)
            answers.extend(lived.answers)
            saw.update(lived.saw)

    numbers = iter(range(10**6))

    @same_histories(HISTORIES)
    @given(st.binary(min_size=STEPS, max_size=STEPS))
    def agree(history: bytes) -> None:
        asyncio.run(on_all(history, next(numbers)))

    agree()
    refused = sum(isinstance(answer, Refused) for answer in answers)
    assert 0.2 < refused / len(answers) < 0.8
    assert [event for event in REACHED if not saw[event]] == [], "these never happened"
