"""Workers that read at a window's snapshot, and are there before it is taken (C32): they fill pending keys, or compare
ranges. Threads of the driver at first, Spark's executors once what is left is worth its start."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence

from airflow_provider_pgddl.engine.errors import Retry
from airflow_provider_pgddl.engine.job.context import Context
from airflow_provider_pgddl.engine.job.takeover import pays, start_spark, time_left
from airflow_provider_pgddl.engine.journal.tables import TableRow
from airflow_provider_pgddl.engine.model.ranges import Range
from airflow_provider_pgddl.engine.parallel.part_results import beside_each_other
from airflow_provider_pgddl.engine.rows.fill import FILL, Filled, FillPart, fill_part
from airflow_provider_pgddl.engine.rows.range_checksums import Sides
from airflow_provider_pgddl.engine.rows.timed_comparison import COMPARE, Part, RangeResult, compare_part
from airflow_provider_pgddl.engine.rows.windows import Window
from airflow_provider_pgddl.engine.server.connect import application_name
from airflow_provider_pgddl.engine.sql import queries

# From this many full windows of pending keys on, filling them is spread over workers.
SPREAD_WINDOWS = 4
ENDINGS = 6  # times that a session is told to end, and waited for, five seconds each
END_WITHIN = 30.0  # seconds beyond its time after which a comparison is taken for one that hangs


class FillWorkers:
    """Workers that fill at a window's snapshot, from the first time on that there is much: threads of the driver, and
    Spark's from where the rest is worth its start."""

    def __init__(self, context: Context):
        self._context = context
        self._app = f"pgddl replay {context.name}"
        self._begun = False
        self._slots = self._waiting = self._filled = 0
        self._seconds = 0.0

    @property
    def _workers(self) -> int:
        return self._context.workers

    def is_worth(self, waiting: int) -> bool:
        """With so many keys pending."""
        rows = self._context.pipeline.replay.window_rows
        self._begun |= waiting > SPREAD_WINDOWS * rows
        self._waiting = waiting
        return self._begun and waiting > rows and self._workers > 1 and not self._context.in_place

    def took(self, window: Window) -> None:
        """Of the pending keys fewer are left, as fast as the driver goes."""
        self._filled += max(0, self._waiting - window.pending)
        self._seconds += window.seconds

    def prepare(self) -> None:
        """Spark's workers are there before a window holds a snapshot (C32)."""
        left = time_left(self._filled, self._seconds, self._waiting)
        if self._slots or pays(self._context, left):
            self._slots = start_spark(self._context, self._app, self._workers)

    def fill(self, snapshot: str, tables: Sequence[TableRow], limit: int, gives_way: Callable[[], bool]) -> Filled:
        """Up to `limit` keys for each worker: with more workers a window brings more, in as long."""
        context, workers = self._context, self._slots or self._workers
        dsns = context.elsewhere if self._slots else (context.source_dsn, context.target_dsn)
        part = FillPart(
            *dsns, context.name, snapshot, context.fence(), tuple((t.id, t.plan) for t in tables), limit,
            context.replica.fenced,
        )  # fmt: skip
        if self._slots:
            from airflow_provider_pgddl.engine.parallel.spark import BEGIN_WITHIN, spread

            done = spread(
                fill_part, [part] * workers, workers=self._workers, app=self._app, begin_within=BEGIN_WITHIN,
                settings=context.spark, gives_way=gives_way,
            )  # fmt: skip
        else:
            done = beside_each_other(fill_part, [part] * workers, doing="running replay")
        filled = sum((rows for rows, _ in done), Counter[int]())
        return filled, {t: why for _, refused in done for t, why in refused.items()}

    def end(self) -> None:
        """See `end_workers`."""
        end_workers(self._context, FILL)


class CompareWorkers:
    """Workers that compare at a window's snapshot: threads of the driver, and Spark's from where the rest is worth its
    start."""

    def __init__(self, context: Context):
        self._context, self._workers = context, context.workers
        self._app = f"pgddl verify {context.name}"
        self._slots = self._ranges = 0  # of Spark, once it is started; compared so far
        self._seconds = 0.0

    def took(self, ranges: int, seconds: float) -> None:
        """So many were compared in a window of so many seconds."""
        self._ranges += ranges
        self._seconds += seconds

    def prepare(self, ranges: int) -> None:
        """Spark's workers are there before a window holds a snapshot (C32), whatever became of them since the last."""
        left = time_left(self._ranges, self._seconds, ranges)
        if self._slots or pays(self._context, left):
            self._slots = start_spark(self._context, self._app, self._workers)

    def compare(
        self, window: Window, todo: Sequence[tuple[Range, Sides]], seconds: float, apart: bool
    ) -> list[RangeResult]:
        context, snapshot = self._context, window.snapshot
        assert snapshot is not None
        # As many parts as can run beside each other: one that waits for another's end would lose the window's time.
        share = math.ceil(len(todo) / (self._slots or self._workers))
        dsns = context.elsewhere if self._slots else (context.source_dsn, context.target_dsn)
        within = 2 * seconds + END_WITHIN if all(each.limited for each, _ in todo) else None
        work = [  # one behind the other: a worker's ranges are neighbours
            Part(*dsns, context.name, context.lease.token, snapshot, tuple(todo[first : first + share]), seconds, apart)
            for first in range(0, len(todo), share)
        ]
        if self._slots:
            from airflow_provider_pgddl.engine.parallel.spark import BEGIN_WITHIN, spread

            shares = spread(
                compare_part, work, workers=self._workers, app=self._app, begin_within=BEGIN_WITHIN,
                settings=context.spark, gives_way=window.gives_way, within=within,
            )  # fmt: skip
        else:
            shares = beside_each_other(compare_part, work, doing="running verify")
        return [result for share in shares for result in share]

    def end(self) -> None:
        """See `end_workers`."""
        end_workers(self._context, COMPARE)


def end_workers(context: Context, kind: str) -> None:
    """No worker outlives what it was started for. Spark runs a task a second time when it has lost sight of a worker,
    or for speed: the first one, whose token is as good as ours, would commit rows of a snapshot that is over (C11), or
    hold locks of the source that nobody watches any more (C17).

    Behind a window: one that has not taken the snapshot up by then cannot do so any more, and one that has is found by
    its sessions, which are older."""
    names = [application_name(context.name, context.lease.token, f"{kind}{side}") for side in ("", " read", " watch")]
    for session in (context.target, context.source):
        for _ in range(ENDINGS):
            if session.execute(queries("catalog")["terminate_workers"], [names]).fetchone() == (0,):
                break
        else:
            raise Retry(
                "a worker's session does not end",
                todo="look what it hangs in; then run the stage again, which goes on where it was",
                sql="SELECT pid, state, wait_event, query FROM pg_stat_activity WHERE application_name LIKE 'pgddl:%';",
            )
