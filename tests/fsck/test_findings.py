"""Each kind of damage is found under its code, and the row is named."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import dataclass

import pytest

from lash.errors import CorruptData
from lash.fsck import CODES
from lash.fsck.report import MAX_KEPT
from lash.testing import check_database
from tests.fsck.sample import (
    CHILD,
    GONE,
    HEALTHY,
    HEIR,
    IDLE,
    PARKED,
    RICH,
    VICTIM,
    RichSqlite,
    damage,
)
from tests.store.sample import PostgresCopy, SqliteCopy

NOWHERE = 99
NO_ID = f"x'{'00' * 16}'"
NO_HASH = f"x'{'00' * 32}'"
HASH_OF_NOTHING = "x'e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855'"


@dataclass(frozen=True)
class Case:
    """Some statements that do the damage, and what must be found: ``row`` begins with the key of the damaged row."""

    code: str
    row: str
    damage: tuple[str, ...]

    @property
    def id(self) -> str:
        return f"{self.code}: {'; '.join(self.damage)}"


def found(code: str, row: str, *damage: str) -> Case:
    return Case(code, row, damage)


def sets(code: str, row: str, table: str, change: str, *, session: int, where: str = "", key: str = "session") -> Case:
    """A damage that is one UPDATE of one session's rows."""
    more = f" AND {where}" if where else ""
    return found(code, row, f"UPDATE lash_{table} SET {change} WHERE {key} = {session}{more}")


def session_row(code: str, change: str, *, session: int) -> Case:
    return sets(code, f"lash_sessions id={session}", "sessions", change, session=session, key="id")


def config(code: str, body: str) -> Case:
    row = f"lash_documents session={HEALTHY} kind=config revision=0"
    return sets(code, row, "documents", f"body = '{body}'", session=HEALTHY, where="kind = 'config'")


def gone(code: str, row: str, table: str, where: str) -> Case:
    return found(code, row, f"DELETE FROM lash_{table} WHERE {where}")


def commit(code: str, revision: int, change: str) -> Case:
    row = f"lash_commits session={RICH} revision={revision}"
    return sets(code, row, "commits", change, session=RICH, where=f"revision = {revision}")


def node(code: str, branch: int, depth: int, change: str, session: int = RICH) -> Case:
    row = f"lash_nodes session={session} branch={branch} depth={depth}"
    return sets(code, row, "nodes", change, session=session, where=f"branch = {branch} AND depth = {depth}")


def item(code: str, change: str, session: int = IDLE, where: str = "") -> Case:
    return sets(code, f"lash_inbox session={session}", "inbox", change, session=session, where=where)


def turn(code: str, change: str, session: int = HEALTHY, where: str = "") -> Case:
    return sets(code, f"lash_turns session={session}", "turns", change, session=session, where=where)


def entry(code: str, change: str) -> Case:
    return sets(code, f"lash_journal session={PARKED}", "journal", change, session=PARKED)


def wait(code: str, change: str, session: int = PARKED, where: str = "", row: str = "lash_waits id=") -> Case:
    return sets(code, row, "waits", change, session=session, where=where)


def hash_wrong(revision: int, *damage: str) -> Case:
    return found("commit-hash-wrong", f"lash_commits session={RICH} revision={revision}", *damage)


