"""C13: foreign keys and triggers that the target has of its own while rows are replayed: without the replica role a row
that leaves its copy and comes back would take its children along."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from psycopg import sql

from airflow_provider_pgddl.demo.clusters import Cluster
from airflow_provider_pgddl.demo.compare import differences
from airflow_provider_pgddl.engine.following import row_comparison
from airflow_provider_pgddl.engine.job import context
from airflow_provider_pgddl.engine.pipeline.reading import load_pipeline
from airflow_provider_pgddl.engine.preflight import preflight
from airflow_provider_pgddl.engine.server.connect import connect
from tests.combinations import matrix
from tests.failpoints import At
from tests.integration.lifecycle import Lifecycle, execute, wait_until
from tests.integration.sessions import do, one
from tests.table_writers import TableWriters

_numbers = itertools.count(1)

SHOP = """
CREATE SCHEMA shop AUTHORIZATION {owner};
SET ROLE {owner};
CREATE TABLE shop.customer (id int PRIMARY KEY, code int NOT NULL UNIQUE, name text, patron int);
CREATE TABLE shop.purchase (id int PRIMARY KEY, customer int NOT NULL, slot int UNIQUE, total numeric);
CREATE TABLE shop.line (purchase int, n int, what text, PRIMARY KEY (purchase, n));
CREATE TABLE shop.alone (id int PRIMARY KEY, slot int UNIQUE);
INSERT INTO shop.customer SELECT i, i, 'name ' || i, nullif(i / 2, 0) FROM generate_series(1, 60) i;
INSERT INTO shop.purchase SELECT i, i % 60 + 1, i, i FROM generate_series(1, 200) i;
INSERT INTO shop.line SELECT i % 200 + 1, i, 'x' FROM generate_series(1, 400) i;
INSERT INTO shop.alone SELECT i, i FROM generate_series(1, 100) i;
"""
ALONG = "ON DELETE CASCADE ON UPDATE CASCADE"
NULL = "ON DELETE SET NULL ON UPDATE CASCADE"
KEYS = [
    f"ALTER TABLE shop.customer ADD CONSTRAINT patron FOREIGN KEY (patron) REFERENCES shop.customer {NULL}",
    f"ALTER TABLE shop.purchase ADD CONSTRAINT buyer FOREIGN KEY (customer) REFERENCES shop.customer {ALONG}",
    f"ALTER TABLE shop.line ADD CONSTRAINT of FOREIGN KEY (purchase) REFERENCES shop.purchase {ALONG}",
]
THERE = "SELECT count(*) FROM pg_constraint WHERE conname IN ('patron', 'buyer', 'of') AND convalidated"
LOCKED = """
SELECT DISTINCT c.relname FROM pg_locks l JOIN pg_class c ON c.oid = l.relation
WHERE l.pid = %s AND c.relkind = 'r' AND c.relnamespace = 'shop'::regnamespace
"""
TABLES = [("shop", name) for name in ("customer", "purchase", "line", "alone")]


@pytest.fixture
def owner(pg16: Cluster) -> Iterator[str]:
    """A role of the source that the target does not have."""
    name = f"c13_owner_{next(_numbers)}"
    with psycopg.connect(pg16.conninfo(), autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE ROLE {}").format(sql.Identifier(name)))
    return name


Make = Callable[..., Lifecycle]


@pytest.fixture
def make(lifecycle: Make, source_dsn: str, weak_target: str, target_dsn: str, owner: str) -> Make:
    """A pipeline after its first replay, with foreign keys on both sides or on the target only."""

    def made(weak: bool = True, both: bool = True, **settings: Any) -> Lifecycle:
        execute(source_dsn, SHOP.format(owner=owner))
        if both:
            do(source_dsn, *KEYS)
        move = lifecycle(
            source_dsn,
            weak_target if weak else target_dsn,
            **{"tables": {"include": ["shop.*"]}, "replay": {"window_rows": 50, "until_lag": "30s"}, **settings},
        )
        move.run_all(until="replay")
        do(move.target, *KEYS)
        return move

    return made


@pytest.mark.parametrize("weak", [True, False], ids=["without the right", "with it"])
def test_c13_what_differs_is_read_again_with_what_refers_to_it(make: Make, weak: bool) -> None:
    move = make(weak)
    do(move.target, "UPDATE shop.customer SET name = 'by hand' WHERE id = 7", "DELETE FROM shop.purchase WHERE id = 9")
    do(move.target, "DELETE FROM shop.line WHERE purchase IN (11, 12)", "UPDATE shop.alone SET slot = 900 WHERE id = 5")
    result = move.run("verify", mend=True)
    assert differences(move.source, move.target) == []
    assert result.figures["differ"] == 0
    assert one(move.target, THERE) == 3


@pytest.mark.parametrize("weak", [True, False], ids=["without the right", "with it"])
@pytest.mark.parametrize("rows", matrix("change_log", "wal"))
def test_c13_nothing_is_deleted_that_the_source_did_not_delete(make: Make, weak: bool, rows: str) -> None:
    move = make(weak, capture={"rows": rows})
    assert one(move.target, "SELECT pg_catalog.has_parameter_privilege('session_replication_role', 'SET')") != weak
    do(
        move.source,
        "UPDATE shop.customer SET name = 'a parent with children'",
        "UPDATE shop.customer SET id = 1000 WHERE id = 5",  # its key: cascades to its children
        "DELETE FROM shop.customer WHERE id = 7",
        "UPDATE shop.customer SET code = code - 1000 WHERE id IN (9, 10)",
        # Unique values handed over between parents that both have children, and between children.
        "UPDATE shop.customer SET code = 19 - id WHERE id IN (9, 10)",
        "UPDATE shop.purchase SET slot = NULL WHERE id = 20; UPDATE shop.purchase SET slot = 20 WHERE id = 21;"
        " UPDATE shop.purchase SET slot = 21 WHERE id = 20",
        # A parent that goes, whose child has moved to one that comes and takes its unique value.
        "UPDATE shop.customer SET code = -1 WHERE id = 30; INSERT INTO shop.customer VALUES (2000, 30, 'new', 31);"
        "UPDATE shop.purchase SET customer = 2000 WHERE customer = 30; DELETE FROM shop.customer WHERE id = 30",
        "UPDATE shop.alone SET slot = -slot",
    )
    move.run("replay")
    assert differences(move.source, move.target) == []
    do(move.source, "TRUNCATE shop.customer, shop.purchase, shop.line")
    do(move.source, "INSERT INTO shop.customer VALUES (1, 1, 'again', 1)", "INSERT INTO shop.purchase VALUES (1, 1, 1)")
    move.run("replay")
    assert differences(move.source, move.target) == []
    assert move.run("verify").state == "done"


def test_c13_a_unique_value_that_moves_across_the_end_of_what_is_taken(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C36, of tables that are tied: who has the value now is in the first part of the log, and who had it is not."""
    move = make()
    for name in ("LEAST_TAKEN", "TAKEN_IN_PEACE"):
        monkeypatch.setattr(context, name, 1)
    do(
        move.source,
        "UPDATE shop.purchase SET total = 0 WHERE id = 2",
        "UPDATE shop.purchase SET total = -1 WHERE id > 60",
        "UPDATE shop.purchase SET slot = 900 WHERE id = 1; UPDATE shop.purchase SET slot = 1 WHERE id = 2",
    )
    assert not move.run("replay").blocked
    assert differences(move.source, move.target) == []


