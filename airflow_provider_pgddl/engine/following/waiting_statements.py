"""Statements that wait for their stage, taken anew from a dump once DDL has changed what they are about."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from psycopg import sql

from airflow_provider_pgddl.engine.ddl.dump_phases import Phase
from airflow_provider_pgddl.engine.ddl.events import DdlEvent
from airflow_provider_pgddl.engine.ddl.relocate import copy_schema
from airflow_provider_pgddl.engine.following.source_dump import DumpStep, in_place_steps, steps_across
from airflow_provider_pgddl.engine.job.context import Context
from airflow_provider_pgddl.engine.journal.dump_events import REPLACED, EventRow
from airflow_provider_pgddl.engine.journal.tables import TableRow
from airflow_provider_pgddl.engine.model.names import Name
from airflow_provider_pgddl.engine.schema.definitions import statement_tree
from airflow_provider_pgddl.engine.server.connect import Session
from airflow_provider_pgddl.engine.server.encodings import Verbatim, as_is
from airflow_provider_pgddl.engine.sql import queries


def replace_pending(
    context: Context, dumped: Sequence[DdlEvent], phases: Collection[Phase], *, but_not: Collection[Name] = ()
) -> int:
    """Puts the dump's statements of these phases in the place of those that wait, `but_not` those of some tables.

    Returns how many there are that were not waiting before. Nothing is touched where nothing has changed.
    """
    run_no = context.journal.run
    applied = [row for row in context.journal.dump_events.recorded(run_no) if row.status == "applied"]
    built = {row.event["statement"] for row in applied if row.event.get("index")}
    made = {_identity(DdlEvent.from_json(row.event)) for row in applied if row.event["phase"] == "index"}
    steps = [
        _unless_made(_unless_there(context, s, built), made)
        for s in _steps(context, dumped)
        if s.event.phase in phases and s.event.table not in but_not
    ]
    tables = context.journal.tables.of(run_no)  # also those of other jobs, to whose stage their own statements are left
    ids = {(t.schema, t.name): t.id for t in tables}
    ids |= {part: ids[root] for root, part in _parts(context, tables)}
    kept = {ids[name] for name in but_not if name in ids}

    def is_kept(row: EventRow) -> bool:
        """By its table, whose name may be another one's by now."""
        return row.table_id in kept if row.table_id is not None else DdlEvent.from_json(row.event).table in but_not

    waiting = [row for row in context.journal.dump_events.to_apply(run_no, list(phases)) if not is_kept(row)]
    before = Counter(row.statement for row in waiting)
    now = Counter(s.statement for s in steps if s.status == "pending")
    if before == now:
        return 0
    first = context.journal.dump_events.next_seq(run_no)
    with context.fenced("waiting.before_statements_commit"), context.target.cursor() as cursor:
        for row in waiting:
            context.journal.dump_events.set_status(row.id, "skipped", REPLACED)
        cursor.executemany(
            queries("journal")["insert_event"],
            [
                [context.name, run_no, n, s.event.phase, ids.get(s.event.table) if s.event.table else None,
                 as_is(s.event.to_json()), Verbatim(s.statement), s.status, s.note]
                for n, s in enumerate(steps, first)
            ],
        )  # fmt: skip
    return (now - before).total()


def _steps(context: Context, dumped: Sequence[DdlEvent]) -> list[DumpStep]:
    return list(in_place_steps(context, dumped) if context.in_place else steps_across(context, dumped))


def _unless_there(context: Context, step: DumpStep, built: Collection[str]) -> DumpStep:
    """An index that came with its table, by a captured event, or that was `built` by this statement, is not built
    again; but one that bears its name only has to go."""
    index = step.event.index
    if index is None or step.status != "pending":
        return step
    name = (copy_schema(index[0]), index[1]) if context.beside else index
    there = definition_on_server(context.target, "index", name)
    if there is None:
        return step
    same = step.event.statement in built or there == definition_on_server(context.source, "index", index)
    if not same and not _of_constraint(context.target, name):
        with context.fenced("waiting.before_drop_commit"):
            context.target.execute(sql.SQL("DROP INDEX {}").format(sql.Identifier(*name)))
        return step
    return replace(step, status="skipped", note="the copy has it already")


def _unless_made(step: DumpStep, made: Collection[Identity]) -> DumpStep:
    """A view or a function that pg_dump puts behind a key is made once: captured events have followed it since."""
    event = step.event
    if (
        step.status != "pending"
        or event.phase != "index"
        or event.tag not in _MADE_ONCE
        or _identity(event) not in made
    ):
        return step
    return replace(step, status="skipped", note="the target has it already")


_MADE_ONCE = {"CREATE VIEW", "CREATE MATERIALIZED VIEW", "CREATE FUNCTION", "CREATE PROCEDURE"}
Identity = tuple[str, str | None, str | None, tuple[str, ...] | None]


def _identity(event: DdlEvent) -> Identity:
    return event.tag, event.schema, event.name, event.arguments


def _of_constraint(conn: Session, index: Name) -> bool:
    row = conn.execute(queries("catalog")["is_of_constraint"], index).fetchone()
    return bool(row and row[0])


def definition_on_server(conn: Session, kind: str, name: Name) -> tuple[str, bytes] | None:
    """What it is, whatever its table is called: what it says beside its statement, and what that says (C31). None where
    there is none."""
    row = conn.execute(queries("catalog")[f"{kind}_definition"], name).fetchone()
    return (row[0], statement_tree(row[1])) if row else None


def parts_of(context: Context, tables: Iterable[TableRow]) -> set[Name]:
    """The partitions of these tables, at every level."""
    return {part for _, part in _parts(context, tables)}


def _parts(context: Context, tables: Iterable[TableRow]) -> list[tuple[Name, Name]]:
    """(root, part) of every partition: a part's statements belong to its root."""
    return [
        ((t.schema, t.name), (part[0], part[1]))
        for t in tables
        if t.plan.partitioned
        for part in context.source.execute(queries("swap")["partitions_of"], [t.oid]).fetchall()
    ]
