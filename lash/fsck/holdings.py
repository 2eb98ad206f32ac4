"""Documents, usage, state parts, debts, blobs, waits, and the rows that describe the database itself."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from lash.fsck import tables
from lash.fsck.bodies import blobs_in, owed_payload
from lash.fsck.decoding import Malformed, id_from, sha256
from lash.fsck.reading import INLINE, Reader
from lash.fsck.tables import DOCUMENTS, Row, Table

Held = dict[tuple[int, int], frozenset[str]]
"""The hashes that are referred to from each place."""


def say(reader: Reader, code: str, table: Table, row: Row, expected: object, found: object) -> None:
    reader.findings.add(code, table.name, table.key_of(row), expected=expected, found=found)


# -- documents ---------------------------------------------------------------------------------------------------------


def check_documents(reader: Reader, session: Row, documents: Iterable[Row]) -> None:
    """Each kind has its present revision, and only older ones are superseded. Of those a vacuum may have taken some."""
    present = dict.fromkeys(DOCUMENTS, False)
    for row in documents:
        current = session[f"{row['kind']}_revision"]
        if row["revision"] > current:
            say(reader, "document-ahead", tables.documents, row, f"at most revision {current}", row["revision"])
        elif (row["revision"] == current) != (row["superseded_at"] is None):
            expected = "the present revision" if row["revision"] == current else "a time when it was superseded"
            say(reader, "document-superseded-wrong", tables.documents, row, expected, row["superseded_at"])
        present[row["kind"]] = present[row["kind"]] or row["revision"] == current
    for kind in (kind for kind, found in present.items() if not found):
        row = {"session": session["id"], "kind": kind, "revision": session[f"{kind}_revision"]}
        say(reader, "document-missing", tables.documents, row, "the present revision", None)


# -- usage and state parts ---------------------------------------------------------------------------------------------


def usage_with_commits(reader: Reader) -> Iterator[tuple[Row, bool]]:
    """The ledger, and whether the commit of each entry is there."""
    for page in reader.pages(tables.usage):
        keys = {(row["session"], row["revision"]) for row in page}
        commits = reader.find(tables.commits, ("session", "revision"), keys)
        for row in page:
            yield row, (row["session"], row["revision"]) in commits


def check_usage(reader: Reader, usage: Iterable[tuple[Row, bool]]) -> None:
    revision, ordinal = 0, -1
    for row, has_commit in usage:
        if not has_commit:
            say(reader, "usage-without-commit", tables.usage, row, "the commit that spent it", None)
        ordinal = ordinal + 1 if row["revision"] == revision else 0
        if row["ordinal"] != ordinal:
            say(reader, "usage-gap", tables.usage, row, f"ordinal {ordinal}", row["ordinal"])
        revision, ordinal = row["revision"], row["ordinal"]
        if row["reasoning"] > row["output"] or not row["source"] or not row["model"]:
            found = f"{row['source']!r}, {row['model']!r}, {row['reasoning']} of {row['output']}"
            say(reader, "usage-wrong", tables.usage, row, "source, model, and reasoning as a part of output", found)


def parts_with_commits(reader: Reader) -> Iterator[tuple[Row, bool, bool]]:
    """State parts, whether the blob of each is there, and whether its set was begun by a commit."""
    for page in reader.pages(tables.state_parts):
        blobs = reader.find(tables.blobs, ("id",), {(row["blob"],) for row in page})
        keys = {(row["session"], row["state_set"]) for row in page if row["state_set"]}
        commits = reader.find_one(tables.commits, ("session", "revision"), keys, "state_set")
        for row in page:
            commit = commits.get((row["session"], row["state_set"]))
            yield row, (row["blob"],) in blobs, commit is not None and commit["state_set"] == row["state_set"]


def check_parts(reader: Reader, session: Row, parts: Iterable[tuple[Row, bool, bool]]) -> None:
    for row, has_blob, begun in parts:
        if not has_blob:
            say(reader, "blob-missing", tables.state_parts, row, f"blob number {row['blob']}", None)
        began_with_fork = row["state_set"] == 0 and session["forked_from"] is not None
        if session["state"] == "live" and not begun and not began_with_fork:
            say(reader, "state-part-orphaned", tables.state_parts, row, "a commit that began its set", None)


# -- references to blobs -----------------------------------------------------------------------------------------------


def refs_with_hashes(reader: Reader) -> Iterator[Row]:
    for page in reader.pages(tables.blob_refs):
        blobs = reader.find_one(tables.blobs, ("id",), {(row["blob"],) for row in page}, "hash")
        for row in page:
            blob = blobs.get((row["blob"],))
            if blob is None:
                say(reader, "blob-missing", tables.blob_refs, row, f"blob number {row['blob']}", None)
            else:
                yield {**row, "hash": blob["hash"]}


class Refs:
    """One session's references, which come in the order debts, items, nodes and, within each, of their places."""

    def __init__(self, reader: Reader, rows: Iterator[Row]) -> None:
        self._reader = reader
        self._rows = rows
        self._next = next(rows, None)

    def of(self, holder: str, place: tuple[int, int]) -> frozenset[str]:
        """What this holder refers to. References of places before it belong to nothing."""
        found: set[str] = set()
        while self._next is not None and _before(self._next, holder, place):
            self._orphaned(self._next)
        while self._next is not None and self._next["holder"] == holder and _place(self._next) == place:
            found.add(self._next["hash"])
            self._next = next(self._rows, None)
        return frozenset(found)

    def debts(self) -> Held:
        """All references of debts, whose table has another order."""
        held: Held = {}
        while self._next is not None and self._next["holder"] == "debt":
            held[_place(self._next)] = held.get(_place(self._next), frozenset()) | {self._next["hash"]}
            self._next = next(self._rows, None)
        return held

    def finish(self) -> None:
        while self._next is not None:
            self._orphaned(self._next)

    def _orphaned(self, row: Row) -> None:
        say(self._reader, "blob-ref-orphaned", tables.blob_refs, row, f"the {row['holder']} that refers", None)
        self._next = next(self._rows, None)


