"""Everything that can be found, by a code that stays, and what each means for the one who reads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Severity = Literal["error", "note"]


@dataclass(frozen=True, slots=True)
class Code:
    severity: Severity
    meaning: str


def _errors(meanings: Mapping[str, str]) -> dict[str, Code]:
    return {code: Code("error", meaning) for code, meaning in meanings.items()}


_ROWS = _errors(
    {
        "table-missing": "A table of lash is gone; nothing else was checked.",
        "meta-wrong": "A row that describes the database is missing or damaged; no store can open it.",
        "version-wrong": "The database does not say which revision it has; no store can open it.",
        "row-malformed": "A column holds what it cannot hold; whatever reads the row fails.",
        "record-malformed": "A stored record is no JSON, or not of its form; whatever reads it fails.",
        "record-not-canonical": "A record is not as lash writes it: something else has written it.",
        "record-version-missing": "A record does not say its version; whatever reads it fails.",
        "record-version-malformed": "The version of a record is no version; whatever reads it fails.",
        "record-version-unsupported": "A newer lash wrote the record, or it is damaged; this lash cannot read it.",
        "payload-malformed": "A record can be read, and is not what its kind says; whatever looks inside fails.",
        "session-missing": "A row belongs to a session that is not there.",
    }
)
_SESSIONS = _errors(
    {
        "session-state-wrong": "A session is neither living nor a proper tombstone.",
        "name-taken-twice": "Two living sessions have one name; who asks for it gets either.",
        "deleted-session-keeps-rows": "A deleted session has rows that its deletion should have taken.",
        "seq-used-twice": "Two events of a session have one number; readers that follow it miss one of them.",
        "seq-ahead": "A row has a number that its session has not given out; the number will be given out again.",
        "lease-wrong": "The lease is half held: nobody can tell whether somebody runs the session.",
        "next-item-at-wrong": "The session does not know when its next item is available; the item may wait for ever.",
        "ready-at-wrong": "The session is not called up when it needs a worker, or is called up for nothing.",
    }
)
_HISTORY = _errors(
    {
        "commit-revision-gap": "A commit is missing, or was counted twice; what it settled cannot be proven.",
        "commit-seq-wrong": "A commit does not stand in the order of events.",
        "commit-branch-wrong": "A commit says that it is on a branch where the session was not.",
        "commit-first-depth-wrong": "A commit's nodes do not follow the leaf that it was made from.",
        "commit-nodes-missing": "Nodes that were committed are gone.",
        "commit-leaf-wrong": "A commit left the head on another node than it says.",
        "commit-state-set-wrong": "A rewind or a fork to this commit would restore the wrong state.",
        "commit-hash-wrong": "What a commit said is not what is stored: its nodes, settlement, parts, usage, debts or "
        "documents were changed.",
        "head-revision-wrong": "The head has another revision than the last commit.",
        "head-leaf-wrong": "The head is not where the history ends.",
        "head-depth-wrong": "The head's depth is not its leaf's.",
        "head-frame-wrong": "The model's memory would begin at the wrong node.",
        "head-branch-wrong": "The session goes on from a branch that it has left.",
        "head-state-set-wrong": "The session goes on with the wrong state parts.",
        "branch-missing": "A branch that a commit began has no row; its path cannot be found.",
        "branch-never-begun": "A branch is there that no commit began.",
        "branch-parent-missing": "A branch, or a fork, grew from a node that is gone.",
        "branch-parent-wrong": "A branch grew from another node than its commit says.",
        "branch-grew-from-itself": "A branch grew from itself or from a later one: its path has no end.",
        "branch-not-at-boundary": "A branch grew from the middle of a commit.",
        "fork-point-wrong": "A fork grew from another node than it says.",
        "node-without-commit": "No commit wrote this node, so no path reaches it.",
        "node-parent-missing": "The node before this one is gone; the path breaks here.",
        "node-branch-missing": "The node is on a branch that has no row, so no path reaches it.",
        "node-revision-wrong": "The node says that another commit wrote it; its id cannot be derived.",
        "node-seq-ahead": "The node came with an event that is later than its own commit.",
        "node-frame-wrong": "The node says that it belongs to another frame than the node before it.",
        "node-root-opens-no-frame": "A history begins with a node that opens no frame.",
        "node-root-without-reset": "A new root was begun without a reset.",
    }
)
_WORK = _errors(
    {
        "turn-unsettled-twice": "A session has two unsettled turns; both may move the head.",
        "turn-state-wrong": "A turn has what its state does not have, or lacks what it has.",
        "turn-cancel-wrong": "A turn was cancelled without evidence, or ended against a request to stop.",
        "turn-items-wrong": "A turn does not have exactly the items that it took; whoever takes it over is refused.",
        "turn-options-wrong": "A turn runs with other options than its first item asked for.",
        "turn-without-receipt": "A turn is settled and no commit proves it.",
        "turn-receipt-wrong": "The commit with the turn's name is not the one that settled it.",
        "turn-committed-but-unsettled": "A turn's commit is there and the turn is not settled; it would run again.",
        "turn-base-wrong": "The head moved while the turn was unsettled; its commit will be refused.",
        "turn-generation-ahead": "A turn was taken up under a generation that no lease had.",
        "turn-document-missing": "The config or catalog that a turn is pinned to is gone.",
        "turn-parked-and-held": "A turn sleeps and its driver still holds the lease; nobody can wake it.",
        "turn-wait-missing": "A turn sleeps on a wait that is gone; no answer can wake it.",
        "turn-never-woken": "What a turn sleeps for has happened, or has a deadline, and it has no time to wake.",
        "item-state-wrong": "An item has what its state does not have, or lacks what it has.",
        "item-hash-wrong": "An item's content is not what was admitted; a repetition would be refused as a conflict.",
        "item-due-wrong": "An item is taken up earlier or later than it is available.",
        "item-aim-wrong": "An item aims at a turn that is over, or at none; it may never be taken.",
        "item-taken-by-nobody": "An item is taken by a turn that is not unsettled; nobody will settle it.",
        "item-completed-too-early": "An item is completed and its turn is not.",
        "item-not-taken": "An item was completed by a turn that did not take it.",
        "item-without-receipt": "An item is completed and no commit proves it.",
        "journal-orphaned": "A journal row belongs to no unsettled turn; a commit should have retired it.",
        "journal-state-wrong": "A journal row has what its state does not have, or lacks what it has.",
        "journal-wait-missing": "An effect is answered by a wait that is gone.",
        "wait-state-wrong": "A wait has what its state does not have, or lacks what it has.",
        "wait-outlived-its-turn": "A wait is pending and its turn is over; its key should open nothing.",
    }
)
_HOLDINGS = _errors(
    {
        "document-missing": "A session's present config, catalog or metadata is gone.",
        "document-ahead": "A document is newer than the session knows.",
        "document-superseded-wrong": "A present document counts as superseded, or an old one does not.",
        "usage-without-commit": "Usage was counted for a commit that is not there.",
        "usage-gap": "An entry of the usage ledger is missing.",
        "usage-wrong": "An entry of the usage ledger cannot be true.",
        "state-part-orphaned": "A state part belongs to a set that no commit began.",
        "debt-without-commit": "A debt does not belong to the commit that it names.",
        "debt-state-wrong": "A debt is owed and settled, or neither.",
        "debt-item-missing": "A debt counts as delivered and the receiver does not have it.",
        "debt-item-wrong": "An item pays a debt that is still owed, or under the wrong id; it may be paid twice.",
        "blob-missing": "A blob that is referred to is gone.",
        "blob-hash-wrong": "A blob's bytes are not those that it is named after.",
        "blob-refs-wrong": "A node, item or debt does not hold on to the blobs that it names: a vacuum may take them.",
        "blob-ref-orphaned": "A reference to a blob belongs to nothing; the blob is kept for ever.",
    }
)
_NOTES = {
    "blob-unused": Code("note", "Nothing refers to the blob. A vacuum takes it."),
    "nodes-unreachable": Code("note", "A deleted session's nodes are reached by no living one. A vacuum takes them."),
}

CODES: Mapping[str, Code] = _ROWS | _SESSIONS | _HISTORY | _WORK | _HOLDINGS | _NOTES
