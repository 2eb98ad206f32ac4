"""The one encoding of everything that is stored as JSON or hashed.

Canonical text: keys sorted, no spaces, characters written as themselves, integers in decimal, floats in the shortest
form that reads back the same (so 1 and 1.0 are different content), no NaN and no infinities, no lone surrogates. A hash
is SHA-256 over a tag (what is hashed, in which version) and such texts, never over whatever a model happens to dump: a
new field with a default must not change the hash of yesterday's content.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from typing import Any, cast

from pydantic import JsonValue

from lash.errors import (
    CorruptRecord,
    InvalidValue,
    RecordVersionMalformed,
    RecordVersionMissing,
    RecordVersionUnsupported,
)
from lash.limits import MAX_BODY, check_size

JsonObject = dict[str, JsonValue]
"""A JSON object: what bodies, options and documents are made of."""

VERSION_FIELD = "v"
MAX_DEPTH = 200
"""How deep a value may be nested."""

_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":")).encode


def canonical(value: JsonValue | Mapping[str, JsonValue], *, what: str = "value") -> str:
    """The canonical text of a JSON value. ``what`` names the value in errors."""
    _check_shape(value, what)
    return _text(value, what)


def canonical_object(value: object, *, what: str) -> str:
    """The canonical text of what must be a JSON object."""
    if not isinstance(value, Mapping):
        raise InvalidValue(what, f"a JSON object is expected, not {type(value).__name__}")
    return canonical(value, what=what)


def _check_shape(value: object, what: str) -> None:
    """Keys are strings: the encoder would turn a number into one without a word. Nesting has a limit: else it would
    depend on the stack of whoever reads. So has the number of values, of which each takes a byte at least: a value that
    holds another many times over would not end."""
    try:
        room = _walk(value, MAX_DEPTH, MAX_BODY)
    except _OddKey:
        raise InvalidValue(*(_find_fault(value, what) or (what, "its keys are not all plain strings"))) from None
    except _TooDeep:
        raise InvalidValue(what, f"it is nested more than {MAX_DEPTH} levels deep, or contains itself") from None
    check_size(what, MAX_BODY - room)


class _OddKey(Exception):
    pass


class _TooDeep(Exception):
    pass


_PLAIN = frozenset((str, int, float, bool, type(None)))


def _walk(value: Any, levels: int, room: int) -> int:
    """How much room is left after all that a value holds; negative when it was too much."""
    if levels == 1 and value:
        raise _TooDeep
    kind = type(value)
    if kind is dict or isinstance(value, dict):
        room -= len(value)
        for key, inner in value.items():
            if type(key) is not str:
                raise _OddKey
            if type(inner) not in _PLAIN and room >= 0:
                room = _walk(inner, levels - 1, room)
    elif kind is list or kind is tuple or isinstance(value, list | tuple):
        room -= len(value)
        for inner in value:
            if type(inner) not in _PLAIN and room >= 0:
                room = _walk(inner, levels - 1, room)
    return room


def _text(value: object, what: str) -> str:
    try:
        text = _encode(value)
        size = len(text) if text.isascii() else len(text.encode("utf-8"))
    except (ValueError, TypeError) as error:  # UnicodeEncodeError is a ValueError
        where, problem = _find_fault(value, what) or (what, str(error))
        raise InvalidValue(where, problem) from None
    check_size(what, size)
    return text


def utf8_size(text: str, *, what: str) -> int:
    """How many bytes a text has in UTF-8; InvalidValue when no encoding can store it."""
    if text.isascii():
        return len(text)
    fault = _find_surrogate(text, what)
    if fault is not None:
        raise InvalidValue(*fault)
    return len(text.encode("utf-8"))


def record(version: int, value: Mapping[str, JsonValue], *, what: str = "value") -> str:
    """The canonical text of a stored record, which says its version before anything else is read from it."""
    if VERSION_FIELD in value:
        raise InvalidValue(what, f"the field {VERSION_FIELD!r} is taken by the record version")
    return canonical({**value, VERSION_FIELD: version}, what=what)


def read_record(text: str, *, what: str, supported: int) -> JsonObject:
    """A stored record's fields, without the version. Missing, malformed and unsupported versions are three errors."""
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise CorruptRecord(what, f"not JSON ({error})") from None
    if not isinstance(value, dict):
        raise CorruptRecord(what, f"a JSON object was expected, not {type(value).__name__}")
    if VERSION_FIELD not in value:
        raise RecordVersionMissing(what)
    check_version(value.pop(VERSION_FIELD), what=what, supported=supported)
    return cast(JsonObject, value)


def check_version(found: object, *, what: str, supported: int) -> int:
    if not isinstance(found, int) or isinstance(found, bool) or found < 1:
        raise RecordVersionMalformed(what, found)
    if found > supported:
        raise RecordVersionUnsupported(what, found=found, supported=supported)
    return found


def digest(what: str, version: int, texts: Iterable[str]) -> str:
    """The hash of some canonical texts. Each is preceded by its length, so that no two lists give the same bytes."""
    data = [text.encode("utf-8") for text in texts]
    content = b"".join([piece for one in data for piece in (b"%d:" % len(one), one)])
    return hashlib.sha256(f"lash:{what}:{version}:".encode() + content).hexdigest()


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def _find_fault(value: object, where: str) -> tuple[str, str] | None:
    """The first place in a value that JSON cannot carry, and why."""
    match value:
        case None | bool() | int():
            return None
        case float():
            return None if math.isfinite(value) else (where, f"{value} is not a JSON number")
        case str():
            return _find_surrogate(value, where)
        case dict():
            for key, inner in value.items():
                if not isinstance(key, str):
                    return where, f"the key {key!r} is not a string"
                found = _find_surrogate(key, f"{where}: key") or _find_fault(inner, f"{where}.{key}")
                if found:
                    return found
            return None
        case list() | tuple():
            for index, inner in enumerate(value):
                found = _find_fault(inner, f"{where}[{index}]")
                if found:
                    return found
            return None
        case _:
            return where, f"{type(value).__name__} is not a JSON value"


def _find_surrogate(text: str, where: str) -> tuple[str, str] | None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        return where, f"character {error.start} is a lone surrogate, which no encoding can store"
    return None
