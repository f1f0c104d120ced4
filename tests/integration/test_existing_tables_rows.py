"""`tables.existing: adopt`: rows that the target alone has wait for a decision, and stay whatever the source does until
then."""

from __future__ import annotations

import pytest

from airflow_provider_pgddl.demo.clusters import Cluster
from airflow_provider_pgddl.engine.commands.check import check
from airflow_provider_pgddl.engine.commands.reset import reset
from airflow_provider_pgddl.engine.errors import PreflightRefused, StageFailed
from airflow_provider_pgddl.engine.following import adopted_tables
from airflow_provider_pgddl.engine.pipeline.reading import load_pipeline
from tests.combinations import matrix
from tests.failpoints import At, once
from tests.integration.adopted import ADOPT, EXTRA, ROWS, SHOP, Lifecycles, alike, equal, restore
from tests.integration.calls import before_each
from tests.integration.lifecycle import execute

# Of ranges that were seen to be equal, too.
LOSS = "TRUNCATE shop.purchase; INSERT INTO shop.purchase (customer, total) VALUES (1, 1)"


@pytest.mark.parametrize("keep", matrix(True, False))
def test_rows_of_the_target_alone_wait_for_a_decision(
    keep: bool, pg18: Cluster, lifecycle: Lifecycles, source_dsn: str, target_dsn: str, at: At
) -> None:
    execute(source_dsn, SHOP)
    execute(source_dsn, ROWS)
    restore(pg18, source_dsn, target_dsn)
    execute(target_dsn, EXTRA)
    execute(source_dsn, "DELETE FROM shop.customer WHERE id = 30000")
    move = lifecycle(source_dsn, target_dsn, **ADOPT)
    move.run_all(until="backfill")
    # What it loses as a whole before it was compared takes nothing along that it never had.
    execute(source_dsn, "CREATE TEMP TABLE was AS TABLE shop.part; TRUNCATE shop.part; INSERT INTO shop.part TABLE was")
    before = move.journal("TABLE shop.customer ORDER BY id")
    refused = str(move.refused("schema_sync", PreflightRefused))
    assert "shop.customer: 1,501 rows" in refused and "shop.part: 3 rows" in refused
    assert move.journal("TABLE shop.customer ORDER BY id") == before

    move.content["tables"] = {**ADOPT["tables"], "keep_extra": keep}
    with at("verify.before_window", once(lambda: keep or execute(source_dsn, LOSS), at=2)):
        move.run_all(after="backfill", until="replay")
    if not keep:
        assert move.on_source("SELECT count(*) FROM shop.purchase") == [(1,)]
        move.run_all(after="replay", until="swap")
        alike(move)
        return
    # One that the source comes to have is the source's, and a TRUNCATE there leaves what it never had.
    execute(source_dsn, "INSERT INTO shop.customer OVERRIDING SYSTEM VALUE VALUES (1000001, 'there', 'sad')")
    execute(source_dsn, "TRUNCATE shop.part; INSERT INTO shop.part VALUES ('2024-02-02', 1, 'after')")
    move.run_all(after="schema_sync", until="swap")
    here, there = (dict(rows) for rows in (
        move.journal("SELECT id, name FROM shop.customer"), move.on_source("SELECT id, name FROM shop.customer")
    ))  # fmt: skip
    assert here.items() >= there.items() and here[1000001] == "there"
    assert here.keys() - there.keys() == {30000, *range(1000002, 1001501)}
    assert move.journal("SELECT at::text, id, v FROM shop.part ORDER BY at, id") == [
        ("2024-02-02", 1, "after"), *(("2030-01-01", n, "here") for n in (1, 2, 3))
    ]  # fmt: skip


