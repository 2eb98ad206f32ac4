"""The usage ledger: what was spent, by source and model, as deltas that a retried commit cannot count twice."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import astuple, dataclass

from lash.encoding import JsonObject
from lash.errors import InvalidValue
from lash.limits import check_key

MAX_TOKENS = 10**12
"""More than one delta can mean; sums of a million of them still fit a signed 64-bit integer."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """Five buckets. ``reasoning`` is a part of ``output``; the others do not overlap."""

    input: int = 0
    cache_read: int = 0
    cache_write: int = 0
    output: int = 0
    reasoning: int = 0

    def __add__(self, other: Tokens) -> Tokens:
        return Tokens(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))


@dataclass(frozen=True, slots=True)
class UsageDelta:
    """One entry of the ledger. ``source`` says who spent it: the agent, a compaction, a tool's own model call."""

    source: str
    model: str
    tokens: Tokens

    def encode(self) -> JsonObject:
        return {"source": self.source, "model": self.model, "tokens": list(astuple(self.tokens))}


@dataclass(frozen=True, slots=True)
class UsageTotal:
    source: str
    model: str
    tokens: Tokens


def check_usage(delta: UsageDelta) -> None:
    check_key(delta.source)
    check_key(delta.model)
    for bucket, count in zip(Tokens.__slots__, astuple(delta.tokens), strict=True):
        if type(count) is not int or not 0 <= count <= MAX_TOKENS:
            raise InvalidValue(f"usage.{bucket}", f"{count} is not a count of tokens from 0 to {MAX_TOKENS}")
    if delta.tokens.reasoning > delta.tokens.output:
        raise InvalidValue("usage.reasoning", "it is a part of output and cannot be larger")


def totals(deltas: Iterable[UsageDelta]) -> tuple[UsageTotal, ...]:
    """The ledger summed by source and model, in that order."""
    sums: dict[tuple[str, str], Tokens] = {}
    for delta in deltas:
        place = (delta.source, delta.model)
        sums[place] = sums.get(place, Tokens()) + delta.tokens
    return tuple(UsageTotal(source, model, tokens) for (source, model), tokens in sorted(sums.items()))
