"""Where callers wait until there is room in line for their writes.

There is room for so much in all, and whoever comes first gets it. Each session has a share of that: who comes when the
share is used up waits behind the others of its session, and keeps nobody else waiting. So a session that is held, or
that is written to faster than it can be settled, does not fill the line.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

from lash.ids import SessionUid
from lash.store.line import MAX_BATCH_BYTES, Submitted

MAX_OF_SESSION = 64
MAX_BYTES_OF_SESSION = MAX_BATCH_BYTES
"""How much of one session may be in line. One write is always let in, however large."""

_Queue = OrderedDict[Submitted, None]
"""In the order of coming. Anybody may leave it at any time, which a list would have to search for."""


@dataclass(slots=True)
class _Share:
    writes: int = 0
    bytes: int = 0

    def has_room(self, size: int) -> bool:
        return not self.writes or (self.writes < MAX_OF_SESSION and self.bytes + size <= MAX_BYTES_OF_SESSION)


class Entrance:
    def __init__(self) -> None:
        self._next: _Queue = OrderedDict()
        self._behind: dict[SessionUid, _Queue] = {}
        self._shares: dict[SessionUid, _Share] = {}
        self.waiting = 0

    @property
    def first(self) -> Submitted | None:
        """Who may join the line as soon as there is room for its write."""
        return next(iter(self._next), None)

    def come(self, one: Submitted) -> None:
        self.waiting += 1
        sessions = set(one.write.sessions)
        if sessions.isdisjoint(self._behind) and self._have_room(sessions, one):
            self._step_forward(one)
            return
        for uid in sessions:
            self._behind.setdefault(uid, OrderedDict())[one] = None

    def join_line(self) -> Submitted:
        """Let the first one through. Its share is used until it is done."""
        self.waiting -= 1
        return self._next.popitem(last=False)[0]

    def done(self, one: Submitted) -> None:
        """It has left the line."""
        for uid in set(one.write.sessions):
            share = self._shares[uid]
            share.writes -= 1
            share.bytes -= one.write.size
            if not share.writes:
                del self._shares[uid]
        self._move_up(one.write.sessions)

    def give_up(self, one: Submitted) -> bool:
        """It waits no longer. False for one that does not wait here: who is in line stays there."""
        if one in self._next:
            del self._next[one]
            self.done(one)
        elif any(one in self._behind.get(uid, ()) for uid in one.write.sessions):
            self._leave_queues(one)
            self._move_up(one.write.sessions)
        else:
            return False
        self.waiting -= 1
        return True

    def everyone(self) -> list[Submitted]:
        return [*self._next, *{one: None for queue in self._behind.values() for one in queue}]

    def behind(self, sessions: Iterable[SessionUid]) -> list[Submitted]:
        """Those that wait until one of these sessions has less in line."""
        return [*{one: None for uid in sessions for one in self._behind.get(uid, ())}]

    def _move_up(self, sessions: Iterable[SessionUid]) -> None:
        """Whoever is first of all its sessions steps forward, if they have room for it."""
        changed = [*sessions]
        while changed:
            queue = self._behind.get(changed.pop())
            if queue is None:
                continue
            one = next(iter(queue))
            mine = set(one.write.sessions)
            if self._have_room(mine, one) and all(next(iter(self._behind[uid])) is one for uid in mine):
                self._leave_queues(one)
                self._step_forward(one)
                changed += mine

    def _leave_queues(self, one: Submitted) -> None:
        for uid in set(one.write.sessions):
            del self._behind[uid][one]
            if not self._behind[uid]:
                del self._behind[uid]

    def _have_room(self, sessions: Iterable[SessionUid], one: Submitted) -> bool:
        return all(self._shares[uid].has_room(one.write.size) for uid in sessions if uid in self._shares)

    def _step_forward(self, one: Submitted) -> None:
        self._next[one] = None
        for uid in set(one.write.sessions):
            share = self._shares.setdefault(uid, _Share())
            share.writes += 1
            share.bytes += one.write.size
