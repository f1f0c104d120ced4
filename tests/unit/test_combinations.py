"""Which combination of its matrix a scenario runs in."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests import time_limit
from tests.combinations import OPTION, chosen
from tests.conftest import REPOSITORY
from tests.costs import OPTION as COSTS

pytest_plugins = ["pytester"]

SCENARIOS = [f"tests/integration/test_it.py::test_it[{n}]" for n in range(400)]
FILE = """
import pytest
from tests.combinations import matrix

@pytest.fixture(params=matrix(16, 18))
def server(request):
    return request.param

@pytest.mark.parametrize("case", range(40))
def test_by_a_fixture(server, case):
    pass

@pytest.mark.parametrize("way", matrix("queue", "wal"))
@pytest.mark.parametrize("case", ["16", "a-18", "queue", "wal"])
def test_by_both(case, way, server):
    pass

@pytest.mark.every_combination
def test_what_differs(server):
    pass

@pytest.mark.parametrize("version", [16, 18])
def test_without(version):
    pass
"""


@pytest.fixture
def collected(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    pytester.makeconftest(Path(REPOSITORY, "tests", "conftest.py").read_text(encoding="utf-8"))
    pytester.makeini("[pytest]\naddopts = --strict-markers\nmarkers =\n  combination: one\n  every_combination: all")
    pytester.makepyfile(test_file=FILE)
    return pytester


def names(pytester: pytest.Pytester, *options: str) -> list[str]:
    done = pytester.runpytest_inprocess("--collect-only", "-q", "-p", "no:cacheprovider", *options)
    assert done.ret == 0, done.stdout.str()
    return [line.partition("::")[2] for line in done.outlines if "::" in line]


EIGHT = ["18", "18", "18", "18", "16", "18", "16", "16"]


def test_the_choice_is_the_same_everywhere() -> None:
    assert [chosen(scenario, ["16", "18"]) for scenario in SCENARIOS[:8]] == EIGHT
    assert [chosen(scenario, ["18", "16"]) for scenario in SCENARIOS[:8]] == EIGHT


def test_every_combination_is_met_by_many() -> None:
    for combinations in (["16", "18"], ["16", "18", "16 to 18"], ["16 queue", "16 wal", "18 queue", "18 wal"]):
        counts = Counter(chosen(scenario, combinations) for scenario in SCENARIOS)
        assert counts.keys() == set(combinations)
        assert min(counts.values()) > 0.7 * len(SCENARIOS) / len(combinations)


def test_another_combination_takes_scenarios_for_itself_alone() -> None:
    for scenario in SCENARIOS:
        assert chosen(scenario, ["16", "18", "20"]) in {"20", chosen(scenario, ["16", "18"])}


def test_each_scenario_is_run_once(collected: pytest.Pytester) -> None:
    found = names(collected)
    by_a_fixture = [name for name in found if name.startswith("test_by_a_fixture")]
    assert len(by_a_fixture) == len({name.split("-")[1] for name in by_a_fixture}) == 40
    assert {name.split("[")[1].split("-")[0] for name in by_a_fixture} == {"16", "18"}
    assert len([name for name in found if name.startswith("test_by_both")]) == 4
    assert [name for name in found if "differs" in name] == ["test_what_differs[16]", "test_what_differs[18]"]
    assert [name for name in found if "without" in name] == ["test_without[16]", "test_without[18]"]


def test_all_are_run_where_that_is_asked_for(collected: pytest.Pytester) -> None:
    assert len(names(collected, OPTION)) == 40 * 2 + 4 * 4 + 2 + 2


def test_one_that_is_named_is_run(collected: pytest.Pytester) -> None:
    both = ["test_by_a_fixture[16-7]", "test_by_a_fixture[18-7]"]
    assert [name for name in both if names(collected, f"test_file.py::{name}") == [name]] == both


def test_what_no_time_is_left_for_is_left_out_and_counted(
    collected: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(time_limit.UNTIL, raising=False)  # of the run that this is a part of
    done = collected.runpytest_subprocess("-n", "1", "-p", "no:cacheprovider", time_limit.OPTION, "0")
    done.stdout.re_match_lines([r"[1-9]\d* tests were left out: the time was over; make test runs them"])
    assert "passed" not in done.parseoutcomes()
    done = collected.runpytest_subprocess("-n", "1", "-p", "no:cacheprovider", time_limit.OPTION, "600")
    assert done.parseoutcomes().keys() == {"passed"}


def test_how_many_are_left_is_said_and_what_was_used(collected: pytest.Pytester) -> None:
    done = collected.runpytest_subprocess("-n", "1", "-p", "no:cacheprovider", COSTS)
    done.stdout.fnmatch_lines(
        [
            f"each scenario in one of its combinations; {OPTION} (make test-all) for every one",
            "52 further combinations were left to make test-all",
        ]
    )
    done.stdout.re_match_lines([r"( +\d+\.\d){3}  test_file\.py", r"( +\d+\.\d){3}  in all"])
