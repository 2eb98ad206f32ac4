"""State parts: tool state, plugin snapshots, protocol options, execution state. Content-addressed and kept by
reference.

A commit names the complete set: what changed brings its body, the rest is referred to by hash. A name that is left out
is gone. Each commit remembers its set, so that a rewind or a fork at any commit boundary finds the state as it was
then.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from lash.errors import PartMissing
from lash.ids import BlobHash
from lash.limits import MAX_BLOB, check_blob_hash, check_key, check_size


@dataclass(frozen=True, slots=True)
class Changed:
    """A part with a new body."""

    body: bytes

    @property
    def hash(self) -> BlobHash:
        return hash_of(self.body)


@dataclass(frozen=True, slots=True)
class Kept:
    """A part that stays as it was."""

    hash: BlobHash


StateParts = Mapping[str, Changed | Kept]


def hash_of(body: bytes) -> BlobHash:
    return BlobHash(hashlib.sha256(body).hexdigest())


def check_parts(parts: StateParts) -> None:
    for name, part in parts.items():
        check_key(name)
        if isinstance(part, Changed):
            check_size(f"state part {name!r}", len(part.body), MAX_BLOB)
        else:
            check_blob_hash(part.hash)


def resolve(parts: StateParts, stored: Collection[BlobHash]) -> dict[str, BlobHash]:
    """The set that a commit leaves behind. A part that is kept must be stored."""
    resolved: dict[str, BlobHash] = {}
    for name, part in parts.items():
        if isinstance(part, Kept) and part.hash not in stored:
            raise PartMissing(name, part.hash)
        resolved[name] = part.hash
    return resolved
