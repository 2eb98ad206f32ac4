from __future__ import annotations

from lash.testing.contract.cancel_requests import CancelRequestContract
from tests.contract.stores import OnEveryStore


class TestCancelRequests(OnEveryStore, CancelRequestContract):
    pass
