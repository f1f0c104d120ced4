"""What takes a statement of a dump away again."""

from __future__ import annotations

import pytest

from airflow_provider_pgddl.engine.ddl.events import DdlEvent, events_from_dump
from airflow_provider_pgddl.engine.ddl.undo import undo


def event(statement: str) -> DdlEvent:
    (found,) = events_from_dump(statement + ";", "")
    return found


@pytest.mark.parametrize(
    ("done", "undone"),
    [
        (
            "CREATE FUNCTION s.f(IN a integer DEFAULT 1, OUT b text, VARIADIC c s.t[]) LANGUAGE sql AS 'x'",
            "DROP FUNCTION IF EXISTS s.f(IN a int, OUT b text, VARIADIC c s.t[])",
        ),
        (
            "CREATE FUNCTION s.g(n integer) RETURNS TABLE(a integer) LANGUAGE sql AS 'x'",
            "DROP FUNCTION IF EXISTS s.g(n int)",
        ),
        (
            'CREATE PROCEDURE s.p(INOUT x integer, OUT y "Odd"."Type") LANGUAGE sql AS \'x\'',
            'DROP PROCEDURE IF EXISTS s.p(INOUT x int, OUT y "Odd"."Type")',
        ),
        (
            "CREATE AGGREGATE s.a(integer ORDER BY text) (SFUNC = x, STYPE = integer)",
            "DROP AGGREGATE IF EXISTS s.a(int, text)",
        ),
        ("CREATE AGGREGATE s.a(*) (SFUNC = x, STYPE = integer)", "DROP AGGREGATE IF EXISTS s.a(*)"),
        ("CREATE OPERATOR s.+ (FUNCTION = f, RIGHTARG = s.t)", "DROP OPERATOR IF EXISTS s.+(NONE, s.t)"),
        (
            "CREATE OPERATOR s.=== (FUNCTION = f, LEFTARG = s.t, RIGHTARG = text[])",
            "DROP OPERATOR IF EXISTS s.===(s.t, text[])",
        ),
        ("CREATE CAST (s.t AS text) WITH FUNCTION s.f(s.t)", "DROP CAST IF EXISTS (s.t AS text)"),
        (
            "CREATE TRANSFORM FOR s.t LANGUAGE l (FROM SQL WITH FUNCTION f(internal))",
            "DROP TRANSFORM IF EXISTS FOR s.t LANGUAGE l",
        ),
        (
            "CREATE OPERATOR CLASS s.c FOR TYPE integer USING btree FAMILY s.f AS OPERATOR 1 <",
            'DROP OPERATOR CLASS IF EXISTS "s"."c" USING "btree"',
        ),
        ("CREATE OPERATOR FAMILY s.f USING btree", 'DROP OPERATOR FAMILY IF EXISTS "s"."f" USING "btree"'),
        (
            "ALTER DEFAULT PRIVILEGES FOR ROLE x IN SCHEMA s GRANT SELECT ON TABLES TO y WITH GRANT OPTION",
            "ALTER DEFAULT PRIVILEGES FOR ROLE x IN SCHEMA s REVOKE select ON TABLES FROM y",
        ),
        (
            "ALTER DEFAULT PRIVILEGES FOR ROLE x REVOKE ALL ON FUNCTIONS FROM PUBLIC",
            "ALTER DEFAULT PRIVILEGES FOR ROLE x GRANT ALL ON FUNCTIONS TO public",
        ),
        (
            "ALTER TABLE ONLY s.t ALTER COLUMN \"A\" SET DEFAULT nextval('s.q'::regclass)",
            'ALTER TABLE IF EXISTS ONLY s.t ALTER COLUMN "A" DROP DEFAULT',
        ),
        ("ALTER VIEW s.v ALTER COLUMN a SET DEFAULT 4", "ALTER VIEW IF EXISTS s.v ALTER COLUMN a DROP DEFAULT"),
        (
            'ALTER TABLE ONLY s.t ADD CONSTRAINT "x;y" FOREIGN KEY (a) REFERENCES s.u(a)',
            'ALTER TABLE IF EXISTS ONLY s.t DROP CONSTRAINT IF EXISTS "x;y"',
        ),
        ("ALTER TABLE ONLY s.t ADD CONSTRAINT k PRIMARY KEY (a)", None),
        (
            "ALTER DOMAIN s.d ADD CONSTRAINT c CHECK (VALUE > 1) NOT VALID",
            "ALTER DOMAIN s.d DROP CONSTRAINT IF EXISTS c",
        ),
        ("ALTER DOMAIN s.d OWNER TO x", None),
        ('CREATE SCHEMA "x Y"', 'DROP SCHEMA IF EXISTS "x Y"'),
        ("CREATE EXTENSION IF NOT EXISTS hstore WITH SCHEMA public", 'DROP EXTENSION IF EXISTS "hstore"'),
        (
            'CREATE TEXT SEARCH CONFIGURATION s.w (PARSER = pg_catalog."default")',
            'DROP TEXT SEARCH CONFIGURATION IF EXISTS "s"."w"',
        ),
        ("CREATE RULE r AS ON UPDATE TO s.t DO INSTEAD NOTHING", 'DROP RULE IF EXISTS "r" ON "s"."t"'),
        ('CREATE POLICY "p;" ON s.t USING (true)', 'DROP POLICY IF EXISTS "p;" ON "s"."t"'),
        ("CREATE EVENT TRIGGER e ON ddl_command_end EXECUTE FUNCTION s.e()", 'DROP EVENT TRIGGER IF EXISTS "e"'),
        ("ALTER TABLE s.t OWNER TO x", None),
        ("COMMENT ON TABLE s.t IS 'x'", None),
    ],
)
def test_a_statement_is_undone_without_cascade(done: str, undone: str | None) -> None:
    assert undo(event(done)) == undone


def test_a_view_that_replaced_its_placeholder_becomes_it_again() -> None:
    placeholder, view = (
        event("CREATE VIEW s.v AS SELECT NULL::integer AS a"),
        event("CREATE OR REPLACE VIEW s.v AS SELECT 1 AS a"),
    )
    assert undo(view, placeholder) == "CREATE OR REPLACE VIEW s.v AS SELECT NULL::int AS a"
    assert undo(placeholder) == 'DROP VIEW IF EXISTS "s"."v"'
