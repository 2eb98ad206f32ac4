"""What lash tests itself with, for those who test with it: store contracts, a clock that waits, builders, faults.

Needs the extra ``testing``. A store of your own is held to the contract by subclassing the classes of
``lash.testing.contract`` and giving them a harness.
"""

from lash.errors import MissingExtra

try:
    import pytest
except ImportError:
    raise MissingExtra("lash.testing", "testing") from None

# Before the modules are imported: their assertions then say what they compared, as those of test files do.
pytest.register_assert_rewrite("lash.testing.contract", "lash.testing.builders")

from lash.testing.checking import Finding, Report, check_database  # noqa: E402
from lash.testing.clock import ManualClock  # noqa: E402
from lash.testing.faults import DIE_BEFORE, LOSE_ANSWER, Died, Faulty, FaultyStore, Refuse, Slow, faulty  # noqa: E402
from lash.testing.harness import StoreContract, StoreHarness, opened  # noqa: E402

__all__ = [
    "DIE_BEFORE",
    "LOSE_ANSWER",
    "Died",
    "Faulty",
    "FaultyStore",
    "Finding",
    "ManualClock",
    "Refuse",
    "Report",
    "Slow",
    "StoreContract",
    "StoreHarness",
    "check_database",
    "faulty",
    "opened",
]
