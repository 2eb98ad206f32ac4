"""From session to session: the rows that belong to each are pulled out of every table, which are all in that order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

from lash.fsck import holdings, tables
from lash.fsck.hashes import Evidence, Verifier, commits_with_evidence
from lash.fsck.history import NodeWalk, SessionHistory
from lash.fsck.reading import Reader, Stream
from lash.fsck.tables import Row, Table
from lash.fsck.work import SessionWork, Settling, items_with_turns, turns_with_commits

T = TypeVar("T")
_GROWN = "SELECT 1 FROM lash_branches WHERE parent_session = :session AND session <> :session LIMIT 1"


class Sweep:
    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._branches = self._stream(tables.branches, reader.rows(tables.branches))
        self._nodes = self._stream(tables.nodes, reader.rows(tables.nodes))
        self._documents = self._stream(tables.documents, reader.rows(tables.documents))
        self._journal = self._stream(tables.journal, reader.rows(tables.journal))
        self._refs = self._stream(tables.blob_refs, holdings.refs_with_hashes(reader))
        self._commits: Stream[Evidence] = Stream(
            commits_with_evidence(reader),
            lambda found: int(found.commit["session"]),
            lambda found: self._orphan(tables.commits, found.commit),
        )
        self._turns = self._settling(tables.turns, turns_with_commits(reader))
        self._items = self._settling(tables.inbox, items_with_turns(reader))
        self._usage = self._pairs(tables.usage, holdings.usage_with_commits(reader))
        self._parts = self._pairs(tables.state_parts, holdings.parts_with_commits(reader))
        self._debts = self._pairs(tables.outbox, holdings.debts_with_commits(reader))

    def _stream(self, table: Table, rows: Iterator[Row]) -> Stream[Row]:
        return Stream(rows, lambda row: int(row["session"]), lambda row: self._orphan(table, row))

    def _settling(self, table: Table, rows: Iterator[Settling]) -> Stream[Settling]:
        return Stream(rows, lambda one: int(one.row["session"]), lambda one: self._orphan(table, one.row))

    def _pairs(self, table: Table, rows: Iterator[T]) -> Stream[T]:
        """Rows that come with something: the row is the first of each tuple."""
        return Stream(rows, lambda one: int(_first(one)["session"]), lambda one: self._orphan(table, _first(one)))

    def _orphan(self, table: Table, row: Row) -> None:
        holdings.say(self._reader, "session-missing", table, row, f"session number {row['session']}", None)

    def run(self) -> None:
        for session in self._reader.rows(tables.sessions):
            self._check(session)
        for stream in (
            self._branches,
            self._nodes,
            self._documents,
            self._journal,
            self._refs,
            self._commits,
            self._turns,
            self._items,
            self._usage,
            self._parts,
            self._debts,
        ):
            stream.rest()

    def _check(self, session: Row) -> None:
        number = session["id"]
        refs = holdings.Refs(self._reader, self._refs.of(number))
        holdings.check_debts(self._reader, session, self._debts.of(number), refs.debts())
        holdings.check_usage(self._reader, self._usage.of(number))
        holdings.check_parts(self._reader, session, self._parts.of(number))
        if session["state"] == "live":
            self._check_living(session, refs)
        else:
            self._check_gone(session)
        self._check_history(session, refs)
        refs.finish()

    def _check_living(self, session: Row, refs: holdings.Refs) -> None:
        number = session["id"]
        if session["name"] is None or session["deleted_at"] is not None:
            found = f"name {session['name']}, deleted at {session['deleted_at']}"
            holdings.say(self._reader, "session-state-wrong", tables.sessions, session, "a name and no deletion", found)
        holdings.check_documents(self._reader, session, self._documents.of(number))
        work = SessionWork(self._reader, session)
        for turn in self._turns.of(number):
            work.check_turn(turn)
        for item in self._items.of(number):
            held = refs.of("item", (item.row["seq"], 0))
            work.check_item(Settling(item.row, item.turn, item.commit, held))
        for entry in self._journal.of(number):
            work.check_entry(entry)
        work.finish()

    def _check_gone(self, session: Row) -> None:
        """Of a session that is not living there is the row, and its history as far as a vacuum left it."""
        number = session["id"]
        left = {name: session[name] for name in ("name", "lease_owner", "lease_expires_at", "next_item_at", "ready_at")}
        kept = {name: value for name, value in left.items() if value is not None}
        if kept or (session["state"] == "deleted") != (session["deleted_at"] is not None):
            found = f"{kept}, deleted at {session['deleted_at']}"
            holdings.say(self._reader, "session-state-wrong", tables.sessions, session, "a tombstone", found)
        self._none_of(tables.documents, self._documents.of(number))
        self._none_of(tables.turns, (turn.row for turn in self._turns.of(number)))
        self._none_of(tables.inbox, (item.row for item in self._items.of(number)))
        self._none_of(tables.journal, self._journal.of(number))

    def _none_of(self, table: Table, rows: Iterable[Row]) -> None:
        for row in rows:
            expected = "no row: the session is not living"
            holdings.say(self._reader, "deleted-session-keeps-rows", table, row, expected, "one")

    def _check_history(self, session: Row, refs: holdings.Refs) -> None:
        number = session["id"]
        branches = {row["branch"]: row for row in self._branches.of(number)}
        nodes = ((row, refs.of("node", (row["branch"], row["depth"]))) for row in self._nodes.of(number))
        if session["state"] == "deleted" and branches and not self._reader.ask(_GROWN, session=number):
            expected = "nothing: a vacuum takes what no living session reaches"
            holdings.say(self._reader, "nodes-unreachable", tables.sessions, session, expected, "its nodes")
        history = SessionHistory(self._reader, Verifier(self._reader), session, branches, NodeWalk(nodes))
        history.check(self._commits.of(number))


def _first(found: object) -> Row:
    row: Row = found[0]  # type: ignore[index]  # every such stream yields tuples that begin with their row
    return row
