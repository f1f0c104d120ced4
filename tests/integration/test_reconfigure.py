"""A pipeline whose file changes while it is under way."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

import psycopg
import pytest
from psycopg import errors as pg
from psycopg.conninfo import make_conninfo

from airflow_provider_pgddl import cli
from airflow_provider_pgddl.demo.compare import catalog_lines, compare_catalogs, diff_catalogs, differences
from airflow_provider_pgddl.engine import stages
from airflow_provider_pgddl.engine.commands.reconfigure import look_at
from airflow_provider_pgddl.engine.commands.reset import reset
from airflow_provider_pgddl.engine.errors import LockHeld, PreflightRefused, StageFailed, UsageError
from airflow_provider_pgddl.engine.journal.lease import Lease
from airflow_provider_pgddl.engine.pipeline.reading import load_pipeline
from tests.combinations import matrix
from tests.conftest import Database
from tests.failpoints import At
from tests.integration import conditions
from tests.integration.calls import before_each
from tests.integration.lifecycle import Lifecycle, execute, left_behind
from tests.integration.sessions import Underway
from tests.integration.standbys import caught_up, promote, with_standby

Make = Callable[..., Lifecycle]
SHOP = """
    CREATE SCHEMA s;
    CREATE TABLE s.gone (id int PRIMARY KEY, body text);
    CREATE TABLE s.stays (id int PRIMARY KEY, code text UNIQUE, gone_id int REFERENCES s.gone, body text);
    CREATE TABLE s.new (id int PRIMARY KEY, stays_id int REFERENCES s.stays ON DELETE CASCADE, body text);
    CREATE TABLE s.parted (id int, part int, PRIMARY KEY (id, part)) PARTITION BY LIST (part);
    CREATE TABLE s.parted_1 PARTITION OF s.parted FOR VALUES IN (1);
    CREATE TABLE s.parted_2 PARTITION OF s.parted FOR VALUES IN (2);
    INSERT INTO s.gone SELECT n, 'x' FROM generate_series(1, 300) n;
    INSERT INTO s.stays SELECT n, 'c' || n, 1 + n % 300, 'x' FROM generate_series(1, 900) n;
    INSERT INTO s.new SELECT n, 1 + n % 900, 'x' FROM generate_series(1, 900) n;
    INSERT INTO s.parted SELECT n, 1 + n % 2 FROM generate_series(1, 200) n;
