"""Operators and the sensor as a DAG file sees them, and their connections."""

from __future__ import annotations

import inspect
import json
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jinja2
import pytest
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
from airflow_provider_pgddl.engine.pipeline.reading import load_pipeline
from airflow_provider_pgddl.links import show_spark
from airflow_provider_pgddl.operators.approval import PgddlDdlApproval
from airflow_provider_pgddl.operators.base import small
from airflow_provider_pgddl.operators.hook import PrivateEnvHook
from airflow_provider_pgddl.operators.stages import (
    STAGE_OPERATORS,
    PgddlBackfillOperator,
    PgddlSetupOperator,
    PgddlStagesOperator,
    PgddlVerifyOperator,
)
from airflow_provider_pgddl.retrying import give_up
from airflow_provider_pgddl.sensors.schema import PgddlSchemaSensor

SHOP = {"pipeline": "shop", "source": {"conn_id": "shop_pg16"}, "rewrite": {"shop.orders": {}}}
TABLES = {"include": ["shop.*"]}


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
