"""What was checked, and what was found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from lash.errors import CorruptData
from lash.fsck.codes import CODES, Severity

MAX_KEPT = 100
"""How many findings of one code are kept; the rest is counted. A ruined table must not fill the memory."""
_SHOWN = 10


@dataclass(frozen=True, slots=True)
class Finding:
    """One row that is not as it should be."""

    code: str
    table: str
    key: str
    """The row, by the columns of its key: ``session=3 branch=0 depth=7``."""
    expected: str
    found: str

    @property
    def severity(self) -> Severity:
        return CODES[self.code].severity

    @property
    def meaning(self) -> str:
        return CODES[self.code].meaning

    def __str__(self) -> str:
        return f"{self.code}: {self.table} {self.key}: expected {self.expected}, found {self.found}"


@dataclass(frozen=True, slots=True)
class Report:
    """The result of a check. Errors break a promise; notes are worth knowing and break none."""

    rows: Mapping[str, int]
    """How many rows of each table were read."""
    findings: tuple[Finding, ...]
    left_out: Mapping[str, int]
    """How many findings of a code there are beyond those that are kept."""
    unverified_commits: int
    """Commits whose content hash could not be computed again, because a vacuum or a delete took what it covers."""

    @property
    def errors(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.severity == "error")

    @property
    def notes(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.severity == "note")

    @property
    def ok(self) -> bool:
        return not self.errors

    @property
    def error_count(self) -> int:
        """All errors, those that were left out included."""
        left_out = sum(count for code, count in self.left_out.items() if CODES[code].severity == "error")
        return len(self.errors) + left_out

    def raise_if_broken(self) -> None:
        """CorruptData, with the first findings in its message, when a promise is broken."""
        if self.ok:
            return
        count = self.error_count
        lines = "\n".join(f"  {finding}" for finding in self.errors[:_SHOWN])
        more = f"\n  and {count - _SHOWN} more" if count > _SHOWN else ""
        raise CorruptData(f"the database breaks its promises in {count} places:\n{lines}{more}")


class Findings:
    """Collects what the checks say."""

    def __init__(self) -> None:
        self.rows: Counter[str] = Counter()
        self.unverified_commits = 0
        self._kept: dict[str, list[Finding]] = {}
        self._left_out: Counter[str] = Counter()
        self._seen: set[Finding] = set()

    def add(self, code: str, table: str, key: str, *, expected: object, found: object) -> None:
        finding = Finding(code, table, key, _shown(expected), _shown(found))
        if finding in self._seen:
            return
        kept = self._kept.setdefault(code, [])
        if len(kept) < MAX_KEPT:
            kept.append(finding)
            self._seen.add(finding)
        else:
            self._left_out[code] += 1

    def report(self) -> Report:
        findings = tuple(finding for kept in self._kept.values() for finding in kept)
        return Report(dict(self.rows), findings, dict(self._left_out), self.unverified_commits)


def _shown(value: object) -> str:
    text = "nothing" if value is None else str(value)
    return text if len(text) <= 200 else f"{text[:200]}…"