"""
FIRST = {"include": ["s.gone", "s.stays"]}
THEN = {"include": ["s.stays", "s.new", "s.parted"]}
BORDERS = ("reconfigure.before_taken_commit", "reconfigure.before_release", "reconfigure.before_done_commit")


def change(conn: psycopg.Connection[Any], chance: random.Random) -> None:
    some = chance.randint(1, 1000)
    table = chance.choice(["gone", "stays", "new"])
    statement = chance.choice(
        [
            f"UPDATE s.{table} SET body = body || 'y' WHERE id BETWEEN {some} AND {some} + 5",
            f"UPDATE s.new SET id = id + 2000 WHERE id = {some}",
            f"DELETE FROM s.new WHERE id = {some}",
            f"INSERT INTO s.{table} (id, body) VALUES ({some}, 'new') ON CONFLICT DO NOTHING",
            f"UPDATE s.stays SET code = 'd' || id, gone_id = NULL WHERE id = {some}",
            f"UPDATE s.parted SET part = 3 - part WHERE id = {some} % 200",
            "TRUNCATE s.parted_2" if some < 20 else f"DELETE FROM s.parted WHERE id = {some} % 200",
        ]
    )
    try:
        with conn.transaction():
            conn.execute(statement.encode())
    except (pg.IntegrityError, pg.DeadlockDetected):
        pass


def captured(move: Lifecycle) -> set[str]:
    return {name for (name,) in move.on_source("SELECT DISTINCT root::regclass::text FROM pgddl.captured")}


def told(move: Lifecycle) -> dict[str, tuple[Any, Any]]:
    """What the journal keeps of changes: by key or table, what was and what is."""
    query = "SELECT name, before, after, taken_by, done_at IS NOT NULL FROM pgddl.reconfigurations"
    found = move.journal(query)
    assert all(who and done for *_, who, done in found)
    return {name: (before, after) for name, before, after, *_ in found}


@pytest.mark.parametrize("rows", matrix("change_log", "wal"))
def test_tables_come_and_go_while_everybody_goes_on(
    source_dsn: str, target_dsn: str, lifecycle: Make, at: At, rows: str
) -> None:
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    execute(source_dsn, SHOP)
    move = lifecycle(source_dsn, target_dsn, tables=FIRST, capture={"rows": rows}, backfill={"chunk_bytes": "32kB"})
    with conditions.writing(source_dsn, seed, change):
        move.run_all(until="replay")
        # DDL that fails for the table that goes, and DDL that nobody has read of the table that comes.
        execute(target_dsn, "ALTER TABLE s.gone ADD COLUMN clash int")
        execute(source_dsn, "ALTER TABLE s.gone ADD COLUMN clash int")
        assert [b["table"] for b in move.run("replay").blocked] == ["s.gone"]
        execute(source_dsn, "ALTER TABLE s.new ADD COLUMN before int DEFAULT 5; ALTER TABLE s.gone ADD later int")
        move.content["tables"] = THEN
        refused = str(move.refused("replay", UsageError))
        assert "tables.include changed" in refused and "pgddl reconfigure -p" in refused
        with Lease(target_dsn, move.name, "replay", None) as held:  # somebody runs a stage
            held.take()
            move.refused("setup", LockHeld, reconfigure=True)
        for border in BORDERS:
            with at(border) as passes:
                passes.act = lambda _, passes=passes: passes.lose()
                move.refused("setup", reconfigure=True)
            if border == BORDERS[0]:  # all of it or nothing
                assert move.journal("SELECT count(*) FROM pgddl.reconfigurations") == [(0,)]
                assert captured(move) == {"s.gone", "s.stays"}
            else:
                assert "is not done" in str(move.refused("replay", UsageError))
                assert "is not done" in str(move.refused("snapshot", UsageError))
        execute(source_dsn, "ALTER TABLE s.new ADD COLUMN between_ int DEFAULT 6; CREATE INDEX ON s.new (body)")
        move.run("setup")  # goes on there, whoever runs it
        assert captured(move) == {"s.stays", "s.new", "s.parted"}
        move.run_all(after="setup", until="backfill")
        execute(source_dsn, "ALTER TABLE s.new ADD COLUMN behind int DEFAULT 7; ALTER TABLE s.gone ADD COLUMN x int")
        move.run_all(after="backfill", until="replay")
    move.run_all(after="schema_sync", until="verify")
    names = [("s", "stays"), ("s", "new"), ("s", "parted")]
    assert differences(source_dsn, target_dsn, names) == []
    assert move.journal("SELECT count(*) > 0 FROM s.gone") == [(True,)], "it is left alone"
    assert move.journal("SELECT status FROM pgddl.ddl_events WHERE touches::text ~ 'gone'") == [("skipped",)] * 3
    kept = told(move)
    assert kept["tables.include"] == (FIRST["include"], THEN["include"])
    assert kept["s.gone"][0] == {"state": "indexed"} and "released" in kept["s.gone"][1]["does"]
    assert "captured" in kept["s.new"][1]["does"]
    execute(source_dsn, "ALTER TABLE s.stays DROP CONSTRAINT stays_gone_id_fkey")  # the target has not got that
    move.run_all(after="schema_sync")
    assert differences(source_dsn, target_dsn, names) == []
    only = [line for line in compare_catalogs(source_dsn, target_dsn, ["s"]) if "gone" not in line]
    assert only == []
    assert left_behind(source_dsn) == []


def test_a_condition_that_changes_touches_the_rows_that_it_concerns(
    source_dsn: str, target_dsn: str, lifecycle: Make
) -> None:
    execute(source_dsn, conditions.SHOP)
    move = lifecycle(source_dsn, target_dsn, tables=conditions.TABLES, swap={"fence": "read_only"})
    move.run_all(until="replay")
    versions = "SELECT id, tenant, xmin::text FROM s.orders"
    before = {row[0]: row for row in move.journal(versions)}
    where = conditions.WHERE | {"s.orders": "tenant IN (7, 8) AND id % 3 > 0"}
    move.content["tables"] = conditions.TABLES | {"where": where}
    told_first = look_at(load_pipeline(move.content), source_dsn, target_dsn).to_json()
    assert [step["table"] for step in told_first["tables"]] == ["s.orders"]
    assert "come or go" in told_first["tables"][0]["does"]
    assert {row[0]: row for row in move.journal(versions)} == before, "to be told changes nothing"
    move.run("setup", reconfigure=True)
    move.run("replay")
    after = {row[0]: row for row in move.journal(versions)}
    assert after.keys() == {int(i) for (i,) in move.on_source(f"SELECT id FROM s.orders WHERE {where['s.orders']}")}
    assert before.keys() - after.keys() and after.keys() - before.keys() and before.keys() & after.keys()
    assert {i: after[i] for i in before.keys() & after.keys()} == {i: before[i] for i in before.keys() & after.keys()}
    # None at all, and then what cannot be told of every row: all of it is read again.
    whole = {name: text for name, text in where.items() if name != "s.orders"}
    move.content["tables"] = conditions.TABLES | {"where": whole}
    move.run("setup", reconfigure=True)
    move.run("replay")
    assert conditions.rows(target_dsn, "s.orders") == conditions.rows(source_dsn, "s.orders")


@pytest.mark.parametrize("rows", matrix("change_log", "wal"))
def test_conditions_and_values_change_while_rows_do(
    source_dsn: str, target_dsn: str, lifecycle: Make, at: At, rows: str
) -> None:
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    execute(source_dsn, conditions.SHOP)
    move = lifecycle(
        source_dsn, target_dsn, tables=conditions.TABLES, capture={"rows": rows}, swap={"fence": "read_only"}
    )
    where = {"s.orders": "tenant = 8 OR id < 50", "s.lines": "body = 'x'", "s.events": "at > 90"}
    made = {"s.orders": {"body": "md5(body)"}}
    kind = "kind"
    if rows == "change_log":  # no slot streams keys alone of a partitioned table for good
        kind, made["s.events"] = "upper(kind) AS kind", {"kind": "upper(kind)"}
    with conditions.writing(source_dsn, seed):
        move.run_all(until="replay")
        move.content["tables"] = {**conditions.TABLES, "where": where, "transform": made}
        with at("settle.before_part_commit") as passes:
            passes.act = lambda _: passes.lose()
            move.refused("setup", reconfigure=True)
        with at("settle.before_reload_commit") as passes:
            passes.act = lambda _: passes.lose()
            move.refused("setup")
        move.run("setup", reconfigure=True)
        move.run_all(after="schema_sync", until="verify")
    move.run_all(after="schema_sync", until="verify")
    move.run("swap")  # leaves a foreign key that the part does not fulfil to people

    def wanted(table: str, columns: str) -> list[str]:
        query = f"SELECT to_jsonb(x)::text FROM (SELECT {columns} FROM {table} WHERE {where[table]}) x ORDER BY 1"
        return [text for (text,) in move.on_source(query)]

    for table, columns in {
        "s.orders": "id, tenant, code, md5(body) AS body",
        "s.lines": "*",
        "s.events": f"id, at, {kind}",
    }.items():
        assert conditions.rows(target_dsn, table) == wanted(table, columns), table
    assert conditions.rows(target_dsn, "s.notes") == conditions.rows(source_dsn, "s.notes")
    told(move)


def test_before_and_behind_what_can_change(source_dsn: str, target_dsn: str, lifecycle: Make) -> None:
    """Refusals, each with what it would take; a table that is dropped with what stood on it; rules; what is told."""
    execute(source_dsn, SHOP)
    move = lifecycle(source_dsn, target_dsn, tables=FIRST, follow={"finish": True})
    with pytest.raises(UsageError, match="has not been set up"):
        look_at(load_pipeline(move.content), source_dsn, target_dsn)
    move.run("setup", reconfigure=True)  # which there is nothing to change of
    move.content["ddl"] = {"approval": "required"}
    move.run("setup", reconfigure=True)  # nothing has been dumped yet
    move.run_all(after="setup", until="replay")
    execute(source_dsn, "ALTER TABLE s.stays ADD COLUMN more int")
    (waits,) = move.run("replay").blocked
    assert "awaiting approval" in waits["reason"]
    move.content["ddl"] = {"approval": "auto"}
    move.run("setup", reconfigure=True)
    assert move.run("replay").blocked, "what is recorded stays as it was judged"
    move.journal("UPDATE pgddl.ddl_events SET status = 'pending' WHERE status = 'awaiting_approval'")
    execute(source_dsn, "ALTER TABLE s.stays ADD COLUMN most int")
    assert not move.run("replay").blocked
    foreign = "SELECT count(*) FROM pg_constraint WHERE contype = 'f' AND conrelid = 's.stays'::regclass"
    assert move.journal(foreign) == [(1,)]
    for changed, words in {
        "capture": ({"rows": "wal"}, "capture.rows (changes that are under way"),
        "follow": ({"finish": False}, "follow.finish"),
    }.items():
        assert words[1] in str(move.refused("setup", reconfigure=True, **{changed: words[0]})), changed
    execute(target_dsn, "CREATE TABLE s.new (id int)")
    move.content["tables"] = {"include": ["s.nothing"]}
    assert "matches no table" in str(move.refused("setup", reconfigure=True))
    move.content["tables"] = {"include": ["s.*"]}
    assert "s.new" in str(move.refused("setup", PreflightRefused, reconfigure=True))
    execute(target_dsn, "DROP TABLE s.new")
    # What people made on the target keeps it from being dropped; without it all of it goes.
    execute(target_dsn, "CREATE VIEW s.theirs AS SELECT id FROM s.gone")
    move.content["tables"] = {"include": ["s.stays"]}
    refused = move.refused("setup", StageFailed, reconfigure=True, drop=True)
    assert "s.theirs" in str(refused)
    execute(target_dsn, "DROP VIEW s.theirs")
    move.run("setup", reconfigure=True, drop=True)
    assert move.journal("SELECT to_regclass('s.gone')") == [(None,)]
    assert not move.run("replay").blocked
    assert move.journal(foreign) == [(0,)]
    assert differences(source_dsn, target_dsn, [("s", "stays")]) == []
    # And back again, with all that it had.
    move.content["tables"] = FIRST
    move.run("setup", reconfigure=True)
    move.run_all(after="setup", until="replay")
    assert move.journal(foreign) == [(1,)]
    assert differences(source_dsn, target_dsn, [("s", "stays"), ("s", "gone")]) == []
    kept = told(move)
    assert kept["ddl.approval"] == ("required", "auto")
    reset(load_pipeline(move.content), source_dsn, target_dsn)
    assert left_behind(source_dsn) == left_behind(target_dsn) == []


def test_the_command_tells_and_does(
    source_dsn: str, target_dsn: str, lifecycle: Make, capsys: pytest.CaptureFixture[str], tmp_path: Any
) -> None:
    execute(source_dsn, SHOP)
    move = lifecycle(source_dsn, target_dsn, tables=FIRST)
    move.run_all(until="replay")
    file = tmp_path / "shop.yaml"

    def said(*options: str) -> tuple[int, str]:
        file.write_text(json.dumps(move.content))
        code = cli.main(["reconfigure", "-p", str(file), *options])
        return code, capsys.readouterr().out

    capsys.readouterr()
    assert said("--dry-run") == (0, "nothing has changed\n")
    move.content["tables"] = {"include": ["s.stays", "s.new"]}
    move.content["backfill"] = {"workers": 2}
    code, text = said("--dry-run")
    assert code == 0
    assert "tables.include: s.gone, s.stays → s.stays, s.new (reconfigure)" in text
    assert "backfill.workers: 4 → 2 (free)" in text
    assert "s.gone: released: its changes are captured no longer; s.gone stays as it is" in text
    code, text = said("--dry-run", "--drop", "--json")
    assert {"table": "s.gone", "does": "released: its changes are captured no longer; s.gone is dropped"} in json.loads(
        text
    )["tables"]
    assert told(move) == {}
    code, text = said("--json")
    assert code == 0 and json.loads(text)["stage"] == "setup"
    assert {"tables.include", "backfill.workers", "s.gone", "s.new"} == told(move).keys()
    move.content["capture"] = {"rows": "wal"}
    code, text = said("--dry-run", "--json")
    assert code == 2 and "capture.rows" in json.loads(text)["what"]


def test_servers_may_have_moved_and_may_not_be_others(
    source_dsn: str, target_dsn: str, lifecycle: Make, database: Database, pg16: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    execute(source_dsn, SHOP)
    move = lifecycle(source_dsn, target_dsn, tables=FIRST)
    move.run_all(until="replay")

    def at_(side: str, dsn: str) -> dict[str, Any]:
        monkeypatch.setenv("PGDDL_TEST_ELSEWHERE", dsn)
        return {side: {"dsn": "${PGDDL_TEST_ELSEWHERE}"}}

    other = database(pg16)
    assert "do not belong together" in str(move.refused("setup", reconfigure=True, **at_("source", other)))
    assert "another cluster" in str(move.refused("setup", reconfigure=True, **at_("source", target_dsn)))
    assert "for another target" in str(move.refused("setup", reconfigure=True, **at_("target", other)))
    same = at_("source", make_conninfo(source_dsn, connect_timeout=30))
    assert "source.dsn changed" in str(move.refused("replay", **same))
    move.run("setup", reconfigure=True, **same)
    execute(source_dsn, "UPDATE s.stays SET body = 'moved'")
    move.run("replay", **same)
    assert differences(source_dsn, target_dsn, [("s", "stays"), ("s", "gone")]) == []
    assert told(move).keys() == {"source.dsn"}


def test_a_stage_that_waited_for_a_changed_file_does_not_go_by_the_old_one(
    source_dsn: str, target_dsn: str, lifecycle: Make, at: At, monkeypatch: pytest.MonkeyPatch
) -> None:
    execute(source_dsn, SHOP)
    move = lifecycle(source_dsn, target_dsn, tables=FIRST)
    move.run("setup")
    waiting = threading.Event()
    replay = Underway(partial(stages.run, move.job("replay")))
    with ExitStack() as stack:

        def begin(_: int) -> None:
            before_each(monkeypatch, Lease, "_wait_for_lock", lambda _: waiting.set())
            stack.enter_context(replay)
            assert waiting.wait(60)

        with at("reconfigure.before_taken_commit", begin):
            move.content["tables"] = THEN
            move.run("setup", reconfigure=True)
        assert "tables.include changed" in str(replay.fails(UsageError))


def test_a_source_that_was_promoted(target_dsn: str, lifecycle: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    with with_standby(16) as (primary, standby):
        execute(primary.conninfo(), SHOP)
        move = lifecycle(primary.conninfo(), target_dsn, tables=FIRST)
        move.run_all(until="replay")
        execute(primary.conninfo(), "UPDATE s.stays SET body = 'before'")
        caught_up(primary, standby)
        monkeypatch.setenv("PGDDL_TEST_STANDBY", standby.conninfo())
        moved = {"dsn": "${PGDDL_TEST_STANDBY}"}
        assert "is a standby" in str(move.refused("setup", reconfigure=True, source=moved))
        promote(primary, standby)
        move.content["source"] = moved
        move.run("setup", reconfigure=True)
        execute(standby.conninfo(), "UPDATE s.gone SET body = 'behind'")
        move.run("replay")
        assert differences(standby.conninfo(), target_dsn, [("s", "stays"), ("s", "gone")]) == []
        assert move.journal("SELECT source_timeline FROM pgddl.pipelines") == [(2,)]


@pytest.mark.parametrize("rows", matrix("change_log", "direct_trigger"))
def test_rewrites_come_and_go(source_dsn: str, lifecycle: Make, rows: str) -> None:
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    execute(source_dsn, SHOP)
    bigger = {"alter": ["ALTER COLUMN id TYPE bigint"]}
    move = lifecycle(source_dsn, rewrite={"s.stays": {}, "s.gone": {}}, capture={"rows": rows})
    with conditions.writing(source_dsn, seed, change):
        move.run_all(until="replay")
        move.content["rewrite"] = {"s.stays": bigger, "s.new": bigger}
        assert "reset --tables s.stays" in str(move.refused("setup", reconfigure=True))
        move.content["rewrite"] = {"s.stays": {}, "s.new": bigger}
        move.run("setup", reconfigure=True)
        assert move.journal("SELECT to_regclass('pgddl_copy_s.gone')") == [(None,)]
        move.run_all(after="setup", until="replay")
    execute(source_dsn, "CREATE TABLE s.copy AS SELECT * FROM s.new")
    move.run_all(after="schema_sync", until="swap")
    assert (
        move.journal("(SELECT * FROM s.new EXCEPT SELECT * FROM s.copy) UNION ALL (TABLE s.copy EXCEPT TABLE s.new)")
        == []
    )
    assert move.journal("SELECT pg_typeof(id)::text FROM s.new LIMIT 1") == [("bigint",)]
    assert "has cut over" in str(move.refused("setup", reconfigure=True, rewrite={"s.stays": {}}))
    move.run("cleanup")
    assert left_behind(source_dsn) == ["schema pgddl"], "the journal stays"


def test_what_was_left_out_for_a_table_comes_with_it(lifecycle: Make, source_dsn: str, target_dsn: str) -> None:
    execute(source_dsn, "CREATE SCHEMA v; CREATE TABLE v.a (id int PRIMARY KEY); CREATE TABLE v.b (id int PRIMARY KEY)")
    execute(source_dsn, "CREATE VIEW v.seen AS SELECT * FROM v.b; INSERT INTO v.b VALUES (1)")
    move = lifecycle(source_dsn, target_dsn, tables={"include": ["v.a"]}, ddl={"scope": "everything"})
    move.run_all(until="replay")
    execute(source_dsn, "CREATE VIEW v.counted AS SELECT count(*) FROM v.seen; ALTER TABLE v.b ADD COLUMN z int")
    assert not move.run("replay").blocked
    move.content["tables"] = {"include": ["v.*"]}
    move.run("setup", reconfigure=True)
    execute(source_dsn, "ALTER TABLE v.b ADD COLUMN y int; INSERT INTO v.b VALUES (2, 1, 2)")
    execute(source_dsn, "CREATE OR REPLACE VIEW v.counted AS SELECT count(*) FROM v.seen WHERE id > 0")
    execute(source_dsn, "CREATE VIEW v.more AS SELECT * FROM v.b; COMMENT ON VIEW v.seen IS 'seen'")
    for stage in ("setup", "snapshot", "backfill", "schema_sync"):
        move.run(stage)  # DDL that needs the table waits for its copy
    move.run_all(after="schema_sync", until="swap")
    assert diff_catalogs(catalog_lines(source_dsn), catalog_lines(target_dsn)) == []
    assert differences(source_dsn, target_dsn) == []


def test_nothing_is_dropped_that_the_pipeline_has_not_made(lifecycle: Make, source_dsn: str, target_dsn: str) -> None:
    """A table of the target's own, which is to be adopted: no snapshot has looked at it yet."""
    made = "CREATE TABLE public.{0} (id int PRIMARY KEY); INSERT INTO public.{0} SELECT generate_series(1, {1});"
    for dsn, rows in ((source_dsn, 10), (target_dsn, 20)):
        execute(dsn, made.format("a", rows) + made.format("b", rows))
    move = lifecycle(source_dsn, target_dsn, tables={"include": ["public.*"], "existing": "adopt"})
    move.run("setup")
    move.content["tables"] = {**move.content["tables"], "exclude": ["public.b"]}
    move.run("setup", reconfigure=True, drop=True)
    assert captured(move) == {"a"}
    assert move.journal("SELECT count(*) FROM public.b") == [(20,)]


def test_rows_that_an_archive_keeps_are_no_reconfigurations_to_drop(
    lifecycle: Make, source_dsn: str, target_dsn: str
) -> None:
    made = "CREATE TABLE public.{0} (id int PRIMARY KEY); INSERT INTO public.{0} SELECT generate_series(1, 10);"
    execute(source_dsn, made.format("a") + made.format("b"))
    move = lifecycle(source_dsn, target_dsn, tables={"include": ["public.*"], "operations": ["insert", "update"]})
    move.run_all(until="replay")
    execute(source_dsn, "DELETE FROM public.b WHERE id = 3")
    move.run("replay")
    move.content["tables"] = {**move.content["tables"], "exclude": ["public.b"]}
    config = load_pipeline(move.content)
    with pytest.raises(UsageError, match="--drop would drop rows on the target that the source may have deleted"):
        look_at(config, source_dsn, target_dsn, drop=True)
    assert look_at(config, source_dsn, target_dsn).out
    assert move.journal("SELECT count(*) FROM public.b") == [(10,)]
