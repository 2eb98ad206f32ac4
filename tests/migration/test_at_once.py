"""Several processes that meet an empty database at the same moment all get a whole one."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

from tests.cli.command import LASH
from tests.migration.revisions import NEWEST
from tests.postgres import PostgresServer, connect

OPENS = """
import asyncio, sys
from lash.store import open_store

async def main() -> None:
    print("ready", flush=True)
    sys.stdin.readline()
    async with await open_store(sys.argv[1]):
        print("opened", flush=True)

asyncio.run(main())
"""


def test_processes_that_open_a_fresh_sqlite_file_at_once_all_succeed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", OPENS, f"sqlite:///{tmp_path / 'fresh.db'}"]
    pipe = subprocess.PIPE
    children = [subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) for _ in range(4)]
    for child in children:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
    for child in children:
        assert child.stdin is not None
        child.stdin.write("go\n")
        child.stdin.flush()
    ends = [child.communicate(timeout=60) for child in children]
    assert [out for out, _ in ends] == ["opened\n"] * 4, ends
    with closing(sqlite3.connect(tmp_path / "fresh.db")) as connection:
        assert connection.execute("SELECT count(*) FROM lash_meta WHERE name = 'secret'").fetchone() == (1,)


async def test_upgrades_of_one_postgres_database_at_once_all_succeed(postgres: PostgresServer, tmp_path: Path) -> None:
    url = postgres.blank()
    words = ["db", "upgrade", "--url", url.render_as_string(hide_password=False)]
    pipe = subprocess.PIPE
    children = [
        await asyncio.create_subprocess_exec(LASH, *words, cwd=tmp_path, stdout=pipe, stderr=pipe) for _ in range(3)
    ]
    ends = [await child.communicate() for child in children]
    assert [child.returncode for child in children] == [0, 0, 0], ends
    connection = await connect(url)
    assert await connection.fetchval("SELECT version_num FROM lash_version") == NEWEST
    assert await connection.fetchval("SELECT count(*) FROM lash_meta WHERE name = 'secret'") == 1
    await connection.close()
