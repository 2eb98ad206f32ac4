from lash.testing.contract.forks import ForkContract
from tests.contract.stores import OnEveryStore


class TestForks(OnEveryStore, ForkContract):
    pass
