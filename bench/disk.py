"""What a turn leaves on disk."""

from __future__ import annotations

import contextlib
import sqlite3

from sqlalchemy.engine import make_url

from bench.commits import commit_all
from bench.databases import Backend, Postgres, Sqlite
from bench.rows import Row, row
from bench.work import all_ready
from tests.postgres import connect

TIDIED_EVERY = 100
"""Turns between two VACUUMs on Postgres, which stand for its autovacuum. The first so many turns are not counted: they
fill the first pages of every table."""


@row("disk_per_turn", "sqlite", "postgres")
async def disk_per_turn(backend: Backend, effort: float) -> Row:
    """Bytes that one turn adds to the database, log folded in, per byte of the bodies of its nodes."""
    turns = TIDIED_EVERY * max(1, round(5 * effort))
    url, sizes = backend.fresh(), []
    async with backend.open(url) as side:
        seat = await side.seat()
        for number in range(TIDIED_EVERY + turns):
            await commit_all(side.store, await all_ready(side.store, [seat]))
            if (number + 1) % TIDIED_EVERY == 0:
                sizes.append(await size_of(backend, url))
        nodes = await side.store.nodes(seat.uid)
    added = sum(len(node.body.encode()) for node in nodes[-5 * turns :]) / turns
    value = (sizes[-1] - sizes[0]) / turns
    return Row(
        "disk_per_turn",
        backend.name,
        value=value,
        unit="bytes",
        baseline=added,
        ratio=value / added,
        ceiling=2.0,
    )


async def size_of(backend: Backend, url: str) -> int:
    match backend:
        case Sqlite():
            return _size_of_file(backend, url)
        case Postgres():
            return await _size_of_tables(url)
        case _:
            raise TypeError(backend.name)


def _size_of_file(backend: Sqlite, url: str) -> int:
    path = backend.path(url)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        busy, _, _ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    assert not busy, "the whole log is folded in"
    return path.stat().st_size


async def _size_of_tables(url: str) -> int:
    connection = await connect(make_url(url))
    try:
        await connection.execute("VACUUM")
        size = "SELECT sum(pg_total_relation_size(oid)) FROM pg_class WHERE relkind = 'r' AND relname LIKE 'lash%'"
        return int(await connection.fetchval(size))
    finally:
        await connection.close()
