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

HISTORIES, STEPS = 20, 90
T = TypeVar("T")
Call = tuple[str, tuple[Any, ...]]


def some_ids(kind: int, count: int) -> list[str]:
    return [f"{kind:016x}{number:016x}" for number in range(count)]


UIDS, FORKS, ITEMS, TURNS, OPERATIONS, WAITS, REQUESTS = (
    some_ids(kind, count) for kind, count in enumerate((3, 3, 9, 7, 7, 5, 3), start=1)
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


def held(view: View) -> bool:
    return view.lease.owner is not None


def driven(view: View) -> bool:
    return held(view) and view.turn is not None


def aimed_at(view: View) -> bool:
    """Has a turn that may take more."""
    return driven(view) and any(item.state == "pending" and item.target is not None for item in view.items)


def busy(view: View) -> bool:
    """Has a turn, or input for one."""
    return view.turn is not None or any(item.state == "pending" for item in view.items)


class Chaos:
    """Chooses calls. It knows what there is from the answers of one of the stores, and mostly asks for what it knows:
    a call that is refused for the first of many reasons shows nothing of the others."""

    def __init__(
        self,
        random: Random,
        views: dict[str, View],
        *,
        leases: list[Lease],
        boundaries: list[str],
        debts: list[tuple[str, str, int]],
        now: int,
    ) -> None:
        self.random = random
        self.views = views
        self.leases = leases
        self.boundaries = boundaries
        self.debts = debts
        self.now = now

    def any(self, *choices: T) -> T:
        return self.random.choice(choices)

    def rarely(self) -> bool:
        return self.random.random() < 0.15

    def call(self) -> Call:
        calls = [self.about_sessions, self.about_items, self.about_leases, self.about_waits, self.about_rest]
        calls += [self.about_turns] * 2
        if self.rarely() or any(map(driven, self.views.values())):
            calls += [self.about_work] * 3
        if self.rarely() or any(map(held, self.views.values())):
            calls += [self.about_commits] * 3
        return self.random.choice(calls)()

    def among(self, *calls: Call) -> Call:
        return self.random.choice(calls)

    # -- what a call is made of ----------------------------------------------------------------------------------------

    def uid(self, fits: Callable[[View], bool] | None = None) -> str:
        """A session that fits, if there is one; else one that lives; sometimes any."""
        fitting = [uid for uid, view in self.views.items() if fits is None or fits(view)] or list(self.views)
        return self.any(*UIDS, *FORKS) if self.rarely() or not fitting else self.any(*fitting)

    def lapsed(self, view: View) -> bool:
        return view.lease.expires_at is not None and view.lease.expires_at <= self.now

    def lease(self, uid: str) -> Lease:
        """The lease that is held, if one is; else, or sometimes, any that ever was."""
        view = self.views.get(uid)
        if view is not None and held(view) and not self.rarely():
            return view.lease
        return self.any(Lease(uid, "ann", 1, 1), *self.leases)

    def successor(self, uid: str) -> str:
        view = self.views.get(uid)
        return "ann" if view is None or view.lease.owner == "bob" else "bob"

    def turn(self, uid: str) -> str:
        view = self.views.get(uid)
        if view is None or view.turn is None or self.rarely():
            return self.any(*TURNS)
        return view.turn.id

    def node(self, uid: str) -> str:
        """A node of this session, mostly one where a commit ended; sometimes any."""
        view = self.views.get(uid)
        path = [] if view is None else [node.id for node in view.path]
        own = [node for node in self.boundaries if node.startswith(uid) or node in path]
        if not own or self.rarely():
            return self.any(f"{self.uid()}-{self.any(*OPERATIONS)}-{self.any(0, 1)}", *path, *self.boundaries[-9:])
        return self.any(*own)

    def wait(self, uid: str | None = None) -> str:
        known = [wait.id for name, view in self.views.items() if uid in (None, name) for wait in view.waits]
        return self.any(*WAITS) if not known or self.rarely() else self.any(*known)

    def revision(self, uid: str) -> int:
        view = self.views.get(uid)
        return self.any(0, 1, 2) if view is None or self.rarely() else view.row.revisions[0]

    def due(self) -> int | None:
        return self.any(None, None, self.now, self.now + 1, self.now + 3)

    def letter(self) -> Letter:
        kind: Literal["message", "command", "wake"] = self.any("message", "message", "command", "wake")
        return Letter(
            self.any(*TEXTS),
            kind,
            key=self.any(None, None, "k1", "k2"),
            boundary=self.any("after_work", "before_completion"),
            merge=self.any(None, "m") if kind != "command" or self.rarely() else None,
            option=self.any(None, "fast"),
            due=self.due(),
        )

    def arriving(self) -> Arriving:
        letter = self.letter()
        fits_now = (letter.kind != "command" and letter.due is None) or self.rarely()
        return Arriving(self.any(*ITEMS), letter, self.any("now", "next") if fits_now else "next")

    def record(self) -> Record:
        ends: Literal["completed", "failed"] | None = self.any(None, "completed", "failed")
        wait = self.any(None, None, self.wait()) if ends is None else None
        effect = self.any("model", "model", "tool")
        return Record(self.any("e1", "e2"), effect, ends, self.any(*TEXTS) if ends else None, wait)

    def promise(self) -> Promise:
        return Promise(self.any(*WAITS), self.any(None, *TURNS), self.due())

    # -- calls ---------------------------------------------------------------------------------------------------------

    def about_sessions(self) -> Call:
        new, name, uid = self.any(*UIDS, *FORKS), self.any(*NAMES), self.uid()
        grown = self.uid(lambda view: view.row.head.leaf is not None)
        return self.among(
            ("create", (new, name, self.any(*AGENTS))),
            ("open", (new, name, self.any(*AGENTS))),
            ("fork", (self.any(*FORKS, new), name, grown, self.node(grown))),
            ("fork", (self.any(*FORKS), name, grown, self.node(grown))),
            ("fork", (self.any(*FORKS), "fork", grown, self.node(grown))),
            ("get", (name,)),
            ("delete", (new,)),
            ("put_document", (uid, self.any("config", "config", "catalog"), '{"a": 1}', self.revision(uid))),
            ("document", (uid, "config", self.any(0, self.revision(uid)))),
        )

    def about_items(self) -> Call:
        by, names = self.any(("ids", ITEMS[:4]), ("ids", ITEMS[3:]), ("keys", ("k1", "k3")), ("from", ITEMS[2:3]))
        return self.among(
            *[("admit", (self.uid(), self.arriving())) for _ in range(4)],
            *[("admit", (self.uid(driven), Arriving(self.any(*ITEMS), Letter(self.any(*TEXTS)), "now")))] * 2,
            ("cancel", (self.uid(), by, tuple(names))),
        )

    def about_leases(self) -> Call:
        uid, lapsed, ttl = self.uid(), self.uid(self.lapsed), self.any(1, 3, 5)
        return self.among(
            ("acquire", (uid, self.any("ann", "bob"), ttl)),
            ("acquire", (lapsed, self.successor(lapsed), ttl)),
            ("renew", (self.lease(self.uid(held)), ttl)),
            ("release", (self.lease(uid),)),
            *[("advance", (self.any(1, 6),))] * 2,
        )

    def about_turns(self) -> Call:
        uid, running = self.uid(busy), self.uid(driven)
        left = self.uid(lambda view: driven(view) and self.lapsed(view))
        opening = (self.any(*TURNS), self.any(1, 3), self.any(None, self.arriving()))
        return self.among(
            *[("open_turn", (uid, self.any("ann", "bob"), *opening, self.any((), (self.record_start(),))))] * 2,
            *[("open_turn", (left, self.successor(left), *opening, ()))] * 2,
            ("request_cancel", (running, self.turn(running), self.any(*REQUESTS))),
            ("turn", (running, self.turn(running))),
        )

    def record_start(self) -> Record:
        return Record(self.any("e1", "e2"), "model", wait=self.any(None, None, self.wait()))

    def about_work(self) -> Call:
        uid = self.uid(self.any(driven, aimed_at))
        lease, turn = self.lease(uid), self.turn(uid)
        promises = self.any((), (self.promise(),))
        named = self.any((), (self.wait(uid), self.wait(uid)), (self.wait(uid),))
        checkpoint = self.any("after_work", "before_completion")
        return self.among(
            ("record", (lease, turn, (self.record(),), promises)),
            ("record", (lease, turn, (self.record(), self.record()), promises)),
            *[("take", (lease, turn, checkpoint, self.any("e2", "e3", "e4"), self.any("take", "take", "model")))] * 3,
            ("park", (lease, turn, named, self.due())),
            ("journal", (uid, turn)),
        )

    def about_waits(self) -> Call:
        uid = self.uid(lambda view: bool(view.waits))
        return self.among(
            ("open_wait", (self.uid(), self.promise())),
            ("answer", (self.wait(), self.any(*TEXTS), not self.rarely())),
            ("revoke", (uid, (self.wait(uid), self.wait(uid)))),
            ("wait", (uid, self.wait(uid))),
        )

    def about_commits(self) -> Call:
        uid = self.uid(held)
        view = self.views.get(uid)
        head = Head() if view is None else view.row.head
        operation = self.any(self.turn(uid), *OPERATIONS)
        settles = None
        if view is not None and view.turn is not None and not self.rarely():
            operation, settles = view.turn.id, self.settling(view)
        plan = Plan(
            operation,
            self.lease(uid),
            head.revision if not self.rarely() else self.any(0, 1, 2),
            self.delta(uid, head),
            settles,
            parts=self.any(None, None, (("state", self.any(*TEXTS), self.any(True, True, False)),)),
            usage=self.any((), (("big", 7),)),
            owes=self.any((), (Owing(self.any(*UIDS, *FORKS), Letter("done", "wake"), self.any("now", "next")),)),
            documents=self.any((), (), (("config", '{"a": 2}'),)),
            release=self.rarely(),
        )
        return self.among(("commit", (plan,)), ("commit", (plan,)), ("commit", (plan,)), ("receipt", (uid, operation)))

    def delta(self, uid: str, head: Head) -> Grow | Move | None:
        text, shown = self.any(*TEXTS), self.any(*BLOBS)
        choices: tuple[Grow | Move | None, ...] = (
            None,
            Move(self.node(uid)),
            Move(self.node(uid)),
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
        uid = self.uid()
        return self.among(
            ("deliver", (self.any(place, *self.debts),)),
            ("deliver", (self.any(place, *self.debts),)),
            ("put_blob", (self.any(*BLOBS),)),
            ("put_blob", (self.any(*BLOBS),)),
            ("blob", (self.any(*BLOBS, *TEXTS),)),
            ("vacuum", (self.any(0, 3), self.any(True, False, False))),
            ("node", (uid, self.node(uid))),
            ("on_active_path", (uid, self.node(uid))),
            ("advance", (self.any(1, 2, 6, 40),)),
            ("reopen", ()),
        )


class Histories:
    """Several stores that live the same history."""

    def __init__(self, stores: list[PlainStore]) -> None:
        self.stores = stores
        self.leases: list[Lease] = []
        self.boundaries: list[str] = []
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
        debts = await first.debts()
        chaos = Chaos(random, views, leases=self.leases[-6:], boundaries=self.boundaries, debts=debts, now=first.now)
        return chaos.call()

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
                self.boundaries.append(found.leaf)


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
