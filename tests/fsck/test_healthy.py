"""What lash itself has written is clean, whatever it has been through; and looking changes nothing."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lash.errors import CorruptFile, DatabaseMissing, RuntimeTooOld
from lash.store.opening import open_store
from lash.testing import check_database
from lash.testing.builders import a_session, commit_nodes, must_acquire, run_turn, says
from lash.testing.harness import StoreHarness
from tests.contract.stores import PostgresHarness, SqliteHarness
from tests.fsck.sample import damage
from tests.postgres import PostgresServer
from tests.property.machine_steps import LONG_ENOUGH, same_histories
from tests.property.test_store_machine import StoreMachine, beginning
from tests.store.sample import PostgresCopy, SqliteCopy

AnyCopy = SqliteCopy | PostgresCopy


async def test_a_rich_history_is_clean_and_every_commit_is_proven(copy: AnyCopy) -> None:
    report = await check_database(copy.url)
    report.raise_if_broken()
    assert report.unverified_commits == 2  # those of the deleted session, whose turns are gone with it
    assert [finding.code for finding in report.notes] == []
    assert report.rows["lash_sessions"] == 8
    unread = {"lash_live_events", "lash_clock_offsets"}
    assert set(report.rows) == {table for table in await copy.dump() if table.startswith("lash_")} - unread


async def test_a_history_is_clean_after_a_vacuum(copy: AnyCopy) -> None:
    async with await copy.open() as store:
        await store.vacuum(before=datetime.now(UTC) + timedelta(hours=1))
        await run_turn(store, copy.sample.healthy, "still here?")
    report = await check_database(copy.url)
    report.raise_if_broken()
    assert report.unverified_commits > 2  # what they settled is gone, as it should be


async def test_a_history_is_clean_when_every_session_is_deleted_and_swept(copy: AnyCopy) -> None:
    async with await copy.open() as store:
        for session in (await store.sessions()).rows:
            await store.delete(session.uid)
        (await check_database(copy.url)).raise_if_broken()
        await store.vacuum(before=datetime.now(UTC) + timedelta(hours=1))
    report = await check_database(copy.url)
    assert report.findings == ()
    assert report.rows["lash_sessions"] == 8  # tombstones


async def test_looking_changes_nothing(copy: AnyCopy) -> None:
    before = await copy.dump()
    await check_database(copy.url)
    assert await copy.dump() == before


async def test_it_reads_one_snapshot_while_others_write(copy: AnyCopy) -> None:
    async with await copy.open() as store:
        lease = await must_acquire(store, (await a_session(store, "busy")).uid)

        async def write() -> None:
            for number in range(20):
                await commit_nodes(store, lease, says(str(number)))

        writing = asyncio.create_task(write())
        for _ in range(3):
            (await check_database(copy.url)).raise_if_broken()
        await writing


async def test_sessions_that_are_longer_than_a_page_are_clean(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/long.db"
    async with await open_store(url) as store:
        lease = await must_acquire(store, (await a_session(store, "long")).uid)
        await commit_nodes(store, lease, *(says(str(number)) for number in range(1200)))
        for _ in range(3):
            await commit_nodes(store, lease, says("x" * 70_000), says("y"))
    report = await check_database(url)
    report.raise_if_broken()
    assert (report.rows["lash_nodes"], report.unverified_commits) == (1207, 0)


class CheckedMachine(StoreMachine):
    """A random history of everything that a store can do, checked again and again."""

    url: str

    def look(self) -> None:
        self.run(check_database(self.url)).raise_if_broken()


@pytest.mark.timeout(LONG_ENOUGH)
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_random_histories_are_clean_at_every_moment(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    begin = beginning(kind, request, tmp_path)

    @same_histories(8 if kind == "sqlite" else 4)
    @given(st.binary(min_size=40, max_size=40))
    def clean(history: bytes) -> None:
        with closing(CheckedMachine(begin, Counter(), exact=kind != "postgres")) as machine:
            machine.url = url_of(machine.store.harness)
            machine.live(history, look_every=5)
            machine.look()

    clean()


def url_of(harness: StoreHarness) -> str:
    assert isinstance(harness, SqliteHarness | PostgresHarness)
    return harness.url


async def test_a_database_that_is_not_there_is_no_clean_one(tmp_path: Path, postgres: PostgresServer) -> None:
    for url in (f"sqlite:///{tmp_path}/none.db", postgres.blank().render_as_string(hide_password=False)):
        with pytest.raises(DatabaseMissing):
            await check_database(url)
    assert not (tmp_path / "none.db").exists()


async def test_a_file_that_is_no_database_is_no_clean_one(tmp_path: Path) -> None:
    (tmp_path / "words.db").write_text("these are words, and more of them than a SQLite header has bytes" * 20)
    with pytest.raises(CorruptFile):
        await check_database(f"sqlite:///{tmp_path}/words.db")


async def test_a_database_for_a_newer_lash_is_left_to_that(copy: AnyCopy) -> None:
    await damage(copy, "UPDATE lash_meta SET value = '99.0.0' WHERE name = 'oldest_runtime'")
    with pytest.raises(RuntimeTooOld):
        await check_database(copy.url)