ROWS = [
    found("meta-wrong", "lash_meta name=secret", "UPDATE lash_meta SET value = 'hush' WHERE name = 'secret'"),
    found("meta-wrong", "lash_meta name=oldest_runtime", "DELETE FROM lash_meta WHERE name = 'oldest_runtime'"),
    found("version-wrong", "lash_version version_num=x", "UPDATE lash_version SET version_num = 'x'"),
    found("version-wrong", "lash_version version_num=None", "DELETE FROM lash_version"),
    item("row-malformed", "aim = 'maybe'"),
    item("row-malformed", "id = x'00'"),
    node("row-malformed", 0, 1, "at = 999999999999999999"),
    turn("row-malformed", "items = x'0011'"),
    config("record-malformed", '{"json":{'),
    config("record-malformed", "[]"),
    config("record-malformed", '{"json":[],"v":1}'),
    config("record-malformed", '{"json":{"n":NaN},"v":1}'),
    config("record-malformed", '{"v":1}'),
    config("record-not-canonical", '{"v":1,"json":{}}'),
    config("record-version-missing", '{"json":{}}'),
    config("record-version-malformed", '{"json":{},"v":"1"}'),
    config("record-version-unsupported", '{"json":{},"v":2}'),
    session_row("record-version-malformed", "version = 0", session=IDLE),
    session_row("record-version-unsupported", "version = 2", session=IDLE),
    node("record-version-unsupported", 0, 0, 'body = \'{"reason":"initial","v":2}\'', HEALTHY),
    node("payload-malformed", 0, 1, "kind = 'dreamt'", HEALTHY),
    node("payload-malformed", 0, 1, 'body = \'{"parts":[{"kind":"smell"}],"v":1}\'', HEALTHY),
    item("payload-malformed", "kind = 'wake'"),
    item("payload-malformed", 'body = \'{"kind":"message","parts":[],"v":1}\''),
    entry("payload-malformed", 'identity = \'{"kind":"model","v":1}\''),
    sets("payload-malformed", f"lash_outbox session={VICTIM}", "outbox", "body = '{\"v\":1}'", session=VICTIM),
    wait("session-missing", f"session = {NOWHERE}"),
    found("session-missing", f"lash_usage session={NOWHERE}", f"UPDATE lash_usage SET session = {NOWHERE}"),
    found(
        "session-missing",
        f"lash_commits session={NOWHERE}",
        f"UPDATE lash_commits SET session = {NOWHERE} WHERE session = {RICH}",
    ),
    gone("session-missing", f"lash_nodes session={RICH}", "sessions", f"id = {RICH}"),
    gone("session-missing", f"lash_turns session={PARKED}", "sessions", f"id = {PARKED}"),
]

SESSIONS = [
    session_row("session-state-wrong", "deleted_at = 5", session=IDLE),
    session_row("session-state-wrong", "lease_owner = 'ghost'", session=GONE),
    found(
        "name-taken-twice",
        "lash_sessions name=idle",
        "DROP INDEX lash_sessions_name_ix",
        f"UPDATE lash_sessions SET name = 'idle' WHERE id = {HEALTHY}",
    ),
    found(
        "deleted-session-keeps-rows",
        f"lash_documents session={GONE} kind=config revision=0",
        f"UPDATE lash_documents SET session = {GONE} WHERE session = {IDLE}",
    ),
    *(
        found(
            "deleted-session-keeps-rows",
            f"lash_{table} session={GONE}",
            f"UPDATE lash_{table} SET session = {GONE} WHERE session = {PARKED}",
        )
        for table in ("inbox", "turns", "journal")
    ),
    wait("deleted-session-keeps-rows", f"session = {GONE}"),
    found(
        "deleted-session-keeps-rows",
        f"lash_live_events session={GONE} seq=1",
        f"INSERT INTO lash_live_events VALUES ({GONE}, 1, 0, 'text', 5)",
    ),
    found(
        "seq-used-twice",
        f"lash_sessions session={HEALTHY} seq=1",
        f"UPDATE lash_commits SET seq = 1 WHERE session = {HEALTHY}",
    ),
    item("seq-ahead", "seq = 99"),
    entry("seq-ahead", "seq = 99"),
    session_row("lease-wrong", "lease_expires_at = NULL", session=HEALTHY),
    session_row("lease-wrong", "lease_generation = 0", session=HEALTHY),
    session_row("next-item-at-wrong", "next_item_at = NULL", session=IDLE),
    session_row("next-item-at-wrong", "next_item_at = next_item_at + 1", session=IDLE),
    session_row("ready-at-wrong", "ready_at = NULL", session=IDLE),
    session_row("ready-at-wrong", "ready_at = ready_at - 1", session=IDLE),
    session_row("ready-at-wrong", "ready_at = 5", session=PARKED),
    session_row("ready-at-wrong", "ready_at = NULL", session=VICTIM),
    session_row("ready-at-wrong", "ready_at = ready_at + 1", session=VICTIM),
    session_row("ready-at-wrong", "ready_at = next_item_at", session=HEALTHY),
]

