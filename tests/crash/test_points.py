"""Death at a named point of a transaction, for every kind of write: before the COMMIT nothing is there, after it
everything is; and whoever repeats the call, having heard nothing, gets the answer that got lost."""

from __future__ import annotations

import signal
from collections.abc import Mapping

import pytest

from lash.store.opening import open_store
from lash.testing import check_database
from tests.crash.conftest import KINDS
from tests.crash.databases import Database, Tables
from tests.crash.processes import process
from tests.crash.rounds import LONG
from tests.crash.traps import Point
from tests.crash.writes import WRITES, Facts

LANDED: Mapping[Point, bool] = {
    "after BEGIN": False,
    "while writing": False,
    "before COMMIT": False,
    "after COMMIT": True,
}
RICH = ("fork", "delete", "open_turn", "commit", "vacuum")
"""The writes that change most."""


def is_run(database: str, kind: str, point: Point) -> bool:
    """When there is no time for all: on SQLite every write dies on either side of its COMMIT, and the rich ones at
    every point; on Postgres the rich ones on either side, and the commit at every point."""
    decisive = point in ("before COMMIT", "after COMMIT")
    if database == "sqlite":
        return LONG or decisive or kind in RICH
    return LONG or kind == "commit" or (decisive and kind in RICH)


CASES = [
    pytest.param(database, kind, point, id=f"{database}-{kind}-{point}")
    for database in KINDS
    for kind in WRITES
    for point in LANDED
    if is_run(database, kind, point)
]
SWEPT_AFTER_ALL = {"blobs": -1}
"""A vacuum is several transactions. The first one takes items and turns; what is left goes when it is repeated."""


def gained(before: Tables, after: Tables) -> dict[str, int]:
    """How many rows each table has more than before, or less."""
    counts = {table: len(after[table]) - len(rows) for table, rows in before.items()}
    return {table: count for table, count in counts.items() if count}


@pytest.mark.parametrize(("shared_database", "kind", "point"), CASES, indirect=["shared_database"])
async def test_a_write_that_dies_is_whole_or_not_there_and_can_be_repeated(
    shared_database: Database, kind: str, point: Point
) -> None:
    write, url = WRITES[kind], shared_database.place.url
    async with await open_store(url) as store:
        given = await write.prepare(store)
        before = await shared_database.tables()
        async with process("doomed", shared_database.place) as doomed:
            doomed.order("write", kind=kind, given=given, point=point)
            assert await doomed.ended() == -signal.SIGKILL
            assert [call.ended for call in doomed.calls] == [None], "nobody was told"
        after = await shared_database.tables()
        if LANDED[point]:
            assert gained(before, after) == write.adds
            assert write.holds(Facts(after, given))
        else:
            assert after == before

        assert await write.call(store, given) == write.answer(given)
        repeated = await shared_database.tables()
        if LANDED[point] and not write.writes_again:
            assert repeated == after
        expected = {**write.adds, **(SWEPT_AFTER_ALL if kind == "vacuum" else {})}
        assert gained(before, repeated) == expected
        assert write.holds(Facts(repeated, given))
        if LONG or kind in RICH:
            (await check_database(url)).raise_if_broken()
