"""The outbox: what a commit owes another session is written with it and delivered later, once. Needs an empty
database."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from lash.commit.outbox import Debt, Owed
from lash.commit.plan import CommitReceipt
from lash.errors import LeaseLost, OutboxNotFound
from lash.graph.parts import Text
from lash.ids import OperationId, SessionUid
from lash.inbox.items import Command, Message, Wake
from lash.store.contract import Store
from lash.testing.builders import (
    TTL,
    a_session,
    an_operation,
    displace,
    is_ready,
    must_open,
    open_with,
    plan_of,
    race,
    settle_turn,
    take_over,
    text_of,
)
from lash.testing.harness import StoreContract, StoreHarness, opened


def _owed(to: SessionUid, text: str = "result") -> Owed:
    return Owed(to, Message(parts=(Text(text=text),)))


async def _owe(store: Store, uid: SessionUid, *owes: Owed) -> CommitReceipt:
    """A turn whose commit owes these."""
    driven = await open_with(store, uid)
    return await store.commit(replace(await plan_of(store, driven), owes=owes))


async def _one_debt(store: Store) -> Debt:
    [debt] = await store.debts()
    return debt


class OutboxContract(StoreContract):
    """OutboxStore. Needs an empty database for each test, because it asks for the debts of everybody."""

    # -- owing ---------------------------------------------------------------------------------------------------------

    async def test_nothing_is_owed_at_first(self, store: Store) -> None:
        assert await store.debts() == []

    async def test_what_a_commit_owes_is_on_record_and_not_yet_delivered(
        self, harness: StoreHarness, store: Store
    ) -> None:
        parent, child = await a_session(store), await a_session(store)
        owed = Owed(
            parent.uid,
            Wake(source="child", data={"answer": 42}),
            when="now",
            boundary="before_completion",
            merge_key="m",
            options={"steps": 1},
        )
        receipt = await _owe(store, child.uid, owed)
        async with opened(harness) as other:
            assert await other.debts() == [Debt(child.uid, receipt.operation, 0, owed)]
            assert (await other.items(parent.uid)).rows == ()

    async def test_debts_are_listed_oldest_first(self, harness: StoreHarness, store: Store) -> None:
        receiver = (await a_session(store)).uid
        expected = []
        for n in range(3):
            debtor = await a_session(store)
            await _owe(store, debtor.uid, _owed(receiver, f"{n}a"), _owed(receiver, f"{n}b"))
            expected += [(debtor.uid, 0, f"{n}a"), (debtor.uid, 1, f"{n}b")]
            await harness.advance(timedelta(seconds=1))
        found = await store.debts()
        assert [(d.session, d.ordinal, _text(d)) for d in found] == expected

    async def test_a_list_of_debts_can_be_limited(self, harness: StoreHarness, store: Store) -> None:
        receiver, debtor = await a_session(store), await a_session(store)
        await _owe(store, debtor.uid, *(_owed(receiver.uid, str(n)) for n in range(5)))
        assert [_text(debt) for debt in await store.debts(limit=2)] == ["0", "1"]

    async def test_a_commit_that_is_repeated_owes_once(self, store: Store) -> None:
        receiver, debtor = await a_session(store), await a_session(store)
        plan = replace(await plan_of(store, await open_with(store, debtor.uid)), owes=(_owed(receiver.uid),))
        await store.commit(plan)
        await store.commit(plan)
        assert len(await store.debts()) == 1

    async def test_a_commit_that_is_repeated_after_delivery_owes_nothing_more(self, store: Store) -> None:
        receiver, debtor = await a_session(store), await a_session(store)
        plan = replace(await plan_of(store, await open_with(store, debtor.uid)), owes=(_owed(receiver.uid),))
        await store.commit(plan)
        await store.deliver(await _one_debt(store))
        await store.commit(plan)
        assert await store.debts() == []
        assert len((await store.items(receiver.uid)).rows) == 1

    async def test_a_refused_commit_owes_nothing(self, harness: StoreHarness, store: Store) -> None:
        receiver, debtor = await a_session(store), await a_session(store)
        slow = await open_with(store, debtor.uid, owner="slow")
        plan = replace(await plan_of(store, slow), owes=(_owed(receiver.uid),))
        await displace(harness, store, debtor.uid)
        with pytest.raises(LeaseLost):
            await store.commit(plan)
        assert await store.debts() == []

    # -- delivering ----------------------------------------------------------------------------------------------------

    async def test_a_delivery_is_an_admission_and_ends_the_debt(self, harness: StoreHarness, store: Store) -> None:
        receiver, debtor = await a_session(store), await a_session(store)
        due = await harness.now() + TTL
        owed = Owed(receiver.uid, Command(name="compact"), options={"steps": 1}, available_at=due)
        await _owe(store, debtor.uid, owed)
        async with opened(harness) as worker:
            item = await worker.deliver(await _one_debt(worker))
        assert item is not None
        assert (await store.items(receiver.uid)).rows == (item,)
        assert (item.session, item.state, item.body) == (receiver.uid, "pending", Command(name="compact"))
        assert (item.options, item.available_at) == ({"steps": 1}, due)
        assert await store.debts() == []

    async def test_a_delivery_makes_the_receiver_ready(self, harness: StoreHarness, store: Store) -> None:
        receiver, debtor = await a_session(store), await a_session(store)
        await _owe(store, debtor.uid, _owed(receiver.uid, "result"))
        assert not await is_ready(harness, store, receiver.uid)
        await store.deliver(await _one_debt(store))
        assert await is_ready(harness, store, receiver.uid)
        driven = await must_open(store, receiver.uid)
        assert [text_of(item) for item in driven.items] == ["result"]

    async def test_delivering_twice_is_delivering_once(self, store: Store) -> None:
        receiver, debtor = await a_session(store), await a_session(store)
        await _owe(store, debtor.uid, _owed(receiver.uid))
        debt = await _one_debt(store)
        first = await store.deliver(debt)
        assert await store.deliver(debt) == first
        assert len((await store.items(receiver.uid, terminal=True)).rows) == 1

    async def test_a_delivery_repeated_after_its_item_was_served_brings_nothing_back(self, store: Store) -> None:
        receiver, debtor = await a_session(store), await a_session(store)
        await _owe(store, debtor.uid, _owed(receiver.uid))
        debt = await _one_debt(store)
        await store.deliver(debt)
        await settle_turn(store, await must_open(store, receiver.uid))
        await store.deliver(debt)
        assert [item.state for item in (await store.items(receiver.uid, terminal=True)).rows] == ["completed"]

    async def test_what_is_delivered_is_what_was_committed(self, store: Store) -> None:
        receiver, debtor, stranger = await a_session(store), await a_session(store), await a_session(store)
        await _owe(store, debtor.uid, _owed(receiver.uid, "result"))
        await store.deliver(replace(await _one_debt(store), owed=_owed(stranger.uid, "forged")))
        assert [text_of(item) for item in (await store.items(receiver.uid)).rows] == ["result"]
        assert (await store.items(stranger.uid)).rows == ()

    async def test_two_workers_that_deliver_at_once_deliver_once(self, harness: StoreHarness, store: Store) -> None:
        receiver, debtor = await a_session(store), await a_session(store)
        await _owe(store, debtor.uid, _owed(receiver.uid))
        debt = await _one_debt(store)
        async with opened(harness) as other:
            items, refused = await race(store.deliver(debt), other.deliver(debt))
        assert refused == []
        assert (await store.items(receiver.uid)).rows == (items[0],)
        assert items[0] == items[1]
        assert await store.debts() == []

    async def test_two_debts_with_the_same_words_are_two_items(self, store: Store) -> None:
        receiver, debtor = await a_session(store), await a_session(store)
        await _owe(store, debtor.uid, _owed(receiver.uid, "same"), _owed(receiver.uid, "same"))
        for debt in await store.debts():
            await store.deliver(debt)
        assert [text_of(item) for item in (await store.items(receiver.uid)).rows] == ["same", "same"]

    async def test_delivering_one_debt_leaves_the_others(self, store: Store) -> None:
        receiver, debtor = await a_session(store), await a_session(store)
        await _owe(store, debtor.uid, *(_owed(receiver.uid, text) for text in ("a", "b", "c")))
        await store.deliver((await store.debts())[1])
        assert [_text(debt) for debt in await store.debts()] == ["a", "c"]

    async def test_a_delivery_for_now_reaches_the_running_turn_of_the_receiver(self, store: Store) -> None:
        receiver, debtor = await a_session(store), await a_session(store)
        driven = await open_with(store, receiver.uid)
        await _owe(store, debtor.uid, replace(_owed(receiver.uid), when="now"))
        item = await store.deliver(await _one_debt(store))
        assert item is not None
        assert item.target == driven.turn.id

    async def test_a_session_may_owe_itself(self, store: Store) -> None:
        uid = (await a_session(store)).uid
        await _owe(store, uid, _owed(uid, "to myself"))
        await store.deliver(await _one_debt(store))
        assert [text_of(item) for item in (await store.items(uid)).rows] == ["to myself"]

    async def test_a_receiver_that_is_gone_ends_the_debt(self, store: Store) -> None:
        receiver, debtor = await a_session(store), await a_session(store)
        await _owe(store, debtor.uid, _owed(receiver.uid))
        await store.delete(receiver.uid)
        debt = await _one_debt(store)
        assert await store.deliver(debt) is None
        assert await store.debts() == []
        assert await store.deliver(debt) is None

    async def test_a_session_that_took_over_the_name_of_the_receiver_gets_nothing(self, store: Store) -> None:
        receiver, debtor = await a_session(store), await a_session(store)
        await _owe(store, debtor.uid, _owed(receiver.uid))
        await store.delete(receiver.uid)
        namesake = await a_session(store, receiver.name)
        assert await store.deliver(await _one_debt(store)) is None
        assert (await store.items(namesake.uid)).rows == ()

    async def test_what_a_deleted_session_owed_is_still_delivered(self, store: Store) -> None:
        receiver, debtor = await a_session(store), await a_session(store)
        await _owe(store, debtor.uid, _owed(receiver.uid, "last words"))
        await store.delete(debtor.uid)
        await store.deliver(await _one_debt(store))
        assert [text_of(item) for item in (await store.items(receiver.uid)).rows] == ["last words"]

    async def test_a_debt_that_nobody_committed_is_not_found(self, store: Store) -> None:
        receiver, debtor = await a_session(store), await a_session(store)
        receipt = await _owe(store, debtor.uid, _owed(receiver.uid))
        for operation, ordinal in ((receipt.operation, 1), (an_operation(), 0)):
            with pytest.raises(OutboxNotFound):
                await store.deliver(Debt(debtor.uid, OperationId(operation), ordinal, _owed(receiver.uid)))
        assert (await store.items(receiver.uid)).rows == ()

    async def test_a_debt_survives_the_crash_of_the_worker_that_committed_it(
        self, harness: StoreHarness, store: Store
    ) -> None:
        receiver, debtor = await a_session(store), await a_session(store)
        await open_with(store, debtor.uid, owner="dead")
        again = await take_over(harness, store, debtor.uid)
        await store.commit(replace(await plan_of(store, again), owes=(_owed(receiver.uid),)))
        await store.aclose()
        async with opened(harness) as worker:
            assert await worker.deliver(await _one_debt(worker)) is not None


def _text(debt: Debt) -> str:
    """The words of a debt made by ``_owed``."""
    assert isinstance(debt.owed.body, Message)
    part = debt.owed.body.parts[0]
    assert isinstance(part, Text)
    return part.text
