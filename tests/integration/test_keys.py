"""Keys of types for which "=" alone is not unique, or not the server's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from airflow_provider_pgddl.demo.clusters import Cluster
from airflow_provider_pgddl.demo.compare import differences
from airflow_provider_pgddl.engine import stages
from airflow_provider_pgddl.engine.errors import PipelineFileError, PreflightRefused
from airflow_provider_pgddl.engine.pipeline.reading import load_pipeline
from airflow_provider_pgddl.engine.stages import STAGES
from tests.combinations import matrix
from tests.conftest import Database
from tests.integration.lifecycle import Lifecycle
from tests.integration.partitions import rows_of
from tests.integration.sessions import do, one

# Beside enum = enum there is now text = text, and operators of somebody's own.
KEYS = """
    CREATE SCHEMA m;
    CREATE TYPE m.mood AS ENUM ('a', 'b', 'c', 'd', 'e');
    CREATE CAST (m.mood AS text) WITH INOUT AS IMPLICIT;
    CREATE DOMAIN m.feeling AS m.mood;
    CREATE FUNCTION m.never(m.mood, text) RETURNS boolean LANGUAGE sql IMMUTABLE AS 'SELECT false';
    CREATE OPERATOR m.= (LEFTARG = m.mood, RIGHTARG = text, FUNCTION = m.never);
    CREATE TABLE m.k (m m.mood PRIMARY KEY, n int);
    CREATE TABLE m.both (f m.feeling, n int, w text, PRIMARY KEY (n, f));
    CREATE TABLE m.arrays (a m.mood[] PRIMARY KEY, n int);
    INSERT INTO m.k VALUES ('a', 1), ('b', 2), ('c', 3);
    INSERT INTO m.both SELECT 'a', n, 'w' FROM generate_series(1, 200) n;
    INSERT INTO m.arrays VALUES ('{a,b}', 1), ('{b}', 2)
