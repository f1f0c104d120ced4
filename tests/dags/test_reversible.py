"""The example DAGs that move a shop, keep the old server current and return to it, under a real scheduler."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest
from psycopg import errors as pg

from airflow_provider_pgddl.demo import compare
from tests.dags.conftest import Airflow, postgres_connection
from tests.dags.scheduled import only, standalone

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(1200)]

MIGRATE = ["setup", "snapshot", "backfill", "schema_sync", "replay", "gate", "catch_up", "verify", "swap"]
WORK = "UPDATE shop.products SET weight = coalesce(weight, 0) + 1; DELETE FROM shop.carts WHERE token < '5'"


def equal(source: str, target: str) -> None:
    assert compare.differences(source, target) == []


def writes(dsn: str) -> None:
    with psycopg.connect(dsn) as conn:
        conn.execute(WORK.encode())


def test_there_along_and_back(airflow: Airflow, shop_databases: tuple[str, str], tmp_path: Path) -> None:
    source, target = shop_databases
    connections = {
        "AIRFLOW_CONN_SHOP_PG16": postgres_connection(source),
        "AIRFLOW_CONN_SHOP_PG18": postgres_connection(target),
    }
    dags = only(tmp_path, "migrate_shop_reversibly", "shop_back")
    paused = {"AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "True"}
    with (
        standalone(airflow, tmp_path, dags, **connections, **paused) as scheduled,
        Airflow(tmp_path).shell(dags, **connections) as shell,
    ):

        def done(dag: str, group: str, names: list[str]) -> bool:
            """Once its first run is over, whose tasks must all have succeeded."""
            runs = [run for run in scheduled.runs(dag) if run[1] in ("success", "failed")]
            assert not runs or runs[0][1:] == ("success", {f"{group}.{name}": "success" for name in names}), runs
            return bool(runs)

        def call(*command: str) -> None:
            code, said = shell("dags", *command)
            assert code == 0, said

        scheduled.wait_for(lambda: scheduled.knows("return_shop"))
        call("unpause", "migrate_shop_reversibly")
        call("trigger", "migrate_shop_reversibly")
        scheduled.wait_for(lambda: done("migrate_shop_reversibly", "migrate", MIGRATE))
        equal(source, target)
        with pytest.raises(pg.ReadOnlySqlTransaction):
            writes(source)
        writes(target)
        call("unpause", "follow_shop_back")
        follow = ["setup", "snapshot", "backfill", "schema_sync", "replay", "gate"]
        scheduled.wait_for(lambda: done("follow_shop_back", "follow", follow))
        equal(source, target)
        call("pause", "follow_shop_back")
        writes(target)
        call("unpause", "return_shop")
        call("trigger", "return_shop")
        scheduled.wait_for(lambda: done("return_shop", "go_back", ["replay", "verify", "swap"]))
    equal(source, target)
    assert compare.compare_sequences(source, target) == []
    writes(source)
    with pytest.raises(pg.ReadOnlySqlTransaction):
        writes(target)
