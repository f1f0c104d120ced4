"""revert: a swap in place is taken back, and no row that was written in between is lost."""

from __future__ import annotations

import random
from typing import Any

import psycopg
import pytest

from airflow_provider_pgddl.demo.clusters import Cluster
from airflow_provider_pgddl.demo.compare import catalog_lines, diff_catalogs
from airflow_provider_pgddl.engine import stages
from airflow_provider_pgddl.engine.errors import PreflightRefused, StageFailed, UsageError
from airflow_provider_pgddl.engine.pipeline.reading import load_pipeline
from airflow_provider_pgddl.engine.server.giving_way import Watch
from airflow_provider_pgddl.engine.swapping import refused_rows
from tests.combinations import matrix
from tests.conftest import Database
from tests.failpoints import At
from tests.integration.faults import Faults, until_done
from tests.integration.lifecycle import execute, left_behind, wait_until
from tests.integration.resets import reset, rows_of, structure
from tests.integration.reverts import (
    ITEMS,
    MADE_ANEW,
    SHOWN,
    WIDER,
    WRITES,
    Make,
    one,
    rewrite_of_items,
    rows,
    type_of_id,
)
from tests.integration.rewrites import OTHERS, REWRITE, SMALL, Shop, load, unaccounted
from tests.table_writers import TableWriters


@pytest.fixture(params=matrix(16, 18))
def server(request: pytest.FixtureRequest) -> Cluster:
    cluster: Cluster = request.getfixturevalue(f"pg{request.param}")
    return cluster


@pytest.fixture
def rewrite(pg18: Cluster, database: Database, lifecycle: Make) -> Make:
    return rewrite_of_items(database(pg18), lifecycle)


def test_a_swap_goes_back_and_forth_again(server: Cluster, database: Database, lifecycle: Make) -> None:
    dsn = database(server)
    execute(dsn, ITEMS)
    move = lifecycle(dsn, rewrite=WIDER, **SMALL)
    before = structure(dsn)
    move.run_all(until="verify")
    assert "nothing has been swapped" in move.refused("revert", UsageError).what
    move.run("swap")
    assert type_of_id(move) == "bigint"
    execute(dsn, WRITES)
    seen = one(move, "SELECT count(*) FROM seen")
    there, parts = rows(move, SHOWN), rows(move, table="parts")
    print(move.run("revert").figures)
    assert type_of_id(move) == "integer"
    assert (rows(move, SHOWN), rows(move, table="parts")) == (there, parts)
    assert one(move, "SELECT count(*) FROM seen") == seen, "windows set off the old table's triggers"
    assert one(move, "SELECT legacy FROM items WHERE id = 10085") == "legacy 85"
    kept = dict(move.journal("SELECT id, legacy FROM items WHERE id IN (5, 200, 201)"))
    assert kept == {5: "legacy 5", 200: "legacy 201", 201: "legacy 200"}
    assert one(move, "SELECT legacy FROM items WHERE code = 'new'") == "was"
    assert diff_catalogs(before, structure(dsn), ignore=MADE_ANEW) == []
    assert stages.status(load_pipeline(move.content), dsn, dsn)["state"] == "reverted"
    assert move.run("revert").state == "nothing_to_do"
    assert "the swap has not been done" in move.refused("cleanup", UsageError).what

    execute(dsn, "INSERT INTO items (kind, code) VALUES ('b', 'newer'); DELETE FROM items WHERE id = 5")
    execute(dsn, "REVOKE UPDATE (note) ON items FROM PUBLIC")  # what was carried once does not come back
    there, parts = rows(move, SHOWN), rows(move, table="parts")
    move.run_all(until="swap", after="schema_sync")
    assert type_of_id(move) == "bigint"
    assert (rows(move, SHOWN), rows(move, table="parts")) == (there, parts)
    assert [line for line in catalog_lines(dsn) if line.startswith("grant UPDATE (note)")] == []
    execute(dsn, "INSERT INTO items (kind, code) VALUES ('b', 'newest'); TRUNCATE parts")
    there = rows(move, SHOWN)
    move.run("revert")
    assert (rows(move, SHOWN), rows(move, table="parts")) == (there, [])
    move.run_all(until="cleanup", after="schema_sync")
    assert (rows(move, SHOWN), rows(move, table="parts")) == (there, [])
    assert left_behind(dsn) == ["schema pgddl"]
    assert "finished" in move.refused("revert", UsageError).what
    reset(move)
    assert left_behind(dsn) == []


