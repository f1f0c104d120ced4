"""Comparing ranges for as long as there is time: in the stage's own sessions, or in a worker at a snapshot."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass

from psycopg import errors as pg

from airflow_provider_pgddl.engine.errors import GaveWay
from airflow_provider_pgddl.engine.model.ranges import Range
from airflow_provider_pgddl.engine.rights import foreign_code
from airflow_provider_pgddl.engine.rows.range_checksums import Sides, compare_range
from airflow_provider_pgddl.engine.server.connect import Session, connect
from airflow_provider_pgddl.engine.server.giving_way import at_snapshot

COMPARE = "verify"  # the purpose of a worker's session on the target, of which those on the source are named
RangeResult = tuple[int, int, tuple[str, ...] | None]  # range id, rows, keys that differ; None: it took too long

NEIGHBOURS_GROWTH = 4  # times as many neighbours are compared as one than the last time, at most
LOCKED_RANGES = (
    10  # ranges after which the source's locks on their indexes are given up: a server has few, of tables thousands
)


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
    apart: bool = False


def compare_part(part: Part) -> list[RangeResult]:
    """Runs in a Spark task. Only windows change the copy, and the next one is not taken before this is over."""
    source = connect(part.source_dsn, purpose=f"{COMPARE} read", pipeline=part.pipeline, token=part.token)
    copy = connect(part.target_dsn, purpose=COMPARE, pipeline=part.pipeline, token=part.token)
    watcher = connect(part.source_dsn, purpose=f"{COMPARE} watch", pipeline=part.pipeline, token=part.token)
    plans = {s.plan.oid: s.plan for _, s in part.ranges}.values()
    compared = list[RangeResult]()
    # Who waits for one of the tables waits behind the window, too, which gives way by itself.
    with suppress(GaveWay), source, copy, watcher, at_snapshot(source, watcher, copy, part.snapshot):
        foreign_code.lock(source, [(plan.source, plan) for plan in plans], "reader")
        compare_ranges(source, copy, part.ranges, part.seconds, compared, part.apart)
    return compared


def compare_ranges(
    source: Session,
    copy: Session,
    todo: Sequence[tuple[Range, Sides]],
    seconds: float,
    compared: list[RangeResult],
    apart: bool = False,
) -> None:
    """Appends the ranges' results to `compared`, until `seconds` are over; at least one, unless it gives way: what was
    compared until then, under the locks that are given up, stands. As many neighbours as fit into the time are compared
    as one range: where rows do not lie in the key's order, each range reads nearly all of a table. What is still under
    way after twice the time is cancelled, for the next window; what had all of this one took too long. A difference
    is told of the first of such neighbours; `apart`: of the range that it is in."""
    began = time.monotonic()
    deadline, latest = began + seconds, began + 2 * seconds
    before, place, fitting = len(compared), 0, todo[0][0].neighbours
    while place < len(todo):
        try:
            # Each query locks its table's indexes until the end of the transaction, unless it is rolled back.
            with source.transaction(force_rollback=True), _transaction_of(copy, source):
                for _ in range(LOCKED_RANGES):
                    joined = _neighbours(todo[place : place + fitting])
                    first, sides = todo[place]
                    within = Range(first.id, first.low, joined[-1].high)
                    started = time.monotonic()
                    found = compare_range(source, copy, sides, within, latest if first.limited else None)
                    if apart and found.differ and len(joined) > 1:
                        fitting = 1
                        continue
                    compared.append((first.id, found.rows, found.differ))
                    compared += [(other.id, 0, ()) for other in joined[1:]]
                    place += len(joined)
                    now = time.monotonic()
                    if now > deadline:
                        return
                    if place == len(todo):
                        break
                    if todo[place][1].plan.oid != sides.plan.oid:
                        fitting = todo[place][0].neighbours
                    elif found.narrowed:
                        fitting = 1
                    else:
                        by_pace = int(len(joined) * (deadline - now) / (now - started))
                        fitting = max(1, min(by_pace, NEIGHBOURS_GROWTH * len(joined)))
        except pg.QueryCanceled:
            if time.monotonic() < latest:
                raise  # somebody waits for the table
            if len(compared) == before:
                compared.append((todo[place][0].id, 0, None))
            return


def _neighbours(some: Sequence[tuple[Range, Sides]]) -> list[Range]:
    """The first, and those behind it that go on where the one before ends, of one table."""
    (first, sides), *others = some
    found = [first]
    for within, theirs in others:
        last = found[-1]
        if theirs.plan.oid != sides.plan.oid or last.high is None or within.low != last.high:
            break
        if not (last.limited and within.limited):
            break
        found.append(within)
    return found


def _transaction_of(copy: Session, source: Session) -> AbstractContextManager[object]:
    return nullcontext() if copy is source else copy.transaction(force_rollback=True)
