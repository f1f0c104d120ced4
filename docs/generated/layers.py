"""The engine's packages from top to bottom: the contract that imports keep, and each package's docstring.

The map stands in the page itself, for whoever reads it without the site: `python -m docs.generated.layers` writes it.
"""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

_REPOSITORY = Path(__file__).parents[2]
PAGE = _REPOSITORY / "docs" / "explanation" / "architecture.md"


def layers() -> str:
    """Markdown: a line for each package, in the order of the layers in pyproject.toml."""
    tools = tomllib.loads((_REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
    (contract,) = [c for c in tools["importlinter"]["contracts"] if c["type"] == "layers"]
    lines = ["| Package | What belongs there |", "|---|---|"]
    for layer in contract["layers"]:
        for name in layer.replace("|", " ").replace(":", " ").split():
            path = _REPOSITORY / "airflow_provider_pgddl" / "engine" / name
            source = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
            about = ast.get_docstring(ast.parse(source.read_text(encoding="utf-8"))) or ""
            about = about if path.is_dir() else about.partition("\n\n")[0]
            lines.append(f"| `engine.{name}` | {' '.join(about.split())} |")
    return "\n".join(lines)


def written(page: str) -> str:
    """The page with the map as it is now, between its two comments."""
    between = re.compile(r"(?<=<!-- the map -->\n\n).*?(?=\n\n<!-- end of the map -->)", re.DOTALL)
    return between.sub(lambda _: layers(), page)


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
