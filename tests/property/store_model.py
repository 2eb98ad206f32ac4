"""A store in plain Python: what the contract promises, told again with lists and dicts, as naively as it can be.

It shares no rule with lash. A path is walked from parent to parent, the ready sessions and the needed nodes are worked
out anew each time, and "all or nothing" is a copy that is thrown away. Time is counted in whole ticks, and what a call
is refused with is the name of an error.
"""

from __future__ import annotations

import hashlib
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from lash.ids import id_from


class Fact:
    """A value that never changes, so that copies of the model may share it."""

    def __deepcopy__(self, memo: object) -> Any:
        return self


# -- what is asked for -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Letter(Fact):
    """What an inbox item says. ``due`` and ``key`` are no part of its content."""

    text: str
    kind: Literal["message", "command", "wake"] = "message"
    key: str | None = None
    boundary: Literal["after_work", "before_completion"] = "after_work"
    merge: str | None = None
    option: str | None = None
    due: int | None = None
    blob: str | None = None


@dataclass(frozen=True)
class Arriving(Fact):
    id: str
    letter: Letter
    when: Literal["now", "next"] = "next"

    @property
    def content(self) -> tuple[Letter, str]:
        return replace(self.letter, key=None, due=None), self.when


@dataclass(frozen=True)
class Promise(Fact):
    """A wait to be opened."""

    id: str
    turn: str | None = None
    expires_at: int | None = None


@dataclass(frozen=True)
class Record(Fact):
    """A journal record: a started marker, or with ``ends`` an outcome. ``effect`` is the identity."""

    key: str
    effect: str
    ends: Literal["completed", "failed"] | None = None
    outcome: str | None = None
    wait: str | None = None


@dataclass(frozen=True)
class Lease(Fact):
    """A lease in somebody's hand, or, without an owner, what the row of a free session says."""

    session: str
    owner: str | None = None
    generation: int = 0
    expires_at: int | None = None


@dataclass(frozen=True)
class Head(Fact):
    revision: int = 0
    leaf: str | None = None
    depth: int = -1
    frame: int = -1


Payload = tuple[Literal["opens", "says", "shows"], str]
"""A frame with its reason, a text, or the text of a blob."""
Parts = tuple[tuple[str, str], ...]
"""State parts: names and hashes."""


@dataclass(frozen=True)
class Grow(Fact):
    after: Head
    payloads: tuple[Payload, ...]


@dataclass(frozen=True)
class Move(Fact):
    to: str


@dataclass(frozen=True)
class Settling(Fact):
    turn: str
    outcome: str
    completes: frozenset[str] = frozenset()
    gives_back: frozenset[str] = frozenset()
    cancelled_by: str | None = None


@dataclass(frozen=True)
class Owing(Fact):
    to: str
    letter: Letter
    when: Literal["now", "next"] = "next"


@dataclass(frozen=True)
class Plan(Fact):
    """``parts`` are (name, text, brings its body); ``usage`` is (model, input tokens); ``documents`` (kind, text)."""

    operation: str
    lease: Lease
    base: int
    delta: Grow | Move | None = None
    settles: Settling | None = None
    parts: tuple[tuple[str, str, bool], ...] | None = None
    usage: tuple[tuple[str, int], ...] = ()
    owes: tuple[Owing, ...] = ()
    documents: tuple[tuple[str, str], ...] = ()
    release: bool = False

    @property
    def content(self) -> tuple[object, ...]:
        """What makes two commits the same: what they say, not who says it when, or after what."""
        grown = self.delta.payloads if isinstance(self.delta, Grow) else self.delta
        parts = None if self.parts is None else tuple(sorted(part[:2] for part in self.parts))
        owes = tuple(replace(owed, letter=replace(owed.letter, due=None)) for owed in self.owes)
        return grown, self.settles, parts, self.usage, owes, self.documents


# -- what is answered --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Refused(Fact):
    """The name of the error that a call was refused with."""

    error: str


@dataclass(frozen=True)
class Item(Fact):
    id: str
    letter: Letter
    when: str
    seq: int
    admitted_at: int
    state: str = "pending"
    target: str | None = None
    turn: str | None = None
    settled_at: int | None = None
    content: object = field(default=None, compare=False)

    @property
    def available_at(self) -> int:
        return self.admitted_at if self.letter.due is None else self.letter.due


@dataclass(frozen=True)
class Turn(Fact):
    id: str
    state: str
    attempts: int
    generation: int
    base: int
    config: int
    catalog: int
    opened_at: int
    option: str | None
    items: tuple[str, ...]
    parked_until: int | None = None
    parked_on: tuple[str, ...] = ()
    outcome: str | None = None
    settled_at: int | None = None


@dataclass(frozen=True)
class Entry(Fact):
    key: str
    effect: str
    state: str
    seq: int
    started_at: int
    outcome: object = None
    finished_at: int | None = None
    wait: str | None = None


