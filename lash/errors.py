"""Everything that lash raises, grouped by what the caller can do next.

    LashError
    ├── UsageError              change the call
    │   ├── InvalidName  InvalidKey  InvalidId  InvalidValue  TooLarge  InvalidItem
    │   ├── InvalidTarget       a backup cannot be written there
    │   ├── InvalidDelta        the graph cannot grow that way (says which law)
    │   ├── UnsettledItems      a commit must settle exactly the items of its turn
    │   ├── PartMissing         a commit refers to a state part that is not there
    │   ├── BlobMissing         an item or a commit refers to a blob that is not there
    │   └── EvidenceMissing     a turn cannot be cancelled without a cancel request
    ├── NotFound                it is not there; check what you ask for
    │   ├── SessionNotFound  NodeNotFound  TurnNotFound  WaitNotFound  BlobNotFound  OutboxNotFound
    │   └── SessionDeleted      it was there; open a new one
    ├── Conflict                reload and decide again
    │   ├── SessionExists  RevisionMoved  HeadMoved
    │   ├── KeyReused  IdReused  OperationReused
    │   ├── TurnUnsettled  TurnSettled  TurnParked  TurnCancelRequested
    │   └── ReplayMismatch  OutcomeRecorded
    ├── TryAgain                somebody else has it; retry after a reload
    │   └── SessionBusy  LeaseLost  LeaseOverdue
    ├── StoreUnavailable        wait, then repeat the same call
    │   └── StoreLocked  DiskFull  StoreClosed  WriteUnknown
    ├── WiringError             change the set-up
    │   ├── UnsupportedUrl  MissingExtra  AccessDenied  ReadOnlyStore  NetworkFileSystem
    │   └── DatabaseMissing  DatabaseTooOld  RuntimeTooOld  ForeignDatabase  BrokenInstallation
    ├── CorruptData             stop and look: what is stored is not what was written
    │   ├── CorruptFile  CorruptGraph  CorruptRecord
    │   └── RecordVersionMissing  RecordVersionMalformed  RecordVersionUnsupported
    └── InvariantBroken         a bug in lash; please report it

Every class has a stable ``code``, keeps its facts as attributes and says the next step. Exit codes and HTTP statuses
are chosen at the doors.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import ClassVar

from lash.ids import (
    BlobHash,
    ItemId,
    OperationId,
    OwnerId,
    ReplayKey,
    RequestId,
    SessionName,
    SessionUid,
    TurnId,
)


class LashError(Exception):
    """The root of everything that lash raises."""

    code: ClassVar[str] = "lash"

    def __reduce__(self) -> tuple[object, ...]:
        """Errors cross process boundaries whole, whatever their constructors ask for."""
        return _restored, (type(self), self.args, self.__dict__)


def _restored(kind: type[LashError], args: tuple[object, ...], facts: dict[str, object]) -> LashError:
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(facts)
    return error


# -- change the call ---------------------------------------------------------------------------------------------------


class UsageError(LashError):
    """The call itself is wrong; the same call will fail again."""

    code = "usage"


class InvalidName(UsageError):
    code = "usage.invalid_name"

    def __init__(self, name: str, rule: str) -> None:
        super().__init__(f"{name!r} is not a session name: {rule}")
        self.name, self.rule = name, rule


class InvalidKey(UsageError):
    code = "usage.invalid_key"

    def __init__(self, key: str, rule: str) -> None:
        super().__init__(f"{key!r} is not a key: {rule}")
        self.key, self.rule = key, rule


class InvalidId(UsageError):
    code = "usage.invalid_id"

    def __init__(self, what: str, value: str, rule: str) -> None:
        super().__init__(f"{value!r} is not {what}: {rule}")
        self.what, self.value, self.rule = what, value, rule


class InvalidValue(UsageError):
    """A value that JSON cannot carry, or a setting out of its range."""

    code = "usage.invalid_value"

    def __init__(self, where: str, problem: str) -> None:
        super().__init__(f"{where}: {problem}")
        self.where, self.problem = where, problem


class TooLarge(UsageError):
    code = "usage.too_large"

    def __init__(self, what: str, *, size: int, limit: int) -> None:
        super().__init__(f"{what} has {size:,} bytes or more; at most {limit:,} are kept. Split it, or use blobs")
        self.what, self.size, self.limit = what, size, limit


class InvalidItem(UsageError):
    """An inbox item asks for something its kind cannot do."""

    code = "usage.invalid_item"


class InvalidTarget(UsageError):
    """A backup cannot be written there: something is in its way, or it would be in the way of something."""

    code = "usage.invalid_target"


class InvalidDelta(UsageError):
    """The graph cannot grow that way. ``law`` is the rule that the delta breaks."""

    code = "usage.invalid_delta"

    def __init__(self, law: str, detail: str) -> None:
        super().__init__(f"{law}: {detail}")
        self.law, self.detail = law, detail


class UnsettledItems(UsageError):
    code = "usage.unsettled_items"

    def __init__(self, turn: TurnId, *, missing: Sequence[ItemId], foreign: Sequence[ItemId]) -> None:
        super().__init__(
            f"turn {turn} must complete or give back exactly the items it took; "
            f"left out: {sorted(missing)}, not its own: {sorted(foreign)}"
        )
        self.turn, self.missing, self.foreign = turn, tuple(missing), tuple(foreign)


class PartMissing(UsageError):
    code = "usage.part_missing"

    def __init__(self, name: str, found: BlobHash) -> None:
        super().__init__(f"the commit keeps state part {name!r} as {found[:12]}…, which is not stored; send its body")
        self.name, self.hash = name, found


class BlobMissing(UsageError):
    code = "usage.blob_missing"

    def __init__(self, found: BlobHash) -> None:
        super().__init__(f"blob {found[:12]}… is referred to and not stored; put it, then repeat the call")
        self.hash = found


class EvidenceMissing(UsageError):
    code = "usage.evidence_missing"

    def __init__(self, turn: TurnId) -> None:
        super().__init__(
            f"nobody asked turn {turn} to stop with that request id; call request_cancel before you commit"
        )
        self.turn = turn


# -- it is not there ---------------------------------------------------------------------------------------------------


class NotFound(LashError):
    """What the call names is not there."""

    code = "not_found"


class SessionNotFound(NotFound):
    code = "not_found.session"

    def __init__(self, session: str) -> None:
        super().__init__(f"there is no session {session!r}; create it, or list the names that exist")
        self.session = session


class SessionDeleted(NotFound):
    code = "not_found.session_deleted"

    def __init__(self, session: SessionUid) -> None:
        super().__init__(f"session {session} was deleted; drop this handle and open the name again")
        self.session = session


class NodeNotFound(NotFound):
    code = "not_found.node"

    def __init__(self, node: str) -> None:
        super().__init__(
            f"there is no node {node!r} in this session or its ancestors; read the path and take an id from there"
        )
        self.node = node


class TurnNotFound(NotFound):
    code = "not_found.turn"

    def __init__(self, turn: str) -> None:
        super().__init__(
            f"there is no turn {turn!r} in this session; it may have been vacuumed. Look it up by its item"
        )
        self.turn = turn


class WaitNotFound(NotFound):
    """No such wait, a forged key, or a wait that was revoked: on purpose these look the same."""

    code = "not_found.wait"

    def __init__(self) -> None:
        super().__init__("no wait answers to this: it is unknown, not genuine, or was revoked; ask for a new key")


class BlobNotFound(NotFound):
    code = "not_found.blob"

    def __init__(self, found: str) -> None:
        super().__init__(f"there is no blob {found!r}; put its bytes again")
        self.hash = found


class OutboxNotFound(NotFound):
    code = "not_found.outbox"

    def __init__(self, session: SessionUid, operation: OperationId, ordinal: int) -> None:
        super().__init__(
            f"session {session} owes nothing under operation {operation}, number {ordinal}; list the debts again"
        )
        self.session, self.operation, self.ordinal = session, operation, ordinal


# -- reload and decide again -------------------------------------------------------------------------------------------


class Conflict(LashError):
    """What is stored is not what the call expected."""

    code = "conflict"


class SessionExists(Conflict):
    code = "conflict.session_exists"

    def __init__(self, name: SessionName, uid: SessionUid) -> None:
        super().__init__(f"session {name!r} exists (uid {uid}); open it, or choose another name")
        self.name, self.uid = name, uid


class RevisionMoved(Conflict):
    code = "conflict.revision_moved"

    def __init__(self, what: str, *, expected: int, found: int) -> None:
        super().__init__(f"{what} moved from revision {expected} to {found}; read it and decide again")
        self.what, self.expected, self.found = what, expected, found


class HeadMoved(Conflict):
    """The session grew after this plan read it."""

    code = "conflict.head_moved"

    def __init__(self, session: SessionUid, *, expected: int, found: int) -> None:
        super().__init__(f"session {session} moved from revision {expected} to {found}; reload and retry")
        self.session, self.expected, self.found = session, expected, found


class KeyReused(Conflict):
    code = "conflict.key_reused"

    def __init__(self, key: str, item: ItemId) -> None:
        super().__init__(f"key {key!r} already names item {item} with other content; use a new key")
        self.key, self.item = key, item


class IdReused(Conflict):
    code = "conflict.id_reused"

    def __init__(self, what: str, value: str) -> None:
        super().__init__(f"{what} {value} exists with other content; mint a new id")
        self.what, self.value = what, value


class OperationReused(Conflict):
    code = "conflict.operation_reused"

    def __init__(self, session: SessionUid, operation: OperationId) -> None:
        super().__init__(f"operation {operation} of session {session} was committed with other content; use a new id")
        self.session, self.operation = session, operation


class TurnUnsettled(Conflict):
    code = "conflict.turn_unsettled"

    def __init__(self, turn: TurnId) -> None:
        super().__init__(f"turn {turn} is unsettled; only it may move the head. Finish it first")
        self.turn = turn


class TurnSettled(Conflict):
    code = "conflict.turn_settled"

    def __init__(self, turn: TurnId) -> None:
        super().__init__(f"there is no unsettled turn {turn}: it was settled, or never opened. Reload the session")
        self.turn = turn


class TurnParked(Conflict):
    code = "conflict.turn_parked"

    def __init__(self, turn: TurnId) -> None:
        super().__init__(f"turn {turn} is parked; take it up with open_turn before doing anything for it")
        self.turn = turn


class TurnCancelRequested(Conflict):
    """Somebody asked to cancel this turn before it committed: commit it as cancelled, with that evidence."""

    code = "conflict.turn_cancel_requested"

    def __init__(self, turn: TurnId, request: RequestId) -> None:
        super().__init__(f"turn {turn} was asked to stop (request {request}); commit it as cancelled with that request")
        self.turn, self.request = turn, request


class ReplayMismatch(Conflict):
    """The turn asked for another effect than the one recorded under this replay key."""

    code = "conflict.replay_mismatch"

    def __init__(self, key: ReplayKey, differs: Sequence[str]) -> None:
        super().__init__(
            f"effect {key!r} was recorded with another {', '.join(differs)} and is not run again; "
            "settle the turn as failed, or run the code that recorded it"
        )
        self.key, self.differs = key, tuple(differs)


class OutcomeRecorded(Conflict):
    code = "conflict.outcome_recorded"

    def __init__(self, key: ReplayKey) -> None:
        super().__init__(f"effect {key!r} has another outcome on record; read the journal and go on from that")
        self.key = key


# -- somebody else has it ----------------------------------------------------------------------------------------------


class TryAgain(LashError):
    """Nothing was changed; the same work can succeed later or from a fresh read."""

    code = "try_again"


class SessionBusy(TryAgain):
    code = "try_again.session_busy"

    def __init__(self, session: SessionUid, *, holder: OwnerId, expires_at: datetime) -> None:
        super().__init__(
            f"session {session} is driven by {holder} until {expires_at.isoformat()}; wait, then try again"
        )
        self.session, self.holder, self.expires_at = session, holder, expires_at


class LeaseLost(TryAgain):
    """The lease was released, or another owner took it over. This owner can write nothing more."""

    code = "try_again.lease_lost"

    def __init__(self, session: SessionUid, *, owner: OwnerId, generation: int, found: int) -> None:
        super().__init__(
            f"{owner} no longer holds the lease of session {session} (generation {generation}, now {found}); "
            "acquire it again and reload"
        )
        self.session, self.owner, self.generation, self.found = session, owner, generation, found

    @property
    def released(self) -> bool:
        """Whether the owner let it go. Nobody took it over then: a takeover raises the generation."""
        return self.found == self.generation


class LeaseOverdue(TryAgain):
    """The lease was not renewed in time. Nobody is known to have taken it, and anybody may."""

    code = "try_again.lease_overdue"

    def __init__(self, session: SessionUid, *, owner: OwnerId, generation: int, problem: str) -> None:
        super().__init__(
            f"the lease that {owner} has on session {session} (generation {generation}) was not renewed in time: "
            f"{problem}; acquire it again before going on"
        )
        self.session, self.owner, self.generation, self.problem = session, owner, generation, problem


# -- wait and repeat ---------------------------------------------------------------------------------------------------


class StoreUnavailable(LashError):
    """The store cannot answer now. Repeating the same call is safe."""

    code = "unavailable"


class StoreLocked(StoreUnavailable):
    code = "unavailable.locked"


class DiskFull(StoreUnavailable):
    code = "unavailable.disk_full"


class StoreClosed(StoreUnavailable):
    code = "unavailable.closed"


class WriteUnknown(StoreUnavailable):
    """The connection broke while the write was being committed. It may have landed: repeat it, ids make that safe."""

    code = "unavailable.write_unknown"


# -- change the set-up -------------------------------------------------------------------------------------------------


class WiringError(LashError):
    """The installation, the settings or the machine must change; nothing was written."""

    code = "wiring"


class UnsupportedUrl(WiringError):
    code = "wiring.unsupported_url"


class MissingExtra(WiringError):
    code = "wiring.missing_extra"

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f"{what} needs an extra: pip install 'lash[{extra}]'")
        self.what, self.extra = what, extra


class AccessDenied(WiringError):
    code = "wiring.access_denied"


class ReadOnlyStore(WiringError):
    code = "wiring.read_only"


class NetworkFileSystem(WiringError):
    code = "wiring.network_file_system"

    def __init__(self, path: str, kind: str) -> None:
        super().__init__(
            f"{path} is on a network file system ({kind}), where SQLite's locks cannot be trusted; "
            "use a local disk, or Postgres for several machines"
        )
        self.path, self.kind = path, kind


class DatabaseMissing(WiringError):
    """The database has none of lash's tables."""

    code = "wiring.database_missing"


