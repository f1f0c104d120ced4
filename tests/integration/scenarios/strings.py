"""How it is sent: many statements in a string, rows among them, in transactions, from functions, by another path."""

from __future__ import annotations

from tests.integration.scenarios import Scenario
from tests.integration.scenarios.tables import CUSTOMERS, FUNCTION, ORDERS, TWO

BIG = "x" * (1 << 20)
MAKES = """CREATE FUNCTION app.makes() RETURNS void LANGUAGE plpgsql AS $f$ BEGIN
    INSERT INTO app.orders VALUES (1, 'made');
    CREATE TABLE app.made (id int PRIMARY KEY);
    INSERT INTO app.made VALUES (1);
    ALTER TABLE app.made ADD COLUMN at timestamptz DEFAULT now();
END $f$"""

SCENARIOS = {
    # --- many statements in one string -------------------------------------------------------------------------------
    "many statements in a string": Scenario(
        "CREATE TABLE app.a (id int PRIMARY KEY); ALTER TABLE app.a ADD b text; CREATE INDEX ON app.a (b);"
        "\nCOMMENT ON TABLE app.a IS 'a; b'; -- the end;\n",
        expect=["applied"] * 4,
    ),
    "rows among the statements": Scenario(
        "INSERT INTO app.orders VALUES (1); CREATE TABLE app.a (id int); INSERT INTO app.a VALUES (1), (2);"
        " ALTER TABLE app.a ADD b int; UPDATE app.a SET b = id; TRUNCATE app.orders; DELETE FROM app.a; SELECT 1",
        expect=TWO, before=ORDERS, check=("SELECT count(*) FROM app.a", 0),
    ),
    "the same statement twice in a string": Scenario(
        "ALTER TABLE app.orders ADD a int; ALTER TABLE app.orders DROP a; ALTER TABLE app.orders ADD a int;"
        " ALTER TABLE app.orders DROP a; ALTER TABLE app.orders ADD a int",
        expect=["applied"] * 5, before=ORDERS,
    ),
    "one index twice in a string": Scenario(
        "CREATE INDEX ON app.orders (note); CREATE INDEX ON app.orders (note)", expect=TWO, before=ORDERS
    ),
    "create, drop and create in one transaction": Scenario(
        ["BEGIN", "CREATE TABLE app.t (a int)", "DROP TABLE app.t", "CREATE TABLE app.t (b text)", "COMMIT"],
        expect=["applied"] * 3,
    ),
    "create, drop and create in one string": Scenario(
        "CREATE TABLE app.t (a int); DROP TABLE app.t; CREATE TABLE app.t (a int); ALTER TABLE app.t ADD b int",
        expect=["applied"] * 4,
    ),
    "a string in which IF EXISTS does nothing": Scenario(
        "DROP TABLE IF EXISTS app.t; CREATE TABLE IF NOT EXISTS app.t (a int); CREATE TABLE IF NOT EXISTS app.t ();"
        " ALTER TABLE IF EXISTS app.nothing ADD c int; ALTER TABLE app.t ADD COLUMN IF NOT EXISTS a int;"
        " DROP VIEW IF EXISTS app.v; CREATE SCHEMA IF NOT EXISTS app; ALTER TABLE app.t ADD d int",
        # Which CREATE TABLE it was, the text does not tell.
        expect=["rebuilt", "applied", "applied"],
    ),
    "schemas with tables of one name in a string": Scenario(
        "SET LOCAL search_path = app; CREATE TABLE t (a int); SET LOCAL search_path = app_two; CREATE TABLE t (b int);"
        " ALTER TABLE t ADD c int",
        expect=["applied"] * 3,
    ),
    "a string with BEGIN and COMMIT in it": Scenario(
        "BEGIN; CREATE TABLE app.a (id int); COMMIT; BEGIN; CREATE TABLE app.b (id int); COMMIT;"
        " BEGIN; CREATE TABLE app.c (id int); ROLLBACK",
        expect=TWO,
    ),
    "a string that fails": Scenario("!CREATE TABLE app.a (id int); SELECT 1 / 0", expect=[]),
    "DEFAULT 'commit;'": Scenario(
        "CREATE TABLE app.t (a text DEFAULT 'commit;', b text DEFAULT $$; rollback; $$); ALTER TABLE app.t ADD c text"
        " DEFAULT 'it''s; DROP TABLE app.t; --'",
        expect=TWO,
    ),
    "comments in the text": Scenario(
        "/* CREATE TABLE app.no (a int); /* nested; */ */ CREATE /* ; */ TABLE -- app.x\n app.t (a int -- ; DROP\n)",
    ),
    "backslashes": Scenario(
        [r"CREATE TABLE app.t (a text DEFAULT E'a\'; b\\', b text DEFAULT 'a\', c text DEFAULT U&'d\0061t\+000061')",
         "SET standard_conforming_strings = off", "SET escape_string_warning = off",
         r"ALTER TABLE app.t ADD d text DEFAULT 'x\'y'"],
        expect=["applied", "rebuilt"],
    ),
    "a statement of 1 MB": Scenario(
        [f"CREATE FUNCTION app.big() RETURNS int LANGUAGE sql AS $$ SELECT 1 /* {BIG} */ $$",
         f"COMMENT ON TABLE app.orders IS '{BIG}'"],
        expect=TWO, before=ORDERS,
    ),
    "a string of 1 MB of rows around a statement": Scenario(
        f"INSERT INTO app.orders VALUES (1, '{BIG}'); ALTER TABLE app.orders ADD a int;"
        f" UPDATE app.orders SET note = '{BIG}'",
        before=ORDERS,
    ),
    "a table of 900 columns": Scenario(
        f"CREATE TABLE app.wide ({', '.join(f'c{n} numeric(10,2) DEFAULT {n}' for n in range(900))})"
    ),
    # --- transactions ------------------------------------------------------------------------------------------------
    "rolled back": Scenario(["BEGIN", ORDERS, "DROP SCHEMA app CASCADE", "ROLLBACK"], expect=[]),
    "savepoints": Scenario(
        ["BEGIN", "CREATE TABLE app.a (id int)", "SAVEPOINT s", "CREATE TABLE app.b (id int)",
         "ALTER TABLE app.a ADD gone int", "DROP TABLE app.orders", "ROLLBACK TO s", "ALTER TABLE app.a ADD stays int",
         "SAVEPOINT t", "ALTER TABLE app.orders ADD a int", "RELEASE t", "SAVEPOINT u",
         "!ALTER TABLE app.nothing ADD a int",
         "ROLLBACK TO u", "CREATE TABLE app.b (other text)", "COMMIT"],
        expect=["applied"] * 4, before=ORDERS,
    ),
    "savepoints in one string": Scenario(
        "BEGIN; CREATE TABLE app.t (a int); SAVEPOINT s; ALTER TABLE app.t ADD b int; ALTER TABLE app.t ADD c int;"
        " ROLLBACK TO s; ALTER TABLE app.t ADD c text; COMMIT",
        # Whichever ADD c it was, the text does not tell.
        expect=["applied", "rebuilt"],
    ),
    "a table emptied and filled in between": Scenario(
        ["BEGIN", "CREATE TABLE app.t AS SELECT generate_series(1, 5) AS id", "ALTER TABLE app.t ADD PRIMARY KEY (id)",
         "ALTER TABLE app.t ADD b int NOT NULL DEFAULT 7", "UPDATE app.t SET b = id",
         "ALTER TABLE app.t ALTER b TYPE text",
         "COMMIT"],
        expect=["rebuilt", *["applied"] * 3],
    ),
    "prepared": Scenario(
        ["BEGIN", ORDERS, "PREPARE TRANSACTION 'scenario'", "CREATE TABLE app.sooner (id int)",
         "COMMIT PREPARED 'scenario'"],
        expect=TWO,
    ),
    # --- without usable text -----------------------------------------------------------------------------------------
    "CREATE TABLE AS": Scenario(
        ["CREATE TABLE app.made AS SELECT id, note AS words, total * 2 AS twice, now() AS at FROM app.orders",
         "CREATE TABLE IF NOT EXISTS app.made AS SELECT 1", ("CREATE UNLOGGED TABLE app.none WITH (fillfactor = 50)"
         " AS TABLE app.orders WITH NO DATA")],
        expect=["rebuilt"] * 2,
        before=[ORDERS, "INSERT INTO app.orders VALUES (1, 'a', 1)"], check=("SELECT count(*) FROM app.made", 0),
    ),
    "SELECT INTO": Scenario(
        "SELECT id, note COLLATE \"C\" AS note, ARRAY[total] AS totals INTO app.made FROM app.orders", expect="rebuilt",
        before=[ORDERS, "INSERT INTO app.orders VALUES (1, 'a', 1)"], check=("SELECT count(*) FROM app.made", 0),
    ),
    "EXECUTE of a prepared query into a table": Scenario(
        ["PREPARE q AS SELECT * FROM app.orders", "CREATE TABLE app.made AS EXECUTE q"], expect="rebuilt", before=ORDERS
    ),
    "a DO block": Scenario(
        """DO $$ BEGIN
            CREATE TABLE app.a (id int PRIMARY KEY, b text DEFAULT 'x''y');
            IF EXISTS (SELECT FROM app.orders) THEN DROP TABLE app.orders; END IF;
            EXECUTE format('ALTER TABLE app.%I ADD %I int', 'a', 'c d');
            INSERT INTO app.a VALUES (1);
            CREATE INDEX ON app.a (b);
        END $$""",
        expect=["applied"] * 3, before=ORDERS,
    ),
    "a DO block that loops": Scenario(
        """DO $$ BEGIN FOR n IN 1..3 LOOP
            EXECUTE 'CREATE TABLE app.part_' || n || ' (LIKE app.orders INCLUDING ALL)';
            EXECUTE format('COMMENT ON TABLE app.part_%s IS %L', n, 'number ' || n);
        END LOOP; END $$""",
        expect=["applied"] * 6, before=ORDERS,
    ),
    "a DO block that catches": Scenario(
        """DO $$ BEGIN
            CREATE TABLE app.a (id int);
            BEGIN ALTER TABLE app.a ADD b int; PERFORM 1 / 0; EXCEPTION WHEN division_by_zero THEN NULL; END;
            ALTER TABLE app.a ADD c int;
        END $$""",
        expect=TWO,
    ),
    "a function that makes tables and rows": Scenario(
        "SELECT app.makes()", expect=TWO, before=[ORDERS, MAKES], check=("SELECT count(*) FROM app.made", 0)
    ),
    "a function called from a query of many": Scenario(
        "SELECT app.makes() FROM generate_series(1, 1); ALTER TABLE app.made ADD more int",
        expect=["applied"] * 3, before=[ORDERS, MAKES],
    ),
    "a procedure that commits": Scenario(
        "CALL app.p()", expect=TWO,
        before="""CREATE PROCEDURE app.p() LANGUAGE plpgsql AS $$ BEGIN
            CREATE TABLE app.a (id int); COMMIT; CREATE TABLE app.b (id int); ROLLBACK; CREATE TABLE app.c (id int);
            COMMIT; END $$""",
    ),
    "a function of SQL": Scenario(
        "SELECT app.g()", expect=["rebuilt", "rebuilt"],
        before="CREATE FUNCTION app.g() RETURNS void LANGUAGE sql AS"
        " $$ CREATE TABLE app.a (id int PRIMARY KEY, b text); ALTER TABLE app.a RENAME b TO c $$",
    ),
    "a table made by a trigger": Scenario(
        "INSERT INTO app.orders VALUES (1)",
        before=[ORDERS, ("CREATE FUNCTION app.day() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
                " EXECUTE format('CREATE TABLE IF NOT EXISTS app.day_%s (id int)', NEW.id); RETURN NEW; END $$"),
                "CREATE TRIGGER t BEFORE INSERT ON app.orders FOR EACH ROW EXECUTE FUNCTION app.day()"],
    ),
    "a table as of a query, in a function": Scenario(
        "DO $$ BEGIN CREATE TABLE app.made AS SELECT 1 AS a; ALTER TABLE app.made ADD b int; END $$",
        expect=["rebuilt", "applied"],
    ),
    "a grant in a function": Scenario(
        "DO $$ BEGIN GRANT SELECT ON app.orders TO pgddl_app; EXECUTE 'REVOKE ALL ON app.orders FROM PUBLIC'; END $$",
        expect=TWO, before=ORDERS,
    ),
    "what cannot be rebuilt": Scenario(
        "SELECT app.g()",
        expect="unhandled: the text of this GRANT within a function is not known, and its event names no objects",
        before=[ORDERS,
        "CREATE FUNCTION app.g() RETURNS void LANGUAGE sql AS 'GRANT SELECT ON app.orders TO pgddl_app'"],
        differs=["- grant SELECT on app.orders to pgddl_app"],
    ),
    "a block within a block": Scenario(
        """DO $a$ BEGIN
            EXECUTE $b$ DO $c$ BEGIN CREATE TABLE app.a (id int); PERFORM app.makes(); END $c$ $b$;
            EXECUTE 'ALTER TABLE app.made ADD x int; ALTER TABLE app.made ADD y int';
        END $a$""",
        expect=["applied"] * 3 + ["rebuilt"] * 2, before=[ORDERS, MAKES],
    ),
    "one command in a loop": Scenario(
        "DO $$ BEGIN FOR n IN 1..2 LOOP ALTER TABLE app.orders ADD COLUMN IF NOT EXISTS a int;"
        " ALTER TABLE app.orders DROP COLUMN a; END LOOP; END $$",
        expect=["applied"] * 4, before=ORDERS,
    ),
    "a block under a path that it changes": Scenario(
        "DO $$ BEGIN SET LOCAL search_path = app; CREATE TABLE t (id int); PERFORM set_config('search_path', 'app_two',"
        " true); CREATE TABLE t (id int); ALTER TABLE t ADD b int; END $$",
        expect=["applied"] * 3,
    ),
    # --- search_path -------------------------------------------------------------------------------------------------
    "search_path": Scenario(
        ["SET search_path = app, other", "CREATE TABLE t (id int PRIMARY KEY, m mood)", "ALTER TABLE t ADD o mood",
         "CREATE VIEW v AS SELECT * FROM t", "COMMENT ON TABLE t IS 'x'", "CREATE INDEX i ON t (m)", "DROP INDEX i",
         "ALTER TABLE t RENAME TO u", "ALTER SEQUENCE s RESTART", "GRANT SELECT ON u TO pgddl_app", "DROP VIEW v"],
        expect=["applied"] * 10, before=["CREATE TYPE app.mood AS ENUM ('a')", "CREATE SEQUENCE app.s"],
    ),
    "search_path, whose first schema is not in scope": Scenario(
        ["SET search_path = other, app", "ALTER TABLE orders ADD a int", "CREATE TABLE mine (id int)",
         "ALTER TABLE mine ADD b int"],
        expect=["applied", *["skipped: scope: schema other does not match"] * 2],
        before=ORDERS,
    ),
    "search_path with a schema of the user's name": Scenario(
        ["CREATE SCHEMA app_weak AUTHORIZATION pgddl_app", "SET search_path = '$user', app",
         "ALTER TABLE orders ADD b int", "CREATE TABLE t (id int)"],
        expect=["applied"] * 3, before=ORDERS,
    ),
    "a name that means another thing on the target": Scenario(
        ["SET search_path = app, other", "ALTER TABLE orders ADD c other_type"],
        expect="applied", before=[ORDERS, "CREATE DOMAIN app.other_type AS int"],
        target=["CREATE DOMAIN other.other_type AS text", "CREATE TABLE other.orders (id int)"],
    ),
    "a function found by the path": Scenario(
        ["SET search_path = app", "CREATE TRIGGER t BEFORE INSERT ON orders FOR EACH ROW EXECUTE FUNCTION f()",
         "ALTER TABLE orders ADD d int DEFAULT length('abc'), ADD e int DEFAULT g(4), ADD CHECK (g(id) > 0)",
         "CREATE VIEW v AS SELECT g(id) AS a, orders.*, lower(note) AS l FROM orders WHERE g(1) = 1",
         "ALTER FUNCTION g(int) RENAME TO h"],
        expect=["applied"] * 4,
        before=[ORDERS, FUNCTION, "CREATE FUNCTION app.g(a int) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT a'"],
    ),
    "an operator found by the path": Scenario(
        ["SET search_path = app", "CREATE VIEW v AS SELECT id <~> 5 AS near FROM orders"],
        before=[ORDERS, "CREATE FUNCTION app.near(int, int) RETURNS bool LANGUAGE sql IMMUTABLE AS 'SELECT $1 = $2'",
                "CREATE OPERATOR app.<~> (LEFTARG = int, RIGHTARG = int, FUNCTION = app.near)"],
    ),
    "a table that hides one of the system's": Scenario(
        ["SET search_path = app, pg_catalog", "CREATE TABLE pg_class (id int)", "ALTER TABLE pg_class ADD a int",
         "CREATE VIEW v AS SELECT id FROM pg_class", "DROP TABLE app.pg_class CASCADE"],
        expect=["applied"] * 4,
    ),
    "settings that change what is meant": Scenario(
        ["SET DateStyle = 'SQL, DMY'", "SET TimeZone = 'Asia/Tokyo'", "SET IntervalStyle = 'sql_standard'",
         ("CREATE TABLE app.t (d date DEFAULT '02/03/2024', at timestamptz DEFAULT '2024-06-01 12:00',"
         " i interval DEFAULT '1-2 -3', CHECK (d > '01/12/2023'))")],
    ),
    "a path set by a function": Scenario(
        "SELECT app.g()", expect=TWO,
        before=[ORDERS, ("CREATE FUNCTION app.g() RETURNS void LANGUAGE plpgsql SET search_path = app AS"
                " $$ BEGIN ALTER TABLE orders ADD a int; CREATE TABLE t (id int); END $$")],
    ),
    # --- temporary objects -------------------------------------------------------------------------------------------
    "temporary objects": Scenario(
        ["CREATE TEMP TABLE t (id int PRIMARY KEY)", "ALTER TABLE t ADD b text", "CREATE INDEX ON t (b)",
         "CREATE TEMP VIEW v AS SELECT * FROM t", "CREATE TEMP SEQUENCE s", "SELECT 1 AS a INTO TEMP u",
         "COMMENT ON TABLE t IS 'x'",
         "CREATE TABLE pg_temp.w (id int)", "DROP TABLE t CASCADE", "GRANT SELECT ON u TO PUBLIC"],
        expect="skipped: it is about temporary objects",
    ),
    "a temporary table beside a lasting one": Scenario(
        ["SET search_path = app", "CREATE TEMP TABLE orders (x int)", "ALTER TABLE orders ADD y int",
         "ALTER TABLE app.orders ADD z int", "DROP TABLE orders", "ALTER TABLE orders ADD w int"],
        expect=TWO, before=ORDERS,
    ),
    "temporary and lasting in a string": Scenario(
        "CREATE TEMP TABLE t (id int); CREATE TABLE app.t (id int); CREATE INDEX ON t (id); CREATE INDEX ON app.t (id);"
        " DROP TABLE t; DROP TABLE app.t",
        # Both indexes could be on either.
        expect=["applied", "rebuilt", "applied"],
    ),
    "a temporary and a lasting table dropped together": Scenario(
        ["CREATE TEMP TABLE t (id int)", "DROP TABLE t, app.orders, app.customers"], before=[ORDERS, CUSTOMERS]
    ),
    # --- left out ----------------------------------------------------------------------------------------------------
    "pgddl.skip": Scenario(
        ["BEGIN", "SET LOCAL pgddl.skip = on", "ALTER TABLE app.orders ADD a int", "COMMIT",
         "ALTER TABLE app.orders ADD b int"],
        before=ORDERS, differs=["- app.orders column 4 a", "+ app.orders column 4 b", "- app.orders column 5 b"],
    ),
    "session_replication_role": Scenario(
        ["SET session_replication_role = replica", "ALTER TABLE app.orders ADD a int",
         "RESET session_replication_role"],
        expect=[], before=ORDERS, differs=["- app.orders column 4 a"],
    ),
    "a table made by EXPLAIN ANALYZE has no event": Scenario(
        "EXPLAIN ANALYZE CREATE TABLE app.made AS SELECT 1 AS a", expect=[], differs="app.made"
    ),
    "REASSIGN OWNED has no event": Scenario(
        ["SET ROLE pgddl_app", "CREATE TABLE app.mine ()", "RESET ROLE", "REASSIGN OWNED BY pgddl_app TO pgddl_weak"],
        differs="app.mine",
    ),
    "what has no event": Scenario(
        ["TRUNCATE app.orders", "ANALYZE app.orders", "VACUUM app.orders", "CLUSTER app.orders USING orders_pkey"],
        expect=[], before=ORDERS, differs=["+ app.orders index", "- app.orders index"],
    ),
}  # fmt: skip
