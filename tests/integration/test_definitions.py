"""Definitions that a restore prints otherwise are the same, and others are not (C31)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from airflow_provider_pgddl.demo.clusters import Cluster
from airflow_provider_pgddl.demo.compare import differences
from airflow_provider_pgddl.engine.ddl.events import DdlEvent, events_from_dump
from airflow_provider_pgddl.engine.schema.compatibility import compare_tables
from airflow_provider_pgddl.engine.schema.definitions import same_expression, statement_tree
from airflow_provider_pgddl.engine.server import schema_reading
from airflow_provider_pgddl.engine.server.connect import connect
from airflow_provider_pgddl.engine.server.pg_dump import dump_schema
from tests.conftest import Database
from tests.integration.lifecycle import Lifecycle
from tests.integration.sessions import do, one

KINDS = Path(__file__).with_name("definitions.sql")

# Over the columns of s.t.
EXPRESSIONS = r"""
s IN ('a', 'b')
s NOT IN ('a', 'b')
s = ANY (ARRAY['a', 'b'])
s = ANY (ARRAY['a', 'b']::varchar(3)[])
s = ANY ('{a,b}'::varchar[])
s = ANY ('{a,b}')
s IN ('a', 'b') AND c IN ('x', 'y') AND i > 3
i > 3 AND s IN ('a', 'b') OR i < 1 OR b IN (1, 2)
i BETWEEN 1 AND 5 AND b > 3
b > 3 AND i BETWEEN 1 AND 5
i NOT BETWEEN 1 AND 5 OR i BETWEEN SYMMETRIC 7 AND 8 OR bo
(i > 1 AND (i < 5 AND b > 3)) AND si = 3
(i > 1 OR (i < 5 OR b > 3)) OR si = 3
NOT (i > 1 OR NOT (bo))
c IN ('a', 'b ')
c = 'a' OR c <> s
n IN (1, 2.5) OR n > -1 OR n = 1e3 OR n = -1.50
b IN (1, 2) OR b = 9223372036854775807 OR b > -5
si IN (1, -2)
f > 0.5 OR f IN (1, 2.5) OR r = 0.1
f = 'NaN' OR f > '-Infinity'
d > '2020-01-01' OR d IN ('2020-01-01', '2021-01-01')
ts > '2020-01-01 00:00:00+00' AND tm < '2020-01-01'
ts AT TIME ZONE 'UTC' > '2020-01-01'::timestamp
tm AT TIME ZONE 'UTC' > '2020-01-01 00:00+00'::timestamptz
extract(year FROM d) > 2000 AND date_part('month', tm) < 13
date_trunc('day', tm) = tm
d + interval '1 day' > '2020-01-01' AND d - 1 < '2020-01-01'
iv > interval '1 day 2 hours' OR iv = interval '1' year OR iv = '1'::interval(3)
j @> '{"a": 1}' AND j ->> 'a' IN ('x', 'y')
(j ->> 'a')::int > 3 AND (j -> 'a' ->> 0)::varchar(3) IN ('a', 'b')
a <@ ARRAY['a', 'b']::varchar[] AND a[1] IN ('a', 'b')
a && ARRAY['a', 'b']::varchar(3)[] AND array_length(a, 1) > 0 AND 'a' = ANY (a)
a = ARRAY[]::varchar[] OR a <> '{}' OR a = ARRAY['x'::varchar]
ARRAY[s, 'b'] = a OR ARRAY[s]::text[] = ARRAY['a', 'b']
ARRAY[ARRAY[s, 'a'], ARRAY['x', 'b']]::text[] = '{{a,b}}'::text[]
ARRAY[i, 2]::bigint[] @> ARRAY[b] OR ARRAY[1, 2.5, i] <> '{}'
m IN ('a', 'b') OR m = 'c'
m::text IN ('a', 'b')
s.f(s, ARRAY['a', 'b']) AND s.f(s::varchar, ARRAY['a', s]::varchar[])
s.f(x, (ARRAY['a', s])::varchar(4)[])
s LIKE 'a%' OR s ILIKE 'b_' OR x NOT LIKE 'a\_%' ESCAPE '\'
s ~ '^a' AND x !~* 'b$' AND s SIMILAR TO '(a|b)%'
x SIMILAR TO 'a#%' ESCAPE '#'
upper(s) IN ('A', 'B') AND length(c) = 3 AND s || 'x' <> x
substring(s FROM 1 FOR 2) = 'ab' AND position('a' IN s) > 0 AND trim(both 'x' FROM s) <> ''
overlay(x PLACING 'a' FROM 1) = 'a'
coalesce(s, 'a') = 'a' AND nullif(s, 'b') IS NULL AND greatest(s, x) <> least(s, 'a')
CASE s WHEN 'a' THEN true WHEN 'b' THEN bo ELSE i > 3 END
CASE WHEN s IN ('a', 'b') THEN i WHEN s = 'c' THEN 3 END > 2
(s, i) = ('a', 1) AND b > 3
(s, i) IN (('a', 1), ('b', 2))
(s, i) <> ('a', 1) OR (i, b) < (1, 2)
ROW(s, i) IS NOT NULL AND p IS DISTINCT FROM ROW(1, 'a')::s.pair AND (p).x > 1
(p).y IN ('a', 'b')
s IS NOT DISTINCT FROM 'a' AND bo IS NOT TRUE AND bo IS UNKNOWN
u = 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11' OR u IN (u, 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a12')
nm IN ('a', 'b') OR nm = s
ch IN ('a', 'b') OR ch = 'c'
dom IN ('a', 'b') AND dom <> 'c'
x COLLATE "C" < 'a' COLLATE "C" AND s COLLATE "C" IN ('a', 'b')
y = '\x00ff' OR y IN ('\x00', '\x01')
r4 @> 3 AND r4 <@ '[1,10)' AND lower(r4) IN (1, 2)
bi = B'101' OR vb IN (B'1', B'11') OR bi = X'5'::bit(3)
o IN (1, 2) OR o = 3
i::text IN ('1', '2') AND i::varchar(3) IN ('1', '2') AND i::char(2) IN ('1', '2')
s::char(3) IN ('a', 'b') AND s::varchar(2) IN ('a', 'b') AND s::text IN ('a', 'b')
i # 3 > 1 AND i & 3 > 0 AND (~ i) < 3 AND - i < 3 AND @ i > 0 AND |/ f > 2
i % 2 = 0 AND i / 2 * 3 - 1 > 0 AND 2 ^ i > 4 AND (i - (b - 3)) > 0
x IS NOT NULL AND (i IS NULL) = (s IS NULL)
x IS NORMALIZED AND normalize(x) = x
s < ALL (ARRAY['a', 'b']) OR s > ANY (ARRAY['x', s])
s IN ('a') OR s IN ('a', x) OR x IN (s, 'b')
s IN (c, 'b')
CAST(ARRAY[s, 'b'] AS text[]) = ARRAY['a'::text]
i IN (1, b) OR b IN (i, 3)
concat(s, i) = 'a1' AND format('%s', s) = 'a' AND num_nulls(s, i) < 2
s IN ('a', 'b') IS TRUE
i = 1 AND (b = 2 OR s IN ('a', 'b')) AND (i = 3 OR i = 4 OR (i = 5 OR i = 6))
(bo AND i > 1) AND (bo OR i < 3) AND (NOT bo)
t.s IN ('a', 'b') AND t.i > 1
xmlexists('/a' PASSING (x::xml))
"""

# Not in a generated column: what is not immutable, or names the table.
ELSEWHERE = ("concat(", "m::text", "xmlexists", "t.s IN")


def make(dsn: str) -> None:
    expressions = EXPRESSIONS.strip().splitlines()
    generated = [
        f"ADD g{n} bool GENERATED ALWAYS AS ({e}) STORED"
        for n, e in enumerate(expressions)
        if not any(word in e for word in ELSEWHERE)
    ]
    do(
        dsn,
        KINDS.read_text(encoding="utf-8"),
        f"ALTER TABLE s.t {', '.join(f'ADD CHECK ({e})' for e in expressions)}",
        f"CREATE VIEW s.every AS SELECT {', '.join(f'({e}) AS e{n}' for n, e in enumerate(expressions))} FROM s.t",
        "CREATE TABLE s.g AS SELECT * FROM s.t",
        f"ALTER TABLE s.g {', '.join(generated)}",
    )


def dumped(dsn: str, major: int) -> list[DdlEvent]:
    pre, post = (dump_schema(dsn, major, section=section) for section in ("pre-data", "post-data"))
    return [event for event in events_from_dump(pre, post) if event.phase != "noise"]


@pytest.fixture(scope="module")
def clusters(pg15: Cluster, pg16: Cluster, pg18: Cluster) -> dict[int, Cluster]:
    return {15: pg15, 16: pg16, 18: pg18}


@pytest.mark.parametrize("major", [15, 16, 18])
def test_what_a_restore_prints_otherwise_is_the_same(
    clusters: dict[int, Cluster], database: Database, major: int
) -> None:
    source = database(clusters[major])
    make(source)
    events = dumped(source, major)
    statements = Counter(statement_tree(event.statement) for event in events)
    for there, cluster in clusters.items():
        target = database(cluster)
        with psycopg.connect(target) as conn:
            for event in events:
                conn.execute(event.statement.encode())
        again = dumped(target, there)
        assert [e.statement for e in again if not statements[statement_tree(e.statement)]] == []
        assert Counter(statement_tree(event.statement) for event in again) == statements
        with connect(source, purpose="test") as one_side, connect(target, purpose="test") as other:
            names = [("s", name) for name in ("t", "g", "partition", "excluding")]
            before, after = schema_reading.read(one_side, names), schema_reading.read(other, names)
        for name in names:
            assert compare_tables(before.tables[name], after.tables[name], after.types, names=(name, name)) == []


T = "(ARRAY['a'::varchar, 'b'::varchar])::text[]"

OTHERS = [
    (T, "ARRAY[('a'::varchar)::text, ('c'::varchar)::text]"),
    (T, "ARRAY['a'::varchar, 'b'::varchar]"),
    (T, "ARRAY[('a'::varchar)::bpchar, ('b'::varchar)::bpchar]"),
    (T, "(ARRAY['a'::varchar(1), 'b'::varchar(1)])::text[]"),
    ("(ARRAY[x])::varchar(3)[]", "(ARRAY[x])::varchar(4)[]"),
    ("(ARRAY[])::text[]", "(ARRAY[])::varchar[]"),
    ("a AND (b OR c)", "(a AND b) OR c"),
]
OTHER_VIEWS = [
    ("SELECT t.id FROM t, u", "SELECT id FROM t, u"),
    ("SELECT t.id FROM t", "SELECT u.id FROM t"),
    ("SELECT t.id, (SELECT t.id FROM u) FROM t", "SELECT t.id, (SELECT id FROM u) FROM t"),
    ("SELECT t.a AS b, t.b AS a FROM t ORDER BY t.a", "SELECT t.a AS b, t.b AS a FROM t ORDER BY a"),
    ("SELECT t.* FROM t", "SELECT t FROM t"),
]


def test_what_says_something_else_is_not_the_same() -> None:
    assert [pair for pair in OTHERS if same_expression(*pair, {})] == []
    views = [(f"CREATE VIEW v AS {one}", f"CREATE VIEW v AS {other}") for one, other in OTHER_VIEWS]
    assert [pair for pair in views if statement_tree(pair[0]) == statement_tree(pair[1])] == []


IN_LISTS = """
    CREATE TABLE chk (id int PRIMARY KEY, s varchar(9) CHECK (s IN ('a', 'b')));
    CREATE TABLE gen (id int PRIMARY KEY, s varchar(9), g bool GENERATED ALWAYS AS (s IN ('a', 'b')) STORED);
    CREATE DOMAIN dm AS varchar(5) CHECK (VALUE IN ('a', 'b'));
    CREATE TABLE dom (id int PRIMARY KEY, d dm DEFAULT CASE WHEN 'a'::varchar IN ('a', 'b') THEN 'a' END);
    CREATE TABLE partial (id int PRIMARY KEY, s varchar(9));
    CREATE UNIQUE INDEX one_of ON partial (id) WHERE s IN ('a', 'b');
    CREATE STATISTICS many ON (s IN ('a', 'b')), id FROM partial;
    INSERT INTO chk VALUES (1, 'a'); INSERT INTO gen VALUES (1, 'b'); INSERT INTO dom VALUES (1, 'b');
    INSERT INTO partial VALUES (1, 'a')
"""


@pytest.mark.parametrize("in_place", [False, True])
def test_a_table_with_an_in_list_is_moved_by_default(
    source_dsn: str, target_dsn: str, lifecycle: Callable[..., Lifecycle], in_place: bool
) -> None:
    do(source_dsn, IN_LISTS)
    tables = ("chk", "gen", "dom", "partial")
    if in_place:
        move = lifecycle(source_dsn, rewrite={f"public.{name}": {} for name in tables}, backfill={"workers": 1})
    else:
        move = lifecycle(source_dsn, target_dsn, tables={"include": ["public.*"]}, backfill={"workers": 1})
    move.run_all(until="verify")
    oid = "SELECT '{}'::regclass::oid"
    built = one(move.target, oid.format("pgddl_copy_public.one_of" if in_place else "one_of"))
    do(source_dsn, "SET pgddl.skip = on", "ALTER INDEX one_of RENAME TO renamed")  # which the swap finds in its dump
    move.run("swap")
    assert one(move.target, oid.format("renamed")) == built
    assert in_place or differences(move.source, move.target) == []
