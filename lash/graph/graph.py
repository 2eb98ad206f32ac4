"""The tree as ranges: how a path is found without loading the graph.

Within a session every rewind and every reset starts a new *branch* number. A branch says from which node it grew, so
the path from a leaf to its root is a short list of segments, each a run of depths on one branch of one origin. A fork's
first branch grows from a node of another session; nothing is copied.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lash.errors import CorruptGraph


@dataclass(frozen=True, slots=True)
class Place:
    """Where a node is kept: on which branch of which origin, and how deep. Origins are numbered by the store."""

    origin: int
    branch: int
    depth: int


@dataclass(frozen=True, slots=True)
class Branch:
    """``grew_from`` is the last shared node; None on a branch that begins at a root."""

    origin: int
    number: int
    grew_from: Place | None


@dataclass(frozen=True, slots=True)
class Segment:
    """Depths ``first`` to ``last`` of one branch, both included."""

    origin: int
    branch: int
    first: int
    last: int


def segments(leaf: Place, branch_at: Callable[[Place], Branch], *, down_to: int = 0) -> list[Segment]:
    """The path from ``leaf`` to the depth ``down_to``, root first."""
    found: list[Segment] = []
    crossed: set[tuple[int, int]] = set()
    place: Place | None = leaf
    while place is not None and place.depth >= down_to:
        if (place.origin, place.branch) in crossed:
            raise CorruptGraph(f"branch {place.branch} of session number {place.origin} grew from itself")
        crossed.add((place.origin, place.branch))
        branch = branch_at(place)
        grew_from = branch.grew_from
        if grew_from is not None and grew_from.depth >= place.depth:
            place = Place(grew_from.origin, grew_from.branch, place.depth)
            continue
        starts_at = 0 if grew_from is None else grew_from.depth + 1
        found.append(Segment(place.origin, place.branch, max(starts_at, down_to), place.depth))
        place = grew_from
    found.reverse()
    return found


def on_path(path: list[Segment], place: Place) -> bool:
    return any(s.origin == place.origin and s.branch == place.branch and s.first <= place.depth <= s.last for s in path)
