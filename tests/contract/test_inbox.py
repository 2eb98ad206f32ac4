from __future__ import annotations

from lash.testing.contract.inbox import InboxContract
from tests.contract.stores import OnEveryStore


class TestInbox(OnEveryStore, InboxContract):
    pass
