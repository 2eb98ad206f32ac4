from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from lash.clock import SystemClock, from_micros, to_micros


@pytest.mark.parametrize(
    ("at", "micros"),
    [
        (datetime(1970, 1, 1, tzinfo=UTC), 0),
        (datetime(1970, 1, 1, 0, 0, 1, 2, tzinfo=UTC), 1_000_002),
        (datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC), -1),
        (datetime(2026, 1, 1, tzinfo=UTC), 1_767_225_600_000_000),
        (datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC), 253_402_300_799_999_999),
    ],
)
def test_an_instant_is_kept_exactly_to_the_microsecond(at: datetime, micros: int) -> None:
    assert to_micros(at) == micros
    assert from_micros(micros) == at


def test_an_instant_of_another_time_zone_is_the_same_instant() -> None:
    plus_two = timezone(timedelta(hours=2))
    assert to_micros(datetime(1970, 1, 1, 2, 0, 1, tzinfo=plus_two)) == 1_000_000
    assert from_micros(1_000_000).tzinfo is UTC


def test_the_system_clock_tells_utc() -> None:
    assert SystemClock().now().tzinfo is UTC
