"""A mistake is one clear error, at once, and nothing is submitted."""

from __future__ import annotations

import json
import re
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from psycopg.conninfo import make_conninfo

from airflow_provider_pgddl.demo.clusters import Cluster
from tests.dags.conftest import Airflow, postgres_connection

pytestmark = pytest.mark.airflow

FOLDER = Path(__file__).parent / "folder"
NOBODY = json.dumps(
    {"conn_type": "postgres", "host": "127.0.0.1", "port": 1, "login": "mover", "password": "hush-hush", "schema": "s"}
)
SAID = {
    "no_spark_connection": "Airflow knows no Spark connection nowhere",
    "no_source_connection": "source.conn_id: Airflow knows no connection nowhere",
    "not_postgres": "connection spark_default is of type spark, not postgres",
    "cluster_mode": "local[2] runs no driver in Python (deploy mode cluster)",
    "failpoints": "PGDDL_FAILPOINTS is for tests, and no DAG sets it",
    "failpoints_of_workers": "no setting turns failpoints on",
    "no_file": "none.yaml: cannot read the pipeline file",
    "bad_file": "bad.yaml, line 5: tables.speed",
    "literal_password": "a literal password in the file is refused",
    "no_spark_submit": "spark9-submit is not found",
    "wrong_password": "password authentication failed",
    "unreachable": "127.0.0.1:1",
}
# Of a connection nobody can tell whether it is not there, or could not be asked for.
WORTH_IT = {
    "unreachable": "Unreachable",
    "no_spark_connection": "NoConnection",
    "no_source_connection": "NoConnection",
}


@pytest.fixture(scope="module")
def said(airflow: Airflow, pg16: Cluster) -> str:
    """What `airflow dags test` printed."""
    guarded = postgres_connection(make_conninfo(pg16.conninfo(), password="hush-hush"))
    connections = {"AIRFLOW_CONN_NOBODY": NOBODY, "AIRFLOW_CONN_GUARDED": guarded}
    done = airflow("dags", "test", "bad_inputs", dags=FOLDER, **connections)
    assert done.returncode == 1, done.stdout
    return done.stdout


@pytest.mark.parametrize("task", SAID)
def test_it_says_what_is_wrong(said: str, airflow: Airflow, task: str) -> None:
    assert airflow.states("bad_inputs")[task] == "failed"
    assert re.search(rf"(AirflowFailException|WorthRetrying): .*{re.escape(SAID[task])}", said), said


def test_nothing_is_submitted_before_all_of_that_is_right(said: str) -> None:
    assert "Spark-Submit cmd" not in said
    assert "yarn" not in said


def test_only_what_a_retry_may_cure_is_tried_again(said: str, airflow: Airflow) -> None:
    tries = airflow.tries("bad_inputs")
    assert [tries.pop(task) for task in WORTH_IT] == [2] * len(WORTH_IT)
    assert set(tries.values()) == {1}
    with closing(sqlite3.connect(f"file:{airflow.home / 'airflow.db'}?mode=ro", uri=True)) as database:
        reasons = "SELECT task_id, retry_reason FROM task_instance_history WHERE retry_reason IS NOT NULL"
        told = {task: reason.partition(":")[0] for task, reason in database.execute(reasons)}
    assert told == WORTH_IT


def test_no_secret_is_printed(said: str) -> None:
    assert "hush" not in said
