"""Each table's plan, capture and copy in line with what source and target have become, or the table stopped and why.

Whoever changed them: captured DDL that was applied, DDL that nobody captures, a person on the target, the policy of
the pipeline file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from airflow_provider_pgddl.engine.apply.dump_events import GROUP
from airflow_provider_pgddl.engine.capture import change_log
from airflow_provider_pgddl.engine.ddl.added_columns import added_columns
from airflow_provider_pgddl.engine.ddl.relocate import copy_schema
from airflow_provider_pgddl.engine.errors import PreflightRefused, StageFailed, TableChanged
from airflow_provider_pgddl.engine.failpoints import failpoint
from airflow_provider_pgddl.engine.following.attached_partitions import (
    attached,
    comes_later,
    forget_attached,
    leave_to_new_table,
    refuse_attached_parts,
    refuse_values_of_detached,
)
from airflow_provider_pgddl.engine.following.auto_migrate import migrate
from airflow_provider_pgddl.engine.following.copies_replaced import note_copy
from airflow_provider_pgddl.engine.following.direct_trigger import take_back
from airflow_provider_pgddl.engine.following.new_plan import (
    Look,
    read_again,
    read_part_again,
    record,
    record_first_plans,
    start_over,
)
from airflow_provider_pgddl.engine.following.plans import (
    first_plan,
    made_otherwise,
    names_read,
    plan_for,
    values_missing,
)
from airflow_provider_pgddl.engine.following.rows_read import NOT_TOLD_THERE, TELL_THERE, condition_there
from airflow_provider_pgddl.engine.following.schema_comparison import (
    COPY_LEFT,
    KEYLESS,
    LOST_KEY,
    Evaluated,
    evaluate,
    is_as_described,
    recorded,
    removed_columns,
)
from airflow_provider_pgddl.engine.following.table_capture import TableCapture, release_leaf, stop_capture_of
from airflow_provider_pgddl.engine.following.uneven_partitions import uneven_partitions
from airflow_provider_pgddl.engine.job.context import Context
from airflow_provider_pgddl.engine.journal.schema import Recorded
from airflow_provider_pgddl.engine.journal.tables import TableRow
from airflow_provider_pgddl.engine.model import tables
from airflow_provider_pgddl.engine.model.names import Name
from airflow_provider_pgddl.engine.model.plan import Plan
from airflow_provider_pgddl.engine.model.tables import Table
from airflow_provider_pgddl.engine.pipeline.names import table_name
from airflow_provider_pgddl.engine.rows import copy_only_columns
from airflow_provider_pgddl.engine.rows.adopted_rows import OTHER_KEY, has_other_key
from airflow_provider_pgddl.engine.rows.change_log_reading import lost_tracks
from airflow_provider_pgddl.engine.rows.copy_shape import copy_digests
from airflow_provider_pgddl.engine.rows.pending_keys import create_pending, forget_keys
from airflow_provider_pgddl.engine.schema.casts import judge_cast, narrows_integer
from airflow_provider_pgddl.engine.schema.change_effect import Change, change_of, was_rewritten
from airflow_provider_pgddl.engine.schema.drift import drift
from airflow_provider_pgddl.engine.schema.table_model import Schemas
from airflow_provider_pgddl.engine.schema.verdict import stopped
from airflow_provider_pgddl.engine.server import catalog

VALUES_OF_ANOTHER_KEY = (
    "has another key now, and {} rows of it are away, of which the target alone has values, by the former one: put"
    " these aside, and write them to the rows when they have come"
)
OTHER_PART = "the file takes another part of it (tables.where)"


def reconcile(context: Context, seen: Mapping[int, Table], schemas: Schemas, *, again: bool) -> None:
    """Brings what has changed in line; `seen` are the source's tables under the snapshot that the applied DDL reaches,
    and `schemas` what was read of them there.

    `again`: a copy that refused a row may take it now (the label that its enum lacked, a partition made by hand).
    """
    # What a run is not about is left to the run that holds its lease; windows stop it until then.
    limited = {table_name(t) for t in context.job.tables} if context.job.tables is not None else None
    stuck = context.journal.blocked_tables.by_ddl()
    tables = [
        t
        for t in context.journal.tables.of(context.journal.run)
        if t.state not in ("swapped", "cleaned")
        and t.qualified not in stuck
        and (limited is None or (t.schema, t.name) in limited)
    ]
    parts = attached(context, seen)
    refuse_attached_parts(context.journal.tables.of(context.journal.run), parts)
    staying = []
    for table in tables:
        if table.oid not in seen:
            _forget_dropped(context, table)
        elif table.oid not in parts:
            staying.append(table)
        elif comes_later(context, parts[table.oid]):
            leave_to_new_table(context, table, seen[table.oid], parts[table.oid])
        else:
            forget_attached(context, table, parts[table.oid])
    migrate(context, staying, seen, schemas)
    verdicts: dict[Name, Recorded] = {}
    for table, look in look_at(context, staying, seen, schemas):
        verdict = _reconcile(context, table, look, again=again)
        if verdict is not None:
            verdicts[table.schema, table.name] = verdict
    if verdicts:
        with context.fenced("settle.before_verdicts_commit"):
            context.journal.schema.record_many(verdicts)


def take_copies(context: Context, tables: Sequence[TableRow]) -> None:
    """Copies that have just been made: what is copied into each is planned, and rows may come. StageFailed where a copy
    is not there, or where changed rows could not be found again in it."""
    seen = catalog.describe(context.source, [t.oid for t in tables], context.trigger_names)
    made = [replace(t, state="created") for t in tables if t.oid in seen]
    looks = {table.id: look for table, look in look_at(context, made, seen)}
    for table in made:
        if table.id in looks:
            _refuse_unusable(table, looks[table.id].evaluated)
    for first in range(0, len(made), GROUP):
        group = made[first : first + GROUP]
        with context.fenced("snapshot.before_copies_commit"):
            create_pending(context.target, *(table for table in group if not table.keyless))
            # One that was changed just now keeps its plan, and one whose changes were not all logged since it was
            # captured the version of then: the look before its first chunk sees that.
            for state in ("created", "backfilled"):
                context.journal.tables.set_state(state, [t.id for t in group if _first_state(t) == state])
            found = [(t, look, _first_state(t)) for t in group if (look := looks.get(t.id)) and _was_logged(t, look)]
            record_first_plans(context.target, context.name, found)


def _was_logged(table: TableRow, look: Look) -> bool:
    """Whether the log has what was written to it since it was captured, by the key that it has now. What is recorded as
    its state otherwise would be all that later looks compare with (C9)."""
    if table.keyless:
        return True
    key, now = table.plan.key, look.now
    change = change_of(
        table.version, table.physical, key.columns, key.types, now, read=(), lost_track=look.lost_track, born_empty=()
    )
    return change.what != "capture"


def _first_state(table: TableRow) -> str:
    """Without a key there is nothing to be read before the swap, so its indexes come next."""
    return "backfilled" if table.keyless else "created"


def _refuse_unusable(table: TableRow, evaluated: Evaluated) -> None:
    source, copy, plan = evaluated.source, evaluated.target, table.plan
    if copy is None or source is None:
        raise StageFailed(
            f"the copy {plan.copy_schema}.{plan.copy_name} is not there", table=table.qualified,
            todo="`pgddl reset` the pipeline and start again",
        )  # fmt: skip
    for name in plan.key.columns:
        was, now = source.column(name), copy.column(name)
        if not was or not now or narrows_integer(was.type, now.type):
            continue
        if judge_cast(was.type, now.type, key=True).kind not in ("same", "safe"):
            raise StageFailed(
                f"key column {name} cannot go from {was.type.text} to {now.type.text}: "
                "changed rows could not be found again",
                table=table.qualified,
                todo="`pgddl reset` the pipeline and take that action out of rewrite.alter",
            )


def reconcile_built(context: Context, tables: Sequence[TableRow]) -> None:
    """Tables whose keys and indexes have just been built: judged with them, and followed by windows from here on where
    that finds no mismatch. One that was changed meanwhile, on either side, is looked at before its first window."""
    seen = catalog.describe(context.source, [t.oid for t in tables], context.trigger_names)
    built = [replace(t, state="indexed") for t in tables if t.oid in seen]
    looks = {table.id: look for table, look in look_at(context, built, seen)}
    for first in range(0, len(built), GROUP):
        group = built[first : first + GROUP]
        with context.fenced("schema_sync.before_indexed_commit"):
            context.journal.tables.set_state("indexed", [t.id for t in group])
            found = [(table, looks[table.id]) for table in group if table.id in looks]
            context.journal.schema.record_many({(t.schema, t.name): recorded(look.evaluated) for t, look in found})
            context.journal.tables.set_copy(
                *(
                    look.fresh  # a key makes columns NOT NULL: no change of anybody's
                    for table, look in found
                    if not look.verdict.mismatches
                    and not was_rewritten(table.copy_physical, look.fresh.copy_physical)
                    and not _concerns_rows(table, look.fresh)
                )
            )


def look_at(
    context: Context, tables: Sequence[TableRow], seen: Mapping[int, Table], schemas: Schemas | None = None
) -> list[tuple[TableRow, Look]]:
    """Every table of `seen` that is still what it was there; one that has changed since is left for the next look.
    Where `schemas` were read with `seen`, none has."""
    # Digests first: what is altered after that shows a window another one.
    copies = [_with_its_copy(context, t, seen[t.oid]) for t in tables if t.state != "captured"]
    digests = copy_digests(context.target, copies)
    physical = _copies_physical(context, copies)
    found = evaluate(context.pipeline, context.source, context.target, tables, (), seen=schemas)
    lost = lost_tracks(context.logs, tables)
    looks = []
    for table in tables:
        now, evaluated = seen[table.oid], found[table.schema, table.name]
        if evaluated.source is not None and is_as_described(evaluated.source, now):
            fresh = _fresh(context, table, now, evaluated, digests.get(table.id, ""), physical.get(table.id, {}))
            looks.append((table, Look(now, evaluated, fresh, table.id in lost)))
    return looks


def _with_its_copy(context: Context, table: TableRow, now: Table) -> TableRow:
    """With the name that its copy has where it follows the source: tables may have traded names."""
    schema = copy_schema(now.schema) if context.beside else now.schema
    return replace(table, plan=replace(table.plan, copy_schema=schema, copy_name=now.name))


def _copies_physical(context: Context, tables: Sequence[TableRow]) -> dict[int, dict[str, list[Any]]]:
    """Files and attribute versions of the copies, by table."""
    names = {(t.plan.copy_schema, t.plan.copy_name): t.id for t in tables}
    oids = {oid: names[name] for name, oid in catalog.oids_of(context.target, names).items()}
    return {oids[oid]: copy.physical() for oid, copy in catalog.describe(context.target, oids).items()}


def _fresh(
    context: Context, table: TableRow, now: Table, evaluated: Evaluated, digest: str, physical: dict[str, list[Any]]
) -> TableRow:
    verdict, copy = evaluated.verdict, evaluated.target
    if any(finding.kind == "expression" for finding in verdict.findings):
        return table  # as it was, which tells what the file's expressions were about
    if (now.key is None and not table.keyless) or verdict.mismatches:
        plan = table.plan  # nothing to plan with
    elif copy is None:
        plan = first_plan(context.pipeline, now, table.plan.columns.left_out)
    else:
        plan = plan_for(context.pipeline, now, verdict, copy, evaluated.skipped, digest)
    was = table.plan
    plan = replace(plan, keepers=was.keepers, adopted=was.adopted, extra=was.extra, operations=was.operations)
    if verdict.mismatches or copy is None or evaluated.source is None:
        plan = replace(plan, where_there=was.where_there if plan.where == was.where else "")
    elif plan.adopted in ("uncompared", "compared"):
        source_types, copy_types = ({c.name: c.type.text for c in t.columns} for t in (evaluated.source, copy))
        plan = replace(plan, where_there=condition_there(plan, source_types, copy_types))
    return replace(
        table, schema=now.schema, name=now.name, plan=plan, version=now.version(),
        fingerprint=tables.fingerprint(now.structure()), physical=now.physical(),
        log_table=change_log.log_name(context.name, now.oid), copy_physical=physical,
        # What the copy has lost as well, and gets again, is somebody's own column.
        removed_columns=tuple(c for c in removed_columns(table, evaluated.source) if copy is None or copy.column(c)),
    )  # fmt: skip


def _reconcile(context: Context, table: TableRow, look: Look, *, again: bool) -> Recorded | None:
    """What is to be recorded as the verdict; None where that is done, together with the plan."""
    if context.beside and (look.now.schema, look.now.name) != (table.schema, table.name):
        how = "a rewrite" if context.in_place else "tables.existing: replace"
        why = f"was renamed to {look.now.qualified}, which {how} cannot follow: rename it back"
        return recorded(look.evaluated, stopped(why))
    if look.now.key is None and not table.keyless:
        at_swap = context.pipeline.tables.keyless == "copy_at_swap"
        return recorded(look.evaluated, stopped(LOST_KEY if at_swap else KEYLESS, "data_loss_risk"))
    if look.verdict.mismatches:
        return recorded(look.evaluated)
    plans = look.fresh.plan, table.plan
    if table.state != "captured" and (uneven := uneven_partitions(context.pipeline, context.target, look.now, *plans)):
        return recorded(look.evaluated, *uneven)
    if has_other_key(table.plan, look.fresh.plan):
        return recorded(look.evaluated, stopped(OTHER_KEY, "data_loss_risk"))
    if not _tells_rows_there(context, look.fresh.plan):
        return recorded(look.evaluated, stopped(f"{NOT_TOLD_THERE}: {TELL_THERE}", "data_loss_risk"))
    if look.now.key is None:
        return _reconcile_keyless(context, table, look, again=again)
    if drift(table.version, table.physical, look.now) or look.lost_track:
        _follow_source(context, table, look)
        return None
    if _reads_another_part(table, look.fresh):
        _replan(context, table, look, Change("part", OTHER_PART))
        return None
    if (reason := _why_again(context, table, look)) is not None:
        _replan(context, table, look, Change("reload", reason))
        return None
    if _concerns_rows(table, look.fresh):
        _replan(context, table, look, Change("plan", "what is copied of it changed"))
        return None
    if (table.plan, table.copy_physical) != (look.fresh.plan, look.fresh.copy_physical):
        note_copy(context, table, look.fresh)
    return recorded(look.evaluated) if again or not _was_stopped(context, table) else None


def _tells_rows_there(context: Context, plan: Plan) -> bool:
    """Whether rows that nobody has decided about are safe from what the source does to others by their keys."""
    undecided = plan.adopted == "uncompared" and context.pipeline.tables.keep_extra is not False
    return not (undecided and plan.where and not plan.where_there)


def _reconcile_keyless(context: Context, table: TableRow, look: Look, *, again: bool) -> Recorded | None:
    """Its copy holds no row before the swap, so whatever became of either side asks for a new plan at most."""
    known = (table.plan, table.version, table.physical, table.copy_physical)
    if known != (look.fresh.plan, look.fresh.version, look.fresh.physical, look.fresh.copy_physical):
        with context.fenced("settle.before_keyless_commit", table):
            record(context.target, context.name, table, look, table.state)
        return None
    return recorded(look.evaluated) if again or not _was_stopped(context, table) else None


def _concerns_rows(table: TableRow, fresh: TableRow) -> bool:
    same = replace(table.plan, copy_attributes="") == replace(fresh.plan, copy_attributes="")
    return not same or table.removed_columns != fresh.removed_columns


def _was_stopped(context: Context, table: TableRow) -> bool:
    """Whether it stopped for something that comparing schemas does not show: it goes on when it is tried again."""
    row = context.journal.schema.mismatches().get((table.schema, table.name))
    return row is not None and all(f.kind == "stopped" for f in row.findings)


def _why_again(context: Context, table: TableRow, look: Look) -> str | None:
    """Why rows that the copy has cannot be what the source has, although nothing happened there."""
    if table.state == "captured" or not table.plan.columns.pairs:
        return None
    if table.plan.where != look.fresh.plan.where:
        return OTHER_PART
    if made_otherwise(table.plan, look.fresh.plan):
        return "the file says other values of it than it did (tables.transform)"
    gone = len(table.physical.keys() - look.fresh.physical.keys())
    if was_rewritten(table.copy_physical, look.fresh.copy_physical, gone):
        return "its copy was rewritten by ALTER TABLE, or replaced"
    known = table.version.get("attnums", {}).values()
    if values_missing(table.plan, look.fresh.plan, known, ()) is None:
        return None
    history = context.journal.ddl_history.statements_about(context.journal.run, table.oid)
    applied = added_columns([(one.captured, one.statements) for one in history], table.oid)
    return values_missing(table.plan, look.fresh.plan, known, applied)


def _reads_another_part(table: TableRow, fresh: TableRow) -> bool:
    """Whether nothing but tables.where says something else of it."""
    old, new = table.plan, fresh.plan
    as_before = replace(new, where=old.where, where_there=old.where_there)
    # An adopted table that was compared is its source's, but for the rows that are known to be its own.
    known = table.state == "indexed" or (table.state == "backfilled" and old.adopted == "compared")
    return (
        known
        and old.where != new.where
        and not (old.columns.kept or new.columns.kept)
        and _concerns_rows(table, replace(fresh, plan=as_before)) is False
        and not was_rewritten(table.copy_physical, fresh.copy_physical)
    )


def _forget_dropped(context: Context, table: TableRow) -> None:
    """Dropped on the source, and by an applied event on the target: there is nothing left to follow."""
    there = catalog.oid_of(context.target, table.plan.copy_schema, table.plan.copy_name) is not None
    # What stands there then was made by a later event, which is another table's.
    if there and not context.journal.ddl_history.was_dropped(context.journal.run, table.oid):
        context.block({table.id: [COPY_LEFT]})
        return
    stop_capture_of(context.source, context.pipeline, table.oid)
    with context.fenced("settle.before_dropped_commit", table):
        forget_keys(context.target, table)
        context.journal.tables.forget(table)
    context.say(f"{table.qualified}: was dropped on the source, and so was its copy")


def _follow_source(context: Context, table: TableRow, look: Look) -> None:
    """The source's table is another than its version says."""
    change = change_of(
        table.version, table.physical, table.plan.key.columns, table.plan.key.types, look.now,
        read=names_read(table.plan), lost_track=look.lost_track, born_empty=_born_empty(context, table, look.now),
    )  # fmt: skip
    if change.what == "capture":
        try:
            again = _look_again(context, table, _capture_again(context, table))
        except PreflightRefused as error:
            context.block({table.id: [f"{change.why}, and {error.table or 'it'} {error.what}"]})
            return
        except TableChanged:
            context.changed_again.add(table.id)
            return
        if again is None:
            return  # changed once more just now
        look = again
    elif change.what != "reload" and (reason := _why_again(context, table, look)) is not None:
        change = Change("reload", reason)
    gone = {int(oid) for oid in table.physical} - {leaf.oid for leaf in look.now.leaves}
    refuse_values_of_detached(context, table, gone)
    for leaf in gone:
        release_leaf(context, leaf)
    _replan(context, table, look, change)