"""
WRITES = [
    "UPDATE m.k SET n = 7 WHERE n = 1",
    "UPDATE m.k SET m = 'd' WHERE n = 2",
    "DELETE FROM m.k WHERE n = 3",
    "INSERT INTO m.k VALUES ('e', 9)",
    "UPDATE m.both SET f = 'b' WHERE n < 9; UPDATE m.both SET w = 'x' WHERE n > 190; DELETE FROM m.both WHERE n = 50",
    "UPDATE m.arrays SET a = '{c}' WHERE n = 1; UPDATE m.arrays SET n = 5 WHERE n = 2",
]


@pytest.mark.parametrize("rows", ["change_log", "wal", "direct_trigger", "in_place"])
def test_a_key_of_an_enum_with_an_implicit_cast(
    source_dsn: str, target_dsn: str, lifecycle: Callable[..., Lifecycle], rows: str
) -> None:
    do(source_dsn, KEYS)
    if rows in ("direct_trigger", "in_place"):
        how: dict[str, Any] = {} if rows == "in_place" else {"capture": {"rows": rows}}
        move = lifecycle(source_dsn, rewrite={f"m.{t}": {} for t in ("k", "both", "arrays")}, **how)
    else:
        move = lifecycle(source_dsn, target_dsn, tables={"include": ["m.*"]}, capture={"rows": rows})
    move.run_all(until="snapshot")
    do(source_dsn, *WRITES[:3])
    move.run_all(after="snapshot", until="replay")
    do(source_dsn, *WRITES[3:])
    move.run_all(after="schema_sync", until="swap")
    if move.target != move.source:
        assert differences(move.source, move.target) == []
    else:
        rows_of = "SELECT array_agg(x::text ORDER BY x::text) FROM m.{} x"
        assert one(move.source, rows_of.format("k")) == ["(a,7)", "(d,2)", "(e,9)"]
        move.run("revert")
        assert one(move.source, rows_of.format("arrays")) == ["({b},5)", "({c},1)"]


@pytest.mark.parametrize("ddl", matrix("wal", "queue"))
@pytest.mark.parametrize("stage", ["setup", "snapshot", "schema_sync", "replay"])
def test_labels_of_keys_come_and_trade_names_behind_any_stage(
    source_dsn: str, target_dsn: str, lifecycle: Callable[..., Lifecycle], stage: str, ddl: str
) -> None:
    """A slot's log has such keys as text: "a" is another value's, and "b" none, once they have other names."""
    do(source_dsn, KEYS)
    capture = {"rows": "wal", "ddl": ddl}
    move = lifecycle(source_dsn, target_dsn, tables={"include": ["m.*"]}, capture=capture)
    move.run_all(until=stage)
    do(
        source_dsn,
        *WRITES[:2],
        "ALTER TYPE m.mood ADD VALUE 'f'",
        "INSERT INTO m.k VALUES ('f', 11)",
        "UPDATE m.k SET n = 20 WHERE m = 'a'; UPDATE m.both SET w = 'y' WHERE f = 'a' AND n < 40",
        "ALTER TYPE m.mood RENAME VALUE 'a' TO 'z'; ALTER TYPE m.mood RENAME VALUE 'f' TO 'a'",
        "ALTER TYPE m.mood RENAME VALUE 'b' TO 'y'; UPDATE m.k SET n = 30 WHERE m = 'd'",
    )
    move.run_all(after=min(stage, "schema_sync", key=STAGES.index), until="replay")
    assert differences(move.source, move.target) == []
    files = "SELECT array_agg(log_table ORDER BY log_table) FROM pgddl.tables"
    oids = f"SELECT array_agg(to_regclass('pgddl.' || l)::oid) FROM unnest(({files})) l"
    before = one(target_dsn, oids)
    do(source_dsn, "ALTER TYPE m.mood ADD VALUE 'g'", "INSERT INTO m.k VALUES ('g', 12)", WRITES[3],
       "DELETE FROM m.k WHERE m = 'a'", "UPDATE m.arrays SET n = 6 WHERE a = '{y}'")  # fmt: skip
    move.run("replay")
    assert differences(move.source, move.target) == []
    assert one(target_dsn, oids) == before  # nothing was captured anew for one more label
    move.run_all(after="replay", until="swap")
    assert differences(move.source, move.target) == []


# With the cast there Postgres itself refuses to look a key of such columns up ("operator is not unique").
OVER_ENUMS = """
    CREATE SCHEMA m;
    CREATE TYPE m.mood AS ENUM ('a', 'b', 'c');
    CREATE TABLE m.parent (m m.mood PRIMARY KEY, n int);
    CREATE TABLE m.child (id int PRIMARY KEY, m m.mood REFERENCES m.parent, f m.mood REFERENCES m.parent);
    CREATE TABLE m.broken (id int PRIMARY KEY, f m.mood REFERENCES m.parent);
    CREATE MATERIALIZED VIEW m.counted AS SELECT count(*) AS n FROM m.child;
    INSERT INTO m.parent VALUES ('a', 1), ('b', 2);
    INSERT INTO m.child SELECT n, 'a', 'b' FROM generate_series(1, 50) n;
    CREATE CAST (m.mood AS text) WITH INOUT AS IMPLICIT;
    SET session_replication_role = replica;
    INSERT INTO m.broken VALUES (7, 'c')
