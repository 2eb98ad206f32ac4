from lash.testing.contract.sessions import CALLS, OTHER_CALLS, SessionContract
from lash.testing.faults import METHODS
from tests.contract.stores import OnEveryStore


class TestSessions(OnEveryStore, SessionContract):
    pass


def test_no_call_of_a_store_is_left_out() -> None:
    tried = {name.partition(",")[0] for name in (*CALLS, *OTHER_CALLS)}
    assert METHODS - tried == {"aclose", "deliver"}