def _look_again(context: Context, table: TableRow, now: Table) -> Look | None:
    looks = look_at(context, [table], {table.oid: now})
    if not looks or now.key is None or looks[0][1].verdict.mismatches:
        return None
    return looks[0][1]


def _born_empty(context: Context, table: TableRow, now: Table) -> set[int]:
    new = [leaf.oid for leaf in now.leaves if str(leaf.oid) not in table.physical]
    if not new:
        return set()
    captured = change_log.since_birth(context.source, context.name, new)
    return context.journal.ddl_history.born_as_partitions(context.journal.run, captured)


def _capture_again(context: Context, table: TableRow) -> Table:
    """A new log and new triggers. Until the plan that goes with them is recorded, the table differs from its version,
    so no window reads it, and a run that dies here does all of it again."""
    context.receive()  # what is of its old key belongs to its old log
    stop_capture_of(context.source, context.pipeline, table.oid)
    if change_log.root_of(context.source, context.name, table.oid) is not None:
        release_leaf(context, table.oid)  # it has been a partition of another meanwhile
    failpoint("settle.before_capture_again", context.source)
    now, _ = TableCapture(context, {table.oid: None}).of(table.oid)
    return now


def _replan(context: Context, was: TableRow, look: Look, change: Change) -> None:
    """The plan, in one transaction with what it asks for and with the verdict."""
    fresh = look.fresh
    rows = copy_only_columns.count_kept(context.target, was) if fresh.plan.columns.kept else 0
    if rows and copy_only_columns.has_other_key(was, fresh):
        context.block({was.id: [f"{VALUES_OF_ANOTHER_KEY.format(rows)}: {copy_only_columns.put_aside(was)}"]})
        return
    context.say(f"{fresh.qualified}: {change.why}{'' if change.what == 'plan' else '; its rows are read again'}")
    take_back(context, [was])
    failpoint("settle.before_plan")
    if was.state == "captured" or change.what == "plan":
        with context.fenced("settle.before_plan_commit", was):
            record(context.target, context.name, was, look, was.state)
    elif change.what == "part":
        read_part_again(context, was, look)
    elif was.state != "indexed":
        start_over(context, was, look)
    else:
        leaves = change.leaves if change.what == "leaves" else ()
        read_again(context, was, look, leaves)
