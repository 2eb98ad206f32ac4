"""A session's documents: config, catalog and metadata, each with a revision of its own."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from lash.encoding import JsonObject
from lash.errors import HeadMoved, InvalidValue, RevisionMoved, TooLarge
from lash.graph.session import DOCUMENT_KINDS, Document, DocumentKind
from lash.limits import MAX_BODY
from lash.store.contract import Store
from lash.testing.builders import (
    a_held_session,
    a_new_session,
    a_session,
    commit_nodes,
    open_with,
    plan_nodes,
    race,
    says,
)
from lash.testing.harness import StoreContract, StoreHarness, opened

each_kind = pytest.mark.parametrize("kind", DOCUMENT_KINDS)

BODIES: list[JsonObject] = [
    {},
    {"a": None, "b": [True, False, 0, -1, 2**53 + 1]},
    {"one": 1, "one point nought": 1.0, "small": 5e-324, "large": 1.7976931348623157e308},
    {"Ärger": "注文 🙂", "quote": "\"\\/\b\f\n\r\t'", "nul": "\x00"},
    {"z": {"y": {"x": [[], {}, ""]}}, "a": 1},
]


class DocumentContract(StoreContract):
    """Documents are replaced by those who know what they replace."""

    async def test_a_session_begins_with_the_documents_it_was_created_with(self, store: Store) -> None:
        new = replace(a_new_session(metadata={"customer": 42}), config={"model": "m"})
        await store.create(new)
        assert await store.document(new.uid, "config") == Document(0, {"model": "m"})
        assert await store.document(new.uid, "metadata") == Document(0, {"customer": 42})
        assert await store.document(new.uid, "catalog") == Document(0, {})

    @each_kind
    async def test_a_replaced_document_is_one_revision_on(self, store: Store, kind: DocumentKind) -> None:
        uid = (await a_session(store)).uid
        assert await store.put_document(uid, kind, {"n": 1}, expected=0) == Document(1, {"n": 1})
        assert await store.put_document(uid, kind, {"n": 2}, expected=1) == Document(2, {"n": 2})
        assert await store.document(uid, kind) == Document(2, {"n": 2})

    @each_kind
    async def test_the_session_says_which_revision_is_current(self, store: Store, kind: DocumentKind) -> None:
        uid = (await a_session(store)).uid
        await store.put_document(uid, kind, {"n": 1}, expected=0)
        session = await store.find(uid)
        revisions = {
            "config": session.config_revision,
            "catalog": session.catalog_revision,
            "metadata": session.metadata_revision,
        }
        assert revisions == {"config": 0, "catalog": 0, "metadata": 0} | {kind: 1}

    @each_kind
    async def test_a_stale_replacement_is_refused_and_changes_nothing(self, store: Store, kind: DocumentKind) -> None:
        uid = (await a_session(store)).uid
        await store.put_document(uid, kind, {"n": 1}, expected=0)
        await store.put_document(uid, kind, {"n": 2}, expected=1)
        before = await store.find(uid)
        for expected in (0, 1, 3, -1):
            with pytest.raises(RevisionMoved) as moved:
                await store.put_document(uid, kind, {"n": 9}, expected=expected)
            assert (moved.value.expected, moved.value.found) == (expected, 2)
        assert await store.document(uid, kind) == Document(2, {"n": 2})
        assert await store.find(uid) == before

    @each_kind
    async def test_replacing_again_after_a_lost_answer_returns_what_is_there(
        self, store: Store, kind: DocumentKind
    ) -> None:
        uid = (await a_session(store)).uid
        first = await store.put_document(uid, kind, {"a": 1, "b": 2}, expected=0)
        assert await store.put_document(uid, kind, {"b": 2, "a": 1}, expected=0) == first == Document(1, first.body)
        assert await store.document(uid, kind) == first

    async def test_a_repetition_is_recognised_only_one_revision_on(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        for n in range(3):
            await store.put_document(uid, "config", {"n": n % 2}, expected=n)
        with pytest.raises(RevisionMoved):
            await store.put_document(uid, "config", {"n": 0}, expected=0)

    @pytest.mark.parametrize("body", BODIES, ids=range(len(BODIES)))
    async def test_a_document_comes_back_as_it_was_written(self, store: Store, body: JsonObject) -> None:
        uid = (await a_session(store)).uid
        await store.put_document(uid, "metadata", body, expected=0)
        read = (await store.document(uid, "metadata")).body
        assert repr(sorted(read.items())) == repr(sorted(body.items()))  # repr, because 1 == 1.0 == True

    async def test_an_integer_and_a_float_are_different_content(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        await store.put_document(uid, "config", {"n": 1}, expected=0)
        with pytest.raises(RevisionMoved):
            await store.put_document(uid, "config", {"n": 1.0}, expected=0)

    async def test_nobody_holds_a_reference_into_the_store(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        mine: JsonObject = {"list": []}
        returned = await store.put_document(uid, "config", mine, expected=0)
        for body in (mine, returned.body, (await store.document(uid, "config")).body):
            body["list"] = "changed behind the store's back"
        assert await store.document(uid, "config") == Document(1, {"list": []})

    @pytest.mark.parametrize("value", [float("nan"), float("-inf"), "\ud800", [{"x": "\udfff"}]], ids=ascii)
    async def test_what_json_cannot_carry_is_refused_with_its_place(self, store: Store, value: object) -> None:
        uid = (await a_session(store)).uid
        with pytest.raises(InvalidValue) as refused:
            await store.put_document(uid, "metadata", {"bad": value}, expected=0)  # type: ignore[dict-item]  # on purpose
        assert ".bad" in refused.value.where
        assert await store.document(uid, "metadata") == Document(0, {})

    async def test_an_oversized_document_is_refused(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        with pytest.raises(TooLarge) as refused:
            await store.put_document(uid, "metadata", {"x": "x" * MAX_BODY}, expected=0)
        assert refused.value.limit == MAX_BODY
        assert await store.document(uid, "metadata") == Document(0, {})

    async def test_earlier_revisions_stay_readable(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        for n in range(3):
            await store.put_document(uid, "metadata", {"n": n}, expected=n)
        read = [await store.document(uid, "metadata", revision) for revision in range(4)]
        assert read == [Document(0, {}), Document(1, {"n": 0}), Document(2, {"n": 1}), Document(3, {"n": 2})]

    async def test_a_turn_keeps_the_config_and_catalog_it_opened_with(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        await store.put_document(uid, "config", {"model": "old"}, expected=0)
        driven = await open_with(store, uid)
        await store.put_document(uid, "config", {"model": "new"}, expected=1)
        await store.put_document(uid, "catalog", {"tools": ["t"]}, expected=0)
        turn = await store.turn(uid, driven.turn.id)
        assert (turn.config_revision, turn.catalog_revision) == (1, 0)
        assert (await store.document(uid, "config", turn.config_revision)).body == {"model": "old"}
        assert (await store.document(uid, "catalog", turn.catalog_revision)).body == {}

    async def test_replacing_a_document_needs_no_lease_and_moves_no_head(self, store: Store) -> None:
        lease = await a_held_session(store)
        await commit_nodes(store, lease, says("one"))
        plan = await plan_nodes(store, lease, says("two"))
        head = (await store.find(lease.session)).head
        await store.put_document(lease.session, "metadata", {"note": "from a stranger"}, expected=0)
        assert (await store.find(lease.session)).head == head
        assert (await store.commit(plan)).revision == 2

    async def test_a_snapshot_has_the_current_config(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        await store.put_document(uid, "config", {"model": "new"}, expected=0)
        assert (await store.snapshot(uid)).config == Document(1, {"model": "new"})

    async def test_a_commit_replaces_documents_with_everything_else_it_settles(self, store: Store) -> None:
        lease = await a_held_session(store)
        plan = replace(
            await plan_nodes(store, lease, says("hi")), documents={"config": {"n": 1}, "catalog": {"tools": []}}
        )
        receipt = await store.commit(plan)
        assert await store.commit(plan) == receipt
        assert await store.document(lease.session, "config") == Document(1, {"n": 1})
        assert await store.document(lease.session, "catalog") == Document(1, {"tools": []})
        assert await store.document(lease.session, "metadata") == Document(0, {})

    async def test_a_refused_commit_replaces_no_document(self, store: Store) -> None:
        lease = await a_held_session(store)
        plan = replace(await plan_nodes(store, lease, says("hi")), documents={"config": {"n": 1}}, base=7)
        with pytest.raises(HeadMoved):
            await store.commit(plan)
        assert await store.document(lease.session, "config") == Document(0, {})

    async def test_replacements_at_once_have_one_winner(self, harness: StoreHarness) -> None:
        async with opened(harness) as one, opened(harness) as two:
            uid = (await a_session(one)).uid
            calls = (store.put_document(uid, "config", {"n": n}, expected=0) for n, store in enumerate((one, two) * 3))
            returned, refused = await race(*calls)
            assert [await one.document(uid, "config")] == returned
        assert returned[0].revision == 1
        assert [type(error) for error in refused] == [RevisionMoved] * 5

    async def test_the_same_replacement_twice_at_once_is_one(self, harness: StoreHarness) -> None:
        async with opened(harness) as one, opened(harness) as two:
            uid = (await a_session(one)).uid
            calls = (store.put_document(uid, "config", {"n": 1}, expected=0) for store in (one, two, one))
            assert await asyncio.gather(*calls) == [Document(1, {"n": 1})] * 3

    async def test_replacements_of_different_documents_do_not_disturb_each_other(self, harness: StoreHarness) -> None:
        async with opened(harness) as one, opened(harness) as two:
            uid = (await a_session(one)).uid
            stores = (one, two, one)
            calls = (s.put_document(uid, k, {"is": k}, expected=0) for s, k in zip(stores, DOCUMENT_KINDS, strict=True))
            assert await asyncio.gather(*calls) == [Document(1, {"is": kind}) for kind in DOCUMENT_KINDS]
            session = await two.find(uid)
        assert (session.config_revision, session.catalog_revision, session.metadata_revision) == (1, 1, 1)