class DatabaseTooOld(WiringError):
    code = "wiring.database_too_old"

    def __init__(self, *, database: str, needed: str, runtime: str) -> None:
        super().__init__(
            f"the database is at revision {database}, lash {runtime} needs {needed} or later; run 'lash db upgrade'"
        )
        self.database, self.needed, self.runtime = database, needed, runtime


class RuntimeTooOld(WiringError):
    code = "wiring.runtime_too_old"

    def __init__(self, *, runtime: str, needed: str, database: str) -> None:
        super().__init__(
            f"this is lash {runtime}; the database, at revision {database}, needs lash {needed} or later. Upgrade lash"
        )
        self.runtime, self.needed, self.database = runtime, needed, database


class ForeignDatabase(WiringError):
    """The database has tables of our names that we did not make."""

    code = "wiring.foreign_database"


class BrokenInstallation(WiringError):
    """Files of lash itself are missing or wrong; install it again."""

    code = "wiring.broken_installation"


# -- stop and look -----------------------------------------------------------------------------------------------------


class CorruptData(LashError):
    """What is stored is not what was written. lash refuses it and changes nothing; restore a backup or ask for help."""

    code = "corrupt"


class CorruptFile(CorruptData):
    code = "corrupt.file"


class CorruptGraph(CorruptData):
    code = "corrupt.graph"


class CorruptRecord(CorruptData):
    code = "corrupt.record"

    def __init__(self, record: str, problem: str) -> None:
        super().__init__(f"{record} is damaged: {problem}; restore a backup")
        self.record, self.problem = record, problem


class RecordVersionMissing(CorruptData):
    code = "corrupt.record_version_missing"

    def __init__(self, record: str) -> None:
        super().__init__(f"{record} carries no record version; restore a backup")
        self.record = record


class RecordVersionMalformed(CorruptData):
    code = "corrupt.record_version_malformed"

    def __init__(self, record: str, found: object) -> None:
        super().__init__(
            f"{record} carries {found!r} where its record version, an integer from 1 on, should be; restore a backup"
        )
        self.record, self.found = record, found


class RecordVersionUnsupported(CorruptData):
    code = "corrupt.record_version_unsupported"

    def __init__(self, record: str, *, found: int, supported: int) -> None:
        super().__init__(f"{record} has record version {found}; this lash reads up to {supported}. Upgrade lash")
        self.record, self.found, self.supported = record, found, supported


class InvariantBroken(LashError):
    """A bug in lash. Nothing was written by the call that noticed it."""

    code = "bug"
