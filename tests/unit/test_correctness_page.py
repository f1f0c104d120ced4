"""docs/correctness.md: every rule that a comment cites is there, and every test that it names."""

from __future__ import annotations

import re
from pathlib import Path

from tests.conftest import REPOSITORY

PAGE = (REPOSITORY / "docs" / "correctness.md").read_text(encoding="utf-8")
RULES = re.findall(r"^\*\*C(\d+)\. ", PAGE, re.MULTILINE)


def sources() -> list[Path]:
    folders = ("airflow_provider_pgddl", "spark_jobs", "tests", "docs")
    return [p for folder in folders for p in (REPOSITORY / folder).rglob("*") if p.suffix in (".py", ".sql", ".md")]


def test_each_rule_stands_once_and_in_order() -> None:
    assert [int(number) for number in RULES] == list(range(1, len(RULES) + 1))


def test_every_rule_that_is_cited_is_on_the_page() -> None:
    cited = {
        number: path.name
        for path in sources()
        for number in re.findall(r"\(C(\d+)\)|\bC(\d+) at |def test_c0?(\d+)_", path.read_text(encoding="utf-8"))
        for number in number
        if number
    }
    assert {n: where for n, where in cited.items() if n not in RULES} == {}
    assert len(cited) > 25  # the search finds them


def test_every_test_that_is_named_is_there() -> None:
    texts = {path.name: path.read_text(encoding="utf-8") for path in (REPOSITORY / "tests").rglob("test_*.py")}
    named = 0
    for rule in re.split(r"^\*\*C\d+\. ", PAGE, flags=re.MULTILINE)[1:]:
        tests = rule.rpartition("\nTests: ")[2]
        assert tests != rule, rule.splitlines()[0]
        for file, test in re.findall(r"`(?:[\w/]*?(\w+\.py))?(?:::(test_\w+…?))?`", tests):
            if file:
                current = texts[file]
            if test:
                stem = test.removesuffix("…")
                assert f"def {stem}" in current, f"{file} {test}"
                named += 1
    assert named > 40
