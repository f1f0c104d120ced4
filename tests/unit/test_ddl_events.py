"""What a statement is about: tag, object, table, references, phase."""

from __future__ import annotations

import json
from typing import NamedTuple

import pytest

from airflow_provider_pgddl.engine.ddl.events import DdlEvent, events_from_dump, without
from airflow_provider_pgddl.engine.ddl.parse import parse
from airflow_provider_pgddl.engine.ddl.subject import subject_of
from airflow_provider_pgddl.engine.errors import StageFailed
from airflow_provider_pgddl.engine.model.names import Name

T: Name = ("shop", "orders")


class Case(NamedTuple):
    statement: str
    tag: str
    kind: str
    schema: str | None
    name: str | None
    table: Name | None
    mentions: tuple[Name, ...] = ()
    phase: str | None = "create"  # in the section where pg_dump has it; None: pg_dump never prints it


CASES = [
    Case("CREATE SCHEMA shop", "CREATE SCHEMA", "schema", "shop", "shop", None),
    Case("ALTER SCHEMA shop OWNER TO x", "ALTER SCHEMA", "schema", "shop", "shop", None, phase="finish"),
    Case("CREATE EXTENSION IF NOT EXISTS hstore WITH SCHEMA public", "CREATE EXTENSION", "extension", None,
         "hstore", None),
    Case("CREATE TYPE shop.s AS ENUM ('a')", "CREATE TYPE", "type", "shop", "s", None),
    Case("CREATE TYPE shop.c AS (a int)", "CREATE TYPE", "type", "shop", "c", None),
    Case("CREATE TYPE shop.r AS RANGE (subtype = int)", "CREATE TYPE", "type", "shop", "r", None),
    Case("CREATE TYPE shop.shell", "CREATE TYPE", "type", "shop", "shell", None),
    Case("CREATE TYPE shop.b (INPUT = f, OUTPUT = g)", "CREATE TYPE", "type", "shop", "b", None),
    Case("ALTER TYPE shop.s OWNER TO x", "ALTER TYPE", "type", "shop", "s", None),
    Case("CREATE DOMAIN shop.d AS text CHECK (VALUE <> '')", "CREATE DOMAIN", "domain", "shop", "d", None),
    Case("ALTER DOMAIN shop.d ADD CONSTRAINT c CHECK (true) NOT VALID", "ALTER DOMAIN", "domain", "shop", "d", None),
    Case("CREATE FUNCTION shop.f(a int) RETURNS int LANGUAGE sql AS 'x'", "CREATE FUNCTION", "function", "shop",
         "f", None),
    Case("CREATE PROCEDURE shop.p() LANGUAGE sql AS 'x'", "CREATE PROCEDURE", "procedure", "shop", "p", None),
    Case("ALTER FUNCTION shop.f(a int) OWNER TO x", "ALTER FUNCTION", "function", "shop", "f", None),
    Case("ALTER PROCEDURE shop.p() OWNER TO x", "ALTER PROCEDURE", "procedure", "shop", "p", None),
    Case("CREATE AGGREGATE shop.a(int) (SFUNC = f, STYPE = int)", "CREATE AGGREGATE", "aggregate", "shop", "a", None),
    Case("CREATE OPERATOR shop.=== (FUNCTION = shop.f, LEFTARG = int)", "CREATE OPERATOR", "operator", "shop",
         "===", None),
    Case("ALTER OPERATOR shop.=== (int, int) OWNER TO x", "ALTER OPERATOR", "operator", "shop", "===", None),
    Case("CREATE OPERATOR FAMILY shop.fam USING btree", "CREATE OPERATOR FAMILY", "operator family", "shop", "fam",
         None),
    Case("CREATE OPERATOR CLASS shop.c FOR TYPE int USING btree AS OPERATOR 1 <", "CREATE OPERATOR CLASS",
         "operator class", "shop", "c", None),
    Case("ALTER OPERATOR FAMILY shop.fam USING btree ADD OPERATOR 1 < (int, int)", "ALTER OPERATOR FAMILY",
         "operator family", "shop", "fam", None),
    Case("CREATE COLLATION shop.c (provider = icu, locale = 'de')", "CREATE COLLATION", "collation", "shop", "c", None),
    Case("CREATE CONVERSION shop.c FOR 'UTF8' TO 'LATIN1' FROM utf8_to_iso8859_1", "CREATE CONVERSION", "conversion",
         "shop", "c", None),
    Case("CREATE CAST (shop.a AS text) WITH INOUT", "CREATE CAST", "cast", None, None, None),
    Case("CREATE TEXT SEARCH CONFIGURATION shop.w (PARSER = pg_catalog.\"default\")",
         "CREATE TEXT SEARCH CONFIGURATION",
         "text search configuration", "shop", "w", None),
    Case("CREATE TEXT SEARCH DICTIONARY shop.w (TEMPLATE = simple)", "CREATE TEXT SEARCH DICTIONARY",
         "text search dictionary", "shop", "w", None),
    Case("CREATE SERVER s FOREIGN DATA WRAPPER w", "CREATE SERVER", "server", None, "s", None),
    Case("CREATE ACCESS METHOD m TYPE TABLE HANDLER h", "CREATE ACCESS METHOD", "access method", None, "m", None),
    Case("CREATE OR REPLACE PROCEDURAL LANGUAGE plperl HANDLER h", "CREATE LANGUAGE", "language", None, "plperl", None),
    Case("CREATE SEQUENCE shop.n START 1", "CREATE SEQUENCE", "sequence", "shop", "n", None),
    Case("ALTER SEQUENCE shop.n OWNED BY shop.orders.id", "ALTER SEQUENCE", "sequence", "shop", "n", T),
    Case("ALTER SEQUENCE shop.n OWNED BY NONE", "ALTER SEQUENCE", "sequence", "shop", "n", None),
    Case("ALTER SEQUENCE shop.n OWNER TO x", "ALTER SEQUENCE", "sequence", "shop", "n", None),
    Case("ALTER TABLE shop.n OWNER TO x", "ALTER TABLE", "owner", "shop", "n", ("shop", "n")),
    Case("CREATE TABLE shop.orders (id int, d int DEFAULT nextval('shop.n'::regclass))", "CREATE TABLE", "table", *T, T,
         (("shop", "n"),)),
    Case("CREATE TABLE shop.orders () INHERITS (shop.base)", "CREATE TABLE", "table", *T, T, (("shop", "base"),)),
    Case("CREATE TABLE shop.orders PARTITION OF shop.all DEFAULT", "CREATE TABLE", "table", *T, T, (("shop", "all"),)),
    Case("CREATE UNLOGGED TABLE \"A.b\".\"c\"\"d\" ()", "CREATE TABLE", "table", "A.b", 'c"d', ("A.b", 'c"d')),
    Case("CREATE FOREIGN TABLE shop.orders (id int) SERVER s", "CREATE FOREIGN TABLE", "foreign table", *T, T),
    Case("CREATE VIEW shop.v AS SELECT * FROM shop.orders o, LATERAL (SELECT FROM shop.b) x", "CREATE VIEW", "view",
         "shop", "v", ("shop", "v"), (T, ("shop", "b"))),
    Case("CREATE VIEW shop.v AS WITH c AS (SELECT FROM shop.orders) SELECT FROM c", "CREATE VIEW", "view",
         "shop", "v", ("shop", "v"), (T,)),
    Case("CREATE MATERIALIZED VIEW shop.v AS SELECT FROM shop.orders WITH NO DATA", "CREATE MATERIALIZED VIEW",
         "materialized view", "shop", "v", ("shop", "v"), (T,)),
    Case("ALTER TABLE ONLY shop.orders ALTER COLUMN a SET DEFAULT nextval('shop.\"N\"'::regclass)", "ALTER TABLE",
         "default", *T, T, (("shop", "N"),)),
    Case("ALTER TABLE shop.orders ALTER COLUMN a SET STORAGE EXTERNAL", "ALTER TABLE", "table", *T, T),
    Case("ALTER TABLE shop.orders ALTER COLUMN a ADD GENERATED ALWAYS AS IDENTITY (SEQUENCE NAME shop.q)",
         "ALTER TABLE",
         "identity", *T, T),
    Case("ALTER TABLE ONLY shop.all ATTACH PARTITION shop.orders FOR VALUES IN (1)", "ALTER TABLE", "partition",
         "shop", "all", ("shop", "all"), (T,)),
    Case("ALTER TABLE ONLY shop.orders ADD CONSTRAINT k PRIMARY KEY (id)", "ALTER TABLE", "primary key", "shop", "k", T,
         phase="index"),
    Case("ALTER TABLE ONLY shop.orders ADD CONSTRAINT k UNIQUE NULLS NOT DISTINCT (a) INCLUDE (b) DEFERRABLE",
         "ALTER TABLE", "unique", "shop", "k", T, phase="index"),
    Case("ALTER TABLE shop.orders ADD CONSTRAINT k EXCLUDE USING gist (a WITH &&)", "ALTER TABLE", "exclude",
         "shop", "k",
         T, phase="index"),
    Case("ALTER TABLE shop.orders ADD CONSTRAINT k CHECK (a > 0) NOT VALID", "ALTER TABLE", "check", "shop", "k", T,
         phase="index"),
    Case("ALTER TABLE shop.orders ADD CONSTRAINT k NOT NULL a NOT VALID", "ALTER TABLE", "not null", "shop", "k", T,
         phase="index"),
    Case("ALTER TABLE ONLY shop.orders ADD CONSTRAINT k FOREIGN KEY (a) REFERENCES shop.b(id)", "ALTER TABLE",
         "foreign key", "shop", "k", T, (("shop", "b"),), "foreign_key"),
    Case("ALTER TABLE ONLY shop.orders ADD CONSTRAINT k FOREIGN KEY (a) REFERENCES shop.orders(id)", "ALTER TABLE",
         "foreign key", "shop", "k", T, (), "foreign_key"),
    Case("CREATE INDEX i ON ONLY shop.orders USING btree (a)", "CREATE INDEX", "index", "shop", "i", T, phase="index"),
    Case("ALTER INDEX shop.i ATTACH PARTITION shop.j", "ALTER INDEX", "index", "shop", "i", None, (("shop", "j"),),
         "index"),
    Case("ALTER INDEX shop.i ALTER COLUMN 1 SET STATISTICS 5", "ALTER INDEX", "index", "shop", "i", None,
         phase="index"),
    Case("ALTER TABLE shop.orders CLUSTER ON i", "ALTER TABLE", "cluster", *T, T, phase="index"),
    Case("ALTER TABLE shop.orders REPLICA IDENTITY USING INDEX i", "ALTER TABLE", "replica identity", *T, T,
         phase="index"),
    Case("CREATE STATISTICS shop.s ON a, (lower(b)) FROM shop.orders", "CREATE STATISTICS", "statistics", "shop",
         "s", T,
         phase="index"),
    Case("ALTER STATISTICS shop.s SET STATISTICS 5", "ALTER STATISTICS", "statistics", "shop", "s", None,
         phase="index"),
    Case("ALTER STATISTICS shop.s OWNER TO x", "ALTER STATISTICS", "statistics", "shop", "s", None, phase="index"),
    Case("CREATE TRIGGER t BEFORE INSERT ON shop.orders FOR EACH ROW EXECUTE FUNCTION shop.f()", "CREATE TRIGGER",
         "trigger", "shop", "t", T, phase="finish"),
    Case("ALTER TABLE shop.orders ENABLE ALWAYS TRIGGER t", "ALTER TABLE", "trigger", "shop", "t", T, phase="finish"),
    Case("ALTER TABLE shop.orders DISABLE RULE r", "ALTER TABLE", "rule", "shop", "r", T, phase="finish"),
    Case("ALTER TABLE shop.orders ENABLE ROW LEVEL SECURITY", "ALTER TABLE", "row security", *T, T, phase="finish"),
    Case("ALTER TABLE ONLY shop.orders FORCE ROW LEVEL SECURITY", "ALTER TABLE", "row security", *T, T, phase="finish"),
    Case("CREATE RULE r AS ON DELETE TO shop.orders DO ALSO DELETE FROM shop.b", "CREATE RULE", "rule", "shop", "r", T,
         (("shop", "b"),), "finish"),
    Case('CREATE RULE "_RETURN" AS ON SELECT TO shop.orders DO INSTEAD SELECT 1', "CREATE RULE", "rule", "shop",
         "_RETURN", T, phase="index"),
    Case("CREATE POLICY p ON shop.orders USING (a IN (SELECT b.a FROM shop.b))", "CREATE POLICY", "policy", "shop", "p",
         T, (("shop", "b"),), "finish"),
    Case("CREATE EVENT TRIGGER e ON sql_drop EXECUTE FUNCTION shop.f()", "CREATE EVENT TRIGGER", "event trigger", None,
         "e", None, phase="finish"),
    Case("ALTER EVENT TRIGGER e DISABLE", "ALTER EVENT TRIGGER", "event trigger", None, "e", None, phase="finish"),
    Case("COMMENT ON TABLE shop.orders IS 'x'", "COMMENT", "table", *T, T, phase="finish"),
    Case("COMMENT ON COLUMN shop.orders.a IS 'x'", "COMMENT", "column", *T, T, phase="finish"),
    Case("COMMENT ON CONSTRAINT k ON shop.orders IS 'x'", "COMMENT", "constraint", "shop", "k", T, phase="finish"),
    Case("COMMENT ON TRIGGER t ON shop.orders IS 'x'", "COMMENT", "trigger", "shop", "t", T, phase="finish"),
    Case("COMMENT ON POLICY p ON shop.orders IS 'x'", "COMMENT", "policy", "shop", "p", T, phase="finish"),
    Case("COMMENT ON INDEX shop.i IS 'x'", "COMMENT", "index", "shop", "i", None, phase="finish"),
    Case("COMMENT ON SCHEMA shop IS 'x'", "COMMENT", "schema", "shop", "shop", None, phase="finish"),
    Case("COMMENT ON FUNCTION shop.f(int) IS 'x'", "COMMENT", "function", "shop", "f", None, phase="finish"),
    Case("COMMENT ON TYPE shop.c IS 'x'", "COMMENT", "type", "shop", "c", None, phase="finish"),
    Case("COMMENT ON EXTENSION hstore IS 'x'", "COMMENT", "extension", None, "hstore", None, phase="finish"),
    Case("SECURITY LABEL FOR p ON TABLE shop.orders IS 'x'", "SECURITY LABEL", "table", *T, T, phase="finish"),
    Case("GRANT SELECT ON TABLE shop.orders TO x", "GRANT", "table", *T, T, phase="finish"),
    Case("GRANT INSERT(a),UPDATE(a) ON TABLE shop.orders TO x", "GRANT", "table", *T, T, phase="finish"),
    Case("REVOKE ALL ON SEQUENCE shop.n FROM x", "REVOKE", "sequence", "shop", "n", None, phase="finish"),
    Case("GRANT USAGE ON SCHEMA shop TO x", "GRANT", "schema", "shop", "shop", None, phase="finish"),
    Case("GRANT ALL ON FUNCTION shop.f(int) TO x", "GRANT", "function", "shop", "f", None, phase="finish"),
    Case("GRANT ALL ON TYPE shop.s TO x", "GRANT", "type", "shop", "s", None, phase="finish"),
    Case("ALTER DEFAULT PRIVILEGES FOR ROLE x IN SCHEMA shop GRANT SELECT ON TABLES TO y", "ALTER DEFAULT PRIVILEGES",
         "default privileges", None, None, None, phase="finish"),
    Case("REFRESH MATERIALIZED VIEW shop.v", "REFRESH MATERIALIZED VIEW", "refresh materialized view", "shop", "v",
         ("shop", "v"), phase="finish"),
    Case("SET lock_timeout = 0", "SET", "set", None, "lock_timeout", None, phase="noise"),
    Case("SELECT pg_catalog.set_config('search_path', '', false)", "SELECT", "select", None, None, None, phase="noise"),
    Case("SELECT pg_catalog.setval('shop.n', 7, true)", "SELECT", "select", None, None, None, (), "noise"),
    Case("SELECT * FROM pg_catalog.pg_restore_relation_stats('version', '180000'::integer)", "SELECT", "select", None,
         None, None, phase="noise"),
    Case("INSERT INTO shop.orders VALUES (1)", "INSERT", "insert", *T, T, phase="noise"),
    Case("CREATE PUBLICATION p FOR ALL TABLES", "CREATE PUBLICATION", "publication", None, "p", None, phase="noise"),
    Case("ALTER PUBLICATION p OWNER TO x", "ALTER PUBLICATION", "publication", None, "p", None, phase="noise"),
    # Never in a dump of a schema; captured events will hold them.
    Case("DROP TABLE shop.orders, shop.b", "DROP TABLE", "table", *T, T, phase=None),
    Case("DROP INDEX shop.i", "DROP INDEX", "index", "shop", "i", None, phase=None),
    Case("DROP TRIGGER t ON shop.orders", "DROP TRIGGER", "trigger", "shop", "t", T, phase=None),
    Case("DROP SCHEMA shop CASCADE", "DROP SCHEMA", "schema", "shop", "shop", None, phase=None),
    Case("DROP FUNCTION shop.f(int)", "DROP FUNCTION", "function", "shop", "f", None, phase=None),
    Case("TRUNCATE shop.orders", "TRUNCATE TABLE", "truncate table", None, None, None, (T,), None),
    Case("DO $$ BEGIN END $$", "DO", "do", None, None, None, phase=None),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=[case.statement[:60] for case in CASES])
