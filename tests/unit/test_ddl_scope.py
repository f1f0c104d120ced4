"""Which captured commands are done again, and by which statements: events in, decisions out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from airflow_provider_pgddl.engine.ddl.captured_events import CapturedEvent
from airflow_provider_pgddl.engine.ddl.decide import decide
from airflow_provider_pgddl.engine.ddl.grants import map_roles
from airflow_provider_pgddl.engine.ddl.left_out import LeftOut
from airflow_provider_pgddl.engine.ddl.scope import Rules
from airflow_provider_pgddl.engine.ddl.subcommands import KNOWN
from airflow_provider_pgddl.engine.pipeline.tags import COMMON_ALTER_TABLE_SUBCOMMANDS
from tests.unit.hand_made import column, event, foreign_key, gone, of_table, table, thing
from tests.unit.judged import KNOWN_TABLES, NEW, OUT, O, T, U, V, app, judged, on, rules


@dataclass(frozen=True)
class Case:
    event: CapturedEvent
    verdict: str
    statements: tuple[str, ...] = ()
    rule: str = ""
    """A part of it."""
    notes: str = ""
    """A part of the only one."""
    by: Callable[[], Rules] = app
    more: Mapping[str, Any] = field(default_factory=dict)


def applies(what: CapturedEvent, *statements: str, **more: Any) -> Case:
    return Case(what, "apply", statements, **more)


LONG = table(9, "app", "l" * 63, ["id"])
# fmt: off
CASES: dict[str, Case] = {
    # --- one statement, names spelled out ---
    "create": applies(on(NEW, "CREATE TABLE", "create table x (id int, b int)"), "CREATE TABLE app.x (id int, b int)"),
    "commit in a string": applies(
        on(NEW, "CREATE TABLE", "create table x (id int, b text default 'commit;')"),
        "CREATE TABLE app.x (id int, b text DEFAULT 'commit;')",
    ),
    "quotes, dots and capitals": applies(
        on(table(9, 'The "S"', "a.B;", ["id"]), "CREATE TABLE", 'create table "a.B;" ("x""y" int)', names={}),
        'CREATE TABLE "The ""S"""."a.B;" ("x""y" int)',
        by=lambda: app(schemas="."),
    ),
    "a name of 63 bytes and more": applies(
        on(LONG, "CREATE TABLE", f"create table {'L' * 70} (id int)"), f"CREATE TABLE app.{'l' * 63} (id int)"
    ),
    "a statement of a megabyte": applies(
        on(NEW, "COMMENT", f"comment on table x is '{'é' * 500_000}'"),
        f"COMMENT ON TABLE app.x IS '{'é' * 500_000}'",
    ),
    "other names come from the path": applies(
        on(NEW, "CREATE TABLE", "create table x (id int references u, m mood)", names={"u": "app", "mood": "types"}),
        "CREATE TABLE app.x (id int REFERENCES app.u, m types.mood)",
    ),
    "a function in a default": applies(
        on(NEW, "CREATE TABLE", "create table x (id int default f(now()))", functions={"f": "fn"}),
        "CREATE TABLE app.x (id int DEFAULT fn.f(now()))",
    ),
    "a sequence in a string": applies(
        on(NEW, "CREATE TABLE", "create table x (id int default nextval('Sq'))", names={"sq": "app"}),
        "CREATE TABLE app.x (id int DEFAULT nextval('app.sq'))",
    ),
    "an index gets its name": applies(
        event("CREATE INDEX", "create index on t (lower(a))", [thing("CREATE INDEX", "index", 30, "app", "t_lower_idx",
              table=1)], tables=[T], names={"t": "app"}),
        "CREATE INDEX t_lower_idx ON app.t USING btree (lower(a))",
    ),
    "a trigger and its function": applies(
        event("CREATE TRIGGER", "create trigger tr before insert on t for each row execute function f()",
              [thing("CREATE TRIGGER", "trigger", 30, None, "tr", table=1)], tables=[T], names={"t": "app"},
              functions={"f": "fn"}),
        "CREATE TRIGGER tr BEFORE INSERT ON app.t FOR EACH ROW EXECUTE FUNCTION fn.f()",
    ),
    "a rule": applies(
        event("CREATE RULE", "create rule r as on delete to t do instead insert into u values (old.id)",
              [thing("CREATE RULE", "rule", 30, None, "r", table=1)], tables=[T], names={"t": "app", "u": "app"}),
        "CREATE RULE r AS ON DELETE TO app.t DO INSTEAD INSERT INTO app.u VALUES (old.id)",
    ),
    "a policy with a query": applies(
        event("CREATE POLICY", "create policy p on t using (id in (select id from u))",
              [thing("CREATE POLICY", "policy", 30, None, "p", table=1)], tables=[T], names={"t": "app", "u": "app"}),
        "CREATE POLICY p ON app.t TO public USING (id IN (SELECT id FROM app.u))",
    ),
    "WITH hides a relation": applies(
        on(V, "CREATE VIEW", "create view v as with t as (select 1 as id) select t.id from t, u", names={"t": "app",
           "u": "app"}),
        "CREATE VIEW app.v AS WITH t AS (SELECT 1 AS id) SELECT t.id FROM t, app.u",
    ),
    "WITH sees the relation that it hides": applies(
        on(V, "CREATE VIEW", "create view v as with t as (select id from t) select id from t", names={"t": "app"}),
        "CREATE VIEW app.v AS WITH t AS (SELECT id FROM app.t) SELECT id FROM t",
    ),
    "WITH RECURSIVE sees itself": applies(
        on(V, "CREATE VIEW", "create view v as with recursive t as (select 1 as id union all select id from t) "
           "select id from t", names={"t": "app"}),
        "CREATE VIEW app.v AS WITH RECURSIVE t AS (SELECT 1 AS id UNION ALL SELECT id FROM t) SELECT id FROM t",
    ),
    "a view that takes the name of what it reads": Case(
        on(table(9, "b", "t", ["id"], kind="v", definition="SELECT id FROM app.t"), "CREATE VIEW",
           "create view t as select id from t"),
        "apply", ("CREATE VIEW b.t AS SELECT id FROM app.t",), notes="rebuilt", by=lambda: app(schemas="."),
    ),
    "a table that refers to itself": applies(
        on(NEW, "CREATE TABLE", "create table x (id int primary key, b int references x)"),
        "CREATE TABLE app.x (id int PRIMARY KEY, b int REFERENCES app.x)",
    ),
    "like a temporary table": Case(
        on(NEW, "CREATE TABLE", "create table x (like tmp)", names={"tmp": "pg_temp_3"}),
        "apply", ("CREATE TABLE app.x (id int, b int)",), notes="rebuilt from metadata: tmp is a temporary object",
    ),
    "USING in front of COLLATE": applies(
        on(T, "ALTER TABLE", "alter table t alter a type text collate \"C\" using a::text"),
        "ALTER TABLE app.t ALTER COLUMN a TYPE text USING a::text",
        'ALTER TABLE app.t ALTER COLUMN a TYPE text COLLATE "C"',
    ),
    "an access method": applies(
        on(NEW, "CREATE TABLE", "create table x (id int) using other"),
        "CREATE TABLE app.x (id int)", "ALTER TABLE app.x SET ACCESS METHOD other",
    ),
    # --- rename and move ---
    "rename": applies(
        on(table(1, "app", "t2", ["id"]), "ALTER TABLE", "alter table t rename to t2"), "ALTER TABLE app.t RENAME TO t2"
    ),
    "rename where the old name is another's now": applies(
        on(table(1, "app", "t2", ["id"]), "ALTER TABLE", "alter table t rename to t2", names={"t": "b", "t2": "app"}),
        "ALTER TABLE app.t RENAME TO t2",
    ),
    "rename of a column": applies(
        on(T, "ALTER TABLE", "alter table t rename column b to a"), "ALTER TABLE app.t RENAME COLUMN b TO a"
    ),
    "rename of an index": applies(
        event("ALTER INDEX", "alter index i rename to j",
              [thing("ALTER INDEX", "index", 30, "app", "j", table=1)], tables=[T]),
        "ALTER INDEX IF EXISTS app.i RENAME TO j",
    ),
    "rename of a schema": applies(
        event("ALTER SCHEMA", "alter schema app rename to app_2", [thing("ALTER SCHEMA", "schema", 30, None, "app_2")]),
        "ALTER SCHEMA app RENAME TO app_2", by=lambda: app(schemas="^app"),
    ),
    "rename of a schema with an unlisted tag": Case(
        event("ALTER SCHEMA", "alter schema app rename to b", [thing("ALTER SCHEMA", "schema", 30, None, "b")]),
        "unhandled", rule="the schema holds tables", by=lambda: rules([("app", "t")], create_tags=["ALTER TABLE"]),
    ),
    "rename of a schema across the border": Case(
        event("ALTER SCHEMA", "alter schema app rename to b", [thing("ALTER SCHEMA", "schema", 30, None, "b")]),
        "unhandled", rule="schema app leaves the scope",
    ),
    "move within the scope": applies(
        on(table(1, "app_2", "t", ["id"]), "ALTER TABLE", "alter table t set schema app_2"),
        "ALTER TABLE app.t SET SCHEMA app_2", by=lambda: app(schemas="^app"),
    ),
    "move out of the scope": Case(
        on(table(1, "other", "t", ["id"]), "ALTER TABLE", "alter table t set schema other"),
        "unhandled", rule="app.t leaves the scope",
    ),
    "move into the scope": Case(
        on(table(3, "app", "o", ["id"]), "ALTER TABLE", "alter table other.o set schema app"),
        "unhandled", rule="other.o comes into the scope",
    ),
    "move of a function out of the scope": Case(
        event("ALTER FUNCTION", "alter function f(int) set schema other",
              [thing("ALTER FUNCTION", "function", 30, "other", "f", identity="other.f(integer)")]),
        "unhandled", rule="leaves the scope",
    ),
    "move of a function whose old schema is not told": Case(
        event("ALTER FUNCTION", "alter function f(int) set schema app",
              [thing("ALTER FUNCTION", "function", 30, "app", "f", identity="app.f(integer)")], path=["app", "other"]),
        "unhandled", rule="old schema is not told",
    ),
    "move of what was not known": Case(
        on(table(9, "app_2", "x", ["id"]), "ALTER TABLE", "alter table x set schema app_2", path=["app", "app_3"]),
        "unhandled", rule="the schema of x before it was moved is not known", by=lambda: app(schemas="^app"),
    ),
    # --- scope ---
    "schema out of scope": Case(on(OUT, "CREATE TABLE", "create table other.x (id int)"), "skip", rule="schema other"),
    "schemas match anywhere and in any case": applies(
        on(NEW, "CREATE TABLE", "create table x (id int)"), "CREATE TABLE app.x (id int)", by=lambda: app(schemas="P")
    ),
    "excluded schemas never match": Case(
        on(table(9, "PGLogical", "x"), "CREATE TABLE", "create table x (id int)"),
        "skip", rule="does not match", by=lambda: app(scope="everything", schemas=".*"),
    ),
    "a table that the pipeline does not take": Case(
        on(T, "ALTER TABLE", "alter table t add b int"), "skip", rule="not among the tables",
        by=lambda: app(include=["app.x"]),
    ),
    "ddl_only takes every table": applies(
        on(T, "ALTER TABLE", "alter table t add b int"), "ALTER TABLE app.t ADD COLUMN b int",
        by=lambda: app(include=["app.x"], ddl_only=True),
    ),
    "the partition of a table that the pipeline takes": applies(
        on(table(9, "app", "t_1", parents=[["app", "t"]]), "CREATE TABLE", "create table t_1 partition of t default",
           names={"t": "app"}),
        "CREATE TABLE app.t_1 PARTITION OF app.t DEFAULT", by=lambda: app(include=["app.t"]),
    ),
    "a partition out of scope": Case(
        on(table(9, "other", "t_1", parents=[["app", "t"]]), "CREATE TABLE",
           "create table other.t_1 partition of t default", names={"t": "app"}),
        "unhandled", rule="app.t is in scope, other.t_1 is not",
    ),
    "a parent out of scope": Case(
        on(table(9, "app", "t_1", parents=[["other", "o"]]), "CREATE TABLE",
           "create table t_1 partition of other.o default"),
        "unhandled", rule="its parent other.o is out of scope",
    ),
    "like a table out of scope": Case(
        on(NEW, "CREATE TABLE", "create table x (like other.o)"), "apply", ("CREATE TABLE app.x (id int, b int)",),
        notes="out of scope",
    ),
    "replicated tables: one of them": applies(
        on(T, "ALTER TABLE", "alter table t add b int"), "ALTER TABLE app.t ADD COLUMN b int",
        by=lambda: rules([("app", "t")], scope="replicated_tables"),
    ),
    "replicated tables: another": Case(
        on(U, "ALTER TABLE", "alter table u add b int"), "skip", rule="app.u is not one of the replicated tables",
        by=lambda: rules([("app", "t")], scope="replicated_tables"),
    ),
    "replicated tables: comment on a column": applies(
        event("COMMENT", "comment on column t.a is 'x'", [thing("COMMENT", "table column", 1, "app", None, table=1,
              classid="pg_class", objsubid=2, identity="app.t.a")], tables=[T], names={"t": "app"}),
        "COMMENT ON COLUMN app.t.a IS 'x'", by=lambda: rules([("app", "t")], scope="replicated_tables"),
    ),
    "replicated tables: moved, and still one": applies(
        on(table(1, "other", "t", ["id"]), "ALTER TABLE", "alter table t set schema other"),
        "ALTER TABLE app.t SET SCHEMA other", by=lambda: rules([("app", "t")], scope="replicated_tables"),
    ),
    "replicated tables: a new one": Case(
        on(NEW, "CREATE TABLE", "create table x (id int)"), "skip", rule="tag CREATE TABLE is not in create_tags",
        by=lambda: rules([("app", "t")], scope="replicated_tables"),
    ),
    "what belongs to no schema": Case(
        event("CREATE CAST", "create cast (a as b) with inout", [thing("CREATE CAST", "cast", identity="(a AS b)")]),
        "skip", rule="belongs to no schema",
    ),
    "everything takes what belongs to no schema": applies(
        event("CREATE CAST", "create cast (a as b) with inout", [thing("CREATE CAST", "cast", identity="(a AS b)")]),
        "CREATE CAST (a AS b) WITH INOUT", by=lambda: app(scope="everything", schemas=".*"),
    ),
    "switched off": Case(
        on(T, "ALTER TABLE", "alter table t add b int", disabled_for=["shop"]), "skip", rule="switched off"
    ),
    "switched off for another pipeline": applies(
        on(T, "ALTER TABLE", "alter table t add b int", disabled_for=["other"]), "ALTER TABLE app.t ADD COLUMN b int"
    ),
    # --- tags ---
    "a tag that is not listed": Case(
        event("CREATE INDEX", "create index i on t (a)", [thing("CREATE INDEX", "index", 30, "app", "i", table=1)],
              tables=[T]),
        "skip", rule="tag CREATE INDEX is not in create_tags", by=lambda: rules(tags="pgl_ddl_deploy"),
    ),
    "a DROP that is not listed": Case(
        event("DROP INDEX", "drop index i", dropped=[gone("index", "app", "i")]),
        "skip", rule="tag DROP INDEX is not in drop_tags", by=lambda: rules(tags="pgl_ddl_deploy"),
    ),
    "a blocked tag": Case(
        event("CREATE EXTENSION", "create extension hstore", [thing("CREATE EXTENSION", "extension", 30, None, "hstore")
              ]),
        "skip", rule="blocked tag CREATE EXTENSION", by=rules,
    ),
    "DROP COLUMN is an ALTER TABLE": applies(
        on(T, "ALTER TABLE", "alter table t drop column b", dropped=[gone("table column", "app", "b", objsubid=2,
           table=["app", "t"])]),
        "ALTER TABLE app.t DROP b", by=lambda: rules(drop_tags=[]),
    ),
    # --- DROP ---
    "drop of several, one in scope": Case(
        event("DROP TABLE", "drop table if exists other.o, t", dropped=[gone("table", "other", "o", oid=3),
              gone("table", "app", "t", oid=1)]),
        "apply", ("DROP TABLE IF EXISTS app.t",), notes='out of scope, left out of the statement: table "other"."o"',
    ),
    "drop of a table with parts": applies(
        event("DROP TABLE", "drop table t", dropped=[
            gone("index", "app", "t_pkey", original=False), gone("sequence", "app", "t_id_seq", original=False),
            gone("table constraint", "app", "t_pkey", original=False, table=["app", "t"]),
            gone("table", "app", "t", oid=1)]),
        "DROP TABLE app.t",
    ),
    "CASCADE is spelled out": Case(
        event("DROP TABLE", "drop table t cascade", dropped=[
            gone("view", "app", "v", original=False, normal=True, oid=4),
            gone("table", "app", "t", oid=1)]),
        "apply", ('DROP VIEW IF EXISTS app.v', "DROP TABLE app.t"), notes="CASCADE spelled out",
    ),
    "CASCADE to a foreign key and a column": Case(
        event("DROP TYPE", "drop type m cascade", dropped=[
            gone("table column", "app", "a", original=False, normal=True, table=["app", "t"], identity="app.t.a"),
            gone("type", "app", "m")]),
        "apply", ("ALTER TABLE IF EXISTS app.t DROP IF EXISTS a", "DROP TYPE app.m"), notes="table column app.t.a",
    ),
    "CASCADE out of the scope": Case(
        event("DROP TABLE", "drop table t cascade", dropped=[
            gone("view", "other", "w", original=False, normal=True), gone("table", "app", "t", oid=1)]),
        "apply", ("DROP TABLE app.t",), notes="CASCADE also dropped what is out of scope",
    ),
    "CASCADE into the scope": Case(
        event("DROP TABLE", "drop table other.o cascade", dropped=[
            gone("view", "app", "v", original=False, normal=True, oid=4), gone("table", "other", "o", oid=3)]),
        "apply", ("DROP VIEW IF EXISTS app.v",),
    ),
    "CASCADE of an ALTER TABLE": Case(
        on(T, "ALTER TABLE", "alter table t drop column b cascade", dropped=[
            gone("view", "app", "v", original=False, normal=True, oid=4),
            gone("table column", "app", "b", table=["app", "t"], objsubid=2)]),
        "apply", ("DROP VIEW IF EXISTS app.v", "ALTER TABLE app.t DROP b"), notes="CASCADE spelled out",
    ),
    "tables that refer to each other": applies(
        event("DROP TABLE", "drop table t, u", dropped=[gone("table", "app", "t", oid=1),
              gone("table", "app", "u", oid=2)]),
        "DROP TABLE app.t, app.u",
    ),
    "drop of a function by its arguments": applies(
        event("DROP FUNCTION", "drop function f", dropped=[gone("function", "app", "f",
              identity="app.f(integer,app.m[])")]),
        "DROP FUNCTION app.f(int, app.m[])",
    ),
    "drop of an aggregate without arguments": applies(
        event("DROP AGGREGATE", "drop aggregate a(*)", dropped=[gone("aggregate", "app", "a", identity="app.a()")]),
        "DROP AGGREGATE app.a(*)",
    ),
    "drop of a trigger": applies(
        event("DROP TRIGGER", "drop trigger tr on t", dropped=[gone("trigger", "app", "tr", table=["app", "t"],
              identity="tr on app.t")]),
        "DROP TRIGGER tr ON app.t",
    ),
    "drop of an index concurrently": applies(
        event("DROP INDEX", "drop index concurrently i", dropped=[gone("index", "app", "i")]),
        "DROP INDEX CONCURRENTLY IF EXISTS app.i",
    ),
    "drop of a range type": applies(
        event("DROP TYPE", "drop type r", dropped=[
            gone("cast", None, None, original=False, identity="(app.r AS app.r_multirange)"),
            gone("function", "app", "r_multirange", original=False, normal=True, identity="app.r_multirange(app.r)"),
            gone("type", "app", "r_multirange", original=False, normal=True),
            gone("function", "app", "r", original=False, normal=True, identity="app.r(integer,integer)"),
            gone("type", "app", "r")]),
        "DROP TYPE app.r",
    ),
    "drop of a table that the pipeline does not take": Case(
        event("DROP TABLE", "drop table zz", dropped=[gone("table", "app", "zz")]), "skip",
        rule="app.zz is not among the tables", by=lambda: app(include=["app.t"]),
    ),
    "DROP OWNED": Case(
        event("DROP OWNED", "drop owned by x", dropped=[gone("table", "app", "t", oid=1)]), "unhandled", rule="revokes"
    ),
    # --- subcommands and foreign keys ---
    "an excluded subcommand is cut out": Case(
        on(T, "ALTER TABLE", "alter table t add b int, disable trigger all"), "apply",
        ("ALTER TABLE app.t ADD COLUMN b int",), notes="subcommand DISABLE TRIGGER (all) is excluded",
        by=lambda: app(exclude_alter_table_subcommands="common"),
    ),
    "nothing but excluded subcommands": Case(
        on(T, "ALTER TABLE", "alter table t disable trigger all, set (fillfactor = 50)"), "skip",
        rule="is excluded", by=lambda: app(exclude_alter_table_subcommands="common"),
    ),
    "a key is an index, not a constraint": applies(
        on(T, "ALTER TABLE", "alter table t add primary key (id)"), "ALTER TABLE app.t ADD PRIMARY KEY (id)",
        by=lambda: app(exclude_alter_table_subcommands="common"),
    ),
    "the server's variants mean the action": Case(
        on(T, "ALTER TABLE", "alter table t add check (id > 0)"), "skip", rule="subcommand ADD CONSTRAINT",
        by=lambda: app(exclude_alter_table_subcommands=["add constraint (and  recurse)"]),
    ),
    "a foreign key out of the scope is cut out": Case(
        on(NEW, "CREATE TABLE", "create table x (id int references other.o deferrable not null, b int)"), "apply",
        ("CREATE TABLE app.x (id int NOT NULL, b int)",), notes="foreign key to other.o",
    ),
    "of a table, too": Case(
        on(NEW, "CREATE TABLE", "create table x (id int, foreign key (id) references other.o, check (id > 0))"),
        "apply", ("CREATE TABLE app.x (id int, CHECK (id > 0))",), notes="foreign key to other.o",
    ),
    "of a new column, too": Case(
        on(T, "ALTER TABLE", "alter table t add b int references other.o"), "apply",
        ("ALTER TABLE app.t ADD COLUMN b int",), notes="foreign key to other.o",
    ),
    "nothing but a foreign key": Case(
        on(T, "ALTER TABLE", "alter table t add foreign key (a) references other.o"), "skip",
        rule="foreign key to other.o",
    ),
    "a foreign key out of the scope is refused": Case(
        on(NEW, "CREATE TABLE", "create table x (id int references other.o)"), "unhandled",
        rule="it refers to other.o", by=lambda: app(out_of_scope_references="unhandled"),
    ),
    "a key that was cut out is not validated": Case(
        on(table(1, "app", "t", ["id"], constraints=[foreign_key("fk", ["other", "o"])]), "ALTER TABLE",
           "alter table t validate constraint fk"),
        "skip", rule="the foreign key fk was left out",
    ),
    "a sequence's owner out of the scope": Case(
        event("CREATE SEQUENCE", "create sequence s owned by other.o.id", [thing("CREATE SEQUENCE", "sequence", 30,
              "app", "s", table=3)], tables=[O]),
        "apply", ("CREATE SEQUENCE app.s",), notes="owner other.o",
    ),
    "nothing but an owner out of the scope": Case(
        event("ALTER SEQUENCE", "alter sequence s owned by other.o.id", [thing("ALTER SEQUENCE", "sequence", 30,
              "app", "s", table=3)], tables=[O]),
        "skip", rule="owner other.o",
    ),
    "statistics of a table out of the scope": Case(
        event("CREATE STATISTICS", "create statistics st on id, a from other.o", [thing("CREATE STATISTICS",
              "statistics object", 30, "app", "st", table=3)], tables=[O]),
        "skip", rule="schema other",
    ),
    # --- grants ---
    "a grant on a temporary table": Case(
        event("GRANT", "grant select on tmp, t to r", [thing("GRANT", "TABLE", identity=None)],
              names={"tmp": "pg_temp_3", "t": "app"}),
        "apply", ("GRANT select ON app.t TO r",),
    ),
    "a grant on several": Case(
        event("GRANT", "grant select on t, other.o to r", [thing("GRANT", "TABLE", identity=None)],
              names={"t": "app"}),
        "apply", ("GRANT select ON app.t TO r",), notes="other.o",
    ),
    "a grant out of scope": Case(
        event("REVOKE", "revoke select on other.o from r", [thing("REVOKE", "TABLE", identity=None)]),
        "skip", rule="other.o is out of scope",
    ),
    "a grant on schemas": Case(
        event("GRANT", "grant select on all tables in schema app, other to r",
              [thing("GRANT", "TABLE", identity=None)]),
        "apply", ("GRANT select ON ALL TABLES IN SCHEMA app TO r",), notes="other",
    ),
    "default privileges of every schema": Case(
        event("ALTER DEFAULT PRIVILEGES", "alter default privileges grant select on tables to r",
              [thing("ALTER DEFAULT PRIVILEGES", "TABLES", identity=None)]),
        "skip", rule="no schema",
    ),
    "a grant within a function": Case(
        event("GRANT", "select f()", [thing("GRANT", "TABLE", identity=None)], nested=True),
        "unhandled", rule="its event names no objects",
    ),
    # --- defaults (C6) ---
    "ADD COLUMN keeps what old rows show": applies(
        on(table(1, "app", "t", ["id", "a", column(3, "at", "timestamp with time zone", default="now()",
           missing="2026-01-01 00:00:00+00")]), "ALTER TABLE", "alter table t add at timestamptz default now()"),
        "ALTER TABLE app.t ADD COLUMN at timestamptz DEFAULT '2026-01-01 00:00:00+00'",
        "ALTER TABLE app.t ALTER COLUMN at SET DEFAULT now()",
    ),
    "ADD COLUMN with a constant": applies(
        on(table(1, "app", "t", ["id", "a", column(3, "n", default="5", missing="5")]), "ALTER TABLE",
           "alter table t add n int default 5"),
        "ALTER TABLE app.t ADD COLUMN n int DEFAULT 5",
    ),
    "ADD COLUMN with the word now": applies(
        on(table(1, "app", "t", ["id", "a", column(3, "d", "date", default="'2026-01-01'::date",
           missing="2026-01-01")]), "ALTER TABLE", "alter table t add d date default 'now'"),
        "ALTER TABLE app.t ADD COLUMN d date DEFAULT '2026-01-01'",
        "ALTER TABLE app.t ALTER COLUMN d SET DEFAULT '2026-01-01'::date",
    ),
    "ADD COLUMN with the word now within a range": applies(
        on(table(1, "app", "t", ["id", "a", column(3, "d", "daterange", default="'[2026-01-01,)'::daterange",
           missing="[2026-01-01,)")]), "ALTER TABLE", "alter table t add d daterange default '[Now,)'"),
        "ALTER TABLE app.t ADD COLUMN d daterange DEFAULT '[2026-01-01,)'",
        "ALTER TABLE app.t ALTER COLUMN d SET DEFAULT '[2026-01-01,)'::daterange",
    ),
    "ADD COLUMN with a word that has now in it": applies(
        on(table(1, "app", "t", ["id", "a", column(3, "d", "text", default="'known'::text", missing="known")]),
           "ALTER TABLE", "alter table t add d text default 'known'"),
        "ALTER TABLE app.t ADD COLUMN d text DEFAULT 'known'",
    ),
    "ADD COLUMN that rewrote": applies(
        on(table(1, "app", "t", ["id", "a", column(3, "r", default="random()")]), "ALTER TABLE",
           "alter table t add r float default random()", rewritten=[{"oid": 1, "reason": 2}]),
        "ALTER TABLE app.t ADD COLUMN r double precision DEFAULT random()",
    ),
    "ADD COLUMN of a domain with a default": applies(
        on(table(1, "app", "t", ["id", "a", column(3, "d", "app.dd", missing="7")]), "ALTER TABLE",
           "alter table t add d dd", names={"dd": "app"}),
        "ALTER TABLE app.t ADD COLUMN d app.dd DEFAULT '7'", "ALTER TABLE app.t ALTER COLUMN d DROP DEFAULT",
    ),
    "ADD COLUMN on a table that could not be described": Case(
        event("ALTER TABLE", "alter table t add d date default now()", [of_table(T, "ALTER TABLE")],
              names={"t": "app"}),
        "unhandled", rule="what rows show that are older than the column is not known",
    ),
    "a plain one": applies(
        event("ALTER TABLE", "alter table t add d int default 5", [of_table(T, "ALTER TABLE")], names={"t": "app"}),
        "ALTER TABLE app.t ADD COLUMN d int DEFAULT 5", by=lambda: rules([("app", "t")], scope="replicated_tables"),
    ),
    # --- without text ---
    "CREATE TABLE AS": Case(
        on(NEW, "CREATE TABLE AS", "create table x as select * from t"), "apply",
        ("CREATE TABLE app.x (id int, b int)",), notes="rebuilt", by=rules,
    ),
    "SELECT INTO": Case(
        on(NEW, "SELECT INTO", "select id, b into x from t"), "apply", ("CREATE TABLE app.x (id int, b int)",),
        notes="rebuilt", by=rules,
    ),
    "within a function, with its text": applies(
        on(NEW, "CREATE TABLE", "select f()", nested=True, inner="create table x (id serial)", names={}),
        "CREATE TABLE app.x (id serial)",
    ),
    "within a function, without": Case(
        on(NEW, "CREATE TABLE", "do $$begin …", nested=True), "apply", ("CREATE TABLE app.x (id int, b int)",),
        notes="rebuilt",
    ),
    "within a function, another's text": Case(
        on(NEW, "CREATE TABLE", "select f()", nested=True, inner="create table y (id int)"), "apply",
        ("CREATE TABLE app.x (id int, b int)",), notes="rebuilt",
    ),
    "within a function, with names that are not told": Case(
        on(NEW, "CREATE TABLE", "select f()", nested=True, inner="create table x (id int, b int references zz)",
           names={}),
        "apply", ("CREATE TABLE app.x (id int, b int)",), notes="the schema of zz is not known",
    ),
    "what the parser cannot read": Case(
        on(NEW, "CREATE TABLE", "create tabel x (id int)"), "apply", ("CREATE TABLE app.x (id int, b int)",),
        notes="rebuilt",
    ),
    "what can be neither read nor rebuilt": Case(
        event("ALTER FUNCTION", "alter fuction f(int) cost 5",
              [thing("ALTER FUNCTION", "function", 30, "app", "f", identity="app.f(integer)")]),
        "unhandled", rule="the parser cannot read this ALTER FUNCTION",
    ),
    "backslashes that may be anything": Case(
        on(NEW, "CREATE TABLE", "create table x (id int, b text default 'a\\n')",
           settings={"standard_conforming_strings": "off"}),
        "apply", ("CREATE TABLE app.x (id int, b int)",), notes="not standard-conforming",
    ),
    "a command that is about nothing": Case(
        event("ALTER TABLE", "alter table t drop column a", dropped=[gone("table column", "app", "a",
              table=["app", "t"])]),
        "unhandled", rule="its event names no objects",
    ),
    # --- in place ---
    "in place: the table": applies(
        on(T, "ALTER TABLE", "alter table t add b int"), "ALTER TABLE app.t ADD COLUMN b int",
        by=lambda: rules([("app", "t")], in_place=True),
    ),
    "in place: no tag is too much": applies(
        event("CREATE INDEX", "create index i on t (a)", [thing("CREATE INDEX", "index", 30, "app", "i", table=1)],
              tables=[T], names={"t": "app"}),
        "CREATE INDEX i ON app.t USING btree (a)", by=lambda: rules([("app", "t")], in_place=True),
    ),
    "in place: another": Case(
        on(U, "ALTER TABLE", "alter table u add b int"), "skip", rule="it has already happened",
        by=lambda: rules([("app", "t")], in_place=True),
    ),
    "in place: renamed": Case(
        on(table(1, "app", "t2", ["id"]), "ALTER TABLE", "alter table t rename to t2"), "unhandled",
        rule="was renamed", by=lambda: rules([("app", "t")], in_place=True),
    ),
    "in place: dropped": Case(
        event("DROP TABLE", "drop table t", dropped=[gone("table", "app", "t", oid=1)]), "unhandled",
        rule="was dropped", by=lambda: rules([("app", "t")], in_place=True),
    ),
}
# fmt: on


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_one_command(case: Case) -> None:
    (decision,) = judged([case.event], case.by())
    assert (decision.verdict, decision.statements) == (case.verdict, case.statements), decision
    assert case.rule in decision.rule, decision
    if case.notes:
        (note,) = decision.notes
        assert case.notes in note
    assert decision.rebuilt == ("rebuilt" in "".join(decision.notes))
    assert decision.concurrently == ("CONCURRENTLY" in "".join(decision.statements))


