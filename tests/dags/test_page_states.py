"""What the page tells of a pipeline in each of its states, rendered here from what a real journal knows."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from airflow_provider_pgddl.engine import stages
from airflow_provider_pgddl.engine.commands import view as looks_at
from airflow_provider_pgddl.engine.commands.view import view
from airflow_provider_pgddl.engine.errors import StageFailed
from airflow_provider_pgddl.engine.journal.control import Control, Hold
from airflow_provider_pgddl.engine.pipeline.reading import load_pipeline
from airflow_provider_pgddl.engine.server.connect import connect
from airflow_provider_pgddl.page.looks import Looked
from tests.failpoints import At, once
from tests.integration.lifecycle import Lifecycle, execute
from tests.integration.sessions import Underway, in_transaction, wait_for, waits_for_anything

pytestmark = pytest.mark.airflow

Lifecycles = Callable[..., Lifecycle]

SHOP = """
CREATE TABLE customers (id int PRIMARY KEY, name text NOT NULL);
INSERT INTO customers SELECT n, 'customer ' || n FROM generate_series(1, 50) n;
"""
# A figure of setup, as a busy source would have had it.
FOR_LONG = """
UPDATE pgddl.stage_runs SET result = jsonb_set(result, '{figures,longest_wait_ms}', '170') WHERE stage = 'setup'
"""


def told(shop: Lifecycle, *, acts: bool = True, error: str | None = None) -> str:
    """The page's words, without markup."""
    from airflow_provider_pgddl.page.app import templates
    from airflow_provider_pgddl.page.pipelines import FoundPipeline

    pipeline = load_pipeline(shop.content)
    found = FoundPipeline("moves", shop.name, "old", "new", pipeline.in_place)
    journal = Looked(view(shop.name, shop.target), error=error)
    both = Looked(looks_at.both(pipeline, shop.source, shop.target), error=error)
    rows = [(found, journal)]
    shared: dict[str, Any] = {"root": "/pgddl", "part": True, "refresh": 5}
    assert shop.name in templates.get_template("pipelines.html").render(**shared, rows=rows, dag_id=None, task=None)
    page = templates.get_template("pipeline.html")
    html = page.render(**shared, found=found, journal=journal, both=both, acts=acts, tasks=())
    return " ".join(re.sub(r"<[^>]*>", " ", html).split())


def test_a_migration_from_its_first_stage_to_its_last(lifecycle: Lifecycles, source_dsn: str, target_dsn: str) -> None:
    execute(source_dsn, SHOP)
    shop = lifecycle(source_dsn, target_dsn, tables={"include": ["public.*"]})
    assert "Not set up yet" in told(shop)
    for stage in ("setup", "snapshot", "backfill"):
        shop.run(stage)
        assert f"{stage} done" in told(shop)
    for stage in ("schema_sync", "replay"):
        shop.run(stage)
    execute(target_dsn, "UPDATE customers SET name = 'another' WHERE id IN (7, 9)")
    shop.refused("verify", StageFailed)
    said = told(shop)
    assert "2 rows differ from the source" in said and "(9) differs, (7) differs" in said, said
    assert "rows differ : no swap" in said and "goes on" not in said
    assert "another" not in said, "values of rows are nobody's business here"
    shop.run("verify", mend=True)
    assert "differ" not in told(shop) and "goes on" in told(shop)

    shop.dry_run("swap")
    said = told(shop)
    assert "The swap, rehearsed" in said and "writers would have waited for" in said, said
    assert "with the locks that it takes UPDATE pgddl.tables SET state" in said, said
    stages.pause(load_pipeline(shop.content), shop.target, "the report", "ann")
    assert "ann: pause , “the report”" in told(shop)
    assert re.search(r"paused \d+ s ago: the report", told(shop)) and "Resume…" in told(shop)
    assert "Resume…" not in told(shop, acts=False)
    stages.resume(load_pipeline(shop.content), shop.target)
    late = told(shop, error="has not answered within 2 s")
    assert "The journal has not answered within 2 s. What follows was so" in late, late
    assert "Lag and keys behind are 0 s old; asked again: has not answered" in late

    shop.run("swap")
    assert "Run 1: cut over" in told(shop)
    shop.run("cleanup")
    assert "Run 1: finished" in told(shop) and "Pause…" not in told(shop)


