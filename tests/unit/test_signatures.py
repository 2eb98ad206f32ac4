"""Every store has the methods of the contract, with the same parameters under the same names."""

from __future__ import annotations

import inspect

import pytest

from lash.store.contract import Store
from lash.store.memory import MemoryStore
from lash.store.sql.store import SqlStore

METHODS = [name for name, _ in inspect.getmembers(Store, inspect.isfunction) if not name.startswith("_")]


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("kind", [MemoryStore, SqlStore])
def test_a_store_is_called_as_the_contract_says(kind: type, name: str) -> None:
    promised = inspect.signature(getattr(Store, name)).parameters.values()
    offered = inspect.signature(getattr(kind, name)).parameters.values()
    assert [(p.name, p.kind, p.default) for p in offered] == [(p.name, p.kind, p.default) for p in promised]
