"""`tables.existing: adopt`: tables that the target has already are brought in line, by what differs in them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql

from airflow_provider_pgddl.demo.clusters import Cluster
from airflow_provider_pgddl.demo.compare import catalog_lines, compare_sequences, diff_catalogs, differences
from airflow_provider_pgddl.engine.commands.check import check
from airflow_provider_pgddl.engine.commands.plan import lines, plan
from airflow_provider_pgddl.engine.commands.reset import reset
from airflow_provider_pgddl.engine.errors import PreflightRefused, StageFailed
from airflow_provider_pgddl.engine.failpoints import VARIABLE
from airflow_provider_pgddl.engine.following import adopted_tables
from airflow_provider_pgddl.engine.job import file as jobs
from airflow_provider_pgddl.engine.pipeline.reading import load_pipeline
from tests.combinations import matrix
from tests.failpoints import At, once
from tests.integration.calls import before_each
from tests.integration.lifecycle import PROGRAM, Lifecycle, execute, left_behind, wait_until

Lifecycles = Callable[..., Lifecycle]

SHOP = """
CREATE SCHEMA shop;
CREATE TYPE shop.mood AS ENUM ('sad', 'ok');
CREATE TABLE shop.customer (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name text UNIQUE, mood shop.mood);
CREATE TABLE shop.purchase (id serial PRIMARY KEY, customer bigint NOT NULL REFERENCES shop.customer ON DELETE CASCADE,
    total numeric(12, 2) CHECK (total >= 0), note text);
