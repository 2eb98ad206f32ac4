"""A machine loses its power, at any moment: what lash acknowledged is there, and nothing is half there.

A worker's writes and syncs are recorded, and what a disk may hold is built from the record for many moments; see
``disk`` for what may be there and what must.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest

from lash.store.opening import open_store
from lash.testing import check_database
from lash.testing.builders import a_session, run_turn, said
from tests.cli.command import LASH
from tests.power.disk import Disk, Folder, Luck
from tests.power.found import Found, look
from tests.power.tracing import ACKNOWLEDGED, Acknowledged, Operation, Synced, need_strace, python, traced

LONG = bool(os.environ.get("LASH_LONG"))
pytestmark = pytest.mark.timeout(3600 if LONG else 120)
DATABASE = "made/by/lash/sessions.db"
"""Its folders are not there yet: their names can be lost, too."""


@dataclass(frozen=True)
class Recording:
    operations: list[Operation]

    @property
    def facts(self) -> list[dict[str, Any]]:
        return [operation.fact for operation in self.operations if isinstance(operation, Acknowledged)]


def record(at: Path, *, settings: str = "") -> Recording:
    need_strace()
    folder = at / "recorded"
    folder.mkdir()
    acknowledged = folder / ACKNOWLEDGED
    acknowledged.touch()
    command = python("-m", "tests.power.worker", f"sqlite:///{folder / DATABASE}{settings}", acknowledged)
    return Recording(traced(folder, command, trace=at / "trace"))


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    """A run with the settings that everybody has."""
    return record(tmp_path_factory.mktemp("power"))


@dataclass(frozen=True)
class Moment:
    """A moment to lose power at: after so many operations, with so many facts acknowledged."""

    at: int
    acknowledged: int
    unsynced: str
    """What a power loss may change then."""
    is_last: bool
    """Whether a sync comes next."""


def moments(recording: Recording) -> list[Moment]:
    disk, found, acknowledged = Disk(), [], 0
    for at, (operation, following) in enumerate(pairwise([*recording.operations, None]), start=1):
        assert operation is not None
        disk.do(operation)
        acknowledged += isinstance(operation, Acknowledged)
        found.append(Moment(at, acknowledged, _unsynced(disk), is_last=isinstance(following, Synced)))
    return found


def _unsynced(disk: Disk) -> str:
    kinds: set[str] = set()
    for path, entry in disk.unsynced():
        if isinstance(entry, Folder):
            kinds.add("names")
        elif path.endswith("-wal"):
            restarted = entry.synced and any(change.start == 0 for change in entry.changes)
            kinds.add("log begun anew" if restarted else "log")
        elif not path.endswith(("-shm", ACKNOWLEDGED)):
            kinds.add("journal" if path.endswith("-journal") else "database")
    return ", ".join(sorted(kinds)) or "nothing"


def some(found: list[Moment], each: int, chance: Random) -> list[Moment]:
    """A few moments of every kind, as many of them right before a sync as there are others; or every moment."""
    if LONG:
        return found
    chosen: set[Moment] = set()
    for unsynced, is_last in sorted({(moment.unsynced, moment.is_last) for moment in found}):
        alike = [moment for moment in found if (moment.unsynced, moment.is_last) == (unsynced, is_last)]
        chosen.update(chance.sample(alike, min(each, len(alike))))
    return sorted(chosen, key=lambda moment: moment.at)


@dataclass
class Afterwards:
    """The worlds after a power loss at some moments."""

    recording: Recording
    folder: Path
    chance: Random
    numbers: int = 0
    checked: set[str] = field(default_factory=set)
    """Digests of the rows that fsck has seen."""

    def worlds(self, chosen: list[Moment]) -> Iterator[tuple[Moment, Luck, Path]]:
        disk, done = Disk(), 0
        for moment in chosen:
            for operation in self.recording.operations[done : moment.at]:
                disk.do(operation)
            done = moment.at
            lucks = list(Luck) if LONG else [Luck.NOTHING, *self.chance.sample(list(Luck)[1:], 2)]
            for luck in lucks if moment.unsynced != "nothing" else [Luck.NOTHING]:
                self.numbers += 1
                world = self.folder / str(self.numbers)
                world.mkdir()
                disk.lose_power(luck, self.chance, world)
                yield moment, luck, world
                shutil.rmtree(world)  # one that shows a fault is kept

    def found(self, world: Path) -> Found:
        """Look at a database, and let fsck look at it when nobody has seen one with the same rows."""
        found = look(world / DATABASE, self.recording.facts)
        assert found.integrity == ["ok"]
        if found.digest not in self.checked:
            self.checked.add(found.digest)
            asyncio.run(check_database(f"sqlite:///{world / DATABASE}")).raise_if_broken()
        return found


def steps_there(facts: list[dict[str, Any]], holds: list[bool]) -> int:
    """The last step of which anything is there; everything of the steps before it must be there."""
    last = max((fact["step"] for fact, there in zip(facts, holds, strict=True) if there), default=0)
    lacking = [fact for fact, there in zip(facts, holds, strict=True) if not there and fact["step"] < last]
    assert lacking == [], f"a write of step {last} is there, and these earlier ones are not"
    return last


def test_nothing_that_was_acknowledged_is_lost(recording: Recording, tmp_path: Path) -> None:
    facts, after = recording.facts, Afterwards(recording, tmp_path, Random(1))
    served = [moment for moment in moments(recording) if moment.acknowledged]
    unsynced: set[str] = set()
    for moment, luck, world in after.worlds(some(served, 6, after.chance)):
        found = after.found(world)
        lost = [fact for fact, there in zip(facts[: moment.acknowledged], found.holds, strict=False) if not there]
        assert lost == [], f"after {moment} with {luck}"
        steps_there(facts, found.holds)
        unsynced.update(moment.unsynced.split(", "))
    assert unsynced >= {"nothing", "log", "log begun anew", "database", "names"}, "these moments should be among them"


def test_without_a_sync_for_each_commit_the_latest_are_lost_and_nothing_else(tmp_path: Path) -> None:
    recording = record(tmp_path, settings="?synchronous=normal")
    facts, after = recording.facts, Afterwards(recording, tmp_path, Random(2))
    served = [moment for moment in moments(recording) if moment.acknowledged]
    lost: list[int] = []
    for moment, _, world in after.worlds(some(served, 8, after.chance)):
        found = after.found(world)
        steps_there(facts, found.holds)
        lost.append(found.holds[: moment.acknowledged].count(False))
    assert max(lost) > 1, "a disk on which unsynced writes survive shows nothing"
    assert min(lost) == 0


def test_a_database_whose_making_was_cut_short_is_made_again(recording: Recording, tmp_path: Path) -> None:
    after = Afterwards(recording, tmp_path, Random(3))
    unserved = [moment for moment in moments(recording) if not moment.acknowledged]
    unsynced: set[str] = set()
    for moment, _, world in after.worlds(some(unserved, 2, after.chance)):
        asyncio.run(_serves(f"sqlite:///{world / DATABASE}"))
        unsynced.update(moment.unsynced.split(", "))
    assert unsynced >= {"names", "journal", "database"}, "these moments should be among them"


async def _serves(url: str) -> None:
    """A store opens there, and does what a store does."""
    async with await open_store(url) as store:
        session = await a_session(store)
        await run_turn(store, session.uid, "hello")
    (await check_database(url)).raise_if_broken()
    async with await open_store(url) as store:
        assert await said(store, session.uid) == ["hello", "re: hello"]


def test_a_backup_is_whole_or_is_not_there(tmp_path: Path) -> None:
    need_strace()
    source, folder = tmp_path / "source.db", tmp_path / "backups"
    folder.mkdir()
    asyncio.run(_serves(f"sqlite:///{source}"))
    [greeting] = asyncio.run(_names(f"sqlite:///{source}"))
    command = [LASH, "db", "backup", folder / "copy.db", "--url", f"sqlite:///{source}"]
    recording = Recording(traced(folder, command, trace=tmp_path / "trace"))
    after = Afterwards(recording, tmp_path, Random(4))
    every, there = moments(recording), set()
    for moment, luck, world in after.worlds([*some(every[:-1], 8, after.chance), every[-1]]):
        copy = world / "copy.db"
        there.add(copy.exists())
        assert copy.exists() or moment != every[-1], f"it was done, and is lost with {luck}"
        if copy.exists():
            assert look(copy, []).integrity == ["ok"]
            assert asyncio.run(_names(f"sqlite:///{copy}")) == [greeting]
    assert there == {True, False}


async def _names(url: str) -> list[str]:
    (await check_database(url)).raise_if_broken()
    async with await open_store(url) as store:
        return [session.name for session in (await store.sessions()).rows]
