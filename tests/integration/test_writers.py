"""The writers: busy, honest about what they noticed, and on the target as soon as it is theirs to write to."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import psycopg
import pytest
from psycopg import errors as pg
from psycopg.conninfo import make_conninfo

from airflow_provider_pgddl.demo import shop
from airflow_provider_pgddl.demo.clusters import Cluster
from airflow_provider_pgddl.demo.compare import compare_sequences, differences
from airflow_provider_pgddl.demo.traffic import Operation, Traffic
from airflow_provider_pgddl.demo.writers import OrderState, Writers, broken_invariants
from tests.conftest import Database, database_name, drop_database
from tests.table_writers import TableWriters

FENCE = """
    CREATE FUNCTION public.fence() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        RAISE EXCEPTION 'pgddl: this table has moved' USING ERRCODE = '25006';
    END $$;
    DO $$
    DECLARE fenced regclass;
    BEGIN
        FOR fenced IN SELECT oid FROM pg_class
                       WHERE relkind IN ('r', 'p') AND relnamespace IN ('shop'::regnamespace, 'public'::regnamespace)
        LOOP
            EXECUTE format('CREATE TRIGGER fence BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON %s'
                           ' EXECUTE FUNCTION public.fence()', fenced);
        END LOOP;
    END $$;
"""
JOURNAL = """
    CREATE SCHEMA pgddl;
    CREATE TABLE pgddl.pipelines (pipeline text PRIMARY KEY, cut_over_at timestamptz);
    INSERT INTO pgddl.pipelines VALUES ('migrate_shop');
