"""What preflight finds in the servers themselves, and in what is there already."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from airflow_provider_pgddl.demo.clusters import Cluster
from airflow_provider_pgddl.engine.errors import PreflightRefused
from airflow_provider_pgddl.engine.journal import migrations
from airflow_provider_pgddl.engine.pipeline.reading import load_pipeline
from airflow_provider_pgddl.engine.preflight import preflight, servers
from airflow_provider_pgddl.engine.preflight.findings import Finding
from airflow_provider_pgddl.engine.server.connect import connect
from airflow_provider_pgddl.engine.server.connections import room, workers_with_room
from tests.conftest import Database, database_name
from tests.integration.lifecycle import Lifecycle, left_behind
from tests.integration.preflights.findings import (
    ORDERS,
    UNCAPTURED,
    apply_fix,
    as_user,
    errors,
    findings,
    in_place,
    migrate,
    only,
    role,
    run,
)
from tests.integration.servers import as_nobody, free_port
from tests.integration.sessions import one


@contextmanager
def _standby_of(primary: Cluster) -> Iterator[str]:
    """The connection string of a hot standby, stopped by its own process id."""
    folder, port = Path("/tmp") / f"pgddl-standby-{os.getpid()}", free_port()
    to = ["-d", primary.conninfo(), "-D", str(folder), "--write-recovery-conf", "--checkpoint=fast"]
    subprocess.run([primary.bin("pg_basebackup"), *to], check=True, capture_output=True, cwd="/", **as_nobody())
    # A standby takes no smaller limits than its primary's.
    settings = [word for name, value in primary.settings.items() for word in ("-c", f"{name}={value}")]
    server = subprocess.Popen(
        [primary.bin("postgres"), "-D", folder, "-p", str(port), *settings],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        **as_nobody(),
    )
    try:
        dsn = make_conninfo(primary.conninfo(), port=port)
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and server.poll() is None:
            try:
                psycopg.connect(dsn).close()
                break
            except psycopg.OperationalError:
                threading.Event().wait(0.1)
        yield dsn
    finally:
        server.terminate()
        server.wait(30)
        shutil.rmtree(folder, ignore_errors=True)


def test_source_and_target_must_not_be_one_database(source_dsn: str, pg16: Cluster, database: Database) -> None:
    run(source_dsn, ORDERS)
    found = findings(migrate(), source_dsn, source_dsn)
    assert found[0].code == "same_database"
    assert "leave target out" in (found[0].fix or "")
    assert findings(migrate(), source_dsn, database(pg16)) == []


def test_a_standby_is_no_place_to_write(source_dsn: str) -> None:
    run(source_dsn, ORDERS)
    with Cluster(18) as primary:
        if not primary.bin("pg_basebackup").exists():
            pytest.skip("these binaries come without pg_basebackup")
        with _standby_of(primary) as standby:
            assert "standby" in {finding.code for finding in findings(migrate(), source_dsn, standby)}


def test_c20_a_publication_for_all_tables_is_refused(source_dsn: str, target_dsn: str) -> None:
    run(source_dsn, ORDERS)
    options = "publish = 'insert', publish_generated_columns = stored, publish_via_partition_root = true"
    run(target_dsn, f'CREATE PUBLICATION "Everything" FOR ALL TABLES WITH ({options})', "CREATE TABLE there (id int)")
    finding = only(findings(migrate(), source_dsn, target_dsn), "publication")
    assert finding.where == "target"
    what = "SELECT (pubinsert, pubupdate, pubdelete, pubtruncate, pubviaroot, pubgencols)::text FROM pg_publication"
    before = one(target_dsn, what)
    apply_fix(target_dsn, finding)
    assert one(target_dsn, what) == before
    assert findings(migrate(), source_dsn, target_dsn) == []
    run(source_dsn, "CREATE PUBLICATION everything FOR ALL TABLES")
    assert only(findings(migrate(), source_dsn, target_dsn), "publication").where == "source"
    assert only(findings(in_place("public.orders"), source_dsn), "publication").where == "source"


def test_a_subscription_that_no_fence_would_stop(
    pg16: Cluster, database: Database, source_dsn: str, target_dsn: str
) -> None:
    upstream = database(pg16)
    run(
        upstream,
        ORDERS,
        "CREATE PUBLICATION orders FOR TABLE public.orders",
        "SELECT pg_create_logical_replication_slot('pgddl_test', 'pgoutput')",
    )
    options = "slot_name = pgddl_test, create_slot = false, copy_data = false, enabled = false"
    run(source_dsn, ORDERS, f"CREATE SUBSCRIPTION \"Up\" CONNECTION '{upstream}' PUBLICATION orders WITH ({options})")
    behind_a_fence = migrate(swap={"fence": "read_only"})
    try:
        assert findings(behind_a_fence, source_dsn, target_dsn) == []
        run(source_dsn, 'ALTER SUBSCRIPTION "Up" ENABLE')
        assert findings(migrate(), source_dsn, target_dsn) == []
        (finding,) = findings(behind_a_fence, source_dsn, target_dsn)
        assert (finding.severity, finding.code, finding.table) == ("warning", "subscription", "public.orders")
        assert finding.fix is not None
        assert finding.fix.startswith('ALTER SUBSCRIPTION "Up" DISABLE;')
    finally:
        for end in ("DISABLE", "SET (slot_name = NONE)"):
            run(source_dsn, f'ALTER SUBSCRIPTION "Up" {end}')
        run(source_dsn, 'DROP SUBSCRIPTION "Up"')


def test_a_schema_that_is_not_ours_is_refused(dsn: str) -> None:
    run(dsn, ORDERS, "CREATE SCHEMA pgddl", "CREATE SCHEMA pgddl_copy_public", "CREATE SCHEMA pgddl_old_public")
    found = findings(in_place("public.orders"), dsn)
    assert [finding.code for finding in found] == ["foreign_schema"] * 3
    run(dsn, "COMMENT ON SCHEMA pgddl IS 'pgddl: pretends'")
    assert len(findings(in_place("public.orders"), dsn)) == 3  # without our ledger it is not ours
    run(dsn, "DROP SCHEMA pgddl, pgddl_copy_public, pgddl_old_public")
    with connect(dsn, purpose="test") as conn:
        migrations.apply(conn, "journal")
    run(dsn, "CREATE SCHEMA pgddl_copy_public", "COMMENT ON SCHEMA pgddl_copy_public IS 'pgddl: copies'")
    assert findings(in_place("public.orders"), dsn) == []


def test_a_copy_that_nobody_knows_is_refused(dsn: str) -> None:
    run(
        dsn,
        ORDERS,
        "CREATE SCHEMA pgddl_copy_public",
        "COMMENT ON SCHEMA pgddl_copy_public IS 'pgddl: copies'",
        "CREATE TABLE pgddl_copy_public.orders (id int)",
    )
    finding = only(findings(in_place("public.orders"), dsn), "earlier_copy")
    apply_fix(dsn, finding)
    assert findings(in_place("public.orders"), dsn) == []


def test_a_live_table_on_the_target_is_refused_unless_this_run_made_it(source_dsn: str, target_dsn: str) -> None:
    run(source_dsn, ORDERS)
    run(target_dsn, ORDERS)
    finding = only(findings(migrate(), source_dsn, target_dsn), "existing")
    assert (finding.where, finding.table) == ("target", "public.orders")
    with connect(target_dsn, purpose="test") as conn:
        migrations.apply(conn, "journal")
    run(
        target_dsn,
        "INSERT INTO pgddl.pipelines (pipeline, job, config, source_system, source_timeline) "
        "VALUES ('shop', 'migrate', '{}', '1', 1)",
        "INSERT INTO pgddl.tables (pipeline, run, schema_name, table_name, source_oid, log_table, plan, version, "
        "fingerprint, physical, state) "
        "VALUES ('shop', 1, 'public', 'orders', 1, 'l', '{}', '{}', 'f', '{}', 'backfilled')",
    )
    assert findings(migrate(), source_dsn, target_dsn) == []
    run(target_dsn, "UPDATE pgddl.pipelines SET finished_at = now()")  # the next run builds it anew
    assert only(findings(migrate(), source_dsn, target_dsn), "existing")


def test_views_types_and_functions_that_the_target_has_already(source_dsn: str, target_dsn: str) -> None:
    both = [
        "CREATE TYPE public.mood AS ENUM ('ok')",
        "CREATE FUNCTION public.f(a int) RETURNS int LANGUAGE sql AS 'SELECT 1'",
        "CREATE SEQUENCE public.numbers",
        "CREATE DOMAIN public.code AS text",
        "CREATE VIEW public.one AS SELECT 1",
        "CREATE TYPE public.span AS RANGE (subtype = float8)",
    ]
    run(source_dsn, ORDERS, *both)
    run(target_dsn, *both)
    finding = only(findings(migrate(), source_dsn, target_dsn), "existing")
    assert "and 5 more" in finding.what
    apply_fix(target_dsn, finding)
    assert findings(migrate(), source_dsn, target_dsn) == []


def test_encodings_that_cannot_hold_the_source(pg16: Cluster, pg18: Cluster, source_dsn: str, target_dsn: str) -> None:
    run(source_dsn, ORDERS)
    name = f"latin_{os.getpid()}"
    for cluster in (pg16, pg18):
        run(cluster.conninfo(), f"CREATE DATABASE {name} ENCODING 'LATIN1' TEMPLATE template0")
    try:
        finding = only(findings(migrate(), source_dsn, pg18.conninfo(name)), "encoding")
        assert "UTF8, the target's LATIN1" in finding.what
        run(pg16.conninfo(name), ORDERS)
        found = findings(migrate(), pg16.conninfo(name), target_dsn)
        assert [(finding.severity, finding.code) for finding in found] == [("warning", "encoding")]
    finally:
        for cluster in (pg16, pg18):
            run(cluster.conninfo(), f"DROP DATABASE {name} WITH (FORCE)")


def test_an_extension_that_the_target_lacks(pg15: Cluster, database: Database, target_dsn: str) -> None:
    source = database(pg15)
    run(
        source,
        "CREATE EXTENSION citext",
        "CREATE EXTENSION pgcrypto",
        "CREATE DOMAIN public.email AS citext",
        "CREATE TABLE public.people (id int PRIMARY KEY, mails public.email[])",
    )
    found = [finding for finding in errors(findings(migrate(), source, target_dsn)) if finding.code == "extension"]
    assert [(finding.table, finding.where) for finding in found] == [("public.people", "target"), (None, "target")]
    assert "needed by public.people" in found[0].what


def test_an_extension_that_takes_a_superuser(pg16: Cluster, pg18: Cluster, source_dsn: str, target_dsn: str) -> None:
    mover = role(pg18, "mover", "LOGIN BYPASSRLS")
    with psycopg.connect(source_dsn) as conn:
        row = conn.execute(
            "SELECT name FROM pg_available_extension_versions WHERE superuser AND NOT trusted LIMIT 1"
        ).fetchone()
    if row is None:
        pytest.skip("these servers bring no extension that takes a superuser")
    run(source_dsn, ORDERS, f"CREATE EXTENSION {row[0]}")
    found = errors(findings(migrate(), source_dsn, as_user(target_dsn, mover)))
    fix = next(finding.fix for finding in found if finding.code == "extension")
    assert str(fix).startswith(f"CREATE EXTENSION {row[0]};")


def test_a_missing_or_too_old_pg_dump_is_refused(
    source_dsn: str, pg18: Cluster, database: Database, monkeypatch: pytest.MonkeyPatch, pg16: Cluster, tmp_path: Path
) -> None:
    newer = database(pg18)
    run(newer, ORDERS)
    monkeypatch.setenv("PGDDL_PG_DUMP", str(pg16.bin("pg_dump")))
    finding = only(findings(migrate(), newer, source_dsn), "pg_dump")
    assert "pg_dump 16" in finding.what
    assert "18" in (finding.fix or "")
    monkeypatch.setenv("PGDDL_PG_DUMP", str(tmp_path / "nowhere"))
    assert "no pg_dump" in only(findings(migrate(), newer, source_dsn), "pg_dump").what
    monkeypatch.delenv("PGDDL_PG_DUMP")
    assert errors(findings(migrate(), newer, source_dsn)) == []


def test_a_pg_dump_that_cannot_read_the_newer_target_is_refused_before_the_swap_needs_it(
    source_dsn: str, target_dsn: str, monkeypatch: pytest.MonkeyPatch, pg16: Cluster
) -> None:
    run(source_dsn, ORDERS)
    monkeypatch.setenv("PGDDL_PG_DUMP", str(pg16.bin("pg_dump")))
    finding = only(findings(migrate(), source_dsn, target_dsn), "pg_dump")
    assert finding.where == "target"
    assert "version 18 or newer" in finding.what
    dumps_no_target = migrate(ddl={"ddl_only": True, "scope": "schemas"})
    assert errors(findings(dumps_no_target, source_dsn, target_dsn)) == []


def test_a_prepared_transaction_would_keep_setup_waiting(source_dsn: str, target_dsn: str) -> None:
    run(source_dsn, ORDERS)
    with psycopg.connect(source_dsn) as conn:
        conn.execute("INSERT INTO public.orders VALUES (1)")
        conn.execute("PREPARE TRANSACTION 'it''s open'")
    (finding,) = findings(migrate(), source_dsn, target_dsn)
    assert (finding.code, finding.severity) == ("prepared_transaction", "warning")
    apply_fix(source_dsn, finding)
    assert findings(migrate(), source_dsn, target_dsn) == []


def test_too_few_connections_for_the_workers(source_dsn: str, target_dsn: str) -> None:
    run(source_dsn, ORDERS)
    found = findings(migrate(backfill={"workers": 200}), source_dsn, target_dsn)
    assert [(finding.code, finding.where) for finding in found] == [
        ("connections", "source"),
        ("connections", "target"),
    ]
    with psycopg.connect(source_dsn) as conn:
        (most,) = conn.execute("SELECT current_setting('max_connections')::int").fetchone() or (0,)
    free, needed = (int(number) for number in re.findall(r"\d+", found[0].what)[:2])
    assert f"SET max_connections = {most + needed - free};" in (found[0].fix or "")


def test_too_few_locks_for_windows_over_all_tables(
    source_dsn: str, target_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(source_dsn, ORDERS)
    monkeypatch.setattr(servers, "LOCKS_A_TABLE", 100_000)
    found = findings(migrate(), source_dsn, target_dsn)
    assert [(finding.code, finding.where, finding.severity) for finding in found] == [
        ("locks", "source", "warning"),
        ("locks", "target", "warning"),
    ]
    raised = int(re.findall(r"max_locks_per_transaction = (\d+);", found[0].fix or "")[0])
    with psycopg.connect(source_dsn) as conn:
        (sessions,) = conn.execute("SELECT current_setting('max_connections')::int").fetchone() or (0,)
    assert sessions < 100_000 * len(re.findall("CREATE TABLE", ORDERS)) / raised < 1.5 * sessions


def test_connections_that_role_and_database_are_limited_to(pg16: Cluster, source_dsn: str, target_dsn: str) -> None:
    """Both for a role that sees of other roles' sessions no more than that they are there."""
    run(source_dsn, ORDERS)
    limited = as_user(source_dsn, role(pg16, "few", "LOGIN CONNECTION LIMIT 20"))
    ten = migrate(backfill={"workers": 10}, **UNCAPTURED)

    def found() -> list[Finding]:
        return [f for f in findings(ten, limited, target_dsn) if f.code == "connections"]

    def workers() -> int:
        with connect(limited, purpose="test") as one, connect(target_dsn, purpose="test") as other:
            return workers_with_room(10, one, other, in_place=False)

    (finding,) = found()
    assert (finding.where, finding.severity) == ("source", "warning")
    assert finding.what.startswith("19 connections are free to the role, and up to 28 are needed (8 and 2 a worker)")
    assert workers() == 5
    apply_fix(source_dsn, finding)
    assert found() == []
    assert workers() == 10
    name = database_name(source_dsn)
    run(source_dsn, f'ALTER DATABASE "{name}" CONNECTION LIMIT 15')
    with connect(source_dsn, purpose="test") as admin, connect(source_dsn, purpose="test"):
        assert room(admin).of == "server"  # of a superuser nothing else is asked
        (finding,) = found()
        assert finding.what.startswith("12 connections are free to the database")
        assert workers() == 2
        apply_fix(source_dsn, finding)
        assert found() == []
        run(
            source_dsn,
            f'ALTER DATABASE "{name}" CONNECTION LIMIT -1',
            f"ALTER ROLE {conninfo_to_dict(limited)['user']} CONNECTION LIMIT -1",
        )
        with connect(limited, purpose="test") as plain:
            assert room(plain) == room(admin)


