from __future__ import annotations

from lash.testing.contract.outbox import OutboxContract
from tests.contract.stores import OnEveryEmptyStore


class TestOutbox(OnEveryEmptyStore, OutboxContract):
    pass
