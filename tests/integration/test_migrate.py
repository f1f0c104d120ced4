"""Migrating 16 → 18 while applications write: row by row the same, sequences and structure too."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
from airflow_provider_pgddl.engine.stages import STAGES
from tests.integration.lifecycle import Lifecycle, left_behind, load_real, psql, wait_until

# So small that little data makes many chunks and many windows; one worker, so no SparkSession.
SMALL = {"backfill": {"chunk_bytes": "64kB", "workers": 1}, "replay": {"window_rows": 150}}


def tables_of(dsn: str) -> list[tuple[str, str]]:
    with psycopg.connect(dsn) as conn:
        return user_tables(conn)


def migrate_under_writers(
    move: Lifecycle, *, truncate: Sequence[tuple[str, str]] = (), rate: float = 150
) -> TableWriters:
    """The whole lifecycle with writers on every table; compares at the cut-over, and the structure at the end."""
    source, target = move.source, move.target
    tables, structure = tables_of(source), catalog_lines(source)
    compared: list[object] = []

    def compare() -> None:
        compared.append([str(d) for d in differences(source, target)])
        compared.append([str(d) for d in compare_sequences(source, target)])

    writers = TableWriters(
        [source, target], tables, truncate=truncate, pipeline=move.name, rate=rate, on_cut_over=compare
    )
    with writers:
        for stage in STAGES[:-2]:
            assert not move.run(stage).blocked
            before = writers.notes.committed.total()
            wait_until(lambda before=before: writers.notes.failures or writers.notes.committed.total() > before + 20)
            assert not writers.notes.failures, f"during {stage}: {writers.notes.failures}"
        move.run("swap")
        wait_until(writers.accepted.is_set)
        move.run("cleanup")
    hint = f"with the writers' seed {writers.seed}: {dict(writers.notes.committed)}"
    assert writers.notes.failures == [], hint
    assert compared == [[], []], hint
    assert diff_catalogs(structure, catalog_lines(target)) == []
    return writers


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
    tables = tables_of(source_dsn)
    move = lifecycle(source_dsn, target_dsn, tables={"include": ["*.*"]}, swap={"fence": "read_only"}, **SMALL)
    migrate_under_writers(move)
    # What applications notice of it afterwards: no foreign key unchecked, and a source that takes no writes.
    assert move.journal("SELECT conname FROM pg_constraint WHERE NOT convalidated") == []
    fences = {f"trigger pgddl_fence_{move.name} on {table}" for _, table in tables}
    assert set(left_behind(source_dsn)) == {"schema pgddl", *fences}


def test_values_keys_names_and_shapes_arrive_as_they_are(
    pg16: Cluster, source_dsn: str, target_dsn: str, lifecycle: Callable[..., Lifecycle]
) -> None:
    psql(pg16, source_dsn, (Path(__file__).parent / "values.sql").read_text(encoding="utf-8"))
    move = lifecycle(source_dsn, target_dsn, tables={"include": ["*.*"]}, swap={"fence": "read_only"}, **SMALL)
    truncate = [("v", "k_numeric"), ("v", "hashed"), ("v", "hashed_1"), ("v", "event_2024"), ("v", "puppy")]
    migrate_under_writers(move, truncate=truncate, rate=60)
