"""The program that strace watches: see ``bench.syncs``."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from bench import commits, journal  # noqa: F401  # each says what of it is counted
from bench.syncs import trace_on_sqlite

if __name__ == "__main__":
    asyncio.run(trace_on_sqlite(Path(sys.argv[1]), sys.argv[2]))
