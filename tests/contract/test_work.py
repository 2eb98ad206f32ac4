from __future__ import annotations

from lash.testing.contract.work import WorkContract
from tests.contract.stores import OnEveryEmptyStore


class TestWork(OnEveryEmptyStore, WorkContract):
    pass
