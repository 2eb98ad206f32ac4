"""``lash fsck`` as users run it, and the page that describes what it finds."""

from __future__ import annotations

import re
from pathlib import Path

from lash.fsck import CODES
from tests.cli.command import lash
from tests.fsck.sample import RICH, RichSqlite, damage
from tests.store.sample import PostgresCopy, SqliteCopy

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "fsck.md"


def test_a_clean_database_ends_with_0(rich_sqlite: RichSqlite, tmp_path: Path) -> None:
    ended = lash("fsck", rich_sqlite.copy().url, cwd=tmp_path)
    assert (ended.status, ended.err) == (0, "")
    lines = ended.out.splitlines()
    assert "           8  lash_sessions" in lines
    assert lines[-1] == "clean"


async def test_findings_are_told_one_by_one_and_end_with_8(rich_sqlite: RichSqlite, tmp_path: Path) -> None:
    copy = rich_sqlite.copy()
    await damage(copy, f"UPDATE lash_sessions SET depth = 4 WHERE id = {RICH}")
    ended = lash("fsck", copy.url, cwd=tmp_path)
    assert ended.status == 8
    assert ended.out.splitlines()[-3:] == [
        f"error  head-depth-wrong: lash_sessions id={RICH}: expected 5, found 4",
        "       The head's depth is not its leaf's.",
        "1 errors",
    ]


async def test_findings_are_json_when_asked_for(copy: SqliteCopy | PostgresCopy, tmp_path: Path) -> None:
    clean = lash("fsck", "--json", cwd=tmp_path, env={"LASH_URL": copy.url})
    assert (clean.status, clean.answer["ok"], clean.answer["findings"]) == (0, True, [])
    await damage(copy, f"UPDATE lash_sessions SET depth = 4 WHERE id = {RICH}")
    broken = lash("fsck", copy.url, "--json", cwd=tmp_path)
    assert (broken.status, broken.answer["ok"], broken.answer["rows"]["lash_sessions"]) == (8, False, 8)
    assert broken.answer["findings"] == [
        {
            "code": "head-depth-wrong",
            "severity": "error",
            "table": "lash_sessions",
            "key": f"id={RICH}",
            "expected": "5",
            "found": "4",
            "meaning": "The head's depth is not its leaf's.",
        }
    ]


def test_a_database_that_is_not_there_is_an_error_and_stays_away(tmp_path: Path) -> None:
    ended = lash("fsck", "sqlite:///none.db", cwd=tmp_path)
    assert (ended.status, ended.out) == (7, "")
    assert "wiring.database_missing" in ended.err
    assert list(tmp_path.iterdir()) == []


def test_a_password_is_never_printed(tmp_path: Path) -> None:
    ended = lash("fsck", "postgresql://me:hush@127.0.0.1:1/orders", cwd=tmp_path)
    assert ended.status == 6
    assert "hush" not in ended.out + ended.err


def test_every_code_is_on_the_page_with_its_meaning_and_nothing_else_is() -> None:
    described = dict(re.findall(r"^\| `([a-z-]+)` \| (.+) \|$", PAGE.read_text(), re.MULTILINE))
    fields = {"url", "ok", "rows", "findings"}
    assert {code: meaning for code, meaning in described.items() if code not in fields} == {
        code: found.meaning for code, found in CODES.items()
    }
