"""The gate of rewrite_orders, looking more often."""

from airflow.sdk import DAG

from airflow_provider_pgddl.sensors.schema import PgddlSchemaSensor

with DAG("gate", schedule=None, catchup=False):
    PgddlSchemaSensor(task_id="gate", pipeline="rewrite_orders.yaml", poke_interval=0.2)
