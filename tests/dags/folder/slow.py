"""A stage that takes too long: Airflow ends it, and all of it has to end."""

from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import DAG

from airflow_provider_pgddl.operators.stages import PgddlBackfillOperator

REWRITE = {"pipeline": "slow", "source": {"conn_id": "shop"}, "rewrite": {"shop.orders": {}}}


class SleepingBackfill(PgddlBackfillOperator):
    """Its application waits for Postgres until it is stopped."""

    def _prepare(self, *args: Any) -> None:
        super()._prepare(*args)
        self.application = str(Path(__file__).parents[2] / "spark" / "sleeping_backfill.py")


with DAG("slow", schedule=None, catchup=False, default_args={"retries": 0}):
    SleepingBackfill(
        task_id="backfill",
        pipeline=REWRITE,
        execution_timeout=timedelta(minutes=3),  # the application lets it come early
        env_vars={"PGDDL_TEST_TIMEOUT": "1"},
    )
