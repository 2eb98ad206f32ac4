from lash.testing.contract.blobs import BlobContract
from tests.contract.stores import OnEveryStore


class TestBlobs(OnEveryStore, BlobContract):
    pass
