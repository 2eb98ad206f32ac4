"""On which file system a path lies. SQLite's locks cannot be trusted across a network."""

from __future__ import annotations

import re
from pathlib import Path

from lash.errors import NetworkFileSystem

_NETWORK = frozenset(
    (
        *(
            "9p",
            "afs",
            "beegfs",
            "ceph",
            "cifs",
            "davfs",
            "gfs2",
            "glusterfs",
            "gpfs",
            "lustre",
            "ncpfs",
            "nfs",
            "nfs4",
        ),
        *("ocfs2", "orangefs", "pvfs2", "smb3", "smbfs"),
        *("fuse.ceph", "fuse.gcsfuse", "fuse.glusterfs", "fuse.rclone", "fuse.s3fs", "fuse.sshfs"),
    )
)
"""Known network file systems. What is not named here (overlay, tmpfs, something new) is taken for a local one."""
MOUNT_TABLE = Path("/proc/self/mounts")


def check_local(path: Path, table: Path = MOUNT_TABLE) -> None:
    """Refuse a path on a network file system. Where there is no mount table nothing is known, and nothing refused."""
    if not table.exists():
        return
    kind = file_system(path.resolve(), table.read_text(encoding="utf-8", errors="replace"))
    if kind in _NETWORK:
        raise NetworkFileSystem(str(path), kind)


def file_system(path: Path, mounts: str) -> str:
    """The type of the file system that the deepest mount point above ``path`` has. Later mounts hide earlier ones."""
    found, depth = "", -1
    for line in mounts.splitlines():
        fields = line.split()
        if len(fields) < 3:
            continue
        point = Path(_unescaped(fields[1]))
        if (path == point or point in path.parents) and len(point.parts) >= depth:
            found, depth = fields[2], len(point.parts)
    return found


def _unescaped(text: str) -> str:
    """Mount tables write space, tab, newline and backslash as octal numbers."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)
