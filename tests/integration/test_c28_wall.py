"""C28: code of a role that we do not trust is found, kept out, or run behind a wall that it cannot leave."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext, suppress
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from airflow_provider_pgddl.demo.clusters import Cluster
from airflow_provider_pgddl.engine.apply.as_client import Client
from airflow_provider_pgddl.engine.errors import GaveWay, LeftBehindTheWall, OwnerChanged, StageFailed
from airflow_provider_pgddl.engine.journal import migrations
from airflow_provider_pgddl.engine.model.plan import Keepers, Plan, make_plan
from airflow_provider_pgddl.engine.rights import alter_as_owner, foreign_code, wall
from airflow_provider_pgddl.engine.rights.alter_as_owner import alter
from airflow_provider_pgddl.engine.rights.trust import untrusted
from airflow_provider_pgddl.engine.server import catalog
from airflow_provider_pgddl.engine.server.connect import PINNED, Session, connect, plans_kept
from tests.combinations import matrix
from tests.conftest import Database
from tests.integration.sessions import Underway, do, one, wait_for, waits

ROLES = """
DO $$ BEGIN
    IF to_regrole('c28_owner') IS NULL THEN CREATE ROLE c28_owner; END IF; -- other files have some of them
    IF to_regrole('c28_other') IS NULL THEN CREATE ROLE c28_other; END IF;
    IF to_regrole('c28_pipeline') IS NULL THEN
        CREATE ROLE c28_pipeline LOGIN PASSWORD '%s' IN ROLE c28_owner;
    END IF;
