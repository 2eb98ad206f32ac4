from __future__ import annotations

from typing import Any

import pytest

from lash import errors
from lash.cli import main
from lash.cli.exits import exit_code
from lash.errors import LashError

CODES = {
    "UsageError": 2,
    "NotFound": 3,
    "Conflict": 4,
    "TryAgain": 5,
    "StoreUnavailable": 6,
    "WiringError": 7,
    "CorruptData": 8,
    "InvariantBroken": 70,
}


@pytest.mark.parametrize("group", CODES)
def test_every_group_of_errors_ends_the_command_with_its_own_code(group: str) -> None:
    kind: type[LashError] = getattr(errors, group)
    assert exit_code(kind("so")) == CODES[group]


def test_a_group_of_errors_without_a_code_does_not_exist() -> None:
    assert {kind.__name__ for kind in LashError.__subclasses__() if kind.__module__ == "lash.errors"} == set(CODES)


def test_an_error_inside_a_group_ends_with_the_code_of_the_group() -> None:
    assert exit_code(errors.SessionNotFound("nobody")) == 3
    assert exit_code(errors.DiskFull("full")) == 6
    assert exit_code(errors.CorruptRecord("node 7", "not JSON")) == 8


def test_what_is_no_error_of_lash_is_a_bug(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    def broken(**_: Any) -> None:
        raise ZeroDivisionError("by zero")

    monkeypatch.setattr(main, "app", broken)
    with pytest.raises(SystemExit) as end:
        main.run()
    assert end.value.code == 70
    told = capfd.readouterr().err
    assert "a bug in lash: ZeroDivisionError: by zero" in told
    assert "Traceback" not in told
