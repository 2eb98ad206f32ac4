from lash.testing.contract.usage import UsageContract
from tests.contract.stores import OnEveryStore


class TestUsage(OnEveryStore, UsageContract):
    pass
