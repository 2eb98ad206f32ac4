"""Sessions by uid and by name, and their documents."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, exists, func, select

from lash.encoding import JsonObject
from lash.errors import (
    CorruptRecord,
    IdReused,
    InvariantBroken,
    RevisionMoved,
    SessionDeleted,
    SessionExists,
    SessionNotFound,
)
from lash.graph.session import Document, DocumentKind, NewSession, Session
from lash.ids import SessionName, SessionUid
from lash.limits import is_name
from lash.store import schema
from lash.store.checks import check_document, check_filter, check_limit, check_new, read_cursor
from lash.store.contract import Opened, Page, SessionFilter
from lash.store.rows import (
    SessionRow,
    changing_session_values,
    new_session_values,
    read_object,
    read_session,
    readable,
    write_json,
)
from lash.store.sql.claims import claim_name
from lash.store.sql.link import Link
from lash.store.sql.questions import BY_NAME, BY_UID, DOCUMENT
from lash.store.sql.statements import insert_into
from lash.store.sql.steps import Each, Steps, Work, Write, answer_to, answers_to
from lash.turn.record import Turn, causes, ready_at


@dataclass(frozen=True)
class NewRow:
    """A session row that is to be inserted."""

    name: SessionName
    values: tuple[tuple[str, Any], ...]


_LATER = ("id", "deleted_at", "lease_owner", "lease_expires_at", "next_item_at", "ready_at")
_KEEP = insert_into(
    schema.sessions,
    [column.name for column in schema.sessions.c if column.name not in _LATER],
    lambda new: new.on_conflict_do_nothing().returning(schema.sessions.c.id),
)


def _insert(link: Link, new: NewRow) -> int | None:
    """The number of a new row; None when its uid or its name is taken."""
    values = dict(new.values)
    found = link.rows(_KEEP, tuple(values[name] for name in _KEEP.names))
    return found[0]["id"] if found else None


INSERTED = Each(_insert)


def keep_session(work: Work, before: SessionRow, after: SessionRow, *, was: Turn | None, turn: Turn | None) -> None:
    """Write a session's row back, as far as it changed. ``was`` and ``turn`` are its unsettled turn before and after.

    ``ready_at`` is decided anew only when something that it follows from has changed.
    """
    begins_or_ends = (was is None) != (turn is None)
    if begins_or_ends or (
        causes(before.lease, was, before.next_item_at) != causes(after.lease, turn, after.next_item_at)
    ):
        after = after._replace(ready_at=ready_at(after.lease, turn, after.next_item_at, work.now))
    update_session(work, before, after)


def update_session(work: Work, before: SessionRow, after: SessionRow) -> None:
    work.changes.update(schema.sessions, {"id": after.id}, changing_session_values(before, after))


# -- creating ----------------------------------------------------------------------------------------------------------


def create(new: NewSession) -> Write[Session]:
    check_new(new)

    def steps(work: Work) -> Steps[Session]:
        named = yield from answer_to(BY_NAME(new.name))  # before claiming the name, which others may want
        if named is not None and named.uid != new.uid and new.uid not in work.rows:
            raise SessionExists(new.name, named.uid)
        return (yield from _create(work, new))

    return Write((new.uid,), steps, creates=new.uid)


def open_or_create(new: NewSession) -> Write[Opened]:
    check_new(new)

    def steps(work: Work) -> Steps[Opened]:
        row = yield from answer_to(BY_NAME(new.name))
        if row is not None:
            return Opened(row.session(), created=row.uid == new.uid)
        try:
            session = yield from _create(work, new)
        except SessionExists:  # somebody created it between the two steps
            row = yield from answer_to(BY_NAME(new.name))
            if row is None:
                raise
            return Opened(row.session(), created=row.uid == new.uid)
        return Opened(session, created=True)

    return Write((new.uid,), steps, creates=new.uid)


def _create(work: Work, new: NewSession) -> Steps[Session]:
    known = work.rows.get(new.uid)
    if known is None:
        values = new_session_values(uid=new.uid, name=new.name, agent=new.agent, now=work.now)
        number = yield from insert_session(new.name, values)
        if number is not None:
            begin_documents(work, number, config=new.config, metadata=new.metadata)
            work.changes.insert(schema.branches, {"session": number, "branch": 0} | NO_PARENT)
        known = yield from answer_to(BY_UID(new.uid))
    row = require_new(known, new.uid)
    if (row.name, row.agent, row.forked_from) != (new.name, new.agent, None):
        raise IdReused("session", new.uid)
    return row.session()


def require_new(known: SessionRow | None, uid: SessionUid) -> SessionRow:
    """The row that this uid has now: the one just inserted, or that of an earlier call with the same uid."""
    if known is None:
        raise InvariantBroken(f"session {uid} was inserted and is not there")
    if known.state == "deleted":
        raise SessionDeleted(uid)
    return known


NO_PARENT = {"parent_session": None, "parent_branch": None, "parent_depth": None}


def insert_session(name: SessionName, values: dict[str, Any]) -> Steps[int | None]:
    """The number of a new session's row; None when the uid is taken, SessionExists when the name is."""
    yield from claim_name(name)
    number = yield from answer_to(INSERTED(NewRow(name, tuple(values.items()))))
    if number is None:
        by_name, by_uid = yield from answers_to(BY_NAME(name), BY_UID(values["uid"]))
        if by_name is not None and by_name.uid != values["uid"]:
            raise SessionExists(name, by_name.uid)
        if by_name is None and by_uid is None:
            raise InvariantBroken(f"session {name!r} could not be inserted, and nothing is in its way")
    return number


