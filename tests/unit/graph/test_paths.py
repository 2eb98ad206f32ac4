"""Paths as segments, on trees small enough to draw."""

from __future__ import annotations

import pytest

from lash.errors import CorruptGraph
from lash.graph.graph import Branch, Place, Segment, on_path, segments

S, F = 1, 2
"""A session and its fork, as a store numbers them."""

# S branch 0:  0 - 1 - 2 - 3 - 4
#                  |   └ F branch 0:  3 - 4 - 5
#                  └ S branch 1:  2 - 3
# S branch 2:  0 - 1                                (a reset)
BRANCHES = {
    (S, 0): Branch(S, 0, None),
    (S, 1): Branch(S, 1, Place(S, 0, 1)),
    (S, 2): Branch(S, 2, None),
    (F, 0): Branch(F, 0, Place(S, 0, 2)),
}


def branch_at(place: Place) -> Branch:
    return BRANCHES[place.origin, place.branch]


@pytest.mark.parametrize(
    ("leaf", "path"),
    [
        (Place(S, 0, 0), [Segment(S, 0, 0, 0)]),
        (Place(S, 0, 4), [Segment(S, 0, 0, 4)]),
        (Place(S, 1, 3), [Segment(S, 0, 0, 1), Segment(S, 1, 2, 3)]),
        (Place(S, 1, 1), [Segment(S, 0, 0, 1)]),
        (Place(S, 1, 0), [Segment(S, 0, 0, 0)]),
        (Place(S, 2, 1), [Segment(S, 2, 0, 1)]),
        (Place(F, 0, 5), [Segment(S, 0, 0, 2), Segment(F, 0, 3, 5)]),
        (Place(F, 0, 2), [Segment(S, 0, 0, 2)]),
    ],
)
def test_the_path_to_a_leaf_is_a_run_of_depths_on_each_branch_it_crosses(leaf: Place, path: list[Segment]) -> None:
    assert segments(leaf, branch_at) == path


@pytest.mark.parametrize(
    ("down_to", "path"),
    [
        (1, [Segment(S, 0, 1, 2), Segment(F, 0, 3, 5)]),
        (2, [Segment(S, 0, 2, 2), Segment(F, 0, 3, 5)]),
        (3, [Segment(F, 0, 3, 5)]),
        (5, [Segment(F, 0, 5, 5)]),
        (6, []),
    ],
)
def test_a_path_can_stop_where_the_frame_began(down_to: int, path: list[Segment]) -> None:
    assert segments(Place(F, 0, 5), branch_at, down_to=down_to) == path


def test_only_the_branches_that_are_needed_are_looked_up() -> None:
    asked: list[Place] = []

    def watched(place: Place) -> Branch:
        asked.append(place)
        return branch_at(place)

    segments(Place(F, 0, 5), watched, down_to=3)
    assert asked == [Place(F, 0, 5)]


@pytest.mark.parametrize(
    ("place", "found"),
    [
        (Place(S, 0, 0), True),
        (Place(S, 0, 2), True),
        (Place(S, 0, 3), False),
        (Place(S, 1, 2), False),
        (Place(S, 2, 0), False),
        (Place(F, 0, 3), True),
        (Place(F, 0, 5), True),
        (Place(F, 0, 6), False),
        (Place(F, 1, 4), False),
    ],
)
def test_a_node_is_on_the_path_only_on_the_branch_and_depth_that_the_path_runs_through(
    place: Place, found: bool
) -> None:
    assert on_path([Segment(S, 0, 0, 2), Segment(F, 0, 3, 5)], place) is found


def test_branches_that_grew_from_each_other_are_corruption() -> None:
    ring = {0: Branch(S, 0, Place(S, 1, 5)), 1: Branch(S, 1, Place(S, 0, 5))}
    steps = iter(range(100))

    def branch_of_ring(place: Place) -> Branch:
        assert next(steps, None) is not None, "it would go on for ever"
        return ring[place.branch]

    with pytest.raises(CorruptGraph):
        segments(Place(S, 0, 5), branch_of_ring)
