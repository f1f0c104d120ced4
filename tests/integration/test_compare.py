"""The comparison finds every kind of difference, and nothing where there is none."""

from __future__ import annotations

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from airflow_provider_pgddl.demo.compare import (
    compare,
    compare_catalogs,
    compare_sequences,
    differences,
)

SHOP = """
    CREATE SCHEMA shop;
    CREATE TYPE shop.mood AS ENUM ('sad', 'ok');
    CREATE TABLE shop.orders (
        id serial PRIMARY KEY, mood shop.mood, note text, amount numeric, at timestamptz, rate float8, doc jsonb,
        raw bytea
    );
    INSERT INTO shop.orders (mood, note, amount, at, rate, doc, raw)
    SELECT CASE i % 3 WHEN 0 THEN 'sad' WHEN 1 THEN 'ok' END::shop.mood,
           (ARRAY[NULL, '', E'tab\\t\\\\ and\\nline', 'é大🙂', '"quoted, (row)"'])[1 + i % 5],
           i / 7.0, '2026-03-29 00:00+00'::timestamptz + make_interval(mins => i), 1.0 / i,
           jsonb_build_object('i', i), decode(md5(i::text), 'hex')
      FROM generate_series(1, 500) i;
    CREATE TABLE shop."Mixed Case" ("a b" integer, c text);   -- no key, and twice the same row
    INSERT INTO shop."Mixed Case" VALUES (1, 'x'), (1, 'x'), (2, NULL), (2, '');
    CREATE TABLE shop.parent (a integer);
    CREATE TABLE shop.child () INHERITS (shop.parent);
    INSERT INTO shop.parent VALUES (1);
    INSERT INTO shop.child VALUES (2);
    CREATE TABLE shop.events (at date PRIMARY KEY) PARTITION BY RANGE (at);
    CREATE TABLE shop.events_1 PARTITION OF shop.events FOR VALUES FROM ('2026-01-01') TO ('2027-01-01');
    INSERT INTO shop.events VALUES ('2026-05-05');
"""


@pytest.fixture
def source(source_dsn: str) -> str:
    return run(source_dsn, SHOP)


@pytest.fixture
def target(target_dsn: str) -> str:
    return run(target_dsn, SHOP)


def run(dsn: str, statements: str) -> str:
    with psycopg.connect(dsn) as conn:
        conn.execute(statements)
    return dsn


def test_equal_databases_of_two_versions_are_equal_in_every_respect(source: str, target: str) -> None:
    run(target, f"ALTER DATABASE {conninfo_to_dict(target)['dbname']} SET DateStyle = 'German'")
    results = {(r.schema, r.table): r for r in compare(source, target)}
    assert {name: (r.rows_source, r.rows_target) for name, r in results.items()} == {
        ("shop", "Mixed Case"): (4, 4),
        ("shop", "child"): (1, 1),
        ("shop", "events"): (1, 1),
        ("shop", "orders"): (500, 500),
        ("shop", "parent"): (1, 1),  # its child's row is not its own
    }
    assert differences(source, target) == []
    assert compare_sequences(source, target) == []
    assert compare_catalogs(source, target) == []


@pytest.mark.parametrize(
    ("change", "only_source", "only_target"),
    [
        ("DELETE FROM shop.orders WHERE id IN (1, 500)", 2, 0),
        ("INSERT INTO shop.orders (id) VALUES (501)", 0, 1),
        ("UPDATE shop.orders SET note = '' WHERE id = 5", 1, 1),  # was null
        ("UPDATE shop.orders SET amount = amount + 1e-15 WHERE id = 5", 1, 1),
        ("UPDATE shop.orders SET rate = rate + 1e-15 WHERE id = 3", 1, 1),
        ("UPDATE shop.orders SET at = at + '1 microsecond' WHERE id = 5", 1, 1),
        ("TRUNCATE shop.orders", 500, 0),
    ],
)
def test_a_difference_in_rows_is_found_and_shown(
    source: str, target: str, change: str, only_source: int, only_target: int
) -> None:
    run(target, change)
    (result,) = differences(source, target)
    assert (result.table, result.only_source, result.only_target) == ("orders", only_source, only_target)
    assert len(result.sample) == min(5, only_source) + min(5, only_target)
    (back,) = differences(target, source)
    assert (back.only_source, back.only_target) == (only_target, only_source)


def test_rows_are_counted_as_often_as_they_occur(source: str, target: str) -> None:
    run(target, """DELETE FROM shop."Mixed Case" WHERE ctid = '(0,1)'""")
    (result,) = differences(source, target)
    assert (result.rows_source, result.rows_target, result.only_source, result.only_target) == (4, 3, 1, 0)
    assert result.sample == ("source: (1,x)",)


