from __future__ import annotations

from lash.testing.contract.taking import TakingContract
from tests.contract.stores import OnEveryStore


class TestTaking(OnEveryStore, TakingContract):
    pass
