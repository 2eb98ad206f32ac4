"""What a name, a key and a body may be:

the checks that turn bad input into a clear error before anything is written.
"""

from __future__ import annotations

import re
import unicodedata
from datetime import timedelta

from lash.errors import InvalidId, InvalidKey, InvalidName, InvalidValue, TooLarge
from lash.ids import ID_PATTERN, BlobHash, OwnerId, SessionName

MAX_NAME = 128
MAX_KEY = 256
MAX_BODY = 16 * 1024 * 1024
"""Bytes of one JSON body: a node, an inbox item, an outcome, a document. Larger content belongs into a blob."""
MAX_BLOB = 256 * 1024 * 1024
MAX_TTL = timedelta(minutes=10)
"""The longest lease. An expiry twice as far away was written by a broken clock and counts as expired."""

NAME_RULE = (
    f"1 to {MAX_NAME} characters: letters, digits and . _ - : @ + = ~, starting with a letter, a digit or _, "
    "in Unicode form NFC"
)
KEY_RULE = f"1 to {MAX_KEY} characters, not blank, none of them a control character"
_NAME = re.compile(rf"\w[\w.:@+=~-]{{0,{MAX_NAME - 1}}}\Z")


def check_name(name: str) -> SessionName:
    if not is_name(name):
        raise InvalidName(name[:80], NAME_RULE)
    return SessionName(name)


def is_name(name: str) -> bool:
    return bool(_NAME.match(name)) and unicodedata.is_normalized("NFC", name)


def check_key(key: str) -> str:
    if not is_key(key):
        raise InvalidKey(key[:80], KEY_RULE)
    return key


def is_key(key: str) -> bool:
    printable = not any(unicodedata.category(c) in ("Cc", "Cs") for c in key)
    return printable and bool(key.strip()) and len(key) <= MAX_KEY


def check_id(what: str, value: str) -> None:
    if not ID_PATTERN.match(value):
        raise InvalidId(what, value[:80], "32 hex digits, as minted by lash")


def check_blob_hash(value: str) -> BlobHash:
    if not re.match(r"[0-9a-f]{64}\Z", value):
        raise InvalidId("a blob hash", value[:80], "64 hex digits, the SHA-256 of the blob's bytes")
    return BlobHash(value)


def check_owner(owner: str) -> OwnerId:
    if not re.match(r"[\w.:@+=~-]{1,128}\Z", owner):
        raise InvalidId("an owner", owner[:80], "1 to 128 letters, digits and . _ - : @ + = ~")
    return OwnerId(owner)


def check_ttl(ttl: timedelta) -> timedelta:
    if not timedelta(milliseconds=1) <= ttl <= MAX_TTL:
        raise InvalidValue("ttl", f"a lease lasts from 1 millisecond to {MAX_TTL}, not {ttl}")
    return ttl


def check_renewals(ttl: timedelta, every: timedelta) -> None:
    """A lease has to survive two renewals that fail."""
    check_ttl(ttl)
    if not timedelta(milliseconds=1) <= every <= ttl / 3:
        raise InvalidValue(
            "every", f"a lease is renewed three times before it runs out, so at most {ttl / 3}, not {every}"
        )


def check_size(what: str, size: int, limit: int = MAX_BODY) -> None:
    if size > limit:
        raise TooLarge(what, size=size, limit=limit)
