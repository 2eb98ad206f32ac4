"""The command ``lash``, which stands still in the middle of a backup: ``python -m tests.cli.stopping db backup …``.

It copies page by page, and after half of them it stops itself, as with Ctrl-Z.
"""

from __future__ import annotations

import functools
import os
import signal
import sqlite3
from collections.abc import Callable
from typing import Any

from lash.cli.main import run
from lash.store import backup


class StoppingConnection(sqlite3.Connection):
    def backup(self, target: sqlite3.Connection, *, progress: Callable[[int, int, int], None], **_: Any) -> None:
        stopped = False

        def stop(status: int, remaining: int, total: int) -> None:
            nonlocal stopped
            if not stopped and remaining < total / 2:
                stopped = True
                os.kill(os.getpid(), signal.SIGSTOP)
            progress(status, remaining, total)

        super().backup(target, pages=1, progress=stop)


if __name__ == "__main__":
    backup.sqlite3.connect = functools.partial(sqlite3.connect, factory=StoppingConnection)  # type: ignore[attr-defined]
    run()
