"""What a swap in place keeps, and what it would leave behind, as preflight finds it."""

from __future__ import annotations

import psycopg
import pytest

from airflow_provider_pgddl.demo.clusters import Cluster
from airflow_provider_pgddl.engine.pipeline.reading import load_pipeline
from airflow_provider_pgddl.engine.preflight import preflight
from airflow_provider_pgddl.engine.server.connect import connect
from tests.conftest import Database
from tests.integration.preflights.findings import ORDERS, apply_fix, errors, findings, in_place, only, run

DEPENDENTS = {
    "view": "CREATE VIEW public.v AS SELECT id FROM public.orders",
    "view of the row type": "CREATE VIEW public.v AS SELECT NULL::public.orders AS o",
    "rule on another table": "CREATE TABLE public.x (id int); CREATE RULE r AS ON INSERT TO public.x DO ALSO "
    "INSERT INTO public.orders VALUES (NEW.id)",
    "rule": "CREATE RULE r AS ON DELETE TO public.orders DO INSTEAD NOTHING",
    "function with the row type": "CREATE FUNCTION public.f(public.orders) RETURNS int LANGUAGE sql AS 'SELECT 1'",
    "function with an array of it": "CREATE FUNCTION public.f() RETURNS public.orders[] LANGUAGE sql "
    "AS 'SELECT NULL::public.orders[]'",
    "set-returning function": "CREATE FUNCTION public.f() RETURNS SETOF public.orders LANGUAGE sql AS 'SELECT 1, NULL'",
    "BEGIN ATOMIC": "CREATE FUNCTION public.f() RETURNS int BEGIN ATOMIC SELECT id FROM public.orders; END",
    "procedure": "CREATE PROCEDURE public.f(o public.orders) LANGUAGE sql AS 'SELECT 1'",
    "policy of another table": "CREATE TABLE public.x (id int); "
    "CREATE POLICY pol ON public.x USING (EXISTS (SELECT FROM public.orders))",
    "publication": "CREATE PUBLICATION pub FOR TABLE public.orders",
    "publication of the schema": "CREATE PUBLICATION pub FOR TABLES IN SCHEMA public",
    "inheritance": "CREATE TABLE public.x () INHERITS (public.orders)",
    "sequence of a serial that another table uses": "ALTER TABLE public.orders ADD no serial; "
    "CREATE TABLE public.x (no int DEFAULT nextval('public.orders_no_seq'))",
}


@pytest.mark.parametrize("statement", DEPENDENTS.values(), ids=DEPENDENTS)
def test_c21_what_can_be_told_anew_is_no_hindrance(dsn: str, statement: str) -> None:
    """tests/integration/test_rewrite_keeps.py shows that the swap does."""
    run(dsn, ORDERS, statement)
    assert findings(in_place("public.orders"), dsn) == []


def test_c21_a_materialized_view_is_refused_unless_asked_for_and_the_fix_sets_it_aside(dsn: str) -> None:
    run(
        dsn,
        ORDERS,
        "CREATE MATERIALIZED VIEW public.v AS SELECT id FROM public.orders",
        "CREATE UNIQUE INDEX ON public.v (id)",
        "COMMENT ON MATERIALIZED VIEW public.v IS 'kept'",
    )
    asked = in_place("public.orders") | {"swap": {"recreate_materialized_views": True}}
    assert findings(asked, dsn) == []
    finding = only(findings(in_place("public.orders"), dsn), "dependent")
    key, _, by_hand = (finding.fix or "").partition("\n-- or set it aside:\n")
    assert key.startswith("swap: {recreate_materialized_views: true}")
    away, _, back = "\n".join(x.removeprefix("-- ") for x in by_hand.splitlines()).partition("-- after the swap")
    run(dsn, away)
    assert findings(in_place("public.orders"), dsn) == []
    run(dsn, back.split("\n", 1)[1])
    assert findings(in_place("public.orders"), dsn) == [finding]


REFUSED = {
    "inherits from it": "CREATE TABLE public.x () INHERITS (public.orders)",
    "both tables are rewritten": "CREATE TABLE public.items (id int PRIMARY KEY); "
    "CREATE POLICY pol ON public.items USING (EXISTS (SELECT FROM public.orders))",
    "refers to it": "CREATE VIEW public.v AS SELECT id FROM public.orders; CREATE TABLE public.x (v public.v)",
    "column id gets no other type": "ALTER TABLE public.orders ADD twice int GENERATED ALWAYS AS (id * 2) STORED",
}