@pytest.mark.parametrize("mend", [False, True])
def test_c13_tied_tables_are_compared_in_windows_of_their_own(
    make: Make, monkeypatch: pytest.MonkeyPatch, mend: bool
) -> None:
    """A window that only reads one of them has nothing to do with the other."""
    monkeypatch.setattr(row_comparison, "TABLES_A_WINDOW", 1)
    move = make(ddl={"retry_for": "5s"})
    if mend:
        do(move.target, "DELETE FROM shop.purchase WHERE id = 9")
    result = move.run("verify", mend=mend)
    assert result.state == "done" and result.figures["differ"] == 0
    assert differences(move.source, move.target) == []


@pytest.mark.parametrize("weak", [True, False], ids=["without the right", "with it"])
def test_c13_under_random_writers(make: Make, weak: bool) -> None:
    move = make(weak, replay={"window_rows": 1000, "until_lag": "30s"})
    seed = random.SystemRandom().getrandbits(32)
    print(f"seed {seed}")
    with TableWriters([move.source], TABLES, truncate=[("shop", "line")], rate=60, seed=seed) as writers:
        for _ in range(5):
            before = writers.notes.committed.total()
            wait_until(lambda before=before: writers.notes.failures or writers.notes.committed.total() > before + 30)
            assert move.run("replay").blocked == []
        assert move.run("verify").state == "done"
    assert writers.notes.failures == []
    move.run("replay")
    assert differences(move.source, move.target) == []


