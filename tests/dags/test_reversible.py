"""The example DAGs that move a shop, keep the old server current and return to it."""

from __future__ import annotations

import psycopg
import pytest
from psycopg import errors as pg

from airflow_provider_pgddl.demo import compare
from tests.dags.conftest import EXAMPLES, Airflow, postgres_connection

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(1200)]

MIGRATE = ["setup", "snapshot", "backfill", "schema_sync", "replay", "gate", "catch_up", "verify", "swap"]
WORK = "UPDATE shop.products SET weight = coalesce(weight, 0) + 1; DELETE FROM shop.carts WHERE token < '5'"


def equal(source: str, target: str) -> None:
    assert compare.differences(source, target) == []


def writes(dsn: str) -> None:
    with psycopg.connect(dsn) as conn:
        conn.execute(WORK.encode())


def test_there_along_and_back(airflow: Airflow, shop_databases: tuple[str, str]) -> None:
    source, target = shop_databases
    connections = {
        "AIRFLOW_CONN_SHOP_PG16": postgres_connection(source),
        "AIRFLOW_CONN_SHOP_PG18": postgres_connection(target),
    }
    with airflow.shell(EXAMPLES, **connections) as shell:

        def run(dag: str, group: str, *names: str) -> None:
            """A run of the DAG, whose tasks must all succeed."""
            shell.start("dags", "test", dag)
            said = shell.until("=== airflow ended with ", 600)
            assert airflow.states(dag) == {f"{group}.{name}": "success" for name in names}, said

        run("migrate_shop_reversibly", "migrate", *MIGRATE)
        equal(source, target)
        with pytest.raises(pg.ReadOnlySqlTransaction):
            writes(source)
        writes(target)
        run("follow_shop_back", "follow", "setup", "snapshot", "backfill", "schema_sync", "replay", "gate")
        equal(source, target)
        writes(target)
        run("return_shop", "go_back", "replay", "verify", "swap")
    equal(source, target)
    assert compare.compare_sequences(source, target) == []
    writes(source)
    with pytest.raises(pg.ReadOnlySqlTransaction):
        writes(target)
