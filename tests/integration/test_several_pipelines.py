"""Several pipelines that share servers: what one of them does is nothing to the others."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from airflow_provider_pgddl.demo.clusters import Cluster
from airflow_provider_pgddl.demo.compare import differences
from airflow_provider_pgddl.engine import stages
from airflow_provider_pgddl.engine.errors import PgddlError, PreflightRefused, StageFailed, UsageError
from airflow_provider_pgddl.engine.pipeline.reading import load_pipeline
from airflow_provider_pgddl.engine.pipeline.way_back import way_back_of
from airflow_provider_pgddl.engine.preflight import rewriting, servers
from airflow_provider_pgddl.engine.server.connect import connect
from airflow_provider_pgddl.engine.stages import setup
from tests.conftest import Database, admin_of, database_name, drop_database
from tests.failpoints import At, once
from tests.integration.lifecycle import Lifecycle, execute, left_behind, psql
from tests.integration.resets import reset, structure

Lifecycles = Callable[..., Lifecycle]

SHOP = """
CREATE SCHEMA shop;
CREATE TABLE shop.orders (id int PRIMARY KEY, note text);
INSERT INTO shop.orders SELECT n, 'note ' || n FROM generate_series(1, 50) n;
"""


class Died(Exception):
    """What a process that is killed leaves behind."""


OID = "SELECT oid FROM pg_database WHERE datname = current_database()"
ALL: dict[str, Any] = {"pipeline": "shop", "tables": {"include": ["shop.*"]}}


def one(dsn: str, query: str) -> Any:
    with psycopg.connect(dsn, autocommit=True) as conn:
        row = conn.execute(query.encode()).fetchone()
    assert row is not None
    return row[0]


def test_the_slots_of_a_namesake_in_another_database_are_left_alone(
    pg16: Cluster, pg18: Cluster, source_dsn: str, target_dsn: str, database: Database, lifecycle: Lifecycles
) -> None:
    """Of one cluster's databases each may have a pipeline of the name; its slots are the cluster's."""
    us = database(pg16)
    for dsn in (source_dsn, us):
        execute(dsn, SHOP)
    theirs = lifecycle(source_dsn, target_dsn, **ALL, capture={"rows": "wal", "ddl": "wal"})
    theirs.run_all(until="replay")
    slots = f"SELECT count(*) FROM pg_replication_slots WHERE database = '{database_name(source_dsn)}'"
    assert one(us, slots) == 2
    mine = lifecycle(us, database(pg18), **ALL)
    mine.run_all()
    assert one(us, slots) == 2
    mine = lifecycle(us, database(pg18), **ALL, capture={"rows": "change_log", "ddl": "wal"})
    refused = mine.refused("setup", StageFailed)
    assert "somebody else's" in refused.what and refused.todo == "give this pipeline another name"
    reset(mine)
    assert one(us, slots) == 2
    assert left_behind(us) == []
    mine.content["pipeline"] = "shop_us"
    mine.run_all(until="replay")
    reset(mine)
    execute(source_dsn, "ALTER TABLE shop.orders ADD more int DEFAULT 3; DELETE FROM shop.orders WHERE id < 9")
    theirs.run_all(after="snapshot", until="verify")
    assert differences(source_dsn, target_dsn) == []


def refused_by_name(move: Lifecycle, why: str) -> None:
    """By check and by setup, before anything is made."""
    before = [structure(dsn) for dsn in (move.source, move.target)]
    findings = stages.check(load_pipeline(move.content), move.source, move.target)["findings"]
    assert [why in f["what"] for f in findings if f["code"] == "name"] == [True]
    assert why in move.refused("setup", PreflightRefused).what
    assert [structure(dsn) for dsn in (move.source, move.target)] == before


def test_a_name_is_given_once_among_pipelines_that_meet_in_a_database(
    pg16: Cluster, source_dsn: str, target_dsn: str, database: Database, lifecycle: Lifecycles
) -> None:
    """One comes there, one goes on from there: they would end each other's sessions, and take each other's logs."""
    last = database(pg16)
    execute(source_dsn, SHOP)
    first = lifecycle(source_dsn, target_dsn, **ALL, capture={"rows": "wal"}, follow={"finish": True})
    first.run_all(until="replay")
    second = lifecycle(target_dsn, last, **ALL)
    refused_by_name(second, "is the target of another pipeline 'shop' already")
    second.content["pipeline"] = "shop_on"
    second.run_all(until="replay")
    execute(source_dsn, "UPDATE shop.orders SET note = 'on' WHERE id < 9")
    first.run("replay")
    second.run("replay")
    assert differences(source_dsn, last) == []


def test_a_name_that_goes_on_from_the_target_is_none_to_come_there_by(
    pg16: Cluster, source_dsn: str, target_dsn: str, database: Database, lifecycle: Lifecycles
) -> None:
    """As a next run neither; a run that is over is in nobody's way, and its reset in nobody's either."""
    last = database(pg16)
    execute(source_dsn, SHOP)
    first = lifecycle(source_dsn, target_dsn, **ALL)
    first.run_all()
    second = lifecycle(target_dsn, last, **ALL)
    second.run_all(until="replay")
    assert "is the source of another" in first.refused("setup", PreflightRefused, again=True).what
    with connect(target_dsn, purpose="copy", pipeline="shop", token=4711) as theirs:
        reset(first)
        assert theirs.execute("SELECT 1").fetchone() == (1,)
    first.content["tables"] = {"include": ["shop.*"], "existing": "adopt"}
    refused_by_name(first, "is the source of another pipeline 'shop' already")
    execute(target_dsn, "DELETE FROM shop.orders WHERE id < 9")
    second.run_all(after="snapshot", until="verify")
    assert differences(target_dsn, last) == []


def test_two_of_a_name_that_met_before_this_was_refused(
    pg16: Cluster, source_dsn: str, target_dsn: str, database: Database, lifecycle: Lifecycles,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """What the refusal advises is done, and neither loses a row by it."""
    last = database(pg16)
    execute(source_dsn, SHOP)
    first = lifecycle(source_dsn, target_dsn, **ALL, capture={"rows": "wal"}, follow={"finish": True})
    second = lifecycle(target_dsn, last, **ALL)
    with monkeypatch.context() as before:
        before.setattr(setup, "refuse_namesake", lambda *_: None)
        before.setattr(servers, "namesake", lambda *_: None)
        first.run_all(until="replay")
        second.run_all(until="replay")
    execute(source_dsn, "UPDATE shop.orders SET note = 'on' WHERE id < 9")
    for one_of_both in (first, second):
        assert "`pgddl reset` this one first" in str(one_of_both.refused("setup", UsageError).todo)
    reset(second)
    second.content["pipeline"] = "shop_on"
    execute(source_dsn, "DELETE FROM shop.orders WHERE id < 5")
    first.run_all(until="verify")
    second.run_all(until="verify")
    assert differences(source_dsn, target_dsn) == differences(target_dsn, last) == []


def test_a_way_back_has_no_name_that_meets_another(
    pg16: Cluster, pg18: Cluster, source_dsn: str, target_dsn: str, database: Database, lifecycle: Lifecycles
) -> None:
    """Its source is the target, and its journal on the source."""
    execute(source_dsn, SHOP)
    move = lifecycle(source_dsn, target_dsn, **ALL, swap={"fence": "read_only", "way_back": "back"})
    to_target, from_source = lifecycle(database(pg16), target_dsn, **ALL), lifecycle(source_dsn, database(pg18), **ALL)
    execute(to_target.source, SHOP.replace("shop", "other"))
    to_target.content |= {"pipeline": "back", "tables": {"include": ["other.*"]}}
    from_source.content["pipeline"] = "back"
    for other, why in ((to_target, "is the target of another"), (from_source, "is the source of another")):
        other.run("setup")
        findings = stages.check(load_pipeline(move.content), move.source, move.target)["findings"]
        assert [why in f["what"] for f in findings if f["code"] == "way_back"] == [True]
        reset(other)
    move.run_all(until="verify")
    from_source.run("setup")
    assert "is the source of another" in str(move.refused("swap", PgddlError))
    reset(from_source)
    move.run_all(after="verify", until="swap")
    back = lifecycle(target_dsn, source_dsn)
    back.content = way_back_of(load_pipeline(move.content)).to_json()
    execute(target_dsn, "DELETE FROM shop.orders WHERE id < 9")
    back.run_all(after="schema_sync", until="swap")
    execute(source_dsn, "DELETE FROM shop.orders WHERE id < 19")
    move.run_all(after="schema_sync", until="swap")
    assert differences(source_dsn, target_dsn) == []


def rewrites(lifecycle: Lifecycles, dsn: str, name: str, table: str = "shop.orders", **more: Any) -> Lifecycle:
    return lifecycle(dsn, pipeline=name, rewrite={table: {"alter": ["ALTER COLUMN id TYPE bigint"]}}, **more)


@pytest.mark.parametrize("what", ["reset", "reset of the table", "reconfigure"])
def test_the_copy_that_another_rewrite_has_made_is_left_alone(
    source_dsn: str, lifecycle: Lifecycles, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Both have set up before the other has made its copy."""
    execute(source_dsn, SHOP + "CREATE TABLE shop.more (id int PRIMARY KEY)")
    first, second = rewrites(lifecycle, source_dsn, "first"), rewrites(lifecycle, source_dsn, "second")
    with monkeypatch.context() as before:
        before.setattr(rewriting, "brought", lambda *_: {})
        second.content["rewrite"]["shop.more"] = {}
        second.run("setup")
        first.run("setup")
    first.run_all(after="setup", until="replay")
    assert "already exists" in str(second.refused("snapshot"))
    execute(source_dsn, "DELETE FROM shop.orders WHERE id < 9")
    if what == "reset":
        reset(second)
    elif what == "reset of the table":
        assert [x for x in reset(second, ["shop.orders"]) if "copy of" in x] == []
    else:
        del second.content["rewrite"]["shop.orders"]
        second.run("setup", reconfigure=True)
    assert one(source_dsn, "SELECT count(*) FROM pgddl_copy_shop.orders") == 50
    first.run_all(after="schema_sync")
    assert one(source_dsn, "SELECT count(*) || pg_typeof(min(id))::text FROM shop.orders") == "42bigint"


