"""What is in scope: schemas, tags, subcommands, references, roles, policies about strings; the border."""

from __future__ import annotations

from tests.integration.scenarios import Scenario
from tests.integration.scenarios.tables import CUSTOMERS, EVENTS, FUNCTION, ORDERS, TWO

OUTSIDE = "CREATE TABLE other.orders (id int PRIMARY KEY, note text)"
NOT_OTHER = "skipped: scope: schema other does not match"
RESOLVED = "UPDATE pgddl.ddl_events SET status = 'resolved' WHERE status = 'unhandled'"
VECTOR = "CREATE EXTENSION vector SCHEMA app"

SCHEMAS = {
    "out of scope": Scenario(
        [OUTSIDE, "ALTER TABLE other.orders ADD a int", "CREATE INDEX ON other.orders (note)", "CREATE SCHEMA others",
         "COMMENT ON TABLE other.orders IS 'x'", "GRANT SELECT ON other.orders TO pgddl_app",
         "DROP TABLE other.orders"],
        expect=[NOT_OTHER, NOT_OTHER, NOT_OTHER, "skipped: scope: schema others does not match", NOT_OTHER,
                "skipped: scope: other.orders is out of scope", NOT_OTHER],
    ),
    "a schema in whatever case": Scenario(
        ['CREATE SCHEMA "APPLES"', 'CREATE TABLE "APPLES".t (id int)', 'CREATE SCHEMA "An app"'],
        expect=[*TWO, 'skipped: scope: schema "An app" does not match'],
    ),
    "what belongs to no schema": Scenario(
        ["CREATE PUBLICATION everything", "CREATE CAST (app.pair AS text) WITH INOUT",
         "DROP CAST (app.pair AS text)", "DROP PUBLICATION everything"],
        expect=["skipped: tag CREATE PUBLICATION", *["skipped: scope: it belongs to no schema"] * 2,
                "skipped: tag DROP PUBLICATION"], before="CREATE TYPE app.pair AS (a int)",
    ),
    "a mixed DROP": Scenario(
        "DROP TABLE other.orders, app.orders, app.customers", before=[ORDERS, OUTSIDE, CUSTOMERS],
        notes="other.orders",
    ),
    "a mixed DROP with nothing in scope": Scenario(
        "DROP TABLE other.orders, other.more", before=[OUTSIDE, "CREATE TABLE other.more ()"], expect=NOT_OTHER
    ),
    "a DROP whose CASCADE comes into the scope": Scenario(
        "DROP TABLE other.orders CASCADE",
        before=[OUTSIDE, "CREATE TABLE app.lines (id int, o int REFERENCES other.orders)",
                "CREATE TABLE app.orders (id int)"],
        # The target never had that foreign key.
    ),
    "a DROP SCHEMA whose CASCADE comes into the scope": Scenario(
        "DROP SCHEMA other CASCADE", before=["CREATE DOMAIN other.d AS int", "CREATE TABLE app.t (id int, d other.d)"],
        target="CREATE DOMAIN other.d AS int",
    ),
    "a DROP whose CASCADE leaves the scope": Scenario(
        "DROP TABLE app.orders CASCADE", before=[ORDERS, "CREATE VIEW other.v AS SELECT * FROM app.orders"],
        notes="other.v",
    ),
    "DROP SCHEMA of several": Scenario("DROP SCHEMA other, app_two CASCADE", before=OUTSIDE),
    "a mixed GRANT": Scenario(
        ["GRANT SELECT ON app.orders, other.orders TO pgddl_app", "GRANT USAGE ON SCHEMA other, app_two TO pgddl_weak",
         "GRANT SELECT ON ALL TABLES IN SCHEMA app, other TO pgddl_weak"],
        expect=["applied"] * 3, before=[ORDERS, OUTSIDE], notes=["other.orders", "other"],
    ),
    "a foreign key out of scope": Scenario(
        ["CREATE TABLE app.lines (id int PRIMARY KEY, o int REFERENCES other.orders, n int CONSTRAINT n CHECK (n > 0))",
         "ALTER TABLE app.orders ADD o int REFERENCES other.orders, ADD p int",
         "ALTER TABLE app.orders ADD FOREIGN KEY (p) REFERENCES other.orders",
         "ALTER TABLE app.orders RENAME CONSTRAINT orders_p_fkey TO key", "ALTER TABLE app.orders DROP CONSTRAINT key",
         "ALTER TABLE app.orders DROP CONSTRAINT orders_o_fkey, ADD q int"],
        expect=["applied", "applied", "skipped: foreign key to other.orders, which is out of scope, left out",
                "skipped: it is about a foreign key that was left out", "skipped: the foreign key key was left out",
                "applied"],
        before=[ORDERS, OUTSIDE], notes="foreign key to other.orders, which is out of scope, left out",
        differs=["- app.lines constraint lines_o_fkey"],
    ),
    "a table like one out of scope": Scenario(
        "CREATE TABLE app.copy (LIKE other.orders INCLUDING ALL, more int)", expect="rebuilt", before=OUTSIDE
    ),
    "a table that inherits from one out of scope": Scenario(
        "CREATE TABLE app.child () INHERITS (other.orders)", before=OUTSIDE,
        expect="unhandled: its parent other.orders is out of scope",
        differs="app.child",
    ),
    "a partition out of scope": Scenario(
        ["CREATE TABLE other.part PARTITION OF app.events FOR VALUES FROM (500) TO (600)",
         "ALTER TABLE app.events ADD a int"],
        before=EVENTS, expect=["unhandled: a parent or a child is out of scope", "pending"],
        differs=["- app.events column 3 a", "- app.events_1 column 3 a"],
    ),
    "a table of a query out of scope": Scenario(
        "CREATE TABLE app.copy AS SELECT * FROM other.orders", expect="rebuilt", before=OUTSIDE
    ),
    "a view on what is out of scope": Scenario(
        ["CREATE VIEW app.v AS SELECT id FROM other.orders", "CREATE TABLE app.t (id int)"],
        expect=['failed: relation "other.orders" does not exist', "pending"], before=OUTSIDE,
        by_hand="CREATE TABLE other.orders (id int PRIMARY KEY, note text)", then=TWO,
    ),
    "a function that names what is out of scope": Scenario(
        "CREATE FUNCTION app.f() RETURNS bigint LANGUAGE sql AS 'SELECT count(*) FROM other.orders'", before=OUTSIDE
    ),
    "a trigger out of scope with a function in scope": Scenario(
        "CREATE TRIGGER t BEFORE INSERT ON other.orders FOR EACH ROW EXECUTE FUNCTION app.f()", expect=NOT_OTHER,
        before=[OUTSIDE, FUNCTION],
    ),
    "an alteration out of scope that refers into it": Scenario(
        "ALTER TABLE other.orders ADD o int REFERENCES app.orders", expect=NOT_OTHER, before=[ORDERS, OUTSIDE]
    ),
    # --- across the border -------------------------------------------------------------------------------------------
    "SET SCHEMA out of the scope": Scenario(
        ["ALTER TABLE app.orders SET SCHEMA other", "ALTER TABLE other.orders ADD a int",
         "CREATE TABLE app.t (id int)"],
        before=ORDERS, expect=["unhandled: app.orders leaves the scope", "skipped", "pending"],
        by_hand=[RESOLVED,
                 "ALTER TABLE app.orders SET SCHEMA other"],
        then=["resolved", "skipped", "applied"],
    ),
    "SET SCHEMA into the scope": Scenario(
        ["ALTER TABLE other.orders SET SCHEMA app", "ALTER TABLE app.orders ADD a int"], before=OUTSIDE,
        expect=["unhandled: other.orders comes into the scope", "pending"],
        by_hand=[RESOLVED,
                 "CREATE TABLE app.orders (id int PRIMARY KEY, note text)"],
        then=["resolved", "applied"],
    ),
    "SET SCHEMA of others across the border": Scenario(
        ["ALTER FUNCTION app.f() SET SCHEMA other", "ALTER TYPE other.mood SET SCHEMA app",
         "ALTER VIEW app.v SET SCHEMA other"],
        before=[FUNCTION, "CREATE TYPE other.mood AS ENUM ('a')", "CREATE VIEW app.v AS SELECT 1 AS a"],
        expect=["unhandled: function of app leaves the scope", "unhandled: type of other comes into the scope",
                "unhandled: app.v leaves the scope"],
        by_hand=["ALTER FUNCTION app.f() SET SCHEMA other", "CREATE TYPE app.mood AS ENUM ('a')", "DROP VIEW app.v"],
        then=["unhandled"] * 3,
    ),
    "rename a schema out of the scope": Scenario(
        "ALTER SCHEMA app RENAME TO gone_app", before=ORDERS, expect="unhandled: schema app leaves the scope",
        by_hand=[RESOLVED, "ALTER SCHEMA app RENAME TO gone_app"], then="resolved",
    ),
    "rename a schema into the scope": Scenario(
        ["ALTER SCHEMA other RENAME TO app_other", "CREATE TABLE app.t (id int)"], before=OUTSIDE,
        expect=["unhandled: schema other comes into the scope", "pending"],
        by_hand=[RESOLVED, "ALTER SCHEMA other RENAME TO app_other",
                 "CREATE TABLE app_other.orders (id int PRIMARY KEY, note text)"],
        then=["resolved", "applied"],
    ),
}  # fmt: skip