@pytest.mark.parametrize("kind", ["STORED", "VIRTUAL"])
def test_the_fix_for_a_column_that_is_generated_from_one_of_another_type(
    pg18: Cluster, database: Database, kind: str
) -> None:
    dsn = database(pg18)
    run(dsn, ORDERS, f"ALTER TABLE public.orders ADD twice int GENERATED ALWAYS AS (id * 2) {kind}")
    file = in_place("public.orders")
    file["rewrite"] = {"public.orders": {"alter": ["ALTER COLUMN id TYPE bigint"]}}
    finding = only(findings(file, dsn), "alter")
    apply_fix(dsn, finding)
    assert findings(file, dsn) == []
    if kind == "VIRTUAL":
        run(dsn, (finding.fix or "").partition("-- after the swap: ")[2])
        assert findings(file, dsn) == [finding]


@pytest.mark.parametrize(("why", "statement"), REFUSED.items(), ids=REFUSED)
def test_c21_what_another_type_would_break_is_refused(dsn: str, why: str, statement: str) -> None:
    run(dsn, ORDERS, statement)
    file = in_place("public.orders")
    file["rewrite"] = {"public.orders": {"alter": ["ALTER COLUMN id TYPE bigint"]}}
    if "items" in statement:
        file["rewrite"]["public.items"] = {}
    found = errors(findings(file, dsn))
    assert len(found) == 1, "\n".join(map(str, found))
    assert why in found[0].what


def test_a_table_that_becomes_partitioned_is_published_by_its_own_name(dsn: str) -> None:
    run(dsn, ORDERS, "CREATE PUBLICATION leaves FOR TABLES IN SCHEMA public", "CREATE PUBLICATION p FOR TABLE orders")
    file = in_place("public.orders")
    file["rewrite"] = {"public.orders": {"partition_by": {"column": "id", "range": "month"}}}
    found = [f for f in findings(file, dsn) if f.code == "publication"]
    assert [f.what.split()[1] for f in found] == ["leaves", "p"]
    for finding in found:
        apply_fix(dsn, finding)
    assert [f for f in findings(file, dsn) if f.code == "publication"] == []


def test_c21_a_table_that_a_subscription_writes_into_is_refused(dsn: str) -> None:
    """Its worker would write nothing into the new table, and say nothing."""
    run(dsn, ORDERS)
    with psycopg.connect(dsn, autocommit=True) as conn:
        connect_no = "CONNECTION 'dbname=nowhere' PUBLICATION p WITH (connect = false, slot_name = NONE)"
        conn.execute(f"CREATE SUBSCRIPTION upstream {connect_no}".encode())
        try:
            conn.execute(
                "INSERT INTO pg_subscription_rel SELECT oid, 'public.orders'::regclass, 'r', '0/0'"
                " FROM pg_subscription WHERE subname = 'upstream'"
            )
            assert "upstream writes into it" in only(findings(in_place("public.orders"), dsn), "subscription").what
        finally:
            conn.execute("DROP SUBSCRIPTION upstream")


OTHERS = {
    "column of the row type": "CREATE TABLE public.x (o public.orders)",
    "array of it": "CREATE TABLE public.x (o public.orders[])",
    "composite type over it": "CREATE TYPE public.x AS (o public.orders)",
    "domain over it": "CREATE DOMAIN public.x AS public.orders",
    "default that names it": "CREATE TABLE public.x (o oid DEFAULT 'public.orders'::regclass)",
    "aggregate over it": "CREATE FUNCTION public.s(int, public.orders) RETURNS int LANGUAGE sql AS 'SELECT 1'; "
    "CREATE AGGREGATE public.agg(public.orders) (SFUNC = public.s, STYPE = int)",
}


@pytest.mark.parametrize("statement", OTHERS.values(), ids=OTHERS)
def test_c21_anything_else_that_refers_to_the_table_is_refused_as_well(dsn: str, statement: str) -> None:
    run(dsn, ORDERS, statement)
    found = errors(findings(in_place("public.orders"), dsn))
    assert found
    assert {(finding.code, finding.table) for finding in found} == {("dependent", "public.orders")}


