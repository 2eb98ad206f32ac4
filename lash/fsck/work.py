"""Turns, items, the journal, the lease, and when a session next needs a worker."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from lash.fsck import tables
from lash.fsck.bodies import IDENTITY, blobs_in, item_payload
from lash.fsck.decoding import Digest, Malformed, canonical, id_from
from lash.fsck.reading import Reader
from lash.fsck.tables import Row

ABSURD = 2 * 10 * 60 * 1_000_000
"""A lease lasts ten minutes at most. One that ends twice as far in the future was written by a broken clock, and counts
as free."""
_DEBT = (
    "SELECT o.state FROM lash_outbox o JOIN lash_sessions s ON s.id = o.session"
    " WHERE s.uid = :uid AND o.operation = :operation AND o.ordinal = :ordinal"
)
_DEBT_KEY = re.compile(r"outbox:[0-9a-f]{32}:[0-9a-f]{32}:[0-9]{1,9}\Z")
_COMMITTED_AT = "SELECT 1 FROM lash_commits WHERE session = :session AND committed_at = :at"
_COMMIT = ("revision", "committed_at")
_WRITTEN_BEFORE = (
    "SELECT 1 FROM lash_commits WHERE session = :session AND committed_at < :at UNION ALL"
    " SELECT 1 FROM lash_inbox WHERE session = :session AND (admitted_at < :at OR settled_at < :at) LIMIT 1"
)


@dataclass(frozen=True, slots=True)
class Settling:
    """A turn, or an item, with the commit that carries the name of the turn."""

    row: Row
    turn: Row | None
    commit: Row | None
    held: frozenset[str] = frozenset()


def turns_with_commits(reader: Reader) -> Iterator[Settling]:
    for page in reader.pages(tables.turns):
        keys = {(row["session"], row["id"]) for row in page}
        commits = reader.find_one(tables.commits, ("session", "operation"), keys, *_COMMIT)
        for row in page:
            yield Settling(row, row, commits.get((row["session"], row["id"])))


def items_with_turns(reader: Reader) -> Iterator[Settling]:
    for page in reader.pages(tables.inbox):
        keys = {(row["session"], row["turn"]) for row in page if row["turn"] is not None}
        turns = reader.find_one(tables.turns, ("session", "id"), keys, "state", "items")
        commits = reader.find_one(tables.commits, ("session", "operation"), keys, *_COMMIT)
        for row in page:
            key = (row["session"], row["turn"])
            yield Settling(row, turns.get(key), commits.get(key))


@dataclass(slots=True)
class SessionWork:
    """What one living session has to do."""

    reader: Reader
    session: Row
    unsettled: Row | None = None
    taken: set[str] = field(default_factory=set)
    due: int | None = None
    """When the earliest pending item is available."""
    options: dict[str, Any] = field(default_factory=dict)

    def say(self, code: str, table: tables.Table, row: Row, expected: object, found: object) -> None:
        self.reader.findings.add(code, table.name, table.key_of(row), expected=expected, found=found)

    # -- turns ---------------------------------------------------------------------------------------------------------

    def check_turn(self, settling: Settling) -> None:
        turn = settling.row
        self._check_turn_state(turn)
        if turn["generation"] > self.session["lease_generation"]:
            expected = f"at most the session's {self.session['lease_generation']}"
            self.say("turn-generation-ahead", tables.turns, turn, expected, turn["generation"])
        for kind in ("config", "catalog"):
            newest = self.session[f"{kind}_revision"]
            if turn[f"{kind}_revision"] > newest:
                found = f"{kind} {turn[f'{kind}_revision']}"
                self.say("turn-document-missing", tables.turns, turn, f"{kind} {newest} or older", found)
        if turn["state"] == "settled":
            self._check_receipt(turn, settling.commit)
        else:
            self._check_unsettled(turn, settling.commit)

    def _check_turn_state(self, turn: Row) -> None:
        """What each state has and has not."""
        settled, parked = turn["state"] == "settled", turn["state"] == "parked"
        ended = (turn["outcome"] is not None, turn["settled_at"] is not None)
        if ended != (settled, settled):
            expected = "an outcome and a time of settlement" if settled else "neither outcome nor settlement"
            self.say("turn-state-wrong", tables.turns, turn, expected, f"{turn['outcome']}, {turn['settled_at']}")
        if not parked and (turn["parked_until"] is not None or turn["parked_on"]):
            self.say("turn-state-wrong", tables.turns, turn, f"nothing to sleep on: it is {turn['state']}", "something")
        if turn["outcome"] == "cancelled" and turn["cancel_request"] is None:
            self.say("turn-cancel-wrong", tables.turns, turn, "the request that cancelled it", None)
        asked = {turn[name] is not None for name in ("cancel_request", "cancel_reason", "cancel_requested_at")}
        if len(asked) > 1:
            self.say("turn-cancel-wrong", tables.turns, turn, "a whole request or none", "a part of one")
        if settled and turn["cancel_request"] is not None and turn["outcome"] != "cancelled":
            self.say("turn-cancel-wrong", tables.turns, turn, "the outcome 'cancelled'", turn["outcome"])
        if len(set(turn["items"])) != len(turn["items"]) or not turn["items"]:
            self.say("turn-items-wrong", tables.turns, turn, "the items that it took, each once", list(turn["items"]))

    def _check_receipt(self, turn: Row, commit: Row | None) -> None:
        """A turn is settled by a commit, which carries its name or at least its time."""
        if commit is None:
            at = turn["settled_at"]
            if at is not None and not self.reader.ask(_COMMITTED_AT, session=self.session["id"], at=at):
                self.say("turn-without-receipt", tables.turns, turn, "the commit that settled it", None)
            return
        if commit["committed_at"] != turn["settled_at"]:
            found = f"commit at {commit['committed_at']}, settled at {turn['settled_at']}"
            self.say("turn-receipt-wrong", tables.turns, turn, "one time for both", found)
        if commit["revision"] != turn["base_revision"] + 1:
            expected = f"revision {turn['base_revision'] + 1}, the one after its base"
            self.say("turn-receipt-wrong", tables.turns, turn, expected, commit["revision"])

    def _check_unsettled(self, turn: Row, commit: Row | None) -> None:
        if self.unsettled is not None:
            self.say("turn-unsettled-twice", tables.turns, turn, f"only turn {self.unsettled['id']}", turn["state"])
            return
        self.unsettled = turn
        if commit is not None:
            found = f"a commit of its name at revision {commit['revision']}"
            self.say("turn-committed-but-unsettled", tables.turns, turn, "no receipt yet", found)
        if turn["base_revision"] != self.session["revision"]:
            expected = f"the session's revision {self.session['revision']}"
            self.say("turn-base-wrong", tables.turns, turn, expected, turn["base_revision"])
        self._check_pinned(turn)
        if turn["state"] == "parked":
            self._check_parked(turn)

    def _check_pinned(self, turn: Row) -> None:
        wanted = {(turn["session"], kind, turn[f"{kind}_revision"]) for kind in ("config", "catalog")}
        kept = self.reader.find(tables.documents, ("session", "kind", "revision"), wanted)
        for _, kind, revision in sorted(wanted - kept.keys()):
            self.say("turn-document-missing", tables.turns, turn, f"the {kind} of revision {revision}", None)

    def _check_parked(self, turn: Row) -> None:
        """It sleeps on waits that exist, no process holds it, and where it must be woken it will be."""
        session = self.session
        if session["lease_owner"] is not None and session["lease_generation"] == turn["generation"]:
            found = f"owner {session['lease_owner']}"
            self.say("turn-parked-and-held", tables.turns, turn, "no lease of its generation", found)
        waits = self.reader.find_one(
            tables.waits, ("id",), {(wait,) for wait in turn["parked_on"]}, "session", "state", "expires_at"
        )
        wakes = turn["cancel_request"] is not None
        for wait in turn["parked_on"]:
            row = waits.get((wait,))
            if row is None or row["session"] != session["id"]:
                self.say("turn-wait-missing", tables.turns, turn, f"the wait {wait} that it sleeps on", None)
            else:
                wakes = wakes or row["state"] != "pending" or row["expires_at"] is not None
        if wakes and turn["parked_until"] is None:
            self.say("turn-never-woken", tables.turns, turn, "a time to wake: it has a reason to", None)

    # -- items ---------------------------------------------------------------------------------------------------------

    def check_item(self, settling: Settling) -> None:
        item = settling.row
        self._check_item_content(item, settling.held)
        self._check_item_state(item, settling)
        if item["seq"] > self.session["seq"]:
            self.say("seq-ahead", tables.inbox, item, f"at most {self.session['seq']}", item["seq"])
        if item["key"] is not None and item["key"].startswith("outbox:"):
            self._check_paid(item)

    def _check_item_content(self, item: Row, held: frozenset[str]) -> None:
        try:
            payload = item_payload(item["kind"], item["body"])
        except Malformed as problem:
            self.say(problem.code, tables.inbox, item, problem.expected, problem.found)
            return
        if item["content_hash"] not in _content_hashes(item):
            self.say("item-hash-wrong", tables.inbox, item, "the hash of what it says", item["content_hash"])
        if blobs_in(payload) != held:
            expected = f"references to {sorted(blobs_in(payload))}"
            self.say("blob-refs-wrong", tables.inbox, item, expected, sorted(held))
        due = item["admitted_at"] if item["available_at"] is None else item["available_at"]
        if item["due_at"] != due:
            self.say("item-due-wrong", tables.inbox, item, due, item["due_at"])
        if item["kind"] == "command" and (item["aim"] == "now" or item["merge_key"] is not None):
            self.say("item-aim-wrong", tables.inbox, item, "a command that runs alone", item["merge_key"] or "now")

    def _check_item_state(self, item: Row, settling: Settling) -> None:
        state, unsettled = item["state"], self.unsettled
        if (item["settled_at"] is not None) != (state in ("completed", "cancelled")):
            self.say("item-state-wrong", tables.inbox, item, f"a time of settlement as {state} has it", "the contrary")
        if (item["turn"] is not None) != (state in ("taken", "completed")):
            self.say("item-state-wrong", tables.inbox, item, f"a turn as {state} has it", item["turn"])
        if (item["target"] is not None) != (item["aim"] == "now"):
            found = f"aim {item['aim']}, target {item['target']}"
            self.say("item-aim-wrong", tables.inbox, item, "a target if it aims at a turn", found)
        if state == "pending":
            self.due = item["due_at"] if self.due is None else min(self.due, item["due_at"])
            if item["target"] is not None and (unsettled is None or unsettled["id"] != item["target"]):
                expected = "the unsettled turn" if unsettled is None else f"turn {unsettled['id']}"
                self.say("item-aim-wrong", tables.inbox, item, expected, f"turn {item['target']}")
        elif state == "taken":
            self._check_taken(item)
        elif state == "completed":
            self._check_completed(item, settling)

    def _check_taken(self, item: Row) -> None:
        if self.unsettled is None or self.unsettled["id"] != item["turn"]:
            self.say("item-taken-by-nobody", tables.inbox, item, "the unsettled turn", f"turn {item['turn']}")
            return
        self.taken.add(item["id"])
        if item["id"] == next(iter(self.unsettled["items"]), None):
            self.options = item["options"]

    def _check_completed(self, item: Row, settling: Settling) -> None:
        if item["turn"] is None:
            return
        if settling.turn is not None and settling.turn["state"] != "settled":
            self.say("item-completed-too-early", tables.inbox, item, "a settled turn", settling.turn["state"])
        elif settling.turn is not None and item["id"] not in settling.turn["items"]:
            self.say("item-not-taken", tables.inbox, item, f"turn {item['turn']} to have taken it", None)
        at = None if settling.commit is None else settling.commit["committed_at"]
        if at is None and item["settled_at"] is not None:
            found = self.reader.ask(_COMMITTED_AT, session=self.session["id"], at=item["settled_at"])
            at = item["settled_at"] if found else None
        if at is None:
            self.say("item-without-receipt", tables.inbox, item, "the commit that completed it", None)
        elif at != item["settled_at"]:
            self.say("item-without-receipt", tables.inbox, item, f"completion with its commit at {at}", "another time")

    def _check_paid(self, item: Row) -> None:
        """An item that pays a debt has the id that follows from the debt, and the debt is paid."""
        words = item["key"].split(":")
        if not _DEBT_KEY.match(item["key"]) or item["id"] != id_from(*words):
            self.say("debt-item-wrong", tables.inbox, item, f"the id that follows from {item['key']}", item["id"])
            return
        uid, operation = bytes.fromhex(words[1]), bytes.fromhex(words[2])
        for debt in self.reader.ask(_DEBT, uid=uid, operation=operation, ordinal=int(words[3])):
            if debt.state != "delivered":
                self.say("debt-item-wrong", tables.inbox, item, "a debt that is delivered", debt.state)

    # -- the journal ---------------------------------------------------------------------------------------------------

    def check_entry(self, entry: Row) -> None:
        if self.unsettled is None or self.unsettled["id"] != entry["turn"]:
            self.say("journal-orphaned", tables.journal, entry, "the unsettled turn", f"turn {entry['turn']}")
        finished = entry["state"] != "started"
        if (bool(entry["has_outcome"]), entry["finished_at"] is not None) != (finished, finished):
            expected = "an outcome and an end" if finished else "neither outcome nor end"
            self.say("journal-state-wrong", tables.journal, entry, expected, f"ended at {entry['finished_at']}")
        if not IDENTITY.fits(entry["identity"].fields):
            self.say("payload-malformed", tables.journal, entry, "an identity", entry["identity"].text)
        if entry["seq"] > self.session["seq"]:
            self.say("seq-ahead", tables.journal, entry, f"at most {self.session['seq']}", entry["seq"])
        if entry["wait"] is not None:
            waits = self.reader.find_one(tables.waits, ("id",), [(entry["wait"],)], "session")
            if not waits or waits[entry["wait"],]["session"] != self.session["id"]:
                self.say("journal-wait-missing", tables.journal, entry, f"the wait {entry['wait']}", None)

    # -- the session as a whole ----------------------------------------------------------------------------------------

    def finish(self) -> None:
        """What follows from all of it, once every turn and item was seen."""
        turn, session = self.unsettled, self.session
        if turn is not None and set(turn["items"]) != self.taken:
            differing = sorted(set(turn["items"]) ^ self.taken)
            self.say("turn-items-wrong", tables.turns, turn, "exactly the items that are taken", differing)
        elif turn is not None and canonical(turn["options"]) != canonical(self.options):
            self.say("turn-options-wrong", tables.turns, turn, self.options, turn["options"])
        if turn is None and session["next_item_at"] != self.due:
            self.say("next-item-at-wrong", tables.sessions, session, self.due, session["next_item_at"])
        self._check_lease()
        self._check_ready()

    def _check_lease(self) -> None:
        session = self.session
        owner, expires_at = session["lease_owner"], session["lease_expires_at"]
        if (owner is None) != (expires_at is None):
            found = f"owner {owner}, expiry {expires_at}"
            self.say("lease-wrong", tables.sessions, session, "an owner and an expiry, or neither", found)
        if owner is not None and (session["lease_generation"] == 0 or not owner):
            self.say("lease-wrong", tables.sessions, session, "an owner of generation 1 or later", repr(owner))

    def _check_ready(self) -> None:
        session, found = self.session, self.session["ready_at"]
        expires_at = session["lease_expires_at"] if session["lease_owner"] is not None else None
        expected: object
        if self.unsettled is not None and self.unsettled["state"] == "parked":
            expected = self.unsettled["parked_until"]
            holds = found == expected
        elif self.unsettled is not None:
            expected = "the moment when it was put down" if expires_at is None else expires_at
            holds = found is not None and (expires_at is None or _free_at(expires_at, found))
        elif self.due is None or expires_at is None:
            expected = self.due
            holds = found == expected
        else:
            expected = max(self.due, expires_at)
            holds = found == expected or (found is not None and self._freed_by_clock(self.due, expires_at, found))
        if not holds:
            self.say("ready-at-wrong", tables.sessions, session, expected, found)

    def _freed_by_clock(self, due: int, expires_at: int, ready_at: int) -> bool:
        """Whether a clock that was set back can have made this session ready before its lease has run out.

        Under such a clock the lease is absurd and counts as free, so that the session is ready from then on, or once
        its next item is due. In the second case the time itself says nothing; but whatever was written under that clock
        (an item came or was cancelled, a turn was committed) carries a time at which the lease was absurd.
        """
        if ready_at != due:
            return ready_at > due and _free_at(expires_at, ready_at)
        return bool(self.reader.ask(_WRITTEN_BEFORE, session=self.session["id"], at=expires_at - ABSURD))


def _free_at(expires_at: int, ready_at: int) -> bool:
    """Whether a lease with this expiry is free from then on: it has run out, or no clock can have meant it."""
    return ready_at == expires_at or expires_at - ready_at > ABSURD


def _content_hashes(item: Row) -> set[str]:
    """The hashes that the item can have. One that waits for the next turn may have aimed at one that was over."""
    hashes: set[str] = set()
    for when in {item["aim"], "now"}:
        aim = {"when": when, "boundary": item["boundary"], "merge_key": item["merge_key"]}
        hashes.add(Digest("item").add(item["body"].text, canonical(aim), canonical(item["options"])).hex())
    return hashes
