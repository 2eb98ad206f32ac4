"""Sessions by uid and by name, and their documents."""

from __future__ import annotations

import json

from lash.encoding import JsonObject, canonical
from lash.errors import IdReused, RevisionMoved, SessionDeleted, SessionExists, SessionNotFound
from lash.graph.session import Document, DocumentKind, Head, NewSession, Session
from lash.ids import SessionName, SessionUid
from lash.store.checks import check_document, check_filter, check_kind, check_new
from lash.store.contract import Opened, Page, SessionFilter
from lash.store.memory.data import DocumentRow, SessionRows, Tombstone
from lash.store.memory.handle import Handle, page


class Creating(Handle):
    """What creating and forking have in common."""

    def known(self, uid: SessionUid) -> Session | None:
        """The session that has this uid already, for the caller to compare; None when the uid is free."""
        if uid in self.data.deleted:
            raise SessionDeleted(uid)
        rows = self.data.sessions.get(uid)
        return None if rows is None else rows.session

    def keep_new(self, rows: SessionRows, *, config: str, metadata: str) -> Session:
        if rows.session.name in self.data.names:
            raise SessionExists(rows.session.name, self.data.names[rows.session.name])
        texts: dict[DocumentKind, str] = {"config": config, "catalog": canonical({}), "metadata": metadata}
        rows.documents = {(kind, 0): DocumentRow(text) for kind, text in texts.items()}
        self.data.created = rows.number
        self.data.sessions[rows.session.uid] = rows
        self.data.names[rows.session.name] = rows.session.uid
        return rows.session


class MemorySessions(Creating):
    async def create(self, new: NewSession) -> Session:
        check_new(new)
        return self._create(new)

    async def open(self, new: NewSession) -> Opened:
        check_new(new)
        uid = self.data.names.get(new.name)
        if uid is not None:
            return Opened(self.data.sessions[uid].session, created=uid == new.uid)
        return Opened(self._create(new), created=True)

    def _create(self, new: NewSession) -> Session:
        known = self.known(new.uid)
        if known is not None:
            if (known.name, known.agent, known.forked_from) != (new.name, new.agent, None):
                raise IdReused("session", new.uid)
            return known
        rows = SessionRows(
            Session(new.uid, new.name, new.agent, Head(), created_at=self.now()), number=self.data.created + 1
        )
        return self.keep_new(rows, config=canonical(new.config), metadata=canonical(new.metadata))

    async def get(self, name: SessionName) -> Session:
        if name not in self.data.names:
            raise SessionNotFound(name)
        return self.data.sessions[self.data.names[name]].session

    async def find(self, uid: SessionUid) -> Session:
        return self.living(uid).session

    async def sessions(
        self, where: SessionFilter = SessionFilter(), *, after: str | None = None, limit: int = 100
    ) -> Page[Session]:
        check_filter(where)
        matching = [rows for rows in self.data.sessions.values() if _matches(rows, where)]
        found = page(matching, lambda rows: rows.number, after=after, limit=limit)
        return Page(tuple(rows.session for rows in found.rows), found.next)

    async def delete(self, uid: SessionUid) -> bool:
        now, data = self.now(), self.data
        if uid in data.deleted:
            return False
        session = self.living(uid).session
        del data.sessions[uid], data.names[session.name]
        data.deleted[uid] = Tombstone(now, session.forked_from)
        return True

    async def document(self, uid: SessionUid, kind: DocumentKind, revision: int | None = None) -> Document:
        check_kind(kind)
        rows = self.living(uid)
        current = rows.revision(kind)
        wanted = current if revision is None else revision
        document = rows.document(kind, wanted)
        if document is None:
            raise RevisionMoved(kind, expected=wanted, found=current)
        return document

    async def put_document(self, uid: SessionUid, kind: DocumentKind, body: JsonObject, *, expected: int) -> Document:
        check_document(kind, body)
        text = canonical(body, what=kind)
        with self.changing(uid, self.now()) as rows:
            revision = rows.revision(kind)
            repeated = revision == expected + 1 and rows.documents[kind, revision].text == text
            if not repeated:
                if revision != expected:
                    raise RevisionMoved(kind, expected=expected, found=revision)
                revision = rows.replace_document(kind, text, self.now())
            return Document(revision, json.loads(text))


def _matches(rows: SessionRows, where: SessionFilter) -> bool:
    return (
        (where.agent is None or rows.session.agent == where.agent)
        and (where.name_prefix is None or rows.session.name.startswith(where.name_prefix))
        and (where.unsettled is None or (rows.unsettled is not None) == where.unsettled)
    )
