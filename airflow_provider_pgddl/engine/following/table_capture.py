"""Capturing a table, and letting one go."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from psycopg import sql

from airflow_provider_pgddl.engine.capture import change_log, ddl_log, slot_log
from airflow_provider_pgddl.engine.ddl.relocate import old_schema
from airflow_provider_pgddl.engine.errors import (
    NO_SUCH_RELATION,
    PreflightRefused,
    StageFailed,
    TableChanged,
    gone_or_keyless,
)
from airflow_provider_pgddl.engine.failpoints import failpoint
from airflow_provider_pgddl.engine.following.plans import first_plan
from airflow_provider_pgddl.engine.following.schema_comparison import AT_SWAP
from airflow_provider_pgddl.engine.following.unseen_writes import Unseen, refuse_unseen_writes, unseen_writes
from airflow_provider_pgddl.engine.job.context import Context
from airflow_provider_pgddl.engine.journal import lease, migrations
from airflow_provider_pgddl.engine.journal.tables import TableRow
from airflow_provider_pgddl.engine.model.names import Name
from airflow_provider_pgddl.engine.model.tables import Table
from airflow_provider_pgddl.engine.pipeline.model import Pipeline
from airflow_provider_pgddl.engine.pipeline.selection import check_columns
from airflow_provider_pgddl.engine.rows.change_log_reading import Logs, count_changes
from airflow_provider_pgddl.engine.server import catalog
from airflow_provider_pgddl.engine.server.connect import Session
from airflow_provider_pgddl.engine.server.lock_timeout import limit_lock_wait
from airflow_provider_pgddl.engine.server.strong_locks import with_tries, writers_wait
from airflow_provider_pgddl.engine.sql import queries


def note_keyless(context: Context, table: Table) -> TableRow:
    """Takes a table without a key in, as one that is copied whole at the swap: nothing of it is captured."""
    run, log = context.journal.run, change_log.log_name(context.name, table.oid)
    plan = first_plan(context.pipeline, table)
    with context.fenced("capture.before_keyless_commit"):
        context.journal.tables.add(run, table, log, plan)
    context.say(f"{table.qualified}: {AT_SWAP}")
    return next(t for t in context.journal.tables.of(run) if t.oid == table.oid)


class TableCapture:
    """Of tables that are to be captured together, each by its oid with the name by which it was chosen, None where it
    may have another by now: what they need is made for all of them first, then one after the other is captured."""

    def __init__(self, context: Context, chosen: Mapping[int, Name | None]):
        self._context, self._chosen = context, chosen
        if context.pipeline.by_slot:
            return
        timeout = context.pipeline.swap.lock_timeout

        def prepare() -> dict[int, change_log.Prepared]:
            return change_log.prepare(context.source, context.name, chosen, timeout)

        self._prepared = with_tries(context.pipeline.swap, "making change logs", prepare)

    def of(self, oid: int) -> tuple[Table, str]:
        """A table as it is captured, and its log. Many short tries for the lock: a long wait would make the table's
        writers queue behind us (C15). TableChanged where it is another by then, also by its name, which tells what the
        file leaves out of it: what was made for it stays, and the next one makes it anew."""
        context, swap = self._context, self._context.pipeline.swap
        if context.pipeline.by_slot:
            return _capture_by_slot(context, oid, self._chosen[oid])
        prepared = self._prepared.get(oid)
        if prepared is None:
            raise _gone(oid, self._chosen[oid])
        _refuse_others(context.pipeline, prepared.table, self._chosen[oid])
        first_plan(context.pipeline, prepared.table)  # refuses what cannot be copied before any writer meets a trigger

        def attempt() -> Table:
            with writers_wait():
                return change_log.start(context.source, context.name, prepared, swap.lock_timeout)

        return with_tries(swap, f"capturing {prepared.table.qualified}", attempt), prepared.log


def _refuse_others(pipeline: Pipeline, table: Table, chosen: Name | None) -> None:
    """The file tells by names what of a table is left out, and so would copy what has another name by now."""
    if chosen is None:
        return
    if (table.schema, table.name) != chosen:
        raise _gone(table.oid, chosen)
    check_columns(pipeline, {chosen: [c.name for c in table.columns]})


def _gone(oid: int, chosen: Name | None) -> TableChanged:
    return gone_or_keyless(f"the one with oid {oid}" if chosen is None else ".".join(chosen))


def refuse_whole_rows(source: Session, table: Table) -> None:
    """A slot streams no more than keys, unless a table's rows are its replica identity; or before Postgres 15."""
    leaves = [leaf.oid for leaf in table.leaves]
    if source.info.server_version < slot_log.COLUMN_LISTS:
        why = f"Postgres {source.info.server_version // 10_000} streams whole rows"
    elif table.kind == "p":
        why = "a partition that comes with REPLICA IDENTITY FULL is streamed whole"
    elif whole := source.execute(queries("slot_log")["whole_rows"], [leaves]).fetchall():
        why = f"{'.'.join(whole[0])} has REPLICA IDENTITY FULL"
    else:
        return
    raise PreflightRefused(
        f"{why}, so values that tables.transform keeps on the source would leave it in the slot's stream",
        table=table.qualified,
        todo="set capture.rows: change_log, or ALTER TABLE … REPLICA IDENTITY DEFAULT",
    )


