"""A change log follows DDL on its table in the same transaction: renamed keys, partitions from their first row."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from psycopg import sql

from airflow_provider_pgddl.demo.clusters import Cluster
from airflow_provider_pgddl.engine.capture import change_log
from airflow_provider_pgddl.engine.server import catalog
from tests.conftest import Database
from tests.integration.ddl_source import Source
from tests.integration.sessions import do, in_transaction


@pytest.fixture
def queue(pg18: Cluster, database: Database) -> Source:
    source = Source(database(pg18), "queue")
    source.start()
    return source


@pytest.fixture
def captured(queue: Source) -> Source:
    """A table with a key of two columns, and a partitioned one, whose rows are captured."""
    do(
        queue.dsn,
        "CREATE TABLE t (id int, part text, b int, PRIMARY KEY (id, part))",
        "CREATE TABLE p (id int, at int, PRIMARY KEY (id, at)) PARTITION BY RANGE (at)",
        "CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10)",
    )
    with queue.session() as session:
        for name in ("t", "p"):
            oid = catalog.oid_of(session, "public", name)
            assert oid is not None
            prepared = change_log.prepare(session, queue.pipeline, [oid], 1.0)[oid]
            change_log.start(session, queue.pipeline, prepared, 1.0)
    queue.events()
    return queue


def log_of(source: Source, name: str) -> list[tuple[Any, ...]]:
    with source.session() as session:
        oid = catalog.oid_of(session, "public", name)
        logs = change_log.captured_roots(session, source.pipeline)
        log = change_log.log_table(logs[oid or 0])
        rows = session.execute(
            sql.SQL("SELECT op, old_1, old_2, new_1, new_2 FROM {} ORDER BY ctid").format(log)
        ).fetchall()
        session.execute(sql.SQL("DELETE FROM {}").format(log))
        return rows


def test_c18_a_renamed_key_column_goes_on_being_captured(captured: Source) -> None:
    with psycopg.connect(captured.dsn) as writer:  # has its functions compiled already
        writer.execute("INSERT INTO t VALUES (1, 'a', 0)")
        writer.commit()
        do(captured.dsn, 'ALTER TABLE t RENAME id TO "the ""id"', "ALTER TABLE t RENAME part TO id")
        writer.execute("UPDATE t SET id = 'b'")
        writer.commit()
    with psycopg.connect(captured.dsn) as conn:
        conn.execute("ALTER TABLE p RENAME at TO moment")
        conn.execute("INSERT INTO p VALUES (1, 2)")
    assert log_of(captured, "t") == [("I", None, None, 1, "a"), ("U", 1, "a", 1, "b")]
    assert log_of(captured, "p") == [("I", None, None, 1, 2)]
    assert [e["tag"] for e in captured.events()] == ["ALTER TABLE"] * 3
    do(captured.dsn, 'ALTER TABLE t ALTER "the ""id" TYPE bigint', "INSERT INTO t VALUES (9, 'z', 0)")
    assert log_of(captured, "t") == [("X", None, None, None, None)]


def test_a_rename_that_is_rolled_back_is_not_followed(captured: Source) -> None:
    with psycopg.connect(captured.dsn) as conn:
        conn.execute("ALTER TABLE t RENAME id TO other")
        conn.execute("INSERT INTO t (other, part) VALUES (1, 'a')")
        conn.rollback()
        conn.execute("INSERT INTO t (id, part) VALUES (2, 'b')")
    assert log_of(captured, "t") == [("I", None, None, 2, "b")]


def test_new_partitions_are_captured_from_their_first_row(captured: Source) -> None:
    with psycopg.connect(captured.dsn) as conn:
        conn.execute("CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (10) TO (20); INSERT INTO p VALUES (1, 15)")
    do(
        captured.dsn,
        "CREATE TABLE sub PARTITION OF p FOR VALUES FROM (20) TO (40) PARTITION BY RANGE (at)",
        'CREATE TABLE "odd.name" (at int NOT NULL, id int NOT NULL)',
        'ALTER TABLE sub ATTACH PARTITION "odd.name" DEFAULT',
        "INSERT INTO p VALUES (2, 25)",
        "TRUNCATE p2",
        'SET session_replication_role = replica; DELETE FROM "odd.name"',
    )
    assert log_of(captured, "p") == [
        ("I", None, None, 1, 15),
        ("I", None, None, 2, 25),
        ("T", None, None, None, None),
        ("D", 2, 25, None, None),
    ]
    # Rows that come along with it are in no log.
    do(captured.dsn, "CREATE TABLE full_ (id int NOT NULL, at int NOT NULL)", "INSERT INTO full_ VALUES (1, 45)")
    do(captured.dsn, "ALTER TABLE p ATTACH PARTITION full_ FOR VALUES FROM (40) TO (50)")
    assert [row[0] for row in log_of(captured, "p")] == ["X"]
    assert "CREATE TRIGGER" not in captured.tags()
    with captured.session() as session:
        with session.transaction():
            change_log.stop(session, captured.pipeline, catalog.oid_of(session, "public", "p") or 0)
        assert session.execute(
            "SELECT count(*) FROM pg_trigger WHERE tgname LIKE 'pgddl_%%p%%' AND tgrelid = 'public.p2'::regclass"
        ).fetchone() == (0,)
    do(captured.dsn, "INSERT INTO p VALUES (3, 15)")


def test_nobody_waits_while_a_partition_is_attached(captured: Source) -> None:
    do(captured.dsn, "CREATE TABLE p3 (id int NOT NULL, at int NOT NULL)")
    with in_transaction(captured.dsn, "ALTER TABLE p ATTACH PARTITION p3 FOR VALUES FROM (50) TO (60)") as client:
        do(captured.dsn, "SET lock_timeout = '5s'; INSERT INTO p VALUES (1, 1)")
        client.commit()
    do(captured.dsn, "INSERT INTO p VALUES (1, 55)")
    assert log_of(captured, "p") == [("I", None, None, 1, 1), ("I", None, None, 1, 55)]
