"""The ranges in which a copy is compared: about as large as asked for, over as much of the key as it takes, and cut
where they take too long."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import pairwise

import psycopg
import pytest
from psycopg import sql

from airflow_provider_pgddl.demo.clusters import Cluster
from airflow_provider_pgddl.demo.compare import differences
from airflow_provider_pgddl.engine.errors import StageFailed
from airflow_provider_pgddl.engine.following import row_comparison
from airflow_provider_pgddl.engine.journal.pipelines import Journal
from airflow_provider_pgddl.engine.journal.tables import TableRow
from airflow_provider_pgddl.engine.model.ranges import Range
from airflow_provider_pgddl.engine.rows import range_checksums, ranges, timed_comparison
from airflow_provider_pgddl.engine.rows.range_checksums import RangeCompared, Sides
from airflow_provider_pgddl.engine.server.connect import Session, connect
from tests.conftest import Database, database_name
from tests.integration.lifecycle import Lifecycle, execute
from tests.integration.sessions import Underway, one

Make = Callable[..., Lifecycle]
Todo = Sequence[tuple[Range, Sides]]

ROWS = 40_000
PARTS = """
CREATE TABLE t (id int PRIMARY KEY, body text) PARTITION BY HASH (id);
CREATE TABLE t_0 PARTITION OF t FOR VALUES WITH (MODULUS 2, REMAINDER 0);
CREATE TABLE t_1 PARTITION OF t FOR VALUES WITH (MODULUS 2, REMAINDER 1);
"""
PLAIN = "CREATE TABLE t (id int PRIMARY KEY, body text);"
SMALL = {"chunk_bytes": "16kB", "workers": 1}  # a range is as short as it may be
IN_A_RANGE = ranges.FEWEST_ROWS


@contextmanager
def both(move: Lifecycle) -> Iterator[tuple[Session, Session, TableRow]]:
    """Sessions on source and copy, and the pipeline's only table."""
    with connect(move.source, purpose="test") as source, connect(move.target, purpose="test") as target:
        (table,) = Journal(target, move.name).tables.of(1)
        yield source, target, table


def bounds(source: Session, target: Session, table: TableRow, rows: int) -> list[Range]:
    (size,) = ranges.sizes(target, [table.plan])
    cuts = ranges.boundaries(source, target, table.plan, size, rows)
    return [Range(n, low, high) for n, (low, high) in enumerate(pairwise([None, *cuts, None]))]


def counted(session: Session, table: TableRow, relation: sql.Composable, some: list[Range]) -> list[int]:
    """Rows of each range, as a session sees it."""
    query = sql.SQL("SELECT count(*) FROM {}{}")
    found = [session.execute(query.format(relation, ranges.where(table.plan, r))).fetchone() for r in some]
    return [row[0] for row in found if row]


@pytest.mark.parametrize("sampled", [500, ROWS])
@pytest.mark.parametrize("table", [PLAIN, PARTS], ids=["plain", "partitioned"])
@pytest.mark.parametrize("analyzed", [True, False])
def test_ranges_are_about_as_large_as_asked_for(
    source_dsn: str,
    target_dsn: str,
    lifecycle: Make,
    monkeypatch: pytest.MonkeyPatch,
    table: str,
    sampled: int,
    analyzed: bool,
) -> None:
    monkeypatch.setattr(ranges, "SAMPLED", sampled)
    monkeypatch.setattr(ranges, "SAMPLED_OF_A_RANGE", 20)
    execute(source_dsn, table + f"INSERT INTO t SELECT i, repeat('x', 200) FROM generate_series(1, {ROWS}) i")
    move = lifecycle(source_dsn, target_dsn, tables={"include": ["public.t"]})
    move.run_all(until="schema_sync")
    if not analyzed:
        execute(target_dsn, "TRUNCATE t")
        execute(target_dsn, f"INSERT INTO t SELECT i, repeat('x', 200) FROM generate_series(1, {ROWS}) i")
    with both(move) as (source, target, of):
        (size,) = ranges.sizes(target, [of.plan])
        cuts = [int(cut) for (cut,) in ranges.boundaries(source, target, of.plan, size, 4000)]
    assert size.whole > size.bytes > ROWS * 200
    assert size.rows > 0 or not analyzed  # an autovacuum may have come
    edges = [1, *cuts, ROWS + 1]
    assert edges == sorted(set(edges))
    if sampled == ROWS or size.rows <= 0:
        assert [b - a for a, b in pairwise(edges)] == [4000] * 10
    else:
        # Pages are sampled as a whole, so a range is larger or smaller by a few of them.
        assert 4 <= len(cuts) <= 20