def test_reset_after_a_revert_leaves_the_source_as_it_was(rewrite: Make) -> None:
    move = rewrite()
    before, there = structure(move.source), rows_of(move.source)
    move.run_all(until="swap")
    with pytest.raises(UsageError) as caught:
        reset(move)
    assert "run stage revert, then reset" in str(caught.value.todo)
    move.run("revert")
    reset(move)
    assert diff_catalogs(before, structure(move.source), ignore=MADE_ANEW[:1]) == []
    assert rows_of(move.source) == there
    assert left_behind(move.source) == []


def test_a_truncated_table_goes_back(rewrite: Make) -> None:
    move = rewrite()
    move.run_all(until="swap")
    execute(move.source, "UPDATE items SET note = 'x' WHERE id < 9; TRUNCATE items, parts")
    execute(
        move.source, "INSERT INTO items (id, kind, code, note) VALUES (7, 'a', 'c7', 'anew'), (900, 'b', 'c9', 'z')"
    )
    there = rows(move, SHOWN)
    move.run("revert")
    assert rows(move, SHOWN) == there
    assert one(move, "SELECT string_agg(DISTINCT legacy, ',') FROM items") == "was", "rows of before are gone"
    assert rows(move, table="parts") == []


def test_stages_that_are_run_again_after_the_swap_leave_the_way_back(rewrite: Make) -> None:
    """As when all tasks of a DAG's run are cleared: the tables that are live now are nothing that setup captures."""
    move = rewrite()
    move.run_all(until="swap")
    execute(move.source, WRITES)
    stages = ("setup", "snapshot", "backfill", "schema_sync", "replay", "verify", "swap")
    assert {stage: move.run(stage).state for stage in stages} == dict.fromkeys(stages, "nothing_to_do")
    execute(move.source, "UPDATE items SET note = 'later' WHERE id = 300")
    there = rows(move, SHOWN)
    move.run("revert")
    assert rows(move, SHOWN) == there
    assert type_of_id(move) == "integer"


BEYOND = {
    "a_key": ("INSERT INTO items (id, kind, code) VALUES (3000000000, 'a', 'far'), (4000000000, 'b', 'farther')",
              ["(3000000000): ", "(4000000000): ", "(column id)", "out of range"],
              "UPDATE items SET id = CASE code WHEN 'far' THEN 9001 ELSE 9002 END WHERE code LIKE 'far%'"),
    "a_value": ("UPDATE items SET n = 3000000000 WHERE id = 17", ["(17): ", "(column n)"],
                "UPDATE items SET n = 3 WHERE id = 17"),
}  # fmt: skip


@pytest.mark.parametrize("what", BEYOND)
def test_values_beyond_the_old_type_are_refused_by_name(rewrite: Make, what: str) -> None:
    write, said, undo = BEYOND[what]
    move = rewrite()
    move.run_all(until="swap")
    execute(move.source, WRITES + ";" + write)
    there = rows(move, SHOWN)
    for _ in range(2):
        error = move.refused("revert", StageFailed)
        assert error.table == "public.items"
        assert [part for part in said if part not in error.what] == [], error.what
    assert type_of_id(move) == "bigint"
    assert rows(move, SHOWN) == there
    execute(move.source, undo)
    there = rows(move, SHOWN)
    move.run("revert")
    assert type_of_id(move) == "integer"
    assert rows(move, SHOWN) == there


