from __future__ import annotations

from pathlib import Path

import pytest

from lash.commit.outbox import OUTBOX_VERSION, Debt, decode_owed
from lash.commit.plan import PLAN_VERSION, content_hash
from lash.graph.nodes import NODE_VERSION, PAYLOADS, decode_payload, encode_payload
from lash.ids import WaitId
from lash.inbox.items import ITEM_VERSION, decode_body, encode_body
from lash.inbox.items import content_hash as item_hash
from lash.waits import sign, verify

from .conftest import FOLDER, Golden, compare
from .samples import COMMIT_HASHES, ITEM_HASHES, ITEMS, NODES, OPERATION, OWED, SESSION

SAMPLES: dict[str, dict[str, object]] = {"nodes": {**NODES}, "items": {**ITEMS}, "outbox": {**OWED}}


def stored(kind: str) -> list[Path]:
    return sorted((FOLDER / kind).glob("v*/*.json"))


@pytest.mark.parametrize("name", NODES)
def test_a_node_is_stored_as_it_always_was(name: str, golden: Golden) -> None:
    golden(f"nodes/v{NODE_VERSION}/{name}.json", encode_payload(NODES[name]))


@pytest.mark.parametrize("name", ITEMS)
def test_an_item_is_stored_as_it_always_was(name: str, golden: Golden) -> None:
    golden(f"items/v{ITEM_VERSION}/{name}.json", encode_body(ITEMS[name]))


@pytest.mark.parametrize("name", OWED)
def test_a_debt_is_stored_as_it_always_was(name: str, golden: Golden) -> None:
    golden(f"outbox/v{OUTBOX_VERSION}/{name}.json", OWED[name].encode())


@pytest.mark.parametrize("name", ITEM_HASHES)
def test_an_item_sent_again_after_an_upgrade_is_the_same_item(name: str, golden: Golden) -> None:
    golden(f"item_hashes/v{ITEM_VERSION}/{name}.txt", item_hash(ITEM_HASHES[name]))


@pytest.mark.parametrize("name", COMMIT_HASHES)
def test_a_commit_repeated_after_an_upgrade_is_the_same_commit(name: str, golden: Golden) -> None:
    golden(f"commit_hashes/v{PLAN_VERSION}/{name}.txt", content_hash(COMMIT_HASHES[name]))


def test_a_debt_paid_after_an_upgrade_is_paid_by_the_same_item(golden: Golden) -> None:
    item = Debt(SESSION, OPERATION, 2, OWED["least"]).item()
    golden("debts/v1/item.txt", f"{item.id} {item.key}")


def test_a_key_handed_out_before_an_upgrade_opens_its_wait_after_it(golden: Golden) -> None:
    wait, secret = WaitId("9" * 32), b"the secret of one database"
    golden("wait_keys/v1/key.txt", sign(wait, secret))
    key = (FOLDER / "wait_keys/v1/key.txt").read_text(encoding="utf-8").strip()
    assert verify(key, secret) == wait


@pytest.mark.parametrize("file", stored("nodes"), ids=lambda file: f"{file.parent.name}/{file.stem}")
def test_a_node_of_every_version_is_still_read(file: Path) -> None:
    payload = decode_payload(file.stem.split(".")[0], file.read_text(encoding="utf-8"), what=file.stem)
    assert payload == NODES[file.stem]


@pytest.mark.parametrize("file", stored("items"), ids=lambda file: f"{file.parent.name}/{file.stem}")
def test_an_item_of_every_version_is_still_read(file: Path) -> None:
    assert decode_body(file.read_text(encoding="utf-8"), what=file.stem) == ITEMS[file.stem]


@pytest.mark.parametrize("file", stored("outbox"), ids=lambda file: f"{file.parent.name}/{file.stem}")
def test_a_debt_of_every_version_is_still_read(file: Path) -> None:
    assert decode_owed(file.read_text(encoding="utf-8"), what=file.stem) == OWED[file.stem]


def test_every_kind_of_node_has_a_golden_file() -> None:
    assert {name.split(".")[0] for name in NODES} == set(PAYLOADS)


@pytest.mark.parametrize("kind", SAMPLES)
def test_every_golden_file_has_a_sample(kind: str) -> None:
    assert {file.stem for file in stored(kind)} == set(SAMPLES[kind])


def test_a_golden_file_of_a_released_version_is_never_written(tmp_path: Path) -> None:
    released = frozenset({"nodes/v1"})
    compare(tmp_path, "nodes/v1/noted.json", "old", update=True, released=frozenset())
    compare(tmp_path, "nodes/v1/noted.json", "old", update=True, released=released)
    with pytest.raises(AssertionError, match="a new form needs a new version"):
        compare(tmp_path, "nodes/v1/noted.json", "new", update=True, released=released)
    assert (tmp_path / "nodes/v1/noted.json").read_text() == "old\n"


def test_a_golden_file_that_is_missing_or_differs_fails_the_test(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="--update-golden"):
        compare(tmp_path, "nodes/v1/noted.json", "text", update=False, released=frozenset())
    compare(tmp_path, "nodes/v1/noted.json", "text", update=True, released=frozenset())
    with pytest.raises(AssertionError, match="says something else"):
        compare(tmp_path, "nodes/v1/noted.json", "other", update=False, released=frozenset())
