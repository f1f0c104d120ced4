"""Migrating 16 → 18 while applications write: row by row the same, sequences and structure too."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psycopg
import pytest

from airflow_provider_pgddl.demo.clusters import Cluster
from airflow_provider_pgddl.demo.compare import (
    catalog_lines,
    compare_sequences,
    diff_catalogs,
    differences,
    user_tables,
)
from airflow_provider_pgddl.engine.errors import StageFailed, UsageError
from airflow_provider_pgddl.engine.stages import STAGES
from tests.integration.lifecycle import Lifecycle, execute, left_behind, load_real, psql, wait_until
from tests.integration.nasty import EVERYTHING, NASTY, make_roles
from tests.table_writers import TableWriters

# So small that little data makes many chunks and many windows; one worker, so no SparkSession.
SMALL = {"backfill": {"chunk_bytes": "64kB", "workers": 1}, "replay": {"window_rows": 300}}


def tables_of(dsn: str) -> list[tuple[str, str]]:
    with psycopg.connect(dsn) as conn:
        return user_tables(conn)


def migrate_under_writers(move: Lifecycle, *, between: Sequence[str] = (), rate: float = 150) -> TableWriters:
    """The whole lifecycle with writers on every table, and a statement of `between` after each of the first stages;
    compares at the cut-over, and the structure at the end."""
    source, target = move.source, move.target
    tables, structure = tables_of(source), catalog_lines(source)
    compared: list[object] = []

    def compare() -> None:
        compared.append([str(d) for d in differences(source, target)])
        compared.append([str(d) for d in compare_sequences(source, target)])

    writers = TableWriters([source, target], tables, pipeline=move.name, rate=rate, on_cut_over=compare)
    with writers:
        for stage, statement in itertools.zip_longest(STAGES[:-2], between, fillvalue=""):
            assert not move.run(stage).blocked
            execute(source, statement)
            before = writers.notes.committed.total()
            wait_until(lambda before=before: writers.notes.failures or writers.notes.committed.total() > before + 20)
            assert not writers.notes.failures, f"during {stage}: {writers.notes.failures}"
        move.run("swap")
        wait_until(writers.accepted.is_set)
        move.run("cleanup")
    hint = f"with the writers' seed {writers.seed}: {dict(writers.notes.committed)}"
    assert writers.notes.failures == [], hint
    assert compared == [[], []], hint
    assert diff_catalogs(structure, catalog_lines(target)) == []
    return writers


@pytest.mark.parametrize("data", ["chinook", "northwind"])
def test_a_real_database_moves_while_applications_write(
    pg16: Cluster,
    source_dsn: str,
    target_dsn: str,
    shared_data: Path,
    lifecycle: Callable[..., Lifecycle],
    data: str,
) -> None:
    load_real(pg16, source_dsn, shared_data, data)
    tables = tables_of(source_dsn)
    move = lifecycle(source_dsn, target_dsn, tables={"include": ["*.*"]}, swap={"fence": "read_only"}, **SMALL)
    migrate_under_writers(move)
    # What applications notice of it afterwards: no foreign key unchecked, and a source that takes no writes.
    assert move.journal("SELECT conname FROM pg_constraint WHERE NOT convalidated") == []
    fences = {f"trigger pgddl_fence_{move.name} on {table}" for _, table in tables}
    assert set(left_behind(source_dsn)) == {"schema pgddl", *fences}


def test_values_keys_names_and_shapes_arrive_as_they_are(
    pg16: Cluster, source_dsn: str, target_dsn: str, lifecycle: Callable[..., Lifecycle]
) -> None:
    psql(pg16, source_dsn, (Path(__file__).parent / "values.sql").read_text(encoding="utf-8"))
    move = lifecycle(source_dsn, target_dsn, tables={"include": ["*.*"]}, swap={"fence": "read_only"}, **SMALL)
    # All together would have the windows of a busy machine give way all the time.
    truncates = (
        "TRUNCATE v.k_numeric, v.k_text",
        "TRUNCATE v.hashed_1; TRUNCATE v.event_2024",
        "TRUNCATE ONLY v.dog; TRUNCATE v.puppy, v.k_unique RESTART IDENTITY",
        "TRUNCATE v.hashed; TRUNCATE v.chicken CASCADE",
        "TRUNCATE v.event_old; INSERT INTO v.event_old (at, id, kind) VALUES ('2020-01-01+00', 1, 'a')",
    )
    migrate_under_writers(move, between=truncates, rate=60)


def test_a_schema_of_everything_moves(
    pg16: Cluster, pg18: Cluster, source_dsn: str, target_dsn: str, lifecycle: Callable[..., Lifecycle]
) -> None:
    for cluster in (pg16, pg18):
        make_roles(cluster)
    psql(pg16, source_dsn, NASTY.read_text(encoding="utf-8") + EVERYTHING)
    chosen = {"include": ["*.*"], "schema_only": ["shop.virtual_key"]}
    move = lifecycle(source_dsn, target_dsn, tables=chosen, swap={"fence": "read_only"}, **SMALL)
    structure = catalog_lines(source_dsn)
    move.run_all(until="swap")
    assert {d.table for d in differences(source_dsn, target_dsn)} == {"virtual_key"}
    assert compare_sequences(source_dsn, target_dsn) == []
    assert diff_catalogs(structure, catalog_lines(target_dsn), ignore=["publication"]) == []
    cached = "SELECT * FROM shop.cached ORDER BY id"
    assert move.journal(cached) == move.on_source(cached) != []


SMALL_SHOP = """
CREATE TABLE customer (id integer PRIMARY KEY, name text UNIQUE, secret text DEFAULT 'none');
CREATE TABLE purchase (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, customer integer REFERENCES customer,
    total numeric);