@pytest.mark.parametrize("rows", matrix("change_log", "wal"))
def test_what_the_source_does_to_rows_that_stay_there_leaves_the_targets(
    rows: str, pg18: Cluster, lifecycle: Lifecycles, source_dsn: str, target_dsn: str, at: At
) -> None:
    """The rows of another tenant, of which both have some; and one that comes and goes."""
    execute(
        source_dsn,
        "CREATE TABLE public.t (id int PRIMARY KEY, tenant int, v text);"
        "INSERT INTO public.t SELECT n, 7 + n % 2, 'v' FROM generate_series(1, 2000) n",
    )
    restore(pg18, source_dsn, target_dsn)
    execute(target_dsn, "UPDATE public.t SET v = 'here' WHERE tenant = 8")
    execute(target_dsn, "INSERT INTO public.t VALUES (3000, 8, 'here')")
    tables = {"include": ["public.t"], "existing": "adopt", "keep_extra": True}
    move = lifecycle(source_dsn, target_dsn, **{**ADOPT, "tables": tables}, capture={"rows": rows})
    tables["where"] = {"public.t": "abs(tenant) = 7"}  # which is not asked of the target's rows
    move.run("setup")
    assert "tables.keep_extra: false" in str(move.refused("snapshot", PreflightRefused))
    reset(load_pipeline(move.content), source_dsn, target_dsn)
    tables["where"] = {"public.t": "tenant = 7"}
    move.run_all(until="snapshot")
    changed = (
        "UPDATE public.t SET v = v || '?' WHERE id BETWEEN 61 AND 70; DELETE FROM public.t WHERE id IN (71, 72);"
        "UPDATE public.t SET tenant = 8 WHERE id = 74; UPDATE public.t SET tenant = 7 WHERE id = 1999"
    )
    execute(source_dsn, changed)  # before anybody knows which rows are the target's own
    move.run_all(after="snapshot", until="schema_sync")
    here = "SELECT id FROM public.t WHERE v = 'here' ORDER BY id"
    assert [key for (key,) in move.journal(here)] == [*range(1, 1998, 2), 3000]
    execute(
        source_dsn,
        "UPDATE public.t SET v = v || '!' WHERE id <= 20; DELETE FROM public.t WHERE id IN (31, 32);"
        "INSERT INTO public.t VALUES (3000, 7, 'comes'); DELETE FROM public.t WHERE id = 3000;"
        "UPDATE public.t SET tenant = 7 WHERE id = 41; UPDATE public.t SET tenant = 8 WHERE id = 42;",
    )
    move.run_all(after="schema_sync", until="replay")
    stays = [n for n in range(1, 1998, 2) if n != 41] + [3000]
    assert [key for (key,) in move.journal(here)] == stays
    # Read as a whole, while the source comes to have such a row; and what only the source's other tenant loses.
    execute(
        source_dsn,
        "ALTER TABLE public.t ADD COLUMN w float8 DEFAULT random(); DELETE FROM public.t WHERE id = 51",
    )
    comes = "INSERT INTO public.t VALUES (3000, 7, 'stays')"
    with at("settle.before_plan", once(lambda: execute(source_dsn, comes))):
        move.run("replay")
    move.run_all(after="replay", until="swap")
    assert [key for (key,) in move.journal(here)] == stays[:-1]
    shown = "SELECT id, v, w FROM public.t WHERE tenant = 7 ORDER BY id"
    assert move.journal(shown) == move.on_source(shown)


