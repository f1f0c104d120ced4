"""What a person sees of the demo: one line at a time, with the time since the start and what the writers are doing."""

from __future__ import annotations

import time

from rich.console import Console
from rich.markup import escape

from airflow_provider_pgddl.demo.writers import Writers


class Screen:
    """What a person sees: one line at a time, with the time since the start and what the writers are doing."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._start = time.monotonic()
        self.began = time.time()
        self.lines: list[tuple[float, str, str]] = []
        """Seconds since the start, label and text of each line."""
        self._writers: Writers | None = None
        self._last = ("", "")

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._start

    def follow(self, writers: Writers) -> None:
        self._writers = writers

    def title(self, text: str) -> None:
        self.console.print(f"\n[bold]{text}[/]")

    def say(self, label: str, text: str, style: str = "") -> None:
        if (label, text) == self._last:
            return  # nothing has moved
        self._last = (label, text)
        self.lines.append((self.seconds, label, text))
        minutes, seconds = divmod(int(self.seconds), 60)
        body = f"[{style}]{escape(text)}[/]" if style else escape(text)
        self.console.print(f"[dim]{minutes}:{seconds:02}[/]  [cyan]{label:<12}[/] {body}", soft_wrap=True)

    def writers_line(self) -> str:
        assert self._writers is not None
        notes = self._writers.notes
        side = "18" if self._writers.side else "16"
        return f"{notes.committed.total():,} transactions committed, now against Postgres {side}"
