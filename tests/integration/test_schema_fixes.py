"""Differences of real tables as the gate sees them, and fixes that end them; where nothing differs, none is found."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_pgddl.demo.clusters import Cluster
from airflow_provider_pgddl.engine.schema.compatibility import compare_tables
from airflow_provider_pgddl.engine.schema.difference import Difference
from airflow_provider_pgddl.engine.schema.verdict import OR
from airflow_provider_pgddl.engine.server import catalog, schema_reading
from airflow_provider_pgddl.engine.server.connect import connect
from tests.combinations import matrix
from tests.conftest import Database
from tests.integration.lifecycle import load_real, psql
from tests.integration.schema_looks import differences
from tests.integration.sessions import do, one


@pytest.fixture(params=matrix("pg16", "pg18"))
def dsn(request: pytest.FixtureRequest, database: Database) -> str:
    return database(request.getfixturevalue(request.param))


ID = "id int PRIMARY KEY"
MOOD = "CREATE TYPE mood AS ENUM ('sad', 'ok');"
TYPES = (
    "CREATE SCHEMA app; CREATE DOMAIN app.a AS numeric(9,2) CHECK (VALUE > 0); CREATE DOMAIN app.b AS app.a NOT NULL;"
    " CREATE TYPE app.c AS (x int, y text); CREATE TYPE app.r AS RANGE (SUBTYPE = float8);"
)
FOREIGN = (
    "CREATE FOREIGN DATA WRAPPER w; CREATE SERVER s FOREIGN DATA WRAPPER w; CREATE FOREIGN TABLE t (id int) SERVER s"
)
PARTS = (
    f'{MOOD} CREATE TABLE t (a int, "B" mood, c text COLLATE "C", g int GENERATED ALWAYS AS (a + 1) STORED,'
    " i bigint GENERATED ALWAYS AS IDENTITY, PRIMARY KEY (a, i))"
)
PAIRS = [
    # source, target, the kinds that are found
    (f"CREATE TABLE t ({ID}, phone varchar(20), n numeric(10,2)[])", f"CREATE TABLE t ({ID})",
     2 * ["source_added_column"]),
    (f'CREATE TABLE t ({ID}, "order" text COLLATE "C")', f"CREATE TABLE t ({ID})", ["source_added_column"]),
    (f"{MOOD} CREATE TABLE t ({ID}, m mood[])", f"CREATE TABLE t ({ID})", ["source_added_column"]),
    (f"{TYPES} CREATE TABLE t ({ID}, b app.b, c app.c, r app.r, m app.r_multirange)", f"CREATE TABLE t ({ID})",
     4 * ["source_added_column"]),
    (f"CREATE TABLE t ({ID})", f"CREATE TABLE t ({ID}, n text NOT NULL, o int NOT NULL)", 2 * ["target_added_column"]),
    (
        f"CREATE TABLE t ({ID})",
        f"CREATE DOMAIN d AS int NOT NULL; CREATE TABLE t ({ID}, n d)",
        ["target_added_column"],
    ),
    (f'CREATE TABLE t ({ID}, "userId" int)', f"CREATE TABLE t ({ID}, userid int)", ["column_case"]),
    (f"CREATE TABLE t ({ID}, p numeric(10,2))", f"CREATE TABLE t ({ID}, p int)", ["type_mismatch"]),
    (f"CREATE TABLE t ({ID}, p bigint)", f"CREATE TABLE t ({ID}, p int DEFAULT 7)", ["type_mismatch"]),
    (f"CREATE TABLE t ({ID}, p int DEFAULT 7)", f"CREATE TABLE t ({ID}, p varchar(3) DEFAULT 'x')", ["type_mismatch"]),
    (f"CREATE TABLE t ({ID}, p uuid)", f"CREATE TABLE t ({ID}, p bytea DEFAULT 'x')", ["type_mismatch"]),
    (f"CREATE TABLE t ({ID}, p int[])", f"CREATE TABLE t ({ID}, p varchar(2)[])", ["type_mismatch"]),
    (f"CREATE TABLE t ({ID}, p boolean)", f"CREATE TABLE t ({ID}, p int)", ["type_mismatch"]),
    (f"{MOOD} CREATE TABLE t ({ID}, p mood)", f"CREATE TABLE t ({ID}, p varchar(1))", ["type_mismatch"]),
    (f"{MOOD} CREATE TABLE t ({ID}, p mood)", f"CREATE TYPE mood AS ENUM ('ok'); CREATE TABLE t ({ID}, p mood)",
     ["type_mismatch"]),
    (f"CREATE DOMAIN d AS int; CREATE TABLE t ({ID}, p d)",
     f"CREATE DOMAIN d AS int CHECK (VALUE > 0); CREATE TABLE t ({ID}, p d)", ["type_mismatch"]),
    (f"CREATE TABLE t ({ID}, n int, g int)", f"CREATE TABLE t ({ID}, n int, g int GENERATED ALWAYS AS (n + 1) STORED)",
     ["generated"]),
    (f"CREATE TABLE t ({ID}, n int, g int GENERATED ALWAYS AS (n + 2) STORED)",
     f"CREATE TABLE t ({ID}, n int, g int GENERATED ALWAYS AS (n + 1) STORED)", ["generated"]),
    (f"CREATE TABLE t ({ID}, n int)", f"CREATE TABLE t ({ID}, n int NOT NULL)", ["not_null"]),
    (f"CREATE TABLE t ({ID}, n int)", f"CREATE TABLE t ({ID}, n int GENERATED ALWAYS AS IDENTITY)",
     ["not_null", "identity"]),
    (f"CREATE TABLE t ({ID}, r int NOT NULL)", "CREATE TABLE t (id int, r int NOT NULL, PRIMARY KEY (id, r))", ["key"]),
    ("CREATE TABLE t (id int PRIMARY KEY)", "CREATE TABLE t (id int)", ["key"]),
    (f"CREATE TABLE t ({ID}, n int)", f'CREATE TABLE t ({ID}, n int, CONSTRAINT "Odd" CHECK (n > 0))',
     ["target_constraint"]),
    (f"CREATE TABLE t ({ID}, n int)", f"CREATE TABLE t ({ID}, n int UNIQUE)", ["target_constraint"]),
    (f"CREATE TABLE t ({ID}, n int)",
     f'CREATE TABLE t ({ID}, n int); CREATE UNIQUE INDEX "I" ON t ((n + 1)) WHERE n > 0', ["target_constraint"]),
    (f"CREATE TABLE t ({ID}, n int4range)", f"CREATE TABLE t ({ID}, n int4range, EXCLUDE USING gist (n WITH &&))",
     ["target_constraint"]),
    (f"CREATE TABLE t ({ID})", "", ["missing_on_target"]),
    (PARTS, "", ["missing_on_target"]),
    (f"CREATE TABLE t ({ID})", "CREATE VIEW t AS SELECT 1 AS id", ["not_a_table"]),
    (f"CREATE TABLE t ({ID})", "CREATE MATERIALIZED VIEW t AS SELECT 1 AS id", ["not_a_table"]),
    (f"CREATE TABLE t ({ID})", FOREIGN, ["not_a_table"]),
    (f"CREATE TABLE t ({ID})", "CREATE SEQUENCE t", ["not_a_table"]),
]  # fmt: skip


@pytest.mark.parametrize("way", matrix("16 to 18", "18 to 16"))
@pytest.mark.parametrize(("there", "here", "kinds"), PAIRS)
def test_a_fix_ends_what_it_fixes(
    there: str, here: str, kinds: list[str], way: str, source_dsn: str, target_dsn: str
) -> None:
    """The SQL of every mismatch runs as it stands, and then there is none."""
    source, target = (source_dsn, target_dsn) if way == "16 to 18" else (target_dsn, source_dsn)
    do(source, there)
    do(target, here)
    found = differences(source, target)
    assert [d.finding.kind for d in found] == kinds
    for _ in range(2):  # a view that made room leaves a table that is missing
        fixes = [_first(d.finding.fix) for d in found if d.finding.severity == "mismatch"]
        assert all(fixes)
        do(target, *dict.fromkeys(statement for fix in fixes for statement in fix))
        found = differences(source, target)
    assert [d.finding.kind for d in found if d.finding.severity == "mismatch"] == []


@pytest.mark.parametrize("kind", ["STORED, 16 to 18", "VIRTUAL, 18 to 16", "VIRTUAL, 18 to 18"])
def test_what_is_generated_on_the_source_becomes_so_on_the_target(
    kind: str, pg16: Cluster, pg18: Cluster, database: Database
) -> None:
    """An ordinary column would take its values, and have none for rows that come once the source is gone."""
    servers = {"16": pg16, "18": pg18}
    kind, versions = kind.split(", ")
    source, target = (database(servers[version]) for version in versions.split(" to "))
    made = f'ALTER TABLE t ADD g text COLLATE "C" GENERATED ALWAYS AS (upper(n)) {kind} NOT NULL'
    if kind == "VIRTUAL":
        made += ", ADD h int GENERATED ALWAYS AS (id + 1) VIRTUAL"
    table = f"CREATE TABLE t ({ID}, n text CHECK (n <> ''))"
    do(source, table, made)
    others = [
        "ALTER TABLE t ADD other int",
        'ALTER TABLE t ADD g text COLLATE "C" GENERATED ALWAYS AS (lower(n)) STORED',
        "ALTER TABLE t ADD g int GENERATED ALWAYS AS (length(n)) STORED",
    ]
    if kind == "VIRTUAL" and versions.endswith("18"):
        others.append(others[1].replace("STORED", "VIRTUAL"))
    for other in others:
        do(target, "DROP TABLE IF EXISTS t", table, other)
        fixes = [d.finding.fix for d in differences(source, target) if d.finding.severity == "mismatch"]
        do(target, *(statement for fix in fixes for statement in fix))
        assert not [d.finding.what for d in differences(source, target) if d.finding.column in ("g", "h")]
        do(target, "INSERT INTO t (id, n) VALUES (1, 'a')")
        assert one(target, "SELECT g FROM t") == "A"


def test_a_collation_by_which_values_are_the_same(pg15: Cluster, database: Database) -> None:
    source, target = database(pg15), database(pg15)
    for dsn in (source, target):
        do(dsn, "CREATE COLLATION nocase (provider = icu, locale = 'und-u-ks-level2', deterministic = false)")
    do(source, f"CREATE TABLE t ({ID}, n text UNIQUE)")
    do(target, f"CREATE TABLE t ({ID}, n text COLLATE nocase UNIQUE)")
    (difference,) = differences(source, target)
    assert (difference.finding.kind, difference.finding.severity) == ("collation", "mismatch")
    do(target, *difference.finding.fix)
    assert differences(source, target) == []


def _first(fix: tuple[str, ...]) -> tuple[str, ...]:
    return fix[: fix.index(OR)] if OR in fix else fix


def test_the_other_way_out_works_as_well(source_dsn: str, target_dsn: str) -> None:
    do(source_dsn, f"CREATE TABLE t ({ID})")
    do(target_dsn, f"CREATE TABLE t ({ID}, a text NOT NULL, b int NOT NULL, c timestamptz NOT NULL, d uuid NOT NULL)")
    for difference in differences(source_dsn, target_dsn):
        fix = difference.finding.fix
        do(target_dsn, *fix[fix.index(OR) + 1 :])
    assert [d.finding.severity for d in differences(source_dsn, target_dsn)] == 4 * ["warning"]


def test_expressions_over_wider_columns_are_the_same(source_dsn: str, target_dsn: str) -> None:
    """A safe cast changes how Postgres prints what stands over the column, on either version."""
    body = ("CREATE TABLE t (id {n} PRIMARY KEY, s {s} CHECK (s IN ('a', 'b') AND length(s) < 9), p {p} CHECK (p > 0),"
            " g text GENERATED ALWAYS AS (lower(s)) STORED, UNIQUE (s, p));"
            " CREATE UNIQUE INDEX ON t (lower(s), (p * 2)) WHERE s <> 'x'")  # fmt: skip
    do(source_dsn, body.format(n="int", s="varchar(9)", p="int"))
    do(target_dsn, body.format(n="bigint", s="text", p="numeric"))
    assert [d.finding.kind for d in differences(source_dsn, target_dsn)] == 3 * ["safe_cast"]


def test_a_partitioned_copy_of_a_plain_table_is_the_same(source_dsn: str, target_dsn: str) -> None:
    do(source_dsn, "CREATE TABLE t (id int, at date, n int, PRIMARY KEY (id, at), CHECK (n > 0))",
       "CREATE UNIQUE INDEX ON t (at, n) WHERE n > 3")  # fmt: skip
    do(target_dsn, "CREATE TABLE t (id int, at date, n int, PRIMARY KEY (id, at), CHECK (n > 0))"
       " PARTITION BY RANGE (at)",
       "CREATE TABLE t1 PARTITION OF t FOR VALUES FROM ('2026-01-01') TO ('2027-01-01')",
       "CREATE UNIQUE INDEX ON t (at, n) WHERE n > 3")  # fmt: skip
    assert differences(source_dsn, target_dsn) == []


@pytest.mark.parametrize("name", ["chinook", "northwind"])
def test_a_real_database_differs_in_nothing_between_versions(
    name: str, shared_data: Path, pg16: Cluster, pg18: Cluster, source_dsn: str, target_dsn: str
) -> None:
    load_real(pg16, source_dsn, shared_data, name)
    load_real(pg18, target_dsn, shared_data, name)
    _alike(source_dsn, target_dsn)


def test_odd_schemas_differ_in_nothing_between_versions(
    pg16: Cluster, pg18: Cluster, source_dsn: str, target_dsn: str
) -> None:
    roles = "".join(
        f"DO $$ BEGIN IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = '{r}') THEN CREATE ROLE {r}; END IF; END $$;"
        for r in ("pgddl_test_app", "pgddl_test_owner")
    )
    nasty = (Path(__file__).parent / "nasty.sql").read_text(encoding="utf-8")
    psql(pg16, source_dsn, roles + nasty)
    psql(pg18, target_dsn, roles + nasty)
    _alike(source_dsn, target_dsn)


def _alike(source: str, target: str) -> None:
    with connect(source, purpose="test") as there, connect(target, purpose="test") as here:
        names = catalog.table_names(there)
        mine, its = schema_reading.read(there, names), schema_reading.read(here, names)
    assert len(mine.tables) == len(names) > 0
    assert mine.types == its.types
    for name in names:
        found = compare_tables(mine.tables[name], its.tables[name], its.types, names=(name, name))
        assert [d.finding.what for d in found] == []


def test_a_missing_right_is_granted(source_dsn: str, target_dsn: str) -> None:
    for dsn in (source_dsn, target_dsn):
        do(dsn, f"CREATE SCHEMA app; CREATE TABLE app.t ({ID})", "DROP ROLE IF EXISTS pgddl_test_guest",
           "CREATE ROLE pgddl_test_guest")  # fmt: skip
    name = ("app", "t")

    def as_guest() -> list[Difference]:
        with connect(source_dsn, purpose="test") as there, connect(target_dsn, purpose="test") as here:
            here.execute("SET ROLE pgddl_test_guest")
            mine, its = schema_reading.read(there, [name]), schema_reading.read(here, [name])
        return compare_tables(
            mine.tables[name], its.tables[name], its.types, names=(name, name), role="pgddl_test_guest"
        )

    try:
        (difference,) = as_guest()
        assert difference.finding.kind == "privileges"
        do(target_dsn, *difference.finding.fix)
        assert as_guest() == []
    finally:
        for dsn in (source_dsn, target_dsn):
            do(dsn, "DROP OWNED BY pgddl_test_guest", "DROP ROLE pgddl_test_guest")
