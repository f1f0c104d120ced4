"""A table's owner whom nobody trusts, and what a superuser's pipeline does with the table: code of hers never runs with
rights that she has not (C28)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from airflow_provider_pgddl.demo.clusters import Cluster
from airflow_provider_pgddl.engine.errors import LeftBehindTheWall, PgddlError
from airflow_provider_pgddl.engine.rights import wall
from airflow_provider_pgddl.engine.server.connect import PINNED, Session, connect
from tests.combinations import matrix
from tests.integration.lifecycle import Lifecycle, execute
from tests.integration.noted_code import ROLE, SCHEMA, as_mallory, others

IN_PLACE: dict[str, Any] = {"rewrite": {"m.t": {"alter": ["ALTER COLUMN id TYPE bigint"]}}}


@pytest.fixture(params=matrix(16, 18))
def dsn(request: pytest.FixtureRequest, database: Callable[..., str]) -> str:
    cluster: Cluster = request.getfixturevalue(f"pg{request.param}")
    made = database(cluster)
    execute(made, ROLE + SCHEMA)
    return made


@pytest.fixture
def conn(dsn: str) -> Iterator[Session]:
    with connect(dsn, purpose="test") as session:
        yield session


# --- what code leaves behind the wall ---------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["run", "query"])
def test_a_cursor_that_is_held_is_closed_before_the_commit_runs_it(dsn: str, conn: Session, how: str) -> None:
    as_mallory(
        dsn,
        "CREATE FUNCTION m.hold() RETURNS bool LANGUAGE plpgsql AS $$ BEGIN"
        " EXECUTE 'DECLARE c CURSOR WITH HOLD FOR SELECT m.note()'; RETURN true; END $$",
    )
    with conn.transaction():
        if how == "run":
            wall.run(conn, "mallory", "SELECT m.hold()")
        else:
            wall.query(conn, "mallory", "SELECT m.hold()", ["boolean"])
    assert others(dsn) == []


def test_a_trigger_that_is_deferred_once_more_does_not_meet_the_commit(dsn: str, conn: Session) -> None:
    as_mallory(
        dsn,
        """
        CREATE TABLE m.d (x int);
        CREATE FUNCTION m.later() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            IF NEW.x = 1 THEN
                SET CONSTRAINTS ALL DEFERRED;
                INSERT INTO m.d VALUES (2);
            ELSE
                EXECUTE 'DECLARE c CURSOR WITH HOLD FOR SELECT m.note()';
                SET search_path = m;
            END IF;
            RETURN NULL;
        END $$;
        CREATE CONSTRAINT TRIGGER t AFTER INSERT ON m.d DEFERRABLE INITIALLY DEFERRED
            FOR EACH ROW EXECUTE FUNCTION m.later();
        """,
    )
    with pytest.raises(LeftBehindTheWall), conn.transaction():
        wall.run(conn, "mallory", "INSERT INTO m.d VALUES (1)")
    assert others(dsn) == []
    assert conn.execute("SHOW search_path").fetchone() == (PINNED["search_path"],)


@pytest.mark.parametrize("how", ["run", "query"])
def test_a_path_that_is_left_where_triggers_are_silenced_is_followed_by_nothing_of_ours(
    dsn: str, conn: Session, how: str
) -> None:
    as_mallory(
        dsn,
        """
        CREATE FUNCTION m.same(text, text) RETURNS bool LANGUAGE plpgsql AS
            $$ BEGIN PERFORM m.note(); RETURN $1 OPERATOR(pg_catalog.=) $2; END $$;
        CREATE OPERATOR m.= (leftarg = text, rightarg = text, function = m.same);
        CREATE FUNCTION m.leads() RETURNS bool LANGUAGE plpgsql AS
            $$ BEGIN PERFORM set_config('search_path', 'm, pg_catalog', false); RETURN true; END $$;
        """,
    )
    with conn.transaction():
        conn.execute("SET LOCAL session_replication_role = replica")
        if how == "run":
            wall.run(conn, "mallory", "SELECT m.leads()")
        else:
            wall.query(conn, "mallory", "SELECT m.leads()", ["boolean"])
    assert others(dsn) == []


def test_code_that_makes_our_transaction_read_only_stops_its_own_table(
    lifecycle: Callable[..., Lifecycle], dsn: str, target_dsn: str
) -> None:
    execute(target_dsn, ROLE)
    as_mallory(
        dsn,
        """
        CREATE FUNCTION m.stops(int) RETURNS bool LANGUAGE plpgsql IMMUTABLE AS $$ BEGIN
            IF session_user <> current_user THEN PERFORM set_config('transaction_read_only', 'on', true); END IF;
            RETURN true;
        END $$;
        ALTER TABLE m.t ADD CHECK (id > 0 OR m.stops(id));
        """,
    )
    execute(dsn, "CREATE TABLE public.well (id int PRIMARY KEY); INSERT INTO public.well VALUES (1)")
    move = lifecycle(dsn, target_dsn, tables={"include": ["m.t", "public.well"], "schema_only": ["m.seen"]})
    move.run_all(until="replay")
    execute(target_dsn, "GRANT USAGE ON SCHEMA m TO mallory")
    as_mallory(dsn, "INSERT INTO m.t VALUES (-1)")
    execute(dsn, "INSERT INTO public.well VALUES (2)")
    (stopped,) = move.run("replay").blocked
    assert stopped["table"] == "m.t" and "read-only" in str(stopped)
    assert move.journal("SELECT count(*) FROM public.well") == [(2,)]


# --- code that no catalog shows as hers -------------------------------------------------------------------------------


def test_a_check_of_partitions_is_not_evaluated_where_a_query_is_planned(dsn: str, conn: Session) -> None:
    as_mallory(
        dsn,
        """
        CREATE TABLE m.p (id int PRIMARY KEY, CHECK (id > 0 OR m.evil(1))) PARTITION BY RANGE (id);
        CREATE TABLE m.p1 PARTITION OF m.p FOR VALUES FROM (0) TO (100);
        CREATE TABLE m.p2 PARTITION OF m.p FOR VALUES FROM (100) TO (200);
        TRUNCATE m.seen;
        """,
    )
    conn.execute("SELECT FROM m.p WHERE id >= 5")
    assert others(dsn) == []


def test_a_function_of_the_server_that_runs_sql_is_code_of_whoever_calls_it(
    lifecycle: Callable[..., Lifecycle], dsn: str
) -> None:
    # A CHECK has no SQL in it that Postgres would look at; ts_rewrite runs what it is given.
    as_mallory(
        dsn,
        """
        ALTER TABLE m.t ADD CHECK (pg_catalog.ts_rewrite('a', $$
            SELECT 'a'::tsquery, CASE WHEN m.note() THEN 'b'::tsquery END $$) IS NOT NULL);
        TRUNCATE m.seen;
        """,
    )
    pipeline = lifecycle(dsn, **IN_PLACE)
    with suppress(PgddlError):
        pipeline.run_all(until="verify")
    assert others(dsn) == []


# --- what she does to a copy, which is hers ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "trap",
    [
        "CREATE TRIGGER trap AFTER {} ON pgddl_copy_m.t EXECUTE FUNCTION m.fired()",
        "CREATE RULE trap AS ON {} TO pgddl_copy_m.t DO ALSO SELECT m.note()",
    ],
    ids=["trigger", "rule"],
)
@pytest.mark.parametrize("when", ["INSERT", "DELETE"])
def test_a_trap_on_a_copy_in_place_stops_its_table(
    lifecycle: Callable[..., Lifecycle], dsn: str, when: str, trap: str
) -> None:
    pipeline = lifecycle(dsn, **IN_PLACE)
    pipeline.run_all(until="snapshot" if when == "INSERT" else "schema_sync")
    as_mallory(dsn, trap.format(when))
    as_mallory(dsn, "DELETE FROM m.t WHERE id = 1; UPDATE m.t SET note = 'x' WHERE id = 2")
    with suppress(PgddlError):
        pipeline.run("backfill" if when == "INSERT" else "replay")
    assert others(dsn) == []


def test_a_row_that_leaves_a_copy_in_place_takes_no_others_along(lifecycle: Callable[..., Lifecycle], dsn: str) -> None:
    pipeline = lifecycle(dsn, **IN_PLACE)
    pipeline.run_all(until="schema_sync")
    as_mallory(
        dsn,
        """
        CREATE TABLE m.child (id bigint REFERENCES pgddl_copy_m.t ON DELETE CASCADE);
        INSERT INTO m.child VALUES (1);
        CREATE TRIGGER trap AFTER DELETE ON m.child FOR EACH ROW EXECUTE FUNCTION m.fired();
        DELETE FROM m.t WHERE id = 1;
        """,
    )
    with suppress(PgddlError):
        pipeline.run("replay")
    assert others(dsn) == []


@pytest.mark.parametrize(
    "trap",
    [
        "CREATE TRIGGER pgddl_trap AFTER DELETE ON m.t EXECUTE FUNCTION m.fired()",
        "CREATE RULE trap AS ON DELETE TO m.t DO ALSO SELECT m.note()",
    ],
    ids=["trigger", "rule"],
)
def test_a_trap_on_a_target_runs_as_nobody_else(
    lifecycle: Callable[..., Lifecycle], dsn: str, target_dsn: str, trap: str
) -> None:
    execute(target_dsn, ROLE)
    pipeline = lifecycle(dsn, target_dsn, tables={"include": ["m.t"], "schema_only": ["m.seen"]})
    pipeline.run_all(until="schema_sync")
    execute(target_dsn, "ALTER SCHEMA m OWNER TO mallory; ALTER TABLE m.t OWNER TO mallory")
    as_mallory(target_dsn, trap)
    as_mallory(dsn, "DELETE FROM m.t WHERE id = 1; UPDATE m.t SET note = 'x' WHERE id = 2")
    with suppress(PgddlError):
        pipeline.run("replay")
    assert others(target_dsn) == []


def test_a_copy_that_starts_over_is_emptied_without_firing(lifecycle: Callable[..., Lifecycle], dsn: str) -> None:
    pipeline = lifecycle(dsn, **IN_PLACE)
    pipeline.run_all(until="snapshot")
    as_mallory(dsn, "CREATE TRIGGER trap BEFORE TRUNCATE ON pgddl_copy_m.t EXECUTE FUNCTION m.fired()")
    as_mallory(dsn, "ALTER TABLE m.t ALTER COLUMN note TYPE int USING 7")
    with suppress(PgddlError):
        pipeline.run("backfill")
    assert others(dsn) == []


def test_a_table_of_hers_is_read_again_after_her_ddl(lifecycle: Callable[..., Lifecycle], dsn: str) -> None:
    pipeline = lifecycle(dsn, **IN_PLACE)
    pipeline.run_all(until="schema_sync")
    as_mallory(dsn, "ALTER TABLE m.t ALTER COLUMN note TYPE int USING 7")
    pipeline.run_all(after="schema_sync")
    assert pipeline.on_source("SELECT DISTINCT note FROM m.t") == [(7,)]


# --- statements that are told anew ------------------------------------------------------------------------------------


def test_a_view_that_a_swap_tells_anew_runs_nothing_where_it_is_read(
    lifecycle: Callable[..., Lifecycle], dsn: str
) -> None:
    pipeline = lifecycle(dsn, **IN_PLACE)
    pipeline.run_all(until="verify")
    as_mallory(
        dsn,
        """
        CREATE DOMAIN m.dom AS int;
        CREATE TYPE m.comp AS (a m.dom);
        CREATE VIEW m.v AS SELECT note, '(1)'::m.comp AS c FROM m.t;
        ALTER DOMAIN m.dom ADD CHECK (m.evil(VALUE)) NOT VALID;
        TRUNCATE m.seen;
        """,
    )
    with suppress(PgddlError):
        pipeline.run("swap")
    assert others(dsn) == []


SHARED = """
DO $$ BEGIN CREATE ROLE bob; EXCEPTION WHEN duplicate_object THEN NULL; END $$;
CREATE SCHEMA bob AUTHORIZATION bob;
CREATE SCHEMA shared;
CREATE SEQUENCE shared.ran;
GRANT ALL ON SEQUENCE shared.ran TO PUBLIC;
GRANT ALL ON SCHEMA shared TO PUBLIC;
CREATE FUNCTION shared.f(anyelement) RETURNS anyelement LANGUAGE sql IMMUTABLE AS 'SELECT $1';
CREATE TABLE public.t (id int PRIMARY KEY, n int);
SET ROLE bob;
CREATE TABLE bob.t (id int PRIMARY KEY, n int);
CREATE INDEX ON bob.t (shared.f(id));
RESET ROLE;
CREATE INDEX ON public.t (n) WHERE shared.f(id) > 0;
INSERT INTO bob.t VALUES (1, 1);
INSERT INTO public.t VALUES (1, 1);
"""


@pytest.mark.parametrize("table", ["bob.t", "public.t"])
@pytest.mark.parametrize("where", matrix("in place", "across"))
def test_an_index_that_is_built_calls_nothing_that_has_come_to_fit_better(
    lifecycle: Callable[..., Lifecycle], dsn: str, target_dsn: str, table: str, where: str
) -> None:
    """Of a column that has another type by then, or on a server where it was not; as bob, or as a superuser."""
    execute(dsn, SHARED)
    if where == "in place":
        rewrite = {table: {"alter": ["ALTER COLUMN id TYPE bigint"]}}
        move, target = lifecycle(dsn, rewrite=rewrite, ddl={"scope": "replicated_tables"}), dsn
    else:
        execute(target_dsn, ROLE + SHARED.partition("CREATE SCHEMA")[0])
        move, target = lifecycle(dsn, target_dsn, tables={"include": [table]}), target_dsn
    move.run_all(until="backfill")
    execute(target, "GRANT ALL ON SCHEMA shared TO PUBLIC; GRANT ALL ON SEQUENCE shared.ran TO PUBLIC")
    for type_ in ("int", "bigint"):
        as_mallory(
            target,
            f"SET pgddl.skip = on; CREATE FUNCTION shared.f({type_}) RETURNS {type_} LANGUAGE plpgsql IMMUTABLE AS"
            " $$ BEGIN PERFORM nextval('shared.ran'); RETURN $1; END $$",
        )
    assert "mallory" in str(move.refused("schema_sync"))
    assert move.journal("SELECT is_called FROM shared.ran") == [(False,)]


# --- our own locks ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fence", ["read_only", "lock"])
def test_a_fence_keeps_no_window_of_ours_out(
    lifecycle: Callable[..., Lifecycle], dsn: str, target_dsn: str, fence: str
) -> None:
    """On tables of others they ask for a writer's lock; and a parent's fence is none of its children's."""
    execute(target_dsn, ROLE)
    as_mallory(
        dsn,
        """
        CREATE TABLE m.parent (n int);
        CREATE TABLE m.child (id int PRIMARY KEY) INHERITS (m.parent);
        INSERT INTO m.parent SELECT generate_series(1, 40);
        INSERT INTO m.child SELECT i, i FROM generate_series(1, 40) i;
        """,
    )
    tables = {"include": ["m.t", "m.parent", "m.child"], "schema_only": ["m.seen"], "keyless": "copy_at_swap"}
    ddl = {"retry_for": "2s"}  # for as long a window that never gets its lock is tried
    move = lifecycle(dsn, target_dsn, tables=tables, swap={"fence": fence}, ddl=ddl)
    move.run_all(until="verify")
    as_mallory(dsn, "INSERT INTO m.child VALUES (41, 41); DELETE FROM m.t WHERE id = 1; UPDATE m.t SET note = 'late'")
    move.run("swap")
    assert move.journal("SELECT count(*), count(*) FILTER (WHERE note = 'late') FROM m.t") == [(49, 49)]
    counted = "SELECT (SELECT count(*) FROM ONLY m.parent), (SELECT count(*) FROM m.child)"
    assert move.journal(counted) == move.on_source(counted) == [(40, 41)]