@pytest.mark.parametrize("tables", [None, ["shop.orders"]])
@pytest.mark.parametrize("beside", ["in place", "replace"])
def test_a_snapshot_that_died_behind_its_copies_leaves_none(
    source_dsn: str, target_dsn: str, lifecycle: Lifecycles, at: At, beside: str, tables: list[str] | None
) -> None:
    """Its tables are only captured by then; what was made of them goes all the same."""
    execute(source_dsn, SHOP)
    move = rewrites(lifecycle, source_dsn, "first")
    if beside == "replace":
        execute(target_dsn, SHOP)
        move = lifecycle(source_dsn, target_dsn, pipeline="first", tables={"include": ["shop.*"], "existing": beside})
    move.run("setup")

    def die() -> None:
        raise Died

    with pytest.raises(Died), at("snapshot.before_copies_commit", once(die)):
        move.run("snapshot")
    copy = "SELECT to_regclass('pgddl_copy_shop.orders')::text"
    assert one(move.target, copy) is not None
    assert "copy of shop.orders" in reset(move, tables) or not tables
    assert one(move.target, copy) is None
    move.run_all()


def test_a_table_is_rewritten_by_one_pipeline_at_a_time(source_dsn: str, lifecycle: Lifecycles) -> None:
    execute(source_dsn, SHOP)
    first, second = rewrites(lifecycle, source_dsn, "first"), rewrites(lifecycle, source_dsn, "second")
    for stage in ("setup", "snapshot", "backfill", "schema_sync", "replay", "verify", "swap"):
        first.run(stage)
        assert "run 1 of pipeline 'first', which is under way" in second.refused("setup", PreflightRefused).what
    first.run("cleanup")
    second.content["rewrite"]["shop.orders"] = {"alter": ["ALTER COLUMN note TYPE varchar(99)"]}
    second.run_all()
    types = "SELECT pg_typeof(id)::text || ' ' || pg_typeof(note)::text FROM shop.orders LIMIT 1"
    assert one(source_dsn, types) == "bigint character varying"


