"""By which statements captured commands are done again: names, roles, defaults, and what has no text to go by."""

from __future__ import annotations

import pytest

from airflow_provider_pgddl.engine.ddl.grants import map_roles
from tests.unit.hand_made import column, event, gone, of_table, table, thing
from tests.unit.judged import NEW, Case, T, V, app, applies, assert_decided, on, rules

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
}
# fmt: on


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_one_command(case: Case) -> None:
    assert_decided(case)


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
