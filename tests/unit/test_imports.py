"""No module imports itself by way of others, not even inside a function; workers import little, and tests no tests."""

from __future__ import annotations

import ast
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY

PACKAGE = "airflow_provider_pgddl"


def _modules() -> dict[str, Path]:
    files = (REPOSITORY / PACKAGE).rglob("*.py")
    named = {".".join(file.relative_to(REPOSITORY).with_suffix("").parts): file for file in files}
    return {name.removesuffix(".__init__"): file for name, file in named.items()}


def _imports(file: Path, modules: dict[str, Path]) -> set[str]:
    """The modules that it names; what is for type checkers alone is none."""
    found = set[str]()

    def look(node: ast.AST) -> None:
        for each in ast.iter_child_nodes(node):
            if isinstance(each, ast.If) and "TYPE_CHECKING" in ast.unparse(each.test):
                continue
            if isinstance(each, ast.ImportFrom) and each.module:
                wanted = [f"{each.module}.{alias.name}" for alias in each.names]
                found.update(name if name in modules else each.module for name in wanted)
            elif isinstance(each, ast.Import):
                found.update(alias.name for alias in each.names)
            look(each)

    look(ast.parse(file.read_text(encoding="utf-8")))
    return found & modules.keys()


def test_there_is_no_circle() -> None:
    modules = _modules()
    graph = {name: _imports(file, modules) for name, file in modules.items()}
    assert len(graph) > 200 and sum(map(len, graph.values())) > 1000
    TopologicalSorter(graph).prepare()


@pytest.mark.parametrize(
    "function", ["rows.chunks.copy_chunks", "rows.fill.fill_part", "rows.timed_comparison.compare_part"]
)
def test_what_moves_and_compares_rows_on_an_executor_needs_neither_parsers_nor_airflow(function: str) -> None:
    module, _, name = f"{PACKAGE}.engine.{function}".rpartition(".")
    heavy = ("pydantic", "postgast", "yaml", "airflow", "pyspark")
    code = f"import sys; from {module} import {name}; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_class_has_its_name_for_itself() -> None:
    """One word for one thing: two classes of one name are one, or are told apart. The demo shares nothing with the
    engine, so that it can compare."""
    defined: dict[str, list[str]] = {}
    for module, file in _modules().items():
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_") and ".demo." not in module:
                defined.setdefault(node.name, []).append(module)
    assert len(defined) > 200
    assert {name: modules for name, modules in defined.items() if len(modules) > 1} == {}


def test_no_file_of_tests_imports_another() -> None:
    """What several of them share is a module of its own, or a fixture of their folder: who changes a file of tests need
    not look for those who lean on it."""
    files = {file: file.read_text(encoding="utf-8") for file in (REPOSITORY / "tests").rglob("*.py")}
    tests = {file.stem for file in files if file.name.startswith("test_")}
    taken = []
    for file, text in files.items():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [f"{node.module or ''}.{alias.name}" for alias in node.names]
            else:
                continue
            taken += [f"{file.relative_to(REPOSITORY)}: {name}" for name in names if tests & {*name.split(".")}]
    assert len(tests) > 100
    assert taken == []