@pytest.mark.parametrize("existing", ["adopt", "replace"])
def test_a_table_of_the_target_is_taken_by_one_pipeline_at_a_time(
    pg16: Cluster, source_dsn: str, target_dsn: str, database: Database, lifecycle: Lifecycles, existing: str
) -> None:
    """From two sources: the second would take the first one's rows for its own, or its copy."""
    other = database(pg16)
    for dsn in (source_dsn, other, target_dsn):
        execute(dsn, SHOP)
    tables = {"include": ["shop.*"], "existing": existing}
    first = lifecycle(source_dsn, target_dsn, pipeline="first", tables=tables)
    second = lifecycle(other, target_dsn, pipeline="second", tables=tables)
    first.run("setup")
    assert (
        "run 1 of pipeline 'first', which is under way, is about to" in second.refused("setup", PreflightRefused).what
    )
    reset(first)
    second.run("setup")


WAVES = (
    SHOP
    + """
CREATE TYPE shop.kind AS ENUM ('a', 'b');
CREATE FUNCTION shop.positive(int) RETURNS boolean LANGUAGE sql IMMUTABLE AS 'SELECT $1 > 0';
CREATE TABLE shop.lines (id int PRIMARY KEY CHECK (shop.positive(id)), kind shop.kind);
INSERT INTO shop.lines SELECT n, 'a' FROM generate_series(1, 50) n;
"""
)


