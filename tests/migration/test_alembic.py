"""Developers use alembic's own command, with the alembic.ini of this project."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.migration.databases import TestedDatabase
from tests.migration.revisions import NEWEST

ROOT = Path(__file__).parents[2]


def alembic(*words: str) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("alembic")), *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)


async def test_the_alembic_command_upgrades_the_database_that_it_is_given(database: TestedDatabase) -> None:
    done = alembic("-x", f"url={database.url}", "upgrade", "head")
    assert done.returncode == 0, done.stderr
    assert {"lash_version", "lash_sessions"} < set(await database.tables())
    assert f"{NEWEST} (head)" in alembic("-x", f"url={database.url}", "current").stdout


async def test_code_and_migrations_agree_in_alembic_s_own_eyes_too(database: TestedDatabase) -> None:
    await database.upgrade()
    checked = alembic("-x", f"url={database.url}", "check")
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_the_alembic_command_asks_for_a_database_when_it_is_given_none() -> None:
    refused = alembic("upgrade", "head")
    assert refused.returncode != 0
    assert "-x url=" in refused.stderr
