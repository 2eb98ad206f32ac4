from __future__ import annotations

from lash.testing.contract.waits import WaitContract
from tests.contract.stores import OnEveryStore


class TestWait(OnEveryStore, WaitContract):
    pass