TAGS = {
    "tags of pgl_ddl_deploy": Scenario(
        [ORDERS, "ALTER TABLE app.orders ADD a int", "CREATE SEQUENCE app.s", "ALTER SEQUENCE app.s CACHE 3",
         "CREATE SCHEMA app_new", FUNCTION, "ALTER FUNCTION app.f() STRICT", "CREATE TYPE app.m AS ENUM ('a')",
         "ALTER TYPE app.m ADD VALUE 'b'", "CREATE VIEW app.v AS SELECT 1 AS a", "ALTER VIEW app.v RENAME TO w",
         "COMMENT ON VIEW app.w IS 'w'", "CREATE RULE r AS ON DELETE TO app.orders DO INSTEAD NOTHING",
         "CREATE TRIGGER t BEFORE INSERT ON app.orders FOR EACH ROW EXECUTE FUNCTION app.f()",
         "ALTER TRIGGER t ON app.orders RENAME TO u", "SELECT 1 AS a INTO app.i", "CREATE TABLE app.j AS SELECT 1 AS a",
         "DROP TABLE app.orders", "DROP VIEW app.w", "DROP TYPE app.m", "DROP SEQUENCE app.s", "DROP FUNCTION app.f",
         "DROP SCHEMA app_new"],
        group="peers", expect=["applied"] * 15 + ["rebuilt"] * 2 + ["applied"] * 6,
    ),
    "not among the tags of pgl_ddl_deploy": Scenario(
        ["CREATE INDEX i ON app.orders (note)", "DROP INDEX app.i", "GRANT SELECT ON app.orders TO pgddl_app",
         "CREATE POLICY p ON app.orders", "CREATE DOMAIN app.d AS int", "CREATE PROCEDURE app.p() LANGUAGE sql AS ''",
         "CREATE MATERIALIZED VIEW app.m AS SELECT 1 AS a", "DROP MATERIALIZED VIEW app.m",
         "ALTER SCHEMA app_two RENAME TO app_three", VECTOR, "DROP EXTENSION vector"],
        group="peers", before=ORDERS,
        expect=["skipped: tag CREATE INDEX is not in create_tags", "skipped: tag DROP INDEX is not in drop_tags",
                "skipped: tag GRANT is not in create_tags", "skipped: tag CREATE POLICY is not in create_tags",
                "skipped: tag CREATE DOMAIN is not in create_tags",
                "skipped: tag CREATE PROCEDURE is not in create_tags",
                "skipped: tag CREATE MATERIALIZED VIEW is not in create_tags",
                "skipped: tag DROP MATERIALIZED VIEW is not in drop_tags",
                "skipped: tag ALTER SCHEMA is not in create_tags", "skipped: blocked tag CREATE EXTENSION",
                "skipped: blocked tag DROP EXTENSION"],
        by_hand=["CREATE DOMAIN app.d AS int", "CREATE POLICY p ON app.orders",
        "GRANT SELECT ON app.orders TO pgddl_app",
                 "CREATE PROCEDURE app.p() LANGUAGE sql AS ''", "ALTER SCHEMA app_two RENAME TO app_three"],
        then=["skipped"] * 11,
    ),
}  # fmt: skip

