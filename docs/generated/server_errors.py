"""What a server's error means for a run, by the one table that decides it."""

from __future__ import annotations

import re

from airflow_provider_pgddl.engine.errors import REMEDIES


def remedies() -> str:
    """Markdown: SQLSTATE, its name, whether a retry helps, and what a person does."""
    lines = ["| SQLSTATE | Error | Exit code | To do |", "|---|---|---|---|"]
    for kind, remedy in REMEDIES:
        words = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", kind.__name__).lower()
        lines.append(f"| {kind.sqlstate} | {words} | {5 if remedy.retryable else 1} | {remedy.todo} |")
    return "\n".join(lines)
