"""A pipeline's windows and chunks by hand, without its stages."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from psycopg.types.json import Jsonb

from airflow_provider_pgddl.engine.capture import change_log
from airflow_provider_pgddl.engine.journal.lease import Lease
from airflow_provider_pgddl.engine.journal.pipelines import Journal
from airflow_provider_pgddl.engine.journal.schema import SchemaJournal
from airflow_provider_pgddl.engine.journal.tables import TableRow
from airflow_provider_pgddl.engine.model.plan import Plan
from airflow_provider_pgddl.engine.rows.chunk_layout import plan_chunks
from airflow_provider_pgddl.engine.rows.chunk_rows import TableToCopy
from airflow_provider_pgddl.engine.rows.chunks import Share, ShareDone, copy_chunks
from airflow_provider_pgddl.engine.rows.copy_shape import copy_digests
from airflow_provider_pgddl.engine.rows.throttle import Limits
from airflow_provider_pgddl.engine.rows.window_locks import Replica
from airflow_provider_pgddl.engine.rows.windows import Window, window
from airflow_provider_pgddl.engine.server import catalog
from airflow_provider_pgddl.engine.server.connect import connect
from tests.integration.lifecycle import Lifecycle

# By hand: DDL on the source is not what these are about.
BY_HAND: dict[str, Any] = {"capture": {"ddl": "off"}, "backfill": {"chunk_bytes": "64kB", "workers": 1}}


@dataclass
class ByHand:
    """One pipeline's windows without its stages, so that plans stay what a test makes of them."""

    pipeline: Lifecycle
    replica: Replica

    @property
    def journal(self) -> Journal:
        return Journal(self.replica.target, self.pipeline.name)

    def tables(self) -> list[TableRow]:
        return self.journal.tables.of(self.replica.run)

    def table(self, name: str) -> TableRow:
        return next(t for t in self.tables() if t.name == name)

    def plan(self, name: str, **fields: Any) -> Plan:
        """Changes a plan as it is recorded."""
        table = self.table(name)
        plan = Plan.from_json(table.plan.to_json() | fields)
        args = [Jsonb(plan.to_json()), table.id]
        self.replica.target.execute("UPDATE pgddl.tables SET plan = %s WHERE id = %s", args)
        return plan

    def remember_shapes(self) -> None:
        """Every plan is made for its copy as that is now."""
        for table_id, digest in copy_digests(self.replica.target, self.tables()).items():
            (name,) = [t.name for t in self.tables() if t.id == table_id]
            self.plan(name, copy_attributes=digest)

    def window(self, fill: int = 1000, **options: Any) -> Window:
        return window(self.replica, self.tables(), fill=fill, **options)

    def counted(self) -> dict[tuple[str, str], float]:
        """(table, label) → rows that the metrics call skipped."""
        counters = SchemaJournal(self.replica.target, self.pipeline.name).counters()
        return {
            (name[1], label): value
            for (name, counter, label), value in counters.items()
            if name and counter == "rows_skipped" and value
        }


@contextmanager
def by_hand(pipeline: Lifecycle, *, in_place: bool = False) -> Iterator[ByHand]:
    """Holds the pipeline's lease, as a stage would."""
    with Lease(pipeline.target, pipeline.name, "test", None) as held:
        token = held.take()
        with (
            connect(pipeline.source, purpose="window", pipeline=pipeline.name, token=token) as source,
            connect(pipeline.target, purpose="window", pipeline=pipeline.name, token=token) as target,
            connect(pipeline.source, purpose="watch", pipeline=pipeline.name, token=token) as watcher,
        ):
            run = Journal(target, pipeline.name).row().run
            writer = source if in_place else target
            yield ByHand(pipeline, Replica(pipeline.name, run, source, writer, watcher, held.fence, in_place))


def copied_by_chunks(hand: ByHand, name: str) -> ShareDone:
    """All chunks of one table, laid out and copied as a worker does it."""
    pipeline, table, fence = hand.pipeline, hand.table(name), hand.replica.fence
    triggers = change_log.trigger_names(pipeline.name)
    todo = TableToCopy(table.id, table.plan, table.version, table.physical, fence, triggers)
    with connect(pipeline.source, purpose="test") as source:
        now = catalog.describe(source, [table.oid], triggers)[table.oid]
        plan_chunks(hand.replica.target, source, [(todo, now)], 64_000, 8192)
    limits = Limits(None, None, None)
    work = Share(pipeline.source, pipeline.target, False, pipeline.name, fence.token, (todo,), 10, limits)
    return copy_chunks(work)
