"""reset takes away what captured DDL made on the target, under whatever name it has by now."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest

from airflow_provider_pgddl.engine import stages
from airflow_provider_pgddl.engine.pipeline.reading import load_pipeline
from airflow_provider_pgddl.engine.pipeline.tags import CREATE_TAGS, DROP_TAGS
from tests.integration.lifecycle import Lifecycle, execute, left_behind
from tests.integration.resets import reset, structure

TABLES = """
CREATE TYPE public.mood AS ENUM ('good');
CREATE TABLE public.orders (id bigint PRIMARY KEY, total numeric, mood public.mood);
CREATE TABLE public.lines (id int PRIMARY KEY, o bigint REFERENCES public.orders);
CREATE VIEW public.totals AS SELECT sum(total) AS total FROM public.orders;
INSERT INTO public.orders VALUES (1, 1, 'good');
INSERT INTO public.lines VALUES (1, 1);
"""
CHANGES = {
    "renamed and moved": [
        "ALTER TABLE public.orders RENAME TO purchases",
        "ALTER TABLE public.purchases RENAME total TO amount",
        "CREATE SCHEMA app",
        "ALTER TABLE public.purchases SET SCHEMA app",
        "ALTER TYPE public.mood SET SCHEMA app",
        "CREATE FUNCTION public.f(int) RETURNS int LANGUAGE sql AS 'SELECT $1'",
        "ALTER FUNCTION public.f(int) RENAME TO g",
        "ALTER FUNCTION public.g(int) SET SCHEMA app",
    ],
    "renamed and dropped": [
        "ALTER TABLE public.lines RENAME TO rows",
        "DROP TABLE public.rows",
        "CREATE OR REPLACE VIEW public.totals AS SELECT sum(total) AS total, count(*) AS orders FROM public.orders",
    ],
    "names swapped": [
        "CREATE TABLE public.fresh (id int PRIMARY KEY, total numeric)",
        "ALTER TABLE public.lines RENAME TO old",
        "ALTER TABLE public.fresh RENAME TO lines",
        "DO $$BEGIN CREATE TABLE public.one (id int PRIMARY KEY); CREATE TABLE public.two (id int PRIMARY KEY); END$$",
    ],
}


@pytest.mark.parametrize("changes", list(CHANGES.values()), ids=[name.replace(" ", "_") for name in CHANGES])
def test_what_captured_ddl_made_is_undone(
    lifecycle: Callable[..., Lifecycle], source_dsn: str, target_dsn: str, changes: list[str]
) -> None:
    execute(source_dsn, TABLES)
    execute(target_dsn, "CREATE TABLE public.theirs (n int)")
    before = structure(target_dsn)
    move = lifecycle(
        source_dsn, target_dsn, tables={"include": ["public.*"]}, capture={"ddl": "queue"},
        ddl={"create_tags": list(CREATE_TAGS), "drop_tags": list(DROP_TAGS)},
    )  # fmt: skip
    for stage in ("setup", "snapshot", "backfill", "schema_sync"):
        move.run(stage)
    for statement in changes:
        execute(source_dsn, statement)
    move.run("replay")
    applied = "SELECT count(*) FROM pgddl.ddl_events WHERE captured_id IS NOT NULL AND status = 'applied'"
    assert move.journal(applied) >= [(len(changes),)]
    stages.reset(load_pipeline(move.content), move.source, move.target)
    assert structure(target_dsn) == before
    assert left_behind(source_dsn) == []


@pytest.mark.parametrize("chosen", [["public.found"], None], ids=["one_table", "all"])
@pytest.mark.parametrize("create", ["CREATE TABLE IF NOT EXISTS", "CREATE TABLE"])
def test_a_table_that_the_target_had_before_a_new_one_of_its_name_stays(
    lifecycle: Callable[..., Lifecycle], source_dsn: str, target_dsn: str, create: str, chosen: list[str] | None
) -> None:
    """Nothing of it is ours, whether the event that was to make the copy found it or failed on it."""
    execute(source_dsn, TABLES)
    move = lifecycle(source_dsn, target_dsn, tables={"include": ["public.*"]}, capture={"ddl": "queue"})
    move.run_all(until="replay")
    execute(target_dsn, "CREATE TABLE public.found (id int PRIMARY KEY, note text)")
    execute(target_dsn, "INSERT INTO public.found SELECT n, 'theirs' FROM generate_series(1, 3) n")
    execute(source_dsn, f"{create} public.found (id int PRIMARY KEY, note text)")
    assert "public.found" in {b["table"] for b in move.run("replay").blocked}
    move.run("setup")
    reset(move, chosen)
    with psycopg.connect(target_dsn) as conn:
        assert conn.execute("SELECT count(*) FROM public.found WHERE note = 'theirs'").fetchone() == (3,)


def test_a_table_that_is_to_be_adopted_stays_also_where_no_snapshot_has_seen_it(
    lifecycle: Callable[..., Lifecycle], source_dsn: str, target_dsn: str
) -> None:
    found = "CREATE TABLE public.found (id int PRIMARY KEY, note text);"
    execute(source_dsn, found)
    execute(target_dsn, found + "INSERT INTO public.found VALUES (1, 'theirs')")
    move = lifecycle(source_dsn, target_dsn, tables={"include": ["public.*"], "existing": "adopt"})
    move.run("setup")
    assert "it stays with its rows" in str(reset(move, ["public.found"]))
    with psycopg.connect(target_dsn) as conn:
        assert conn.execute("SELECT note FROM public.found").fetchall() == [("theirs",)]


def test_a_table_that_the_target_had_before_is_not_dropped_with_a_passing_one_of_its_name(
    lifecycle: Callable[..., Lifecycle], source_dsn: str, target_dsn: str
) -> None:
    """Both may have come and gone between two looks."""
    execute(source_dsn, TABLES)
    move = lifecycle(source_dsn, target_dsn, tables={"include": ["public.*"]}, capture={"ddl": "queue"})
    move.run_all(until="replay")
    execute(target_dsn, "CREATE TABLE public.found (id int PRIMARY KEY, note text)")
    execute(target_dsn, "INSERT INTO public.found VALUES (1, 'theirs')")
    execute(source_dsn, "CREATE TABLE IF NOT EXISTS public.found (id int PRIMARY KEY, note text)")
    execute(source_dsn, "ALTER TABLE public.found DROP COLUMN note")
    execute(source_dsn, "DROP TABLE public.found")
    assert not move.run("replay").blocked
    with psycopg.connect(target_dsn) as conn:
        assert conn.execute("SELECT note FROM public.found").fetchall() == [("theirs",)]