def test_what_the_target_will_not_have_is_said(source_dsn: str, target_dsn: str) -> None:
    run(
        source_dsn,
        "CREATE TABLE public.customers (id int PRIMARY KEY)",
        "CREATE TABLE public.child (id int PRIMARY KEY)",
        "CREATE TABLE public.orders (id int PRIMARY KEY, c int CONSTRAINT to_customer REFERENCES public.customers)",
        "CREATE TABLE public.parent (id int)",
        "ALTER TABLE public.child INHERIT public.parent",
        "SELECT lo_from_bytea(0, 'x')",
    )
    found = findings(migrate(tables={"include": ["public.orders", "public.child"]}), source_dsn, target_dsn)
    assert [(finding.severity, finding.code) for finding in found] == [
        ("error", "inheritance"),
        ("warning", "foreign_key"),
        ("warning", "large_objects"),
    ]
    assert "to_customer is left out" in found[1].what


def test_a_partition_that_is_a_foreign_table(source_dsn: str, target_dsn: str) -> None:
    run(
        source_dsn,
        "CREATE FOREIGN DATA WRAPPER w",
        "CREATE SERVER s FOREIGN DATA WRAPPER w",
        "CREATE TABLE public.p (id int NOT NULL) PARTITION BY RANGE (id)",
        "CREATE FOREIGN TABLE public.p1 PARTITION OF public.p FOR VALUES FROM (0) TO (1) SERVER s",
    )
    found = [
        finding for finding in errors(findings(migrate(), source_dsn, target_dsn)) if finding.code == "foreign_table"
    ]
    assert "public.p1 is a foreign table" in found[0].what
    apply_fix(source_dsn, found[0])


