"""What of a dump at one snapshot is printed as of now: every kind of DDL, committed behind the snapshot."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from airflow_provider_pgddl.demo.clusters import Cluster
from airflow_provider_pgddl.engine.capture import ddl_log
from airflow_provider_pgddl.engine.ddl.captured_events import changes_a_dump
from airflow_provider_pgddl.engine.errors import Retry
from airflow_provider_pgddl.engine.server import catalog
from airflow_provider_pgddl.engine.server.pg_dump import dump_schema
from tests.conftest import Database, database_name
from tests.integration.ddl_source import Source
from tests.integration.lifecycle import wait_until
from tests.integration.sessions import do

SCHEMA = """
CREATE SCHEMA app; CREATE SCHEMA other;
CREATE TYPE app.mood AS ENUM ('a', 'b'); CREATE TYPE app.pair AS (x int, y int);
CREATE DOMAIN app.small AS int CHECK (VALUE < 100);
CREATE FUNCTION app.low(t text) RETURNS text LANGUAGE sql IMMUTABLE AS 'SELECT lower(t)';
CREATE FUNCTION app.noop() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
CREATE SEQUENCE app.numbers;
CREATE TABLE app.p (id int PRIMARY KEY, k int);
CREATE TABLE app.t (
    id int PRIMARY KEY DEFAULT nextval('app.numbers'), note text DEFAULT app.low('N'), m app.mood DEFAULT 'a',
    s app.small, pr app.pair, big int, p int, gone int,
    CONSTRAINT positive CHECK (big > 0), CONSTRAINT other_one UNIQUE (gone));