HISTORY = [
    found(
        "commit-revision-gap",
        f"lash_commits session={RICH} revision=9",
        f"UPDATE lash_commits SET revision = 9 WHERE session = {RICH} AND revision = 6",
    ),
    gone("commit-revision-gap", f"lash_commits session={RICH} revision=3", "commits", f"session={RICH} AND revision=2"),
    commit("commit-seq-wrong", 6, "seq = 999"),
    commit("commit-seq-wrong", 2, "seq = 1"),
    commit("commit-branch-wrong", 6, "branch = 0"),
    commit("commit-first-depth-wrong", 6, "first_depth = 7"),
    commit("commit-first-depth-wrong", 3, "first_depth = 4"),
    commit("commit-first-depth-wrong", 4, "first_depth = 1"),
    commit("commit-nodes-missing", 6, "nodes = 2"),
    gone("commit-nodes-missing", f"lash_commits session={RICH} revision=6", "nodes", f"session={RICH} AND depth=5"),
    gone("commit-nodes-missing", f"lash_commits session={GONE} revision=1", "nodes", f"session={GONE} AND depth=1"),
    commit("commit-leaf-wrong", 2, "leaf = NULL"),
    commit("commit-leaf-wrong", 4, "leaf = 'elsewhere'"),
    commit("commit-leaf-wrong", 6, "leaf = 'elsewhere'"),
    commit("commit-state-set-wrong", 6, "state_set = 3"),
    commit("commit-state-set-wrong", 4, "state_set = 0"),
    session_row("head-revision-wrong", "revision = 7", session=RICH),
    session_row("head-leaf-wrong", "leaf = 'elsewhere'", session=RICH),
    session_row("head-leaf-wrong", "leaf = NULL", session=CHILD),
    session_row("head-depth-wrong", "depth = 4", session=RICH),
    session_row("head-frame-wrong", "frame = 1", session=RICH),
    session_row("head-frame-wrong", "frame = 0", session=VICTIM),
    session_row("head-branch-wrong", "branch = 3", session=RICH),
    session_row("head-state-set-wrong", "state_set = 0", session=RICH),
    gone("branch-missing", f"lash_branches session={RICH} branch=4", "branches", f"session={RICH} AND branch=4"),
    gone("branch-missing", f"lash_branches session={IDLE} branch=0", "branches", f"session={IDLE}"),
    found(
        "branch-never-begun",
        f"lash_branches session={RICH} branch=2",
        f"INSERT INTO lash_branches VALUES ({RICH}, 2, NULL, NULL, NULL)",
    ),
    sets("branch-parent-missing", f"lash_branches session={CHILD}", "branches", "parent_depth = 77", session=CHILD),
    gone("branch-parent-missing", f"lash_branches session={HEIR} branch=0", "nodes", f"session={GONE} AND depth=2"),
    sets(
        "branch-parent-wrong",
        f"lash_branches session={RICH} branch=3",
        "branches",
        f"parent_session = {RICH}, parent_branch = 0, parent_depth = 3",
        session=RICH,
        where="branch = 3",
    ),
    sets(
        "branch-parent-wrong",
        f"lash_branches session={RICH} branch=4",
        "branches",
        "parent_session = NULL, parent_branch = NULL, parent_depth = NULL",
        session=RICH,
        where="branch = 4",
    ),
    sets(
        "branch-grew-from-itself",
        f"lash_branches session={RICH} branch=4",
        "branches",
        "parent_branch = 4",
        session=RICH,
        where="branch = 4",
    ),
    sets(
        "branch-not-at-boundary",
        f"lash_branches session={RICH} branch=4",
        "branches",
        "parent_depth = 1",
        session=RICH,
        where="branch = 4",
    ),
    session_row("fork-point-wrong", "forked_from = 'elsewhere'", session=CHILD),
    session_row("fork-point-wrong", "forked_from = NULL", session=HEIR),
    found(
        "node-without-commit",
        f"lash_nodes session={HEALTHY} branch=0 depth=3",
        "INSERT INTO lash_nodes SELECT session, branch, 3, frame, revision, kind, body, at, seq FROM lash_nodes"
        f" WHERE session = {HEALTHY} AND depth = 2",
    ),
    gone("node-without-commit", f"lash_nodes session={GONE} branch=0 depth=3", "commits", f"session={GONE}"),
    gone("node-parent-missing", f"lash_nodes session={RICH} branch=0 depth=3", "nodes", f"session={RICH} AND depth=2"),
    gone(
        "node-parent-missing",
        f"lash_nodes session={RICH} branch=4 depth=5",
        "nodes",
        f"session={RICH} AND branch=4 AND depth=4",
    ),
    gone("node-branch-missing", f"lash_nodes session={GONE} branch=0 depth=0", "branches", f"session={GONE}"),
    node("node-revision-wrong", 4, 4, "revision = 3"),
    node("node-seq-ahead", 0, 1, "seq = 999"),
    node("node-frame-wrong", 4, 5, "frame = 1"),
    node("node-frame-wrong", 4, 4, "frame = 1"),
    node("node-frame-wrong", 3, 0, "frame = 1"),
    node("node-root-opens-no-frame", 0, 0, 'kind = \'noted\', body = \'{"about":"x","parts":[],"v":1}\'', HEALTHY),
    node("node-root-without-reset", 3, 0, 'body = \'{"reason":"initial","v":1}\''),
]

