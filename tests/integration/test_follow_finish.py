"""C35: follow.finish brings what acts on writers and readers to a target that no swap comes to, as it comes, changes
and goes."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from psycopg import sql

from airflow_provider_pgddl.demo.clusters import Cluster
from airflow_provider_pgddl.demo.compare import compare_catalogs, differences
from airflow_provider_pgddl.engine import stages
from airflow_provider_pgddl.engine.errors import PreflightRefused
from airflow_provider_pgddl.engine.pipeline.reading import load_pipeline
from tests.combinations import matrix
from tests.integration.lifecycle import Lifecycle, execute, wait_until
from tests.integration.sessions import do, one
from tests.table_writers import TableWriters

Make = Callable[..., Lifecycle]
_numbers = itertools.count(1)

SHOP = """
CREATE SCHEMA shop;
CREATE SCHEMA log;
CREATE TABLE log.heard (at timestamptz DEFAULT now(), what text);
CREATE FUNCTION shop.hear() RETURNS trigger LANGUAGE plpgsql AS
    $$BEGIN INSERT INTO log.heard (what) VALUES (TG_TABLE_NAME); RETURN NULL; END$$;
CREATE TABLE shop.customer (id int PRIMARY KEY, name text, tenant int NOT NULL, patron int);
CREATE TABLE shop.purchase (id int PRIMARY KEY, customer int, total numeric, state varchar(9));
CREATE TABLE shop.event (id int, day int, PRIMARY KEY (id, day)) PARTITION BY RANGE (day);
CREATE TABLE shop.event_1 PARTITION OF shop.event FOR VALUES FROM (0) TO (100);
INSERT INTO shop.customer SELECT n, 'name ' || n, n % 3, nullif(n / 2, 0) FROM generate_series(1, 90) n;
INSERT INTO shop.purchase SELECT n, n % 90 + 1, n, 'new' FROM generate_series(1, 300) n;
INSERT INTO shop.event SELECT n, n FROM generate_series(1, 50) n;
ALTER TABLE shop.purchase ADD CONSTRAINT buyer FOREIGN KEY (customer) REFERENCES shop.customer ON DELETE CASCADE;
CREATE TRIGGER heard AFTER INSERT OR DELETE ON shop.customer FOR EACH ROW EXECUTE FUNCTION shop.hear();
CREATE POLICY own ON shop.customer FOR SELECT TO {reader} USING (tenant = 1);
ALTER TABLE shop.customer ENABLE ROW LEVEL SECURITY;
COMMENT ON TABLE shop.customer IS 'who buys';
COMMENT ON POLICY own ON shop.customer IS 'of a tenant';
CREATE MATERIALIZED VIEW shop.totals AS SELECT customer, sum(total) AS total FROM shop.purchase GROUP BY customer;
CREATE MATERIALIZED VIEW shop.unfilled AS SELECT 1 AS one WITH NO DATA;
GRANT USAGE ON SCHEMA shop TO {reader};
GRANT SELECT ON shop.customer, shop.totals TO {reader};
"""

# Each is a round: what is run on the source between two replays.
ROUNDS = [
    ["INSERT INTO shop.customer VALUES (200, 'hidden', 2)", "DELETE FROM shop.customer WHERE id = 90"],
    ["ALTER TABLE shop.customer ADD CONSTRAINT its FOREIGN KEY (patron) REFERENCES shop.customer ON DELETE SET NULL"],
    ["CREATE TRIGGER late AFTER UPDATE ON shop.purchase FOR EACH ROW EXECUTE FUNCTION shop.hear()",
     "UPDATE shop.purchase SET total = total + 1"],
    ["ALTER TABLE shop.purchase ENABLE ROW LEVEL SECURITY",
     "CREATE POLICY newest ON shop.purchase TO {reader} USING (state IN ('new', 'paid') AND id < 100)",
     "INSERT INTO shop.purchase VALUES (900, 7, 1, 'secret')", "GRANT SELECT ON shop.purchase TO {reader}"],
    ["ALTER POLICY own ON shop.customer USING (tenant = 2)", "UPDATE shop.customer SET tenant = 2 WHERE id < 9"],
    ["ALTER TABLE shop.purchase DROP CONSTRAINT buyer", "ALTER TABLE shop.customer ALTER id TYPE bigint",
     "ALTER TABLE shop.purchase ADD CONSTRAINT buyer FOREIGN KEY (customer) REFERENCES shop.customer NOT DEFERRABLE"],
    ["COMMENT ON TABLE shop.customer IS 'another'", "COMMENT ON POLICY own ON shop.customer IS NULL",
     "COMMENT ON COLUMN shop.purchase.total IS 'in cents'", "COMMENT ON TRIGGER late ON shop.purchase IS 'it hears'"],
    ["ALTER TABLE shop.purchase DISABLE TRIGGER late", "ALTER TRIGGER heard ON shop.customer RENAME TO hears"],
    ["DROP TRIGGER late ON shop.purchase", "DROP TRIGGER hears ON shop.customer", "DROP FUNCTION shop.hear()"],
    ["DROP POLICY newest ON shop.purchase", "ALTER TABLE shop.purchase DROP COLUMN state",
     "ALTER TABLE shop.purchase DISABLE ROW LEVEL SECURITY"],
    ["REVOKE SELECT ON shop.customer FROM {reader}", "GRANT SELECT (id, name) ON shop.customer TO {reader}",
     "REFRESH MATERIALIZED VIEW shop.totals", "REFRESH MATERIALIZED VIEW shop.unfilled"],
    ["CREATE TABLE shop.more (id int PRIMARY KEY, customer bigint REFERENCES shop.customer ON DELETE CASCADE)",
     "ALTER TABLE shop.more ENABLE ROW LEVEL SECURITY", "GRANT SELECT ON shop.more TO {reader}",
     "INSERT INTO shop.more SELECT n, n FROM generate_series(10, 40) n",
     "CREATE MATERIALIZED VIEW shop.counted AS SELECT count(*) FROM shop.more",
     "GRANT SELECT ON shop.counted, shop.unfilled TO {reader}"],
    ["ALTER TABLE shop.customer RENAME TO client", "CREATE POLICY all_of_it ON shop.more USING (id > 20)"],
    ["DELETE FROM shop.purchase WHERE customer IN (11, 12)", "DELETE FROM shop.client WHERE id IN (11, 12)",
     "TRUNCATE shop.more",
     "CREATE TABLE shop.other (id int PRIMARY KEY)", "ALTER TABLE shop.more ADD o int REFERENCES shop.other",
     "DROP TABLE shop.other CASCADE"],
    ["CREATE FUNCTION shop.say() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'",
     "CREATE TRIGGER says AFTER INSERT ON shop.more FOR EACH ROW EXECUTE FUNCTION shop.say()",
     "CREATE POLICY by_o ON shop.more USING (o > 0)"],
    ["DROP FUNCTION shop.say() CASCADE", "ALTER TABLE shop.more DROP COLUMN o CASCADE"],
]  # fmt: skip

FACTS = """
SELECT 'policy ' || row(tablename, policyname, permissive, roles, cmd)::text
       || regexp_replace(qual, '[][()]|::text|::character varying', '', 'g')  -- after a dump it prints otherwise
