"""What verify's checksum tells apart: values that Postgres calls equal and are not the same, and values that changed
places."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from psycopg import sql

from airflow_provider_pgddl.demo.clusters import Cluster
from airflow_provider_pgddl.engine.following.row_comparison import sides_of
from airflow_provider_pgddl.engine.journal.pipelines import Journal
from airflow_provider_pgddl.engine.model.ranges import Range
from airflow_provider_pgddl.engine.rows.range_checksums import compare_range
from airflow_provider_pgddl.engine.server.connect import connect
from tests.conftest import Database
from tests.integration.lifecycle import Lifecycle, execute
from tests.integration.sessions import do

WHOLE = Range(0)
SHAPE = """
CREATE TYPE mood AS ENUM ('sad', 'happy');
CREATE DOMAIN label AS text;
CREATE TABLE t (
    id int PRIMARY KEY, small smallint, whole int, long bigint, number numeric, half real, float double precision,
    rate numeric(9, 2), flag boolean, code uuid, day date, at timestamp(3), seen timestamptz, span interval,
    clock timetz, note text, short varchar(20), fixed char(8), loose bpchar, raw bytea, doc jsonb, plain json,
    tags text[], words label, feeling mood, bits bit(4), place point, host inet, both_sides int4range, oddly "char",
    called name);
INSERT INTO t SELECT i, i, i, i, i / 10.0, i, i, i / 10.0, i % 2 = 0, md5(i::text)::uuid, date '2020-01-01' + i,
    timestamp '2020-01-01' + i * interval '1 hour', timestamptz '2020-01-01 UTC' + i * interval '1 hour',
    i * interval '1 day', '12:00+00', 'note ' || i, 'short ' || i, 'f' || i, 'l' || i, decode(md5(i::text), 'hex'),
    jsonb_build_object('n', i), json_build_object('n', i), ARRAY['a', i::text], 'word ' || i, 'happy', '0101',
    point(i, i), '10.0.0.1', int4range(i, i + 3), 'x', 'n' || i
FROM generate_series(1, 50) i;
INSERT INTO t (id) VALUES (51);
INSERT INTO t SELECT 52, 0, 0, 5, 1.0, 0, 0, 0, false, code, day, at, seen, '1 month', clock, 'a', '', '', 'a', '',
    '{"n": 1.0}', '{"n":1}', '{}', '', 'sad', '0000', '(0,0)', host, 'empty', '', '' FROM t WHERE id = 1;
