"""``python -m bench``: run the rows, print the table, write ``bench/results.json``, fail on a missed bound."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench import claims, commits, disk, fairness, journal  # noqa: F401  # each adds its rows
from bench.databases import Backend, postgres_backend, sqlite_backend
from bench.rows import ROWS, Entry, Row

NOTES = Console(stderr=True)
RESULTS = Path(__file__).parent / "results.json"


def main() -> int:
    arguments = _arguments()
    chosen = [entry for entry in ROWS if not arguments.rows or entry.name in arguments.rows]
    rows: list[Row] = []
    with contextlib.ExitStack() as stack:
        backends: dict[str, Backend] = {}
        if "sqlite" in arguments.on:
            backends["sqlite"] = stack.enter_context(sqlite_backend())
        if "postgres" in arguments.on:
            backends["postgres"] = stack.enter_context(postgres_backend())
        for entry in chosen:
            rows += _measured(entry, backends, arguments.effort)
    Console(width=170 if not sys.stdout.isatty() else None).print(_table(rows))
    RESULTS.write_text(json.dumps([row.encode() for row in rows], indent=2) + "\n")
    missed = [row for row in rows if not row.met]
    for row in missed:
        NOTES.print(f"missed: {row.name} on {row.backend}: {row.ratio:.2f}, must be {_bound(row)}")
    return 1 if missed else 0


def _arguments() -> argparse.Namespace:
    names = list(dict.fromkeys(entry.name for entry in ROWS))
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"which rows to run (all: {', '.join(names)})")
    parser.add_argument("--on", nargs="+", choices=("sqlite", "postgres"), default=("sqlite", "postgres"))
    parser.add_argument("--effort", type=float, default=1.0, help="a part of the rounds of a full run")
    arguments = parser.parse_args()
    unknown = set(arguments.rows) - set(names)
    if unknown:
        parser.error(f"there is no row {sorted(unknown)[0]!r}; there are {', '.join(names)}")
    return arguments


def _measured(entry: Entry, backends: dict[str, Backend], effort: float) -> list[Row]:
    found: list[Row] = []
    for name in entry.backends:
        if name in backends:
            NOTES.print(f"{entry.name} on {name} …")
            found.append(asyncio.run(entry.measure(backends[name], effort)))
    return found


def _table(rows: list[Row]) -> Table:
    table = Table(title="lash beside the bare driver, in one run")
    table.add_column("row")
    table.add_column("on")
    for heading in ("lash", "bare", "ratio", "quartiles", "bound", "", "CPU µs", "bare", "syncs", "bare"):
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(
            row.name,
            row.backend,
            f"{row.value:,.4g} {row.unit}",
            f"{row.baseline:,.4g}",
            f"{row.ratio:.2f}",
            "" if row.spread is None else f"{row.spread[0]:.2f} to {row.spread[1]:.2f}",
            _bound(row),
            "met" if row.met else "[bold red]missed[/]",
            *(_number(found) for found in (row.cost.cpu_us, row.baseline_cost.cpu_us)),
            *(_number(found) for found in (row.cost.syncs, row.baseline_cost.syncs)),
        )
    return table


def _bound(row: Row) -> str:
    if row.floor is not None:
        return f"≥ {row.floor}"
    return "" if row.ceiling is None else f"≤ {row.ceiling}"


def _number(found: float | None) -> str:
    return "" if found is None else f"{found:,.3g}"


if __name__ == "__main__":
    sys.exit(main())
