"""The locks that `pgddl plan` tells are those that the server takes."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from airflow_provider_pgddl.engine.ddl.lock_modes import MODES, locks
from airflow_provider_pgddl.engine.swapping.dry_run import Notes
from tests.integration.lifecycle import execute

THERE = """
CREATE SCHEMA s; CREATE SCHEMA other; CREATE ROLE pgddl_lock_modes;
CREATE TABLE s.a (id int PRIMARY KEY, n int, body text, serial serial, CONSTRAINT positive CHECK (n > 0) NOT VALID);
CREATE TABLE s.b (id int PRIMARY KEY, a int, CONSTRAINT b_a FOREIGN KEY (a) REFERENCES s.a NOT VALID);
CREATE TABLE s.parts (id int) PARTITION BY LIST (id);
CREATE TABLE s.part (id int);
CREATE SEQUENCE s.free;
CREATE FUNCTION s.f() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$;
CREATE TRIGGER t AFTER INSERT ON s.a FOR EACH ROW EXECUTE FUNCTION s.f();
CREATE RULE r AS ON DELETE TO s.b DO ALSO NOTIFY b;
CREATE POLICY p ON s.b;
CREATE VIEW s.v AS SELECT id FROM s.b;
CREATE MATERIALIZED VIEW s.m AS SELECT 1 AS n;
"""
STATEMENTS = [
    "LOCK TABLE s.a, s.b IN SHARE ROW EXCLUSIVE MODE",
    "CREATE TABLE s.c (id int, a int REFERENCES s.a)",
    "CREATE TABLE s.part_1 PARTITION OF s.parts FOR VALUES IN (1)",
    "CREATE TABLE s.child () INHERITS (s.b)",
    "CREATE INDEX ON s.a (n)",
    "CREATE UNIQUE INDEX u ON s.a (n)",
    "CREATE STATISTICS s.st ON id, n FROM s.a",
    "CREATE TRIGGER t2 BEFORE UPDATE ON s.a FOR EACH ROW EXECUTE FUNCTION s.f()",
    "CREATE RULE r2 AS ON UPDATE TO s.b DO ALSO NOTIFY b",
    "CREATE POLICY p2 ON s.b",
    "ALTER POLICY p ON s.b TO PUBLIC",
    "DROP TRIGGER t ON s.a",
    "DROP RULE r ON s.b",
    "DROP POLICY p ON s.b",
    "DROP VIEW s.v",
    "DROP MATERIALIZED VIEW s.m",
    "DROP TABLE s.part",
    "DROP SEQUENCE s.free",
    "COMMENT ON TABLE s.a IS 'x'",
    "COMMENT ON COLUMN s.a.n IS 'x'",
    "ALTER TABLE s.b ADD CONSTRAINT fk FOREIGN KEY (id) REFERENCES s.a",
    "ALTER TABLE s.b ADD CONSTRAINT fk FOREIGN KEY (id) REFERENCES s.a NOT VALID",
    "ALTER TABLE s.a ADD CONSTRAINT c CHECK (n > 1)",
    "ALTER TABLE s.a ADD CONSTRAINT u2 UNIQUE (n)",
    "ALTER TABLE s.a VALIDATE CONSTRAINT positive",
    "ALTER TABLE s.a DROP CONSTRAINT positive",
    "ALTER TABLE s.a ADD COLUMN more int",
    "ALTER TABLE s.a ALTER COLUMN n TYPE bigint",
    "ALTER TABLE s.a ALTER COLUMN n SET STATISTICS 10",
    "ALTER TABLE s.a ALTER COLUMN n SET (n_distinct = 5)",
    "ALTER TABLE s.a ALTER COLUMN body SET STORAGE EXTERNAL",
    "ALTER TABLE s.a ALTER COLUMN n SET NOT NULL",
    "ALTER TABLE s.a ALTER COLUMN n SET DEFAULT 1",
    "ALTER TABLE s.a SET (fillfactor = 90)",
    "ALTER TABLE s.a CLUSTER ON a_pkey",
    "ALTER TABLE s.a REPLICA IDENTITY FULL",
    "ALTER TABLE s.a ENABLE ROW LEVEL SECURITY",
    "ALTER TABLE s.a DISABLE TRIGGER t",
    "ALTER TABLE s.a ENABLE ALWAYS TRIGGER t",
    "ALTER TABLE s.a OWNER TO pgddl_lock_modes",
    "ALTER TABLE s.a SET SCHEMA other",
    "ALTER TABLE s.a RENAME TO a2",
    "ALTER TABLE s.a RENAME COLUMN n TO n2",
    "ALTER TABLE s.parts ATTACH PARTITION s.part FOR VALUES IN (7)",
    "ALTER TABLE s.part SET UNLOGGED",
    "ALTER SEQUENCE s.free AS int",
    "ALTER SEQUENCE s.free OWNED BY s.a.n",
    "REFRESH MATERIALIZED VIEW s.m",
    "GRANT SELECT ON s.a TO pgddl_lock_modes",
]  # fmt: skip


@pytest.fixture(params=["16", "18"])
def there(request: pytest.FixtureRequest, source_dsn: str, target_dsn: str) -> str:
    dsn = source_dsn if request.param == "16" else target_dsn
    execute(dsn, THERE.replace("CREATE ROLE pgddl_lock_modes;", ROLE))
    return dsn


ROLE = """
DO $$ BEGIN IF to_regrole('pgddl_lock_modes') IS NULL THEN CREATE ROLE pgddl_lock_modes; END IF; END $$;
"""


def test_a_statement_takes_the_locks_that_are_told(there: str) -> None:
    wrong: list[Any] = []
    with psycopg.connect(there, autocommit=True) as conn:
        named = {
            f"{schema}.{name}"
            for schema, name in conn.execute(
                "SELECT relnamespace::regnamespace::text, relname FROM pg_class"
                " WHERE relnamespace::regnamespace::text IN ('s', 'other')"
            )
        }
        for statement in STATEMENTS:
            with conn.transaction(force_rollback=True):
                notes = Notes(conn)
                notes.cursor_factory()(conn).execute(statement)
                told = {".".join(name): mode for name, mode in locks(statement)}
                gone = {name for name in told if conn.execute("SELECT to_regclass(%s)", [name]).fetchone() == (None,)}
            taken = {relation: mode for noted in notes.statements for relation, mode in noted.locks}
            # A sequence goes along with its table; what a statement makes, or gives another name, was not there before.
            seen = {r: m for r, m in taken.items() if r in named - {"s.a_serial_seq"} and MODES.index(m) > 2}
            expected = {r: m for r, m in told.items() if r not in gone}
            if seen != expected:
                wrong.append((statement, {"told": expected, "taken": seen}))
    assert wrong == []
