"""Comparing ranges for as long as there is time: in the stage's own sessions, or in a worker at a snapshot."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from psycopg import sql

from airflow_provider_pgddl.engine.connect import Session, connect
from airflow_provider_pgddl.engine.errors import GaveWay
from airflow_provider_pgddl.engine.rows.checksums import Range, Sides, compare
from airflow_provider_pgddl.engine.rows.yielding import at_snapshot

Result = tuple[int, int, tuple[str, ...]]  # range id, rows, keys that differ

GROUP = 10  # ranges after which the source's locks on their indexes are given up: a server has few, of tables thousands


@dataclass(frozen=True, slots=True)
class Part:
    """One worker's share of the ranges, at a window's exported snapshot; it ends after `seconds`, done or not."""

    source_dsn: str
    target_dsn: str
    pipeline: str
    token: int
    snapshot: str
    ranges: tuple[tuple[Range, Sides], ...]
    seconds: float


def compare_part(part: Part) -> list[Result]:
    """Runs in a Spark task. Only windows change the copy, and the next one is not taken before this is over."""
    source = connect(part.source_dsn, purpose="verify", pipeline=part.pipeline, token=part.token)
    copy = connect(part.target_dsn, purpose="verify", pipeline=part.pipeline, token=part.token)
    watcher = connect(part.source_dsn, purpose="watch", pipeline=part.pipeline, token=part.token)
    plans = {s.plan.oid: s.plan for _, s in part.ranges}.values()
    tables = [sql.Identifier(plan.schema, plan.name) for plan in plans]
    compared = list[Result]()
    # Who waits for one of the tables waits behind the window, too, which gives way by itself.
    with suppress(GaveWay), source, copy, watcher, at_snapshot(source, watcher, copy, part.snapshot, tables):
        compare_ranges(source, copy, part.ranges, part.seconds, compared)
    return compared


def compare_ranges(
    source: Session, copy: Session, todo: Sequence[tuple[Range, Sides]], seconds: float, compared: list[Result]
) -> None:
    """Appends the ranges' results to `compared`, until `seconds` are over; at least one, unless it gives way: what was
    compared until then, under the locks that are given up, stands."""
    deadline = time.monotonic() + seconds
    for first in range(0, len(todo), GROUP):
        # Each query locks its table's indexes until the end of the transaction, unless what it was in is rolled back.
        with source.transaction(force_rollback=True):
            for within, sides in todo[first : first + GROUP]:
                found = compare(source, copy, sides, within)
                compared.append((within.id, found.rows, found.differ))
                if time.monotonic() > deadline:
                    return
