"""Thousands of small tables: what is the same for all of them is asked once, and what is small shares transactions."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from airflow_provider_pgddl.demo.clusters import Cluster
from airflow_provider_pgddl.engine.apply.index_build import Build, build
from airflow_provider_pgddl.engine.capture import change_log
from airflow_provider_pgddl.engine.errors import Retry, StageFailed
from airflow_provider_pgddl.engine.journal.pipelines import Journal
from airflow_provider_pgddl.engine.rows.change_log_reading import Logs, summaries
from airflow_provider_pgddl.engine.rows.chunks import Share, ShareDone, copy_chunks
from airflow_provider_pgddl.engine.server import catalog
from airflow_provider_pgddl.engine.server.connect import BY_HAND, connect, keeping_plans, plans_kept
from airflow_provider_pgddl.engine.sql import queries
from airflow_provider_pgddl.engine.stages import backfill, schema_sync
from tests.integration.lifecycle import Lifecycle, execute

Make = Callable[..., Lifecycle]
TABLES_OF_FEW_LOCKS = 120
# Of one more table with a row, a key and an index, with some room for what is asked for every so many tables.
STATEMENTS = {"setup": 7, "snapshot": 3, "backfill": 35, "schema_sync": 6, "replay": 1, "verify": 4}


def make_tables(dsn: str, first: int, last: int) -> None:
    tables = [f"public.t_{n:02}" for n in range(first, last)]
    execute(dsn, ";".join(f"CREATE TABLE {t} (id int PRIMARY KEY, at timestamptz)" for t in tables))
    execute(dsn, ";".join(f"CREATE INDEX ON {t} (at); INSERT INTO {t} VALUES (1, now())" for t in tables))


def test_one_more_table_costs_few_statements(
    pg16: Cluster, pg18: Cluster, database: Callable[..., str], lifecycle: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each statement is a way to the server and back."""
    counted: dict[int, Counter[str]] = {}
    execute_one = psycopg.Cursor.execute

    def count(cursor: Any, *args: Any, **options: Any) -> Any:
        counted[tables][stage] += 1
        return execute_one(cursor, *args, **options)

    for tables in (5, 35):
        source, target = database(pg16), database(pg18)
        make_tables(source, 0, tables)
        move = lifecycle(source, target, tables={"include": ["public.*"]}, capture={"ddl": "off"})
        counted[tables] = Counter()
        for stage in STATEMENTS:
            with monkeypatch.context() as patched:
                patched.setattr(psycopg.Cursor, "execute", count)
                assert not move.run(stage).blocked
        assert move.journal(
            "SELECT count(*) FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid "
            "WHERE c.relnamespace = 'public'::regnamespace"
        ) == [(2 * tables,)]
        assert move.journal("SELECT count(*) FROM public.t_00") == [(1,)]
    each = {stage: (counted[35][stage] - counted[5][stage]) / 30 for stage in STATEMENTS}
    assert {stage: n for stage, n in each.items() if n > STATEMENTS[stage]} == {}


def test_a_statement_that_fails_takes_none_of_those_before_it_along(
    source_dsn: str, target_dsn: str, lifecycle: Make
) -> None:
    make_tables(source_dsn, 0, 6)
    execute(source_dsn, "CREATE VIEW public.t_03_seen AS SELECT id FROM public.t_03")
    execute(target_dsn, "CREATE TABLE public.t_03_seen (of_somebody int)")
    move = lifecycle(source_dsn, target_dsn, tables={"include": ["public.t_*"]}, capture={"ddl": "off"})
    move.run("setup")
    failed = move.refused("snapshot", StageFailed)
    assert "t_03_seen" in str(failed)
    counts = dict(move.journal("SELECT status, count(*) FROM pgddl.ddl_events WHERE phase = 'create' GROUP BY 1"))
    assert counts["failed"] == 1
    assert counts["applied"] > 0
    there = {name for (name,) in move.journal("SELECT relname FROM pg_class WHERE relname ~ '^t_..$'")}
    assert there == {"t_00", "t_01", "t_02", "t_03"}
    execute(target_dsn, "DROP TABLE public.t_03_seen")
    move.run_all(until="verify", after="setup")


