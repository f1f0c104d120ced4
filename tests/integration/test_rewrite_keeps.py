"""A rewrite in place keeps all that the table had and all that stands on it: catalog and pg_dump before and after."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from airflow_provider_pgddl.demo.clusters import Cluster
from airflow_provider_pgddl.demo.compare import catalog_lines, diff_catalogs
from airflow_provider_pgddl.engine.errors import PreflightRefused
from airflow_provider_pgddl.engine.pipeline.names import written
from tests.combinations import matrix
from tests.conftest import Database
from tests.integration.lifecycle import Lifecycle, execute, left_behind
from tests.integration.resets import reset, rows_of, structure
from tests.integration.rewritten_orders import differing, dump
from tests.integration.sessions import do, one

Make = Callable[..., Lifecycle]

SCHEMA = Path(__file__).with_name("keeps.sql")
KEPT = '"Works"."All Kept"'
SMALL: dict[str, Any] = {"backfill": {"workers": 1}, "swap": {"recreate_materialized_views": True}}

FACTS = {
    name: query
    for name, _, query in (
        block.partition("\n")
        for block in Path(__file__).with_name("keeps_facts.sql").read_text(encoding="utf-8").split("-- name: ")[1:]
    )
}


def facts(dsn: str, table: str = KEPT) -> dict[str, list[Any]]:
    with psycopg.connect(dsn) as conn:
        conn.execute("SET search_path = ''")
        oid = "'" + table.replace("'", "''") + "'::regclass"
        return {name: conn.execute(query.format(oid).encode()).fetchall() for name, query in FACTS.items()}


@pytest.fixture(params=matrix(16, 18))
def server(request: pytest.FixtureRequest) -> Cluster:
    cluster: Cluster = request.getfixturevalue(f"pg{request.param}")
    return cluster


@pytest.fixture
def dsn(server: Cluster, database: Database) -> str:
    return with_everything(server, database)


def with_everything(server: Cluster, database: Database) -> str:
    made = database(server)
    with psycopg.connect(made, autocommit=True) as conn:
        if not conn.execute("SELECT 1 FROM pg_tablespace WHERE spcname = 'keeps_space'").fetchone():
            conn.execute("SET allow_in_place_tablespaces = on")
            conn.execute("CREATE TABLESPACE keeps_space LOCATION ''")
    execute(made, SCHEMA.read_text(encoding="utf-8"))
    return made


def test_everything_is_as_it_was(server: Cluster, dsn: str, lifecycle: Make) -> None:
    before = facts(dsn), catalog_lines(dsn), dump(server, dsn), definitions(dsn)
    move = lifecycle(dsn, rewrite={KEPT: {}}, **SMALL)
    old = one(dsn, f"SELECT '{KEPT}'::regclass::oid")
    move.run_all(until="swap")
    assert one(dsn, f"SELECT '{KEPT}'::regclass::oid") != old
    move.run("cleanup")
    after = facts(dsn), catalog_lines(dsn), dump(server, dsn), definitions(dsn)
    for name in FACTS:
        assert after[0][name] == before[0][name], name
    assert diff_catalogs(before[1], after[1]) == []
    assert differing(before[2], after[2]) == []
    assert after[3] == before[3]
    assert left_behind(dsn) == ["schema pgddl"]


def test_after_a_revert_and_a_reset_everything_is_as_it_was(pg18: Cluster, database: Database, lifecycle: Make) -> None:
    dsn = with_everything(pg18, database)
    before = facts(dsn), structure(dsn), dump(pg18, dsn), definitions(dsn)
    move = lifecycle(dsn, rewrite={KEPT: {}}, **SMALL)
    move.run_all(until="swap")
    move.run("revert")
    reset(move)
    after = facts(dsn), structure(dsn), dump(pg18, dsn), definitions(dsn)
    for name in FACTS:
        assert after[0][name] == before[0][name], name
    assert diff_catalogs(before[1], after[1], ignore=["RI_ConstraintTrigger"]) == []
    assert differing(before[2], after[2]) == []
    assert after[3] == before[3]
    assert left_behind(dsn) == []


def test_to_and_fro_three_times_everything_is_as_it_was(pg18: Cluster, database: Database, lifecycle: Make) -> None:
    """After each turn, by the whole catalog: what a copy was given once for all is neither lost nor there twice."""
    dsn = with_everything(pg18, database)
    execute(dsn, MARKED)
    tables = [KEPT, "public.by_index", "public.full", "public.nothing"]

    def all_of_it() -> dict[str, Any]:
        told = {f"{table} {name}": fact for table in tables for name, fact in facts(dsn, table).items()}
        told = {name: [row for row in fact if "pgddl" not in str(row[0])] for name, fact in told.items()}
        for of_table in (f"{table} table" for table in tables):  # but for relhastriggers: ours make it true
            told[of_table] = [(*row[:10], *row[11:]) for row in told[of_table]]
        return told

    before, dumped, shown = all_of_it(), without_ours(dump(pg18, dsn)), definitions(dsn)
    move = lifecycle(dsn, rewrite={table: {} for table in tables}, **SMALL)
    move.run_all(until="verify")
    for turn in ["swap", "revert"] * 3:
        if turn == "swap":
            move.run_all(until="swap", after="schema_sync")
        else:
            move.run("revert")
        now = all_of_it()
        assert [(turn, name, before[name], now[name]) for name in before if before[name] != now[name]] == []
        assert differing(dumped, without_ours(dump(pg18, dsn))) == [], turn
        assert definitions(dsn) == shown, turn
    reset(move)
    assert left_behind(dsn) == []


# Each way that a row can be known to replication, and the index that CLUSTER goes by.
MARKED = """
CREATE TABLE by_index (id integer PRIMARY KEY, e text NOT NULL);
CREATE UNIQUE INDEX by_e ON by_index (e);
ALTER TABLE by_index REPLICA IDENTITY USING INDEX by_e, CLUSTER ON by_e;
CREATE TABLE "full" (id integer PRIMARY KEY);
ALTER TABLE "full" REPLICA IDENTITY FULL, CLUSTER ON full_pkey;
CREATE TABLE nothing (id integer PRIMARY KEY);
ALTER TABLE nothing REPLICA IDENTITY NOTHING;
"""


def without_ours(dumped: list[str]) -> list[str]:
    """Neither event triggers, of which a second line says what they are about, nor triggers."""
    return [line for line in dumped if "pgddl" not in line and "WHEN TAG IN" not in line]


@pytest.mark.parametrize("ddl", ["queue", "off"])
@pytest.mark.parametrize("moment", ["before the swap", "after the revert"])
def test_marks_that_change_meanwhile_go_over_as_they_are_or_are_refused(
    pg18: Cluster, database: Database, lifecycle: Make, ddl: str, moment: str
) -> None:
    """CLUSTER … USING leaves its mark without an event."""
    dsn = database(pg18)
    execute(dsn, MARKED)
    move = lifecycle(dsn, rewrite={"public.by_index": {}, "public.full": {}}, capture={"ddl": ddl}, **SMALL)
    move.run_all(until="verify")
    if moment == "after the revert":
        move.run("swap")
        move.run("revert")
    do(dsn, "CLUSTER by_index USING by_index_pkey", 'ALTER TABLE "full" REPLICA IDENTITY DEFAULT, SET WITHOUT CLUSTER')
    before = [facts(dsn, table)[name] for table in ("public.by_index", "public.full") for name in ("table", "indexes")]
    if ddl == "off":
        for stage in ("replay", "verify"):
            move.run(stage)
        assert "REPLICA IDENTITY" in move.refused("swap", PreflightRefused).what
        return
    move.run_all(until="swap", after="schema_sync")
    move.run("cleanup")
    after = [facts(dsn, table)[name] for table in ("public.by_index", "public.full") for name in ("table", "indexes")]
    assert after == before


LONG = [written("Sch " * 15 + f"ab{last}", 'Ta"b' * 15 + "le1") for last in "XY"]
RARE = ["public.without_rows", "public.dropped", "public.of_type", "public.odd", "public.of_18", *LONG]
# Beside what pg_dump shows: a relation's access method and type, and what goes with an extension.
RARE_FACTS = """
SELECT concat_ws(' ', c.oid::regclass, m.amname, nullif(reloftype, 0)::regtype) FROM pg_class c LEFT JOIN pg_am m ON m.oid = c.relam
WHERE c.oid >= 16384 AND relnamespace::regnamespace::text !~ '^pgddl|^pg_toast'
UNION ALL SELECT concat_ws(' ', conrelid::regclass, conname, convalidated, (to_jsonb(c) ->> 'conenforced'), (to_jsonb(c) ->> 'conperiod'))
FROM pg_constraint c WHERE conrelid::regclass::text !~ '^"?pgddl' UNION ALL
SELECT pg_describe_object(classid, objid, objsubid) FROM pg_depend WHERE deptype = 'x'
UNION ALL SELECT sequencename || ' ' || concat_ws(' ', data_type, last_value) FROM pg_sequences
WHERE sequencename IN ('of_odd', 'odd_large_seq', 'odd_narrow_seq', 'dropped_no_seq1') ORDER BY 1
"""  # noqa: E501


def test_rare_tables_are_as_they_were_after_a_swap_and_after_its_revert(
    pg18: Cluster, database: Database, lifecycle: Make
) -> None:
    """Without rows, with every column dropped once, of a type, of another access method, with names of 63 bytes, the
    same name in two schemas, and what only 18 has."""
    dsn = database(pg18)
    execute(dsn, SCHEMA.with_name("rare.sql").read_text(encoding="utf-8"))

    def all_of_it() -> dict[str, Any]:
        do(dsn, *(f"VACUUM {table}" for table in RARE))  # which tells relhastriggers after the last one has gone
        with psycopg.connect(dsn) as conn:
            rare = conn.execute(RARE_FACTS.encode()).fetchall()
        told = {f"{table} {name}": fact for table in RARE for name, fact in facts(dsn, table).items()}
        return told | {"rare": rare, "rows": rows_of(dsn)}

    before, dumped, objects = all_of_it(), dump(pg18, dsn), structure(dsn)
    move = lifecycle(dsn, rewrite={table: {} for table in RARE}, backfill={"workers": 1})
    move.run_all(until="swap")
    move.run("revert")
    reset(move)
    assert left_behind(dsn) == []
    now = all_of_it()
    assert [(name, before[name], now[name]) for name in before if before[name] != now[name]] == []
    assert differing(dumped, dump(pg18, dsn)) == []
    assert diff_catalogs(objects, structure(dsn), ignore=["RI_ConstraintTrigger"]) == []
    move.run_all()
    now = all_of_it()
    assert [(name, before[name], now[name]) for name in before if before[name] != now[name]] == []
    assert differing(dumped, dump(pg18, dsn)) == []
    assert left_behind(dsn) == ["schema pgddl"]


def definitions(dsn: str) -> list[Any]:
    """What each view shows, which tells that all of them can be read."""
    with psycopg.connect(dsn) as conn:
        views = conn.execute(
            "SELECT format('%I.%I', schemaname, viewname) FROM pg_views WHERE schemaname IN ('Works', 'other')"
            " UNION ALL SELECT 'other.stored' ORDER BY 1"
        ).fetchall()
        rows = "SELECT count(*), md5(string_agg(x::text, ',' ORDER BY x::text)) FROM {} x"
        return [(view, conn.execute(rows.format(view).encode()).fetchone()) for (view,) in views]


# What the rewrite asked for, and how pg_dump announces a view that waits for a key.
CHANGED = [
    "+     NULL::bigint AS id",
    "-     NULL::integer AS id",
    "+     id bigint NOT NULL",
    "-     id integer NOT NULL",
    "+     parent bigint",
    "-     parent integer",
    "+     version bigint DEFAULT 0 NOT NULL",
    "-     version integer DEFAULT 0 NOT NULL",
]


def test_what_stands_on_columns_of_another_type_is_made_again(server: Cluster, dsn: str, lifecycle: Make) -> None:
    execute(
        dsn, f"DROP TABLE other.child, other.second_child; DELETE FROM pg_statistic WHERE stainherit; ANALYZE {KEPT}"
    )
    before = facts(dsn), dump(server, dsn), definitions(dsn)
    alter = ["ALTER COLUMN id TYPE bigint, ALTER COLUMN parent TYPE bigint", "ALTER COLUMN version TYPE bigint"]
    move = lifecycle(dsn, rewrite={KEPT: {"alter": alter}}, **SMALL)
    move.run_all()
    after = facts(dsn), dump(server, dsn), definitions(dsn)
    assert sorted(differing(before[1], after[1])) == sorted(CHANGED)
    same = FACTS.keys() - {"columns", "sequences"}
    assert {name: after[0][name] for name in same} == {name: before[0][name] for name in same}
    assert after[2] == before[2]
    assert left_behind(dsn) == ["schema pgddl"]
