from lash.testing.contract.commits import CommitContract
from tests.contract.stores import OnEveryStore


class TestCommits(OnEveryStore, CommitContract):
    pass