def test_a_refused_row_is_told_where_nobody_can_look_for_it(rewrite: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    move = rewrite()
    move.run_all(until="swap")
    execute(move.source, "UPDATE items SET n = 3000000000 WHERE id = 17")

    def slow(conn: psycopg.Connection[Any], *_: object) -> None:
        conn.execute("SELECT pg_sleep(60)")

    def unwatched(conn: Any, watcher: Any) -> Watch:
        """Its session is lost, so nobody sees who waits, and the look is ended."""
        watcher.close()
        return Watch(conn, watcher)

    monkeypatch.setattr(refused_rows, "drain", slow)
    monkeypatch.setattr(refused_rows, "Watch", unwatched)
    error = move.refused("revert", StageFailed)
    assert error.table == "public.items"
    assert "out of range" in error.what and "could not be seen" in error.what, error.what


NARROW = """
CREATE TABLE t (id integer PRIMARY KEY, amount numeric(10,2), word varchar(5), cents integer, gone text NOT NULL,
                at timestamp, real real);
INSERT INTO t SELECT i, i / 4.0, 'w' || i, i, 'g' || i, now(), i FROM generate_series(1, 90) i
"""
COMPUTED = {"public.t": {"alter": [
    "ALTER COLUMN amount TYPE numeric(20,6)", "ALTER COLUMN word TYPE text", "ALTER COLUMN at TYPE timestamptz",
    "ALTER COLUMN real TYPE double precision", "ALTER COLUMN cents TYPE bigint USING (cents * 100)::bigint",
    "DROP COLUMN gone"]}}  # fmt: skip


@pytest.mark.parametrize(
    ("write", "said"),
    [
        ("UPDATE t SET amount = 1.234567 WHERE id = 3", ["(3)", "amount"]),
        ("UPDATE t SET word = 'longer than five' WHERE id = 4", ["(4)", "word"]),
        ("UPDATE t SET real = 0.1 WHERE id = 5", ["(5)", "real"]),
        ("UPDATE t SET cents = 777 WHERE id = 6", ["(6)", "cents"]),
        ("INSERT INTO t (id) VALUES (1000)", ["(1000)", '"gone"', "not-null"]),
    ],
)
def test_what_would_change_on_its_way_back_is_refused(
    pg18: Cluster, database: Database, lifecycle: Make, write: str, said: list[str]
) -> None:
    dsn = database(pg18)
    execute(dsn, NARROW)
    move = lifecycle(dsn, rewrite=COMPUTED, **SMALL)
    move.run_all(until="swap")
    execute(dsn, "UPDATE t SET amount = 7.5, word = 'five5', at = now(), real = 2.5 WHERE id < 20")
    execute(dsn, write)
    there = rows(move, table="t")
    error = move.refused("revert", StageFailed)
    assert [part for part in said if part not in error.what] == [], error.what
    assert rows(move, table="t") == there
    execute(dsn, "DELETE FROM t WHERE id IN (3, 4, 5, 6, 1000)")
    shown = "id, amount::numeric(20,6), word, at::timestamptz, real::double precision"
    there = rows(move, shown, table="t")
    move.run("revert")
    assert rows(move, shown, table="t") == there
    assert one(move, "SELECT count(*) FROM t WHERE cents = id AND gone = 'g' || id") == 86


def test_what_is_not_kept_does_not_go_back(rewrite: Make) -> None:
    move = rewrite(swap={"keep_old": False})
    move.run_all(until="swap")
    assert move.journal("SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace"
                        " WHERE nspname = 'pgddl_old_public'") == []  # fmt: skip
    assert move.journal("SELECT FROM pg_trigger WHERE tgname LIKE 'pgddl%'") == []
    assert "keep_old" in move.refused("revert", UsageError).what
    assert move.run("swap").state == "nothing_to_do"
    move.run("cleanup")
    assert left_behind(move.source) == ["schema pgddl"]


def test_a_cut_over_to_another_cluster_has_no_way_back(source_dsn: str, target_dsn: str, lifecycle: Make) -> None:
    execute(source_dsn, "CREATE TABLE t (id integer PRIMARY KEY)")
    move = lifecycle(source_dsn, target_dsn, tables={"include": ["public.*"]}, **SMALL)
    move.run_all(until="swap")
    assert "has no way back" in move.refused("revert", UsageError).what


def test_the_old_table_is_watched_until_it_is_back(rewrite: Make) -> None:
    move = rewrite()
    move.run_all(until="swap")
    execute(move.source, "INSERT INTO pgddl_old_public.items (kind, code) VALUES ('a', 'stray')")
    assert "written to after the swap" in move.refused("revert", StageFailed).what
    assert type_of_id(move) == "bigint"
    log = one(move, "SELECT log_table FROM pgddl.tables WHERE table_name = 'items'")
    execute(move.source, f"DELETE FROM pgddl_old_public.items WHERE code = 'stray'; DELETE FROM pgddl.{log}")
    move.run("revert")
    assert type_of_id(move) == "integer"


def test_windows_of_a_direct_trigger_go_back_by_the_log(rewrite: Make) -> None:
    move = rewrite(capture={"rows": "direct_trigger"})
    move.run_all(until="swap")
    execute(move.source, WRITES)
    there = rows(move, SHOWN)
    move.run("revert")
    assert rows(move, SHOWN) == there
    move.run("replay")
    execute(move.source, "UPDATE items SET note = 'direct' WHERE id < 7")
    there = rows(move, SHOWN)
    move.run_all(until="swap", after="replay")
    assert (rows(move, SHOWN), type_of_id(move)) == (there, "bigint")


def test_connections_may_be_lost_anywhere_on_both_ways(server: Cluster, database: Database, lifecycle: Make) -> None:
    dsn = database(server)
    execute(dsn, ITEMS)
    before = structure(dsn)
    seed = random.SystemRandom().getrandbits(32)
    faults = Faults(seed, one_in=120)
    move = lifecycle(dsn, rewrite=WIDER, **SMALL)
    chance = random.Random(seed)
    move.run_all(until="verify")
    for _ in range(2):
        for stage in ("replay", "verify", "swap"):
            until_done(move, stage, faults)
        assert type_of_id(move) == "bigint"
        first = chance.randint(300, 400)
        execute(dsn, f"UPDATE items SET n = n + 1 WHERE id > {first}; DELETE FROM items WHERE id = {first}")
        execute(dsn, f"INSERT INTO items (kind, code) VALUES ('a', 'new {first} {chance.random()}')")
        there = rows(move, SHOWN)
        until_done(move, "revert", faults)
        assert rows(move, SHOWN) == there
        move.run("revert")
        assert one(move, "SELECT count(*) FROM items WHERE legacy = 'legacy ' || id OR legacy = 'was'") == len(there)
        assert diff_catalogs(before, structure(dsn), ignore=MADE_ANEW) == []
    print(f"seed {seed}: {dict(faults.lost)}")
    assert faults.lost
    until_done(move, "replay", faults)
    until_done(move, "swap", faults)
    assert rows(move, SHOWN) == there
    until_done(move, "cleanup", faults)
    assert left_behind(dsn) == ["schema pgddl"]


def test_writers_notice_neither_way(server: Cluster, database: Database, lifecycle: Make) -> None:
    """All of test_rewrite's tables there, back, and there again, under their writers and their audit."""
    dsn = database(server)
    load(dsn)
    execute(dsn, EITHER_WAY)
    before = catalog_lines(dsn)
    move = lifecycle(dsn, rewrite=REVERTIBLE, **SMALL | {"replay": {"window_rows": 2000}})
    shop = Shop([dsn], threads=2, rate=40)
    others = TableWriters([dsn], OTHERS, truncate=[("public", "tokens")], threads=2, rate=40)
    print(f"seeds {shop.seed} {others.seed}")

    def some_traffic() -> None:
        for writers in (shop, others):
            seen = writers.notes.committed.total()
            wait_until(lambda w=writers, n=seen: w.notes.committed.total() > n + 20)

    with shop, others:
        some_traffic()
        move.run_all(until="swap")
        for _ in range(2):
            some_traffic()
            print(move.run("revert").figures)
            with shop.quiet(), others.quiet():
                assert unaccounted(dsn) == []
                assert diff_catalogs(before, catalog_lines(dsn), ignore=["RI_ConstraintTrigger"]) == []
            some_traffic()
            for stage in ("replay", "verify", "swap"):
                assert not move.run(stage).blocked
        some_traffic()
        move.run("cleanup")
        some_traffic()
    for writers in (shop, others):
        print(writers.notes.committed, writers.notes.refused, writers.notes.retried)
        assert writers.notes.failures == []
        assert not writers.notes.refused
    assert unaccounted(dsn) == []
    assert move.journal("SELECT FROM pg_constraint WHERE NOT convalidated") == []
    assert left_behind(dsn) == ["schema pgddl"]


# What test_rewrite's audit compares: nothing of the columns that a row has on one of the ways only.
EITHER_WAY = """
CREATE OR REPLACE FUNCTION audit.as_rewritten(relation oid, image jsonb) RETURNS jsonb LANGUAGE sql IMMUTABLE AS
$$ SELECT image - 'legacy' - 'legacy_no' - 'legacy_region' $$
"""
# Without what can only be computed one way.
REVERTIBLE = {
    table: {"alter": [a for a in options.get("alter", []) if "USING" not in a]} for table, options in REWRITE.items()
}


@pytest.mark.parametrize("where", ["revert.before_schemas_commit", "revert.before_commit", "revert.after_commit"])
def test_a_revert_that_is_killed_is_done_by_a_retry(rewrite: Make, where: str, at: At) -> None:
    move = rewrite()
    before = structure(move.source)
    move.run_all(until="swap")
    execute(move.source, WRITES)
    there = rows(move, SHOWN)

    class Killed(BaseException):
        pass

    def die(_: int) -> None:
        raise Killed

    with at(where, die), pytest.raises(Killed):
        move.run("revert")
    done = where == "revert.after_commit"
    assert type_of_id(move) == ("integer" if done else "bigint")
    assert rows(move, SHOWN) == there
    if done:
        execute(move.source, "INSERT INTO items (kind, code) VALUES ('c', 'in between')")
        there = rows(move, SHOWN)
    assert move.run("revert").state == "done"
    assert (rows(move, SHOWN), type_of_id(move)) == (there, "integer")
    assert diff_catalogs(before, structure(move.source), ignore=MADE_ANEW) == []
    move.run_all(until="cleanup", after="schema_sync")
    assert rows(move, SHOWN) == there


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"rewrite": {"public.plain": {"partition_by": {"column": "id", "hash": 2}}}}, "the new table is partitioned"),
        ({"rewrite": {"public.keyless": {}}, "tables": {"keyless": "copy_at_swap"}}, "it has no key"),
    ],
)
def test_a_table_that_cannot_go_back_says_so(
    pg18: Cluster, database: Database, lifecycle: Make, change: dict[str, Any], said: str
) -> None:
    dsn = database(pg18)
    execute(
        dsn, "CREATE TABLE plain (id int PRIMARY KEY); CREATE TABLE keyless (n int); INSERT INTO keyless VALUES (1)"
    )
    move = lifecycle(dsn, **change)
    move.run_all(until="swap")
    assert said in move.refused("revert", PreflightRefused).what
    move.run("cleanup")
    assert left_behind(dsn) == ["schema pgddl"]  # the journal
