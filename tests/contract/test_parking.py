from __future__ import annotations

from lash.testing.contract.parking import ParkingContract
from tests.contract.stores import OnEveryStore


class TestParking(OnEveryStore, ParkingContract):
    pass