def test_a_statement_tells_what_it_is_about(case: Case) -> None:
    subject = subject_of(parse(case.statement))
    assert (subject.tag, subject.kind, subject.schema, subject.name, subject.table, subject.mentions) == case[1:7]


@pytest.mark.parametrize("case", CASES, ids=[case.statement[:60] for case in CASES])
def test_a_statement_of_a_dump_has_its_phase(case: Case) -> None:
    if case.phase is None:
        with pytest.raises(StageFailed, match="not expected to hold"):
            events_from_dump(case.statement, "")
        return
    late = case.phase in ("index", "foreign_key", "finish")
    (event,) = events_from_dump(*(("", case.statement) if late else (case.statement, "")))
    assert event.phase == case.phase
    assert event.statement == case.statement
    assert DdlEvent.from_json(json.loads(json.dumps(event.to_json()))) == event


@pytest.mark.parametrize(
    ("statement", "phase"),
    [
        ("CREATE OR REPLACE VIEW shop.v AS SELECT 1", "index"),
        ("CREATE FUNCTION shop.f() RETURNS int RETURN 1", "index"),
        ("ALTER DOMAIN shop.d ADD CONSTRAINT c CHECK (true) NOT VALID", "index"),
        ("CREATE MATERIALIZED VIEW shop.v AS SELECT 1 WITH NO DATA", "index"),
    ],
)
def test_what_pg_dump_put_off_waits_for_the_indexes(statement: str, phase: str) -> None:
    assert [event.phase for event in events_from_dump("", statement)] == [phase]


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("SELECT shop.surprise()", "not expected to run this query: SELECT shop.surprise"),
        ("SELECT pg_catalog.pg_terminate_backend(1)", "not expected to run this query"),
        ("SELECT pg_catalog.set_config('search_path', 'shop', false)", "expected to empty search_path"),
        ("SELECT pg_catalog.set_config('role', '', false)", "expected to empty search_path"),
        ("SET session_replication_role = replica", "the setting session_replication_role: SET session"),
        ("SET standard_conforming_strings = off", "standard_conforming_strings off"),
        ("LISTEN x", "ListenStmt.*: LISTEN x"),
        ("CREATE TABLE x (; )", "cannot read the statement that begins CREATE TABLE x"),
        ("DROP TABLE x", "not expected to hold a statement of this kind .DropStmt.: DROP TABLE x"),
    ],
)
def test_what_is_not_known_fails_loudly_and_is_named(statement: str, words: str) -> None:
    with pytest.raises(StageFailed, match=words):
        events_from_dump(f"SELECT pg_catalog.set_config('search_path', '', false);\n{statement};", "")


