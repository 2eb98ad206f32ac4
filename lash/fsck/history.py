"""Commits, branches, nodes and the head: a session's history is walked from its first commit to its last.

Branch numbers are revisions, and a session never goes back to an older branch, so commits in order of revision meet
their nodes in order of (branch, depth): both tables are read once, side by side.

A living session's history is whole, and where it leads is its head. Of a deleted one a vacuum may have left only what
others grew from, so only what is there is checked.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from lash.fsck import tables
from lash.fsck.bodies import blobs_in, node_payload
from lash.fsck.decoding import Digest, Malformed
from lash.fsck.hashes import Evidence, Verifier
from lash.fsck.reading import Reader
from lash.fsck.tables import Row

_AT = (
    "SELECT n.frame, n.revision, c.operation, c.first_depth, c.nodes, c.state_set, s.uid"
    " FROM lash_nodes n JOIN lash_sessions s ON s.id = n.session"
    " LEFT JOIN lash_commits c ON c.session = n.session AND c.revision = n.revision"
    " WHERE n.session = :session AND n.branch = :branch AND n.depth = :depth"
)


@dataclass(frozen=True, slots=True)
class Point:
    """A node that something grew from."""

    id: str
    depth: int
    frame: int
    boundary: bool
    """Whether it is the last node of its commit."""
    state_set: int | None
    """The set of its commit, when that is one of the session that asks."""


@dataclass(frozen=True, slots=True)
class Head:
    """Where the walk stands."""

    revision: int = 0
    seq: int = 0
    leaf: str | None = None
    depth: int = -1
    frame: int = -1
    branch: int = 0
    state_set: int = 0


@dataclass(slots=True)
class NodeWalk:
    """The nodes of a session, one by one, with what is known of the one before."""

    nodes: Iterator[tuple[Row, frozenset[str]]]
    next: tuple[Row, frozenset[str]] | None = None
    branch: int = -1
    depth: int = -1
    frame: int | None = None
    """None where the node before it is not known."""

    def advance(self) -> None:
        self.next = next(self.nodes, None)


@dataclass(slots=True)
class SessionHistory:
    """One session's walk."""

    reader: Reader
    verifier: Verifier
    session: Row
    branches: dict[int, Row]
    walk: NodeWalk
    begun: set[int] = field(default_factory=lambda: {0})
    points: dict[int, Point | None] = field(default_factory=dict)

    @property
    def living(self) -> bool:
        return bool(self.session["state"] == "live")

    def say(self, code: str, table: tables.Table, row: Row, expected: object, found: object) -> None:
        self.reader.findings.add(code, table.name, table.key_of(row), expected=expected, found=found)

    # -- the walk ------------------------------------------------------------------------------------------------------

    def check(self, commits: Iterator[Evidence]) -> None:
        self.walk.advance()
        for branch in self.branches.values():
            self._check_branch(branch)
        head = self._start()
        for evidence in commits:
            head = self._follow(head, evidence) if self.living else head
            self._check_nodes(evidence)
            if self.living:
                head = replace(head, frame=self._frame_after(head, evidence.commit))
        while self.walk.next is not None:
            self._check_node(orphaned=True)
        if self.living:
            self._check_begun()
            self._check_head(head)

    def _start(self) -> Head:
        """Where a session begins: empty, or at the node that it was forked from."""
        session, first = self.session, self.branches.get(0)
        point = self._point(0)
        if first is None or not self.living:
            return Head()
        derived = None if first["parent_session"] is None else (point.id if point else "a node")
        if session["forked_from"] != derived:
            self.say("fork-point-wrong", tables.sessions, session, derived, session["forked_from"])
        if point is None:
            return Head()
        return Head(leaf=point.id, depth=point.depth, frame=point.frame)

    def _follow(self, head: Head, evidence: Evidence) -> Head:
        """The head after a commit, as far as its row says."""
        commit = evidence.commit
        if commit["revision"] != head.revision + 1:
            self.say("commit-revision-gap", tables.commits, commit, head.revision + 1, commit["revision"])
        if not head.seq < commit["seq"] <= self.session["seq"]:
            expected = f"a seq from {head.seq + 1} to {self.session['seq']}"
            self.say("commit-seq-wrong", tables.commits, commit, expected, commit["seq"])
        begins = commit["branch"] == commit["revision"]
        if begins:
            self.begun.add(commit["branch"])
        elif commit["branch"] != head.branch:
            self.say("commit-branch-wrong", tables.commits, commit, head.branch, commit["branch"])
        after = self._appended(head, commit, begins) if commit["nodes"] else self._moved(head, commit, begins)
        self._check_state_set(head, after, commit)
        return replace(
            after,
            revision=commit["revision"],
            seq=commit["seq"],
            branch=commit["branch"],
            state_set=commit["state_set"],
        )

    def _appended(self, head: Head, commit: Row, begins: bool) -> Head:
        """A commit with nodes goes on from the leaf, or begins a new root on a branch of its own."""
        if begins and head.leaf is None:
            self.say("commit-branch-wrong", tables.commits, commit, head.branch, commit["branch"])
        first = 0 if begins else head.depth + 1
        if commit["first_depth"] != first:
            self.say("commit-first-depth-wrong", tables.commits, commit, first, commit["first_depth"])
        if commit["leaf"] is not None:
            self.say("commit-leaf-wrong", tables.commits, commit, "none: its last node is the leaf", commit["leaf"])
        grew_from = self.branches.get(commit["branch"])
        if begins and grew_from is not None and grew_from["parent_session"] is not None:
            self.say("branch-parent-wrong", tables.branches, grew_from, "no parent: a reset begins at a root", "one")
        leaf = f"{self.session['uid']}-{commit['operation']}-{commit['nodes'] - 1}"
        return replace(head, leaf=leaf, depth=commit["first_depth"] + commit["nodes"] - 1)

    def _moved(self, head: Head, commit: Row, begins: bool) -> Head:
        """A commit without nodes leaves the head where it is, or moves it to where its new branch grew from."""
        if commit["first_depth"] != 0:
            self.say("commit-first-depth-wrong", tables.commits, commit, 0, commit["first_depth"])
        after = head
        if begins:
            point = self._point(commit["branch"])
            grew_from = self.branches.get(commit["branch"])
            if grew_from is not None and grew_from["parent_session"] is None:
                self.say("branch-parent-wrong", tables.branches, grew_from, "the node that the head moved to", None)
            if point is None:
                return replace(head, leaf=commit["leaf"])
            after = replace(head, leaf=point.id, depth=point.depth, frame=point.frame)
        if commit["leaf"] != after.leaf:
            self.say("commit-leaf-wrong", tables.commits, commit, after.leaf, commit["leaf"])
        return after

    def _check_state_set(self, head: Head, after: Head, commit: Row) -> None:
        """A commit names a set of its own, or keeps the one that holds where it goes on from."""
        kept: int | None = head.state_set
        moved = not commit["nodes"] and commit["branch"] == commit["revision"]
        if moved and after.leaf != head.leaf:
            point = self._point(commit["branch"])
            kept = None if point is None else point.state_set
            if after.leaf == self.session["forked_from"]:
                kept = 0
        allowed = [number for number in (kept, commit["revision"]) if number is not None]
        if commit["state_set"] not in allowed:
            expected = " or ".join(map(str, allowed))
            self.say("commit-state-set-wrong", tables.commits, commit, expected, commit["state_set"])

    def _frame_after(self, head: Head, commit: Row) -> int:
        """The frame of the last node that was read, when the commit has nodes."""
        read = self.walk.branch == commit["branch"] and self.walk.depth == head.depth
        return self.walk.frame if commit["nodes"] and read and self.walk.frame is not None else head.frame

    def _check_head(self, head: Head) -> None:
        for column in ("revision", "leaf", "depth", "frame", "branch", "state_set"):
            found, expected = self.session[column], getattr(head, column)
            if found != expected:
                code = f"head-{column.replace('_', '-')}-wrong"
                self.say(code, tables.sessions, self.session, expected, found)

    # -- branches ------------------------------------------------------------------------------------------------------

    def _check_branch(self, branch: Row) -> None:
        if branch["parent_session"] is None:
            return
        place = (branch["parent_session"], branch["parent_branch"])
        if place >= (branch["session"], branch["branch"]):
            found = f"branch {place[1]} of session {place[0]}"
            self.say("branch-grew-from-itself", tables.branches, branch, "a branch that was there before", found)
            self.points[branch["branch"]] = None
            return
        point = self._point(branch["branch"])
        if point is None and self.living:
            parent = "session={parent_session} branch={parent_branch} depth={parent_depth}".format(**branch)
            self.say("branch-parent-missing", tables.branches, branch, f"the node {parent}", None)
        if point is not None and not point.boundary:
            self.say("branch-not-at-boundary", tables.branches, branch, "the last node of a commit", point.id)

    def _point(self, number: int) -> Point | None:
        """The node that a branch grew from; None when it begins at a root, or its parent is not there."""
        if number not in self.points:
            branch = self.branches.get(number)
            grown = branch is not None and branch["parent_session"] is not None
            self.points[number] = self._read_point(branch) if branch is not None and grown else None
        return self.points[number]

    def _read_point(self, branch: Row) -> Point | None:
        found = self.reader.ask(
            _AT, session=branch["parent_session"], branch=branch["parent_branch"], depth=branch["parent_depth"]
        )
        if not found:
            return None
        node, depth = found[0], int(branch["parent_depth"])
        if node.operation is None:
            return Point("a node that no commit wrote", depth, node.frame, False, None)
        ordinal = depth - node.first_depth
        own = branch["parent_session"] == branch["session"]
        return Point(
            id=f"{bytes(node.uid).hex()}-{bytes(node.operation).hex()}-{ordinal}",
            depth=depth,
            frame=node.frame,
            boundary=ordinal == node.nodes - 1,
            state_set=node.state_set if own else None,
        )

    def _check_begun(self) -> None:
        for number in sorted(self.begun - self.branches.keys()):
            row = {"session": self.session["id"], "branch": number}
            self.say("branch-missing", tables.branches, row, "a row: a commit began this branch", None)
        for number in sorted(self.branches.keys() - self.begun):
            self.say("branch-never-begun", tables.branches, self.branches[number], "a commit that began it", None)

    # -- nodes ---------------------------------------------------------------------------------------------------------

    def _check_nodes(self, evidence: Evidence) -> None:
        """The nodes of one commit; those that stand before them belong to none."""
        commit = evidence.commit
        digest = Digest("commit").add(commit["operation"])
        if not commit["nodes"]:
            moved = commit["branch"] == commit["revision"]
            digest.add(f"move {commit['leaf']}" if moved else "unchanged")
            self.verifier.check(self.session, evidence, digest)
            return
        digest.add(f"append {commit['nodes']}")
        first = (commit["branch"], commit["first_depth"])
        last = (commit["branch"], commit["first_depth"] + commit["nodes"] - 1)
        count = 0
        while self.walk.next is not None and (place := _place(self.walk.next[0])) <= last:
            node = self.walk.next[0]
            self._check_node(orphaned=place < first)
            if place < first:
                continue
            self._check_origin(node, commit)
            digest.add(f"{self.session['uid']}-{commit['operation']}-{count}", node["kind"], node["body"])
            count += 1
        if count == commit["nodes"]:
            self.verifier.check(self.session, evidence, digest)
        else:
            self.say("commit-nodes-missing", tables.commits, commit, f"{commit['nodes']} nodes", count)

    def _check_origin(self, node: Row, commit: Row) -> None:
        if node["revision"] != commit["revision"]:
            self.say("node-revision-wrong", tables.nodes, node, commit["revision"], node["revision"])
        if node["seq"] > commit["seq"]:
            self.say("node-seq-ahead", tables.nodes, node, f"at most its commit's {commit['seq']}", node["seq"])

    def _check_node(self, *, orphaned: bool) -> None:
        """The next node: its place after the one before it, its frame, its body and its blobs."""
        if self.walk.next is None:
            return
        node, held = self.walk.next
        if orphaned:
            self.say("node-without-commit", tables.nodes, node, "a commit that wrote it", None)
        frame = self._frame_before(node)
        try:
            payload = node_payload(node["kind"], node["body"])
        except Malformed as problem:
            self.say(problem.code, tables.nodes, node, problem.expected, problem.found)
        else:
            self._check_payload(node, payload, held)
        expected = node["depth"] if node["kind"] == "frame_opened" else frame
        if expected is not None and node["frame"] != expected:
            self.say("node-frame-wrong", tables.nodes, node, expected, node["frame"])
        self.walk.branch, self.walk.depth, self.walk.frame = node["branch"], node["depth"], node["frame"]
        self.walk.advance()

    def _frame_before(self, node: Row) -> int | None:
        """The frame of the node's parent; None when it has none, or it is not there."""
        if node["branch"] == self.walk.branch:
            if node["depth"] == self.walk.depth + 1:
                return self.walk.frame
            self.say("node-parent-missing", tables.nodes, node, f"a node at depth {node['depth'] - 1}", None)
            return None
        branch = self.branches.get(node["branch"])
        if branch is None:
            self.say("node-branch-missing", tables.nodes, node, f"a row for branch {node['branch']}", None)
            return None
        first = 0 if branch["parent_session"] is None else branch["parent_depth"] + 1
        if node["depth"] != first:
            self.say("node-parent-missing", tables.nodes, node, f"a first node at depth {first}", node["depth"])
            return None
        point = self._point(node["branch"])
        return None if point is None else point.frame

    def _check_payload(self, node: Row, payload: dict[str, Any], held: frozenset[str]) -> None:
        if node["depth"] == 0 and node["kind"] != "frame_opened":
            self.say("node-root-opens-no-frame", tables.nodes, node, "frame_opened", node["kind"])
        elif node["depth"] == 0 and node["branch"] and payload["reason"] != "reset":
            self.say("node-root-without-reset", tables.nodes, node, "the reason 'reset'", payload["reason"])
        if blobs_in(payload) != held:
            expected, found = sorted(blobs_in(payload)), sorted(held)
            self.say("blob-refs-wrong", tables.nodes, node, f"references to {expected}", found)


def _place(node: Row) -> tuple[int, int]:
    return node["branch"], node["depth"]
