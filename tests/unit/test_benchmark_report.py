"""The table that goals are judged by."""

from __future__ import annotations

import json
import re
from pathlib import Path

import psycopg
import pytest

from benchmarks.report import Measure, Report, alternate, markdown, record


@pytest.mark.parametrize(
    ("measure", "met"),
    [
        (Measure("copy", 9, 10, "psql", 0.9), True),
        (Measure("copy", 9.1, 10, "psql", 0.9), False),
        (Measure("pgbench", 95, 100, "no capture", 0.95, at_least=True, unit="tps"), True),
        (Measure("pgbench", 94, 100, "no capture", 0.95, at_least=True, unit="tps"), False),
        (Measure("stall", 1, 0, "none", 1.0), False),
        (Measure("copy", 1, 10, "psql"), None),
    ],
)
def test_a_goal_is_a_ratio(measure: Measure, met: bool | None) -> None:
    assert measure.met is met
    assert measure.to_json()["met"] is met


def test_every_way_has_its_turn_in_every_round() -> None:
    turns: list[str] = []

    def way(name: str, *seconds: float):  # type: ignore[no-untyped-def]
        left = list(seconds)
        return lambda: (turns.append(name), left.pop(0))[1]

    assert alternate({"ours": way("ours", 3, 1, 2), "peer": way("peer", 9, 9, 1)}, 3) == {"ours": 2, "peer": 9}
    assert turns == ["ours", "peer"] * 3


def test_what_other_benchmarks_found_the_last_time_stays(tmp_path: Path) -> None:
    record({"copy": Report([Measure("copy", 1, 2, "psql", 1.15)], ["left out: pgcopydb"])}, tmp_path)
    record({"rewrite": Report([Measure("rewrite", 4, 2, "pg_repack", 1.0)])}, tmp_path)
    path = record({"copy": Report([Measure("copy", 3, 2, "psql", 1.15)])}, tmp_path)
    found = json.loads(path.read_text())
    assert [(m["measure"], m["ours"], m["ratio"], m["met"]) for m in found] == [
        ("copy", 3, 1.5, False),
        ("rewrite", 4, 2.0, False),
    ]
    assert {"measure", "ours", "peer", "peer_name", "ratio", "goal", "met"} <= found[0].keys()
    table = path.with_suffix(".md").read_text()
    assert "| copy | 3 s | 2 s | psql | 1.50 | ≤ 1.15 | **missed** |" in table
    assert "left out" not in table
    record({"rewrite": Report([Measure("rewrite", 4, 2, "pg_repack", 1.0)], ["left out: psycopack"])}, tmp_path)
    record({"copy": Report([Measure("copy", 3, 2, "psql", 1.15)])}, tmp_path)
    table = path.with_suffix(".md").read_text()
    assert "- left out: psycopack" in table
    assert f"psycopg {psycopg.__version__}" in table
    assert re.search(r"Postgres 18, embedded 18\.\d+", table)


def test_a_line_without_a_goal_is_not_judged() -> None:
    line = markdown([Measure("copy", 1, 2, "psql").to_json()], ["a note"], {"cores": 2}).splitlines()[2]
    assert line == "| copy | 1 s | 2 s | psql | 0.50 |  |  |"