PRE = """
\\restrict x
CREATE TYPE shop.pair AS (a integer, b integer);
COMMENT ON COLUMN shop.pair.a IS 'first';
CREATE TABLE shop.orders (id integer NOT NULL, p shop.pair);
CREATE SEQUENCE shop.orders_id_seq;
ALTER SEQUENCE shop.orders_id_seq OWNER TO app;
ALTER SEQUENCE shop.orders_id_seq OWNED BY shop.orders.id;
COMMENT ON SEQUENCE shop.orders_id_seq IS 'ids';
CREATE TABLE shop.items (id bigint NOT NULL, order_id integer);
ALTER TABLE shop.items ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (SEQUENCE NAME shop.items_id_seq);
CREATE FUNCTION shop.rows() RETURNS SETOF shop.orders LANGUAGE sql AS 'SELECT';
CREATE VIEW shop.totals AS SELECT NULL::integer AS id, NULL::bigint AS n;
CREATE VIEW shop.over_totals AS SELECT n FROM shop.totals;
ALTER TABLE ONLY shop.orders ALTER COLUMN id SET DEFAULT nextval('shop.orders_id_seq'::regclass);
GRANT USAGE ON SEQUENCE shop.orders_id_seq TO app;
GRANT USAGE ON SEQUENCE shop.items_id_seq TO app;
GRANT SELECT ON TABLE shop.over_totals TO app;
\\unrestrict x
"""
POST = """
ALTER TABLE ONLY shop.items ADD CONSTRAINT items_pkey PRIMARY KEY (id);
ALTER TABLE ONLY shop.orders ADD CONSTRAINT orders_pkey PRIMARY KEY (id);
COMMENT ON INDEX shop.orders_pkey IS 'key';
CREATE INDEX orders_p ON shop.orders USING btree (p);
ALTER INDEX shop.orders_p ALTER COLUMN 1 SET STATISTICS 7;
ALTER INDEX shop.orders_pkey ATTACH PARTITION shop.items_pkey;
ALTER TABLE shop.orders CLUSTER ON orders_p;
CREATE STATISTICS shop.st ON id, p FROM shop.orders;
ALTER STATISTICS shop.st OWNER TO app;
CREATE OR REPLACE VIEW shop.totals AS SELECT o.id, count(*) AS n FROM shop.orders o GROUP BY o.id;
CREATE MATERIALIZED VIEW shop.late AS SELECT o.id FROM shop.orders o GROUP BY o.id WITH NO DATA;
CREATE INDEX late_id ON shop.late USING btree (id);
CREATE FUNCTION shop.late_fn(i integer) RETURNS integer RETURN i;
CREATE INDEX items_late ON shop.items USING btree (shop.late_fn(order_id));
CREATE TRIGGER t BEFORE INSERT ON shop.items FOR EACH ROW EXECUTE FUNCTION shop.f();
ALTER TABLE ONLY shop.items ADD CONSTRAINT items_fk FOREIGN KEY (order_id) REFERENCES shop.orders(id);
"""


