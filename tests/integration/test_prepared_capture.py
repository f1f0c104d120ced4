"""Between what is made for a table's capture and the lock under which it begins, clients may have altered the table:
one digest of row versions tells (C2, C18)."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from airflow_provider_pgddl.demo.clusters import Cluster
from airflow_provider_pgddl.engine.capture import change_log
from airflow_provider_pgddl.engine.errors import TableChanged
from airflow_provider_pgddl.engine.journal import migrations
from airflow_provider_pgddl.engine.server import catalog
from airflow_provider_pgddl.engine.server.connect import Session, connect
from tests.combinations import matrix
from tests.conftest import Database
from tests.integration.sessions import do

SHAPE = (
    "CREATE TYPE mood AS ENUM ('a')",
    "CREATE TABLE t (id int PRIMARY KEY, other int NOT NULL DEFAULT 1, mood mood, free text)",
    "CREATE UNIQUE INDEX t_other ON t (other)",
    "INSERT INTO t SELECT n, n, NULL, '' FROM generate_series(1, 9) n",
    "CREATE TABLE p (id int, region text, v int, PRIMARY KEY (id, region)) PARTITION BY LIST (region)",
    "CREATE TABLE p_a PARTITION OF p FOR VALUES IN ('a')",
    "CREATE TABLE p_b PARTITION OF p FOR VALUES IN ('b')",
    "CREATE TABLE p_c (region text NOT NULL, id int NOT NULL, v int)",
)
ALTERED = {
    "t": [
        "ALTER TABLE t ADD COLUMN new int",
        "ALTER TABLE t DROP COLUMN free",
        "ALTER TABLE t RENAME COLUMN other TO another",
        "ALTER TABLE t ALTER COLUMN other TYPE bigint",
        "ALTER TABLE t ALTER COLUMN free SET NOT NULL",
        "ALTER TABLE t ALTER COLUMN other DROP NOT NULL",
        "ALTER TABLE t ALTER COLUMN other SET DEFAULT 2",
        "ALTER TABLE t ALTER COLUMN other DROP DEFAULT",
        'ALTER TABLE t ALTER COLUMN free TYPE text COLLATE "C"',
        "ALTER TABLE t DROP CONSTRAINT t_pkey",
        "ALTER TABLE t REPLICA IDENTITY USING INDEX t_other",
        "ALTER TABLE t SET UNLOGGED",
        "ALTER TYPE mood RENAME TO moods",
        "ALTER TABLE t RENAME TO u",
        "ALTER TABLE t SET SCHEMA other",
        "ALTER TABLE t RENAME TO u; ALTER TABLE p RENAME TO t",
        "ALTER TABLE t RENAME TO u; CREATE TABLE t (LIKE u INCLUDING ALL)",
        "DROP TABLE t",
        "ALTER SCHEMA public RENAME TO before",
    ],
    "p": [
        "CREATE TABLE p_d PARTITION OF p FOR VALUES IN ('d')",
        "ALTER TABLE p ATTACH PARTITION p_c FOR VALUES IN ('c')",
        "ALTER TABLE p DETACH PARTITION p_b",
        "DROP TABLE p_b",
        "ALTER TABLE p_b RENAME TO p_x",
        "ALTER TABLE p DETACH PARTITION p_b; ALTER TABLE p ATTACH PARTITION p_b FOR VALUES IN ('b', 'd')",
        "ALTER TABLE p_b SET SCHEMA other",
        "ALTER TABLE p_b ALTER COLUMN v SET DEFAULT 3",
        "ALTER TABLE p ADD COLUMN new int",
    ],
}
AS_IT_WAS = [
    "INSERT INTO t VALUES (100, 100); UPDATE t SET free = 'x'; DELETE FROM t WHERE id = 1",
    "VACUUM t",
    "VACUUM FULL t",
    "VACUUM (FREEZE) t",
    "ANALYZE t",
    "TRUNCATE t",
    "COMMENT ON TABLE t IS 'x'",
    "GRANT SELECT ON t TO PUBLIC",
    "GRANT USAGE ON SCHEMA public TO PUBLIC",
    "CREATE INDEX ON t (free)",
    "ALTER TABLE t ADD CONSTRAINT c CHECK (id > 0) NOT VALID",
    "ALTER TABLE p_b SET (fillfactor = 50)",
]


@pytest.fixture(params=matrix(16, 18))
def dsn(request: pytest.FixtureRequest, pg16: Cluster, pg18: Cluster, database: Database) -> Iterator[str]:
    dsn = database(pg16 if request.param == 16 else pg18)
    do(dsn, "CREATE SCHEMA other", *SHAPE)
    with connect(dsn, purpose="test") as session:
        migrations.apply(session, "core")
        change_log.register_pipeline(session, "prepared", "a journal")
    yield dsn
    with connect(dsn, purpose="test") as session:
        for root in change_log.captured_roots(session, "prepared"):
            change_log.stop(session, "prepared", root)
        migrations.revert(session, "core")


def triggers(session: Session) -> int:
    return session.execute("SELECT count(*) FROM pg_catalog.pg_trigger WHERE tgname ~ '^pgddl_'").fetchone()[0]  # type: ignore[index, no-any-return]


def test_c18_what_was_altered_meanwhile_is_not_captured_as_it_was(dsn: str) -> None:
    """Each in a transaction that is rolled back, in the session that then asks."""
    with connect(dsn, purpose="test") as session:
        oids = {name: catalog.oid_of(session, "public", name) or 0 for name in ALTERED}
        prepared = change_log.prepare(session, "prepared", oids.values(), 1.0)
        for name, statements in ALTERED.items():
            for statement in statements:
                with session.transaction(force_rollback=True):
                    session.execute("SET LOCAL search_path = public, pg_catalog")
                    session.execute(statement.encode())
                    session.execute("SET LOCAL search_path = pg_catalog, pg_temp")
                    with pytest.raises(TableChanged), session.transaction():
                        change_log.start(session, "prepared", prepared[oids[name]], 1.0)
                    assert triggers(session) == 0, statement


def test_c2_what_no_alter_has_touched_is_captured(dsn: str) -> None:
    with connect(dsn, purpose="test") as session:
        oids = [catalog.oid_of(session, "public", name) or 0 for name in ALTERED]
        prepared = change_log.prepare(session, "prepared", oids, 1.0)
        for statement in AS_IT_WAS:
            with psycopg.connect(dsn, autocommit=True) as client:
                for one in statement.split(";"):
                    client.execute(one.encode())
        captured = [change_log.start(session, "prepared", prepared[oid], 1.0) for oid in oids]
        assert triggers(session) == 6
        described = catalog.describe(session, oids, change_log.capture_names("prepared"))
        assert captured == [described[oid] for oid in oids]