HASHES = [
    hash_wrong(3, f"UPDATE lash_nodes SET body = replace(body, 'afresh', 'stale') WHERE session = {RICH}"),
    hash_wrong(1, f"UPDATE lash_nodes SET body = replace(body, 'xxx', 'yyy') WHERE session = {RICH}"),
    hash_wrong(1, f"UPDATE lash_usage SET input = input + 1 WHERE session = {RICH} AND ordinal = 1"),
    hash_wrong(1, f"DELETE FROM lash_usage WHERE session = {RICH} AND ordinal = 1"),
    hash_wrong(1, f"UPDATE lash_state_parts SET name = 'other' WHERE session = {RICH} AND name = 'tools'"),
    hash_wrong(6, f"UPDATE lash_turns SET outcome = 'lost' WHERE session = {RICH}"),
    hash_wrong(5, f"UPDATE lash_turns SET cancel_request = {NO_ID} WHERE session = {RICH} AND outcome = 'cancelled'"),
    hash_wrong(
        5, f"UPDATE lash_inbox SET state = 'cancelled', turn = NULL WHERE session = {RICH} AND state = 'completed'"
    ),
    hash_wrong(2, f"DELETE FROM lash_outbox WHERE session = {RICH} AND ordinal = 1"),
    hash_wrong(2, f"UPDATE lash_outbox SET body = replace(body, 'next', 'now') WHERE session = {RICH}"),
    hash_wrong(2, f"UPDATE lash_documents SET body = replace(body, 'red', 'blue') WHERE session = {RICH}"),
    hash_wrong(4, f"UPDATE lash_commits SET content_hash = {NO_HASH} WHERE session = {RICH}"),
]

