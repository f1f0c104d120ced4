"""Tables that match the pipeline and came after its snapshot, and partitions that became tables of their own."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from psycopg import sql

from airflow_provider_pgddl.engine.capture import change_log, ddl_log
from airflow_provider_pgddl.engine.errors import TableChanged
from airflow_provider_pgddl.engine.failpoints import failpoint
from airflow_provider_pgddl.engine.following.attached_partitions import attached, refuse_attached_parts
from airflow_provider_pgddl.engine.following.new_plan import note_made, read_again, start_over
from airflow_provider_pgddl.engine.following.plans import first_plan
from airflow_provider_pgddl.engine.following.reconcile import look_at
from airflow_provider_pgddl.engine.following.rows_read import DETACHED, DETACHED_WITH_KEPT, LATE
from airflow_provider_pgddl.engine.following.schema_comparison import KEYLESS, recorded
from airflow_provider_pgddl.engine.following.table_capture import (
    TableCapture,
    note_keyless,
    stop_capture_of,
    take_back_capture,
)
from airflow_provider_pgddl.engine.job.context import Context
from airflow_provider_pgddl.engine.journal.tables import TableRow
from airflow_provider_pgddl.engine.model.names import Name
from airflow_provider_pgddl.engine.model.tables import Table
from airflow_provider_pgddl.engine.pipeline.selection import matches
from airflow_provider_pgddl.engine.rights import as_owner
from airflow_provider_pgddl.engine.schema.verdict import stopped
from airflow_provider_pgddl.engine.server import catalog

LEFT_BEHIND = (
    "was detached from a table of this pipeline and is none itself (tables.include), so its rows on the target stay as"
    " they were: put it into another schema there (ALTER TABLE ... SET SCHEMA ...), where its rows are kept"
)

NOT_OURS = (
    "came after the snapshot, and the target had a table of this name with rows of its own, which would be lost: keep"
    " them elsewhere and empty it"
)


def take_in_late_tables(context: Context, names: Mapping[Name, int], seen: Mapping[int, Table]) -> None:
    """Tables that match and came after the snapshot. Their events have made their copies; from here on their changes
    are captured, and all their rows are pending. One without a key is stopped before it begins, or noted for the swap.

    `names` and `seen` are by the snapshot that the applied DDL reaches: a name may be another table's by now."""
    if context.pipeline.replaces:
        return  # what has such a name on the target is not its copy: setup and snapshot take it along
    run_no = context.journal.run
    known = {t.oid: t for t in context.journal.tables.of(run_no)}
    parts = attached(context, seen)
    refuse_attached_parts(known.values(), parts)
    copies = {(t.plan.copy_schema, t.plan.copy_name): t.oid for t in known.values()}
    stuck = context.journal.blocked_tables.by_ddl()
    keyless: dict[int, Name] = {}
    in_part: dict[Name, list[str]] = {}
    for name in matches(context.pipeline, names, strict=False).rows:
        oid = names[name]
        late, then = known.get(oid), seen.get(oid)
        if then is None or (late and late.state != "captured") or catalog.oid_of(context.target, *name) is None:
            continue
        made = context.journal.ddl_history.has_made
        if late and context.pipeline.tables.existing == "adopt" and not made(run_no, oid):
            continue  # the target had it before: the snapshot takes it as it is
        if f"{name[0]}.{name[1]}" in stuck or copies.get(name, oid) != oid:
            continue  # what bears its name on the target is another table's copy
        if late is None and (why := _only_in_part(context, name, oid, known.values())):
            in_part[name] = [why]
            continue
        if then.key is None and context.pipeline.tables.keyless == "copy_at_swap":
            if change_log.root_of(context.source, context.name, oid) is None:
                _leave_for_the_swap(context, late or note_keyless(context, then), then)
            continue
        if then.key is None:
            keyless[oid] = name
            continue
        if change_log.root_of(context.source, context.name, oid) not in (None, oid):
            continue  # detached, but its root waits for something: a partition until that has been settled
        within = [known[part] for part, root in parts.items() if root.oid == oid and part in known]
        context.check_fence()
        for part in within:
            stop_capture_of(context.source, context.pipeline, part.oid)
        if late is None:
            if oid in change_log.captured_roots(context.source, context.name):
                stop_capture_of(context.source, context.pipeline, oid)
            failpoint("late.before_capture", context.source)
            try:
                table, log = TableCapture(context, {oid: None}).of(oid)
            except TableChanged:  # the next look shows what has become of it
                take_back_capture(context, oid)
                continue
            # It may have another name by now; its copy gets that once the statement has been followed.
            plan = replace(first_plan(context.pipeline, table), copy_schema=name[0], copy_name=name[1])
            with context.fenced("late.before_table_commit"):
                context.journal.tables.add(run_no, table, log, plan)
            late = next(t for t in context.journal.tables.of(run_no) if t.oid == oid)
            context.say(f"{late.qualified}: came after the snapshot, is captured and read from here on")
        failpoint("late.before_taken_in")
        _take_in(context, late, then, within)
    stopped = {name: [KEYLESS] for name in _stay_keyless(context, keyless)} | in_part | _left_behind(context, names)
    with context.fenced("late.before_statuses_commit"):
        context.journal.blocked_tables.set_statuses_of_others(context.journal.run, stopped)


