"""C29: whatever is spread over Spark's workers is called twice, and killed behind its first commit, by a test."""

from __future__ import annotations

import ast

from tests.conftest import REPOSITORY
from tests.spread_work import SPREAD

# Starts the workers; looks around there. Neither changes anything.
NO_WORK = {"be_there", "look"}


def test_each_function_that_is_spread_is_among_those_that_run_twice() -> None:
    found = set[str]()
    for file in (REPOSITORY / "airflow_provider_pgddl").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] == "spread":
                assert node.args, f"{file}:{node.lineno}: give the function as the first argument"
                found.add(ast.unparse(node.args[0]))
    assert found - NO_WORK == {spread.work.__name__ for spread in SPREAD}
