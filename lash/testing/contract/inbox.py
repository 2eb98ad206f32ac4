"""The inbox: admission is durable before it is acknowledged, idempotent by key, ordered, and needs no lease."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lash.encoding import JsonObject
from lash.errors import (
    BlobMissing,
    IdReused,
    InvalidId,
    InvalidItem,
    InvalidKey,
    InvalidValue,
    KeyReused,
    LashError,
    SessionDeleted,
    SessionNotFound,
    TooLarge,
)
from lash.graph.parts import Image, Text
from lash.ids import BlobHash, ItemId, SessionUid
from lash.inbox.cancelling import These
from lash.inbox.items import Boundary, Command, InboxItem, Message, NewItem, Wake
from lash.limits import MAX_BODY
from lash.store.contract import Store
from lash.testing.builders import (
    AT,
    TTL,
    a_command,
    a_message,
    a_session,
    a_wake,
    must_acquire,
    new_id,
    open_with,
    race,
    settle_turn,
    text_of,
)
from lash.testing.harness import StoreContract, StoreHarness, opened

BAD_ITEMS: dict[str, tuple[NewItem, type[LashError]]] = {
    "an id that nobody minted": (replace(a_message(), id=ItemId("first")), InvalidId),
    "a blank key": (a_message(key=" "), InvalidKey),
    "a key with a control character": (a_message(key="a\nb"), InvalidKey),
    "a key that is too long": (a_message(key="k" * 257), InvalidKey),
    "a blank merge key": (a_message(merge_key=""), InvalidKey),
    "a command for the running turn": (replace(a_command(), when="now"), InvalidItem),
    "a command that would join others": (replace(a_command(), merge_key="m"), InvalidItem),
    "a postponed item for the running turn": (a_message(when="now", available_at=AT), InvalidItem),
    "options that are no JSON": (a_message(options={"temperature": float("nan")}), InvalidValue),
    "an infinite number": (NewItem(ItemId(new_id()), Wake(source="timer", data=float("inf"))), InvalidValue),
    "a lone surrogate": (replace(a_command(), body=Command(name="x", arguments={"a": "\ud800"})), InvalidValue),
}

CHANGES: dict[str, NewItem] = {
    "body": a_message("something else"),
    "kind": a_command(),
    "when": a_message(when="now"),
    "boundary": a_message(boundary="before_completion"),
    "merge key": a_message(merge_key="m"),
    "options": a_message(options={"model": "other"}),
}
"""Everything that makes a request another one than ``a_message()``."""


def _showing(blob: BlobHash) -> NewItem:
    return NewItem(ItemId(new_id()), Message(parts=(Image(blob=blob, media_type="image/png"),)))


async def _texts(store: Store, uid: SessionUid) -> list[str]:
    return [text_of(item) for item in (await store.items(uid)).rows]


async def _every_item(store: Store, uid: SessionUid, *, limit: int) -> list[InboxItem]:
    """All items of a session, read page by page."""
    page = await store.items(uid, terminal=True, limit=limit)
    found = [*page.rows]
    while page.next is not None:
        page = await store.items(uid, terminal=True, after=page.next, limit=limit)
        assert len(page.rows) <= limit
        found += page.rows
    return found


class InboxContract(StoreContract):
    """InboxStore without cancelling, which has a class of its own."""

    # -- admission -----------------------------------------------------------------------------------------------------

    async def test_an_admitted_item_waits(self, harness: StoreHarness, store: Store) -> None:
        uid = (await a_session(store)).uid
        new, before = a_message("hello", key="k"), await harness.now()
        item = await store.admit(uid, new)
        assert (item.id, item.session, item.key, item.state) == (new.id, uid, "k", "pending")
        assert (item.target, item.turn, item.settled_at) == (None, None, None)
        assert before <= item.admitted_at <= await harness.now()

    async def test_an_acknowledged_item_is_there_for_every_process(self, harness: StoreHarness, store: Store) -> None:
        uid = (await a_session(store)).uid
        item = await store.admit(uid, a_message("hello"))
        async with opened(harness) as other:
            assert await other.item(uid, item.id) == item
            assert (await other.items(uid)).rows == (item,)

    async def test_everything_that_was_sent_is_kept_as_it_was(self, harness: StoreHarness, store: Store) -> None:
        uid = (await a_session(store)).uid
        options: JsonObject = {"model": "m", "limits": [1, 2.5, None], "naïve": "ünïcödé 🐙"}
        due = await harness.now() + TTL
        parts = (Text(text="two\nlines \u2028 and a zero width\u200bspace"), Text(text=""))
        new = NewItem(
            ItemId(new_id()), Message(parts=parts), "k", "next", "before_completion", "m", options, available_at=due
        )
        await store.admit(uid, new)
        async with opened(harness) as other:
            item = await other.item(uid, new.id)
        assert item is not None
        assert item.body == Message(parts=parts)
        assert (item.key, item.when, item.boundary, item.merge_key) == ("k", "next", "before_completion", "m")
        assert (item.options, item.available_at) == (options, due)

    async def test_changing_a_value_after_it_was_sent_or_read_changes_nothing(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        options: JsonObject = {"tools": ["a"]}
        item = await store.admit(uid, a_message(options=options))
        for mine in (options, item.options):
            mine["tools"] = ["mine"]
        found = await store.item(uid, item.id)
        assert found is not None
        assert found.options == {"tools": ["a"]}

    async def test_a_command_keeps_its_name_and_arguments(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        body = Command(name="compact", arguments={"keep": 3, "why": "length"})
        item = await store.admit(uid, replace(a_command(), body=body))
        assert (await store.item(uid, item.id)) == item
        assert item.body == body

    @pytest.mark.parametrize("data", [None, 0, "text", [1, {"deep": [True]}]], ids=str)
    async def test_a_wake_keeps_its_data(self, store: Store, data: object) -> None:
        uid = (await a_session(store)).uid
        body = Wake.model_validate({"source": "timer", "data": data})
        item = await store.admit(uid, NewItem(ItemId(new_id()), body))
        found = await store.item(uid, item.id)
        assert found is not None
        assert found.body == body

    async def test_admission_needs_no_lease(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        await must_acquire(store, uid, "somebody-else")
        assert (await store.admit(uid, a_message())).state == "pending"

    async def test_an_item_that_was_never_sent_is_not_found(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        assert await store.item(uid, ItemId(new_id())) is None

    async def test_an_item_belongs_to_one_session(self, store: Store) -> None:
        one, two = await a_session(store), await a_session(store)
        item = await store.admit(one.uid, a_message())
        assert await store.item(two.uid, item.id) is None
        assert (await store.items(two.uid)).rows == ()

    @pytest.mark.parametrize(("item", "error"), BAD_ITEMS.values(), ids=BAD_ITEMS.keys())
    async def test_an_item_that_could_not_be_served_is_refused_and_leaves_nothing(
        self, store: Store, item: NewItem, error: type[LashError]
    ) -> None:
        session = await a_session(store)
        with pytest.raises(error):
            await store.admit(session.uid, item)
        assert (await store.items(session.uid, terminal=True)).rows == ()
        assert await store.find(session.uid) == session

    async def test_an_item_that_is_too_large_is_refused_and_leaves_nothing(self, store: Store) -> None:
        session = await a_session(store)
        with pytest.raises(TooLarge):
            await store.admit(session.uid, a_message("x" * (MAX_BODY + 1)))
        assert await store.find(session.uid) == session

    async def test_an_item_may_only_refer_to_blobs_that_are_stored(self, store: Store) -> None:
        session = await a_session(store)
        missing = BlobHash("0" * 64)
        with pytest.raises(BlobMissing) as refusal:
            await store.admit(session.uid, _showing(missing))
        assert refusal.value.hash == missing
        assert await store.find(session.uid) == session

    async def test_an_item_with_a_stored_blob_is_kept(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        blob = await store.put_blob(new_id().encode())
        item = _showing(blob)
        assert (await store.admit(uid, item)).body == item.body

    async def test_there_is_no_inbox_without_a_session(self, store: Store) -> None:
        uid = SessionUid(new_id())
        with pytest.raises(SessionNotFound):
            await store.admit(uid, a_message())
        with pytest.raises(SessionNotFound):
            await store.items(uid)
        with pytest.raises(SessionNotFound):
            await store.item(uid, ItemId(new_id()))

    async def test_the_inbox_of_a_deleted_session_is_gone(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        item = await store.admit(uid, a_message(key="k"))
        await store.delete(uid)
        with pytest.raises(SessionDeleted):
            await store.admit(uid, a_message(key="k"))
        with pytest.raises(SessionDeleted):
            await store.items(uid)
        with pytest.raises(SessionDeleted):
            await store.item(uid, item.id)

    # -- keys and ids --------------------------------------------------------------------------------------------------

    async def test_the_same_key_with_the_same_content_is_the_same_item(
        self, harness: StoreHarness, store: Store
    ) -> None:
        uid = (await a_session(store)).uid
        first = await store.admit(uid, a_message("hello", key="k"))
        seq = (await store.find(uid)).seq
        async with opened(harness) as other:
            assert await other.admit(uid, a_message("hello", key="k")) == first
        assert (await store.items(uid, terminal=True)).rows == (first,)
        assert (await store.find(uid)).seq == seq

    async def test_the_same_id_with_the_same_content_is_the_same_item(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        new = a_message("hello")
        first = await store.admit(uid, new)
        assert await store.admit(uid, new) == first
        assert (await store.items(uid)).rows == (first,)

    @pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
    async def test_the_same_key_with_other_content_is_a_conflict(self, store: Store, change: NewItem) -> None:
        uid = (await a_session(store)).uid
        first = await store.admit(uid, a_message(key="k"))
        with pytest.raises(KeyReused) as refusal:
            await store.admit(uid, replace(change, id=ItemId(new_id()), key="k"))
        assert (refusal.value.key, refusal.value.item) == ("k", first.id)
        assert (await store.items(uid)).rows == (first,)

    @pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
    async def test_the_same_id_with_other_content_is_a_conflict(self, store: Store, change: NewItem) -> None:
        uid = (await a_session(store)).uid
        first = await store.admit(uid, a_message())
        with pytest.raises(IdReused) as refusal:
            await store.admit(uid, replace(change, id=first.id))
        assert refusal.value.value == first.id
        assert (await store.items(uid)).rows == (first,)

    @pytest.mark.parametrize("stored", [True, False])
    async def test_the_same_request_with_another_blob_is_a_conflict(self, store: Store, stored: bool) -> None:
        """Whether the other blob is there makes no difference: it is not what is wrong."""
        uid = (await a_session(store)).uid
        blob = await store.put_blob(new_id().encode())
        other = await store.put_blob(new_id().encode()) if stored else BlobHash("0" * 64)
        first = await store.admit(uid, replace(_showing(blob), key="k"))
        with pytest.raises(KeyReused):
            await store.admit(uid, replace(_showing(other), key="k"))
        with pytest.raises(IdReused):
            await store.admit(uid, replace(_showing(other), id=first.id, key="k2"))
        assert (await store.items(uid)).rows == (first,)

    async def test_the_same_id_under_another_key_is_a_conflict(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        first = await store.admit(uid, a_message(key="k"))
        with pytest.raises(IdReused):
            await store.admit(uid, replace(a_message(key="other"), id=first.id))
        assert (await store.items(uid)).rows == (first,)

    async def test_when_an_item_is_due_is_no_part_of_its_content(self, harness: StoreHarness, store: Store) -> None:
        uid = (await a_session(store)).uid
        now = await harness.now()
        first = await store.admit(uid, a_message(key="k", available_at=now + TTL))
        assert await store.admit(uid, a_message(key="k", available_at=now + 2 * TTL)) == first

    async def test_the_same_key_in_another_session_is_another_item(self, store: Store) -> None:
        one, two = await a_session(store), await a_session(store)
        await store.admit(one.uid, a_message("first", key="k"))
        await store.admit(two.uid, a_message("second", key="k"))
        assert (await _texts(store, one.uid), await _texts(store, two.uid)) == (["first"], ["second"])

    async def test_items_without_a_key_are_never_the_same(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        await store.admit(uid, a_message("hello"))
        await store.admit(uid, a_message("hello"))
        assert await _texts(store, uid) == ["hello", "hello"]

    async def test_a_key_is_recognised_while_a_turn_has_its_item(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        first = await store.admit(uid, a_message(key="k"))
        driven = await open_with(store, uid)
        again = await store.admit(uid, a_message(key="k"))
        assert (again.id, again.state, again.turn) == (first.id, "taken", driven.turn.id)

    async def test_a_key_is_recognised_after_its_item_was_completed(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        first = await store.admit(uid, a_message(key="k"))
        await settle_turn(store, await open_with(store, uid))
        again = await store.admit(uid, a_message(key="k"))
        assert (again.id, again.state) == (first.id, "completed")
        with pytest.raises(KeyReused):
            await store.admit(uid, a_message("other", key="k"))

    async def test_a_key_is_recognised_after_its_item_was_cancelled(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        first = await store.admit(uid, a_message(key="k"))
        await store.cancel(uid, These((first.id,)))
        again = await store.admit(uid, a_message(key="k"))
        assert (again.id, again.state) == (first.id, "cancelled")
        with pytest.raises(KeyReused):
            await store.admit(uid, a_message("other", key="k"))

    async def test_one_request_sent_by_two_processes_at_once_is_one_item(
        self, harness: StoreHarness, store: Store
    ) -> None:
        uid = (await a_session(store)).uid
        async with opened(harness) as other:
            items, refused = await race(*(s.admit(uid, a_message("hello", key="k")) for s in (store, other) * 4))
        assert refused == []
        assert len({item.id for item in items}) == 1
        assert (await store.items(uid, terminal=True)).rows == (items[0],)

    async def test_of_two_contents_sent_under_one_key_at_once_one_is_kept(
        self, harness: StoreHarness, store: Store
    ) -> None:
        uid = (await a_session(store)).uid
        async with opened(harness) as other:
            kept, refused = await race(
                store.admit(uid, a_message("one", key="k")), other.admit(uid, a_message("two", key="k"))
            )
        assert [type(error) for error in refused] == [KeyReused]
        assert (await store.items(uid, terminal=True)).rows == (kept[0],)

    # -- order ---------------------------------------------------------------------------------------------------------

    async def test_items_stand_in_the_order_in_which_they_were_acknowledged(
        self, harness: StoreHarness, store: Store
    ) -> None:
        uid = (await a_session(store)).uid
        async with opened(harness) as other:
            sent = [await (store, other)[n % 2].admit(uid, a_message(f"m{n}")) for n in range(6)]
        assert [item.seq for item in sent] == sorted({item.seq for item in sent})
        assert await _texts(store, uid) == ["m0", "m1", "m2", "m3", "m4", "m5"]

    async def test_messages_commands_and_wakes_stand_in_one_line(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        sent = [await store.admit(uid, item) for item in (a_wake(), a_message(), a_command(), a_message(), a_wake())]
        assert list((await store.items(uid)).rows) == sent

    async def test_items_sent_at_once_by_several_processes_get_places_of_their_own(
        self, harness: StoreHarness, store: Store
    ) -> None:
        uid = (await a_session(store)).uid
        async with opened(harness) as second, opened(harness) as third:
            sent, refused = await race(*(s.admit(uid, a_message()) for s in (store, second, third) * 4))
        assert refused == []
        listed = (await store.items(uid)).rows
        assert {item.id for item in listed} == {item.id for item in sent}
        assert [item.seq for item in listed] == sorted({item.seq for item in sent})

    async def test_an_admission_is_an_event_of_the_session(self, store: Store) -> None:
        session = await a_session(store)
        item = await store.admit(session.uid, a_message())
        assert session.seq < item.seq == (await store.find(session.uid)).seq

    # -- aiming --------------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("boundary", ["after_work", "before_completion"])
    async def test_now_aims_at_the_running_turn(self, store: Store, boundary: Boundary) -> None:
        uid = (await a_session(store)).uid
        driven = await open_with(store, uid)
        item = await store.admit(uid, a_message(when="now", boundary=boundary))
        assert (item.state, item.when, item.target, item.turn) == ("pending", "now", driven.turn.id, None)
        assert item.boundary == boundary

    async def test_now_aims_at_a_parked_turn_too(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        driven = await open_with(store, uid)
        await store.park(driven.lease, driven.turn.id)
        item = await store.admit(uid, a_message(when="now"))
        assert (item.state, item.target) == ("pending", driven.turn.id)

    async def test_now_becomes_next_when_no_turn_is_running(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        item = await store.admit(uid, a_message(when="now"))
        assert (item.when, item.target) == ("next", None)

    async def test_now_becomes_next_once_the_turn_is_settled(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        await settle_turn(store, await open_with(store, uid))
        item = await store.admit(uid, a_message(when="now"))
        assert (item.when, item.target) == ("next", None)

    async def test_next_never_aims_at_the_running_turn(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        await open_with(store, uid)
        item = await store.admit(uid, a_message())
        assert (item.when, item.target) == ("next", None)

    async def test_a_request_that_became_next_is_recognised_when_it_is_sent_again(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        first = await store.admit(uid, a_message("steer", key="k", when="now"))
        await open_with(store, uid)
        assert (await store.admit(uid, a_message("steer", key="k", when="now"))).id == first.id

    # -- listing -------------------------------------------------------------------------------------------------------

    async def test_the_list_shows_what_waits_and_what_is_taken(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        await open_with(store, uid, "taken")
        await store.admit(uid, a_message("waits"))
        listed = (await store.items(uid)).rows
        assert [(text_of(item), item.state) for item in listed] == [("taken", "taken"), ("waits", "pending")]

    async def test_what_ended_is_listed_only_on_request(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        await settle_turn(store, await open_with(store, uid, "done"))
        cancelled = await store.admit(uid, a_message("cancelled"))
        await store.cancel(uid, These((cancelled.id,)))
        await store.admit(uid, a_message("waits"))
        assert await _texts(store, uid) == ["waits"]
        every = (await store.items(uid, terminal=True)).rows
        states = [(text_of(item), item.state) for item in every]
        assert states == [("done", "completed"), ("cancelled", "cancelled"), ("waits", "pending")]

    @pytest.mark.parametrize("limit", [1, 2, 3, 5, 100])
    async def test_pages_join_without_gap_or_overlap(self, store: Store, limit: int) -> None:
        uid = (await a_session(store)).uid
        sent = [await store.admit(uid, a_message(f"m{n}")) for n in range(5)]
        assert await _every_item(store, uid, limit=limit) == sent

    async def test_the_last_page_says_that_it_is_the_last(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        assert (await store.items(uid)).next is None
        await store.admit(uid, a_message())
        assert (await store.items(uid, limit=1)).next is None

    async def test_an_item_sent_meanwhile_is_on_a_later_page(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        for text in ("a", "b", "c"):
            await store.admit(uid, a_message(text))
        page = await store.items(uid, limit=2)
        await store.admit(uid, a_message("d"))
        rest = await store.items(uid, after=page.next, limit=10)
        assert [text_of(item) for item in (*page.rows, *rest.rows)] == ["a", "b", "c", "d"]

    async def test_cancelling_the_item_that_a_page_ended_with_does_not_lose_the_place(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        for text in ("a", "b", "c"):
            await store.admit(uid, a_message(text))
        page = await store.items(uid, limit=2)
        await store.cancel(uid, These((page.rows[-1].id,)))
        rest = await store.items(uid, after=page.next, limit=10)
        assert [text_of(item) for item in rest.rows] == ["c"]
