"""Time, taken in turns: every round runs each side once, so that whatever disturbs the machine disturbs them all."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

Job = Callable[[], Awaitable[object]]
Prepare = Callable[[], Awaitable[Job]]
"""Makes ready, untimed, what is timed then."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One timed job. ``cpu`` is that of all threads of this process."""

    seconds: float
    cpu: float


async def interleaved(sides: Mapping[str, Prepare], *, rounds: int, warmup: int) -> dict[str, list[Sample]]:
    """The samples of each side, round by round. The side that begins changes from round to round."""
    samples: dict[str, list[Sample]] = {name: [] for name in sides}
    names = list(sides)
    gc.collect()
    for number in range(-warmup, rounds):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            sample = await timed(await sides[name]())
            if number >= 0:
                samples[name].append(sample)
    return samples


async def timed(job: Job) -> Sample:
    cpu, began = time.process_time(), time.perf_counter()
    await job()
    return Sample(time.perf_counter() - began, time.process_time() - cpu)


def seconds(samples: Sequence[Sample]) -> float:
    return statistics.median(sample.seconds for sample in samples)


def cpu(samples: Sequence[Sample]) -> float:
    return statistics.median(sample.cpu for sample in samples)


def quartiles(values: Sequence[float]) -> tuple[float, float]:
    if len(values) < 2:
        return values[0], values[0]
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, high


def speed_ratios(ours: Sequence[Sample], theirs: Sequence[Sample]) -> list[float]:
    """Round by round, how fast we were as a part of how fast they were."""
    return [their.seconds / our.seconds for our, their in zip(ours, theirs, strict=True)]
