"""Which exit code an error ends the command with: one for each thing that the caller can do next."""

from __future__ import annotations

from collections.abc import Mapping

from lash.errors import (
    Conflict,
    CorruptData,
    InvariantBroken,
    LashError,
    NotFound,
    StoreUnavailable,
    TryAgain,
    UsageError,
    WiringError,
)

BUG = 70  # EX_SOFTWARE of sysexits.h

EXITS: Mapping[type[LashError], int] = {
    UsageError: 2,  # what a wrong option ends with, too
    NotFound: 3,
    Conflict: 4,
    TryAgain: 5,
    StoreUnavailable: 6,
    WiringError: 7,
    CorruptData: 8,
    InvariantBroken: BUG,
}


def exit_code(error: BaseException) -> int:
    """The code of the error's group. What is no error of lash is a bug."""
    return next((code for group, code in EXITS.items() if isinstance(error, group)), BUG)
