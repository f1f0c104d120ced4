"""The engine's packages from top to bottom: the contract that imports keep, and each package's docstring."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path

_REPOSITORY = Path(__file__).parents[2]


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
            about = about.partition("\n\n")[0] if path.suffix else about
            lines.append(f"| `engine.{name}` | {' '.join(about.split())} |")
    return "\n".join(lines)
