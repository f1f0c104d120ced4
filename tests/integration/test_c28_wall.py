"""C28: the wall behind which code of a role runs that we do not trust, paths of our own functions, and what our locks
keep out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

import psycopg
import pytest

from airflow_provider_pgddl.demo.clusters import Cluster
from airflow_provider_pgddl.engine.errors import GaveWay, LeftBehindTheWall, OwnerChanged
from airflow_provider_pgddl.engine.journal import migrations
from airflow_provider_pgddl.engine.model.plan import Keepers, Plan, make_plan
from airflow_provider_pgddl.engine.rights import foreign_code, wall
from airflow_provider_pgddl.engine.server import catalog
from airflow_provider_pgddl.engine.server.connect import PINNED, Session, connect, plans_kept
from tests.combinations import matrix
from tests.conftest import Database
from tests.integration.foreign_owner import ROLES, as_owner, one_of
from tests.integration.sessions import Underway, do, one, wait_for, waits


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
