"""What keeps a swap from happening: asked before it begins, and again in each of its tries.
Whether a comparison still holds, `following.row_comparison` says."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_provider_pgddl.engine.capture.fence import FOLLOW, closed_by_others, old_since
from airflow_provider_pgddl.engine.errors import PreflightRefused, UsageError
from airflow_provider_pgddl.engine.following.copies_replaced import any_replaced, made_unlogged, set_logged
from airflow_provider_pgddl.engine.following.ddl import follow_ddl
from airflow_provider_pgddl.engine.following.row_comparison import compare_rows, may_be_empty, unverified
from airflow_provider_pgddl.engine.job.context import Context
from airflow_provider_pgddl.engine.journal.tables import TableRow
from airflow_provider_pgddl.engine.model.names import Name
from airflow_provider_pgddl.engine.pipeline.selection import matches
from airflow_provider_pgddl.engine.preflight import what_a_cut_over_leaves
from airflow_provider_pgddl.engine.preflight.findings import refuse
from airflow_provider_pgddl.engine.server import catalog


class NotYet(Exception):
    """Why this try must not go on: what to do first is in the loop around it."""


def refuse_unready(context: Context) -> None:
    """All tables together or none: what is blocked, unfinished or not verified keeps the swap from happening. Tables
    that were changed or read again since they were compared are compared once more."""
    refuse_blocked(context)
    tables = context.tables()
    refuse_left(context, tables)
    late = [t for t in tables if t.state != "indexed"]
    if late or not tables:
        raise UsageError(
            f"{late[0].qualified} is not replayed yet" if late else "there is no table", todo="run stage replay first"
        )
    if any_replaced(context.target, tables):
        follow_ddl(context, look=True)
        refuse_blocked(context)
    refuse_unlogged(context, tables)
    needed = context.row().verify_needed
    if needed:
        raise PreflightRefused(needed, todo="run stage verify first")
    changed = not_compared(context, tables)
    if not context.journal.stage_runs.done(context.journal.run, "verify"):
        changed = may_be_empty(context, changed)  # of which no earlier comparison says enough, whoever made it
    if changed:
        context.say(f"{', '.join(t.qualified for t in changed)}: changed since the verification, compared again")
        compare_rows(context, changed)
        refuse_blocked(context)
    for table in not_compared(context, context.tables()):
        reason = unverified(context, [table])[table.qualified]
        todo = "run stage verify first, or set verify.before_swap: false"
        raise PreflightRefused(reason, table=table.qualified, todo=todo)
    refuse_missing(context, tables)


def refuse_left(context: Context, tables: Sequence[TableRow]) -> None:
    """A cut-over from a server that another one has left would be to rows that are old, or get old: what its way back
    has not brought yet is nowhere here."""
    for name, by in closed_by_others(context.source, context.name, [(t.schema, t.name) for t in tables]):
        raise PreflightRefused(old_since(by), table=".".join(name), todo=FOLLOW.format(by=by))


def refuse_unlogged(context: Context, tables: Sequence[TableRow]) -> None:
    """A copy that somebody has made UNLOGGED, to fill it faster, would go live so, and the next crash would take it."""
    for table, file in made_unlogged(context, tables):
        raise PreflightRefused(
            f"its copy {file.schema}.{file.name} is UNLOGGED, and it is not: a crash of the server would empty it",
            table=table.qualified,
            todo="make it as durable as the source's, which takes about as long as to copy it; then run stage swap",
            sql=set_logged(context.target, file),
        )


def refuse_children_left(context: Context, tables: Sequence[TableRow]) -> None:
    """One that the file names came just now, and the next try takes it along, or says what keeps it."""
    left = what_a_cut_over_leaves(context.pipeline, context.source, [(t.schema, t.name) for t in tables])
    if any(finding.severity == "error" for finding in left) and _missing(context, tables):
        raise NotYet("a table came just now")
    refuse(left, under_way=True)


def refuse_missing(context: Context, tables: Sequence[TableRow]) -> None:
    """All tables of the file together or none: new ones may have come, or one was reset."""
    if new := _missing(context, tables):
        raise PreflightRefused(
            "is named by the file, was not there at setup or was reset since, and would be left behind",
            table=".".join(new[0]),
            todo="run again from setup, which takes it along",
        )


def _missing(context: Context, tables: Sequence[TableRow]) -> list[Name]:
    mine = {(t.schema, t.name) for t in tables}
    selection = matches(context.pipeline, catalog.table_names(context.source), strict=False)
    return [name for name in selection.rows if name not in mine]


def refuse_blocked(context: Context) -> None:
    for name, findings in context.journal.blocked_tables.mismatches().items():
        raise PreflightRefused(
            f"is blocked: {'; '.join(findings)}",
            table=name,
            todo="resolve it (the schema gate says how), or `pgddl reset --tables` it and run again from setup",
        )


def not_compared(context: Context, tables: Sequence[TableRow]) -> list[TableRow]:
    """Those that the swap must not take, as they are not known to be equal; none where nobody asks for that."""
    if not context.pipeline.verify.before_swap:
        return []
    missing = unverified(context, tables)
    return [t for t in tables if t.qualified in missing]
