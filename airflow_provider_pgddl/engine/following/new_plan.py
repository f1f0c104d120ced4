"""A table's new plan, in one transaction with what it asks for: its rows copied anew, or read again, or those of them
that the change concerns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from psycopg import errors as pg

from airflow_provider_pgddl.engine.following.attached_partitions import refuse_values_away
from airflow_provider_pgddl.engine.following.schema_comparison import Evaluated, recorded
from airflow_provider_pgddl.engine.job.context import Context, insistently, patiently
from airflow_provider_pgddl.engine.journal.pipelines import Journal
from airflow_provider_pgddl.engine.journal.tables import TableRow
from airflow_provider_pgddl.engine.model.tables import Table
from airflow_provider_pgddl.engine.rows import copy_only_columns
from airflow_provider_pgddl.engine.rows.adopted_rows import drop_extra, retype_extra, uncompared
from airflow_provider_pgddl.engine.rows.ingest_for_ddl import empty_again
from airflow_provider_pgddl.engine.rows.pending_keys import create_pending, drop_pending, forget_keys
from airflow_provider_pgddl.engine.rows.reload import ChangedAgain, Tied, reload, reload_part
from airflow_provider_pgddl.engine.schema.verdict import Verdict
from airflow_provider_pgddl.engine.server.connect import Session
from airflow_provider_pgddl.engine.server.giving_way import Effort


@dataclass(frozen=True, slots=True)
class Look:
    """One table now: on the source, against its copy, and what is to be recorded of it if it is to go on so."""

    now: Table
    evaluated: Evaluated
    fresh: TableRow
    lost_track: bool

    @property
    def verdict(self) -> Verdict:
        return self.evaluated.verdict


def record(conn: Session, pipeline: str, was: TableRow, look: Look, state: str) -> None:
    journal = Journal(conn, pipeline)
    copy_only_columns.rekey(conn, was, look.fresh)
    retype_extra(conn, was.plan, look.fresh.plan)
    journal.tables.replan(replace(look.fresh, state=state))
    copy_only_columns.fit(conn, look.fresh)
    journal.tables.rename_chunks(look.fresh, look.now.leaves)
    names = (was.schema, was.name), (look.fresh.schema, look.fresh.name)
    if names[0] != names[1]:
        journal.schema.forget(names[0])
    journal.schema.record_many({names[1]: recorded(look.evaluated)})


def record_first_plans(conn: Session, pipeline: str, found: Sequence[tuple[TableRow, Look, str]]) -> None:
    """The same of copies that have just been made, of which there are no rows yet and no values: each table as it was,
    the look at it, and its state from here on."""
    journal = Journal(conn, pipeline)
    for was, look, _ in found:
        retype_extra(conn, was.plan, look.fresh.plan)
        if look.fresh.plan.columns.kept:
            copy_only_columns.fit(conn, look.fresh)
    journal.tables.plan(replace(look.fresh, state=state) for _, look, state in found)
    names = {(was.schema, was.name): (look.fresh.schema, look.fresh.name) for was, look, _ in found}
    journal.schema.forget(*(was for was, now in names.items() if was != now))
    journal.schema.record_many({names[was.schema, was.name]: recorded(look.evaluated) for was, look, _ in found})


def note_made(context: Context, was: TableRow, look: Look) -> None:
    """A copy that came late, complete, for a table without a key."""
    with context.fenced("settle.before_late_copy_commit", was):
        record(context.target, context.name, was, look, "indexed")


def start_over(context: Context, was: TableRow, look: Look) -> None:
    """Without indexes it is read by blocks, as from the start."""

    def attempt() -> None:
        with context.fenced("settle.before_emptied_commit", was):
            copy_only_columns.rekey(context.target, was, look.fresh)
            begun = look
            if was.plan.adopted:  # it may have rows of others: what has to be read again, comparing tells
                drop_extra(context.target, was.id)
                other_part = was.plan.where != look.fresh.plan.where
                begun = replace(look, fresh=uncompared(look.fresh, other_part=other_part))
            else:
                empty_again(context.target, look.fresh)
            context.journal.tables.unplan(was.id)
            drop_pending(context.target, look.fresh)
            create_pending(context.target, look.fresh)
            record(context.target, context.name, was, begun, "created")

    patiently(context, attempt)


def read_again(
    context: Context, was: TableRow, look: Look, leaves: Sequence[int] = (), within: Sequence[TableRow] = ()
) -> None:
    """All its rows become pending, or those of these leaves. What has come to be `within` it is no table of its
    own any more."""

    def note(conn: Session) -> None:
        for table in within:
            refuse_values_away(conn, table, look.fresh.qualified)
            forget_keys(conn, table)
            Journal(conn, context.name).tables.forget(table)
        record(conn, context.name, was, look, "indexed")

    _reread(context, was, look, lambda effort: reload(context.replica, look.fresh, note, leaves, effort))


def read_part_again(context: Context, was: TableRow, look: Look) -> None:
    """The rows that belong on the target by one of the two conditions alone: all of them where the old one cannot be
    told of a row, which may be why there is a new one."""

    def note(conn: Session) -> None:
        record(conn, context.name, was, look, was.state)

    def attempt(effort: Effort) -> int:
        return reload_part(context.replica, look.fresh, was.plan, note, effort)

    try:
        _reread(context, was, look, attempt)
    except (pg.DataError, pg.ProgrammingError) as error:
        context.say(
            f"{look.fresh.qualified}: {error.__class__.__name__} by the former condition: all of it is read again"
        )
        read_again(context, was, look) if was.state == "indexed" else start_over(context, was, look)


def _reread(context: Context, was: TableRow, look: Look, attempt: Callable[[Effort], int]) -> None:
    try:
        rows = insistently(context, attempt)
    except ChangedAgain as again:
        context.changed_again.add(was.id)
        context.say(f"{look.fresh.qualified}: changed once more ({again}), which comes first")
    except Tied as why:
        context.block({was.id: [str(why)]})
    else:
        context.say(f"{look.fresh.qualified}: {rows} rows are pending")
