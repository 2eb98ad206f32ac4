"""What a store promises, as tests: one class for each seam, one test for each behaviour.

Hold a store of your own to it by giving each class a harness (see ``lash.testing.harness``)::

    class OnMyStore:
        @pytest.fixture
        async def harness(self) -> StoreHarness:
            return MyHarness()

    class TestCommits(OnMyStore, CommitContract):
        pass

MaintenanceContract, ListingContract, OutboxContract and WorkContract look at the whole database: give each of their
tests an empty one. All others use fresh names and may share a database.
"""

from lash.testing.contract.blobs import BlobContract
from lash.testing.contract.cancel_requests import CancelRequestContract
from lash.testing.contract.cancelling import CancellingContract
from lash.testing.contract.commits import CommitContract
from lash.testing.contract.documents import DocumentContract
from lash.testing.contract.forks import ForkContract
from lash.testing.contract.graph import GraphContract
from lash.testing.contract.inbox import InboxContract
from lash.testing.contract.journal import JournalContract
from lash.testing.contract.keeping import KeepingContract
from lash.testing.contract.leases import LeaseContract
from lash.testing.contract.listing import ListingContract
from lash.testing.contract.maintenance import MaintenanceContract
from lash.testing.contract.outbox import OutboxContract
from lash.testing.contract.parking import ParkingContract
from lash.testing.contract.parts import PartContract
from lash.testing.contract.sessions import SessionContract
from lash.testing.contract.taking import TakingContract
from lash.testing.contract.turns import TurnContract
from lash.testing.contract.usage import UsageContract
from lash.testing.contract.waits import WaitContract
from lash.testing.contract.work import WorkContract

__all__ = [
    "BlobContract",
    "CancelRequestContract",
    "CancellingContract",
    "CommitContract",
    "DocumentContract",
    "ForkContract",
    "GraphContract",
    "InboxContract",
    "JournalContract",
    "KeepingContract",
    "LeaseContract",
    "ListingContract",
    "MaintenanceContract",
    "OutboxContract",
    "ParkingContract",
    "PartContract",
    "SessionContract",
    "TakingContract",
    "TurnContract",
    "UsageContract",
    "WaitContract",
    "WorkContract",
]