def of(events: list[DdlEvent], tag: str, name: str) -> DdlEvent:
    (event,) = [event for event in events if event.tag == tag and event.name == name]
    return event


def test_events_know_from_their_neighbours_whose_they_are() -> None:
    events = events_from_dump(PRE, POST)
    orders, items = ("shop", "orders"), ("shop", "items")
    assert {e.table for e in events if e.name == "orders_id_seq"} == {orders}
    assert [e.table for e in events if e.tag == "GRANT"] == [orders, items, ("shop", "over_totals")]
    assert {e.table for e in events if e.name in ("orders_pkey", "orders_p", "st")} == {orders}
    assert of(events, "ALTER INDEX", "orders_pkey").references == (items,)
    assert of(events, "CREATE FUNCTION", "rows").references == (orders,)
    assert of(events, "CREATE TABLE", "orders").references == ()
    assert [e.table for e in events if e.kind == "column"] == [None]
    assert of(events, "ALTER TABLE", "items_fk").references == (orders,)
    assert [e.sequence for e in events if e.kind == "identity"] == [("shop", "items_id_seq")]
    assert {role for e in events for role in e.roles} == {"app"}
    assert [e.seq for e in events] == list(range(len(events)))


def test_tables_are_left_out_with_all_that_needs_them() -> None:
    kept, left_out = without(events_from_dump(PRE, POST), [("shop", "orders")])
    names = {event.name for event in left_out if event.tag.startswith("CREATE")}
    assert names == {
        *("orders", "orders_id_seq", "rows", "totals", "over_totals", "orders_p", "st", "late", "late_id"),
    }
    assert {(e.tag, e.name) for e in kept if e.phase != "noise"} == {
        ("CREATE TYPE", "pair"),
        ("COMMENT", "pair"),
        ("CREATE TABLE", "items"),
        ("ALTER TABLE", "items"),
        ("GRANT", "items_id_seq"),
        ("ALTER TABLE", "items_pkey"),
        ("CREATE FUNCTION", "late_fn"),
        ("CREATE INDEX", "items_late"),
        ("CREATE TRIGGER", "t"),
    }
    assert "items_fk" in {event.name for event in left_out}


