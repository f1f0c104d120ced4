"""Makes the key of shop.orders a bigint, in place, while its applications go on writing.

Airflow connections: `shop_pg18`, `spark_default`. The pipeline file is beside this one.
"""

from airflow.sdk import DAG

from airflow_provider_pgddl.task_groups import lifecycle

with DAG("rewrite_orders", schedule=None, catchup=False, max_active_runs=1, tags=["pgddl"], doc_md=__doc__):
    lifecycle(group_id="rewrite", pipeline="rewrite_orders.yaml")
