"""Each guard of `engine/rights` that stands at a table which is read or written, with it and without: the same attempt
gains something as soon as it is taken out. Those of the wall and of statements of ours are in
`test_c28_taken_out_wall`, those that take a whole pipeline to be seen in `test_foreign_code_guards`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from psycopg import sql

from airflow_provider_pgddl.demo.clusters import Cluster
from airflow_provider_pgddl.engine.model.plan import Keepers, Plan
from airflow_provider_pgddl.engine.rights import as_owner, foreign_code
from airflow_provider_pgddl.engine.server import catalog
from airflow_provider_pgddl.engine.server.connect import Session, connect
from airflow_provider_pgddl.engine.server.giving_way import lock_briefly
from tests.conftest import Database
from tests.integration.guards import GROUND, Attempt, Guard, Out, gains, if_not_kept_out, instead, plan, run_as_owner
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
}


@pytest.mark.parametrize("out", [False, True], ids=["with", "without"])
@pytest.mark.parametrize("guard", GUARDS)
def test_the_guard_makes_the_difference(
    dsn: str, conn: Session, monkeypatch: pytest.MonkeyPatch, guard: str, out: bool
) -> None:
    gained, said = gains(GUARDS[guard], dsn, conn, monkeypatch, out=out)
    assert gained is out, said
