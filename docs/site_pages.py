"""Pages of the site that are made as it is built, so that they cannot differ from what they describe.

MkDocs calls the functions `on_…`. A line `<!-- generated: NAME -->` of a page is replaced by what PARTS has under NAME.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

REPOSITORY = Path(__file__).parents[1]
sys.path.insert(0, str(REPOSITORY))

from docs.generated import commands, journal, operators, pipeline_file, server_errors  # noqa: E402

PARTS: dict[str, Callable[[], str]] = {
    "commands": commands.commands,
    "flags of the policy": commands.policy_flags,
    "journal": lambda: journal.tables("journal"),
    "keys": pipeline_file.tables,
    "operators": operators.operators,
    "server errors": server_errors.remedies,
    "source": lambda: journal.tables("core"),
    "identities": lambda: journal.tables("injector"),
}


def on_files(files: Files, config: Any) -> Files:
    """The benchmarks' own page and their last results, which stand beside the benchmarks."""
    folder = REPOSITORY / "benchmarks"
    results = (folder / "results" / "latest.md").read_text(encoding="utf-8")
    text = (folder / "README.md").read_text(encoding="utf-8") + "\n## Results of the last full run\n\n" + results
    files.append(File.generated(config, "benchmarks.md", content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """What is generated takes the place of its line; a name that is not there ends the build. A link to the benchmarks'
    page, which is in another folder of the repository, leads to their page of the site."""
    if "/" not in page.file.src_uri:
        page.meta.setdefault("hide", ["navigation"])  # a page by itself: there is nothing to choose from
    markdown = re.sub(r"^<!-- generated: (.+) -->$", lambda found: PARTS[found[1]](), markdown, flags=re.MULTILINE)
    above = "../" * page.file.src_uri.count("/")
    return re.sub(r"\]\((\.\./)+benchmarks/README\.md", f"]({above}benchmarks.md", markdown)


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """Nothing of a page is taken from another host: no script, no font, no picture."""
    foreign = re.search(r'<(?:script|img|iframe|source)\b[^>]*\bsrc="?(?:https?:)?//[^>]*>', output) or re.search(
        r'<link\b(?=[^>]*\brel="?(?:stylesheet|preconnect|icon|preload))[^>]*\bhref="?(?:https?:)?//[^>]*>', output
    )
    if foreign:
        raise PluginError(f"{page.file.src_uri}: {foreign[0]} comes from another host")
    return output
