"""The write-ahead log of a SQLite file: when to fold it into the file, and how.

SQLite would do it by itself, after a commit, on whichever connection made the log too long; ``wal_autocheckpoint=0``
keeps it from that. Here the writer does it, behind the gate and after its callers have their answers.

How long the log is, only its own frames tell: the file is not cut when the log starts anew, and each pass through it
writes other salts into its frames. One look at the frame at the mark says whether this pass has come that far. The file
is read beside SQLite, which never locks it.

A checkpoint cannot go past what somebody still reads. The first try does not wait for readers; later ones do, for a
moment, during which nobody writes and so nobody new gets in the way. If that does not help, somebody reads without an
end. Then the log grows, and is tried again each time that it has grown by a quarter.
"""

from __future__ import annotations

import logging
import os
import sqlite3
from pathlib import Path

STEP = 1000
"""Frames (pages) after which the log is folded in."""
LARGE = 16 * 1024 * 1024
"""Bytes after which the file of the log is cut. It is left at its size otherwise: to write it again is faster than to
let it grow."""
ALARMING = 64 * 1024 * 1024
PATIENCE = 0.1
"""Seconds to wait for readers, with everybody's writes waiting too."""
_HEADER, _FRAME_HEADER = 32, 24
_log = logging.getLogger("lash.store")


class Wal:
    """The log as one writer sees it. Used on the writer's thread, inside the gate."""

    def __init__(self, database: Path) -> None:
        self._path = Path(f"{database}-wal")
        self._fd = -1
        self._salts = b""
        self._mark = STEP
        self._alarm = ALARMING

    def is_due(self) -> bool:
        """Whether the log has grown past the mark."""
        try:
            return self._reaches_mark()
        except OSError:  # the batch has landed all the same; what ails the file, SQLite will say
            return False

    def _reaches_mark(self) -> bool:
        if self._fd < 0:
            self._fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        header = os.pread(self._fd, _HEADER, 0)
        page, salts = int.from_bytes(header[8:12], "big"), header[16:24]
        if salts != self._salts:
            self._salts, self._mark, self._alarm = salts, STEP, ALARMING
        last = _HEADER + (self._mark - 1) * (_FRAME_HEADER + page)
        return bool(salts) and os.pread(self._fd, 8, last + 8) == salts

    def fold(self, driver: sqlite3.Connection) -> None:
        """Write what the log holds into the database, as far as readers allow; the next write then starts it anew."""
        size = self._size()
        patience = PATIENCE if self._mark > STEP or size > LARGE else 0.0
        [[usual]] = driver.execute("PRAGMA busy_timeout").fetchall()
        driver.execute(f"PRAGMA busy_timeout={round(patience * 1000)}")
        try:
            # Not PASSIVE: the others lock out writers before they look, so that even a program which knows of no gate
            # cannot start the log anew meanwhile.
            kind = "TRUNCATE" if size > LARGE else "RESTART"
            [[blocked, frames, _]] = driver.execute(f"PRAGMA wal_checkpoint({kind})").fetchall()
        finally:
            driver.execute(f"PRAGMA busy_timeout={usual}")
        self._mark = max(frames + STEP, frames * 5 // 4) if blocked else STEP
        if blocked and size > self._alarm:
            self._alarm = 2 * size
            _log.warning(
                "the log %s has grown to %d MiB, because something still reads an old state of the database; "
                "look for a program that keeps a transaction open",
                self._path,
                size // 2**20,
            )

    @property
    def exists(self) -> bool:
        return self._path.exists()

    def _size(self) -> int:
        try:
            return os.stat(self._path).st_size
        except FileNotFoundError:
            return 0

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