def test_a_table_that_went_away_is_named(source_dsn: str, target_dsn: str) -> None:
    run(source_dsn, ORDERS, "CREATE VIEW public.v AS SELECT 1")
    file = load_pipeline(migrate())
    with connect(source_dsn, purpose="test") as source, connect(target_dsn, purpose="test") as target:
        found = preflight(file, source, target, [("public", "gone"), ("public", "v"), ("public", "orders")])
    assert [(finding.code, finding.table) for finding in found] == [
        ("no_table", "public.gone"),
        ("no_table", "public.v"),
    ]


def test_a_dump_that_cannot_be_read_is_met_before_anything_is_touched(
    lifecycle: Callable[..., Lifecycle], source_dsn: str, target_dsn: str
) -> None:
    run(source_dsn, ORDERS, sql.SQL("ALTER DATABASE {} SET standard_conforming_strings = off").format(
        sql.Identifier(database_name(source_dsn))).as_string())  # fmt: skip
    move = lifecycle(source_dsn, target_dsn, tables={"include": ["public.*"]})
    refused = move.refused("setup", PreflightRefused)
    assert "its dump cannot be read" in str(refused)
    assert "SET standard_conforming_strings = on" in str(refused)
    assert left_behind(source_dsn) == []
    assert only(findings(in_place("public.orders"), source_dsn), "dump").fix


