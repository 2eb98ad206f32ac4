from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import JsonValue

from lash.encoding import canonical, check_version, digest, read_record, record, utf8_size
from lash.errors import (
    CorruptRecord,
    InvalidValue,
    RecordVersionMalformed,
    RecordVersionMissing,
    RecordVersionUnsupported,
    TooLarge,
)

BODY_LIMIT = 16 * 1024 * 1024


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        (True, "true"),
        (False, "false"),
        (0, "0"),
        (-7, "-7"),
        (12345678901234567890123, "12345678901234567890123"),
        (1.0, "1.0"),
        (-0.0, "-0.0"),
        (0.1, "0.1"),
        (1e300, "1e+300"),
        ("", '""'),
        ("Zürich 🙂", '"Zürich 🙂"'),
        ('"\\/\b\f\n\r\t\x00\x1f\x7f', '"\\"\\\\/\\b\\f\\n\\r\\t\\u0000\\u001f\x7f"'),
        ([], "[]"),
        ({}, "{}"),
        ([1, [2, {"a": None}]], '[1,[2,{"a":null}]]'),
        ({"b": 1, "a": 2, "": 3, "B": 4}, '{"":3,"B":4,"a":2,"b":1}'),
        ({"10": 1, "9": 2}, '{"10":1,"9":2}'),
    ],
)
def test_a_value_has_one_canonical_text(value: JsonValue, text: str) -> None:
    assert canonical(value) == text


def test_the_order_of_keys_makes_no_difference() -> None:
    assert canonical({"a": {"x": 1, "y": 2}, "b": 3}) == canonical({"b": 3, "a": {"y": 2, "x": 1}})


@pytest.mark.parametrize(("left", "right"), [(1, 1.0), (1, True), (0, False), (0.0, -0.0), ("1", 1), (None, "null")])
def test_values_that_python_or_people_confuse_stay_different(left: JsonValue, right: JsonValue) -> None:
    assert canonical({"x": left}) != canonical({"x": right})


class Thing:
    pass


@pytest.mark.parametrize(
    ("value", "where", "problem"),
    [
        (float("nan"), "options", "nan is not a JSON number"),
        ({"a": [0, float("inf")]}, "options.a[1]", "inf is not a JSON number"),
        ({"a": {"b": float("-inf")}}, "options.a.b", "-inf is not a JSON number"),
        ({"a": ["x", "y\ud800"]}, "options.a[1]", "character 1 is a lone surrogate"),
        ({"a": {"\udfff": 1}}, "options.a: key", "character 0 is a lone surrogate"),
        ({"a": {1, 2}}, "options.a", "set is not a JSON value"),
        ({"a": [Thing()]}, "options.a[0]", "Thing is not a JSON value"),
        ({"a": 1j}, "options.a", "complex is not a JSON value"),
        ({"a": {("b",): 1}}, "options.a", "the key ('b',) is not a string"),
        ({"a": {1: 1, "b": 2}}, "options.a", "the key 1 is not a string"),
    ],
)
def test_what_json_cannot_carry_is_refused_and_the_place_is_named(value: Any, where: str, problem: str) -> None:
    with pytest.raises(InvalidValue) as refused:
        canonical(value, what="options")
    assert refused.value.where == where
    assert problem in refused.value.problem


def test_a_number_too_long_to_write_is_refused() -> None:
    with pytest.raises(InvalidValue, match="options"):
        canonical({"a": 10**5000}, what="options")


# Python would write such keys as strings, sorted as what they were: {9: …, 10: …} as 9, 10 and, once read back, as
# 10, 9. That is the same content under two hashes.
@pytest.mark.parametrize("value", [{1: "a"}, {9: "a", 10: "b"}, {None: 1}, {True: 1}, {1.5: 1}, {b"a": 1}])
@pytest.mark.parametrize(
    "inside",
    [lambda value: value, lambda value: {"b": value}, lambda value: {"b": [0, value]}, lambda value: ((value,),)],
    ids=["at the top", "in an object", "in a list", "in tuples"],
)
def test_a_key_that_is_no_string_is_refused_however_deep_it_is(value: Any, inside: Callable[[Any], Any]) -> None:
    with pytest.raises(InvalidValue, match=r"^options.*: the key .* is not a string$"):
        canonical(inside(value), what="options")


@pytest.mark.parametrize("value", [b"x", bytearray(b"x"), range(3)])
def test_the_place_of_bytes_is_named_too(value: Any) -> None:
    with pytest.raises(InvalidValue, match="is not a JSON value") as refused:
        canonical({"a": [0, value]}, what="options")
    assert refused.value.where == "options.a[1]"


def test_a_value_that_contains_itself_is_refused() -> None:
    ring: dict[str, Any] = {}
    ring["again"] = [ring]
    with pytest.raises(InvalidValue, match="options: it is nested more than 200 levels deep, or contains itself"):
        canonical(ring, what="options")


def nested(levels: int) -> Any:
    deep: Any = 0
    for _ in range(levels):
        deep = [deep]
    return deep


def test_nesting_has_a_limit_that_does_not_depend_on_the_reader() -> None:
    assert canonical(nested(199)) == "[" * 199 + "0" + "]" * 199
    for levels in (200, 100_000):
        with pytest.raises(InvalidValue, match="options: it is nested more than 200 levels deep"):
            canonical(nested(levels), what="options")


