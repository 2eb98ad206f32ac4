"""lash: a durable agent runtime for Python.

What exists so far is the durable core: sessions kept by a store (``lash.store``), the contract that any store can be
held to (``lash.testing``), and the errors they raise. Every error has one of the groups below as its base; the whole
tree is in ``lash.errors``.
"""

from lash.errors import (
    Conflict,
    CorruptData,
    InvariantBroken,
    LashError,
    NotFound,
    StoreUnavailable,
    TryAgain,
    UsageError,
    WiringError,
)
from lash.version import VERSION as __version__  # noqa: N811  # the name that tools look for

__all__ = [
    "Conflict",
    "CorruptData",
    "InvariantBroken",
    "LashError",
    "NotFound",
    "StoreUnavailable",
    "TryAgain",
    "UsageError",
    "WiringError",
    "__version__",
]
