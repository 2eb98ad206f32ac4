"""lash as users get it: a wheel, in an environment of its own, far from this project's folder."""

from __future__ import annotations

import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from lash.store.opening import parse_url
from lash.version import VERSION
from tests.migration.data import WRITTEN, load
from tests.migration.databases import TestedDatabase
from tests.postgres import PostgresServer

from .conftest import ROOT, run

NEWEST = max(path.stem for path in (ROOT / "migrations" / "versions").glob("[0-9]*.py"))[:4]


@pytest.fixture(scope="session")
def bin_folder(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new environment with the wheel in it.

    The packages that lash needs are borrowed from the environment of the tests: a path file shows them, but does not
    carry out the path files among them, so the lash of this project stays out of sight.
    """
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", wheel, cwd=folder)
    [packages] = folder.glob("lib/python*/site-packages")
    (packages / "borrowed.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    return python.parent


def test_the_wheel_brings_its_migrations_and_its_types_and_nothing_else(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    revisions = {f"lash/migrations/versions/{path.name}" for path in (ROOT / "migrations" / "versions").glob("*.py")}
    assert revisions | {"lash/migrations/env.py", "lash/py.typed", "lash/cli/main.py"} <= names
    assert {name.split("/")[0] for name in names} == {"lash", f"lash-{VERSION}.dist-info"}
    assert not [name for name in names if "__pycache__" in name]


def test_an_installed_lash_makes_and_checks_a_database_in_an_empty_folder(bin_folder: Path, tmp_path: Path) -> None:
    where = run(bin_folder / "python", "-c", "import lash; print(lash.__file__)", cwd=tmp_path)
    assert where.startswith(str(bin_folder.parent))
    assert run(bin_folder / "lash", "version", cwd=tmp_path) == f"lash {VERSION}\n"
    run(bin_folder / "lash", "db", "upgrade", cwd=tmp_path)
    assert f"revision {NEWEST}" in run(bin_folder / "lash", "db", "check", cwd=tmp_path)


async def test_an_installed_lash_upgrades_a_database_of_the_first_revision(bin_folder: Path, tmp_path: Path) -> None:
    oldest = min(path.stem for path in WRITTEN.glob("*.json"))
    await load(TestedDatabase(parse_url(f"sqlite:///{tmp_path / 'lash.db'}")), oldest)
    run(bin_folder / "lash", "db", "upgrade", cwd=tmp_path)
    assert f"revision {NEWEST}" in run(bin_folder / "lash", "db", "check", cwd=tmp_path)


def test_an_installed_lash_makes_a_postgres_database(
    bin_folder: Path, tmp_path: Path, postgres: PostgresServer
) -> None:
    url = postgres.blank().render_as_string(hide_password=False)
    run(bin_folder / "lash", "db", "upgrade", "--url", url, cwd=tmp_path)
    assert f"revision {NEWEST}" in run(bin_folder / "lash", "db", "check", "--url", url, cwd=tmp_path)
