"""Keeps a shop on another Postgres up to date, rows and DDL, for as long as this DAG is switched on.

Airflow connections: `shop_pg16` (from), `shop_pg18` (to), `spark_default`. The pipeline file is beside this one.
"""

from datetime import UTC, datetime

from airflow.sdk import DAG

from airflow_provider_pgddl.task_groups import follow

with DAG(
    "follow_shop",
    schedule="@continuous",
    start_date=datetime(2026, 1, 1, tzinfo=UTC),  # without one the scheduler begins one run and no second
    catchup=False,
    max_active_runs=1,
    tags=["pgddl"],
    doc_md=__doc__,
):
    follow(pipeline="follow_shop.yaml")
