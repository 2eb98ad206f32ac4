"""Explicit retention: what ended long enough ago, and nothing needs any more, is removed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields
from datetime import datetime
from typing import TypeVar

from lash.graph.parts import blobs_of
from lash.graph.session import DocumentKind
from lash.ids import BlobHash, NodeId, SessionUid, split_node_id
from lash.inbox.items import Message
from lash.store.checks import check_cutoff
from lash.store.contract import Vacuumed
from lash.store.memory.data import DocumentRow, MemoryData, SessionRows
from lash.store.memory.graph import walk
from lash.store.memory.handle import Handle

K = TypeVar("K")
V = TypeVar("V")


class MemoryMaintenance(Handle):
    async def vacuum(self, *, before: datetime, dry_run: bool = False) -> Vacuumed:
        check_cutoff(before)
        draft = self.data.draft()
        report = _sweep(draft, before, self.now())
        if not dry_run:
            for f in fields(draft):
                setattr(self.data, f.name, getattr(draft, f.name))
        return report


def _sweep(data: MemoryData, before: datetime, now: datetime) -> Vacuumed:
    """Remove from ``data`` and count. Blobs come last: what the other rows let go of is unused by then."""

    def ended(at: datetime | None) -> bool:
        return at is not None and at < before

    sessions = list(data.sessions.values())
    return Vacuumed(
        items=sum(_drop(rows.items, lambda _, item: item.terminal and ended(item.settled_at)) for rows in sessions),
        turns=sum(_drop_turns(rows, ended) for rows in sessions),
        waits=sum(_drop_waits(rows, ended, now) for rows in sessions),
        outbox=_drop(data.outbox, lambda _, row: ended(row.settled_at)),
        documents=sum(_drop_documents(rows, ended) for rows in sessions),
        nodes=_drop_nodes(data, ended),
        commits=_drop_commits(data, ended),
        blobs=_drop_blobs(data, ended),
    )


def _drop(table: dict[K, V], doomed: Callable[[K, V], bool]) -> int:
    gone = [key for key, row in table.items() if doomed(key, row)]
    for key in gone:
        del table[key]
    return len(gone)


Ended = Callable[[datetime | None], bool]


def _drop_turns(rows: SessionRows, ended: Ended) -> int:
    count = _drop(rows.turns, lambda _, turn: ended(turn.settled_at))
    _drop(rows.cancel_requests, lambda turn, _: turn not in rows.turns)
    return count


def _drop_waits(rows: SessionRows, ended: Ended, now: datetime) -> int:
    """A settled wait goes, unless the session has an unsettled turn, which may have yet to read the answer."""
    if rows.unsettled is not None:
        return 0
    return _drop(rows.waits, lambda _, wait: ended(wait.as_of(now).settled_at))


def _drop_documents(rows: SessionRows, ended: Ended) -> int:
    pinned: set[tuple[DocumentKind, int]] = set()
    if (turn := rows.unsettled) is not None:
        pinned = {("config", turn.config_revision), ("catalog", turn.catalog_revision)}

    def doomed(place: tuple[DocumentKind, int], row: DocumentRow) -> bool:
        return ended(row.superseded_at) and place not in pinned

    return _drop(rows.documents, doomed)


def _drop_nodes(data: MemoryData, ended: Ended) -> int:
    """Nodes of deleted sessions go, except those at or above a point that a session was forked from which is living, or
    was deleted too lately to be swept itself."""
    points = [rows.session.forked_from for rows in data.sessions.values()]
    points += [stone.forked_from for stone in data.deleted.values() if not ended(stone.deleted_at)]
    shared = {node.id for point in points for node in walk(data, point)}

    def doomed(node: NodeId) -> bool:
        place = split_node_id(node)
        return place is not None and _gone(data, place[0], ended) and node not in shared

    return _drop(data.nodes, lambda node, _: doomed(node))


def _drop_commits(data: MemoryData, ended: Ended) -> int:
    """A commit of a deleted session stays as long as its nodes: rewinds and forks need its state parts."""
    alive = {place[:2] for node in data.nodes if (place := split_node_id(node)) is not None}
    return _drop(data.commits, lambda place, _: _gone(data, place[0], ended) and place not in alive)


def _gone(data: MemoryData, session: SessionUid, ended: Ended) -> bool:
    stone = data.deleted.get(session)
    return stone is not None and ended(stone.deleted_at)


def _drop_blobs(data: MemoryData, ended: Ended) -> int:
    used = set(_used_blobs(data))
    return _drop(data.blobs, lambda blob, row: ended(row.put_at) and blob not in used)


def _used_blobs(data: MemoryData) -> Iterator[BlobHash]:
    for node in data.nodes.values():
        yield from node.blobs
    for commit in data.commits.values():
        yield from commit.parts.values()
    bodies = [row.debt.owed.body for row in data.outbox.values()]
    for rows in data.sessions.values():
        yield from (*rows.parts.values(), *rows.first_parts.values())
        bodies += [item.body for item in rows.items.values()]
    for body in bodies:
        if isinstance(body, Message):
            yield from blobs_of(body.parts)
