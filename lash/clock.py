"""Time as a seam. Every instant is UTC and exact to the microsecond, in memory and in a row alike."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Protocol

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)


class Clock(Protocol):
    """What time it is. Postgres asks the database instead; memory and SQLite ask this."""

    def now(self) -> datetime: ...


class SystemClock:
    def now(self) -> datetime:
        return datetime.now(UTC)


def to_micros(at: datetime) -> int:
    """An instant as the integer that rows keep."""
    return (at - EPOCH) // MICROSECOND


def from_micros(micros: int) -> datetime:
    return EPOCH + timedelta(microseconds=micros)
