"""Somebody else who holds what a write needs, and ways to see that it is waited for."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from typing import Any

import asyncpg
from sqlalchemy.engine import make_url

from lash.store.contract import Store
from lash.store.opening import open_store

Query = Callable[[str], Awaitable[list[Any]]]


@asynccontextmanager
async def beside(url: str) -> AsyncIterator[Query]:
    """A connection of somebody else."""
    connection = await asyncpg.connect(url)
    try:
        yield connection.fetch
    finally:
        await connection.close()


@asynccontextmanager
async def holding(url: str, statement: str) -> AsyncIterator[None]:
    """Somebody else's transaction that has run a statement and does not end."""
    async with beside(url) as query:
        await query("BEGIN")
        await query(statement)
        yield
        await query("COMMIT")


@contextmanager
def file_locked(url: str) -> Iterator[None]:
    """Somebody else's transaction that has begun to write."""
    with closing(sqlite3.connect(str(make_url(url).database))) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.rollback()


def process(url: str, name: str) -> Awaitable[Store]:
    """A store whose connections tell the server which one they are."""
    return open_store(make_url(url).update_query_dict({"application_name": name}).render_as_string(hide_password=False))


async def until_waiting(query: Query, *names: str) -> None:
    """These processes wait for a lock at this moment, and began to in this order."""
    waits = """
        SELECT application_name FROM pg_stat_activity
        WHERE datname = current_database() AND wait_event_type = 'Lock' ORDER BY query_start
    """
    async with asyncio.timeout(8):  # a write waits for a moment, and again a little later, until it is refused
        while [row["application_name"] for row in await query(waits) if row["application_name"] in names] != [*names]:
            pass
