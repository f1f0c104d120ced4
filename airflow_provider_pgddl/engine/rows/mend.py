"""Ranges whose rows differ are read again: every key that either side has there leaves the copy and becomes pending.

Of a range, not of the rows that were found to differ: those are only so many of them."""

from __future__ import annotations

from collections import Counter
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
from airflow_provider_pgddl.engine.server.connect import Session
from airflow_provider_pgddl.engine.server.encodings import Verbatim
from airflow_provider_pgddl.engine.sql import queries

_Q = queries("windows")
ASKED = 3  # ranges of a table with rows that only the copy has, in which the source is read without its indexes
SAMPLE = 10_000  # keys of such a range that are looked for there: a range without a row of the source may have millions
MISSED = (
    "an index of the source misses row {} of it, which a scan of the table finds: what is read by that index is not all"
    " there is, so nothing more of the copy is taken for too many; REINDEX the table, and run the stage again"
)


class _Missed(Exception):
    """A row that the source has, and that its index does not find."""


def take_out(
    replica: Replica, done: Window, tables: Sequence[TableRow], table: TableRow, within: Range,
    record: Callable[[], None], before: Callable[[], None] = lambda: None, asked: Counter[int] | None = None,
) -> int:  # fmt: skip
    """Inside a window over `tables`, in a transaction of its own (in place in the window's), in which `record` records
    it; `before` is called in it once the copy is held, and before anything leaves. Returns how many rows will be read
    again. `asked` counts the ranges of each table in which the source was read without its indexes."""
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
            try:
                keys = _stage(replica, table, within, staging, plan.keepers.writer if behind else "", asked)
            except _Missed as missed:
                done.stopped[table.id] = [str(missed)]
                return 0
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


def _stage(
    replica: Replica, table: TableRow, within: Range, staging: sql.Identifier, role: str, asked: Counter[int] | None
) -> int:
    """The range's keys on either side, each once: text may be ordered otherwise on the other, where the row is in
    another range."""
    plan, target = table.plan, replica.target
    limited = where(plan, within)
    keys = copy_keys(replica, plan, plan.rows, staging, limited)

    def of_copy(cast: str) -> sql.Composed:
        return sql.SQL(_Q["keys_of_copy"]).format(
            keys=sql.SQL(", ").join(
                sql.SQL("{}::{}" + cast).format(sql.Identifier("c", c), sql.SQL(t))
                for c, t in zip(plan.key.columns, plan.key.types, strict=True)
            ),
            copy=shown_as_t(plan), where=limited, staging=staging, same=plan.key.join("c", "k"),
        )  # fmt: skip

    if asked is not None and asked[table.id] < ASKED:
        texts = ["text"] * len(plan.key.columns)
        some = of_copy("::text") + sql.SQL(" LIMIT {}").format(sql.Literal(SAMPLE))
        if alone := as_owner.fetch(target, role, some, texts, staging):
            _refuse_missed(replica.source, table, alone)
            asked[table.id] += 1  # behind it: a window that gave way before has shown nothing
    with as_owner.selected(target, role, of_copy(""), plan.key.types, staging) as rows:
        insert = sql.SQL("INSERT INTO {} ({}) {}").format(staging, plan.key.list(), rows)
        return keys + target.execute(insert).rowcount


def _refuse_missed(source: Session, table: TableRow, alone: Sequence[tuple[str, ...]]) -> None:
    """_Missed where the source has rows of these keys after all, once it is read from end to end: an index that was
    built by another order of text, or beside writers by a Postgres that made a mistake of it, may not lead to them."""
    plan = table.plan
    names = [sql.Identifier(f"k{n}") for n in range(1, len(plan.key.columns) + 1)]
    query = sql.SQL(_Q["found_by_scan"]).format(
        key=sql.SQL(", ").join(sql.Identifier("t", c) for c in plan.key.columns),
        rows=plan.rows,
        typed=sql.SQL(", ").join(
            sql.SQL("c.{0}::{1} AS {0}").format(k, sql.SQL(t)) for k, t in zip(names, plan.key.types, strict=True)
        ),
        arrays=sql.SQL(", ").join(sql.SQL("{}::text[]").format([*map(Verbatim, v)]) for v in zip(*alone, strict=True)),
        keys=sql.SQL(", ").join(names),
        same=plan.key.join("t", "pgddl_key"),
    )
    role = foreign_code.reader_of(source, plan, asked=False)
    with source.transaction(force_rollback=True):
        source.execute(_Q["without_indexes"])
        if found := as_owner.fetch(source, role, query, ["text"]):
            raise _Missed(MISSED.format(found[0][0]))


def _logs(replica: Replica) -> Logs:
    """As the window has left them: it has taken all that its snapshot shows."""
    if replica.receive is None:
        return Logs(replica.source)
    return Logs(replica.target, catalog.current_snapshot(replica.source))
