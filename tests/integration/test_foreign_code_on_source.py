"""What our event triggers do on the source, in the session of whoever runs DDL: no code of a table's owner runs there
as the owner of our functions, and nothing is locked for a client that it could not lock itself (C28)."""

from __future__ import annotations

from collections.abc import Callable

import psycopg

from tests.integration.foreign_code import migration
from tests.integration.lifecycle import Lifecycle
from tests.integration.mallory import Mallory
from tests.integration.sessions import Underway, do, in_transaction, one, wait_for, waits

Make = Callable[..., Lifecycle]

# What the planner computes of a table that it is to read, {t}.
PLANNED = {
    "statistics": "CREATE STATISTICS m.s ON (id + m.evil(1, 'statistics')), v FROM {t}",
    "index": "CREATE INDEX ON {t} ((id + m.evil(1, 'index')))",
    "predicate": "CREATE INDEX ON {t} (v) WHERE m.evil(1, 'predicate') > 0",
}


def test_c28_no_query_of_a_new_partition_is_planned(
    mallory: Mallory, on_both: tuple[str, str], lifecycle: Make
) -> None:
    source, target = on_both
    mallory.does(
        source,
        "CREATE TABLE m.root (id bigint PRIMARY KEY, v text) PARTITION BY RANGE (id)",
        "CREATE INDEX ON m.root ((id + m.evil(1, 'of the root')))",
        "CREATE TABLE m.first PARTITION OF m.root FOR VALUES FROM (0) TO (10)",
        "INSERT INTO m.root VALUES (1, 'a')",
    )
    move = migration(lifecycle, source, target, [])
    move.run_all(until="snapshot")
    mallory.lets_in(target)
    move.run_all(after="snapshot", until="replay")
    low = 10
    for name, code in PLANNED.items():
        mallory.does(
            source,
            f"CREATE TABLE m.{name} (LIKE m.root INCLUDING ALL)",
            code.replace("{t}", f"m.{name}"),
            f"INSERT INTO m.{name} SELECT i, 'v' FROM generate_series({low}, {low + 4}) i",
            f"ALTER TABLE m.root ATTACH PARTITION m.{name} FOR VALUES FROM ({low}) TO ({low + 10})",
        )
        low += 10
    mallory.does(
        source,
        f"CREATE TABLE m.made PARTITION OF m.root FOR VALUES FROM ({low}) TO ({low + 10})",
        f"INSERT INTO m.root VALUES ({low}, 'w')",
    )
    assert mallory.escalations(source) == []
    # Rows of a new partition that is empty are in the log; those that one brings along are read.
    read_again = "SELECT array_agg(x.leaf::regclass::text ORDER BY x.leaf) FROM pgddl.{} x WHERE x.op = 'X'"
    (log,) = {log for (log,) in move.on_source("SELECT DISTINCT log_table FROM pgddl.captured")}
    assert move.on_source(read_again.format(log)) == [(["m.statistics", "m.index", "m.predicate"],)]
    move.run("replay")
    there = []
    for dsn in (source, target):
        with mallory.session(dsn) as conn:
            there.append(conn.execute("SELECT id, v FROM m.root ORDER BY id").fetchall())
    assert there[0] == there[1] and len(there[0]) == 17
    assert mallory.escalations(source, target) == []


def test_c28_a_name_that_changes_hands_locks_nothing_of_others(
    mallory: Mallory, on_both: tuple[str, str], lifecycle: Make
) -> None:
    """A view is found where a lock was waited for: whatever is in it would be locked as well."""
    source, target = on_both
    mallory.does(source, "CREATE TABLE m.gate ()", *(f"CREATE TABLE m.{t} (id int PRIMARY KEY, n int)" for t in "ab"))
    do(source, "CREATE TABLE public.orders ()")
    lifecycle(source, target, tables={"include": ["m.a", "m.b"]}, capture={"rows": "wal"}).run("setup")
    for table, client in (("a", mallory.at(source)), ("b", source)):
        alter = Underway(lambda c=client, t=table: do(c, f"ALTER TABLE m.{t} DROP COLUMN id"))  # type: ignore[misc]
        with (
            in_transaction(mallory.at(source), "LOCK m.gate IN ACCESS SHARE MODE") as gate,
            in_transaction(
                mallory.at(source),
                f"ALTER TABLE m.{table} RENAME TO was_{table}",
                f"CREATE VIEW m.{table} WITH (security_invoker) AS SELECT FROM public.orders, m.gate",
            ) as view,
            alter,
        ):
            wait_for(lambda t=table: waits(source, "AccessExclusiveLock", f"m.{t}"), alter)  # type: ignore[misc]
            view.commit()
            wait_for(lambda: alter.over or waits(source, "AccessExclusiveLock", "m.gate"))  # noqa: B023
            locked = one(source, "SELECT count(*) FROM pg_locks WHERE relation = 'public.orders'::regclass")
            gate.rollback()
            alter.fails(psycopg.errors.WrongObjectType)
            assert locked == 0, client
    assert one(source, "SELECT count(*) FROM pgddl.exceptions") == 0


def test_c28_who_alters_a_key_waits_for_its_capture_with_rights_of_its_own(
    mallory: Mallory, on_both: tuple[str, str], lifecycle: Make
) -> None:
    """As the table's owner, and as a superuser: only under the lock is it known that the table is published."""
    source, target = on_both
    mallory.does(source, *(f"CREATE TABLE m.{t} (id int PRIMARY KEY, n int)" for t in "ab"))
    lifecycle(source, target, tables={"include": ["m.a", "m.b"]}, capture={"rows": "wal"}).run("setup")
    publication = one(source, "SELECT pubname FROM pg_publication WHERE pubname LIKE 'pgddl_rows%'")
    for table, client in (("a", mallory.at(source)), ("b", source)):
        do(source, f"ALTER PUBLICATION {publication} DROP TABLE ONLY m.{table}")
        alter = Underway(lambda c=client, t=table: do(c, f"ALTER TABLE m.{t} ALTER id TYPE bigint"))  # type: ignore[misc]
        with in_transaction(source, f"LOCK m.{table} IN SHARE ROW EXCLUSIVE MODE") as capture, alter:
            wait_for(lambda t=table: waits(source, "AccessExclusiveLock", f"m.{t}"), alter)  # type: ignore[misc]
            capture.execute(f"ALTER PUBLICATION {publication} ADD TABLE ONLY m.{table} (id)".encode())
            capture.commit()
            alter.finish()
    assert one(source, "SELECT count(*) FROM pg_publication_rel") == 0
