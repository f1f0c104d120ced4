"""Preflight's findings, each on real servers: what is in the way, that its fix is right, that nothing changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from airflow_provider_pgddl.demo.clusters import Cluster
from airflow_provider_pgddl.engine.errors import EXIT_REFUSED, PipelineFileError, PreflightRefused
from airflow_provider_pgddl.engine.pipeline.reading import load_pipeline
from airflow_provider_pgddl.engine.preflight import preflight, too_old
from airflow_provider_pgddl.engine.preflight.findings import Finding, refuse
from airflow_provider_pgddl.engine.preflight.unsupported_keys import unsupported
from airflow_provider_pgddl.engine.server import catalog
from airflow_provider_pgddl.engine.server.connect import connect
from tests.conftest import Database
from tests.integration.lifecycle import Lifecycle
from tests.integration.preflights.findings import (
    ORDERS,
    UNCAPTURED,
    apply_fix,
    as_user,
    errors,
    findings,
    in_place,
    migrate,
    only,
    role,
    run,
)

# --- nothing to find ----------------------------------------------------------------------------------------------


def test_a_healthy_pair_has_no_findings_and_is_not_touched(source_dsn: str, target_dsn: str) -> None:
    run(
        source_dsn,
        ORDERS,
        "CREATE TABLE public.parts (id int, at date, PRIMARY KEY (id, at)) PARTITION BY RANGE (at)",
        "CREATE TABLE public.parts_1 PARTITION OF public.parts FOR VALUES FROM ('2026-01-01') TO ('2027-01-01')",
        'CREATE SCHEMA "Sales"',
        'CREATE TABLE "Sales"."Order.Items" (id serial PRIMARY KEY, o int REFERENCES public.orders)',
        "CREATE UNLOGGED TABLE public.counters (name text NOT NULL UNIQUE, n int)",
        "CREATE TYPE public.mood AS ENUM ('sad', 'ok')",
        "CREATE VIEW public.v AS SELECT * FROM public.orders",
    )
    before = contents(source_dsn), contents(target_dsn)
    assert findings(migrate(), source_dsn, target_dsn) == []
    assert (contents(source_dsn), contents(target_dsn)) == before


def contents(dsn: str) -> list[Any]:
    with psycopg.connect(dsn) as conn:
        return conn.execute(
            "SELECT relnamespace::regnamespace::text, relname, relfilenode FROM pg_class "
            "UNION ALL SELECT nspname, '', 0 FROM pg_namespace WHERE nspname !~ '^pg_(toast_)?temp' ORDER BY 1, 2"
        ).fetchall()


def test_what_the_swap_recreates_is_no_hindrance_in_place(dsn: str) -> None:
    run(
        dsn,
        "CREATE TABLE public.customers (id int PRIMARY KEY)",
        """CREATE TABLE public.orders (id serial PRIMARY KEY, number int GENERATED ALWAYS AS IDENTITY UNIQUE,
             customer int REFERENCES public.customers, parent int REFERENCES public.orders, a int CHECK (a > 0),
             double int GENERATED ALWAYS AS (a * 2) STORED, during tstzrange, EXCLUDE USING gist (during WITH &&))""",
        "CREATE TABLE public.items (id int PRIMARY KEY, o int REFERENCES public.orders)",
        "CREATE INDEX ON public.orders ((a + 1)) WHERE a IS NOT NULL",
        "CREATE STATISTICS public.st ON id, a FROM public.orders",
        "CREATE FUNCTION public.audit() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'",
        "CREATE TRIGGER audit AFTER UPDATE ON public.orders FOR EACH ROW WHEN (OLD.* IS DISTINCT FROM NEW.*) "
        "EXECUTE FUNCTION public.audit()",
        "ALTER TABLE public.orders ENABLE ROW LEVEL SECURITY",
        "CREATE POLICY own ON public.orders USING (id IN (SELECT id FROM public.customers))",
        "COMMENT ON TABLE public.orders IS 'x'",
        "ALTER TABLE public.orders REPLICA IDENTITY FULL",
        "ALTER TABLE public.orders CLUSTER ON orders_pkey",
        "GRANT SELECT ON public.orders TO PUBLIC",
    )
    assert findings(in_place("public.orders"), dsn) == []


# --- refusal ------------------------------------------------------------------------------------------------------


def test_a_refusal_lists_every_error_with_its_fix_and_exits_with_4(source_dsn: str, target_dsn: str) -> None:
    run(source_dsn, "CREATE TABLE public.a (x int)", 'CREATE TABLE public."B" (x int, y text)')
    with pytest.raises(PreflightRefused) as caught:
        refuse(findings(migrate(), source_dsn, target_dsn))
    assert caught.value.exit_code == EXIT_REFUSED
    text = str(caught.value)
    assert "2 problems; nothing has been touched" in text
    assert 'error (source, public."B")' in text
    assert 'ALTER TABLE public."B" ADD COLUMN IF NOT EXISTS id bigserial' in text
    assert "ALTER TABLE public.a ADD COLUMN IF NOT EXISTS id bigserial" in text


KEYLESS = """
CREATE TABLE public.nothing (x int);
CREATE TABLE public.good_id (id int, x text); INSERT INTO good_id VALUES (1), (2);
CREATE TABLE public.twice (id int, x text); INSERT INTO twice VALUES (1), (1);
CREATE TABLE public.json_id (id json); INSERT INTO json_id VALUES ('{}');
CREATE TABLE public.nullable (code text UNIQUE); INSERT INTO nullable VALUES ('a');
CREATE TABLE public.null_there (code text UNIQUE); INSERT INTO null_there VALUES (NULL), (NULL), ('a');
CREATE TABLE public.under (y int) INHERITS (public.nothing);
"""


def test_advice_that_is_followed_to_the_letter_is_enough(
    source_dsn: str, target_dsn: str, lifecycle: Callable[..., Lifecycle]
) -> None:
    """Finding by finding, until setup passes, and every row arrives."""
    run(source_dsn, *KEYLESS.strip().splitlines())
    run(target_dsn, "CREATE TABLE public.twice (id int)", "INSERT INTO public.twice VALUES (9)")
    move = lifecycle(source_dsn, target_dsn, tables={"include": ["public.*"]}, capture={"ddl": "off"})
    rounds = 0
    while True:
        with connect(source_dsn, purpose="test") as source, connect(target_dsn, purpose="test") as target:
            tables = catalog.table_names(source)
            found = [f for f in preflight(move.job("setup").pipeline, source, target, tables) if f.severity == "error"]
        if not found:
            break
        rounds += 1
        assert rounds < 4, found
        for finding in found:
            run(target_dsn if finding.where == "target" else source_dsn, finding.fix or "")
            assert "DROP" not in (finding.fix or "")
    move.run_all(until="verify")
    copied = [move.journal(f"SELECT count(*) FROM {table}") for table in ("twice", "null_there", "json_id")]
    assert copied == [[(2,)], [(3,)], [(1,)]]


def test_many_tables_without_a_key_are_one_finding(dsn: str) -> None:
    run(dsn, *(f"CREATE TABLE public.t{n} (x int)" for n in range(5)))
    finding = only(findings(in_place(*(f"public.t{n}" for n in range(5))), dsn), "key")
    assert finding.table is None and "public.t0, public.t1" in finding.what
    assert "-- or leave out under tables.exclude, or set tables.keyless: copy_at_swap" in (finding.fix or "")
    assert "swap.fence" not in (finding.fix or ""), "in place there is none"
    assert (finding.fix or "").count("bigserial") == 5


def test_to_copy_a_table_at_the_swap_takes_a_fence_and_advice_says_so(source_dsn: str, target_dsn: str) -> None:
    run(source_dsn, "CREATE TABLE public.t (x int)")
    finding = only(findings(migrate(), source_dsn, target_dsn), "key")
    assert "set tables.keyless: copy_at_swap, with swap.fence: read_only" in (finding.fix or "")
    fenced = only(findings(migrate(swap={"fence": "lock"}), source_dsn, target_dsn), "key")
    assert "swap.fence" not in (fenced.fix or "")
    asked = {"tables": {"include": ["*.*"], "keyless": "copy_at_swap"}, "swap": {"fence": "read_only"}}
    assert errors(findings(migrate(**asked), source_dsn, target_dsn)) == []
    with pytest.raises(PipelineFileError, match="fence"):
        load_pipeline(migrate(tables=asked["tables"]))


def test_to_part_a_child_from_its_parent_costs_rows_and_advice_says_so(dsn: str) -> None:
    run(dsn, ORDERS, "CREATE TABLE public.heir (PRIMARY KEY (id)) INHERITS (public.orders)")
    (finding,) = errors(findings(in_place("public.heir"), dsn))
    lost = "-- queries of public.orders lose the rows of public.heir by it"
    assert finding.fix == f"ALTER TABLE public.heir NO INHERIT public.orders;  {lost}"
    file = in_place("public.orders")
    file["rewrite"] = {"public.orders": {"alter": ["ALTER COLUMN id TYPE bigint"]}}
    (finding,) = errors(findings(file, dsn))
    assert (finding.fix or "").endswith(lost)


def test_warnings_refuse_nothing() -> None:
    refuse([Finding("warning", "locale", "target", None, "texts sort differently")])


@pytest.mark.parametrize(
    ("version", "text"),
    [(130_014, "Postgres 13 is too old"), (90_624, "Postgres 9.6 is too old"), (100_001, "Postgres 10")],
)
def test_a_server_older_than_14_is_refused(version: int, text: str) -> None:
    """By its number alone: no server that old is to be had here."""
    (finding,) = too_old(version, "source")
    assert text in finding.what
    assert finding.severity == "error"


@pytest.mark.parametrize("version", [140_000, 160_010, 180_001])
def test_14_and_newer_are_taken(version: int) -> None:
    assert list(too_old(version, "target")) == []


# --- what is not built yet ----------------------------------------------------------------------------------------


def test_what_is_not_built_yet_is_one_clear_line_each() -> None:
    file = load_pipeline(
        "pipeline: shop\nsource: {conn_id: a}\ntarget: {conn_id: b}\n"
        "tables:\n  include: ['*.*']\n"
        "capture:\n  rows: none\n"
    )
    assert [(finding.what, finding.fix) for finding in unsupported(file)] == [
        ("pipeline, line 7: capture.rows: none is not built yet", "use change_log or wal or direct_trigger"),
    ]


def test_a_plain_file_asks_for_nothing_that_is_not_built() -> None:
    plain = {"swap": {"fence": "read_only", "retries": 3}, "backfill": {"workers": 2}, "capture": {"ddl": False}}
    assert unsupported(load_pipeline(migrate(**plain))) == []
    rewrite = {"public.orders": {"alter": ["ALTER COLUMN id TYPE bigint"]}}
    assert unsupported(load_pipeline({**in_place(), "rewrite": rewrite})) == []
    ordered = {"public.orders": {"order_by": ["id"], "partition_by": {"column": "at", "range": "month"}}}
    assert unsupported(load_pipeline({**in_place(), "rewrite": ordered})) == []


# --- keys ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "statements",
    [
        ["CREATE TABLE public.t (id int)"],
        ["CREATE TABLE public.t (id int, x int)", "CREATE UNIQUE INDEX ON public.t (x) WHERE x > 0"],
        ["CREATE TABLE public.t (id int, x text NOT NULL)", "CREATE UNIQUE INDEX ON public.t (lower(x))"],
        ["CREATE TABLE public.t (id int, x int NOT NULL UNIQUE DEFERRABLE)"],
        ["CREATE TABLE public.t (id int, x int NOT NULL)", "CREATE INDEX ON public.t (x)"],
        ["CREATE TABLE public.t (id int) PARTITION BY HASH (id)"],
    ],
)
def test_a_table_without_a_key_is_refused(source_dsn: str, target_dsn: str, statements: list[str]) -> None:
    run(source_dsn, *statements)
    finding = only(findings(migrate(), source_dsn, target_dsn), "key")
    assert finding.table == "public.t"
    apply_fix(source_dsn, finding)
    assert findings(migrate(), source_dsn, target_dsn) == []


def test_a_unique_index_over_nullable_columns_wants_not_null(source_dsn: str, target_dsn: str) -> None:
    run(source_dsn, 'CREATE TABLE public.t (a int, "B" int, UNIQUE (a, "B"))')
    finding = only(findings(migrate(), source_dsn, target_dsn), "key")
    assert 'ALTER TABLE public.t ALTER COLUMN a SET NOT NULL, ALTER COLUMN "B" SET NOT NULL;' in (finding.fix or "")
    apply_fix(source_dsn, finding)
    assert findings(migrate(), source_dsn, target_dsn) == []


def test_a_key_by_which_different_texts_are_equal_is_refused(pg15: Cluster, database: Database) -> None:
    source, target = database(pg15), database(pg15)
    run(
        source,
        "CREATE COLLATION public.nocase (provider = icu, locale = 'und-u-ks-level2', deterministic = false)",
        "CREATE TABLE public.t (code text COLLATE public.nocase PRIMARY KEY)",
    )
    finding = only(findings(migrate(), source, target), "key")
    assert "public.nocase" in finding.what
    apply_fix(source, finding)
    assert findings(migrate(), source, target) == []


def test_a_key_column_cannot_be_skipped(source_dsn: str, target_dsn: str) -> None:
    run(source_dsn, ORDERS)
    skip = {"include": ["*.*"], "skip_columns": {"public.orders": ["id"]}}
    assert only(findings(migrate(tables=skip), source_dsn, target_dsn), "key").where == "pipeline"


def test_a_schema_only_table_needs_no_key(source_dsn: str, target_dsn: str) -> None:
    run(source_dsn, ORDERS, "CREATE TABLE public.audit (x int)")
    tables = {"include": ["*.*"], "schema_only": ["public.audit"]}
    assert findings(migrate(tables=tables), source_dsn, target_dsn) == []


# --- rights -------------------------------------------------------------------------------------------------------


def test_a_role_without_rights_on_the_source(pg16: Cluster, source_dsn: str, target_dsn: str) -> None:
    mover, owner = role(pg16, "mover"), role(pg16, "owner")
    database_name = conninfo_to_dict(source_dsn)["dbname"]
    run(
        source_dsn,
        f"CREATE SCHEMA secret AUTHORIZATION {owner}",
        "CREATE TABLE secret.orders (id serial PRIMARY KEY)",
        f"ALTER TABLE secret.orders OWNER TO {owner}",
    )
    mine = as_user(source_dsn, mover)
    assert "event_triggers" in {finding.code for finding in findings(migrate(), mine, target_dsn)}
    found = errors(findings(migrate(**UNCAPTURED), mine, target_dsn))
    assert {finding.code for finding in found} == {"rights"}
    assert [finding.fix for finding in found] == [
        f'GRANT CREATE ON DATABASE {database_name} TO "{mover}";'.replace('"', ""),
        f"GRANT {owner} TO {mover};",
        f"GRANT USAGE ON SCHEMA secret TO {mover};",
        f"GRANT SELECT ON secret.orders TO {mover};",
        f"GRANT SELECT ON SEQUENCE secret.orders_id_seq TO {mover};",
    ]
    for finding in found:
        apply_fix(source_dsn, finding)
    assert errors(findings(migrate(**UNCAPTURED), mine, target_dsn)) == []
    run(source_dsn, f"REVOKE {owner} FROM {mover}", f"DROP OWNED BY {mover}")


def test_a_role_without_rights_on_the_target(pg18: Cluster, source_dsn: str, target_dsn: str) -> None:
    mover = role(pg18, "mover")
    run(source_dsn, ORDERS)
    mine = as_user(target_dsn, mover)
    found = errors(findings(migrate(), source_dsn, mine))
    assert [(finding.code, finding.where) for finding in found] == [
        ("rights", "target"),
        ("rights", "target"),
        ("role", "target"),
    ]
    for finding in found:
        apply_fix(target_dsn, finding)
    assert errors(findings(migrate(), source_dsn, mine)) == []
    run(target_dsn, f"REVOKE postgres FROM {mover}", f"DROP OWNED BY {mover}")


def test_a_role_without_rights_for_a_swap_in_place(pg16: Cluster, source_dsn: str) -> None:
    mover, owner = role(pg16, "mover"), role(pg16, "owner")
    run(
        source_dsn,
        ORDERS,
        f"ALTER TABLE public.orders OWNER TO {mover}",
        "CREATE TABLE public.items (id int PRIMARY KEY, "
        f"o int REFERENCES public.orders); ALTER TABLE public.items OWNER TO {owner}",
        f"GRANT CREATE ON DATABASE {conninfo_to_dict(source_dsn)['dbname']} TO {mover}",
    )
    found = errors(findings(in_place("public.orders", **UNCAPTURED), as_user(source_dsn, mover)))
    assert [finding.fix for finding in found] == [
        f"GRANT CREATE ON SCHEMA public TO {mover};",
        f"GRANT {owner} TO {mover};",
    ]
    assert "is referred to by public.items" in found[1].what
    for finding in found:
        apply_fix(source_dsn, finding)
    assert findings(in_place("public.orders", **UNCAPTURED), as_user(source_dsn, mover)) == []
    run(source_dsn, f"REVOKE {owner} FROM {mover}", f"DROP OWNED BY {mover}, {owner}")


def test_c7_row_security_that_would_hide_rows_is_refused(
    pg16: Cluster, pg18: Cluster, source_dsn: str, target_dsn: str
) -> None:
    """C7: for anybody but the owner on the source, for the owner as well where it is forced, and on the target too."""
    owner = role(pg16, "owner", "LOGIN")
    name = conninfo_to_dict(source_dsn)["dbname"]
    run(
        source_dsn,
        f"GRANT ALL ON DATABASE {name} TO {owner}",
        ORDERS,
        f"ALTER TABLE public.orders OWNER TO {owner}",
        "ALTER TABLE public.orders ENABLE ROW LEVEL SECURITY",
    )
    mine = as_user(source_dsn, owner)
    assert errors(findings(migrate(**UNCAPTURED), mine, target_dsn)) == []  # an owner sees every row
    run(source_dsn, "ALTER TABLE public.orders FORCE ROW LEVEL SECURITY")
    finding = only(findings(migrate(**UNCAPTURED), mine, target_dsn), "row_security")
    assert (finding.where, finding.table) == ("source", "public.orders")
    apply_fix(source_dsn, finding)
    assert errors(findings(migrate(**UNCAPTURED), mine, target_dsn)) == []

    guest = role(pg18, "owner", "LOGIN")
    run(
        target_dsn,
        f"GRANT ALL ON DATABASE {conninfo_to_dict(target_dsn)['dbname']} TO {guest}",
        f"GRANT ALL ON SCHEMA public TO {guest}",
    )
    there = [
        finding
        for finding in errors(findings(migrate(), source_dsn, as_user(target_dsn, guest)))
        if finding.code == "row_security"
    ]
    assert [(finding.where, finding.table) for finding in there] == [("target", "public.orders")]
    run(source_dsn, f"DROP OWNED BY {owner}")
    run(target_dsn, f"DROP OWNED BY {guest}")


def test_roles_that_the_target_lacks(pg16: Cluster, source_dsn: str, target_dsn: str) -> None:
    seller, reader = role(pg16, "seller"), role(pg16, "reader")
    run(
        source_dsn, ORDERS, f"ALTER TABLE public.orders OWNER TO {seller}", f"GRANT SELECT ON public.orders TO {reader}"
    )
    (finding,) = findings(migrate(), source_dsn, target_dsn)
    assert finding.severity == "warning"
    assert finding.fix == f"CREATE ROLE {reader};\nCREATE ROLE {seller};"
    assert only(findings(migrate(ddl={"missing_role": "fail"}), source_dsn, target_dsn), "role")
    run(source_dsn, f"DROP OWNED BY {seller}, {reader}")


def test_two_pipelines_that_follow_the_same_ddl(
    lifecycle: Callable[..., Lifecycle], source_dsn: str, target_dsn: str
) -> None:
    """What belongs to no table both would bring; and behind the cut-over of the one, the other still would."""
    run(
        source_dsn,
        "CREATE SCHEMA crm; CREATE TABLE crm.a (id int PRIMARY KEY); CREATE TABLE crm.b (id int PRIMARY KEY)",
    )
    first = lifecycle(source_dsn, target_dsn, tables={"include": ["crm.a"]}, pipeline="first")
    first.run("setup")

    def told(**ddl: str) -> list[str]:
        second = {**first.content, "pipeline": "second", "tables": {"include": ["crm.b"]}, "ddl": ddl}
        return [f.what for f in findings(second, source_dsn, target_dsn) if f.code == "same_ddl"]

    assert len(told()) == 1 and "'first'" in told()[0] and "cut over" not in told()[0]
    assert told(schemas="^shop$") == told(scope="replicated_tables") == []
    first.run_all(after="setup")
    assert "has cut over" in told()[0]
