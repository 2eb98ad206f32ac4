"""Blobs: content by its hash, and those who refer to it."""

from __future__ import annotations

import asyncio
import hashlib
import os
from dataclasses import replace

import pytest

from lash.commit.outbox import Owed
from lash.errors import BlobMissing, BlobNotFound
from lash.graph.nodes import MessageReceived, Payload, PluginRecorded, ToolsReturned
from lash.graph.parts import File, Image, Text, ToolResult
from lash.ids import BlobHash, ItemId
from lash.inbox.items import Message, NewItem
from lash.store.contract import Store
from lash.testing.builders import a_held_session, a_session, commit_nodes, new_id, plan_nodes
from lash.testing.harness import StoreContract, StoreHarness, opened

BODIES = {
    "empty": b"",
    "a text": b"hello",
    "every byte": bytes(range(256)),
    "three megabytes": b"".join(n.to_bytes(3, "big") for n in range(1_000_003)),
}


def _hash(body: bytes) -> BlobHash:
    return BlobHash(hashlib.sha256(body).hexdigest())


def _image(blob: BlobHash) -> Image:
    return Image(blob=blob, media_type="image/png")


def _referring(blob: BlobHash) -> dict[str, Payload]:
    file = File(blob=blob, media_type="text/plain", name="a.txt")
    return {
        "an image": MessageReceived(parts=(Text(text="look"), _image(blob))),
        "a file": MessageReceived(parts=(file,)),
        "a tool's result": ToolsReturned(parts=(ToolResult(call_id="c", tool="t", content=(_image(blob),)),)),
        "a plugin's node": PluginRecorded(plugin="acme", refers_to=(blob,)),
    }


KINDS = [*_referring(_hash(b""))]
each_kind = pytest.mark.parametrize("kind", KINDS)


class BlobContract(StoreContract):
    """The same bytes are kept once."""

    @pytest.mark.parametrize("body", BODIES.values(), ids=BODIES.keys())
    async def test_a_blob_comes_back_byte_for_byte(self, store: Store, body: bytes) -> None:
        blob = await store.put_blob(body)
        assert blob == _hash(body)
        assert await store.blob(blob) == body

    async def test_putting_the_same_bytes_again_is_putting_them_once(self, store: Store) -> None:
        body = os.urandom(64)
        assert await store.put_blob(body) == await store.put_blob(body) == _hash(body)
        assert await store.blob(_hash(body)) == body

    async def test_the_same_bytes_may_be_put_by_many_at_once(self, harness: StoreHarness) -> None:
        body = os.urandom(64)
        async with opened(harness) as one, opened(harness) as two:
            found = await asyncio.gather(*(store.put_blob(body) for store in (one, two) * 4))
            assert set(found) == {_hash(body)}
            assert await two.blob(_hash(body)) == body

    async def test_many_blobs_may_be_put_at_once(self, harness: StoreHarness) -> None:
        bodies = [os.urandom(32) for _ in range(10)]
        async with opened(harness) as one, opened(harness) as two:
            await asyncio.gather(*map(one.put_blob, bodies), *map(two.put_blob, reversed(bodies)))
            assert [await one.blob(_hash(body)) for body in bodies] == bodies

    async def test_a_blob_that_nobody_put_is_not_found(self, store: Store) -> None:
        unknown = _hash(os.urandom(32))
        with pytest.raises(BlobNotFound) as missing:
            await store.blob(unknown)
        assert missing.value.hash == unknown

    async def test_a_blob_outlives_the_handle_that_put_it(self, harness: StoreHarness) -> None:
        body = os.urandom(64)
        async with opened(harness) as first:
            blob = await first.put_blob(body)
        async with opened(harness) as second:
            assert await second.blob(blob) == body

    @each_kind
    async def test_a_node_may_refer_to_a_stored_blob(self, store: Store, kind: str) -> None:
        lease = await a_held_session(store)
        payload = _referring(await store.put_blob(os.urandom(32)))[kind]
        await commit_nodes(store, lease, payload)
        assert (await store.nodes(lease.session))[-1].payload == payload

    @each_kind
    async def test_a_node_that_refers_to_a_missing_blob_fails_its_commit(self, store: Store, kind: str) -> None:
        lease = await a_held_session(store)
        body = os.urandom(32)
        plan = await plan_nodes(store, lease, _referring(_hash(body))[kind])
        with pytest.raises(BlobMissing) as missing:
            await store.commit(plan)
        assert missing.value.hash == _hash(body)
        assert await store.nodes(lease.session) == []
        await store.put_blob(body)
        assert (await store.commit(plan)).revision == 1

    async def test_a_message_that_refers_to_a_missing_blob_is_not_admitted(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        body = os.urandom(32)
        item = NewItem(ItemId(new_id()), Message(parts=(_image(_hash(body)),)), key="k")
        with pytest.raises(BlobMissing):
            await store.admit(uid, item)
        assert await store.item(uid, item.id) is None
        await store.put_blob(body)
        assert (await store.admit(uid, item)).body == item.body

    async def test_a_debt_that_refers_to_a_missing_blob_fails_its_commit(self, store: Store) -> None:
        lease, receiver = await a_held_session(store), await a_session(store)
        body = os.urandom(32)
        owed = Owed(receiver.uid, Message(parts=(_image(_hash(body)),)))
        plan = replace(await plan_nodes(store, lease), owes=(owed,))
        with pytest.raises(BlobMissing):
            await store.commit(plan)
        await store.put_blob(body)
        assert (await store.commit(plan)).revision == 1
