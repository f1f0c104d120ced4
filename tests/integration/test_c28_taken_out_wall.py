"""Each guard of the wall and of statements of ours, with it and without: the same attempt gains something as soon as it
is taken out, as in `test_c28_taken_out`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from airflow_provider_pgddl.demo.clusters import Cluster
from airflow_provider_pgddl.engine.apply import as_client
from airflow_provider_pgddl.engine.errors import PgddlError
from airflow_provider_pgddl.engine.pipeline.reading import load_pipeline
from airflow_provider_pgddl.engine.rights import alter_as_owner, foreign_code, wall
from airflow_provider_pgddl.engine.rights.alter_as_owner import alter
from airflow_provider_pgddl.engine.server.connect import PINNED, Session, connect, plans_kept
from tests.conftest import Database
from tests.integration.guards import GROUND, Attempt, Guard, Out, gains, if_not_kept_out, instead, run_as_owner
from tests.integration.sessions import do


@pytest.fixture
def dsn(pg16: Cluster, database: Database) -> str:
    made = database(pg16)  # up to 17 a trigger that is queued by a foreign key's action fires as us
    do(made, GROUND)
    return made


@pytest.fixture
def conn(dsn: str) -> Iterator[Session]:
    with connect(dsn, purpose="test") as session:
        yield session


# --- what code leaves behind the wall ---------------------------------------------------------------------------------


def a_setting(dsn: str, conn: Session) -> bool:
    with conn.transaction():
        wall.run(conn, "c28_owner", "SELECT pg_catalog.set_config('gin_fuzzy_search_limit', '1', false)")
    return conn.execute("SHOW gin_fuzzy_search_limit").fetchone() != ("0",)


def a_pinned_one(dsn: str, conn: Session) -> bool:
    with conn.transaction():
        wall.run(conn, "c28_owner", "SELECT pg_catalog.set_config('search_path', 'm', false)")
    pinned = ("search_path", "extra_float_digits", "DateStyle")
    return any(conn.execute(f"SHOW {name}").fetchone() != (PINNED[name],) for name in pinned)


def a_lock_timeout(dsn: str, conn: Session) -> bool:
    with conn.transaction():
        conn.execute("SET LOCAL lock_timeout = '7s'")
        wall.run(conn, "c28_owner", "SELECT pg_catalog.set_config('lock_timeout', '0', true)")
        return conn.execute("SHOW lock_timeout").fetchone() != ("7s",)


def prepared(dsn: str, conn: Session) -> None:
    run_as_owner(
        dsn,
        """CREATE FUNCTION m.prepares() RETURNS void LANGUAGE plpgsql AS $$ BEGIN
        DEALLOCATE ALL;
        FOR i IN 0..40 LOOP EXECUTE 'PREPARE _pg3_' || i || ' AS SELECT m.f(1)'; END LOOP;
    END $$""",
    )
    query = "SELECT count(*) FROM pg_catalog.pg_am"
    with plans_kept(conn):
        conn.execute(query)
    with conn.transaction():
        wall.run(conn, "c28_owner", "SELECT m.prepares()")
    with plans_kept(conn):
        conn.execute(query)


def forgotten(*without: str) -> Out:
    def out(patch: pytest.MonkeyPatch, _: Session) -> None:
        forget = wall._Q["forget"]
        for statement in without:
            assert statement in forget
            forget = forget.replace(statement, "SELECT")
        patch.setitem(wall._Q, "forget", forget)

    return out


def kept_prepared(patch: pytest.MonkeyPatch, conn: Session) -> None:
    forgotten("DEALLOCATE ALL")(patch, conn)
    patch.setattr(type(conn._prepared), "clear", lambda _: None)


def past_triggers(dsn: str, conn: Session) -> bool:
    do(
        dsn,
        "CREATE TABLE n.t (a int)",
        "GRANT INSERT ON n.t TO c28_owner",
        "CREATE FUNCTION n.no() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'",
        "CREATE TRIGGER no BEFORE INSERT ON n.t FOR EACH ROW EXECUTE FUNCTION n.no()",
    )
    with suppress(PgddlError), conn.transaction():
        conn.execute("SET LOCAL session_replication_role = replica")
        wall.run(conn, "c28_owner", "INSERT INTO n.t VALUES (1)")
    return conn.execute("SELECT count(*) FROM n.t").fetchone() == (1,)


# --- statements of ours -----------------------------------------------------------------------------------------------


def altered(statement: str, *made: str, then: str = "") -> Attempt:
    def attempt(dsn: str, conn: Session) -> None:
        run_as_owner(dsn, *made)
        do(dsn, "CREATE TABLE public.ours (id int PRIMARY KEY)", "INSERT INTO public.ours VALUES (1)")
        with conn.transaction():
            alter(conn, statement, [])
        if then:  # in another session of ours, which has not seen how it was made
            with connect(dsn, purpose="other") as other:
                other.execute(then.encode())

    return attempt


def altered_while_a_check_comes(dsn: str, conn: Session) -> None:
    surveyed, looks = foreign_code.survey, []

    def survey(*args: Any, **options: Any) -> Any:
        found = surveyed(*args, **options)
        looks.append(found)
        if len(looks) == 2:
            if_not_kept_out(dsn, "ALTER TABLE m.t ADD CHECK (m.f(1) > 0)")
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(foreign_code, "survey", survey)
        with conn.transaction():
            alter(conn, "ALTER TABLE m.t ALTER COLUMN a SET NOT NULL", [])


def harmless_locked(patch: pytest.MonkeyPatch, _: Session) -> None:
    query = "SELECT 'pg_catalog'::name, 'pg_am'::name FROM (SELECT %s::oid[]) g"
    patch.setitem(alter_as_owner._Q, "names_of", query)


def keys_like_columns(patch: pytest.MonkeyPatch, _: Session) -> None:
    """As if a partition key ran but where the table is made."""
    looked, times = alter_as_owner._code_of, []

    def code_of(*args: Any) -> Any:
        times.append(args)
        return looked(*args) if len(times) == 1 else []

    patch.setattr(alter_as_owner, "_code_of", code_of)


def more_is_made(dsn: str, conn: Session) -> bool:
    with suppress(PgddlError), conn.transaction(), foreign_code.may_make(conn, "c28_owner", "fresh", "t"):
        wall.run(conn, "c28_owner", "CREATE TABLE fresh.t (a int)", "CREATE TABLE fresh.of_others (a int)")
    return conn.execute("SELECT to_regclass('fresh.of_others') IS NOT NULL").fetchone() == (True,)


def given_by_default(dsn: str, conn: Session) -> bool:
    run_as_owner(dsn, "ALTER DEFAULT PRIVILEGES GRANT ALL ON TABLES TO c28_other")
    with conn.transaction():
        alter(conn, "CREATE TABLE fresh.t (id int, g int GENERATED ALWAYS AS (id + m.f(1)) STORED)", [])
    row = conn.execute("SELECT has_table_privilege('c28_other', 'fresh.t', 'SELECT')").fetchone()
    return row == (True,)


def as_a_mightier_namesake(dsn: str, conn: Session) -> bool:
    """The client's role is no more than a role on the source, and reads every file on the target."""
    pipeline = load_pipeline(
        {"pipeline": "p", "source": {"dsn": "${A}"}, "target": {"dsn": "${B}"}, "tables": {"include": ["m.*"]}}
    )
    event: Any = {"role": "c28_mighty", "settings": {}, "path": ["public"]}
    client = as_client.client_of(conn, event, pipeline, ["c28_mighty"], lambda _: False, lambda _: set())
    with conn.transaction():
        client.run(
            conn, ["CREATE FUNCTION m.reads() RETURNS text LANGUAGE sql AS $$SELECT pg_read_file('PG_VERSION')$$"], 1
        )
    return conn.execute("SELECT m.reads()").fetchone() is not None


