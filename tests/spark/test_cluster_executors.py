"""What a cluster may lack, and what it may do to a task: no executors, no packages, a second attempt."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from tests.integration.lifecycle import Lifecycle, execute, wait_until
from tests.spark.cluster_pipeline import TABLES, command, differences, on_cluster, run
from tests.spark.standalone import ENCRYPTED, Standalone

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1500)]

OPEN = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'pgddl:%'\
 AND xact_start < now() - '2s'::interval"


@pytest.fixture
def move(source_dsn: str, target_dsn: str, lifecycle: Callable[..., Lifecycle]) -> Lifecycle:
    execute(source_dsn, TABLES)
    return lifecycle(source_dsn, target_dsn)


def test_executors_are_waited_for_with_an_end_and_used_when_they_come(
    move: Lifecycle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGDDL_TEST_SPARK_SECRET", ENCRYPTED["spark.authenticate.secret"])
    with Standalone(workers=0, conf=ENCRYPTED) as cluster:
        on_cluster(move, cluster, wait="20s")
        move.run_all(until="snapshot")
        transactions: list[int] = []

        def backfill(until: Callable[[str], bool]) -> tuple[int | None, str]:
            log = tmp_path / "log"
            with (
                log.open("wb") as out,
                psycopg.connect(move.source, autocommit=True) as source,
                subprocess.Popen(command(move, tmp_path, "backfill"), stdout=out, stderr=subprocess.STDOUT) as shell,
            ):
                try:
                    deadline = time.monotonic() + 200
                    while shell.poll() is None and not until(log.read_text()) and time.monotonic() < deadline:
                        if "waiting for Spark's workers" in log.read_text() and not cluster.workers:
                            transactions.append(source.execute(OPEN).fetchone()[0])  # type: ignore[index]
                        time.sleep(0.2)
                    if until(log.read_text()):
                        cluster.add_worker()
                        shell.wait(200)
                    return shell.poll(), log.read_text()
                finally:
                    shell.kill()

        code, said = backfill(lambda _: False)
        print(said)
        assert code == 5, said
        assert f"no worker is registered with {cluster.master}" in said.partition("Spark had no executor")[0]
        assert "Spark had no executor for 20 s" in said and "Traceback" not in said
        assert len(transactions) > 10 and not any(transactions)
        on_cluster(move, cluster, wait="150s")
        code, said = backfill(lambda text: "no worker is registered" in text)
        print(said)
        assert code == 0, said


def test_what_executors_lack_is_said_before_capture_begins_and_can_travel(
    move: Lifecycle, cluster: Standalone, tmp_path: Path
) -> None:
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(bare)], check=True)
    python = {"spark.pyspark.python": str(bare / "bin" / "python")}
    on_cluster(move, cluster)
    conf = move.content["spark"]["conf"]
    move.content["spark"]["conf"] = conf | python
    code, said = run(move, tmp_path, "setup")
    print(said)
    assert code == 4, said
    assert "lacks the Python package psycopg" in said or "executors lack the Python package psycopg" in said
    assert "Traceback" not in said.partition("preflight found")[2]
    assert move.on_source("SELECT count(*) FROM pg_namespace WHERE nspname = 'pgddl'") == [(0,)]
    archive = tmp_path / "env.tar.gz"
    shell = [sys.executable, "-m", "airflow_provider_pgddl.cli"]
    subprocess.run([*shell, "pack", "-o", str(archive)], check=True, env=os.environ)
    travels = {"spark.archives": f"{archive}#pgddl_env", "spark.executorEnv.PYTHONPATH": "./pgddl_env"}
    move.content["spark"]["conf"] = conf | python | travels
    file = tmp_path / "pipeline.yaml"
    file.write_text(json.dumps(move.content))
    asked = subprocess.run(
        [*shell, "check", "--executors", "-p", str(file)], env=os.environ, capture_output=True, text=True, timeout=300
    )
    print(asked.stdout + asked.stderr)
    assert asked.returncode == 0, asked.stdout + asked.stderr
    assert f"CPython 3.{sys.version_info.minor}" in asked.stderr and str(bare) in asked.stderr


def test_a_second_attempt_at_a_task_changes_nothing(move: Lifecycle, cluster: Standalone, tmp_path: Path) -> None:
    """C29, by Spark's own speculation: one worker is kept in its chunk, so the other gets its task as well."""
    events = tmp_path / "events"
    events.mkdir()
    on_cluster(move, cluster)
    move.content["spark"]["conf"] |= {
        "spark.speculation": True, "spark.speculation.quantile": 0.5, "spark.speculation.multiplier": 1.1,
        "spark.eventLog.enabled": True, "spark.eventLog.dir": events.as_uri(), "spark.eventLog.rolling.enabled": False,
        "spark.eventLog.compress": False,
    }  # fmt: skip
    move.run_all(until="snapshot")
    left = "SELECT count(*) FROM pgddl.chunks WHERE done_at IS NULL"
    with (
        psycopg.connect(move.target) as holder,
        (tmp_path / "log").open("wb") as out,
        subprocess.Popen(command(move, tmp_path, "backfill"), stdout=out, stderr=subprocess.STDOUT) as shell,
    ):
        try:
            holder.execute("LOCK TABLE public.t12 IN EXCLUSIVE MODE")  # of one chunk
            wait_until(lambda: _second_attempts(events) or shell.poll() is not None, 200)
            holder.rollback()
            assert shell.wait(120) == 0, (tmp_path / "log").read_text()
        finally:
            shell.kill()
    print((tmp_path / "log").read_text())
    assert _second_attempts(events) > 0
    assert move.journal(left) == [(0,)]
    move.content["backfill"] = move.content["backfill"] | {"workers": 1}
    move.run_all(after="backfill")
    assert differences(move) == []


def _second_attempts(folder: Path) -> int:
    """As Spark's event log has them."""
    started = [line for file in folder.iterdir() for line in file.read_text().splitlines() if "TaskStart" in line]
    return sum('"Speculative":true' in line for line in started)