def _place(row: Row) -> tuple[int, int]:
    return row["major"], row["minor"]


def _before(row: Row, holder: str, place: tuple[int, int]) -> bool:
    return (row["holder"], *_place(row)) < (holder, *place)


# -- debts -------------------------------------------------------------------------------------------------------------


def debts_with_commits(reader: Reader) -> Iterator[tuple[Row, Row | None]]:
    for page in reader.pages(tables.outbox):
        keys = {(row["session"], row["operation"]) for row in page}
        commits = reader.find_one(tables.commits, ("session", "operation"), keys, "revision", "committed_at")
        for row in page:
            yield row, commits.get((row["session"], row["operation"]))


def check_debts(reader: Reader, session: Row, debts: Iterable[tuple[Row, Row | None]], held: Held) -> None:
    for row, commit in debts:
        _check_owing(reader, session, row, commit)
        try:
            owed, item = owed_payload(row["body"])
        except Malformed as problem:
            say(reader, problem.code, tables.outbox, row, problem.expected, problem.found)
            continue
        refers_to = held.pop((row["revision"], row["ordinal"]), frozenset())
        if blobs_in(item) != refers_to:
            expected = f"references to {sorted(blobs_in(item))}"
            say(reader, "blob-refs-wrong", tables.outbox, row, expected, sorted(refers_to))
        if row["state"] == "delivered":
            _check_delivered(reader, session, row, owed["to"])
    for major, minor in held:
        row = {"session": session["id"], "holder": "debt", "major": major, "minor": minor, "blob": "any"}
        say(reader, "blob-ref-orphaned", tables.blob_refs, row, "the debt that refers", None)


def _check_owing(reader: Reader, session: Row, row: Row, commit: Row | None) -> None:
    """A debt belongs to a commit. Of a deleted session the commit may be gone."""
    if commit is None and session["state"] == "live":
        say(reader, "debt-without-commit", tables.outbox, row, "the commit that owes it", None)
    if commit is not None and (commit["revision"], commit["committed_at"]) != (row["revision"], row["owed_at"]):
        expected = f"revision {commit['revision']}, owed at {commit['committed_at']}"
        found = f"revision {row['revision']}, owed at {row['owed_at']}"
        say(reader, "debt-without-commit", tables.outbox, row, expected, found)
    if (row["state"] == "owed") != (row["settled_at"] is None):
        say(reader, "debt-state-wrong", tables.outbox, row, f"a settlement as {row['state']} has it", row["settled_at"])


def _check_delivered(reader: Reader, session: Row, row: Row, to: str) -> None:
    """The item of a delivered debt is there, unless a vacuum took it. A vacuum takes everything of a session that ended
    before some time: where the receiver still has a turn that ended before the delivery, none has reached the item."""
    receivers = reader.find_one(tables.sessions, ("uid",), [(to,)], "id", "state")
    receiver = receivers.get((to,))
    if receiver is None or receiver["state"] != "live":
        return
    item = id_from("outbox", session["uid"], row["operation"], str(row["ordinal"]))
    if reader.find(tables.inbox, ("session", "id"), [(receiver["id"], item)]):
        return
    if reader.ask(_ENDED_BEFORE, session=receiver["id"], at=row["settled_at"]):
        say(reader, "debt-item-missing", tables.outbox, row, f"item {item} in session {receiver['id']}", None)


_ENDED_BEFORE = "SELECT 1 FROM lash_turns WHERE session = :session AND settled_at <= :at LIMIT 1"


# -- tables that belong to no session ----------------------------------------------------------------------------------


def check_blobs(reader: Reader) -> None:
    for page in reader.pages(tables.blobs):
        if not page:
            continue
        span = {"first": page[0]["id"], "last": page[-1]["id"]}
        unused = {row.id for row in reader.ask(_UNUSED, **span)}
        for row in page:
            if row["id"] in unused:
                say(reader, "blob-unused", tables.blobs, row, "something that refers to it", None)
            found = _hash_of(reader, row["id"])
            if found != row["hash"]:
                say(reader, "blob-hash-wrong", tables.blobs, row, row["hash"], found)


