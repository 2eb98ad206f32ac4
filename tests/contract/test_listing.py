from lash.testing.contract.listing import ListingContract
from tests.contract.stores import OnEveryEmptyStore


class TestListing(OnEveryEmptyStore, ListingContract):
    pass
