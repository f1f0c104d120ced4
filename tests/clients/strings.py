"""What migration tools send, as they send it, rows among it: a file of strings_sql for each tool.

A line is a string, which is sent by itself and with autocommit, all through one session. One of many lines is between
`-- {` and `-- }`. Those above `-- followed` are there when a pipeline is set up, the others come while it follows.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

FOLDER = Path(__file__).parent / "strings_sql"
TOOLS = sorted(path.stem for path in FOLDER.glob("*.sql"))


def strings(tool: str) -> tuple[list[str], list[str]]:
    """Those before, and those that come while it follows."""
    before, then = (FOLDER / f"{tool}.sql").read_text(encoding="utf-8").split("\n-- followed\n")
    return list(_read(before)), list(_read(then))


def _read(text: str) -> Iterator[str]:
    many: list[str] | None = None
    for line in text.splitlines():
        if many is not None and line == "-- }":
            yield "\n".join(many)
            many = None
        elif many is not None:
            many.append(line)
        elif line == "-- {":
            many = []
        elif line and not line.startswith("-- #"):
            yield line
    assert many is None
