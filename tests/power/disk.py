"""A disk that loses power: what may be found on it afterwards.

- What was synced is there: the bytes of a file after a sync of the file, a name after a sync of its folder. A sync of a
  file says nothing about its name.
- What was not synced may be there or not, in whatever order. A sector of 512 bytes is written whole or not at all, so
  it holds what it held after any one of the writes since its last sync, whatever its neighbours hold. A file may have
  any of the sizes that it had since then. Bytes that lie inside a file and were never written are zeros, or anything.
- Names in one folder change in the order in which they were changed: every file system with a journal keeps to that.
"""

from __future__ import annotations

import enum
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from random import Random

from tests.power.tracing import (
    Acknowledged,
    MadeFolder,
    Opened,
    Operation,
    Removed,
    Renamed,
    Resized,
    Synced,
    Written,
)

SECTOR = 512


class Luck(enum.Enum):
    """What of the unsynced is found."""

    NOTHING = "nothing"
    EVERYTHING = "everything"
    IN_ORDER = "everything up to some moment"
    MOST = "all but a few sectors"
    ANYTHING = "anything, with zeros in between"
    GARBAGE = "anything, with garbage in between"


@dataclass(frozen=True, slots=True)
class Change:
    """A change of a file that was not synced yet. ``data`` is None when only the size was set."""

    number: int
    start: int
    data: bytes | None
    size: int
    """The size of the file from then on."""


@dataclass(eq=False, slots=True)
class File:
    synced: bytearray = field(default_factory=bytearray)
    changes: list[Change] = field(default_factory=list)

    @property
    def size(self) -> int:
        return self.changes[-1].size if self.changes else len(self.synced)

    def write(self, number: int, offset: int, data: bytes) -> None:
        self.changes.append(Change(number, offset, data, max(self.size, offset + len(data))))

    def resize(self, number: int, size: int) -> None:
        self.changes.append(Change(number, size, None, size))

    def sync(self, begun: int) -> None:
        covered = [change for change in self.changes if change.number < begun]
        self.synced = bytearray(self.found(lambda sector, of: len(of), len(covered), covered))
        self.changes = self.changes[len(covered) :]

    def found(
        self,
        choose: Callable[[int, list[Change]], int],
        sized: int,
        changes: list[Change],
        filler: Callable[[int], bytes] = bytes,
    ) -> bytes:
        """The content when ``choose`` says how many of the changes of a sector have reached it, and the size is as
        after ``sized`` of the changes."""
        size = changes[sized - 1].size if sized else len(self.synced)
        content = bytearray(self.synced[:size])
        if size > len(content):
            content += filler(size - len(content))
        for sector, of in _by_sector(changes, len(self.synced)).items():
            start = sector * SECTOR
            held = bytearray(self.synced[start : start + SECTOR].ljust(SECTOR, b"\0"))
            reached = choose(sector, of)
            for change in of[:reached]:
                _apply(change, start, held)
            if reached and start < size:
                content[start : start + SECTOR] = held[: min(SECTOR, size - start)]
        return bytes(content)