def test_kept_plans_end_with_the_outermost_block(source_dsn: str) -> None:
    make_tables(source_dsn, 0, 1)
    mode = "SELECT current_setting('plan_cache_mode')"
    with connect(source_dsn, purpose="test") as conn:
        oid = catalog.oid_of(conn, "public", "t_00")
        assert oid is not None
        with plans_kept(conn):
            assert catalog.describe(conn, [oid]).keys() == {oid}
            assert conn.execute(mode).fetchone() == ("force_generic_plan",)
        assert conn.execute(mode).fetchone() == ("auto",)
        first = conn.execute("SELECT count(*) FROM pg_prepared_statements").fetchone()
        conn.execute("CREATE TABLE public.other (id int PRIMARY KEY)")
        other = catalog.oid_of(conn, "public", "other")
        assert other is not None
        assert [t.name for t in catalog.describe(conn, [other]).values()] == ["other"]
        assert conn.execute("SELECT count(*) FROM pg_prepared_statements").fetchone() == first
        assert conn.prepare_threshold == BY_HAND
        for failing in ("SELECT 1 / 0", None):
            with pytest.raises((psycopg.Error, Retry)), conn.transaction(), plans_kept(conn):
                if failing is not None:
                    conn.execute(failing)
                raise Retry("changed just now")
            assert conn.execute(mode).fetchone() == ("auto",)
        with pytest.raises(psycopg.errors.DivisionByZero), plans_kept(conn):
            conn.execute("SELECT 1 / 0")
        assert conn.execute(mode).fetchone() == ("auto",)
        with pytest.raises(Retry), keeping_plans(conn):
            for _ in range(2):
                with plans_kept(conn):
                    assert catalog.describe(conn, [oid]).keys() == {oid}
                assert (conn.execute(mode).fetchone(), conn.prepare_threshold) == (("force_generic_plan",), BY_HAND)
            raise Retry("changed just now")
        assert conn.execute(mode).fetchone() == ("auto",)


def test_a_log_is_read_from_its_first_row_on(source_dsn: str, target_dsn: str, lifecycle: Make) -> None:
    make_tables(source_dsn, 0, 2)
    move = lifecycle(source_dsn, target_dsn, tables={"include": ["public.*"]}, capture={"ddl": "off"})
    move.run("setup")
    with (
        connect(source_dsn, purpose="test") as source,
        connect(source_dsn, purpose="test") as writer,
        connect(target_dsn, purpose="test") as target,
    ):
        journal = Journal(target, move.name)
        first, second = journal.tables.of(journal.run)
        logs, untouched = Logs(source), {first.id: (0, False, []), second.id: (0, False, [])}
        assert summaries(logs, [first, second]) == untouched
        with writer.transaction():
            writer.execute("UPDATE public.t_00 SET at = now(); TRUNCATE public.t_01")
            assert summaries(logs, [first, second]) == untouched
        changed = {first.id: (1, False, []), second.id: (1, False, [second.oid])}
        assert summaries(logs, [first, second]) == changed
        with source.transaction():
            source.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            assert summaries(logs, [first, second]) == changed
            writer.execute("UPDATE public.t_00 SET at = now()")
            assert summaries(logs, [first, second]) == changed
        assert summaries(logs, [first])[first.id] == (2, False, [])


def test_a_table_whose_key_goes_before_its_log_is_made_is_left_out(
    source_dsn: str, target_dsn: str, lifecycle: Make
) -> None:
    make_tables(source_dsn, 0, 1)
    lifecycle(source_dsn, target_dsn, tables={"include": ["public.*"]}, capture={"ddl": "off"}).run("setup")
    execute(source_dsn, "CREATE TABLE public.bare (id int)")
    with connect(source_dsn, purpose="test") as source:
        oid = catalog.oid_of(source, "public", "bare")
        assert oid is not None
        assert change_log.prepare(source, "test", [oid], 1.0) == {}
        assert source.execute("SELECT to_regclass(%s)", [f"pgddl.log_test_{oid}"]).fetchone() == (None,)


