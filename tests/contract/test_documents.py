from lash.testing.contract.documents import DocumentContract
from tests.contract.stores import OnEveryStore


class TestDocuments(OnEveryStore, DocumentContract):
    pass