# What the copy of a table would not have; the fix makes it one that has nothing of the kind.
UNKEPT = {
    "index orders_note is not valid": "CREATE INDEX orders_note ON public.orders (note); "
    "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'public.orders_note'::regclass",
    "constraint x_o_fkey of public.x is not enforced": "CREATE TABLE public.x (o int REFERENCES public.orders); "
    "ALTER TABLE public.x DISABLE TRIGGER ALL",
    "constraint orders_x_fkey of public.orders is not enforced": "CREATE TABLE public.x (id int PRIMARY KEY); "
    "ALTER TABLE public.orders ADD x int REFERENCES public.x; ALTER TABLE public.x DISABLE TRIGGER ALL",
    "constraint late of public.orders is not enforced": "ALTER TABLE public.orders ADD CONSTRAINT late UNIQUE (note) "
    "DEFERRABLE; ALTER TABLE public.orders DISABLE TRIGGER ALL",
    "its row type has a comment": "COMMENT ON TYPE public.orders IS 'a row'",
    "its row type has grants of its own": "REVOKE USAGE ON TYPE public.orders FROM PUBLIC",
    "statistics of the name s": "CREATE SCHEMA other; CREATE STATISTICS public.s ON id, note FROM public.orders; "
    "CREATE STATISTICS other.s ON note, id FROM public.orders",
}  # fmt: skip


@pytest.mark.parametrize("why", UNKEPT)
def test_what_no_copy_would_have_is_refused_and_the_fix_is_one(dsn: str, why: str) -> None:
    run(dsn, ORDERS, UNKEPT[why])
    (finding,) = errors(findings(in_place("public.orders"), dsn))
    assert finding.what.startswith(why)
    assert finding.fix
    run(dsn, finding.fix)
    assert findings(in_place("public.orders"), dsn) == []


def test_an_index_that_is_being_built_is_no_hindrance(target_dsn: str) -> None:
    run(target_dsn, ORDERS, UNKEPT["index orders_note is not valid"])
    with psycopg.connect(target_dsn) as builder:
        builder.execute("LOCK TABLE public.orders IN SHARE UPDATE EXCLUSIVE MODE")  # as CONCURRENTLY does throughout
        assert findings(in_place("public.orders"), target_dsn) == []
    (finding,) = errors(findings(in_place("public.orders"), target_dsn))
    assert "is not valid" in finding.what


def test_partitioned_tables_and_partitions_wait_for_their_issue(dsn: str) -> None:
    run(
        dsn,
        "CREATE TABLE public.p (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE public.p1 PARTITION OF public.p FOR VALUES FROM (0) TO (1)",
    )
    assert only(findings(in_place("public.p"), dsn), "partitioned").table == "public.p"


def test_the_sequence_of_an_identity_that_another_table_uses_is_refused(dsn: str) -> None:
    run(
        dsn,
        "CREATE TABLE public.orders (id int GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY)",
        "CREATE TABLE public.archive (id int PRIMARY KEY DEFAULT nextval('public.orders_id_seq'))",
    )
    finding = only(findings(in_place("public.orders"), dsn), "shared_sequence")
    assert "public.archive.id" in finding.what
    assert findings(in_place("public.archive"), dsn) == []
    apply_fix(dsn, finding)
    assert findings(in_place("public.orders"), dsn) == []


def test_a_free_sequence_of_one_table_is_no_hindrance(dsn: str) -> None:
    run(
        dsn,
        "CREATE SEQUENCE public.numbers",
        "CREATE TABLE public.orders (id int PRIMARY KEY DEFAULT nextval('public.numbers'))",
    )
    assert findings(in_place("public.orders"), dsn) == []


@pytest.mark.every_combination
def test_c23_a_foreign_key_of_a_partitioned_table_needs_18(dsn: str) -> None:
    run(
        dsn,
        ORDERS,
        "CREATE TABLE public.items (id int PRIMARY KEY, o int REFERENCES public.orders) PARTITION BY RANGE (id)",
        "CREATE TABLE public.items_1 PARTITION OF public.items FOR VALUES FROM (0) TO (10)",
    )
    found = errors(findings(in_place("public.orders"), dsn))
    with psycopg.connect(dsn) as conn:
        if conn.info.server_version >= 180_000:
            assert found == []
            return
    assert [(finding.code, finding.table) for finding in found] == [("partitioned_foreign_key", "public.items")]
    apply_fix(dsn, found[0])
    assert findings(in_place("public.orders"), dsn) == []


