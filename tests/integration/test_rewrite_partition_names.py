"""Partitions that a rewrite makes: their names, places, owners and values, and who sees them before the swap."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psycopg
import pytest

from airflow_provider_pgddl.demo.clusters import Cluster
from airflow_provider_pgddl.engine.commands.check import check
from airflow_provider_pgddl.engine.commands.reset import reset
from airflow_provider_pgddl.engine.pipeline.reading import load_pipeline
from airflow_provider_pgddl.engine.rows.partition_cells import partition_name
from tests.combinations import matrix
from tests.conftest import Database
from tests.integration.lifecycle import Lifecycle, execute, left_behind
from tests.integration.partitions import parts, rows_of
from tests.integration.rewrites import SMALL
from tests.integration.sessions import one


@pytest.fixture(params=matrix(16, 18))
def server(request: pytest.FixtureRequest) -> Cluster:
    cluster: Cluster = request.getfixturevalue(f"pg{request.param}")
    return cluster


@pytest.fixture
def dsn(server: Cluster, database: Callable[..., str]) -> str:
    return database(server)


def test_the_key_is_retyped_on_the_way(dsn: str, lifecycle: Callable[..., Lifecycle]) -> None:
    """The type of a partition key cannot be altered once it is one."""
    execute(
        dsn,
        "CREATE TABLE t (id integer PRIMARY KEY, at text NOT NULL);"
        "INSERT INTO t SELECT n, ('2026-01-01'::date + n)::text FROM generate_series(1, 100) n",
    )
    rewrite = {
        "alter": ["ALTER COLUMN at TYPE timestamp(0) USING at::timestamp", "ALTER COLUMN id TYPE bigint"],
        "partition_by": {"column": "at", "range": "quarter", "ahead": 0},
    }
    move = lifecycle(dsn, rewrite={"public.t": rewrite}, **SMALL)
    move.run_all(until="verify")
    execute(dsn, "INSERT INTO t VALUES (1000, '2010-05-05 12:00')")
    move.run_all(after="verify")
    assert parts(dsn, "t")["t_p2026_q2"] == "FOR VALUES FROM ('2026-04-01 00:00:00') TO ('2026-07-01 00:00:00')"
    assert rows_of(dsn, "SELECT tableoid::regclass::text FROM t WHERE id = 1000") == ["t_p2010_q2"]
    assert rows_of(dsn, "SELECT count(*) FROM t") == [101]


def test_before_17_the_access_method_is_that_of_the_partitions(
    pg16: Cluster, database: Callable[..., str], lifecycle: Callable[..., Lifecycle]
) -> None:
    dsn = database(pg16)
    execute(
        dsn,
        "CREATE ACCESS METHOD heap2 TYPE TABLE HANDLER heap_tableam_handler;"
        "CREATE TABLE t (id integer PRIMARY KEY) USING heap2; INSERT INTO t VALUES (1)",
    )
    lifecycle(
        dsn, rewrite={"public.t": {"partition_by": {"column": "id", "range": 100, "ahead": 1}}}, **SMALL
    ).run_all()
    assert rows_of(dsn, "SELECT tableoid::regclass::text FROM t") == ["t_p0"]
    methods = (
        "SELECT relname, amname FROM pg_class c JOIN pg_am a ON a.oid = relam WHERE relispartition AND amtype = 't'"
    )
    assert rows_of(dsn, methods + " ORDER BY 1") == [("t_p0", "heap2"), ("t_p100", "heap2")]


def test_long_and_mixed_names_and_another_owner(dsn: str, lifecycle: Callable[..., Lifecycle]) -> None:
    """The same long name in two schemas, owned by a role that may do nothing else, with rights given by default."""
    name = "Ü" * 28 + "Orders"
    assert len(name.encode()) == 62
    role = "owner_of_parts"
    execute(dsn, f'CREATE ROLE {role}; ALTER DEFAULT PRIVILEGES GRANT ALL ON TABLES TO PUBLIC; CREATE SCHEMA "S x"')
    for schema in ("public", '"S x"'):
        execute(
            dsn,
            f'CREATE TABLE {schema}."{name}" (id serial PRIMARY KEY, "Part Of" integer NOT NULL);'
            f'INSERT INTO {schema}."{name}" ("Part Of") SELECT n FROM generate_series(1, 500) n;'
            f'GRANT CREATE ON SCHEMA {schema} TO {role}; ALTER TABLE {schema}."{name}" OWNER TO {role};'
            f'CREATE INDEX ON {schema}."{name}" ("Part Of")',
        )
    by = {"partition_by": {"column": '"Part Of"', "range": 100}}
    move = lifecycle(dsn, rewrite={f'{schema}."{name}"': by for schema in ("public", '"S x"')}, **SMALL)
    move.run_all()
    for schema in ("public", '"S x"'):
        names = parts(dsn, f'{schema}."{name}"')
        assert names.keys() == {partition_name(name, f"p{n}") for n in range(0, 900, 100)}
        assert all(len(part.encode()) <= 63 for part in names)
        assert rows_of(dsn, f'SELECT count(*) FROM {schema}."{name}"') == [500]
    leaves = "FROM pg_class WHERE relispartition AND relkind = 'r'"
    assert rows_of(dsn, f"SELECT DISTINCT relowner::regrole::text {leaves}") == [role]
    others = "EXISTS (SELECT FROM aclexplode(relacl) WHERE grantee <> relowner)"
    assert rows_of(dsn, f"SELECT relname {leaves} AND {others}") == []
    execute(dsn, f"REASSIGN OWNED BY {role} TO CURRENT_USER; DROP OWNED BY {role}; DROP ROLE {role}")


@pytest.mark.parametrize("moved", [False, True], ids=["where they were", "moved by an older version"])
def test_subscribers_and_ddl_meet_no_partition_before_its_table(
    dsn: str, lifecycle: Callable[..., Lifecycle], moved: bool
) -> None:
    """In the live schema a partition whose table is still a copy is published under its own name, where the schema is,
    and DDL on that copy acts on a live relation. An older version, killed before its swap, has moved them."""
    execute(
        dsn,
        "CREATE TABLE t (id integer PRIMARY KEY, at date NOT NULL, note text);"
        "INSERT INTO t SELECT n, current_date - n, 'n' || n FROM generate_series(1, 500) n;"
        "CREATE PUBLICATION p FOR TABLES IN SCHEMA public WITH (publish_via_partition_root = true)",
    )
    move = lifecycle(dsn, rewrite={"public.t": {"partition_by": {"column": "at", "range": "year"}}}, **SMALL)
    move.run_all(until="verify")
    home = "SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace ORDER BY 1"
    before = rows_of(dsn, home)
    with publishing(dsn, "p") as published:
        for part in parts(dsn, "pgddl_copy_public.t") if moved else ():
            execute(dsn, f"ALTER TABLE pgddl_copy_public.{part} SET SCHEMA public")
        execute(dsn, "ALTER TABLE t ADD COLUMN more integer DEFAULT 7")
        assert not move.run("replay").blocked
        with psycopg.connect(dsn) as conn:  # the swap does not get its lock
            conn.execute("LOCK TABLE t IN ACCESS SHARE MODE")
            assert move.refused("swap", swap={"lock_timeout": "50ms", "retries": 1}).retryable
        move.dry_run("swap")
        assert rows_of(dsn, home) == before
        execute(dsn, "UPDATE t SET note = 'x' WHERE id < 50; ALTER TABLE t ADD COLUMN other text")
        assert not move.run("replay").blocked
        execute(dsn, "CREATE INDEX t_note ON t (note); INSERT INTO t VALUES (1000, current_date)")
        move.run_all(after="verify")
        execute(dsn, "UPDATE t SET note = 'y' WHERE id < 50")
        assert published() == {("public", "t")}
    assert rows_of(dsn, "SELECT count(*), sum(more) FROM t") == [(501, 501 * 7)]
    assert rows_of(dsn, "SELECT DISTINCT indexdef FROM pg_indexes WHERE indexname = 't_note'")
    assert rows_of(dsn, "SELECT DISTINCT relnamespace::regnamespace::text FROM pg_class WHERE relispartition") == [
        "public"
    ]
    assert left_behind(dsn) == ["schema pgddl"]


@contextmanager
def publishing(dsn: str, publication: str) -> Iterator[Callable[[], set[tuple[str, str]]]]:
    """Yields what returns the tables whose rows a subscriber of the publication is told of."""
    name = f"slot_of_{publication}_{random.getrandbits(40):x}"
    execute(dsn, f"SELECT pg_create_logical_replication_slot('{name}', 'pgoutput')")

    def published() -> set[tuple[str, str]]:
        options = f"'proto_version', '1', 'publication_names', '{publication}'"
        told = rows_of(dsn, f"SELECT data FROM pg_logical_slot_peek_binary_changes('{name}', NULL, NULL, {options})")
        names = {data[1:5]: data[5:].split(b"\0")[:2] for data in told if data[:1] == b"R"}
        changed = [names[data[1:5]] for data in told if data[:1] in (b"I", b"U", b"D")]
        return {(schema.decode(), table.decode()) for schema, table in changed}

    try:
        yield published
    finally:
        execute(dsn, f"SELECT pg_drop_replication_slot('{name}')")


def test_reset_after_the_partitions_have_moved_leaves_the_live_table_as_it_was(
    dsn: str, lifecycle: Callable[..., Lifecycle]
) -> None:
    """As an older version, killed before its swap, has left them."""
    execute(dsn, "CREATE TABLE t (id integer PRIMARY KEY, at date NOT NULL); INSERT INTO t VALUES (1, current_date)")
    move = lifecycle(dsn, rewrite={"public.t": {"partition_by": {"column": "at", "range": "year"}}}, **SMALL)
    move.run_all(until="verify")
    before = rows_of(dsn, "SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace ORDER BY 1")
    for part in parts(dsn, "pgddl_copy_public.t"):
        execute(dsn, f"ALTER TABLE pgddl_copy_public.{part} SET SCHEMA public")
    assert [f for f in check(load_pipeline(move.content), dsn, dsn)["findings"] if f["severity"] == "error"] == []
    execute(dsn, "INSERT INTO t VALUES (2, current_date - 1000)")
    move.run("replay")
    reset(load_pipeline(move.content), dsn, dsn)
    assert rows_of(dsn, "SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace ORDER BY 1") == before
    assert left_behind(dsn) == []
    assert rows_of(dsn, "SELECT count(*) FROM t") == [2]


def test_values_that_are_equal_to_the_column_have_one_partition(
    pg15: Cluster, database: Database, lifecycle: Callable[..., Lifecycle]
) -> None:
    """The embedded servers know no ICU. A row with the other spelling of a value comes beside one of a new value, for
    which a partition is made, while blocks are copied and later."""
    dsn = database(pg15)
    execute(
        dsn,
        "CREATE COLLATION nocase (provider = icu, locale = 'und-u-ks-level2', deterministic = false);"
        "CREATE TABLE t (id int PRIMARY KEY, kind text COLLATE nocase NOT NULL);"
        "INSERT INTO t SELECT n, (ARRAY['a', 'A', 'b'])[n % 3 + 1] FROM generate_series(1, 90) n",
    )
    by = {"column": "kind", "list": True}
    move = lifecycle(dsn, rewrite={"public.t": {"partition_by": by}}, **SMALL)
    move.run_all(until="snapshot")
    execute(dsn, "INSERT INTO t VALUES (201, 'B'), (202, 'c'), (203, 'C')")
    move.run_all(after="snapshot", until="schema_sync")
    execute(
        dsn, "INSERT INTO t VALUES (301, 'C'), (302, 'B'), (303, 'd'), (304, 'D'); UPDATE t SET kind = 'A' WHERE id < 9"
    )
    move.run_all(after="schema_sync")
    kinds = 'SELECT kind COLLATE "C", count(*)::int FROM t GROUP BY 1 ORDER BY 1'
    assert rows_of(dsn, kinds) == [("A", 35), ("B", 2), ("C", 2), ("D", 1), ("a", 28), ("b", 27), ("c", 1), ("d", 1)]
    assert one(dsn, "SELECT count(*) FROM pg_inherits WHERE inhparent = 't'::regclass") == 4
