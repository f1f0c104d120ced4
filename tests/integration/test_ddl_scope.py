"""What clients send → events → decisions → another database: the catalogs end equal. Applied here by hand, so that
nothing but the decisions is tried."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import psycopg
import pytest
from psycopg import sql

from airflow_provider_pgddl.demo.clusters import Cluster
from airflow_provider_pgddl.demo.compare import compare_catalogs
from airflow_provider_pgddl.engine.capture import ddl_log
from airflow_provider_pgddl.engine.ddl.decide import decide
from airflow_provider_pgddl.engine.ddl.decision import Decision
from airflow_provider_pgddl.engine.ddl.scope import Rules
from airflow_provider_pgddl.engine.pipeline.reading import load_pipeline
from airflow_provider_pgddl.engine.server.catalog import all_relations
from tests.combinations import matrix
from tests.conftest import Database
from tests.integration.ddl_source import Source
from tests.integration.sessions import do

SCHEMAS = ("app", "other")
BEFORE = """
CREATE SCHEMA app; CREATE SCHEMA other;
CREATE TYPE app.mood AS ENUM ('good');
CREATE TABLE app.t (id int PRIMARY KEY, a text);
CREATE TABLE app.u (id int PRIMARY KEY, t_id int REFERENCES app.t);
CREATE TABLE other.t (id int PRIMARY KEY);
CREATE VIEW app.v AS SELECT * FROM app.t;
CREATE FUNCTION app.f(int) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT 1';
CREATE FUNCTION app.tr() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN new; END';
INSERT INTO app.t VALUES (1, 'x')
"""

# Strings as clients send them, each in one message, under search_path = app.
SCENARIOS: dict[str, list[str]] = {
    name: [string.strip() for string in strings.split("\n\n") if string.strip()]
    for name, strings in re.findall(
        r"^-- name: (.*)\n((?:(?!-- name: ).*\n)+)",
        Path(__file__).with_name("scope.sql").read_text(encoding="utf-8"),
        re.MULTILINE,
    )
}
OUT_OF_SCOPE = SCENARIOS.pop("out of scope")
SCENARIOS |= {
    "comments and line ends": [
        "create table x (id int, -- a; b\r\n c text default 'a\r\nb;');\r\n/* ; */ alter table x\r\n add d int;\r\n"
    ],
    "names": [
        """create table "We.ird ""T"" ;" ("Co l" int primary key, "select" text default $$a;b$$);
        alter table "We.ird ""T"" ;" rename "Co l" to "x.y"; create index "i x" on "We.ird ""T"" ;"("select");
        drop index "i x"; comment on column "We.ird ""T"" ;"."select" is 'q'""",
        f"create table {'l' * 70} ({'C' * 70} int); alter table {'l' * 70} rename to {'é' * 40}",
    ],
    "a megabyte": [
        f"create table x (id int, c text default '{'é;' * 350_000}'); comment on table x is '{'y' * 1_000_000}'"
    ],
}


@pytest.fixture(params=matrix(16, 18))
def cluster(request: pytest.FixtureRequest) -> Cluster:
    return cast(Cluster, request.getfixturevalue(f"pg{request.param}"))


def follow(
    cluster: Cluster, database: Database, strings: Sequence[str], rules: Rules
) -> tuple[list[Decision], str, str]:
    """Runs the strings on a source, what is decided on a target: the decisions, and both databases."""
    source, target = Source(database(cluster), "queue"), database(cluster)
    for dsn in (source.dsn, target):
        do(dsn, BEFORE)
    source.start()
    with source.session() as session:
        versions = ddl_log.describe_relations(session, all_relations(session))
    with psycopg.connect(source.dsn, autocommit=True) as client:
        client.execute("SET search_path = app")
        for string in strings:
            client.execute(string.encode())
    decisions = decide(source.events(), rules, versions)
    for decision in decisions:
        run(target, decision)
    return decisions, source.dsn, target


def run(target: str, decision: Decision) -> None:
    path = [sql.Identifier(name).as_string(None) for name in decision.event["path"] if not name.startswith("pg_")]
    with psycopg.connect(target, autocommit=decision.concurrently) as conn:
        conn.execute("SELECT set_config('search_path', %s, false)", [", ".join(path)])
        for statement in decision.statements:
            conn.execute(statement.encode())


def rules(**ddl: object) -> Rules:
    file = {"pipeline": "shop", "source": {"conn_id": "a"}, "target": {"conn_id": "b"}, "tables": {"include": ["*.*"]}}
    return Rules.of(load_pipeline(file | {"ddl": ddl}), ())


@pytest.mark.parametrize("strings", SCENARIOS.values(), ids=SCENARIOS.keys())
def test_catalogs_end_equal(cluster: Cluster, database: Database, strings: list[str]) -> None:
    decisions, source, target = follow(cluster, database, strings, rules())
    assert [(d.event["tag"], d.rule) for d in decisions if d.verdict != "apply"] == []
    assert decisions
    assert compare_catalogs(source, target, SCHEMAS) == []


def test_commands_in_functions_are_applied_by_their_own_text(cluster: Cluster, database: Database) -> None:
    """Their names are in no text that the client sent. In the last one nobody tells the text."""
    strings = [
        """create function app.views() returns void language plpgsql as $$ begin
               execute 'create view w as select f(u.id) as n, t.a from u join t on t.id = u.t_id';
               grant select (a), insert on t to public; grant usage on type mood to public;
               revoke execute on function f(int) from public;
           end $$;
           create function app.silent() returns void language sql
               as 'alter table t add column b int, alter a set storage external'""",
        "select views()",
        "do $$ begin execute 'create view x as select id from w' || ', u'; grant select on x to public; end$$",
        "select silent()",
    ]
    decisions, source, target = follow(cluster, database, strings, rules())
    *done, silent = decisions
    assert [(d.event["tag"], d.verdict, d.rule, d.rebuilt) for d in done] == [
        (tag, "apply", "in scope", False)
        for tag in [*["CREATE FUNCTION"] * 2, "CREATE VIEW", "GRANT", "GRANT", "REVOKE", "CREATE VIEW", "GRANT"]
    ]
    assert (silent.event["tag"], silent.verdict) == ("ALTER TABLE", "unhandled")
    assert "it changed what is not rebuilt (column a: storage e)" in silent.rule
    do(target, "ALTER TABLE app.t ADD COLUMN b int, ALTER a SET STORAGE EXTERNAL")
    assert compare_catalogs(source, target, SCHEMAS) == []


def test_what_is_out_of_scope_never_arrives(cluster: Cluster, database: Database) -> None:
    decisions, source, target = follow(cluster, database, OUT_OF_SCOPE, rules(schemas="^app$"))
    assert {d.verdict for d in decisions} == {"apply", "skip"}
    assert compare_catalogs(source, target, ["app"]) == []
    gone = compare_catalogs(source, target, ["other"])
    assert {line[:2] for line in gone} == {"+ "}  # as it was
