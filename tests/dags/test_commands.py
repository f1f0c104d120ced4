"""`airflow pgddl …` is `pgddl …`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.dags.conftest import EXAMPLES, Airflow

pytestmark = pytest.mark.airflow


def test_airflow_shows_the_provider(airflow: Airflow) -> None:
    done = airflow("providers", "get", "airflow-provider-pgddl", "-o", "plain", dags=EXAMPLES)
    assert done.returncode == 0, done.stdout
    assert "airflow-provider-pgddl" in done.stdout


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (["pgddl", "status", "-p", "none.yaml"], 2, "none.yaml: cannot read the pipeline file"),
        (["pgddl", "run", "lunch", "-p", "none.yaml"], 2, "invalid choice: 'lunch'"),
        (["pgddl", "status", "-p", str(EXAMPLES / "migrate_shop.yaml")], 2, "Airflow knows no connection shop_pg16"),
    ],
)
def test_mistakes_have_the_same_exit_codes(airflow: Airflow, args: list[str], code: int, said: str) -> None:
    done = airflow(*args, dags=EXAMPLES)
    assert said in done.stdout
    assert done.returncode == code
    assert "Traceback" not in done.stdout


def test_a_connection_of_airflows_database_is_found(airflow: Airflow, tmp_path: Path) -> None:
    add = ["--conn-type", "postgres", "--conn-host", "127.0.0.1", "--conn-port", "1", "--conn-password", "hush-hush"]
    assert airflow("connections", "add", "kept", *add, dags=EXAMPLES).returncode == 0
    (tmp_path / "shop.yaml").write_text("pipeline: shop\nsource: {conn_id: kept}\nrewrite: {shop.orders: {}}\n")
    done = airflow("pgddl", "status", "-p", str(tmp_path / "shop.yaml"), dags=EXAMPLES)
    assert done.returncode == 5, done.stdout
    assert "127.0.0.1:1" in done.stdout
    assert "hush" not in done.stdout
