from __future__ import annotations

import json
from pathlib import Path

import pytest

from lash.version import VERSION
from tests.cli.command import lash
from tests.migration.revisions import NEWEST
from tests.postgres import PostgresServer


def tree(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*"))


def test_the_version_is_printed_in_words_and_as_json(tmp_path: Path) -> None:
    assert lash("version", cwd=tmp_path).out == f"lash {VERSION}\n"
    assert lash("version", "--json", cwd=tmp_path).answer == {"version": VERSION}
    assert lash("--version", cwd=tmp_path).out == f"lash {VERSION}\n"


def test_an_upgrade_makes_lash_db_in_the_present_folder(tmp_path: Path) -> None:
    first = lash("db", "upgrade", "--json", cwd=tmp_path)
    assert (first.status, first.answer["before"], first.answer["revision"]) == (0, None, NEWEST)
    assert (tmp_path / "lash.db").exists()
    again = lash("db", "upgrade", cwd=tmp_path)
    assert (again.status, again.out) == (0, f"sqlite:///lash.db is at revision {NEWEST} already\n")


def test_the_url_comes_from_the_option_or_else_from_the_environment(tmp_path: Path) -> None:
    env = {"LASH_URL": "sqlite:///named.db"}
    assert lash("db", "upgrade", cwd=tmp_path, env=env).status == 0
    assert (tmp_path / "named.db").exists()
    said = lash("db", "current", "--url", "sqlite:///other.db", "--json", cwd=tmp_path, env=env)
    assert said.answer["url"] == "sqlite:///other.db"
    assert said.answer["revision"] is None


def test_current_tells_the_three_numbers(tmp_path: Path) -> None:
    lash("db", "upgrade", cwd=tmp_path)
    assert lash("db", "current", "--json", cwd=tmp_path).answer == {
        "url": "sqlite:///lash.db",
        "revision": NEWEST,
        "newest": NEWEST,
        "oldest_runtime": "0.1.0",
    }
    words = lash("db", "current", cwd=tmp_path).out.splitlines()
    assert [line.split()[-1] for line in words] == ["sqlite:///lash.db", NEWEST, NEWEST, "0.1.0"]


def test_looking_at_a_database_that_is_not_there_creates_nothing(tmp_path: Path) -> None:
    url = "sqlite:///folder/lash.db"
    assert lash("db", "current", "--url", url, cwd=tmp_path).status == 0
    refused = lash("db", "check", "--url", url, cwd=tmp_path)
    assert refused.status == 7
    assert "lash db upgrade" in refused.err
    assert tree(tmp_path) == []


def test_a_check_that_passes_says_so(tmp_path: Path) -> None:
    lash("db", "upgrade", cwd=tmp_path)
    passed = lash("db", "check", "--json", cwd=tmp_path)
    assert passed.status == 0
    assert passed.answer == {"url": "sqlite:///lash.db", "ok": True, "runtime": VERSION, "revision": NEWEST}


def test_an_error_is_told_on_stderr_without_a_traceback(tmp_path: Path) -> None:
    failed = lash("db", "check", "--url", "mysql://me@here/db", cwd=tmp_path)
    assert (failed.status, failed.out) == (7, "")
    assert failed.err.splitlines() == [
        "lash: lash does not know 'mysql' databases; write sqlite:///lash.db or postgresql://user@host/database",
        "(wiring.unsupported_url, exit code 7)",
    ]


def test_a_traceback_is_shown_when_asked_for(tmp_path: Path) -> None:
    failed = lash("--traceback", "db", "check", cwd=tmp_path)
    assert failed.status == 7
    assert failed.err.startswith("Traceback (most recent call last)")


def test_an_error_is_json_when_the_answer_would_have_been(tmp_path: Path) -> None:
    failed = lash("db", "check", "--json", cwd=tmp_path)
    assert failed.out == ""
    assert '"error": "wiring.database_missing"' in failed.err
    assert '"exit": 7' in failed.err


@pytest.mark.parametrize(
    "words", [["db", "downgrade"], ["db", "check", "--no-such-option"], ["version", "too", "many"]]
)
def test_a_call_that_makes_no_sense_is_a_usage_error(words: list[str], tmp_path: Path) -> None:
    assert lash(*words, cwd=tmp_path).status == 2


@pytest.mark.parametrize("words", [["db", "check", "--json", "--no-such-option"], ["--json", "version"], ["db"]])
def test_a_call_that_cannot_be_understood_is_answered_in_words(words: list[str], tmp_path: Path) -> None:
    refused = lash(*words, cwd=tmp_path)
    assert refused.status == 2
    assert "Usage: lash" in refused.out + refused.err
    assert "{" not in refused.out + refused.err


def test_a_file_that_is_no_database_is_corrupt(tmp_path: Path) -> None:
    (tmp_path / "lash.db").write_text("these are words, and more of them than a SQLite header has bytes" * 20)
    assert lash("db", "check", cwd=tmp_path).status == 8


@pytest.mark.parametrize("command", ["upgrade", "current", "check"])
def test_a_password_is_never_printed(command: str, tmp_path: Path) -> None:
    url = "postgresql://me:hush@127.0.0.1:1/orders?sslmode=disable&application_name=hush"
    failed = lash("--traceback", "db", command, "--url", url, cwd=tmp_path)
    assert failed.status == 6
    assert "postgresql://me:***@127.0.0.1:1/orders" in failed.err
    assert "hush" not in failed.out + failed.err


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("postgresql://me@here/orders?sslmod=require", "no setting 'sslmod'"),
        ("postgresql://me@here/orders?sslmode=on", "'sslmode'"),
        ("postgresql://me@here/orders?timeout=0", "'timeout'"),
        ("postgresql://me@here/orders?port=high", "'port'"),
        ("sqlite:///lash.db?mode=ro", "no setting 'mode'"),
        ("sqlite:///lash.db?synchronous=off", "full or normal"),
        ("sqlite:///lash.db?synchronous=full&synchronous=normal", "full or normal"),
    ],
)
def test_a_setting_that_a_url_cannot_have_is_refused(url: str, problem: str, tmp_path: Path) -> None:
    refused = lash("db", "upgrade", "--url", url, "--json", cwd=tmp_path)
    assert (refused.status, refused.out) == (7, "")
    told = json.loads(refused.err)
    assert told["error"] == "wiring.unsupported_url"
    assert problem in told["message"]
    assert tree(tmp_path) == []


def test_a_postgres_url_may_have_settings_and_the_short_name(postgres: PostgresServer, tmp_path: Path) -> None:
    url = postgres.shared.update_query_dict(
        {"application_name": "mine", "sslmode": "disable", "timeout": "9", "lash.clock": "x"}
    ).render_as_string(hide_password=False)
    checked = lash("db", "check", "--url", url.replace("postgresql://", "postgres://"), "--json", cwd=tmp_path)
    assert checked.status == 0, checked.err
    assert checked.answer["url"].startswith("postgresql://")
    assert "mine" not in checked.out


def test_a_postgres_database_is_upgraded_and_then_fit_to_run(postgres: PostgresServer, tmp_path: Path) -> None:
    env = {"LASH_URL": postgres.blank().render_as_string(hide_password=False)}
    assert lash("db", "check", cwd=tmp_path, env=env).status == 7
    assert lash("db", "upgrade", "--json", cwd=tmp_path, env=env).answer["revision"] == NEWEST
    assert lash("db", "check", cwd=tmp_path, env=env).status == 0