FROM pg_policies
UNION ALL SELECT 'secured ' || oid::regclass || relforcerowsecurity FROM pg_class WHERE relrowsecurity
UNION ALL SELECT 'trigger ' || pg_get_triggerdef(oid) || tgenabled::text FROM pg_trigger
          WHERE NOT tgisinternal AND tgname NOT LIKE 'pgddl%'
UNION ALL SELECT 'key ' || conname || conrelid::regclass || replace(pg_get_constraintdef(oid), ' NOT VALID', '')
          FROM pg_constraint WHERE contype = 'f' AND connamespace = 'shop'::regnamespace
UNION ALL SELECT 'right ' || oid::regclass || a FROM pg_class, unnest(relacl) a
          WHERE relnamespace = 'shop'::regnamespace AND a::text !~ '^postgres='  -- which has more rights on 18
UNION ALL SELECT 'right ' || attrelid::regclass || attname || attacl::text FROM pg_attribute
          WHERE attacl IS NOT NULL AND attrelid >= 16384
UNION ALL SELECT 'told ' || pg_describe_object(classoid, objoid, objsubid) || description FROM pg_description
          WHERE objoid >= 16384 AND pg_describe_object(classoid, objoid, objsubid) !~ 'pgddl'
"""


@pytest.fixture
def reader(pg16: Cluster, pg18: Cluster) -> str:
    """A role of both that sees no more than it is shown."""
    name = f"finish_reader_{next(_numbers)}"
    for cluster in (pg16, pg18):
        do(cluster.conninfo(), f"CREATE ROLE {name}")
    return name


def facts(dsn: str) -> list[str]:
    with psycopg.connect(dsn) as conn:
        return sorted(row[0] for row in conn.execute(FACTS.encode()))


def seen(dsn: str, role: str, relation: str) -> Any:
    """What an ordinary role sees of it: rows, or why none."""
    with psycopg.connect(dsn) as conn:
        conn.execute(sql.SQL("SET ROLE {}").format(sql.Identifier(role)))
        try:
            return sorted(map(str, conn.execute(f"SELECT * FROM {relation}".encode()).fetchall()))
        except psycopg.Error as error:
            return error.sqlstate


RELATIONS = [
    f"shop.{name}" for name in ("customer", "client", "purchase", "more", "event", "totals", "unfilled", "counted")
]


def unlike(move: Lifecycle, reader: str) -> list[str]:
    """What is not the same on both sides: definitions, what the role sees, rows."""
    here, there = facts(move.target), facts(move.source)
    found = [f"too many: {fact}" for fact in here if fact not in there]
    found += [f"missing: {fact}" for fact in there if fact not in here]
    found += [f"seen: {r}" for r in RELATIONS if seen(move.target, reader, r) != seen(move.source, reader, r)]
    found += [f"rows: {d}" for d in map(str, differences(move.source, move.target)) if "heard" not in d]
    print(*found, sep="\n")
    return found


@pytest.fixture(params=matrix("change_log", "wal"))
def rows(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=matrix("queue", "wal"))
def ddl(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def followed(lifecycle: Make, source_dsn: str, target_dsn: str, reader: str, rows: str, ddl: str) -> Lifecycle:
    execute(source_dsn, SHOP.format(reader=reader))
    return lifecycle(
        source_dsn, target_dsn, tables={"include": ["shop.*"], "schema_only": ["log.heard"]},
        capture={"rows": rows, "ddl": ddl}, follow={"finish": True}, swap={"fence": "read_only"},
    )  # fmt: skip


def test_c35_all_of_it_arrives_changes_and_goes(followed: Lifecycle, reader: str) -> None:
    followed.run_all(until="replay")
    assert len(facts(followed.target)) == 8
    wrong: dict[str, Any] = {"at first": unlike(followed, reader)}
    for statements in ROUNDS:
        do(followed.source, *(statement.format(reader=reader) for statement in statements))
        result = followed.run("replay")
        wrong[statements[0]] = [*unlike(followed, reader), *result.blocked]
        assert one(followed.target, "SELECT count(*) FROM log.heard") == 0
    assert {statement: why for statement, why in wrong.items() if why} == {}
    followed.run_all(after="replay", until="swap")
    assert compare_catalogs(followed.source, followed.target, ["shop"]) == []


def test_c35_cascading_keys_under_random_writers(followed: Lifecycle, reader: str) -> None:
    followed.run_all(until="replay")
    seed = random.SystemRandom().getrandbits(32)
    print(f"seed {seed}")
    tables = [("shop", "customer"), ("shop", "purchase")]
    with TableWriters([followed.source], tables, rate=60, seed=seed) as writers:
        for _ in range(4):
            before = writers.notes.committed.total()
            wait_until(lambda before=before: writers.notes.failures or writers.notes.committed.total() > before + 30)
            assert followed.run("replay").blocked == []
    assert writers.notes.failures == []
    followed.run("replay")
    assert unlike(followed, reader) == []
    assert one(followed.target, "SELECT count(*) FROM log.heard") == 0


def test_c35_what_fires_for_replayed_rows_stays_away(followed: Lifecycle, capsys: pytest.CaptureFixture[str]) -> None:
    do(
        followed.source,
        "ALTER TABLE shop.customer ENABLE ALWAYS TRIGGER heard",
        "COMMENT ON TRIGGER heard ON shop.customer IS 'always'",
        "CREATE RULE kept AS ON DELETE TO shop.purchase DO INSTEAD NOTHING",
    )
    assert not followed.run_all(until="replay")["replay"].blocked
    assert "trigger heard stays on the source" in capsys.readouterr().out
    do(followed.source, "UPDATE shop.customer SET name = 'again' WHERE id < 20")
    assert not followed.run("replay").blocked
    assert one(followed.target, "SELECT count(*) FROM pg_trigger WHERE tgname = 'heard'") == 0
    assert one(followed.target, "SELECT count(*) FROM pg_rewrite WHERE rulename = 'kept'") == 0
    assert one(followed.target, "SELECT count(*) FROM pg_constraint WHERE conname = 'buyer'") == 1
    assert one(followed.target, "SELECT count(*) FROM log.heard") == 0


def test_c35_what_cannot_be_brought_is_told_and_nothing_comes_in_halves(followed: Lifecycle, reader: str) -> None:
    followed.run_all(until="replay")
    do(followed.target, "DROP TRIGGER heard ON shop.customer", "DROP FUNCTION shop.hear()")
    do(
        followed.source,
        "CREATE TRIGGER also AFTER UPDATE ON shop.purchase FOR EACH ROW EXECUTE FUNCTION shop.hear()",
        f"GRANT SELECT ON shop.purchase TO {reader}",
        "UPDATE shop.purchase SET total = 0 WHERE id < 9",
    )
    for _ in range(2):
        (blocked,) = followed.run("replay").blocked
        assert "shop.hear" in blocked["reason"]
        assert [d for d in map(str, differences(followed.source, followed.target)) if "heard" not in d] == []
        assert seen(followed.target, reader, "shop.purchase") == "42501"
    execute(followed.target, "CREATE FUNCTION shop.hear() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'")
    assert not followed.run("replay").blocked
    assert unlike(followed, reader) == []


def test_c35_a_table_that_is_stopped_keeps_what_it_has(followed: Lifecycle, reader: str) -> None:
    followed.run_all(until="replay")
    before = facts(followed.target)
    do(followed.target, "ALTER TABLE shop.customer ADD CONSTRAINT strict CHECK (id < 0) NOT VALID")
    do(followed.source, "UPDATE shop.customer SET name = 'x' WHERE id = 1", "COMMENT ON TABLE shop.purchase IS 'what'")
    assert {b["table"] for b in followed.run("replay").blocked} == {"shop.customer"}
    assert {*before} <= {*facts(followed.target)}
    do(followed.target, "ALTER TABLE shop.customer DROP CONSTRAINT strict")
    assert not followed.run("replay").blocked
    assert unlike(followed, reader) == []


def test_c35_a_reset_takes_it_back(followed: Lifecycle, reader: str) -> None:
    followed.run_all(until="replay")
    pipeline = load_pipeline(followed.content)
    stages.reset(pipeline, followed.source, followed.target, ["shop.customer"])
    followed.run_all(until="replay")
    assert unlike(followed, reader) == []
    stages.reset(pipeline, followed.source, followed.target)
    assert one(followed.target, "SELECT count(*) FROM pg_class WHERE relnamespace::regnamespace::text = 'shop'") == 0


def test_c35_a_role_under_which_it_would_fire_is_refused(
    lifecycle: Make, source_dsn: str, weak_target: str, reader: str
) -> None:
    execute(source_dsn, SHOP.format(reader=reader))
    move = lifecycle(source_dsn, weak_target, tables={"include": ["shop.*"]}, follow={"finish": True})
    said = str(move.refused("setup", PreflightRefused))
    assert "GRANT SET ON PARAMETER session_replication_role" in said
    assert "BYPASSRLS" in said
