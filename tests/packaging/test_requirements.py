"""Whoever installs lash gets what it imports: the wheel's code against the requirements in its metadata."""

from __future__ import annotations

import ast
import re
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.metadata import PathDistribution, packages_distributions
from pathlib import Path

import pytest

from lash.version import VERSION

TESTING = "lash/testing/"
"""The only part that belongs to an extra as a whole."""


@dataclass
class Requirements:
    """Names of distributions. An extra brings its own beside the core's."""

    core: set[str] = field(default_factory=set)
    extras: dict[str, set[str]] = field(default_factory=dict)

    def of_any(self) -> set[str]:
        return self.core.union(*self.extras.values())


@dataclass(frozen=True)
class Code:
    file: str
    tree: ast.Module

    def imports(self, *, lazy: bool) -> set[str]:
        """Packages that are neither ours nor Python's, imported with the module or inside its functions."""
        functions = [node for node in ast.walk(self.tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
        inside = {id(node) for function in functions for node in ast.walk(function)}
        named = {name for node in ast.walk(self.tree) if (id(node) in inside) == lazy for name in _imported(node)}
        return {name.split(".")[0] for name in named} - sys.stdlib_module_names - {"lash"}

    def calls(self, function: str) -> Iterator[ast.Call]:
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] == function:
                yield node


def _imported(node: ast.AST) -> list[str]:
    match node:
        case ast.Import(names=names):
            return [alias.name for alias in names]
        case ast.ImportFrom(module=str(module), level=0):
            return [module]
        case _:
            return []


@pytest.fixture(scope="session")
def code(wheel: Path) -> list[Code]:
    content = zipfile.ZipFile(wheel)
    files = [name for name in content.namelist() if name.endswith(".py")]
    assert {"lash/store/migrate.py", "lash/migrations/env.py"} <= set(files)
    return [Code(file, ast.parse(content.read(file))) for file in files]


@pytest.fixture(scope="session")
def requirements(wheel: Path) -> Requirements:
    metadata = PathDistribution(zipfile.Path(wheel) / f"lash-{VERSION}.dist-info")
    found = Requirements()
    for line in metadata.requires or []:
        name = _plain(re.split(r"[^\w.-]", line)[0])
        extra = re.search(r"extra == ['\"]([\w-]+)['\"]", line)
        (found.extras.setdefault(extra[1], set()) if extra else found.core).add(name)
    assert "pydantic" in found.core
    assert "pytest" in found.extras["testing"]
    return found


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def missing(imports: set[str], allowed: set[str]) -> set[str]:
    """The packages among ``imports`` that none of the ``allowed`` distributions brings."""
    brought_by = packages_distributions()
    return {name for name in imports if not {_plain(found) for found in brought_by.get(name, ())} & allowed}


def test_the_core_imports_only_what_the_core_requires(code: list[Code], requirements: Requirements) -> None:
    lacking = {
        one.file: missing(one.imports(lazy=False), requirements.core)
        for one in code
        if not one.file.startswith(TESTING)
    }
    assert {file: names for file, names in lacking.items() if names} == {}


def test_what_is_imported_only_when_it_is_needed_is_required_by_an_extra(
    code: list[Code], requirements: Requirements
) -> None:
    lacking = {one.file: missing(one.imports(lazy=True), requirements.of_any()) for one in code}
    assert {file: names for file, names in lacking.items() if names} == {}


def test_the_test_tools_import_only_what_their_extra_brings(code: list[Code], requirements: Requirements) -> None:
    ours = [one for one in code if one.file.startswith(TESTING)]
    brought = requirements.core | requirements.extras["testing"]
    lacking = {one.file: missing(one.imports(lazy=False) | one.imports(lazy=True), brought) for one in ours}
    assert "pytest" in set().union(*(one.imports(lazy=False) for one in ours))
    assert {file: names for file, names in lacking.items() if names} == {}


def test_the_drivers_that_sqlalchemy_loads_by_name_are_required(code: list[Code], requirements: Requirements) -> None:
    texts = [node.value for one in code for node in ast.walk(one.tree) if isinstance(node, ast.Constant)]
    named = {found[1] for text in texts if isinstance(text, str) and (found := re.fullmatch(r"\w+\+(\w+)", text))}
    assert named == {"aiosqlite", "asyncpg", "pysqlite"}  # the last is Python's own
    assert {"aiosqlite", "greenlet"} <= requirements.core
    assert "asyncpg" in requirements.extras["postgres"]


def test_an_error_that_asks_for_an_extra_names_one_that_there_is(code: list[Code], requirements: Requirements) -> None:
    named = {ast.literal_eval(call.args[1]) for one in code for call in one.calls("MissingExtra")}
    assert named
    assert named <= set(requirements.extras)
