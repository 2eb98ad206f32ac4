"""The gate: all writes and WAL checkpoints of all processes on one SQLite file pass it, one at a time, in order.

SQLite has a lock for writers, and it stays the one that keeps the file safe. But it knows no order: a process that
writes without a pause takes it again and again before a sleeping one has looked. And releases of SQLite before 3.51.3
can lose pages when one connection starts the log anew while another checkpoints it. Behind a gate neither can happen.

The gate is a file beside the database, locked with ``flock`` while somebody is inside. Who finds it locked, or finds
others waiting, writes itself into the file: an entry with the time and its own name. Nobody enters before those with an
earlier time. So while one waits, each of the others enters at most once more.

An entry proves no life: it may be of a process that was killed or stopped while it waited. The lock is never handed to
anybody; who is first in line takes it by itself. If the gate stands open for a moment and the first in line does not
come, the next one strikes it out. Who wakes up later finds itself struck out and writes itself in again, at its old
place.
"""

from __future__ import annotations

import contextlib
import os
import random
import struct
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from lash.errors import StoreLocked
from lash.store.sql.beside import LockFile

BATCHES_WHILE_ANOTHER_WAITS = 1
"""How often each other may enter while one stands in line."""
MOMENT = 0.05
"""Seconds for which the gate may stand open before the first in line is taken for dead or stopped."""
MAX_LINE = 64
"""How many can stand in line. More wait all the same, without a place."""
_PROBE = 0.01
"""Seconds between two looks at whether the gate stands open for somebody else."""
_AT_THE_FRONT, _BEHIND = 0.0002, 0.0005
"""Seconds between two looks of the first in line; of the others, times their place."""
_LONG, _SELDOM = 1.0, 0.005
"""Who waits for so long looks less often."""
_ENTRY = struct.Struct("<QQ")
_LENGTH = _ENTRY.size * MAX_LINE


class Entry(NamedTuple):
    """Somebody in line: since when, in nanoseconds of the clock that all processes share, and who."""

    since: int
    who: int


@dataclass(slots=True)
class _Suspicion:
    """Whether the first in line comes when it could."""

    of: Entry | None = None
    next_probe: float = 0.0
    open_since: float | None = None

    def turn_to(self, first: Entry, now: float) -> None:
        if first != self.of:
            self.of, self.next_probe, self.open_since = first, now + _PROBE, None


@dataclass(slots=True)
class Gate:
    """One way in. Threads may share it and exclude each other, but only who has a gate of its own has a place in line.

    ``database`` is the real path of the file, ``where`` names it to the user.
    """

    database: Path
    where: str
    _file: LockFile | None = None
    _threads: threading.Lock = field(default_factory=threading.Lock)
    _who: int = field(default_factory=lambda: random.SystemRandom().randrange(1, 2**64))

    @property
    def stands(self) -> bool:
        """Whether somebody has made it. A store that has the file open has."""
        return self._path.exists()

    @property
    def _path(self) -> Path:
        return Path(f"{self.database}-gate")

    @contextlib.contextmanager
    def passed(self, patience: float) -> Iterator[None]:
        """Be inside, alone. Raises StoreLocked after ``patience`` seconds of waiting."""
        self.enter(patience)
        try:
            yield
        finally:
            self.leave()

    def enter(self, patience: float) -> None:
        give_up_at = time.monotonic() + patience
        if not self._threads.acquire(timeout=patience):
            raise self._locked()
        try:
            if self._read_line().strip(b"\0") or not self._try():
                self._stand_in_line(give_up_at)
        except BaseException:
            self._threads.release()
            raise

    def leave(self) -> None:
        self._opened().unlock()
        self._threads.release()

    def remove(self) -> None:
        """Take the file away. Only who is inside may: the others find out, and make a new one."""
        self._opened().path.unlink(missing_ok=True)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _locked(self) -> StoreLocked:
        return StoreLocked(f"{self.where} is locked by another process that does not go on; wake it up, or end it")

    def _opened(self) -> LockFile:
        if self._file is None or self._file.fd < 0:
            self._file = LockFile(self._path, self.database)
        return self._file

    def _try(self) -> bool:
        file = self._opened()
        if not file.try_lock():
            return False
        if file.in_place:
            return True
        self.close()  # somebody removed it; a new one lies there, or will
        return False

    # -- the line ------------------------------------------------------------------------------------------------------

    def _stand_in_line(self, give_up_at: float) -> None:
        me = Entry(time.monotonic_ns(), self._who)
        suspicion = _Suspicion()
        began = time.monotonic()
        try:
            while True:
                line = self._line()
                if me not in line:
                    self._write_in(me)
                ahead = sorted(entry for entry in line if entry < me)
                if self._opened().writable and ahead:
                    self._probe(ahead[0], suspicion)
                elif self._try():
                    self._strike_out(entry for entry in line if entry.since > time.monotonic_ns())
                    return
                now = time.monotonic()
                if now >= give_up_at:
                    raise self._locked()
                self._pause(len(ahead), waited=now - began)
        finally:
            self._strike_out([me])

    def _pause(self, ahead: int, *, waited: float) -> None:
        time.sleep(_SELDOM if waited > _LONG else min(_BEHIND * ahead or _AT_THE_FRONT, _SELDOM))

    def _probe(self, first: Entry, suspicion: _Suspicion) -> None:
        """Strike out the first in line if the gate has been open for a moment and it did not come."""
        now = time.monotonic()
        suspicion.turn_to(first, now)
        if now < suspicion.next_probe:
            return
        suspicion.next_probe = now + _PROBE
        if not self._try():
            suspicion.open_since = None
            return
        if suspicion.open_since is None:
            suspicion.open_since = now
        elif now - suspicion.open_since >= MOMENT:
            self._strike_out([first])
        self._opened().unlock()

    def _read_line(self) -> bytes:
        return os.pread(self._opened().fd, _LENGTH, 0)

    def _line(self) -> list[Entry]:
        return [entry for entry in self._places() if entry.since]

    def _places(self) -> list[Entry]:
        return [Entry(*fields) for fields in _ENTRY.iter_unpack(self._read_line().ljust(_LENGTH, b"\0"))]

    def _write_in(self, me: Entry) -> None:
        """At any free place. Two who choose the same one notice when they look again."""
        free = [place for place, entry in enumerate(self._places()) if not entry.since]
        if free and self._opened().writable:
            os.pwrite(self._opened().fd, _ENTRY.pack(*me), random.choice(free) * _ENTRY.size)  # noqa: S311

    def _strike_out(self, entries: Iterator[Entry] | list[Entry]) -> None:
        unwanted = set(entries)
        if unwanted and self._opened().writable:
            for place, entry in enumerate(self._places()):
                if entry in unwanted:
                    os.pwrite(self._opened().fd, _ENTRY.pack(0, 0), place * _ENTRY.size)
