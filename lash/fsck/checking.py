"""A whole database, checked."""

from __future__ import annotations

import re

from sqlalchemy import Connection

from lash.errors import DatabaseMissing, RuntimeTooOld
from lash.fsck import holdings, tables
from lash.fsck.reading import Reader, on_one_snapshot
from lash.fsck.report import Findings, Report
from lash.fsck.sweep import Sweep
from lash.version import VERSION


async def check_database(url: str) -> Report:
    """Check every row of a database against the promises that lash makes about it.

    Reads one snapshot and changes nothing, so it may run beside those who write. Raises only when the database cannot
    be read at all; what is wrong in it is in the report.
    """
    return await on_one_snapshot(url, look)


def look(connection: Connection) -> Report:
    findings = Findings()
    reader = Reader(connection, findings)
    if _may_read(reader):
        holdings.check_database_rows(reader)
        Sweep(reader).run()
        holdings.check_waits(reader)
        holdings.check_blobs(reader)
        holdings.check_live_events(reader)
    return findings.report()


def _may_read(reader: Reader) -> bool:
    """Whether the tables are there, and are such that this lash may read them."""
    present = reader.table_names()
    missing = [table.name for table in tables.TABLES if table.name not in present]
    if len(missing) == len(tables.TABLES):
        raise DatabaseMissing("the database has no tables of lash yet; run 'lash db upgrade'")
    for name in missing:
        reader.findings.add("table-missing", name, "", expected="the table", found=None)
    if missing:
        return False
    for [value] in reader.ask("SELECT value FROM lash_meta WHERE name = 'oldest_runtime'"):
        if _numbers(str(value)) > _numbers(VERSION):
            revision = ", ".join(str(row[0]) for row in reader.ask("SELECT version_num FROM lash_version"))
            raise RuntimeTooOld(runtime=VERSION, needed=str(value), database=revision)
    return True


def _numbers(version: str) -> tuple[int, ...]:
    """A version as numbers that compare; none for what is no version, which is found later."""
    found = re.match(r"(\d+)\.(\d+)\.(\d+)", version)
    return tuple(map(int, found.groups())) if found else ()