def test_functions_of_a_tables_rows_are_left_out_with_what_is_said_about_them() -> None:
    events = events_from_dump(
        "CREATE TYPE s.pair AS (a s.gone, b integer); CREATE DOMAIN s.d AS text;"
        "CREATE FUNCTION s.f() RETURNS SETOF s.gone LANGUAGE sql AS 'x'; ALTER FUNCTION s.f() OWNER TO x;"
        "CREATE FUNCTION s.f(n integer, OUT m text) RETURNS text LANGUAGE sql AS 'x';"
        "ALTER FUNCTION s.f(n integer, OUT m text) OWNER TO x;"
        "CREATE FUNCTION s.g(p s.pair[]) RETURNS text LANGUAGE sql AS 'x'; COMMENT ON FUNCTION s.g(s.pair[]) IS 'x';"
        "CREATE FUNCTION s.only() RETURNS s.gone LANGUAGE sql AS 'x'; CREATE VIEW s.v AS SELECT s.only();"
        "CREATE VIEW s.w AS SELECT s.f(1); GRANT ALL ON FUNCTION s.f() TO x; CREATE TABLE s.t (v s.d);"
        "ALTER TYPE s.pair OWNER TO x; COMMENT ON TYPE s.pair IS 'x'; ALTER DOMAIN s.d OWNER TO x;"
        "CREATE AGGREGATE s.a(s.gone) (SFUNC = s.g, STYPE = integer); ALTER AGGREGATE s.a(s.gone) OWNER TO x;",
        "",
    )
    kept, left_out = without(events, [("s", "gone")])
    assert [(e.tag, e.name, e.arguments) for e in kept] == [
        ("CREATE DOMAIN", "d", None),
        ("CREATE FUNCTION", "f", ("pg_catalog.int4",)),
        ("ALTER FUNCTION", "f", ("pg_catalog.int4",)),
        ("CREATE VIEW", "w", None),
        ("CREATE TABLE", "t", None),
        ("ALTER DOMAIN", "d", None),
    ]
    assert len(kept) + len(left_out) == len(events)