EVERYTHING = {
    "everything, in every schema": Scenario(
        [ORDERS, OUTSIDE, "ALTER TABLE app.orders SET SCHEMA app_two",
         ("ALTER TABLE app_two.orders ADD FOREIGN KEY (id)"
         " REFERENCES other.orders"), "ALTER SCHEMA other RENAME TO elsewhere", "DROP SCHEMA app",
         "CREATE SCHEMA fresh",
         "GRANT USAGE ON SCHEMA fresh TO pgddl_app", "DROP SCHEMA elsewhere CASCADE"],
        group="everything", expect=["applied"] * 9,
    ),
    "everything, without a schema": Scenario(
        ["CREATE PUBLICATION everything FOR TABLE app.orders", "CREATE CAST (app.pair AS text) WITH INOUT",
         "DROP CAST (app.pair AS text)", "DROP PUBLICATION everything"],
        group="everything", before=["CREATE TYPE app.pair AS (a int)", ORDERS], expect=["applied"] * 4,
    ),
    "everything but the excluded schemas": Scenario(
        ["CREATE SCHEMA repack", "CREATE TABLE repack.t (id int)", 'CREATE SCHEMA "PgLogical"', "DROP TABLE repack.t"],
        group="everything",
        expect=["skipped: scope: schema repack", "skipped: scope: schema repack", 'skipped: scope: schema "PgLogical"',
                "skipped: scope: schema repack"],
        differs=["- grant", "- grant", "- grant", "- grant"],
    ),
    "an extension": Scenario(
        [VECTOR, "CREATE TABLE app.items (id int, v app.vector(3))", ("CREATE INDEX ON app.items USING hnsw"
         " (v app.vector_l2_ops)"), "ALTER EXTENSION vector SET SCHEMA app_two", "DROP EXTENSION vector CASCADE"],
        group="everything",
        expect=["applied", "applied", "applied", "skipped: tag ALTER EXTENSION is not in create_tags", "applied"],
    ),
    "default privileges of a role": Scenario(
        ["ALTER DEFAULT PRIVILEGES FOR ROLE postgres GRANT SELECT ON TABLES TO pgddl_app", ORDERS,
         "ALTER DEFAULT PRIVILEGES FOR ROLE postgres REVOKE SELECT ON TABLES FROM pgddl_app"],
        group="everything", expect=["applied"] * 3,
    ),
    "drop owned": Scenario(
        ["SET ROLE pgddl_weak", ORDERS, "RESET ROLE", "DROP OWNED BY pgddl_weak"], group="everything",
        expect=["applied", "unhandled: DROP OWNED revokes rights as well"], by_hand="DROP OWNED BY pgddl_weak",
        then=["applied", "unhandled"],
    ),
    "unlisted tags": Scenario(
        ["CREATE FOREIGN DATA WRAPPER w", "DROP FOREIGN DATA WRAPPER w"], group="everything",
        expect=["skipped: tag CREATE FOREIGN DATA WRAPPER is not in create_tags",
                "skipped: tag DROP FOREIGN DATA WRAPPER is not in drop_tags"],
    ),
}  # fmt: skip

