"""One task for each thing that people get wrong; none may reach spark-submit, or fail without saying what to do."""

from airflow.sdk import DAG

from airflow_provider_pgddl.operators.stages import PgddlSetupOperator

NOBODY = {"pipeline": "nobody", "source": {"conn_id": "nobody"}, "rewrite": {"shop.orders": {}}}
AGAIN = {"retries": 1, "retry_delay": 0}

with DAG("bad_inputs", schedule=None, catchup=False, default_args={"retries": 0}):
    PgddlSetupOperator(task_id="no_spark_connection", pipeline=NOBODY, conn_id="nowhere", **AGAIN)
    PgddlSetupOperator(task_id="no_source_connection", pipeline=NOBODY | {"source": {"conn_id": "nowhere"}}, **AGAIN)
    PgddlSetupOperator(task_id="not_postgres", pipeline=NOBODY | {"source": {"conn_id": "spark_default"}})
    PgddlSetupOperator(task_id="cluster_mode", pipeline=NOBODY, deploy_mode="cluster")
    PgddlSetupOperator(task_id="failpoints", pipeline=NOBODY, env_vars={"PGDDL_FAILPOINTS": "/tmp"})
    PgddlSetupOperator(
        task_id="failpoints_of_workers", pipeline=NOBODY, conf={"spark.executorEnv.PGDDL_FAILPOINTS": "/tmp"}
    )
    PgddlSetupOperator(task_id="no_file", pipeline="none.yaml")
    PgddlSetupOperator(task_id="bad_file", pipeline="bad.yaml")
    PgddlSetupOperator(task_id="literal_password", pipeline="literal_password.yaml")
    PgddlSetupOperator(task_id="no_spark_submit", pipeline=NOBODY, spark_binary="spark9-submit")
    PgddlSetupOperator(task_id="wrong_password", pipeline=NOBODY | {"source": {"conn_id": "guarded"}}, retries=1)
    PgddlSetupOperator(task_id="unreachable", pipeline=NOBODY, **AGAIN)
