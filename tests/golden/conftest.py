"""Stored forms, kept as files: what lash wrote once it must read for ever.

``pytest tests/golden --update-golden`` writes the files anew. A folder of a released version is never written to: what
it holds is in other people's databases. A change of form gets a new version and a folder of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
RELEASED: frozenset[str] = frozenset()
"""The folders, such as ``nodes/v1``, whose versions were released. A release adds its own."""

Golden = Callable[[str, str], None]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write the golden files of unreleased versions anew")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    """Compares a text with the golden file of that name, or writes it."""
    update = bool(request.config.getoption("--update-golden", default=False))
    return lambda name, text: compare(FOLDER, name, text, update=update, released=RELEASED)


def compare(folder: Path, name: str, text: str, *, update: bool, released: frozenset[str]) -> None:
    file = folder / name
    if update and str(Path(name).parent) not in released:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n", encoding="utf-8")
    assert file.exists(), f"{name} is missing; write it with --update-golden"
    stored = file.read_text(encoding="utf-8")
    assert f"{text}\n" == stored, f"{name} says something else; a new form needs a new version"
