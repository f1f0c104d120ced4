"""What tests cost, by file (`--costs`): seconds of CPU, which other work on the machine changes far less than times."""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter
from collections.abc import Generator
from typing import Any

import psutil
import pytest

OPTION = "--costs"


def cpu_used() -> Counter[str]:
    """Seconds of this process, and of all that it has started: servers, JVMs, Airflow, ended or not."""
    ended = os.times()
    used = Counter(tests=time.process_time(), started=ended.children_user + ended.children_system)
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):  # it has ended just now
            used["started"] += sum(process.cpu_times()[:4])
    return used


class Costs:
    """Adds up what each file's tests have used, over xdist's workers, and prints it with the dearest last."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._of: dict[str, Counter[str]] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        before = cpu_used()
        result = yield
        used = cpu_used()
        used.subtract(before)
        self._add(item.nodeid.split("::")[0], used)
        return result

    def _add(self, file: str, used: Counter[str]) -> None:
        self._of.setdefault(file, Counter()).update(used)

    def pytest_sessionfinish(self) -> None:
        if hasattr(self._config, "workeroutput"):
            self._config.workeroutput["costs"] = {file: dict(used) for file, used in self._of.items()}

    @pytest.hookimpl(optionalhook=True)  # xdist's
    def pytest_testnodedown(self, node: Any) -> None:
        for file, used in getattr(node, "workeroutput", {}).get("costs", {}).items():
            self._add(file, Counter(used))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.section("seconds of CPU: all, of the tests, of what they start")
        whole: Counter[str] = Counter()
        for file, used in sorted(self._of.items(), key=lambda each: each[1].total()):
            terminalreporter.write_line(_line(used, file))
            whole.update(used)
        terminalreporter.write_line(_line(whole, "in all"))


def _line(used: Counter[str], what: str) -> str:
    columns = (used.total(), used["tests"], used["started"])
    return "".join(f"{seconds:9.1f}" for seconds in columns) + f"  {what}"
