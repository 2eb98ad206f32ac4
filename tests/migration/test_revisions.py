"""What was written under any revision is whole after an upgrade, and its sessions go on."""

from __future__ import annotations

import pytest
from alembic.script import ScriptDirectory

from lash.commit.parts import hash_of
from lash.commit.usage import Tokens, UsageTotal
from lash.errors import SessionNotFound
from lash.ids import OperationId, SessionName
from lash.inbox.items import Wake
from lash.store import migrate, open_store
from lash.store.schema import metadata
from lash.testing.builders import a_message, must_open, plan_of, run_turn, said, says
from tests.migration.data import BLOB, WRITTEN, load, written
from tests.migration.databases import TestedDatabase

REVISIONS = sorted(path.stem for path in WRITTEN.glob("*.json"))
NEVER_WRITTEN = {"lash_clock_offsets", "lash_live_events"}
"""Tables that only tests, or only a running turn, put rows into."""


def test_every_revision_has_left_its_data() -> None:
    known = ScriptDirectory.from_config(migrate.config()).walk_revisions()
    assert sorted(script.revision for script in known) == REVISIONS


def test_the_newest_data_leaves_no_table_empty() -> None:
    rows = written(REVISIONS[-1])["rows"]
    assert {table for table in metadata.tables if not rows[table]} == NEVER_WRITTEN


@pytest.fixture(params=REVISIONS)
async def revision(request: pytest.FixtureRequest, database: TestedDatabase) -> str:
    """A database that was filled under this revision and then upgraded."""
    await load(database, request.param)
    await database.upgrade()
    return str(request.param)


async def test_history_branches_and_forks_are_whole(revision: str, database: TestedDatabase) -> None:
    async with await open_store(database.url) as store:
        talk, copy = await store.get(SessionName("talk")), await store.get(SessionName("copy"))
        assert await said(store, talk.uid) == ["one", "re: one"]
        assert await said(store, copy.uid) == ["one", "re: one", "two", "re: two"]
        assert (talk.agent, talk.head.revision) == ("orders", 3)
        assert (await store.document(talk.uid, "metadata")).body == {"customer": 42}
        assert await store.parts(talk.uid) == {}
        assert await store.parts(copy.uid) == {"tools": hash_of(b"open")}
        assert await store.usage(talk.uid) == (
            UsageTotal("agent", "a-model", Tokens(input=100, output=20, reasoning=5)),
        )
        with pytest.raises(SessionNotFound):
            await store.get(SessionName("gone"))


async def test_the_same_request_is_still_the_same_item(revision: str, database: TestedDatabase) -> None:
    async with await open_store(database.url) as store:
        talk = await store.get(SessionName("talk"))
        [waiting] = (await store.items(talk.uid)).rows
        again = await store.admit(talk.uid, a_message("three", key="msg-3"))
        assert again == waiting


async def test_a_parked_turn_is_answered_by_the_key_of_then_and_replays_its_journal(
    revision: str, database: TestedDatabase
) -> None:
    key = written(revision)["handed_out"]["wait_key"]
    async with await open_store(database.url) as store:
        asking = await store.get(SessionName("asking"))
        assert (await store.answer(key, "yes")).accepted
        driven = await must_open(store, asking.uid, "successor")
        assert not driven.opened.fresh
        journal = {entry.key: (entry.state, entry.outcome) for entry in await store.journal(asking.uid, driven.turn.id)}
        assert journal == {"model:1": ("completed", {"text": "I must ask"}), "tool:1": ("started", None)}
        receipt = await store.commit(await plan_of(store, driven, says("done")))
        assert await store.receipt(asking.uid, OperationId(driven.turn.id)) == receipt


async def test_a_request_to_stop_still_stands(revision: str, database: TestedDatabase) -> None:
    async with await open_store(database.url) as store:
        stopped = await store.get(SessionName("stopped"))
        turn = await store.unsettled_turn(stopped.uid)
        assert turn is not None
        request = await store.cancel_request(stopped.uid, turn.id)
        assert request is not None
        assert request.reason == "the user pressed stop"


async def test_debts_are_paid_and_blobs_are_there(revision: str, database: TestedDatabase) -> None:
    async with await open_store(database.url) as store:
        assert await store.blob(hash_of(BLOB)) == BLOB
        [debt] = await store.debts()
        delivered = await store.deliver(debt)
        assert delivered is not None
        assert delivered.body == Wake(source="child", data={"parcel": 7})
        assert delivered.session == (await store.get(SessionName("receiver"))).uid


async def test_the_next_turn_of_an_old_session_is_committed(revision: str, database: TestedDatabase) -> None:
    async with await open_store(database.url) as store:
        copy = await store.get(SessionName("copy"))
        await run_turn(store, copy.uid, "three")
        assert (await said(store, copy.uid))[-2:] == ["three", "re: three"]
        fresh = await store.put_blob(b"another picture")
        assert await store.blob(fresh) == b"another picture"
