"""Random histories of a whole store, step by step the same as a plain model of what it promises.

Every rule asks model and store the same thing and compares the answers; after every step everything that can be read is
compared too. What happened is counted, and at the end each kind of event must have happened.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, closing
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, Literal, TypeVar, cast

import pytest
from hypothesis import given, note
from hypothesis import strategies as st

from lash.testing.harness import StoreHarness
from tests.contract.stores import KINDS, MemoryHarness, SqliteHarness

from .machine_steps import AGENTS, LONG_ENOUGH, PlainStore, grown, own_postgres, same_histories, settled
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
Choice = Callable[[Random], T]
When = Literal["now", "next"]
Boundary = Literal["after_work", "before_completion"]
Sending = tuple[Letter, When]
Begin = Callable[[AsyncExitStack], Awaitable[StoreHarness]]

RUNS = {"memory": (80, 40, 1), "sqlite": (18, 40, 3), "postgres": (14, 40, 4)}
"""How many histories, of how many steps, and after how many steps everything is looked at."""

CORE = (
    *("a takeover", "a turn taken over", "a turn handed over", "a second attempt without progress"),
    *("a parked turn resumed", "a late answer", "an item deferred", "an item given back"),
    *("taken before_completion", "a journal retired", "a record repeated", "a pending effect"),
    *("a commit replayed", "append", "reset", "rewind", "unchanged", "fork", "a debt delivered"),
    *("commit: LeaseLost", "record: LeaseLost", "take: LeaseLost", "release: LeaseLost", "renew: LeaseLost"),
    *("commit: HeadMoved", "commit: OperationReused", "commit: InvalidDelta", "commit: PartMissing"),
    *("vacuum: items", "vacuum: turns", "vacuum: waits", "vacuum: blobs", "reopened"),
)
"""What happens often enough to happen on every store."""
RARE = (
    *("a turn opened by merged items", "taken after_work", "compaction", "vacuum: documents"),
    *("an item that entered given back",),
    *("a fork of a fork", "rewind to a node of the parent", "a node of an abandoned branch", "a debt to nobody"),
    *("an opening repeated", "a checkpoint repeated", "an item repeated by key", "an item aimed at a turn", "progress"),
    *("a parked turn woken", "a cancel that wakes", "parked on a settled wait", "a second answer refused"),
    *("an expired lease renewed", "nothing opened for another's lease", "acquire: SessionBusy"),
    *("a turn cancelled", "a pending wait revoked", "admit: KeyReused", "admit: IdReused", "admit: BlobMissing"),
    *("cancel ids: cancelled", "cancel keys: cancelled", "cancel from: cancelled", "cancel from: not_found"),
    *("commit: TurnUnsettled", "commit: TurnParked", "commit: UnsettledItems", "commit: EvidenceMissing"),
    *("commit: TurnCancelRequested", "commit: NodeNotFound", "commit: BlobMissing", "commit: SessionDeleted"),
    *("record: ReplayMismatch", "record: OutcomeRecorded", "take: ReplayMismatch", "take: OutcomeRecorded"),
    *("park: LeaseLost", "park: WaitNotFound", "answer: WaitNotFound", "open_wait: IdReused"),
    *("open_turn: TurnSettled", "request_cancel: TurnSettled", "put_document: RevisionMoved"),
    *("create: SessionExists", "create: IdReused", "create: SessionDeleted", "fork: IdReused", "fork: NodeNotFound"),
    *("vacuum: nodes", "vacuum: commits", "vacuum: outbox"),
)
"""What the many histories of the memory store reach besides."""

NAMES = ("red", "green", "blue")
KEYS = ("k1", "k2")
EFFECTS = ("e1", "e2", "e3")
BLOBS = ("b1", "b2")


def one_of(*values: T) -> Choice[T]:
    """Any of these; what is named twice comes twice as often."""
    return lambda random: random.choice(values)


picks = one_of(*range(24))
owners = one_of("ann", "bob", "cleo")
ttls = one_of(1, 3, 5)
texts = one_of("yes", "no")
either = one_of(False, True)
boundaries: Choice[Boundary] = one_of("after_work", "before_completion")


def maybe(choice: Choice[T]) -> Choice[T | None]:
    return lambda random: random.choice((None, choice(random)))


def sendings(random: Random) -> Sending:
    """A letter, and whether it is for the running turn. Its ``due`` counts from the moment of sending."""
    text, key = texts(random), one_of(None, *KEYS)(random)
    letter = random.choice(
        (
            Letter(text, key=key, boundary=boundaries(random)),
            Letter(text, key=random.choice(KEYS)),
            Letter(text, merge="m", option=one_of(None, "fast")(random)),
            Letter(text, blob=random.choice(BLOBS)),
            Letter(text, random.choice(("command", "wake"))),
            Letter(text, due=random.choice((0, 2))),
        )
    )
    may_enter = letter.kind != "command" and letter.due is None
    return letter, "now" if may_enter and either(random) else "next"


MOVES: list[tuple[str, dict[str, Choice[Any]]]] = []
"""Each move with the choices that it asks for, the frequent ones several times."""


def move(
    *, often: int = 1, needs: Callable[[Any], object] = lambda self: True, **choices: Choice[Any]
) -> Callable[[M], M]:
    """Something that can happen in a history; where there is not what it ``needs``, nothing happens."""

    def keep(method: M) -> M:
        @functools.wraps(method)
        def unless_impossible(self: StoreMachine, *args: Any, **kwargs: Any) -> None:
            if needs(self):
                method(self, *args, **kwargs)

        MOVES.extend([(method.__name__, choices)] * often)
        return cast(M, unless_impossible)

    return keep


class StoreMachine:
    """One history. What was handed out is remembered for ever, to be tried again when it is stale.

    A history is a string of numbers, one for each step, from which a move and its arguments are chosen; the number 0
    leaves a step out, and so a failing history gets shorter. (Of the rules of a RuleBasedStateMachine Hypothesis leaves
    most out of each history and likes to repeat the others; what is looked for here needs all moves, evenly mixed.)
    """

    def __init__(self, begin: Begin, saw: Counter[str], *, exact: bool) -> None:
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

    def close(self) -> None:
        self.run(self.store.aclose())
        self.run(self.stack.aclose())
        self.runner.close()

    def live(self, history: bytes, *, look_every: int) -> None:
        """Make a move for each number but 0. At the end the oldest session goes, and everything that nobody needs."""
        self.two_sessions()
        for step, chance in enumerate(history):
            if chance:
                random = Random(f"{step} {chance}")
                name, choices = random.choice(MOVES)
                arguments = {argument: choose(random) for argument, choose in choices.items()}
                note(f"{name}({', '.join(f'{word}={value!r}' for word, value in arguments.items())})")
                getattr(self, name)(**arguments)
            if step % look_every == 0:
                self.look()
        self.delete(0)
        self.vacuum(6, 0, dry_run=True)
        for uid in self.model.books:
            assert self.run(self.store.look(uid)) == self.model.look(uid)

    def look(self) -> None:
        """What can be read is what the model says. Of the sessions that a move should have left alone only one is
        looked at, another one each time."""
        for method in ("sessions", "ready", "debts"):
            assert self.run(self.store.attempt(method)) == self.model.attempt(method)
        views = {uid: self.model.look(uid) for uid in self.model.books}
        changed = {uid for uid, view in views.items() if view != self.seen.get(uid)}
        for uid in sorted(changed | {self.session(next(self.looks))}):
            assert self.run(self.store.look(uid)) == views[uid]
        self.seen = views

    # -- asking both ---------------------------------------------------------------------------------------------------

    def do(self, method: str, *args: object) -> Any:
        """Ask model and store the same. They must give the same answer, or refuse for the same reason."""
        expected = self.model.attempt(method, *args)
        answer = self.run(self.store.attempt(method, *args))
        assert answer == expected, f"{method}{args}"
        self.saw[f"{method}: {answer.error}" if isinstance(answer, Refused) else method] += 1
        return answer

    def count(self, what: str, happened: object = True) -> None:
        if happened:
            self.saw[what] += 1

    def mint(self) -> str:
        return f"{next(self.ids):032x}"

    def session(self, n: int) -> str:
        return pick(list(self.model.books), n)

    def item(self, letter: Letter, when: When) -> Arriving:
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

    def two_sessions(self) -> None:
        for name in NAMES[:2]:
            self.uids.append(self.mint())
            self.do("create", self.uids[-1], name, AGENTS[0])

    @move(n=picks, name=one_of(*NAMES), agent=one_of(*AGENTS), again=either, how=either)
    def create(self, n: int, name: str, agent: str, again: bool, how: bool) -> None:
        if not again:
            self.uids.append(self.mint())
        uid = pick(self.uids, n) if again else self.uids[-1]
        self.do("open" if how else "create", uid, name, agent)
        self.do("get", name)

    @move(needs=lambda self: len(self.model.books) > 1, n=picks)
    def delete(self, n: int) -> None:
        self.do("delete", self.session(n))

    @move(n=picks, kind=one_of("config", "catalog", "metadata"), text=texts, stale=either)
    def put_document(self, n: int, kind: str, text: str, stale: bool) -> None:
        uid = self.session(n)
        current = self.model.books[uid].current(kind)
        self.do("put_document", uid, kind, f'{{"said": "{text}"}}', current - stale)
        for revision in range(current + 2):
            self.do("document", uid, kind, revision)

    # -- the inbox -----------------------------------------------------------------------------------------------------

    @move(often=3, n=picks, sending=sendings)
    def send(self, n: int, sending: Sending) -> None:
        uid, (letter, when) = self.session(n), sending
        self.send_one(uid, letter, when)
        if letter.merge is not None:
            self.send_one(uid, replace(letter, option="slow" if n % 3 == 0 else letter.option), when)
            self.open(uid, "bob", self.mint(), 3, None, ())

    def send_one(self, uid: str, letter: Letter, when: When) -> None:
        arriving = self.item(letter, when)
        item = self.do("admit", uid, arriving)
        if not isinstance(item, Refused):
            self.sent.append((uid, arriving))
            self.count("an item aimed at a turn", item.target)

    @move(often=3, n=picks, text=texts, boundary=boundaries)
    def steer(self, n: int, text: str, boundary: Boundary) -> None:
        """Send something to a running turn."""
        uid, _, _ = self.at_work(n)
        self.send_one(uid, Letter(text, boundary=boundary), "now")

    @move(often=3, needs=lambda self: self.sent, n=picks, changed=either)
    def send_again(self, n: int, changed: bool) -> None:
        keyed = [(uid, arriving) for uid, arriving in self.sent if arriving.letter.key is not None]
        uid, arriving = pick(keyed if keyed and n % 3 else self.sent, n)
        if n % 2:
            arriving = replace(arriving, id=self.mint())
        if changed:
            arriving = replace(arriving, letter=replace(arriving.letter, text="other"))
        item = self.do("admit", uid, arriving)
        self.count("an item repeated by key", not isinstance(item, Refused) and item.id != arriving.id)

    @move(often=2, needs=lambda self: self.sent, n=picks, by=one_of("ids", "keys", "from"), unknown=either)
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
            self.count("a takeover", acquired[1])

    @move(often=2, needs=lambda self: self.leases, n=picks, ttl=ttls, lets_go=either)
    def renew_or_release(self, n: int, ttl: int, lets_go: bool) -> None:
        lease = pick(self.leases[-4:], n)
        if n % 4 == 0:
            self.time_passes(6, reopens=False)
        book = self.model.books.get(lease.session)
        turn = None if book is None else book.turn
        if lets_go:
            done = self.do("release", lease)
            handed_over = turn is not None and turn.state == "open" and turn.generation == lease.generation
            self.count("a turn handed over", done is None and handed_over)
        else:
            expired = book is not None and (book.lease.expires_at or 0) <= self.model.now
            renewed = self.do("renew", lease, ttl)
            self.count("an expired lease renewed", expired and not isinstance(renewed, Refused))

    @move(often=2, ticks=one_of(0, 1, 1, 2, 6, 40), reopens=either)
    def time_passes(self, ticks: int, reopens: bool) -> None:
        self.model.now += ticks
        self.run(self.store.advance(ticks))
        if reopens:
            self.run(self.store.reopen())
            self.count("reopened")

    # -- turns ---------------------------------------------------------------------------------------------------------

    @move(often=3, n=picks, owner=owners, ttl=ttls, sending=maybe(sendings), starts=either)
    def open_turn(self, n: int, owner: str, ttl: int, sending: Sending | None, starts: bool) -> None:
        admits = None if sending is None else self.item(*sending)
        marks = (Record("e1", "model"),) if starts else ()
        self.open(self.session(n), owner, self.mint(), ttl, admits, marks)

    def open(self, *opening: Any) -> Opened | Refused:
        book = self.model.books.get(opening[0])
        before = None if book is None else book.turn
        opened: Opened | Refused = self.do("open_turn", *opening)
        if isinstance(opened, Refused) or opened.lease is None or opened.turn is None:
            self.count("nothing opened for another's lease", isinstance(opened, Opened) and opened.held_by)
            return opened
        self.openings.append(opening)
        self.leases.append(opened.lease)
        self.count("a takeover", opened.displaced)
        self.count("a turn taken over", opened.displaced and before)
        self.count("a turn opened by merged items", opened.fresh and len(opened.items) > 1)
        self.count("a parked turn resumed", before is not None and before.state == "parked")
        self.count("a second attempt without progress", opened.turn.attempts > 1)
        self.count("an opening repeated", opened.fresh and before)
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
        key=one_of(*EFFECTS),
        effect=one_of("take", "take", "model"),
    )
    def take(self, n: int, checkpoint: str, key: str, effect: str) -> None:
        uid, lease, turn = self.at_work(n)
        if n % 2:
            self.steer(n, "now", pick(("after_work", "before_completion"), n // 2))
        known = self.model.books[uid].journal.get(key)
        taken = self.do("take", lease, turn.id, checkpoint, key, effect)
        if not isinstance(taken, Refused) and taken:
            self.count(f"taken {checkpoint}", known is None)
            self.count("a checkpoint repeated", self.do("take", lease, turn.id, checkpoint, key, effect) == taken)

    @move(
        often=4,
        n=picks,
        key=one_of(*EFFECTS),
        effect=one_of("model", "model", "tool"),
        ends=one_of(None, None, "completed", "failed"),
        outcome=texts,
        pending=either,
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
        self.count("a record repeated", self.do("record", lease, turn.id, (record,), waits) == entries)
        self.do("record", lease, turn.id, (replace(record, ends="completed", outcome="other"),), ())
        self.count("a pending effect", entries[0].wait)
        self.count("progress", turn.attempts > 0 and known != entries[0])

    @move(often=3, n=picks, how=one_of("wait", "wait", "until", "both", "any wait", "unknown wait", "forever"))
    def park(self, n: int, how: str) -> None:
        uid, lease, turn = self.at_work(n)
        waits: tuple[str, ...] = ()
        if how in ("wait", "both"):
            self.waits.append(self.mint())
            waits = (self.waits[-1],)
            due = self.model.now + 3 if n % 3 else None
            self.do("open_wait", uid, Promise(waits[0], pick((None, turn.id), n), due))
        if how == "any wait":
            waits = tuple(self.model.books[uid].waits)[-2:]
        if how == "unknown wait":
            waits = (self.mint(),)
        until = self.model.now + 1 + n % 3 if how in ("until", "both") else None
        self.parkings.append((lease, turn.id, waits, until))
        parked = self.do("park", *self.parkings[-1])
        self.count("parked on a settled wait", isinstance(parked, Turn) and parked.parked_until == self.model.now)
        self.do("park", *self.parkings[-1])

    @move(often=2, needs=lambda self: self.openings, n=picks, again=either)
    def request_cancel(self, n: int, again: bool) -> None:
        uid, _, turn, *_ = pick(self.openings[-3:], n)
        book = self.model.books.get(uid)
        unsettled = None if book is None else book.turn
        self.count("a cancel that wakes", unsettled and unsettled.state == "parked" and unsettled.id == turn)
        request = self.mint()
        for _ in range(1 + again):
            self.do("request_cancel", uid, turn, request)
        self.do("request_cancel", uid, turn, self.mint())

    # -- waits ---------------------------------------------------------------------------------------------------------

    @move(n=picks, expires=one_of(None, 2), again=either)
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
        genuine=one_of(True, True, True, False),
        late=either,
    )
    def answer(self, n: int, value: str, genuine: bool, late: bool) -> None:
        if late:
            self.time_passes(3, reopens=False)
        kept = [wait for book in self.model.books.values() for wait in book.waits.values()]
        pending = [wait.id for wait in kept if wait.state == "pending"]
        wait = pick(pending if pending and n % 3 else self.waits, n)
        asleep = {book.uid for book in self.model.books.values() if book.turn and book.turn.state == "parked"}
        ready = {uid for _, uid in self.model.ready()}
        answer = self.do("answer", wait, value, genuine)
        if isinstance(answer, Refused):
            return
        self.count("an answer accepted", answer[1])
        second = self.do("answer", wait, "something else", True)
        self.count("a second answer refused", answer[1] and not second[1])
        self.count("a late answer", answer[0].state == "timed_out")
        self.count("a parked turn woken", asleep & {uid for _, uid in self.model.ready()} - ready)

    @move(needs=lambda self: any(book.waits for book in self.model.books.values()), n=picks)
    def revoke(self, n: int) -> None:
        uid = pick([book.uid for book in self.model.books.values() if book.waits], n)
        self.do("revoke", uid, tuple(self.model.books[uid].waits)[-2:])

    # -- commits -------------------------------------------------------------------------------------------------------

    def commit(self, plan: Plan) -> Any:
        known = (plan.lease.session, plan.operation) in self.model.commits
        receipt = self.do("commit", plan)
        if not isinstance(receipt, Refused):
            self.count("a commit replayed", known)
            if not known:
                self.plans.append(plan)
        return receipt

    @move(often=2, n=picks, owner=owners, text=texts, release=either)
    def a_whole_turn(self, n: int, owner: str, text: str, release: bool) -> None:
        uid = self.session(n)
        opened = self.open(uid, owner, self.mint(), 3, self.item(Letter(text), "next"), ())
        if isinstance(opened, Opened) and opened.lease is not None and opened.turn is not None:
            self.commit(replace(settled(self.model.look(uid), opened.lease, text), release=release))

    @move(often=4, n=picks, text=texts, gives_back=either, extra=picks)
    def finish(self, n: int, text: str, gives_back: bool, extra: int) -> None:
        """Settle a turn as it ought to be."""
        uid, lease, turn = self.at_work(n)
        view = self.model.look(uid)
        missed = [item.id for item in view.items if item.state == "pending" and item.target == turn.id]
        entered = [item.id for item in view.items if item.state == "taken" and item.target == turn.id]
        plan = settled(view, lease, text, gives_back=gives_back)
        if view.cancel is not None:
            self.commit(self.spoil(plan, "cancel", view.row.head))
        receipt = self.commit(self.with_more(plan, extra))
        if isinstance(receipt, Refused):
            return
        self.count("an item deferred", missed)
        self.count("an item given back", gives_back)
        self.count("an item that entered given back", gives_back and entered)
        self.count("a turn cancelled", view.cancel)
        self.count("a journal retired", view.journal)
        self.count("a pending wait revoked", any(w.turn == turn.id and w.state == "pending" for w in view.waits))

    def with_more(self, plan: Plan, extra: int) -> Plan:
        """What else a commit may say: state parts, usage, debts, documents; and that the lease goes."""
        receiver = pick(self.uids, extra // 2)
        brought = (("state", f"p{extra % 4}", True), ("kept", f"p{extra // 6}", extra % 5 != 0))
        delta = plan.delta
        if isinstance(delta, Grow) and extra % 7 == 0:
            delta = replace(delta, payloads=(*delta.payloads, ("shows", pick(BLOBS, extra))))
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
        style=one_of("append", "append", "reset", "compaction", "unchanged"),
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
            self.count(style)

    @move(often=3, needs=lambda self: self.idle(), n=picks, to=picks, extra=picks)
    def rewind(self, n: int, to: int, extra: int) -> None:
        uid = pick(self.idle(), n)
        lease, head, boundaries = self.held(uid), self.model.find(uid).head, self.boundaries(uid)
        if boundaries:
            target = pick(boundaries, to)
            moved = self.commit(self.with_more(Plan(self.mint(), lease, head.revision, Move(target)), extra))
            self.count("rewind", not isinstance(moved, Refused) and target != head.leaf)
            self.count("rewind to a node of the parent", self.model.books[uid].leaf == target and uid not in target)

    def boundaries(self, uid: str) -> list[str]:
        """The last nodes of the commits that a session reaches."""
        book = self.model.books[uid]
        inherited = {node.id for node in self.model.path(book.forked_from)}
        ends = [commit.nodes[-1] for commit in self.model.commits.values() if commit.nodes]
        return [node for node in ends if node.startswith(uid) or node in inherited]

    @move(
        often=4,
        n=picks,
        flaw=one_of("head", "graph", "root", "boundary", "part", "blob", "items", "turn", "cancel"),
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
                elsewhere = replace(head, leaf=f"{plan.lease.session}-{self.mint()}-0")
                return replace(plan, delta=Grow(elsewhere, (("says", "x"),)))
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

    @move(needs=lambda self: self.plans, n=picks, changed=either, by=owners)
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
        name=one_of("fork", "twig", "leaf"),
        flaw=one_of(None, None, None, "node", "uid"),
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
            self.count("a fork of a fork", self.model.books[parent].forked_from)
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
        self.count("a debt delivered", place in owed and paid is not None)
        self.count("a debt to nobody", place in owed and paid is None)
        self.do("deliver", place)

    @move(text=one_of(*BLOBS))
    def put_blob(self, text: str) -> None:
        self.do("put_blob", text)
        self.do("blob", text)

    @move(often=2, after=one_of(0, 1, 6), keeps=one_of(0, 0, 3), dry_run=either)
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
        self.count("a node of an abandoned branch", not self.do("on_active_path", uid, node))

    # -- what is stale -------------------------------------------------------------------------------------------------

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
        for uid in list(self.model.deleted)[-2:]:
            self.do("create", uid, "again", AGENTS[0])
            self.do("delete", uid)
            self.try_gone(uid)
        self.try_gone(self.mint())
        assert self.view() == before

    def try_gone(self, uid: str) -> None:
        self.do("find", uid)
        self.do("look", uid)
        self.do("admit", uid, self.item(Letter("too late"), "next"))
        self.do("open_turn", uid, "ann", self.mint(), 1, None, ())

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
                return await stack.enter_async_context(own_postgres(request.getfixturevalue("postgres")))

    return begin


@pytest.mark.timeout(LONG_ENOUGH)
@pytest.mark.parametrize("kind", KINDS)
def test_a_store_does_what_a_plain_model_of_its_promises_does(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    saw: Counter[str] = Counter()
    begin = beginning(kind, request, tmp_path)
    histories, steps, look_every = RUNS[kind]

    @same_histories(histories)
    @given(st.binary(min_size=steps, max_size=steps))
    def agree(history: bytes) -> None:
        with closing(StoreMachine(begin, saw, exact=kind != "postgres")) as machine:
            machine.live(history, look_every=look_every)

    agree()
    missed = [event for event in (CORE + RARE if kind == "memory" else CORE) if not saw[event]]
    assert not missed, "these never happened"