ALTER TABLE app.t ADD CONSTRAINT to_p FOREIGN KEY (p) REFERENCES app.p NOT VALID;
CREATE INDEX by_note ON app.t (app.low(note)); CREATE INDEX by_big ON app.t (big) WHERE m = 'b';
CREATE INDEX plain ON app.t (p);
CREATE STATISTICS app.st ON big, p FROM app.t;
CREATE TRIGGER tr BEFORE INSERT ON app.t FOR EACH ROW WHEN (NEW.big > 1) EXECUTE FUNCTION app.noop();
CREATE POLICY own ON app.t USING (note = 'x');
CREATE RULE ru AS ON DELETE TO app.p DO ALSO SELECT 1;
CREATE VIEW app.v AS SELECT id, note FROM app.t; CREATE MATERIALIZED VIEW app.mv AS SELECT count(*) AS n FROM app.p;
CREATE TABLE app.parted (id int, at date) PARTITION BY RANGE (id);
CREATE TABLE app.part_1 PARTITION OF app.parted FOR VALUES FROM (0) TO (10); CREATE TABLE app.part_2 (id int, at date);
CREATE INDEX ON app.parted (at);
CREATE TABLE app.unread (id int, note text);
COMMENT ON TABLE app.t IS 'before'; GRANT SELECT ON app.p TO PUBLIC;
"""

# Every kind of DDL, and whether a dump at a snapshot that is older prints something else on account of it, or fails.
KINDS: dict[str, bool] = {
    "COMMENT ON TABLE app.t IS 'after'": False,
    "COMMENT ON COLUMN app.t.note IS 'after'": False,
    "COMMENT ON FUNCTION app.low(text) IS 'after'": False,
    "GRANT SELECT ON app.t TO PUBLIC": False,
    "REVOKE SELECT ON app.p FROM PUBLIC": False,
    "GRANT USAGE ON SCHEMA app TO PUBLIC": False,
    "ALTER DEFAULT PRIVILEGES IN SCHEMA app GRANT SELECT ON TABLES TO PUBLIC": False,
    "CREATE INDEX late ON app.t (note)": False,
    "CREATE TABLE app.late (id int PRIMARY KEY, t int REFERENCES app.t)": False,
    "CREATE TABLE app.late AS SELECT * FROM app.p": False,
    "CREATE TABLE app.part_3 PARTITION OF app.parted FOR VALUES FROM (10) TO (20)": False,
    "CREATE SEQUENCE app.late": False,
    "CREATE VIEW app.late AS SELECT * FROM app.t": False,
    "CREATE MATERIALIZED VIEW app.late AS SELECT * FROM app.t": False,
    "CREATE SCHEMA late": False,
    "CREATE TYPE app.late AS ENUM ('x')": False,
    "CREATE DOMAIN app.late AS int": False,
    "CREATE FUNCTION app.late() RETURNS int LANGUAGE sql AS 'SELECT 1'": False,
    "CREATE OR REPLACE FUNCTION app.low(t text) RETURNS text LANGUAGE sql IMMUTABLE AS 'SELECT upper(t)'": False,
    "CREATE OR REPLACE FUNCTION app.low(t text = 'x') RETURNS text LANGUAGE sql IMMUTABLE AS 'SELECT lower(t)'": True,
    "CREATE TRIGGER late BEFORE INSERT ON app.t FOR EACH ROW EXECUTE FUNCTION app.noop()": False,
    "CREATE OR REPLACE TRIGGER tr BEFORE INSERT ON app.t FOR EACH ROW EXECUTE FUNCTION app.noop()": True,
    "CREATE POLICY late ON app.t USING (true)": False,
    "CREATE STATISTICS app.late ON id, big FROM app.t": False,
    "CREATE RULE late AS ON DELETE TO app.t DO ALSO SELECT 1": False,
    "CREATE OR REPLACE RULE ru AS ON DELETE TO app.p DO ALSO SELECT 2": False,
    "CREATE OR REPLACE VIEW app.v AS SELECT id, note, big FROM app.t": False,
    "REFRESH MATERIALIZED VIEW app.mv": False,
    "ALTER TYPE app.mood ADD VALUE 'c'": False,
    "ALTER TYPE app.mood RENAME VALUE 'b' TO 'z'": True,
    "ALTER TYPE app.mood RENAME TO feeling": True,
    "ALTER TYPE app.mood SET SCHEMA other": True,
    "ALTER TYPE app.pair ADD ATTRIBUTE z int": False,
    "ALTER DOMAIN app.small RENAME TO tiny": True,
    "ALTER DOMAIN app.small ADD CONSTRAINT late CHECK (VALUE > 0) NOT VALID": False,
    "ALTER FUNCTION app.low(text) RENAME TO lower_it": True,
    "ALTER FUNCTION app.low(text) COST 7": False,
    "ALTER SCHEMA app RENAME TO moved": True,
    "ALTER SEQUENCE app.numbers RENAME TO figures": True,
    "ALTER SEQUENCE app.numbers INCREMENT 5": False,
    "ALTER INDEX app.by_note RENAME TO by_text": True,
    "ALTER INDEX app.by_note SET (fillfactor = 70)": True,
    "ALTER STATISTICS app.st RENAME TO other_st": True,
    "ALTER STATISTICS app.st SET STATISTICS 5": False,
    "ALTER VIEW app.v RENAME TO w": False,
    "ALTER TRIGGER tr ON app.t RENAME TO tr_2": True,
    "ALTER POLICY own ON app.t RENAME TO own_2": False,
    "ALTER POLICY own ON app.t USING (note = 'y')": False,
    "ALTER RULE ru ON app.p RENAME TO ru_2": False,
    "ALTER TABLE app.t ADD COLUMN late int": False,
    "ALTER TABLE app.t ADD COLUMN late int NOT NULL DEFAULT 5": False,
    "ALTER TABLE app.t ADD COLUMN late int UNIQUE": False,
    "ALTER TABLE app.t DROP COLUMN pr": False,
    "ALTER TABLE app.t DROP COLUMN gone": True,
    "ALTER TABLE app.t ALTER COLUMN p TYPE bigint": True,
    "ALTER TABLE app.t ALTER COLUMN note SET DEFAULT 'q'": False,
    "ALTER TABLE app.t ALTER COLUMN note SET NOT NULL": False,
    "ALTER TABLE app.t ALTER COLUMN note SET STATISTICS 7": False,
    "ALTER TABLE app.t SET (fillfactor = 70)": False,
    "ALTER TABLE app.t ADD CONSTRAINT late CHECK (big < 10)": False,
    "ALTER TABLE app.t ADD CONSTRAINT late FOREIGN KEY (big) REFERENCES app.p": False,
    "ALTER TABLE app.t VALIDATE CONSTRAINT to_p": False,
    "ALTER TABLE app.t DROP CONSTRAINT positive": False,
    "ALTER TABLE app.t RENAME CONSTRAINT positive TO over_null": False,
    "ALTER TABLE app.t DROP CONSTRAINT other_one": True,
    "ALTER TABLE app.t RENAME COLUMN note TO text": True,
    "ALTER TABLE app.t RENAME TO u": True,
    "ALTER TABLE app.t SET SCHEMA other": True,
    "ALTER TABLE app.t ENABLE ROW LEVEL SECURITY": False,
    "ALTER TABLE app.t DISABLE TRIGGER tr": False,
    "ALTER TABLE app.t CLUSTER ON plain": False,
    "ALTER TABLE app.t REPLICA IDENTITY FULL": False,
    "ALTER TABLE app.t OWNER TO CURRENT_USER": False,
    "ALTER TABLE app.parted ATTACH PARTITION app.part_2 FOR VALUES FROM (10) TO (20)": False,
    "ALTER TABLE app.parted DETACH PARTITION app.part_1": False,
    "DROP INDEX app.by_note": True,
    "DROP INDEX CONCURRENTLY app.by_note": True,
    "DROP TRIGGER tr ON app.t": True,
    "DROP POLICY own ON app.t": False,
    "DROP STATISTICS app.st": True,
    "DROP VIEW app.v": True,
    "DROP MATERIALIZED VIEW app.mv": True,
    "DROP RULE ru ON app.p": False,
    "DROP TABLE app.unread": True,
    "CLUSTER app.t USING plain": False,
}  # fmt: skip


# What is a reason by its tag, as it may be one in another case, though not in this one.
TAKEN_FOR_REASONS = (
    "ALTER DOMAIN", "ALTER FUNCTION", "ALTER INDEX", "ALTER POLICY", "ALTER RULE", "ALTER SEQUENCE", "ALTER STATISTICS",
    "ALTER TABLE", "ALTER TYPE", "ALTER VIEW", "CREATE OR REPLACE FUNCTION", "DROP POLICY", "DROP RULE",
)  # fmt: skip
# Of which there is no event that says so: the dump fails, and is taken again for that.
FAILS = ("DROP TABLE app.unread",)


def dumped(dsn: str, major: int, snapshot: str) -> str:
    """Without the words that differ each time; or why not."""
    try:
        halves = [dump_schema(dsn, major, section=section, snapshot=snapshot) for section in ("pre-data", "post-data")]
    except Retry as error:
        return f"failed: {error.what}"
    return "".join(x for half in halves for x in half.splitlines(keepends=True) if "restrict " not in x)


@pytest.mark.parametrize("version", [16, 18])
def test_what_of_a_dump_is_printed_as_of_now(request: pytest.FixtureRequest, database: Database, version: int) -> None:
    """Each in a database of its own: a snapshot, DDL that commits behind it, a dump at the snapshot."""
    cluster: Cluster = request.getfixturevalue(f"pg{version}")
    template = database(cluster)
    do(template, SCHEMA)
    Source(template, "queue").start()
    for kind, changes in KINDS.items():
        source = Source(database(cluster, template=database_name(template)), "queue")
        source.events()
        with psycopg.connect(source.dsn) as holder:
            holder.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            (snapshot,) = holder.execute("SELECT pg_export_snapshot()").fetchone() or ("",)
            there = catalog.user_oids(holder)
            before = dumped(source.dsn, version, snapshot)
            assert not before.startswith("failed"), before
            do(source.dsn, kind)
            after = dumped(source.dsn, version, snapshot)
        reason = any(changes_a_dump(event, there) for event in source.events())
        assert (after != before) == changes, f"{kind}: {after if after.startswith('failed') else ''}"
        if changes:
            assert reason or (kind in FAILS and after.startswith("failed")), kind
        else:
            assert not reason or kind.startswith(TAKEN_FOR_REASONS), kind


def waits(client: psycopg.Connection[Any], watch: psycopg.Connection[Any], statement: str) -> bool:
    """Whether it waits for the quiet to end, and is cancelled then; else it has run."""
    waiting = "SELECT FROM pg_locks WHERE pid = %s AND NOT granted AND relation = 'pgddl.ddl_hold'::regclass"
    with ThreadPoolExecutor(1) as running:
        ran = running.submit(client.execute, statement.encode())
        wait_until(lambda: ran.done() or watch.execute(waiting, [client.info.backend_pid]).fetchone() is not None)
        if not ran.done():
            client.cancel_safe()
        try:
            ran.result()
        except psycopg.errors.QueryCanceled:
            return True
        return False


def test_what_may_change_a_dump_waits_while_one_asks_for_quiet(pg16: Cluster, database: Database) -> None:
    """It has locked nothing by then; whoever has another lock_timeout, and what no dump shows, goes on."""
    template = database(pg16)
    do(template, SCHEMA)
    Source(template, "queue").start()
    for kind, changes in KINDS.items():
        source = Source(database(pg16, template=database_name(template)), "queue")
        source.events()
        with source.session() as reader, reader.transaction():
            there = catalog.user_oids(reader)
        with (
            source.session() as session,
            psycopg.connect(source.dsn, autocommit=True) as client,
            psycopg.connect(source.dsn, autocommit=True) as watch,
        ):
            with ddl_log.held(session):
                waited = waits(client, watch, kind)
                events = source.events()
            if waited:
                assert events == [], kind
                client.execute(kind.encode())
                assert len(source.events()) == 1 or kind.startswith("CLUSTER"), kind
            else:
                assert not any(changes_a_dump(event, there) for event in events), kind
                assert not changes, kind


def test_whoever_does_not_wait_for_locks_goes_on_while_a_dump_asks_for_quiet(pg16: Cluster, database: Database) -> None:
    source = Source(database(pg16), "queue")
    do(source.dsn, SCHEMA)
    source.start()
    with source.session() as session, psycopg.connect(source.dsn, autocommit=True) as client:
        client.execute("SET lock_timeout = '50ms'")
        with ddl_log.held(session):
            client.execute("ALTER TABLE app.t ADD COLUMN meanwhile int")
            assert source.tags() == ["ALTER TABLE"]


def test_quiet_is_not_waited_for_where_ddl_is_under_way_for_long(
    pg16: Cluster, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ddl_log, "HOLD_WAIT", 0.05)
    source = Source(database(pg16), "queue")
    do(source.dsn, SCHEMA)
    source.start()
    with source.session() as session, psycopg.connect(source.dsn) as client:
        client.execute("ALTER TABLE app.t ADD COLUMN meanwhile int")
        with ddl_log.held(session):
            do(source.dsn, "ALTER TABLE app.p ADD COLUMN meanwhile int")
        client.commit()
    assert sorted(source.tags()) == ["ALTER TABLE", "ALTER TABLE"]


def test_quiet_ends_by_itself(pg16: Cluster, database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ddl_log, "HELD_AT_MOST", 1)
    source = Source(database(pg16), "queue")
    do(source.dsn, SCHEMA)
    source.start()
    with source.session() as session, ddl_log.held(session):
        do(source.dsn, "ALTER TABLE app.t ADD COLUMN meanwhile int")
    assert source.tags() == ["ALTER TABLE"]