"""


@pytest.fixture
def small_shop(pg16: Cluster, database: Database) -> str:
    """The shop at scale 1, loaded once and then cloned."""
    with psycopg.connect(pg16.conninfo()) as conn:
        known = conn.execute("SELECT FROM pg_database WHERE datname = 'small_shop'").fetchone()
    if known is None:
        shop.load(pg16, "small_shop", scale=1)
    return database(pg16, template="small_shop")


def as_application(dsn: str) -> str:
    return make_conninfo(dsn, user=shop.APP_ROLE)


def run(dsn: str, statements: str) -> None:
    with psycopg.connect(dsn) as conn:
        conn.execute(statements)


def wait_until(true: Callable[[], object], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "still not so"
        time.sleep(0.01)


def test_all_operations_run_as_the_application_and_keep_the_shops_rules(small_shop: str) -> None:
    with Writers([as_application(small_shop)], threads=4, rate=2000, seed=7) as writers:
        wait_until(lambda: len(writers.notes.committed) == 21 and writers.notes.committed.total() > 1500)
    assert writers.notes.failures == []
    assert not set(writers.notes.refused) - {"UniqueViolation"}
    assert broken_invariants(small_shop) == []
    with psycopg.connect(small_shop, options="-c TimeZone=UTC") as conn:
        assert writers.ledger.check(conn) == []
        # and the ledger does see what happens behind its back
        conn.execute("UPDATE shop.orders SET note = 'x' WHERE id = (SELECT min(id) FROM shop.orders)")
        conn.execute("DELETE FROM shop.orders WHERE id = (SELECT max(id) FROM shop.orders)")
        conn.execute("INSERT INTO shop.orders (id, customer) SELECT 99999999, customer FROM shop.orders LIMIT 1")
        assert [problem.split(" ", 2)[2] for problem in writers.ledger.check(conn)] == [
            "is not as it was last written",
            "is lost",
            "should not be there",
        ]
        conn.rollback()


def test_an_order_whose_commit_nobody_answered_may_be_there_or_not(small_shop: str) -> None:
    writers = Writers([small_shop])
    with psycopg.connect(small_shop, options="-c TimeZone=UTC") as conn:
        writers.prepare(conn)
        query = "UPDATE shop.orders o SET note = 'x' WHERE id = 1 RETURNING id, version, md5(o::text)"
        row = conn.execute(query).fetchone()
        assert row is not None
        writers.unknown([OrderState(*row)])
        assert writers.ledger.check(conn) == []
        conn.rollback()
        assert writers.ledger.check(conn) == []


def test_nobody_writes_while_the_writers_are_paused(small_shop: str) -> None:
    def written() -> int:
        with psycopg.connect(small_shop) as conn:
            row = conn.execute("SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint").fetchone()
            assert row is not None
            return int(row[0])

    with Writers([as_application(small_shop)], rate=500, seed=1) as writers:
        wait_until(lambda: writers.notes.committed.total() > 20)
        with writers.quiet():
            before = writers.notes.committed.total()
            sums = broken_invariants(small_shop)
            time.sleep(0.2)
            assert (sums, writers.notes.committed.total()) == ([], before)
        wait_until(lambda: writers.notes.committed.total() > before + 20)


def test_a_fence_sends_the_writers_to_the_target_once_the_journal_says_so(
    pg16: Cluster, small_shop: str, database: Database, request: pytest.FixtureRequest
) -> None:
    target = f"{database_name(small_shop)}_target"
    request.addfinalizer(lambda: drop_database(pg16, target))
    target_dsn = pg16.conninfo(target)
    seen: list[bool] = []

    def compare_at_the_cut_over() -> None:
        seen.append(not differences(small_shop, target_dsn, [("shop", "orders"), ("public", "pgbench_history")]))
        seen.append(not compare_sequences(small_shop, target_dsn))

    writers = Writers(
        [as_application(small_shop), as_application(target_dsn)],
        rate=400,
        seed=3,
        pipeline="migrate_shop",
        journal=pg16.conninfo("postgres"),
        on_cut_over=compare_at_the_cut_over,
        tolerate_lost=True,  # a database is cloned only while nobody is connected to it
    )
    request.addfinalizer(lambda: run(pg16.conninfo(), "DROP SCHEMA IF EXISTS pgddl CASCADE"))
    with writers:
        wait_until(lambda: writers.notes.committed.total() > 50)
        with writers.quiet():  # this fence takes its locks as they come, and would deadlock with a writer
            run(small_shop, FENCE)
        wait_until(lambda: writers.notes.rejected_at is not None)
        # a journal that is not there yet is no cut-over, and neither is one without a moment
        run(pg16.conninfo(), JOURNAL)
        with writers.quiet(), psycopg.connect(pg16.conninfo(), autocommit=True) as admin:
            assert not writers.cut_over
            source = database_name(small_shop)
            admin.execute("SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = %s", [source])
            admin.execute(f"CREATE DATABASE {target} TEMPLATE {source}")
        with psycopg.connect(target_dsn) as conn:
            conn.execute("DROP FUNCTION public.fence() CASCADE")
        run(pg16.conninfo(), "UPDATE pgddl.pipelines SET cut_over_at = now()")
        wait_until(lambda: writers.notes.accepted_at is not None)
        before = writers.notes.committed.total()
        wait_until(lambda: writers.notes.committed.total() > before + 50)
    assert seen == [True, True]
    assert writers.notes.failures == []
    assert writers.notes.cut_over_stall is not None
    assert writers.notes.longest() > 0
    with psycopg.connect(target_dsn, options="-c TimeZone=UTC") as conn:
        assert writers.ledger.check(conn) == []
    assert broken_invariants(target_dsn) == []


def test_writers_go_to_and_fro(pg16: Cluster, small_shop: str, request: pytest.FixtureRequest) -> None:
    """Here both are one database: what counts is whom they listen to, and that each move has its own moments."""
    journal, moved = pg16.conninfo("postgres"), list[str]()
    writers = Writers(
        [as_application(small_shop)] * 2, rate=300, pipeline="there", journal=journal, on_cut_over=lambda: None
    )
    request.addfinalizer(lambda: run(journal, "DROP SCHEMA IF EXISTS pgddl CASCADE"))
    run(journal, JOURNAL.replace("migrate_shop", "there"))
    with writers:
        for side, pipeline in ((1, "there"), (0, "back"), (1, "again")):
            if pipeline != "there":
                run(journal, f"INSERT INTO pgddl.pipelines VALUES ('{pipeline}')")
                writers.expect(pipeline, journal, lambda pipeline=pipeline: moved.append(pipeline))
            assert writers.side != side and not writers.accepted.is_set()
            with writers.quiet():  # this fence takes its locks as they come, and would deadlock with a writer
                run(small_shop, FENCE)
            wait_until(lambda: writers.notes.rejected_at is not None)
            with writers.quiet():
                run(small_shop, "DROP FUNCTION public.fence() CASCADE")
                run(journal, f"UPDATE pgddl.pipelines SET cut_over_at = now() WHERE pipeline = '{pipeline}'")
                wait_until(lambda: writers.cut_over)
            wait_until(lambda: writers.notes.accepted_at is not None)
            assert writers.side == side
            assert writers.notes.cut_over_stall is not None
    assert moved == ["back", "again"]
    assert writers.notes.failures == []


def test_a_fence_that_is_taken_away_again_lets_the_writers_go_on(small_shop: str) -> None:
    with Writers([as_application(small_shop), as_application(small_shop)], rate=300, pipeline="x") as writers:
        with writers.quiet():  # this fence takes its locks as they come, and would deadlock with a writer
            run(small_shop, FENCE)
        wait_until(lambda: writers.notes.retried["fence"] > 5)
        with writers.quiet():
            run(small_shop, "DROP FUNCTION public.fence() CASCADE")
        before = writers.notes.committed.total()
        wait_until(lambda: writers.notes.committed.total() > before + 50)
    assert (writers.notes.failures, writers.cut_over) == ([], False)


def test_an_error_that_no_application_expects_is_a_failure(small_shop: str) -> None:
    with Writers([as_application(small_shop)], rate=300, seed=1) as writers:
        run(small_shop, "ALTER TABLE shop.carts RENAME TO trolleys")
        wait_until(lambda: writers.notes.failures)
    assert 'relation "shop.carts" does not exist' in writers.notes.failures[0]


def test_a_connection_lost_between_an_error_and_its_rollback_is_reconnected(source_dsn: str) -> None:
    class Refused(Traffic):
        def prepare(self, conn: psycopg.Connection) -> list[Operation]:
            return [Operation("refused", 1, self.refused, outcomes=(pg.DivisionByZero,))]

        def refused(self, conn: psycopg.Connection, chance: random.Random) -> None:
            try:
                conn.execute("SELECT 1 / 0")
            finally:
                with psycopg.connect(source_dsn) as admin:
                    admin.execute("SELECT pg_terminate_backend(%s, 5000)", [conn.info.backend_pid])

    with Refused([source_dsn], threads=1, rate=200, tolerate_lost=True) as writers:
        wait_until(lambda: writers.notes.failures or writers.notes.refused["DivisionByZero"] > 5)
    assert writers.notes.failures == []


def test_random_writers_work_on_tables_that_they_have_never_seen(source_dsn: str) -> None:
    run(
        source_dsn,
        """
        CREATE DOMAIN positive AS numeric(8, 2) CHECK (VALUE >= 0);
        CREATE TYPE mood AS ENUM ('sad', 'ok');
        CREATE TABLE artist (id integer PRIMARY KEY, name varchar(12) UNIQUE, mood mood);
        CREATE TABLE album (
            id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, artist integer REFERENCES artist ON DELETE SET NULL,
            title text, price positive, double numeric GENERATED ALWAYS AS (price * 2) STORED, at timestamptz, raw bytea
        );
        CREATE TABLE liked (artist integer REFERENCES artist, who uuid, PRIMARY KEY (artist, who));
        CREATE TABLE log (line text, "when" timestamp);
        CREATE TABLE part (at date, id integer, PRIMARY KEY (at, id)) PARTITION BY RANGE (at);
        CREATE TABLE part_old PARTITION OF part FOR VALUES FROM (MINVALUE) TO ('2024-01-01');
        CREATE TABLE part_new PARTITION OF part DEFAULT;
        INSERT INTO artist SELECT i, 'name ' || i, 'ok' FROM generate_series(1, 50) i;
        INSERT INTO album (artist, title, price) SELECT i, 'title', i FROM generate_series(1, 50) i;
        INSERT INTO liked SELECT i, md5(i::text)::uuid FROM generate_series(1, 50) i;
        """,
    )
    tables = [("public", name) for name in ("artist", "album", "liked", "log", "part")]
    with TableWriters([source_dsn], tables, truncate=[("public", "log")], rate=1000, seed=5) as writers:
        wait_until(lambda: len(writers.notes.committed) == 7 and writers.notes.committed.total() > 800)
    assert writers.notes.failures == []
    with psycopg.connect(source_dsn) as conn:
        for _, table in tables:
            if table == "log":
                continue  # may have been truncated just now
            row = conn.execute(f"SELECT count(*) FROM {table}").fetchone()
            assert row != (0,), table
