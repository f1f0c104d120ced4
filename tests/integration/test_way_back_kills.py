"""kill -9 at every border of a cut-over with a way back, of going back and of letting go, while writers keep an audit:
nothing is lost, and the same command goes on. The borders are those of `failpoints.NAMES`, whatever is in it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path

import pytest

from airflow_provider_pgddl.demo.clusters import Cluster
from airflow_provider_pgddl.demo.compare import catalog_lines, compare_sequences, diff_catalogs
from airflow_provider_pgddl.engine.errors import PgddlError
from airflow_provider_pgddl.engine.failpoints import NAMES, VARIABLE
from airflow_provider_pgddl.engine.job import file as jobs
from tests.combinations import matrix
from tests.conftest import Database
from tests.integration import audit
from tests.integration.lifecycle import PROGRAM, Lifecycle, execute, left_behind
from tests.integration.ways_back import AHEAD_OF_WRITERS, SHOP, WORK, Ways

pytestmark = pytest.mark.timeout(2400)

OURS = [name for name in NAMES if name.startswith(("way_back.", "cut_over."))]
# No process that was killed comes to the first, nor does the one after it: it lives on, and its server does not. To the
# other comes only who goes back for good: `test_way_back::test_going_back_for_good_…`.
ELSEWHERE = {"cut_over.before_look", "way_back.before_gone_back_commit"}
LEGS = 3


class Kills:
    """Stages in processes of their own, each of which dies at the first of `borders` that none has died at."""

    def __init__(self, folder: Path, writers: audit.Audit) -> None:
        self.folder, self.writers = folder, writers
        self.struck = set[str]()

    def run(self, move: Lifecycle, stage: str, borders: Collection[str], after: Callable[[str], None]) -> None:
        """The same command again and again, until one comes to its end; `after` each that has not."""
        marks = self.folder / f"{len(list(self.folder.iterdir()))} {move.name} {stage}"
        (marks / "jobs").mkdir(parents=True)
        job = marks / "jobs" / "job.json"
        says = " ".join(f"{border}=kill" for border in borders)
        known = set[str]()
        while True:
            jobs.write(move.job(stage), job)
            env = {**os.environ, VARIABLE: f"'{marks}' {says}"}
            command = [sys.executable, "-c", PROGRAM, str(job)]
            done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=600)
            new = {mark.name for mark in marks.iterdir()} - known - {"jobs"}
            if has_cut_over(move):
                self.writers.where = move.target
            if done.returncode == 0:
                assert not new, new
                return
            assert done.returncode == -signal.SIGKILL and len(new) == 1, f"{new}: {done.stdout}{done.stderr}"
            known |= new
            self.struck |= new
            after(*new)


def has_cut_over(move: Lifecycle) -> bool:
    query = "SELECT cut_over_at IS NOT NULL AND unborn IS NULL FROM pgddl.pipelines WHERE pipeline = %s"
    return move.journal(query, [move.name]) == [(True,)]


@pytest.mark.parametrize("rows", matrix("change_log", "wal"))
def test_there_and_back_through_kills_at_every_border(
    lifecycle: Callable[..., Lifecycle],
    pg16: Cluster,
    pg18: Cluster,
    database: Database,
    tmp_path: Path,
    rows: str,
    all_combinations: bool,
) -> None:
    old, new = database(pg16), database(pg18)
    execute(old, SHOP + audit.TABLES)
    tables = {"include": ["shop.*", "audit.*"]}
    ways = Ways(lifecycle, old, new, tables=tables, capture={"rows": rows}, replay=AHEAD_OF_WRITERS)
    with audit.Audit(old, pace=audit.UNHURRIED) as writers:
        kills = Kills(tmp_path, writers)
        ways.there.run_all(until="verify")
        for leg in range(LEGS):
            move, other = (ways.back, ways.there) if leg % 2 else (ways.there, ways.back)
            borders = NAMES if all_combinations else OURS[leg::LEGS]
            if leg == LEGS - 1:
                borders = [name for name in borders if name not in kills.struck]
            execute(move.source, WORK.format(f"leg {leg}", leg))
            execute(move.source, f"ALTER TABLE shop.customer ADD COLUMN leg_{leg} text DEFAULT 'of {leg}'")

            def after(border: str, move: Lifecycle = move, other: Lifecycle = other) -> None:
                """The other way does nothing before it is born, and that is not before capture behind it has ended."""
                if not has_cut_over(move):
                    with suppress(PgddlError):  # void; or, of an earlier run that has cut over, nothing to do
                        assert other.run("replay").state == "nothing_to_do", border
                elif border == "cut_over.after_commit":
                    with pytest.raises(PgddlError, match="has not ended its capture"):
                        other.run("replay")

            for stage in ("replay", "verify"):
                kills.run(move, stage, borders if all_combinations and leg else (), lambda _: None)
            kills.run(move, "swap", borders, after)
            assert writers.where == move.target
            with writers.quiet():
                assert not other.run("replay").blocked
                ways.equal()
                assert [str(d) for d in compare_sequences(other.source, other.target, ahead=True)] == []
                assert diff_catalogs(catalog_lines(old), catalog_lines(new)) == []
                writers.agrees(old)
                writers.agrees(new)
        for way in (ways.back, ways.there):
            kills.run(way, "cleanup", NAMES if all_combinations else ["cleanup.before_let_go_commit"], lambda _: None)
    print(f"{writers.committed} transactions, killed at {len(kills.struck)} borders: {', '.join(sorted(kills.struck))}")
    assert left_behind(new) == ["schema pgddl"]
    assert [line for line in left_behind(old) if "pgddl_fence_" not in line] == ["schema pgddl"]
    if all_combinations:
        assert {*OURS} - kills.struck == ELSEWHERE