def test_event_triggers_of_people_are_named_on_both_sides(source_dsn: str, target_dsn: str) -> None:
    run(source_dsn, ORDERS)
    for dsn in (source_dsn, target_dsn):
        run(dsn, "CREATE FUNCTION public.seen() RETURNS event_trigger LANGUAGE plpgsql AS 'BEGIN END'",
            "CREATE EVENT TRIGGER aa_seen ON ddl_command_end EXECUTE FUNCTION public.seen()")  # fmt: skip
    found = {f.where: f for f in findings(migrate(), source_dsn, target_dsn) if f.code == "event_trigger"}
    assert "comes with the swap" in found["source"].what
    apply_fix(target_dsn, found["target"])
    by_hand = findings(migrate(ddl={"ddl_only": True}), source_dsn, target_dsn)
    assert ["comes by hand only" in f.what for f in by_hand if f.code == "event_trigger"] == [True]


def test_what_runs_at_each_login_and_would_be_locked_out_by_a_fence(
    pg18: Cluster, database: Database, lifecycle: Callable[..., Lifecycle]
) -> None:
    source, target = database(pg18), database(pg18)
    run(source, "CREATE TABLE public.logins (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, app text)")
    for dsn, seen in ((source, "seen"), (target, "seen_there")):
        run(dsn, f"CREATE FUNCTION public.{seen}() RETURNS event_trigger LANGUAGE plpgsql AS 'BEGIN END'",
            f"CREATE EVENT TRIGGER seen ON login EXECUTE FUNCTION public.{seen}()")  # fmt: skip
    found = findings(migrate(capture={"ddl": "off"}), source, target)
    assert {(f.severity, f.code, f.where) for f in found} == {
        ("warning", "login_trigger", "source"), ("warning", "login_trigger", "target"),
    }  # fmt: skip
    run(target, "DROP EVENT TRIGGER seen", "DROP FUNCTION public.seen_there()")
    finding = only(findings(migrate(swap={"fence": "lock"}), source, target), "login_trigger")
    move = lifecycle(source, target, tables={"include": ["*.*"]}, swap={"fence": "read_only"})
    assert "nobody can log in" in str(move.refused("setup", PreflightRefused))
    apply_fix(source, finding)
    move.run("setup")


def test_a_login_trigger_on_the_target_keeps_from_a_way_back(pg18: Cluster, database: Database) -> None:
    source, target = database(pg18), database(pg18)
    run(source, ORDERS)
    run(target, "CREATE FUNCTION public.seen() RETURNS event_trigger LANGUAGE plpgsql AS 'BEGIN END'",
        "CREATE EVENT TRIGGER seen ON login EXECUTE FUNCTION public.seen()")  # fmt: skip
    both_ways = migrate(swap={"fence": "read_only", "way_back": "shop_back"}, verify={"before_swap": True})
    finding = only(findings(both_ways, source, target), "login_trigger")
    assert finding.where == "target"
    apply_fix(target, finding)
    assert errors(findings(both_ways, source, target)) == []
