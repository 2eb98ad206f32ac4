from lash.testing.contract.graph import GraphContract
from tests.contract.stores import OnEveryStore


class TestGraph(OnEveryStore, GraphContract):
    pass
