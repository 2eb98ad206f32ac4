"""Random histories of a whole store, step by step the same as a plain model of what it promises.

Every rule asks model and store the same thing and compares the answers; after every step everything that can be read is
compared too. What happened is counted, and at the end each kind of event must have happened.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import os
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from lash.testing.harness import StoreHarness
from tests.contract.stores import KINDS, MemoryHarness, SqliteHarness, postgres_harness

from .machine_steps import AGENTS, PlainStore, grown, settled
from .store_model import (
    Arriving,
    Grow,
    Head,
    Lease,
    Letter,
    Model,
    Move,
    Opened,
    Owing,
    Plan,
    Promise,
    Record,
    Refused,
    Turn,
    View,
)

T = TypeVar("T")
M = TypeVar("M", bound=Callable[..., None])
Begin = Callable[[AsyncExitStack], Awaitable[StoreHarness]]

LONG = bool(os.environ.get("LASH_LONG"))
RUNS = {"memory": (100, 40), "sqlite": (10, 40), "postgres": (10, 40)}
"""How many histories of how many steps. They are the same in every run; LASH_LONG makes them many."""

NAMES = ("red", "green", "blue")
KEYS = ("k1", "k2")
EFFECTS = ("e1", "e2", "e3")
BLOBS = ("b1", "b2")

picks = st.integers(0, 23)
owners = st.sampled_from(("ann", "bob", "cleo"))
ttls = st.sampled_from((1, 3, 5))
texts = st.sampled_from(("yes", "no"))
boundaries: st.SearchStrategy[Literal["after_work", "before_completion"]] = st.sampled_from(
    ("after_work", "before_completion")
)
letters = st.one_of(
    st.builds(Letter, text=texts, key=st.none() | st.sampled_from(KEYS), boundary=boundaries),
    st.builds(Letter, text=texts, merge=st.just("m"), option=st.none() | st.just("fast")),
    st.builds(Letter, text=texts, blob=st.sampled_from(BLOBS)),
    st.builds(Letter, text=texts, kind=st.sampled_from(("command", "wake"))),
    st.builds(Letter, text=texts, due=st.sampled_from((0, 2))),
)
"""What is sent. ``due`` counts from the moment of sending."""


@st.composite
def sendings(draw: st.DrawFn) -> tuple[Letter, Literal["now", "next"]]:
    letter = draw(letters)
    may_enter = letter.kind != "command" and letter.due is None
    return letter, "now" if may_enter and draw(st.booleans()) else "next"


MOVES: dict[str, st.SearchStrategy[dict[str, Any]]] = {}
"""What each move draws."""
LOTS: list[str] = []
"""The moves to draw from, the frequent ones several times."""


def move(
    *, often: int = 1, needs: Callable[[Any], object] = lambda self: True, **arguments: st.SearchStrategy[Any]
) -> Callable[[M], M]:
    """Something that can happen in a history; where there is not what it ``needs``, nothing happens."""

    def keep(method: M) -> M:
        @functools.wraps(method)
        def unless_impossible(self: StoreMachine, *args: Any, **kwargs: Any) -> None:
            if needs(self):
                method(self, *args, **kwargs)

        MOVES[method.__name__] = st.fixed_dictionaries(arguments)
        LOTS.extend([method.__name__] * often)
        return cast(M, unless_impossible)

    return keep


def moves() -> st.SearchStrategy[tuple[str, dict[str, Any]]]:
    """Any move. Hypothesis likes what comes first, so that is what moves a session on."""
    lots = sorted(LOTS, key=LOTS.count, reverse=True)
    return st.sampled_from(lots).flatmap(lambda name: st.tuples(st.just(name), MOVES[name]))


class StoreMachine(RuleBasedStateMachine):
    """One history. What was handed out is remembered for ever, to be tried again when it is stale.

    It has one rule, which makes any of the moves. Of many rules Hypothesis leaves most out of each history, and what is
    looked for here needs them all: leases that run out, turns that sleep, heads that move, sessions that go.
    """

    def __init__(self, begin: Begin, saw: Counter[str], *, exact: bool) -> None:
        super().__init__()
        self.saw = saw
        self.model = Model()
        self.runner = asyncio.Runner()
        self.stack = AsyncExitStack()
        harness = self.run(begin(self.stack))
        self.store = self.run(PlainStore.begin(harness, exact=exact))
        self.ids = itertools.count(1)
        self.looks = itertools.count()
        self.seen: dict[str, View] = {}
        self.uids: list[str] = []
        self.sent: list[tuple[str, Arriving]] = []
        self.leases: list[Lease] = []
        self.openings: list[tuple[Any, ...]] = []
        self.parkings: list[tuple[Any, ...]] = []
        self.waits: list[str] = []
        self.plans: list[Plan] = []

    def run(self, work: Awaitable[T]) -> T:
        async def awaited() -> T:
            return await work

        return self.runner.run(awaited())

    def teardown(self) -> None:
        try:
            for uid in self.model.books:
                assert self.run(self.store.look(uid)) == self.model.look(uid)
        finally:
            self.close()

    def close(self) -> None:
        self.run(self.store.store.aclose())
        self.run(self.stack.aclose())
        self.runner.close()

    # -- asking both ---------------------------------------------------------------------------------------------------

    def do(self, method: str, *args: object) -> Any:
        """Ask model and store the same. They must give the same answer, or refuse for the same reason."""
        expected = self.model.attempt(method, *args)
        answer = self.run(self.store.attempt(method, *args))
        assert answer == expected, f"{method}{args}"
        self.saw[f"{method}: {answer.error}" if isinstance(answer, Refused) else method] += 1
        return answer

    def note(self, what: str, happened: object = True) -> None:
        if happened:
            self.saw[what] += 1

    def mint(self) -> str:
        return f"{next(self.ids):032x}"

    def session(self, n: int) -> str:
        return pick(list(self.model.books), n)

    def item(self, letter: Letter, when: Literal["now", "next"]) -> Arriving:
        due = None if letter.due is None else self.model.now + letter.due
        return Arriving(self.mint(), replace(letter, due=due), when)

    def driven(self) -> list[tuple[str, Lease, Turn]]:
        """The sessions with a turn at work, by whom, and the turn."""
        books = [(book.uid, book.lease, book.turn) for book in self.model.books.values() if book.lease.owner]
        return [(uid, lease, turn) for uid, lease, turn in books if turn is not None and turn.state == "open"]

    def at_work(self, n: int) -> tuple[str, Lease, Turn]:
        """A turn at work. When there is none, one is opened, or taken over from whoever has it."""
        if not self.driven():
            uid = self.session(n)
            self.open(uid, "ann", self.mint(), 3, self.item(Letter("work"), "next"), ())
            if not self.driven():
                self.time_passes(6, reopens=False)
                self.open(uid, "ann", self.mint(), 3, None, ())
        return pick(self.driven(), n)

    def idle(self) -> list[str]:
        return [book.uid for book in self.model.books.values() if book.turn is None]

    def held(self, uid: str) -> Lease:
        """The lease of a session: the one that is held, or, while it is free, a new one."""
        lease = self.model.books[uid].lease
        if lease.owner is None:
            lease = self.do("acquire", uid, "ann", 3)[0]
            self.leases.append(lease)
        return lease

    def stale_leases(self) -> list[Lease]:
        current = {(book.uid, book.lease.owner, book.lease.generation) for book in self.model.books.values()}
        return [lease for lease in self.leases if (lease.session, lease.owner, lease.generation) not in current]

    # -- sessions ------------------------------------------------------------------------------------------------------

    @initialize()
    def two_sessions(self) -> None:
        for name in NAMES[:2]:
            self.uids.append(self.mint())
            self.do("create", self.uids[-1], name, AGENTS[0])

    @move(n=picks, name=st.sampled_from(NAMES), agent=st.sampled_from(AGENTS), again=st.booleans(), how=st.booleans())
    def create(self, n: int, name: str, agent: str, again: bool, how: bool) -> None:
        if not again:
            self.uids.append(self.mint())
        uid = pick(self.uids, n) if again else self.uids[-1]
        self.do("open" if how else "create", uid, name, agent)
        self.do("get", name)

    @move(needs=lambda self: len(self.model.books) > 1, n=picks)
    def delete(self, n: int) -> None:
        self.do("delete", self.session(n))

    @move(n=picks, kind=st.sampled_from(("config", "catalog", "metadata")), text=texts, stale=st.booleans())
    def put_document(self, n: int, kind: str, text: str, stale: bool) -> None:
        uid = self.session(n)
        current = self.model.books[uid].current(kind)
        self.do("put_document", uid, kind, f'{{"said": "{text}"}}', current - stale)
        for revision in range(current + 2):
            self.do("document", uid, kind, revision)

    # -- the inbox -----------------------------------------------------------------------------------------------------

    @move(often=3, n=picks, sending=sendings())
    def send(self, n: int, sending: tuple[Letter, Literal["now", "next"]]) -> None:
        uid = self.session(n)
        for _ in range(1 if sending[0].merge is None else 2):
            arriving = self.item(*sending)
            item = self.do("admit", uid, arriving)
            if not isinstance(item, Refused):
                self.sent.append((uid, arriving))
                self.note("an item repeated by key", item.id != arriving.id)
                self.note("an item aimed at a turn", item.target)
        if sending[0].merge is not None:
            self.open(uid, "bob", self.mint(), 3, None, ())

    @move(often=3, n=picks, text=texts, boundary=boundaries)
    def steer(self, n: int, text: str, boundary: Literal["after_work", "before_completion"]) -> None:
        """Send something to a running turn."""
        uid, _, _ = self.at_work(n)
        self.sent.append((uid, self.item(Letter(text, boundary=boundary), "now")))
        self.do("admit", *self.sent[-1])

    @move(needs=lambda self: self.sent, n=picks, changed=st.booleans())
    def send_again(self, n: int, changed: bool) -> None:
        uid, arriving = pick(self.sent, n)
        if changed:
            arriving = replace(arriving, letter=replace(arriving.letter, text="other"))
        self.do("admit", uid, arriving)

    @move(needs=lambda self: self.sent, n=picks, by=st.sampled_from(("ids", "keys", "from")), unknown=st.booleans())
    def cancel_items(self, n: int, by: str, unknown: bool) -> None:
        uid, anchor = pick(self.sent, n)[0], pick(self.sent, n)[1].id
        ids = [arriving.id for session, arriving in self.sent if session == uid][-2:]
        names = {"ids": (anchor, *ids), "keys": KEYS, "from": (self.mint() if unknown else anchor,)}[by]
        answers = self.do("cancel", uid, by, names)
        if not isinstance(answers, Refused):
            self.saw.update(f"cancel {by}: {answer}" for _, answer, _ in answers)

    # -- leases and time -----------------------------------------------------------------------------------------------

    @move(n=picks, owner=owners, ttl=ttls)
    def acquire(self, n: int, owner: str, ttl: int) -> None:
        acquired = self.do("acquire", self.session(n), owner, ttl)
        if not isinstance(acquired, Refused):
            self.leases.append(acquired[0])
            self.note("a takeover", acquired[1])

    @move(often=2, needs=lambda self: self.leases, n=picks, ttl=ttls, lets_go=st.booleans())
    def renew_or_release(self, n: int, ttl: int, lets_go: bool) -> None:
        lease = pick(self.leases[-4:], n)
        if n % 4 == 0:
            self.time_passes(6, reopens=False)
        book = self.model.books.get(lease.session)
        turn = None if book is None else book.turn
        if lets_go:
            done = self.do("release", lease)
            handed_over = turn is not None and turn.state == "open" and turn.generation == lease.generation
            self.note("a turn handed over", done is None and handed_over)
        else:
            expired = book is not None and (book.lease.expires_at or 0) <= self.model.now
            renewed = self.do("renew", lease, ttl)
            self.note("an expired lease renewed", expired and not isinstance(renewed, Refused))

    @move(often=2, ticks=st.sampled_from((0, 1, 1, 2, 6, 40)), reopens=st.booleans())
    def time_passes(self, ticks: int, reopens: bool) -> None:
        self.model.now += ticks
        self.run(self.store.advance(ticks))
        if reopens:
            self.run(self.store.reopen())
            self.note("reopened")

    # -- turns ---------------------------------------------------------------------------------------------------------

    @move(often=3, n=picks, owner=owners, ttl=ttls, sending=st.none() | sendings(), starts=st.booleans())
    def open_turn(
        self, n: int, owner: str, ttl: int, sending: tuple[Letter, Literal["now", "next"]] | None, starts: bool
    ) -> None:
        admits = None if sending is None else self.item(*sending)
        marks = (Record("e1", "model"),) if starts else ()
        self.open(self.session(n), owner, self.mint(), ttl, admits, marks)

    def open(self, *opening: Any) -> Opened | Refused:
        book = self.model.books.get(opening[0])
        before = None if book is None else book.turn
        opened: Opened | Refused = self.do("open_turn", *opening)
        if isinstance(opened, Refused) or opened.lease is None or opened.turn is None:
            self.note("nothing opened for another's lease", isinstance(opened, Opened) and opened.held_by)
            return opened
        self.openings.append(opening)
        self.leases.append(opened.lease)
        self.note("a takeover", opened.displaced)
        self.note("a turn taken over", opened.displaced and before)
        self.note("a turn opened by merged items", opened.fresh and len(opened.items) > 1)
        self.note("a parked turn resumed", before is not None and before.state == "parked")
        self.note("a second attempt without progress", opened.turn.attempts > 1)
        self.note("an opening repeated", opened.fresh and before)
        return opened

    @move(needs=lambda self: self.openings, n=picks)
    def open_again(self, n: int) -> None:
        self.open(*pick(self.openings[-3:], n))

    @move(needs=lambda self: any(book.turn for book in self.model.books.values()), n=picks, owner=owners)
    def die_and_be_taken_over(self, n: int, owner: str) -> None:
        """Whoever drives the turn is silent for longer than any lease, and somebody takes it up."""
        self.time_passes(6, reopens=True)
        uid = pick([book.uid for book in self.model.books.values() if book.turn], n)
        self.open(uid, owner, self.mint(), 3, None, ())

    @move(
        often=3,
        n=picks,
        checkpoint=boundaries,
        key=st.sampled_from(EFFECTS),
        effect=st.sampled_from(("take", "take", "model")),
    )
    def take(self, n: int, checkpoint: str, key: str, effect: str) -> None:
        uid, lease, turn = self.at_work(n)
        known = self.model.books[uid].journal.get(key)
        taken = self.do("take", lease, turn.id, checkpoint, key, effect)
        if not isinstance(taken, Refused) and taken:
            self.note("a checkpoint repeated" if known and known.state == "completed" else f"taken {checkpoint}")
            assert self.do("take", lease, turn.id, checkpoint, key, effect) == taken

    @move(
        often=4,
        n=picks,
        key=st.sampled_from(EFFECTS),
        effect=st.sampled_from(("model", "model", "tool")),
        ends=st.sampled_from((None, None, "completed", "failed")),
        outcome=texts,
        pending=st.booleans(),
    )
    def journal(
        self, n: int, key: str, effect: str, ends: Literal["completed", "failed"] | None, outcome: str, pending: bool
    ) -> None:
        uid, lease, turn = self.at_work(n)
        known = self.model.books[uid].journal.get(key)
        waits = (Promise(self.mint(), turn.id, self.model.now + 2),) if pending and ends is None else ()
        wait = waits[0].id if waits else None
        record = Record(key, effect, ends, outcome if ends else None, wait)
        entries = self.do("record", lease, turn.id, (record,), waits)
        if isinstance(entries, Refused):
            return
        self.waits += [promise.id for promise in waits]
        self.note("a record repeated", known == entries[0])
        self.note("a pending effect", entries[0].wait)
        self.note("progress", turn.attempts > 0 and known != entries[0])

    @move(often=3, n=picks, how=st.sampled_from(("wait", "until", "both", "any wait", "unknown wait", "forever")))
    def park(self, n: int, how: str) -> None:
        uid, lease, turn = self.at_work(n)
        waits: tuple[str, ...] = ()
        if how in ("wait", "both"):
            self.waits.append(self.mint())
            waits = (self.waits[-1],)
            self.do(
                "open_wait", uid, Promise(waits[0], pick((None, turn.id), n), self.model.now + 3 if n % 3 else None)
            )
        if how == "any wait":
            waits = tuple(self.model.books[uid].waits)[-2:]
        if how == "unknown wait":
            waits = (self.mint(),)
        self.parkings.append((lease, turn.id, waits, self.model.now + 1 + n % 3 if how in ("until", "both") else None))
        parked = self.do("park", *self.parkings[-1])
        self.note(
            "parked on a settled wait", parked == replace(turn, attempts=0, state="parked", parked_until=self.model.now)
        )
        self.do("park", *self.parkings[-1])

    @move(often=2, needs=lambda self: self.openings, n=picks, again=st.booleans())
    def request_cancel(self, n: int, again: bool) -> None:
        uid, _, turn, *_ = pick(self.openings[-3:], n)
        book = self.model.books.get(uid)
        unsettled = None if book is None else book.turn
        self.note("a cancel that wakes", unsettled and unsettled.state == "parked" and unsettled.id == turn)
        request = self.mint()
        for _ in range(1 + again):
            self.do("request_cancel", uid, turn, request)
        self.do("request_cancel", uid, turn, self.mint())

    # -- waits ---------------------------------------------------------------------------------------------------------

    @move(n=picks, expires=st.none() | st.just(2), again=st.booleans())
    def open_wait(self, n: int, expires: int | None, again: bool) -> None:
        if not again or not self.waits:
            self.waits.append(self.mint())
        due = None if expires is None else self.model.now + expires
        self.do("open_wait", self.session(n), Promise(pick(self.waits[-2:], n), None, due))

    @move(
        often=3,
        needs=lambda self: self.waits,
        n=picks,
        value=texts,
        genuine=st.sampled_from((True, True, True, False)),
        late=st.booleans(),
    )
    def answer(self, n: int, value: str, genuine: bool, late: bool) -> None:
        if late:
            self.time_passes(3, reopens=False)
        pending = [
            wait.id for book in self.model.books.values() for wait in book.waits.values() if wait.state == "pending"
        ]
        wait = pick(pending if pending and n % 3 else self.waits, n)
        asleep = {book.uid for book in self.model.books.values() if book.turn and book.turn.state == "parked"}
        ready = {uid for _, uid in self.model.ready()}
        answer = self.do("answer", wait, value, genuine)
        if isinstance(answer, Refused):
            return
        self.note("an answer accepted", answer[1])
        self.note("a second answer refused", not answer[1] and answer[0].state == "answered")
        self.note("a late answer", answer[0].state == "timed_out")
        self.note("a parked turn woken", asleep & {uid for _, uid in self.model.ready()} - ready)

    @move(needs=lambda self: any(book.waits for book in self.model.books.values()), n=picks)
    def revoke(self, n: int) -> None:
        uid = pick([book.uid for book in self.model.books.values() if book.waits], n)
        self.do("revoke", uid, tuple(self.model.books[uid].waits)[-2:])

    # -- commits -------------------------------------------------------------------------------------------------------

    def commit(self, plan: Plan) -> Any:
        known = (plan.lease.session, plan.operation) in self.model.commits
        receipt = self.do("commit", plan)
        if not isinstance(receipt, Refused):
            self.note("a commit replayed", known)
            if not known:
                self.plans.append(plan)
        return receipt

    @move(often=2, n=picks, owner=owners, text=texts, release=st.booleans())
    def a_whole_turn(self, n: int, owner: str, text: str, release: bool) -> None:
        uid = self.session(n)
        opened = self.open(uid, owner, self.mint(), 3, self.item(Letter(text), "next"), ())
        if isinstance(opened, Opened) and opened.lease is not None and opened.turn is not None:
            self.commit(replace(settled(self.model.look(uid), opened.lease, text), release=release))

    @move(often=4, n=picks, text=texts, gives_back=st.booleans(), extra=picks)
    def finish(self, n: int, text: str, gives_back: bool, extra: int) -> None:
        """Settle a turn as it ought to be."""
        uid, lease, turn = self.at_work(n)
        view = self.model.look(uid)
        missed = [item.id for item in view.items if item.state == "pending" and item.target == turn.id]
        plan = settled(view, lease, text, gives_back=gives_back)
        receipt = self.commit(self.with_more(plan, extra))
        if isinstance(receipt, Refused):
            return
        self.note("an item deferred", missed)
        self.note("an item given back", gives_back)
        self.note("a turn cancelled", view.cancel)
        self.note("a journal retired", view.journal)
        self.note("a pending wait revoked", any(w.turn == turn.id and w.state == "pending" for w in view.waits))

    def with_more(self, plan: Plan, extra: int) -> Plan:
        """What else a commit may say: state parts, usage, debts, documents; and that the lease goes."""
        receiver = pick(self.uids, extra // 2)
        brought = (("state", f"p{extra % 4}", True), ("kept", f"p{extra // 6}", extra % 5 != 0))
        shows = (("shows", pick(BLOBS, extra)),) if extra % 7 == 0 else ()
        delta = (
            replace(plan.delta, payloads=plan.delta.payloads + shows) if isinstance(plan.delta, Grow) else plan.delta
        )
        return replace(
            plan,
            delta=delta,
            parts=brought if extra % 2 else None,
            usage=(("big", extra), ("small", 1)) if extra % 3 else (),
            owes=(Owing(receiver, Letter("done", "wake")), Owing(receiver, Letter("see"))) if extra % 4 == 1 else (),
            documents=(("config", f'{{"said": "{extra}"}}'),) if extra % 5 == 1 else (),
            release=extra % 6 == 0,
        )

    @move(
        often=4,
        needs=lambda self: self.idle(),
        n=picks,
        style=st.sampled_from(("append", "append", "reset", "compaction", "unchanged")),
        extra=picks,
    )
    def commit_alone(self, n: int, style: str, extra: int) -> None:
        """Commit outside any turn."""
        uid = pick(self.idle(), n)
        lease, head = self.held(uid), self.model.find(uid).head
        plan = Plan(self.mint(), lease, head.revision)
        match style:
            case "append":
                plan = replace(plan, delta=Grow(head, grown(head, "alone")))
            case "reset" | "compaction":
                plan = replace(plan, delta=Grow(head, (("opens", style), ("says", style))))
        if not isinstance(self.commit(self.with_more(plan, extra)), Refused):
            self.note(style)

    @move(often=3, needs=lambda self: self.idle(), n=picks, to=picks, extra=picks)
    def rewind(self, n: int, to: int, extra: int) -> None:
        uid = pick(self.idle(), n)
        lease, head, boundaries = self.held(uid), self.model.find(uid).head, self.boundaries(uid)
        if boundaries:
            target = pick(boundaries, to)
            moved = self.commit(self.with_more(Plan(self.mint(), lease, head.revision, Move(target)), extra))
            self.note("rewind", not isinstance(moved, Refused) and target != head.leaf)
            self.note("rewind to a node of the parent", self.model.books[uid].leaf == target and uid not in target)

    def boundaries(self, uid: str) -> list[str]:
        """The last nodes of the commits that a session reaches."""
        book = self.model.books[uid]
        inherited = {node.id for node in self.model.path(book.forked_from)}
        ends = [commit.nodes[-1] for commit in self.model.commits.values() if commit.nodes]
        return [node for node in ends if node.startswith(uid) or node in inherited]

    @move(
        often=2,
        n=picks,
        flaw=st.sampled_from(("head", "graph", "root", "boundary", "part", "blob", "items", "turn", "cancel")),
    )
    def commit_wrongly(self, n: int, flaw: str) -> None:
        uid = self.session(n)
        lease, view = self.held(uid), self.model.look(uid)
        head = view.row.head
        plan = Plan(self.mint(), lease, head.revision, Grow(head, grown(head, "wrong")))
        if view.turn is not None and flaw != "turn":
            plan = settled(view, lease, "wrong")
        self.commit(self.spoil(plan, flaw, head))

    def spoil(self, plan: Plan, flaw: str, head: Head) -> Plan:
        settles = plan.settles
        match flaw:
            case "head":
                return replace(plan, base=plan.base - 1)
            case "graph":
                return replace(
                    plan, delta=Grow(replace(head, leaf=f"{plan.lease.session}-{self.mint()}-0"), (("says", "x"),))
                )
            case "root":
                return replace(plan, delta=Grow(Head(), (("opens", "initial"),) if head.leaf else (("says", "x"),)))
            case "boundary":
                inner = [node for node in self.model.nodes if node.startswith(plan.lease.session)]
                return replace(plan, delta=Move(inner[0] if inner else "nowhere"))
            case "part":
                return replace(plan, parts=(("state", "never stored", False),))
            case "blob" if isinstance(plan.delta, Grow):
                return replace(plan, delta=Grow(head, (*plan.delta.payloads, ("shows", "never stored"))))
            case "items" if settles is not None:
                return replace(plan, settles=replace(settles, completes=settles.completes | {self.mint()}))
            case "cancel" if settles is not None:
                asked = settles.cancelled_by is not None
                outcome, evidence = ("finished", None) if asked else ("cancelled", self.mint())
                return replace(plan, settles=replace(settles, outcome=outcome, cancelled_by=evidence))
            case _:
                return plan

    @move(needs=lambda self: self.plans, n=picks, changed=st.booleans(), by=owners)
    def commit_again(self, n: int, changed: bool, by: str) -> None:
        """Whoever asks again, with whatever lease and from whatever head, gets the first receipt."""
        plan = pick(self.plans, n)
        lease = replace(plan.lease, owner=by, generation=plan.lease.generation + n)
        again = replace(plan, lease=lease, base=plan.base + n, usage=(("other", 1),) if changed else plan.usage)
        self.commit(again)
        self.do("receipt", plan.lease.session, plan.operation)

    # -- forks, debts, blobs, retention --------------------------------------------------------------------------------

    @move(
        often=2,
        n=picks,
        to=picks,
        name=st.sampled_from(("fork", "twig", "leaf")),
        flaw=st.sampled_from((None, None, None, "node", "uid")),
    )
    def fork(self, n: int, to: int, name: str, flaw: str | None) -> None:
        parent = list(self.model.books)[-1] if n % 2 else self.session(n)
        boundaries = self.boundaries(parent)
        if not boundaries:
            return
        at = f"{parent}-{self.mint()}-0" if flaw == "node" else pick(boundaries, to)
        uid = pick(self.uids, to) if flaw == "uid" else self.mint()
        forked = self.do("fork", uid, name, parent, at)
        if not isinstance(forked, Refused):
            self.uids.append(uid)
            self.note("a fork of a fork", self.model.books[parent].forked_from)
            self.do("fork", uid, name, parent, at)

    @move(often=2, n=picks)
    def deliver(self, n: int) -> None:
        places = list(self.model.debts_of) or [(self.mint(), self.mint(), 0)]
        owed = self.model.debts()
        place = pick(owed or places, n)
        receiver = self.model.debts_of[place].owed.to if place in owed else ""
        if n % 5 == 0 and receiver in self.model.books and len(self.model.books) > 1:
            self.do("delete", receiver)
        paid = self.do("deliver", place)
        self.note("a debt delivered", place in owed and paid is not None)
        self.note("a debt to nobody", place in owed and paid is None)
        self.do("deliver", place)

    @move(text=st.sampled_from(BLOBS))
    def put_blob(self, text: str) -> None:
        self.do("put_blob", text)
        self.do("blob", text)

    @move(often=2, after=st.sampled_from((0, 1, 6)), keeps=st.sampled_from((0, 0, 3)), dry_run=st.booleans())
    def vacuum(self, after: int, keeps: int, dry_run: bool) -> None:
        self.time_passes(after, reopens=False)
        if dry_run:
            self.do("vacuum", keeps, True)
        removed = self.do("vacuum", keeps, False)
        self.saw.update(f"vacuum: {kind}" for kind, count in removed.items() if count)
        for text in (*BLOBS, "p0", "p1"):
            self.do("blob", text)

    @move(needs=lambda self: self.model.nodes, n=picks, to=picks)
    def look_for_a_node(self, n: int, to: int) -> None:
        uid, node = self.session(n), pick(list(self.model.nodes), to)
        self.do("node", uid, node)
        self.note("a node of an abandoned branch", not self.do("on_active_path", uid, node))

    # -- processes come and go -----------------------------------------------------------------------------------------

    @move(often=2, needs=lambda self: self.stale_leases(), n=picks)
    def stale_everything(self, n: int) -> None:
        """Everything that was ever handed out and no longer holds is refused, or is an answer given once more."""
        before = self.view()
        for lease in (*self.stale_leases()[-6:], pick(self.stale_leases(), n)):
            self.try_stale(lease)
        for plan in self.plans[-6:]:
            self.commit(plan)
        for parking in [parking for parking in self.parkings if parking[0] in self.stale_leases()][-3:]:
            self.do("park", *parking)
        for uid in (*list(self.model.deleted)[-2:], self.mint()):
            for method in ("find", "look"):
                self.do(method, uid)
            self.do("admit", uid, self.item(Letter("too late"), "next"))
            self.do("open_turn", uid, "ann", self.mint(), 1, None, ())
        assert self.view() == before

    def try_stale(self, lease: Lease) -> None:
        book = self.model.books.get(lease.session)
        turn = book.turn.id if book is not None and book.turn is not None else self.mint()
        self.do("renew", lease, 5)
        if book is None or book.lease.owner is not None or book.lease.generation != lease.generation:
            self.do("release", lease)
        self.do("take", lease, turn, "after_work", "e1", "take")
        self.do("record", lease, turn, (Record("stale", "model"),), ())
        self.do("commit", Plan(self.mint(), lease, 0 if book is None else book.revision))

    def view(self) -> object:
        return [self.model.look(uid) for uid in self.model.books], self.model.ready(), self.model.debts()

    @rule(move=st.deferred(moves))
    def make(self, move: tuple[str, dict[str, Any]]) -> None:
        name, arguments = move
        getattr(self, name)(**arguments)

    # -- after every step ----------------------------------------------------------------------------------------------

    @invariant()
    def what_can_be_read_is_what_the_model_says(self) -> None:
        """Of sessions that the step should have left alone only one is looked at, another one each time."""
        for method in ("sessions", "ready", "debts"):
            assert self.run(self.store.attempt(method)) == self.model.attempt(method)
        views = {uid: self.model.look(uid) for uid in self.model.books}
        changed = {uid for uid, view in views.items() if view != self.seen.get(uid)}
        for uid in sorted(changed | {self.session(next(self.looks))}):
            assert self.run(self.store.look(uid)) == views[uid]
        self.seen = views


def pick(things: Sequence[T], n: int) -> T:
    return things[n % len(things)]


# -- on every store ----------------------------------------------------------------------------------------------------


def beginning(kind: str, request: pytest.FixtureRequest, folder: Path) -> Begin:
    """How a history of its own begins: always on an empty database."""
    files = itertools.count()

    async def begin(stack: AsyncExitStack) -> StoreHarness:
        match kind:
            case "memory":
                return MemoryHarness()
            case "sqlite":
                return SqliteHarness(folder / f"{next(files)}.db")
            case _:
                return await stack.enter_async_context(postgres_harness(request.getfixturevalue("postgres").fresh()))

    return begin


@pytest.mark.timeout(0 if LONG else 120)
@pytest.mark.parametrize("kind", KINDS)
def test_a_store_does_what_a_plain_model_of_its_promises_does(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    saw: Counter[str] = Counter()
    begin = beginning(kind, request, tmp_path)
    examples, steps = RUNS[kind]
    run_state_machine_as_test(
        lambda: StoreMachine(begin, saw, exact=kind != "postgres"),
        settings=settings(
            max_examples=examples * 50 if LONG else examples,
            stateful_step_count=steps,
            derandomize=not LONG,
            database=None,
            phases=(Phase.generate,) if os.environ.get("NOSHRINK") else (Phase.generate, Phase.shrink),
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
    if os.environ.get("SHOW"):
        for k, v in sorted(saw.items()):
            print(v, k)
