"""Which captured commands are done again: by their schema, their tag, what they drop and what they refer to."""

from __future__ import annotations

import pytest

from airflow_provider_pgddl.engine.ddl.captured_events import CapturedEvent
from airflow_provider_pgddl.engine.ddl.decide import decide
from airflow_provider_pgddl.engine.ddl.left_out import LeftOut
from airflow_provider_pgddl.engine.ddl.subcommands import KNOWN
from airflow_provider_pgddl.engine.pipeline.tags import COMMON_ALTER_TABLE_SUBCOMMANDS
from tests.unit.hand_made import event, foreign_key, gone, table, thing
from tests.unit.judged import KNOWN_TABLES, NEW, OUT, Case, O, T, U, app, applies, assert_decided, judged, on, rules

# fmt: off
CASES: dict[str, Case] = {
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
    assert_decided(case)


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
