from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import pytest

from lash.ids import NodeId, OperationId, SessionUid, id_from, mint_id, node_id, split_node_id

ORIGIN = SessionUid("0123456789abcdef" * 2)
OPERATION = OperationId("fedcba9876543210" * 2)


def test_a_minted_id_is_32_hex_digits() -> None:
    assert re.fullmatch("[0-9a-f]{32}", mint_id(datetime(2026, 1, 1, tzinfo=UTC)))


def test_a_minted_id_begins_with_its_milliseconds() -> None:
    at = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=0x0123456789AB)
    assert mint_id(at).startswith("0123456789ab")


def test_minted_ids_sort_by_their_time() -> None:
    start = datetime(2026, 1, 1, tzinfo=UTC)
    ids = [mint_id(start + timedelta(milliseconds=n)) for n in range(50)]
    assert ids == sorted(ids)


def test_ids_minted_in_the_same_millisecond_differ() -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    assert len({mint_id(at) for _ in range(1000)}) == 1000


def test_the_same_words_always_give_the_same_id() -> None:
    # printf '6:outbox1:7' | sha256sum | cut -c1-32
    assert id_from("outbox", "7") == "a4130f213aacd037c38ddd589efd26aa"


def test_other_words_give_another_id() -> None:
    assert len({id_from("a", "b"), id_from("ab"), id_from("b", "a"), id_from("a", "b", ""), id_from("a")}) == 5


def test_a_caller_s_key_with_a_lone_surrogate_still_gives_an_id() -> None:
    assert re.fullmatch("[0-9a-f]{32}", id_from("key", "\ud800"))


@pytest.mark.parametrize(
    ("left", "right"), [(("a\x1fb",), ("a", "b")), ((), ("",)), (("a1:b",), ("a", "b")), (("", "a"), ("0:1:a",))]
)
def test_no_two_lists_of_words_give_the_same_id(left: tuple[str, ...], right: tuple[str, ...]) -> None:
    assert id_from(*left) != id_from(*right)


def test_a_node_id_says_where_the_node_stands() -> None:
    node = node_id(ORIGIN, OPERATION, 7)
    assert node == "0123456789abcdef0123456789abcdef-fedcba9876543210fedcba9876543210-7"
    assert split_node_id(node) == (ORIGIN, OPERATION, 7)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "root",
        f"{ORIGIN}-{OPERATION}",
        f"{ORIGIN}-{OPERATION}-",
        f"{ORIGIN}-{OPERATION}-07",
        f"{ORIGIN}-{OPERATION}--1",
        f"{ORIGIN}-{OPERATION}-1\n",
        f" {ORIGIN}-{OPERATION}-1",
        f"{ORIGIN}-{OPERATION}-1000000000",
        f"{ORIGIN}-{OPERATION}-\u0661",
        f"{ORIGIN.upper()}-{OPERATION}-1",
        f"{ORIGIN[1:]}-{OPERATION}-1",
        f"{ORIGIN}_{OPERATION}_1",
    ],
)
def test_text_that_is_no_node_id_stands_nowhere(text: str) -> None:
    assert split_node_id(NodeId(text)) is None