END $$;
CREATE SCHEMA m AUTHORIZATION c28_owner;
CREATE SCHEMA n AUTHORIZATION c28_other;
SET ROLE c28_other;
CREATE FUNCTION n.f(int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS 'BEGIN RETURN $1; END';
GRANT USAGE ON SCHEMA n TO PUBLIC;
SET ROLE c28_owner;
CREATE FUNCTION m.f(int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS 'BEGIN RETURN $1; END';
CREATE FUNCTION m.fine(text) RETURNS boolean LANGUAGE plpgsql IMMUTABLE AS 'BEGIN RETURN true; END';
CREATE TABLE m.t (id int PRIMARY KEY, a int);
INSERT INTO m.t SELECT i, i FROM generate_series(1, 20) i;
"""


@pytest.fixture(params=matrix(15, 16, 18))
def server(request: pytest.FixtureRequest) -> Cluster:
    cluster: Cluster = request.getfixturevalue(f"pg{request.param}")
    return cluster


@pytest.fixture
def dsn(server: Cluster, database: Database) -> str:
    made = database(server)
    do(made, ROLES % server.password)
    return made


@pytest.fixture
def conn(dsn: str) -> Iterator[Session]:
    with connect(dsn, purpose="test") as session:
        yield session


def as_owner(dsn: str, *statements: str) -> None:
    do(dsn, "SET ROLE c28_owner", *statements)


# --- the wall ---------------------------------------------------------------------------------------------------------

ESCAPES = (
    "SET ROLE NONE", "RESET ROLE", "SET LOCAL SESSION AUTHORIZATION DEFAULT", "RESET SESSION AUTHORIZATION",
    "SELECT set_config('role', 'none', true)", "SELECT set_config('role', 'postgres', false)",
    "SELECT set_config('session_authorization', 'postgres', true)", "ALTER ROLE c28_owner SUPERUSER",
    "SELECT count(*) FROM pg_authid",
)  # fmt: skip


@pytest.mark.parametrize("escape", ESCAPES)
def test_nobody_leaves_it(conn: Session, escape: str) -> None:
    with pytest.raises(psycopg.Error) as refused, conn.transaction():
        wall.run(conn, "c28_owner", escape)
    assert refused.value.sqlstate in ("42501", "22023", "0A000"), refused.value
    assert one_of(conn, "SELECT current_user::text") == "postgres"


def one_of(conn: Session, query: str) -> Any:
    row = conn.execute(query.encode()).fetchone()
    assert row is not None
    return row[0]


def test_statements_run_as_the_role_and_tell_their_rows(conn: Session) -> None:
    with conn.transaction():
        assert wall.run(conn, "c28_owner", "UPDATE m.t SET a = 0 WHERE id <= 3") == 3
        assert wall.query(conn, "c28_owner", "SELECT current_user::text, count(*) FROM m.t", ["text", "bigint"]) == [
            ("c28_owner", 20)
        ]
    assert one_of(conn, "SELECT count(*) FROM pg_proc WHERE proname LIKE 'pgddl_wall%'") == 0


def test_a_pipeline_without_superuser_s_rights_has_walls_too(server: Cluster, dsn: str) -> None:
    weak = psycopg.conninfo.make_conninfo(dsn, user="c28_pipeline")
    with connect(weak, purpose="test") as conn, conn.transaction():
        assert wall.run(conn, "c28_owner", "UPDATE m.t SET a = 0 WHERE id <= 3") == 3
        assert one_of(conn, "SELECT current_user::text") == "c28_pipeline"
        with pytest.raises(psycopg.Error), conn.transaction():
            wall.run(conn, "c28_owner", "SET ROLE c28_pipeline")


def test_what_code_sets_and_prepares_is_gone_behind_it(dsn: str, conn: Session) -> None:
    as_owner(
        dsn,
        """CREATE FUNCTION m.meddle() RETURNS void LANGUAGE plpgsql AS $$ BEGIN
        PERFORM set_config('search_path', 'm', false);
        PERFORM set_config('standard_conforming_strings', 'off', false);
        PERFORM set_config('lock_timeout', '1ms', true);
        DEALLOCATE ALL;
        EXECUTE 'PREPARE _pg3_0 AS SELECT 666';
        EXECUTE 'DECLARE kept CURSOR WITH HOLD FOR SELECT 1';
    END $$""",
    )
    query = "SELECT count(*) FROM pg_catalog.pg_class WHERE relname = %s"
    with plans_kept(conn):
        assert conn.execute(query, ["t"]).fetchone() == (1,)
    with conn.transaction():
        conn.execute("SET LOCAL lock_timeout = '7s'")
        wall.run(conn, "c28_owner", "SELECT m.meddle()")
        with plans_kept(conn):
            assert conn.execute(query, ["t"]).fetchone() == (1,)
        pinned = {"search_path": PINNED["search_path"], "standard_conforming_strings": "on", "lock_timeout": "7s"}
        assert {name: one_of(conn, f"SHOW {name}") for name in pinned} == pinned
    assert one_of(conn, "SELECT count(*) FROM pg_cursors WHERE name = 'kept'") == 0
    assert one_of(conn, "SHOW search_path") == PINNED["search_path"]
    with pytest.raises(psycopg.errors.DivisionByZero), conn.transaction():
        wall.run(conn, "c28_owner", "SELECT m.meddle(), 1 / 0")
    with plans_kept(conn):
        assert conn.execute(query, ["t"]).fetchone() == (1,)


LEFT = {
    "table": "CREATE TEMPORARY TABLE pg_class (a int)",
    "type": "CREATE DOMAIN pg_temp.text AS pg_catalog.text",
    "function": "CREATE FUNCTION pg_temp.f() RETURNS int LANGUAGE sql AS 'SELECT 1'",
    "deferred trigger": "INSERT INTO m.later VALUES (1)",
    "deferred trigger of a table without columns": "INSERT INTO m.bare DEFAULT VALUES",
}


@pytest.mark.parametrize("left", LEFT)
def test_what_code_leaves_in_the_session_ends_the_transaction(dsn: str, conn: Session, left: str) -> None:
    as_owner(
        dsn,
        "CREATE TABLE m.later (a int)",
        "CREATE FUNCTION m.fires() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'",
        "CREATE CONSTRAINT TRIGGER later AFTER INSERT ON m.later DEFERRABLE INITIALLY DEFERRED FOR EACH ROW"
        " EXECUTE FUNCTION m.fires()",
        "CREATE TABLE m.bare ()",
        "CREATE CONSTRAINT TRIGGER later AFTER INSERT ON m.bare DEFERRABLE INITIALLY DEFERRED FOR EACH ROW"
        " EXECUTE FUNCTION m.fires()",
    )
    with pytest.raises(LeftBehindTheWall, match="c28_owner"), conn.transaction():
        wall.run(conn, "c28_owner", LEFT[left])
    assert one_of(conn, "SELECT count(*) FROM m.later") == 0
    with conn.transaction():  # the session can go on
        assert wall.run(conn, "c28_owner", "DELETE FROM m.t") == 20


SILENCED = {
    "a trigger": "CREATE TABLE n.t (a int); CREATE TRIGGER fires AFTER INSERT ON n.t EXECUTE FUNCTION n.fires()",
    "a foreign key": "CREATE TABLE n.of (a int PRIMARY KEY); CREATE TABLE n.t (a int REFERENCES n.of)",
    "a rule": "CREATE TABLE n.t (a int); CREATE RULE nothing AS ON INSERT TO n.t DO INSTEAD NOTHING",
}


@pytest.mark.parametrize("what", SILENCED)
def test_what_others_have_on_their_tables_is_not_passed_by_in_our_replica_role(
    dsn: str, conn: Session, what: str
) -> None:
    do(
        dsn,
        f"""CREATE FUNCTION n.fires() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''no''; END';
        {SILENCED[what]}; GRANT INSERT ON n.t TO c28_owner""",
    )
    with suppress(psycopg.Error), conn.transaction():  # as it is for everybody
        wall.run(conn, "c28_owner", "INSERT INTO n.t VALUES (1)")
    with pytest.raises(LeftBehindTheWall, match=r"rows in n\.t"), conn.transaction():
        conn.execute("SET LOCAL session_replication_role = replica")
        wall.run(conn, "c28_owner", "INSERT INTO n.t VALUES (1)")
    assert one_of(conn, "SELECT count(*) FROM n.t") == 0
    with conn.transaction():
        conn.execute("SET LOCAL session_replication_role = replica")
        assert wall.run(conn, "c28_owner", "UPDATE m.t SET a = 0") == 20


def test_ddl_does_not_pass_by_an_event_trigger_in_our_replica_role(dsn: str, conn: Session) -> None:
    do(
        dsn,
        "CREATE FUNCTION public.sees() RETURNS event_trigger LANGUAGE plpgsql AS 'BEGIN END'",
        "CREATE EVENT TRIGGER sees ON ddl_command_end EXECUTE FUNCTION public.sees()",
    )
    with pytest.raises(LeftBehindTheWall, match="event trigger"), conn.transaction():
        conn.execute("SET LOCAL session_replication_role = replica")
        wall.run(conn, "c28_owner", "ALTER TABLE m.t ADD COLUMN late int")
    with conn.transaction():
        conn.execute("SET LOCAL session_replication_role = replica")
        assert wall.run(conn, "c28_owner", "UPDATE m.t SET a = 0") == 20
    with conn.transaction():
        wall.run(conn, "c28_owner", "ALTER TABLE m.t ADD COLUMN late int")


# --- what is found ----------------------------------------------------------------------------------------------------

CODE = {
    "check": "ALTER TABLE m.t ADD CHECK (m.f(a) >= 0)",
    "generated column": "ALTER TABLE m.t ADD COLUMN g int GENERATED ALWAYS AS (m.f(a)) STORED",
    "default": "ALTER TABLE m.t ADD COLUMN d int DEFAULT m.f(1)",
    "index": "CREATE INDEX ON m.t (a) WHERE m.f(1) > 0",
    "statistics": "CREATE STATISTICS m.s ON (m.f(a)), id FROM m.t",
    "column": "CREATE DOMAIN m.d AS text CHECK (m.fine(VALUE)); ALTER TABLE m.t ADD COLUMN c m.d",
    "cast": "CREATE TYPE m.e AS ENUM ('x'); CREATE FUNCTION m.told(m.e) RETURNS text LANGUAGE plpgsql IMMUTABLE AS"
            " 'BEGIN RETURN 1; END'; CREATE CAST (m.e AS text) WITH FUNCTION m.told(m.e);"
            " ALTER TABLE m.t ADD COLUMN e m.e",
}  # fmt: skip


@pytest.mark.parametrize("kind", CODE)
def test_code_is_found(dsn: str, conn: Session, kind: str) -> None:
    oid = catalog.oid_of(conn, "m", "t")
    assert oid is not None
    assert foreign_code.foreign_code(conn, [oid], []) == {}
    as_owner(dsn, CODE[kind])
    assert {code.kind for code in foreign_code.foreign_code(conn, [oid], [])[oid]} == {kind}
    assert {code.author for code in foreign_code.foreign_code(conn, [oid], [])[oid]} == {"c28_owner"}
    assert foreign_code.foreign_code(conn, [oid], ["c28_owner"]) == {}


def test_a_composite_counts_as_code_for_what_may_become_of_it(dsn: str, conn: Session) -> None:
    """An attribute of a domain, at any time: no lock on the table keeps that out."""
    oid = catalog.oid_of(conn, "m", "t")
    assert oid is not None
    as_owner(dsn, "CREATE TYPE m.pair AS (a int, b text); ALTER TABLE m.t ADD COLUMN p m.pair[]")
    (found,) = foreign_code.foreign_code(conn, [oid], [])[oid]
    assert (found.kind, found.code, found.nested) == ("column", "type m.pair", False)
    assert not foreign_code.survey(conn, [oid], [])[oid].refused


CODED = """
CREATE SEQUENCE m.ran;
GRANT ALL ON SEQUENCE m.ran TO PUBLIC;
CREATE OR REPLACE FUNCTION m.f(int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS $$ BEGIN
    IF current_user <> 'c28_owner' THEN PERFORM nextval('m.ran'); END IF;
    RETURN $1;
END $$;
ALTER TABLE m.t ADD COLUMN b int, ADD CHECK (m.f(1) > 0);
CREATE UNIQUE INDEX u ON m.t ((id + m.f(1)));
CREATE INDEX partial ON m.t (id) WHERE m.f(1) > 0;
CREATE TABLE m.p (id int, a int) PARTITION BY RANGE (id);
CREATE TABLE m.p1 PARTITION OF m.p DEFAULT;
CREATE INDEX whole ON ONLY m.p ((id + m.f(1)));
CREATE INDEX part ON m.p1 ((id + m.f(1)));
CREATE TABLE m.bare (a int, CHECK (m.f(1) > 0));
"""
# (statement, whether there is a role as which it can run)
ALTERED = {
    "not null": ("ALTER TABLE m.t ALTER COLUMN a SET NOT NULL", True),
    "a primary key": ("ALTER TABLE ONLY m.bare ADD CONSTRAINT k PRIMARY KEY (a)", True),
    "an index of a partition": ("ALTER INDEX m.whole ATTACH PARTITION m.part", True),
    "a foreign key of ours": ("ALTER TABLE public.ours ADD FOREIGN KEY (id) REFERENCES m.t (id)", False),
    "a partition of ours": ("CREATE TABLE public.p2 PARTITION OF m.p FOR VALUES FROM (1) TO (2)", False),
    "a table of ours like it": ("CREATE TABLE public.other (LIKE m.t INCLUDING ALL)", False),
}


@pytest.mark.parametrize("what", ALTERED)
def test_no_expression_of_an_owner_is_planned_as_ourselves(dsn: str, conn: Session, what: str) -> None:
    """A sequence tells, which no rollback takes back."""
    as_owner(dsn, CODED)
    do(dsn, "CREATE TABLE public.ours (id int)", "INSERT INTO public.ours VALUES (1)")
    statement, possible = ALTERED[what]
    with nullcontext() if possible else pytest.raises(StageFailed, match="c28_owner"):
        with conn.transaction():
            alter(conn, statement, [])
    assert one_of(conn, "SELECT is_called FROM m.ran") is False
    if not possible:
        with conn.transaction():
            alter(conn, statement, ["c28_owner"])
        assert one_of(conn, "SELECT is_called FROM m.ran") is True


def test_an_index_is_looked_at_as_its_owner_before_it_is_refused(dsn: str, conn: Session) -> None:
    as_owner(dsn, CODED)
    with pytest.raises(psycopg.Error, match="expression index"), conn.transaction():
        alter(conn, "ALTER TABLE m.t REPLICA IDENTITY USING INDEX u", [])
    assert one_of(conn, "SELECT is_called FROM m.ran") is False


PLANNED = {
    "generated by a constant": "id int, g int GENERATED ALWAYS AS (id + m.f(1)) STORED",
    "generated by way of an operator": "id int, g int GENERATED ALWAYS AS (id OPERATOR(m.<+>) 1) STORED",
}


@pytest.mark.parametrize("what", PLANNED)
def test_a_table_whose_columns_call_foreign_code_is_made_as_its_author_and_is_ours(
    dsn: str, conn: Session, what: str
) -> None:
    as_owner(
        dsn,
        "CREATE OR REPLACE FUNCTION m.f(int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS $$ BEGIN"
        " IF session_user = 'postgres' AND current_user <> 'c28_owner' THEN"
        " RAISE EXCEPTION 'as %', current_user; END IF;"
        " RETURN $1; END $$",
        "CREATE FUNCTION m.plus(int, int) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT $1 + m.f(1)'",
        "CREATE OPERATOR m.<+> (leftarg = int, rightarg = int, function = m.plus)",
        "ALTER DEFAULT PRIVILEGES GRANT ALL ON TABLES TO c28_other",
    )
    do(dsn, "CREATE SCHEMA fresh")
    with conn.transaction():
        alter(conn, f"CREATE TABLE fresh.t ({PLANNED[what]})", [])
    assert one_of(conn, "SELECT relowner::regrole::text FROM pg_class WHERE oid = 'fresh.t'::regclass") == "postgres"
    assert one_of(conn, "SELECT has_table_privilege('c28_other', 'fresh.t', 'SELECT')") is False
    assert one_of(conn, "SELECT has_schema_privilege('c28_owner', 'fresh', 'CREATE')") is False


BROUGHT = {
    "a default": "ADD COLUMN d int DEFAULT m.f(1)",
    "a generated column": "ADD COLUMN d int GENERATED ALWAYS AS (id + m.f(1)) STORED",
    "a check": "ADD CHECK (m.f(1) > 0)",
    "another type": "ALTER COLUMN id TYPE bigint USING m.f(id)",
    "a domain": "ADD COLUMN d m.d",
    "a type by a domain": "ALTER COLUMN id TYPE m.d",
}


@pytest.mark.parametrize("what", BROUGHT)
def test_foreign_code_is_not_brought_to_a_table_of_ours(dsn: str, conn: Session, what: str) -> None:
    """Which the same table of the source's may have, where its owner is another."""
    as_owner(dsn, "CREATE DOMAIN m.d AS int DEFAULT m.f(1)")
    do(dsn, "CREATE TABLE public.ours (id int PRIMARY KEY, p text)")
    with pytest.raises(StageFailed, match="c28_owner"), conn.transaction():
        alter(conn, f"ALTER TABLE ONLY public.ours {BROUGHT[what]}", [])
    with conn.transaction():
        alter(conn, f"ALTER TABLE ONLY public.ours {BROUGHT[what]}", ["c28_owner"])
    with conn.transaction():
        alter(
            conn,
            "ALTER TABLE public.ours ADD COLUMN IF NOT EXISTS p text, ADD COLUMN x int DEFAULT 1, ADD CHECK (x > 0)",
            ["c28_owner"],
        )


BETTER = """
CREATE SCHEMA shared;
GRANT ALL ON SCHEMA shared TO PUBLIC;
CREATE FUNCTION shared.f(anyelement) RETURNS anyelement LANGUAGE sql IMMUTABLE AS 'SELECT $1';
CREATE TABLE public.ours (id int, a int);
CREATE SEQUENCE shared.ran;
GRANT ALL ON SEQUENCE shared.ran TO PUBLIC;
SET ROLE c28_other;
CREATE FUNCTION shared.f(int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS
    $$ BEGIN PERFORM nextval('shared.ran'); RETURN $1; END $$;
RESET ROLE;
"""
INDEXES = {
    "an expression": "CREATE INDEX ON {} USING btree (shared.f(id))",
    "a predicate": "CREATE INDEX ON {} (a) WHERE shared.f(id) > 0",
    "a constraint": "ALTER TABLE {} ADD EXCLUDE (shared.f(id) WITH =)",
}


@pytest.mark.parametrize("what", INDEXES)
@pytest.mark.parametrize("table", ["m.t", "public.ours"])
def test_an_index_does_not_call_what_fits_its_names_better_by_now(
    dsn: str, conn: Session, table: str, what: str
) -> None:
    """The server builds it as the table's owner, to whom that is no less somebody else's."""
    do(dsn, BETTER, "INSERT INTO public.ours VALUES (1, 1)")
    statement = INDEXES[what].format(table)
    with pytest.raises(StageFailed, match="c28_other"), conn.transaction():
        alter(conn, statement, [])
    if "INDEX" in statement:
        with pytest.raises(StageFailed, match="c28_other"), conn.transaction():
            Client("postgres", {"search_path": ""}).run(conn, [statement], 1)
    assert one_of(conn, "SELECT is_called FROM shared.ran") is False
    with conn.transaction():
        alter(conn, statement, ["c28_other"])
    assert one_of(conn, "SELECT is_called FROM shared.ran") is True


def test_an_index_may_be_over_a_whole_row_and_name_a_collation(dsn: str, conn: Session) -> None:
    do(
        dsn,
        BETTER,
        'ALTER TABLE public.ours ADD COLUMN x text COLLATE "C", ADD COLUMN y text COLLATE "POSIX"',
        "CREATE FUNCTION public.whole(public.ours) RETURNS text LANGUAGE sql IMMUTABLE AS 'SELECT $1.x'",
        "CREATE FUNCTION shared.whole(public.ours) RETURNS text LANGUAGE sql IMMUTABLE AS 'SELECT $1.x'",
        "ALTER FUNCTION shared.whole OWNER TO c28_other",
    )
    for element in ("public.whole(ours.*)", '(x || y) COLLATE "C"'):
        with conn.transaction():
            alter(conn, f"CREATE INDEX ON public.ours ({element})", [])
    with pytest.raises(StageFailed, match="c28_other"), conn.transaction():
        alter(conn, "CREATE INDEX ON public.ours (shared.whole(ours.*))", [])


def test_an_index_that_has_called_other_code_than_was_looked_at_is_rolled_back(
    dsn: str, conn: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    do(dsn, BETTER)
    monkeypatch.setattr(alter_as_owner, "refuse_index", lambda *_: None)
    with pytest.raises(StageFailed, match="c28_other"), conn.transaction():
        alter(conn, "CREATE INDEX built ON m.t (shared.f(id))", [])
    assert one_of(conn, "SELECT to_regclass('m.built')") is None


def test_a_partition_key_that_calls_foreign_code_is_refused(conn: Session) -> None:
    with pytest.raises(StageFailed, match="c28_owner"), conn.transaction():
        alter(conn, "CREATE TABLE m.p (id int) PARTITION BY LIST ((id % 2 + m.f(1)))", [])


def test_whoever_may_make_one_table_makes_no_other(dsn: str, conn: Session) -> None:
    do(dsn, "CREATE SCHEMA fresh")
    for more in ("CREATE TABLE fresh.other (a int)", "CREATE TYPE fresh.other AS ENUM ('a')"):
        with pytest.raises(LeftBehindTheWall, match="other"), conn.transaction():
            with foreign_code.may_make(conn, "c28_owner", "fresh", "t"):
                wall.run(conn, "c28_owner", "CREATE TABLE fresh.t (a int PRIMARY KEY)", more)
    with conn.transaction(), foreign_code.may_make(conn, "c28_owner", "fresh", "t"):
        wall.run(conn, "c28_owner", "CREATE TABLE fresh.t (a int PRIMARY KEY)")


REFUSED = {
    "a third role's function": "ALTER TABLE m.t ADD CHECK (n.f(a) >= 0)",
    "a third role's function in a domain's default": "CREATE DOMAIN m.d AS int DEFAULT n.f(1);"
    " ALTER TABLE m.t ADD COLUMN c m.d",
    "a range in a key": "CREATE FUNCTION m.far(float8, float8) RETURNS float8 LANGUAGE sql IMMUTABLE"
    " AS 'SELECT $1 - $2';"
    " CREATE TYPE m.span AS RANGE (subtype = float8, subtype_diff = m.far); ALTER TABLE m.t ADD COLUMN c m.span UNIQUE",
    "a composite in a key": "CREATE TYPE m.pair AS (a int); ALTER TABLE m.t ADD COLUMN c m.pair UNIQUE",
    "a domain in an array": "CREATE DOMAIN m.d AS text; ALTER TABLE m.t ADD COLUMN c m.d[]",
    "a domain in a composite in a range's array": "CREATE DOMAIN m.d AS int; CREATE TYPE m.c AS (x m.d);"
    " CREATE TYPE m.r AS RANGE (subtype = m.c); ALTER TABLE m.t ADD COLUMN c m.r[]",
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_no_wall_helps_against_is_refused(dsn: str, conn: Session, what: str) -> None:
    oid = catalog.oid_of(conn, "m", "t")
    assert oid is not None
    as_owner(dsn, REFUSED[what])
    found = foreign_code.survey(conn, [oid], [])[oid]
    assert found.refused and "trusted_roles" in found.refused[0]
    assert not any(s.refused for s in foreign_code.survey(conn, [oid], ["c28_owner", "c28_other"]).values())


def test_superusers_and_members_of_our_role_are_trusted(server: Cluster, dsn: str, conn: Session) -> None:
    roles = ["postgres", "c28_owner", "c28_other", "c28_pipeline"]
    assert untrusted(conn, roles, ["c28_other"]) == {"c28_owner", "c28_pipeline"}
    with connect(psycopg.conninfo.make_conninfo(dsn, user="c28_pipeline"), purpose="test") as weak:
        assert untrusted(weak, roles, []) == {"c28_owner", "c28_other"}


LITERALS = {
    "array": "CREATE VIEW m.v AS SELECT '{x}'::m.d[] AS a",
    "composite": "ALTER TABLE m.t ALTER COLUMN c SET DEFAULT '(x)'::m.c",
    "function's default": "CREATE FUNCTION m.g(m.d[] DEFAULT '{x}'::m.d[]) RETURNS int LANGUAGE sql AS 'SELECT 1'",
    "aggregate": "CREATE AGGREGATE m.all_of(m.c) (sfunc = m.keep, stype = m.c, initcond = '(x)')",
}


@pytest.mark.parametrize("what", LITERALS)
def test_a_literal_that_runs_a_check_as_it_is_read_is_not_read(dsn: str, conn: Session, what: str) -> None:
    """Which Postgres does while it parses: a statement that only makes something is enough."""
    as_owner(
        dsn,
        "CREATE TABLE m.seen (who text)",
        "CREATE FUNCTION m.told(text) RETURNS boolean LANGUAGE plpgsql AS"
        " 'BEGIN INSERT INTO m.seen VALUES (current_user); RETURN true; END'",
        "CREATE DOMAIN m.d AS text CHECK (m.told(VALUE))",
        "CREATE TYPE m.c AS (x m.d)",
        "CREATE FUNCTION m.keep(m.c, m.c) RETURNS m.c LANGUAGE sql AS 'SELECT $1'",
        "ALTER TABLE m.t ADD COLUMN c m.c",
    )
    with pytest.raises(StageFailed, match="c28_owner"), conn.transaction():
        alter(conn, LITERALS[what], [])
    assert one_of(conn, "SELECT count(*) FROM m.seen") == 0
    with conn.transaction():
        alter(conn, LITERALS[what], ["c28_owner"])
    assert one_of(conn, "SELECT DISTINCT who FROM m.seen") == "postgres"


# --- our own functions ------------------------------------------------------------------------------------------------

# Which pin no path, and why nobody's comes into play there.
UNPINNED = {
    "client_ddl": "it has to be the client, and hands its path on; all that it calls is qualified",
    "lock_altered": "it has to be the client; all that it calls is qualified",
    "outer_context": "is to be inlined; all that it calls is qualified",
    "emit_command": "called by functions that pin theirs",
    "follow_publications": "called by functions that pin theirs",
}


def test_every_function_of_ours_pins_its_path_or_is_known_not_to(conn: Session) -> None:
    migrations.apply(conn, "core")
    query = (
        "SELECT p.proname::text, p.prosecdef FROM pg_proc p WHERE p.pronamespace = 'pgddl'::regnamespace"
        " AND NOT EXISTS (SELECT FROM unnest(p.proconfig) c WHERE c LIKE 'search_path=%%')"
    )
    found = dict(conn.execute(query.replace("%%", "%").encode()).fetchall())
    assert found.keys() <= UNPINNED.keys()
    assert not any(found.values()), "one that runs as its owner must not follow its caller's path"


# --- what the locks keep out ------------------------------------------------------------------------------------------


def plan(conn: Session) -> Plan:
    oid = catalog.oid_of(conn, "m", "t")
    assert oid is not None
    made = make_plan(catalog.describe(conn, [oid])[oid], copy_schema="m")
    return replace(made, keepers=Keepers("c28_owner", "c28_owner"))


LATE = {
    "an index": ("CREATE INDEX ON m.t (a) WHERE m.f(1) > 0", "ShareLock", "m.t"),
    "an index, concurrently": ("CREATE INDEX CONCURRENTLY ON m.t (a) WHERE m.f(1) > 0", None, ""),
    "statistics": ("CREATE STATISTICS m.s ON (id + m.f(1)), a FROM m.t", "RowExclusiveLock", "pg_statistic_ext"),
    "a check": ("ALTER TABLE m.t ADD CHECK (m.f(1) > 0)", "AccessExclusiveLock", "m.t"),
    "another owner": ("ALTER TABLE m.t OWNER TO c28_other", "AccessExclusiveLock", "m.t"),
}


@pytest.mark.parametrize("late", LATE)
def test_code_that_comes_after_the_look_waits_for_us(dsn: str, conn: Session, late: str) -> None:
    statement, mode, relation = LATE[late]
    attempt = do if late == "another owner" else as_owner
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE 'CREATE INDEX%%'"
    known = plan(conn)
    conn.execute("BEGIN")
    foreign_code.lock(conn, [(known.copy, known)], "reader")
    assert foreign_code.code_of_live(conn, {1: known}) == (set(), {})
    with Underway(lambda: attempt(dsn, statement)) as coming:
        if mode is None:
            wait_for(lambda: one(dsn, waiting) == 1, coming)
            assert foreign_code.code_of_live(conn, {1: known})[0] == {1}  # its entry is there, and is not used yet
        else:
            wait_for(lambda: waits(dsn, mode, relation), coming)
            assert foreign_code.code_of_live(conn, {1: known}) == (set(), {})
        conn.execute("COMMIT")
        coming.finish()


def test_who_is_at_the_table_is_given_way(dsn: str, conn: Session) -> None:
    known = plan(conn)
    with psycopg.connect(dsn) as other:
        other.execute("CREATE STATISTICS m.s ON id, a FROM m.t")
        other.execute("LOCK pg_catalog.pg_statistic_ext IN ROW EXCLUSIVE MODE")
        with pytest.raises(GaveWay), conn.transaction():
            foreign_code.lock(conn, [(known.copy, known)], "reader")


def test_another_owner_ends_the_stage(dsn: str, conn: Session) -> None:
    known = plan(conn)
    do(dsn, "ALTER TABLE m.t OWNER TO c28_other")
    with pytest.raises(OwnerChanged), conn.transaction():
        foreign_code.code_of_live(conn, {1: known})
