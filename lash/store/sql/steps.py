"""How a write is settled: lock, read, decide, write, for a whole batch of writes in one transaction.

A write is a generator of *steps*. It yields questions about rows and is sent the answers; when it knows enough it calls
the pure rules, notes the changes it wants and returns its result, or raises and has changed nothing. It never touches
the database itself. So a batch of writes runs in lockstep: what all of them ask in a step is answered together, kind by
kind, and what all of them changed goes out together. The code of a write still reads as if it were alone.

Writes of one round touch different sessions, so what one decides cannot change what another has read. A second write of
the same session waits for the next round of the same transaction.

No two batches can block each other for ever: the session rows of the whole batch are locked first, in one statement,
and a write that meets something held (a row, or a name that another transaction is just inserting) is put back and
tried again with a later batch. Only what a vacuum is just removing is waited for, and a vacuum waits only for sessions,
in the order of their numbers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Generator, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Generic, TypeVar, overload

from sqlalchemy import Column, Connection, Table, bindparam, select

from lash.errors import LashError, SessionDeleted, SessionNotFound
from lash.ids import OwnerId, SessionUid
from lash.lease import LeaseRecord
from lash.store import schema
from lash.store.rows import Row, SessionRow, read_session
from lash.store.sql.link import Found, Link, ReadLink, WriteLink
from lash.store.sql.statements import Change, Key, Statement

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")
R = TypeVar("R")


class Question(Generic[K, V]):
    """A kind of question. Keys without an answer are left out."""

    def load(self, link: Link, keys: Sequence[K]) -> Mapping[K, V]:
        raise NotImplementedError

    def __call__(self, key: K) -> Ask[K, V]:
        return Ask(self, key)

    def now(self, connection: Connection, key: K) -> V | None:
        """The answer to a read."""
        return self.load(ReadLink(connection), [key]).get(key)


class Lookup(Question[K, V]):
    """A question that a statement answers. ``read`` makes the answer of what was found; None when that is none.

    All lookups of a step go out together. A key is a tuple, or, when it has one value, that value.
    """

    def __init__(self, statement: Statement, read: Callable[[list[Row]], V | None]) -> None:
        self.statement = statement
        self._read = read
        self._bare = len(statement.names) == 1

    def load(self, link: Link, keys: Sequence[K]) -> Mapping[K, V]:
        return self.answers(link.look_up({self.statement: self.keys(keys)}), keys)

    def keys(self, keys: Iterable[K]) -> list[Key]:
        return [(key,) for key in keys] if self._bare else list(keys)  # type: ignore[arg-type]

    def answers(self, found: Found, keys: Sequence[K]) -> dict[K, V]:
        rows = found[self.statement]
        answers: dict[K, V] = {}
        for key, place in zip(keys, self.keys(keys), strict=True):
            answer = self._read(rows[place])
            if answer is not None:
                answers[key] = answer
        return answers


def rows_of(statement: Statement) -> Lookup[Any, list[Row]]:
    """All rows that a statement finds for a key."""
    return Lookup(statement, lambda rows: rows)


def row_of(statement: Statement) -> Lookup[Any, Row]:
    """The row that a statement finds for a key; it finds at most one."""
    return Lookup(statement, lambda rows: rows[0] if rows else None)


def read_of(statement: Statement, read: Callable[[Row], V]) -> Lookup[Any, V]:
    """What that row says."""
    return Lookup(statement, lambda rows: read(rows[0]) if rows else None)


def row_by(*columns: Column[Any]) -> Lookup[Any, Row]:
    """The row with these values in these columns, which name at most one."""
    return row_of(by(*columns))


def by(*columns: Column[Any]) -> Statement:
    names = [f"key_{column.name}" for column in columns]
    same = (column == bindparam(name) for column, name in zip(columns, names, strict=True))
    return Statement(select(columns[0].table).where(*same), *names)


class Each(Question[K, V]):
    """A question that is answered key by key, because no single statement could."""

    def __init__(self, answer: Callable[[Link, K], V]) -> None:
        self._answer = answer

    def load(self, link: Link, keys: Sequence[K]) -> Mapping[K, V]:
        return {key: self._answer(link, key) for key in keys}


@dataclass(frozen=True, slots=True)
class Ask(Generic[K, V]):
    question: Question[K, V]
    key: K


Steps = Generator[tuple["Ask[Any, Any]", ...], tuple[Any, ...], R]


def answer_to(ask: Ask[K, V]) -> Steps[V | None]:
    """The answer to one question; None when there is no such row."""
    found: tuple[V | None] = yield (ask,)
    return found[0]


@overload
def answers_to(first: Ask[Any, A], second: Ask[Any, B], /) -> Steps[tuple[A | None, B | None]]: ...
@overload
def answers_to(
    first: Ask[Any, A], second: Ask[Any, B], third: Ask[Any, C], /
) -> Steps[tuple[A | None, B | None, C | None]]: ...
@overload
def answers_to(
    first: Ask[Any, A], second: Ask[Any, B], third: Ask[Any, C], fourth: Ask[Any, D], /
) -> Steps[tuple[A | None, B | None, C | None, D | None]]: ...
def answers_to(*asks: Ask[Any, Any]) -> Steps[Any]:
    """The answers to several questions of one step."""
    return (yield asks)


def answers_to_each(asks: Sequence[Ask[K, V]]) -> Steps[dict[K, V]]:
    """The answers to many questions of one kind, by key; keys without a row are left out."""
    if not asks:
        return {}
    found = yield tuple(asks)
    return {ask.key: answer for ask, answer in zip(asks, found, strict=True) if answer is not None}


def ask_now(connection: Connection, steps: Steps[R]) -> R:
    """Run steps that only ask, outside of any batch: a read and a write can share them."""
    link = ReadLink(connection)
    try:
        asks = next(steps)
        while True:
            found = _answer(link, asks)
            asks = steps.send(tuple(found[ask.question].get(ask.key) for ask in asks))
    except StopIteration as end:
        answer: R = end.value
        return answer


@dataclass(slots=True)
class Changes:
    """The rows that writes want changed. Each row is changed once: an update of a row that is to be inserted, or was
    updated before, joins what is there."""

    inserts: dict[Table, list[dict[str, Any]]] = field(default_factory=lambda: defaultdict(list))
    updates: dict[tuple[Table, tuple[tuple[str, Any], ...]], dict[str, Any]] = field(default_factory=dict)
    deletes: dict[tuple[Table, tuple[str, ...]], list[Key]] = field(default_factory=lambda: defaultdict(list))

    def insert(self, table: Table, row: dict[str, Any]) -> None:
        self.inserts[table].append(row)

    def update(self, table: Table, key: Mapping[str, Any], values: Mapping[str, Any]) -> None:
        for row in self.inserts.get(table, ()):
            if all(row[name] == value for name, value in key.items()):
                row.update(values)
                return
        self.updates.setdefault((table, tuple(key.items())), {}).update(values)

    def delete(self, table: Table, **key: Any) -> None:
        self.deletes[table, tuple(key)].append(tuple(key.values()))

    def add(self, other: Changes) -> None:
        for table, rows in other.inserts.items():
            self.inserts[table] += rows
        for change, keys in other.deletes.items():
            self.deletes[change] += keys
        self.updates.update(other.updates)

    def write(self, link: WriteLink) -> None:
        """Send everything out: deletes, then inserts (referred-to tables first), then updates."""
        inserts: dict[tuple[Table, tuple[str, ...]], list[Sequence[Any]]] = defaultdict(list)
        for table in sorted(self.inserts, key=_insert_order.__getitem__):
            for row in self.inserts[table]:
                inserts[table, tuple(row)].append([*row.values()])
        updates: dict[tuple[Table, tuple[str, ...], tuple[str, ...]], list[Sequence[Any]]] = defaultdict(list)
        for (table, key), values in self.updates.items():
            place = [value for _, value in key]
            updates[table, tuple([name for name, _ in key]), tuple(values)].append([*place, *values.values()])
        rows: dict[Change, Sequence[Sequence[Any]]] = {
            **{Change("delete", table, key, ()): rows for (table, key), rows in self.deletes.items()},
            **{Change("insert", table, (), names): rows for (table, names), rows in inserts.items()},
            **{Change("update", table, key, names): rows for (table, key, names), rows in updates.items()},
        }
        if rows:
            link.change(rows)


@dataclass(slots=True)
class Work:
    """What one write works with: the store's time, the session rows it named, and the changes it wants.

    ``died`` tells whether the process of an owner has died for certain.
    """

    now: datetime
    rows: Mapping[SessionUid, SessionRow]
    died: Callable[[OwnerId], bool]
    changes: Changes = field(default_factory=Changes)

    def holder_died(self, lease: LeaseRecord, owner: OwnerId) -> bool:
        """Whether only a dead process keeps this owner from a lease. Asked only when somebody keeps it."""
        return lease.owner is not None and lease.holds_off(owner, self.now) and self.died(lease.owner)

    def session(self, uid: SessionUid) -> SessionRow:
        """The row of a living session."""
        row = self.any_session(uid)
        if row.state == "deleted":
            raise SessionDeleted(uid)
        return row

    def any_session(self, uid: SessionUid) -> SessionRow:
        row = self.rows.get(uid)
        if row is None or row.state == "origin":
            raise SessionNotFound(uid)
        return row


@dataclass(frozen=True, slots=True)
class Write(Generic[R]):
    """A write: the sessions it touches, all of which are locked together, and its steps.

    ``creates`` is a session that need not exist. ``size`` is about how many bytes it carries. ``urgent`` writes go
    before the others in line. ``repeatable`` says that a second run answers as the first one did, so that the writer
    may run it again when it does not know whether the first one landed. ``owner`` is who takes a lease with it.
    """

    sessions: tuple[SessionUid, ...]
    steps: Callable[[Work], Steps[R]]
    creates: SessionUid | None = None
    size: int = 0
    urgent: bool = False
    repeatable: bool = True
    owner: OwnerId | None = None


@dataclass(frozen=True, slots=True)
class Settled(Generic[R]):
    """How a write ended: with a result, or with the error that belongs to its caller."""

    result: R | None = None
    error: Exception | None = None

    def unwrap(self) -> R:
        if self.error is not None:
            raise self.error
        return self.result  # type: ignore[return-value]  # None is a result too


class Unsettled(Exception):
    """A batch failed for a reason that one of its writes may have alone, or that may pass. Nothing of it was written.

    ``refusal`` is what the caller hears when a write keeps failing on its own.
    """

    def __init__(self, refusal: LashError) -> None:
        super().__init__(str(refusal))
        self.refusal = refusal


class Held(Exception):
    """What this write needs is held by a transaction that has not ended. It changed nothing, and is tried again."""


Sessions = dict[SessionUid, SessionRow]


def settle(link: WriteLink, writes: Sequence[Write[Any]]) -> list[Settled[Any] | None]:
    """Settle a batch inside an open transaction. Each write succeeds or fails on its own; None for one that met
    something held."""
    settled: dict[int, Settled[Any]] = {}
    rows, now = _lock(link, writes)
    held = _held(link, writes, rows)
    waiting = list(enumerate(writes))
    while waiting:
        round_, waiting = _split(waiting, held)
        changes = Changes()
        for number, outcome, wanted in _decide(link, round_, rows, now):
            if outcome is None:
                held.update(writes[number].sessions)
                continue
            settled[number] = outcome
            if outcome.error is None:
                changes.add(wanted)
        changes.write(link)
        if waiting:
            rows, _ = _lock(link, [write for _, write in waiting])
    return [settled.get(number) for number in range(len(writes))]


def _lock(link: WriteLink, writes: Sequence[Write[Any]]) -> tuple[Sessions, datetime]:
    found, now = link.lock(sorted({uid for write in writes for uid in write.sessions}))
    rows = [read_session(row) for row in found]
    return {row.uid: row for row in rows}, now


_EXISTS = Statement(select(schema.sessions.c.uid).where(schema.sessions.c.uid == bindparam("uid")), "uid")


def _held(link: WriteLink, writes: Sequence[Write[Any]], rows: Sessions) -> set[SessionUid]:
    """The sessions that exist and could not be locked."""
    missing = {uid for write in writes for uid in write.sessions if uid not in rows and uid != write.creates}
    found = link.look_up({_EXISTS: [(uid,) for uid in sorted(missing)]})[_EXISTS] if missing else {}
    return {SessionUid(uid) for (uid,), rows_ in found.items() if rows_}


def _split(
    writes: list[tuple[int, Write[Any]]], held: set[SessionUid]
) -> tuple[list[tuple[int, Write[Any]]], list[tuple[int, Write[Any]]]]:
    """A round of writes that share no session, in order, and the rest. What follows a held write is held itself."""
    touched: set[SessionUid] = set()
    round_: list[tuple[int, Write[Any]]] = []
    later: list[tuple[int, Write[Any]]] = []
    for number, write in writes:
        if not held.isdisjoint(write.sessions):
            held.update(write.sessions)
            continue
        free = touched.isdisjoint(write.sessions)
        (round_ if free else later).append((number, write))
        touched.update(write.sessions)
    return round_, later


def _decide(
    link: WriteLink, round_: list[tuple[int, Write[Any]]], rows: Sessions, now: datetime
) -> Iterable[tuple[int, Settled[Any] | None, Changes]]:
    """Run the generators of a round in lockstep until each has returned or raised."""
    running: dict[int, tuple[Work, Steps[Any], tuple[Any, ...] | None]] = {}
    for number, write in round_:
        work = Work(now, rows, link.died)
        running[number] = (work, write.steps(work), None)
    while running:
        asked: dict[int, tuple[Ask[Any, Any], ...]] = {}
        for number, (work, steps, answers) in list(running.items()):
            try:
                asked[number] = next(steps) if answers is None else steps.send(answers)
            except StopIteration as end:
                del running[number]
                yield number, Settled(result=end.value), work.changes
            except LashError as error:
                del running[number]
                yield number, Settled(error=error), work.changes
            except Held:
                del running[number]
                yield number, None, work.changes
        found = _answer(link, [ask for asks in asked.values() for ask in asks])
        for number, asks in asked.items():
            work, steps, _ = running[number]
            running[number] = (work, steps, tuple(found[ask.question].get(ask.key) for ask in asks))


def _answer(link: Link, asks: Iterable[Ask[Any, Any]]) -> dict[Question[Any, Any], Mapping[Any, Any]]:
    """All keys of one kind of question are asked for at once, and all lookups together."""
    by_question: dict[Question[Any, Any], dict[Any, None]] = defaultdict(dict)
    for ask in asks:
        by_question[ask.question][ask.key] = None
    lookups = {question: list(keys) for question, keys in by_question.items() if isinstance(question, Lookup)}
    answers: dict[Question[Any, Any], Mapping[Any, Any]] = {}
    if lookups:
        found = link.look_up({question.statement: question.keys(keys) for question, keys in lookups.items()})
        answers.update({question: question.answers(found, keys) for question, keys in lookups.items()})
    for question, keys in by_question.items():
        if question not in answers:
            answers[question] = question.load(link, list(keys))
    return answers


_insert_order = {table: place for place, table in enumerate(schema.metadata.sorted_tables)}