def _stay_keyless(context: Context, keyless: Mapping[int, Name]) -> set[Name]:
    """Without those that are gone or have got their key since: their own statements bring the next look at them. And
    without fresh ones while DDL is held, since the statement that gives them their key may be what waits for that."""
    told = set(keyless.values()) & context.journal.schema.mismatches().keys()
    if ddl_log.is_held(context.source):
        return told
    fresh = {oid for oid, name in keyless.items() if name not in told}
    return told | {keyless[oid] for oid in catalog.still_without_key(context.source, fresh)}


def _only_in_part(context: Context, name: Name, oid: int, known: Collection[TableRow]) -> str | None:
    """Why a table cannot be taken in as it is, since the file has something to say of its rows."""
    if name in context.pipeline.rows_read:
        return LATE
    of_part = any(t.plan.partitioned and t.plan.in_part for t in known)
    with_kept = any(t.plan.partitioned and t.plan.keeps_rows for t in known)
    if not (of_part or with_kept) or oid not in context.journal.ddl_history.detached(context.journal.run):
        return None
    return DETACHED if of_part else DETACHED_WITH_KEPT


def _left_behind(context: Context, names: Mapping[Name, int]) -> dict[Name, list[str]]:
    """Partitions that were detached and that nobody follows from there on: their copies are not what they are."""
    detached = context.journal.ddl_history.detached(context.journal.run)
    gone = [name for name, oid in names.items() if oid in detached]
    chosen = matches(context.pipeline, gone, strict=False)
    others = set(gone) - {*chosen.rows, *chosen.schema_only}
    return {name: [LEFT_BEHIND] for name in others if catalog.oid_of(context.target, *name) is not None}


def _holds_rows_of_others(context: Context, late: TableRow, within: Collection[TableRow] = ()) -> bool:
    """Whether its event has made no copy (IF NOT EXISTS), but found a table that somebody fills. Copies of the tables
    that have become parts of it hold our rows."""
    if late.oid in context.journal.ddl_history.detached(context.journal.run):
        return False  # its rows came with those of the table that it was a partition of
    query = sql.SQL("SELECT EXISTS (SELECT FROM {})").format(late.plan.copy_only)
    if within:
        ours = {name for table in within for name in _leaves_of_copy(context, table)}
        others = [sql.Identifier(*name) for name in _leaves_of_copy(context, late) if name not in ours]
        found = [sql.SQL("EXISTS (SELECT FROM ONLY {})").format(other) for other in others]
        query = sql.SQL("SELECT {}").format(sql.SQL(" OR ").join([sql.SQL("false"), *found]))
    return as_owner.fetch_held(context.target, late.plan, "writer", query, ["boolean"]) == [(True,)]


def _leaves_of_copy(context: Context, table: TableRow) -> list[Name]:
    copy = catalog.oid_of(context.target, table.plan.copy_schema, table.plan.copy_name)
    described = catalog.describe(context.target, [copy] if copy is not None else [])
    return [(leaf.schema, leaf.name) for copied in described.values() for leaf in copied.leaves]


def _leave_for_the_swap(context: Context, late: TableRow, then: Table) -> None:
    """All that its DDL has made is there already, indexes included."""
    now = catalog.describe(context.source, [late.oid], context.trigger_names).get(late.oid)
    if now is None or now.version() != then.version():
        return  # changed since: its copy is not what it has become yet
    for _, look in look_at(context, [replace(late, state="indexed")], {late.oid: now}):
        strange = [stopped(NOT_OURS)] if _holds_rows_of_others(context, late) else []
        if look.verdict.mismatches or strange:
            with context.fenced("late.before_keyless_stop_commit", late):
                context.journal.schema.record_many({(late.schema, late.name): recorded(look.evaluated, *strange)})
        else:
            note_made(context, late, look)


def _take_in(context: Context, late: TableRow, then: Table, within: Sequence[TableRow]) -> None:
    now = catalog.describe(context.source, [late.oid], context.trigger_names).get(late.oid)
    if now is None or now.version() != then.version():
        return  # changed since: its copy is not what it has become yet
    copy = catalog.oid_of(context.target, late.plan.copy_schema, late.plan.copy_name)
    indexed = copy is not None and catalog.describe(context.target, [copy])[copy].key is not None
    looks = look_at(context, [replace(late, state="indexed" if indexed else "created")], {late.oid: now})
    for _, look in looks:
        strange = [stopped(NOT_OURS)] if _holds_rows_of_others(context, late, within) else []
        if look.verdict.mismatches or strange:
            with context.fenced("late.before_stop_commit", late):
                context.journal.schema.record_many({(late.schema, late.name): recorded(look.evaluated, *strange)})
        elif indexed:
            read_again(context, late, look, within=within)
        else:  # a partition that was detached before its indexes were built
            start_over(context, late, look)
