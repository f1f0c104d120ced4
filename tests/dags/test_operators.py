"""Operators, sensor and task groups as a DAG file sees them."""

from __future__ import annotations

import inspect
import json
from datetime import timedelta
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jinja2
import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import DAG, Connection, ExceptionRetryPolicy, RetryAction, RetryDecision
from airflow.sdk.exceptions import AirflowException, AirflowFailException
from airflow.sdk.execution_time.task_runner import _serialize_rendered_fields
from airflow.serialization.serialized_objects import DagSerialization
from psycopg.conninfo import conninfo_to_dict

from airflow_provider_pgddl.connections import conninfo_of
from airflow_provider_pgddl.engine.errors import (
    GaveWay,
    LockHeld,
    PgddlError,
    PipelineFileError,
    PreflightRefused,
    Unreachable,
    UsageError,
)
from airflow_provider_pgddl.engine.launch import pack as packing
from airflow_provider_pgddl.engine.parallel.executor_settings import PAGE
from airflow_provider_pgddl.engine.parallel.spark import application
from airflow_provider_pgddl.engine.pipeline.reading import changed_keys, load_pipeline
from airflow_provider_pgddl.engine.pipeline.way_back import way_back_of
from airflow_provider_pgddl.links import show_spark
from airflow_provider_pgddl.operators.approval import PgddlDdlApproval, ddl_body
from airflow_provider_pgddl.operators.base import PgddlOperator, small
from airflow_provider_pgddl.operators.hook import PrivateEnvHook
from airflow_provider_pgddl.operators.stages import (
    STAGE_OPERATORS,
    PgddlBackfillOperator,
    PgddlReplayOperator,
    PgddlSetupOperator,
    PgddlStagesOperator,
    PgddlVerifyOperator,
)
from airflow_provider_pgddl.retrying import give_up
from airflow_provider_pgddl.sensors.schema import PgddlSchemaSensor
from airflow_provider_pgddl.task_groups import follow, lifecycle, reversible
from tests.conftest import REPOSITORY

SHOP = {"pipeline": "shop", "source": {"conn_id": "shop_pg16"}, "rewrite": {"shop.orders": {}}}
TABLES = {"include": ["shop.*"]}
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


@pytest.mark.parametrize("stage", STAGE_OPERATORS)
def test_every_stage_has_its_application(stage: str) -> None:
    assert f'main("{stage}"' in application(stage).read_text()


def test_a_stage_is_tried_again_unless_the_dag_says_otherwise() -> None:
    with DAG("d"):
        task = PgddlBackfillOperator(task_id="backfill", pipeline=SHOP)
    with DAG("e", default_args={"retries": 1}):
        less = PgddlBackfillOperator(task_id="backfill", pipeline=SHOP)
    assert (task.retries, task.retry_exponential_backoff) == (3, 2.0)
    assert less.retries == 1


@pytest.mark.parametrize(
    ("cause", "soon"), [(LockHeld, True), (GaveWay, True), (Unreachable, False), (PreflightRefused, None)]
)
def test_what_passes_soon_is_tried_again_soon(cause: type[PgddlError], soon: bool | None) -> None:
    """Once, and then after the task's own pauses; what retrying does not cure Airflow does not ask about."""
    with DAG("d"):
        task, gate = PgddlBackfillOperator(task_id="b", pipeline=SHOP), PgddlSchemaSensor(task_id="g", pipeline=SHOP)
    with pytest.raises(AirflowException) as caught:
        give_up(cause("it is as it is", table="shop.orders", todo="wait"))
    assert isinstance(caught.value, AirflowFailException) is (soon is None)
    if soon is None:
        return
    assert gate.retry_policy is not None
    tried = {
        (tries, most): task.retry_policy.evaluate(caught.value, tries, most, {"task": task})
        for tries, most in ((1, 3), (2, 3), (5, 7))  # the last: cleared after four tries
    }
    first = timedelta(seconds=5) if soon else None
    assert [decision.retry_delay for decision in tried.values()] == [first, None, first]
    assert {decision.action for decision in tried.values()} == {RetryAction.RETRY}
    assert {decision.reason for decision in tried.values()} == {f"{cause.__name__}: shop.orders: it is as it is"}
    other = task.retry_policy.evaluate(AirflowException("spark-submit ended"), 1, 3, {"task": task})
    assert other == RetryDecision.default()


