"""Growth and paths, against a model that knows nothing but parents."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lash.errors import InvalidDelta
from lash.graph.delta import chain, check_append
from lash.graph.graph import Branch, Place, on_path, segments
from lash.graph.nodes import FrameOpened, Node, Payload
from lash.graph.session import Head
from lash.ids import NodeId, OperationId, SessionUid

from .values import frames, hundred_examples, payloads

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SESSION = SessionUid("5" * 32)


def operation(number: int) -> OperationId:
    return OperationId(f"{number:032x}")


def head_after(head: Head, nodes: tuple[Node, ...]) -> Head:
    last = nodes[-1]
    return Head(head.revision + 1, last.id, last.depth, last.frame)


def resets(payload: Payload) -> bool:
    return isinstance(payload, FrameOpened) and payload.reason == "reset"


appends = st.lists(payloads, min_size=1, max_size=3)
histories = st.builds(
    lambda first, rest, later: [[first, *rest], *later],
    frames,
    st.lists(payloads, max_size=2),
    st.lists(appends, max_size=3),
)
"""What a session says in each of its commits; the first begins with a frame."""


@hundred_examples
@given(histories)
def test_what_chain_makes_check_append_accepts_and_both_agree_on_new_roots(history: list[list[Payload]]) -> None:
    head = Head()
    for number, said in enumerate(history):
        nodes = chain(SESSION, operation(number), said, after=head, at=NOW).nodes
        new_root = check_append(SESSION, operation(number), nodes, head)
        assert new_root == (number > 0 and resets(said[0]))
        assert [node.payload for node in nodes] == said
        head = head_after(head, nodes)


@hundred_examples
@given(histories)
def test_depth_and_frame_are_what_counting_parents_gives(history: list[list[Payload]]) -> None:
    known: dict[NodeId, Node] = {}
    head = Head()
    for number, said in enumerate(history):
        nodes = chain(SESSION, operation(number), said, after=head, at=NOW).nodes
        known |= {node.id: node for node in nodes}
        head = head_after(head, nodes)
    for node in known.values():
        path = [node]
        while path[-1].parent is not None:
            path.append(known[path[-1].parent])
        assert node.depth == len(path) - 1
        opened = next(step for step in path if step.opens_frame)
        assert node.frame == opened.depth


def _other_id(node: Node) -> Node:
    return replace(node, id=NodeId(f"{node.id}0"))


def _other_parent(node: Node) -> Node:
    return replace(node, parent=NodeId(f"{node.parent}0"))


def _no_parent(node: Node) -> Node:
    return replace(node, parent=None)


def _deeper(node: Node) -> Node:
    return replace(node, depth=node.depth + 1)


def _other_frame(node: Node) -> Node:
    return replace(node, frame=node.frame - 1)


@hundred_examples
@given(
    appends.filter(lambda said: not resets(said[0])),
    st.sampled_from([_other_id, _other_parent, _no_parent, _deeper, _other_frame]),
    st.data(),
)
def test_one_fault_anywhere_in_an_append_is_refused(
    said: list[Payload], spoil: Callable[[Node], Node], data: st.DataObject
) -> None:
    head = Head(3, NodeId(f"{SESSION}-{operation(99)}-0"), 9, 6)
    nodes = list(chain(SESSION, operation(1), said, after=head, at=NOW).nodes)
    place = data.draw(st.integers(0, len(nodes) - 1))
    nodes[place] = spoil(nodes[place])
    with pytest.raises(InvalidDelta):
        check_append(SESSION, operation(1), nodes, head)


# -- paths -------------------------------------------------------------------------------------------------------------


@dataclass
class Growing:
    """One session of the model: its current branch, how many it had, and its leaf."""

    origin: int
    branch: int = 0
    branches: int = 1
    leaf: Place | None = None
    deepest: int = -1


@dataclass
class Tree:
    """Sessions that grow, rewind, reset and fork. ``parents`` is the truth; ``rows`` is what a store keeps."""

    parents: dict[Place, Place | None] = field(default_factory=dict)
    rows: dict[tuple[int, int], Branch] = field(default_factory=lambda: {(0, 0): Branch(0, 0, None)})
    sessions: list[Growing] = field(default_factory=lambda: [Growing(0)])

    def append(self, session: Growing, count: int) -> None:
        for _ in range(count):
            session.deepest += 1
            place = Place(session.origin, session.branch, session.deepest)
            assert place not in self.parents
            self.parents[place] = session.leaf
            session.leaf = place

    def begin_branch(self, session: Growing, grew_from: Place | None) -> None:
        session.branch, session.branches = session.branches, session.branches + 1
        self.rows[session.origin, session.branch] = Branch(session.origin, session.branch, grew_from)

    def rewind(self, session: Growing, to: Place, named: Place) -> None:
        self.begin_branch(session, named)
        session.leaf, session.deepest = to, to.depth

    def reset(self, session: Growing, count: int) -> None:
        self.begin_branch(session, None)
        session.leaf, session.deepest = None, -1
        self.append(session, count)

    def fork(self, at: Place, named: Place) -> None:
        origin = len(self.sessions)
        self.rows[origin, 0] = Branch(origin, 0, named)
        self.sessions.append(Growing(origin, leaf=at, deepest=at.depth))

    def ancestors(self, place: Place) -> list[Place]:
        """The path from the root, found by going from parent to parent."""
        path: list[Place] = []
        step: Place | None = place
        while step is not None:
            path.append(step)
            step = self.parents[step]
        return path[::-1]


def alias(session: Growing) -> Place:
    """The leaf as the session's row may name it: on the session's current branch, even before anything grew there."""
    assert session.leaf is not None
    return Place(session.origin, session.branch, session.leaf.depth)


@st.composite
def trees(draw: st.DrawFn) -> Tree:
    tree = Tree()
    tree.append(tree.sessions[0], draw(st.integers(1, 4)))
    for _ in range(draw(st.integers(0, 12))):
        session = draw(st.sampled_from(tree.sessions))
        assert session.leaf is not None
        to = draw(st.sampled_from(tree.ancestors(session.leaf)))
        named = alias(session) if to == session.leaf and draw(st.booleans()) else to
        match draw(st.sampled_from(["append", "append", "rewind", "reset", "fork"])):
            case "append":
                tree.append(session, draw(st.integers(1, 4)))
            case "rewind":
                tree.rewind(session, to, named)
            case "reset":
                tree.reset(session, draw(st.integers(1, 3)))
            case "fork":
                tree.fork(to, named)
    return tree


@hundred_examples
@given(trees())
def test_the_segments_of_a_path_are_what_following_parents_gives(tree: Tree) -> None:
    for session in tree.sessions:
        assert session.leaf is not None
        expected = tree.ancestors(session.leaf)
        for leaf in (session.leaf, alias(session)):
            for down_to in range(len(expected) + 1):
                path = segments(leaf, lambda place: tree.rows[place.origin, place.branch], down_to=down_to)
                found = [Place(s.origin, s.branch, depth) for s in path for depth in range(s.first, s.last + 1)]
                assert found == expected[down_to:]


@hundred_examples
@given(trees())
def test_a_path_has_no_empty_segment_and_no_two_that_could_be_one(tree: Tree) -> None:
    for session in tree.sessions:
        assert session.leaf is not None
        path = segments(session.leaf, lambda place: tree.rows[place.origin, place.branch])
        assert all(segment.first <= segment.last for segment in path)
        assert len({(segment.origin, segment.branch) for segment in path}) == len(path)


@hundred_examples
@given(trees())
def test_a_node_is_on_the_path_exactly_when_it_is_an_ancestor_of_the_leaf(tree: Tree) -> None:
    for session in tree.sessions:
        assert session.leaf is not None
        path = segments(session.leaf, lambda place: tree.rows[place.origin, place.branch])
        ancestors = set(tree.ancestors(session.leaf))
        for place in tree.parents:
            assert on_path(path, place) == (place in ancestors)
