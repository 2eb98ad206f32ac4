from __future__ import annotations

from lash.testing.contract.journal import JournalContract
from tests.contract.stores import OnEveryStore


class TestJournal(OnEveryStore, JournalContract):
    pass