def _capture_by_slot(context: Context, oid: int, chosen: Name | None) -> tuple[Table, str]:
    swap, described = context.pipeline.swap, catalog.describe(context.source, [oid])
    if oid not in described or described[oid].key is None:
        raise _gone(oid, chosen)
    prepared = described[oid]
    _refuse_others(context.pipeline, prepared, chosen)
    if first_plan(context.pipeline, prepared).transformed:
        refuse_whole_rows(context.source, prepared)
    source, target, fence = context.source, context.target, context.fence()

    def attempt() -> tuple[Table, str]:
        with writers_wait():
            return slot_log.begin_capture(source, target, fence, context.name, prepared, swap.lock_timeout)

    return with_tries(swap, f"capturing {prepared.qualified}", attempt)


def take_back_capture(context: Context, oid: int) -> None:
    """What `TableCapture` has made for a table that it did not find as it was, and that the journal does not know."""
    stop_capture_of(context.source, context.pipeline, oid)
    if context.pipeline.by_slot:
        log = change_log.log_table(change_log.log_name(context.name, oid))
        context.target.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(log))


_Q = queries("swap")
RENAMED = NO_SUCH_RELATION  # or dropped, between the look for its name and the lock


def refuse_late_changes(
    source: Session, logs: Logs, pipeline: str, tables: Sequence[TableRow], *, in_place: bool = False
) -> None:
    """Whoever still wrote to what was replaced after the swap (the source, or in place the old table) would lose those
    rows without a word. So it is refused as well where what captures them was off for a while."""
    logged = set(change_log.captured_roots(source, pipeline))
    changes = count_changes(logs, [t for t in tables if t.oid in logged])
    late = {t.qualified: changes[t.id] for t in tables if changes.get(t.id)}
    if late:
        listed = ", ".join(f"{name}: {n}" for name, n in late.items())
        raise StageFailed(
            f"the replaced tables were written to after the swap ({listed}); this would lose those changes",
            todo="carry them over by hand (the change logs name their keys), empty the logs on the "
            f"{'source' if logs.session is source else 'target'}, then run this again",
            sql="\n".join(
                sql.SQL("DELETE FROM {};").format(change_log.log_table(t.log_table)).as_string()
                for t in tables
                if t.qualified in late
            ),
        )
    refuse_unseen(source, pipeline, tables, in_place=in_place)


def refuse_unseen(source: Session, pipeline: str, tables: Sequence[TableRow], *, in_place: bool = False) -> None:
    """Where an empty log of what was replaced says nothing. Asked again under the lock that ends a capture: minutes may
    have passed until that was to be had."""
    refuse_unseen_writes(
        late_and_unseen(source, pipeline, tables, in_place=in_place),
        of="tables",
        where="source",
        carry="see whether what was replaced was written to after the swap, and carry that over by hand",
    )


def late_and_unseen(
    source: Session, pipeline: str, tables: Sequence[TableRow], *, in_place: bool = False
) -> list[Unseen]:
    """Of what was replaced, where the logs do not tell whether it was written to since. Those whose capture has ended
    are none of them; in place nobody has taken the name of an old table, which has none that applications know."""
    if not (logged := set(change_log.captured_roots(source, pipeline))):
        return []
    there = catalog.describe(source, [t.oid for t in tables])
    captured = [t for t in tables if not t.keyless and (t.oid in logged or t.oid not in there)]
    return unseen_writes(source, pipeline, captured, by_name=not in_place)


def stop_capture_of(
    source: Session,
    pipeline: Pipeline,
    oid: int,
    *,
    only_if_empty: bool = False,
    look: Callable[[], None] | None = None,
    then: Callable[[], None] | None = None,
) -> None:
    """One table's triggers, functions and log; `only_if_empty`: LateChanges where the log holds some by then. `look` is
    called with the table locked, before anything goes; `then` behind it, in the same transaction."""

    def attempt() -> None:
        failpoint("capture.before_stop_lock", source)
        with writers_wait(), source.transaction():
            limit_lock_wait(source, pipeline.swap.lock_timeout)
            if look is not None:
                change_log.lock_root(source, oid, "ACCESS EXCLUSIVE")  # not raised later: that meets deadlocks
                look()
            change_log.stop(source, pipeline.pipeline, oid, only_if_empty=only_if_empty)
            if then is not None:
                then()
            failpoint("capture.before_stop_commit", source)

    with_tries(pipeline.swap, "dropping the capture triggers", attempt, again=RENAMED)


