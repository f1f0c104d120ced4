"""Pages of the docs and the README, what they show, and the keys of the pipeline file."""

from __future__ import annotations

from pathlib import Path

from docs.generated import pipeline_file
from tests.conftest import REPOSITORY

README = REPOSITORY / "README.md"
DOCS = REPOSITORY / "docs"
PIPELINE_FILE = DOCS / "reference" / "pipeline-file.md"


def blocks(page: Path, language: str) -> list[str]:
    """The fenced blocks of a language, '' for those without one; within a list they are indented."""
    found: list[str] = []
    fence: str | None = None
    for line in page.read_text().splitlines(keepends=True):
        if line.lstrip().startswith("```"):
            fence = line.strip()[3:].strip() if fence is None else None
            if fence == language:
                found.append("")
        elif fence == language:
            found[-1] += line
    return found


# Keys as the code has them, and lines of the table of all keys.
LEAVES = {key: field for key, field, _ in pipeline_file.leaves()}
TABLE = {key.key: key for key in pipeline_file.each_key()}
