"""`airflow pgddl …` is `pgddl …`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.dags.conftest import EXAMPLES, Airflow, Shell

pytestmark = pytest.mark.airflow


@pytest.fixture(scope="module")
def shell(airflow: Airflow) -> Iterator[Shell]:
    with airflow.shell(EXAMPLES) as shell:
        yield shell


def test_airflow_shows_the_provider(shell: Shell) -> None:
    code, said = shell("providers", "get", "airflow-provider-pgddl", "-o", "plain")
    assert code == 0, said
    assert "airflow-provider-pgddl" in said


def test_the_exit_code_is_that_of_the_process(airflow: Airflow) -> None:
    done = airflow("pgddl", "status", "-p", "none.yaml", dags=EXAMPLES)
    assert done.returncode == 2
    assert "none.yaml: cannot read the pipeline file" in done.stdout
    assert "Traceback" not in done.stdout


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["run", "lunch", "-p", "none.yaml"], "invalid choice: 'lunch'"),
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
