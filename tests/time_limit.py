"""An end to a run (`--within SECONDS`), on a machine of whatever speed: what has not begun by then is left out, and the
end of the run says how many tests those are. The quick ones of tests/unit come first."""

from __future__ import annotations

import os
import time

import pytest

OPTION = "--within"
UNTIL = "PGDDL_TESTS_UNTIL"  # seconds since the epoch; xdist's workers inherit it
REASON = "no time is left"


class Within:
    def __init__(self, seconds: float) -> None:
        self.until = float(os.environ.setdefault(UNTIL, str(time.time() + seconds)))
        self.left = 0

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items.sort(key=lambda item: not item.nodeid.startswith("tests/unit/"))

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self) -> None:
        if time.time() > self.until:
            pytest.skip(REASON)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.left += report.skipped and isinstance(report.longrepr, tuple) and report.longrepr[2].endswith(REASON)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.left:
            terminalreporter.write_line(
                f"{self.left} tests were left out: the time was over; make test runs them", red=True
            )
