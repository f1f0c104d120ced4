"""Ranges whose rows differ are read again: every key that either side has there leaves the copy and becomes pending.

Of a range, not of the rows that were found to differ: those are only so many of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from psycopg import sql

from airflow_provider_pgddl.engine.errors import GaveWay, StageFailed
from airflow_provider_pgddl.engine.failpoints import failpoint
from airflow_provider_pgddl.engine.journal import lease
from airflow_provider_pgddl.engine.journal.tables import TableRow
from airflow_provider_pgddl.engine.model.ranges import Range
from airflow_provider_pgddl.engine.rights import as_owner, foreign_code
from airflow_provider_pgddl.engine.rows import archive, foreign_keys_and_triggers
from airflow_provider_pgddl.engine.rows.adopted_rows import shown_as_t
from airflow_provider_pgddl.engine.rows.change_log_reading import Logs
from airflow_provider_pgddl.engine.rows.copy_shape import COPY_ALTERED, hold_copies
from airflow_provider_pgddl.engine.rows.pending_keys import (
    add_pending,
    delete_from_copy,
    ingest_keeping,
    staging_table,
)
from airflow_provider_pgddl.engine.rows.ranges import where
from airflow_provider_pgddl.engine.rows.reload import copy_keys
from airflow_provider_pgddl.engine.rows.window_locks import Replica
from airflow_provider_pgddl.engine.rows.windows import Window, moves_in_window, untied
from airflow_provider_pgddl.engine.server import catalog
from airflow_provider_pgddl.engine.sql import queries

_Q = queries("windows")


def take_out(
    replica: Replica, done: Window, tables: Sequence[TableRow], table: TableRow, within: Range,
    record: Callable[[], None], before: Callable[[], None] = lambda: None,
) -> int:  # fmt: skip
    """Inside a window over `tables`, in a transaction of its own (in place in the window's), in which `record` records
    it; `before` is called in it once the copy is held, and before anything leaves. Returns how many rows will be read
    again."""
    target, plan = replica.target, table.plan
    with target.transaction():
        if hold_copies(target, {table.id: plan}):
            raise GaveWay(COPY_ALTERED)
        behind, stops = foreign_code.code_of_copies(target, {table.id: plan})
        if stops:
            raise StageFailed("; ".join(stops[table.id]), table=table.qualified)
        if behind and (why := archive.not_behind_the_wall(plan)):
            done.stopped[table.id] = why
            return 0
        with foreign_keys_and_triggers.quiet(target, foreign_keys_and_triggers.by_id(tables)) as firing:
            _, tied, _ = untied(target, tables, firing, Window(done.taken_at, done.lsn))
            group = [t for t in tables if t.id in tied.tied] if table.id in tied.tied else [table]
            if len(group) > 1 and any(foreign_code.code_of_copies(target, foreign_keys_and_triggers.by_id(group))):
                raise StageFailed(foreign_keys_and_triggers.NOT_TOGETHER, table=table.qualified)
            staged = {t.id: (t.plan, staging_table(target, "ingest", t.plan, t.id)) for t in group}
            before()
            staging = staged[table.id][1]
            keys = _stage(replica, table, within, staging, plan.keepers.writer if behind else "")
            if len(group) > 1:
                foreign_keys_and_triggers.stage_referring(target, tied, staged)
                foreign_keys_and_triggers.delete_together(target, staged.values())
            elif plan.columns.kept:
                ingest_keeping(target, table, staging, moves_in_window(replica, _logs(replica), table))
            else:
                delete_from_copy(target, table, staging, behind=bool(behind))
            for table_id, (its_plan, its_staging) in staged.items():
                add_pending(target, table_id, its_plan, its_staging)
                target.execute(sql.SQL("TRUNCATE {}").format(its_staging))
        record()
        if not replica.in_place:
            lease.check(target, replica.fence)
            failpoint("verify.before_mend_commit", target)
    return keys


def _stage(replica: Replica, table: TableRow, within: Range, staging: sql.Identifier, role: str) -> int:
    """The range's keys on either side, each once: text may be ordered otherwise on the other, where the row is in
    another range."""
    plan, target = table.plan, replica.target
    limited = where(plan, within)
    keys = copy_keys(replica, plan, plan.rows, staging, limited)
    query = sql.SQL(_Q["keys_of_copy"]).format(
        keys=sql.SQL(", ").join(
            sql.SQL("{}::{}").format(sql.Identifier("c", c), sql.SQL(t))
            for c, t in zip(plan.key.columns, plan.key.types, strict=True)
        ),
        copy=shown_as_t(plan), where=limited, staging=staging, same=plan.key.join("c", "k"),
    )  # fmt: skip
    with as_owner.selected(target, role, query, plan.key.types, staging) as rows:
        insert = sql.SQL("INSERT INTO {} ({}) {}").format(staging, plan.key.list(), rows)
        return keys + target.execute(insert).rowcount


def _logs(replica: Replica) -> Logs:
    """As the window has left them: it has taken all that its snapshot shows."""
    if replica.receive is None:
        return Logs(replica.source)
    return Logs(replica.target, catalog.current_snapshot(replica.source))