def test_rows_of_a_chunk_are_counted_with_their_toast(source_dsn: str, target_dsn: str, lifecycle: Make) -> None:
    execute(source_dsn, "CREATE TABLE t (id int PRIMARY KEY, body text STORAGE EXTERNAL)")
    execute(source_dsn, "INSERT INTO t SELECT i, repeat('x', 20000) FROM generate_series(1, 300) i")
    move = lifecycle(source_dsn, target_dsn, tables={"include": ["public.t"]})
    move.run_all(until="schema_sync")
    with both(move) as (_, target, of):
        (size,) = ranges.sizes(target, [of.plan])
    assert 20_000 < size.whole / size.rows < 25_000 and size.bytes < 50_000
    chunk = 10**9
    assert chunk // 25_000 < size.rows_of(chunk) < chunk // 20_000
    assert size.rows_of(100_000) == IN_A_RANGE


KEYS = {
    "few values": ("tenant int, id bigint, PRIMARY KEY (tenant, id)", "i % 2, i", 1),
    "one value": ("tenant text, day date, id uuid, PRIMARY KEY (tenant, day, id)",
                  "'a', '2024-01-01', md5(i::text)::uuid", ranges.TEXT_SHARE),
    "others": (
        "flag boolean, span interval, at time, f real, PRIMARY KEY (flag, span, at, f)",
        "false, i % 2 * interval '1 day', time '10:00' + i % 7 * interval '1 s', i / 16.0", 1),
    "text": ("code varchar(40) PRIMARY KEY", "chr(97 + i % 7) || '-' || i", ranges.TEXT_SHARE),
    "padded": ("code char(12), at timestamptz, PRIMARY KEY (code, at)", "'x' || i % 9, now() + i * interval '1 s'",
               ranges.TEXT_SHARE),
    "domain": ("code label, n numeric, PRIMARY KEY (code, n)", "'v' || i % 3, i / 8.0", ranges.TEXT_SHARE),
    "names": ('"n" int, "k1" text, "rows" bytea, PRIMARY KEY ("n", "k1", "rows")',
              "1, '50%', decode(md5(i::text), 'hex')", ranges.TEXT_SHARE),
}  # fmt: skip


