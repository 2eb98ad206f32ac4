"""What a database says when it cannot, in the words of ``lash.errors``."""

from __future__ import annotations

import contextlib
import errno
import sqlite3
from collections.abc import Iterator

from sqlalchemy.exc import DBAPIError, IntegrityError, SQLAlchemyError

from lash.errors import (
    AccessDenied,
    CorruptFile,
    DatabaseMissing,
    DiskFull,
    InvariantBroken,
    LashError,
    ReadOnlyStore,
    StoreLocked,
    StoreUnavailable,
)
from lash.store.sql.steps import Unsettled

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
_LOCKED = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_CORRUPT = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_UNFIT = (sqlite3.SQLITE_TOOBIG, sqlite3.SQLITE_MISMATCH, sqlite3.SQLITE_RANGE, sqlite3.SQLITE_CONSTRAINT)
_DENIED = (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH)

# Serialization failure, deadlock, lock not available: the same transaction may pass when it is tried again.
_CONTENDED = ("40001", "40P01", "55P03")
_WRONG_CREDENTIALS = ("28000", "28P01", "42501")
_UNKNOWN_DATABASE = "3D000"
_FULL = ("53100",)
_READ_ONLY = "25006"
_UNFIT_CLASSES = ("22", "23", "42")
"""A value, a row or a statement that the database cannot accept: the fault of one write, not of the database."""
_GONE = ("08", "57P", "532", "533")


@contextlib.contextmanager
def translated(where: str) -> Iterator[None]:
    """Errors of the database inside this block come out as errors of lash. ``where`` names the database to the user."""
    try:
        yield
    except SQLAlchemyError as error:
        raise translate(error, where) from error
    except (sqlite3.Error, OSError) as error:
        raise _translate_driver(error, where) from error
    except Exception as error:
        if type(error).__module__.startswith("asyncpg."):  # an extra, which may not be installed
            raise _translate_driver(error, where) from error
        raise


def translate(error: SQLAlchemyError, where: str) -> LashError | Unsettled:
    if isinstance(error, IntegrityError):
        return Unsettled(InvariantBroken(f"{where} refused a row: {error.orig}"))
    if isinstance(error, DBAPIError) and error.orig is not None:
        found = _translate_driver(error.orig, where)
        lost = error.connection_invalidated and not isinstance(found, StoreUnavailable)
        return StoreUnavailable(f"the connection to {where} was lost: {error.orig}") if lost else found
    return StoreUnavailable(f"{where} does not answer: {error}")


def _translate_driver(error: BaseException, where: str) -> LashError | Unsettled:
    if isinstance(error, sqlite3.Error):
        return _from_sqlite(error, where)
    code = getattr(error, "sqlstate", None)
    if isinstance(code, str):
        return _from_postgres(code, error, where)
    if isinstance(error, OSError) and error.errno in _NO_ROOM:
        return DiskFull(f"there is no room left for {where}; free some space and repeat the call")
    if isinstance(error, PermissionError):
        return AccessDenied(f"{where} cannot be opened: {error}. Check its owner and permissions")
    return StoreUnavailable(f"{where} does not answer{f': {error}' if str(error) else ' in time'}")


def is_io_error(error: sqlite3.Error) -> bool:
    return _code(error) == sqlite3.SQLITE_IOERR


def _code(error: sqlite3.Error) -> int:
    """The upper bits say only where in SQLite it happened."""
    return (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF


def _from_sqlite(error: sqlite3.Error, where: str) -> LashError | Unsettled:
    code = _code(error)
    if code in _UNFIT or isinstance(error, sqlite3.DataError | sqlite3.InterfaceError):
        return Unsettled(InvariantBroken(f"{where} refused a value: {error}"))
    if code in _LOCKED:
        return StoreLocked(f"{where} is locked by another program; close that, or try again")
    if code == sqlite3.SQLITE_FULL:
        return DiskFull(f"there is no room left for {where}; free some space and repeat the call")
    if code == sqlite3.SQLITE_READONLY:
        return ReadOnlyStore(f"{where} cannot be written; check the permissions of the file and its folder")
    if code in _CORRUPT:
        return CorruptFile(f"{where} is damaged or is no SQLite database ({error}); restore a backup")
    if code in _DENIED:
        return AccessDenied(f"{where} cannot be opened ({error}); check the path, its owner and permissions")
    return StoreUnavailable(f"{where}: {error}")


def _from_postgres(code: str, error: BaseException, where: str) -> LashError | Unsettled:
    if code in _CONTENDED:
        return Unsettled(StoreLocked(f"{where} is contended ({error}); try again"))
    if code in _WRONG_CREDENTIALS:
        return AccessDenied(f"{where} refused this user: {error}. Check user, password and rights")
    if code == _UNKNOWN_DATABASE:
        return DatabaseMissing(f"{where}: {error}. Create it, then run 'lash db upgrade'")
    if code in _FULL:
        return DiskFull(f"{where} has no room left: {error}")
    if code == _READ_ONLY:
        return ReadOnlyStore(f"{where} is read-only: {error}. Is it a standby?")
    if code.startswith(_UNFIT_CLASSES):
        return Unsettled(InvariantBroken(f"{where} refused a value: {error}"))
    if code.startswith(_GONE):
        return StoreUnavailable(f"{where} is not available: {error}")
    return StoreUnavailable(f"{where}: {error}")
