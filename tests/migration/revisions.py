"""The newest revision, as alembic reads it from the files."""

from __future__ import annotations

from pathlib import Path

from alembic.script import ScriptDirectory

MIGRATIONS = Path(__file__).parents[2] / "migrations"
NEWEST = str(ScriptDirectory(str(MIGRATIONS)).get_current_head())