def test_a_retry_policy_of_ones_own_wins() -> None:
    own = ExceptionRetryPolicy(rules=[])
    assert PgddlBackfillOperator(task_id="b", pipeline=SHOP, retry_policy=own).retry_policy is own
    with DAG("d", default_args={"retry_policy": own}):
        assert PgddlBackfillOperator(task_id="b", pipeline=SHOP).retry_policy is own
        assert PgddlSchemaSensor(task_id="g", pipeline=SHOP).retry_policy is own


def test_no_option_of_the_spark_provider_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the installed version of it takes reaches the hook."""
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_TEST", '{"conn_type": "spark", "host": "spark://m:7077"}')
    known = set(inspect.signature(SparkSubmitOperator).parameters) - {"kwargs", "reconnect_on_retry", "durable", "conf"}
    options: dict[str, Any] = {name: f"told {name}" for name in known if not name.startswith("openlineage")}
    options |= {"conn_id": "spark_test", "conf": {"spark.a": "b"}, "deploy_mode": "client", "env_vars": {"A": "b"}}
    options |= {"application_args": ["one"], "use_krb5ccache": False, "post_submit_commands": ["true"]}
    theirs = SparkSubmitOperator(task_id="t", **options)._get_hook()
    task = PgddlBackfillOperator(task_id="b", pipeline=SHOP, **options)
    ours = task._bare_hook()
    assert type(ours) is PrivateEnvHook
    assert {**vars(ours), "private_env": None} == {**vars(theirs), "private_env": None}
    assert {"told track_driver_via_k8s_api", "told yarn_track_via_rm_api", "told yarn_rm_auth"} <= {
        value for value in vars(ours).values() if isinstance(value, str)
    }


def test_the_spark_connection_is_the_operators_the_pipelines_or_the_configurations(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("spark_default", "big", "mine", "theirs"):
        monkeypatch.setenv(f"AIRFLOW_CONN_{name.upper()}", '{"conn_type": "spark", "host": "local[2]"}')

    def taken(pipeline: dict[str, Any], **given: str) -> str:
        task = PgddlBackfillOperator(task_id="b", pipeline=pipeline, **given)
        task._check_spark(load_pipeline(pipeline))
        return task._conn_id

    assert taken(SHOP) == "spark_default"
    monkeypatch.setenv("AIRFLOW__PGDDL__SPARK_CONN_ID", "big")
    assert taken(SHOP) == "big"
    assert taken({**SHOP, "spark": {"conn_id": "theirs"}}) == "theirs"
    assert taken({**SHOP, "spark": {"conn_id": "theirs"}}, conn_id="mine") == "mine"


def test_an_archive_for_another_python_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Wherever it is named; the shell's is in tests/unit/test_cluster_command.py."""
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", '{"conn_type": "spark", "host": "local[2]"}')
    monkeypatch.setattr(packing, "NEEDED", ())
    archive = tmp_path / "env.tar.gz"
    packing.pack(archive)
    ways = ({"conf": {"spark.archives": f"{archive}#pgddl_env"}}, {"archives": f"{archive}#pgddl_env"})
    for given in ways:
        PgddlBackfillOperator(task_id="b", pipeline=SHOP, **given)._check_spark(load_pipeline(SHOP))
    monkeypatch.setattr(packing, "here", lambda: {"python": "cpython 3.99", "machine": "Linux x86_64"})
    for given in ways:
        with pytest.raises(
            PreflightRefused, match=r"was made for cpython 3\.\d+ on .*, and the driver is cpython 3.99"
        ):
            PgddlBackfillOperator(task_id="b", pipeline=SHOP, **given)._check_spark(load_pipeline(SHOP))


def test_a_running_task_links_to_sparks_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """As soon as the application says where that is; once it has ended there is none."""
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", '{"conn_type": "spark", "host": "local[2]"}')
    task = PgddlBackfillOperator(task_id="b", pipeline=SHOP, conn_id="spark_default")
    pushed: dict[str, str] = {}
    hook = task._bare_hook()
    hook.on_spark_page = partial(show_spark, {"ti": SimpleNamespace(xcom_push=pushed.__setitem__)})
    hook._process_spark_submit_log(iter(["starting\n"]))
    assert pushed == {}
    for name in (f"pgddl backfill: {PAGE}x.t is done", f"pgddl backfill: a.{PAGE}http://elsewhere/", f"{PAGE}http://elsewhere/",
                 f"pgddl backfill: {PAGE}javascript:x", f"  pgddl backfill: {PAGE}http://elsewhere/"):  # fmt: skip
        hook._process_spark_submit_log(iter([f"{name}\n"]))
    assert pushed == {}  # what tables may be called
    hook._process_spark_submit_log(iter([f"pgddl backfill: {PAGE}http://driver:4040\n", "pgddl backfill: done\n"]))
    (link,) = (link for link in task.operator_extra_links if link.name == "Spark")
    assert pushed == {link.xcom_key: "http://driver:4040"}
    assert link.get_link(task, ti_key=None) == ""


