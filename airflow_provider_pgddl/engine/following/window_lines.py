"""What is said of windows after which more is to come."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from airflow_provider_pgddl.engine.progress import amount, pace
from airflow_provider_pgddl.engine.rows.windows import Window


class WindowsLeft:
    """How much of all is done, how fast, and how long the rest takes, first of the log, then of the keys that are read.
    Writers go on meanwhile: what counts is by how much less is left than there was."""

    def __init__(self, names: Callable[[], Mapping[int, str]]):
        """`names` are those of the tables, by their ids."""
        self._names = names
        self._unit = ""
        self._began, self._all = 0.0, 0

    def after(self, done: Window) -> str:
        """As the end of a line about this window, the next one of those; '' where it has left nothing."""
        left, unit = (done.left, "changes") if done.left else (done.pending, "keys")
        if unit != self._unit:
            self._unit, self._began = unit, time.monotonic() - done.seconds
            self._all = left + (done.keys if done.left else done.rows)
        if not left:
            return ""
        fewer = self._all - left
        speed = pace(fewer, left, time.monotonic() - self._began, unit) or ", as many come as go"
        return f"; {amount(max(fewer, 0))} of {amount(self._all)} {unit}{speed}{self._at(done)}"

    def _at(self, done: Window) -> str:
        most = (done.changed + done.filled).most_common(1)
        names = self._names() if most else {}
        return f"; at {names[most[0][0]]}" if most and most[0][0] in names else ""
