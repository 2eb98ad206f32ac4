from lash.testing.contract.maintenance import MaintenanceContract
from tests.contract.stores import OnEveryEmptyStore


class TestMaintenance(OnEveryEmptyStore, MaintenanceContract):
    pass