@dataclass(frozen=True)
class Wait(Fact):
    id: str
    turn: str | None
    created_at: int
    expires_at: int | None
    state: str = "pending"
    answer: str | None = None
    settled_at: int | None = None

    def as_of(self, now: int) -> Wait:
        if self.state == "pending" and self.expires_at is not None and self.expires_at <= now:
            return replace(self, state="timed_out", settled_at=self.expires_at)
        return self


@dataclass(frozen=True)
class Cancel(Fact):
    request: str
    turn: str
    requested_at: int


@dataclass(frozen=True)
class Opened(Fact):
    """What came of opening a turn. ``displaced`` is the lease of whoever was put out."""

    admitted: Item | None = None
    lease: Lease | None = None
    displaced: Lease | None = None
    turn: Turn | None = None
    items: tuple[Item, ...] = ()
    fresh: bool = False
    held_by: Lease | None = None


@dataclass(frozen=True)
class Receipt(Fact):
    operation: str
    revision: int
    leaf: str | None
    seq: int
    committed_at: int


@dataclass(frozen=True)
class Node(Fact):
    id: str
    parent: str | None
    depth: int
    frame: int
    payload: Payload
    seq: int


@dataclass(frozen=True)
class SessionRow(Fact):
    uid: str
    name: str
    agent: str
    head: Head
    created_at: int
    ready_at: int | None
    seq: int
    revisions: tuple[int, int, int]
    forked_from: str | None


@dataclass(frozen=True)
class View(Fact):
    """All that can be read of one session."""

    row: SessionRow
    path: tuple[Node, ...]
    frame: tuple[str, ...]
    parts: Parts
    config: str
    items: tuple[Item, ...]
    turn: Turn | None
    cancel: Cancel | None
    lease: Lease
    journal: tuple[Entry, ...]
    waits: tuple[Wait, ...]
    usage: tuple[tuple[str, int], ...]


# -- what is kept ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Commit(Fact):
    receipt: Receipt
    content: object
    parts: Parts
    usage: tuple[tuple[str, int], ...]
    nodes: tuple[str, ...]


@dataclass(frozen=True)
class Debt(Fact):
    owed: Owing
    owed_at: int
    settled_at: int | None = None


@dataclass(frozen=True)
class Blob(Fact):
    text: str
    put_at: int


@dataclass(frozen=True)
class Document(Fact):
    text: str
    superseded_at: int | None = None


@dataclass
class Book:
    """One living session. ``freed_at`` is when its lease was let go of last."""

    uid: str
    name: str
    agent: str
    created_at: int
    lease: Lease
    forked_from: str | None = None
    revision: int = 0
    leaf: str | None = None
    seq: int = 0
    freed_at: int = 0
    parts: Parts = ()
    first_parts: Parts = ()
    items: dict[str, Item] = field(default_factory=dict)
    turns: dict[str, Turn] = field(default_factory=dict)
    cancels: dict[str, Cancel] = field(default_factory=dict)
    journal: dict[str, Entry] = field(default_factory=dict)
    waits: dict[str, Wait] = field(default_factory=dict)
    documents: dict[tuple[str, int], Document] = field(default_factory=dict)

    @property
    def turn(self) -> Turn | None:
        return next((turn for turn in self.turns.values() if turn.state != "settled"), None)

    def current(self, kind: str) -> int:
        return max(revision for name, revision in self.documents if name == kind)

    def taken(self, turn: str) -> tuple[Item, ...]:
        return tuple(item for item in self.items.values() if item.state == "taken" and item.turn == turn)

    def next_seq(self) -> int:
        self.seq += 1
        return self.seq

    def ready_at(self) -> int | None:
        turn = self.turn
        if turn is not None and turn.state == "parked":
            return turn.parked_until
        if turn is not None:
            return self.freed_at if self.lease.owner is None else self.lease.expires_at
        waiting = [i.available_at for i in self.items.values() if i.state == "pending" and i.target is None]
        if not waiting or self.lease.expires_at is None:
            return min(waiting, default=None)
        return max(min(waiting), self.lease.expires_at)


class Broken(Exception):
    """The promise is that this call is refused."""


def hash_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def debt_key(session: str, operation: str, ordinal: int) -> str:
    return f"outbox:{session}:{operation}:{ordinal}"


