"""What is exported is what is meant to be, and what is documented is what exists."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import re
import subprocess
import sys
import typing
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import lash
from lash import errors
from lash.cli.exits import EXITS
from lash.errors import LashError, UnsupportedUrl
from lash.store import contract
from lash.store.opening import parse_url
from lash.store.sql.postgres import connecting_engine

DOCS = Path(__file__).parents[2] / "docs"
PUBLIC = ["lash", "lash.store", "lash.testing", "lash.testing.builders", "lash.testing.contract"]
WORDS = [
    "Session",
    "SessionGraph",
    "Node",
    "head",
    "GraphDelta",
    "AgentFrame",
    "PromptView",
    "Inbox",
    "InboxItem",
    "key",
    "Turn",
    "TurnMachine",
    "TurnProtocol",
    "Effect",
    "Outcome",
    "Journal",
    "CommitPlan",
    "receipt",
    "ExecutionLease",
    "generation",
    "fence",
    "taken",
    "ticket",
    "ToolCatalog",
    "Plugin",
    "hook",
    "Strategy",
    "Provider",
]
"""The words that have one meaning."""


def headings(page: str, mark: str) -> list[str]:
    return re.findall(rf"^{mark} (.+)$", (DOCS / page).read_text(), re.MULTILINE)


def every_error() -> dict[str, type[LashError]]:
    found = vars(errors).values()
    return {kind.__name__: kind for kind in found if inspect.isclass(kind) and issubclass(kind, LashError)}


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_package_exports_exactly_the_names_that_it_imports_and_a_module_those_that_it_defines(
    name: str,
) -> None:
    public = importlib.import_module(name)
    expected = _imported(public) if hasattr(public, "__path__") else _defined(public)
    if name == "lash":
        expected |= set(lash.__all__) & set(every_error())
    assert sorted(public.__all__) == sorted(expected)
    assert len(set(public.__all__)) == len(public.__all__)


def _imported(package: ModuleType) -> set[str]:
    found = set()
    for node in ast.parse(inspect.getsource(package)).body:
        if isinstance(node, ast.ImportFrom) and node.module != "lash.errors":
            found |= {alias.asname or alias.name for alias in node.names}
    return found


def _defined(module: ModuleType) -> set[str]:
    found = set()
    for node in ast.parse(inspect.getsource(module)).body:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                found.add(name)
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                found.add(name)
    return {name for name in found if not name.startswith("_")} - {"T"}


def test_the_groups_of_errors_can_be_caught_from_lash() -> None:
    groups = {kind.__name__ for kind in LashError.__subclasses__() if kind.__module__ == "lash.errors"}
    assert set(lash.__all__) == groups | {"LashError", "__version__"}


def test_everything_that_the_contract_speaks_of_is_exported_with_it() -> None:
    store = importlib.import_module("lash.store")
    spoken_of = {kind.__name__ for kind in _reachable(contract.Store)}
    defined = {name for name, kind in vars(contract).items() if getattr(kind, "__module__", "") == contract.__name__}
    assert (spoken_of | defined) - {"T"} <= set(store.__all__)
    assert {"Session", "CommitPlan", "TurnSettlement", "ToolCall", "Tokens"} <= spoken_of


def _reachable(protocol: type) -> set[type]:
    """Our classes that a caller of the protocol can meet: in its signatures, and in the fields of what is in those."""
    found: set[type] = set()
    methods = inspect.getmembers(protocol, inspect.isfunction)
    waiting = [hint for _, method in methods if method.__module__ == protocol.__module__ for hint in _hints(method)]
    while waiting:
        hint = waiting.pop()
        waiting += typing.get_args(hint)
        kind = typing.get_origin(hint) or hint
        ours = inspect.isclass(kind) and kind.__module__.startswith("lash.")
        if not ours or kind in found:
            continue
        found.add(kind)
        if dataclasses.is_dataclass(kind) or hasattr(kind, "model_fields"):
            waiting += _hints(kind)
    return found


def _hints(thing: Any) -> Iterator[Any]:
    hints = typing.get_type_hints(thing)
    private = {name for name in hints if name.startswith(("_", "model_"))}
    return (hint for name, hint in hints.items() if name not in private)


def test_importing_lash_loads_no_database() -> None:
    program = "import lash, sys; print([name for name in ('sqlalchemy', 'alembic', 'typer') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_every_error_is_described_with_its_code_and_nothing_else_is() -> None:
    page = (DOCS / "reference" / "errors.md").read_text()
    described = dict(re.findall(r"^#{2,3} (\w+)\n\n`([a-z_.]+)`", page, re.MULTILINE))
    assert described == {name: kind.code for name, kind in every_error().items() if kind is not LashError}


def test_errors_are_described_under_their_group() -> None:
    page = (DOCS / "reference" / "errors.md").read_text()
    for section in page.split("\n## ")[1:]:
        group = every_error()[section.split("\n")[0]]
        for name in re.findall(r"^### (\w+)$", section, re.MULTILINE):
            assert issubclass(every_error()[name], group), name


@pytest.mark.parametrize("page", ["reference/errors.md", "reference/cli.md"])
def test_exit_codes_are_documented_as_they_are(page: str) -> None:
    text = (DOCS / page).read_text()
    for group, code in EXITS.items():
        in_a_table = f"| {code} | `{group.__name__}` |" in text
        in_words = f"`{group.code}`, exit code {code}." in text
        assert in_a_table or in_words, group


def test_the_settings_of_a_url_are_documented_as_they_are() -> None:
    documented = re.findall(
        r"^\| `(\w+)` \|", (DOCS / "reference/cli.md").read_text().split("## Output")[0], re.MULTILINE
    )
    with pytest.raises(UnsupportedUrl) as refused:
        connecting_engine(parse_url("postgresql://me@here/orders?no_such_setting=1"))
    assert str(refused.value).split("it may have ")[1].split(", ") == documented


def test_every_word_with_one_meaning_is_in_the_glossary() -> None:
    entries = headings("glossary.md", "###")
    assert set(WORDS) <= set(entries)
    assert len(set(entries)) == len(entries)


def test_every_contract_class_is_named_where_we_say_what_is_tested() -> None:
    page = (DOCS / "decisions" / "0005-behaviours-that-do-not-apply.md").read_text()
    assert set(re.findall(r"`(\w+Contract)`", page)) == set(importlib.import_module("lash.testing.contract").__all__)


def test_every_contract_class_is_named_where_strangers_are_told_how_to_use_them() -> None:
    page = (DOCS / "howto" / "test-your-own-store.md").read_text()
    named = set(re.findall(r"\b\w+Contract\b", page))
    assert named <= {"StoreContract", *importlib.import_module("lash.testing.contract").__all__}
    assert {"MaintenanceContract", "ListingContract", "OutboxContract", "WorkContract"} <= named


def test_every_builder_that_strangers_are_told_of_exists() -> None:
    page = (DOCS / "howto" / "test-your-own-store.md").read_text()
    named = set(re.findall(r"`(\w+)`", page.split("## 3.")[1].split("## 4.")[0]))
    assert {"a_session", "open_with", "settle_turn"} <= named
    assert named <= set(importlib.import_module("lash.testing.builders").__all__)
