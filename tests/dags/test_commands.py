"""`airflow pgddl …` is `pgddl …`."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_pgddl import get_provider_info
from airflow_provider_pgddl.demo.clusters import Cluster
from tests.conftest import Database
from tests.dags.conftest import EXAMPLES, Airflow, Shell
from tests.integration.lifecycle import execute

pytestmark = pytest.mark.airflow


@pytest.fixture(scope="module")
def shell(airflow: Airflow) -> Iterator[Shell]:
    with airflow.shell(EXAMPLES) as shell:
        yield shell


@pytest.mark.parametrize(
    ("listing", "ours"),
    [
        (["get", "airflow-provider-pgddl", "-o", "plain"], ["airflow-provider-pgddl"]),
        (["links"], ["airflow_provider_pgddl.links.PipelineLink", "airflow_provider_pgddl.links.SparkLink"]),
        (["notifications"], ["airflow_provider_pgddl.notifications.PgddlNotifier"]),
        (["configs"], ["pgddl"]),
        (["triggers"], ["airflow_provider_pgddl.triggers.schema", "airflow_provider_pgddl.triggers.watch"]),
    ],
)
def test_airflow_shows_the_provider(shell: Shell, listing: list[str], ours: list[str]) -> None:
    code, said = shell("providers", *listing)
    assert code == 0, said
    assert all(one in said for one in ours), said


def test_every_option_of_the_configuration_has_its_default(shell: Shell) -> None:
    options = get_provider_info()["config"]["pgddl"]["options"]
    assert {*options} == {"journal_timeout", "page_refresh", "spark_conn_id"}
    for name, option in options.items():
        code, said = shell("config", "get-value", "pgddl", name)
        assert code == 0 and option["default"] in said.splitlines(), said


def test_the_exit_code_is_that_of_the_process(airflow: Airflow) -> None:
    done = airflow("pgddl", "status", "-p", "none.yaml", dags=EXAMPLES)
    assert done.returncode == 2
    assert "none.yaml: cannot read the pipeline file" in done.stdout
    assert "Traceback" not in done.stdout


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["run", "lunch", "-p", "none.yaml"], "there is no stage 'lunch'"),
        (["ddl", "lunch"], "invalid choice: 'lunch'"),
        (["ddl", "list", "-p", "none.yaml"], "none.yaml: cannot read the pipeline file"),
        (["status", "-p", str(EXAMPLES / "migrate_shop.yaml")], "Airflow knows no connection shop_pg16"),
    ],
)
def test_mistakes_have_the_same_exit_codes(shell: Shell, args: list[str], said: str) -> None:
    code, output = shell("pgddl", *args)
    assert said in output
    assert code == 2
    assert "Traceback" not in output


def test_a_connection_of_airflows_database_is_found(shell: Shell, tmp_path: Path) -> None:
    add = ["--conn-type", "postgres", "--conn-host", "127.0.0.1", "--conn-port", "1", "--conn-password", "hush-hush"]
    assert shell("connections", "add", "kept", *add)[0] == 0
    (tmp_path / "shop.yaml").write_text("pipeline: shop\nsource: {conn_id: kept}\nrewrite: {shop.orders: {}}\n")
    code, said = shell("pgddl", "status", "-p", str(tmp_path / "shop.yaml"))
    assert code == 5, said
    assert "127.0.0.1:1" in said
    code, said = shell("pgddl", "ddl", "list", "-p", str(tmp_path / "shop.yaml"))
    assert code == 5, said
    assert "127.0.0.1:1" in said
    assert "hush" not in said


# --- the triggerer ----------------------------------------------------------------------------------------------------


@pytest.fixture
def rewriting(pg18: Cluster, database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A pipeline file that preflight has nothing to say about."""
    dsn = database(pg18)
    execute(dsn, "CREATE TABLE t (id int PRIMARY KEY)")
    monkeypatch.setenv("PGDDL_TEST_CHECKED", dsn)
    file = tmp_path / "rewrite.yaml"
    file.write_text("pipeline: checked\nsource: {dsn: '${PGDDL_TEST_CHECKED}'}\nrewrite: {public.t: {}}\n")
    return str(file)


def warned(shell: Shell, file: str) -> list[dict[str, Any]]:
    code, said = shell("pgddl", "check", "-p", file, "--json")
    assert code == 0, said
    assert "Traceback" not in said
    found: list[dict[str, Any]] = json.JSONDecoder().raw_decode(said, said.index("{"))[0]["findings"]
    assert {finding["severity"] for finding in found} <= {"warning"}
    return [finding for finding in found if finding["code"] == "triggerer"]


def test_check_warns_where_no_triggerer_is_alive(airflow: Airflow, rewriting: str) -> None:
    insert = "INSERT INTO job (job_type, state, latest_heartbeat) VALUES ('TriggererJob', 'running', ?)"
    with airflow.shell(EXAMPLES) as shell, sqlite3.connect(airflow.home / "airflow.db") as metadata:
        (warning,) = warned(shell, rewriting)
        assert warning["what"].startswith("Airflow has no triggerer that is alive: the gate of `lifecycle`")
        assert '{"mode": "reschedule"}' in warning["fix"]
        metadata.execute(insert, ["2026-01-01 00:00:00.000000"])
        metadata.commit()
        assert warned(shell, rewriting), "that one died long ago"
        metadata.execute(insert, [f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S.%f}"])
        metadata.commit()
        try:
            assert warned(shell, rewriting) == []
        finally:
            metadata.execute("DELETE FROM job WHERE job_type = 'TriggererJob'")


def test_check_goes_on_where_airflows_database_does_not_answer(
    airflow: Airflow, rewriting: str, tmp_path: Path
) -> None:
    nowhere = f"sqlite:///{tmp_path}/gone/airflow.db"
    with airflow.shell(EXAMPLES, AIRFLOW__DATABASE__SQL_ALCHEMY_CONN=nowhere) as shell:
        (warning,) = warned(shell, rewriting)
    assert "its database cannot be asked (OperationalError)" in warning["what"]
