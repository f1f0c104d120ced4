"""Each guard of `engine/rights` where it stands, with it and without: the same attempt gains something as soon as it is
taken out. Those that take a whole pipeline to be seen are in `test_foreign_code_guards.py`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import psycopg
import pytest
from psycopg import sql

from airflow_provider_pgddl.demo.clusters import Cluster
from airflow_provider_pgddl.engine.apply import as_client
from airflow_provider_pgddl.engine.errors import PgddlError
from airflow_provider_pgddl.engine.model.plan import Keepers, Plan, make_plan
from airflow_provider_pgddl.engine.pipeline.reading import load_pipeline
from airflow_provider_pgddl.engine.rights import alter_as_owner, as_owner, foreign_code, wall
from airflow_provider_pgddl.engine.rights.alter_as_owner import alter
from airflow_provider_pgddl.engine.server import catalog
from airflow_provider_pgddl.engine.server.connect import PINNED, Session, connect, plans_kept
from airflow_provider_pgddl.engine.server.giving_way import lock_briefly
from tests.conftest import Database
from tests.integration.sessions import do

Attempt = Callable[[str, Session], bool | None]
Out = Callable[[pytest.MonkeyPatch, Session], None]

# What runs m.f or n.f in a session of ours as another than its author moves a sequence, which no rollback takes back.
GROUND = """
DO $$ BEGIN
    IF to_regrole('c28_owner') IS NULL THEN CREATE ROLE c28_owner; END IF;
    IF to_regrole('c28_other') IS NULL THEN CREATE ROLE c28_other; END IF;
    IF to_regrole('c28_mighty') IS NULL THEN CREATE ROLE c28_mighty IN ROLE pg_read_server_files; END IF;
