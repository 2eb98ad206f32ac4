"""What a worker says about its calls: first what it asks for, then, once the store has answered, what it was told."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Call:
    """One call of one worker. Times are of the machine's monotonic clock, which all processes share.

    ``unsure`` says that the store could not answer and the call was repeated: what came of the first time is unknown.
    """

    worker: str
    number: int
    op: str
    given: dict[str, Any]
    began: int
    ended: int | None = None
    answer: Any = None
    refused: str | None = None
    unsure: bool = False

    @property
    def acknowledged(self) -> bool:
        return self.ended is not None and self.refused is None

    @property
    def possible(self) -> bool:
        """Whether it may have landed, as far as its caller knows."""
        return self.refused is None or self.unsure

    @property
    def session(self) -> str:
        return str(self.given["session"])


@dataclass(slots=True)
class Ledger:
    """All that all workers have said."""

    calls: list[Call] = field(default_factory=list)

    def acknowledged(self, *ops: str) -> Iterator[Call]:
        return (call for call in self.calls if call.op in ops and call.acknowledged)

    def possible(self, *ops: str) -> Iterator[Call]:
        return (call for call in self.calls if call.op in ops and call.possible)