def test_a_missing_table_or_column_is_a_difference_even_without_rows(source: str, target: str) -> None:
    run(source, "CREATE TABLE shop.empty ()")
    run(target, "ALTER TABLE shop.parent ADD COLUMN b integer")
    assert [(r.table, r.comparable) for r in differences(source, target)] == [
        ("child", False),
        ("empty", False),
        ("parent", False),
    ]
    ignored = {("shop", "parent"): ["b"]}
    assert not compare(source, target, [("shop", "parent")], ignore_columns=ignored)[0].differs


def test_two_relations_of_one_database_are_compared_under_their_own_names(source: str) -> None:
    run(source, "CREATE TABLE shop.copy AS SELECT id::bigint, mood, note, amount, at, rate, raw, doc FROM shop.orders")
    pair = {("shop", "orders"): ("shop", "copy")}
    assert not compare(source, source, [("shop", "orders")], renamed=pair)[0].differs
    run(source, "UPDATE shop.copy SET doc = '{}' WHERE id = 9")
    assert compare(source, source, [("shop", "orders")], renamed=pair)[0].only_target == 1


def test_a_side_is_read_at_the_snapshot_that_is_asked_for(source: str, target: str) -> None:
    with psycopg.connect(target) as holder:
        holder.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        row = holder.execute("SELECT pg_export_snapshot()").fetchone()
        assert row is not None
        run(target, "DELETE FROM shop.orders")
        assert not any(r.differs for r in compare(source, target, target_snapshot=row[0]))
    assert len(differences(source, target)) == 1


def test_a_sequence_that_would_give_another_value_is_found(source: str, target: str) -> None:
    run(target, "SELECT setval('shop.orders_id_seq', 501, false)")  # another state, the same next value
    assert compare_sequences(source, target) == []
    run(target, "SELECT nextval('shop.orders_id_seq')")
    (found,) = compare_sequences(source, target)
    assert (found.source, found.target) == (501, 502)
    assert compare_sequences(source, target, ahead=True) == []
    assert len(compare_sequences(target, source, ahead=True)) == 1


@pytest.mark.parametrize(
    ("change", "fact"),
    [
        ("ALTER TABLE shop.orders ALTER id TYPE bigint", "shop.orders column 1 id: bigint"),
        ("ALTER TABLE shop.orders ALTER note SET DEFAULT 'n'", "default 'n'::text"),
        ("ALTER TABLE shop.orders ALTER amount SET NOT NULL", "amount: numeric not null"),
        ("CREATE INDEX i ON shop.orders (lower(note)) WHERE id > 3", "lower(note)"),
        ("ALTER TABLE shop.orders ADD CONSTRAINT c CHECK (id > 0) NOT VALID", "CHECK ((id > 0)) NOT VALID"),
        ("ALTER TABLE shop.parent ADD FOREIGN KEY (a) REFERENCES shop.orders", "REFERENCES shop.orders(id)"),
        ("GRANT SELECT ON shop.orders TO pg_monitor", "grant SELECT on shop.orders to pg_monitor"),
        ("GRANT UPDATE (note) ON shop.orders TO pg_monitor", "grant UPDATE (note)"),
        ("COMMENT ON COLUMN shop.orders.note IS 'x'", "comment on table column shop.orders.note: x"),
        ("CREATE POLICY p ON shop.orders USING (id > 3)", "policy p"),
        ("ALTER TABLE shop.orders ENABLE ROW LEVEL SECURITY", "row security"),
        ("CREATE VIEW shop.v AS SELECT note FROM shop.orders", "shop.v view"),
        ("ALTER TYPE shop.mood ADD VALUE 'fine'", "'sad', 'ok', 'fine'"),
        ("CREATE DOMAIN shop.d AS text CHECK (VALUE <> '')", "shop.d domain over text"),
        ("CREATE STATISTICS shop.s ON id, note FROM shop.orders", "CREATE STATISTICS shop.s"),
        ("ALTER SEQUENCE shop.orders_id_seq OWNED BY NONE", "shop.orders_id_seq sequence"),
        ("CREATE FUNCTION shop.f() RETURNS int LANGUAGE sql RETURN 1", "function: CREATE OR REPLACE FUNCTION shop.f()"),
        (
            "CREATE TRIGGER t AFTER INSERT ON shop.orders EXECUTE FUNCTION suppress_redundant_updates_trigger()",
            "CREATE TRIGGER t AFTER INSERT",
        ),
        ("ALTER TABLE shop.orders SET (fillfactor = 70)", "fillfactor=70"),
    ],
)
def test_a_difference_in_structure_is_found(source: str, target: str, change: str, fact: str) -> None:
    run(target, change)
    found = compare_catalogs(source, target)
    assert any(line.startswith("+") and fact in line for line in found), found
    assert compare_catalogs(source, target, ["public"]) == []


def test_what_pgddl_itself_puts_up_is_no_difference(source: str, target: str) -> None:
    run(
        source,
        "CREATE SCHEMA pgddl; CREATE TABLE pgddl.changes (id serial PRIMARY KEY); COMMENT ON SCHEMA pgddl IS 'x'",
    )
    assert differences(source, target) == []
    assert compare_catalogs(source, target) == []
    assert compare_sequences(source, target) == []
