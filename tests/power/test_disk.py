"""The disk that the other tests lose power on, by hand: it forgets what was not synced, and keeps what was."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from tests.power.disk import SECTOR, Disk, Luck
from tests.power.tracing import MadeFolder, Opened, Operation, Removed, Renamed, Resized, Synced, Written

OLD, NEW = b"o" * SECTOR, b"n" * SECTOR
LATER = 1_000_000
"""A number that no operation here has: a sync that begins then covers them all."""


def disk_after(*operations: Operation) -> Disk:
    disk = Disk()
    for operation in operations:
        disk.do(operation)
    return disk


SYNCED = (Opened("f"), Written("f", 0, OLD * 2), Synced("f", LATER), Synced(".", LATER))


def worlds(disk: Disk, luck: Luck, at: Path) -> set[tuple[tuple[str, bytes], ...]]:
    """What may be found: names and contents, in a hundred worlds."""
    found = set()
    for number in range(100):
        folder = at / f"{luck.name}-{number}"
        folder.mkdir()
        disk.lose_power(luck, Random(number), folder)
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        found.add(tuple((str(path.relative_to(folder)), path.read_bytes()) for path in files))
    return found


@pytest.mark.parametrize("luck", Luck)
def test_what_was_synced_is_there_whatever_happens(luck: Luck, tmp_path: Path) -> None:
    assert worlds(disk_after(*SYNCED), luck, tmp_path) == {(("f", OLD * 2),)}


def test_what_was_not_synced_is_there_or_not_sector_by_sector(tmp_path: Path) -> None:
    disk = disk_after(*SYNCED, Written("f", 0, NEW * 2))
    assert worlds(disk, Luck.NOTHING, tmp_path) == {(("f", OLD * 2),)}
    assert worlds(disk, Luck.EVERYTHING, tmp_path) == {(("f", NEW * 2),)}
    torn = {(("f", one + two),) for one in (OLD, NEW) for two in (OLD, NEW)}
    assert worlds(disk, Luck.ANYTHING, tmp_path) == torn


def test_a_sector_holds_what_it_held_at_some_moment(tmp_path: Path) -> None:
    disk = disk_after(*SYNCED, Written("f", 0, b"12"), Written("f", 1, b"xy"))
    held = {OLD, b"12" + OLD[2:], b"1xy" + OLD[3:]}
    assert worlds(disk, Luck.ANYTHING, tmp_path) == {(("f", first + OLD),) for first in held}


def test_a_file_that_grew_may_have_grown_without_its_content(tmp_path: Path) -> None:
    disk = disk_after(*SYNCED, Written("f", 2 * SECTOR, NEW))
    grown = {(("f", OLD * 2 + end),) for end in (b"", NEW, bytes(SECTOR))}
    assert worlds(disk, Luck.ANYTHING, tmp_path) == grown
    found = [content for [(_, content)] in worlds(disk, Luck.GARBAGE, tmp_path)]
    assert any(len(content) == 3 * SECTOR and content[-SECTOR:] not in (NEW, bytes(SECTOR)) for content in found)


def test_a_file_that_was_cut_may_still_be_whole(tmp_path: Path) -> None:
    disk = disk_after(*SYNCED, Resized("f", SECTOR))
    assert worlds(disk, Luck.EVERYTHING, tmp_path) == {(("f", OLD),)}
    assert (("f", OLD * 2),) in worlds(disk, Luck.ANYTHING, tmp_path)
    grown_again = disk_after(*SYNCED, Resized("f", SECTOR), Resized("f", 2 * SECTOR), Synced("f", LATER))
    assert worlds(grown_again, Luck.NOTHING, tmp_path) == {(("f", OLD + bytes(SECTOR)),)}


def test_a_sync_of_one_file_is_none_of_another(tmp_path: Path) -> None:
    disk = disk_after(*SYNCED, Opened("g"), Synced(".", LATER), Written("f", 0, NEW), Written("g", 0, NEW))
    disk.do(Synced("g", LATER))
    assert worlds(disk, Luck.NOTHING, tmp_path) == {(("f", OLD * 2), ("g", NEW))}


def test_a_sync_covers_only_what_came_before_it_began(tmp_path: Path) -> None:
    disk = disk_after(*SYNCED, Written("f", 0, NEW), Written("f", SECTOR, NEW), Synced("f", begun=5))
    assert worlds(disk, Luck.NOTHING, tmp_path) == {(("f", NEW + OLD),)}


def test_a_name_is_there_for_sure_once_its_folder_is_synced(tmp_path: Path) -> None:
    disk = disk_after(Opened("f"), Written("f", 0, OLD), Synced("f", LATER))
    assert worlds(disk, Luck.NOTHING, tmp_path) == {()}
    assert worlds(disk, Luck.ANYTHING, tmp_path) == {(), (("f", OLD),)}
    inside = disk_after(MadeFolder("d"), Opened("d/f"), Synced("d", LATER))
    (tmp_path / "inside").mkdir()
    assert worlds(inside, Luck.NOTHING, tmp_path / "inside") == {()}


def test_a_removed_file_may_come_back_and_a_renamed_one_may_have_its_old_name(tmp_path: Path) -> None:
    removed = disk_after(*SYNCED, Removed("f"))
    assert worlds(removed, Luck.ANYTHING, tmp_path) == {(), (("f", OLD * 2),)}
    (tmp_path / "renamed").mkdir()
    renamed = disk_after(*SYNCED, Renamed("f", "g"))
    assert worlds(renamed, Luck.ANYTHING, tmp_path / "renamed") == {(("f", OLD * 2),), (("g", OLD * 2),)}


def test_names_in_a_folder_change_in_order(tmp_path: Path) -> None:
    disk = disk_after(*SYNCED, Removed("f"), Opened("g"))
    assert worlds(disk, Luck.ANYTHING, tmp_path) == {(("f", OLD * 2),), (), (("g", b""),)}


def test_everything_up_to_some_moment_is_an_order_across_files(tmp_path: Path) -> None:
    disk = disk_after(*SYNCED, Opened("g"), Synced(".", LATER), Written("f", 0, NEW * 2), Written("g", 0, NEW))
    found = worlds(disk, Luck.IN_ORDER, tmp_path)
    assert all(dict(world)["f"] == NEW * 2 for world in found if dict(world)["g"])
    assert any(dict(world)["f"] == OLD + NEW for world in found), "the last one may be torn"