_UNUSED = (
    "SELECT b.id FROM lash_blobs b WHERE b.id BETWEEN :first AND :last"
    " AND NOT EXISTS (SELECT 1 FROM lash_blob_refs r WHERE r.blob = b.id)"
    " AND NOT EXISTS (SELECT 1 FROM lash_state_parts p WHERE p.blob = b.id)"
)
_BLOB = (
    "SELECT length(body) AS size, CASE WHEN length(body) <= :inline THEN body END AS body"
    " FROM lash_blobs WHERE id = :number"
)


def _hash_of(reader: Reader, number: int) -> str:
    [found] = reader.ask(_BLOB, number=number, inline=INLINE)
    pieces = [bytes(found.body)] if found.body is not None else reader.blob_pieces(number, found.size)
    return sha256(pieces)


def check_waits(reader: Reader) -> None:
    for page in reader.pages(tables.waits):
        sessions = reader.find_one(tables.sessions, ("id",), {(row["session"],) for row in page}, "state")
        keys = {(row["session"], row["turn"]) for row in page if row["turn"] is not None}
        turns = reader.find_one(tables.turns, ("session", "id"), keys, "state", "settled_at")
        for row in page:
            _check_owner(reader, tables.waits, row, sessions.get((row["session"],)))
            _check_wait(reader, row, turns.get((row["session"], row["turn"])))


def _check_wait(reader: Reader, wait: Row, turn: Row | None) -> None:
    state = wait["state"]
    if bool(wait["has_answer"]) != (state == "answered") or (wait["settled_at"] is None) != (state == "pending"):
        found = f"answer: {bool(wait['has_answer'])}, settled at {wait['settled_at']}"
        say(reader, "wait-state-wrong", tables.waits, wait, f"answer and settlement as {state} has them", found)
    if state == "timed_out" and wait["expires_at"] is None:
        say(reader, "wait-state-wrong", tables.waits, wait, "a deadline that has passed", None)
    if state != "pending" or turn is None or turn["state"] != "settled" or turn["settled_at"] is None:
        return
    ended = turn["settled_at"]
    timed_out = wait["expires_at"] is not None and wait["expires_at"] <= ended
    if wait["created_at"] < ended and not timed_out:
        say(reader, "wait-outlived-its-turn", tables.waits, wait, f"revoked when its turn ended at {ended}", state)


def check_live_events(reader: Reader) -> None:
    for page in reader.pages(tables.live_events):
        sessions = reader.find_one(tables.sessions, ("id",), {(row["session"],) for row in page}, "state")
        for row in page:
            _check_owner(reader, tables.live_events, row, sessions.get((row["session"],)))


def _check_owner(reader: Reader, table: Table, row: Row, session: Row | None) -> None:
    if session is None:
        say(reader, "session-missing", table, row, f"session number {row['session']}", None)
    elif session["state"] != "live":
        say(reader, "deleted-session-keeps-rows", table, row, "no row: the session is not living", "one")


_META = {
    "secret": re.compile(r"([0-9a-f]{2}){16,}\Z"),
    "oldest_runtime": re.compile(r"\d+\.\d+\.\d+"),
}


def check_database_rows(reader: Reader) -> None:
    """The rows that describe the database: its revision, its secret, the oldest runtime; and what is unique in it."""
    known: dict[str, Any] = {row["name"]: row["value"] for row in reader.rows(tables.meta)}
    for name, pattern in _META.items():
        if not pattern.match(known.get(name, "")):
            found = "nothing" if name not in known else "another form"
            say(reader, "meta-wrong", tables.meta, {"name": name}, f"a value of the form {pattern.pattern}", found)
    revisions = [row["version_num"] for row in reader.rows(tables.revisions)]
    if len(revisions) != 1 or not revisions[0].isdigit():
        row = {"version_num": revisions[0] if revisions else None}
        say(reader, "version-wrong", tables.revisions, row, "one row with the revision", revisions)
    for _ in reader.rows(tables.clock_offsets):
        pass
    for name, count in reader.ask(_NAMES):
        reader.findings.add(
            "name-taken-twice", tables.sessions.name, f"name={name}", expected="one living session", found=count
        )
    for session, seq, count in reader.ask(_SEQS):
        key = f"session={session} seq={seq}"
        reader.findings.add("seq-used-twice", tables.sessions.name, key, expected="one event", found=count)


_NAMES = (
    "SELECT name, count(*) FROM lash_sessions WHERE state = 'live' GROUP BY name HAVING count(*) > 1"
    " ORDER BY name LIMIT 500"
)
_SEQS = (
    "SELECT session, seq, count(*) FROM (SELECT session, seq FROM lash_inbox UNION ALL"
    " SELECT session, seq FROM lash_commits UNION ALL SELECT session, seq FROM lash_journal) used"
    " GROUP BY session, seq HAVING count(*) > 1 ORDER BY session, seq LIMIT 500"
)
