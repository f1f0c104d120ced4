"""What rewrite_orders has not: its gate, looking more often, and the way back."""

from airflow.sdk import DAG

from airflow_provider_pgddl.operators.stages import PgddlRevertOperator
from airflow_provider_pgddl.sensors.schema import PgddlSchemaSensor

with DAG("gate", schedule=None, catchup=False):
    PgddlSchemaSensor(task_id="gate", pipeline="rewrite_orders.yaml", poke_interval=0.2)
    PgddlRevertOperator(task_id="revert", pipeline="rewrite_orders.yaml")
