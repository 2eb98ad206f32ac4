from lash.testing.contract.parts import PartContract
from tests.contract.stores import OnEveryStore


class TestParts(OnEveryStore, PartContract):
    pass
