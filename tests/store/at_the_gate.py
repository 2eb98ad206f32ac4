"""A process at the gate: ``python -m tests.store.at_the_gate FILE``. It goes inside, says so, and stays until somebody
writes a line."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType

import lash

# The package itself would bring the whole store along, which takes a second for each of the many processes.
package = ModuleType("lash.store")
package.__path__ = [str(Path(lash.__file__).parent / "store")]
sys.modules["lash.store"] = package

from lash.store.sql.gate import Gate  # noqa: E402


def tell(**facts: object) -> None:
    print(json.dumps(facts), flush=True)


def main(file: str) -> None:
    gate = Gate(Path(file), file)
    tell(ready=True)
    with gate.passed(60):
        tell(inside=True)
        sys.stdin.readline()
    tell(outside=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
