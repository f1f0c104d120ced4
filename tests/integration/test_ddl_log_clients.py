"""What clients notice of the capture of DDL: none fails or waits for it, whatever was done to our schema, and what a
client sends or sets by itself is nothing."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from airflow_provider_pgddl.demo.clusters import Cluster
from airflow_provider_pgddl.engine.capture import ddl_log
from airflow_provider_pgddl.engine.errors import UsageError
from tests.combinations import matrix
from tests.conftest import Database
from tests.integration.ddl_source import Source
from tests.integration.sessions import Underway, do, in_transaction, one, wait_for, waits


@pytest.fixture(params=matrix("16 queue", "18 wal"))
def source(request: pytest.FixtureRequest, pg16: Cluster, pg18: Cluster, database: Database) -> Iterator[Source]:
    version, transport = request.param.split()
    source = Source(database(pg16 if version == "16" else pg18), transport)
    source.start()
    yield source
    source.stop()


@pytest.fixture
def queue(pg18: Cluster, database: Database) -> Source:
    source = Source(database(pg18), "queue")
    source.start()
    return source


def test_what_cannot_be_recorded_is_an_exception_and_no_client_fails(source: Source) -> None:
    do(source.dsn, "CREATE TABLE t (id int PRIMARY KEY, b int)")
    source.events()
    do(source.dsn, "SET pgddl.skip = on; ALTER FUNCTION pgddl.describe_relations(oid[]) RENAME TO missing")
    do(source.dsn, "ALTER TABLE t DROP b", "CREATE TEMP TABLE x (id int)")
    do(source.dsn, "SET pgddl.skip = on; ALTER FUNCTION pgddl.missing(oid[]) RENAME TO describe_relations")
    do(source.dsn, "ALTER TABLE t ADD c int")
    read = source.read()
    # What the failed one dropped does not stick to the next.
    assert [(e["statement"], e["dropped"]) for e in read.events] == [("ALTER TABLE t ADD c int", [])]
    assert [(x["tag"], x["statement"], x["role"]) for x in read.lost] == [
        ("ALTER TABLE", "ALTER TABLE t DROP b", "postgres")
    ]
    assert "describe_relations" in read.lost[0]["what"]
    with source.session() as session:
        ddl_log.resolve_exception(session, read.lost[0]["id"], "dropped by hand")
        with pytest.raises(UsageError, match="no unresolved exception"):
            ddl_log.resolve_exception(session, read.lost[0]["id"], "again")
    assert source.tags() == ["ALTER TABLE"]


@pytest.mark.parametrize(
    "damage",
    [
        "DROP TABLE pgddl.ddl_queue",
        "DROP TABLE pgddl.ddl_token",
        "DROP TABLE pgddl.captures CASCADE",
        "DROP TABLE pgddl.exceptions",
        "DROP FUNCTION pgddl.emit_command(text, text, jsonb)",
        "DROP FUNCTION pgddl.stash_key(text)",
        "DROP FUNCTION pgddl.record_exception(text, text, text, oid)",
        (
            "CREATE FUNCTION public.no() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION $$no$$; END';"
            "CREATE TRIGGER no BEFORE INSERT ON pgddl.ddl_queue FOR EACH ROW EXECUTE FUNCTION public.no()"
        ),
    ],
)
def test_no_client_fails_whatever_was_done_to_our_schema(queue: Source, damage: str) -> None:
    do(queue.dsn, "CREATE TABLE t (id int, b int)")
    do(queue.dsn, f"SET pgddl.skip = on; {damage}")
    with psycopg.connect(queue.dsn) as conn:
        conn.execute("ALTER TABLE t DROP b")
        conn.execute("ALTER TABLE t ADD c int DEFAULT random()")
        conn.execute("DROP TABLE t")
    assert one(queue.dsn, "SELECT to_regclass('public.t') IS NULL")


def test_a_cancel_of_the_client_still_cancels(queue: Source) -> None:
    do(
        queue.dsn,
        "SET pgddl.skip = on; CREATE OR REPLACE FUNCTION pgddl.describe_relations(relations oid[]) RETURNS jsonb"
        " LANGUAGE plpgsql AS 'BEGIN PERFORM pg_catalog.pg_sleep(30); RETURN NULL; END'",
    )
    with psycopg.connect(queue.dsn) as conn:
        conn.execute("SET statement_timeout = '100ms'")
        with pytest.raises(psycopg.errors.QueryCanceled):
            conn.execute("CREATE TABLE t (id int)")


def test_no_client_waits_for_a_table_that_it_has_not_locked(source: Source) -> None:
    do(
        source.dsn,
        "CREATE TABLE t (id int PRIMARY KEY, b int DEFAULT 1 CHECK (b > 0))",
        "CREATE INDEX i ON t (b) WHERE b > 1",
        "CREATE VIEW v AS SELECT id FROM t",
        "CREATE FUNCTION f() RETURNS bigint LANGUAGE sql BEGIN ATOMIC SELECT count(*) FROM t; END",
    )
    source.events()
    with in_transaction(source.dsn, "LOCK TABLE t IN ACCESS EXCLUSIVE MODE"):
        with psycopg.connect(source.dsn, autocommit=True) as conn:
            conn.execute("SET lock_timeout = '20s'")
            for statement in (
                "ALTER INDEX i RENAME TO j",
                "ALTER VIEW v RENAME TO w",
                "ALTER FUNCTION f() RENAME TO g",
                "COMMENT ON VIEW w IS 'x'",
            ):
                with Underway(lambda s=statement: conn.execute(s.encode())) as command:
                    wait_for(lambda c=command: c.over, seconds=60)
        events = source.events()
    assert [e["tag"] for e in events] == ["ALTER INDEX", "ALTER VIEW", "ALTER FUNCTION", "COMMENT"]
    assert [e["objects"][0]["name"] for e in events] == ["j", "w", "g", "w"]


def test_a_short_wait_for_the_queue_loses_no_event(queue: Source) -> None:
    with in_transaction(queue.dsn, "LOCK TABLE pgddl.ddl_queue, pgddl.captures IN ACCESS EXCLUSIVE MODE") as migration:
        with psycopg.connect(queue.dsn, autocommit=True) as conn:
            with Underway(lambda: conn.execute("SET lock_timeout = '1ms'; CREATE TABLE t (id int)")) as command:
                wait_for(lambda: waits(queue.dsn, "AccessShareLock", "pgddl.captures"), command)
                migration.commit()
                command.finish()
            assert conn.execute("SHOW lock_timeout").fetchone() == ("1ms",)
    assert queue.tags() == ["CREATE TABLE"]


def test_a_long_one_ends_in_an_exception(queue: Source) -> None:
    with in_transaction(queue.dsn, "LOCK TABLE pgddl.ddl_queue IN ACCESS EXCLUSIVE MODE"):
        with psycopg.connect(queue.dsn, autocommit=True) as conn:
            conn.execute("CREATE TABLE t (id int)")
    assert [x["statement"] for x in queue.read().lost] == ["CREATE TABLE t (id int)"]


def test_what_a_client_sends_or_sets_by_itself_is_nothing(source: Source, database: Database) -> None:
    do(source.dsn, "CREATE TABLE t (id int)", "CREATE TABLE precious (id int)")
    forged = source.events()[0]
    with psycopg.connect(source.dsn) as conn:
        conn.execute("SELECT pg_logical_emit_message(true, 'pgddl', %s)", ['{"id": "1.1", "xid": "1"}'])
        conn.execute("SELECT pg_logical_emit_message(true, 'pgddl', %s)", ["x" * 72 + str(forged)])
        stash = '{"%s": {"dropped": [{"identity": "public.precious"}]}}'
        for key in ("", one(source.dsn, "SELECT md5('')")):
            conn.execute("SELECT set_config('pgddl.stash', %s, false)", [stash % key])
        conn.execute("""SELECT set_config('pgddl.client', '{"role": "root"}', false)""")
        conn.execute("ALTER TABLE t ADD b int")
        for nonsense in ("{", "[]", "null", "1"):
            conn.execute("SELECT set_config('pgddl.stash', %s, false)", [nonsense])
            conn.execute("ALTER TABLE t ADD IF NOT EXISTS c int")
    read = source.read()
    assert read.events[0]["role"] == "postgres"
    assert {e["tag"] for e in read.events} == {"ALTER TABLE"} and all(e["dropped"] == [] for e in read.events)
