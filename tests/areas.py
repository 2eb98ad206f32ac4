"""Prints how long each area of the tests took: ``-p tests.areas``. Summed over all workers."""

from __future__ import annotations

from collections import Counter

import pytest


class Areas:
    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self.tests: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        area = report.nodeid.split("/")[1]
        self.seconds[area] += report.duration
        self.tests[area] += report.when == "call"

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.section("time by area")
        for area, seconds in self.seconds.most_common():
            terminalreporter.write_line(f"{seconds:8.1f} s  {self.tests[area]:5} tests  {area}")


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # a worker of xdist hands its reports to the one that prints
        config.pluginmanager.register(Areas(), "areas")
