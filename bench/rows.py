"""A row of the table: what was measured, against what, and the bound that it must keep."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Literal

from bench.databases import Backend

BackendName = Literal["sqlite", "postgres"]


@dataclass(frozen=True, slots=True)
class Cost:
    """What one operation took of its machine. ``syncs`` is None where nobody could count them."""

    cpu_us: float | None = None
    syncs: float | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """``ratio`` is what the bound is about; ``spread`` are its quartiles over the rounds."""

    name: str
    backend: str
    value: float
    unit: str
    baseline: float
    ratio: float
    spread: tuple[float, float] | None = None
    floor: float | None = None
    ceiling: float | None = None
    cost: Cost = field(default_factory=Cost)
    baseline_cost: Cost = field(default_factory=Cost)

    @property
    def met(self) -> bool:
        above = self.floor is None or self.ratio >= self.floor
        return above and (self.ceiling is None or self.ratio <= self.ceiling)

    def encode(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "backend": self.backend,
            "value": self.value,
            "unit": self.unit,
            "baseline": self.baseline,
            "ratio": self.ratio,
            "spread": self.spread,
            **({"floor": self.floor} if self.floor is not None else {}),
            **({"ceiling": self.ceiling} if self.ceiling is not None else {}),
            "met": self.met,
            "cpu_us": self.cost.cpu_us,
            "baseline_cpu_us": self.baseline_cost.cpu_us,
            "syncs": self.cost.syncs,
            "baseline_syncs": self.baseline_cost.syncs,
        }


Measure = Callable[[Backend, float], Coroutine[Any, Any, Row]]
"""Measures one row on one backend. The number is the effort: 1 is a full run, less means fewer rounds."""


@dataclass(frozen=True, slots=True)
class Entry:
    name: str
    backends: tuple[BackendName, ...]
    measure: Measure


ROWS: list[Entry] = []


def row(name: str, *backends: BackendName) -> Callable[[Measure], Measure]:
    """Put a row into the table."""

    def add(measure: Measure) -> Measure:
        ROWS.append(Entry(name, backends, measure))
        return measure

    return add
