"""The content hash of a commit, computed again from the rows that it left.

It covers the operation, the nodes or the move, how a turn was settled, state parts, usage, debts and documents. What is
not kept as it was said is tried in each way that the rows allow: whether the parts of a set were named or came along
with a rewind, and which of the documents that were replaced at that very instant came with the commit.

A vacuum takes settled turns, paid debts and replaced documents; a delete takes turns and documents. So a mismatch is an
error only where nothing can be gone. A vacuum takes everything that ended before some time: where the commit's own
turn, or that of an earlier commit which is not younger, is still there, no vacuum has reached the commit. Unless the
clock was set back since: then what came later has ended earlier, and may be gone before the turn is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice, product
from typing import Any

from lash.clock import SystemClock, to_micros
from lash.fsck import tables
from lash.fsck.bodies import owed_payload
from lash.fsck.decoding import OBJECT, Digest, Malformed, canonical
from lash.fsck.reading import Reader
from lash.fsck.tables import BUCKETS, Key, Row

MAX_TRIES = 1000
_REPLACED = (
    "SELECT d.kind, d.body FROM lash_documents d JOIN lash_documents p"
    " ON p.session = d.session AND p.kind = d.kind AND p.revision = d.revision - 1"
    " WHERE d.session = :session AND p.superseded_at = :at"
)
_SETTLED_AT = "SELECT id FROM lash_turns WHERE session = :session AND settled_at = :at"
_SET_BACK = (
    "SELECT 1 FROM lash_commits WHERE session = :session AND seq > :seq AND committed_at < :at UNION ALL"
    " SELECT 1 FROM lash_inbox WHERE session = :session AND seq > :seq AND admitted_at < :at UNION ALL"
    " SELECT 1 FROM lash_outbox WHERE session = :session AND revision = :revision AND settled_at < :at LIMIT 1"
)
_TURN = ("state", "items", "outcome", "settled_at", "cancel_request")


@dataclass(frozen=True, slots=True)
class Evidence:
    """A commit, and the rows that say what it said."""

    commit: Row
    turn: Row | None
    completed: frozenset[str]
    """Of the items that the turn took, those that it completed."""
    usage: list[Row] = field(default_factory=list)
    parts: list[Row] | None = None
    """The state parts of its own set, if it has one."""
    debts: list[Row] = field(default_factory=list)


def commits_with_evidence(reader: Reader) -> Iterator[Evidence]:
    """All commits in order, each page with what belongs to it."""
    for page in reader.pages(tables.commits):
        turns = reader.find_one(tables.turns, ("session", "id"), _keys(page, "operation"), *_TURN)
        completed = completed_items(reader, turns)
        usage = reader.find(
            tables.usage, ("session", "revision"), _keys(page, "revision"), "ordinal", "source", "model", *BUCKETS
        )
        own_sets = [row for row in page if row["state_set"] == row["revision"]]
        parts = _parts(reader, _keys(own_sets, "state_set"))
        owing = reader.find(tables.outbox, ("session", "operation"), _keys(page, "operation"))
        for row in page:
            by_operation, by_revision = (row["session"], row["operation"]), (row["session"], row["revision"])
            yield Evidence(
                row,
                turns.get(by_operation),
                completed.get(by_operation, frozenset()),
                usage.get(by_revision, []),
                parts.get(by_revision, []) if row["state_set"] == row["revision"] else None,
                _debts(reader, by_operation) if by_operation in owing else [],
            )


def _keys(rows: list[Row], column: str) -> set[Key]:
    return {(row["session"], row[column]) for row in rows}


def completed_items(reader: Reader, turns: dict[Key, Row]) -> dict[Key, frozenset[str]]:
    """For each turn the items that it took and that are completed as its own."""
    taken = {(session, item) for (session, _), turn in turns.items() for item in turn["items"]}
    items = reader.find_one(tables.inbox, ("session", "id"), taken, "state", "turn")
    return {
        (session, turn_id): frozenset(
            item
            for item in turn["items"]
            if (found := items.get((session, item))) and (found["state"], found["turn"]) == ("completed", turn_id)
        )
        for (session, turn_id), turn in turns.items()
    }


def _debts(reader: Reader, commit: Key) -> list[Row]:
    """What one commit owes. Bodies may be large, so they are not read for a whole page at once."""
    return reader.find(tables.outbox, ("session", "operation"), [commit], "ordinal", "body").get(commit, [])


def _parts(reader: Reader, sets: set[Key]) -> dict[Key, list[Row]]:
    found = reader.find(tables.state_parts, ("session", "state_set"), sets, "name", "blob")
    numbers = {(row["blob"],) for rows in found.values() for row in rows}
    hashes = reader.find_one(tables.blobs, ("id",), numbers, "hash")
    return {
        key: [{**row, "hash": hashes[row["blob"],]["hash"]} for row in rows if (row["blob"],) in hashes]
        for key, rows in found.items()
    }


class Verifier:
    """Compares the hashes of one session's commits, which are given in order."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._kept_since: int | None = None
        """When the oldest turn ended that is still there, of those that the commits so far settled."""

    def check(self, session: Row, evidence: Evidence, digest: Digest) -> None:
        """``digest`` has taken in the operation and the delta."""
        commit = evidence.commit
        if evidence.turn is not None and evidence.turn["settled_at"] is not None:
            ended = evidence.turn["settled_at"]
            self._kept_since = ended if self._kept_since is None else min(ended, self._kept_since)
        if self._matches(evidence, digest):
            return
        kept = self._kept_since is not None and self._kept_since <= commit["committed_at"]
        if session["state"] == "live" and kept and not self._was_set_back(commit):
            self._reader.findings.add(
                "commit-hash-wrong",
                tables.commits.name,
                tables.commits.key_of(commit),
                expected="the hash of what its rows say",
                found=commit["content_hash"],
            )
        else:
            self._reader.findings.unverified_commits += 1

    def _was_set_back(self, commit: Row) -> bool:
        """Whether the clock showed an earlier time after the commit: something of the session that came later says so,
        or the commit is yet to come."""
        at = commit["committed_at"]
        place = {"session": commit["session"], "seq": commit["seq"], "revision": commit["revision"], "at": at}
        return at > to_micros(SystemClock().now()) or bool(self._reader.ask(_SET_BACK, **place))

    def _matches(self, evidence: Evidence, digest: Digest) -> bool:
        wanted = evidence.commit["content_hash"]
        if any(digest.fork().add(*texts).hex() == wanted for texts in _endings(evidence, [{}])):
            return True
        turns = [evidence] if evidence.turn else [evidence, *self._settled_under_another_name(evidence)]
        documents = self._documents(evidence.commit)
        endings = (texts for one in turns for texts in _endings(one, documents))
        return any(digest.fork().add(*texts).hex() == wanted for texts in islice(endings, MAX_TRIES))

    def _settled_under_another_name(self, evidence: Evidence) -> Iterator[Evidence]:
        """The turns that ended at the very instant of a commit which is not named after a turn."""
        commit = evidence.commit
        found = self._reader.ask(_SETTLED_AT, session=commit["session"], at=commit["committed_at"])
        keys = {(commit["session"], bytes(row.id).hex()) for row in found}
        turns = self._reader.find_one(tables.turns, ("session", "id"), keys, *_TURN)
        completed = completed_items(self._reader, turns)
        for key, turn in turns.items():
            yield Evidence(commit, turn, completed[key], evidence.usage, evidence.parts, evidence.debts)

    def _documents(self, commit: Row) -> list[dict[str, Any]]:
        """Every choice among the documents that were replaced when the commit landed."""
        by_kind: dict[str, list[Any]] = {}
        for row in self._reader.ask(_REPLACED, session=commit["session"], at=commit["committed_at"]):
            try:
                by_kind.setdefault(row.kind, []).append(OBJECT(row.body))
            except Malformed:
                continue  # reported where documents are read
        choices = product(*([None, *bodies] for bodies in by_kind.values()))
        named = ({k: b for k, b in zip(by_kind, chosen, strict=True) if b is not None} for chosen in choices)
        return list(islice(named, MAX_TRIES))


def _endings(evidence: Evidence, documents: list[dict[str, Any]]) -> Iterator[list[str]]:
    """The texts that may follow the delta."""
    parts: list[Any] = [None]
    if evidence.parts is not None:
        parts = [{row["name"]: row["hash"] for row in evidence.parts}, None]
    usage = [
        {"source": row["source"], "model": row["model"], "tokens": [row[bucket] for bucket in BUCKETS]}
        for row in evidence.usage
    ]
    try:
        debts = [_owed(row) for row in evidence.debts]
    except Malformed:
        return
    for named, bodies in product(parts, documents):
        yield [canonical(_settlement(evidence)), canonical(named), canonical(usage), *debts, canonical(bodies)]


def _settlement(evidence: Evidence) -> dict[str, Any] | None:
    turn = evidence.turn
    if turn is None or turn["state"] != "settled":
        return None
    return {
        "turn": turn["id"],
        "outcome": turn["outcome"],
        "completes": sorted(evidence.completed),
        "gives_back": sorted(set(turn["items"]) - evidence.completed),
        "cancelled_by": turn["cancel_request"],
    }


def _owed(row: Row) -> str:
    fields, _ = owed_payload(row["body"])
    return canonical({name: value for name, value in fields.items() if name != "available_at"})
