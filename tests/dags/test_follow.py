"""The example DAG that follows, under a real scheduler: one run after the other, each bringing the shop up to date."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from airflow_provider_pgddl.demo import compare, shop
from airflow_provider_pgddl.demo.clusters import Cluster
from airflow_provider_pgddl.demo.writers import Writers, broken_invariants
from tests.combinations import matrix
from tests.conftest import drop_database
from tests.dags.conftest import Airflow, postgres_connection
from tests.dags.scheduled import CONSUMER, only, standalone

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(1200)]

FOLLOW = ["setup", "snapshot", "backfill", "schema_sync", "replay", "gate"]
NEW = """
CREATE TABLE shop.vouchers (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, code text UNIQUE);
INSERT INTO shop.vouchers (code) SELECT 'voucher ' || n FROM generate_series(1, 300) n;
"""


@pytest.fixture(params=matrix("in SQLite", "in Postgres"))
def metadata(request: pytest.FixtureRequest, pg18: Cluster) -> Iterator[str | None]:
    """Where Airflow has its own tables."""
    if request.param == "in SQLite":
        yield None
        return
    name = f"metadata_{uuid.uuid4().hex[:8]}"
    yield shop.create_database(pg18, name)
    drop_database(pg18, name)


def test_each_run_brings_the_shop_up_to_date(
    airflow: Airflow, shop_databases: tuple[str, str], metadata: str | None, tmp_path: Path
) -> None:
    source, target = shop_databases
    connections = {
        "AIRFLOW_CONN_SHOP_PG16": postgres_connection(source),
        "AIRFLOW_CONN_SHOP_PG18": postgres_connection(target),
    }
    to = conninfo_to_dict(target)
    dags = only(tmp_path, "follow_shop")
    asset = f"postgres://{to['host']}:{to['port']}/{to['dbname']}/shop/vouchers"
    (dags / "consumer.py").write_text(CONSUMER.format(asset=asset))
    with standalone(airflow, tmp_path, dags, metadata=metadata, **connections) as scheduled:
        scheduled.wait_for(scheduled.answers)
        with Writers([source], rate=30) as writers:
            scheduled.wait_for(lambda: scheduled.done() >= 1)
            with psycopg.connect(source) as conn:
                conn.execute(NEW)
            scheduled.wait_for(lambda: scheduled.done() >= 2)
        assert writers.notes.failures == []
        # One that has begun by now may have passed its replay's last window; the next one sees all.
        begun = len(scheduled.runs())
        scheduled.wait_for(lambda: scheduled.done() > max(begun, 2))
        # By then the new table is known; whoever begins now has nothing to do but to replay.
        known, told = len(scheduled.runs()), len(scheduled.asset_events("follow_shop"))
        scheduled.wait_for(lambda: scheduled.done() > known)
        runs, submitted = scheduled.runs(), scheduled.submitted()
        scheduled.wait_for(lambda: "success" in scheduled.states_of("consumer"))
        events = scheduled.asset_events("follow_shop")
    assert len(events) == told, "of runs that change nothing nobody hears"
    by = {(extra["pipeline"], extra["stage"]) for uri, _, extra in events if uri == asset}
    assert by == {("follow_shop", "replay")}
    assert submitted[0] >= 5 and submitted[known] == 1, submitted
    finished = [run for run in runs if run[1] == "success"]
    assert len(finished) >= 3
    assert len({date for date, _, _ in runs}) == len(runs), "each run has a logical date of its own"
    for _, _, tasks in finished:
        assert tasks == {f"follow.{name}": "success" for name in FOLLOW}
    assert compare.differences(source, target) == []
    assert compare.compare_sequences(source, target, ahead=True) == []
    assert broken_invariants(target) == []
