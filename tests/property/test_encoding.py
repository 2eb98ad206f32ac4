from __future__ import annotations

import json
import random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue

from lash.encoding import canonical, digest, read_record, record
from lash.graph.nodes import Payload, decode_payload, encode_payload

from .values import hundred_examples, json_objects, json_values, payloads, texts


def is_same(left: Any, right: Any) -> bool:
    """Equal in JSON's eyes: 1, 1.0 and true are three values, and so are 0.0 and -0.0."""
    if type(left) is not type(right):
        return False
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(is_same(left[key], right[key]) for key in left)
    if isinstance(left, list):
        return len(left) == len(right) and all(map(is_same, left, right))
    return bool(left == right) and repr(left) == repr(right)


def shuffled(value: Any, by: random.Random) -> Any:
    """The same value with the keys of every object in another order."""
    if isinstance(value, dict):
        keys = by.sample(list(value), len(value))
        return {key: shuffled(value[key], by) for key in keys}
    if isinstance(value, list):
        return [shuffled(inner, by) for inner in value]
    return value


@hundred_examples
@given(json_values)
def test_a_value_reads_back_as_it_was_written_and_is_written_the_same_again(value: JsonValue) -> None:
    text = canonical(value)
    again = json.loads(text)
    assert is_same(again, value)
    assert canonical(again) == text


@hundred_examples
@given(json_values, st.randoms(use_true_random=False))
def test_the_order_of_keys_makes_no_difference(value: JsonValue, by: random.Random) -> None:
    assert canonical(shuffled(value, by)) == canonical(value)


@hundred_examples
@given(json_values, json_values)
def test_two_values_have_the_same_text_exactly_when_they_are_the_same(left: JsonValue, right: JsonValue) -> None:
    assert (canonical(left) == canonical(right)) == is_same(left, right)


@hundred_examples
@given(json_values)
def test_a_text_has_no_spaces_between_its_tokens_and_fits_any_encoding(value: JsonValue) -> None:
    text = canonical(value)
    assert text == json.dumps(json.loads(text), ensure_ascii=False, separators=(",", ":"))
    assert text.encode("utf-8").decode("utf-8") == text


@hundred_examples
@given(json_objects.filter(lambda fields: "v" not in fields), st.integers(1, 9))
def test_a_record_reads_back_without_its_version(fields: dict[str, JsonValue], version: int) -> None:
    text = record(version, fields)
    assert json.loads(text)["v"] == version
    assert is_same(read_record(text, what="r", supported=9), fields)


tricky_texts = st.text("0123:ab", max_size=6)


@hundred_examples
@given(st.lists(tricky_texts | texts, max_size=4), st.lists(tricky_texts | texts, max_size=4))
def test_two_lists_have_the_same_digest_exactly_when_they_are_equal(left: list[str], right: list[str]) -> None:
    assert (digest("item", 1, left) == digest("item", 1, right)) == (left == right)


@hundred_examples
@given(st.lists(tricky_texts, min_size=1, max_size=4), st.data())
def test_cutting_a_list_of_texts_elsewhere_changes_its_digest(pieces: list[str], data: st.DataObject) -> None:
    whole = "".join(pieces)
    cut = data.draw(st.integers(0, len(whole)))
    other = [whole[:cut], whole[cut:]]
    assert (digest("item", 1, pieces) == digest("item", 1, other)) == (pieces == other)


@hundred_examples
@given(payloads)
def test_every_payload_reads_back_as_it_was_written(payload: Payload) -> None:
    body = encode_payload(payload)
    again = decode_payload(payload.kind, body, what="node n")
    assert again == payload
    assert encode_payload(again) == body
    assert again.blobs() == payload.blobs()
