"""Scenarios run on each server version and by each way to capture. What such a combination is not itself the point of
runs in one of them, always the same: across the scenarios of a file every combination is met by many, and
`make test-all` (`--all-combinations`) runs them all.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

OPTION = "--all-combinations"


def matrix(*values: object) -> list[Any]:
    """Parameters, of a fixture or a test, of which one is enough: `params=matrix(16, 18)`. A test marked with
    `every_combination` runs with each of them all the same."""
    return [pytest.param(value, id=str(value), marks=pytest.mark.combination(str(value))) for value in values]


def chosen(scenario: str, combinations: Iterable[str]) -> str:
    """Says the same on every machine, and another combination that comes or goes moves few scenarios."""
    return min(combinations, key=lambda each: hashlib.sha256(f"{scenario} in {each}".encode()).digest())


def scenario_of(item: pytest.Item) -> tuple[str, str] | None:
    """A test's id without its combination, and the combination; nothing where it is to run in any case."""
    combination = [str(mark.args[0]) for mark in item.iter_markers("combination")]
    if not isinstance(item, pytest.Function) or not combination or item.get_closest_marker("every_combination"):
        return None
    others = list(item.callspec._idlist)
    for each in combination:
        others.remove(each)
    return f"{item.nodeid.removesuffix(f'[{item.callspec.id}]')}[{'-'.join(others)}]", "-".join(sorted(combination))


def one_of_each(items: Sequence[pytest.Item]) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """The tests to run, in their order, and those that are left out."""
    known = [(item, scenario_of(item)) for item in items]
    combinations = defaultdict(set)
    for _, found in known:
        if found is not None:
            combinations[found[0]].add(found[1])
    run, left = [], []
    for item, found in known:
        taken = found is None or chosen(found[0], combinations[found[0]]) == found[1]
        (run if taken else left).append(item)
    return run, left
