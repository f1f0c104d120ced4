"""Real schemas, filled with hostile values, move while writers put more of them in."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from importlib import resources

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from airflow_provider_pgddl.demo.clusters import Cluster
from airflow_provider_pgddl.demo.compare import user_tables
from airflow_provider_pgddl.demo.shop import APP_ROLE
from airflow_provider_pgddl.demo.traffic import Connection, Operation
from tests.clients.conftest import Move, run_client
from tests.clients.random_rows import REFUSED, Filler, Name
from tests.integration.lifecycle import load_real, wait_until
from tests.seeds import seed
from tests.table_writers import TableWriters

ROWS, MANY_ROWS = 25, 150  # a table


class HostileWriters(TableWriters):
    """As the others of a test, and rows with values that nobody would write by hand."""

    def __init__(self, dsn: str, tables: Sequence[Name], **options: object) -> None:
        super().__init__([dsn], tables, **options)
        self._all = list(tables)

    def prepare(self, conn: Connection) -> list[Operation]:
        self._filler = Filler(conn, self._all, random.Random(self.seed))
        hostile = [
            Operation("hostile row", 6.0, self._row, REFUSED),
            Operation("hostile value", 6.0, self._value, REFUSED),
        ]
        return [*super().prepare(conn), *hostile]

    def _row(self, conn: Connection, chance: random.Random) -> None:
        self._filler.with_(conn, chance).row(chance.choice(self._all))

    def _value(self, conn: Connection, chance: random.Random) -> None:
        self._filler.with_(conn, chance).change(chance.choice(self._all))


@pytest.fixture
def app_role(pg16: Cluster, pg18: Cluster) -> Iterator[None]:
    """The shop's role on both servers. Take it before the databases: then they are gone before it."""
    for cluster in (pg16, pg18):
        with psycopg.connect(cluster.conninfo(), autocommit=True) as admin:
            admin.execute(f"CREATE ROLE {APP_ROLE}")
    yield
    for cluster in (pg16, pg18):
        with psycopg.connect(cluster.conninfo(), autocommit=True) as admin:
            admin.execute(f"DROP ROLE {APP_ROLE}")


def load_shop(cluster: Cluster, dsn: str) -> None:
    """The demo's schema, pgbench's tables with it, without a row."""
    parts = {key: str(value) for key, value in conninfo_to_dict(dsn).items()}
    environment = {"PGPASSWORD": parts.pop("password")}
    run_client([cluster.bin("pgbench"), "--initialize", "--init-steps=tp", make_conninfo("", **parts)], environment)
    with psycopg.connect(dsn) as conn:
        conn.execute("ALTER TABLE public.pgbench_history ADD COLUMN id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY")
        conn.execute("SELECT set_config('shop.scale', '0', false)")
        conn.execute((resources.files("airflow_provider_pgddl.demo") / "shop.sql").read_bytes())


@pytest.mark.parametrize("schema", ["chinook", "northwind", "shop"])
def test_hostile_values_move_while_more_are_written(
    app_role: None,
    move: Callable[..., Move],
    source_cluster: Cluster,
    request: pytest.FixtureRequest,
    schema: str,
    all_combinations: bool,
) -> None:
    number = seed(17)
    print(f"seed {number} (PGDDL_TEST_SEED)")
    moved = move(tables={"include": ["*.*"]})
    if schema == "shop":
        load_shop(source_cluster, moved.source)
    else:
        load_real(source_cluster, moved.source, request.getfixturevalue("shared_data"), schema)
    with psycopg.connect(moved.source, autocommit=True) as conn:
        tables = user_tables(conn)
        filler = Filler(conn, tables, random.Random(number))
        filler.fill(MANY_ROWS if all_combinations else ROWS)
    print(dict(filler.made), dict(filler.refused))
    assert {table for _, table in tables} == set(filler.made)  # every table took some
    with HostileWriters(moved.source, tables, rate=60, seed=number) as writers:
        for stage in ("setup", "snapshot", "backfill", "schema_sync", "replay"):
            before = writers.notes.committed.total()
            moved.run(stage)
            wait_until(lambda before=before: writers.notes.failures or writers.notes.committed.total() > before + 20)
    print(dict(writers.notes.committed), dict(writers.notes.refused))
    assert writers.notes.failures == []
    assert min(writers.notes.committed[kind] for kind in ("hostile row", "hostile value")) > 0
    moved.end_equal()
