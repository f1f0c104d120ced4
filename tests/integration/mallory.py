"""Mallory: an ordinary role who attaches code of hers to tables of hers, so that it runs with rights that she has not.

`mallory_kinds.KINDS` is every kind of code that a table can have, each on a table of its own in her schema `m`. All of
it ends in `lair.attack(kind)`, which tries what it can, never fails, and says where it ran and what it could do there.
`escalations` tells what she has gained. It is proven and taken back (ALTER ROLE SUPERUSER succeeds, in a subtransaction
that is undone), so that one leak does not hide the next.

What she does only when asked to, as it may well stop a pipeline, is `LEAVINGS`: what her code leaves in our session.

Tests look at her tables as she does: a superuser who as much as plans a query of them runs her code.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from airflow_provider_pgddl.demo.clusters import Cluster
from airflow_provider_pgddl.engine import stages
from airflow_provider_pgddl.engine.errors import PgddlError
from airflow_provider_pgddl.engine.pipeline.reading import load_pipeline
from airflow_provider_pgddl.engine.stages import StageResult
from tests.integration.lifecycle import Lifecycle
from tests.integration.mallory_kinds import Kind

_numbers = count(1)


# --- her code ---------------------------------------------------------------------------------------------------------

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


class Mallory:
    """One of her, with a name of its own, and bob, whom she does not know better than us."""

    def __init__(self) -> None:
        self.name, self.bob = (f"{who}_{os.getpid()}_{next(_numbers)}" for who in ("mallory", "bob"))
        self._homes: list[Cluster] = []
        self._for_good = False

    # --- being there ------------------------------------------------------------------------------------------------

    def joins(self, *clusters: Cluster) -> Mallory:
        for cluster in clusters:
            if cluster in self._homes:
                continue
            with psycopg.connect(cluster.conninfo(), autocommit=True) as admin:
                for role in (self.name, self.bob):
                    made = sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}")
                    admin.execute(made.format(sql.Identifier(role), sql.Literal(cluster.password)))
            self._homes.append(cluster)
        return self

    def leaves(self) -> None:
        """Whatever she has become, she is nobody from here on; she is gone unless something is still hers."""
        for cluster in self._homes:
            with psycopg.connect(cluster.conninfo(), autocommit=True) as admin:
                for role in map(sql.Identifier, (self.name, self.bob)):
                    nobody = "ALTER ROLE {} NOLOGIN NOSUPERUSER NOCREATEROLE NOCREATEDB NOREPLICATION NOBYPASSRLS"
                    admin.execute(sql.SQL(nobody).format(role))
                    try:
                        admin.execute(sql.SQL("DROP ROLE {}").format(role))
                    except psycopg.errors.DependentObjectsStillExist:
                        continue

    def moves_in(self, dsn: str, kinds: Iterable[Kind] = (), *, with_rows: bool = True) -> None:
        """Her schemas and code in a database, and tables of these kinds with rows in them."""
        kinds = list(kinds)
        with psycopg.connect(dsn, autocommit=True) as admin:
            admin.execute(self.named(GROUND))
        self.visits(dsn)
        self.does(dsn, LAIR)
        self._leaving(dsn, "")
        with psycopg.connect(self.at(dsn, self.bob), autocommit=True) as conn:
            conn.execute(self.named(OF_BOB))
        if with_rows:
            self.makes(dsn, kinds)

    def visits(self, dsn: str) -> None:
        """A database that has nothing of hers, and something that she would like to see."""
        with psycopg.connect(dsn, autocommit=True) as admin:
            admin.execute(VAULT)

    @staticmethod
    def lets_in(dsn: str) -> None:
        """Grants that wait for the swap on a target."""
        with psycopg.connect(dsn, autocommit=True) as admin:
            for schema in ("m", "lair", "trap", "bob"):
                if admin.execute("SELECT to_regnamespace(%s)", [schema]).fetchone() != (None,):
                    admin.execute(sql.SQL("GRANT ALL ON SCHEMA {} TO PUBLIC").format(sql.Identifier(schema)))

    def makes(self, dsn: str, kinds: Iterable[Kind]) -> None:
        kinds = list(kinds)
        for kind in kinds:
            self.does(dsn, kind.told(kind.made), kind.rows(1, 12))
            if kind.as_superuser:
                with psycopg.connect(dsn, autocommit=True) as admin:
                    admin.execute(self.named(kind.told(kind.as_superuser)))

    # --- what she does in sessions of her own -----------------------------------------------------------------------

    def at(self, dsn: str, who: str | None = None) -> str:
        return make_conninfo(dsn, user=who or self.name)

    @contextmanager
    def session(self, dsn: str) -> Iterator[psycopg.Connection[Any]]:
        with psycopg.connect(self.at(dsn), autocommit=True) as conn:
            conn.execute("SET search_path = ''")
            yield conn

    def does(self, dsn: str, *statements: str) -> None:
        with self.session(dsn) as conn:
            for statement in statements:
                conn.execute(self.named(statement))

    def writes(self, dsn: str, kinds: Iterable[Kind], turn: int) -> None:
        """Rows that come, change, get another key and go; `turn` counts up."""
        with self.session(dsn) as conn:
            for kind in kinds:
                with conn.transaction():
                    key, first = f'"{kind.key}"', 100 * turn
                    conn.execute(kind.rows(first, first + 3).encode())
                    other = kind.told(kind.value).replace("'v' || i", f"'v' || {first}")
                    conn.execute(
                        f"UPDATE {kind.relation} SET v = (SELECT {other} FROM generate_series(2, 2) i)"
                        f" WHERE {key} = {first}".encode()
                    )
                    conn.execute(f"UPDATE {kind.relation} SET {key} = {first + 9} WHERE {key} = {first + 1}".encode())
                    conn.execute(f"DELETE FROM {kind.relation} WHERE {key} IN ({first + 2}, {turn})".encode())

    def hostile(self, dsn: str, kinds: Iterable[Kind], turn: int) -> None:
        """The same from a session that was made ready for whoever runs code in it with more rights than she has."""
        settings = [
            "standard_conforming_strings = off", "backslash_quote = on", "quote_all_identifiers = on",
            "transform_null_equals = on", "row_security = on", "check_function_bodies = off",
            "array_nulls = off", "xmloption = content", "DateStyle = 'German'", "extra_float_digits = -15",
            "default_transaction_isolation = 'read committed'", "constraint_exclusion = on",
        ]  # fmt: skip
        made = [*(f"SET {setting}" for setting in settings), "SET search_path = trap, pg_catalog, pg_temp"]
        for name in ("temporary types", "temporary relations"):
            made.insert(0, f"DO $do$ DECLARE i int; BEGIN {LEAVINGS[name]} END $do$")
        with psycopg.connect(self.at(dsn), autocommit=True) as conn:
            for statement in made:
                conn.execute(statement.encode())
            for kind in kinds:
                key, first = f'"{kind.key}"', 100 * turn
                conn.execute(
                    kind.rows(first, first + 1).replace("generate_series", "pg_catalog.generate_series").encode()
                )
                conn.execute(f"DELETE FROM {kind.relation} WHERE {key} OPERATOR(pg_catalog.=) {turn}".encode())

    def leaves_behind(self, dsn: str, what: str) -> None:
        """From here on her code leaves this (of LEAVINGS) in the session that it runs in; "" ends it."""
        with psycopg.connect(dsn, autocommit=True) as admin:
            there = admin.execute("SELECT to_regprocedure('lair.leave()') IS NOT NULL").fetchone()
        if there == (True,):
            self._leaving(dsn, LEAVINGS[what] if what else "")

    def _leaving(self, dsn: str, body: str) -> None:
        self.does(
            dsn,
            "CREATE OR REPLACE FUNCTION lair.leave() RETURNS void LANGUAGE plpgsql AS"
            f" $leave$ DECLARE f record; BEGIN {body} END $leave$",
        )

    # --- what came of it --------------------------------------------------------------------------------------------

    def escalations(self, *dsns: str) -> list[str]:
        """Everything that she has gained in these databases."""
        return [line for dsn in dsns for line in self._gained(dsn)]

    def _gained(self, dsn: str) -> list[str]:
        with psycopg.connect(dsn, autocommit=True) as admin:
            loot: dict[tuple[str, str, str], set[str]] = {}
            for told, kind, *where in _told(admin):
                if told == "loot":
                    loot.setdefault((kind, where[0], where[2]), set()).add(where[1])
            found = [f"{kind}: {gain} (as {who}: {'; '.join(sorted(how))})" for (kind, who, gain), how in loot.items()]
            if self._for_good and (row := admin.execute("SELECT is_called FROM lair.for_good").fetchone()) and row[0]:
                found.append("somewhere: ran as another, and it was rolled back")
            became = (
                "SELECT format('%%I has become more than it was', rolname) FROM pg_roles WHERE rolname = ANY(%s) AND"
                " (rolsuper OR rolcreaterole OR rolcreatedb OR rolreplication OR rolbypassrls OR EXISTS"
                " (SELECT FROM pg_auth_members WHERE member = pg_roles.oid))"
            )
            found += [line for (line,) in admin.execute(became, [[self.name, self.bob]])]
            granted = (
                "SELECT format('may write to %%s', c.oid::regclass) FROM pg_class c JOIN pg_roles r ON r.rolname = %s"
                " WHERE c.relnamespace IN (SELECT oid FROM pg_namespace WHERE nspname IN ('pgddl', 'vault'))"
                " AND c.relkind = 'r' AND has_table_privilege(r.oid, c.oid, 'INSERT, UPDATE, DELETE')"
            )
            found += [line for (line,) in admin.execute(granted, [self.name])]
        return sorted(found)

    def kinds_gained(self, *dsns: str) -> list[str]:
        """The same by kind alone."""
        return sorted({line.partition(":")[0] for line in self.escalations(*dsns)})

    def seen(self, dsn: str) -> dict[str, set[str]]:
        """By kind, as whom her code was run by others than herself."""
        found: dict[str, set[str]] = {}
        with psycopg.connect(dsn, autocommit=True) as admin:
            for line in _told(admin):
                if line[0] == "seen":
                    found.setdefault(line[1], set()).add(line[2])
        return found

    def tells_for_good(self, dsn: str) -> None:
        """For transactions that are rolled back: whoever runs her code moves a sequence. That locks it."""
        self._for_good = True
        body = "BEGIN PERFORM pg_catalog.nextval('lair.for_good'); END"
        self.does(dsn, "CREATE SEQUENCE lair.for_good; GRANT ALL ON SEQUENCE lair.for_good TO PUBLIC")
        create = "CREATE OR REPLACE FUNCTION lair.tell_for_good(kind text) RETURNS void LANGUAGE plpgsql AS"
        self.does(dsn, f"{create} $tell$ {body} $tell$")

    def rows(self, dsn: str, kind: Kind, columns: str = "*") -> Counter[bytes]:
        """As COPY prints them, which calls no cast."""
        query = f"COPY (SELECT {columns} FROM {kind.relation}) TO STDOUT"
        with self.session(dsn) as conn, conn.cursor() as cursor, cursor.copy(query.encode()) as copy:
            return Counter(bytes(line) for chunk in copy for line in bytes(chunk).splitlines())

    def named(self, text: str) -> bytes:
        return (
            text.replace("{me}", sql.Identifier(self.name).as_string())
            .replace("{name}", sql.Literal(self.name).as_string())
            .replace("{bob}", sql.Identifier(self.bob).as_string())
            .replace("{bobs_name}", sql.Literal(self.bob).as_string())
            .encode()
        )


def _told(conn: psycopg.Connection[Any]) -> list[list[str]]:
    query = "SELECT convert_from(lo_get(oid), 'UTF8') FROM pg_largeobject_metadata"
    return [json.loads(line) for (line,) in conn.execute(query)]


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


def differing(one: Counter[bytes], other: Counter[bytes]) -> list[bytes]:
    """EXCEPT ALL both ways."""
    return sorted(((one - other) + (other - one)).elements())


# --- her tables in a pipeline -----------------------------------------------------------------------------------------


def rewritten(kinds: Iterable[Kind]) -> dict[str, dict[str, Any]]:
    """The key `rewrite` of a pipeline file for their tables."""
    return {
        kind.relation: {
            key: value
            for key, value in (
                ("alter", list(kind.alter)),
                ("partition_by", dict(kind.partition_by)),
                ("order_by", list(kind.order_by)),
            )
            if value
        }
        for kind in kinds
    }


def refused_by_preflight(move: Lifecycle, kinds: Sequence[Kind]) -> set[str]:
    """Which of these kinds preflight refuses; a finding without a table of hers is an error of the test."""
    refused = set()
    for finding in stages.check(load_pipeline(move.content), move.source, move.target)["findings"]:
        if finding["severity"] != "error":
            continue
        about = f"{finding['table'] or ''} {finding['what']}"
        named = {kind.name for kind in kinds if _about(kind, about)}
        assert named, finding
        refused |= named
    return refused


def _about(kind: Kind, text: str) -> bool:
    """Whether a message names this kind's table, a part of it or what stands on it."""
    if kind.table:
        return kind.table in text
    return re.search(rf'\bm\."?(on_)?{kind.name}(_[12])?\b', text) is not None


