"""The tree of errors: what is drawn is what exists, and every error tells its facts and a way on."""

from __future__ import annotations

import copy
import inspect
import pickle
import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from lash import errors
from lash.errors import LashError

FACTS: dict[str, Any] = {
    "database": "0003",
    "detail": "node 7 has no parent",
    "differs": ["tool_id", "step"],
    "expected": 3,
    "expires_at": datetime(2026, 1, 1, tzinfo=UTC),
    "extra": "postgres",
    "foreign": ["item-9"],
    "found": 4,
    "generation": 5,
    "holder": "worker-1",
    "item": "item-1",
    "key": "msg-117",
    "kind": "nfs4",
    "law": "ids are derived",
    "limit": 1000,
    "missing": ["item-2"],
    "name": "customer-42",
    "needed": "0.9",
    "node": "node-1",
    "operation": "operation-1",
    "ordinal": 6,
    "owner": "worker-2",
    "path": "/mnt/lash.db",
    "problem": "not JSON",
    "record": "node 7",
    "request": "request-1",
    "rule": "32 hex digits",
    "runtime": "0.8",
    "session": "session-1",
    "size": 2000,
    "supported": 2,
    "turn": "turn-1",
    "uid": "uid-1",
    "value": "value-1",
    "what": "a session id",
    "where": "options.a",
}
HASHES = {"PartMissing", "BlobMissing", "BlobNotFound"}
"""Errors whose ``found`` is a hash, kept as ``hash``."""


def every_error() -> list[type[LashError]]:
    found: list[type[LashError]] = []
    queue: list[type[LashError]] = [LashError]
    while queue:
        found.append(queue.pop(0))
        queue += [sub for sub in found[-1].__subclasses__() if sub.__module__ == errors.__name__]
    return found


def own_facts(error: type[LashError]) -> list[str] | None:
    """The names of the facts that an error takes; None when it takes a message."""
    if error.__init__ is Exception.__init__:
        return None
    return list(inspect.signature(error).parameters)


def build(error: type[LashError]) -> LashError:
    facts = own_facts(error)
    if facts is None:
        return error("the file is locked; close the other program")
    given = {name: FACTS[name] for name in facts}
    if error.__name__ in HASHES:
        given["found"] = "ab" * 32
    return error(**given)


def drawn_tree() -> dict[str, str | None]:
    """Each name in the drawing, with the name that it hangs from."""
    drawn: dict[str, str | None] = {}
    above: dict[int, str] = {}
    for line in (errors.__doc__ or "").splitlines():
        match = re.match(r"    (?P<branches>[│├└─ ]*)(?P<rest>[A-Z]\w+(  .*)?)$", line)
        if match is None:
            continue
        depth = len(match["branches"]) // 4
        for name in re.split(r" {2,}", match["rest"]):
            if not re.fullmatch(r"[A-Z]\w+", name):
                break
            drawn[name] = above[depth - 1] if depth else None
            above[depth] = name
    return drawn


ALL = every_error()
GROUPS = [group for group in LashError.__subclasses__() if group.__module__ == LashError.__module__]


def test_the_drawing_shows_every_error_under_its_parent_and_no_other() -> None:
    real = {error.__name__: error.__mro__[1].__name__ for error in ALL if error is not LashError}
    assert drawn_tree() == {"LashError": None, **real}


def test_every_exception_of_the_module_is_in_the_tree() -> None:
    defined = {
        thing
        for thing in vars(errors).values()
        if isinstance(thing, type) and issubclass(thing, BaseException) and thing.__module__ == errors.__name__
    }
    assert defined == set(ALL)


def test_every_group_says_something_else_to_do() -> None:
    assert [group.__name__ for group in GROUPS] == [
        "UsageError",
        "NotFound",
        "Conflict",
        "TryAgain",
        "StoreUnavailable",
        "WiringError",
        "CorruptData",
        "InvariantBroken",
    ]
    assert all(group.__doc__ for group in GROUPS)


def test_every_code_is_unique() -> None:
    codes = [error.code for error in ALL]
    assert len(codes) == len(set(codes))


@pytest.mark.parametrize("error", [e for e in ALL if e is not LashError], ids=lambda e: e.__name__)
def test_a_code_begins_with_that_of_its_group(error: type[LashError]) -> None:
    assert "code" in vars(error)
    group = next(parent for parent in error.__mro__ if parent in GROUPS)
    if error is group:
        assert re.fullmatch(r"[a-z_]+", error.code)
    else:
        assert re.fullmatch(re.escape(group.code) + r"\.[a-z_]+", error.code)


def test_codes_that_doors_rely_on_stay_what_they_are() -> None:
    assert {group.__name__: group.code for group in GROUPS} == {
        "UsageError": "usage",
        "NotFound": "not_found",
        "Conflict": "conflict",
        "TryAgain": "try_again",
        "StoreUnavailable": "unavailable",
        "WiringError": "wiring",
        "CorruptData": "corrupt",
        "InvariantBroken": "bug",
    }


