"""``lash fsck``: hold every row of a database against the promises."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Annotated

import typer

from lash.cli.db import DEFAULT_URL, shown
from lash.cli.exits import EXITS
from lash.cli.screen import AsJson, screen_of
from lash.errors import CorruptData

if TYPE_CHECKING:
    from lash.fsck import Report

BROKEN = EXITS[CorruptData]
Url = Annotated[str, typer.Argument(envvar="LASH_URL", help="sqlite:///FILE or postgresql://USER@HOST/NAME")]


def fsck(context: typer.Context, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Check every row of a database against the promises of lash. Changes nothing. Findings: exit code 8."""
    from lash.fsck import check_database

    screen = screen_of(context, as_json=as_json)
    where = shown(url)
    report = asyncio.run(check_database(url))
    screen.out.print(json.dumps({"url": where, **facts_of(report)}) if as_json else f"{where}\n{words_of(report)}")
    if not report.ok:
        raise typer.Exit(BROKEN)


def facts_of(report: Report) -> dict[str, object]:
    findings = [
        {
            "code": finding.code,
            "severity": finding.severity,
            "table": finding.table,
            "key": finding.key,
            "expected": finding.expected,
            "found": finding.found,
            "meaning": finding.meaning,
        }
        for finding in report.findings
    ]
    return {
        "ok": report.ok,
        "rows": dict(report.rows),
        "unverified_commits": report.unverified_commits,
        "findings": findings,
        "left_out": dict(report.left_out),
    }


def words_of(report: Report) -> str:
    """How many rows of each table were read, then a line for each finding, then the verdict."""
    lines = [f"{count:>12}  {table}" for table, count in sorted(report.rows.items())]
    if report.unverified_commits:
        lines.append(
            f"{report.unverified_commits:>12}  commits whose content hash a vacuum or a delete left unprovable"
        )
    for finding in report.findings:
        lines.append(f"{finding.severity}  {finding}")
        lines.append(f"       {finding.meaning}")
    lines += [f"       and {count} more {code}" for code, count in report.left_out.items()]
    lines.append("clean" if report.ok else f"{report.error_count} errors")
    return "\n".join(lines)