def test_little_is_shared_by_threads_of_the_driver(
    source_dsn: str, target_dsn: str, lifecycle: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_tables(source_dsn, 0, 15)
    shared = {"backfill": {"workers": 3}, "capture": {"ddl": "off"}}
    move = lifecycle(source_dsn, target_dsn, tables={"include": ["public.*"]}, **shared)
    monkeypatch.setattr(backfill, "CHUNKS_OF_A_THREAD", 5)
    monkeypatch.setattr(schema_sync, "GROUP", 5)
    copied, built = list[int](), list[tuple[str, int]]()

    def copy(work: Share) -> ShareDone:
        done = copy_chunks(work)
        copied.append(done.chunks)
        return done

    def build_part(part: Build) -> int:
        built.append((threading.current_thread().name, len(part.copies)))
        return build(part)

    monkeypatch.setattr(backfill, "copy_chunks", copy)
    monkeypatch.setattr(schema_sync, "build", build_part)
    move.run_all(until="verify")
    assert (len(copied), sum(copied)) == (3, 15)
    assert [tables for _, tables in built] == [5, 5, 5]
    assert {name for name, _ in built} <= {f"pgddl-part-{n}" for n in range(3)}
    valid = "SELECT count(*) FROM pg_index i WHERE indrelid::regclass::text ~ '^t_' AND indisvalid"
    assert move.journal(valid) == move.on_source(valid) == [(30,)]


def test_a_cancellation_at_the_end_leaves_no_plans_kept(source_dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it comes from whoever sees that somebody waits for us: at any moment."""
    with connect(source_dsn, purpose="test") as conn:
        execute, met = conn.execute, list[object]()

        def cancelled(query: Any, *args: Any, **options: Any) -> Any:
            if "'auto'" in query and not met:
                met.append(query)
                execute("DO $$ BEGIN RAISE query_canceled; END $$")
            return execute(query, *args, **options)

        monkeypatch.setattr(conn, "execute", cancelled)
        with pytest.raises(psycopg.errors.QueryCanceled), plans_kept(conn):
            conn.execute("SELECT 1")
        assert met
        assert conn.prepare_threshold == BY_HAND
        assert execute("SHOW plan_cache_mode").fetchone() == ("auto",)


def test_verify_needs_no_lock_for_every_index(pg18: Cluster, database: Callable[..., str], lifecycle: Make) -> None:
    """Of so many tables and indexes that the source has locks for the tables alone."""
    few = {"max_locks_per_transaction": "10", "max_connections": "25", "max_wal_senders": "2"}
    with Cluster(16, settings=few) as source:
        columns = range(12)
        definitions = ", ".join(f"c{n} int DEFAULT {n}" for n in columns)
        indexes = "; ".join(f"CREATE INDEX ON public.t_%(t)s (c{n})" for n in columns)
        for n in range(TABLES_OF_FEW_LOCKS):
            execute(source.conninfo(), f"CREATE TABLE public.t_{n} (id int PRIMARY KEY, {definitions})")
            execute(source.conninfo(), f"INSERT INTO public.t_{n} VALUES (1); " + indexes % {"t": n})
        with psycopg.connect(source.conninfo()) as conn, pytest.raises(psycopg.errors.OutOfMemory):
            for n in range(TABLES_OF_FEW_LOCKS):
                conn.execute(f"SELECT FROM public.t_{n}")
        move = lifecycle(
            source.conninfo(),
            database(pg18),
            tables={"include": ["public.*"]},
            capture={"ddl": "off"},
            backfill={"workers": 1},
        )
        move.run_all(until="verify")


MANY_CHUNKS = """
INSERT INTO pgddl.chunks (table_id, leaf, leaf_schema, leaf_name, filenode, first_block, end_block, bytes)
SELECT table_id, leaf, leaf_schema, leaf_name, filenode, n, n + 1, 8192 FROM pgddl.chunks, generate_series(1, 20000) n;
UPDATE pgddl.chunks SET done_at = now() WHERE first_block < 10000
"""


def test_a_claim_passes_over_no_chunk_that_is_done(source_dsn: str, target_dsn: str, lifecycle: Make) -> None:
    execute(source_dsn, "CREATE TABLE public.t (id int PRIMARY KEY); INSERT INTO public.t VALUES (1)")
    move = lifecycle(source_dsn, target_dsn, tables={"include": ["public.t"]})
    move.run_all(until="backfill")
    assert move.journal("SELECT reltuples >= 1 FROM pg_class WHERE oid = 'pgddl.chunks'::regclass") == [(True,)]
    execute(target_dsn, MANY_CHUNKS)
    execute(target_dsn, "ANALYZE pgddl.chunks")
    with psycopg.connect(target_dsn) as conn:
        (tables,) = [f"{{[{table},{table}]}}" for (table,) in conn.execute("SELECT id FROM pgddl.tables")]
        claim = "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + queries("journal")["claim_chunk"]
        for _ in range(2):  # the first one marks what the update has left in the index
            ((plan,),) = conn.execute(claim.encode(), [tables, []]).fetchall()
    assert plan[0]["Plan"]["Actual Rows"] == 1
    assert plan[0]["Plan"]["Shared Hit Blocks"] + plan[0]["Plan"]["Shared Read Blocks"] < 100
