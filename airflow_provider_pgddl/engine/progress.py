"""What a person reads while something long runs: one line at a time, with rate and time left."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import psycopg

LINE_EVERY = 2.0  # seconds


def say(stage: str, text: str) -> None:
    """One line of progress. Each starts with `pgddl <stage>:`, which is how the demo and people find them."""
    print(f"pgddl {stage}: {text}", flush=True)


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
