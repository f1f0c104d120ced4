"""C28: code of a role that we do not trust is found, and is neither planned nor brought to a table as ourselves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext

import psycopg
import pytest

from airflow_provider_pgddl.demo.clusters import Cluster
from airflow_provider_pgddl.engine.apply.as_client import Client
from airflow_provider_pgddl.engine.errors import LeftBehindTheWall, StageFailed
from airflow_provider_pgddl.engine.rights import alter_as_owner, foreign_code, wall
from airflow_provider_pgddl.engine.rights.alter_as_owner import alter
from airflow_provider_pgddl.engine.rights.trust import untrusted
from airflow_provider_pgddl.engine.server import catalog
from airflow_provider_pgddl.engine.server.connect import Session, connect
from tests.combinations import matrix
from tests.conftest import Database
from tests.integration.foreign_owner import ROLES, as_owner, one_of
from tests.integration.sessions import do


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
