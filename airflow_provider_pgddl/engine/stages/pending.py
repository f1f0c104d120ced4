"""Statements that wait for their stage, taken anew from a dump once DDL has changed what they are about."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from psycopg.types.json import Jsonb

from airflow_provider_pgddl.engine import catalog
from airflow_provider_pgddl.engine.ddl.events import DdlEvent
from airflow_provider_pgddl.engine.ddl.phases import Phase
from airflow_provider_pgddl.engine.ddl.relocate import copy_schema
from airflow_provider_pgddl.engine.journal import REPLACED, TableRow
from airflow_provider_pgddl.engine.sql import queries
from airflow_provider_pgddl.engine.stages.context import Context
from airflow_provider_pgddl.engine.stages.snapshot import Step, in_place_steps, steps_across

Name = tuple[str, str]


def replace_pending(
    context: Context, dumped: Sequence[DdlEvent], phases: Collection[Phase], *, but_not: Collection[Name] = ()
) -> int:
    """Puts the dump's statements of these phases in the place of those that wait, `but_not` those of some tables.

    Returns how many there are that were not waiting before. Nothing is touched where nothing has changed.
    """
    run_no = context.journal.run
    steps = [
        _unless_there(context, s)
        for s in _steps(context, dumped)
        if s.event.phase in phases and s.event.table not in but_not
    ]
    ids = {(t.schema, t.name): t.id for t in context.tables()}
    ids |= {part: ids[root] for root, part in _parts(context, context.tables())}
    kept = {ids[name] for name in but_not if name in ids}
    waiting = [
        (event_id, statement)
        for event_id, table_id, event, statement in context.journal.waiting_statements(run_no, list(phases))
        # By its table, whose name may be another one's by now.
        if (table_id not in kept if table_id is not None else DdlEvent.from_json(event).table not in but_not)
    ]
    before = Counter(statement for _, statement in waiting)
    now = Counter(s.statement for s in steps if s.status == "pending")
    if before == now:
        return 0
    first = context.journal.next_seq(run_no)
    with context.fenced(), context.target.cursor() as cursor:
        for event_id, _ in waiting:
            context.journal.event_status(event_id, "skipped", REPLACED)
        cursor.executemany(
            queries("journal")["insert_event"],
            [
                [context.name, run_no, n, s.event.phase, ids.get(s.event.table) if s.event.table else None,
                 Jsonb(s.event.to_json()), s.statement, s.status, s.note]
                for n, s in enumerate(steps, first)
            ],
        )  # fmt: skip
    return (now - before).total()


def _steps(context: Context, dumped: Sequence[DdlEvent]) -> list[Step]:
    return list(in_place_steps(context, dumped) if context.in_place else steps_across(context, dumped))


def _unless_there(context: Context, step: Step) -> Step:
    """An index that came with its table, by a captured event, is not built again."""
    index = step.event.index
    if index is None or step.status != "pending":
        return step
    name = (copy_schema(index[0]), index[1]) if context.in_place else index
    there = catalog.oid_of(context.target, *name) is not None
    return replace(step, status="skipped", note="the copy has it already") if there else step


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
