"""A pipeline in two tasks, each with several stages in one Spark application; PGDDL_TEST_SEVERAL is the pipeline."""

from __future__ import annotations

import json
import os

from airflow.sdk import DAG

from airflow_provider_pgddl.operators.stages import PgddlStagesOperator, PgddlVerifyOperator

if given := os.environ.get("PGDDL_TEST_SEVERAL"):
    with DAG("several", schedule=None, default_args={"retries": 0}) as dag:
        copy = PgddlStagesOperator(task_id="copy", pipeline=json.loads(given), stages="setup..replay")
        swap = PgddlStagesOperator(task_id="swap", pipeline=json.loads(given), stages=["verify", "swap..cleanup"])
        # Fails before anything is submitted.
        refused = PgddlVerifyOperator(task_id="refused", pipeline=json.loads(given), conn_id="nowhere")
        copy >> [swap, refused]
