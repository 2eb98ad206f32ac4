"""Content by its hash, and who holds on to it.

A row in ``lash_blob_refs`` or ``lash_state_parts`` keeps a blob by a foreign key, so that collecting cannot race with
use.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from typing import Literal

from sqlalchemy import Connection, bindparam, select

from lash.commit.parts import hash_of
from lash.errors import BlobMissing, BlobNotFound, CorruptRecord, InvariantBroken
from lash.ids import BlobHash
from lash.limits import check_blob_hash
from lash.store import schema
from lash.store.sql.claims import claim_blobs
from lash.store.sql.link import Link
from lash.store.sql.questions import BLOB
from lash.store.sql.statements import insert_into
from lash.store.sql.steps import Each, Steps, Work, Write, answers_to_each

Held = tuple[Literal["node", "item", "debt"], int, int]
"""What holds a blob, and its place: a node's branch and depth, an item's seq, a debt's revision and ordinal."""

_BODY = select(schema.blobs.c.body).where(schema.blobs.c.hash == bindparam("hash"))


NewBlob = tuple[BlobHash, bytes, datetime]


_PLACES = ("hash", "body", "stored_at")
_KEEP = insert_into(
    schema.blobs,
    _PLACES,
    lambda new: new.on_conflict_do_update(
        index_elements=["hash"], set_={"stored_at": new.excluded.stored_at}
    ).returning(schema.blobs.c.id),
)


def _store(link: Link, new: NewBlob) -> int:
    """Keep a body. One that is known is as young as new: its user must have time to refer to it."""
    [row] = link.rows(_KEEP, new)
    number: int = row["id"]
    return number


STORED = Each(_store)


def store_blobs(work: Work, bodies: Mapping[BlobHash, bytes]) -> Steps[dict[BlobHash, int]]:
    """Keep these bodies; returns the numbers of their rows."""
    yield from claim_blobs(sorted(bodies))
    stored = yield from answers_to_each([STORED((found, body, work.now)) for found, body in sorted(bodies.items())])
    return {key[0]: number for key, number in stored.items()}


def put(found: BlobHash, body: bytes) -> Write[BlobHash]:
    def steps(work: Work) -> Steps[BlobHash]:
        yield from store_blobs(work, {found: body})
        return found

    return Write((), steps, size=len(body))


def get(connection: Connection, blob: BlobHash) -> bytes:
    check_blob_hash(blob)
    body = connection.execute(_BODY, {"hash": blob}).scalar_one_or_none()
    if body is None:
        raise BlobNotFound(blob)
    if hash_of(bytes(body)) != blob:
        raise CorruptRecord(f"blob {blob}", "its bytes are not those that it was named after")
    return bytes(body)


def numbers_of(hashes: Collection[BlobHash]) -> Steps[dict[BlobHash, int]]:
    """The rows of these blobs, or BlobMissing."""
    numbers = yield from answers_to_each([BLOB(found) for found in sorted(hashes)])
    for found in sorted(hashes):
        if found not in numbers:
            raise BlobMissing(found)
    return numbers


def hold(work: Work, session: int, holder: Held, blobs: Iterable[BlobHash], numbers: dict[BlobHash, int]) -> None:
    """Refer to blobs from a node, an item or a debt."""
    for blob in sorted(blobs):
        if blob not in numbers:
            raise InvariantBroken(f"blob {blob} was not looked up before it was referred to")
        row = {"session": session, "holder": holder[0], "major": holder[1], "minor": holder[2], "blob": numbers[blob]}
        work.changes.insert(schema.blob_refs, row)
