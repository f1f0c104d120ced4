"""What verify's checksum tells apart: values that Postgres calls equal and are not the same, and values that changed
places."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from threading import Barrier
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg import sql
from psycopg.errors import QueryCanceled

from airflow_provider_pgddl.demo.clusters import Cluster
from airflow_provider_pgddl.engine.following.row_comparison import sides_of
from airflow_provider_pgddl.engine.journal.pipelines import Journal
from airflow_provider_pgddl.engine.model.plan import Plan, make_plan
from airflow_provider_pgddl.engine.model.ranges import Range
from airflow_provider_pgddl.engine.rights import as_owner
from airflow_provider_pgddl.engine.rows import range_checksums
from airflow_provider_pgddl.engine.rows.range_checksums import (
    NATIVE,
    SAMPLES,
    TEXT,
    Sides,
    compare_range,
    hashes_alike,
    value_hash,
)
from airflow_provider_pgddl.engine.server import catalog
from airflow_provider_pgddl.engine.server.connect import connect
from tests.conftest import Database, database_name
from tests.integration.lifecycle import Lifecycle, execute
from tests.integration.sessions import do

WHOLE = Range(0)
ENCODED = """
CREATE TYPE public.mood AS ENUM ('grün', 'rot');
CREATE TABLE public.t (
    k text PRIMARY KEY, short varchar(9), fixed char(4), doc jsonb, tags text[], feeling public.mood);
