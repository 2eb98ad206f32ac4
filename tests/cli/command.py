"""The real command, run as users run it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LASH = Path(sys.executable).with_name("lash")


@dataclass(frozen=True)
class Ended:
    status: int
    out: str
    err: str

    @property
    def answer(self) -> Any:
        return json.loads(self.out)


def lash(*words: str, cwd: Path, env: dict[str, str] | None = None) -> Ended:
    inherited = {name: value for name, value in os.environ.items() if name != "LASH_URL"}
    done = subprocess.run(
        [str(LASH), *words], cwd=cwd, env=inherited | (env or {}), capture_output=True, text=True, timeout=60
    )
    return Ended(done.returncode, done.stdout, done.stderr)