def test_c13_a_migrate_ends_with_them(make: Make) -> None:
    """Those of the target have the names of the source's, which the cut-over makes: they stand in its way."""
    move = make(swap={"fence": "read_only"})
    do(move.source, "UPDATE shop.customer SET code = -code", "DELETE FROM shop.customer WHERE id < 10")
    move.run("replay")
    do(move.source, "ALTER TABLE shop.customer ADD COLUMN stars int DEFAULT 3")
    move.run("verify")
    do(move.source, "UPDATE shop.customer SET stars = id")
    for table, key in (("customer", "patron"), ("purchase", "buyer"), ("line", "of")):
        do(move.target, f"ALTER TABLE shop.{table} DROP CONSTRAINT {key}")
    move.run_all(until="swap", after="replay")
    assert differences(move.source, move.target) == []
    assert one(move.target, THERE) == 3


def test_c13_what_the_source_does_not_keep_stops_its_table_and_loses_nothing(make: Make) -> None:
    move = make(both=False)
    do(move.source, "DELETE FROM shop.customer WHERE id = 57")  # its children stay, where no key forbids that
    children = one(move.source, "SELECT count(*) FROM shop.purchase WHERE customer = 57")
    blocked = move.run("replay").blocked
    assert {b["table"] for b in blocked} >= {"shop.purchase"}
    assert "violates foreign key" in next(b["reason"] for b in blocked if b["table"] == "shop.purchase")
    do(move.target, "ALTER TABLE shop.purchase DROP CONSTRAINT buyer")
    for _ in range(3):
        move.run("replay")
    assert differences(move.source, move.target) == []
    assert one(move.target, "SELECT count(*) FROM shop.purchase WHERE customer = 57") == children > 0


def test_c13_with_the_right_it_is_not_checked_as_the_gate_says(make: Make) -> None:
    move = make(weak=False, both=False)
    do(move.source, "DELETE FROM shop.customer WHERE id = 7", "UPDATE shop.customer SET name = 'x'")
    assert move.run("replay").blocked == []
    assert differences(move.source, move.target) == []


def test_c13_a_table_of_the_targets_own_that_refers_to_one_of_ours(make: Make) -> None:
    move = make()
    do(
        move.target,
        "CREATE TABLE public.favourite (who int REFERENCES shop.customer ON DELETE CASCADE)",
        "INSERT INTO public.favourite SELECT id FROM shop.customer",
    )
    do(move.source, "UPDATE shop.customer SET name = 'changed'")
    blocked = move.run("replay").blocked
    reason = next(b["reason"] for b in blocked if b["table"] == "shop.customer")
    assert "favourite_who_fkey of public.favourite" in reason
    assert 'GRANT SET ON PARAMETER session_replication_role TO "mover_' in reason
    assert one(move.target, "SELECT count(*) FROM public.favourite") == 60
    do(move.target, "ALTER TABLE public.favourite DROP CONSTRAINT favourite_who_fkey")
    for _ in range(3):
        move.run("replay")
    assert move.run("replay").blocked == []
    assert differences(move.source, move.target, TABLES) == []


