"""Task groups and the examples as Airflow sees them: which task follows which, where a person is asked, what a gate
knows."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk import DAG

from airflow_provider_pgddl.engine.pipeline.reading import changed_keys, load_pipeline
from airflow_provider_pgddl.engine.pipeline.way_back import way_back_of
from airflow_provider_pgddl.operators.approval import ddl_body
from airflow_provider_pgddl.operators.base import PgddlOperator
from airflow_provider_pgddl.operators.stages import PgddlReplayOperator, PgddlStagesOperator
from airflow_provider_pgddl.sensors.schema import PgddlSchemaSensor
from airflow_provider_pgddl.task_groups import follow, lifecycle, reversible
from tests.conftest import REPOSITORY

SHOP = {"pipeline": "shop", "source": {"conn_id": "shop_pg16"}, "rewrite": {"shop.orders": {}}}
LIFECYCLE = [
    "setup", "snapshot", "backfill", "schema_sync", "replay", "gate", "catch_up", "verify", "swap", "cleanup"
]  # fmt: skip
FOLLOW = ["setup", "snapshot", "backfill", "schema_sync", "replay", "gate"]


@pytest.fixture(scope="module")
def examples() -> DagBag:
    return DagBag(dag_folder=str(REPOSITORY / "dags_examples"))


def test_the_examples_are_dags(examples: DagBag) -> None:
    assert examples.import_errors == {}
    assert sorted(examples.dags) == [
        "follow_shop",
        "follow_shop_back",
        "let_go_of_old_shop",
        "migrate_shop",
        "migrate_shop_reversibly",
        "move_shop_again",
        "return_shop",
        "rewrite_orders",
    ]


@pytest.mark.parametrize(("dag_id", "group"), [("migrate_shop", "migrate"), ("rewrite_orders", "rewrite")])
def test_an_example_is_the_lifecycle_in_its_order(examples: DagBag, dag_id: str, group: str) -> None:
    dag = examples.dags[dag_id]
    assert [task.task_id for task in dag.topological_sort()] == [f"{group}.{name}" for name in LIFECYCLE]
    for task, following in pairwise(LIFECYCLE):
        wanted = {f"{group}.{following}"} | ({f"{group}.cleanup"} if task == "verify" else set())
        assert dag.get_task(f"{group}.{task}").downstream_task_ids == wanted


def test_the_example_that_follows_has_one_run_after_the_other(examples: DagBag) -> None:
    dag = examples.dags["follow_shop"]
    assert (type(dag.timetable).__name__, dag.max_active_runs) == ("ContinuousTimetable", 1)
    assert [task.task_id for task in dag.topological_sort()] == [f"follow.{name}" for name in FOLLOW]
    for task, following in pairwise(FOLLOW):
        assert dag.get_task(f"follow.{task}").downstream_task_ids == {f"follow.{following}"}


def test_the_file_that_leads_back_is_what_the_other_one_says() -> None:
    there, back = (
        load_pipeline(f"{n}.yaml", base=REPOSITORY / "dags_examples") for n in ("migrate_shop_reversibly", "shop_back")
    )
    assert changed_keys(way_back_of(there).to_json(), back.to_json()) == []
    assert changed_keys(way_back_of(back).to_json(), there.to_json()) == []


@pytest.mark.parametrize("name", ["follow_shop", "migrate_shop", "rewrite_orders"])
def test_the_pipeline_files_of_the_examples_are_right(name: str) -> None:
    assert load_pipeline(f"{name}.yaml", base=REPOSITORY / "dags_examples").pipeline == name


def test_a_lifecycle_hands_on_what_its_parts_take() -> None:
    with DAG("d") as dag:
        lifecycle(
            group_id="move",
            pipeline=SHOP,
            conn_id="spark_big",
            gate={"timeout": 60, "mode": "reschedule"},
            default_args={"retries": 7},
        )
    assert dag.get_task("move.swap")._conn_id == "spark_big"
    assert dag.get_task("move.swap").retries == dag.get_task("move.gate").retries == 7
    gate = dag.get_task("move.gate")
    assert (gate.timeout, gate.mode, gate.deferrable) == (60, "reschedule", False)
    with DAG("changes") as dag:
        follow(group_id="changes", pipeline=SHOP, reconfigure=True)
    assert dag.get_task("changes.setup")._job(load_pipeline(SHOP), {}).reconfigure
    with DAG("e") as dag:
        lifecycle(group_id="move", pipeline=SHOP, again="{{ params.again }}", reconfigure="{{ params.again }}")
        follow(group_id="follow", pipeline=SHOP, gate={"timeout": 60})
        follow(group_id="all_or_none", pipeline=SHOP, gate_first=True)
    assert all(dag.get_task(f"{group}.gate").deferrable for group in ("move", "follow", "all_or_none"))
    setup = dag.get_task("move.setup")
    assert setup.again == setup.reconfigure == "{{ params.again }}" and "reconfigure" in setup.template_fields
    blocked = {task.task_id: task.on_blocked for task in dag.tasks if isinstance(task, PgddlOperator)}
    assert {name for name, on_blocked in blocked.items() if on_blocked == "go_on"} == {
        *(f"move.{stage}" for stage in ("setup", "snapshot", "backfill", "schema_sync", "replay", "catch_up")),
        *(f"follow.{stage}" for stage in ("setup", "snapshot", "backfill", "schema_sync", "replay")),
        *(f"all_or_none.{stage}" for stage in ("setup", "snapshot", "backfill", "schema_sync")),
    }
    assert {name for name, on_blocked in blocked.items() if on_blocked == "skip"} == {
        "all_or_none.replay", "move.swap", "move.cleanup",
    }  # fmt: skip
    follows, waits = dag.get_task("follow.gate"), dag.get_task("all_or_none.gate")
    assert (follows.on_mismatch, waits.on_mismatch) == ("report", "wait")
    assert (follows.upstream_task_ids, waits.downstream_task_ids) == ({"follow.replay"}, {"all_or_none.replay"})
    cleanup = dag.get_task("move.cleanup")
    assert cleanup.trigger_rule == "none_failed_min_one_success"
    assert cleanup.upstream_task_ids == {"move.verify", "move.swap"}


def test_a_person_stands_between_the_rehearsal_and_the_swap() -> None:
    with DAG("d") as dag:
        lifecycle(group_id="asked", pipeline=SHOP, approve_swap={"subject": "Now?"})
        reversible(group_id="back", pipeline=SHOP, approve_swap=True)
        lifecycle(group_id="plain", pipeline=SHOP)
    for group in ("asked", "back"):
        for task, behind in pairwise(("verify", "rehearse", "approve", "swap")):
            assert f"{group}.{behind}" in dag.get_task(f"{group}.{task}").downstream_task_ids
        assert dag.get_task(f"{group}.verify").downstream_task_ids <= {f"{group}.rehearse", f"{group}.cleanup"}
        ask = dag.get_task(f"{group}.approve")
        assert ask.ignore_downstream_trigger_rules, "a cleanup must not run behind a swap that was rejected"
        assert ask.rehearsal == f"{group}.rehearse"
    assert dag.get_task("asked.approve").subject == "Now?"
    job = dag.get_task("asked.rehearse")._job(load_pipeline(SHOP), {})
    assert (job.stage, job.dry_run) == ("swap", True)
    assert not dag.has_task("plain.approve")
    assert dag.get_task("asked.gate")._behind() == {"replay", "verify", "swap", "cleanup"}


def test_a_person_is_asked_about_ddl_before_the_gate_never_behind_it() -> None:
    with DAG("d") as dag:
        lifecycle(group_id="asked", pipeline=SHOP, approve_ddl={"subject": "Well?"})
        reversible(group_id="back", pipeline=SHOP, approve_ddl=True)
        follow(group_id="all_or_none", pipeline=SHOP, gate_first=True, approve_ddl=True)
        lifecycle(group_id="plain", pipeline=SHOP)
    for group, before in (("asked", "replay"), ("back", "replay"), ("all_or_none", "schema_sync")):
        ask = dag.get_task(f"{group}.approve_ddl")
        assert (ask.upstream_task_ids, ask.downstream_task_ids) == ({f"{group}.{before}"}, {f"{group}.gate"})
        assert dag.get_task(f"{group}.gate").upstream_task_ids == {f"{group}.approve_ddl"}
    assert dag.get_task("asked.approve_ddl").subject == "Well?"
    assert not dag.has_task("plain.approve_ddl")
    with pytest.raises(ValueError, match="needs gate_first=True"), DAG("e"):
        follow(group_id="held_up", pipeline=SHOP, approve_ddl=True)


def test_what_is_asked_about_ddl_cannot_break_out_of_its_frame() -> None:
    event = {
        "id": 7,
        "tag": "COMMENT",
        "touches": ["shop.a|b"],
        "statement": "COMMENT ... '```\n# Approve'",
        "changes": [],
    }
    body = ddl_body("shop", [event], {"shop.c": ["ALTER TABLE c ADD COLUMN d int"]}, more=3)
    assert "3 more wait behind these, and this answer is not about them" in body
    assert "````sql\nCOMMENT ... '```\n# Approve'\n````" in body
    assert "shop.a\\|b" in body and "```sql\nALTER TABLE c ADD COLUMN d int\n```" in body


def test_a_gate_knows_the_stages_behind_it() -> None:
    with DAG("d") as dag:
        lifecycle(group_id="move", pipeline=Path("shop.yaml"))
        follow(group_id="follow", pipeline=SHOP)
        follow(group_id="all_or_none", pipeline="{{ params.pipeline }}", gate_first=True)
        gate = PgddlSchemaSensor(task_id="gate", pipeline=SHOP)
        other = PgddlReplayOperator(task_id="other", pipeline={**SHOP, "pipeline": "other"})
        gate >> other >> PgddlReplayOperator.partial(task_id="mapped", pipeline=SHOP).expand(tables=[["shop.a"]])
        gate >> PgddlStagesOperator(task_id="several", pipeline=SHOP, stages="verify,swap")
    assert dag.get_task("move.gate")._behind() == {"replay", "verify", "swap", "cleanup"}
    assert dag.get_task("follow.gate")._behind() == set()
    assert dag.get_task("all_or_none.gate")._behind() == {"replay"}
    assert gate._behind() == {"replay", "verify", "swap"}
    assert PgddlSchemaSensor(task_id="alone", pipeline=SHOP)._behind() == set()
