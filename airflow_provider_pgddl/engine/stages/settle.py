"""After DDL: each table's plan, capture and copy in line with the source again, or the table stopped and why."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from psycopg import sql

from airflow_provider_pgddl.engine import catalog
from airflow_provider_pgddl.engine.capture import change_log
from airflow_provider_pgddl.engine.catalog import Table
from airflow_provider_pgddl.engine.connect import Session
from airflow_provider_pgddl.engine.ddl.parse import Name
from airflow_provider_pgddl.engine.journal import Journal, TableRow
from airflow_provider_pgddl.engine.pipeline import matches, table_name
from airflow_provider_pgddl.engine.rows.plan import Plan
from airflow_provider_pgddl.engine.rows.reload import ChangedAgain, reload
from airflow_provider_pgddl.engine.rows.windows import create_pending, drop_pending, lost_track
from airflow_provider_pgddl.engine.schema.change import Change, change_of
from airflow_provider_pgddl.engine.schema.drift import drift
from airflow_provider_pgddl.engine.stages.cleanup import release_leaf, stop_capture_of
from airflow_provider_pgddl.engine.stages.context import Context, patiently
from airflow_provider_pgddl.engine.stages.gate import KEYLESS, judge

LEFT_BEHIND = (
    "was detached from a table of this pipeline and is none itself (tables.include), so its rows on the target stay as"
    " they were: drop it there"
)


def settle(context: Context, seen: Mapping[int, Table], *, again: bool) -> None:
    """Brings what has changed in line; `seen` are the source's tables under the snapshot that the applied DDL reaches.

    `again`: a copy that refused a row may take it now (the label that its enum lacked, a partition made by hand).
    """
    stuck, blocked = context.journal.stuck_tables(), context.journal.mismatches()
    # What a run is not about is left to the run that holds its lease; windows stop it until then.
    limited = {table_name(t) for t in context.job.tables} if context.job.tables is not None else None
    parts = {leaf.oid: root for root in seen.values() for leaf in root.leaves if root.kind == "p"}
    for table in context.journal.tables(context.row().run):
        if table.state in ("swapped", "cleaned") or table.qualified in stuck:
            continue
        if limited is not None and (table.schema, table.name) not in limited:
            continue
        now = seen.get(table.oid)
        if now is None:
            _forget_dropped(context, table)
        elif table.oid in parts:
            _forget_attached(context, table, parts[table.oid])
        elif _differs(context, table, now):
            _settle(context, table, now)
        elif again and table.qualified in blocked:
            _look_again(context, table, now)


def _differs(context: Context, table: TableRow, now: Table) -> bool:
    return bool(drift(table.version, table.physical, now)) or lost_track(context.source, table)


def _look_again(context: Context, table: TableRow, now: Table) -> None:
    findings = _misfits(context, table, now)
    with context.fenced(table):
        context.journal.set_status(table, "mismatch" if findings else "compatible", findings)


def _forget_dropped(context: Context, table: TableRow) -> None:
    """Dropped on the source, and by an applied event on the target: there is nothing left to follow."""
    there = catalog.oid_of(context.target, table.plan.copy_schema, table.plan.copy_name) is not None
    # What stands there then was made by a later event, which is another table's.
    if there and not context.journal.was_dropped(context.row().run, table.oid):
        context.block({table.id: ["was dropped on the source, and its copy is still there"]})
        return
    stop_capture_of(context.source, context.pipeline, table.oid)
    with context.fenced(table):
        drop_pending(context.target, table)
        context.journal.forget_table(table)
    context.say(f"{table.qualified}: was dropped on the source, and so was its copy")


def _forget_attached(context: Context, table: TableRow, root: Table) -> None:
    """A table that has become a partition of another: its rows are that one's, whose log says that they came."""
    stop_capture_of(context.source, context.pipeline, table.oid)
    with context.fenced(table):
        drop_pending(context.target, table)
        context.journal.forget_table(table)
    context.say(f"{table.qualified}: was attached to {root.qualified}, and is read with it")


