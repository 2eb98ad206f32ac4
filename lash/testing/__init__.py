"""What lash tests itself with, for those who test with it: store contracts, a clock that waits, builders, faults.

Needs the extra ``testing``. A store of your own is held to the contract by subclassing the classes of
``lash.testing.contract`` and giving them a harness.
"""

from lash.testing.clock import ManualClock

__all__ = ["ManualClock"]
