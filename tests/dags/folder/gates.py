"""The gate in each of its ways of waiting, over one pipeline; each notes what it tells in a file."""

import json
import os
from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, BaseNotifier

from airflow_provider_pgddl.notifications import PgddlNotifier
from airflow_provider_pgddl.operators.stages import PgddlReplayOperator
from airflow_provider_pgddl.sensors.schema import PgddlSchemaSensor

GATED = {
    "pipeline": "gated",
    "source": {"conn_id": "gated_source"},
    "target": {"conn_id": "gated_target"},
    "tables": {"include": ["public.*"]},
    "capture": {"ddl": "off"},
    "schema": {"validation_interval": "1h"},
}
OFTEN = {**GATED, "schema": {"validation_interval": "100ms"}}


class Note(BaseNotifier):
    """Appends its text to the file that PGDDL_TEST_NOTES names."""

    template_fields = ("text",)

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text

    def notify(self, context: Any) -> None:
        with Path(os.environ["PGDDL_TEST_NOTES"]).open("a") as notes:
            print(f"{self.text}; {len(context['findings'])} findings; {context['message']}", file=notes)


class Post(BaseNotifier):
    """The same for what PgddlNotifier tells, with a field that has a name of its own."""

    template_fields = ("subject",)

    def __init__(self, subject: str) -> None:
        super().__init__()
        self.subject = subject

    def notify(self, context: Any) -> None:
        with Path(os.environ["PGDDL_TEST_NOTES"]).open("a") as notes:
            print(f"{self.subject}\n{context['pgddl']['message']}", file=notes)


def broken(context: Any) -> None:
    raise RuntimeError(f"no channel for {context['table']}")


TELL = PgddlNotifier(to=Post("told: {{ pgddl.event }}: {{ pgddl.pipeline }}: {{ pgddl.subject }}"), lag_limit=3600)
FAILS = PgddlNotifier(to=[broken, Post("told to the other: {{ pgddl.subject }}")], events=["mismatch", "failure"])

WAYS: dict[str, dict[str, Any]] = {
    "poke": {"poke_interval": 0.1},
    "reschedule": {"mode": "reschedule", "poke_interval": 0.1},
    "deferrable": {"deferrable": True, "poke_interval": 0.1},
    "validated": {"deferrable": True, "poke_interval": 60, "pipeline": OFTEN},
    "timeout": {"deferrable": True, "poke_interval": 0.1, "timeout": timedelta(seconds=2), "retries": 3},
    "fail": {"on_mismatch": "fail", "retries": 3},
    "fail_deferrable": {"on_mismatch": "fail", "retries": 3, "deferrable": True},
    "report": {"on_mismatch": "report", "deferrable": True, "retries": 3},
    "notify": {"poke_interval": 0.1, "notify": [broken, Note("{{ pipeline }}: {{ table }}: {{ status }}")]},
    "told": {"notify": TELL, "on_mismatch": "fail", "on_failure_callback": [TELL, FAILS]},
    "unknown": {"pipeline": {**GATED, "pipeline": "unknown"}, "poke_interval": 0.1},
    "one_table": {"on_mismatch": "fail", "tables": ["public.orders"]},
}

for way, settings in WAYS.items():
    with DAG(f"gate_{way}", schedule=None, catchup=False, default_args={"retries": 0}):
        PgddlSchemaSensor(task_id="gate", **{"pipeline": GATED, **settings})

# As it was set up: a stage refuses a file that has changed since.
SET_UP = json.loads(os.environ.get("PGDDL_TEST_SET_UP", "null")) or GATED

with DAG("on_blocked", schedule=None, catchup=False, default_args={"retries": 0, "pipeline": SET_UP}):
    left_out = PgddlReplayOperator(task_id="skip")
    left_out >> PgddlReplayOperator(task_id="behind")
    left_out >> PgddlReplayOperator(task_id="fail", on_blocked="fail", trigger_rule="none_failed")

# Another pipeline, which follows DDL.
if queued := json.loads(os.environ.get("PGDDL_TEST_QUEUED", "null")):
    with DAG("gate_queued", schedule=None, catchup=False, default_args={"retries": 0}):
        PgddlSchemaSensor(task_id="gate", pipeline=queued, on_mismatch="fail")
