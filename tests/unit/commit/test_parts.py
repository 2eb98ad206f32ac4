from __future__ import annotations

import pytest

from lash.commit import parts
from lash.commit.parts import Changed, Kept, StateParts, check_parts, hash_of, resolve
from lash.errors import InvalidId, InvalidKey, PartMissing, TooLarge
from lash.ids import BlobHash

EMPTY = BlobHash("e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855")
"""SHA-256 of no bytes."""
STORED, UNKNOWN = BlobHash("a" * 64), BlobHash("b" * 64)


def test_a_part_is_known_by_the_sha_256_of_its_bytes() -> None:
    assert hash_of(b"") == EMPTY
    assert Changed(b"").hash == EMPTY


def test_a_commit_leaves_behind_exactly_the_parts_it_names() -> None:
    named: StateParts = {"tools": Changed(b""), "plugin": Kept(STORED)}
    assert resolve(named, {STORED, UNKNOWN}) == {"tools": EMPTY, "plugin": STORED}
    assert resolve({}, {STORED}) == {}


def test_a_part_that_is_kept_must_be_stored() -> None:
    with pytest.raises(PartMissing) as refused:
        resolve({"plugin": Kept(UNKNOWN)}, {STORED})
    assert (refused.value.name, refused.value.hash) == ("plugin", UNKNOWN)


def test_a_part_that_brings_its_body_need_not_be_stored() -> None:
    assert resolve({"tools": Changed(b"")}, ()) == {"tools": EMPTY}


def test_ordinary_parts_are_accepted() -> None:
    check_parts({"tools": Changed(b"x"), "plugin:notes": Kept(STORED)})


@pytest.mark.parametrize("name", ["", " ", "a\nb", "x" * 257])
def test_a_part_s_name_is_a_key(name: str) -> None:
    with pytest.raises(InvalidKey):
        check_parts({name: Changed(b"")})


def test_a_hash_that_is_none_is_refused() -> None:
    with pytest.raises(InvalidId):
        check_parts({"tools": Kept(BlobHash("nonsense"))})


def test_a_part_too_large_to_keep_is_refused_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "MAX_BLOB", 10)
    check_parts({"tools": Changed(b"0123456789")})
    with pytest.raises(TooLarge, match="state part 'tools' has 11 bytes"):
        check_parts({"tools": Changed(b"0123456789a")})
