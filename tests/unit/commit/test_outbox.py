from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from lash.commit.outbox import Debt, Owed, decode_owed
from lash.errors import CorruptRecord, RecordVersionMalformed, RecordVersionMissing, RecordVersionUnsupported
from lash.inbox.items import Command, NewItem, Wake, check_item

from ..samples import NOW, OPERATION, OTHER_OPERATION, OTHER_SESSION, SESSION, words

LEAST = Owed(OTHER_SESSION, words("done"))
MOST = Owed(
    OTHER_SESSION,
    Wake(source="child", data={"b": 1, "a": 2}),
    when="now",
    boundary="before_completion",
    merge_key="m",
    options={"max_steps": 3},
    available_at=NOW,
)
DEBT = Debt(SESSION, OPERATION, 2, MOST)


@pytest.mark.parametrize("owed", [LEAST, MOST, Owed(OTHER_SESSION, Command(name="reset", arguments={"x": 1}))])
def test_a_debt_reads_back_as_it_was_written(owed: Owed) -> None:
    assert decode_owed(owed.encode(), what="debt d") == owed


def test_a_debt_is_paid_by_an_ordinary_item_with_all_that_is_owed() -> None:
    item = DEBT.item()
    assert item == NewItem(
        id=item.id,
        key=f"outbox:{SESSION}:{OPERATION}:2",
        body=Wake(source="child", data={"b": 1, "a": 2}),
        when="now",
        boundary="before_completion",
        merge_key="m",
        options={"max_steps": 3},
        available_at=NOW,
    )
    # printf '6:outbox32:5…32:0…11:2' | sha256sum | cut -c1-32
    assert item.id == "e1a5c7ae2ba9af281fb06c45b25d3229"


def test_the_item_that_pays_an_acceptable_debt_can_be_admitted() -> None:
    check_item(replace(DEBT, owed=LEAST).item())


def test_delivering_a_debt_again_gives_the_same_item_and_another_debt_another() -> None:
    assert DEBT.item() == DEBT.item()
    others = [
        replace(DEBT, ordinal=3),
        replace(DEBT, operation=OTHER_OPERATION),
        replace(DEBT, session=OTHER_SESSION),
    ]
    assert len({debt.item().id for debt in [DEBT, *others]}) == 4
    assert len({debt.item().key for debt in [DEBT, *others]}) == 4


@pytest.mark.parametrize(
    ("version", "error"),
    [("absent", RecordVersionMissing), ("1", RecordVersionMalformed), (99, RecordVersionUnsupported)],
)
def test_the_three_faults_of_a_version_are_three_errors(version: Any, error: type[Exception]) -> None:
    fields = {**json.loads(LEAST.encode()), "v": version}
    if version == "absent":
        del fields["v"]
    with pytest.raises(error, match="debt d"):
        decode_owed(json.dumps(fields), what="debt d")


@pytest.mark.parametrize("field", ["to", "body", "when", "boundary", "merge_key", "options", "available_at"])
def test_a_debt_that_lacks_a_field_is_corrupt(field: str) -> None:
    fields = json.loads(LEAST.encode())
    del fields[field]
    with pytest.raises(CorruptRecord, match="debt d"):
        decode_owed(json.dumps(fields), what="debt d")


@pytest.mark.parametrize(("field", "value"), [("body", "nonsense"), ("available_at", "soon"), ("available_at", [])])
def test_a_debt_with_a_field_that_cannot_be_read_is_corrupt(field: str, value: object) -> None:
    with pytest.raises(CorruptRecord, match="debt d"):
        decode_owed(json.dumps({**json.loads(LEAST.encode()), field: value}), what="debt d")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("when", "later"),
        ("boundary", 7),
        ("merge_key", []),
        ("options", [1]),
        ("to", None),
        ("to", "5" * 31),
        ("to", "5" * 32 + "\n"),
        ("body", {}),
        ("available_at", 10**30),
        ("available_at", 1.0),
        ("available_at", True),
        ("from", "somebody"),
    ],
)
def test_a_debt_with_a_value_that_was_never_written_is_corrupt(field: str, value: object) -> None:
    with pytest.raises(CorruptRecord, match="debt d"):
        decode_owed(json.dumps({**json.loads(LEAST.encode()), field: value}), what="debt d")
