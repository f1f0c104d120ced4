"""reset after any stage leaves both databases as they were; of one table, all others as they are."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest

from airflow_provider_pgddl import cli
from airflow_provider_pgddl.demo.clusters import Cluster
from airflow_provider_pgddl.demo.compare import catalog_lines, diff_catalogs, differences
from airflow_provider_pgddl.engine.errors import (
    EXIT_USAGE,
    PgddlError,
    PreflightRefused,
    Retry,
    StageFailed,
    UsageError,
)
from airflow_provider_pgddl.engine.journal import migrations
from airflow_provider_pgddl.engine.server.connect import connect
from airflow_provider_pgddl.engine.stages import STAGES
from tests.conftest import Database
from tests.failpoints import At, once
from tests.integration.lifecycle import Lifecycle, execute, left_behind, psql, wait_until
from tests.integration.nasty import EVERYTHING, NASTY, make_roles
from tests.integration.resets import reset, rows_of, structure
from tests.integration.rewrites import FLOOR, REWRITE, load, unaccounted

SMALL = {"backfill": {"chunk_bytes": "32kB", "workers": 1}}

SOME = {table: REWRITE[table] for table in (f'"{FLOOR}"."Orders"', f'"{FLOOR}".lines', "public.badges")}
CHOSEN = {"include": ["*.*"], "schema_only": ["shop.virtual_key"]}


def run_until(move: Lifecycle, stage: str) -> None:
    for each in STAGES[: STAGES.index(stage) + 1]:
        assert not move.run(each).blocked


# A schema that every database has.
PUBLIC = """
ALTER SCHEMA public OWNER TO pgddl_test_owner;
REVOKE USAGE ON SCHEMA public FROM PUBLIC;
COMMENT ON SCHEMA public IS 'ours';
"""


class Untouched:
    """Both databases as they are now; `check` after whatever was done and undone."""

    def __init__(self, source: str, target: str) -> None:
        self._before = {dsn: (structure(dsn), rows_of(dsn)) for dsn in (source, target)}

    def check(self, *dsns: str) -> None:
        for dsn in dsns or self._before:
            lines, rows = self._before[dsn]
            # Of foreign keys that were made anew Postgres names the triggers by new numbers.
            assert diff_catalogs(lines, structure(dsn), ignore=["RI_ConstraintTrigger"]) == []
            assert rows_of(dsn) == rows
            assert left_behind(dsn) == []


@pytest.fixture
def everything(pg16: Cluster, pg18: Cluster, source_dsn: str) -> str:
    for cluster in (pg16, pg18):
        make_roles(cluster)
    psql(pg16, source_dsn, NASTY.read_text(encoding="utf-8") + EVERYTHING + PUBLIC)
    return source_dsn


@contextlib.contextmanager
def killed_when(dsn: str, query: str, victims: str, *, on: str | None = None) -> Iterator[None]:
    """While in the block, ends the backends that `victims` names (a pattern of application names) once the query finds
    something. Fails where none was ended."""

    def watch() -> int:
        with psycopg.connect(dsn, autocommit=True) as conn, psycopg.connect(on or dsn, autocommit=True) as there:
            wait_until(lambda: conn.execute(query.encode()).fetchone(), 20)
            kill = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE %s"
            return len(there.execute(kill + " AND datname = current_database()", [victims]).fetchall())

    with ThreadPoolExecutor(1) as killer:
        killed = killer.submit(watch)
        yield
        assert killed.result() > 0, f"no session was {victims} any more"


@pytest.mark.parametrize("stage", ["setup", "snapshot", "verify"])
def test_a_migration_of_everything_is_undone(
    everything: str, target_dsn: str, lifecycle: Callable[..., Lifecycle], stage: str
) -> None:
    before = Untouched(everything, target_dsn)
    move = lifecycle(everything, target_dsn, tables=CHOSEN, **SMALL)
    run_until(move, stage)
    reset(move)
    before.check()


def test_a_migration_that_died_in_its_backfill_or_cut_over_is_undone(
    everything: str, target_dsn: str, lifecycle: Callable[..., Lifecycle]
) -> None:
    execute(everything, "INSERT INTO shop.hashed SELECT i, repeat('x', 500) FROM generate_series(100, 4000) i")
    before = Untouched(everything, target_dsn)
    move = lifecycle(everything, target_dsn, tables=CHOSEN, swap={"fence": "read_only"}, **SMALL)
    run_until(move, "snapshot")
    chunk_done = "SELECT 1 FROM pgddl.chunks WHERE done_at IS NOT NULL"
    with killed_when(target_dsn, chunk_done, f"pgddl:{move.name}:%:copy"):
        move.refused("backfill", Retry)
    assert move.journal("SELECT 1 FROM pgddl.chunks WHERE done_at IS NULL")
    reset(move)
    before.check()
    move.run_all(until="verify")
    fence = "SELECT 1 FROM pg_trigger WHERE tgname LIKE 'pgddl_fence%'"
    with killed_when(everything, fence, f"pgddl:{move.name}:%:stage", on=target_dsn):
        move.refused("swap", Retry)
    over = move.journal("SELECT 1 FROM pgddl.pipelines WHERE cut_over_at IS NOT NULL")
    reset(move)
    before.check(everything)
    if not over:
        before.check(target_dsn)


def test_a_source_that_does_not_know_the_pipeline_is_not_forgotten(
    source_dsn: str, target_dsn: str, lifecycle: Callable[..., Lifecycle], database: Database, pg16: Cluster,
    pg18: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """Its triggers would log for ever. One that is gone for good, and one that comes back after that."""
    execute(source_dsn, "CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
    move = lifecycle(source_dsn, target_dsn, tables={"include": ["public.*"]})
    move.run_all(until="snapshot")
    file = tmp_path / "shop.yaml"
    file.write_text(json.dumps(move.content))
    command = ["reset", "-p", str(file), "--yes"]
    for elsewhere, why in ((database(pg16), "does not know the pipeline"), (database(pg18), "another cluster")):
        move.moved(elsewhere)
        assert cli.main(command) == EXIT_USAGE
        assert why in (told := capsys.readouterr().err) and "--source-gone" in told
    assert move.journal("SELECT count(*) FROM pgddl.tables") == [(1,)]
    assert cli.main([*command, "--source-gone"]) == 0
    assert left_behind(target_dsn) == []
    move.moved(source_dsn)
    move.run_all(until="replay")
    assert differences(source_dsn, target_dsn) == []
    reset(move)
    assert left_behind(source_dsn) == []


def test_a_migration_that_is_done_stays_done(
    everything: str, target_dsn: str, lifecycle: Callable[..., Lifecycle]
) -> None:
    before = Untouched(everything, target_dsn)
    move = lifecycle(everything, target_dsn, tables=CHOSEN, swap={"fence": "read_only"}, **SMALL)
    move.run_all(until="swap")
    there = structure(target_dsn)
    reset(move)
    before.check(everything)
    assert differences(everything, target_dsn, [("shop", "orders"), ("shop", "events")]) == []
    assert diff_catalogs(there, structure(target_dsn), ignore=["pgddl"]) == []
    assert left_behind(target_dsn) == []
    execute(everything, "INSERT INTO shop.hashed VALUES (-1, 'the fence is down')")


@pytest.mark.parametrize("rows", ["change_log", "wal"])
def test_what_comes_to_the_source_after_the_cut_over_is_not_forgotten(
    source_dsn: str, target_dsn: str, lifecycle: Callable[..., Lifecycle], at: At, rows: str
) -> None:
    """Neither what comes right before the triggers go, nor what nobody has read from the slot yet."""
    execute(source_dsn, "CREATE TABLE public.item (id int PRIMARY KEY)")
    fence = {"fence": "lock"}
    move = lifecycle(source_dsn, target_dsn, tables={"include": ["*.*"]}, capture={"rows": rows}, swap=fence)
    move.run_all(until="swap")
    late = "INSERT INTO public.item VALUES ({})".format
    if rows == "wal":
        execute(source_dsn, late(1))
        with pytest.raises(StageFailed, match="written to after the swap") as unread:
            reset(move)
        execute(target_dsn, unread.value.sql or "")
    border = "capture.before_unpublish_lock" if rows == "wal" else "capture.before_stop_lock"
    at(border, once(lambda: execute(source_dsn, late(2))))
    for _ in range(2):
        with pytest.raises(StageFailed, match=r"written to after the swap \(public.item: 1\)") as refused:
            reset(move)
    execute(target_dsn if rows == "wal" else source_dsn, refused.value.sql or "")
    reset(move)
    assert left_behind(source_dsn) == left_behind(target_dsn) == []


def test_one_table_is_reset_with_what_stands_on_it_and_comes_again(
    everything: str, target_dsn: str, lifecycle: Callable[..., Lifecycle]
) -> None:
    before = catalog_lines(everything)
    move = lifecycle(everything, target_dsn, tables=CHOSEN, swap={"fence": "read_only"}, **SMALL)
    run_until(move, "replay")
    with pytest.raises(UsageError, match=r"shop\.dog"):
        reset(move, ["shop.animal"])
    dropped = reset(move, ["shop.orders", "shop.events"])
    assert 'DROP VIEW IF EXISTS "shop"."on_view"' in dropped
    execute(everything, "SET session_replication_role = origin; UPDATE shop.orders SET note = note || '!' WHERE id < 9")
    for stage in STAGES[: STAGES.index("swap") + 1]:
        assert not move.run(stage).blocked
    assert {d.table for d in differences(everything, target_dsn)} == {"virtual_key"}
    assert diff_catalogs(before, catalog_lines(target_dsn), ignore=["publication", "pgddl"]) == []


CYCLES = """
CREATE EXTENSION IF NOT EXISTS vector;
CREATE VIEW first AS SELECT 1 AS n;
CREATE FUNCTION rows_of_first() RETURNS SETOF first LANGUAGE sql BEGIN ATOMIC SELECT * FROM first; END;
CREATE OR REPLACE VIEW first AS SELECT count(*)::integer AS n FROM pg_class WHERE false;
CREATE VIEW second AS SELECT 1 AS n;
CREATE FUNCTION of_second() RETURNS second LANGUAGE sql AS 'SELECT 1';
CREATE OR REPLACE VIEW second AS SELECT (of_second()).n;
CREATE TABLE a (id integer PRIMARY KEY, b integer);
CREATE TABLE b (id integer PRIMARY KEY, a integer REFERENCES a, place vector(3));
ALTER TABLE a ADD FOREIGN KEY (b) REFERENCES b;
CREATE FUNCTION fits(a) RETURNS boolean LANGUAGE sql IMMUTABLE AS 'SELECT true';
ALTER TABLE a ADD CHECK (fits(a));
CREATE INDEX ON a (fits(a));
CREATE DOMAIN d AS integer;
CREATE FUNCTION good(d) RETURNS boolean LANGUAGE sql IMMUTABLE AS 'SELECT true';
ALTER DOMAIN d ADD CHECK (good(VALUE));
CREATE OPERATOR FAMILY f USING btree;
CREATE OPERATOR CLASS c FOR TYPE integer USING btree FAMILY f AS OPERATOR 1 <, FUNCTION 1 btint4cmp(integer, integer);
CREATE EVENT TRIGGER watch ON ddl_command_end WHEN TAG IN ('CREATE POLICY') EXECUTE FUNCTION noticed();
"""


@pytest.mark.parametrize("there", [False, True])
def test_cycles_are_undone_and_extensions_left_that_were_there(
    source_dsn: str, target_dsn: str, lifecycle: Callable[..., Lifecycle], there: bool
) -> None:
    noticed = "CREATE FUNCTION noticed() RETURNS event_trigger LANGUAGE plpgsql AS 'BEGIN END';"
    execute(source_dsn, noticed + CYCLES)
    if there:
        execute(target_dsn, "CREATE EXTENSION vector; COMMENT ON EXTENSION vector IS 'mine'")
    before = Untouched(source_dsn, target_dsn)
    move = lifecycle(source_dsn, target_dsn, tables={"include": ["*.*"]}, **SMALL)
    run_until(move, "schema_sync")
    reset(move)
    before.check()


def test_what_somebody_made_on_the_target_is_not_taken_along(
    source_dsn: str, target_dsn: str, lifecycle: Callable[..., Lifecycle]
) -> None:
    execute(source_dsn, "CREATE SCHEMA s; CREATE TABLE s.t (id integer PRIMARY KEY)")
    before = Untouched(source_dsn, target_dsn)
    move = lifecycle(source_dsn, target_dsn, tables={"include": ["*.*"]}, **SMALL)
    run_until(move, "schema_sync")
    execute(target_dsn, "CREATE VIEW public.theirs AS SELECT * FROM s.t")
    with pytest.raises(PgddlError, match="depend"):
        reset(move)
    execute(target_dsn, "DROP VIEW public.theirs")
    reset(move)
    before.check()


def test_a_rewrite_is_undone_after_any_stage(source_dsn: str, lifecycle: Callable[..., Lifecycle]) -> None:
    load(source_dsn)
    before = Untouched(source_dsn, source_dsn)
    move = lifecycle(source_dsn, rewrite=SOME, **SMALL)
    for stage in STAGES[: STAGES.index("swap")]:
        run_until(move, stage)
        reset(move)
        before.check()
    move.run_all(until="verify")
    swapping = f"""
        SELECT 1 FROM pg_stat_activity JOIN pg_locks USING (pid)
        WHERE application_name LIKE 'pgddl:{move.name}:%:swap' AND mode = 'AccessExclusiveLock' AND granted"""
    with psycopg.connect(source_dsn) as conn:
        conn.execute("SELECT FROM pgddl.tables FOR SHARE")  # the swap's last word waits for this, again and again
        with killed_when(source_dsn, swapping, f"pgddl:{move.name}:%:swap"), contextlib.suppress(Retry):
            move.run("swap")
    if not move.journal("SELECT 1 FROM pgddl.pipelines WHERE cut_over_at IS NOT NULL"):
        reset(move)
        before.check()
        move.run_all(until="swap")
    with pytest.raises(UsageError, match="has swapped") as refused:
        reset(move)
    assert "run stage revert, then reset" in str(refused.value)
    move.run("revert")
    reset(move)
    before.check()
    move.run_all(until="swap")
    move.run("revert")
    move.run_all(until="cleanup", after="schema_sync")
    there, rows = structure(source_dsn), rows_of(source_dsn)
    reset(move)
    assert "pgddl" not in "".join(structure(source_dsn))
    assert diff_catalogs(there, structure(source_dsn), ignore=["pgddl"]) == []
    assert rows_of(source_dsn) == {name: digest for name, digest in rows.items() if name[0] != "pgddl"}


def test_one_table_of_a_rewrite_is_reset_and_comes_again(source_dsn: str, lifecycle: Callable[..., Lifecycle]) -> None:
    load(source_dsn)
    move = lifecycle(source_dsn, rewrite=SOME, **SMALL)
    run_until(move, "schema_sync")
    reset(move, [f'"{FLOOR}"."Orders"', "public.badges"])
    for stage in ("backfill", "schema_sync", "replay", "verify"):  # but for setup, which takes it along
        move.run(stage)
    with pytest.raises(PreflightRefused, match="would be left behind"):
        move.run("swap")
    execute(source_dsn, "UPDATE badges SET holder = 'new ' || id")
    move.run_all()
    assert unaccounted(source_dsn) == []
    reset(move)
    assert "pgddl" not in "".join(structure(source_dsn))


def test_the_last_pipeline_goes_while_another_one_begins(
    source_dsn: str, target_dsn: str, lifecycle: Callable[..., Lifecycle], at: At
) -> None:
    """What both captures need, and the journal, stay for the one that has come."""
    for table in "ab":
        execute(source_dsn, f"CREATE TABLE {table} (id int PRIMARY KEY); INSERT INTO {table} VALUES (1)")
    last, next_one = (
        lifecycle(source_dsn, target_dsn, tables={"include": [f"public.{t}"]}, capture={"ddl": "off"}) for t in "ab"
    )
    last.run("setup")
    at("forget.before_core_down", once(lambda: next_one.run("setup")))
    reset(last)
    execute(source_dsn, "UPDATE b SET id = 2")
    next_one.run_all(after="setup")
    assert next_one.journal("SELECT id FROM b") == [(2,)]


def test_what_a_killed_setup_leaves_behind_is_taken_away(
    source_dsn: str, target_dsn: str, lifecycle: Callable[..., Lifecycle]
) -> None:
    execute(source_dsn, "CREATE TABLE t (id integer PRIMARY KEY)")
    before = Untouched(source_dsn, target_dsn)
    move = lifecycle(source_dsn, target_dsn, tables={"include": ["*.*"]})
    for dsn, name in ((source_dsn, "core"), (target_dsn, "journal")):
        with connect(dsn, purpose="test") as conn:
            migrations.apply(conn, name)
    reset(move)
    before.check()
    reset(move)
