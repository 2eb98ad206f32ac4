from __future__ import annotations

from lash.testing.contract.turns import TurnContract
from tests.contract.stores import OnEveryStore


class TestTurn(OnEveryStore, TurnContract):
    pass