CREATE INDEX purchase_customer ON shop.purchase (customer);
CREATE TABLE shop.part (at date, id int, v text, PRIMARY KEY (at, id)) PARTITION BY RANGE (at);
CREATE TABLE shop.part_2024 PARTITION OF shop.part FOR VALUES FROM ('2024-01-01') TO ('2025-01-01');
CREATE TABLE shop.part_rest PARTITION OF shop.part DEFAULT;
CREATE VIEW shop.rich AS SELECT customer, sum(total) FROM shop.purchase GROUP BY customer;
CREATE FUNCTION shop.noted() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN NEW.note := coalesce(NEW.note, '') || '!'; RETURN NEW; END $$;
CREATE TRIGGER noted BEFORE INSERT ON shop.purchase FOR EACH ROW EXECUTE FUNCTION shop.noted();
"""
ROWS = """
INSERT INTO shop.customer (name, mood) SELECT 'name ' || n, 'ok' FROM generate_series(1, 30000) n;
INSERT INTO shop.purchase (customer, total) SELECT 1 + n % 30000, n FROM generate_series(1, 60000) n;
INSERT INTO shop.part SELECT '2023-07-01'::date + n % 700, n, 'v' || n FROM generate_series(1, 7000) n;
"""
WORK = """
INSERT INTO shop.customer (name, mood) SELECT '{0} ' || n, 'sad' FROM generate_series(1, 20) n;
UPDATE shop.customer SET mood = 'sad' WHERE id BETWEEN 100 + {1} AND 110 + {1};
UPDATE shop.customer SET name = name || '{0}' WHERE id = 20000 + {1};
INSERT INTO shop.purchase (customer, total) SELECT id, 5 FROM shop.customer WHERE id BETWEEN 50 AND 60;
UPDATE shop.purchase SET total = total + 1 WHERE id BETWEEN 300 AND 320;
UPDATE shop.part SET at = '2024-05-05', v = '{0}' WHERE id % 4000 = {1};
"""
ADOPT: dict[str, Any] = {
    "tables": {"include": ["shop.*"], "existing": "adopt"},
    "swap": {"fence": "read_only"},
    "backfill": {"chunk_bytes": "256kB", "workers": 2},
}


def restore(cluster: Cluster, source: str, target: str, *options: str) -> None:
    """As pg_restore leaves it, the rows as of now."""
    command = [cluster.bin("pg_dump"), "--inserts", "--rows-per-insert=500", *options, "-d", source]
    dump = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    execute(target, "\n".join(line for line in dump.splitlines() if not line.startswith("\\")))


def blocks_and_rows_read_again(move: Lifecycle) -> tuple[int, int]:
    """Chunks, and rows that windows have brought."""
    chunks, rows = "SELECT count(*) FROM pgddl.chunks", "SELECT coalesce(sum(rows), 0) FROM pgddl.windows"
    return int(move.journal(chunks)[0][0]), int(move.journal(rows)[0][0])


def equal(move: Lifecycle) -> None:
    assert [str(d) for d in differences(move.source, move.target)] == []


def alike(move: Lifecycle, *, ahead: bool = False) -> None:
    """Rows, sequences and catalogs; `ahead`: sequences may be, as where the target alone had rows."""
    equal(move)
    assert [str(d) for d in compare_sequences(move.source, move.target, ahead=ahead)] == []
    assert diff_catalogs(catalog_lines(move.source), catalog_lines(move.target)) == []


@pytest.mark.parametrize("rows", matrix("change_log", "wal"))
def test_behind_a_restore_only_what_differs_is_read(
    rows: str, pg18: Cluster, lifecycle: Lifecycles, source_dsn: str, target_dsn: str, at: At
) -> None:
    """Clients write all the while; and the target has lost and changed some rows."""
    execute(source_dsn, SHOP)
    execute(source_dsn, ROWS)
    restore(pg18, source_dsn, target_dsn)
    execute(source_dsn, WORK.format("before", 1))
    execute(target_dsn, "SET session_replication_role = replica; DELETE FROM shop.customer WHERE id BETWEEN 7 AND 9;"
                        "UPDATE shop.purchase SET note = 'changed here' WHERE id = 41;")  # fmt: skip
    # A row whose key has changed while nothing was captured is two: one that is missing, and one of the target alone.
    tables = {**ADOPT["tables"], "keep_extra": False}
    move = lifecycle(source_dsn, target_dsn, **{**ADOPT, "tables": tables}, capture={"rows": rows})
    move.run_all(until="snapshot")
    execute(source_dsn, WORK.format("captured", 2))
    with at("adopt.before_compared_commit", once(lambda: execute(source_dsn, WORK.format("late", 3)))):
        move.run_all(after="snapshot", until="schema_sync")
    assert 0 < move.results["schema_sync"].figures["differed"] < 12_000
    execute(source_dsn, WORK.format("replayed", 4))
    move.run("replay")
    chunks, read = blocks_and_rows_read_again(move)
    assert chunks == 0 and 0 < read < 20_000  # of 97,000
    move.run_all(after="replay", until="swap")
    alike(move)
    move.run("cleanup")
    assert left_behind(target_dsn) == ["schema pgddl"]


def test_an_empty_table_is_filled_and_what_meets_another_row_waits(
    pg18: Cluster, lifecycle: Lifecycles, source_dsn: str, target_dsn: str, at: At
) -> None:
    """Rows move to later blocks, names change places; and somebody writes to the target."""
    execute(source_dsn, SHOP)
    execute(source_dsn, ROWS)
    restore(pg18, source_dsn, target_dsn, "--schema-only")
    one = {**ADOPT["backfill"], "workers": 1}
    move = lifecycle(source_dsn, target_dsn, **{**ADOPT, "backfill": one})
    execute(source_dsn, "CREATE TABLE shop.late (id int PRIMARY KEY)")
    planned = plan(load_pipeline(move.content), source_dsn, target_dsn)
    told = "\n".join(lines(planned))
    assert "shop.customer: the target's own table is taken as it is" in told
    assert "shop.purchase: if the target's has rows, both are read" in told and "tables.keep_extra" in told
    assert [s["statement"].split("(")[0].strip() for s in planned["stages"]["snapshot"]["statements"]
            if s["statement"].startswith("CREATE")] == ['CREATE TABLE shop.late']  # fmt: skip
    assert left_behind(target_dsn) == []
    move.run_all(until="snapshot")
    lost = list[int]()

    def meet(n: int) -> None:
        if n == 3:
            execute(
                source_dsn,
                """UPDATE shop.customer SET name = 'away' WHERE id = 1;
                   UPDATE shop.customer SET name = 'name 1' WHERE id = 2;
                   UPDATE shop.customer SET name = 'name 2' WHERE id = 1;
                   UPDATE shop.customer SET mood = 'sad' WHERE id < 50;
                   UPDATE shop.purchase SET note = 'moved' WHERE id < 2000;
                   DELETE FROM shop.part WHERE id < 10;""",
            )
            execute(target_dsn, "INSERT INTO shop.customer OVERRIDING SYSTEM VALUE VALUES (-1, 'name 29999', 'ok')")
        # What blocks have brought is the source's, which loses it again.
        if not lost and move.journal("SELECT EXISTS (SELECT FROM shop.purchase)") == [(True,)]:
            lost.append(n)
            execute(
                source_dsn,
                "TRUNCATE shop.purchase; INSERT INTO shop.purchase (customer, total) VALUES (1, 1), (3, 3)",
            )

    with at("backfill.before_chunk", meet):
        move.run_all(after="snapshot", until="backfill")
    assert lost and move.journal("SELECT count(*) > 3 FROM pgddl.chunks") == [(True,)]
    move.run("schema_sync")
    result = move.run("replay")
    assert [blocked["table"] for blocked in result.blocked] == ["shop.customer"]
    assert "key (29999)" in result.blocked[0]["reason"]
    execute(target_dsn, "UPDATE shop.customer SET name = 'somebody' WHERE id = -1")
    assert not move.run("replay").blocked
    assert "shop.customer: 1 rows differ" in str(move.refused("verify"))
    execute(target_dsn, "DELETE FROM shop.customer WHERE id = -1")
    move.run_all(after="replay", until="swap")
    alike(move)


EXTRA = """
INSERT INTO shop.customer OVERRIDING SYSTEM VALUE
    SELECT 1000000 + n, 'here ' || n, 'ok' FROM generate_series(1, 1500) n;