def stop_capture(context: Context, tables: Sequence[TableRow]) -> None:
    """A transaction a table: DROP TRIGGER takes ACCESS EXCLUSIVE, so it waits briefly and tries often. In place the old
    table goes with it: nobody can write to one that is no longer captured."""
    captured = change_log.captured_roots(context.source, context.name)
    known = {t.oid for t in context.journal.tables.of(context.journal.run)}
    replaced = {t.oid: t for t in tables} if context.in_place else {}

    def drop_replaced(table: TableRow | None) -> None:
        if table is not None:
            drop_old_table(context, table)
            lease.check(context.source, context.fence())

    for oid in captured:
        context.check_fence()
        then = partial(drop_replaced, replaced.get(oid))
        these = [t for t in tables if t.oid == oid]
        look = partial(refuse_unseen, context.source, context.name, these, in_place=context.in_place)
        try:
            if context.pipeline.by_slot:
                late = partial(_read_late, context, these)
                stop_slot_capture_of(context.source, context.pipeline, oid, late, look=look)
                continue
            # Nobody reads what is captured of the new table, for a revert, or what a killed setup has not recorded.
            if oid not in known:
                stop_capture_of(context.source, context.pipeline, oid, then=then)
                continue
            stop_capture_of(context.source, context.pipeline, oid, only_if_empty=True, look=look, then=then)
        except change_log.LateChanges:
            refuse_late_changes(context.source, context.logs, context.name, tables, in_place=context.in_place)
            raise


def _read_late(context: Context, tables: Sequence[TableRow]) -> bool:
    context.receive()
    return any(count_changes(context.logs, tables).values())


def stop_slot_capture_of(
    source: Session, pipeline: Pipeline, oid: int, late: Callable[[], bool], *, look: Callable[[], None]
) -> None:
    """One table out of the publication. Under a lock that keeps its writers out `look` is called, and `late` reads what
    they have written, through sessions of its own, before nobody reads it any more; LateChanges where it tells that
    there is some."""

    def attempt() -> None:
        failpoint("capture.before_unpublish_lock", source)
        with writers_wait(), source.transaction():
            limit_lock_wait(source, pipeline.swap.lock_timeout)
            change_log.lock_root(source, oid, "SHARE ROW EXCLUSIVE")
            look()
            if late():
                raise change_log.LateChanges(oid)
            change_log.stop(source, pipeline.pipeline, oid)
            failpoint("cleanup.before_unpublished_commit", source)

    with_tries(pipeline.swap, "taking a table out of the publication", attempt, again=RENAMED)


def drop_old_table(context: Context, table: TableRow) -> None:
    context.source.execute(
        sql.SQL("DROP TABLE IF EXISTS {}").format(sql.Identifier(old_schema(table.schema), table.name))
    )


def release_leaf(context: Context, leaf: int) -> None:
    """The triggers and the function of a partition that is its table's no longer."""

    def attempt() -> None:
        with writers_wait(), context.source.transaction():
            limit_lock_wait(context.source, context.pipeline.swap.lock_timeout)
            change_log.release(context.source, context.name, leaf)
            failpoint("capture.before_release_commit", context.source)

    with_tries(context.pipeline.swap, "dropping the capture triggers of a detached partition", attempt, again=RENAMED)


def drop_schema_if_empty(conn: Session, schema: str) -> None:
    row = conn.execute(_Q["schema_objects"], [schema]).fetchone()
    if row and row[0] == 0:
        failpoint("forget.before_schema", conn)
        conn.execute(sql.SQL("DROP SCHEMA IF EXISTS {}").format(sql.Identifier(schema)))


def forget_capture(source: Session, pipeline: str) -> None:
    """Takes the pipeline off the source; the last one takes the core set down, but for what a fence stands on."""
    if not migrations.state(source, "core")["applied"]:
        return
    slot_log.stop_slot(source, pipeline)  # nobody reads it any more, and it keeps WAL while others are waited for
    ddl_log.stop(source, pipeline)
    with source.transaction():
        left, fenced = change_log.forget_pipeline(source, pipeline)
        failpoint("forget.before_name_commit", source)
    if left == 0:
        failpoint("forget.before_core_down", source)
        stays = change_log.FENCE_VERSION if fenced else 0
        if migrations.revert(source, "core", to=stays, unless_in="captures"):
            failpoint("forget.before_injector_down", source)
            migrations.revert(source, "injector")