def test_a_key_that_is_no_string_is_refused_in_the_largest_value() -> None:
    with pytest.raises(InvalidValue, match="is not a string"):
        canonical({"b": [0] * 1_000_001, "a": {1: "x"}})


def test_the_size_of_a_text_is_counted_in_bytes() -> None:
    fits = "ü" * ((BODY_LIMIT - 2) // 2)
    assert len(canonical(fits)) == len(fits) + 2
    with pytest.raises(TooLarge) as refused:
        canonical(fits + "x", what="a message")
    assert (refused.value.what, refused.value.size, refused.value.limit) == ("a message", BODY_LIMIT + 1, BODY_LIMIT)


def test_a_text_is_measured_in_bytes_and_one_that_no_encoding_can_store_is_refused() -> None:
    assert [utf8_size(text, what="a node") for text in ("", "abc", "Zürich", "🙂")] == [0, 3, 7, 4]
    with pytest.raises(InvalidValue, match="a node: character 2 is a lone surrogate"):
        utf8_size("ab\ud800", what="a node")


def test_a_record_carries_its_version() -> None:
    assert record(3, {"x": 1, "a": [2]}) == '{"a":[2],"v":3,"x":1}'


def test_a_record_reads_back_without_its_version() -> None:
    assert read_record('{"a": [2], "v": 1, "x": 1}', what="node n", supported=2) == {"a": [2], "x": 1}


def test_a_field_that_the_version_would_overwrite_is_refused() -> None:
    with pytest.raises(InvalidValue, match="a note: the field 'v' is taken by the record version"):
        record(1, {"v": "mine"}, what="a note")


def test_a_record_without_a_version_is_refused() -> None:
    with pytest.raises(RecordVersionMissing, match="node n"):
        read_record('{"a": 1}', what="node n", supported=1)


@pytest.mark.parametrize("version", ["1", 1.0, None, True, 0, -1, [1], {}])
def test_a_malformed_version_is_refused(version: JsonValue) -> None:
    with pytest.raises(RecordVersionMalformed, match="node n") as refused:
        read_record(json.dumps({"v": version}), what="node n", supported=1)
    assert refused.value.found == version


def test_a_version_of_a_later_lash_is_refused_with_both_numbers() -> None:
    with pytest.raises(RecordVersionUnsupported) as refused:
        read_record('{"v": 3}', what="node n", supported=2)
    assert (refused.value.found, refused.value.supported) == (3, 2)


def test_the_version_is_looked_at_before_the_rest() -> None:
    with pytest.raises(RecordVersionUnsupported):
        read_record('{"v": 99, "reason": 7, "nobody": "knows"}', what="node n", supported=1)


@pytest.mark.parametrize("supported", [1, 2, 7])
def test_every_version_up_to_the_supported_one_is_read(supported: int) -> None:
    assert [check_version(v, what="node n", supported=supported) for v in range(1, supported + 1)] == [
        *range(1, supported + 1)
    ]


@pytest.mark.parametrize("text", ["", "{", "nonsense", "[1]", "1", "null", '"{}"', '{"v": 1} x'])
def test_text_that_is_no_record_is_corrupt(text: str) -> None:
    with pytest.raises(CorruptRecord, match="node n"):
        read_record(text, what="node n", supported=1)


@pytest.mark.parametrize(
    "text",
    ['{"v": 1, "a": NaN}', '{"v": 1, "a": [-Infinity]}', '{"v": NaN}', "[" * 100_000, '{"v": 1, "a": ' + "9" * 5000],
    ids=["nan", "infinity", "version", "deep", "long"],
)
def test_text_that_lash_cannot_have_written_is_corrupt(text: str) -> None:
    with pytest.raises(CorruptRecord, match="node n"):
        read_record(text, what="node n", supported=1)


def test_a_digest_is_the_sha_256_of_a_tag_and_of_each_text_with_its_length() -> None:
    # printf 'lash:item:1:2:ab0:' | sha256sum
    assert digest("item", 1, ["ab", ""]) == "c0936bb581d27d610b1abe64a23c8a8e92b4bcea9c4fc7062ca696d7fdfa2fe0"
    # printf 'lash:item:1:' | sha256sum
    assert digest("item", 1, []) == "3bc05f8bd45a5d1080898f55996ceca98c719b716fc6ef806d69da2e1b448ec7"
    # printf 'lash:node:2:7:Z\xc3\xbcrich' | sha256sum
    assert digest("node", 2, ["Zürich"]) == "7d5c98f427dd9350d8b5dae485a3450260bc916be76f1f09348fe88b13df7530"


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ([], [""]),
        (["a"], ["a", ""]),
        (["ab"], ["a", "b"]),
        (["a", "b"], ["b", "a"]),
        (["1:a"], ["", "a"]),
        (["a1:b"], ["a", "b"]),
        (["0:"], ["", ""]),
    ],
)
def test_no_two_lists_of_texts_share_a_digest(left: list[str], right: list[str]) -> None:
    assert digest("item", 1, left) != digest("item", 1, right)


def test_what_is_hashed_and_its_version_are_part_of_the_digest() -> None:
    assert len({digest("item", 1, ["a"]), digest("item", 2, ["a"]), digest("commit", 1, ["a"])}) == 3


# Were nothing to end the tag, the digits of the version would run into those of the first length.
def test_no_two_versions_share_a_digest() -> None:
    assert digest("item", 1, ["xx8:yyyyyyyy"]) != digest("item", 11, ["xx", "yyyyyyyy"])
