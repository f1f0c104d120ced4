"""Mallory's code, as SQL: what stands in her schemas, and what it can leave in the session that has called it.

All of it ends in `lair.attack(kind)`, which tries what it can, never fails, and says where it ran and what it could do
there. What she has gained is proven and taken back (ALTER ROLE SUPERUSER succeeds, in a subtransaction that is undone),
so that one leak does not hide the next. `{me}`, `{name}` and the like are put in by `Mallory.named`.
"""

from __future__ import annotations

from collections.abc import Mapping

# In the name of a superuser, who would do as much for anybody: schemas of hers, and what is none of her business.
GROUND = """
CREATE SCHEMA m AUTHORIZATION {me};
CREATE SCHEMA lair AUTHORIZATION {me};
CREATE SCHEMA trap AUTHORIZATION {me};
CREATE SCHEMA bob AUTHORIZATION {bob};
"""
VAULT = """
CREATE SCHEMA vault;
CREATE TABLE vault.secret (secret text);
INSERT INTO vault.secret VALUES ('the combination is 1234');
"""

# What she does is spelled out where her own traps could catch herself.
LAIR = """
GRANT ALL ON SCHEMA lair, m, trap TO PUBLIC;
CREATE TABLE lair.echo (n bigint);
CREATE TABLE lair.later (n int);
GRANT ALL ON ALL TABLES IN SCHEMA lair TO PUBLIC;

-- Large objects, since they need no lock that anybody could mind: DDL on a copy in place may lock nothing beside it.
CREATE FUNCTION lair.tell(VARIADIC what text[]) RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS
$$
DECLARE
    line CONSTANT text := to_json(what)::text;
    told CONSTANT text := coalesce(current_setting('mallory.told', true), '');
BEGIN
    IF strpos(told, line) = 0 THEN
        PERFORM set_config('mallory.told', told || line, true);
        PERFORM lo_from_bytea(0, convert_to(line, 'UTF8'));
    END IF;
EXCEPTION WHEN OTHERS THEN NULL;
END $$;

-- What whoever she has become is good for. All of it is taken back.
CREATE FUNCTION lair.loot(kind text, how text) RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    loot text[] := ARRAY['ran as another'];
    found text;
BEGIN
    BEGIN
        SELECT secret INTO found FROM vault.secret;
        RAISE EXCEPTION USING ERRCODE = 'ZZ001';
    EXCEPTION
        WHEN SQLSTATE 'ZZ001' THEN loot := loot || ('has read that ' || found);
        WHEN OTHERS THEN NULL;
    END;
    BEGIN
        ALTER ROLE {me} SUPERUSER;
        RAISE EXCEPTION USING ERRCODE = 'ZZ001';
    EXCEPTION
        WHEN SQLSTATE 'ZZ001' THEN loot := loot || text 'could have become a superuser';
        WHEN OTHERS THEN NULL;
    END;
    IF EXISTS (SELECT FROM pg_class c WHERE c.relnamespace = to_regnamespace('pgddl') AND c.relkind = 'r'
                                        AND has_table_privilege(c.oid, 'INSERT, UPDATE, DELETE')) THEN
        loot := loot || text 'could have written to pgddl';
    END IF;
    PERFORM lair.tell('loot', kind, current_user, how, array_to_string(loot, ', '));
    PERFORM lair.tell_for_good(kind);
EXCEPTION WHEN OTHERS THEN NULL;
END $$;

-- What no rollback takes back, where a test asks for it: it takes a lock.
CREATE FUNCTION lair.tell_for_good(kind text) RETURNS void LANGUAGE plpgsql AS 'BEGIN END';

-- All that can be done where nothing may fail, not even in a subtransaction: an index's page is locked.
CREATE FUNCTION lair.glance(kind text) RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$ BEGIN
    IF current_user <> {name} THEN
        PERFORM lair.tell('loot', kind, current_user, 'as it was called', 'ran as another');
    END IF;
END $$;

-- Every way back to the rights of whoever has opened the session; then as it was, or the pipeline would not go on.
CREATE FUNCTION lair.escape(kind text) RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    me   CONSTANT text := current_user;
    held CONSTANT text := current_setting('role');
    how  text;
BEGIN
    FOREACH how IN ARRAY ARRAY[
        $q$SELECT set_config('role', 'none', true)$q$, 'RESET ROLE', 'SET LOCAL ROLE NONE',
        'SET LOCAL SESSION AUTHORIZATION DEFAULT', 'RESET SESSION AUTHORIZATION',
        format('SET LOCAL ROLE %I', session_user), format('SET LOCAL SESSION AUTHORIZATION %I', session_user)
    ] LOOP
        BEGIN
            EXECUTE how;
            IF current_user <> me THEN
                PERFORM lair.loot(kind, how);
                PERFORM set_config('role', held, true);
            END IF;
        EXCEPTION WHEN OTHERS THEN NULL;
        END;
    END LOOP;
END $$;

CREATE FUNCTION lair.attack(kind text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF pg_catalog.current_setting('mallory.busy', true) OPERATOR(pg_catalog.=) '1'
        OR session_user OPERATOR(pg_catalog.=) {name} AND current_user OPERATOR(pg_catalog.=) {name} THEN
        RETURN;     -- at home
    END IF;
    PERFORM pg_catalog.set_config('mallory.busy', '1', true);
    PERFORM lair.tell('seen', kind, current_user);
    IF current_user OPERATOR(pg_catalog.<>) {name} THEN
        PERFORM lair.loot(kind, 'as it was called');
    END IF;
    PERFORM lair.escape(kind);
    -- Once a transaction, and not by what was left: a trigger that queues itself would never end.
    IF kind OPERATOR(pg_catalog.<>) ALL (ARRAY['trap', 'later', 'held', 'prepared', 'session'])
        AND pg_catalog.current_setting('mallory.left', true) OPERATOR(pg_catalog.=) '1' IS NOT TRUE THEN
        PERFORM pg_catalog.set_config('mallory.left', '1', true);
        BEGIN
            PERFORM lair.leave();
        EXCEPTION WHEN OTHERS THEN
            RAISE DEBUG 'nothing left: %', SQLERRM;
        END;
    END IF;
    PERFORM pg_catalog.set_config('mallory.busy', '0', true);
EXCEPTION WHEN OTHERS THEN NULL;
END $$;

-- IMMUTABLE, as a planner takes it to be: what it calls is not.
CREATE FUNCTION m.evil(n bigint, kind text) RETURNS bigint LANGUAGE plpgsql IMMUTABLE AS
$$ BEGIN BEGIN PERFORM lair.attack(kind); EXCEPTION WHEN OTHERS THEN NULL; END; RETURN n; END $$;
CREATE FUNCTION m.told(v text, kind text) RETURNS text LANGUAGE plpgsql IMMUTABLE AS
$$ BEGIN BEGIN PERFORM lair.attack(kind); EXCEPTION WHEN OTHERS THEN NULL; END; RETURN v; END $$;
-- For bodies of functions, where a call of the others with constants would be made once a session.
CREATE FUNCTION m.strike(kind text) RETURNS void LANGUAGE plpgsql AS
$$ BEGIN BEGIN PERFORM lair.attack(kind); EXCEPTION WHEN OTHERS THEN NULL; END; END $$;
CREATE FUNCTION m.whole(r record, kind text) RETURNS boolean LANGUAGE plpgsql IMMUTABLE AS
$$ BEGIN BEGIN PERFORM lair.attack(kind); EXCEPTION WHEN OTHERS THEN NULL; END; RETURN true; END $$;
CREATE FUNCTION m.above(n bigint, kind text) RETURNS boolean LANGUAGE plpgsql IMMUTABLE AS
$$ BEGIN BEGIN PERFORM lair.attack(kind); EXCEPTION WHEN OTHERS THEN NULL; END; RETURN true; END $$;
CREATE FUNCTION m.fires() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN BEGIN PERFORM lair.attack(TG_ARGV[0]); EXCEPTION WHEN OTHERS THEN NULL; END; RETURN coalesce(NEW, OLD); END $$;

-- A trigger whose deferred event queues the next one.
CREATE FUNCTION lair.fires_later() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    PERFORM pg_catalog.set_config('mallory.busy', '0', true);
    PERFORM lair.attack('later');
    IF NEW.n OPERATOR(pg_catalog.<) 3 THEN
        INSERT INTO lair.later VALUES (NEW.n OPERATOR(pg_catalog.+) 1);
    END IF;
    RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER later AFTER INSERT ON lair.later DEFERRABLE INITIALLY DEFERRED
FOR EACH ROW EXECUTE FUNCTION lair.fires_later();

-- What catches whoever looks names up in her schema.
CREATE FUNCTION trap.eq(text, text) RETURNS boolean LANGUAGE plpgsql AS
$$ BEGIN PERFORM lair.attack('trap'); RETURN pg_catalog.texteq($1, $2); END $$;
CREATE FUNCTION trap.eq(name, name) RETURNS boolean LANGUAGE plpgsql AS
$$ BEGIN PERFORM lair.attack('trap'); RETURN pg_catalog.nameeq($1, $2); END $$;
CREATE FUNCTION trap.eq(bigint, bigint) RETURNS boolean LANGUAGE plpgsql AS
$$ BEGIN PERFORM lair.attack('trap'); RETURN pg_catalog.int8eq($1, $2); END $$;
CREATE FUNCTION trap.eq(int, int) RETURNS boolean LANGUAGE plpgsql AS
$$ BEGIN PERFORM lair.attack('trap'); RETURN pg_catalog.int4eq($1, $2); END $$;
CREATE FUNCTION trap.eq(oid, oid) RETURNS boolean LANGUAGE plpgsql AS
$$ BEGIN PERFORM lair.attack('trap'); RETURN pg_catalog.oideq($1, $2); END $$;
CREATE FUNCTION trap.beside(text, text) RETURNS text LANGUAGE plpgsql AS
$$ BEGIN PERFORM lair.attack('trap'); RETURN pg_catalog.textcat($1, $2); END $$;
CREATE FUNCTION trap.now() RETURNS timestamptz LANGUAGE plpgsql AS
$$ BEGIN PERFORM lair.attack('trap'); RETURN pg_catalog.now(); END $$;
CREATE FUNCTION trap.unnest(text[]) RETURNS SETOF text LANGUAGE plpgsql AS
$$ BEGIN PERFORM lair.attack('trap'); RETURN QUERY SELECT pg_catalog.unnest($1); END $$;
CREATE FUNCTION trap.length(text) RETURNS int LANGUAGE plpgsql AS
$$ BEGIN PERFORM lair.attack('trap'); RETURN pg_catalog.length($1); END $$;
CREATE OPERATOR trap.= (leftarg = text, rightarg = text, function = trap.eq);
CREATE OPERATOR trap.= (leftarg = name, rightarg = name, function = trap.eq);
CREATE OPERATOR trap.= (leftarg = bigint, rightarg = bigint, function = trap.eq);
CREATE OPERATOR trap.= (leftarg = int, rightarg = int, function = trap.eq);
CREATE OPERATOR trap.= (leftarg = oid, rightarg = oid, function = trap.eq);
CREATE OPERATOR trap.|| (leftarg = text, rightarg = text, function = trap.beside);
CREATE FUNCTION trap.fine(anyelement) RETURNS boolean LANGUAGE plpgsql AS
$$ BEGIN PERFORM lair.attack('trap'); RETURN true; END $$;
CREATE DOMAIN trap.text AS pg_catalog.text CHECK (trap.fine(VALUE));
CREATE DOMAIN trap.oid AS pg_catalog.oid CHECK (trap.fine(VALUE));
CREATE DOMAIN trap.jsonb AS pg_catalog.jsonb CHECK (trap.fine(VALUE));
CREATE DOMAIN trap.name AS pg_catalog.name CHECK (trap.fine(VALUE));
CREATE VIEW trap.pg_class AS SELECT trap.fine(1) AS fine, c.* FROM pg_catalog.pg_class c;
CREATE FUNCTION trap.prepared() RETURNS text LANGUAGE plpgsql AS
$$ BEGIN PERFORM pg_catalog.set_config('mallory.busy', '0', true); PERFORM lair.attack('prepared'); RETURN 'x'; END $$;
CREATE FUNCTION trap.held() RETURNS text LANGUAGE plpgsql AS
$$ BEGIN PERFORM pg_catalog.set_config('mallory.busy', '0', true); PERFORM lair.attack('held'); RETURN 'x'; END $$;
"""

