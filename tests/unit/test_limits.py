from __future__ import annotations

import unicodedata
from datetime import timedelta

import pytest

from lash.errors import InvalidId, InvalidKey, InvalidName, InvalidValue, TooLarge
from lash.limits import check_blob_hash, check_id, check_key, check_name, check_owner, check_size, check_ttl


@pytest.mark.parametrize(
    "name",
    ["a", "7", "_", "customer-42", "a.b_c-d:e@f+g=h~i", "Zürich", "東京", "данные", "x" * 128, "5" * 128],
)
def test_a_name_of_letters_digits_and_marks_is_accepted(name: str) -> None:
    assert check_name(name) == name


@pytest.mark.parametrize(
    "name",
    [
        "",
        " ",
        "a b",
        "-a",
        ".a",
        "@a",
        "a/b",
        "a\\b",
        "a\n",
        "a\x00",
        "a'b",
        'a"b',
        "a;b",
        "a%b",
        "a*b",
        "\ud800",
        "a\ud800",
        "a\u200b",
        "\u202ea",
        "🙂",
        "x" * 129,
        unicodedata.normalize("NFD", "Zürich"),
        "\u212b",
        "\u1100\u1161",
    ],
)
def test_another_name_is_refused_with_the_rule(name: str) -> None:
    with pytest.raises(InvalidName) as refused:
        check_name(name)
    assert refused.value.name == name[:80]
    assert "1 to 128 characters" in str(refused.value)
    assert ". _ - : @ + = ~" in str(refused.value)
    assert "NFC" in str(refused.value)


@pytest.mark.parametrize("key", ["k", " k ", "a b/c?d=e", "x" * 256, "ключ", "🙂", "a\u2028b"])
def test_a_key_of_printable_characters_is_accepted(key: str) -> None:
    assert check_key(key) == key


@pytest.mark.parametrize(
    "key", ["", " ", "\u00a0", "\u3000 ", "a\x00b", "a\nb", "a\x7f", "a\x85b", "\udfff", "x" * 257]
)
def test_another_key_is_refused_with_the_rule(key: str) -> None:
    with pytest.raises(InvalidKey) as refused:
        check_key(key)
    assert "1 to 256 characters" in str(refused.value)


def test_a_huge_key_is_not_repeated_in_its_error() -> None:
    with pytest.raises(InvalidKey) as refused:
        check_key("k" * 1_000_000)
    assert len(str(refused.value)) < 300


def test_a_huge_name_is_not_repeated_in_its_error() -> None:
    with pytest.raises(InvalidName) as refused:
        check_name("n" * 1_000_000)
    assert len(str(refused.value)) < 500


def test_an_id_of_32_hex_digits_is_accepted() -> None:
    check_id("a turn id", "0123456789abcdef" * 2)


@pytest.mark.parametrize("value", ["", "a" * 31, "a" * 33, "A" * 32, "g" * 32, "a" * 32 + "\n", "\u0661" * 32])
def test_another_id_is_refused_and_says_what_it_was_for(value: str) -> None:
    with pytest.raises(InvalidId, match="is not a turn id: 32 hex digits") as refused:
        check_id("a turn id", value)
    assert refused.value.what == "a turn id"


def test_a_blob_hash_is_64_hex_digits() -> None:
    assert check_blob_hash("ab" * 32) == "ab" * 32


@pytest.mark.parametrize("value", ["", "a" * 63, "a" * 65, "A" * 64, "a" * 64 + "\n", "g" * 64])
def test_another_blob_hash_is_refused(value: str) -> None:
    with pytest.raises(InvalidId, match="64 hex digits"):
        check_blob_hash(value)


@pytest.mark.parametrize("owner", ["o", "worker-7@host:8080", "x" * 128, "-"])
def test_an_owner_of_letters_digits_and_marks_is_accepted(owner: str) -> None:
    assert check_owner(owner) == owner


@pytest.mark.parametrize("owner", ["", " ", "a b", "a/b", "x" * 129, "a\n", "\ud800"])
def test_another_owner_is_refused(owner: str) -> None:
    with pytest.raises(InvalidId, match="is not an owner: 1 to 128"):
        check_owner(owner)


@pytest.mark.parametrize("ttl", [timedelta(milliseconds=1), timedelta(seconds=30), timedelta(minutes=10)])
def test_a_lease_lasts_from_a_millisecond_to_ten_minutes(ttl: timedelta) -> None:
    assert check_ttl(ttl) == ttl


@pytest.mark.parametrize(
    "ttl",
    [
        timedelta(0),
        timedelta(microseconds=999),
        timedelta(seconds=-30),
        timedelta(minutes=10, microseconds=1),
        timedelta.max,
        timedelta.min,
    ],
)
def test_another_lease_time_is_refused(ttl: timedelta) -> None:
    with pytest.raises(InvalidValue, match="from 1 millisecond to 0:10:00"):
        check_ttl(ttl)


def test_a_size_up_to_the_limit_is_accepted() -> None:
    check_size("a part", 10, 10)


def test_a_larger_size_is_refused_with_both_numbers_and_the_way_out() -> None:
    with pytest.raises(TooLarge) as refused:
        check_size("a part", 1_234_567, 1_000_000)
    assert str(refused.value) == (
        "a part has 1,234,567 bytes or more; at most 1,000,000 are kept. Split it, or use blobs"
    )
    assert (refused.value.size, refused.value.limit) == (1_234_567, 1_000_000)


def test_a_body_has_at_most_16_mebibytes() -> None:
    check_size("a node", 16 * 1024 * 1024)
    with pytest.raises(TooLarge):
        check_size("a node", 16 * 1024 * 1024 + 1)