def test_a_wave_is_reset_while_another_uses_its_schema(source_dsn: str, target_dsn: str, lifecycle: Lifecycles) -> None:
    """What the first one has made and the second one needs stays; all that is the first one's alone goes."""
    execute(source_dsn, WAVES)
    ddl, adopt = {"scope": "replicated_tables"}, {"existing": "adopt"}
    first = lifecycle(source_dsn, target_dsn, pipeline="first", tables={"include": ["shop.orders"]}, ddl=ddl)
    second = lifecycle(source_dsn, target_dsn, pipeline="second", tables={"include": ["shop.lines"], **adopt}, ddl=ddl)
    first.run_all(until="replay")
    second.run_all(until="replay")
    execute(target_dsn, "CREATE VIEW public.mine AS SELECT id FROM shop.orders")
    with pytest.raises(PgddlError, match=r"shop\.orders") as refused:
        reset(first)
    assert refused.value.todo and "beside this pipeline" in refused.value.todo
    execute(target_dsn, "DROP VIEW public.mine")
    done = reset(first)
    assert 'DROP TABLE IF EXISTS "shop"."orders"' in done
    left = [line.split(" (")[0].removeprefix("not done: DROP ") for line in done if line.startswith("not done")]
    assert left == ["FUNCTION IF EXISTS shop.positive(int)", 'TYPE IF EXISTS "shop"."kind"', 'SCHEMA IF EXISTS "shop"']
    assert "table shop.lines" in next(line for line in done if '"shop"."kind"' in line)
    assert first.journal("SELECT pipeline FROM pgddl.pipelines") == [("second",)]
    execute(source_dsn, "UPDATE shop.lines SET kind = 'b' WHERE id < 9; DELETE FROM shop.orders WHERE id < 9")
    second.run_all(after="schema_sync", until="verify")
    first.content["tables"] |= adopt
    first.run_all(until="verify")
    assert differences(source_dsn, target_dsn) == []
    reset(first)
    reset(second)
    execute(target_dsn, "DROP FUNCTION shop.positive; DROP TYPE shop.kind; DROP SCHEMA shop")
    assert left_behind(source_dsn) == left_behind(target_dsn) == []