def test_what_can_be_rendered_holds_no_connection_string() -> None:
    assert {"pipeline", "tables", "env_vars", "conf"} <= set(PgddlBackfillOperator.template_fields)
    assert not [field for field in PgddlBackfillOperator.template_fields if "private" in field]


@pytest.mark.parametrize("make", [*STAGE_OPERATORS.values(), PgddlSchemaSensor])
def test_a_literal_password_is_refused_before_airflow_keeps_it(make: Any) -> None:
    dsn = "host=db user=mover password=hush-hush"
    given: dict[str, Any] = {**SHOP, "source": {"dsn": dsn}}
    for pipeline in (given, f"pipeline: shop\nsource: {{dsn: '{dsn}'}}\n"):
        with pytest.raises(PipelineFileError, match=r"source\.dsn: a literal password") as caught:
            make(task_id="stage", pipeline=pipeline)
        assert "hush" not in str(caught.value)
    make(task_id="stage", pipeline={**SHOP, "source": {"dsn": "{{ var.value.shop_dsn }}"}})


class Secrets:
    """Some place that templates can read."""

    dsn = "host=db password=hush-hush"

    @staticmethod
    def yaml() -> str:
        return "pipeline: shop\nsource: {dsn: postgresql://u:hush-hush@db/shop}\n"


@pytest.mark.parametrize("make", [*STAGE_OPERATORS.values(), PgddlSchemaSensor, PgddlDdlApproval])
@pytest.mark.parametrize(
    "pipeline",
    [
        {**SHOP, "source": {"dsn": "{{ secrets.dsn }}"}},
        "pipeline: shop\nsource: {dsn: '{{ secrets.dsn }}'}\n",
        "{{ secrets.yaml() }}",
        "{{ secrets.yaml() }}: [",
    ],
)
def test_a_password_that_a_template_brings_is_refused_before_airflow_has_it(make: Any, pipeline: Any) -> None:
    task = make(task_id="stage", pipeline=pipeline)
    with pytest.raises(AirflowFailException) as caught:
        task.render_template_fields({"secrets": Secrets}, jinja2.Environment())
    assert "hush" not in str(caught.value) + str(_serialize_rendered_fields(task))


def test_so_it_is_where_the_task_is_mapped() -> None:
    with DAG("d") as dag:
        text = "pipeline: shop\nsource: {dsn: '{{ secrets.dsn }}'}\n"
        PgddlBackfillOperator.partial(task_id="backfill", pipeline=text).expand(tables=[["shop.a"]])
    context: Any = {"secrets": Secrets, "ti": SimpleNamespace(map_index=0), "params": {}, "dag": dag}
    context["dag_run"] = SimpleNamespace(conf={})
    with pytest.raises(AirflowFailException):
        dag.get_task("backfill").render_template_fields(context, jinja2.Environment())
    assert "hush" not in str(_serialize_rendered_fields(context["task"]))


def test_tables_can_be_mapped() -> None:
    with DAG("d") as dag:
        PgddlBackfillOperator.partial(task_id="backfill", pipeline=SHOP).expand(tables=[["shop.a"], ["shop.b"]])
    assert dag.get_task("backfill").is_mapped


def test_a_durable_stage_is_refused() -> None:
    with pytest.raises(ValueError, match="resumes from its journal"):
        PgddlBackfillOperator(task_id="backfill", pipeline=SHOP, durable=True)


@pytest.mark.parametrize("option", ["soft_fail", "never_fail", "silent_fail"])
def test_a_gate_that_opens_by_failing_is_refused(option: str) -> None:
    with pytest.raises(ValueError, match=f"refuses {option}"):
        PgddlSchemaSensor(task_id="gate", pipeline=SHOP, **{option: True})


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