class Attempt:
    """A pipeline over her tables. `stage("replay")` runs one; it may stop only where it says which table it was."""

    def __init__(self, mallory: Mallory, move: Lifecycle, kinds: Sequence[Kind]) -> None:
        self.mallory, self.move, self.kinds = mallory, move, list(kinds)
        self.dsns = list(dict.fromkeys([move.source, move.target]))
        self.blocked: dict[str, str] = {}
        self.may_stop = False
        """Whether code that leaves something may stop its own table."""
        self.turn = 0

    def stage(self, name: str, **options: Any) -> StageResult:
        try:
            result = self.move.run(name, **options)
        except PgddlError:
            gained = self.mallory.escalations(*self.dsns)
            assert gained == [], f"{name} stopped, and she had gained:\n" + "\n".join(gained)
            raise
        if name == "snapshot" and len(self.dsns) == 2:  # what waits for the swap there: else her code does not get far
            self.mallory.lets_in(self.move.target)
        self.blocked |= {stopped["table"]: str(stopped) for stopped in result.blocked}
        self._only_what_may_be_refused()
        return result

    def writes(self) -> None:
        """Something for the next window to do; every second time from a session full of traps."""
        self.turn += 1
        write = self.mallory.writes if self.turn % 2 else self.mallory.hostile
        write(self.move.source, self.kinds, self.turn)

    def starts_over(self, done: Sequence[str]) -> None:
        """What she has stopped is made anew, and brought as far as the others."""
        if self.blocked:
            stages.reset(load_pipeline(self.move.content), *self.move_dsns, list(self.blocked))
            self.blocked, self.may_stop = {}, False
            for name in done:
                self.stage(name)

    @property
    def move_dsns(self) -> tuple[str, str]:
        return self.move.source, self.move.target

    @property
    def going(self) -> list[Kind]:
        """Those that no stage has stopped."""
        return [kind for kind in self.kinds if not any(_about(kind, table) for table in self.blocked)]

    def stage_or_stops(self, name: str) -> bool:
        """False where it has ended with an error, which says whose code it was."""
        try:
            self.stage(name)
        except PgddlError as error:
            if not self.names_her(error):
                raise
            return False
        return True

    def names_her(self, error: PgddlError) -> bool:
        """Whether an error says whose code it is about, or which table of hers."""
        said = f"{error.table or ''} {error}"
        return self.mallory.name in said or any(_about(kind, said) for kind in self.kinds)

    def gained_nothing(self) -> None:
        gained = self.mallory.escalations(*self.dsns)
        assert gained == [], "\n".join(["she has gained:", *gained])

    def stays(self) -> None:
        """She has gained nothing, and every table that was to be guarded has gone all the way."""
        self.gained_nothing()
        self._only_what_may_be_refused()

    def _only_what_may_be_refused(self) -> None:
        if self.may_stop:
            return
        stopped = {k.name for k in self.kinds for table in self.blocked if _about(k, table)}
        assert stopped <= {k.name for k in self.kinds if k.expected == "refused"}, self.blocked


