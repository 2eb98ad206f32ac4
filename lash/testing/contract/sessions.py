"""Sessions: names and uids, creating, opening, deleting, and what a closed store says."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from lash.commit.parts import Changed, hash_of
from lash.commit.plan import CommitPlan
from lash.commit.usage import Tokens, UsageDelta
from lash.errors import (
    IdReused,
    InvalidId,
    InvalidName,
    InvalidValue,
    SessionDeleted,
    SessionExists,
    SessionNotFound,
    StoreClosed,
    TurnNotFound,
    WaitNotFound,
)
from lash.graph.session import Document, DocumentKind, Head, NewSession
from lash.ids import ItemId, NodeId, OperationId, OwnerId, ReplayKey, SessionName, SessionUid, TurnId, WaitId, node_id
from lash.inbox.cancelling import These
from lash.inbox.items import InboxItem
from lash.lease import ExecutionLease
from lash.limits import MAX_NAME
from lash.store.contract import SessionFilter, Store
from lash.testing.builders import (
    AT,
    TTL,
    a_fork,
    a_message,
    a_new_session,
    a_request_id,
    a_session,
    a_wait,
    an_effect,
    an_opening,
    an_operation,
    commit_nodes,
    fresh_name,
    leaf_of,
    must_acquire,
    new_id,
    open_with,
    plan_of,
    race,
    run_turn,
    said,
    says,
)
from lash.testing.harness import StoreContract, StoreHarness, opened
from lash.turn.journal import Identity

KINDS: tuple[DocumentKind, ...] = ("config", "catalog", "metadata")
NO_OBJECTS: list[Any] = [[], ["x"], "", "text", None, 5, True]
BAD_NAMES = ["", " ", "a b", "a/b", "-a", ".a", "a\n", "a\x00b", "e\u0301", "\ud800", "n" * (MAX_NAME + 1)]


@dataclass(frozen=True, slots=True)
class Stale:
    """What a process still has in hand of a session that is not there."""

    lease: ExecutionLease
    turn: TurnId
    item: ItemId
    wait: WaitId
    node: NodeId
    operation: OperationId

    @property
    def uid(self) -> SessionUid:
        return self.lease.session


Call = Callable[[Store, Stale], Awaitable[object]]

CALLS: dict[str, Call] = {
    "find": lambda store, old: store.find(old.uid),
    "document": lambda store, old: store.document(old.uid, "config"),
    "put_document": lambda store, old: store.put_document(old.uid, "config", {}, expected=0),
    "snapshot": lambda store, old: store.snapshot(old.uid),
    "nodes": lambda store, old: store.nodes(old.uid),
    "node": lambda store, old: store.node(old.uid, old.node),
    "on_active_path": lambda store, old: store.on_active_path(old.uid, old.node),
    "fork": lambda store, old: store.fork(a_fork(old.uid, old.node)),
    "admit": lambda store, old: store.admit(old.uid, a_message()),
    "item": lambda store, old: store.item(old.uid, old.item),
    "items": lambda store, old: store.items(old.uid),
    "cancel": lambda store, old: store.cancel(old.uid, These((old.item,))),
    "acquire": lambda store, old: store.acquire(old.uid, old.lease.owner, ttl=TTL),
    "renew": lambda store, old: store.renew(old.lease, ttl=TTL),
    "release": lambda store, old: store.release(old.lease),
    "lease": lambda store, old: store.lease(old.uid),
    "open_turn": lambda store, old: store.open_turn(an_opening(old.uid)),
    "take": lambda store, old: store.take(
        old.lease, old.turn, "after_work", key=ReplayKey("take:1"), identity=Identity("take", 1)
    ),
    "park": lambda store, old: store.park(old.lease, old.turn),
    "turn": lambda store, old: store.turn(old.uid, old.turn),
    "unsettled_turn": lambda store, old: store.unsettled_turn(old.uid),
    "request_cancel": lambda store, old: store.request_cancel(old.uid, old.turn, a_request_id(), reason="stop"),
    "cancel_request": lambda store, old: store.cancel_request(old.uid, old.turn),
    "record": lambda store, old: store.record(old.lease, old.turn, [an_effect()]),
    "journal": lambda store, old: store.journal(old.uid, old.turn),
    "open_wait": lambda store, old: store.open_wait(old.uid, a_wait()),
    "wait_key": lambda store, old: store.wait_key(old.uid, old.wait),
    "wait": lambda store, old: store.wait(old.uid, old.wait),
    "waits": lambda store, old: store.waits(old.uid),
    "revoke": lambda store, old: store.revoke(old.uid, [old.wait]),
    "commit": lambda store, old: store.commit(CommitPlan(an_operation(), old.lease, base=1)),
    "commit, repeated": lambda store, old: store.commit(CommitPlan(old.operation, old.lease, base=0)),
    "receipt": lambda store, old: store.receipt(old.uid, old.operation),
    "parts": lambda store, old: store.parts(old.uid),
    "usage": lambda store, old: store.usage(old.uid),
}
"""Every call that names a session."""

OTHER_CALLS: dict[str, Call] = {
    "create": lambda store, _: store.create(a_new_session()),
    "open": lambda store, _: store.open(a_new_session()),
    "get": lambda store, _: store.get(fresh_name()),
    "sessions": lambda store, _: store.sessions(),
    "delete": lambda store, old: store.delete(old.uid),
    "ready": lambda store, _: store.ready(["default"]),
    "lease_keeper": lambda store, _: store.lease_keeper(ttl=TTL),
    "answer": lambda store, _: store.answer(f"{new_id()}.0", None),
    "debts": lambda store, _: store.debts(),
    "put_blob": lambda store, _: store.put_blob(b"x"),
    "blob": lambda store, _: store.blob(hash_of(b"nobody put this")),
    "vacuum": lambda store, _: store.vacuum(before=AT),
}
"""The other calls, as far as they can be made without any row being there."""


async def _deleted(store: Store) -> Stale:
    """A session in the middle of a turn, with something of everything, that was deleted under its owner."""
    uid = (await a_session(store)).uid
    lease = await must_acquire(store, uid)
    operation = OperationId(new_id())
    await store.commit(CommitPlan(operation, lease, base=0))
    receipt = await commit_nodes(store, lease, says("before"))
    driven = await open_with(store, uid)
    wait = a_wait(turn=driven.turn.id)
    await store.open_wait(uid, wait)
    await store.delete(uid)
    return Stale(driven.lease, driven.turn.id, driven.items[0].id, wait.id, leaf_of(receipt), operation)


def _never() -> Stale:
    """The same of a session that never was."""
    uid, operation = SessionUid(new_id()), an_operation()
    lease = ExecutionLease(uid, OwnerId("owner"), 1, AT)
    node = node_id(uid, operation, 0)
    return Stale(lease, TurnId(new_id()), ItemId(new_id()), WaitId(new_id()), node, operation)


class SessionContract(StoreContract):
    """Sessions by uid and by name."""

    async def test_a_new_session_is_found_by_its_name_and_by_its_uid(self, store: Store) -> None:
        new = a_new_session(agent="orders")
        created = await store.create(new)
        assert (created.uid, created.name, created.agent) == (new.uid, new.name, "orders")
        assert await store.get(new.name) == created
        assert await store.find(new.uid) == created

    async def test_a_new_session_is_empty_and_needs_nobody(self, store: Store) -> None:
        session = await a_session(store)
        assert session.head == Head(revision=0, leaf=None, depth=-1, frame=-1)
        assert (session.ready_at, session.forked_from) == (None, None)
        assert (session.config_revision, session.catalog_revision, session.metadata_revision) == (0, 0, 0)
        assert await store.nodes(session.uid) == []
        assert (await store.items(session.uid, terminal=True)).rows == ()
        assert await store.unsettled_turn(session.uid) is None
        assert await store.usage(session.uid) == ()

    async def test_a_session_knows_when_it_was_created(self, store: Store, harness: StoreHarness) -> None:
        before = await harness.now()
        session = await a_session(store)
        assert before <= session.created_at <= await harness.now()

    async def test_creating_again_after_a_lost_answer_returns_the_session_untouched(self, store: Store) -> None:
        new = a_new_session(metadata={"customer": 42})
        await store.create(new)
        await run_turn(store, new.uid, "hello")
        again = await store.create(replace(new, metadata={"customer": 43}, config={"model": "other"}))
        assert again == await store.find(new.uid)
        assert again.head.revision == 1
        assert (await store.document(new.uid, "metadata")).body == {"customer": 42}
        assert (await store.document(new.uid, "config")).body == {}

    async def test_a_name_that_a_living_session_has_is_refused(self, store: Store) -> None:
        first = await a_session(store)
        second = a_new_session(first.name)
        with pytest.raises(SessionExists) as refused:
            await store.create(second)
        assert (refused.value.name, refused.value.uid) == (first.name, first.uid)
        with pytest.raises(SessionNotFound):
            await store.find(second.uid)

    async def test_a_uid_names_one_session_for_ever(self, store: Store) -> None:
        new = a_new_session()
        created = await store.create(new)
        with pytest.raises(IdReused):
            await store.create(replace(new, name=fresh_name()))
        with pytest.raises(IdReused):
            await store.create(replace(new, agent="another"))
        assert await store.find(new.uid) == created

    async def test_the_uid_of_a_deleted_session_is_never_used_again(self, store: Store) -> None:
        new = a_new_session()
        await store.create(new)
        await store.delete(new.uid)
        with pytest.raises(SessionDeleted):
            await store.create(new)
        with pytest.raises(SessionDeleted):
            await store.open(new)
        with pytest.raises(SessionNotFound):
            await store.get(new.name)

    @pytest.mark.parametrize("name", BAD_NAMES, ids=ascii)
    async def test_an_invalid_name_is_refused_and_the_rule_is_told(self, store: Store, name: str) -> None:
        new = NewSession(SessionUid(new_id()), SessionName(name))
        for call in (store.create, store.open):
            with pytest.raises(InvalidName, match=f"1 to {MAX_NAME} characters"):
                await call(new)
        with pytest.raises(SessionNotFound):
            await store.find(new.uid)

    @pytest.mark.parametrize("prefix", ["a", "Z", "9", "_", "Ärger", "注文", "a.b:c@d+e=f~g"])
    async def test_every_allowed_name_is_kept_as_it_was_written(self, store: Store, prefix: str) -> None:
        name = SessionName((prefix + fresh_name()).ljust(MAX_NAME, "x"))
        created = await store.create(NewSession(SessionUid(new_id()), name))
        assert created.name == name
        assert (await store.get(name)).uid == created.uid

    async def test_names_differ_by_case(self, store: Store) -> None:
        lower = await store.create(a_new_session(fresh_name("case")))
        upper = await store.create(a_new_session(lower.name.upper()))
        assert (await store.get(lower.name)).uid == lower.uid
        assert (await store.get(upper.name)).uid == upper.uid

    @pytest.mark.parametrize("uid", ["", "42", "g" * 32, "A" * 32, "0" * 33])
    async def test_a_uid_that_nobody_minted_is_refused(self, store: Store, uid: str) -> None:
        new = NewSession(SessionUid(uid), fresh_name())
        with pytest.raises(InvalidId):
            await store.create(new)
        with pytest.raises(SessionNotFound):
            await store.get(new.name)

    @pytest.mark.parametrize("value", [float("nan"), float("inf"), "\ud800", {"deep": ["\udfff"]}], ids=ascii)
    async def test_what_json_cannot_carry_creates_no_session(self, store: Store, value: object) -> None:
        for field in ("config", "metadata"):
            new = replace(a_new_session(), **{field: {"x": value}})  # type: ignore[arg-type]  # wrong on purpose
            with pytest.raises(InvalidValue):
                await store.create(new)
            with pytest.raises(SessionNotFound):
                await store.get(new.name)

    @pytest.mark.parametrize("body", NO_OBJECTS, ids=repr)
    async def test_a_body_that_is_no_object_creates_no_session(self, store: Store, body: Any) -> None:
        for field in ("config", "metadata"):
            new = replace(a_new_session(), **{field: body})
            for call in (store.create, store.open):
                with pytest.raises(InvalidValue):
                    await call(new)
            with pytest.raises(SessionNotFound):
                await store.get(new.name)

    @pytest.mark.parametrize("body", NO_OBJECTS, ids=repr)
    async def test_metadata_that_is_no_object_forks_no_session(self, store: Store, body: Any) -> None:
        uid = (await a_session(store)).uid
        fork = replace(a_fork(uid, leaf_of(await run_turn(store, uid, "hello"))), metadata=body)
        with pytest.raises(InvalidValue):
            await store.fork(fork)
        with pytest.raises(SessionNotFound):
            await store.get(fork.name)

    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("body", NO_OBJECTS, ids=repr)
    async def test_a_body_that_is_no_object_replaces_no_document(
        self, store: Store, kind: DocumentKind, body: Any
    ) -> None:
        session = await a_session(store)
        with pytest.raises(InvalidValue):
            await store.put_document(session.uid, kind, body, expected=0)
        assert await store.find(session.uid) == session
        assert await store.document(session.uid, kind) == Document(0, {})

    # -- opening -------------------------------------------------------------------------------------------------------

    async def test_opening_a_name_creates_its_session_once(self, store: Store) -> None:
        first = a_new_session(agent="orders")
        opened_first = await store.open(first)
        opened_again = await store.open(a_new_session(first.name, agent="another"))
        assert (opened_first.created, opened_again.created) == (True, False)
        assert opened_first.session.uid == first.uid
        assert opened_again.session == opened_first.session

    async def test_opening_again_after_a_lost_answer_says_that_it_was_created(
        self, store: Store, harness: StoreHarness
    ) -> None:
        new = a_new_session()
        first = await store.open(new)
        async with opened(harness) as other:
            assert [first, await store.open(new), await other.open(new)] == [first] * 3
        assert first.created
        await run_turn(store, new.uid, "hello")
        again = await store.open(new)
        assert (again.created, again.session) == (True, await store.find(new.uid))

    async def test_opening_a_session_shows_it_as_it_is_now(self, store: Store) -> None:
        session = await a_session(store)
        await run_turn(store, session.uid, "hello")
        assert (await store.open(a_new_session(session.name))).session == await store.find(session.uid)

    async def test_opening_cannot_give_a_uid_a_second_name(self, store: Store) -> None:
        new = a_new_session()
        await store.create(new)
        other = fresh_name()
        with pytest.raises(IdReused):
            await store.open(replace(new, name=other))
        with pytest.raises(SessionNotFound):
            await store.get(other)

    async def test_getting_never_creates(self, store: Store) -> None:
        name = fresh_name()
        for _ in range(2):
            with pytest.raises(SessionNotFound) as missing:
                await store.get(name)
            assert missing.value.session == name

    async def test_everybody_who_opens_a_name_at_once_gets_the_same_session(self, harness: StoreHarness) -> None:
        name = fresh_name()
        async with opened(harness) as one, opened(harness) as two:
            ends = await asyncio.gather(*(store.open(a_new_session(name)) for store in (one, two) * 5))
        assert len({end.session.uid for end in ends}) == 1
        assert [end.created for end in ends].count(True) == 1

    async def test_creates_of_one_name_at_once_have_one_winner(self, harness: StoreHarness) -> None:
        name = fresh_name()
        async with opened(harness) as one, opened(harness) as two:
            created, refused = await race(*(store.create(a_new_session(name)) for store in (one, two) * 3))
            assert [await one.get(name)] == created
        assert [type(error) for error in refused] == [SessionExists] * 5

    async def test_the_same_create_twice_at_once_is_one_create(self, harness: StoreHarness) -> None:
        new = a_new_session()
        async with opened(harness) as one, opened(harness) as two:
            ends = await asyncio.gather(one.create(new), two.create(new), one.create(new))
        assert {end.uid for end in ends} == {new.uid}

    # -- deleting ------------------------------------------------------------------------------------------------------

    async def test_a_session_is_deleted_once(self, store: Store) -> None:
        session = await a_session(store)
        assert await store.delete(session.uid) is True
        assert await store.delete(session.uid) is False
        with pytest.raises(SessionDeleted) as gone:
            await store.find(session.uid)
        assert gone.value.session == session.uid

    async def test_a_session_that_never_was_cannot_be_deleted(self, store: Store) -> None:
        with pytest.raises(SessionNotFound):
            await store.delete(SessionUid(new_id()))

    @pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
    async def test_a_stale_handle_on_a_deleted_session_is_refused_everywhere(self, store: Store, call: Call) -> None:
        with pytest.raises(SessionDeleted):
            await call(store, await _deleted(store))

    @pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
    async def test_a_session_that_never_was_is_not_found_anywhere(self, store: Store, call: Call) -> None:
        with pytest.raises(SessionNotFound):
            await call(store, _never())

    async def test_another_process_sees_the_deletion_at_once(self, store: Store, harness: StoreHarness) -> None:
        lease = await must_acquire(store, (await a_session(store)).uid)
        async with opened(harness) as other:
            await other.delete(lease.session)
        with pytest.raises(SessionDeleted):
            await commit_nodes(store, lease, says("too late"))

    async def test_the_name_of_a_deleted_session_is_free_for_a_wholly_new_one(self, store: Store) -> None:
        old = await a_session(store)
        await store.admit(old.uid, a_message("old", key="k"))
        await run_turn(store, old.uid, "old")
        await store.delete(old.uid)
        new = await a_session(store, old.name)
        assert (await store.get(old.name)).uid == new.uid != old.uid
        assert (new.head, await store.nodes(new.uid)) == (Head(), [])
        assert (await store.items(new.uid, terminal=True)).rows == ()
        assert (await must_acquire(store, new.uid)).generation == 1
        kept = await store.admit(new.uid, a_message("other content", key="k"))
        assert kept.session == new.uid

    async def test_a_stale_handle_cannot_touch_the_next_session_of_that_name(self, store: Store) -> None:
        old = await a_session(store)
        driven = await open_with(store, old.uid)
        plan = await plan_of(store, driven, says("stale"))
        await store.delete(old.uid)
        new = await a_session(store, old.name)
        await run_turn(store, new.uid, "hello")
        with pytest.raises(SessionDeleted):
            await store.commit(plan)
        assert await said(store, new.uid) == ["hello", "re: hello"]

    async def test_a_deleted_session_needs_no_worker_and_answers_no_key(self, store: Store) -> None:
        agent = fresh_name("agent")
        session = await a_session(store, agent=agent)
        await store.admit(session.uid, a_message())
        key = await store.open_wait(session.uid, a_wait())
        assert [ready.uid for ready in await store.ready([agent])] == [session.uid]
        await store.delete(session.uid)
        assert await store.ready([agent]) == []
        with pytest.raises(WaitNotFound):
            await store.answer(key, "yes")

    async def test_nothing_of_a_deleted_session_is_listed(self, store: Store) -> None:
        agent = fresh_name("agent")
        gone, kept = await a_session(store, agent=agent), await a_session(store, agent=agent)
        for uid in (gone.uid, kept.uid):
            await open_with(store, uid, "taken", owner=uid)
            await store.open_wait(uid, a_wait("of a session"))
            await store.admit(uid, a_message("pending"))
        await store.delete(gone.uid)
        for where in (SessionFilter(agent=agent), SessionFilter(agent=agent, unsettled=True)):
            assert [session.uid for session in (await store.sessions(where)).rows] == [kept.uid]
        assert (await store.sessions(SessionFilter(name_prefix=gone.name))).rows == ()
        assert len((await store.items(kept.uid)).rows) == 2
        assert len(await store.waits(kept.uid)) == 1

    async def test_the_next_session_of_a_name_has_nothing_of_the_deleted_one(self, store: Store) -> None:
        old = await store.create(replace(a_new_session(metadata={"of": "old"}), config={"of": "old"}))
        driven = await open_with(store, old.uid)
        spent = (UsageDelta("agent", "m", Tokens(input=1)),)
        plan = replace(await plan_of(store, driven), usage=spent, parts={"p": Changed(b"old")})
        await store.commit(plan)
        await open_with(store, old.uid)
        await store.open_wait(old.uid, a_wait())
        await store.delete(old.uid)
        new = await a_session(store, old.name)
        assert (await store.items(new.uid, terminal=True)).rows == ()
        assert await store.waits(new.uid) == []
        assert await store.unsettled_turn(new.uid) is None
        assert await store.usage(new.uid) == ()
        assert await store.parts(new.uid) == {}
        assert await store.receipt(new.uid, plan.operation) is None
        for kind in KINDS:
            assert await store.document(new.uid, kind) == Document(0, {})

    async def test_deletes_at_once_delete_once(self, harness: StoreHarness) -> None:
        async with opened(harness) as one, opened(harness) as two:
            uid = (await a_session(one)).uid
            ends = await asyncio.gather(*(store.delete(uid) for store in (one, two) * 2))
        assert sorted(ends) == [False, False, False, True]

    async def test_a_commit_that_races_a_delete_lands_before_it_or_is_refused(self, harness: StoreHarness) -> None:
        async with opened(harness) as one, opened(harness) as two:
            driven = await open_with(one, (await a_session(one)).uid)
            plan = await plan_of(one, driven, says("hi"))
            _, refused = await race(one.commit(plan), two.delete(driven.lease.session))
            assert all(type(error) is SessionDeleted for error in refused)
            with pytest.raises(SessionDeleted):
                await one.find(driven.lease.session)

    # -- handles -------------------------------------------------------------------------------------------------------

    async def test_sessions_outlive_the_handle_that_made_them(self, harness: StoreHarness) -> None:
        async with opened(harness) as first:
            session = await a_session(first)
            await run_turn(first, session.uid, "hello")
            before = await first.snapshot(session.uid)
        async with opened(harness) as second:
            assert await second.snapshot(session.uid) == before
            assert await said(second, session.uid) == ["hello", "re: hello"]

    async def test_sessions_do_not_see_each_other(self, store: Store) -> None:
        one, two = await a_session(store), await a_session(store)
        await run_turn(store, one.uid, "for one")
        assert await store.find(two.uid) == two
        assert await said(store, two.uid) == []

    @pytest.mark.parametrize("nonsense", ["", "zz", "A" * 32, "0" * 31, "0" * 34, "\0", "\ud800", "x" * 10_000])
    async def test_text_that_is_no_id_names_nothing(self, store: Store, nonsense: str) -> None:
        uid = (await a_session(store)).uid
        with pytest.raises(SessionNotFound):
            await store.find(SessionUid(nonsense))
        assert await store.item(uid, ItemId(nonsense)) is None
        assert await store.receipt(uid, OperationId(nonsense)) is None
        [answer] = await store.cancel(uid, These((ItemId(nonsense),)))
        assert answer.answer == "not_found"
        with pytest.raises(TurnNotFound):
            await store.turn(uid, TurnId(nonsense))
        with pytest.raises(WaitNotFound):
            await store.wait(uid, WaitId(nonsense))
        with pytest.raises(SessionNotFound):
            await store.get(SessionName(nonsense))

    async def test_nonsense_from_one_caller_does_not_reach_another(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        refused, kept = await asyncio.gather(
            store.delete(SessionUid("zz")), store.admit(uid, a_message()), return_exceptions=True
        )
        assert isinstance(refused, SessionNotFound)
        assert isinstance(kept, InboxItem)

    @pytest.mark.parametrize("call", [*CALLS.values(), *OTHER_CALLS.values()], ids=[*CALLS, *OTHER_CALLS])
    async def test_a_closed_store_refuses_every_call(self, harness: StoreHarness, call: Call) -> None:
        store = await harness.open()
        await store.aclose()
        with pytest.raises(StoreClosed):
            await call(store, _never())

    async def test_closing_twice_is_closing_once(self, harness: StoreHarness) -> None:
        store = await harness.open()
        async with store as entered:
            assert entered is store
        await store.aclose()
        with pytest.raises(StoreClosed):
            await store.get(fresh_name())

    async def test_closing_one_handle_leaves_the_others_open(self, store: Store, harness: StoreHarness) -> None:
        session = await a_session(store)
        async with opened(harness) as other:
            assert await other.find(session.uid) == session
        assert await store.find(session.uid) == session
