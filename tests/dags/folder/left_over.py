"""A whole pipeline whose swap has left a foreign key to a person, as it was set up."""

import json
import os

from airflow.sdk import DAG

from airflow_provider_pgddl.task_groups import lifecycle

SET_UP = json.loads(os.environ.get("PGDDL_TEST_LEFT_OVER", "null"))

if SET_UP:
    with DAG("left_over", schedule=None, catchup=False, default_args={"retries": 0}):
        lifecycle(group_id="move", pipeline=SET_UP)
