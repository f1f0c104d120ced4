"""All stages on a standalone cluster that encrypts: by shell, with passwords that change, and by DAG."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_provider_pgddl.engine.server.connections import OWN_SESSIONS, sessions_of_a_worker
from tests.dags.conftest import Airflow
from tests.integration.lifecycle import Lifecycle, execute
from tests.integration.rotation import endpoint, rotated
from tests.spark.cluster_pipeline import CHANGES, TABLES, differences, on_cluster, run
from tests.spark.peaks import Peaks
from tests.spark.standalone import SECRET as SECRET_OF_ALL
from tests.spark.standalone import Standalone

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1500)]


# What one submission does (in test_cluster_kills.py each stage has one), and how often executors are given parts in it.
SUBMISSIONS = {"setup,snapshot": 0, "backfill,schema_sync": 2, "replay,verify": 2, "swap,cleanup": 0}


def test_every_stage_through_swap_by_shell(
    source_dsn: str, target_dsn: str, lifecycle: Callable[..., Lifecycle], cluster: Standalone, tmp_path: Path
) -> None:
    """With passwords that change every second: executors ask the process that started the run."""
    execute(source_dsn, TABLES)
    move = lifecycle(source_dsn, target_dsn)
    on_cluster(move, cluster)
    files = {"source": tmp_path / "source", "target": tmp_path / "target"}
    with rotated(source_dsn, files["source"]) as (mine, source), rotated(target_dsn, files["target"]) as (its, target):
        move.content["source"] = endpoint(source_dsn, mine, files["source"])
        move.content["target"] = endpoint(target_dsn, its, files["target"])
        with Peaks(move) as peaks:
            for stages, spreads in SUBMISSIONS.items():
                if stages.startswith("replay"):
                    execute(source_dsn, CHANGES + "; UPDATE public.t4 SET v = v || 'z'")
                code, said = run(move, tmp_path, stages)
                print(said)
                assert code == 0, said
                assert "Traceback" not in said
                assert said.count("waiting for Spark's workers") == spreads, said
                assert (f"executors of {cluster.master} run" in said) == (stages != "swap,cleanup")
                assert not any(password in said for password in (*source.passwords, *target.passwords))
        assert len(source.passwords) > 20
        assert differences(move) == []
    for side, dsn in (("source", move.source), ("target", move.target)):
        said_before = OWN_SESSIONS + 2 * sessions_of_a_worker(side, in_place=False)
        assert sessions_of_a_worker(side, in_place=False) < peaks.of[dsn] <= said_before, (side, peaks.of[dsn])


DAG = """
from airflow.sdk import DAG
from airflow_provider_pgddl.operators.stages import PgddlStagesOperator

with DAG("on_cluster", schedule=None, catchup=False, default_args={"retries": 0, "pipeline": "pipeline.yaml"}):
    copy = PgddlStagesOperator(task_id="copy", stages="setup..replay")
    copy >> PgddlStagesOperator(task_id="swap", stages="verify,swap,cleanup")
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
    assert airflow.states("on_cluster") == {"copy": "success", "swap": "success"}
    assert done.stdout.count(f"executors of {cluster.master} run") == 2
    assert done.stdout.count("waiting for Spark's workers") == 3  # backfill, schema_sync, verify
    assert SECRET_OF_ALL not in done.stdout
    assert differences(move) == []
