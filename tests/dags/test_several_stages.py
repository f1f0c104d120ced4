"""Several stages in one task: one Spark application, and a result for each."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_provider_pgddl.demo.compare import differences
from tests.dags.conftest import Airflow
from tests.integration.lifecycle import Lifecycle, execute

pytestmark = pytest.mark.airflow

FOLDER = Path(__file__).parent / "folder"
SHOP = """
CREATE TABLE public.orders (id int PRIMARY KEY, note text);
CREATE TABLE public.lines (id int PRIMARY KEY, n int);
INSERT INTO public.orders SELECT i, 'o' || i FROM generate_series(1, 500) i;
INSERT INTO public.lines SELECT i, i FROM generate_series(1, 100) i;
"""


def test_a_migration_in_two_tasks(
    airflow: Airflow, source_dsn: str, target_dsn: str, lifecycle: Callable[..., Lifecycle]
) -> None:
    execute(source_dsn, SHOP)
    move = lifecycle(source_dsn, target_dsn, tables={"include": ["public.*"]})
    ends = {move.content[side]["dsn"][2:-1]: dsn for side, dsn in (("source", source_dsn), ("target", target_dsn))}
    given = {"PGDDL_TEST_SEVERAL": json.dumps(move.content), **ends}
    done = airflow("dags", "test", "several", dags=FOLDER, **given)
    assert airflow.states("several") == {"copy": "success", "swap": "success"}, done.stdout
    assert done.stdout.count("Spark-Submit cmd") == 2
    told = airflow.xcoms("several")
    assert [one["stage"] for one in told["copy"]["stages"]] == [
        "setup",
        "snapshot",
        "backfill",
        "schema_sync",
        "replay",
    ]
    assert [(one["stage"], one["state"]) for one in told["swap"]["stages"]] == [
        ("verify", "done"), ("swap", "done"), ("cleanup", "done"),
    ]  # fmt: skip
    assert differences(source_dsn, target_dsn) == []
