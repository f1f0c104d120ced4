"""kill -9 at every border of a cut-over with a way back, and of going back: nothing is lost, and a retry goes on."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from airflow_provider_pgddl.engine.errors import PgddlError
from airflow_provider_pgddl.engine.failpoints import VARIABLE
from airflow_provider_pgddl.engine.job import file as jobs
from tests.integration.lifecycle import Lifecycle, execute
from tests.integration.test_way_back import SHOP, WORK, Ways

PROGRAM = """
import sys
from airflow_provider_pgddl.engine import stages
from airflow_provider_pgddl.engine.job.file import read
stages.run(read(sys.argv[1]))
"""
BEFORE = [
    "way_back.before_unborn_commit", "way_back.before_table_commit", "way_back.before_statements_commit",
    "way_back.before_indexed_commit", "way_back.before_prepared_commit", "cut_over.before_fence_commit",
    "cut_over.behind_fence", "cut_over.before_target", "cut_over.before_commit",
]  # fmt: skip
BEHIND = ["cut_over.after_commit", "capture.before_stop_commit", "way_back.before_birth_commit"]


@pytest.fixture
def killed(tmp_path: Path) -> Callable[[Lifecycle, str], None]:
    """``killed(move, "cut_over.behind_fence")``: its swap in a process of its own, which dies there."""

    def kill(move: Lifecycle, border: str) -> None:
        folder = tmp_path / f"{move.name} {border}"
        folder.mkdir()
        jobs.write(move.job("swap"), folder / "job.json")
        env = {**os.environ, VARIABLE: f"'{folder}' {border}=kill"}
        command = [sys.executable, "-c", PROGRAM, str(folder / "job.json")]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
        assert (folder / border).exists() and done.returncode < 0, f"{border}: {done.stdout}{done.stderr}"

    return kill


def one_way(ways: Ways, move: Lifecycle, other: Lifecycle, killed: Callable[[Lifecycle, str], None]) -> None:
    """The swap of `move`, which dies at each border in turn; `other` may do nothing before it is born."""
    for border in BEFORE:
        killed(move, border)
        assert move.journal("SELECT cut_over_at IS NULL FROM pgddl.pipelines WHERE pipeline = %s", [move.name]) == [
            (True,)
        ], border
        with suppress(PgddlError):  # void; or, of an earlier run that has cut over, nothing to do
            assert other.run("replay").state == "nothing_to_do"
    for border in BEHIND:
        killed(move, border)
        if border != BEHIND[-1]:  # by then its capture has ended, and whoever comes first begins
            with pytest.raises(PgddlError, match="has not ended its capture"):
                other.run("replay")
    assert not move.run("swap").blocked
    ways.alike()


def test_there_and_back_through_kills_at_every_border(
    lifecycle: Callable[..., Lifecycle],
    source_dsn: str,
    target_dsn: str,
    killed: Callable[[Lifecycle, str], None],
) -> None:
    execute(source_dsn, SHOP)
    ways = Ways(lifecycle, source_dsn, target_dsn)
    ways.there.run_all(until="verify")
    execute(ways.old, WORK.format("before", 1))
    one_way(ways, ways.there, ways.back, killed)
    execute(ways.new, WORK.format("there", 2))
    execute(ways.new, "ALTER TABLE shop.customer ADD COLUMN city text DEFAULT 'here'")
    for stage in ("replay", "verify"):
        assert not ways.back.run(stage).blocked
    execute(ways.new, WORK.format("more", 3))
    one_way(ways, ways.back, ways.there, killed)
    execute(ways.old, WORK.format("home", 4))
    for stage in ("replay", "verify", "swap"):
        assert not ways.there.run(stage).blocked
    ways.alike()
