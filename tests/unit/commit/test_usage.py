from __future__ import annotations

from typing import Any

import pytest

from lash.commit.usage import MAX_TOKENS, Tokens, UsageDelta, UsageTotal, check_usage, totals
from lash.errors import InvalidKey, InvalidValue

BUCKETS = ("input", "cache_read", "cache_write", "output", "reasoning")


def test_tokens_add_up_bucket_by_bucket() -> None:
    assert Tokens(1, 2, 3, 4, 5) + Tokens(10, 20, 30, 40, 50) == Tokens(11, 22, 33, 44, 55)


def test_a_delta_is_written_as_five_numbers_in_a_fixed_order() -> None:
    delta = UsageDelta("agent", "m", Tokens(input=1, cache_read=2, cache_write=3, output=5, reasoning=4))
    assert delta.encode() == {"source": "agent", "model": "m", "tokens": [1, 2, 3, 5, 4]}


def test_the_ledger_is_summed_by_source_and_model() -> None:
    deltas = [
        UsageDelta("tool", "b", Tokens(input=1)),
        UsageDelta("agent", "b", Tokens(input=2)),
        UsageDelta("agent", "a", Tokens(output=3)),
        UsageDelta("agent", "b", Tokens(input=4, output=9)),
    ]
    assert totals(deltas) == (
        UsageTotal("agent", "a", Tokens(output=3)),
        UsageTotal("agent", "b", Tokens(input=6, output=9)),
        UsageTotal("tool", "b", Tokens(input=1)),
    )
    assert totals([]) == ()


def test_ordinary_usage_is_accepted() -> None:
    check_usage(UsageDelta("agent", "anthropic:m", Tokens()))
    check_usage(UsageDelta("agent", "anthropic:m", Tokens(output=7, reasoning=7)))
    check_usage(UsageDelta("agent", "m", Tokens(MAX_TOKENS, MAX_TOKENS, MAX_TOKENS, MAX_TOKENS, MAX_TOKENS)))


@pytest.mark.parametrize("bucket", BUCKETS)
@pytest.mark.parametrize("count", [-1, MAX_TOKENS + 1, float("nan")])
def test_a_count_that_no_model_can_mean_is_refused_and_the_bucket_is_named(bucket: str, count: Any) -> None:
    tokens = Tokens(**{"output": MAX_TOKENS, bucket: count})
    with pytest.raises(InvalidValue) as refused:
        check_usage(UsageDelta("agent", "m", tokens))
    assert refused.value.where == f"usage.{bucket}"


def test_reasoning_is_a_part_of_output() -> None:
    with pytest.raises(InvalidValue, match="part of output") as refused:
        check_usage(UsageDelta("agent", "m", Tokens(output=3, reasoning=4)))
    assert refused.value.where == "usage.reasoning"


@pytest.mark.parametrize(("source", "model"), [("", "m"), ("agent", ""), ("a\x00", "m"), ("agent", "m" * 257)])
def test_a_source_or_model_that_is_no_key_is_refused(source: str, model: str) -> None:
    with pytest.raises(InvalidKey):
        check_usage(UsageDelta(source, model, Tokens()))


def test_a_million_of_the_largest_deltas_still_fit_a_64_bit_sum() -> None:
    assert MAX_TOKENS * 1_000_000 < 2**63


@pytest.mark.parametrize("count", [1.5, 1.0, True, "1", None])
def test_a_count_that_is_no_integer_is_refused(count: Any) -> None:
    with pytest.raises(InvalidValue, match="is not a count of tokens"):
        check_usage(UsageDelta("agent", "m", Tokens(input=count)))
