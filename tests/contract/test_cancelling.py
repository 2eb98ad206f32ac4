from __future__ import annotations

from lash.testing.contract.cancelling import CancellingContract
from tests.contract.stores import OnEveryStore


class TestCancelling(OnEveryStore, CancellingContract):
    pass