def test_our_own_triggers_are_noise() -> None:
    events = events_from_dump(
        "",
        "CREATE TRIGGER pgddl_log AFTER INSERT ON shop.orders FOR EACH ROW EXECUTE FUNCTION pgddl.log('x');"
        "ALTER TABLE shop.orders ENABLE ALWAYS TRIGGER pgddl_log;"
        "ALTER TABLE shop.items DISABLE TRIGGER pgddl_log;"
        "CREATE EVENT TRIGGER e ON sql_drop EXECUTE FUNCTION pgddl.seen(); ALTER EVENT TRIGGER e ENABLE ALWAYS;"
        "CREATE TRIGGER theirs AFTER INSERT ON shop.orders FOR EACH ROW EXECUTE FUNCTION pgddled.log();",
    )
    assert [event.phase for event in events] == ["noise", "noise", "finish", "noise", "noise", "finish"]
    assert {event.note for event in events if event.phase == "noise"} == {"pgddl's own"}


def test_tablespace_and_access_method_are_written_into_the_statements() -> None:
    events = events_from_dump(
        "SET default_tablespace = fast; SET default_table_access_method = columnar; CREATE TABLE s.a (i int);"
        "CREATE TABLE s.p (i int) PARTITION BY LIST (i);"
        "SET default_tablespace = ''; SET default_table_access_method = heap; CREATE TABLE s.b (i int);",
        "SET default_tablespace = fast; ALTER TABLE ONLY s.a ADD CONSTRAINT k PRIMARY KEY (i);"
        "CREATE INDEX i ON s.a (i); ALTER TABLE s.a ADD CONSTRAINT c CHECK (i > 0);",
    )
    assert [event.statement for event in events if event.phase != "noise"] == [
        "CREATE TABLE s.a (i int) TABLESPACE fast",
        "ALTER TABLE s.a SET ACCESS METHOD columnar",
        "CREATE TABLE s.p (i int) PARTITION BY LIST (i) TABLESPACE fast",
        "CREATE TABLE s.b (i int)",
        "ALTER TABLE ONLY s.a ADD CONSTRAINT k PRIMARY KEY (i) USING INDEX TABLESPACE fast",
        "CREATE INDEX i ON s.a USING btree (i) TABLESPACE fast",
        "ALTER TABLE s.a ADD CONSTRAINT c CHECK (i > 0)",
    ]


