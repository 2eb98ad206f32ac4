"""How a value stands in a column and in a record: kinds of columns, canonical JSON, record versions, hashes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

EARLIEST = -62_135_596_800_000_000
LATEST = 253_402_300_799_999_999
"""The years 1 to 9999 in microseconds since 1970."""
RECORD_VERSION = 1
"""The newest version of every kind of record that this fsck can read."""
COUNTER = 2**63 - 2


class Malformed(Exception):
    """A value that cannot be what its column holds."""

    def __init__(self, code: str, expected: str, found: object) -> None:
        super().__init__(code)
        self.code, self.expected, self.found = code, expected, found


@dataclass(frozen=True, slots=True)
class Kind:
    """What a column holds, and how it is read. A large value is fetched on its own."""

    read: Callable[[Any], Any]
    optional: bool = False
    large: bool = False
    is_hex: bool = False

    def __call__(self, value: Any) -> Any:
        if value is None:
            if self.optional:
                return None
            raise Malformed("row-malformed", "a value", None)
        return self.read(value)


@dataclass(frozen=True, slots=True)
class Record:
    """A stored record: its text, and its fields without the version."""

    text: str
    version: int
    fields: dict[str, Any]


def _is(holds: bool, expected: str, found: object) -> None:
    if not holds:
        raise Malformed("row-malformed", expected, repr(found))


def number(low: int = 0, high: int = COUNTER, *, optional: bool = False) -> Kind:
    def read(value: Any) -> int:
        _is(type(value) is int and low <= value <= high, f"a number from {low} to {high}", value)
        return int(value)

    return Kind(read, optional)


def version(newest: int) -> Kind:
    def read(value: Any) -> int:
        return _version(value, newest)

    return Kind(read)


def text(*, optional: bool = False) -> Kind:
    def read(value: Any) -> str:
        _is(isinstance(value, str), "text", value)
        return str(value)

    return Kind(read, optional)


def word(*choices: str) -> Kind:
    def read(value: Any) -> str:
        _is(value in choices, f"one of {', '.join(choices)}", value)
        return str(value)

    return Kind(read)


def raw(size: int, *, optional: bool = False) -> Kind:
    """An id or a hash, shown as hex."""

    def read(value: Any) -> str:
        _is(isinstance(value, bytes) and len(value) == size, f"{size} bytes", value)
        return bytes(value).hex()

    return Kind(read, optional, is_hex=True)


def _packed(value: Any) -> tuple[str, ...]:
    _is(isinstance(value, bytes) and len(value) % 16 == 0, "ids of 16 bytes each", value)
    return tuple(value[at : at + 16].hex() for at in range(0, len(value), 16))


def time(*, optional: bool = False) -> Kind:
    return number(EARLIEST, LATEST, optional=optional)


def _text(value: Any) -> str:
    _is(isinstance(value, str), "text", value)
    return str(value)


def _canonical_record(value: Any) -> Record:
    found = record(_text(value))
    expected = canonical({**found.fields, "v": found.version})
    if found.text != expected:
        raise Malformed("record-not-canonical", expected, found.text)
    return found


def _wrapped(value: Any) -> Any:
    found = _canonical_record(value)
    if found.fields.keys() != {"json"}:
        raise Malformed("record-malformed", "the one field 'json'", sorted(found.fields))
    return found.fields["json"]


def _wrapped_object(value: Any) -> Any:
    found = _wrapped(value)
    if not isinstance(found, dict):
        raise Malformed("record-malformed", "a JSON object", type(found).__name__)
    return found


ID = raw(16)
HASH = raw(32)
IDS = Kind(_packed)
BODY = Kind(_text, large=True)
"""A record whose text may have been written by a caller, so it need not be canonical."""
RECORD = Kind(_canonical_record, large=True)
JSON = Kind(_wrapped, optional=True, large=True)
OBJECT = Kind(_wrapped_object, large=True)


def record(stored: str) -> Record:
    """The record in a text. Its version is looked at before anything else."""
    fields = _whole(stored)
    if "v" not in fields:
        raise Malformed("record-version-missing", "a record version", stored)
    return Record(stored, _version(fields.pop("v"), RECORD_VERSION), fields)


def _whole(stored: str) -> dict[str, Any]:
    try:
        value = json.loads(stored, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise Malformed("record-malformed", "JSON", f"{stored!r} ({error})") from None
    if not isinstance(value, dict):
        raise Malformed("record-malformed", "a JSON object", stored)
    return value


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not a JSON number")


def _version(found: object, newest: int) -> int:
    if not isinstance(found, int) or isinstance(found, bool) or found < 1:
        raise Malformed("record-version-malformed", "a version from 1 on", repr(found))
    if found > newest:
        raise Malformed("record-version-unsupported", f"a version up to {newest}", found)
    return found


def canonical(value: object) -> str:
    """Keys sorted, no spaces, characters as themselves, no NaN."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":"))


class Digest:
    """SHA-256 over a tag and texts, each preceded by its length in bytes. It can be forked to try several endings."""

    def __init__(self, what: str, version: int = 1) -> None:
        self._running = hashlib.sha256(f"lash:{what}:{version}:".encode())

    def add(self, *texts: str) -> Digest:
        for part in texts:
            data = part.encode("utf-8", "surrogatepass")
            self._running.update(b"%d:" % len(data) + data)
        return self

    def fork(self) -> Digest:
        other = Digest.__new__(Digest)
        other._running = self._running.copy()
        return other

    def hex(self) -> str:
        return self._running.hexdigest()


def id_from(*words: str) -> str:
    """The id that some words always give."""
    whole = "".join(f"{len(part)}:{part}" for part in words)
    return hashlib.sha256(whole.encode()).hexdigest()[:32]


def sha256(chunks: Iterable[bytes]) -> str:
    running = hashlib.sha256()
    for chunk in chunks:
        running.update(chunk)
    return running.hexdigest()