def gained_where_trusted(mallory: Mallory, move: Lifecycle, kinds: Sequence[Kind]) -> set[str]:
    """By whose code she gains something on the way to a swap, in a pipeline that trusts her."""
    for turn, stage in enumerate(("setup", "snapshot", "backfill", "schema_sync", "replay", "verify", "swap"), 1):
        with suppress(psycopg.Error):  # not every one of these can be written to at any time
            mallory.writes(move.source, kinds, turn)
        assert not move.run(stage).blocked
        if stage == "snapshot" and move.source != move.target:
            mallory.lets_in(move.target)
    dsns = dict.fromkeys([move.source, move.target])
    return {line.partition(":")[0] for line in mallory.escalations(*dsns)}


Make = Callable[..., Lifecycle]


@dataclass
class Admitted:
    """What is left of the kinds once preflight has refused some."""

    kinds: list[Kind]
    refused: set[str] = field(default_factory=set)


def admitted(pipeline: Callable[[Sequence[Kind]], Lifecycle], kinds: Sequence[Kind]) -> Admitted:
    """Without what preflight refuses; only what may be refused is."""
    refused = refused_by_preflight(pipeline(kinds), kinds)
    unexpected = refused - {kind.name for kind in kinds if kind.expected == "refused"}
    assert unexpected == set(), f"refused, and was to be guarded: {sorted(unexpected)}"
    return Admitted([kind for kind in kinds if kind.name not in refused], refused)
