"""The example DAG that follows, through Airflow and real spark-submit: one run after the other."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import psycopg
import pytest

from airflow_provider_pgddl.demo import compare, shop
from airflow_provider_pgddl.demo.clusters import Cluster
from airflow_provider_pgddl.demo.writers import Writers, broken_invariants
from tests.conftest import drop_database
from tests.dags.conftest import EXAMPLES, Airflow, postgres_connection

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(1200)]

FOLLOW = ["setup", "snapshot", "backfill", "schema_sync", "gate", "replay"]
NEW = """
CREATE TABLE shop.vouchers (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, code text UNIQUE);
INSERT INTO shop.vouchers (code) SELECT 'voucher ' || n FROM generate_series(1, 300) n;
"""


@pytest.fixture
def shop_databases(pg16: Cluster, pg18: Cluster) -> Iterator[tuple[str, str]]:
    """A loaded shop on 16, and an empty database of that name on 18."""
    name = f"shop_{uuid.uuid4().hex[:8]}"
    yield shop.load(pg16, name, scale=1), shop.create_database(pg18, name)
    for cluster in (pg16, pg18):
        drop_database(cluster, name)


def test_each_run_brings_the_shop_up_to_date(airflow: Airflow, shop_databases: tuple[str, str]) -> None:
    source, target = shop_databases
    connections = {
        "AIRFLOW_CONN_SHOP_PG16": postgres_connection(source),
        "AIRFLOW_CONN_SHOP_PG18": postgres_connection(target),
    }

    def one_run() -> None:
        done = airflow("dags", "test", "follow_shop", dags=EXAMPLES, **connections)
        assert airflow.states("follow_shop") == {f"follow.{name}": "success" for name in FOLLOW}, done.stdout
        for task, result in airflow.xcoms("follow_shop").items():
            assert result["blocked"] == [], task

    with Writers([source], rate=30) as writers:
        one_run()
    assert writers.notes.failures == []
    with psycopg.connect(source) as conn:
        conn.execute(NEW)
    one_run()
    assert compare.differences(source, target) == []
    assert compare.compare_sequences(source, target, ahead=True) == []
    assert broken_invariants(target) == []
