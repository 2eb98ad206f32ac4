"""A copy of a SQLite database, made while others write to it.

The copy is read on one snapshot: it holds every write that was acknowledged before it began, and nothing of a later
one. Holding that snapshot is also what lets SQLite's backup go on from step to step instead of beginning again after
every write of somebody else. Writers do not wait for it; only the log cannot be emptied meanwhile.

The copy is written under another name in the folder where it will be, synced, and then renamed. Whatever happens, what
stands under its name is whole. A backup that was killed leaves its unfinished copy behind; the next one to the same
name, seeing that nobody holds it any more, removes it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sqlite3
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Connection, Engine, create_engine, func, select
from sqlalchemy.engine import URL
from sqlalchemy.pool import StaticPool

from lash.errors import DatabaseMissing, InvalidTarget, StoreLocked, UnsupportedUrl
from lash.store import migrate, schema
from lash.store.folders import sync_folder
from lash.store.mounts import MOUNT_TABLE
from lash.store.opening import BUSY_TIMEOUT, local_file
from lash.store.sql.faults import translated
from lash.store.sql.gate import Gate
from lash.store.sql.sqlite import PATIENCE_TO_CLOSE

STEP = 1024
"""Pages that are copied at once."""
UNFINISHED = ".partial"
_SIDE_FILES = ("-wal", "-shm", "-journal")


@dataclass(frozen=True, slots=True)
class Backup:
    path: Path
    size: int
    revision: str
    sessions: int
    """How many living sessions are in it."""


def back_up(url: URL, to: Path, *, overwrite: bool = False) -> Backup:
    """Copy the SQLite database at ``url`` to a file, durably: when this returns, the copy survives a power loss."""
    if url.get_backend_name() != "sqlite":
        raise UnsupportedUrl(
            "lash copies SQLite files only; back a Postgres database up with pg_dump, or with pg_basebackup and "
            "archived WAL (docs/howto/back-up.md)"
        )
    source, target = local_file(url, create=False, mount_table=MOUNT_TABLE), to.absolute()
    _check_target(source, target, overwrite=overwrite)
    with _snapshot(source) as connection:
        with translated(f"the database {source}"):
            revision, sessions = _looked_at(connection, source)
        with translated(f"the backup {target}"), _unfinished(target) as (copy, handle):
            _copy(connection, copy)
            os.fchmod(handle, source.stat().st_mode & 0o777)
            os.fsync(handle)
            _check_target(source, target, overwrite=overwrite)  # a hard link would not need it, but not every disk can
            os.replace(copy, target)
            sync_folder(target.parent)
    return Backup(target, target.stat().st_size, revision, sessions)


def _check_target(source: Path, target: Path, *, overwrite: bool) -> None:
    if target.is_dir():
        raise InvalidTarget(f"{target} is a folder; name a file in it")
    if not target.parent.is_dir():
        raise InvalidTarget(f"there is no folder {target.parent}; make it, or name another")
    ours = [source, *_beside(source)]
    if target.resolve() in [each.resolve() for each in ours] or (target.exists() and target.samefile(source)):
        raise InvalidTarget(f"{target} belongs to the database that is to be backed up; name another file")
    if os.path.lexists(target) and not overwrite:
        raise InvalidTarget(f"{target} exists; name another file, or say --overwrite")
    for each in _beside(target):
        if each.exists() and not each.name.endswith("-shm"):  # SQLite would take it for the log of the copy
            raise InvalidTarget(f"{each} belongs to a database that is in use, or was; remove it, or name another file")


def _beside(path: Path) -> list[Path]:
    return [path.with_name(path.name + suffix) for suffix in _SIDE_FILES]


# -- reading -----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _snapshot(path: Path) -> Iterator[Connection]:
    """A connection that sees the database as of its first read. It is closed behind the gate: the last one to close
    folds the log in."""

    def connect() -> sqlite3.Connection:
        driver = sqlite3.connect(
            f"{path.as_uri()}?mode=rw", uri=True, isolation_level=None, timeout=BUSY_TIMEOUT.total_seconds()
        )
        for pragma in ("query_only=ON", "wal_autocheckpoint=0"):
            driver.execute(f"PRAGMA {pragma}")
        return driver

    engine = create_engine("sqlite+pysqlite://", creator=connect, poolclass=StaticPool)
    try:
        with translated(f"the database {path}"):
            connection = engine.connect()
            connection.exec_driver_sql("BEGIN")
        with connection:
            yield connection
    finally:
        _close(engine, Gate(path.resolve(), f"the database {path}"))


def _close(engine: Engine, gate: Gate) -> None:
    if gate.stands:  # else no store has the file open, and the folder is left as it was
        with contextlib.suppress(StoreLocked, OSError), gate.passed(PATIENCE_TO_CLOSE):
            engine.dispose()
    engine.dispose()
    gate.close()


def _looked_at(connection: Connection, path: Path) -> tuple[str, int]:
    revision = migrate.revision(connection)
    if revision is None:
        raise DatabaseMissing(f"{path} has no tables of lash, so there is nothing to back up; check the URL")
    living = select(func.count()).select_from(schema.sessions).where(schema.sessions.c.state == "live")
    return revision, connection.execute(living).scalar_one()


# -- writing -----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _unfinished(target: Path) -> Iterator[tuple[Path, int]]:
    """A new file beside the target that is locked as long as somebody writes to it, and gone afterwards."""
    _remove_abandoned(target)
    copy, handle = _new_file(target)
    try:
        yield copy, handle
    finally:
        _remove(copy)
        os.close(handle)


def _new_file(target: Path) -> tuple[Path, int]:
    while True:
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=UNFINISHED)
        fcntl.flock(handle, fcntl.LOCK_EX)
        if os.path.exists(name):
            return Path(name), handle
        os.close(handle)  # before it was locked, another backup took it for an abandoned one


def _remove_abandoned(target: Path) -> None:
    for copy in target.parent.glob(f".{_literal(target.name)}.*{UNFINISHED}"):
        with contextlib.suppress(FileNotFoundError, BlockingIOError):  # finished meanwhile; or still written to
            handle = os.open(copy, os.O_RDWR)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _remove(copy)
            finally:
                os.close(handle)


def _literal(name: str) -> str:
    """A name in which a pattern finds nothing but itself."""
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in name)


def _remove(copy: Path) -> None:
    for each in (copy, *_beside(copy)):
        each.unlink(missing_ok=True)


def _copy(connection: Connection, to: Path) -> None:
    """Copy every page. The copy needs no log beside it: a store that opens it will begin one."""
    source = connection.connection.driver_connection
    assert isinstance(source, sqlite3.Connection)
    assert source.in_transaction, "every step would read another snapshot"
    with contextlib.closing(sqlite3.connect(to, isolation_level=None)) as target:
        for setting in ("locking_mode=EXCLUSIVE", "synchronous=OFF", "journal_mode=OFF"):
            target.execute(f"PRAGMA {setting}")
        source.backup(target, pages=STEP, progress=_listen)
        target.execute("PRAGMA journal_mode=DELETE")


def _listen(status: int, remaining: int, total: int) -> None:
    """Called between two steps. Python hears of an interruption only while it runs something of its own."""
