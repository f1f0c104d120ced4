"""Pages of the site that are made as it is built, so that they cannot differ from what they describe.

MkDocs calls the functions `on_…`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

REPOSITORY = Path(__file__).parents[1]


def on_files(files: Files, config: Any) -> Files:
    """The benchmarks' own page and their last results, which stand beside the benchmarks."""
    folder = REPOSITORY / "benchmarks"
    results = (folder / "results" / "latest.md").read_text(encoding="utf-8")
    text = (folder / "README.md").read_text(encoding="utf-8") + "\n## Results of the last full run\n\n" + results
    files.append(File.generated(config, "benchmarks.md", content=text))
    return files
