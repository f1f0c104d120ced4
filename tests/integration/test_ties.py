"""Foreign keys of copies are found by indexes alone, and all of them are."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest

from airflow_provider_pgddl.demo.clusters import Cluster
from airflow_provider_pgddl.engine.rows import foreign_keys_and_triggers
from airflow_provider_pgddl.engine.server.connect import Session, connect, plans_kept
from airflow_provider_pgddl.engine.sql import queries
from tests.integration.lifecycle import execute

KEYS = """
CREATE TABLE plain (id int PRIMARY KEY, other int UNIQUE DEFERRABLE, self int REFERENCES plain);
CREATE TABLE child (id int PRIMARY KEY, a int REFERENCES plain ON DELETE CASCADE, b int CONSTRAINT late REFERENCES plain
                    DEFERRABLE INITIALLY DEFERRED, c int);
ALTER TABLE child ADD CONSTRAINT not_valid FOREIGN KEY (c) REFERENCES plain NOT VALID;
CREATE TABLE parted (id int PRIMARY KEY, a int REFERENCES plain ON DELETE SET NULL) PARTITION BY RANGE (id);
CREATE TABLE part_1 PARTITION OF parted FOR VALUES FROM (0) TO (10);
CREATE TABLE part_2 PARTITION OF parted FOR VALUES FROM (10) TO (30) PARTITION BY RANGE (id);
CREATE TABLE part_2a PARTITION OF part_2 FOR VALUES FROM (10) TO (20);
CREATE TABLE to_parted (id int PRIMARY KEY, a int REFERENCES parted ON DELETE CASCADE);
CREATE TABLE to_part (id int PRIMARY KEY, a int REFERENCES part_1, b int REFERENCES part_2a, c int REFERENCES part_2);
CREATE TABLE both_parted (id int PRIMARY KEY, a int REFERENCES parted) PARTITION BY HASH (id);
CREATE TABLE both_parted_0 PARTITION OF both_parted FOR VALUES WITH (MODULUS 2, REMAINDER 0);
ALTER TABLE both_parted_0 ADD CONSTRAINT of_a_part FOREIGN KEY (id) REFERENCES plain;
CREATE TABLE attached (LIKE both_parted INCLUDING ALL);
ALTER TABLE attached ADD FOREIGN KEY (a) REFERENCES parted;
ALTER TABLE both_parted ATTACH PARTITION attached FOR VALUES WITH (MODULUS 2, REMAINDER 1);
ALTER TABLE child DISABLE TRIGGER ALL;
ALTER TABLE plain DISABLE TRIGGER ALL;
CREATE TABLE nobodys (id int PRIMARY KEY);
"""
# By the catalog of constraints, which has to be read whole for it.
ALL = """
WITH RECURSIVE mine AS (
    SELECT p.relid FROM unnest(%(names)s::text[]) n CROSS JOIN LATERAL (
        SELECT n::regclass::oid AS relid UNION SELECT t.relid FROM pg_partition_tree(n::regclass) t) p)
SELECT conname::text, conrelid::regclass::text, confrelid::regclass::text FROM pg_constraint
WHERE contype = 'f' AND conparentid = 0
  AND (conrelid IN (SELECT relid FROM mine) OR confrelid IN (SELECT relid FROM mine)) ORDER BY oid
"""
TABLES = ["plain", "child", "parted", "part_1", "part_2", "part_2a", "to_parted", "to_part", "both_parted",
          "both_parted_0", "attached", "nobodys"]  # fmt: skip
WHOLE = ["plain", "child", "parted", "to_parted", "to_part", "both_parted", "nobodys"]


def found(conn: Session, names: list[str]) -> list[tuple[str, str, str]]:
    keys = foreign_keys_and_triggers.read_ties(conn, {n: ("public", name) for n, name in enumerate(names)}).keys
    return [(k.name, k.child_table[1], k.parent_table[1]) for k in keys]


@pytest.mark.parametrize("version", [15, 16, 18])
def test_each_foreign_key_from_or_to_a_table_is_found(
    request: pytest.FixtureRequest, database: Callable[..., str], version: int
) -> None:
    dsn = database(request.getfixturevalue(f"pg{version}"))
    execute(dsn, KEYS)
    with psycopg.connect(dsn) as conn, connect(dsn, purpose="test") as session:
        for names in ([name] for name in TABLES):
            assert found(session, names) == conn.execute(ALL, {"names": names}).fetchall(), names
        assert found(session, WHOLE) == conn.execute(ALL, {"names": WHOLE}).fetchall()


def test_they_are_looked_for_in_no_more_than_the_tables_own(pg18: Cluster, database: Callable[..., str]) -> None:
    dsn = database(pg18)
    execute(dsn, KEYS)
    execute(dsn, "".join(f"CREATE TABLE more_{n} (id int PRIMARY KEY REFERENCES plain);" for n in range(300)))
    with connect(dsn, purpose="test") as session:
        args = {"ids": [1], "schemas": ["public"], "names": ["nobodys"]}
        query = "EXPLAIN (ANALYZE, FORMAT TEXT) " + queries("foreign_keys_and_triggers")["foreign_keys"]
        with plans_kept(session):
            plan = "\n".join(line for (line,) in session.execute(query, args))  # type: ignore[arg-type]
    print(plan)
    assert "Seq Scan on pg_constraint" not in plan
    assert "Seq Scan on pg_trigger" not in plan