INSERT INTO public.t SELECT 'é' || i, 'ü', 'ö', '{"é": "à"}', '{é,ß}', 'grün' FROM generate_series(1, 30) i;
"""
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
    """Also where servers hash otherwise, and by text what both have in other encodings."""
    execute(source_dsn, SHAPE)
    job = lifecycle(source_dsn, target_dsn, tables={"include": ["public.t"]})
    assert unnoticed(job, Sides.across, partial(Sides.across, recoded=True)) == []


def test_a_text_is_the_same_in_another_encoding(
    pg16: Cluster, source_dsn: str, target_dsn: str, lifecycle: Callable[..., Lifecycle]
) -> None:
    name = sql.Identifier(database_name(source_dsn))
    again = sql.SQL("CREATE DATABASE {} TEMPLATE template0 ENCODING 'LATIN1' LOCALE 'C'").format(name)
    with connect(pg16.conninfo(), purpose="test") as admin:
        admin.execute(sql.SQL("DROP DATABASE {}").format(name))
        admin.execute(again)
    with connect(source_dsn, purpose="test") as made:
        made.execute(ENCODED)
    job = lifecycle(source_dsn, target_dsn, tables={"include": ["public.t"]})
    job.run_all(until="verify")
    with connect(job.source, purpose="test") as source, connect(job.target, purpose="test") as target:
        (table,) = Journal(target, job.name).tables.of(1)
        chosen = sides_of(source, target, [table], in_place=False)[table.id]
        assert chosen.native[1:3] == ("character varying", "bpchar")
        for change in ("tags = '{é,s}'", "short = 'U'", "fixed = 'o'", "doc = '{}'", "feeling = 'rot'", "k = 'e7'"):
            with target.transaction(force_rollback=True):
                target.execute(f"UPDATE public.t SET {change} WHERE k = 'é7'")
                for sides in (chosen, Sides.across(table.plan, recoded=True)):
                    differ = compare_range(source, target, sides, WHOLE).differ
                    assert len(differ) == 1 + change.startswith("k"), (change, differ)


WORDS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=30)
SECONDS = st.datetimes().map(str)
LONGS = st.integers(-(2**63), 2**63 - 1)
# As text; the samples alone of the other types.
VALUES = {
    "smallint": st.integers(-(2**15), 2**15 - 1).map(str), "integer": st.integers(-(2**31), 2**31 - 1).map(str),
    "bigint": (LONGS | st.integers(-9, 9).map(lambda n: n * 2**32)).map(str), "text": WORDS, "character varying": WORDS,
    "numeric": st.decimals().filter(lambda n: not n.is_nan() and abs(n.adjusted()) < 1000 if n.is_finite() else True)
    .map(str).filter(lambda n: "sNaN" not in n and "-NaN" not in n), "double precision": st.floats().map(str),
    "real": st.floats(width=32).map(str), "timestamp without time zone": SECONDS, "time without time zone":
    st.times().map(str), "timestamp with time zone": SECONDS, "bytea": st.binary().map(lambda b: "\\x" + b.hex()),
    "interval": st.tuples(*[st.integers(-999, 999)] * 3).map("{0[0]} mon {0[1]} days {0[2]} us".format),
    "uuid": st.uuids().map(str), "date": st.dates().map(str), "bigint[]": st.lists(LONGS).map(lambda n:
    "{" + ",".join(map(str, n)) + "}"),
}  # fmt: skip


@given(st.data())
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_both_servers_hash_a_value_alike_and_no_other_so(source_dsn: str, target_dsn: str, data: st.DataObject) -> None:
    with connect(source_dsn, purpose="test") as old, connect(target_dsn, purpose="test") as new:
        assert SAMPLES.keys() == NATIVE.keys() | TEXT.keys() and hashes_alike(old, new)
        for type_, samples in SAMPLES.items():
            values = [*samples, *data.draw(st.lists(VALUES.get(type_, st.sampled_from(samples)), max_size=40))]
            query = sql.SQL("SELECT ROW(v)::text, {} FROM (SELECT s::{} AS v FROM unnest({}::text[]) s) v").format(
                value_hash(type_, sql.Identifier("v")), sql.SQL(type_), sql.Literal([None, *values])
            )
            found = old.execute(query).fetchall()
            assert found == new.execute(query).fetchall()
            assert len(set(found)) == len({text for text, _ in found}) == len({hash_ for _, hash_ in found}), type_


def test_a_nan_is_the_same_whatever_its_bits(
    source_dsn: str, target_dsn: str, lifecycle: Callable[..., Lifecycle]
) -> None:
    """A table with a column that has no binary form travels as text, which says of a NaN that it is one."""
    execute(
        source_dsn,
        "CREATE TABLE t (id int PRIMARY KEY, long float8, short real, what regclass);"
        "INSERT INTO t VALUES (1, 'NaN', 'NaN', 't'), (2, -'NaN'::float8, -'NaN'::float4, 't'),"
        " (3, 'inf'::float8 - 'inf'::float8, 'inf'::float4 - 'inf'::float4, 't'), (4, '-0', '-0', 't')",
    )
    job = lifecycle(source_dsn, target_dsn, tables={"include": ["public.t"]})
    job.run_all(until="verify")
    bits = "SELECT count(DISTINCT float8send(long)) > 2 FROM t"
    assert job.on_source(bits) == [(True,)] and job.journal(bits) == [(False,)], "what travels is not the bits"


def test_both_sides_are_read_at_once_and_neither_goes_on_alone(
    source_dsn: str, target_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for dsn in (source_dsn, target_dsn):
        execute(dsn, "CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
    both, fetch = Barrier(2, timeout=60), as_owner.fetch

    def together(*args: Any) -> list[tuple[Any, ...]]:
        both.wait()
        return fetch(*args)

    monkeypatch.setattr(as_owner, "fetch", together)
    with connect(source_dsn, purpose="test") as source, connect(target_dsn, purpose="test") as copy:
        (table,) = catalog.describe_all(source).values()
        sides = Sides.across(make_plan(table, copy_schema="public"))
        assert compare_range(source, copy, sides, WHOLE).rows == 1
        monkeypatch.setitem(
            range_checksums._Q, "sum", "SELECT count(*), pg_catalog.pg_sleep(600)::text FROM {relation}{where}"
        )
        source.execute("SET statement_timeout = '300ms'")
        with pytest.raises(QueryCanceled):
            compare_range(source, copy, sides, WHOLE)


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


def unnoticed(job: Lifecycle, *others: Callable[[Plan], Sides]) -> list[str]:
    """The changes of SUBTLE to the copy that are not found, and without any it is equal: as verify compares, and in
    `others`."""
    job.run_all(until="verify")
    found = []
    with connect(job.source, purpose="test") as source, connect(job.target, purpose="test") as target:
        (table,) = Journal(target, job.name).tables.of(1)
        chosen = sides_of(source, target, [table], in_place=job.source == job.target)[table.id]
        assert "numeric" in chosen.native
        for sides in (chosen, *(of(table.plan) for of in others)):
            assert not compare_range(source, target, sides, WHOLE).differ
            for change in SUBTLE:
                with target.transaction(force_rollback=True):
                    rows = target.execute(sql.SQL("UPDATE {} SET {}").format(table.plan.copy, sql.SQL(change))).rowcount
                    differ = compare_range(source, target, sides, WHOLE).differ
                if len(differ) != rows:
                    found.append(f"{change}: {differ}")
    return found