def _by_sector(changes: list[Change], size: int) -> dict[int, list[Change]]:
    found: dict[int, list[Change]] = {}
    for change in changes:
        end = change.start + len(change.data) if change.data is not None else max(size, change.start)
        for sector in range(change.start // SECTOR, -(-end // SECTOR)):
            found.setdefault(sector, []).append(change)
        size = max(size, change.size)
    return found


def _apply(change: Change, start: int, held: bytearray) -> None:
    first = max(change.start - start, 0)
    if change.data is None:  # what lies behind the new end is gone, and reads as zeros when the file grows again
        held[first:] = bytes(SECTOR - first)
        return
    skipped = max(start - change.start, 0)
    piece = change.data[skipped : skipped + SECTOR - first]
    held[first : first + len(piece)] = piece


@dataclass(frozen=True, slots=True)
class Naming:
    """A change of a folder that was not synced yet: a name leads to something else from now on, or to nothing."""

    number: int
    names: tuple[tuple[str, Entry | None], ...]


@dataclass(eq=False, slots=True)
class Folder:
    synced: dict[str, Entry] = field(default_factory=dict)
    changes: list[Naming] = field(default_factory=list)

    def names(self, reached: int | None = None) -> dict[str, Entry]:
        """What is there after so many of the changes; after all of them when no number is given."""
        found = dict(self.synced)
        for change in self.changes[:reached]:
            for name, entry in change.names:
                if entry is None:
                    found.pop(name, None)
                else:
                    found[name] = entry
        return found

    def sync(self, begun: int) -> None:
        covered = sum(change.number < begun for change in self.changes)
        self.synced = self.names(covered)
        self.changes = self.changes[covered:]


Entry = File | Folder


class Disk:
    def __init__(self) -> None:
        self.root = Folder()
        self._numbers = count()

    def do(self, operation: Operation) -> None:
        number = next(self._numbers)
        match operation:
            case Opened(path):
                folder, name = self._place(path)
                if name not in folder.names():
                    folder.changes.append(Naming(number, ((name, File()),)))
            case MadeFolder(path):
                folder, name = self._place(path)
                folder.changes.append(Naming(number, ((name, Folder()),)))
            case Written(path, offset, data):
                self._file(path).write(number, offset, data)
            case Resized(path, size):
                self._file(path).resize(number, size)
            case Synced(path, begun):
                self._entry(path).sync(begun)
            case Removed(path):
                folder, name = self._place(path)
                folder.changes.append(Naming(number, ((name, None),)))
            case Renamed(path, to):
                folder, name = self._place(path)
                target, new_name = self._place(to)
                assert folder is target, "from one folder to another: two folders would change at once"
                entry = folder.names()[name]
                folder.changes.append(Naming(number, ((name, None), (new_name, entry))))
            case Acknowledged():
                pass

    def _entry(self, path: str) -> Entry:
        found: Entry = self.root
        for name in Path(path).parts:
            assert isinstance(found, Folder), path
            found = found.names()[name]
        return found

    def _file(self, path: str) -> File:
        found = self._entry(path)
        assert isinstance(found, File), path
        return found

    def _place(self, path: str) -> tuple[Folder, str]:
        found = self._entry(os.path.dirname(path))
        assert isinstance(found, Folder), path
        return found, os.path.basename(path)

    def unsynced(self) -> Iterator[tuple[str, Entry]]:
        """The files and folders, by their present names, that a power loss may change."""
        return ((path, entry) for path, entry in _walk("", self.root) if entry.changes)

    def lose_power(self, luck: Luck, chance: Random, folder: Path) -> None:
        """Write what may be found afterwards into an empty folder."""
        numbers = sorted(change.number for _, entry in self.unsynced() for change in entry.changes)
        last = numbers[chance.randrange(len(numbers))] if luck is Luck.IN_ORDER and numbers else -1
        _write_folder(self.root, luck, chance, last, folder)


def _walk(path: str, entry: Entry) -> Iterator[tuple[str, Entry]]:
    yield path, entry
    if isinstance(entry, Folder):
        for name, inner in entry.names().items():
            yield from _walk(os.path.join(path, name), inner)


def _write_folder(entry: Folder, luck: Luck, chance: Random, last: int, at: Path) -> None:
    match luck:
        case Luck.NOTHING:
            reached = 0
        case Luck.EVERYTHING | Luck.MOST:
            reached = len(entry.changes)
        case Luck.IN_ORDER:
            reached = sum(change.number <= last for change in entry.changes)
        case _:
            reached = chance.randint(0, len(entry.changes))
    for name, inner in entry.names(reached).items():
        if isinstance(inner, Folder):
            (at / name).mkdir()
            _write_folder(inner, luck, chance, last, at / name)
        else:
            (at / name).write_bytes(_content(inner, luck, chance, last))


def _content(file: File, luck: Luck, chance: Random, last: int) -> bytes:
    total = len(file.changes)
    match luck:
        case Luck.NOTHING:
            return bytes(file.synced)
        case Luck.EVERYTHING:
            return file.found(lambda _, of: len(of), total, file.changes)
        case Luck.IN_ORDER:
            before = [change for change in file.changes if change.number <= last]
            torn = chance.random() < 0.5  # the last one may have reached only some of its sectors

            def choose(_: int, of: list[Change]) -> int:
                return len(of) - (torn and of[-1].number == last and chance.random() < 0.5)

            return file.found(choose, len(before), before)
        case Luck.MOST:
            few = chance.choice((0.002, 0.01, 0.05))
            return file.found(
                lambda _, of: chance.randrange(len(of)) if chance.random() < few else len(of), total, file.changes
            )
        case _:
            filler = chance.randbytes if luck is Luck.GARBAGE else bytes
            return file.found(lambda _, of: chance.randint(0, len(of)), chance.randint(0, total), file.changes, filler)