def test_a_column_that_something_else_needs_is_not_dropped(dsn: str) -> None:
    run(
        dsn,
        "CREATE TABLE t (id integer PRIMARY KEY, a integer UNIQUE, b integer, c integer REFERENCES t (a))",
        "ALTER TABLE t ADD CHECK (b > a)",
        "CREATE TABLE o (x integer REFERENCES t (a))",
        "CREATE POLICY p ON t USING (b > 0)",
        "CREATE INDEX ON t ((a + b))",
        "CREATE STATISTICS s ON (a + b) FROM t",
    )
    text = "pipeline: shop\nsource: {conn_id: a}\nrewrite:\n  public.t:\n    alter:\n"
    text += "      - DROP COLUMN a, DROP COLUMN c\n      - DROP COLUMN b\n"
    with connect(dsn, purpose="test") as conn:
        found = preflight(load_pipeline(text), conn, conn, [("public", "t")])
    what = "pipeline, line 5: rewrite.public.t.alter: column {} cannot be dropped, {} needs it"
    assert [finding.what for finding in found if finding.code == "alter"] == [
        what.format("a", "constraint o_x_fkey on table public.o"),
        what.format("b", "policy p on table public.t"),
    ]


def test_alterations_name_columns_that_there_are(dsn: str) -> None:
    run(dsn, ORDERS)
    text = "pipeline: shop\nsource: {conn_id: a}\nrewrite:\n  public.orders:\n    alter:\n"
    text += (
        "      - ALTER COLUMN id TYPE bigint\n      - ALTER COLUMN ident TYPE bigint\n      - RENAME COLUMN id TO x\n"
    )
    file = load_pipeline(text)
    with connect(dsn, purpose="test") as conn:
        found = preflight(file, conn, conn, [("public", "orders")])
    assert [(finding.code, finding.where) for finding in found] == [("alter", "pipeline")] * 2
    assert found[0].what == "pipeline, line 7: rewrite.public.orders.alter[1]: there is no column ident"
    assert "line 8" in found[1].what


def test_names_of_keywords_and_capitals_are_quoted_where_they_must_be(dsn: str) -> None:
    run(dsn, 'CREATE SCHEMA "Sales"', 'CREATE TABLE "Sales"."order" (x int)')
    finding = only(findings(in_place('"Sales".order'), dsn), "key")
    assert finding.table == '"Sales".order'
    assert 'ALTER TABLE "Sales"."order" ADD COLUMN IF NOT EXISTS id bigserial' in (finding.fix or "")


def test_what_stays_narrower_than_a_retyped_column_is_told(dsn: str) -> None:
    run(
        dsn,
        "CREATE SEQUENCE small AS smallint; CREATE SEQUENCE ints AS integer; CREATE SEQUENCE big",
        "CREATE TABLE \"T\" (id serial PRIMARY KEY, a int DEFAULT nextval('small'), b int DEFAULT nextval('ints'), "
        "c int DEFAULT nextval('big'), d serial UNIQUE, e int GENERATED ALWAYS AS IDENTITY)",
        'CREATE TABLE o (id int PRIMARY KEY, t int REFERENCES "T", u bigint REFERENCES "T", '
        'w int REFERENCES "T", x smallint REFERENCES "T" (d))',
    )
    rewrite = {
        'public."T"': {
            "alter": [f"ALTER COLUMN {c} TYPE bigint" for c in ("id", "b", "c", "e")]
            + ["ALTER COLUMN d TYPE numeric(20)"]
        },
        "public.o": {"alter": ["ALTER COLUMN w TYPE bigint"]},
    }
    told = [f for f in findings(in_place() | {"rewrite": rewrite}, dsn) if f.code == "narrower"]
    assert [f.what for f in told] == [
        "column t of public.o, which refers to column id, is integer and takes no value beyond",
        "column x of public.o, which refers to column d, is smallint and takes no value beyond",
        'sequence public."T_d_seq", from which column d gets its values, stays integer and ends there',
        "sequence public.ints, from which column b gets its values, stays integer and ends there",
    ]
    assert all(f.severity == "warning" for f in told)
    run(dsn, *(f.fix or "" for f in told))
    assert [f for f in findings(in_place() | {"rewrite": rewrite}, dsn) if f.code == "narrower"] == []
