"""correctness.md, part one: rows. Each test bears the number of its rule and fails where the rule is broken."""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from airflow_provider_pgddl.demo.clusters import Cluster
from airflow_provider_pgddl.demo.compare import differences
from airflow_provider_pgddl.engine.capture import change_log
from airflow_provider_pgddl.engine.errors import EXIT_REFUSED, Fenced, PgddlError, PreflightRefused, StageFailed
from airflow_provider_pgddl.engine.following import ddl as following
from airflow_provider_pgddl.engine.journal import lease
from airflow_provider_pgddl.engine.journal.lease import Lease
from airflow_provider_pgddl.engine.parallel import spark
from airflow_provider_pgddl.engine.rows import chunks, fill, window_locks, windows
from airflow_provider_pgddl.engine.server import catalog, giving_way
from airflow_provider_pgddl.engine.server import connect as connecting
from airflow_provider_pgddl.engine.server.connect import Session, connect
from airflow_provider_pgddl.engine.stages import StageResult
from tests.conftest import Database, database_name
from tests.failpoints import At
from tests.integration.calls import Paused, after_each, before_each, once
from tests.integration.items import ITEMS, SMALL, log_of
from tests.integration.lifecycle import Lifecycle, left_behind, wait_until
from tests.integration.sessions import Underway, do, in_transaction, one, wait_for, waits

Make = Callable[..., Lifecycle]


@pytest.fixture
def items(source_dsn: str, target_dsn: str, lifecycle: Make) -> Lifecycle:
    """A migration of one table of several chunks."""
    do(source_dsn, ITEMS)
    return lifecycle(source_dsn, target_dsn, tables={"include": ["public.items"]}, **SMALL)


# --- C2: capture starts before the first row is read ------------------------------------------------------------------


def test_c02_a_row_in_flight_while_setup_runs_is_not_lost(items: Lifecycle) -> None:
    with in_transaction(items.source, "INSERT INTO items VALUES (1001, 'in flight', 'x')") as writer:
        with Underway(lambda: items.run("setup")) as setup:
            wait_for(lambda: waits(items.source, "ShareRowExclusiveLock", "public.items"), setup)
            writer.execute("UPDATE items SET filler = 'y' WHERE id = 1001")
            writer.commit()
    # A snapshot taken from here on shows the row; bounds read before would not have.
    items.run_all(after="setup", until="swap")
    assert differences(items.source, items.target) == []
    assert one(items.target, "SELECT filler FROM items WHERE id = 1001") == "y"


def test_c02_setup_waits_for_every_transaction_that_is_older_than_capture(items: Lifecycle) -> None:
    do(items.source, "CREATE TABLE elsewhere (n int)")
    with in_transaction(items.source, "INSERT INTO elsewhere VALUES (1)") as older:
        with Underway(lambda: items.run("setup")) as setup:
            captured = "SELECT count(*) FROM pg_trigger WHERE tgrelid = 'items'::regclass AND tgname LIKE 'pgddl%'"
            wait_for(lambda: one(items.source, captured) == 2, setup)
            asked = (
                "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE application_name LIKE %s"
                " AND query LIKE '%%pg_snapshot_xip%%')"
            )
            wait_for(lambda: one(items.source, asked, f"pgddl:{items.name}:%"), setup)
            assert not setup.over
            older.execute("INSERT INTO items VALUES (1002, 'older', 'x')")
            older.commit()
    assert items.on_source(f"SELECT new_1 FROM {log_of(items, 'items')}") == [(1002,)]


# --- C3: lock before snapshot -----------------------------------------------------------------------------------------

# How a table comes by a new file; `{}` is the table.
NEW_FILES = {
    "truncated": ["TRUNCATE {0}", "INSERT INTO {0} SELECT n, 'new ' || n, 'y' FROM generate_series(1, 50) n"],
    "vacuumed": ["DELETE FROM {0} WHERE id % 3 > 0", "VACUUM FULL {0}"],
    "clustered": ["UPDATE {0} SET filler = repeat('z', 300) WHERE id % 7 = 0", "CLUSTER {0}"],
}


def replaced(how: str, table: str) -> list[str]:
    return [statement.format(table) for statement in NEW_FILES[how]]


