"""Several processes that do everything at once on the same sessions: no deadlock, every answer true, all sound."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections import Counter
from typing import Any

import asyncpg
import pytest

from lash.store.opening import open_store
from lash.testing.builders import a_session
from lash.testing.checking import check_database
from tests.store.mixture import Prepared, landed

ROUNDS = 40 if os.environ.get("LASH_LONG") else 2
PROCESSES = 4
SESSIONS = 6
Report = dict[str, Any]


async def run_crowd(url: str, uids: list[str]) -> list[Report]:
    async def start(number: int) -> asyncio.subprocess.Process:
        words = (sys.executable, "-m", "tests.store.crowd", url, str(number), str(ROUNDS), *uids)
        pipe = asyncio.subprocess.PIPE
        return await asyncio.create_subprocess_exec(*words, stdin=pipe, stdout=pipe, limit=2**26)

    processes = await asyncio.gather(*map(start, range(PROCESSES)))
    try:
        for process in processes:
            assert process.stdout is not None
            assert await process.stdout.readline() == b"ready\n"
        told = await asyncio.gather(*(process.communicate(b"\n") for process in processes))
    finally:
        for process in processes:
            if process.returncode is None:
                process.kill()
                await process.wait()
    assert [process.returncode for process in processes] == [0] * PROCESSES
    return [json.loads(output) for output, _ in told]


def check_reports(reports: list[Report]) -> None:
    """Everything was done, and nobody met anything but somebody else who wanted the same."""
    assert [error for report in reports for error in report["unexpected"]] == []
    counts: Counter[str] = sum((Counter(report["counts"]) for report in reports), Counter())
    steps = {"admit", "commit", "turn", "document", "fork", "name", "owe", "wait", "cancel", "blob", "vacuum"}
    assert steps <= set(counts), "something never succeeded"
    assert {"HeadMoved", "SessionBusy", "SessionExists"} & set(counts), "they never got into each other's way"


async def check_truth(url: str, reports: list[Report]) -> int:
    """Direct questions to the tables: what was acknowledged is there, once; what was refused is not."""

    def traces(name: str) -> list[Prepared]:
        return [Prepared("", lambda _: asyncio.sleep(0), *trace) for report in reports for trace in report[name]]

    acknowledged, refused = traces("acknowledged"), traces("refused")
    for start in range(0, len(acknowledged), 100):
        assert all(await landed(url, acknowledged[start : start + 100]))
    for start in range(0, len(refused), 100):
        assert not any(await landed(url, refused[start : start + 100]))
    return len(acknowledged)


@pytest.mark.timeout(1800)
async def test_processes_that_do_everything_at_once_on_the_same_sessions_all_get_true_answers(url: str) -> None:
    async with await open_store(url) as store:
        uids = [(await a_session(store)).uid for _ in range(SESSIONS)]
    reports = await run_crowd(url, uids)
    check_reports(reports)
    assert await check_truth(url, reports) > 40
    (await check_database(url)).raise_if_broken()
    contention = sum((Counter(report["contention"]) for report in reports), Counter())
    assert contention["40001"] == contention["40P01"] == 0
    if url.startswith("postgresql"):
        assert await deadlocks(url) == 0
        await make_a_deadlock(url)
        assert await deadlocks(url) == 1, "the server counts them"


async def deadlocks(url: str) -> int:
    connection = await asyncpg.connect(url)
    try:
        found = await connection.fetchval("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")
        return int(found)
    finally:
        await connection.close()


async def make_a_deadlock(url: str) -> None:
    one, two = await asyncpg.connect(url), await asyncpg.connect(url)
    try:
        for connection, number in ((one, 1), (two, 2)):
            await connection.execute("SET deadlock_timeout = '20ms'")
            await connection.execute(f"BEGIN; SELECT pg_advisory_xact_lock({number})")
        calls = (one.execute("SELECT pg_advisory_xact_lock(2)"), two.execute("SELECT pg_advisory_xact_lock(1)"))
        ends = await asyncio.gather(*calls, return_exceptions=True)
        assert sorted(isinstance(end, asyncpg.DeadlockDetectedError) for end in ends) == [False, True]
    finally:
        await one.close()
        await two.close()