def test_how_far_a_copy_is_and_who_waits_for_whom(
    lifecycle: Lifecycles, source_dsn: str, target_dsn: str, at: At
) -> None:
    execute(source_dsn, SHOP.replace("50", "3000"))
    shop = lifecycle(
        source_dsn, target_dsn, tables={"include": ["public.*"]}, backfill={"chunk_bytes": "16kB", "workers": 1}
    )
    shop.run_all(until="snapshot")
    half = at("backfill.before_chunk_commit")
    half.act = once(half.lose, at=5)
    shop.refused("backfill")
    said = told(shop)
    assert re.search(r"[\d.]+ kB of [\d.]+ kB 1,\d{3} of about [23],\d{3} [\d.]+ \w+/s \d+ (s|min)", said), said

    execute(target_dsn, FOR_LONG)
    ours, waits = f"pgddl:{shop.name}:1:window", "LOCK TABLE customers IN ACCESS SHARE MODE"
    with (
        in_transaction(source_dsn, "LOCK TABLE customers IN ACCESS EXCLUSIVE MODE") as other,
        Underway(lambda: execute(make_conninfo(source_dsn, application_name=ours), waits)) as waiting,
    ):
        wait_for(lambda: waits_for_anything(source_dsn), waiting)
        said, pid = told(shop), other.info.backend_pid
        other.rollback()
    assert re.search(rf"{ours} \(pid \d+\) AccessShareLock on public\.customers \d+ s [^<]*\b{pid}\b", said), said
    assert "A writer may have waited for a lock of a stage, at most: 170 ms in setup" in said, said


def test_rows_that_an_archive_keeps_are_counted(lifecycle: Lifecycles, source_dsn: str, target_dsn: str) -> None:
    execute(source_dsn, SHOP)
    shop = lifecycle(source_dsn, target_dsn, tables={"include": ["public.*"], "operations": ["insert", "update"]})
    shop.run_all(until="replay")
    execute(source_dsn, "DELETE FROM customers WHERE id <= 3")
    shop.run_all(after="schema_sync", until="verify")
    assert "47 rows, 3 that the target alone keeps" in told(shop)


def test_what_stops_a_table_and_who_is_at_work(lifecycle: Lifecycles, source_dsn: str, target_dsn: str) -> None:
    execute(source_dsn, SHOP)
    shop = lifecycle(source_dsn, target_dsn, tables={"include": ["public.customers"]})
    shop.run_all(until="replay")
    execute(target_dsn, "ALTER TABLE customers DROP COLUMN name")
    stages.gate(load_pipeline(shop.content), shop.source, shop.target)
    said = told(shop)
    assert "What is blocked, why, and what to do" in said
    assert "ALTER TABLE public.customers ADD COLUMN name text" in said, said
    assert re.search(r"Or .*: pgddl run replay -p FILE --[a-z-]+.*, or in the pipeline file: ", said), (
        "the other ways out"
    )
    button = "Have the next stage run this SQL…"
    assert button in said and button not in told(shop, acts=False)

    with psycopg.connect(target_dsn, autocommit=True) as journal:
        journal.execute("UPDATE pgddl.pipelines SET verify_needed = 'commits were lost'")
        begun = "INSERT INTO pgddl.stage_runs (job_id, pipeline, run, stage, token) VALUES ('j', %s, 1, 'verify', 77)"
        journal.execute(begun, [shop.name])
    with psycopg.connect(target_dsn, application_name=f"pgddl:{shop.name}:77:stage"):
        said = told(shop)
    assert "verify is at work, began" in said and "Cancel…" in said, said
    assert "commits were lost" in said and "pgddl run verify --mend -p FILE" in said


def test_the_lines_of_the_last_hour(lifecycle: Lifecycles, source_dsn: str) -> None:
    execute(source_dsn, SHOP)
    shop = lifecycle(source_dsn, rewrite={"public.customers": {}})
    shop.run_all(until="replay")
    execute(
        source_dsn,
        "INSERT INTO pgddl.windows (pipeline, window_no, run, keys, rows, pending, taken_at, finished_at)"
        f" SELECT '{shop.name}', 1000 + n, 1, n, n, 0, now() - n * interval '1 min' - interval '300 s',"
        " now() - n * interval '1 min' FROM generate_series(1, 70) n",
    )
    said = told(shop)
    assert "seconds of lag at the end of a window, at worst, last hour; at most 300.0" in said, said
    assert "keys a minute, last hour; at most" in said


def test_a_run_that_a_limit_holds_up(lifecycle: Lifecycles, source_dsn: str, target_dsn: str, at: At) -> None:
    """What the limits are is looked up elsewhere: here one is noted as a run notes it."""
    execute(source_dsn, SHOP)
    shop = lifecycle(source_dsn, target_dsn, tables={"include": ["public.*"]})
    shop.run("setup")
    shop.run("snapshot")
    pages: list[str] = []

    def held() -> None:
        ((token,),) = shop.journal("SELECT max(token) FROM pgddl.stage_runs")
        with connect(shop.target, purpose="test") as conn:
            Control(conn, shop.name).throttled(token, Hold("replica_lag", "a replica is 120 s behind"))
        pages.append(told(shop))

    with at("backfill.before_chunk", once(held)):
        shop.run("backfill")
    assert "throttled (replica_lag): a replica is 120 s behind" in pages[0]
