"""Migrating 16 → 18 while applications write: row by row the same, sequences and structure too."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from airflow_provider_pgddl.demo.clusters import Cluster
from airflow_provider_pgddl.demo.compare import (
    catalog_lines,
    compare_sequences,
    diff_catalogs,
    differences,
    user_tables,
)
from airflow_provider_pgddl.demo.writers import TableWriters
from tests.integration.lifecycle import Lifecycle, left_behind, load_real, psql, wait_until

# So small that little data makes many chunks and many windows; one worker, so no SparkSession.
SMALL = {"backfill": {"chunk_bytes": "64kB", "workers": 1}, "replay": {"window_rows": 40}}


def tables_of(dsn: str) -> list[tuple[str, str]]:
    with psycopg.connect(dsn) as conn:
        return user_tables(conn)


@pytest.mark.parametrize("data", ["chinook", "northwind"])
def test_a_real_database_moves_while_applications_write(
    pg16: Cluster,
    source_dsn: str,
    target_dsn: str,
    shared_data: Path,
    lifecycle: Callable[..., Lifecycle],
    data: str,
) -> None:
    load_real(pg16, source_dsn, shared_data, data)
    tables, structure = tables_of(source_dsn), catalog_lines(source_dsn)
    move = lifecycle(source_dsn, target_dsn, tables={"include": ["*.*"]}, swap={"fence": "read_only"}, **SMALL)
    at_the_cut_over: list[object] = []

    def compare() -> None:
        at_the_cut_over.append(differences(source_dsn, target_dsn))
        at_the_cut_over.append(compare_sequences(source_dsn, target_dsn))

    writers = TableWriters(
        [source_dsn, target_dsn], tables, pipeline=move.name, threads=4, rate=200, on_cut_over=compare
    )
    with writers:
        for stage, result in move.run_all(until="verify").items():
            print(stage, result)
            before = writers.notes.committed.total()
            wait_until(lambda before=before: writers.notes.committed.total() > before + 20)
        move.run_all(after="verify", until="swap")
        wait_until(writers.accepted.is_set)
        move.run("cleanup")
    print(f"seed {writers.seed}", writers.notes.committed, writers.notes.refused, writers.notes.retried)
    print("stall", writers.notes.cut_over_stall, "longest", writers.notes.longest())
    assert writers.notes.failures == []
    assert at_the_cut_over == [[], []], f"seed {writers.seed}"
    assert diff_catalogs(structure, catalog_lines(target_dsn)) == []
    fences = {f"trigger pgddl_fence_{move.name} on {table}" for _, table in tables}
    assert set(left_behind(source_dsn)) == {"schema pgddl", *fences}
    assert move.journal("SELECT FROM pg_constraint WHERE NOT convalidated") == []


def test_values_keys_names_and_shapes_arrive_as_they_are(
    pg16: Cluster, source_dsn: str, target_dsn: str, lifecycle: Callable[..., Lifecycle]
) -> None:
    psql(pg16, source_dsn, (Path(__file__).parent / "values.sql").read_text(encoding="utf-8"))
    tables, structure = tables_of(source_dsn), catalog_lines(source_dsn)
    move = lifecycle(source_dsn, target_dsn, tables={"include": ["*.*"]}, swap={"fence": "read_only"}, **SMALL)
    move.run_all(until="swap")
    assert differences(source_dsn, target_dsn) == []
    assert compare_sequences(source_dsn, target_dsn) == []
    assert diff_catalogs(structure, catalog_lines(target_dsn)) == []
