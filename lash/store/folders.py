"""Folders and the names in them, as they survive a power loss: a name is only there for sure once its folder is synced.

SQLite syncs the folder of a database when it makes a file there. What lies above that folder is ours.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

_CANNOT = (errno.EINVAL, errno.ENOTSUP)
"""What a file system answers that cannot sync a folder. Then there is nothing to wait for."""


def make_folder(folder: Path) -> None:
    """Make a folder, and those above it that are missing, so that they are there after a power loss."""
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for each in reversed(missing):
        sync_folder(each.parent)


def sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on the disk."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in _CANNOT:
            raise
    finally:
        os.close(handle)
