"""Everything that is no table: views, functions, types, triggers, rules, policies, grants, comments, statistics …"""

from __future__ import annotations

from tests.integration.scenarios import Scenario
from tests.integration.scenarios.tables import EVENTS, FUNCTION, LONG, ORDERS, TWO

MOOD = "CREATE TYPE app.mood AS ENUM ('sad', 'ok')"
PAIR = "CREATE TYPE app.pair AS (a int, b text)"
POSITIVE = "CREATE DOMAIN app.positive AS int CHECK (VALUE > 0)"
TRIGGER = "CREATE TRIGGER t BEFORE INSERT ON app.orders FOR EACH ROW EXECUTE FUNCTION app.f()"
VIEW = "CREATE VIEW app.v AS SELECT id, note FROM app.orders"
MATERIALIZED = "CREATE MATERIALIZED VIEW app.m AS SELECT id, note FROM app.orders"
SEQUENCE = "CREATE SEQUENCE app.s"

SCENARIOS = {
    # --- views and sequences -----------------------------------------------------------------------------------------
    "views": Scenario(
        [VIEW, "CREATE OR REPLACE VIEW app.v WITH (security_barrier) AS SELECT id, note, total FROM app.orders",
         "ALTER VIEW app.v ALTER note SET DEFAULT 'x'", "ALTER VIEW app.v RENAME COLUMN total TO sum",
         "ALTER VIEW app.v RENAME TO w", "ALTER VIEW app.w SET SCHEMA app_two", "DROP VIEW app_two.w"],
        expect=["applied"] * 7, before=ORDERS,
    ),
    "a view with words that are no names": Scenario(
        "CREATE VIEW app.v AS WITH orders AS (SELECT 1 AS id), other AS (SELECT * FROM app.orders)"
        " SELECT o.id, other.note, (SELECT count(*) FROM orders) AS orders FROM orders o JOIN other ON o.id = other.id",
        before=ORDERS,
    ),
    "a recursive view": Scenario(
        "CREATE RECURSIVE VIEW app.r (n) AS SELECT 1 UNION ALL SELECT n + 1 FROM r WHERE n < 9"
    ),
    "a view that may be written through": Scenario(
        "CREATE VIEW app.v AS SELECT * FROM app.orders WHERE id > 5 WITH CASCADED CHECK OPTION", before=ORDERS
    ),
    "materialized views": Scenario(
        [MATERIALIZED, "CREATE UNIQUE INDEX ON app.m (id)", "REFRESH MATERIALIZED VIEW app.m",
         "ALTER MATERIALIZED VIEW app.m RENAME TO n", "DROP MATERIALIZED VIEW app.n"],
        expect=["applied", "applied", "skipped: tag REFRESH MATERIALIZED VIEW", "applied", "applied"], before=ORDERS,
    ),
    "sequences": Scenario(
        [SEQUENCE, "CREATE SEQUENCE app.down AS smallint INCREMENT -2 MAXVALUE 100 CYCLE OWNED BY app.orders.id",
         "ALTER SEQUENCE app.s INCREMENT 10 CACHE 5", "ALTER SEQUENCE app.s OWNED BY app.orders.note",
         "ALTER SEQUENCE app.s RENAME TO q", "ALTER TABLE app.orders ALTER id SET DEFAULT nextval('app.q')",
         "DROP SEQUENCE app.q CASCADE"],
        expect=["applied"] * 7, before=ORDERS,
    ),
    # --- functions ---------------------------------------------------------------------------------------------------
    "functions": Scenario(
        ["CREATE FUNCTION app.f(a int, b text DEFAULT ';') RETURNS text LANGUAGE sql IMMUTABLE AS $b$ SELECT 'a;' $b$",
         "CREATE FUNCTION app.f(a bigint) RETURNS int LANGUAGE sql RETURN a + 1",
         "CREATE FUNCTION app.many(VARIADIC a int[]) RETURNS TABLE (n int) LANGUAGE sql AS 'SELECT 1'",
         "ALTER FUNCTION app.f(int, text) STRICT SECURITY DEFINER SET search_path = app",
         "ALTER FUNCTION app.f(bigint) RENAME TO g", "DROP FUNCTION app.f, app.g(bigint)"],
        expect=["applied"] * 6,
    ),
    "a function body with everything in it": Scenario(
        [("CREATE FUNCTION app.f() RETURNS void LANGUAGE plpgsql AS $x$ BEGIN -- ; ' $$\n EXECUTE $y$DROP TABLE app.t; "
         "CREATE TABLE a (b int)$y$; COMMIT; END $x$")]
    ),
    "a function with a body of SQL": Scenario(
        ["CREATE FUNCTION app.add(a int) RETURNS int BEGIN ATOMIC SELECT 1; SELECT max(id) + a FROM app.orders; END"],
        before=ORDERS,
    ),
    "a function of a table's type": Scenario(
        ["CREATE FUNCTION app.title(o app.orders) RETURNS text LANGUAGE sql AS 'SELECT o.note'",
         "CREATE INDEX ON app.orders ((note || 'x')) WHERE total > 0"],
        expect=TWO, before=ORDERS,
    ),
    "procedures and aggregates": Scenario(
        ["CREATE PROCEDURE app.p(a int, INOUT b int) LANGUAGE plpgsql AS 'BEGIN b := a; END'",
         "CREATE AGGREGATE app.total(int) (SFUNC = int4pl, STYPE = int, INITCOND = '0')",
         "ALTER PROCEDURE app.p(int, int) RENAME TO q", "ALTER AGGREGATE app.total(int) RENAME TO sum_up",
         "DROP PROCEDURE app.q(int, int)", "DROP AGGREGATE app.sum_up(int)"],
        expect=["applied"] * 6,
    ),
    "operators": Scenario(
        ["CREATE FUNCTION app.near(int, int) RETURNS bool LANGUAGE sql IMMUTABLE AS 'SELECT abs($1 - $2) < 2'",
         "CREATE OPERATOR app.<~> (LEFTARG = int, RIGHTARG = int, FUNCTION = app.near)",
         "DROP OPERATOR app.<~> (int, int)"],
        expect=["applied"] * 3,
    ),
    "text search": Scenario(
        ["CREATE TEXT SEARCH DICTIONARY app.words (TEMPLATE = simple, STOPWORDS = english)",
         "CREATE TEXT SEARCH CONFIGURATION app.search (COPY = pg_catalog.simple)",
         "ALTER TEXT SEARCH CONFIGURATION app.search ALTER MAPPING FOR asciiword WITH app.words",
         "ALTER TEXT SEARCH DICTIONARY app.words (ACCEPT = false)",
         "CREATE INDEX ON app.orders USING gin (to_tsvector('app.search', note))",
         "DROP TEXT SEARCH CONFIGURATION app.search CASCADE", "DROP TEXT SEARCH DICTIONARY app.words"],
        expect=["applied"] * 7, before=ORDERS,
    ),
    "operator classes, families and conversions": Scenario(
        ["CREATE OPERATOR FAMILY app.family USING btree",
         ("CREATE OPERATOR CLASS app.ints FOR TYPE int USING btree FAMILY app.family AS OPERATOR 1 <, OPERATOR 2 <=,"
          " OPERATOR 3 =, OPERATOR 4 >=, OPERATOR 5 >, FUNCTION 1 btint4cmp(int, int)"),
         "CREATE INDEX ON app.orders (id app.ints)", "ALTER OPERATOR CLASS app.ints USING btree RENAME TO numbers",
         "DROP OPERATOR FAMILY app.family USING btree CASCADE",
         "CREATE CONVERSION app.c FOR 'LATIN1' TO 'UTF8' FROM iso8859_1_to_utf8", "DROP CONVERSION app.c"],
        expect=["applied"] * 7, before=ORDERS,
    ),
    "a domain and its table": Scenario(
        ["CREATE DOMAIN app.d AS int", "CREATE TABLE app.of_d (id app.d PRIMARY KEY)"], expect=TWO
    ),
    # --- types -------------------------------------------------------------------------------------------------------
    "enum": Scenario(
        [MOOD, "ALTER TYPE app.mood ADD VALUE 'good'", "ALTER TYPE app.mood ADD VALUE IF NOT EXISTS 'fine' BEFORE 'ok'",
         "ALTER TYPE app.mood RENAME VALUE 'sad' TO 'it''s bad'", "ALTER TYPE app.mood RENAME TO temper"],
        expect=["applied"] * 5,
    ),
    "enum value in a transaction with its use": Scenario(
        ["BEGIN", "ALTER TYPE app.mood ADD VALUE 'good'", "CREATE TABLE app.days (m app.mood)", "COMMIT",
         "ALTER TABLE app.days ALTER m SET DEFAULT 'good'"],
        expect=["applied"] * 3, before=MOOD,
    ),
    "enum value that is there": Scenario("ALTER TYPE app.mood ADD VALUE IF NOT EXISTS 'ok'", before=MOOD),
    "composite": Scenario(
        [PAIR, "ALTER TYPE app.pair ADD ATTRIBUTE c numeric(8,2), DROP ATTRIBUTE a",
         "ALTER TYPE app.pair RENAME ATTRIBUTE b TO words", 'ALTER TYPE app.pair ALTER ATTRIBUTE words TYPE varchar(5)',
         "ALTER TYPE app.pair SET SCHEMA app_two", "DROP TYPE app_two.pair"],
        expect=["applied"] * 6,
    ),
    "domain": Scenario(
        [POSITIVE, "ALTER DOMAIN app.positive ADD CONSTRAINT small CHECK (VALUE < 100) NOT VALID",
         "ALTER DOMAIN app.positive VALIDATE CONSTRAINT small", "ALTER DOMAIN app.positive SET DEFAULT 5",
         "ALTER DOMAIN app.positive SET NOT NULL", "ALTER DOMAIN app.positive RENAME CONSTRAINT small TO tiny",
         "ALTER DOMAIN app.positive DROP CONSTRAINT tiny", "ALTER DOMAIN app.positive RENAME TO above",
         "CREATE TABLE app.t (a app.above[])", "DROP DOMAIN app.above CASCADE"],
        expect=["applied"] * 10,
    ),
    "range, collation and cast": Scenario(
        ["CREATE TYPE app.span AS RANGE (SUBTYPE = float8)",
         "CREATE COLLATION app.german (PROVIDER = libc, LOCALE = 'C')",
         "CREATE TABLE app.t (s app.span, m app.span_multirange, t text COLLATE app.german)", "DROP TABLE app.t",
         "DROP TYPE app.span", "DROP COLLATION app.german"],
        expect=["applied"] * 6,
    ),
    # --- triggers, rules, policies -----------------------------------------------------------------------------------
    "triggers": Scenario(
        [FUNCTION, TRIGGER, ("CREATE OR REPLACE TRIGGER t AFTER UPDATE OF note ON app.orders FOR EACH ROW"
         " WHEN (OLD.note IS DISTINCT FROM NEW.note) EXECUTE FUNCTION app.f('a', 'b''c')"),
         "ALTER TRIGGER t ON app.orders RENAME TO u", "ALTER TABLE app.orders DISABLE TRIGGER u",
         "ALTER TABLE app.orders ENABLE ALWAYS TRIGGER u", "DROP TRIGGER u ON app.orders"],
        expect=["applied"] * 7, before=ORDERS,
    ),
    "constraint triggers and transition tables": Scenario(
        ["CREATE CONSTRAINT TRIGGER c AFTER INSERT ON app.orders DEFERRABLE FOR EACH ROW EXECUTE FUNCTION app.f()",
         ("CREATE TRIGGER s AFTER INSERT ON app.orders REFERENCING NEW TABLE AS fresh FOR EACH STATEMENT"
         " EXECUTE FUNCTION app.f()")],
        expect=TWO, before=[ORDERS, FUNCTION],
    ),
    "a trigger on partitions": Scenario(
        ["CREATE TRIGGER t AFTER INSERT ON app.events FOR EACH ROW EXECUTE FUNCTION app.f()",
         "CREATE TABLE app.events_2 PARTITION OF app.events FOR VALUES FROM (100) TO (200)",
         "DROP TRIGGER t ON app.events"],
        expect=["applied"] * 3, before=[*EVENTS, FUNCTION],
    ),
    "rules": Scenario(
        ["CREATE RULE r AS ON INSERT TO app.orders DO ALSO (NOTIFY a; DELETE FROM app.orders WHERE id = NEW.id - 100)",
         "CREATE RULE s AS ON UPDATE TO app.orders WHERE NEW.total < 0 DO INSTEAD NOTHING",
         "ALTER TABLE app.orders DISABLE RULE r", "ALTER RULE r ON app.orders RENAME TO q",
         "DROP RULE q ON app.orders"],
        expect=["applied"] * 5, before=ORDERS,
    ),
    "policies": Scenario(
        ["ALTER TABLE app.orders ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY",
         "CREATE POLICY p ON app.orders AS RESTRICTIVE FOR UPDATE TO pgddl_app, public USING (id > 0)",
         "ALTER POLICY p ON app.orders TO pgddl_weak USING (id > (SELECT min(id) FROM app.orders o))",
         "ALTER POLICY p ON app.orders RENAME TO q", "CREATE POLICY other ON app.orders",
         "DROP POLICY q ON app.orders"],
        expect=["applied"] * 6, before=ORDERS,
    ),
    # --- indexes and statistics --------------------------------------------------------------------------------------
    "indexes": Scenario(
        ["CREATE INDEX ON app.orders (lower(note) text_pattern_ops DESC NULLS LAST) INCLUDE (total) WHERE id > 5",
         "CREATE UNIQUE INDEX named ON app.orders USING btree (total, note COLLATE \"C\") NULLS NOT DISTINCT",
         "ALTER INDEX app.named RENAME TO renamed", "ALTER INDEX app.renamed SET (fillfactor = 50)",
         "DROP INDEX app.orders_lower_total_idx"],
        expect=["applied"] * 5, before=ORDERS,
    ),
    "indexes concurrently": Scenario(
        ["CREATE INDEX CONCURRENTLY named ON app.orders (note)", "REINDEX INDEX CONCURRENTLY app.named",
         "CREATE INDEX CONCURRENTLY ON app.orders (total)", "DROP INDEX CONCURRENTLY app.named"],
        before=ORDERS, expect=["applied"] * 3,  # REINDEX fires event triggers from 17 on
    ),
    "indexes of one name made twice": Scenario(
        ["CREATE INDEX ON app.orders (note)", "CREATE INDEX ON app.orders (note)", "DROP INDEX app.orders_note_idx"],
        expect=["applied"] * 3, before=ORDERS,
    ),
    "statistics": Scenario(
        ["CREATE STATISTICS app.st (ndistinct, dependencies) ON note, total FROM app.orders",
         "CREATE STATISTICS ON (note || 'x'), total FROM app.orders", "ALTER STATISTICS app.st SET STATISTICS 50",
         "ALTER STATISTICS app.st RENAME TO su", "DROP STATISTICS app.su"],
        expect=["applied"] * 5, before=ORDERS,
    ),
    # --- grants and comments -----------------------------------------------------------------------------------------
    "grants": Scenario(
        ["GRANT SELECT, UPDATE (note) ON app.orders TO pgddl_app WITH GRANT OPTION",
         "GRANT ALL ON ALL TABLES IN SCHEMA app TO pgddl_weak", "GRANT USAGE ON SCHEMA app TO PUBLIC",
         "GRANT EXECUTE ON FUNCTION app.f() TO pgddl_weak", "REVOKE UPDATE ON app.orders FROM pgddl_weak",
         "REVOKE GRANT OPTION FOR SELECT ON app.orders FROM pgddl_app",
         "REVOKE ALL ON FUNCTION app.f FROM PUBLIC"],
        expect=["applied"] * 7, before=[ORDERS, FUNCTION],
    ),
    "grants on types and sequences": Scenario(
        ["GRANT USAGE ON TYPE app.mood TO pgddl_app", "REVOKE USAGE ON TYPE app.mood FROM PUBLIC",
         "GRANT USAGE ON SEQUENCE app.s TO pgddl_app"],
        expect=["applied"] * 3, before=[MOOD, SEQUENCE],
    ),
    "default privileges": Scenario(
        ["ALTER DEFAULT PRIVILEGES IN SCHEMA app GRANT SELECT ON TABLES TO pgddl_weak", ORDERS,
         "ALTER DEFAULT PRIVILEGES IN SCHEMA app REVOKE SELECT ON TABLES FROM pgddl_weak",
         "CREATE TABLE app.ungranted ()"],
        expect=["applied"] * 4,
    ),
    "comments": Scenario(
        ["COMMENT ON TABLE app.orders IS 'of; all'", "COMMENT ON COLUMN app.orders.note IS $x$it's$x$",
         "COMMENT ON CONSTRAINT orders_pkey ON app.orders IS 'key'", "COMMENT ON INDEX app.orders_pkey IS 'key, too'",
         "COMMENT ON TRIGGER t ON app.orders IS 'it'", "COMMENT ON FUNCTION app.f() IS 'f'",
         "COMMENT ON SCHEMA app IS 'all of it'", "COMMENT ON TABLE app.orders IS NULL"],
        expect=["applied"] * 8, before=[ORDERS, FUNCTION, TRIGGER],
    ),
    "comments on types and views": Scenario(
        ["COMMENT ON TYPE app.mood IS 'm'", "COMMENT ON DOMAIN app.positive IS 'p'", "COMMENT ON VIEW app.v IS 'v'",
         "COMMENT ON CONSTRAINT positive_check ON DOMAIN app.positive IS 'c'", "COMMENT ON COLUMN app.v.id IS 'i'"],
        expect=["applied"] * 5, before=[ORDERS, MOOD, POSITIVE, VIEW],
    ),
    # --- schemas and extensions --------------------------------------------------------------------------------------
    "a schema and what is in it": Scenario(
        [("CREATE SCHEMA app_new CREATE TABLE t (id int PRIMARY KEY) CREATE VIEW v AS SELECT id FROM t"
         " CREATE INDEX ON t (id)"), "DROP SCHEMA app_new CASCADE"],
        expect=TWO,  # for the server it is one command
    ),
    "rename a schema": Scenario(
        ["ALTER SCHEMA app RENAME TO app_renamed", "ALTER TABLE app_renamed.orders ADD a int",
         "SET search_path = app_renamed", "ALTER TABLE orders RENAME a TO b"],
        expect=["applied"] * 3, before=ORDERS,
    ),
    "schemas change places": Scenario(
        ["BEGIN", "ALTER SCHEMA app RENAME TO app_old", "ALTER SCHEMA app_two RENAME TO app", "COMMIT",
         "CREATE TABLE app.orders (other int)", "ALTER TABLE app_old.orders ADD a int"],
        expect=["applied"] * 4, before=ORDERS,
    ),
    "what a typed table takes along": Scenario(
        ["ALTER TYPE app.pair ADD ATTRIBUTE c int CASCADE", "ALTER TYPE app.pair RENAME ATTRIBUTE a TO aa CASCADE",
         "DROP TYPE app.pair CASCADE"],
        expect=["applied"] * 3, before=[PAIR, "CREATE TABLE app.pairs OF app.pair"],
    ),
    "a function replaced, and dropped and made again": Scenario(
        ["CREATE OR REPLACE FUNCTION app.f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN OLD; END'",
         "DROP FUNCTION app.f() CASCADE",
         "CREATE FUNCTION app.f(OUT a int, OUT b text) LANGUAGE sql AS 'SELECT 1, $$x$$'"],
        expect=["applied"] * 3, before=[ORDERS, FUNCTION, TRIGGER],
    ),
    "columns of views and indexes renamed as a table's": Scenario(
        ["ALTER TABLE app.v RENAME COLUMN note TO n", "ALTER TABLE app.orders_pkey RENAME TO key",
         "ALTER TABLE app.v RENAME TO w", "ALTER TABLE app.s RENAME TO q", "ALTER TABLE app.w OWNER TO pgddl_app",
         "ALTER INDEX app.key SET TABLESPACE pg_default"],
        expect=["applied"] * 6, before=[ORDERS, VIEW, SEQUENCE],
    ),
    "sequences of tables": Scenario(
        ["ALTER SEQUENCE app.t_a_seq OWNED BY NONE", "ALTER TABLE app.t DROP a",
         "ALTER SEQUENCE app.t_b_seq RENAME TO bs",
         "ALTER TABLE app.t RENAME b TO bb", "ALTER SEQUENCE app.bs RESTART WITH 5 MAXVALUE 900",
         "DROP SEQUENCE app.t_a_seq",
         "ALTER TABLE app.t SET SCHEMA app_two"],
        expect=["applied"] * 7, before="CREATE TABLE app.t (a serial, b int GENERATED BY DEFAULT AS IDENTITY)",
    ),
    "a view that is read by others, replaced by a table": Scenario(
        ["BEGIN", "ALTER VIEW app.v RENAME TO old", "CREATE TABLE app.v AS SELECT * FROM app.old", "DROP VIEW app.old",
         "COMMIT", "CREATE VIEW app.w AS SELECT * FROM app.v"],
        expect=["applied", "rebuilt", "applied", "applied"], before=[ORDERS, VIEW],
    ),
    "inheritance given and taken": Scenario(
        ["CREATE TABLE app.child (id int NOT NULL, note text, total numeric(10,2))",
         "ALTER TABLE app.child INHERIT app.orders",
         "ALTER TABLE app.orders RENAME note TO n", "ALTER TABLE ONLY app.orders ADD CHECK (id > 0) NO INHERIT",
         "ALTER TABLE app.orders ALTER total TYPE numeric(12,2)", "DROP TABLE app.orders CASCADE"],
        expect=["applied"] * 6, before=ORDERS,
    ),
    "a long schema": Scenario(
        [f"CREATE SCHEMA app{LONG[3:]}", f"CREATE TABLE app{LONG[3:]}.{LONG} ({LONG} int)",
         f"ALTER TABLE app{LONG[3:]}.{LONG} SET SCHEMA app", f"DROP SCHEMA app{LONG[3:]}"],
        expect=["applied"] * 4,
    ),
}  # fmt: skip
