"""Content by its hash, and who holds on to it.

A row in ``lash_blob_refs`` or ``lash_state_parts`` keeps a blob by a foreign key, so that collecting cannot race with
use.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from typing import Any, Literal

from sqlalchemy import Connection, bindparam, select
from sqlalchemy.dialects import postgresql, sqlite

from lash.commit.parts import hash_of
from lash.errors import BlobMissing, BlobNotFound, CorruptRecord, InvariantBroken
from lash.ids import BlobHash
from lash.limits import check_blob_hash
from lash.store import schema
from lash.store.sql.questions import BLOB
from lash.store.sql.steps import Question, Steps, Work, Write, answer_to, answers_to_each

Held = tuple[Literal["node", "item", "debt"], int, int]
"""What holds a blob, and its place: a node's branch and depth, an item's seq, a debt's revision and ordinal."""

_BODY = select(schema.blobs.c.body).where(schema.blobs.c.hash == bindparam("hash"))


NewBlob = tuple[BlobHash, bytes, datetime]


def _store(connection: Connection, bodies: Sequence[NewBlob]) -> dict[NewBlob, int]:
    """Keep bodies, in order of hash. One that is known is as young as new: its user must have time to refer to it."""
    insert: Any = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
    new = insert(schema.blobs)
    kept = new.on_conflict_do_update(index_elements=["hash"], set_={"stored_at": new.excluded.stored_at})
    for found, body, now in sorted(bodies):
        connection.execute(kept, {"hash": found, "body": body, "stored_at": now})
    numbers = BLOB.load(connection, [found for found, _, _ in bodies])
    return {key: numbers[key[0]] for key in bodies}


STORED = Question(_store)


def put(found: BlobHash, body: bytes) -> Write[BlobHash]:
    def steps(work: Work) -> Steps[BlobHash]:
        yield from answer_to(STORED((found, body, work.now)))
        return found

    return Write((), steps)


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
