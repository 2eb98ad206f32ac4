"""Files that processes lock to tell each other something. They lie beside a SQLite database and hold no data.

The lock is ``flock``'s: it belongs to the open file, so that two stores in one process exclude each other as if they
were in two, and the kernel lets go of it when a process dies, however it dies. SQLite's own files are never opened for
this: their locks are of the other kind (``fcntl``), which a process loses when it closes any descriptor of the file.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import weakref
from pathlib import Path

_MODE = 0o644
"""What SQLite gives a new database."""
_REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS)


class LockFile:
    """An open file to lock. It closes when a program is executed, and in a forked child: who outlives its parent must
    not keep the parent's locks."""

    def __init__(self, path: Path, database: Path, *, exclusive: bool = False) -> None:
        """Open or create ``path`` with the rights of the database. ``exclusive`` refuses a file that exists."""
        self.path = path
        self.writable = True
        flags = os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            self.fd = os.open(path, flags | os.O_RDWR | os.O_CREAT | (os.O_EXCL if exclusive else 0), _MODE)
        except OSError as error:
            if exclusive or error.errno not in _REFUSED or not path.exists():
                raise
            self.fd = os.open(path, flags | os.O_RDONLY)  # a lock needs no more
            self.writable = False
        share_rights(self.fd, database)
        _open_files.add(self)

    def try_lock(self) -> bool:
        return lock_now(self.fd, fcntl.LOCK_EX)

    def unlock(self) -> None:
        fcntl.flock(self.fd, fcntl.LOCK_UN)

    @property
    def in_place(self) -> bool:
        """Whether the file still has a name. If somebody removed it, others lock a new one by that name."""
        return os.fstat(self.fd).st_nlink > 0

    def close(self) -> None:
        if self.fd >= 0:
            _open_files.discard(self)
            os.close(self.fd)
            self.fd = -1


def lock_now(fd: int, kind: int) -> bool:
    """Take a lock, unless somebody else's is in the way."""
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def share_rights(fd: int, database: Path) -> None:
    """Whoever may use the database may use this file or folder: the same owner and rights, if we may set them."""
    with contextlib.suppress(OSError):
        theirs, ours = os.stat(database), os.fstat(fd)
        mode = theirs.st_mode & 0o666
        if os.path.isdir(fd):
            mode |= (mode & 0o444) >> 2  # to read a folder is to enter it
        if mode != ours.st_mode & 0o777:
            os.fchmod(fd, mode)
        if os.geteuid() == 0 and (theirs.st_uid, theirs.st_gid) != (ours.st_uid, ours.st_gid):
            os.fchown(fd, theirs.st_uid, theirs.st_gid)


_open_files: weakref.WeakSet[LockFile] = weakref.WeakSet()


def _close_all() -> None:
    for file in list(_open_files):
        file.close()


os.register_at_fork(after_in_child=_close_all)