@pytest.mark.parametrize("capture", [{}, {"rows": "wal", "ddl": "wal"}])
def test_a_clone_beside_the_source_is_not_the_source(
    pg16: Cluster, pg18: Cluster, source_dsn: str, target_dsn: str, database: Database, lifecycle: Lifecycles,
    capture: dict[str, str],
) -> None:  # fmt: skip
    """It has all that the source has, but its oid: neither its reset nor its stages touch what the source has copied.
    What is advised gives it a pipeline of its own."""
    execute(source_dsn, SHOP)
    move = lifecycle(source_dsn, target_dsn, **ALL, capture=capture)
    move.run_all(until="replay")
    clone = database(pg16, template=database_name(source_dsn))
    staging = lifecycle(clone, target_dsn, **ALL, capture=capture)
    execute(clone, "DELETE FROM shop.orders WHERE id < 9")
    beside = f"is a clone beside the one that was set up, database '{database_name(source_dsn)}'"
    for source_gone in (False, True):
        with pytest.raises(UsageError, match="is a clone beside"):
            stages.reset(load_pipeline(staging.content), clone, target_dsn, source_gone=source_gone)
    move.moved(clone)
    for stage, options in (("setup", {}), ("setup", {"reconfigure": True}), ("replay", {}), ("verify", {"mend": True})):
        refused = move.refused(stage, **options)
        assert beside in refused.what
    move.moved(source_dsn)
    assert differences(source_dsn, target_dsn) == []
    execute(clone, str(refused.sql))
    assert left_behind(clone) == []
    staging = lifecycle(clone, database(pg18), **ALL, capture=capture)
    if capture:  # slots are the cluster's
        staging.content["pipeline"] = "staging"
    staging.run_all(until="verify")
    assert differences(clone, staging.target) == []
    reset(staging)
    execute(source_dsn, "DELETE FROM shop.orders WHERE id > 40")
    move.run_all(after="schema_sync")
    assert differences(source_dsn, target_dsn) == []


def test_a_clone_that_takes_the_place_of_the_source_is_the_source(
    pg16: Cluster, source_dsn: str, target_dsn: str, database: Database, lifecycle: Lifecycles
) -> None:
    """And what was set up by a version that did not know which database it was."""
    execute(source_dsn, SHOP)
    move = lifecycle(source_dsn, target_dsn, **ALL)
    move.run_all(until="replay")
    move.journal("UPDATE pgddl.pipelines SET source_database = NULL")
    move.run("replay")
    recorded = "SELECT source_database FROM pgddl.pipelines"
    assert move.journal(recorded) == [(one(source_dsn, OID),)]
    clone = database(pg16, template=database_name(source_dsn))
    with admin_of(pg16) as admin:
        admin.execute(f"ALTER DATABASE {database_name(source_dsn)} RENAME TO away".encode())
        admin.execute(f"ALTER DATABASE {database_name(clone)} RENAME TO {database_name(source_dsn)}".encode())
        assert "database 'away'" in move.refused("replay", StageFailed).what
        admin.execute("ALTER DATABASE away RENAME TO " + database_name(clone))
    drop_database(pg16, database_name(clone))
    execute(source_dsn, "DELETE FROM shop.orders WHERE id < 9")
    move.run("replay")
    assert move.journal(recorded) == [(one(source_dsn, OID),)]
    another = database(pg16, template=database_name(source_dsn))
    move.moved(another)
    assert "is a clone beside" in move.refused("replay", StageFailed).what
    move.moved(source_dsn)
    move.run_all(after="schema_sync")
    assert differences(source_dsn, target_dsn) == []


@pytest.mark.parametrize("capture", [{}, {"rows": "wal", "ddl": "wal"}])
def test_a_source_that_came_back_from_a_dump_is_let_go(
    pg16: Cluster, pg18: Cluster, source_dsn: str, target_dsn: str, database: Database, lifecycle: Lifecycles,
    capture: dict[str, str],
) -> None:  # fmt: skip
    """In another cluster, with other oids: what had the oid of a captured table is another one now, or none."""
    execute(source_dsn, SHOP)
    move = lifecycle(source_dsn, target_dsn, **ALL, capture=capture)
    move.run_all(until="replay")
    parts = conninfo_to_dict(source_dsn)
    environment = {**os.environ, "PGPASSWORD": str(parts.pop("password", ""))}
    dump = [str(pg18.bin("pg_dump")), make_conninfo("", **parts)]
    came_back = database(pg18)
    psql(pg18, came_back, subprocess.run(dump, env=environment, capture_output=True, text=True, check=True).stdout)
    execute(came_back, "DELETE FROM shop.orders WHERE id < 9")
    move.moved(came_back)
    assert "--source-gone" in str(move.refused("replay", StageFailed).todo)
    stages.reset(load_pipeline(move.content), came_back, target_dsn, source_gone=True)
    assert left_behind(came_back) == left_behind(target_dsn) == []
    execute(came_back, "DELETE FROM shop.orders WHERE id < 12")
    move.run_all()
    assert differences(came_back, target_dsn) == []
