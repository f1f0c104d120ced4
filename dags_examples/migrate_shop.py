"""Moves a shop from one Postgres to another while its applications go on writing.

Airflow connections: `shop_pg16` (from), `shop_pg18` (to), `spark_default`. The pipeline file is beside this one.
"""

from airflow.sdk import DAG

from airflow_provider_pgddl.task_groups import lifecycle

with DAG("migrate_shop", schedule=None, catchup=False, max_active_runs=1, tags=["pgddl"], doc_md=__doc__):
    lifecycle(group_id="migrate", pipeline="migrate_shop.yaml")