def test_no_foreign_key_takes_along_what_nobody_has_decided_about(
    pg18: Cluster, lifecycle: Lifecycles, source_dsn: str, weak_target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A role that may not silence them: whatever refers to a row that is read again leaves with it. Nor is a row taken
    that came behind the count of those that wait for a decision."""
    execute(
        source_dsn,
        "DO $$ BEGIN CREATE ROLE not_on_the_target; EXCEPTION WHEN duplicate_object THEN NULL; END $$;"
        "GRANT ALL ON SCHEMA public TO not_on_the_target; SET ROLE not_on_the_target;"
        "CREATE TABLE public.parent (id int PRIMARY KEY, v text);"
        "CREATE TABLE public.child (id int PRIMARY KEY, parent int REFERENCES public.parent ON DELETE CASCADE);"
        "INSERT INTO public.parent SELECT n, 'v' FROM generate_series(1, 50) n;"
        "INSERT INTO public.child SELECT n, 1 + n % 50 FROM generate_series(1, 100) n",
    )
    restore(pg18, source_dsn, weak_target, "--no-owner", "--no-privileges")
    alone = "SELECT id FROM public.child WHERE id > 100"
    execute(weak_target, "INSERT INTO public.child VALUES (1000, 5); UPDATE public.parent SET v = 'other' WHERE id = 5")
    move = lifecycle(source_dsn, weak_target, **{**ADOPT, "tables": {"include": ["public.*"], "existing": "adopt"}})
    move.run_all(until="backfill")
    execute(source_dsn, "UPDATE public.parent SET v = 'changed' WHERE id = 5")
    assert "public.child: 1 row" in str(move.refused("schema_sync", PreflightRefused))
    blocked = move.journal("SELECT findings::text FROM pgddl.schema_status WHERE table_name = 'parent'")
    assert "session_replication_role" in blocked[0][0] and move.journal(alone) == [(1000,)]
    execute(weak_target, "DELETE FROM public.child WHERE id = 1000; UPDATE public.child SET parent = 7 WHERE id = 99")
    with monkeypatch.context() as late:
        came = "INSERT INTO public.child VALUES (1000, 5)"
        before_each(late, adopted_tables, "_take_out", once(lambda: execute(weak_target, came)))
        assert "public.child: 1 row came meanwhile" in str(move.refused("schema_sync", PreflightRefused))
    assert move.journal(alone) == [(1000,)]
    move.content["tables"]["keep_extra"] = False
    move.run_all(after="backfill", until="replay")
    assert move.journal(alone) == []
    equal(move)


def test_a_table_that_the_target_had_outlives_being_taken_out(
    lifecycle: Lifecycles, source_dsn: str, target_dsn: str
) -> None:
    execute(
        source_dsn,
        "CREATE TABLE public.old (id int PRIMARY KEY); CREATE TABLE public.new (LIKE public.old INCLUDING ALL)",
    )
    execute(target_dsn, "CREATE TABLE public.old (id int PRIMARY KEY)")
    execute(source_dsn, "CREATE TABLE public.stays (id int PRIMARY KEY); INSERT INTO public.old VALUES (1), (2)")
    for dsn in (source_dsn, target_dsn):
        execute(dsn, "CREATE TABLE public.bare (v text); INSERT INTO public.bare VALUES ('here')")
    tables = {"include": ["public.*"], "existing": "adopt", "keyless": "copy_at_swap"}
    move = lifecycle(source_dsn, target_dsn, tables=tables, swap={"fence": "read_only"})
    execute(target_dsn, "CREATE SCHEMA far; CREATE TABLE far.off (id int CONSTRAINT leads REFERENCES public.old)")
    told = check(load_pipeline(move.content), source_dsn, target_dsn)["findings"]
    assert [f["severity"] for f in told if f["table"] == "public.old" and "leads of far.off" in f["what"]] == [
        "warning"
    ]
    move.run("setup")
    assert "no key" in str(move.refused("snapshot", PreflightRefused))
    execute(target_dsn, "TRUNCATE public.bare")
    move.run_all(after="setup", until="replay")
    move.content["tables"]["include"] = ["public.stays"]
    move.run("setup", reconfigure=True, drop=True)
    assert move.journal("SELECT to_regclass('public.new')") == [(None,)]
    assert move.journal("TABLE public.old") == [(1,), (2,)]


@pytest.mark.parametrize("rows", matrix("change_log", "wal"))
def test_rows_that_are_kept_stay_where_a_table_becomes_a_partition_or_is_none_any_more(
    lifecycle: Lifecycles, source_dsn: str, target_dsn: str, rows: str
) -> None:
    made = """
        CREATE TABLE public.a (id int PRIMARY KEY); INSERT INTO public.a SELECT generate_series(1, 20);
        CREATE TABLE public.b (id int PRIMARY KEY) PARTITION BY RANGE (id);
        CREATE TABLE public.b_1 PARTITION OF public.b FOR VALUES FROM (100) TO (200);
        INSERT INTO public.b SELECT generate_series(100, 120);
    """
    execute(source_dsn, made)
    execute(target_dsn, made + "INSERT INTO public.a VALUES (50); INSERT INTO public.b VALUES (150)")
    tables = {"include": ["public.*"], "existing": "adopt", "keep_extra": True}
    move = lifecycle(source_dsn, target_dsn, **{**ADOPT, "tables": tables, "capture": {"rows": rows}})
    move.run_all(until="replay")
    kept = "SELECT count(*) FROM {} WHERE id IN (50, 150)"
    assert move.journal(kept.format("public.a")) == move.journal(kept.format("public.b")) == [(1,)]
    execute(source_dsn, "ALTER TABLE public.b DETACH PARTITION public.b_1")
    blocked = {b["table"]: b["reason"] for b in move.run("replay").blocked}
    assert "rows that the target alone has" in blocked["public.b_1"]
    assert move.journal(kept.format("public.b_1")) == [(1,)]
    execute(source_dsn, "ALTER TABLE public.b ATTACH PARTITION public.a FOR VALUES FROM (0) TO (100)")
    assert "the target keeps rows of one of" in str(move.refused("replay", StageFailed))
    assert move.journal(kept.format("public.b")) == [(1,)]