POLICIES = {
    "safe_only: DDL alone": Scenario(
        "CREATE TABLE app.a (id int); ALTER TABLE app.a ADD b int", group="cautious", expect=TWO
    ),
    "safe_only: rows among it": Scenario(
        ["CREATE TABLE app.a (id int); INSERT INTO app.a VALUES (1)", "CREATE TABLE app.b (id int); DROP TABLE app.b",
         "BEGIN; CREATE TABLE app.c (id int); COMMIT"], group="cautious",
        expect=["unhandled: multi_statements: safe_only: the string also holds INSERT", *["pending"] * 3],
        differs="app.",
    ),
    "safe_only: a query among it": Scenario(
        "CREATE TABLE app.a (id int); SELECT pg_sleep(0)", group="cautious", expect="applied"
    ),
    "single_only: one statement": Scenario(
        ["BEGIN", "CREATE TABLE app.a (id int);", "ALTER TABLE app.a ADD b int", "COMMIT",
         "BEGIN; CREATE TABLE app.c (id int); COMMIT"],
        group="single", expect=["applied"] * 3,
    ),
    "single_only: two statements": Scenario(
        "CREATE TABLE app.a (id int); ALTER TABLE app.a ADD b int", group="single",
        expect=["unhandled: multi_statements: single_only: the string holds 2 statements"] * 2,
        differs="app.a",
    ),
    "single_only: within another": Scenario(
        "DO $$ BEGIN CREATE TABLE app.a (id int); END $$", group="single",
        expect="unhandled: multi_statements: single_only: the command was run by another", differs="app.a",
    ),
    "subcommands": Scenario(
        ["ALTER TABLE app.orders DISABLE TRIGGER ALL", ("ALTER TABLE app.orders ADD a int, SET (fillfactor = 50),"
         " ADD CONSTRAINT c CHECK (a > 0), ALTER note SET NOT NULL"),
         "ALTER TABLE app.orders DROP CONSTRAINT c", "ALTER TABLE app.orders ENABLE ROW LEVEL SECURITY, SET UNLOGGED"],
        group="single", before=ORDERS,
        expect=["skipped: subcommand DISABLE TRIGGER (all) is excluded", "applied",
                "skipped: subcommand DROP CONSTRAINT is excluded", "applied"],
        notes=["subcommand SET RELOPTIONS is excluded", "subcommand ADD CONSTRAINT is excluded",
               "subcommand SET UNLOGGED is excluded"],
        differs=["+ app.orders table", "- app.orders table"],
    ),
    "references make it unhandled": Scenario(
        ["ALTER TABLE app.orders ADD o int REFERENCES other.orders", "ALTER TABLE app.orders ADD b int"],
        group="cautious", before=[ORDERS, OUTSIDE],
        expect=["unhandled: it refers to other.orders, which is out of scope", "pending"],
        differs=["- app.orders column 4 o", "- app.orders column 5 b", "- app.orders constraint orders_o_fkey"],
    ),
    "approval": Scenario(
        [ORDERS, "ALTER TABLE app.orders ADD a int", OUTSIDE], group="approval",
        expect=["awaiting_approval", "awaiting_approval", NOT_OTHER],
        by_hand="UPDATE pgddl.ddl_events SET status = 'pending' WHERE status = 'awaiting_approval'",
        then=["applied", "applied", NOT_OTHER],
    ),
    "approval of the later one alone": Scenario(
        [ORDERS, "ALTER TABLE app.orders ADD a int"], group="approval", expect=["awaiting_approval"] * 2,
        by_hand="UPDATE pgddl.ddl_events SET status = 'pending' WHERE seq = (SELECT max(seq) FROM pgddl.ddl_events)",
        then=["awaiting_approval", "pending"],
        differs="app.orders",
    ),
}  # fmt: skip