CREATE TABLE part (at date, id integer, PRIMARY KEY (at, id)) PARTITION BY RANGE (at);
CREATE TABLE part_2024 PARTITION OF part FOR VALUES FROM ('2024-01-01') TO ('2025-01-01');
CREATE TABLE part_rest PARTITION OF part DEFAULT;
INSERT INTO customer SELECT i, 'name ' || i, 'secret ' || i FROM generate_series(1, 500) i;
INSERT INTO purchase (customer, total) SELECT i % 500 + 1, i FROM generate_series(1, 2000) i;
INSERT INTO part SELECT '2023-07-01'::date + i, i FROM generate_series(1, 700) i;
"""


def test_a_second_run_of_each_stage_finds_nothing_to_do(
    source_dsn: str, target_dsn: str, lifecycle: Callable[..., Lifecycle]
) -> None:
    execute(source_dsn, SMALL_SHOP)
    move = lifecycle(source_dsn, target_dsn, tables={"include": ["*.*"]}, swap={"fence": "read_only"}, **SMALL)
    for stage in STAGES:
        if stage in ("replay", "verify"):
            execute(source_dsn, f"UPDATE customer SET secret = '{stage}' WHERE id % 10 = 0")
        assert move.run(stage).state == "done"
        began = time.monotonic()
        again = move.run(stage)
        assert (again.state, again.blocked) == ("nothing_to_do", []), stage
        assert time.monotonic() - began < 5
    assert differences(source_dsn, target_dsn) == []


def test_stages_out_of_order_are_refused_and_change_nothing(
    source_dsn: str, target_dsn: str, lifecycle: Callable[..., Lifecycle]
) -> None:
    execute(source_dsn, SMALL_SHOP)
    move = lifecycle(source_dsn, target_dsn, tables={"include": ["*.*"]}, **SMALL)
    for stage in STAGES[1:]:
        assert "set up" in move.refused(stage, UsageError).what
    assert (left_behind(source_dsn), left_behind(target_dsn)) == ([], [])
    for done, stage in enumerate(STAGES[:-1]):
        move.run(stage)
        for early in STAGES[done + 2 :]:
            if (stage, early) != ("schema_sync", "verify"):  # which has windows of its own
                error = move.refused(early)
                assert (error.todo or "").startswith("run stage"), f"{early} after {stage}: {error}"
    assert "swap.keep_old" in move.refused("cleanup", UsageError, swap={"keep_old": False}).what
    assert move.run("cleanup").state == "done"
    assert differences(source_dsn, target_dsn) == []


def test_without_a_fence_late_writes_are_counted_and_cleanup_refuses_to_lose_them(
    source_dsn: str, target_dsn: str, lifecycle: Callable[..., Lifecycle]
) -> None:
    execute(source_dsn, SMALL_SHOP)
    move = lifecycle(source_dsn, target_dsn, tables={"include": ["*.*"]}, swap={"fence": "none"}, **SMALL)
    move.run_all(until="swap")
    assert differences(source_dsn, target_dsn) == []
    execute(source_dsn, "UPDATE customer SET secret = 'late' WHERE id < 4; DELETE FROM part WHERE id = 5")
    error = move.refused("cleanup", StageFailed)
    assert "public.customer: 3" in error.what and "public.part: 1" in error.what
    assert error.sql is not None
    execute(source_dsn, error.sql)
    assert move.run("cleanup").state == "done"
    assert left_behind(source_dsn) == []


def test_what_is_left_out_stays_out(source_dsn: str, target_dsn: str, lifecycle: Callable[..., Lifecycle]) -> None:
    execute(
        source_dsn,
        SMALL_SHOP + "CREATE TABLE tmp_1 (x integer); CREATE TABLE audit_1 (id integer PRIMARY KEY); "
        "INSERT INTO audit_1 VALUES (1)",
    )
    chosen = {
        "include": ["public.*"],
        "exclude": ["public.tmp_*"],
        "schema_only": ["public.audit_*"],
        "skip_columns": {"public.customer": ["secret"]},
    }
    move = lifecycle(source_dsn, target_dsn, tables=chosen, **SMALL)
    move.run_all(until="snapshot")
    execute(source_dsn, "UPDATE customer SET secret = 'new' WHERE id < 100")
    move.run_all(after="snapshot")
    assert [d.table for d in differences(source_dsn, target_dsn)] == ["audit_1", "customer", "tmp_1"]
    assert move.journal("SELECT DISTINCT secret FROM customer") == [("none",)]
    assert differences(source_dsn, target_dsn, [("public", "purchase"), ("public", "part")]) == []
    assert move.journal("SELECT to_regclass('tmp_1'), count(*) FROM audit_1") == [(None, 0)]


# pg_dump puts what groups by a key behind the key; until then a view of its name shows nothing but NULL.
BEHIND_KEYS = """
CREATE TABLE a (id int PRIMARY KEY, n int); CREATE TABLE b (id int PRIMARY KEY, a_id int);
CREATE VIEW of_a AS SELECT id, n FROM a GROUP BY id;
CREATE VIEW of_b AS SELECT id, a_id FROM b GROUP BY id;
CREATE VIEW of_both AS SELECT a.id, a.n, count(*) AS many FROM a JOIN b ON b.a_id = a.id GROUP BY a.id;
CREATE VIEW on_both AS SELECT many FROM of_both;
CREATE MATERIALIZED VIEW stored AS SELECT id, many FROM of_both; CREATE INDEX stored_many ON stored (many);
CREATE FUNCTION most() RETURNS bigint BEGIN ATOMIC SELECT max(many) FROM of_both; END;
CREATE FUNCTION first_of_b() RETURNS int IMMUTABLE BEGIN ATOMIC SELECT a_id FROM b GROUP BY id ORDER BY id LIMIT 1; END;
CREATE FUNCTION some_of_a() RETURNS int BEGIN ATOMIC SELECT n FROM a GROUP BY id ORDER BY id LIMIT 1; END;
CREATE FUNCTION more_of_a() RETURNS int BEGIN ATOMIC SELECT n FROM a GROUP BY id LIMIT 1; END;
INSERT INTO a SELECT n, n FROM generate_series(1, 20) n;
INSERT INTO b SELECT n, n % 20 + 1 FROM generate_series(1, 90) n;
CREATE INDEX by_first ON a ((n + first_of_b()));
"""


@pytest.mark.parametrize("first", ["by name", "not blocked"])
def test_views_that_wait_for_keys_of_several_tables_come_with_the_last_of_them(
    source_dsn: str, target_dsn: str, lifecycle: Callable[..., Lifecycle], first: str
) -> None:
    execute(source_dsn, BEHIND_KEYS)
    move = lifecycle(source_dsn, target_dsn, tables={"include": ["*.*"]}, swap={"fence": "read_only"}, **SMALL)
    move.run_all(until="backfill")
    if first == "by name":
        execute(source_dsn, "ALTER TABLE b ADD COLUMN sooner int")
        assert not move.run("schema_sync", tables=["public.a"]).blocked
        execute(source_dsn, "CREATE OR REPLACE VIEW of_a AS SELECT id, n, -n AS less FROM a GROUP BY id")
        more = (
            "CREATE OR REPLACE FUNCTION more_of_a() RETURNS int BEGIN ATOMIC SELECT -n FROM a GROUP BY id LIMIT 1; END"
        )
        execute(source_dsn, more)
    else:
        execute(target_dsn, "ALTER TABLE b DROP COLUMN a_id CASCADE")
        assert [blocked["table"] for blocked in move.run("schema_sync").blocked] == ["public.b"]
        execute(target_dsn, "ALTER TABLE b ADD COLUMN a_id int")
    views = "SELECT viewname FROM pg_views WHERE viewname ~ '^of_' AND definition !~ 'NULL::' ORDER BY 1"
    assert move.journal(views) == [("of_a",)]
    move.run_all(until="verify", after="backfill")
    assert move.journal(views) == [("of_a",), ("of_b",), ("of_both",)]
    # What waited for a table that is gone comes with the swap.
    execute(
        target_dsn, "CREATE OR REPLACE VIEW of_both AS SELECT NULL::int AS id, NULL::int AS n, NULL::bigint AS many"
    )
    waiting = "UPDATE pgddl.ddl_events SET status = 'pending' WHERE phase = 'index' AND event ->> 'name' = 'of_both'"
    move.journal(f"{waiting} AND status = 'applied' RETURNING id")
    structure = catalog_lines(source_dsn)
    move.run("swap")
    assert diff_catalogs(structure, catalog_lines(target_dsn)) == []
    assert differences(source_dsn, target_dsn) == []