WORK = [
    found(
        "turn-unsettled-twice",
        f"lash_turns session={VICTIM}",
        "DROP INDEX lash_turns_unsettled_ix",
        f"UPDATE lash_turns SET state = 'open', outcome = NULL, settled_at = NULL WHERE session = {VICTIM}",
    ),
    turn("turn-state-wrong", "outcome = NULL"),
    turn("turn-state-wrong", "outcome = 'finished'", VICTIM, "state = 'open'"),
    turn("turn-state-wrong", "parked_until = 5", VICTIM, "state = 'open'"),
    turn("turn-cancel-wrong", "outcome = 'cancelled'"),
    turn("turn-cancel-wrong", "cancel_reason = 'because'"),
    turn("turn-cancel-wrong", "outcome = 'finished'", RICH, "outcome = 'cancelled'"),
    turn("turn-items-wrong", "items = x''"),
    turn("turn-items-wrong", f"items = {NO_ID}", PARKED),
    gone("turn-items-wrong", f"lash_turns session={PARKED}", "inbox", f"session={PARKED} AND state='taken'"),
    turn("turn-options-wrong", 'options = \'{"json":{"depth":2},"v":1}\'', VICTIM, "state = 'open'"),
    gone("turn-without-receipt", f"lash_turns session={HEALTHY}", "commits", f"session={HEALTHY}"),
    turn("turn-receipt-wrong", "base_revision = 5"),
    turn("turn-receipt-wrong", "settled_at = settled_at + 1"),
    turn("turn-committed-but-unsettled", "state = 'open', outcome = NULL, settled_at = NULL"),
    turn("turn-base-wrong", "base_revision = 0", VICTIM, "state = 'open'"),
    turn("turn-generation-ahead", "generation = 99"),
    turn("turn-document-missing", "catalog_revision = 7"),
    gone("turn-document-missing", f"lash_turns session={PARKED}", "documents", f"session={PARKED} AND kind='catalog'"),
    found(
        "turn-parked-and-held",
        f"lash_turns session={PARKED}",
        f"UPDATE lash_sessions SET lease_owner = 'ghost', lease_expires_at = 5 WHERE id = {PARKED}",
    ),
    gone("turn-wait-missing", f"lash_turns session={PARKED}", "waits", f"session={PARKED}"),
    wait("turn-wait-missing", f"session = {VICTIM}", row=f"lash_turns session={PARKED}"),
    wait("turn-never-woken", "expires_at = 5", row=f"lash_turns session={PARKED}"),
    wait("turn-never-woken", "state = 'revoked', settled_at = 5", row=f"lash_turns session={PARKED}"),
    item("item-state-wrong", "settled_at = 5"),
    item("item-state-wrong", f"turn = {NO_ID}"),
    item("item-hash-wrong", 'options = \'{"json":{"a":1},"v":1}\''),
    item("item-hash-wrong", "body = replace(body, 'later', 'sooner')"),
    item("item-hash-wrong", f"content_hash = {NO_HASH}"),
    item("item-due-wrong", "due_at = due_at + 1"),
    item("item-aim-wrong", "aim = 'now'"),
    item("item-aim-wrong", f"target = {NO_ID}", PARKED, "state = 'pending'"),
    item("item-aim-wrong", f"target = {NO_ID}, aim = 'now'"),
    item(
        "item-aim-wrong",
        'kind = \'command\', merge_key = \'m\', body = \'{"arguments":{},"kind":"command","name":"reset","v":1}\'',
    ),
    item("item-taken-by-nobody", f"state = 'taken', turn = {NO_ID}"),
    item("item-completed-too-early", "state = 'completed', settled_at = 5", PARKED, "state = 'taken'"),
    item(
        "item-not-taken",
        f"state = 'completed', turn = (SELECT id FROM lash_turns WHERE session = {HEALTHY}), settled_at = admitted_at",
        HEALTHY,
        "state = 'pending'",
    ),
    item("item-without-receipt", "settled_at = settled_at + 1", HEALTHY, "state = 'completed'"),
    gone("item-without-receipt", f"lash_inbox session={HEALTHY}", "commits", f"session={HEALTHY}"),
    entry("journal-orphaned", f"turn = {NO_ID}"),
    found(
        "journal-orphaned",
        f"lash_journal session={IDLE}",
        f"UPDATE lash_journal SET session = {IDLE} WHERE session = {VICTIM}",
    ),
    entry("journal-state-wrong", "finished_at = 5"),
    entry("journal-state-wrong", "state = 'completed', finished_at = 5"),
    entry("journal-wait-missing", f"wait = {NO_ID}"),
    wait("wait-state-wrong", "settled_at = 5"),
    wait("wait-state-wrong", "state = 'answered', settled_at = 5"),
    wait("wait-state-wrong", "state = 'timed_out', settled_at = 5"),
    wait("wait-outlived-its-turn", "state = 'pending', settled_at = NULL", RICH, "state = 'revoked'"),
]