def test_a_user_mappings_password_is_not_kept() -> None:
    (event,) = events_from_dump("CREATE USER MAPPING FOR x SERVER s OPTIONS (user 'u', password 'sesame')", "")
    assert "sesame" not in json.dumps(event.to_json())
    assert event.phase == "noise" and event.note


def test_rights_that_another_than_the_owner_granted_name_who_did() -> None:
    grants = events_from_dump(
        "",
        "GRANT SELECT ON TABLE shop.orders TO a WITH GRANT OPTION; SET SESSION AUTHORIZATION a;"
        "GRANT SELECT ON TABLE shop.orders TO b; RESET SESSION AUTHORIZATION; GRANT INSERT ON TABLE shop.orders TO c",
    )
    found = [(e.grantor, sorted(e.roles)) for e in grants if e.phase == "finish"]
    assert found == [(None, ["a"]), ("a", ["a", "b"]), (None, ["c"])]
    assert [DdlEvent.from_json(e.to_json()) for e in grants] == grants


def test_what_a_server_notes_among_options_by_itself_is_left_out() -> None:
    """An older pg_dump prints it, and a server that does not know it would refuse it."""
    dump = (
        "ALTER TABLE ONLY public.t ALTER COLUMN a SET (pg_attver=5);"
        "ALTER TABLE ONLY public.t ALTER COLUMN b SET (n_distinct=7, pg_attver=5);"
    )
    events = events_from_dump(dump, "")
    assert [(event.phase, event.statement) for event in events] == [
        ("noise", "ALTER TABLE ONLY public.t ALTER COLUMN a SET (pg_attver=5)"),
        ("create", "ALTER TABLE ONLY public.t ALTER COLUMN b SET (n_distinct=7)"),
    ]
