"""C18 without event triggers: a trigger function whose key columns are no longer what it was made for logs that it has
lost track, in whichever session and transaction; no client fails. Each session's plans keep the guard's answer."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
from psycopg import sql

from airflow_provider_pgddl.demo.clusters import Cluster
from airflow_provider_pgddl.engine.capture import change_log
from airflow_provider_pgddl.engine.journal import migrations
from airflow_provider_pgddl.engine.server import catalog
from airflow_provider_pgddl.engine.server.connect import connect
from tests.combinations import matrix
from tests.conftest import Database
from tests.integration.sessions import do

SWAP = ("ALTER TABLE t RENAME id TO x", "ALTER TABLE t RENAME other TO id", "ALTER TABLE t RENAME x TO other")
LOST = ("X", None, None)


@pytest.fixture(params=matrix(16, 18))
def dsn(request: pytest.FixtureRequest, pg16: Cluster, pg18: Cluster, database: Database) -> Iterator[str]:
    dsn = database(pg16 if request.param == 16 else pg18)
    do(dsn, "CREATE TABLE t (id int PRIMARY KEY, other int)", "INSERT INTO t SELECT n, -n FROM generate_series(1, 9) n")
    with connect(dsn, purpose="test") as session:
        migrations.apply(session, "core")
        change_log.register_pipeline(session, "guarded", "a journal")
        oid = catalog.oid_of(session, "public", "t")
        assert oid is not None
        prepared = change_log.prepare(session, "guarded", [oid], 1.0)[oid]
        change_log.start(session, "guarded", prepared, 1.0)
    yield dsn
    with connect(dsn, purpose="test") as session:
        change_log.stop(session, "guarded", oid)
        migrations.revert(session, "core")


def logged(dsn: str) -> list[tuple[object, ...]]:
    with connect(dsn, purpose="test") as session:
        (log,) = change_log.captured_roots(session, "guarded").values()
        rows = session.execute(
            sql.SQL("SELECT op, old_1, new_1 FROM {} ORDER BY ctid").format(change_log.log_table(log))
        ).fetchall()
        session.execute(sql.SQL("DELETE FROM {}").format(change_log.log_table(log)))
        return rows


def test_c18_a_session_that_knew_the_key_sees_another_one_take_its_name(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True, prepare_threshold=0) as writer:
        update = "UPDATE t SET other = other - 100 WHERE id = %s"
        for n in range(1, 8):  # its plans are generic by then
            writer.execute(update, [n])
        assert logged(dsn) == [("U", n, n) for n in range(1, 8)]
        do(dsn, *SWAP)
        writer.execute("INSERT INTO t (id, other) VALUES (50, 60)")
        assert logged(dsn) == [LOST]
        do(dsn, *SWAP)
        writer.execute("DELETE FROM t WHERE id = 1")
        assert logged(dsn) == [("D", 1, None)]
        do(dsn, "ALTER TABLE t ALTER id TYPE bigint")
        writer.execute("INSERT INTO t VALUES (5000000000, 1)")
        writer.execute(update, [2])
        assert logged(dsn) == [LOST, LOST]


def test_c18_what_one_transaction_does_to_the_key_counts_in_it_and_is_forgotten_with_it(dsn: str) -> None:
    with psycopg.connect(dsn) as writer:
        writer.execute("UPDATE t SET other = 1 WHERE id = 1")
        writer.commit()
        writer.execute("ALTER TABLE t RENAME id TO identity")
        writer.execute("UPDATE t SET other = 2 WHERE identity = 1")
        writer.rollback()
        writer.execute("UPDATE t SET other = 2 WHERE id = 1")
        writer.commit()
        assert logged(dsn) == [("U", 1, 1), ("U", 1, 1)]
        writer.execute("ALTER TABLE t RENAME id TO identity")
        writer.execute("UPDATE t SET other = 3 WHERE identity = 1")
        writer.commit()
    assert logged(dsn) == [LOST]


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_c18_a_kept_snapshot_leaves_no_answer_behind(dsn: str, level: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as writer:
        writer.execute("UPDATE t SET other = 1 WHERE id = 1")
        writer.execute(sql.SQL("BEGIN ISOLATION LEVEL {}").format(sql.SQL(level)))
        writer.execute("SELECT pg_catalog.pg_current_snapshot()")
        do(dsn, *SWAP)
        writer.execute("INSERT INTO t (id, other) VALUES (100, 100)")  # the snapshot shows the names as they were
        writer.execute("COMMIT")
        logged(dsn)
        writer.execute("INSERT INTO t (id, other) VALUES (101, 102)")
        assert logged(dsn) == [LOST]
        do(dsn, *SWAP)
        writer.execute(sql.SQL("BEGIN ISOLATION LEVEL {}").format(sql.SQL(level)))
        writer.execute("UPDATE t SET other = 2 WHERE id = 1")
        writer.execute("COMMIT")
        assert logged(dsn) == [("U", 1, 1)]


def test_the_guard_is_looked_at_once(dsn: str) -> None:
    """Else each row would cost what the guard costs."""
    with psycopg.connect(dsn, autocommit=True) as writer:
        writer.execute("SET track_functions = 'all'")
        for n in range(10):
            writer.execute("UPDATE t SET other = %s WHERE id = 1", [n])
    with psycopg.connect(dsn, autocommit=True) as conn:
        row = conn.execute("SELECT calls FROM pg_stat_user_functions WHERE funcname = 'key_is'").fetchone()
    assert row is not None and row[0] <= 2
