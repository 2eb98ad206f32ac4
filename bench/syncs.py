"""How often an operation makes the disk sync: the server tells it on Postgres, strace on SQLite."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.databases import Backend, Postgres, Side, Sqlite

JOBS = 16
"""Enough to show what every operation does, and too few for the occasional WAL checkpoint to matter."""


@dataclass(frozen=True, slots=True)
class Counted:
    """Something to count the syncs of: what makes a job ready, and the two ways to do it."""

    operations: int
    ready: Callable[[Side], Awaitable[Any]]
    lash: Callable[[Side, Any], Awaitable[object]]
    bare: Callable[[Side, Any], Awaitable[object]]


COUNTED: dict[str, Counted] = {}


async def counted_syncs(backend: Backend, name: str) -> tuple[float | None, float | None]:
    """Syncs per operation, of lash and of the bare driver; None where nobody can tell."""
    match backend:
        case Postgres():
            return await _on_postgres(backend, COUNTED[name])
        case Sqlite():
            return await _on_sqlite(backend, name)
        case _:
            return None, None


async def _on_postgres(backend: Postgres, counted: Counted) -> tuple[float, float]:
    found: list[float] = []
    for do in (counted.lash, counted.bare):
        url = backend.fresh()
        async with backend.open(url) as side:
            jobs = [await counted.ready(side) for _ in range(JOBS)]
        before = await backend.wal_syncs()
        async with backend.open(url) as side:
            for job in jobs:
                await do(side, job)
        found.append((await backend.wal_syncs() - before) / (JOBS * counted.operations))
    return found[0], found[1]


async def _on_sqlite(backend: Sqlite, name: str) -> tuple[float | None, float | None]:
    strace = shutil.which("strace")
    if strace is None:
        return None, None
    with tempfile.TemporaryDirectory(dir=backend.folder) as folder:
        trace = Path(folder) / "trace"
        program = (sys.executable, "-m", "bench.traced", folder, name)
        traced = await asyncio.create_subprocess_exec(
            strace, "-f", "-qq", "-o", str(trace), "-e", "trace=fsync,fdatasync", *program
        )
        code = await traced.wait()
        if code != 0 and not trace.stat().st_size:  # not allowed to trace, as in some containers
            return None, None
        _, lash, bare, _ = trace.read_text().split(f"fsync({NO_FILE})")
    count = JOBS * COUNTED[name].operations
    return lash.count("sync(") / count, bare.count("sync(") / count


NO_FILE = 999_999
"""What the traced program syncs to say in the trace where it is."""


async def trace_on_sqlite(folder: Path, name: str) -> None:
    """The traced program: mark, JOBS jobs by lash, mark, as many by hand, mark."""
    backend, counted = Sqlite(folder), COUNTED[name]
    async with backend.open(backend.fresh()) as ours, backend.open(backend.fresh()) as theirs:
        our_jobs = [await counted.ready(ours) for _ in range(JOBS)]
        their_jobs = [await counted.ready(theirs) for _ in range(JOBS)]
        _mark()
        for job in our_jobs:
            await counted.lash(ours, job)
        _mark()
        for job in their_jobs:
            await counted.bare(theirs, job)
        _mark()


def _mark() -> None:
    with suppress(OSError):
        os.fsync(NO_FILE)