class Model:
    """The whole store. Each method has the name and the promise of the store's own."""

    def __init__(self) -> None:
        self.now = 0
        self.books: dict[str, Book] = {}
        self.deleted: dict[str, int] = {}
        self.fork_points: dict[str, str | None] = {}
        self.nodes: dict[str, Node] = {}
        self.commits: dict[tuple[str, str], Commit] = {}
        self.debts_of: dict[tuple[str, str, int], Debt] = {}
        self.blobs: dict[str, Blob] = {}

    def attempt(self, method: str, *args: object) -> Any:
        """The answer of a call, which changed everything it says or nothing at all."""
        before = deepcopy(self.__dict__)
        try:
            return getattr(self, method)(*args)
        except Broken as refusal:
            self.__dict__ = before
            return Refused(str(refusal))

    def living(self, uid: str) -> Book:
        if uid in self.deleted:
            raise Broken("SessionDeleted")
        if uid not in self.books:
            raise Broken("SessionNotFound")
        return self.books[uid]

    # -- sessions ------------------------------------------------------------------------------------------------------

    def create(self, uid: str, name: str, agent: str) -> SessionRow:
        known = self._known(uid) or self._begin(uid, name, agent, "{}")
        if (known.name, known.agent, known.forked_from) != (name, agent, None):
            raise Broken("IdReused")
        return self.find(uid)

    def open(self, uid: str, name: str, agent: str) -> tuple[SessionRow, bool]:
        named = [book.uid for book in self.books.values() if book.name == name]
        return (self.find(named[0]), named[0] == uid) if named else (self.create(uid, name, agent), True)

    def fork(self, uid: str, name: str, parent: str, at: str) -> SessionRow:
        known = self._known(uid)
        if known is not None:
            if (known.name, known.forked_from) != (name, at):
                raise Broken("IdReused")
            return self.find(uid)
        source = self.living(parent)
        parts = self._parts_at(source, at)
        book = self._begin(uid, name, source.agent, source.documents["config", source.current("config")].text)
        book.forked_from = book.leaf = at
        book.parts = book.first_parts = parts
        return self.find(uid)

    def _known(self, uid: str) -> Book | None:
        if uid in self.deleted:
            raise Broken("SessionDeleted")
        return self.books.get(uid)

    def _begin(self, uid: str, name: str, agent: str, config: str) -> Book:
        if any(book.name == name for book in self.books.values()):
            raise Broken("SessionExists")
        book = self.books[uid] = Book(uid, name, agent, self.now, Lease(uid))
        texts = {"config": config, "catalog": "{}", "metadata": "{}"}
        book.documents = {(kind, 0): Document(text) for kind, text in texts.items()}
        return book

    def get(self, name: str) -> SessionRow:
        named = [book.uid for book in self.books.values() if book.name == name]
        if not named:
            raise Broken("SessionNotFound")
        return self.find(named[0])

    def find(self, uid: str) -> SessionRow:
        book = self.living(uid)
        revisions = (book.current("config"), book.current("catalog"), book.current("metadata"))
        head = self._head(book)
        return SessionRow(
            uid, book.name, book.agent, head, book.created_at, book.ready_at(), book.seq, revisions, book.forked_from
        )

    def delete(self, uid: str) -> bool:
        if uid in self.deleted:
            return False
        self.fork_points[uid] = self.living(uid).forked_from
        del self.books[uid]
        self.deleted[uid] = self.now
        return True

    def put_document(self, uid: str, kind: str, text: str, expected: int) -> tuple[int, str]:
        book = self.living(uid)
        current = book.current(kind)
        if current == expected + 1 and book.documents[kind, current].text == text:
            return current, text
        if current != expected:
            raise Broken("RevisionMoved")
        return self._replace(book, kind, text), text

    def document(self, uid: str, kind: str, revision: int) -> str:
        book = self.living(uid)
        if (kind, revision) not in book.documents:
            raise Broken("RevisionMoved")
        return book.documents[kind, revision].text

    def _replace(self, book: Book, kind: str, text: str) -> int:
        current = book.current(kind)
        book.documents[kind, current] = replace(book.documents[kind, current], superseded_at=self.now)
        book.documents[kind, current + 1] = Document(text)
        return current + 1

    # -- the graph -----------------------------------------------------------------------------------------------------

    def path(self, leaf: str | None) -> list[Node]:
        found: list[Node] = []
        while leaf is not None:
            found.insert(0, self.nodes[leaf])
            leaf = self.nodes[leaf].parent
        return found

    def _head(self, book: Book) -> Head:
        path = self.path(book.leaf)
        frames = [depth for depth, node in enumerate(path) if node.payload[0] == "opens"]
        return Head(book.revision, book.leaf, len(path) - 1, frames[-1] if frames else -1)

    def node(self, uid: str, node: str) -> Node:
        book = self.living(uid)
        inherited = [above.id for above in self.path(book.forked_from)]
        if node not in self.nodes or not (node.startswith(uid) or node in inherited):
            raise Broken("NodeNotFound")
        return self.nodes[node]

    def on_active_path(self, uid: str, node: str) -> bool:
        return node in [above.id for above in self.path(self.living(uid).leaf)]

    def _parts_at(self, book: Book, node: str) -> Parts:
        """The state parts that hold at the last node of a commit: the present ones where the session stands now, those
        it began with at the point it was forked from."""
        self.node(book.uid, node)
        origin, operation, _ = node.split("-")
        commit = self.commits[origin, operation]
        if commit.nodes[-1] != node:
            raise Broken("InvalidDelta")
        if node == book.leaf:
            return book.parts
        return book.first_parts if node == book.forked_from else commit.parts

    # -- the inbox -----------------------------------------------------------------------------------------------------

    def admit(self, uid: str, arriving: Arriving) -> Item:
        book = self.living(uid)
        keyed = [i for i in book.items.values() if i.letter.key is not None and i.letter.key == arriving.letter.key]
        if keyed and keyed[0].content != arriving.content:
            raise Broken("KeyReused")
        if keyed:
            return keyed[0]
        known = book.items.get(arriving.id)
        if known is not None:
            if known.content != arriving.content or known.letter.key != arriving.letter.key:
                raise Broken("IdReused")
            return known
        self._require_blobs(arriving.letter.blob)
        target = book.turn.id if book.turn is not None and arriving.when == "now" else None
        when = "next" if target is None else "now"
        item = Item(arriving.id, arriving.letter, when, book.next_seq(), self.now, target=target)
        book.items[arriving.id] = replace(item, content=arriving.content)
        return book.items[arriving.id]

    def cancel(self, uid: str, by: str, names: tuple[str, ...]) -> list[tuple[str, str, Item | None]]:
        """``by`` says what the names are: ids, keys, or the id from which on everything is cancelled."""
        book = self.living(uid)
        named: list[tuple[str, str | None]] = [(name, name if name in book.items else None) for name in names]
        if by == "keys":
            ids = {item.letter.key: item.id for item in book.items.values()}
            named = [(name, ids.get(name)) for name in names]
        if by == "from" and named[0][1] is not None:
            anchor = book.items[names[0]]
            behind = [i.id for i in book.items.values() if i.seq > anchor.seq and i.state == "pending"]
            named += [(item, item) for item in behind]
        return [self._cancel_one(book, name, item) for name, item in named]

    def _cancel_one(self, book: Book, name: str, item: str | None) -> tuple[str, str, Item | None]:
        if item is None:
            return name, "not_found", None
        state = book.items[item].state
        if state != "pending":
            return name, f"already_{state}", book.items[item]
        book.items[item] = replace(book.items[item], state="cancelled", settled_at=self.now)
        return name, "cancelled", book.items[item]

    # -- leases --------------------------------------------------------------------------------------------------------

    def acquire(self, uid: str, owner: str, ttl: int) -> tuple[Lease, Lease | None]:
        book = self.living(uid)
        held = book.lease
        if held.owner == owner:
            return self._extend(book, ttl), None
        if self._busy(book, owner):
            raise Broken("SessionBusy")
        book.lease = Lease(uid, owner, held.generation + 1, self.now + ttl)
        return book.lease, None if held.owner is None else held

    def renew(self, lease: Lease, ttl: int) -> Lease:
        return self._extend(self._fenced(lease), ttl)

    def release(self, lease: Lease) -> None:
        book = self.living(lease.session)
        if book.lease.owner is None and book.lease.generation == lease.generation:
            return
        self._fenced(lease)
        self._let_go(book)
        turn = book.turn
        if turn is not None and turn.generation == lease.generation:
            book.turns[turn.id] = replace(turn, attempts=max(0, turn.attempts - 1))

    def _busy(self, book: Book, owner: str) -> bool:
        expires_at = book.lease.expires_at
        return book.lease.owner not in (None, owner) and expires_at is not None and expires_at > self.now

    def _extend(self, book: Book, ttl: int) -> Lease:
        book.lease = replace(book.lease, expires_at=max(book.lease.expires_at or 0, self.now + ttl))
        return book.lease

    def _let_go(self, book: Book) -> None:
        book.lease = Lease(book.uid, generation=book.lease.generation)
        book.freed_at = self.now

    def _fenced(self, lease: Lease) -> Book:
        """The session of a lease that is held by whoever shows it."""
        book = self.living(lease.session)
        if (book.lease.owner, book.lease.generation) != (lease.owner, lease.generation):
            raise Broken("LeaseLost")
        return book

    def ready(self) -> list[tuple[int, str]]:
        due = [(book.ready_at(), book.uid) for book in self.books.values()]
        return sorted((at, uid) for at, uid in due if at is not None and at <= self.now)

    # -- turns ---------------------------------------------------------------------------------------------------------

    def open_turn(
        self, uid: str, owner: str, turn: str, ttl: int, admits: Arriving | None, starts: tuple[Record, ...]
    ) -> Opened:
        book = self.living(uid)
        vacuumed = turn not in book.turns and (uid, turn) in self.commits
        if vacuumed or (turn in book.turns and book.turns[turn].state == "settled"):
            raise Broken("TurnSettled")
        admitted = None if admits is None else self.admit(uid, admits)
        opened = self._take_up(book, owner, turn, ttl, starts)
        return opened if admitted is None else replace(opened, admitted=book.items[admitted.id])

    def _take_up(self, book: Book, owner: str, asked: str, ttl: int, starts: tuple[Record, ...]) -> Opened:
        turn, first = book.turn, self._oldest_ready(book)
        if self._busy(book, owner):
            return Opened(held_by=book.lease)
        if turn is None and not first:
            return Opened()
        lease, displaced = self.acquire(book.uid, owner, ttl)
        if turn is None:
            turn = self._new_turn(book, asked, first, starts)
            fresh = True
        else:
            again = (turn.state, turn.generation) == ("open", lease.generation)
            fresh = again and turn.id == asked
            attempts = turn.attempts if again else turn.attempts + 1
            turn = replace(
                turn, state="open", attempts=attempts, generation=lease.generation, parked_until=None, parked_on=()
            )
        book.turns[turn.id] = turn
        return Opened(None, lease, displaced, turn, book.taken(turn.id), fresh)

    def _oldest_ready(self, book: Book) -> list[Item]:
        """The oldest item that is ready, and those directly behind it that ask to be merged with it."""
        pending = [item for item in book.items.values() if item.state == "pending" and item.target is None]
        ready = [item for item in pending if item.letter.due is None or item.letter.due <= self.now]
        joined = ready[:1]
        for item in ready[1:]:
            a, b = ready[0].letter, item.letter
            if a.merge is None or (a.merge, a.kind, a.option) != (b.merge, b.kind, b.option):
                break
            joined.append(item)
        return joined

    def _new_turn(self, book: Book, asked: str, items: list[Item], starts: tuple[Record, ...]) -> Turn:
        for item in items:
            book.items[item.id] = replace(item, state="taken", turn=asked)
        for start in starts:
            self._write(book, start)
        return Turn(
            asked,
            "open",
            attempts=1,
            generation=book.lease.generation,
            base=book.revision,
            config=book.current("config"),
            catalog=book.current("catalog"),
            opened_at=self.now,
            option=items[0].letter.option,
            items=tuple(item.id for item in items),
        )

    def _driven(self, lease: Lease, turn: str) -> tuple[Book, Turn]:
        """The turn that the owner of this lease drives."""
        book = self._fenced(lease)
        if book.turn is None or book.turn.id != turn:
            raise Broken("TurnSettled")
        if book.turn.state == "parked":
            raise Broken("TurnParked")
        return book, book.turn

    def take(self, lease: Lease, turn: str, checkpoint: str, key: str, effect: str) -> tuple[Item, ...]:
        book, driven = self._driven(lease, turn)
        known = book.journal.get(key)
        if known is not None and known.effect != effect:
            raise Broken("ReplayMismatch")
        if known is not None and known.state != "started":
            if not isinstance(known.outcome, tuple):
                raise Broken("OutcomeRecorded")
            return tuple(book.items[item] for item in known.outcome)
        aimed = [item for item in book.items.values() if item.state == "pending" and item.target == turn]
        if checkpoint == "after_work":
            aimed = [item for item in aimed if item.letter.boundary == "after_work"]
        if not aimed:
            return ()
        ids = tuple(item.id for item in aimed)
        self._write(book, Record(key, effect, "completed"), ids)
        for item in aimed:
            book.items[item.id] = replace(item, state="taken", turn=turn)
        book.turns[turn] = replace(driven, attempts=0, items=driven.items + ids)
        return tuple(book.items[item] for item in ids)

    def park(self, lease: Lease, turn: str, waits: tuple[str, ...], until: int | None) -> Turn:
        book = self.living(lease.session)
        free, asleep = Lease(book.uid, generation=lease.generation), book.turn
        parked = None if asleep is None else (asleep.id, asleep.state, asleep.generation)
        if asleep is not None and parked == (turn, "parked", lease.generation) and book.lease == free:
            return asleep
        book, driven = self._driven(lease, turn)
        named = [self.wait(book.uid, wait) for wait in waits]
        due = [at for at in (until, *(wait.expires_at for wait in named)) if at is not None]
        if turn in book.cancels or any(wait.state != "pending" for wait in named):
            due = [self.now]
        until = min(due, default=None)
        book.turns[turn] = replace(driven, state="parked", attempts=0, parked_until=until, parked_on=tuple(waits))
        self._let_go(book)
        return book.turns[turn]

    def turn(self, uid: str, turn: str) -> Turn:
        book = self.living(uid)
        if turn not in book.turns:
            raise Broken("TurnNotFound")
        return book.turns[turn]

    def request_cancel(self, uid: str, turn: str, request: str) -> tuple[Cancel, bool]:
        book = self.living(uid)
        if self.turn(uid, turn).state == "settled":
            raise Broken("TurnSettled")
        if turn not in book.cancels:
            book.cancels[turn] = Cancel(request, turn, self.now)
            self._wake(book)
        return book.cancels[turn], book.cancels[turn].request == request

    def _wake(self, book: Book) -> None:
        if book.turn is not None and book.turn.state == "parked":
            due = book.turn.parked_until
            book.turns[book.turn.id] = replace(book.turn, parked_until=self.now if due is None else min(due, self.now))

    # -- the journal ---------------------------------------------------------------------------------------------------

    def record(
        self, lease: Lease, turn: str, records: tuple[Record, ...], waits: tuple[Promise, ...]
    ) -> tuple[Entry, ...]:
        book, driven = self._driven(lease, turn)
        for promise in waits:
            self.open_wait(book.uid, promise)
        told = [self._write(book, new) for new in records]
        if any(told):
            book.turns[turn] = replace(driven, attempts=0)
        return tuple(book.journal[new.key] for new in records)

    def journal(self, uid: str, turn: str) -> tuple[Entry, ...]:
        book = self.living(uid)
        mine = book.turn is not None and book.turn.id == turn
        return tuple(sorted(book.journal.values(), key=lambda entry: entry.seq)) if mine else ()

    def _write(self, book: Book, new: Record, items: tuple[str, ...] | None = None) -> bool:
        """Whether the record told anything new."""
        known = book.journal.get(new.key)
        if known is not None and known.effect != new.effect:
            raise Broken("ReplayMismatch")
        if known is None:
            known = Entry(new.key, new.effect, "", 0, self.now, wait=new.wait)
        elif new.ends is None and (known.state != "started" or new.wait in (None, known.wait)):
            return False
        elif new.ends is None and known.wait is not None:
            raise Broken("ReplayMismatch")
        elif new.ends is not None and known.state != "started":
            if (known.state, known.outcome) == (new.ends, new.outcome):
                return False
            raise Broken("OutcomeRecorded")
        if new.ends is None:
            written = replace(known, state="started", wait=new.wait)
        else:
            outcome = new.outcome if items is None else items
            written = replace(known, state=new.ends, outcome=outcome, finished_at=self.now)
        if written.wait is not None and written.wait not in book.waits:
            raise Broken("WaitNotFound")
        book.journal[new.key] = replace(written, seq=book.next_seq())
        return True

    # -- waits ---------------------------------------------------------------------------------------------------------

    def open_wait(self, uid: str, promise: Promise) -> None:
        book = self.living(uid)
        owners = [other.uid for other in self.books.values() if promise.id in other.waits]
        if not owners:
            book.waits[promise.id] = Wait(promise.id, promise.turn, self.now, promise.expires_at)
        elif owners != [uid] or book.waits[promise.id].turn != promise.turn:
            raise Broken("IdReused")

    def wait(self, uid: str, wait: str) -> Wait:
        book = self.living(uid)
        if wait not in book.waits:
            raise Broken("WaitNotFound")
        return book.waits[wait].as_of(self.now)

    def answer(self, wait: str, value: str, genuine: bool) -> tuple[Wait, bool]:
        owners = [book for book in self.books.values() if wait in book.waits]
        found = owners[0].waits[wait].as_of(self.now) if owners and genuine else None
        if found is None or found.state == "revoked":
            raise Broken("WaitNotFound")
        if found.state != "pending":
            return found, found.state == "answered" and found.answer == value
        return self._settle_wait(owners[0], replace(found, state="answered", answer=value)), True

    def revoke(self, uid: str, waits: tuple[str, ...]) -> list[Wait]:
        book = self.living(uid)
        found = [self.wait(uid, wait) for wait in waits]
        return [self._settle_wait(book, replace(w, state="revoked")) if w.state == "pending" else w for w in found]

    def _settle_wait(self, book: Book, settled: Wait) -> Wait:
        """Keep what a wait came to, and wake the turn that sleeps on it."""
        book.waits[settled.id] = replace(settled, settled_at=self.now)
        if book.turn is not None and settled.id in book.turn.parked_on:
            self._wake(book)
        return book.waits[settled.id]

    # -- commits -------------------------------------------------------------------------------------------------------

    def commit(self, plan: Plan) -> Receipt:
        uid = plan.lease.session
        book = self.living(uid)
        known = self.commits.get((uid, plan.operation))
        if known is not None:
            if known.content != plan.content:
                raise Broken("OperationReused")
            return known.receipt
        self._fenced(plan.lease)
        if book.revision != plan.base:
            raise Broken("HeadMoved")
        self._settle_turn(book, plan.settles)
        nodes = self._grow(book, plan)
        self._keep_parts(book, plan)
        self._owe(book, plan, nodes)
        return self._keep_commit(book, plan, nodes)

    def _keep_commit(self, book: Book, plan: Plan, nodes: list[Node]) -> Receipt:
        for kind, text in plan.documents:
            self._replace(book, kind, text)
        if plan.release:
            self._let_go(book)
        book.revision += 1
        receipt = Receipt(plan.operation, book.revision, book.leaf, book.next_seq(), self.now)
        self.nodes.update((node.id, replace(node, seq=receipt.seq)) for node in nodes)
        ids = tuple(node.id for node in nodes)
        self.commits[book.uid, plan.operation] = Commit(receipt, plan.content, book.parts, plan.usage, ids)
        return receipt

    def _settle_turn(self, book: Book, settles: Settling | None) -> None:
        turn = book.turn
        if turn is None:
            if settles is not None:
                raise Broken("TurnSettled")
            return
        if settles is None or settles.turn != turn.id:
            raise Broken("TurnUnsettled")
        if turn.state == "parked":
            raise Broken("TurnParked")
        taken = book.taken(turn.id)
        self._check_settling(book, settles, {item.id for item in taken})
        for item in taken:
            book.items[item.id] = self._settled(item, completed=item.id in settles.completes)
        for item in [item for item in book.items.values() if item.state == "pending" and item.target == turn.id]:
            book.items[item.id] = replace(item, target=None, when="next")
        for wait in [wait.as_of(self.now) for wait in book.waits.values() if wait.turn == turn.id]:
            if wait.state == "pending":
                book.waits[wait.id] = replace(wait, state="revoked", settled_at=self.now)
        book.turns[turn.id] = replace(
            turn, state="settled", parked_until=None, parked_on=(), outcome=settles.outcome, settled_at=self.now
        )
        book.journal = {}

    def _check_settling(self, book: Book, settles: Settling, taken: set[str]) -> None:
        if sorted([*settles.completes, *settles.gives_back]) != sorted(taken):
            raise Broken("UnsettledItems")
        asked = book.cancels.get(settles.turn)
        says_cancelled = settles.outcome == "cancelled" or settles.cancelled_by is not None
        if asked is not None and (settles.outcome, settles.cancelled_by) != ("cancelled", asked.request):
            raise Broken("TurnCancelRequested")
        if asked is None and says_cancelled:
            raise Broken("EvidenceMissing")

    def _settled(self, item: Item, *, completed: bool) -> Item:
        if completed:
            return replace(item, state="completed", settled_at=self.now)
        return replace(item, state="pending", turn=None, target=None, when="next")

    def _grow(self, book: Book, plan: Plan) -> list[Node]:
        if isinstance(plan.delta, Move):
            book.parts = self._parts_at(book, plan.delta.to)
            book.leaf = plan.delta.to
        if not isinstance(plan.delta, Grow):
            return []
        head, payloads = self._head(book), plan.delta.payloads
        if not payloads:
            raise Broken("InvalidDelta")
        resets = payloads[0] == ("opens", "reset")
        rooted = head.leaf is not None or payloads[0][0] == "opens"
        if not resets and (plan.delta.after.leaf != head.leaf or not rooted):
            raise Broken("InvalidDelta")
        nodes: list[Node] = []
        parent, depth, frame = (None, -1, -1) if resets else (head.leaf, head.depth, head.frame)
        for ordinal, payload in enumerate(payloads):
            depth += 1
            frame = depth if payload[0] == "opens" else frame
            nodes.append(Node(f"{book.uid}-{plan.operation}-{ordinal}", parent, depth, frame, payload, 0))
            parent = nodes[-1].id
        book.leaf = parent
        return nodes

    def _keep_parts(self, book: Book, plan: Plan) -> None:
        if plan.parts is None:
            return
        bodies = {hash_of(text): Blob(text, self.now) for _, text, brought in plan.parts if brought}
        for _, text, _ in plan.parts:
            if hash_of(text) not in self.blobs and hash_of(text) not in bodies:
                raise Broken("PartMissing")
        self.blobs.update(bodies)
        book.parts = tuple(sorted((name, hash_of(text)) for name, text, _ in plan.parts))

    def _owe(self, book: Book, plan: Plan, nodes: list[Node]) -> None:
        shown = [payload[1] for payload in (node.payload for node in nodes) if payload[0] == "shows"]
        self._require_blobs(*shown, *(owed.letter.blob for owed in plan.owes))
        for ordinal, owed in enumerate(plan.owes):
            self.debts_of[book.uid, plan.operation, ordinal] = Debt(owed, self.now)

    def _require_blobs(self, *texts: str | None) -> None:
        if any(text is not None and hash_of(text) not in self.blobs for text in texts):
            raise Broken("BlobMissing")

    def receipt(self, uid: str, operation: str) -> Receipt | None:
        self.living(uid)
        known = self.commits.get((uid, operation))
        return None if known is None else known.receipt

    # -- debts and blobs -----------------------------------------------------------------------------------------------

    def debts(self) -> list[tuple[str, str, int]]:
        return sorted(place for place, debt in self.debts_of.items() if debt.settled_at is None)

    def deliver(self, place: tuple[str, str, int]) -> Item | None:
        debt = self.debts_of.get(place)
        if debt is None:
            raise Broken("OutboxNotFound")
        receiver = self.books.get(debt.owed.to)
        item = id_from("outbox", place[0], place[1], str(place[2]))
        if debt.settled_at is not None:
            return None if receiver is None else receiver.items.get(item)
        self.debts_of[place] = replace(debt, settled_at=self.now)
        if receiver is None:
            return None
        letter = replace(debt.owed.letter, key=debt_key(*place))
        return self.admit(receiver.uid, Arriving(item, letter, debt.owed.when))

    def put_blob(self, text: str) -> str:
        self.blobs[hash_of(text)] = Blob(text, self.now)
        return hash_of(text)

    def blob(self, text: str) -> str:
        if hash_of(text) not in self.blobs:
            raise Broken("BlobNotFound")
        return text

    # -- retention -----------------------------------------------------------------------------------------------------

    def vacuum(self, keeps: int, dry_run: bool) -> dict[str, int]:
        """Remove what ended more than ``keeps`` ticks ago and nothing needs."""
        before = deepcopy(self.__dict__)
        report = self._sweep(self.now - keeps)
        if dry_run:
            self.__dict__ = before
        return report

    def _sweep(self, before: int) -> dict[str, int]:
        def ended(at: int | None) -> bool:
            return at is not None and at < before

        books = list(self.books.values())
        gone = {uid for uid, at in self.deleted.items() if ended(at)}
        points = [book.forked_from for book in books]
        points += [self.fork_points[uid] for uid, at in self.deleted.items() if not ended(at)]
        needed = {node.id for point in points for node in self.path(point)}
        report = {
            "items": sum(_drop(b.items, [i.id for i in b.items.values() if ended(i.settled_at)]) for b in books),
            "turns": sum(_drop(b.turns, [t.id for t in b.turns.values() if ended(t.settled_at)]) for b in books),
            "waits": sum(_drop(b.waits, [w for w in b.waits if ended(self._useless_since(b, w))]) for b in books),
            "outbox": _drop(self.debts_of, [place for place, d in self.debts_of.items() if ended(d.settled_at)]),
            "documents": sum(
                _drop(b.documents, [place for place in b.documents if ended(_useless_document(b, place))])
                for b in books
            ),
            "nodes": _drop(self.nodes, [n for n in self.nodes if n.split("-")[0] in gone and n not in needed]),
            "commits": _drop(self.commits, [place for place in self.commits if place[0] in gone and self._bare(place)]),
            "blobs": _drop(
                self.blobs, [b for b in self.blobs if ended(self.blobs[b].put_at) and b not in self._used()]
            ),
        }
        for book in books:
            book.cancels = {turn: cancel for turn, cancel in book.cancels.items() if turn in book.turns}
        return report

    def _useless_since(self, book: Book, wait: str) -> int | None:
        """When a wait was settled, unless the unsettled turn may still ask for it."""
        return None if book.turn is not None else book.waits[wait].as_of(self.now).settled_at

    def _bare(self, place: tuple[str, str]) -> bool:
        return not any(node in self.nodes for node in self.commits[place].nodes)

    def _used(self) -> set[str]:
        """The hashes of all blobs that anything refers to."""
        letters = [item.letter for book in self.books.values() for item in book.items.values()]
        letters += [debt.owed.letter for debt in self.debts_of.values()]
        texts = [letter.blob for letter in letters if letter.blob is not None]
        texts += [node.payload[1] for node in self.nodes.values() if node.payload[0] == "shows"]
        parts = [*(book.parts for book in self.books.values()), *(commit.parts for commit in self.commits.values())]
        return {hash_of(text) for text in texts} | {part for held in parts for _, part in held}

    # -- everything that can be read -----------------------------------------------------------------------------------

    def sessions(self) -> list[str]:
        return list(self.books)

    def look(self, uid: str) -> View:
        book = self.living(uid)
        head, path, turn = self._head(book), self.path(book.leaf), book.turn
        return View(
            row=self.find(uid),
            path=tuple(path),
            frame=tuple(node.id for node in path[max(head.frame, 0) :]),
            parts=book.parts,
            config=book.documents["config", book.current("config")].text,
            items=tuple(book.items.values()),
            turn=turn,
            cancel=None if turn is None else book.cancels.get(turn.id),
            lease=book.lease,
            journal=() if turn is None else self.journal(uid, turn.id),
            waits=tuple(sorted((w.as_of(self.now) for w in book.waits.values()), key=lambda w: (w.created_at, w.id))),
            usage=self._usage(uid),
        )

    def _usage(self, uid: str) -> tuple[tuple[str, int], ...]:
        spent = [delta for (session, _), commit in self.commits.items() if session == uid for delta in commit.usage]
        return tuple((model, sum(n for m, n in spent if m == model)) for model in sorted({m for m, _ in spent}))


def _useless_document(book: Book, place: tuple[str, int]) -> int | None:
    """When a document was superseded, unless the unsettled turn has pinned it."""
    pinned = book.turn is not None and place in (("config", book.turn.config), ("catalog", book.turn.catalog))
    return None if pinned else book.documents[place].superseded_at


def _drop(table: dict[Any, Any], keys: list[Any]) -> int:
    for key in keys:
        del table[key]
    return len(keys)
