"""Every row of a database, held against the promises: the oracle of a crash test."""

from __future__ import annotations

from lash.fsck import Finding, Report, check_database

__all__ = ["Finding", "Report", "check_database"]
