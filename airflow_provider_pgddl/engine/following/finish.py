"""follow.finish: what acts on writers and readers beside the rows, where no swap comes to bring it.

Told by two dumps, the source's and the target's own: what came, what was altered, what was dropped (C30). All of it
arrives in one transaction, so that readers never have a grant without the policies that belong to it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import psycopg
from psycopg import sql

from airflow_provider_pgddl.engine.apply.dump_events import run_event
from airflow_provider_pgddl.engine.ddl import finish_statements
from airflow_provider_pgddl.engine.ddl.events import DdlEvent
from airflow_provider_pgddl.engine.ddl.finish_statements import ORDER, group_of, to_run, trigger_of, undone
from airflow_provider_pgddl.engine.errors import StageFailed, remedy_for
from airflow_provider_pgddl.engine.following.missing_definitions import MissingAndGone, difference, unfilled
from airflow_provider_pgddl.engine.following.source_dump import schema_digest, settled_dump, steps_across
from airflow_provider_pgddl.engine.following.target_dump import Arrived
from airflow_provider_pgddl.engine.job.context import Context
from airflow_provider_pgddl.engine.journal.dump_events import EventRow
from airflow_provider_pgddl.engine.model.names import Name
from airflow_provider_pgddl.engine.rights.alter_as_owner import alter
from airflow_provider_pgddl.engine.rows import foreign_keys_and_triggers
from airflow_provider_pgddl.engine.server import catalog
from airflow_provider_pgddl.engine.server.lock_timeout import limit_lock_wait
from airflow_provider_pgddl.engine.server.strong_locks import with_tries
from airflow_provider_pgddl.engine.sql import queries

LOOKS = 3  # what is made anew has lost what was said of it, which the next look sees
KEYS_NOT_VALID = 18  # the first version in which a partitioned table takes them

Blocked = dict[str, str]


def finish_all(context: Context, *, first: bool = True) -> list[Blocked]:
    """Brings what came, and takes away what went, since this was done last; fills materialized views. Returns what is
    in the way, like a stage's result; rows go on all the same. Without `first` nothing where it was never done.

    Once nothing is pending: a view is filled from what its source had."""
    if not (context.finishes and context.job.tables is None and not context.job.dry_run):
        return []
    run_no, journal = context.journal.run, context.journal
    known = journal.finishes.last(run_no)
    if known is None and not first:
        return []
    digest = _digest(context)
    if known is None or digest != known.digest:
        dumped = settled_dump(context)
        try:
            wanted = _bring(context, dumped)
        except StageFailed as error:
            context.say(f"not brought: {error}")
            return [{"table": error.table or "", "reason": "; ".join(filter(None, (error.what, error.todo)))}]
        with context.fenced("finish.before_noted_commit"):
            journal.finishes.set_events(run_no, digest, [event.to_json() for event in wanted])
    return _fill_views(context) if first else []


def _digest(context: Context) -> str:
    """Of the source's schema, and of the tables that have to wait."""
    digest = schema_digest(context, context.source)
    return " ".join([digest, *sorted(".".join(name) for name in _not_ready(context))])


def _not_ready(context: Context) -> set[Name]:
    """Tables whose rows or indexes are still to come, or that are stopped."""
    ready = {t.id for t in context.healthy(context.tables(), "indexed")}
    return {(t.schema, t.name) for t in context.tables() if t.id not in ready}


def _bring(context: Context, dumped: Sequence[DdlEvent]) -> list[DdlEvent]:
    """Returns what the source has of it; of tables that have to wait, what they had the last time, which stays."""
    waits = _not_ready(context)
    wanted = [e for e in _wanted(context, dumped) if not _is_about(e, waits)]
    known = [DdlEvent.from_json(event) for event in context.journal.finishes.events(context.journal.run)]
    before = [event for event in known if not _is_about(event, waits)]
    for _ in range(LOOKS):
        found = difference(wanted, before, Arrived(context).events)
        if not (found.missing or found.gone):
            break
        with_tries(context.pipeline.swap, "finishing", lambda found=found: _apply(context, found))  # type: ignore[misc]
        before = wanted
    return [*wanted, *(event for event in known if _is_about(event, waits))]


def _is_about(event: DdlEvent, tables: Collection[Name]) -> bool:
    return not {*tables}.isdisjoint({event.table, *event.references})


