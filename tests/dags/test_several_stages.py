"""Several stages in one task: one Spark application, and a result for each; what OpenLineage is told of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.execution_time.context import OutletEventAccessors
from psycopg.conninfo import conninfo_to_dict

from airflow_provider_pgddl.assets import alias
from airflow_provider_pgddl.demo.compare import differences
from airflow_provider_pgddl.operators.stages import PgddlStagesOperator
from tests.dags.conftest import LOCAL_SPARK, Airflow
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
    airflow: Airflow, source_dsn: str, target_dsn: str, lifecycle: Callable[..., Lifecycle], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    execute(source_dsn, SHOP)
    move = lifecycle(source_dsn, target_dsn, tables={"include": ["public.*"]})
    ends = {move.content[side]["dsn"][2:-1]: dsn for side, dsn in (("source", source_dsn), ("target", target_dsn))}
    given = {"PGDDL_TEST_SEVERAL": json.dumps(move.content), **ends}
    file = tmp_path / "lineage"
    transport = {"type": "file", "log_file_path": str(file), "append": True}
    given["AIRFLOW__OPENLINEAGE__TRANSPORT"] = json.dumps(transport)
    done = airflow("dags", "test", "several", dags=FOLDER, **given)
    assert airflow.states("several") == {"copy": "success", "swap": "success", "refused": "failed"}, done.stdout
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
    lineage_is_told([json.loads(line) for line in file.read_text().splitlines()], source_dsn, target_dsn)
    for variable, dsn in {**ends, "AIRFLOW_CONN_SPARK_DEFAULT": LOCAL_SPARK}.items():
        monkeypatch.setenv(variable, dsn)
    assert a_retry_tells(move.content) == {uri for uri, _, _ in airflow.asset_events("several")}


def a_retry_tells(pipeline: dict[str, Any]) -> set[str]:
    """The assets that a task tells of which was killed when all was done, and had told nobody."""
    swap = PgddlStagesOperator(task_id="swap", pipeline=pipeline, stages="verify,swap")
    ti = SimpleNamespace(dag_id="several", try_number=2, xcom_push=lambda *_: None)
    events, here = OutletEventAccessors(), SimpleNamespace(folder=str(FOLDER))
    told = swap.execute({"ti": ti, "task": swap, "dag": here, "outlet_events": events})  # type: ignore[typeddict-item]
    assert {one["state"] for one in told["stages"]} == {"nothing_to_do"}
    return {event.dest_asset_key.uri for event in events[alias(pipeline["pipeline"])].asset_alias_events}


def lineage_is_told(events: list[dict[str, Any]], source: str, target: str) -> None:
    there, here = (conninfo_to_dict(dsn) for dsn in (source, target))
    ends = [f"postgres://{end['host']}:{end['port']}" for end in (there, here)]
    tasks = {(event["job"]["name"], event["eventType"]): event for event in events if event["job"]["name"] != "several"}
    assert ("several.swap", "START") in tasks and ("several.swap", "COMPLETE") in tasks, tasks.keys()
    copied = tasks["several.copy", "COMPLETE"]
    assert {(one["namespace"], one["name"]) for one in copied["inputs"]} == {
        (ends[0], f"{there['dbname']}.public.{table}") for table in ("orders", "lines")
    }
    outputs = {one["name"].rpartition(".")[2]: one for one in copied["outputs"]}
    assert {one["namespace"] for one in outputs.values()} == {ends[1]}
    assert {name: one["outputFacets"]["outputStatistics"]["rowCount"] for name, one in outputs.items()} == {
        "orders": 500,
        "lines": 100,
    }
    facets = outputs["orders"]["facets"]
    assert {f["name"]: f["type"] for f in facets["schema"]["fields"]} == {"id": "integer", "note": "text"}
    note = facets["columnLineage"]["fields"]["note"]
    assert [one["field"] for one in note["inputFields"]] == ["note"] and note["transformationType"] == "IDENTITY"
    started = tasks["several.swap", "START"]
    assert len(started["inputs"]) == len(started["outputs"]) == 2, "the journal knows them by then"
    failed = tasks["several.refused", "FAIL"]
    assert len(failed["inputs"]) == 4 and not failed["outputs"], "both sides of what would have been compared"
    assert "nowhere" in failed["run"]["facets"]["errorMessage"]["message"]
    for dsn in (there, here):
        assert str(dsn["password"]) not in json.dumps(events)