@pytest.mark.parametrize("make", [PgddlBackfillOperator, PgddlSchemaSensor])
def test_a_task_describes_its_pipeline_and_links_to_its_page(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://airflow.example/team")
    with DAG("moves") as dag:
        make(
            task_id="stage",
            pipeline={"pipeline": "shop", "source": {"dsn": "${SHOP}"}, "target": {"conn_id": "new"}, "tables": TABLES},
        )
        make(task_id="later", pipeline="{{ params.pipeline }}")
    kept = {task["__var"]["task_id"]: task["__var"] for task in DagSerialization.to_dict(dag)["dag"]["tasks"]}
    told = {"pipeline": "shop", "file": None, "source": None, "target": "new", "in_place": False}
    assert json.loads(kept["stage"]["pgddl"]) == told
    assert "pgddl" not in kept["later"]
    link = dag.get_task("stage").operator_extra_links[0]
    key = SimpleNamespace(dag_id="moves")
    assert link.get_link(dag.get_task("stage"), ti_key=key) == "https://airflow.example/team/pgddl/moves/shop"
    assert link.get_link(dag.get_task("later"), ti_key=key) == ""


def test_several_stages_are_one_job() -> None:
    several = PgddlStagesOperator(task_id="several", pipeline=SHOP, stages=["setup..backfill", "verify"])
    job = several._job(load_pipeline(SHOP), {})
    assert job.stages == ("setup", "snapshot", "backfill", "verify")
    assert not several.changes_live_tables
    assert PgddlStagesOperator(task_id="swap", pipeline=SHOP, stages="verify,swap").changes_live_tables
    with pytest.raises(ValueError, match="there is no stage 'lunch'"):
        PgddlStagesOperator(task_id="wrong", pipeline=SHOP, stages="setup..lunch")


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


@pytest.mark.parametrize("again", ["yes", "", None])
def test_again_is_true_or_false(again: Any) -> None:
    with pytest.raises(UsageError, match="again is true or false"):
        PgddlSetupOperator(task_id="s", pipeline=SHOP, again=again)._job(load_pipeline(SHOP), {})


@pytest.mark.parametrize(("mend", "is_so"), [(True, True), ("true", True), ("False", False), (False, False)])
def test_verify_mends_where_it_is_told_to(mend: Any, is_so: bool) -> None:
    verify = PgddlVerifyOperator(task_id="v", pipeline=SHOP, mend=mend)
    assert "mend" in verify.template_fields
    assert verify._job(load_pipeline(SHOP), {}).mend is is_so
    with pytest.raises(UsageError, match="mend is true or false"):
        PgddlVerifyOperator(task_id="v", pipeline=SHOP, mend="perhaps")._job(load_pipeline(SHOP), {})


def test_a_path_may_be_a_path() -> None:
    assert PgddlBackfillOperator(task_id="b", pipeline=Path("shop.yaml")).pipeline == "shop.yaml"


def test_an_xcom_counts_the_tables_and_names_only_the_blocked() -> None:
    blocked = [{"table": "shop.t7", "reason": "column x appeared"}]
    tables: dict[str, dict[str, Any]] = {f"shop.t{number}": {"rows": 1} for number in range(5000)}
    result = {"stage": "backfill", "pipeline": "shop", "run": 1, "state": "done", "tables": tables}
    assert small({**result, "blocked": blocked, "figures": {"rows": 5000}}) == {
        "stage": "backfill",
        "pipeline": "shop",
        "run": 1,
        "state": "done",
        "tables": 5000,
        "figures": {"rows": 5000},
        "blocked": blocked,
    }


def postgres(**settings: Any) -> Connection:
    given = {"conn_id": "shop", "conn_type": "postgres", "host": "db", "login": "mover", "schema": "shop"}
    return Connection(**(given | settings))


def test_a_connection_keeps_its_ssl_settings_and_loses_what_is_not_libpqs() -> None:
    extra = '{"sslmode": "verify-full", "sslrootcert": "/etc/ca.pem", "cursor": "dictcursor", "application_name": "x"}'
    conninfo = conninfo_of(postgres(password="it's @ secret", port=5433, extra=extra))
    assert conninfo_to_dict(conninfo) == {
        "host": "db",
        "port": "5433",
        "user": "mover",
        "password": "it's @ secret",
        "dbname": "shop",
        "sslmode": "verify-full",
        "sslrootcert": "/etc/ca.pem",
    }


def test_a_connection_without_a_password_leaves_it_to_pgpass() -> None:
    assert conninfo_to_dict(conninfo_of(postgres())) == {"host": "db", "user": "mover", "dbname": "shop"}


def test_a_connection_that_needs_a_clouds_provider_says_which() -> None:
    with pytest.raises(UsageError, match="apache-airflow-providers-amazon"):
        conninfo_of(postgres(extra='{"iam": true}'))