def _wanted(context: Context, dumped: Sequence[DdlEvent]) -> list[DdlEvent]:
    """What of a dump comes without a swap."""
    always = finish_statements.fires_always(dumped)
    old = catalog.server(context.target).major < KEYS_NOT_VALID
    partitioned = {n for n, t in catalog.describe_all(context.target).items() if t.kind == "p"} if old else set()
    found = []
    for step in steps_across(context, dumped):
        event = step.event
        if step.status != "pending" or group_of(event) is None:
            continue
        if trigger_of(event) in always:
            if event.tag == "CREATE TRIGGER":
                context.say(f"trigger {event.name} stays on the source: it is enabled ALWAYS or REPLICA")
        elif event.phase == "foreign_key" and event.table in partitioned:
            context.say(f"foreign key {event.name} of a partitioned table comes with a swap only, before Postgres 18")
        else:  # as the target is to have it
            found.append(replace(event, statement=step.statement))
    return found


def _apply(context: Context, found: MissingAndGone) -> None:
    target, trusted = context.target, context.pipeline.trusted_roles
    order = {group: n for n, group in enumerate(ORDER)}
    steps = [
        *((undone(e), e) for e in sorted(found.gone, key=lambda e: -order[group_of(e) or "told"])),
        *((to_run(e), e) for e in sorted(found.missing, key=lambda e: order[group_of(e) or "told"])),
    ]
    with context.fenced("finish.before_definitions_commit"):
        limit_lock_wait(target, context.pipeline.swap.lock_timeout)
        for statement, event in steps:
            try:
                run_event(target, EventRow(0, None, event.to_json(), statement), trusted)
            except psycopg.Error as error:
                remedy = remedy_for(error)
                if remedy is not None and remedy.retryable:
                    raise
                raise StageFailed(
                    f"cannot be brought: {error.diag.message_primary}: {statement}",
                    table=".".join(event.table) if event.table else None,
                    todo="make the statement possible on the target, or drop it on the source",
                ) from None
        _refuse_hiding(context)
        _refuse_firing(context)
    for statement, _ in steps:
        context.say(statement)


def _refuse_hiding(context: Context) -> None:
    """Policies would hide rows from the windows as well (C7)."""
    tables = [(t.plan.copy_schema, t.plan.copy_name) for t in context.tables()]
    args = [[s for s, _ in tables], [n for _, n in tables]]
    row = context.target.execute(queries("foreign_keys_and_triggers")["hidden"], args).fetchone()
    if row is not None:
        role = sql.Identifier(context.target.info.user).as_string()
        raise StageFailed(
            f"its row security would hide rows on the target from role {context.target.info.user}",
            table=".".join(row), todo=f"ALTER ROLE {role} BYPASSRLS;",
        )  # fmt: skip


def _refuse_firing(context: Context) -> None:
    """Somebody may have taken the right since setup has looked."""
    if not foreign_keys_and_triggers.may_silence(context.target):
        role = sql.Identifier(context.target.info.user).as_string()
        raise StageFailed(
            f"role {context.target.info.user} may not keep triggers and foreign keys from firing for replayed rows",
            todo=f"GRANT SET ON PARAMETER session_replication_role TO {role};",
        )


# --- materialized views ----------------------------------------------------------------------------------------------


def _fill_views(context: Context) -> list[Blocked]:
    """Those that are filled on the source and empty here, and those that were refreshed there since."""
    run_no, journal = context.journal.run, context.journal
    upto, names = journal.finishes.refreshed_since(run_no)
    there = {(s, n): filled for s, n, filled in context.source.execute(queries("swap")["materialized_views"])}
    here = {(s, n): filled for s, n, filled in context.target.execute(queries("swap")["materialized_views"])}
    statements = dict.fromkeys(unfilled(context))
    for name in (n for n in there if n in names and n in here):
        data = "" if there[name] else " WITH NO DATA"
        statements.setdefault(f"REFRESH MATERIALIZED VIEW {sql.Identifier(*name).as_string()}{data}")
    blocked = []
    for statement in statements:
        try:
            with_tries(context.pipeline.swap, "refreshing", lambda s=statement: _refresh(context, s))  # type: ignore[misc]
        except (StageFailed, psycopg.Error) as error:
            remedy = remedy_for(error) if isinstance(error, psycopg.Error) else None
            if remedy is not None and remedy.retryable:
                raise
            why = error.what if isinstance(error, StageFailed) else str(error.diag.message_primary)
            blocked.append({"table": statement.removeprefix("REFRESH MATERIALIZED VIEW "), "reason": why})
            context.say(f"not done: {statement}: {why}")
        else:
            context.say(statement)
    with context.fenced("finish.before_refreshed_commit"):
        journal.finishes.set_refreshed(run_no, upto)
    return blocked


def _refresh(context: Context, statement: str) -> None:
    with context.fenced("finish.before_refresh_commit"):
        limit_lock_wait(context.target, context.pipeline.swap.lock_timeout)
        alter(context.target, statement, context.pipeline.trusted_roles)