ROLES = {
    "as the client's role": Scenario(
        ["SET ROLE pgddl_app", ORDERS, "CREATE FUNCTION app.f() RETURNS int LANGUAGE sql AS 'SELECT 1'",
         "CREATE TYPE app.m AS ENUM ('a')", "CREATE SCHEMA app_mine", "GRANT SELECT ON app.orders TO pgddl_weak",
         "RESET ROLE", "ALTER TABLE app.orders ADD a int", "SET SESSION AUTHORIZATION pgddl_app",
         "CREATE TABLE app_mine.t (id serial)"],
        expect=["applied"] * 7,
    ),
    "in a function of somebody else": Scenario(
        ["SET ROLE pgddl_weak", "SELECT app.f()"],
        before=[("CREATE FUNCTION app.f() RETURNS void LANGUAGE plpgsql SECURITY DEFINER AS"
                " $$ BEGIN CREATE TABLE app.made (id int); END $$"), "ALTER FUNCTION app.f() OWNER TO pgddl_app"],
    ),
    "a role that the target lacks, ignored": Scenario(
        ["GRANT CREATE ON SCHEMA app TO pgddl_gone", "GRANT SELECT ON app.orders TO pgddl_gone, pgddl_app",
         "ALTER TABLE app.orders OWNER TO pgddl_gone", "CREATE POLICY p ON app.orders TO pgddl_gone, pgddl_weak"],
        before=ORDERS,
        expect=["skipped: left out, the target has no role pgddl_gone", "applied",
                "skipped: left out, the target has no role pgddl_gone", "applied"],
        notes=["cut out, the target has no role pgddl_gone"],
        differs="",
        check=(("SELECT polroles::regrole[]::text || has_table_privilege('pgddl_app', 'app.orders', 'SELECT')"
               " FROM pg_policy"), "{pgddl_weak}true"),
    ),
    "an ordinary role that the target lacks": Scenario(
        ["SET ROLE pgddl_gone", "CREATE TABLE app.t (id int)"], before="GRANT CREATE ON SCHEMA app TO pgddl_gone",
        expect="failed: the target has no role pgddl_gone", differs="",
    ),
    "a role that the target lacks, failing": Scenario(
        ["GRANT CREATE ON SCHEMA app TO pgddl_gone", "SET ROLE pgddl_gone", "CREATE TABLE app.t (id int)"],
        group="cautious", expect=['failed: role "pgddl_gone" does not exist', "pending"],
        differs="",
    ),
    "a role that the target lacks, mapped": Scenario(
        ["GRANT CREATE ON SCHEMA app TO pgddl_gone", "GRANT SELECT ON app.orders TO pgddl_gone",
         "CREATE POLICY p ON app.orders TO pgddl_gone", "ALTER TABLE app.orders OWNER TO pgddl_gone",
         "SET ROLE pgddl_gone", "CREATE TABLE app.t (id int)"],
        group="single", before=ORDERS, expect=["applied"] * 5,
        renames={"pgddl_gone": "pgddl_other"},
    ),
    "a role without the right": Scenario(
        ["SET ROLE pgddl_app", "CREATE TABLE app.t (id int)"], target="REVOKE CREATE ON SCHEMA app FROM pgddl_app",
        expect="failed: permission denied for schema app", by_hand="GRANT CREATE ON SCHEMA app TO pgddl_app",
        then="applied",
    ),
}  # fmt: skip

SCENARIOS = {**SCHEMAS, **TAGS, **EVERYTHING, **POLICIES, **ROLES}
