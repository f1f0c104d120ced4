"""The swap across clusters: fence if asked, drain, sequences, foreign keys and all else that writers meet, done."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, LiteralString

import psycopg
from psycopg import errors as pg

from airflow_provider_pgddl.engine.apply.dump_events import apply_together
from airflow_provider_pgddl.engine.ddl.constraint_nodes import (
    constraint_name,
    is_not_valid,
    names_on_partition,
    not_valid,
    on_partition,
    validated,
)
from airflow_provider_pgddl.engine.ddl.partitioned_copy import constraint_of_comment
from airflow_provider_pgddl.engine.errors import Fenced, GaveWay, PgddlError
from airflow_provider_pgddl.engine.failpoints import failpoint
from airflow_provider_pgddl.engine.following.catch_up import catch_up
from airflow_provider_pgddl.engine.following.copies_replaced import any_replaced
from airflow_provider_pgddl.engine.following.missing_definitions import to_validate, unfilled
from airflow_provider_pgddl.engine.following.row_comparison import sides_of
from airflow_provider_pgddl.engine.following.sequences import set_exactly
from airflow_provider_pgddl.engine.job.context import Context
from airflow_provider_pgddl.engine.job.slot_receiver import one_stream
from airflow_provider_pgddl.engine.journal.dump_events import EventRow
from airflow_provider_pgddl.engine.journal.pipelines import Journal
from airflow_provider_pgddl.engine.journal.tables import TableRow
from airflow_provider_pgddl.engine.model.names import Name
from airflow_provider_pgddl.engine.preflight import what_a_fence_locks_out
from airflow_provider_pgddl.engine.preflight.findings import refuse
from airflow_provider_pgddl.engine.rows.keyless_tables import analyze, copy_all, copy_over
from airflow_provider_pgddl.engine.rows.wal_flush import flush, insert_lsn
from airflow_provider_pgddl.engine.rows.windows import Window, stopped_by_drift
from airflow_provider_pgddl.engine.server import catalog
from airflow_provider_pgddl.engine.server.connect import Session
from airflow_provider_pgddl.engine.server.lock_timeout import limit_lock_wait
from airflow_provider_pgddl.engine.server.strong_locks import lock_all, with_tries, writers_wait
from airflow_provider_pgddl.engine.sql import queries
from airflow_provider_pgddl.engine.swapping import way_back_across
from airflow_provider_pgddl.engine.swapping.dry_run import rehearsed
from airflow_provider_pgddl.engine.swapping.fence import lower_own_fences, raise_fences, to_be_fenced
from airflow_provider_pgddl.engine.swapping.in_place import validate_statement
from airflow_provider_pgddl.engine.swapping.readiness import (
    NotYet,
    not_compared,
    refuse_blocked,
    refuse_children_left,
    refuse_left,
    refuse_missing,
    refuse_unready,
)
from airflow_provider_pgddl.engine.swapping.replacing import Replacing
from airflow_provider_pgddl.engine.swapping.schema_guard import ChangedJustNow, SchemaGuard
from airflow_provider_pgddl.engine.swapping.way_back_across import WayBackAcross

_Q = queries("swap")
ConstraintName = tuple[Name, str]  # a table, and the name of a constraint on it
COMMIT_WAIT = 10.0  # seconds for a commit whose connection was lost to come to its end


def run(context: Context) -> dict[str, Any]:
    """Returns the figures: how long the fence stood until the target was ready, keys drained behind it, sequences set.

    All that writers will meet on the target comes with the note of the cut-over in one transaction: until it commits,
    the copies are as bare as windows need them, and applications belong on the source.
    """
    guard = SchemaGuard(context)
    replacing = Replacing(context) if context.pipeline.replaces else None
    with way_back_across.prepared(context) as way_back:
        figures = with_tries(
            context.pipeline.swap, "cut-over", partial(_attempt, context, guard, way_back, replacing),
            again=(NotYet, ChangedJustNow),
        )  # fmt: skip
    context.say(f"cut over: applications belong on the target now ({figures['fenced_ms']} ms after the fence went up)")
    return figures


def _attempt(
    context: Context, guard: SchemaGuard, way_back: WayBackAcross | None, replacing: Replacing | None
) -> dict[str, Any]:
    with one_stream(context), guard.trying():
        guard.refuse_changed()
        failpoint("cut_over.after_schema_look")
        catch_up(context)
        refuse_unready(context)
        tables = context.tables()
        refuse_children_left(context, tables)
        if way_back is not None:
            way_back.prepare(tables)
        if replacing is not None:
            replacing.prepare(tables)
        started = time.monotonic()
        failpoint("cut_over.before_fence", context.source)
        with _fence(context, tables) as held:
            failpoint("cut_over.behind_fence", context.source)
            refuse_left(context, tables)  # by now: of two cut-overs at once, one at least meets the other's fence
            windows = _drain(context)
            now = context.tables()  # with the files of what the drain has emptied
            if {t.id for t in now} != {t.id for t in tables}:
                raise NotYet("a table came or went just now")
            refuse_blocked(context)
            if not_compared(context, now):
                raise NotYet("a table changed just now")
            if any_replaced(context.target, now):
                raise NotYet("a copy was emptied or written anew just now")
            if context.row().verify_needed:
                raise NotYet("a window was lost just now")
            refuse_missing(context, tables)
            if not guard.unchanged(context.source):
                raise NotYet("the source's schema changed just now")
            if way_back is not None and not way_back.is_ready():
                raise NotYet("the target's schema changed just now")
            failpoint("cut_over.before_target", context.target)
            figures = _make_ready(context, tables, held, way_back, replacing)
            failpoint("cut_over.after_commit", context.target)
            figures["fenced_ms"] = round((time.monotonic() - started) * 1000)
        return figures | {"drained": sum(w.keys for w in windows)}


def _drain(context: Context) -> list[Window]:
    """Where there is a fence until nothing is left. The fence falls for another try where somebody keeps windows from
    their tables: one who wants a table for himself, and whom the lock of the fence keeps waiting, never goes away."""
    if context.pipeline.swap.fence == "none" or context.job.dry_run:
        return catch_up(context)
    try:
        with context.writers_fenced():
            return catch_up(context, until_quiet=True)
    except GaveWay as error:
        raise NotYet(error.what) from error


def _make_ready(
    context: Context,
    tables: Sequence[TableRow],
    held: Session | None,
    way_back: WayBackAcross | None,
    replacing: Replacing | None,
) -> dict[str, Any]:
    """`held` keeps writers from the tables without a key."""
    run_no = context.journal.run
    keyless = [t for t in tables if t.keyless]
    waited = writers_wait() if replacing is not None else nullcontext()
    with waited, rehearsed(context, context.target, context.fenced("cut_over.before_commit")):
        way_back_across.lower_fence_there(context)
        if replacing is not None:
            replacing.lock(tables)
            replacing.exchange(tables)
        figures = _copy_keyless(context, held, keyless) if held and keyless else {}
        sequences = set_exactly(context, forward_only=replacing.standing_sequences() if replacing else ())
        keys, later = _add_foreign_keys(context)
        if replacing is not None:
            replacing.carry_over(tables)
        events = context.journal.dump_events.to_apply(run_no, ["finish"])
        # A view that takes long to fill must not keep applications waiting.
        trusted = context.pipeline.trusted_roles
        after = [e for e in events if e.event["tag"] == "REFRESH MATERIALIZED VIEW" or _is_about(e, later)]
        apply_together(context.target, context.name, [e for e in events if e not in after], trusted)
        for statement in [*(e.statement for e in after), *unfilled(context)]:
            context.journal.follow_ups.add(run_no, statement)
        for event in after:
            context.journal.dump_events.set_status(event.id, "applied", "after the cut-over")
        if replacing is not None:
            replacing.give_rights(tables)
            replacing.finish(tables)
        context.journal.tables.set_state("swapped", [t.id for t in tables])
        context.journal.set_cut_over()
        if way_back is not None:
            way_back.note_birth()
    return {"sequences": sequences, "foreign_keys": keys, **figures}


def _is_about(event: EventRow, keys: set[ConstraintName]) -> bool:
    """Whether it is a comment on one of these foreign keys."""
    return bool(keys and event.event.get("table") and (_table(event), constraint_of_comment(event.statement)) in keys)


def _copy_keyless(context: Context, held: Session, tables: Sequence[TableRow]) -> dict[str, Any]:
    """In the transaction that notes the cut-over: it is undone with it, and a retry copies again."""
    _, stopped = stopped_by_drift(held, context.journal, tables)
    if stopped:
        raise NotYet("a table without a key changed just now")
    sides = sides_of(context.source, context.target, tables, in_place=False)
    copy = copy_over if context.row().born_of is not None else copy_all
    figures = copy(held, context.target, [(t, sides[t.id]) for t in tables])
    lsn = insert_lsn(held)
    with context.brief_session("source", "flush") as session:
        flush(session, lsn)
    for table in tables:
        context.journal.follow_ups.add(context.journal.run, analyze(context.target, table.plan.copy))
    return figures


@contextmanager
def _fence(context: Context, tables: Sequence[TableRow]) -> Iterator[Session | None]:
    """`read_only`: writes fail from here on, and go on failing once we have cut over. `lock`: writes wait until the
    target is ready; what then still arrives on the source is counted. `none`: writes go on, and are counted.

    Tables without a key are closed for good by `lock` as well, as no log would tell what arrives there; their writers
    wait while they are copied, which the session that comes of this sees to. Where the cut-over fails, applications
    get the source back. A rehearsal does without."""
    kind = context.pipeline.swap.fence
    keyless = [t for t in tables if t.keyless]
    refuse(what_a_fence_locks_out(context.pipeline, context.source, context.target), under_way=True)
    with ExitStack() as stack:
        if context.job.dry_run:
            yield None
            return
        if closed := list(tables) if kind == "read_only" else keyless:
            stack.enter_context(_closed(context, closed))
        if kind == "lock":
            held = stack.enter_context(_held(context, tables, "EXCLUSIVE"))
            stack.enter_context(context.tables_fenced())
            yield held
        elif keyless:
            yield stack.enter_context(_held(context, keyless, "SHARE ROW EXCLUSIVE"))
        else:
            yield None


@contextmanager
def _closed(context: Context, tables: Sequence[TableRow]) -> Iterator[None]:
    raise_fences(context, tables)
    try:
        yield
    except BaseException:
        if _certainly_not_cut_over(context):
            _give_back(context, tables)
        raise


def _give_back(context: Context, tables: Sequence[TableRow]) -> None:
    try:
        with context.brief_session("source", "fence") as source, context.brief_session("target", "fence") as target:
            lower_own_fences(context, source, target, tables)
    except Fenced as error:  # what this run has failed with is for a person to see, and not that
        context.say(f"the cut-over did not happen, and the fence is left to the newer run: {error.what}")
    else:
        context.say("the cut-over did not happen: the fence is down again, applications go on with the source")


@contextmanager
def _held(context: Context, tables: Sequence[TableRow], mode: LiteralString) -> Iterator[Session]:
    with context.brief_session("source", "fence") as session:
        with_tries(context.pipeline.swap, "fence", lambda: _hold(context, session, tables, mode))
        try:
            with writers_wait():
                yield session
        finally:
            session.rollback()


def _certainly_not_cut_over(context: Context) -> bool:
    """Asked anew: a commit whose answer was lost may have happened, or may still be under way; then it holds the row
    that is waited for here. While nobody can tell, the fence stays up."""
    failpoint("cut_over.before_look")
    try:
        with context.brief_session("target", "look") as look, look.transaction():
            limit_lock_wait(look, COMMIT_WAIT)
            return not Journal(look, context.name).has_cut_over_for_certain()
    except (PgddlError, psycopg.Error):
        context.say("whether the cut-over happened is not known: the fence stays up, run stage swap again")
        return False


def _hold(context: Context, session: Session, tables: Sequence[TableRow], mode: LiteralString) -> None:
    """EXCLUSIVE lets readers, and our own windows, go on. SHARE ROW EXCLUSIVE, for tables that no window reads, keeps
    indexes out as well."""
    session.execute("BEGIN")
    try:
        lock_all(session, to_be_fenced(context.source, tables), mode, context.pipeline.swap.lock_timeout)
    except pg.Error:
        session.rollback()
        raise


def _add_foreign_keys(context: Context) -> tuple[int, set[ConstraintName]]:
    """NOT VALID, which takes no time; they are validated once applications run. Returns how many, and those that come
    only then."""
    run_no = context.journal.run
    events = context.journal.dump_events.to_apply(run_no, ["foreign_key"])
    before_18 = catalog.server(context.target).major < 18
    partitioned = _partitioned(context.target, events) if before_18 else set()
    changed, of_partitions, later = list[EventRow](), list[EventRow](), set[ConstraintName]()
    taken = {(_table(event), constraint_name(event.statement)) for event in events}
    for event in events:
        table, name = _table(event), constraint_name(event.statement)
        parts = _key_of_partitions(context, event, taken) if table in partitioned else []
        if parts:
            of_partitions += [replace(event, statement=statement) for _, _, statement in parts]
            for partition, key, _ in parts:
                context.journal.follow_ups.add(run_no, validate_statement(context.target, *partition, key))
            context.journal.follow_ups.add(run_no, validated(event.statement))
            later.add((table, name))
        elif table in partitioned:  # without a partition there is no row to be checked
            changed.append(replace(event, statement=validated(event.statement)))
        else:
            if not is_not_valid(event.statement):
                context.journal.follow_ups.add(run_no, validate_statement(context.target, *table, name))
            changed.append(replace(event, statement=not_valid(event.statement)))
    apply_together(context.target, context.name, [*changed, *of_partitions], context.pipeline.trusted_roles)
    for to_be_validated in to_validate(context):
        context.journal.follow_ups.add(run_no, validate_statement(context.target, *to_be_validated))
    return len(events), later


def _key_of_partitions(context: Context, event: EventRow, taken: set[ConstraintName]) -> list[tuple[Name, str, str]]:
    """Before 18 a partitioned table takes no foreign key that is NOT VALID (C23): its partitions do, and once theirs
    are validated the table adopts them without a look at a row. (partition, name there, statement) of each."""
    found = list[tuple[Name, str, str]]()
    for schema, name, constraints in context.target.execute(_Q["key_partitions"], event.event["table"]).fetchall():
        partition = (schema, name)
        own = {*constraints, *(of_key for table, of_key in taken if table == partition)}
        key = next(free for free in names_on_partition(event.statement, name) if free not in own)
        taken.add((partition, key))
        found.append((partition, key, on_partition(event.statement, partition, key)))
    return found


def _partitioned(target: Session, events: Sequence[EventRow]) -> set[Name]:
    tables = {name: t.kind for name, t in catalog.describe_all(target).items()}
    return {table for table in map(_table, events) if tables.get(table) == "p"}


def _table(event: EventRow) -> Name:
    schema, name = event.event["table"]
    return schema, name
