"""Whether the process of an owner has died, for certain.

Each open store that takes leases has a file in a folder beside the database, locked for as long as the store is open.
In it are the owners under which it took them. A file that holds an owner and is not locked is of a process that died:
its sessions can be taken over at once. Anything else is no proof, and the lease's expiry decides: no file, one that may
not be read, an owner that a living store knows as well.

A store that is closed removes its file. Whoever closes it without letting go of its leases may come back as the same
owner, so nobody may conclude anything from that.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import secrets
import time
from collections import OrderedDict
from pathlib import Path

from lash.ids import OwnerId
from lash.store.sql.beside import LockFile, lock_now, share_rights

MAX_OWNERS = 4096
"""Owners that a store's file holds, the latest ones. For one that was forgotten the expiry decides."""
KEPT = 24 * 3600.0
"""Seconds for which the file of a dead store is kept. It is of no use once its last lease has run out."""
_TOUCH = 3600.0
"""Seconds between two signs of life of an open store's file."""
_DIGEST = 16


class Owners:
    """The owners of one open store, and the question about others. Used on the writer's thread."""

    def __init__(self, database: Path) -> None:
        self._database = database
        self._folder = Path(f"{database}-owners")
        self._file: LockFile | None = None
        self._places: OrderedDict[bytes, int] = OrderedDict()
        self._touched = 0.0

    def register(self, owner: OwnerId) -> None:
        """Say that this store acts for an owner, before the database says so."""
        digest = _digest(owner)
        file = self._opened()
        if digest in self._places:
            self._places.move_to_end(digest)
        else:
            place = len(self._places)
            if place == MAX_OWNERS:
                _, place = self._places.popitem(last=False)
            os.pwrite(file.fd, digest, place * _DIGEST)
            self._places[digest] = place
        self._touch(file)

    def died(self, owner: OwnerId) -> bool:
        """Whether every store that acted for this owner died without closing."""
        digest = _digest(owner)
        if digest in self._places:
            return False
        found = False
        for path in self._files():
            try:
                held, living = _look(path)
            except FileNotFoundError:
                continue
            except OSError:
                return False
            if digest in held:
                if living:
                    return False
                found = True
        return found

    def close(self) -> None:
        if self._file is not None:
            self._file.path.unlink(missing_ok=True)
            self._file.close()
            self._file = None
            self._places.clear()
        with contextlib.suppress(OSError):  # it is not there, or somebody's file is
            self._folder.rmdir()

    def _opened(self) -> LockFile:
        while self._file is None or not self._file.in_place:
            if self._file is not None:
                self._file.close()
            self._places.clear()
            self._make_folder()
            self._sweep()
            with contextlib.suppress(FileNotFoundError):  # who closed meanwhile found the folder empty
                file = LockFile(self._folder / secrets.token_hex(8), self._database, exclusive=True)
                if file.try_lock():
                    self._file = file
                else:  # somebody looks at it this very moment
                    file.path.unlink(missing_ok=True)
                    file.close()
        return self._file

    def _make_folder(self) -> None:
        with contextlib.suppress(FileExistsError):
            self._folder.mkdir(mode=0o755)
            with contextlib.suppress(FileNotFoundError):
                fd = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                share_rights(fd, self._database)
                os.close(fd)

    def _files(self) -> list[Path]:
        try:
            return [self._folder / name for name in os.listdir(self._folder)]
        except OSError:  # not there, or not for us
            return []

    def _sweep(self) -> None:
        """Remove what dead stores left long ago."""
        for path in self._files():
            with contextlib.suppress(OSError):
                if time.time() - path.stat().st_mtime > KEPT and not _look(path)[1]:
                    path.unlink()

    def _touch(self, file: LockFile) -> None:
        now = time.monotonic()
        if now - self._touched > _TOUCH:
            os.utime(file.fd)
            self._touched = now


def _look(path: Path) -> tuple[set[bytes], bool]:
    """The owners in a file, and whether its store is open."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        living = not lock_now(fd, fcntl.LOCK_SH)
        held = os.pread(fd, MAX_OWNERS * _DIGEST, 0)
    finally:
        os.close(fd)
    return {held[at : at + _DIGEST] for at in range(0, len(held), _DIGEST)}, living


def _digest(owner: OwnerId) -> bytes:
    return hashlib.blake2b(owner.encode(), digest_size=_DIGEST).digest()