END $$;
CREATE SCHEMA m AUTHORIZATION c28_owner;
CREATE SCHEMA n AUTHORIZATION c28_other;
CREATE SCHEMA fresh;
CREATE SCHEMA pgddl_copy_m;
GRANT USAGE, CREATE ON SCHEMA pgddl_copy_m TO c28_owner;
GRANT USAGE, CREATE ON SCHEMA m TO c28_mighty;
GRANT USAGE ON SCHEMA n TO PUBLIC;
CREATE SEQUENCE public.ran;
GRANT ALL ON SEQUENCE public.ran TO PUBLIC;
SET ROLE c28_other;
CREATE FUNCTION n.f(int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS
$$ BEGIN
    IF current_user <> 'c28_other' AND current_setting('application_name') LIKE 'pgddl%' THEN
        PERFORM nextval('public.ran');
    END IF;
    RETURN $1;
END $$;
SET ROLE c28_owner;
CREATE FUNCTION m.f(int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS
$$ BEGIN
    IF current_user <> 'c28_owner' AND current_setting('application_name') LIKE 'pgddl%' THEN
        PERFORM nextval('public.ran');
    END IF;
    RETURN $1;
END $$;
CREATE FUNCTION m.fires() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM m.f(1); RETURN NULL; END';
CREATE TABLE m.t (id int PRIMARY KEY, a int);
INSERT INTO m.t SELECT i, i FROM generate_series(1, 20) i;
"""


@pytest.fixture
def dsn(pg16: Cluster, database: Database) -> str:
    made = database(pg16)  # up to 17 a trigger that is queued by a foreign key's action fires as us
    do(made, GROUND)
    return made


@pytest.fixture
def conn(dsn: str) -> Iterator[Session]:
    with connect(dsn, purpose="test") as session:
        yield session


def plan(conn: Session, schema: str = "m", name: str = "t", copy: str = "") -> Plan:
    oid = catalog.oid_of(conn, schema, name)
    assert oid is not None
    made = make_plan(catalog.describe(conn, [oid])[oid], copy_schema=copy or schema)
    return replace(made, keepers=Keepers("c28_owner", "c28_owner"))


def run_as_owner(dsn: str, *statements: str) -> None:
    do(dsn, "SET ROLE c28_owner", *statements)


def if_not_kept_out(dsn: str, *statements: str) -> None:
    """By the owner, if no lock of ours is in the way."""
    with suppress(psycopg.errors.QueryCanceled, psycopg.errors.LockNotAvailable):
        run_as_owner(dsn, "SET statement_timeout = '300ms'", *statements)


def read(conn: Session, known: Plan, role: str) -> None:
    query = sql.SQL("SELECT count(*) FROM {} AS t WHERE t.id > 0").format(known.source)
    as_owner.fetch(conn, role, query, ["bigint"])


def written(conn: Session, known: Plan, statement: str) -> None:
    role = foreign_code.writer_of(conn, known)
    as_owner.execute(conn, role, sql.SQL(statement))  # type: ignore[arg-type]


# --- what comes while a table is read or written ----------------------------------------------------------------------


def read_while(*statements: str, name: str = "t", before: tuple[str, ...] = ()) -> Attempt:
    """What the owner brings between our look and our reading."""

    def attempt(dsn: str, conn: Session) -> None:
        run_as_owner(dsn, *before)
        known = plan(conn, name=name)
        with conn.transaction():
            foreign_code.lock(conn, [(known.source, known)], "reader")
            role = foreign_code.reader_of(conn, known)
            if_not_kept_out(dsn, *statements)
            read(conn, known, role)

    return attempt


INDEX = "CREATE INDEX ON m.t (a) WHERE m.f(1) > 0"
STATISTICS = "CREATE STATISTICS m.s ON (id + m.f(1)), a FROM m.t"
PARTITION = (
    "CREATE TABLE m.p (id int PRIMARY KEY, a int) PARTITION BY RANGE (id)",
    "CREATE TABLE m.p1 PARTITION OF m.p FOR VALUES FROM (0) TO (9)",
    "CREATE TABLE m.late (id int PRIMARY KEY, a int)",
    "CREATE INDEX ON m.late (a) WHERE m.f(1) > 0",
)
ATTACH = "ALTER TABLE m.p ATTACH PARTITION m.late FOR VALUES FROM (10) TO (20)"


def weaker_lock(patch: pytest.MonkeyPatch, _: Session) -> None:
    def lock(conn: Session, relations: Any, mode: Any = "ACCESS SHARE", *, wait: float = 0.0) -> None:
        lock_briefly(conn, relations, "ACCESS SHARE" if mode == "ROW EXCLUSIVE" else mode, wait=wait)

    patch.setattr(foreign_code, "lock_briefly", lock)


def no_catalogs(patch: pytest.MonkeyPatch, _: Session) -> None:
    patch.setattr(foreign_code, "_hold_catalogs", lambda *_: None)


def no_partitions(patch: pytest.MonkeyPatch, _: Session) -> None:
    def hold(conn: Session, _: Any) -> None:
        lock_briefly(conn, [sql.Identifier("pg_catalog", "pg_statistic_ext")], "SHARE")

    patch.setattr(foreign_code, "_hold_catalogs", hold)


# --- names that change hands ------------------------------------------------------------------------------------------


def moved_schema(dsn: str, conn: Session) -> Plan:
    conn.execute(sql.SQL("GRANT CREATE ON DATABASE {} TO c28_owner").format(sql.Identifier(conn.info.dbname)))
    run_as_owner(dsn, "CREATE SCHEMA s", "CREATE TABLE s.t (id int PRIMARY KEY)")
    return plan(conn, "s")


RENAMED = ("ALTER SCHEMA s RENAME TO gone", "CREATE SCHEMA s")
ANOTHER = (*RENAMED, "CREATE TABLE s.t (id int PRIMARY KEY)")
LATE = "CREATE INDEX ON s.t (id) WHERE m.f(1) > 0"


def a_view_takes_its_name(dsn: str, conn: Session) -> None:
    known = moved_schema(dsn, conn)
    with conn.transaction():
        conn.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        foreign_code.lock(conn, [(known.source, known)], "reader")
        role = foreign_code.reader_of(conn, known)
        if_not_kept_out(dsn, *RENAMED, "CREATE VIEW s.t AS SELECT 1 AS id WHERE m.f(1) > 0")
        as_owner.fetch(conn, role, sql.SQL("SELECT count(*) FROM s.t"), ["bigint"])


def another_table_is_read(dsn: str, conn: Session) -> None:
    known = moved_schema(dsn, conn)
    with conn.transaction():
        foreign_code.lock(conn, [(known.source, known)], "reader")
        run_as_owner(dsn, *ANOTHER)
        role = foreign_code.reader_of(conn, known)
        if_not_kept_out(dsn, LATE)
        read(conn, known, role)


def another_table_is_written(dsn: str, conn: Session) -> None:
    known = moved_schema(dsn, conn)
    with conn.transaction():
        foreign_code.lock(conn, [(known.copy, known)], "writer")
        run_as_owner(dsn, *ANOTHER)
        behind, stops = foreign_code.code_of_copies(conn, {1: known})
        assert (behind, stops) == (set(), {})
        if_not_kept_out(dsn, LATE)
        conn.execute("INSERT INTO s.t VALUES (1)")


def names_not_held(patch: pytest.MonkeyPatch, _: Session) -> None:
    patch.setattr(foreign_code, "_hold_schemas", lambda *_: None)


def standing(**other: Any) -> Out:
    """As if the server had said something else of each table."""

    def out(patch: pytest.MonkeyPatch, _: Session) -> None:
        asked = foreign_code._standing

        def said(*args: Any) -> Any:
            return {name: replace(found, **other) for name, found in asked(*args).items()}

        patch.setattr(foreign_code, "_standing", said)

    return out


def any_oid(patch: pytest.MonkeyPatch, _: Session) -> None:
    """As if every table were the one that we know."""
    code = foreign_code._code

    def of(conn: Session, plans: Any, side: str, names: Any, kinds: Any) -> Any:
        now = {i: replace(p, oid=catalog.oid_of(conn, *names[i]) or 0) for i, p in plans.items()}
        return code(conn, now, side, names, kinds)

    patch.setattr(foreign_code, "_code", of)


def not_locked_again(patch: pytest.MonkeyPatch, _: Session) -> None:
    def hold(conn: Session, names: Any, side: str) -> None:
        foreign_code._hold_schemas(conn, "by_name", foreign_code._listed(names))

    patch.setattr(foreign_code, "_hold_names", hold)


# --- what a table has -------------------------------------------------------------------------------------------------


def writing(*made: str, statement: str = "INSERT INTO pgddl_copy_m.t VALUES (1, 1)") -> Attempt:
    """To a copy that is hers."""

    def attempt(dsn: str, conn: Session) -> None:
        run_as_owner(
            dsn, "CREATE TABLE pgddl_copy_m.t (id int PRIMARY KEY, a int)", "INSERT INTO pgddl_copy_m.t VALUES (7)"
        )
        known = plan(conn, copy="pgddl_copy_m")
        run_as_owner(dsn, *made)
        with conn.transaction():
            written(conn, known, statement)

    return attempt


CHILD = (
    "CREATE TABLE m.child (id int REFERENCES pgddl_copy_m.t ON DELETE CASCADE)",
    "INSERT INTO m.child VALUES (7)",
    "CREATE TRIGGER fires AFTER DELETE ON m.child FOR EACH ROW EXECUTE FUNCTION m.fires()",
)


def empty(query: str, columns: str) -> Out:
    """As if a question of ours had no answer."""

    def out(patch: pytest.MonkeyPatch, _: Session) -> None:
        patch.setitem(foreign_code._Q, query, f"SELECT {columns} WHERE false")  # type: ignore[arg-type]

    return out


def another_owner(dsn: str, conn: Session) -> None:
    """It was ours when the stage began."""
    run_as_owner(dsn, INDEX)
    known = replace(plan(conn), keepers=Keepers())
    with conn.transaction():
        foreign_code.lock(conn, [(known.source, known)], "reader")
        assert foreign_code.code_of_live(conn, {1: known}) == (set(), {})
        read(conn, known, "")


def of_a_third(dsn: str, conn: Session) -> None:
    run_as_owner(dsn, "ALTER TABLE m.t ADD CHECK (n.f(a) IS NOT NULL)")
    with conn.transaction():
        written(conn, plan(conn), "INSERT INTO m.t VALUES (99, 1)")


CALLS = """ALTER TABLE m.t ADD CHECK (pg_catalog.ts_rewrite('a', $$
    SELECT 'a'::tsquery, CASE WHEN m.f(1) > 0 THEN 'b'::tsquery END $$) IS NOT NULL)"""


def calling_the_server(dsn: str, conn: Session) -> None:
    run_as_owner(dsn, CALLS)
    with conn.transaction():
        written(conn, plan(conn), "INSERT INTO m.t VALUES (99, 1)")


def a_cast_comes(dsn: str, conn: Session) -> None:
    run_as_owner(
        dsn,
        "CREATE TYPE m.mood AS ENUM ('v')",
        "CREATE TABLE m.e (id int PRIMARY KEY, v m.mood)",
        "INSERT INTO m.e VALUES (1, 'v')",
        "CREATE FUNCTION m.told(m.mood) RETURNS text LANGUAGE plpgsql AS $$ BEGIN PERFORM m.f(1); RETURN 'v'; END $$",
    )
    known = plan(conn, name="e")
    known = replace(known, columns=replace(known.columns, expressions=('"id"', "CAST(v AS text)")))
    with conn.transaction():
        foreign_code.lock(conn, [(known.source, known)], "reader")
        role = foreign_code.reader_of(conn, known)
        run_as_owner(dsn, "CREATE CAST (m.mood AS text) WITH FUNCTION m.told(m.mood)")
        as_owner.fetch(conn, role, sql.SQL("SELECT CAST(v AS text) FROM m.e"), ["text"])


def checks_of_partitions(dsn: str, conn: Session) -> None:
    run_as_owner(
        dsn,
        "CREATE TABLE m.p (id int PRIMARY KEY, CHECK (id > 0 OR m.f(1) > 0)) PARTITION BY RANGE (id)",
        "CREATE TABLE m.p1 PARTITION OF m.p FOR VALUES FROM (0) TO (9)",
        "CREATE TABLE m.p2 PARTITION OF m.p FOR VALUES FROM (9) TO (19)",
    )
    conn.execute("SELECT FROM m.p WHERE id >= 5")


def checks_looked_at(_: pytest.MonkeyPatch, conn: Session) -> None:
    conn.execute("SET constraint_exclusion = partition")


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


def instead(module: Any, name: str, gives: Any) -> Out:
    def out(patch: pytest.MonkeyPatch, _: Session) -> None:
        patch.setattr(module, name, lambda *_: gives)

    return out


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


@dataclass(frozen=True)
class Guard:
    attempt: Attempt
    out: Out


GUARDS = {
    "no index comes": Guard(read_while(INDEX), weaker_lock),
    "no statistics come": Guard(read_while(STATISTICS), no_catalogs),
    "no partition comes": Guard(read_while(ATTACH, name="p", before=PARTITION), no_partitions),
    "schemas keep their names": Guard(a_view_takes_its_name, names_not_held),
    "another table is not read": Guard(another_table_is_read, any_oid),
    "another table is locked": Guard(another_table_is_written, not_locked_again),
    "a trigger is a trap": Guard(
        writing("CREATE TRIGGER fires AFTER INSERT ON pgddl_copy_m.t EXECUTE FUNCTION m.fires()"),
        empty("traps", "0, ''"),
    ),
    "a rule is a trap": Guard(
        writing("CREATE RULE fires AS ON INSERT TO pgddl_copy_m.t DO ALSO SELECT m.f(1)"), empty("traps", "0, ''")
    ),
    "a foreign key is a trap": Guard(
        writing(*CHILD, statement="DELETE FROM pgddl_copy_m.t WHERE id = 7"), empty("traps", "0, ''")
    ),
    "the owner is the one that it was": Guard(another_owner, standing(strange=[])),
    "a third role's code is refused": Guard(of_a_third, instead(foreign_code, "_strangers", set())),
    "the server's functions count": Guard(calling_the_server, empty("calls", "0, '', '', '', '', false")),
    "a call is worth a look": Guard(calling_the_server, standing(reaching=False)),
    "casts are made behind the wall": Guard(
        a_cast_comes, lambda patch, _: patch.setitem(foreign_code._Q, "have_types", "SELECT 0 WHERE %s::oid[] IS NULL")
    ),
    "checks exclude nothing": Guard(checks_of_partitions, checks_looked_at),
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
    taken = GUARDS[guard]
    if out:
        taken.out(monkeypatch, conn)
    gained: bool | None = False
    said = None
    try:
        gained = taken.attempt(dsn, conn)
    except (PgddlError, psycopg.Error) as error:
        said = error
    monkeypatch.undo()
    with psycopg.connect(dsn) as admin:
        ran = admin.execute("SELECT is_called FROM public.ran").fetchone() == (True,)
    assert (bool(gained) or ran) is out, said