def begin_documents(work: Work, session: int, *, config: JsonObject, metadata: JsonObject) -> None:
    bodies: dict[DocumentKind, JsonObject] = {"config": config, "catalog": {}, "metadata": metadata}
    for kind, body in bodies.items():
        insert_document(work, session, kind, 0, body)


def insert_document(work: Work, session: int, kind: DocumentKind, revision: int, body: JsonObject) -> None:
    row = {"session": session, "kind": kind, "revision": revision, "superseded_at": None}
    work.changes.insert(schema.documents, row | {"body": write_json(body, what=kind)})


def replace_document(work: Work, row: SessionRow, kind: DocumentKind, body: JsonObject) -> SessionRow:
    """Put a new revision in front of the present one, which stays until a vacuum."""
    revision = row.document_revision(kind) + 1
    old = {"session": row.id, "kind": kind, "revision": revision - 1}
    work.changes.update(schema.documents, old, {"superseded_at": work.now})
    insert_document(work, row.id, kind, revision, body)
    match kind:
        case "config":
            return row._replace(config_revision=revision)
        case "catalog":
            return row._replace(catalog_revision=revision)
        case "metadata":
            return row._replace(metadata_revision=revision)


def put_document(uid: SessionUid, kind: DocumentKind, body: JsonObject, *, expected: int) -> Write[Document]:
    check_document(kind, body)
    text = write_json(body, what=kind)

    def steps(work: Work) -> Steps[Document]:
        row = work.session(uid)
        revision = row.document_revision(kind)
        if revision == expected + 1:
            current = yield from answer_to(DOCUMENT((row.id, kind, revision)))
            if current is not None and current["body"] == text:
                return Document(revision, read_object(text, what=kind))
        if revision != expected:
            raise RevisionMoved(kind, expected=expected, found=revision)
        after = replace_document(work, row, kind, body)
        update_session(work, row, after)
        return Document(revision + 1, read_object(text, what=kind))

    return Write((uid,), steps)


# -- deleting ----------------------------------------------------------------------------------------------------------


def delete(uid: SessionUid) -> Write[bool]:
    def steps(work: Work) -> Steps[bool]:
        row = work.any_session(uid)
        if row.name is None:
            return False
        yield from claim_name(row.name)
        gone = row._replace(
            state="deleted",
            name=None,
            deleted_at=work.now,
            lease_owner=None,
            lease_expires_at=None,
            next_item_at=None,
            ready_at=None,
        )
        for table in (schema.journal, schema.inbox, schema.turns, schema.waits, schema.documents, schema.live_events):
            work.changes.delete(table, session=row.id)
        work.changes.delete(schema.blob_refs, session=row.id, holder="item")
        update_session(work, row, gone)
        return True

    return Write((uid,), steps, repeatable=False)


# -- reading -----------------------------------------------------------------------------------------------------------


def find_row(connection: Connection, uid: SessionUid) -> SessionRow:
    """The row of a living session."""
    row = BY_UID.now(connection, uid)
    if row is None or row.state == "origin":
        raise SessionNotFound(uid)
    if row.state == "deleted":
        raise SessionDeleted(uid)
    return row


def get(connection: Connection, name: SessionName) -> Session:
    row = BY_NAME.now(connection, name) if is_name(name) else None
    if row is None:
        raise SessionNotFound(name)
    return row.session()


def page(connection: Connection, where: SessionFilter, after: str | None, limit: int) -> Page[Session]:
    check_limit(limit)
    check_filter(where)
    table = schema.sessions
    statement = select(table).where(table.c.state == "live", table.c.id > read_cursor(after))
    if where.agent is not None:
        statement = statement.where(table.c.agent == where.agent)
    if where.name_prefix is not None:
        prefix = where.name_prefix
        statement = statement.where(func.substr(table.c.name, 1, len(prefix)) == prefix)
    if where.unsettled is not None:
        turns = schema.turns
        has_turn = exists().where(turns.c.session == table.c.id, turns.c.state != "settled")
        statement = statement.where(has_turn if where.unsettled else ~has_turn)
    found = connection.execute(statement.order_by(table.c.id).limit(limit + 1)).mappings().all()
    rows = readable(read_session, found[:limit])
    return Page(tuple(row.session() for row in rows), str(found[limit - 1]["id"]) if len(found) > limit else None)


def missing_document(row: SessionRow, kind: DocumentKind, revision: int) -> CorruptRecord:
    return CorruptRecord(f"session {row.uid}", f"it has no {kind} of its current revision {revision}")


def document(connection: Connection, row: SessionRow, kind: DocumentKind, revision: int | None) -> Document:
    current = row.document_revision(kind)
    wanted = current if revision is None else revision
    found = DOCUMENT.now(connection, (row.id, kind, wanted)) if 0 <= wanted <= current else None
    if found is None and wanted == current:
        raise missing_document(row, kind, current)
    if found is None:
        raise RevisionMoved(kind, expected=wanted, found=current)
    return Document(wanted, read_object(found["body"], what=f"{kind} of session {row.uid}"))
