"""`tables.existing: adopt` with `tables.where` that changes before the rows of the target have been compared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from airflow_provider_pgddl.engine.commands.reconfigure import look_at
from airflow_provider_pgddl.engine.commands.reset import reset
from airflow_provider_pgddl.engine.errors import PreflightRefused, StageFailed, UsageError
from airflow_provider_pgddl.engine.pipeline.reading import load_pipeline
from tests.failpoints import At, once
from tests.integration.lifecycle import Lifecycle, execute

Lifecycles = Callable[..., Lifecycle]
TABLE = "CREATE TABLE public.t (id int PRIMARY KEY, tenant int, v text);"
ROWS = "INSERT INTO public.t SELECT n, 7 + n % 3, 'v' FROM generate_series(1, 300) n;"


def adopting(lifecycle: Lifecycles, source: str, target: str, where: str, **more: Any) -> Lifecycle:
    tables = {"include": ["public.t"], "existing": "adopt", "keep_extra": True, "where": {"public.t": where}, **more}
    return lifecycle(source, target, tables=tables, backfill={"chunk_bytes": "16kB", "workers": 1})


def reconfigured(move: Lifecycle, **tables: Any) -> None:
    move.content["tables"] |= tables
    move.run("setup", reconfigure=True)


def test_rows_of_the_target_stay_when_the_condition_changes_before_they_are_compared(
    source_dsn: str, target_dsn: str, lifecycle: Lifecycles
) -> None:
    """Those of tenant 8, whom the source has under the same keys."""
    execute(source_dsn, TABLE + ROWS)
    execute(target_dsn, TABLE + ROWS + "UPDATE public.t SET v = 'here' WHERE tenant = 8")
    own = "SELECT id, v FROM public.t WHERE tenant = 8 ORDER BY id"
    move = adopting(lifecycle, source_dsn, target_dsn, "tenant = 7")
    move.run_all(until="backfill")
    before = move.journal(own)
    not_told = {"public.t": "abs(tenant) IN (7, 9)"}
    move.content["tables"]["where"] = not_told
    refused = str(move.refused("setup", PreflightRefused, reconfigure=True))
    assert "does not tell" in refused and "tables.keep_extra: false" in refused
    reconfigured(move, where={"public.t": "tenant IN (7, 9)"})
    execute(
        source_dsn, "UPDATE public.t SET v = v || '?' WHERE id BETWEEN 40 AND 60; DELETE FROM public.t WHERE id = 1"
    )
    move.run_all(after="snapshot", until="schema_sync")
    move.run("replay")
    assert move.journal(own) == before
    others = "SELECT id, v FROM public.t WHERE tenant IN (7, 9) ORDER BY id"
    assert move.journal(others) == move.on_source(others)
    move.run("verify")
    # From then on the source's row of such a key takes its place as soon as it belongs there.
    reconfigured(move, where={"public.t": "tenant IN (7, 8)"})
    move.run("replay")
    there = "SELECT id, tenant, v FROM public.t {} ORDER BY id"
    belong = move.on_source(there.format("WHERE tenant IN (7, 8)"))
    assert move.journal(there.format("")) == [(1, 8, "here"), *belong]


def test_a_condition_that_is_not_asked_of_them_stops_the_table_once_they_are_to_stay(
    source_dsn: str, target_dsn: str, lifecycle: Lifecycles
) -> None:
    execute(source_dsn, TABLE + ROWS)
    execute(target_dsn, TABLE + ROWS + "UPDATE public.t SET v = 'here' WHERE tenant = 8")
    own = "SELECT id, v FROM public.t WHERE tenant = 8 ORDER BY id"
    move = adopting(lifecycle, source_dsn, target_dsn, "abs(tenant) = 7", keep_extra=False)
    move.run_all(until="backfill")
    before = move.journal(own)
    execute(source_dsn, "UPDATE public.t SET v = v || '?' WHERE id BETWEEN 40 AND 60")
    move.content["tables"]["keep_extra"] = True  # which any stage takes up
    (blocked,) = move.run("schema_sync").blocked
    assert "does not tell" in blocked["reason"] and move.journal(own) == before
    reconfigured(move, where={"public.t": "tenant = 7"})
    move.run_all(after="snapshot", until="replay")
    assert move.journal(own) == before


def test_what_came_by_the_former_condition_into_an_empty_table_goes(
    source_dsn: str, target_dsn: str, lifecycle: Lifecycles, at: At
) -> None:
    """What somebody else writes there meanwhile does not, and is theirs."""
    execute(source_dsn, TABLE + ROWS)
    execute(target_dsn, TABLE)
    move = adopting(lifecycle, source_dsn, target_dsn, "tenant IN (7, 8)")
    move.run_all(until="snapshot")
    somebody = "INSERT INTO public.t VALUES (-1, 7, 'theirs'), (-2, 8, 'theirs')"
    with at("backfill.before_chunk", once(lambda: execute(target_dsn, somebody))):
        move.run("backfill")
    assert move.journal("SELECT count(*) FROM public.t WHERE tenant = 8 AND id > 0") == [(100,)]
    execute(source_dsn, "UPDATE public.t SET v = 'w' WHERE id % 10 = 0; DELETE FROM public.t WHERE id BETWEEN 7 AND 9")
    reconfigured(move, where={"public.t": "tenant = 7"})
    move.run_all(after="snapshot", until="replay")
    shown = "SELECT id, tenant, v FROM public.t WHERE tenant = 7 ORDER BY id"
    there = [(-2, 8, "theirs"), (-1, 7, "theirs"), *move.on_source(shown)]
    assert move.journal("SELECT id, tenant, v FROM public.t ORDER BY id") == there
    move.run("verify")


def test_no_value_of_the_target_goes_with_a_row_that_is_away(
    source_dsn: str, target_dsn: str, lifecycle: Lifecycles
) -> None:
    """What differs has left the table; its notes, which no other server has, wait for it."""
    execute(source_dsn, TABLE + ROWS + "UPDATE public.t SET v = 'w' WHERE id % 10 = 0")
    noted = "ALTER TABLE public.t ADD COLUMN note text; UPDATE public.t SET note = 'of ' || id"
    execute(target_dsn, TABLE + ROWS + noted)
    move = adopting(lifecycle, source_dsn, target_dsn, "tenant = 7")
    move.run_all(until="schema_sync")
    away = 300 - int(move.journal("SELECT count(*) FROM public.t")[0][0])
    config = load_pipeline(move.content)
    for tables in (["public.t"], None):
        with pytest.raises(UsageError, match=rf"{away} rows of it are away.* \(note\)") as refused:
            reset(config, source_dsn, target_dsn, tables)
    assert (refused.value.sql or "").startswith('TRUNCATE "pgddl"."kept_') and away > 0
    execute(source_dsn, "CREATE TABLE public.other (id int PRIMARY KEY)")
    taken_out = load_pipeline({**move.content, "tables": {"include": ["public.other"], "existing": "adopt"}})
    with pytest.raises(UsageError, match=f"{away} rows of it are away"):
        look_at(taken_out, source_dsn, target_dsn)
    kept = move.journal("SELECT string_agg(oid::regclass::text, '') FROM pg_class WHERE relname ~ '^kept_[0-9]+$'")[0][
        0
    ]
    execute(target_dsn, f"CREATE TABLE public.aside AS TABLE {kept}; {refused.value.sql}")
    (told,) = (does for table, does in look_at(taken_out, source_dsn, target_dsn).steps() if table == "public.t")
    assert f"stays as it is, but for {away} rows that were to be read again" in told
    execute(target_dsn, f"INSERT INTO {kept} TABLE public.aside")
    move.run("replay")
    reset(config, source_dsn, target_dsn)
    assert move.journal("SELECT count(*) FROM public.t WHERE note = 'of ' || id") == [(300,)]


def test_no_value_of_the_target_goes_with_a_table_that_becomes_a_partition(
    source_dsn: str, target_dsn: str, lifecycle: Lifecycles
) -> None:
    made = (
        "CREATE TABLE public.p (id int PRIMARY KEY, tenant int, v text) PARTITION BY RANGE (id);"
        "CREATE TABLE public.p_2 PARTITION OF public.p FOR VALUES FROM (1000) TO (2000);"
    )
    noted = "ALTER TABLE public.{0} ADD COLUMN note text; UPDATE public.{0} SET note = 'of ' || id;"
    execute(source_dsn, TABLE + ROWS + made + "UPDATE public.t SET v = 'w' WHERE id % 10 = 0")
    execute(target_dsn, TABLE + ROWS + made + noted.format("t") + noted.format("p"))
    tables = {"include": ["public.*"], "existing": "adopt", "keep_extra": False}
    move = lifecycle(source_dsn, target_dsn, tables=tables)
    move.run_all(until="schema_sync")
    execute(source_dsn, "ALTER TABLE public.p ATTACH PARTITION public.t FOR VALUES FROM (0) TO (1000)")
    refused = str(move.refused("replay", StageFailed))
    assert "was attached to public.p; 300 rows of it" in refused and "(note)" in refused
    execute(source_dsn, "ALTER TABLE public.p DETACH PARTITION public.t")
    assert not move.run("replay").blocked
    assert move.journal("SELECT count(*) FROM public.t WHERE note = 'of ' || id") == [(300,)]
    execute(source_dsn, "ALTER TABLE public.p ATTACH PARTITION public.t FOR VALUES FROM (0) TO (1000)")
    execute(target_dsn, move.refused("replay", StageFailed).sql or "")
    assert not move.run("replay").blocked
    assert move.journal("SELECT count(*), (SELECT count(*) FROM public.put_aside) FROM public.p") == [(300, 300)]


def test_no_value_of_the_target_goes_with_a_partition_that_is_detached(
    source_dsn: str, target_dsn: str, lifecycle: Lifecycles
) -> None:
    execute(
        source_dsn,
        """
        CREATE TABLE public.p (id int PRIMARY KEY, v text) PARTITION BY RANGE (id);
        CREATE TABLE public.p_1 PARTITION OF public.p FOR VALUES FROM (0) TO (100);
        CREATE TABLE public.p_2 PARTITION OF public.p FOR VALUES FROM (100) TO (200);
        CREATE TABLE public.p_3 PARTITION OF public.p FOR VALUES FROM (200) TO (300);
        INSERT INTO public.p SELECT n, 'v' FROM generate_series(1, 250) n;
        """,
    )
    move = lifecycle(source_dsn, target_dsn, tables={"include": ["public.p*"]})
    move.run_all(until="replay")
    execute(target_dsn, "ALTER TABLE public.p ADD COLUMN note text; UPDATE public.p SET note = 'of ' || id")
    assert not move.run("replay").blocked
    changed, detach = (
        "UPDATE public.p SET v = 'w' WHERE id % 10 = 0;",
        "ALTER TABLE public.p DETACH PARTITION public.p_2;",
    )
    execute(source_dsn, changed + detach + "DROP TABLE public.p_3")  # with which its rows and their values go
    refused = move.refused("replay", StageFailed)
    assert "public.p_2 was detached while 10 rows of it were away" in str(refused) and "(note)" in str(refused)
    with psycopg.connect(target_dsn) as conn:
        conn.execute((refused.sql or "").encode())
        assert conn.execute("SELECT count(*), min(note) FROM public.put_aside").fetchone() == (10, "of 100")
        conn.rollback()
    execute(source_dsn, "ALTER TABLE public.p ATTACH PARTITION public.p_2 FOR VALUES FROM (100) TO (200)")
    assert not move.run("replay").blocked
    assert move.journal("SELECT count(*) FROM public.p WHERE note = 'of ' || id") == [(199,)]
    execute(source_dsn, detach)
    assert not move.run("replay").blocked
    noted = "SELECT (SELECT count(note) FROM public.p), (SELECT count(note) FROM public.p_2)"
    assert move.journal(noted) == [(99, 100)]


def test_no_value_of_the_target_goes_with_a_key_that_becomes_another(
    source_dsn: str, target_dsn: str, lifecycle: Lifecycles
) -> None:
    execute(
        source_dsn,
        "CREATE TABLE public.t (id int PRIMARY KEY, code int NOT NULL UNIQUE, v text);"
        "INSERT INTO public.t SELECT n, 1000 - n, 'v' FROM generate_series(1, 100) n",
    )
    move = lifecycle(source_dsn, target_dsn, tables={"include": ["public.t"]})
    move.run_all(until="replay")
    execute(target_dsn, "ALTER TABLE public.t ADD COLUMN note text; UPDATE public.t SET note = 'of ' || id")
    assert not move.run("replay").blocked
    execute(
        source_dsn,
        "UPDATE public.t SET v = 'w' WHERE id % 10 = 0;"
        "ALTER TABLE public.t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (code)",
    )
    (blocked,) = move.run("replay").blocked
    assert "has another key now, and 10 rows of it are away" in blocked["reason"]
    execute(target_dsn, blocked["reason"].partition("have come: ")[2])
    assert not move.run("replay").blocked
    back = 'UPDATE public.t SET note = a.note FROM public.put_aside a WHERE id = a."pgddl key 1"'
    execute(target_dsn, back)
    assert move.journal("SELECT count(*) FROM public.t WHERE note = 'of ' || id") == [(100,)]


def test_a_condition_that_changes_once_rows_were_compared_takes_out_what_it_leaves_out(
    source_dsn: str, target_dsn: str, lifecycle: Lifecycles, at: At
) -> None:
    """The stage has died before the table was followed."""
    execute(source_dsn, TABLE + ROWS)
    execute(target_dsn, TABLE + ROWS)
    move = adopting(lifecycle, source_dsn, target_dsn, "tenant > 0")
    move.run_all(until="backfill")
    with at("schema_sync.before_indexed_commit") as passes:
        passes.act = lambda _: passes.lose()
        move.refused("schema_sync")
    assert move.journal("SELECT state, plan ->> 'adopted' FROM pgddl.tables") == [("backfilled", "compared")]
    reconfigured(move, where={"public.t": "tenant = 7"})
    execute(source_dsn, "UPDATE public.t SET v = 'w' WHERE id % 10 = 0; UPDATE public.t SET tenant = 7 WHERE id = 1")
    move.run_all(after="snapshot", until="replay")
    there = "SELECT id, tenant, v FROM public.t ORDER BY id"
    assert move.journal(there) == move.on_source("SELECT id, tenant, v FROM public.t WHERE tenant = 7 ORDER BY id")
    move.run("verify")
