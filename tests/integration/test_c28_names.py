"""C28: names that change hands, and types that become others, between our look at a table and our reading of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import psycopg
import pytest
from psycopg import sql

from airflow_provider_pgddl.demo.clusters import Cluster
from airflow_provider_pgddl.engine.errors import GaveWay, PgddlError
from airflow_provider_pgddl.engine.following import sequences
from airflow_provider_pgddl.engine.model.plan import Keepers, Plan, PlanColumns, PlanKey
from airflow_provider_pgddl.engine.model.ranges import Range
from airflow_provider_pgddl.engine.rights import foreign_code
from airflow_provider_pgddl.engine.rows import chunks, fill, range_checksums
from airflow_provider_pgddl.engine.rows.transfer import Copied
from airflow_provider_pgddl.engine.server import catalog
from airflow_provider_pgddl.engine.server.connect import Session, connect
from airflow_provider_pgddl.engine.stages import STAGES
from tests.combinations import matrix
from tests.integration.lifecycle import Lifecycle, execute
from tests.integration.noted_code import ROLE, SCHEMA, as_mallory, others


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


def plan_of(conn: Session, schema: str, name: str, key: str, type_: str) -> Plan:
    oid = catalog.oid_of(conn, schema, name)
    assert oid is not None
    return Plan(
        schema=schema,
        name=name,
        oid=oid,
        partitioned=False,
        copy_schema=schema,
        copy_name=name,
        columns=PlanColumns((key,), (f'"{key}"',), True),
        key=PlanKey((key,), (type_,), ("OPERATOR(pg_catalog.=)",), (False,), True),
        copies={},
        keepers=Keepers("mallory", "mallory"),
    )


def test_the_schema_of_a_locked_table_keeps_its_name(dsn: str, conn: Session) -> None:
    conn.execute(sql.SQL("GRANT CREATE ON DATABASE {} TO mallory").format(sql.Identifier(conn.info.dbname)))
    as_mallory(dsn, "CREATE SCHEMA s; CREATE TABLE s.t (id int PRIMARY KEY)")
    plan = plan_of(conn, "s", "t", "id", "integer")
    with conn.transaction():
        conn.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        foreign_code.lock(conn, [(plan.source, plan)], "reader")
        assert foreign_code.reader_of(conn, plan) == ""
        with pytest.raises(psycopg.errors.QueryCanceled):
            as_mallory(
                dsn,
                "SET statement_timeout = '300ms'; ALTER SCHEMA s RENAME TO gone; CREATE SCHEMA s;"
                "CREATE VIEW s.t AS SELECT 1 AS id WHERE m.note()",
            )
        conn.execute(sql.SQL("SELECT FROM {}").format(plan.source))
    assert others(dsn) == []


def test_a_table_that_has_taken_the_name_of_a_locked_one_is_locked_as_well(dsn: str, conn: Session) -> None:
    """Renaming a schema waits for no lock on its tables: what is looked at is what is written to."""
    conn.execute(sql.SQL("GRANT CREATE ON DATABASE {} TO mallory").format(sql.Identifier(conn.info.dbname)))
    as_mallory(dsn, "CREATE SCHEMA s; CREATE TABLE s.t (id int PRIMARY KEY)")
    plan = plan_of(conn, "s", "t", "id", "integer")
    with conn.transaction():
        foreign_code.lock(conn, [(plan.copy, plan)], "writer")
        as_mallory(dsn, "ALTER SCHEMA s RENAME TO gone; CREATE SCHEMA s; CREATE TABLE s.t (id int PRIMARY KEY)")
        assert foreign_code.code_of_copies(conn, {0: plan}) == (set(), {})
        with pytest.raises(psycopg.errors.QueryCanceled):
            as_mallory(dsn, "SET statement_timeout = '300ms'; CREATE INDEX ON s.t (id) WHERE m.evil(1)")
        conn.execute("INSERT INTO s.t VALUES (1)")
    assert others(dsn) == []


def test_a_view_with_the_name_of_a_sequence_is_not_read(dsn: str, conn: Session) -> None:
    as_mallory(dsn, "CREATE SEQUENCE m.q; SELECT nextval('m.q')")
    found = {name: sequence.oid for name, sequence in sequences._sequences(conn).items()}
    assert sequences.positions(conn, found) == {("m", "q"): sequences.Position(1, True)}
    as_mallory(
        dsn,
        "ALTER SEQUENCE m.q RENAME TO q2; CREATE VIEW m.q AS SELECT 9::bigint AS last_value, m.note() AS is_called",
    )
    assert sequences.positions(conn, found) == {("m", "q"): sequences.Position(1, True)}
    as_mallory(dsn, "DROP SEQUENCE m.q2")
    with pytest.raises(GaveWay):
        sequences.positions(conn, found)
    assert others(dsn) == []


def test_a_key_of_her_type_is_read_behind_the_wall_for_the_casts_that_may_come(dsn: str, conn: Session) -> None:
    as_mallory(
        dsn,
        """
        CREATE TYPE m.color AS ENUM ('red');
        CREATE TABLE m.e (k m.color PRIMARY KEY);
        INSERT INTO m.e VALUES ('red');
        CREATE FUNCTION m.printed(m.color) RETURNS text LANGUAGE plpgsql AS
            $$ BEGIN PERFORM m.note(); RETURN 'red'; END $$;
        """,
    )
    plan = plan_of(conn, "m", "e", "k", "m.color")
    with conn.transaction():
        foreign_code.lock(conn, [(plan.source, plan)], "reader")
        role = foreign_code.reader_of(conn, plan)
        as_mallory(dsn, "CREATE CAST (m.color AS text) WITH FUNCTION m.printed(m.color)")
        reading = range_checksums._Reading(conn, conn, range_checksums.Sides(plan), Range(0), None, (role, role))
        reading.rows_of_buckets(list(range(4096)))
    assert others(dsn) == []


@pytest.mark.parametrize("trusted", [[], ["mallory"]], ids=["guarded", "trusted"])
@pytest.mark.parametrize("stage", ["backfill", "replay"])
def test_a_composite_that_is_altered_between_our_look_and_our_copy_runs_nothing_as_us(
    lifecycle: Callable[..., Lifecycle],
    dsn: str,
    target_dsn: str,
    monkeypatch: pytest.MonkeyPatch,
    stage: str,
    trusted: list[str],
) -> None:
    """No lock keeps an attribute of a domain out, whose CHECK runs where a value is read from text."""
    execute(target_dsn, ROLE)
    as_mallory(
        dsn,
        """
        CREATE TYPE m.pair AS (a int, b text);
        CREATE TABLE m.p (id int PRIMARY KEY, v m.pair);
        INSERT INTO m.p SELECT i, ROW(i, 'b')::m.pair FROM generate_series(1, 20) i;
        TRUNCATE m.seen;
        """,
    )
    late = "CREATE DOMAIN m.word AS text CHECK (m.evil(1)); ALTER TYPE m.pair ADD ATTRIBUTE c m.word"
    tables = {"include": ["m.p"], "schema_only": ["m.seen"]}
    move = lifecycle(dsn, target_dsn, tables=tables, trusted_roles=trusted, capture={"ddl": "off"})
    module = {"backfill": chunks, "replay": fill}[stage]
    copied, came = fill.copy_between, list[str]()

    def copy(source: Session, target: Session, read: sql.Composable, write: sql.Composable, **more: Any) -> Copied:
        if not came and '"v"' in write.as_string(target):
            for side in (dsn, target_dsn):
                as_mallory(side, late)
            came.append(stage)
        return copied(source, target, read, write, **more)

    for each in STAGES[: STAGES.index(stage)]:
        move.run(each)
        if each == "snapshot":
            execute(target_dsn, "GRANT ALL ON SCHEMA m TO PUBLIC")
    as_mallory(dsn, "UPDATE m.p SET v = ROW(7, 'c')::m.pair WHERE id < 5")
    monkeypatch.setattr(module, "copy_between", copy)
    if stage == "backfill":  # where rows go behind the wall they are copied there
        monkeypatch.setattr(fill, "copy_between", copy)
    with suppress(PgddlError):
        move.run(stage)
    assert came
    assert others(dsn) == []
    assert others(target_dsn) == (["postgres"] if trusted else [])