HOLDINGS = [
    gone(
        "document-missing",
        f"lash_documents session={IDLE} kind=metadata revision=0",
        "documents",
        f"session={IDLE} AND kind='metadata'",
    ),
    sets("document-ahead", f"lash_documents session={IDLE} kind=", "documents", "revision = 4", session=IDLE),
    sets(
        "document-superseded-wrong",
        f"lash_documents session={IDLE} kind=",
        "documents",
        "superseded_at = 5",
        session=IDLE,
    ),
    sets(
        "document-superseded-wrong",
        f"lash_documents session={RICH} kind=config revision=0",
        "documents",
        "superseded_at = NULL",
        session=RICH,
    ),
    sets("usage-without-commit", f"lash_usage session={RICH} revision=77", "usage", "revision = 77", session=RICH),
    gone("usage-gap", f"lash_usage session={RICH} revision=1 ordinal=1", "usage", "ordinal = 0"),
    sets("usage-wrong", f"lash_usage session={RICH} revision=1", "usage", "reasoning = output + 1", session=RICH),
    sets("state-part-orphaned", f"lash_state_parts session={RICH}", "state_parts", "state_set = 77", session=RICH),
    sets("state-part-orphaned", f"lash_state_parts session={RICH}", "state_parts", "state_set = 0", session=RICH),
    sets("debt-without-commit", f"lash_outbox session={VICTIM}", "outbox", "revision = 77", session=VICTIM),
    sets("debt-without-commit", f"lash_outbox session={VICTIM}", "outbox", f"operation = {NO_ID}", session=VICTIM),
    sets("debt-state-wrong", f"lash_outbox session={VICTIM}", "outbox", "settled_at = 5", session=VICTIM),
    sets("debt-state-wrong", f"lash_outbox session={VICTIM}", "outbox", "state = 'dropped'", session=VICTIM),
    gone("debt-item-missing", f"lash_outbox session={RICH}", "inbox", "key LIKE 'outbox:%'"),
    found(
        "debt-item-wrong",
        f"lash_inbox session={HEALTHY}",
        f"UPDATE lash_outbox SET state = 'owed', settled_at = NULL WHERE session = {RICH}",
    ),
    item("debt-item-wrong", f"id = {NO_ID}", HEALTHY, "key LIKE 'outbox:%'"),
    gone(
        "blob-missing",
        f"lash_state_parts session={RICH} state_set=1 name=tools",
        "blobs",
        f"id = (SELECT blob FROM lash_state_parts WHERE session = {RICH} AND name = 'tools')",
    ),
    gone(
        "blob-missing",
        f"lash_blob_refs session={RICH} holder=item",
        "blobs",
        f"id = (SELECT min(blob) FROM lash_blob_refs WHERE session = {RICH} AND holder = 'item')",
    ),
    found("blob-hash-wrong", "lash_blobs id=1", "UPDATE lash_blobs SET body = x'00' WHERE id = 1"),
    found(
        "blob-hash-wrong",
        "lash_blobs id=",
        f"UPDATE lash_blobs SET hash = {NO_HASH} WHERE length(body) > 100000",
    ),
    gone(
        "blob-refs-wrong",
        f"lash_nodes session={RICH} branch=0 depth=2",
        "blob_refs",
        f"session = {RICH} AND holder = 'node' AND minor = 2",
    ),
    gone("blob-refs-wrong", f"lash_inbox session={RICH}", "blob_refs", f"session = {RICH} AND holder = 'item'"),
    gone("blob-refs-wrong", f"lash_outbox session={RICH}", "blob_refs", f"session = {RICH} AND holder = 'debt'"),
    *(
        sets(
            "blob-ref-orphaned",
            f"lash_blob_refs session={RICH} holder={holder} major=77",
            "blob_refs",
            "major = 77",
            session=RICH,
            where=f"holder = '{holder}'",
        )
        for holder in ("node", "item", "debt")
    ),
]