@pytest.mark.parametrize("error", ALL, ids=lambda e: e.__name__)
def test_every_error_says_something(error: type[LashError]) -> None:
    message = str(build(error))
    assert message.strip()
    assert "None" not in message
    assert "object at 0x" not in message


@pytest.mark.parametrize("error", [e for e in ALL if own_facts(e)], ids=lambda e: e.__name__)
def test_an_error_keeps_its_facts(error: type[LashError]) -> None:
    raised = build(error)
    for name in own_facts(error) or []:
        if error.__name__ in HASHES and name == "found":
            assert vars(raised)["hash"] == "ab" * 32
        else:
            kept = vars(raised)[name]
            assert (list(kept) if isinstance(kept, tuple) else kept) == FACTS[name]


NEXT_STEPS = {
    "TooLarge": "Split it, or use blobs",
    "UnsettledItems": "must complete or give back exactly the items it took",
    "PartMissing": "send its body",
    "BlobMissing": "put it, then repeat the call",
    "EvidenceMissing": "call request_cancel before you commit",
    "SessionNotFound": "create it, or list the names that exist",
    "SessionDeleted": "open the name again",
    "NodeNotFound": "read the path and take an id from there",
    "TurnNotFound": "Look it up by its item",
    "WaitNotFound": "ask for a new key",
    "BlobNotFound": "put its bytes again",
    "OutboxNotFound": "list the debts again",
    "SessionExists": "open it, or choose another name",
    "RevisionMoved": "read it and decide again",
    "HeadMoved": "reload and retry",
    "KeyReused": "use a new key",
    "IdReused": "mint a new id",
    "OperationReused": "was committed with other content; use a new id",
    "TurnUnsettled": "Finish it first",
    "TurnSettled": "Reload the session",
    "TurnParked": "take it up with open_turn",
    "TurnCancelRequested": "commit it as cancelled with that request",
    "ReplayMismatch": "settle the turn as failed, or run the code that recorded it",
    "OutcomeRecorded": "read the journal and go on from that",
    "SessionBusy": "wait, then try again",
    "LeaseLost": "acquire it again and reload",
    "LeaseOverdue": "acquire it again before going on",
    "MissingExtra": "pip install 'lash[postgres]'",
    "NetworkFileSystem": "use a local disk, or Postgres",
    "DatabaseTooOld": "run 'lash db upgrade'",
    "RuntimeTooOld": "Upgrade lash",
    "CorruptRecord": "restore a backup",
    "RecordVersionMissing": "restore a backup",
    "RecordVersionMalformed": "restore a backup",
    "RecordVersionUnsupported": "Upgrade lash",
}
"""What these errors tell the caller to do."""

THE_RULE_IS_THE_STEP = {"InvalidName", "InvalidKey", "InvalidId", "InvalidValue", "InvalidDelta"}
"""Errors that say what is allowed or which rule was broken; keeping to it is the next step."""


@pytest.mark.parametrize("name", sorted(NEXT_STEPS))
def test_an_error_says_the_next_step(name: str) -> None:
    assert NEXT_STEPS[name] in str(build(vars(errors)[name]))


def test_every_error_with_a_message_of_its_own_was_looked_at_for_its_next_step() -> None:
    with_message = {error.__name__ for error in ALL if own_facts(error) is not None}
    assert with_message == set(NEXT_STEPS) | THE_RULE_IS_THE_STEP


def a_raised(error: type[LashError]) -> LashError:
    """An error as it is when it crosses a border: caught, and with a note on it."""
    try:
        raise build(error)
    except LashError as caught:
        caught.add_note("while serving customer-42")
        return caught


@pytest.mark.parametrize("error", ALL, ids=lambda e: e.__name__)
def test_an_error_arrives_whole_in_another_process(error: type[LashError]) -> None:
    raised = a_raised(error)
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        arrived = pickle.loads(pickle.dumps(raised, protocol))
        assert type(arrived) is error
        assert (str(arrived), arrived.args, vars(arrived)) == (str(raised), raised.args, vars(raised))
        assert arrived.__notes__ == ["while serving customer-42"]


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
@pytest.mark.parametrize("error", ALL, ids=lambda e: e.__name__)
def test_an_error_can_be_copied(error: type[LashError], copied: Callable[[LashError], LashError]) -> None:
    raised = a_raised(error)
    twin = copied(raised)
    assert type(twin) is error
    assert twin is not raised
    assert (str(twin), vars(twin)) == (str(raised), vars(raised))


class Refused(LashError):
    """An error of somebody else's, with a constructor of its own."""

    code = "refused"

    def __init__(self, *, by: str) -> None:
        super().__init__(f"{by} refused")
        self.by = by


def test_an_error_that_others_derive_from_ours_arrives_whole_too() -> None:
    arrived = pickle.loads(pickle.dumps(Refused(by="a plugin")))
    assert (type(arrived), str(arrived), arrived.by) == (Refused, "a plugin refused", "a plugin")