@pytest.mark.parametrize("across", [True, False], ids=["across", "in place"])
@pytest.mark.parametrize("key", KEYS)
def test_a_range_is_over_as_much_of_the_key_as_it_takes(
    source_dsn: str, target_dsn: str, lifecycle: Make, key: str, across: bool
) -> None:
    columns, values, share = KEYS[key]
    execute(source_dsn, f"CREATE DOMAIN label AS text; CREATE TABLE t (body text DEFAULT 'it''s', {columns})")
    names = one(
        source_dsn,
        "SELECT string_agg(quote_ident(attname), ',' ORDER BY attnum) FROM pg_attribute"
        " WHERE attrelid = 't'::regclass AND attnum > 1",
    )
    execute(source_dsn, f"INSERT INTO t ({names}) SELECT {values} FROM generate_series(1, {ROWS}) i")
    only = {"tables": {"include": ["public.t"]}} if across else {"rewrite": {"public.t": {}}}
    move = lifecycle(source_dsn, target_dsn if across else None, backfill=SMALL, **only)
    move.run_all(until="verify")
    with both(move) as (source, target, of):
        some = bounds(source, target, of, IN_A_RANGE)
        on_source, on_copy = counted(source, of, of.plan.source, some), counted(target, of, of.plan.copy_only, some)
        compared = target.execute("SELECT count(*) FROM pgddl.verifications WHERE differ = '[]'").fetchone()
    assert on_source == on_copy == [IN_A_RANGE // share] * (ROWS // (IN_A_RANGE // share))
    assert compared == (len(some),)


ORDERS = {
    "much alike": "CASE WHEN i % 5000 = 0 THEN upper(md5(i::text)) ELSE md5(i::text) END",
    "nothing alike": "CASE WHEN i % 2 = 0 THEN upper(md5(i::text)) ELSE md5(i::text) END",
}


@pytest.mark.parametrize("keys", ORDERS)
def test_text_may_have_another_order_on_the_copy(
    pg15: Cluster, database: Database, lifecycle: Make, monkeypatch: pytest.MonkeyPatch, keys: str
) -> None:
    """A range is another set of rows there, and what differs is found all the same, and nothing else."""
    monkeypatch.setattr(range_checksums, "ROWS_AT_ONCE", 300)
    source, target = with_icu(pg15, database(pg15)), database(pg15)
    execute(source, "CREATE TABLE t (k text, n int, v text, PRIMARY KEY (k, n))")
    execute(source, f"INSERT INTO t SELECT {ORDERS[keys]}, i % 3, 'v' FROM generate_series(1, {ROWS // 2}) i")
    move = lifecycle(source, target, tables={"include": ["public.t"]}, backfill=SMALL)
    move.run_all(until="replay")
    said = move.run("verify")
    assert said.tables["public.t"] == {"rows": ROWS // 2, "differ": 0}
    with both(move) as (on_source, on_copy, of):
        some = bounds(on_source, on_copy, of, IN_A_RANGE)
        here, there = counted(on_source, of, of.plan.source, some), counted(on_copy, of, of.plan.copy_only, some)
    assert len(some) == 16 and here != there and sum(here) == ROWS // 2
    upper = one(target, "SELECT k FROM t WHERE k ~ '^[A-F]' ORDER BY k LIMIT 1")
    lower = one(target, "SELECT k FROM t WHERE k ~ '^[a-f]' ORDER BY k LIMIT 1")
    execute(target, f"DELETE FROM t WHERE k = '{upper}'; UPDATE t SET v = 'w' WHERE k = '{lower}'")
    execute(target, "INSERT INTO t VALUES ('Zz-', 1, 'v')")
    error = refused(move)
    for what in (f"({upper},", f"({lower},", "(Zz-,1) is too many on the copy"):
        assert what in error
    assert "3 rows differ" in error


def refused(move: Lifecycle) -> str:
    """What the next verify says; the last one stands as long as there is no window with changes."""
    execute(move.source, "UPDATE public.t SET v = v WHERE ctid = '(0,1)'")
    move.run("replay")
    return move.refused("verify").what


def with_icu(cluster: Cluster, dsn: str) -> str:
    """The database of this name anew, whose own order of text is not that of bytes."""
    name = sql.Identifier(database_name(dsn))
    with psycopg.connect(cluster.conninfo(), autocommit=True) as admin:
        admin.execute(sql.SQL("DROP DATABASE {}").format(name))
        admin.execute(
            sql.SQL(
                "CREATE DATABASE {} TEMPLATE template0 LOCALE_PROVIDER icu ICU_LOCALE 'en-US' STRATEGY file_copy"
            ).format(name)
        )
    return dsn


SLOW = "SELECT count(*), coalesce(sum({hash}), 0), count(pg_catalog.pg_sleep(0.0001)::text) FROM {relation}{where}"


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each row takes a while, and no window's snapshot may be used for long."""
    monkeypatch.setitem(range_checksums._Q, "sum", SLOW)
    monkeypatch.setattr(row_comparison, "WINDOW_SECONDS", 0.2)


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Of which range each comparison was, or of which first."""
    compare, tried = timed_comparison.compare_range, list[int]()

    def counting(source: Session, copy: Session, sides: Sides, within: Range, latest: float | None) -> RangeCompared:
        assert latest is not None
        tried.append(within.id)
        return compare(source, copy, sides, within, latest)

    monkeypatch.setattr(timed_comparison, "compare_range", counting)
    return tried


@pytest.mark.parametrize("key", ["i", "md5(i::text)"])
@pytest.mark.parametrize("across", [True, False], ids=["across", "in place"])
def test_rows_in_no_order_are_compared_at_once(
    source_dsn: str, target_dsn: str, lifecycle: Make, tried: list[int], key: str, across: bool
) -> None:
    execute(source_dsn, f"CREATE TABLE t AS SELECT 1 AS n, {key} AS k FROM generate_series(1, {ROWS}) i")
    execute(source_dsn, "ALTER TABLE t ADD PRIMARY KEY (n, k)")
    only = {"tables": {"include": ["public.t"]}} if across else {"rewrite": {"public.t": {}}}
    move = lifecycle(source_dsn, target_dsn if across else None, backfill=SMALL, **only)
    move.run_all(until="verify")
    assert move.results["verify"].tables["public.t"] == {"rows": ROWS, "differ": 0}
    assert len(tried) == 1 if key != "i" else 1 < len(tried) <= 4
    move.run("swap")


def test_or_range_by_range_where_that_takes_too_long(
    source_dsn: str, target_dsn: str, lifecycle: Make, monkeypatch: pytest.MonkeyPatch, tried: list[int], slow: None
) -> None:
    monkeypatch.setattr(ranges, "FEWEST_ROWS", 100)
    execute(source_dsn, "CREATE TABLE t (k uuid PRIMARY KEY)")
    execute(source_dsn, "INSERT INTO t SELECT md5(i::text)::uuid FROM generate_series(1, 1000) i")
    move = lifecycle(source_dsn, target_dsn, tables={"include": ["public.t"]}, backfill=SMALL | {"chunk_bytes": "8kB"})
    move.run_all(until="replay")
    assert move.run("verify").tables["public.t"] == {"rows": 1000, "differ": 0}
    assert tried[0] == tried[1] and len(tried) > 3
    with both(move) as (source, target, of):
        assert one(target_dsn, "SELECT count(*) FROM pgddl.verifications") == len(bounds(source, target, of, 100))


@pytest.mark.parametrize("across", [True, False], ids=["across", "in place"])
def test_a_range_that_takes_too_long_is_cut(
    source_dsn: str,
    target_dsn: str,
    lifecycle: Make,
    monkeypatch: pytest.MonkeyPatch,
    tried: list[int],
    slow: None,
    across: bool,
) -> None:
    rows = 1000
    monkeypatch.setattr(ranges, "FEWEST_ROWS", rows // 2)
    execute(source_dsn, "CREATE TABLE t (tenant int, id int, v text, PRIMARY KEY (tenant, id))")
    execute(source_dsn, f"INSERT INTO t SELECT 7, i, 'v' FROM generate_series(1, {rows}) i")
    only = {"tables": {"include": ["public.t"]}} if across else {"rewrite": {"public.t": {}}}
    move = lifecycle(source_dsn, target_dsn if across else None, backfill=SMALL, **only)
    move.run_all(until="replay")
    assert move.run("verify").tables["public.t"] == {"rows": rows, "differ": 0}
    with both(move) as (_, target, of):
        stored = target.execute(
            "SELECT low, high, rows FROM pgddl.verifications ORDER BY low[2]::int NULLS FIRST"
        ).fetchall()
        some = [Range(n, low, high) for n, (low, high, _) in enumerate(stored)]
        assert sum(counted(target, of, of.plan.copy_only, some)) == rows
    assert len(stored) >= 8 and sum(n for _, _, n in stored) == rows
    assert all(after[0] == before[1] for before, after in pairwise(stored)) and stored[-1][1] is None
    assert len(tried) > len(stored)  # some were cancelled
    schema = "public" if across else of.plan.copy_schema
    execute(move.target, f"UPDATE {schema}.t SET v = 'w' WHERE id = 777")
    assert "1 rows differ, such as (7,777) differs" in refused(move)


@pytest.mark.parametrize("key", ["k text, f real", "f real, k text"])
def test_a_copy_may_hold_what_the_source_cannot(source_dsn: str, lifecycle: Make, key: str) -> None:
    """Keys of the copy of a wider type, which no key of the source is."""
    names = key.replace(" text", "").replace(" real", "")
    execute(source_dsn, f"CREATE TABLE t (n int, v text, {key}, PRIMARY KEY ({names}, n))")
    execute(source_dsn, f"INSERT INTO t (n, v, k, f) SELECT i, 'v', 'k', 0.5 FROM generate_series(1, {ROWS}) i")
    alter = ["ALTER COLUMN f TYPE double precision", "ALTER COLUMN n TYPE bigint"]
    move = lifecycle(source_dsn, rewrite={"public.t": {"alter": alter}}, backfill=SMALL)
    move.run_all(until="replay")
    with both(move) as (source, target, of):
        assert len(bounds(source, target, of, IN_A_RANGE)) > 1
        target.execute(
            sql.SQL("INSERT INTO {} (n, v, k, f) VALUES (7, 'v', 'k', 0.1), (3000000000, 'v', 'k', 0.5)").format(
                of.plan.copy
            )
        )
    error = move.refused("verify").what
    extra = ("(k,0.1,7)", "(k,0.5,3000000000)") if names == "k, f" else ("(0.1,k,7)", "(0.5,k,3000000000)")
    assert "2 rows differ" in error and all(f"{key} is too many on the copy" in error for key in extra)


def test_what_is_not_found_by_its_key_still_differs(
    source_dsn: str, lifecycle: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with a type whose values are not found again by what they were printed as."""
    monkeypatch.setattr(range_checksums, "wider_types", lambda plan: list(plan.key.types))
    execute(source_dsn, "CREATE TABLE t (k text, f real, n int, PRIMARY KEY (k, f, n))")
    execute(source_dsn, f"INSERT INTO t SELECT 'k', 0.5, i FROM generate_series(1, {ROWS}) i")
    alter = ["ALTER COLUMN f TYPE double precision"]
    move = lifecycle(source_dsn, rewrite={"public.t": {"alter": alter}}, backfill=SMALL)
    move.run_all(until="replay")
    with both(move) as (_, target, of):
        target.execute(sql.SQL("INSERT INTO {} VALUES ('k', 0.1, 7)").format(of.plan.copy))
    assert "1 rows differ, such as (k,0.1,7) is too many on the copy" in move.refused("verify").what


def test_equal_keys_that_are_printed_differently_do_not_cut_for_ever(
    source_dsn: str, target_dsn: str, lifecycle: Make
) -> None:
    execute(
        source_dsn,
        "CREATE TYPE mood AS ENUM ('a', 'b', 'c', 'd'); CREATE TABLE t (n numeric, m mood, PRIMARY KEY (n, m))",
    )
    execute(source_dsn, "INSERT INTO t VALUES ('1.0', 'a'), ('1.00', 'b'), ('1.0', 'c'), ('1.00', 'd'), (2, 'a')")
    move = lifecycle(source_dsn, target_dsn, tables={"include": ["public.t"]})
    move.run_all(until="schema_sync")
    with both(move) as (source, target, of):
        for low in ("1.0", "1.00"):
            assert [r.cuttable for r in ranges.parts(source, target, of.plan, Range(1, (low,), ("2",)))] == [False]
        cut = ranges.parts(source, target, of.plan, Range(1))
        assert counted(target, of, of.plan.copy_only, cut)[-1] == 1 and len(cut) > 1


@pytest.mark.parametrize("ddl", ["ADD COLUMN z int", "RENAME COLUMN k TO kk", "DROP COLUMN v"])
def test_a_table_may_change_behind_a_range_that_took_too_long(
    source_dsn: str, target_dsn: str, lifecycle: Make, monkeypatch: pytest.MonkeyPatch, ddl: str
) -> None:
    execute(source_dsn, "CREATE TABLE t (k text PRIMARY KEY, v text)")
    execute(source_dsn, f"INSERT INTO t SELECT 'k' || i, 'v' FROM generate_series(1, {ROWS}) i")
    move = lifecycle(source_dsn, target_dsn, tables={"include": ["public.t"]}, backfill=SMALL)
    move.run_all(until="replay")
    client = Underway(lambda: execute(source_dsn, f"ALTER TABLE t {ddl}"))
    first = list[int]()

    def too_long(
        source: Session,
        copy: Session,
        todo: Todo,
        seconds: float,
        compared: list[timed_comparison.RangeResult],
        apart: bool,
    ) -> None:
        if first:
            timed_comparison.compare_ranges(source, copy, todo, seconds, compared, apart)
            return
        first.append(todo[0][0].id)
        compared.append((first[0], 0, None))
        client.__enter__()
        source.execute("SELECT pg_catalog.pg_sleep(60)")  # until it is cancelled, for the client waits

    monkeypatch.setattr(row_comparison, "compare_ranges", too_long)
    assert move.run("verify").tables["public.t"] == {"rows": ROWS, "differ": 0}
    client.finish()
    assert differences(source_dsn, target_dsn) == []


def test_what_cannot_be_cut_has_the_time_that_it_takes(
    source_dsn: str, target_dsn: str, lifecycle: Make, slow: None
) -> None:
    execute(
        source_dsn, "CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t VALUES (1, 'v'), (2, 'v'), (3, 'v')"
    )
    move = lifecycle(source_dsn, target_dsn, tables={"include": ["public.t"]})
    move.run_all(until="replay")
    with ExitStack() as stack:
        source, target, of = stack.enter_context(both(move))
        assert [(r.low, r.high) for r in ranges.parts(source, target, of.plan, Range(1))] == [
            (None, ("2",)),
            (("2",), ("3",)),
            (("3",), None),
        ]
        (single,) = ranges.parts(source, target, of.plan, Range(1, ("2",), ("3",)))
        assert not single.limited and Range(1, ("2",), ("3",)).limited
        (sides,) = row_comparison.sides_of(source, target, [of], in_place=False).values()
        late = 0.000_01  # seconds
        results = list[timed_comparison.RangeResult]()
        timed_comparison.compare_ranges(source, target, [(Range(1, ("2",), ("3",)), sides)], late, results)
        timed_comparison.compare_ranges(source, target, [(single, sides), (Range(2, ("3",)), sides)], late, results)
    assert results == [(1, 0, None), (1, 1, ())]


def test_a_comparison_of_some_tables_says_nothing_of_the_others(
    source_dsn: str, target_dsn: str, lifecycle: Callable[..., Lifecycle]
) -> None:
    for table in "ab":
        execute(source_dsn, f"CREATE TABLE {table} (id int PRIMARY KEY); INSERT INTO {table} VALUES (1), (2)")
    move = lifecycle(source_dsn, target_dsn, tables={"include": ["public.*"]}, capture={"ddl": "off"})
    move.run_all(until="verify")
    execute(source_dsn, "INSERT INTO a VALUES (3)")
    move.run("replay")
    execute(target_dsn, "DELETE FROM b WHERE id = 1")
    assert move.run("verify", tables=["public.a"]).state == "done"
    with pytest.raises(StageFailed, match="b: 1 rows differ"):
        move.run("verify")
