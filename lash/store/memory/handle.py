"""An open handle on the data: how a session is found, and how its change becomes visible, all of it or nothing."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from typing import TypeVar

from lash.clock import Clock, SystemClock
from lash.errors import SessionDeleted, SessionNotFound, StoreClosed
from lash.ids import SessionUid
from lash.store.checks import check_limit, read_cursor
from lash.store.contract import Page
from lash.store.keeper import ThreadKeeper
from lash.store.memory.data import MemoryData, SessionRows
from lash.turn.record import causes, ready_at

T = TypeVar("T")


class Handle:
    """What the parts of a MemoryStore stand on. Each operation reaches the rows through ``data``, so that a closed
    handle refuses them all."""

    def __init__(self, *, clock: Clock | None = None, data: MemoryData | None = None) -> None:
        self._clock = clock or SystemClock()
        self._data = MemoryData() if data is None else data
        self._closed = False
        self.keepers: weakref.WeakSet[ThreadKeeper] = weakref.WeakSet()

    @property
    def data(self) -> MemoryData:
        if self._closed:
            raise StoreClosed("this store was closed; open it again")
        return self._data

    def now(self) -> datetime:
        return self._clock.now()

    def living(self, uid: SessionUid) -> SessionRows:
        if uid in self.data.deleted:
            raise SessionDeleted(uid)
        if uid not in self.data.sessions:
            raise SessionNotFound(uid)
        return self.data.sessions[uid]

    @contextmanager
    def changing(self, uid: SessionUid, now: datetime) -> Iterator[SessionRows]:
        """A copy of the session's rows to change. It takes their place at the end; an error drops it."""
        before = self.living(uid)
        rows = before.copy()
        yield rows
        if _causes(rows) != _causes(before):
            due = ready_at(rows.lease, rows.unsettled, rows.next_item_at, now)
            rows.session = replace(rows.session, ready_at=due)
        self.data.sessions[uid] = rows


def _causes(rows: SessionRows) -> tuple[object, ...]:
    return causes(rows.lease, rows.unsettled, rows.next_item_at)


def page(rows: Iterable[T], number: Callable[[T], int], *, after: str | None, limit: int) -> Page[T]:
    """The rows behind the one that ``after`` stands for. A cursor is a row's number in writing."""
    check_limit(limit)
    start = read_cursor(after)
    found = [row for row in rows if number(row) > start]
    shown = tuple(found[:limit])
    return Page(shown, str(number(shown[-1])) if len(found) > limit else None)