def _settle(context: Context, table: TableRow, now: Table) -> None:
    renamed = (now.schema, now.name) != (table.schema, table.name)
    if context.in_place and renamed:
        context.block({table.id: [f"was renamed to {now.qualified}, which a rewrite cannot follow: rename it back"]})
        return
    if now.key is None:
        context.block({table.id: [KEYLESS]})
        return
    change = change_of(
        table.version, table.physical, table.plan.key, table.plan.key_types, now,
        lost_track=lost_track(context.source, table), born_empty=_born_empty(context, table, now),
    )  # fmt: skip
    if change.what == "capture":
        now = _capture_again(context, table)
        if now.key is None:
            context.block({table.id: [KEYLESS]})
            return
    findings = _misfits(context, table, now)
    if findings:
        context.block({table.id: findings})
        return
    for leaf in {int(oid) for oid in table.physical} - {leaf.oid for leaf in now.leaves}:
        release_leaf(context, leaf)
    fresh = _with(context, table, now)
    context.say(f"{fresh.qualified}: {change.why}{'' if change.what == 'plan' else '; its rows are read again'}")
    _record(context, table, fresh, now, change)


def _born_empty(context: Context, table: TableRow, now: Table) -> set[int]:
    new = [leaf.oid for leaf in now.leaves if str(leaf.oid) not in table.physical]
    return context.journal.born_as_partitions(context.row().run, new) if new else set()


def _capture_again(context: Context, table: TableRow) -> Table:
    """A new log and new triggers. Until the plan that goes with them is recorded, the table differs from its version,
    so no window reads it, and a run that dies here does all of it again."""
    from airflow_provider_pgddl.engine.stages.setup import capture

    stop_capture_of(context.source, context.pipeline, table.oid)
    now, _ = capture(context, table.oid)
    return now


def _misfits(context: Context, table: TableRow, now: Table) -> list[str]:
    """What of the source its copy could not take; a copy that has no indexes yet has no key either."""
    if table.state == "captured":
        return []
    plan = _plan(context, table, now)
    indexed = table.state == "indexed"
    as_now = replace(table, plan=plan, version=now.version())
    return judge(context.pipeline, now.structure(), context.target, as_now, key=indexed)


def _plan(context: Context, table: TableRow, now: Table) -> Plan:
    """What was left out of the old plan stays left out, under whatever name."""
    from airflow_provider_pgddl.engine.stages.setup import make_plan_for

    numbers = table.version["attnums"]
    generated = {name for name, column in table.version["columns"].items() if column["generated"]}
    skipped = {numbers[name] for name in table.version["columns"] if name not in {*table.plan.columns, *generated}}
    return make_plan_for(context.pipeline, now, skip=[c.name for c in now.columns if c.attnum in skipped])


def _with(context: Context, table: TableRow, now: Table) -> TableRow:
    return replace(
        table, schema=now.schema, name=now.name, plan=_plan(context, table, now), version=now.version(),
        fingerprint=catalog.fingerprint(now.structure()), physical=now.physical(),
        log_table=change_log.log_name(context.name, now.oid),
    )  # fmt: skip


def _record(context: Context, was: TableRow, fresh: TableRow, now: Table, change: Change) -> None:
    """The plan, in one transaction with what it asks for."""

    def record(conn: Session, state: str) -> None:
        Journal(conn, context.name).replan(was, now, fresh.plan, log_table=fresh.log_table, state=state)

    if was.state == "captured" or change.what == "plan":
        with context.fenced(was):
            record(context.target, was.state)
    elif was.state != "indexed":
        _start_over(context, was, fresh, now)
    else:
        leaves = change.leaves if change.what == "leaves" else ()
        _reload(context, fresh, lambda conn: record(conn, "indexed"), leaves)


def _start_over(context: Context, was: TableRow, fresh: TableRow, now: Table) -> None:
    """Without indexes it is read by blocks, as from the start."""
    with context.fenced(was):
        context.target.execute(sql.SQL("TRUNCATE {}").format(fresh.plan.copy_only))
        context.journal.unplan(was.id)
        drop_pending(context.target, fresh)
        create_pending(context.target, fresh)
        context.journal.replan(was, now, fresh.plan, log_table=fresh.log_table, state="created")