# What code can leave in the session that has called it; the text is run in her name by the function `lair.leave`.
LEAVINGS: Mapping[str, str] = {
    "search_path": "PERFORM pg_catalog.set_config('search_path', 'trap, pg_catalog', false);",
    "search_path of the transaction": "PERFORM pg_catalog.set_config('search_path', 'trap, pg_catalog', true);",
    "settings": """
        PERFORM pg_catalog.set_config('standard_conforming_strings', 'off', false);
        PERFORM pg_catalog.set_config('backslash_quote', 'on', false);
        PERFORM pg_catalog.set_config('quote_all_identifiers', 'on', false);
        PERFORM pg_catalog.set_config('row_security', 'on', false);
        PERFORM pg_catalog.set_config('DateStyle', 'German, DMY', false);
        PERFORM pg_catalog.set_config('extra_float_digits', '-15', false);
        PERFORM pg_catalog.set_config('transform_null_equals', 'on', false);""",
    "role": "PERFORM pg_catalog.set_config('role', 'none', false);",
    "prepared statements": """
        DEALLOCATE ALL;
        FOR i IN 0..40 LOOP
            EXECUTE 'PREPARE _pg3_' OPERATOR(pg_catalog.||) i::pg_catalog.text
                OPERATOR(pg_catalog.||) ' AS SELECT trap.prepared()';
        END LOOP;""",
    "temporary types": """
        CREATE DOMAIN pg_temp.text AS pg_catalog.text CHECK (trap.fine(VALUE));
        CREATE DOMAIN pg_temp.oid AS pg_catalog.oid CHECK (trap.fine(VALUE));
        CREATE DOMAIN pg_temp.jsonb AS pg_catalog.jsonb CHECK (trap.fine(VALUE));
        CREATE DOMAIN pg_temp.name AS pg_catalog.name CHECK (trap.fine(VALUE));""",
    "temporary relations": """
        CREATE TEMPORARY VIEW pg_class AS SELECT trap.fine(1) AS fine, c.* FROM pg_catalog.pg_class c;
        CREATE TEMPORARY VIEW pg_roles AS SELECT trap.fine(1) AS fine, c.* FROM pg_catalog.pg_roles c;
        CREATE TEMPORARY VIEW pg_namespace AS SELECT trap.fine(1) AS fine, c.* FROM pg_catalog.pg_namespace c;
        FOR i IN 1..20 LOOP
            EXECUTE pg_catalog.format('CREATE TEMPORARY TABLE pgddl_ingest_%s (op "char", old_1 bigint CHECK'
                ' (trap.fine(old_1)), new_1 bigint CHECK (trap.fine(new_1)))', i);
        END LOOP;""",
    "deferred trigger": "INSERT INTO lair.later VALUES (1);",
    "held cursor": """
        EXECUTE 'DECLARE held_' OPERATOR(pg_catalog.||) pg_catalog.floor(pg_catalog.random()
            OPERATOR(pg_catalog.*) 1000000000)::pg_catalog.text
            OPERATOR(pg_catalog.||) ' CURSOR WITH HOLD FOR SELECT trap.held()';""",
    "functions of the session": """
        FOR f IN SELECT p.oid::pg_catalog.regprocedure AS name FROM pg_catalog.pg_proc p
                 WHERE p.pronamespace OPERATOR(pg_catalog.=) pg_catalog.pg_my_temp_schema() LOOP
            EXECUTE pg_catalog.format('ALTER FUNCTION %s SECURITY INVOKER', f.name);
            EXECUTE pg_catalog.format('ALTER FUNCTION %s RESET ALL', f.name);
            BEGIN
                EXECUTE pg_catalog.format('CREATE OR REPLACE FUNCTION %s RETURNS bigint LANGUAGE plpgsql AS'
                    ' $f$ BEGIN PERFORM lair.attack(''session''); RETURN 1; END $f$', f.name);
            EXCEPTION WHEN OTHERS THEN NULL;
            END;
            BEGIN
                EXECUTE pg_catalog.format('DROP FUNCTION %s', f.name);
                EXECUTE pg_catalog.format('CREATE PROCEDURE %s LANGUAGE plpgsql AS'
                    ' $f$ BEGIN PERFORM lair.attack(''session''); END $f$', f.name);
            EXCEPTION WHEN OTHERS THEN NULL;
            END;
        END LOOP;""",
}


# Bob is no friend of hers: his code in her tables runs as her, which is what she has asked for, and as nobody else.
OF_BOB = """
CREATE FUNCTION lair.of_bob(n bigint, kind text) RETURNS bigint LANGUAGE plpgsql IMMUTABLE AS $$ BEGIN
    IF current_user NOT IN ({name}, {bobs_name}) THEN
        PERFORM lair.loot(kind, 'as it was called');
    ELSIF session_user NOT IN ({name}, {bobs_name}) THEN
        PERFORM lair.escape(kind);
    END IF;
    RETURN n;
END $$
"""
