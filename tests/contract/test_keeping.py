from __future__ import annotations

from lash.testing.contract.keeping import KeepingContract
from tests.contract.stores import OnEveryStore


class TestKeeping(OnEveryStore, KeepingContract):
    pass