def test_c13_triggers_stop_their_table_until_they_are_off_or_the_right_is_there(make: Make, pg18: Cluster) -> None:
    move = make()
    do(
        move.target,
        "CREATE TABLE public.seen (what text)",
        "CREATE FUNCTION public.see() RETURNS trigger LANGUAGE plpgsql AS"
        " 'BEGIN INSERT INTO public.seen VALUES (TG_OP); RETURN NEW; END'",
        "CREATE TRIGGER see AFTER INSERT OR DELETE ON shop.alone FOR EACH ROW EXECUTE FUNCTION public.see()",
    )
    do(move.source, "UPDATE shop.alone SET slot = -slot", "UPDATE shop.customer SET name = 'goes on'")
    blocked = move.run("replay").blocked
    assert [b["table"] for b in blocked] == ["shop.alone"]
    assert "ALTER TABLE shop.alone DISABLE TRIGGER" in blocked[0]["reason"]
    with connect(move.source, purpose="test") as source, connect(move.target, purpose="test") as target:
        found = preflight(load_pipeline(move.content), source, target, TABLES)
    assert [(f.table, f.code) for f in found if f.severity == "error"] == [("shop.alone", "firing")]
    assert one(move.target, "SELECT count(*) FROM public.seen") == 0
    assert one(move.target, "SELECT count(*) FROM shop.customer WHERE name = 'goes on'") == 60
    role = psycopg.conninfo.conninfo_to_dict(move.target)["user"]
    with psycopg.connect(pg18.conninfo(), autocommit=True) as admin:
        admin.execute(
            sql.SQL("GRANT SET ON PARAMETER session_replication_role TO {}").format(sql.Identifier(str(role)))
        )
    move.run("replay")
    assert move.run("replay").blocked == []
    assert one(move.target, "SELECT count(*) FROM public.seen") == 0
    assert differences(move.source, move.target, TABLES) == []


def test_c13_backfill_fires_no_trigger_either(lifecycle: Make, source_dsn: str, target_dsn: str, owner: str) -> None:
    execute(source_dsn, SHOP.format(owner=owner))
    move = lifecycle(source_dsn, target_dsn, tables={"include": ["shop.*"]})
    move.run_all(until="snapshot")
    do(
        move.target,
        "CREATE FUNCTION public.never() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'",
        "CREATE TRIGGER never BEFORE INSERT OR DELETE ON shop.alone FOR EACH ROW EXECUTE FUNCTION public.never()",
    )
    move.run_all(until="verify", after="snapshot")
    assert differences(move.source, move.target) == []


@pytest.mark.parametrize("enabled", ["ALWAYS", "REPLICA"])
def test_c13_a_trigger_that_fires_in_the_replica_role_stops_its_table(
    lifecycle: Make, source_dsn: str, target_dsn: str, owner: str, enabled: str
) -> None:
    execute(source_dsn, SHOP.format(owner=owner))
    move = lifecycle(source_dsn, target_dsn, tables={"include": ["shop.*"]})
    move.run_all(until="replay")
    do(
        move.target,
        "CREATE FUNCTION public.tidy() RETURNS trigger LANGUAGE plpgsql AS"
        " 'BEGIN DELETE FROM shop.line WHERE n = OLD.id; RETURN OLD; END'",
        "CREATE TRIGGER tidy AFTER DELETE ON shop.alone FOR EACH ROW EXECUTE FUNCTION public.tidy()",
        f"ALTER TABLE shop.alone ENABLE {enabled} TRIGGER tidy",
    )
    do(move.source, "UPDATE shop.alone SET slot = -slot", "UPDATE shop.customer SET name = 'goes on'")
    (blocked,) = move.run("replay").blocked
    assert blocked["table"] == "shop.alone"
    assert 'enabled ALWAYS or REPLICA: ALTER TABLE shop.alone DISABLE TRIGGER "tidy";' in blocked["reason"]
    with connect(move.source, purpose="test") as source, connect(move.target, purpose="test") as target:
        found = preflight(load_pipeline(move.content), source, target, TABLES)
    assert [(f.table, f.code) for f in found if f.severity == "error"] == [("shop.alone", "firing")]
    assert one(move.target, "SELECT count(*) FROM shop.customer WHERE name = 'goes on'") == 60
    do(move.target, "ALTER TABLE shop.alone DISABLE TRIGGER tidy")
    move.run("replay")
    assert move.run("replay").blocked == []
    assert differences(move.source, move.target, TABLES) == []


def test_c13_a_window_locks_all_of_a_group_and_no_other(make: Make, at: At) -> None:
    """Rows of a table that nobody has changed leave and come back, as those do that they refer to."""
    move = make()
    locked: list[set[str]] = []

    def look(_: int) -> None:
        (session,) = passes.connections
        locked.append({name for (name,) in move.on_source(LOCKED, [session.info.backend_pid])})

    passes = at("replay.before_source_commit", look)
    do(move.source, "UPDATE shop.line SET what = 'y' WHERE n = 7")
    move.run("replay")
    assert set[str]().union(*locked) == {"customer", "purchase", "line"}
    assert differences(move.source, move.target, TABLES) == []