INSERT INTO shop.part SELECT '2030-01-01', n, 'here' FROM generate_series(1, 3) n;
"""
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


def test_a_lost_journal_costs_a_comparison_and_a_reset_no_row(
    pg18: Cluster, lifecycle: Lifecycles, source_dsn: str, target_dsn: str
) -> None:
    execute(source_dsn, SHOP)
    execute(source_dsn, ROWS)
    first = lifecycle(source_dsn, target_dsn, **{**ADOPT, "tables": {"include": ["shop.*"]}})
    first.run_all(until="replay")
    execute(target_dsn, "DROP SCHEMA pgddl CASCADE")
    execute(source_dsn, WORK.format("lost", 1))

    tables = {**ADOPT["tables"], "keep_extra": False}
    move = lifecycle(source_dsn, target_dsn, **{**ADOPT, "tables": tables})
    move.content["pipeline"] = first.name
    move.run_all(until="schema_sync")
    # The source remembers windows that no journal knows of, and whatever the comparison has found: verify is to say so.
    assert "acknowledged window" in move.run("replay").blocked[0]["reason"]
    chunks, read = blocks_and_rows_read_again(move)
    assert chunks == 0 and 0 < read < 12_000
    equal(move)
    move.run("verify")
    dropped = reset(load_pipeline(move.content), source_dsn, target_dsn, ["shop.purchase"])["dropped"]
    assert [line for line in dropped if line.startswith("what followed shop.purchase: it stays")]
    equal(move)
    execute(source_dsn, WORK.format("reset", 2))
    move.run_all(until="replay")
    equal(move)
    reset(load_pipeline(move.content), source_dsn, target_dsn)
    assert left_behind(source_dsn) == left_behind(target_dsn) == []
    equal(move)
    move.run_all(until="swap")  # with the foreign keys and triggers that the lost run had still to bring
    alike(move)


@contextmanager
def subscribed(source_dsn: str, target_dsn: str) -> Iterator[psycopg.Connection[Any]]:
    """Native logical replication has brought the rows, and goes on in the block; a session of the target."""
    with psycopg.connect(source_dsn, autocommit=True) as source, psycopg.connect(target_dsn, autocommit=True) as target:
        source.execute("CREATE PUBLICATION away FOR TABLES IN SCHEMA shop")
        create = sql.SQL("CREATE SUBSCRIPTION here CONNECTION {} PUBLICATION away")
        target.execute(create.format(sql.Literal(source_dsn)))
        try:
            not_yet = "SELECT FROM pg_subscription_rel WHERE srsubstate <> 'r'"
            wait_until(lambda: target.execute(not_yet).fetchone() is None, seconds=120)
            yield target
        finally:
            target.execute("DROP SUBSCRIPTION here")
            source.execute("DROP PUBLICATION away")


def test_behind_native_replication_nothing_is_read(
    pg16: Cluster, pg18: Cluster, lifecycle: Lifecycles, source_dsn: str, target_dsn: str
) -> None:
    execute(source_dsn, SHOP)
    execute(source_dsn, ROWS)
    restore(pg18, source_dsn, target_dsn, "--schema-only")
    move = lifecycle(source_dsn, target_dsn, **ADOPT)
    with subscribed(source_dsn, target_dsn):
        found = check(load_pipeline(move.content), source_dsn, target_dsn)["findings"]
        assert {f["table"] for f in found if f["code"] == "subscription"} >= {"shop.customer", "shop.purchase"}
    results = move.run_all(until="replay")
    assert results["schema_sync"].figures["differed"] == 0
    assert blocks_and_rows_read_again(move) == (0, 0)
    move.run_all(after="replay", until="swap")
    alike(move)


def test_what_cannot_be_adopted_is_refused_with_the_sql(
    pg18: Cluster, lifecycle: Lifecycles, source_dsn: str, target_dsn: str
) -> None:
    execute(source_dsn, SHOP)
    execute(source_dsn, "CREATE TABLE shop.other (id int PRIMARY KEY, v text, n int)")
    execute(source_dsn, "CREATE TABLE shop.key (id int PRIMARY KEY, v text)")
    execute(
        target_dsn, "CREATE SCHEMA shop; CREATE TABLE shop.other (id int PRIMARY KEY, v text);"
                        "CREATE TABLE shop.key (id int, v text PRIMARY KEY); CREATE VIEW shop.part AS SELECT 1"
    )  # fmt: skip
    move = lifecycle(source_dsn, target_dsn, **ADOPT)
    refused = str(move.refused("setup", PreflightRefused))
    assert "shop.other" in refused and "ADD COLUMN" in refused
    assert "shop.key" in refused and "it is a view on the target" in refused
    assert left_behind(target_dsn) == []


@pytest.mark.parametrize("rows", matrix("change_log", "wal"))
def test_kills_at_every_border(
    rows: str, pg18: Cluster, lifecycle: Lifecycles, source_dsn: str, target_dsn: str, tmp_path: Path
) -> None:
    execute(source_dsn, SHOP)
    execute(source_dsn, ROWS)
    restore(pg18, source_dsn, target_dsn)
    execute(target_dsn, EXTRA)
    execute(source_dsn, "UPDATE shop.customer SET mood = 'sad' WHERE id % 1000 = 3")
    keep, undecided = {**ADOPT["tables"], "keep_extra": True}, ADOPT["tables"]
    move = lifecycle(source_dsn, target_dsn, **{**ADOPT, "tables": keep}, capture={"rows": rows})
    move.run("setup")
    borders = {"snapshot": [("adopt.before_noted_commit", keep)], "backfill": [], "schema_sync": [
        ("adopt.before_extra_commit", keep), ("verify.before_mend_commit", keep),
        ("adopt.before_undecided_commit", undecided), ("adopt.before_compared_commit", keep)]}  # fmt: skip
    for number, (stage, names) in enumerate(borders.items()):
        for name, tables in names:
            move.content["tables"] = tables
            jobs.write(move.job(stage), tmp_path / f"{name}.json")
            env = {**os.environ, VARIABLE: f"'{tmp_path}' {name}=kill"}
            command = [sys.executable, "-c", PROGRAM, str(tmp_path / f"{name}.json")]
            done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
            assert (tmp_path / name).exists() and done.returncode < 0, f"{name}: {done.stdout}{done.stderr}"
            execute(source_dsn, WORK.format(name, 10 + number))
            if tables is undecided:  # what was to stay is no longer known as that, and none of it has gone
                refused = str(move.refused(stage, PreflightRefused))
                assert "shop.customer: 1,500 rows" in refused and "shop.part: 3 rows" in refused
                assert move.journal("SELECT count(*) FROM pgddl.tables WHERE plan ->> 'extra' <> ''") == [(0,)]
        move.run(stage)
    move.run_all(after="schema_sync", until="swap")
    extra = {("shop", "customer"): "id > 1000000", ("shop", "part"): "v = 'here'"}
    for (schema, name), condition in extra.items():
        assert move.journal(f"SELECT count(*) FROM {schema}.{name} WHERE {condition}")[0][0] in (1500, 3)
        execute(target_dsn, f"DELETE FROM {schema}.{name} WHERE {condition}")
    alike(move, ahead=True)


def test_ddl_only_brings_a_column_to_a_subscriber(
    pg18: Cluster, lifecycle: Lifecycles, source_dsn: str, target_dsn: str
) -> None:
    """Rows do not wait for it: the apply worker stops at the first that has it, and goes on once it is there."""
    execute(source_dsn, SHOP)
    execute(source_dsn, ROWS)
    restore(pg18, source_dsn, target_dsn, "--schema-only")
    alone = {"tables": ADOPT["tables"], "capture": {"ddl": "queue"}, "ddl": {"ddl_only": True}}
    move = lifecycle(source_dsn, target_dsn, **alone)
    with subscribed(source_dsn, target_dsn) as target:
        move.run_all(until="snapshot")
        assert move.results["snapshot"].figures["applied"] == 0
        execute(
            source_dsn,
            "ALTER TABLE shop.customer ADD COLUMN city text; UPDATE shop.customer SET city = 'x' WHERE id < 9",
        )
        stopped = "SELECT 1 FROM pg_stat_subscription_stats WHERE apply_error_count > 0"
        wait_until(lambda: target.execute(stopped).fetchone(), seconds=60)
        execute(source_dsn, "INSERT INTO shop.customer (name, city) VALUES ('behind', 'y')")
        move.run("replay")
        there = "SELECT 1 FROM shop.customer WHERE city = 'y'"
        wait_until(lambda: target.execute(there).fetchone(), seconds=120)
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
