"""All stages on a standalone cluster that authenticates and encrypts, by shell and by DAG."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_provider_pgddl.engine.server.connections import OWN_SESSIONS, sessions_of_a_worker
from tests.dags.conftest import Airflow
from tests.integration.lifecycle import Lifecycle, execute
from tests.spark.cluster_pipeline import CHANGES, TABLES, differences, on_cluster, run
from tests.spark.peaks import Peaks
from tests.spark.standalone import SECRET as SECRET_OF_ALL
from tests.spark.standalone import Standalone

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1500)]


def test_every_stage_through_swap_by_shell(
    source_dsn: str, target_dsn: str, lifecycle: Callable[..., Lifecycle], cluster: Standalone, tmp_path: Path
) -> None:
    execute(source_dsn, TABLES)
    move = lifecycle(source_dsn, target_dsn)
    on_cluster(move, cluster)
    said = {}
    with Peaks(move) as peaks:
        run_all(move, tmp_path, said)
    on_executors = {stage for stage, text in said.items() if f"executors of {cluster.master} run" in text}
    assert on_executors >= {"setup", "backfill", "schema_sync", "replay", "verify"}
    assert differences(move) == []
    for side, dsn in (("source", move.source), ("target", move.target)):
        said_before = OWN_SESSIONS + 2 * sessions_of_a_worker(side, in_place=False)
        assert sessions_of_a_worker(side, in_place=False) < peaks.of[dsn] <= said_before, (side, peaks.of[dsn])


def run_all(move: Lifecycle, folder: Path, said: dict[str, str]) -> None:
    for stage in ("setup", "snapshot", "backfill", "schema_sync", "replay", "verify", "swap", "cleanup"):
        if stage in ("schema_sync", "replay"):
            execute(move.source, CHANGES if stage == "schema_sync" else "UPDATE public.t4 SET v = v || 'z'")
        code, said[stage] = run(move, folder, stage)
        print(said[stage])
        assert code == 0, said[stage]
        assert "Traceback" not in said[stage]


DAG = """
from airflow.sdk import DAG
from airflow_provider_pgddl.task_groups import lifecycle

with DAG("on_cluster", schedule=None, catchup=False, default_args={"retries": 0}):
    lifecycle(pipeline="pipeline.yaml", group_id="migrate", gate={"mode": "reschedule", "deferrable": False})
"""


@pytest.mark.airflow
def test_every_stage_through_swap_by_dag(
    source_dsn: str,
    target_dsn: str,
    lifecycle: Callable[..., Lifecycle],
    cluster: Standalone,
    airflow: Airflow,
    tmp_path: Path,
) -> None:
    execute(source_dsn, TABLES)
    move = lifecycle(source_dsn, target_dsn)
    on_cluster(move, cluster)
    (tmp_path / "pipeline.yaml").write_text(json.dumps(move.content))
    (tmp_path / "dag.py").write_text(DAG)
    spark = json.dumps({"conn_type": "spark", "host": cluster.master})
    done = airflow("dags", "test", "on_cluster", dags=tmp_path, AIRFLOW_CONN_SPARK_DEFAULT=spark)
    print(done.stdout)
    assert done.returncode == 0
    assert set(airflow.states("on_cluster").values()) == {"success"}
    assert done.stdout.count(f"executors of {cluster.master} run") >= 3  # setup, backfill, schema_sync; verify
    assert SECRET_OF_ALL not in done.stdout
    assert differences(move) == []
