from __future__ import annotations

from lash.testing.contract.leases import LeaseContract
from tests.contract.stores import OnEveryStore


class TestLease(OnEveryStore, LeaseContract):
    pass
