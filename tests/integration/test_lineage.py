"""Which columns a copy's columns are made of, as OpenLineage is told."""

from __future__ import annotations

from collections.abc import Callable

import psycopg

from airflow_provider_pgddl.demo.clusters import Cluster
from airflow_provider_pgddl.lineage import Lineage, lineage
from tests.conftest import Database
from tests.integration.lifecycle import Lifecycle, execute


def test_columns_are_followed_through_casts_expressions_and_renames(
    pg18: Cluster, database: Database, lifecycle: Callable[..., Lifecycle]
) -> None:
    dsn = database(pg18)
    execute(dsn, 'CREATE TABLE orders (id int PRIMARY KEY, "Total" int, at timestamptz, gone text)')
    execute(dsn, "INSERT INTO orders SELECT n, n, now() FROM generate_series(1, 50) n")
    actions = [
        "ALTER COLUMN id TYPE bigint",
        """ALTER COLUMN "Total" TYPE text USING "Total" || ' of ' || id""",
        "DROP COLUMN gone",
    ]
    move = lifecycle(dsn, rewrite={"public.orders": {"alter": actions}})

    def told(stage: str) -> Lineage | None:
        with psycopg.connect(dsn, autocommit=True) as conn:
            return lineage(conn, move.job("setup").pipeline, dsn, dsn, [stage], [{"tables": {}}])

    assert told("setup") is None
    move.run_all(until="replay")
    found = told("backfill")
    assert found is not None and found.role == "moves"
    (edge,) = found.edges
    assert edge.source[1].endswith(".public.orders") and edge.target[1].endswith(".pgddl_copy_public.orders")
    assert edge.rows == 50
    columns = {column.name: (column.type, column.made_of, column.how) for column in edge.columns}
    assert columns["at"] == ("timestamp with time zone", ("at",), "")
    assert columns["id"][:2] == ("bigint", ("id",)) and "bigint" in columns["id"][2]
    assert columns["Total"][:2] == ("text", ("Total", "id")) and "' of '" in columns["Total"][2]
    assert "gone" not in columns and ("gone", "text") in edge.source_columns

    execute(dsn, "ALTER TABLE orders RENAME at TO placed")
    assert not move.run("replay").blocked
    renamed = told("replay")
    assert renamed is not None
    columns = {column.name: (column.type, column.made_of, column.how) for column in renamed.edges[0].columns}
    assert columns["placed"] == ("timestamp with time zone", ("placed",), "") and "at" not in columns
    swap, verify, setup = told("swap"), told("verify"), told("setup")
    assert swap is not None and (swap.edges[0].source, swap.edges[0].target) == (edge.target, edge.source)
    assert verify is not None and verify.role == "compares"
    assert setup is not None and setup.role == "reads"
