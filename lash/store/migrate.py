"""The database's revision, and whether this lash and that database can live with each other.

A database knows its revision and the oldest lash that may run on it. A lash knows the oldest revision that it can run
on. It starts when both are satisfied, so that a fleet can be upgraded while it runs: first the database, then, one by
one, the processes.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, inspect, select, text

import lash
from lash.errors import BrokenInstallation, CorruptData, DatabaseMissing, DatabaseTooOld, ForeignDatabase, RuntimeTooOld
from lash.store import schema
from lash.version import VERSION

VERSION_TABLE = "lash_version"
OLDEST_REVISION = "0001"
"""The oldest revision that this lash can run on."""
_LOCK = 0x6C617368  # "lash": held by whoever migrates a Postgres database


def migrations() -> Path:
    """The folder of migrations: inside an installed package, or beside it in a checkout."""
    package = Path(lash.__file__).parent
    inside = package / "migrations"
    return inside if inside.is_dir() else package.parent / "migrations"


def config(connection: Connection | None = None) -> Config:
    found = Config()
    found.set_main_option("script_location", str(migrations()).replace("%", "%%"))
    found.attributes["connection"] = connection
    return found


@cache
def head() -> str:
    """The newest revision that this lash knows."""
    newest = ScriptDirectory.from_config(config()).get_current_head()
    if newest is None or not newest.isdigit():
        raise BrokenInstallation(f"the newest migration in {migrations()} is {newest!r}; a revision is a number")
    return newest


def revision(connection: Connection) -> str | None:
    """The database's revision; None when it has none of our tables."""
    if not inspect(connection).has_table(VERSION_TABLE):
        ours = sorted(set(inspect(connection).get_table_names()) & set(schema.metadata.tables))
        if ours:
            raise ForeignDatabase(
                f"the database has tables named {', '.join(ours)} that lash did not make; use another database"
            )
        return None
    found = connection.execute(text(f"SELECT version_num FROM {VERSION_TABLE}")).scalar_one_or_none()  # noqa: S608
    if found is None or not found.isdigit():
        raise ForeignDatabase(f"the table {VERSION_TABLE} holds {found!r}, which is no revision of lash")
    return str(found)


def upgrade(connection: Connection, to: str = "head") -> None:
    """Bring a database to a revision, inside the caller's transaction. Another process that tries the same waits.

    A database that is newer than this lash stays as it is.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
    found = revision(connection)
    if found is None or int(found) < int(head()):
        command.upgrade(config(connection), to)


def check(connection: Connection) -> str:
    """The database's revision, when this lash may run on it; else an error that names both."""
    found = revision(connection)
    if found is None:
        raise DatabaseMissing("the database has no tables of lash yet; run 'lash db upgrade'")
    if int(found) < int(OLDEST_REVISION):
        raise DatabaseTooOld(database=found, needed=OLDEST_REVISION, runtime=VERSION)
    oldest = meta(connection, "oldest_runtime")
    if _parts(VERSION) < _parts(oldest):
        raise RuntimeTooOld(runtime=VERSION, needed=oldest, database=found)
    return found


def meta(connection: Connection, name: str) -> str:
    value = connection.execute(select(schema.meta.c.value).where(schema.meta.c.name == name)).scalar_one_or_none()
    if value is None:
        raise CorruptData(f"the table lash_meta has no row {name!r}; restore a backup")
    return str(value)


def _parts(version: str) -> tuple[int, ...]:
    """A version as numbers that compare. What comes after a release's own, as in 0.2.0rc1, is left out."""
    numbers = re.match(r"(\d+)\.(\d+)\.(\d+)", version)
    if numbers is None:
        raise CorruptData(f"{version!r} is no version of lash; restore a backup")
    return tuple(int(number) for number in numbers.groups())