INSERT INTO t (id, long) VALUES (53, -1), (54, 1);
UPDATE t SET at = '1999-12-31 23:59:59', seen = '1999-12-31 23:59:59.999999 UTC' WHERE id = 53;
"""

# What is written over one row, or what is made of two.
SUBTLE = [
    "number = 1.00 WHERE id = 52", "half = '-0' WHERE id = 52", "float = '-0' WHERE id = 52",
    "span = '30 days' WHERE id = 52", "doc = '{\"n\": 1.00}' WHERE id = 52", "plain = '{\"n\": 1}' WHERE id = 52",
    "loose = 'a ' WHERE id = 52", "clock = '13:00+01' WHERE id = 1", "tags = '[0:1]={a,1}' WHERE id = 1",
    "note = 'A' WHERE id = 52", "note = '' WHERE id = 51", "raw = '' WHERE id = 51", "tags = '{}' WHERE id = 51",
    "words = '' WHERE id = 51", "flag = false WHERE id = 51", "small = 0 WHERE id = 51", "long = 0 WHERE id = 51",
    "called = '' WHERE id = 51", "oddly = '' WHERE id = 51", "both_sides = 'empty' WHERE id = 51",
    "whole = whole + 1 WHERE id = 7", "at = at + interval '1 ms' WHERE id = 7", "feeling = 'sad' WHERE id = 7",
    "seen = seen + interval '1 us' WHERE id = 7", "place = '(7,8)' WHERE id = 7", "bits = '1101' WHERE id = 7",
    "whole = 59 - id WHERE id IN (29, 30)", "note = 'note ' || 59 - id WHERE id IN (29, 30)",
    "number = (59 - id) / 10.0 WHERE id IN (29, 30)", "rate = (59 - id) / 10.0 WHERE id IN (29, 30)",
    "span = (59 - id) * interval '1 day' WHERE id IN (29, 30)", "float = 59 - id WHERE id IN (29, 30)",
    "half = 59 - id WHERE id IN (29, 30)", "number = 'NaN' WHERE id = 7", "float = 'NaN' WHERE id = 7",
    "rate = rate + 0.01 WHERE id = 7", "span = '24:00' WHERE id = 1", "number = 0 WHERE id = 51",
    "float = '5e-324' WHERE id = 52", "number = number + 1e-300 WHERE id = 7",
    "whole = whole + CASE id WHEN 8 THEN 1 ELSE -1 END WHERE id IN (8, 9)",
    "long = long + 4294967296 WHERE id = 53", "long = 4294967295 WHERE id = 53", "long = 4294967296 WHERE id = 54",
    "at = at + interval '4294967.296 s' WHERE id = 53", "at = at - interval '4294967.297 s' WHERE id = 7",
    "seen = seen + interval '4294967296 us' WHERE id = 53", "seen = seen - interval '4294967297 us' WHERE id = 7",
    "small = long, long = small WHERE id = 52", "whole = -1, long = long + 31 * (whole + 1) WHERE id = 11",
]  # fmt: skip


NOCASE = [
    "CREATE COLLATION nocase (provider = icu, locale = 'und-u-ks-level2', deterministic = false)",
    "ALTER TABLE t ALTER note TYPE text COLLATE nocase",
]


def test_whatever_is_not_the_same_is_found_in_place(source_dsn: str, lifecycle: Callable[..., Lifecycle]) -> None:
    execute(source_dsn, SHAPE)
    assert unnoticed(lifecycle(source_dsn, rewrite={"public.t": {"alter": ["ALTER id TYPE bigint"]}})) == []


def test_and_across_clusters(source_dsn: str, target_dsn: str, lifecycle: Callable[..., Lifecycle]) -> None:
    execute(source_dsn, SHAPE)
    assert unnoticed(lifecycle(source_dsn, target_dsn, tables={"include": ["public.t"]})) == []


def test_text_that_its_collation_calls_equal_is_told_apart(
    pg15: Cluster, database: Database, lifecycle: Callable[..., Lifecycle]
) -> None:
    dsn = database(pg15)
    execute(dsn, SHAPE)
    do(dsn, *NOCASE)
    assert unnoticed(lifecycle(dsn, rewrite={"public.t": {}})) == []


@pytest.mark.parametrize(
    "alter",
    ["note TYPE text USING whole", "long TYPE bigint USING number", "day TYPE date USING '2020-01-01'",
     "long TYPE bigint USING '7'", "short TYPE varchar(20) USING whole", "number TYPE numeric(9, 2) USING float"],
)  # fmt: skip
def test_a_value_may_be_given_by_an_expression_of_another_type(
    source_dsn: str, lifecycle: Callable[..., Lifecycle], alter: str
) -> None:
    execute(source_dsn, SHAPE)
    job = lifecycle(source_dsn, rewrite={"public.t": {"alter": [f"ALTER {alter}"]}})
    job.run_all(until="verify")


def unnoticed(job: Lifecycle) -> list[str]:
    """The changes of SUBTLE to the copy that are not found; and without any it is equal."""
    job.run_all(until="verify")
    found = []
    with connect(job.source, purpose="test") as source, connect(job.target, purpose="test") as target:
        (table,) = Journal(target, job.name).tables.of(1)
        sides = sides_of(target, [table], in_place=job.source == job.target)[table.id]
        assert not compare_range(source, target, sides, WHOLE).differ
        for change in SUBTLE:
            with target.transaction(force_rollback=True):
                rows = target.execute(sql.SQL("UPDATE {} SET {}").format(table.plan.copy, sql.SQL(change))).rowcount
                differ = compare_range(source, target, sides, WHOLE).differ
            if len(differ) != rows:
                found.append(f"{change}: {differ}")
    return found