COMPOSITE = (
    "CREATE DOMAIN m.d AS int",
    "CREATE TYPE m.c AS (a m.d)",
    "ALTER DOMAIN m.d ADD CHECK (m.f(VALUE) > 0) NOT VALID",
)


GUARDS = {
    "settings are reset": Guard(a_setting, forgotten("RESET ALL")),
    "settings are pinned": Guard(a_pinned_one, instead(wall, "pin", None)),
    "settings of the transaction are put back": Guard(
        a_lock_timeout, lambda patch, _: patch.setitem(wall._Q, "put_back", "SELECT %s::text[], %s::text[]")
    ),
    "prepared statements are thrown away": Guard(prepared, kept_prepared),
    "silenced triggers are seen": Guard(past_triggers, instead(wall, "_unseen", None)),
    "literals are looked at": Guard(
        altered("CREATE VIEW public.v AS SELECT '(1)'::m.c AS c", *COMPOSITE),
        instead(alter_as_owner, "_refuse_literals", None),
    ),
    "what is brought is looked at": Guard(
        altered("ALTER TABLE ONLY public.ours ADD COLUMN d int DEFAULT m.f(1)"), instead(alter_as_owner, "_brought", [])
    ),
    "a table that is altered is locked": Guard(altered_while_a_check_comes, harmless_locked),
    "a partition key is refused": Guard(
        altered(
            "CREATE TABLE public.p (id int) PARTITION BY LIST ((id % 2 + m.f(1)))",
            then="CREATE TABLE public.p1 PARTITION OF public.p DEFAULT",
        ),
        keys_like_columns,
    ),
    "nothing else is made": Guard(
        more_is_made, lambda patch, _: patch.setitem(foreign_code._Q, "made_in_schema", "SELECT '' WHERE false")
    ),
    "nobody does more by an event than on the source": Guard(
        as_a_mightier_namesake, instead(as_client, "_refuse_more", None)
    ),
    "nothing is given by default": Guard(
        given_by_default,
        lambda patch, _: patch.setitem(alter_as_owner._Q, "given_by_default", "SELECT %s::text, %s::text WHERE false"),
    ),
}


@pytest.mark.parametrize("out", [False, True], ids=["with", "without"])
@pytest.mark.parametrize("guard", GUARDS)
def test_the_guard_makes_the_difference(
    dsn: str, conn: Session, monkeypatch: pytest.MonkeyPatch, guard: str, out: bool
) -> None:
    gained, said = gains(GUARDS[guard], dsn, conn, monkeypatch, out=out)
    assert gained is out, said