def test_c03_a_table_whose_file_is_replaced_is_copied_again(
    source_dsn: str,
    target_dsn: str,
    lifecycle: Make,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Right before its first chunk (planned before) and between two of its chunks."""
    moments = {f"{how}_before_{chunk}": (how, chunk) for how in NEW_FILES for chunk in (1, 3)}
    do(source_dsn, *(ITEMS.replace("items", table) for table in moments))
    move = lifecycle(source_dsn, target_dsn, tables={"include": ["public.*"]}, **SMALL)
    move.run_all(until="snapshot")
    chunks_of: Counter[str] = Counter()
    copy = chunks._Worker._copy

    def replace_and_copy(worker: chunks._Worker, table: chunks.TableToCopy, *rest: Any) -> Any:
        name = table.plan.name
        chunks_of[name] += 1
        how, chunk = moments[name]
        if chunks_of[name] == chunk:
            do(source_dsn, *replaced(how, name))
        return copy(worker, table, *rest)

    monkeypatch.setattr(chunks._Worker, "_copy", replace_and_copy)
    move.run_all(after="snapshot", until="swap")
    said = capsys.readouterr().out
    assert [name for name in moments if f"{name}: its file was replaced meanwhile" not in said] == []
    assert differences(source_dsn, target_dsn) == []


def test_c03_without_looking_at_the_file_rows_are_lost(items: Lifecycle, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the test above is good for: nothing else would have noticed but verify."""
    items.run_all(until="snapshot")
    before_each(monkeypatch, chunks._Worker, "_copy", once(*replaced("vacuumed", "items"), dsn=items.source, at=3))
    monkeypatch.setattr(chunks._Worker, "_lock_and_compare", lambda *_: None)
    items.run_all(after="snapshot", until="replay")
    (lost,) = differences(items.source, items.target)
    assert lost.only_source > 50
    assert "rows differ" in str(items.refused("verify", StageFailed))


def test_c03_a_file_of_now_is_not_taken_for_that_of_a_snapshot(items: Lifecycle) -> None:
    """A plan that is recorded with the one and the columns of the other would know a rewrite that it has not seen."""
    with connect(items.source, purpose="look", pipeline=items.name) as conn:
        oid = catalog.oid_of(conn, "public", "items")
        assert oid is not None
        (before,) = catalog.describe(conn, [oid])[oid].leaves
        conn.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        conn.execute("SELECT pg_current_snapshot()")
        do(items.source, "ALTER TABLE public.items ALTER COLUMN id TYPE bigint")
        (leaf,) = catalog.describe(conn, [oid])[oid].leaves
        assert before.filenode and leaf.attributes == before.attributes and not leaf.filenode
        conn.execute("ROLLBACK")
        (after,) = catalog.describe(conn, [oid])[oid].leaves
        assert after.filenode not in (0, before.filenode) and after.attributes != before.attributes


@pytest.mark.parametrize("insist_from", [giving_way.INSIST_FROM, 0])
def test_c03_a_window_locks_before_it_has_a_snapshot(
    source_dsn: str, target_dsn: str, lifecycle: Make, monkeypatch: pytest.MonkeyPatch, insist_from: int
) -> None:
    """Tables are replaced at the last moment at which they still can be, with keys pending from the window before. One
    that waits for its locks takes no snapshot while it waits."""
    monkeypatch.setattr(giving_way, "INSIST_FROM", insist_from)
    do(source_dsn, *(ITEMS.replace("items", table) for table in NEW_FILES))
    move = lifecycle(source_dsn, target_dsn, tables={"include": ["public.*"]}, **SMALL)
    move.run_all(until="schema_sync")
    do(source_dsn, *(f"UPDATE {table} SET code = 'changed ' || id WHERE id <= 100" for table in NEW_FILES))
    snapshots: list[str] = []
    waited = set[float]()
    lock = window_locks.lock_tables

    def lock_and_look(replica: window_locks.Replica, tables: Any, wait: float) -> None:
        if len(snapshots) == 2:
            for how in NEW_FILES:
                do(source_dsn, *replaced(how, how))
        lock(replica, tables, wait)
        waited.add(wait)
        query = "SELECT coalesce(backend_xmin::text, 'none') FROM pg_stat_activity WHERE pid = %s"
        snapshots.append(one(source_dsn, query, replica.source.info.backend_pid))

    monkeypatch.setattr(window_locks, "lock_tables", lock_and_look)
    move.run_all(after="schema_sync", until="swap")
    assert len(snapshots) > 5
    assert set(snapshots) == {"none"}
    assert waited == ({0.0} if insist_from else {0.0, 0.05})
    assert differences(source_dsn, target_dsn) == []


def test_c03_in_place_a_table_is_replaced_while_it_is_copied(
    source_dsn: str, lifecycle: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    do(source_dsn, ITEMS)
    rewrite = lifecycle(source_dsn, rewrite={"public.items": {"alter": ["ALTER COLUMN id TYPE bigint"]}}, **SMALL)
    rewrite.run_all(until="snapshot")
    before_each(monkeypatch, chunks._Worker, "_copy", once(*replaced("vacuumed", "items"), dsn=source_dsn, at=3))
    rewrite.run_all(after="snapshot", until="swap")
    unequal = (
        "SELECT count(*) FROM pgddl_old_public.items o FULL JOIN public.items n ON o::text = n::text"
        " WHERE o.id IS NULL OR n.id IS NULL"
    )
    assert one(source_dsn, unequal) == 0
    assert one(source_dsn, "SELECT count(*) FROM items") == 200


# --- C4: partitions and inheritance -----------------------------------------------------------------------------------

FAMILIES = """
    CREATE TABLE readings (id int, at date, v text, PRIMARY KEY (id, at)) PARTITION BY RANGE (at);
    CREATE TABLE january PARTITION OF readings FOR VALUES FROM ('2026-01-01') TO ('2026-02-01');
    CREATE TABLE february (junk int, v text, at date NOT NULL, id int NOT NULL);
    ALTER TABLE february DROP COLUMN junk;
    ALTER TABLE readings ATTACH PARTITION february FOR VALUES FROM ('2026-02-01') TO ('2026-03-01');
    CREATE TABLE later PARTITION OF readings DEFAULT PARTITION BY HASH (id);
    CREATE TABLE later_0 PARTITION OF later FOR VALUES WITH (MODULUS 2, REMAINDER 0);
    CREATE TABLE later_1 PARTITION OF later FOR VALUES WITH (MODULUS 2, REMAINDER 1);
    INSERT INTO readings SELECT n, date '2026-01-01' + n % 120, repeat('r', 300) FROM generate_series(1, 1200) n;
    CREATE TABLE animals (id int PRIMARY KEY, name text);
    CREATE TABLE dogs (tricks text, PRIMARY KEY (id)) INHERITS (animals);
    INSERT INTO animals SELECT n, 'animal ' || n || repeat('.', 300) FROM generate_series(1, 400) n;
    INSERT INTO dogs SELECT n, 'dog ' || n || repeat('.', 300), 'sit' FROM generate_series(201, 600) n;
    CREATE TABLE meters (id int PRIMARY KEY, v text) PARTITION BY RANGE (id);
    CREATE TABLE meters_1 PARTITION OF meters FOR VALUES FROM (1) TO (100);
    INSERT INTO meters SELECT n, 'm' FROM generate_series(1, 99) n
"""


@pytest.fixture
def families(source_dsn: str, target_dsn: str, lifecycle: Make) -> Lifecycle:
    """A migration of partitions, sub-partitions, a default partition, and a child that inherits."""
    do(source_dsn, FAMILIES)
    return lifecycle(source_dsn, target_dsn, tables={"include": ["public.*"]}, **SMALL)


def test_c04_rows_move_between_partitions_and_leaves_are_truncated(
    families: Lifecycle, monkeypatch: pytest.MonkeyPatch
) -> None:
    families.run_all(until="snapshot")
    moves = [
        # From leaves not read yet to ones that are done, and the other way round.
        "UPDATE readings SET at = at - 40, v = 'moved' WHERE at BETWEEN '2026-02-10' AND '2026-02-20'",
        "UPDATE readings SET at = at + 90, v = 'moved' WHERE at BETWEEN '2026-01-10' AND '2026-01-20'",
        "UPDATE animals SET name = 'both of them' WHERE id BETWEEN 190 AND 210",
    ]
    calls = before_each(monkeypatch, chunks._Worker, "_copy", once(*moves, dsn=families.source, at=6))
    families.run_all(after="snapshot", until="schema_sync")
    assert len(calls) > 10
    do(
        families.source,
        "TRUNCATE february",
        "INSERT INTO february (id, at, v) VALUES (1, '2026-02-02', 'through the leaf')",
        "TRUNCATE later",
        "INSERT INTO readings VALUES (2, '2026-07-07', 'after its truncation')",
        "TRUNCATE ONLY animals",
        "INSERT INTO animals VALUES (205, 'its child has this key as well')",
        "DELETE FROM ONLY animals WHERE id = 205",
        "INSERT INTO animals VALUES (205, 'again')",
        "UPDATE animals SET id = id + 5000 WHERE id = 300",
    )
    families.run_all(after="schema_sync", until="swap")
    assert differences(families.source, families.target) == []
    assert one(families.target, "SELECT count(*) FROM february") == 1
    assert one(families.target, "SELECT name FROM ONLY animals") == "again"
    assert one(families.target, "SELECT count(*) FROM dogs") == 400


def attach_partition(families: Lifecycle) -> Callable[[int], None]:
    return once(
        "CREATE TABLE meters_2 AS SELECT n AS id, 'm2' AS v FROM generate_series(100, 150) n",
        "ALTER TABLE meters_2 ADD PRIMARY KEY (id)",
        "ALTER TABLE meters ATTACH PARTITION meters_2 FOR VALUES FROM (100) TO (200)",
        "INSERT INTO meters VALUES (160, 'nobody logs this')",
        "UPDATE readings SET v = 'others go on' WHERE id = 7",
        dsn=families.source,
    )


def test_c04_a_partition_attached_under_our_locks_comes_with_its_rows(
    families: Lifecycle, monkeypatch: pytest.MonkeyPatch
) -> None:
    families.run_all(until="schema_sync")
    after_each(monkeypatch, window_locks, "lock_tables", attach_partition(families))
    for stage in ("replay", "verify"):
        assert not families.run(stage).blocked
    assert differences(families.source, families.target) == []
    assert one(families.target, "SELECT count(*) FROM meters_2") == 52
    families.run("swap")


def test_c04_uncaptured_a_partition_attached_under_our_locks_stops_its_table_only(
    families: Lifecycle, monkeypatch: pytest.MonkeyPatch
) -> None:
    families.content["capture"] = {"ddl": "off"}
    families.run_all(until="schema_sync")
    after_each(monkeypatch, window_locks, "lock_tables", attach_partition(families))
    replayed = families.run("replay")
    (blocked,) = replayed.blocked
    assert blocked["table"] == "public.meters"
    assert "Source has partition public.meters_2" in blocked["reason"]
    families.run("replay")
    assert [d.table for d in differences(families.source, families.target)] == ["meters"]
    assert "is blocked" in str(families.refused("swap", PreflightRefused))
    query = "SELECT findings -> 0 -> 'fix' ->> 0 FROM pgddl.schema_status WHERE table_name = 'meters'"
    do(families.target, one(families.target, query))
    assert not families.run("replay").blocked
    assert differences(families.source, families.target) == []


# --- C7: row security -------------------------------------------------------------------------------------------------


@contextmanager
def role(cluster: Cluster, dsn: str, name: str) -> Iterator[str]:
    """A role that may do what a role without BYPASSRLS can be allowed; yields its connection string."""
    database = conninfo_to_dict(dsn)["dbname"]
    do(dsn, f"CREATE ROLE {name} LOGIN PASSWORD 'secret'", f"GRANT CREATE ON DATABASE {database} TO {name}")
    try:
        yield make_conninfo(dsn, user=name, password="secret")
    finally:
        do(dsn, f"DROP OWNED BY {name} CASCADE", f"DROP ROLE {name}")


HIDING = """
    ALTER TABLE items OWNER TO {0}; GRANT ALL ON SCHEMA public TO {0};
    CREATE POLICY even ON items USING (id % 2 = 0);
    ALTER TABLE items ENABLE ROW LEVEL SECURITY
"""


def test_c07_row_security_that_would_hide_rows_is_refused(
    pg16: Cluster, source_dsn: str, target_dsn: str, lifecycle: Make
) -> None:
    do(source_dsn, ITEMS)
    with role(pg16, source_dsn, "c07_forced") as dsn:
        do(source_dsn, HIDING.format("c07_forced"), "ALTER TABLE items FORCE ROW LEVEL SECURITY")
        move = lifecycle(dsn, target_dsn, tables={"include": ["public.items"]}, **SMALL)
        error = move.refused("setup", PreflightRefused)
        assert error.exit_code == EXIT_REFUSED
        assert "row security would hide rows from role c07_forced" in str(error)
        assert "BYPASSRLS" in str(error)
        assert left_behind(source_dsn) == left_behind(target_dsn) == []


def test_c07_row_security_that_comes_during_the_run_is_an_error_and_hides_nothing(
    pg16: Cluster, source_dsn: str, target_dsn: str, lifecycle: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    do(source_dsn, ITEMS)
    with role(pg16, source_dsn, "c07_later") as dsn:
        do(source_dsn, HIDING.format("c07_later"))
        move = lifecycle(dsn, target_dsn, tables={"include": ["public.items"]}, capture={"ddl": "off"}, **SMALL)
        move.run_all(until="snapshot")
        do(source_dsn, "ALTER TABLE items FORCE ROW LEVEL SECURITY")
        assert "row-level security" in str(move.refused("backfill"))
        with monkeypatch.context() as naive:
            naive.setitem(connecting.PINNED, "row_security", "on")
            with connect(dsn, purpose="naive") as conn:
                assert conn.execute("SELECT count(*) FROM public.items").fetchone() == (300,)
        do(source_dsn, "ALTER TABLE items NO FORCE ROW LEVEL SECURITY")
        move.run_all(after="snapshot", until="verify")
        assert differences(source_dsn, target_dsn) == []


# --- C11: zombies and durability --------------------------------------------------------------------------------------


def end_driver(pipeline: Lifecycle) -> None:
    """What is left of a run whose driver died while its worker lives on: everything but the lock."""
    end = (
        "SELECT count(pg_terminate_backend(pid, 5000)) FROM pg_stat_activity"
        " WHERE application_name = %s AND datname = current_database()"
    )
    assert one(pipeline.target, end, f"pgddl:{pipeline.name}:0:lease") == 1


def sessions_of(pipeline: Lifecycle, dsn: str) -> set[int]:
    """The tokens that our sessions in a database work with."""
    query = (
        "SELECT split_part(application_name, ':', 3)::int FROM pg_stat_activity"
        " WHERE application_name LIKE %s AND datname = current_database()"
    )
    with psycopg.connect(dsn) as conn:
        return {token for (token,) in conn.execute(query, [f"pgddl:{pipeline.name}:%"])} - {0}


def test_c11_a_zombie_of_an_old_window_cannot_commit(items: Lifecycle, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even where its backends live on: what an old snapshot shows must not overwrite what a newer run has read."""
    items.run_all(until="schema_sync")
    do(items.source, "UPDATE items SET code = 'old' WHERE id = 1")
    paused = Paused(monkeypatch, "window")
    with Underway(lambda: items.run("replay")) as zombie:
        wait_for(paused.reached.is_set, zombie)
        do(items.source, "UPDATE items SET code = 'new' WHERE id = 1")
        monkeypatch.setattr(Lease, "terminate_stale", lambda *_: 0)
        end_driver(items)
        with Underway(lambda: items.run("replay")) as retry:
            blocked = "SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype = 'transactionid'"
            wait_for(lambda: one(items.target, blocked), retry)
            paused.go_on.set()
            zombie.fails(Fenced)
            retry.finish()
    assert one(items.target, "SELECT code FROM items WHERE id = 1") == "new"
    assert differences(items.source, items.target) == []


def test_c11_the_next_run_ends_the_backends_that_an_older_one_left(
    items: Lifecycle, monkeypatch: pytest.MonkeyPatch
) -> None:
    items.run_all(until="snapshot")
    paused = Paused(monkeypatch, "copy")
    with Underway(lambda: items.run("backfill")) as zombie:
        wait_for(paused.reached.is_set, zombie)
        (old,) = sessions_of(items, items.source)
        end_driver(items)
        items.run("backfill")
        assert old not in sessions_of(items, items.source) | sessions_of(items, items.target)
        paused.go_on.set()
        zombie.fails(PgddlError)
    items.run_all(after="backfill", until="verify")
    assert differences(items.source, items.target) == []


def test_c11_a_worker_that_outlives_its_window_cannot_commit(items: Lifecycle, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark lost sight of it, and a second worker has done its part: both have the same token."""
    items.content |= {"backfill": {"chunk_bytes": "1MB", "workers": 2}, "replay": {"window_rows": 140}}
    items.content |= {"spark": {"begin": "at_once"}}
    items.run_all(until="backfill")
    do(items.source, "UPDATE items SET code = 'old ' || id")
    items.run("schema_sync")
    paused = Paused(monkeypatch, ":fill")
    lost: list[Underway[Any]] = []

    def spread(work: Callable[[Any], Any], parts: Sequence[Any], **_: Any) -> list[Any]:
        if lost:
            return [work(part) for part in parts]
        lost.append(Underway(lambda: work(parts[0])).__enter__())
        wait_for(paused.reached.is_set, lost[0])
        # What it read is over before the next window.
        do(items.source, "DELETE FROM items WHERE id % 2 = 0", "UPDATE items SET code = 'new ' || id")
        return [work(part) for part in parts[1:]]

    monkeypatch.setattr(spark, "spread", spread)
    monkeypatch.setattr(spark, "start", lambda *_, **__: 2)
    before_each(monkeypatch, window_locks, "lock_tables", lambda n: paused.go_on.set() if n == 3 else None)
    blocked = "SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype = 'transactionid'"
    with Underway(lambda: wait_until(lambda: paused.go_on.is_set() or one(items.target, blocked))) as meeting:
        with Underway(lambda: items.run("replay")) as replay:
            meeting.finish()  # the next window meets what the lost worker holds, or is over
            paused.go_on.set()
            replay.finish()
    lost[0].fails((PgddlError, psycopg.Error))
    items.run_all(after="replay", until="swap")
    assert differences(items.source, items.target) == []


def test_c11_a_worker_that_comes_late_to_its_window_cannot_commit(
    items: Lifecycle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second attempt at a part, while the window has all that it waited for and still counts what is left: it can
    take the snapshot up, and reads what is over by the next window."""
    items.content |= {"backfill": {"chunk_bytes": "1MB", "workers": 2}, "replay": {"window_rows": 140}}
    items.content |= {"spark": {"begin": "at_once"}}
    items.run_all(until="backfill")
    do(items.source, "UPDATE items SET code = 'old ' || id")
    items.run("schema_sync")
    given, late, lock = list[Any](), list[Underway[Any]](), fill.foreign_code.lock
    reached, go_on = threading.Event(), threading.Event()

    def spread(work: Callable[[Any], Any], parts: Sequence[Any], **_: Any) -> list[Any]:
        given.append(partial(work, parts[0]))
        return [work(part) for part in parts[1:]]

    def lock_and_wait(conn: Session, *args: Any, **options: Any) -> None:
        lock(conn, *args, **options)
        if late and not reached.is_set() and conn.info.get_parameters()["application_name"].endswith(":fill read"):
            reached.set()
            assert go_on.wait(60)

    def begin_late(_: int) -> None:
        if given and not late:
            late.append(Underway(given[0]).__enter__())
            wait_for(reached.is_set, late[0])
            do(items.source, "DELETE FROM items WHERE id % 2 = 0", "UPDATE items SET code = 'new ' || id")

    monkeypatch.setattr(spark, "spread", spread)
    monkeypatch.setattr(spark, "start", lambda *_, **__: 2)
    monkeypatch.setattr(fill.foreign_code, "lock", lock_and_wait)
    before_each(monkeypatch, windows, "count_pending", begin_late)
    before_each(monkeypatch, window_locks, "lock_tables", lambda n: go_on.set() if n == 3 else None)
    items.run("replay")
    go_on.set()
    late[0].fails((PgddlError, psycopg.Error))
    assert differences(items.source, items.target) == []


def test_c11_the_sessions_of_a_namesake_in_another_database_are_left_alone(
    items: Lifecycle, pg18: Cluster, database: Database
) -> None:
    items.run_all(until="snapshot")
    with connect(database(pg18), purpose="copy", pipeline=items.name, token=4711) as namesake:
        items.run("backfill")
        assert namesake.execute("SELECT 1").fetchone() == (1,)


def test_c11_a_takeover_waits_for_a_transaction_that_has_looked_at_its_token(items: Lifecycle) -> None:
    items.run("setup")
    with Lease(items.target, items.name, "first", None) as first:
        first.take()
        with connect(items.target, purpose="copy", pipeline=items.name, token=first.token) as worker:
            with worker.transaction():
                lease.check(worker, first.fence)
                first.close()
                with Lease(items.target, items.name, "second", None) as second, Underway(second.take) as taking:
                    blocked = (
                        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
                        " AND datname = current_database()"
                    )
                    wait_for(lambda: one(items.target, blocked), taking)
                    worker.execute("COMMIT")
                    taking.finish()
                    with pytest.raises(Fenced):
                        lease.check(worker, first.fence)


@contextmanager
def without_wal_writer(dsn: str) -> Iterator[None]:
    """Nobody but a committing session flushes; a checkpoint does, but there is none within a test."""
    pid = one(dsn, "SELECT pid FROM pg_stat_activity WHERE backend_type = 'walwriter'")
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@pytest.mark.parametrize("guarded", [True, False])
def test_c11_a_commit_that_can_still_be_lost_is_not_copied(
    items: Lifecycle, monkeypatch: pytest.MonkeyPatch, guarded: bool
) -> None:
    """synchronous_commit = off can be seen before it is on disk; without the guard the target had it first."""
    items.run_all(until="schema_sync")
    flushed: list[bool] = []
    acknowledge = change_log.acknowledge

    def look_and_acknowledge(*args: Any) -> None:
        if one(items.target, "SELECT count(*) FROM items WHERE code = 'asynchronous'"):
            flushed.append(one(items.source, "SELECT pg_current_wal_flush_lsn() >= %s::pg_lsn", lsn))
        acknowledge(*args)

    monkeypatch.setattr(change_log, "acknowledge", look_and_acknowledge)
    if not guarded:
        monkeypatch.setattr(windows, "flush", lambda *_: None)
    with without_wal_writer(items.source):
        do(items.source, "SET synchronous_commit = off; UPDATE items SET code = 'asynchronous' WHERE id = 1")
        lsn = one(items.source, "SELECT pg_current_wal_insert_lsn()::text")
        items.run("replay")
    assert flushed[:1] == [guarded]


@pytest.mark.parametrize("guarded", [True, False])
def test_c11_ddl_that_can_still_be_lost_is_not_followed(
    items: Lifecycle, monkeypatch: pytest.MonkeyPatch, guarded: bool
) -> None:
    items.run_all(until="schema_sync")
    flushed: list[bool] = []
    decide = following.decide

    def look_and_decide(*args: Any) -> Any:
        flushed.append(one(items.source, "SELECT pg_current_wal_flush_lsn() >= %s::pg_lsn", lsn))
        return decide(*args)

    monkeypatch.setattr(following, "decide", look_and_decide)
    if not guarded:
        monkeypatch.setattr(following, "flush", lambda *_: None)
    with without_wal_writer(items.source):
        do(items.source, "SET synchronous_commit = off; ALTER TABLE items ALTER filler SET DEFAULT 'asynchronous'")
        lsn = one(items.source, "SELECT pg_current_wal_insert_lsn()::text")
        items.run("replay")
    assert flushed[:1] == [guarded]


def test_c11_a_window_flushes_what_nobody_else_would(items: Lifecycle) -> None:
    """A page of WAL that is not full stays in memory while nobody commits: a window must not wait for others."""
    items.run_all(until="schema_sync")
    with without_wal_writer(items.source):
        do(items.source, "SET synchronous_commit = off; UPDATE items SET code = 'asynchronous' WHERE id = 1")
        assert items.run("replay").figures["keys"] == 1


@pytest.fixture
def restore() -> Callable[[str, str], None]:
    """``restore(dsn, backup)``: the database is what its backup was, as after a failover that lost some."""

    def bring_back(dsn: str, backup: str) -> None:
        name, older = database_name(dsn), database_name(backup)
        oid = one(dsn, "SELECT oid::int FROM pg_database WHERE datname = current_database()")
        do(
            make_conninfo(dsn, dbname="postgres"),
            f"DROP DATABASE {name} WITH (FORCE)",
            f"CREATE DATABASE {name} TEMPLATE {older} OID {oid}",
        )

    return bring_back


@pytest.mark.parametrize("lost", ["schema_sync", "replay"])
def test_c11_a_target_restored_to_an_older_state_has_to_be_verified(
    pg18: Cluster, items: Lifecycle, database: Database, restore: Callable[[str, str], None], lost: str
) -> None:
    items.content["verify"] = {"before_swap": False}
    items.run_all(until={"schema_sync": "backfill", "replay": "schema_sync"}[lost])
    backup = database(pg18, template=database_name(items.target))
    do(items.source, "UPDATE items SET filler = 'in a window that gets lost' WHERE id <= 3")
    items.run(lost)
    restore(items.target, backup)
    if lost == "schema_sync":
        items.run("schema_sync")
    assert "failed over to an older state" in str(items.run("replay").blocked)
    assert "failed over to an older state" in str(items.refused("swap", PreflightRefused))
    assert "rows differ" in str(items.refused("verify", StageFailed))
    assert "failed over to an older state" in str(items.refused("swap", PreflightRefused))
    assert items.run("verify", mend=True).figures["mended"]
    assert differences(items.source, items.target) == []
    items.run("swap")


def followed_ddl(items: Lifecycle) -> StageResult:
    do(items.source, "ALTER TABLE items ADD COLUMN x int")
    return items.run("replay")


def read_in_part(items: Lifecycle) -> StageResult:
    items.content["tables"] = {"include": ["public.items"], "where": {"public.items": "id < 500"}}
    items.run("setup", reconfigure=True)
    return items.run("replay")


def read_again(items: Lifecycle) -> StageResult:
    do(items.target, "ALTER TABLE items ADD COLUMN made uuid DEFAULT gen_random_uuid()")  # which rewrites the copy
    return items.run("replay")


@pytest.mark.parametrize("next_one", [followed_ddl, read_in_part, read_again])
def test_c11_lost_windows_are_told_whatever_comes_before_the_next(
    pg18: Cluster, items: Lifecycle, database: Database, restore: Callable[[str, str], None],
    next_one: Callable[[Lifecycle], StageResult],
) -> None:  # fmt: skip
    """Making room for DDL, and reading a table again, count as windows, and lift the journal's number."""
    items.run_all(until="replay")
    backup = database(pg18, template=database_name(items.target))
    for n in (1, 2, 3):
        do(items.source, f"UPDATE items SET filler = 'in a window that gets lost' WHERE id = {n}")
        items.run("replay")
    restore(items.target, backup)
    assert "failed over to an older state" in str(next_one(items).blocked)


def test_c11_a_window_that_somebody_else_has_taken_is_told_by_the_next(items: Lifecycle, at: At) -> None:
    """As where a clone of the target is replayed under a run: the log rows are gone, and this journal knows nothing."""
    items.run_all(until="replay")
    taken = "UPDATE pgddl.captures SET window_no = window_no + 1"
    with at("replay.after_lock", lambda _: do(items.source, taken)):
        assert "failed over to an older state" in str(items.run("replay").blocked)


def test_c11_a_source_that_a_clone_took_the_place_of_has_to_be_verified(
    pg16: Cluster, items: Lifecycle, database: Database, restore: Callable[[str, str], None]
) -> None:
    """The same cluster and timeline, the same oids: only the number of windows is another one."""
    items.content["verify"] = {"before_swap": False}
    items.run_all(until="replay")
    backup = database(pg16, template=database_name(items.source))
    do(items.source, "UPDATE items SET filler = 'never was' WHERE id <= 3", "DELETE FROM items WHERE id = 10")
    items.run("replay")
    restore(items.source, backup)
    do(items.source, "UPDATE items SET filler = 'after it' WHERE id = 20")
    assert "went back to an older state" in str(items.refused("swap", PreflightRefused))
    assert "went back to an older state" in str(items.run("replay").blocked)
    assert items.run("verify", mend=True).figures["mended"]
    assert differences(items.source, items.target) == []
    assert not items.run("replay").blocked


def test_c11_another_source_is_refused_before_anything_is_made_there(
    pg16: Cluster, pg18: Cluster, items: Lifecycle, database: Database
) -> None:
    items.run_all(until="replay")
    before = items.source
    for cluster, why in ((pg18, "is not the cluster"), (pg16, "does not know pipeline")):
        another = database(cluster)
        do(another, ITEMS)
        items.moved(another)
        for stage in ("setup", "replay"):
            assert why in str(items.refused(stage, StageFailed))
        assert left_behind(another) == []
    assert differences(before, items.target) == []


def test_c11_a_source_that_was_failed_over_has_to_be_verified(items: Lifecycle) -> None:
    items.content["verify"] = {"before_swap": False}
    items.run_all(until="replay")
    timeline = one(items.source, "SELECT ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::int")
    assert items.journal("SELECT source_timeline FROM pgddl.pipelines") == [(timeline,)]
    items.journal("UPDATE pgddl.pipelines SET source_timeline = %s", [timeline - 1])
    assert f"timeline {timeline - 1} → {timeline}" in str(items.refused("swap", PreflightRefused))
    assert "failed over" in str(items.run("replay").blocked)
    assert "failed over" in str(items.refused("swap", PreflightRefused))
    items.run("verify")
    assert not items.run("replay").blocked
    items.run("swap")


# --- C14: binary or text ----------------------------------------------------------------------------------------------

TYPES = r"""
    CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy');
    CREATE TYPE point3 AS (x int, m mood, t text);
    CREATE TYPE span AS RANGE (subtype = bigint, multirange_type_name = spans);
    CREATE DOMAIN moods AS mood[];
    CREATE DOMAIN price AS numeric(10, 2) CHECK (VALUE >= 0);
    CREATE DOMAIN place AS point3;
    CREATE DOMAIN kind AS regtype;

    CREATE TABLE plain (id bigint PRIMARY KEY, m mood, p price, n numeric, d double precision, b bytea, j jsonb,
        t timestamptz, a int[], r int4range, s text, u uuid, i interval);
    CREATE TABLE enum_keys (id mood PRIMARY KEY, v text);
    CREATE TABLE regs (id int PRIMARY KEY, c regclass, t regtype, n regnamespace, p regprocedure, o regoperator,
        r regrole, k kind, a regclass[]);
    CREATE TABLE enums (id int PRIMARY KEY, ms mood[], d moods);
    CREATE TABLE composites (id int PRIMARY KEY, p point3, ps point3[], d place);
    CREATE TABLE ranges (id int PRIMARY KEY, s span, ss span[], m spans);
    CREATE TABLE composite_keys (id point3 PRIMARY KEY, v text);
    CREATE TABLE array_keys (id mood[] PRIMARY KEY, v text);

    INSERT INTO plain SELECT n, 'ok', 1.5, '123456789012345678901234567890.000100', 'NaN', '\x00ff5c',
        '{"a": "\u00e9"}', 'infinity', '[-1:1]={1,NULL,3}', '[1,5)', E'tab\t, \\N, \\., \r\n', gen_random_uuid(),
        '1 mon -3 days 00:00:00.000001' FROM generate_series(1, 5) n;
    INSERT INTO plain (id, n, d, t, a, s) VALUES (6, 'NaN', '-Infinity', '0044-03-15 00:00:00 BC', '{}', '\N'),
        (7, 'Infinity', -0.0, '294276-12-31 23:59:59.999999', NULL, NULL);
    INSERT INTO enum_keys VALUES ('sad', 'a'), ('happy', 'b');
    INSERT INTO regs VALUES (2, 'pg_class', 'int', NULL, NULL, NULL, NULL, NULL, NULL), (1, 'plain', 'mood', 'public',
        'lower(text)', '+(int,int)', 'postgres', 'mood[]', '{plain,NULL,regs}');
    INSERT INTO enums VALUES (1, '{sad,NULL,happy}', '{ok}'), (2, '{}', NULL);
    INSERT INTO composites VALUES (2, ROW(NULL, NULL, NULL), '{}', NULL), (3, NULL, NULL, NULL),
        (1, ROW(1, 'sad', 'a "quoted", (text)'), ARRAY[ROW(NULL, 'ok', ''), NULL]::point3[], ROW(2, NULL, NULL));
    INSERT INTO ranges VALUES (1, '[1,10)', '{"[1,2)",empty}', '{[1,2),[5,)}');
    INSERT INTO composite_keys VALUES (ROW(1, 'sad', 'x'), 'a'), (ROW(2, 'ok', 'y, "z"'), 'b');
    INSERT INTO array_keys VALUES ('{sad,ok}', 'a'), ('{happy}', 'b')
"""


def test_c14_what_carries_oids_travels_as_text(source_dsn: str, target_dsn: str, lifecycle: Make) -> None:
    do(source_dsn, TYPES)
    move = lifecycle(source_dsn, target_dsn, tables={"include": ["public.*"]}, **SMALL)
    move.run_all(until="schema_sync")
    do(
        source_dsn,
        "INSERT INTO regs SELECT id + 10, 'enums', t, n, p, o, r, k, a FROM regs",
        "UPDATE enum_keys SET id = 'ok' WHERE id = 'sad'",
        "UPDATE enums SET ms = ms || 'ok'::mood",
        "UPDATE composites SET p.x = 7",
        "UPDATE ranges SET s = '(,5)'",
        "UPDATE composite_keys SET id.x = 9 WHERE v = 'a'",
        "DELETE FROM composite_keys WHERE v = 'b'",
        "UPDATE array_keys SET id = id || 'ok'::mood",
        "UPDATE plain SET id = id + 100",
    )
    move.run_all(after="schema_sync", until="swap")
    oid = "SELECT 'public.mood'::regtype::oid::int"
    assert one(source_dsn, oid) != one(target_dsn, oid), "equal oids would prove nothing"
    assert differences(source_dsn, target_dsn) == []
    query = "SELECT table_name, (plan ->> 'binary')::bool, (plan ->> 'key_binary')::bool FROM pgddl.tables"
    assert {table: (rows, keys) for table, rows, keys in move.journal(query)} == {
        **dict.fromkeys(["plain", "enum_keys"], (True, True)),
        **dict.fromkeys(["regs", "enums", "composites", "ranges"], (False, True)),
        **dict.fromkeys(["composite_keys", "array_keys"], (False, False)),
    }