def test_foreign_keys_between_dropped_tables_go_first() -> None:
    one = table(5, "app", "one", constraints=[foreign_key("to_two", ["app", "two"])])
    two = table(6, "app", "two", constraints=[foreign_key("to_one", ["app", "one"])])
    dropped = [
        gone("table", "app", "one", oid=5, original=False, normal=True),
        gone("view", "app", "w", original=False, normal=True),
        gone("table", "app", "two", oid=6, original=False, normal=True),
        gone("schema", None, "app", classid="pg_namespace"),
    ]
    (decision,) = judged([event("DROP SCHEMA", "drop schema app cascade", dropped=dropped)], known=[one, two])
    assert decision.statements == (
        "ALTER TABLE IF EXISTS app.one DROP CONSTRAINT IF EXISTS to_two",
        "ALTER TABLE IF EXISTS app.two DROP CONSTRAINT IF EXISTS to_one",
        "DROP TABLE IF EXISTS app.one",
        "DROP VIEW IF EXISTS app.w",
        "DROP TABLE IF EXISTS app.two",
        "DROP SCHEMA app",
    )


def test_every_subcommand_of_the_seed_is_known() -> None:
    assert set(COMMON_ALTER_TABLE_SUBCOMMANDS) <= KNOWN


@pytest.mark.parametrize(
    ("statement", "mapped"),
    [
        ("GRANT SELECT ON app.t TO app, other", "GRANT select ON app.t TO app_v2, other"),
        ("ALTER TABLE app.t OWNER TO app", "ALTER TABLE app.t OWNER TO app_v2"),
        ("CREATE POLICY p ON app.t TO app USING (true)", "CREATE POLICY p ON app.t TO app_v2 USING (true)"),
        ("ALTER TABLE app.app ADD COLUMN app int", "ALTER TABLE app.app ADD COLUMN app int"),
    ],
)
def test_roles_are_mapped(statement: str, mapped: str) -> None:
    assert map_roles(statement, {"app": "app_v2"}) == mapped