def _reload(context: Context, table: TableRow, record: Callable[[Session], None], leaves: Sequence[int] = ()) -> None:
    try:
        rows = patiently(context, lambda: reload(context.replica, table, record, leaves))
    except ChangedAgain as again:
        context.say(f"{table.qualified}: changed once more ({again}), which comes first")
    else:
        context.say(f"{table.qualified}: {rows} rows are pending")


def take_in_late_tables(context: Context, names: Mapping[Name, int], seen: Mapping[int, Table]) -> None:
    """Tables that match and came after the snapshot. Their events have made their copies; from here on their changes
    are captured, and all their rows are pending. One without a key is stopped before it begins.

    `names` and `seen` are by the snapshot that the applied DDL reaches: a name may be another table's by now."""
    from airflow_provider_pgddl.engine.stages.setup import capture, make_plan_for

    run_no = context.row().run
    known = {t.oid: t for t in context.journal.tables(run_no)}
    copies = {(t.plan.copy_schema, t.plan.copy_name): t.oid for t in known.values()}
    stuck = context.journal.stuck_tables()
    keyless: set[Name] = set()
    for name in matches(context.pipeline, names, strict=False).rows:
        oid = names[name]
        late, then = known.get(oid), seen.get(oid)
        if then is None or (late and late.state != "captured") or catalog.oid_of(context.target, *name) is None:
            continue
        if f"{name[0]}.{name[1]}" in stuck or copies.get(name, oid) != oid:
            continue  # what bears its name on the target is another table's copy
        if then.key is None:
            keyless.add(name)
            continue
        if change_log.root_of(context.source, context.name, oid) not in (None, oid):
            continue  # detached, but its root waits for something: a partition until that has been settled
        if late is None:
            if oid in change_log.captured_roots(context.source, context.name):
                stop_capture_of(context.source, context.pipeline, oid)
            table, log = capture(context, oid)
            with context.fenced():
                context.journal.add_table(run_no, table, log, make_plan_for(context.pipeline, table))
            late = next(t for t in context.journal.tables(run_no) if t.oid == oid)
            context.say(f"{late.qualified}: came after the snapshot, is captured and read from here on")
        now = catalog.describe(context.source, [oid], context.trigger_names).get(oid)
        if now is None or now.version() != then.version():
            continue  # changed since: its copy is not what it has become yet
        indexed = _has_key(context, late)
        findings = judge(context.pipeline, now.structure(), context.target, late, key=indexed)
        if findings:
            context.block({late.id: findings})
        elif indexed:
            _take_in(context, late, now)
        else:  # a partition that was detached before its indexes were built
            _start_over(context, late, _with(context, late, now), now)
    context.journal.set_statuses_of_others({name: [KEYLESS] for name in keyless} | _left_behind(context, names))


def _left_behind(context: Context, names: Mapping[Name, int]) -> dict[Name, list[str]]:
    """Partitions that were detached and that nobody follows from there on: their copies are not what they are."""
    detached = context.journal.detached(context.row().run)
    gone = [name for name, oid in names.items() if oid in detached]
    chosen = matches(context.pipeline, gone, strict=False)
    others = set(gone) - {*chosen.rows, *chosen.schema_only}
    return {name: [LEFT_BEHIND] for name in others if catalog.oid_of(context.target, *name) is not None}


def _has_key(context: Context, late: TableRow) -> bool:
    oid = catalog.oid_of(context.target, late.plan.copy_schema, late.plan.copy_name)
    return oid is not None and catalog.describe(context.target, [oid])[oid].key is not None


def _take_in(context: Context, late: TableRow, now: Table) -> None:
    fresh = _with(context, late, now)

    def record(conn: Session) -> None:
        Journal(conn, context.name).replan(late, now, fresh.plan, log_table=fresh.log_table, state="indexed")

    _reload(context, fresh, record)
