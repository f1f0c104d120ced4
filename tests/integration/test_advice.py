"""Preflight's advice followed to the letter, finding by finding, until setup passes: SQL is run unchanged where its
finding is, and a line that is a key of the pipeline file goes into it."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import psycopg
import pytest
import yaml
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from airflow_provider_pgddl.demo.clusters import Cluster
from airflow_provider_pgddl.engine.commands.admin_sql import admin_sql
from airflow_provider_pgddl.engine.pipeline.reading import load_pipeline
from airflow_provider_pgddl.engine.pipeline.selection import matches
from airflow_provider_pgddl.engine.preflight import preflight
from airflow_provider_pgddl.engine.preflight.findings import Finding
from airflow_provider_pgddl.engine.server import catalog
from airflow_provider_pgddl.engine.server.connect import connect
from tests.conftest import REPOSITORY, Database
from tests.integration.lifecycle import Lifecycle, execute

MOVER, OWNER = (f"pgddl_advice_{name}_{os.getpid()}" for name in ("mover", "owner"))
ROUNDS = 5
ORDERS = "CREATE TABLE public.orders (id int PRIMARY KEY, note text)"
BY_DAY = {"partition_by": {"column": "at", "range": "day"}}
TO_BIGINT = {"alter": ["ALTER COLUMN id TYPE bigint"]}
NO_DDL = {"capture": {"ddl": "off"}}
SLOT = {"capture": {"rows": "wal", "ddl": "off"}}


@dataclass(frozen=True, slots=True)
class Case:
    """What makes the finding; `rewrite` makes it in place. Stages run as the role `as_mover` on these sides; whoever
    follows advice is a superuser."""

    source: str
    target: str = ""
    rewrite: dict[str, Any] | None = None
    pipeline: dict[str, Any] = field(default_factory=dict)
    as_mover: tuple[str, ...] = ()
    version: int = 18  # of the source, and in place


FOR_ALL = "CREATE PUBLICATION everything FOR ALL TABLES WITH (publish = 'insert', publish_via_partition_root)"
HIDDEN = "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET {} = on', current_database()); END $$"
NAMES = """
CREATE TABLE public.e (id int, at date NOT NULL, note text, PRIMARY KEY (id, at));
CREATE VIEW public.e_p20260101 AS SELECT 1;
CREATE TYPE public.e_p20260102 AS ENUM ('a'); CREATE DOMAIN public.e_p20260103 AS int;
CREATE SEQUENCE public.e_default; CREATE TABLE public.old_e_default (); CREATE TYPE public.e_p20260104 AS (a int);
CREATE INDEX e_p20260105 ON public.e (note)
"""
CASES: dict[str, list[Case]] = {
    "key": [
        Case("CREATE TABLE public.t (id int, x text); INSERT INTO public.t VALUES (1), (1)"),
        Case("CREATE TABLE public.t (code text UNIQUE)"),
        Case('CREATE TABLE public.t (c "char" PRIMARY KEY)'),
        Case("".join(f"CREATE TABLE public.t{n} (id int);" for n in range(5))),
        Case(
            "CREATE TABLE public.later (id int, a int, PRIMARY KEY (a, id) DEFERRABLE);"
            "CREATE TABLE public.p (id int PRIMARY KEY DEFERRABLE) PARTITION BY RANGE (id);"
            "CREATE TABLE public.p1 PARTITION OF public.p FOR VALUES FROM (0) TO (9); INSERT INTO public.p VALUES (1);"
            "CREATE TABLE public.times (id int4range, at tsrange, PRIMARY KEY (id, at WITHOUT OVERLAPS))"
        ),
        Case(
            "CREATE TABLE public.own (id int NOT NULL NO INHERIT); CREATE TABLE public.was (id int);"
            "ALTER TABLE public.was ADD CONSTRAINT n NOT NULL id NOT VALID;"
            "CREATE TABLE public.both (code int UNIQUE);"
            "ALTER TABLE public.both ADD CONSTRAINT n NOT NULL code NO INHERIT NOT VALID"
        ),
    ],
    "existing": [
        Case(ORDERS, ORDERS),
        Case(ORDERS, f"{ORDERS}; INSERT INTO public.orders VALUES (1)"),
        Case(f"{ORDERS}; CREATE VIEW public.v AS SELECT 1 AS n", "CREATE VIEW public.v AS SELECT 1 AS n"),
    ],
    "earlier_copy": [
        Case(
            f"{ORDERS}; CREATE SCHEMA pgddl_copy_public; COMMENT ON SCHEMA pgddl_copy_public IS 'pgddl: copies';"
            "CREATE TABLE pgddl_copy_public.orders (id int); INSERT INTO pgddl_copy_public.orders VALUES (1)",
            rewrite={"public.orders": {}},
        )
    ],
    "foreign_schema": [
        Case(f"{ORDERS}; CREATE SCHEMA pgddl; CREATE SCHEMA not_pgddl", "CREATE SCHEMA pgddl"),
        Case(f"{ORDERS}; CREATE SCHEMA pgddl_copy_public", rewrite={"public.orders": {}}),
    ],
    "publication": [
        Case(f"{ORDERS}; {FOR_ALL}", FOR_ALL),
        Case(f"{ORDERS}; {FOR_ALL}", version=16),
        Case(
            "CREATE TABLE public.e (id int, at date NOT NULL, PRIMARY KEY (id, at));"
            "CREATE PUBLICATION e FOR TABLE public.e",
            rewrite={"public.e": BY_DAY},
        ),
    ],
    "foreign_table": [
        Case(
            "CREATE FOREIGN DATA WRAPPER w; CREATE SERVER s FOREIGN DATA WRAPPER w;"
            "CREATE TABLE public.p (id int NOT NULL) PARTITION BY RANGE (id);"
            "CREATE FOREIGN TABLE public.p1 PARTITION OF public.p FOR VALUES FROM (0) TO (1) SERVER s;"
            "CREATE TABLE public.p2 PARTITION OF public.p FOR VALUES FROM (1) TO (2)"
        )
    ],
    "inheritance": [
        Case(f"{ORDERS}; CREATE TABLE public.heir () INHERITS (public.orders)", rewrite={"public.orders": TO_BIGINT}),
        Case(
            f"{ORDERS}; CREATE TABLE public.heir (PRIMARY KEY (id)) INHERITS (public.orders)",
            rewrite={"public.heir": {}},
        ),
    ],
    "dependent": [
        Case(
            f"{ORDERS}; CREATE MATERIALIZED VIEW public.m AS SELECT id FROM public.orders",
            rewrite={"public.orders": {}},
        )
    ],
    "shared_sequence": [
        Case(
            "CREATE TABLE public.orders (id int GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY);"
            "CREATE TABLE public.archive (id int PRIMARY KEY DEFAULT nextval('public.orders_id_seq'))",
            rewrite={"public.orders": {}},
        )
    ],
    "unkept": [
        Case(
            f"{ORDERS}; CREATE SCHEMA other; CREATE STATISTICS public.s ON id, note FROM public.orders;"
            "CREATE STATISTICS other.s ON note, id FROM public.orders; COMMENT ON TYPE public.orders IS 'a row'",
            rewrite={"public.orders": {}},
        )
    ],
    "partition_by": [
        Case(NAMES, rewrite={"public.e": BY_DAY}),
        Case(
            "CREATE UNLOGGED TABLE public.e (id int PRIMARY KEY, at date, n int UNIQUE);"
            "CREATE UNIQUE INDEX u ON public.e (n);"
            "ALTER TABLE public.e CLUSTER ON u; CREATE UNLOGGED TABLE public.x (e int REFERENCES public.e)",
            rewrite={"public.e": BY_DAY},
        ),
        Case(
            "CREATE TABLE public.e (id int PRIMARY KEY, at date NOT NULL, n int NOT NULL NO INHERIT);"
            "ALTER TABLE public.e ADD CHECK (n > 0) NO INHERIT;"
            'CREATE PUBLICATION "P" FOR TABLE public.e (id) WITH (publish_via_partition_root)',
            rewrite={"public.e": BY_DAY},
        ),
    ],
    "partitioned_foreign_key": [
        Case(
            f"{ORDERS}; CREATE TABLE public.i (id int PRIMARY KEY, o int REFERENCES public.orders)"
            " PARTITION BY RANGE (id)",
            rewrite={"public.orders": {}}, version=16,
        )
    ],
    "alter": [
        Case(
            "CREATE TABLE public.t (id int PRIMARY KEY, n int, twice int GENERATED ALWAYS AS (n * 2) STORED)",
            rewrite={"public.t": {"alter": ["ALTER COLUMN n TYPE bigint"]}},
        )
    ],
    "new_types": [
        Case(
            f"CREATE FUNCTION public.b(int) RETURNS boolean LANGUAGE sql RETURN $1 > 0; {ORDERS};"
            "CREATE POLICY p ON public.orders USING (public.b(id)); CREATE INDEX i ON public.orders (public.b(id))",
            rewrite={"public.orders": TO_BIGINT},
        ),
        Case(
            f"{ORDERS}; ALTER TABLE public.orders ADD no int UNIQUE;"
            "CREATE TABLE public.o (id int PRIMARY KEY, n int REFERENCES orders (no));"
            "CREATE INDEX i ON public.orders USING brin (no int4_minmax_ops);"
            "CREATE PUBLICATION p FOR TABLE public.orders WHERE (no > 1) WITH (publish = 'insert')",
            rewrite={"public.orders": {"alter": ["ALTER COLUMN no TYPE text"]}},
        ),
    ],
    "plain": [
        Case(
            "CREATE TABLE public.t (id int PRIMARY KEY, at date NOT NULL);"
            "CREATE POLICY p ON public.t USING (EXISTS (SELECT FROM ONLY public.t))",
            rewrite={"public.t": BY_DAY},
        )
    ],
    "firing": [
        Case(
            ORDERS,
            f"{ORDERS}; CREATE TRIGGER t BEFORE UPDATE ON public.orders FOR EACH ROW"
            " EXECUTE FUNCTION suppress_redundant_updates_trigger(); ALTER TABLE public.orders ENABLE ALWAYS TRIGGER t",
        )
    ],
    "replica_identity": [
        Case("CREATE TABLE public.t (id int NOT NULL UNIQUE)", pipeline=SLOT),
        Case(
            "CREATE TABLE public.t (id int, day int, UNIQUE (id, day)) PARTITION BY RANGE (day);"
            "ALTER TABLE public.t ALTER id SET NOT NULL, ALTER day SET NOT NULL;"
            "CREATE TABLE public.t_1 PARTITION OF public.t FOR VALUES FROM (0) TO (9);"
            "ALTER TABLE public.t_1 ADD PRIMARY KEY (id)",
            pipeline=SLOT,
        ),
    ],
    "failover": [Case(ORDERS, pipeline={"capture": {**SLOT["capture"], "failover": True}}, version=16)],
    "replication": [
        Case(f"{ORDERS}; ALTER TABLE public.orders OWNER TO {MOVER}", pipeline=SLOT, as_mover=("source",)),
    ],
    "rights": [
        Case(
            f"CREATE SCHEMA s; CREATE TABLE s.t (id serial PRIMARY KEY); ALTER TABLE s.t OWNER TO {OWNER}",
            pipeline=NO_DDL, as_mover=("source", "target"),
        ),
        Case(
            f"CREATE SCHEMA s; CREATE TABLE s.t (id int PRIMARY KEY); ALTER TABLE s.t OWNER TO {OWNER};"
            "CREATE TABLE s.u (t int REFERENCES s.t)",
            rewrite={"s.t": {}}, pipeline=NO_DDL, as_mover=("source",),
        ),
    ],
    "role": [
        Case(
            f"CREATE TABLE public.t (id int PRIMARY KEY); ALTER TABLE public.t OWNER TO {OWNER}",
            pipeline=NO_DDL, as_mover=("target",),
        )
    ],
    "row_security": [
        Case(
            f"{ORDERS}; ALTER TABLE public.orders ENABLE ROW LEVEL SECURITY;"
            "ALTER TABLE public.orders FORCE ROW LEVEL SECURITY",
            pipeline=NO_DDL, as_mover=("source", "target"),
        )
    ],
    "login_trigger": [
        Case(
            f"{ORDERS}; CREATE FUNCTION public.seen() RETURNS event_trigger LANGUAGE plpgsql AS 'BEGIN END';"
            "CREATE EVENT TRIGGER seen ON login EXECUTE FUNCTION public.seen()",
            pipeline={"swap": {"fence": "read_only"}},
        )
    ],
    "collation": [
        Case(
            'CREATE TABLE public.t (k text COLLATE pg_catalog.pg_c_utf8 PRIMARY KEY);'
            "UPDATE pg_collation SET collversion = '0' WHERE collname = 'pg_c_utf8'"
        )
    ],
    "hiding_damage": [
        Case(f"{ORDERS}; {HIDDEN.format('zero_damaged_pages')}", HIDDEN.format("ignore_checksum_failure")),
        Case(f"{ORDERS}; {HIDDEN.format('ignore_checksum_failure')}", rewrite={"public.orders": {}}),
    ],
    "event_triggers": [Case(f"{ORDERS}; ALTER TABLE public.orders OWNER TO {MOVER}", as_mover=("source",))],
    "foreign_code": [
        Case(
            f"CREATE SCHEMA s; GRANT ALL ON SCHEMA s TO {OWNER}; SET ROLE {OWNER};"
            "CREATE FUNCTION s.f(int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS 'BEGIN RETURN $1; END';"
            "CREATE TABLE s.t (id int, n int) PARTITION BY RANGE ((s.f(id)));"
            "CREATE TABLE s.t_1 PARTITION OF s.t FOR VALUES FROM (0) TO (9); ALTER TABLE s.t_1 ADD PRIMARY KEY (id)",
            pipeline={"tables": {"keyless": "copy_at_swap"}, "swap": {"fence": "read_only"}},
        )
    ],
}  # fmt: skip

# What no SQL on the two databases, and no line more in the file, puts right, and why.
BY_A_PERSON = {
    "version": "another server",
    "standby": "another server",
    "executors": "what a cluster's workers have installed, reach and go by: tests/spark/test_cluster_executors.py",
    "pooler": "another way to the server",
    "pg_dump": "something is installed on this machine",
    "dump": "a statement that is not understood, or rights that pg_dump lacks: told by what pg_dump says",
    "wal_level": "the server is restarted",
    "slots": "the server is restarted",
    "encoding": "another database takes the target's place",
    "same_database": "another kind of pipeline",
    "extension": "files are installed on the target's server",
    "extension_member": "the file is refused first: it names no table that a dump would have",
    "security_label": "these servers have no provider of labels",
    "subscription": "done at the publisher",
    "name": "the file has another name: test_several_pipelines",
    "no_table": "the file names another table",
    "left": "a cut-over is taken back",
    "operations": "the table is left out: test_archive",
    "not_built_yet": "the file asks for less",
    "partitioned": "the table is left out",
    "order_by": "the file names other columns",
    "way_back": "the file has another way back, or none, or other casts: test_way_back_prepared",
    "expression": "the file has another condition or value: test_where, test_transform",
}
WARNINGS = {
    "connections", "event_trigger", "foreign_key", "keyless", "large_objects", "locale", "locks", "narrower", "oids",
    "old_minor", "part_of_rows", "prepared_transaction", "same_ddl", "triggerer",
}  # fmt: skip


def test_each_finding_is_followed_here_or_it_is_said_why_not() -> None:
    found = set[str]()
    for file in (REPOSITORY / "airflow_provider_pgddl").rglob("*.py"):
        tree = ast.parse(file.read_text())
        constants = {
            target.id: node.value.value
            for node in tree.body if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
            for target in node.targets if isinstance(target, ast.Name)
        }  # fmt: skip
        imported = "airflow_provider_pgddl.engine.preflight.findings" in {
            node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)
        }
        for node in ast.walk(tree):
            if imported and isinstance(node, ast.Call) and ast.unparse(node.func) == "Finding":
                code = node.args[1]
                if isinstance(code, ast.Constant):
                    found.add(code.value)
                elif isinstance(code, ast.Name):
                    found.add(constants[code.id])
                else:
                    assert isinstance(code, ast.Attribute) and code.attr == "code"  # of `dependents`
                    found.add("dependent")
    assert len(found) > 40
    assert found == {*CASES, *BY_A_PERSON, *WARNINGS}
    assert not {*CASES} & {*BY_A_PERSON} and not {*CASES, *BY_A_PERSON} & WARNINGS


@pytest.fixture(autouse=True, scope="module")
def _roles(pg16: Cluster, pg18: Cluster) -> Iterator[None]:
    clusters = (pg16, pg18)
    for cluster in clusters:
        with psycopg.connect(cluster.conninfo(), autocommit=True) as admin:
            for name in (MOVER, OWNER):
                admin.execute(f"CREATE ROLE {name}")
    yield
    for cluster in clusters:
        with psycopg.connect(cluster.conninfo(), autocommit=True) as admin:
            for name in (MOVER, OWNER):
                admin.execute(f"DROP ROLE {name}")


@pytest.fixture
def plain_roles(pg16: Cluster, pg18: Cluster) -> None:
    """As if nobody had followed any advice: set up before the databases, and so torn down behind them."""
    for cluster in (pg16, pg18):
        with psycopg.connect(cluster.conninfo(), autocommit=True) as admin:
            password = f"PASSWORD '{cluster.password}'"
            admin.execute(f"ALTER ROLE {MOVER} LOGIN NOSUPERUSER NOREPLICATION NOBYPASSRLS {password}")
            for granted, member in ((OWNER, MOVER), ("postgres", MOVER)):
                admin.execute(f"REVOKE {granted} FROM {member}")


@pytest.mark.parametrize(
    ("code", "case"),
    [pytest.param(code, case, id=f"{code}-{n}") for code, cases in CASES.items() for n, case in enumerate(cases)],
)
def test_advice_followed_to_the_letter_lets_setup_pass(
    plain_roles: None, pg16: Cluster, pg18: Cluster, database: Database, lifecycle: Callable[..., Lifecycle], code: str,
    case: Case,
) -> None:  # fmt: skip
    source = database({16: pg16, 18: pg18}[case.version])
    target = source if case.rewrite else database(pg18)
    admins = {"source": source, "target": target}
    for side in admins if source != target else ("source",):
        execute(admins[side], getattr(case, side) or "SELECT 1")
    as_us = {
        side: make_conninfo(**{**conninfo_to_dict(dsn), "user": MOVER}) if side in case.as_mover else dsn
        for side, dsn in admins.items()
    }
    chosen: dict[str, Any] = {"rewrite": case.rewrite} if case.rewrite else {"tables": {"include": ["*.*"]}}
    move = lifecycle(as_us["source"], None if case.rewrite else as_us["target"], **merged(chosen, case.pipeline))
    seen = set[str]()
    for _ in range(ROUNDS):
        found = findings(move)
        if not found:
            break
        seen |= {finding.code for finding in found}
        for finding in found:
            follow(finding, admins, move)
    assert findings(move) == []
    assert code in seen
    move.run("setup")
    move.run_all(after="setup", until="snapshot")
    for dsn in {source, target}:
        execute(dsn, f"DROP OWNED BY {MOVER}, {OWNER} CASCADE")


def test_advice_about_foreign_keys_can_be_followed(
    pg18: Cluster, database: Database, lifecycle: Callable[..., Lifecycle]
) -> None:
    """Of those that are NOT ENFORCED there is none: that is said of them, and nothing validates them."""
    source = database(pg18)
    execute(
        source,
        "CREATE TABLE public.p (id int PRIMARY KEY); CREATE TABLE public.c (id int PRIMARY KEY, a int, b int);"
        "ALTER TABLE public.c ADD FOREIGN KEY (a) REFERENCES public.p NOT VALID;"
        "ALTER TABLE public.c ADD FOREIGN KEY (b) REFERENCES public.p NOT ENFORCED;"
        "CREATE TABLE public.t (id int4range, at tsrange, UNIQUE (id, at), PRIMARY KEY (id, at WITHOUT OVERLAPS));"
        "CREATE TABLE public.u (id int PRIMARY KEY, t int4range, at tsrange);"
        "ALTER TABLE public.u ADD FOREIGN KEY (t, PERIOD at) REFERENCES public.t (id, PERIOD at) NOT VALID",
    )
    move = lifecycle(source, database(pg18), tables={"include": ["*.*"]})
    found = [finding for finding in findings(move, "warning") if finding.code == "foreign_key"]
    assert [finding.table for finding in found] == ["public.c", "public.u"]
    for finding in found:
        follow(finding, {"source": source}, move)
    assert "foreign_key" not in {finding.code for finding in findings(move, "warning")}


def findings(move: Lifecycle, severity: str = "error") -> list[Finding]:
    pipeline = load_pipeline(move.content)
    with connect(move.source, purpose="test") as source, connect(move.target, purpose="test") as target:
        chosen = matches(pipeline, catalog.table_names(source), partitions=catalog.partitions(source))
        found = preflight(pipeline, source, target, [*chosen.rows, *chosen.schema_only])
    return [finding for finding in found if finding.severity == severity]


def follow(finding: Finding, admins: dict[str, str], move: Lifecycle) -> None:
    assert finding.fix, finding
    lines = finding.fix.splitlines()
    keys = [line for line in lines if re.match(r"[a-z_]+: ", line)]
    for line in keys:
        move.content = merged(move.content, yaml.safe_load(line))
    statements = "\n".join(line for line in lines if line not in keys)
    if statements.startswith("pgddl check -p FILE --admin-sql"):
        script = admin_sql(load_pipeline(move.content), move.source, move.target)
        statements = next(part for part in script.split("-- pgddl, the ") if part.startswith(f"{finding.where}:"))
        statements = statements.partition("\n")[2]
    side = "source" if finding.where == "pipeline" else finding.where
    with psycopg.connect(admins[side], autocommit=True) as admin:
        # In one transaction, if that may be.
        for part in statements.splitlines() if " CONCURRENTLY " in statements else [statements]:
            admin.execute(part.encode())


def merged(given: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    """The keys of both, sections of one name as well."""
    found = dict(given)
    for key, value in more.items():
        both = isinstance(value, dict) and isinstance(found.get(key), dict)
        found[key] = merged(found[key], value) if both else value
    return found