NOTES = [
    found(
        "blob-unused",
        "lash_blobs id=",
        f"INSERT INTO lash_blobs (hash, body, stored_at) VALUES ({HASH_OF_NOTHING}, x'', 5)",
    ),
    found(
        "nodes-unreachable",
        f"lash_sessions id={GONE}",
        *(
            f"DELETE FROM lash_{table} WHERE session = {HEIR}"
            for table in ("nodes", "commits", "branches", "documents")
        ),
        f"DELETE FROM lash_sessions WHERE id = {HEIR}",
    ),
]

CASES = [*ROWS, *SESSIONS, *HISTORY, *HASHES, *WORK, *HOLDINGS, *NOTES]


@pytest.mark.parametrize("case", [pytest.param(case, id=case.id) for case in CASES])
async def test_damage_is_found_under_its_code_and_the_row_is_named(case: Case, copy: SqliteCopy | PostgresCopy) -> None:
    await damage(copy, *case.damage)
    report = await check_database(copy.url)
    matching = [f for f in report.findings if f.code == case.code and f"{f.table} {f.key}".startswith(case.row)]
    assert matching, "\n".join(map(str, report.findings)) or "nothing was found"
    assert report.ok == (CODES[case.code].severity == "note"), "\n".join(map(str, report.errors))


def test_every_code_has_a_damage_that_shows_it() -> None:
    assert {case.code for case in CASES} | {"table-missing"} == set(CODES)


async def test_a_missing_table_is_found_and_ends_the_check(rich_sqlite: RichSqlite) -> None:
    copy = rich_sqlite.copy()
    await damage(copy, "DROP TABLE lash_journal")
    report = await check_database(copy.url)
    assert [(finding.code, finding.table) for finding in report.findings] == [("table-missing", "lash_journal")]


async def test_a_column_of_the_wrong_type_stops_nothing(rich_sqlite: RichSqlite) -> None:
    copy = rich_sqlite.copy()
    with closing(sqlite3.connect(copy.path)) as connection, connection:
        for table, column in (("nodes", "depth"), ("sessions", "revision"), ("commits", "seq"), ("branches", "branch")):
            connection.execute(f"UPDATE lash_{table} SET {column} = 'many' WHERE rowid = 1")
    report = await check_database(copy.url)
    malformed = {finding.table for finding in report.findings if finding.code == "row-malformed"}
    assert malformed == {"lash_nodes", "lash_sessions", "lash_commits", "lash_branches"}


async def test_a_healthy_session_is_not_blamed_for_the_damage_of_another(copy: SqliteCopy | PostgresCopy) -> None:
    await damage(copy, f"DELETE FROM lash_nodes WHERE session = {RICH} AND depth = 2")
    report = await check_database(copy.url)
    assert not report.ok
    assert all(f"session={RICH}" in finding.key or finding.key == f"id={RICH}" for finding in report.errors)


async def test_a_ruined_table_does_not_fill_the_memory(rich_sqlite: RichSqlite) -> None:
    copy = rich_sqlite.copy()
    many = f"WITH RECURSIVE n(x) AS (SELECT 100 UNION ALL SELECT x + 1 FROM n WHERE x < 100 + {MAX_KEPT + 49})"
    await damage(copy, f"INSERT INTO lash_usage {many} SELECT {HEALTHY}, x, 0, 'a', 'm', 0, 0, 0, 0, 0 FROM n")
    report = await check_database(copy.url)
    assert len(report.errors) == MAX_KEPT
    assert report.left_out == {"usage-without-commit": 50}
    assert report.error_count == MAX_KEPT + 50


async def test_a_broken_database_can_be_raised_as_one_error(rich_sqlite: RichSqlite) -> None:
    copy = rich_sqlite.copy()
    await damage(copy, f"UPDATE lash_sessions SET depth = 4 WHERE id = {RICH}")
    report = await check_database(copy.url)
    with pytest.raises(CorruptData, match=f"head-depth-wrong: lash_sessions id={RICH}: expected 5, found 4"):
        report.raise_if_broken()
