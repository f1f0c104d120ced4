"""What a person reads while something long runs: one line at a time, with rate and time left."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import SimpleNamespace

import psycopg

LINE_EVERY = 2.0  # seconds
TELL_EVERY = 10.0  # the same where work tells by itself how far it is
_last_line = SimpleNamespace(at=0.0)


def say(stage: str, text: str) -> None:
    """One line of progress. Each starts with `pgddl <stage>:`, which is how the demo and people find them; what `text`
    has behind a line break, which names may have, is set in, and is no line of its own."""
    _last_line.at = time.monotonic()
    text = "\n  ".join(text.splitlines())
    print(f"pgddl {stage}: {text}", flush=True)


def silent_for() -> float:
    """Seconds since this process has said its last line."""
    return float(time.monotonic() - _last_line.at)


def duration(seconds: float) -> str:
    """`0:07`, `12:30`, `1:02:03`"""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def amount(value: float) -> str:
    """`950`, `12.3k`, `4.56M`"""
    for limit, unit in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= 0.9995 * limit:  # what would be rounded to 1000 of the unit below
            return f"{value / limit:.3g}{unit}"
    return f"{value:.0f}"


def pace(done: float, left: float, seconds: float, unit: str) -> str:
    """`, 1.2k rows/s, 0:07 left`, as the end of a line; nothing where nothing is left, or nothing is done yet."""
    if done <= 0 or left <= 0 or seconds <= 0:
        return ""
    rate = done / seconds
    shown = amount(rate) if rate >= 10 else f"{rate:.1f}"
    return f", {shown} {unit}/s, {duration(left / rate)} left"


class Steps:
    """Says how far something has come that has many steps, every `TELL_EVERY` seconds."""

    def __init__(self, say: Callable[[str], None], doing: str, unit: str):
        self._say, self._doing, self._unit = say, doing, unit
        self._began = self._said = time.monotonic()

    def at(self, done: int, total: int, table: str | None = None) -> None:
        """So many of all are done; the next one is about this table."""
        now = time.monotonic()
        if now - self._said < TELL_EVERY or done >= total:
            return
        self._said = now
        at = f"; at {table}" if table else ""
        self._say(
            f"{self._doing}: {done}/{total} {self._unit}{pace(done, total - done, now - self._began, self._unit)}{at}"
        )


@contextmanager
def repeating(name: str, seconds: float, act: Callable[[], None]) -> Iterator[None]:
    """Calls `act` in a thread of this name, every so many seconds while the block runs."""
    over = threading.Event()

    def repeat() -> None:
        while not over.wait(seconds):
            act()

    thread = threading.Thread(target=repeat, name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextmanager
def reporting(stage: str, line: Callable[[float], str | None]) -> Iterator[None]:
    """Says `line(seconds since the start)` every few seconds while the block runs; None says nothing, nor does a
    session of it that somebody has ended: what that means, the work itself will say."""
    started = time.monotonic()

    def report() -> None:
        with suppress(psycopg.Error):
            if text := line(time.monotonic() - started):
                say(stage, text)

    with repeating("pgddl-progress", LINE_EVERY, report):
        yield
