"""What a program asked of the disk, in order, as strace saw it.

The kernel's own view was chosen over a shim around SQLite's file functions, and over a library that is loaded before
libc: it needs no compiler, does not depend on how SQLite is linked, sees what Python does beside SQLite (folders,
renames, syncs of its own), follows every thread and process, and shows when a folder was really synced instead of what
SQLite promises about it. It needs strace, and the right to trace; without them ``need_strace`` skips the test.

What the program has acknowledged stands in the same trace: it writes a line of JSON to a file named ``ACKNOWLEDGED``.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ACKNOWLEDGED = "acknowledged"
LARGEST_WRITE = 1024 * 1024
CALLS = (
    *("open", "openat", "creat", "write", "writev", "pwrite64", "pwritev", "pwritev2", "sendfile", "copy_file_range"),
    *("ftruncate", "truncate", "fallocate", "fsync", "fdatasync", "sync_file_range", "mkdir", "mkdirat", "rmdir"),
    *("unlink", "unlinkat", "rename", "renameat", "renameat2", "link", "linkat", "symlink", "symlinkat"),
)
"""Everything that changes a file or a folder. What the reader of the trace does not know is an error, not left out."""


@dataclass(frozen=True, slots=True)
class Opened:
    """A file was opened, and created where there was none."""

    path: str


@dataclass(frozen=True, slots=True)
class MadeFolder:
    path: str


@dataclass(frozen=True, slots=True)
class Written:
    path: str
    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Resized:
    path: str
    size: int


@dataclass(frozen=True, slots=True)
class Synced:
    """A file or a folder was synced. Only what came before the operation number ``begun`` is sure to be covered."""

    path: str
    begun: int


@dataclass(frozen=True, slots=True)
class Removed:
    path: str


@dataclass(frozen=True, slots=True)
class Renamed:
    path: str
    to: str


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """The program said that this is done."""

    fact: dict[str, Any]


Operation = Opened | MadeFolder | Written | Resized | Synced | Removed | Renamed | Acknowledged


@cache
def _unable() -> str | None:
    """Why nothing can be traced here."""
    strace = shutil.which("strace")
    if strace is None:
        return "strace is not installed"
    tried = subprocess.run([strace, "-f", "-qq", "-o", os.devnull, "true"], capture_output=True, text=True, timeout=60)
    return None if tried.returncode == 0 else f"strace may not trace here: {tried.stderr.strip()}"


def need_strace() -> None:
    problem = _unable()
    if problem is not None:
        pytest.skip(f"NOTHING IS SHOWN ABOUT POWER LOSS: {problem}")


def traced(folder: Path, command: Sequence[str | Path], *, trace: Path) -> list[Operation]:
    """Run a command, and tell what it did inside a folder. Paths are relative to it; the folder itself is ``.``."""
    watched = ",".join(f"?{call}" for call in CALLS)
    strace = ["strace", "-f", "--seccomp-bpf", "-qq", "-y", "-xx", "-s", str(LARGEST_WRITE), "-o", trace]
    done = subprocess.run([*strace, "-e", f"trace={watched}", *command], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    return list(_Reader(os.path.realpath(folder)).operations(trace))


def python(*words: object) -> list[str]:
    return [sys.executable, *map(str, words)]


# -- reading -----------------------------------------------------------------------------------------------------------

_TEXT = r'"((?:\\x[0-9a-f]{2})*)"(\.\.\.)?'
_FILE = r"\d+<((?:\\x[0-9a-f]{2})*)>(\(deleted\))?"
_LINE = re.compile(r"(\d+) +(.*)")
_CALL = re.compile(r"(\w+)\((.*)\) += (-?\d+|\?)(.*)")
_UNFINISHED = re.compile(r"(.*) <unfinished \.\.\.>")
_RESUMED = re.compile(r"<\.\.\. \w+ resumed>(.*)")


class _Reader:
    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._hex = _as_hex(folder)
        self._begun: dict[str, tuple[str, int]] = {}
        self._count = 0

    def operations(self, trace: Path) -> Iterator[Operation]:
        with trace.open() as lines:
            for line in lines:
                matched = _LINE.match(line)
                assert matched is not None, line
                for operation in self._line(*matched.groups()):
                    self._count += 1
                    yield operation

    def _line(self, thread: str, said: str) -> Iterator[Operation]:
        begun = self._count
        if unfinished := _UNFINISHED.match(said):
            self._begun[thread] = unfinished[1], begun
            return
        if resumed := _RESUMED.match(said):
            start, begun = self._begun.pop(thread)
            said = start + resumed[1]
        if self._hex not in said:
            return
        call = _CALL.match(said)
        assert call is not None, said[:300]
        if not call[3].startswith("-"):  # what failed changed nothing
            yield from self._call(call[1], call[2], begun)

    def _call(self, name: str, words: str, begun: int) -> Iterator[Operation]:
        files = [self._inside(*found) for found in re.findall(_FILE, words) if found]
        texts = [bytes.fromhex(text.replace("\\x", "")) for text, _ in re.findall(_TEXT, words)]
        assert '"...' not in words, f"the trace shows only a part of what {name} wrote"
        match name:
            case "openat" | "open":
                path = self._path(texts[0])
                if path is not None and "O_CREAT" in words:
                    assert "O_TRUNC" not in words, f"{path} is truncated as it is opened, which this reader cannot tell"
                    yield Opened(path)
            case "mkdir" | "mkdirat":
                yield from (MadeFolder(path) for path in map(self._path, texts) if path is not None)
            case "pwrite64" if files[0] is not None:
                yield Written(files[0], int(words.rsplit(", ", 1)[1]), texts[0])
            case "write" if files[0] == ACKNOWLEDGED:
                yield Acknowledged(json.loads(texts[0]))
            case "ftruncate" if files[0] is not None:
                yield Resized(files[0], int(words.rsplit(", ", 1)[1]))
            case "fsync" | "fdatasync" if files[0] is not None:
                yield Synced(files[0], begun)
            case "unlink" | "unlinkat" | "rmdir":
                yield from (Removed(path) for path in map(self._path, texts) if path is not None)
            case "rename" | "renameat" | "renameat2":
                old, new = map(self._path, texts)
                assert old is not None
                assert new is not None
                yield Renamed(old, new)
            case _ if any(file is not None for file in files) or any(self._path(text) for text in texts):
                raise AssertionError(f"nobody has said what {name} does to a disk: {words[:300]}")

    def _inside(self, name: str, deleted: str) -> str | None:
        path = self._path(bytes.fromhex(name.replace("\\x", "")))
        # SQLite's index of its log, and the gate, are memory that has a name: who comes first makes them anew.
        assert path is None or not deleted or path.endswith(("-shm", "-gate")), f"{path} was used after it was removed"
        return None if deleted else path

    def _path(self, name: bytes) -> str | None:
        """A path relative to the folder, or None for one outside of it. SQLite and lash use absolute ones."""
        path = os.fsdecode(name)
        if path == self._folder:
            return "."
        return path.removeprefix(f"{self._folder}/") if path.startswith(f"{self._folder}/") else None


def _as_hex(text: str) -> str:
    return "".join(f"\\x{byte:02x}" for byte in os.fsencode(text))
