"""A Postgres server that may be killed: one of its own, which acknowledges nothing that it has not written."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import psutil
from sqlalchemy.engine import URL

from tests.crash.databases import PostgresDatabase
from tests.postgres import PostgresServer, connect, control, execute, in_a_loop_of_its_own, running_server

_HONEST = ("ALTER SYSTEM RESET synchronous_commit", "ALTER SYSTEM RESET full_page_writes", "SELECT pg_reload_conf()")
_BACKENDS = (
    "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    " AND application_name = 'lash' ORDER BY state = 'idle', pid"
)


class MortalServer:
    def __init__(self, data: Path, url: URL) -> None:
        self._data = data
        self._url = PostgresServer(url).fresh()
        in_a_loop_of_its_own(lambda: execute(url, *_HONEST))
        self.database = PostgresDatabase(self._url)

    async def kill_backend(self, random: Random) -> None:
        """Kill the process that serves one connection, of whoever. The server throws everybody out, and recovers."""
        connection = await connect(self._url)
        pids = [pid for [pid] in await connection.fetch(_BACKENDS)]
        connection.terminate()
        os.kill(random.choice(pids), signal.SIGKILL)

    def kill(self) -> None:
        """Kill the whole server, at once."""
        main = psutil.Process(int((self._data / "postmaster.pid").read_text().split()[0]))
        everybody = [main, *main.children(recursive=True)]
        for process in everybody:
            process.send_signal(signal.SIGKILL)
        psutil.wait_procs(everybody)

    def stop(self) -> None:
        """As an operator does who has no time: nothing is written any more."""
        control(self._data, "stop", "-m", "immediate")

    def start(self) -> None:
        control(self._data, "restart")


@contextmanager
def mortal_server() -> Iterator[MortalServer]:
    folder = Path(tempfile.mkdtemp(prefix="lash-mortal-"))
    try:
        with running_server(folder / "data") as url:
            server = MortalServer(folder / "data", url)
            try:
                yield server
            finally:
                server.stop()  # whoever started it first does not know the one that was started since
    finally:
        shutil.rmtree(folder, ignore_errors=True)