"""


@pytest.mark.parametrize("rows", ["wal", "in_place"])
def test_foreign_keys_over_enums_with_an_implicit_cast(
    source_dsn: str, target_dsn: str, lifecycle: Callable[..., Lifecycle], rows: str
) -> None:
    do(source_dsn, OVER_ENUMS)
    if rows == "in_place":
        move = lifecycle(source_dsn, rewrite={f"m.{t}": {} for t in ("parent", "child", "broken")},
                         swap={"recreate_materialized_views": True})  # fmt: skip
    else:
        move = lifecycle(source_dsn, target_dsn, tables={"include": ["m.*"]}, capture={"rows": rows})
    findings = stages.check(load_pipeline(move.content), move.source, move.target)["findings"]
    ((table, rows_of),) = [(f["table"], f["fix"]) for f in findings if f["code"] == "foreign_key"]
    assert table == "m.broken"
    assert one(move.source, f"SELECT (x).id FROM ({rows_of.split(';')[0]}) x") == 7
    move.run_all(until="snapshot")
    do(source_dsn, "UPDATE m.parent SET n = 5", "SET session_replication_role = replica; UPDATE m.child SET m = 'b'")
    move.run_all(after="snapshot", until="verify")
    told = {(b["table"], b["reason"].split(";")[0]) for b in move.run("swap").blocked}
    assert {table for table, _ in told} == {"m.child", "m.broken"}
    assert all("operator is not unique" in why for _, why in told)
    assert one(move.target, "SELECT n FROM m.counted") == 50
    do(move.target, "DROP CAST (m.mood AS text)")
    ((table, why),) = [(b["table"], b["reason"]) for b in move.run("swap").blocked]
    assert table == "m.broken"
    assert "Key (f)=(c) is not present" in why
    assert one(move.target, "SELECT count(*) FROM pg_constraint WHERE conrelid = 'm.child'::regclass AND convalidated "
               "AND contype = 'f'") == 2  # fmt: skip


def test_a_log_of_an_older_package_has_its_keys_in_their_types(
    source_dsn: str, target_dsn: str, lifecycle: Callable[..., Lifecycle]
) -> None:
    do(source_dsn, KEYS)
    move = lifecycle(source_dsn, target_dsn, tables={"include": ["m.k"]}, capture={"rows": "wal"})
    move.run_all(until="snapshot")
    log = one(target_dsn, "SELECT log_table FROM pgddl.tables")
    alter = ", ".join(f"ALTER {n} TYPE m.mood USING {n}::m.mood" for n in ("old_1", "new_1"))
    do(target_dsn, f"ALTER TABLE pgddl.{log} {alter}")
    do(source_dsn, *WRITES[:4])
    move.run_all(after="snapshot", until="replay")
    do(source_dsn, "UPDATE m.k SET m = 'c' WHERE m = 'd'")
    move.run("replay")
    rows = "SELECT array_agg(x::text ORDER BY x::text) FROM m.k x"
    assert one(target_dsn, rows) == one(source_dsn, rows) == ["(a,7)", "(c,2)", "(e,9)"]


def test_values_that_the_copy_alone_has_follow_keys_that_a_slot_leaves_as_text(
    source_dsn: str, target_dsn: str, lifecycle: Callable[..., Lifecycle]
) -> None:
    do(source_dsn, KEYS)
    move = lifecycle(source_dsn, target_dsn, tables={"include": ["m.*"]}, capture={"rows": "wal"})
    move.run_all(until="replay")
    do(target_dsn, "ALTER TABLE m.k ADD note text", "UPDATE m.k SET note = 'of ' || n",
       "ALTER TABLE m.both ADD note text", "UPDATE m.both SET note = 'of ' || n WHERE n < 4")  # fmt: skip
    do(source_dsn, *WRITES)
    move.run("replay")
    notes = "SELECT array_agg(x::text ORDER BY x::text) FROM (SELECT {} FROM m.{} WHERE note IS NOT NULL) x"
    assert one(target_dsn, notes.format("m, n, note", "k")) == ['(a,7,"of 1")', '(d,2,"of 2")']
    assert one(target_dsn, notes.format("f, n, note", "both")) == [f'(b,{n},"of {n}")' for n in (1, 2, 3)]


def test_keys_that_cannot_be_followed_are_refused_before_anything_is_touched(
    source_dsn: str, target_dsn: str, lifecycle: Callable[..., Lifecycle]
) -> None:
    do(source_dsn, KEYS, 'CREATE TABLE m.chars (c "char" PRIMARY KEY, n int)', "INSERT INTO m.chars VALUES ('a', 1)")
    move = lifecycle(source_dsn, target_dsn, tables={"include": ["m.*"]}, capture={"rows": "wal"})
    refusal = str(move.refused("setup", PreflightRefused))
    assert 'm.chars): key column c is of type "char", of which Postgres 18 plans no comparison' in refusal
    do(source_dsn, "ALTER TABLE m.chars ALTER COLUMN c TYPE text")
    move.run("setup")
    do(target_dsn, 'CREATE TABLE chars (c "char" PRIMARY KEY)')
    ordered = lifecycle(source_dsn, rewrite={"m.k": {"order_by": ["m"]}})
    assert "these columns have no order: operator is not unique" in str(ordered.refused("setup", PreflightRefused))
    assert '"char"' in str(lifecycle(target_dsn, rewrite={"public.chars": {}}).refused("setup", PreflightRefused))


def test_a_partition_is_told_from_a_misspelt_table(source_dsn: str, lifecycle: Callable[..., Lifecycle]) -> None:
    do(
        source_dsn,
        "CREATE TABLE events (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE events_p0 PARTITION OF events FOR VALUES FROM (0) TO (9) PARTITION BY RANGE (id)",
        "CREATE TABLE events_p0_a PARTITION OF events_p0 DEFAULT",
    )
    for name in ("events_p0", "events_p0_a"):
        told = f"public.{name} is a partition of public.events, and goes with it"
        for pipeline in (lifecycle(source_dsn, rewrite={f"public.{name}": {}}),
                         lifecycle(source_dsn, source_dsn, tables={"include": [f"public.{name}"]})):  # fmt: skip
            refusal = str(pipeline.refused("setup", PipelineFileError))
            assert told in refusal
            assert "did you mean" not in refusal


# From 18 on a column can be NOT NULL for new rows alone.
NOT_VALID = """
CREATE TABLE t (code text UNIQUE, id int NOT NULL, n int NOT NULL, UNIQUE (id, n));
INSERT INTO t SELECT CASE WHEN n % 3 > 0 THEN 'c' || n END, n, n FROM generate_series(1, 300) n;
ALTER TABLE t ADD CONSTRAINT has_code NOT NULL code NOT VALID;
CREATE TABLE u (id int PRIMARY KEY, n int);
INSERT INTO u SELECT n, CASE WHEN n > 1 THEN n END FROM generate_series(1, 9) n;
ALTER TABLE u ADD CONSTRAINT has_n NOT NULL n NOT VALID;
"""


def test_not_null_that_is_not_valid_makes_no_key(
    pg18: Cluster, database: Database, lifecycle: Callable[..., Lifecycle]
) -> None:
    source, target = database(pg18), database(pg18)
    do(source, NOT_VALID)
    small = {"chunk_bytes": "8kB", "workers": 1}
    move = lifecycle(source, target, tables={"include": ["public.*"]}, backfill=small)
    move.run_all(until="backfill")
    do(source, "DELETE FROM t WHERE code IS NULL AND id < 100")
    move.run_all(after="backfill", until="replay")
    do(source, "DELETE FROM t WHERE code IS NULL AND id > 200")
    move.run_all(after="schema_sync", until="verify")
    assert differences(source, target) == []
    not_null = "SELECT version -> 'columns' -> 'n' ->> 'not_null' FROM pgddl.tables WHERE table_name = 'u'"
    assert move.journal(not_null) == [("false",)]
    do(source, "DELETE FROM u WHERE n IS NULL", "ALTER TABLE u VALIDATE CONSTRAINT has_n")
    move.run_all(after="schema_sync", until="swap")
    assert move.journal(not_null) == [("true",)]
    assert differences(source, target) == []


def test_the_only_index_over_such_a_column_is_no_key_until_it_is_valid(
    pg18: Cluster, database: Database, lifecycle: Callable[..., Lifecycle]
) -> None:
    source, target = database(pg18), database(pg18)
    do(source, "CREATE TABLE t (code text UNIQUE)", "INSERT INTO t VALUES ('a')",
       "ALTER TABLE t ADD CONSTRAINT has_code NOT NULL code NOT VALID")  # fmt: skip
    move = lifecycle(source, target, tables={"include": ["public.*"]})
    advice = "ALTER TABLE public.t VALIDATE CONSTRAINT has_code;"
    assert advice in str(move.refused("setup", PreflightRefused))
    do(source, advice)
    assert move.run("setup").state == "done"


@pytest.mark.parametrize("in_place", [False, True])
def test_what_is_not_valid_comes_behind_the_rows_that_are_older(
    pg18: Cluster, database: Database, lifecycle: Callable[..., Lifecycle], in_place: bool
) -> None:
    """Rows from before it break it, on the copy they would be new."""
    source = database(pg18)
    do(
        source,
        "CREATE TABLE t (id int PRIMARY KEY, a int, b int, c int, d int, f int)",
        "INSERT INTO t SELECT n, nullif(n % 5, 0), nullif(n, 202), n - 20, abs(n - 203), n"
        " FROM generate_series(1, 300) n",
        "ALTER TABLE t ADD CONSTRAINT older CHECK (d > 0) NOT VALID",
    )
    small = {"chunk_bytes": "8kB", "workers": 1}
    if in_place:
        move, target = lifecycle(source, rewrite={"public.t": {}}, backfill=small), source
    else:
        target = database(pg18)
        move = lifecycle(source, target, tables={"include": ["public.*"]}, backfill=small)
    move.run_all(until="snapshot")
    do(
        source,
        "ALTER TABLE t ADD CONSTRAINT has_a NOT NULL a NOT VALID, ADD CONSTRAINT c_given CHECK (c > 0) NOT VALID",
        "ALTER TABLE t ADD CONSTRAINT has_b NOT NULL b NOT VALID, ADD CONSTRAINT small CHECK (c < 1000) NOT VALID",
        "ALTER TABLE t RENAME CONSTRAINT c_given TO positive",
        "ALTER TABLE t RENAME CONSTRAINT has_a TO given",
        "ALTER TABLE t ADD CONSTRAINT has_f NOT NULL f NOT VALID",
        "ALTER TABLE t ALTER f SET NOT NULL",
        "UPDATE t SET b = 0, d = 1 WHERE id IN (202, 203)",
        "ALTER TABLE t VALIDATE CONSTRAINT has_b, VALIDATE CONSTRAINT small, VALIDATE CONSTRAINT older, ADD e int",
    )
    said = "SELECT conname, pg_get_constraintdef(oid) FROM pg_constraint WHERE conrelid = 't'::regclass ORDER BY 1"
    wanted = rows_of(source, said)
    assert {definition.endswith("NOT VALID") for _, definition in wanted} == {True, False}
    assert not move.run("backfill").blocked
    move.run_all(after="backfill", until="swap")
    assert rows_of(target, said) == wanted
    assert rows_of(target, "SELECT count(*), count(a), count(*) FILTER (WHERE c < 1) FROM t") == [(300, 240, 20)]


def test_every_class_of_the_servers_own_has_its_equality(source_dsn: str, target_dsn: str) -> None:
    """So keys over them need no question which it is."""
    query = """
        SELECT c.opcname, n.nspname || '.' || o.oprname
        FROM pg_opclass c JOIN pg_am a ON a.oid = c.opcmethod AND a.amname = 'btree'
        JOIN pg_type t ON t.oid = c.opcintype AND t.typtype <> 'p'
        JOIN pg_amop m ON m.amopfamily = c.opcfamily AND m.amopstrategy = 3
             AND m.amoplefttype = c.opcintype AND m.amoprighttype = c.opcintype
        JOIN pg_operator o ON o.oid = m.amopopr JOIN pg_namespace n ON n.oid = o.oprnamespace
        WHERE c.oid < 16384"""
    for dsn in (source_dsn, target_dsn):
        equalities = rows_of(dsn, query)
        assert len(equalities) > 30
        assert {operator for _, operator in equalities} == {"pg_catalog.="}