def test_what_needs_a_table_that_is_left_out_is_known_by_its_oid() -> None:
    """Through renames, and until it is made over what is covered."""
    left = LeftOut()
    versions = {meta["oid"]: meta for meta in KNOWN_TABLES}

    def view(name: str, statement: str, tag: str = "CREATE VIEW", seq: int = 1) -> CapturedEvent:
        meta = table(8, "app", name, ["id"], kind="v", definition="")
        return on(meta, tag, statement, names={"u": "app", "t": "app"}, batch=f"{seq}.1")

    events = [
        view("x", "create view x as select id from u"),
        view("y", "alter view x rename to y", "ALTER VIEW", 2),
        event("GRANT", "grant select on app.y, app.t to app", batch="3.1"),
        view("y", "create or replace view y as select id from t", seq=4),
        view("y", "alter view y set (security_barrier)", "ALTER VIEW", 5),
        view("y", "create or replace view y as select id from u", seq=6),
        event("DROP VIEW", "drop view y", dropped=[gone("view", "app", "y", oid=8)], batch="7.1"),
    ]
    decisions = decide(events, app(include=["app.t"]), versions, left)
    assert [each.verdict for each in decisions] == ["skip", "skip", "apply", "apply", "apply", "unhandled", "skip"]
    assert decisions[1].rule == '"app"."x" needs app.u, which the pipeline leaves out'
    assert decisions[2].statements == ("GRANT select ON app.t TO app",)
    assert left.objects == {}


def test_nothing_is_left_out_that_the_target_has() -> None:
    meta = table(8, "app", "x", ["id"], kind="v", definition="")
    made = on(meta, "CREATE VIEW", "create view x as select id from u", names={"u": "app"})
    versions = {meta["oid"]: meta for meta in KNOWN_TABLES}
    left = LeftOut(on_target=lambda kind, name, _: (kind, name) == ("pg_class", ("app", "u")))
    for each in (left, LeftOut(of_extensions=frozenset({("app", "u")}))):
        (decision,) = decide([made], app(include=["app.t"]), dict(versions), each)
        assert decision.verdict == "apply"
        assert each.to_json() == {}
