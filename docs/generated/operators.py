"""Operators, the sensor, task groups and what DAGs are scheduled on, by their docstrings. Read as text: importing
Airflow takes seconds."""

from __future__ import annotations

import ast
import re
from pathlib import Path

_PACKAGE = Path(__file__).parents[2] / "airflow_provider_pgddl"
_MODULES = (
    "operators/base.py",
    "operators/stages.py",
    "operators/approval.py",
    "sensors/schema.py",
    "task_groups.py",
    "notifications.py",
    "assets.py",
)
# Functions that DAGs call; the other public ones are for other modules.
_FUNCTIONS = {"task_groups.py": ("lifecycle", "follow", "reversible", "go_back"),
              "assets.py": ("ddl_waits", "mismatch_stands")}  # fmt: skip


def operators() -> str:
    """Markdown: a heading for each public class and function, its signature, its docstring, its parameters."""
    lines = []
    for name in _MODULES:
        module = "airflow_provider_pgddl." + name.removesuffix(".py").replace("/", ".")
        for node in ast.parse((_PACKAGE / name).read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_"):
                if isinstance(node, ast.FunctionDef) and node.name not in _FUNCTIONS.get(name, ()):
                    continue
                lines += [f"### {node.name}", "", f"`{module}`", "", *_described(ast.get_docstring(node) or ""), ""]
                lines += _parameters(node)
    return "\n".join(lines)


def _described(text: str) -> list[str]:
    """A docstring as Markdown; each `:param name: …` becomes an item of a list."""
    lines: list[str] = []
    for block in re.split(r"\n\s*\n|\n(?=:param)", text):
        words = " ".join(block.split())
        if found := re.match(r":param (\w+): (.*)", words):
            lines.append(f"- `{found[1]}`: {found[2]}")
        else:
            lines += ["", words, ""]
    return lines


def _parameters(node: ast.ClassDef | ast.FunctionDef) -> list[str]:
    made = node
    if isinstance(node, ast.ClassDef):
        made = next((n for n in node.body if isinstance(n, ast.FunctionDef) and n.name == "__init__"), None)
    if not isinstance(made, ast.FunctionDef):
        return []
    first = [(argument, None) for argument in made.args.args if argument.arg != "self"]
    named = zip(made.args.kwonlyargs, made.args.kw_defaults, strict=True)
    shown = []
    for argument, default in [*first, *named]:
        given = f" = {ast.unparse(default)}" if default is not None else ""
        kind = f": {ast.unparse(argument.annotation)}" if argument.annotation else ""
        shown.append(f"    {argument.arg}{kind}{given},")
    rest = [f"    **{made.args.kwarg.arg},"] if made.args.kwarg else []
    return ["```py", f"{node.name}(", *shown, *rest, ")", "```", ""] if shown else []
