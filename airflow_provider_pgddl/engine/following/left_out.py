"""What the pipeline leaves out: tables, and what cannot be on the target without these."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_provider_pgddl.engine.ddl.events import DdlEvent, without
from airflow_provider_pgddl.engine.ddl.left_out import LeftOut
from airflow_provider_pgddl.engine.job.context import Context
from airflow_provider_pgddl.engine.journal.ddl import DdlJournal, LeftOutJson
from airflow_provider_pgddl.engine.model.names import Name
from airflow_provider_pgddl.engine.pipeline.selection import matches
from airflow_provider_pgddl.engine.server import catalog
from airflow_provider_pgddl.engine.server.connect import Session
from airflow_provider_pgddl.engine.sql import queries


def tables_left_out(context: Context, source: Session) -> list[Name]:
    """Tables that the pipeline neither copies nor takes the structure of, with their partitions."""
    names = catalog.table_names(source)
    selection = matches(context.pipeline, names, strict=False)
    kept = {*((t.schema, t.name) for t in context.tables()), *selection.schema_only}
    if context.pipeline.capture.ddl != "off":
        kept.update(selection.rows)  # what came after setup is taken in later, and needs its copy
    out = {name for name in names if name not in kept}
    return [*out, *(part for part, whole in catalog.partitions(source).items() if whole in out)]


def without_left_out(context: Context, events: Sequence[DdlEvent]) -> list[DdlEvent]:
    """The events of a dump that the target is to have: nothing of a table of the pipeline is taken away."""
    if context.in_place or not context.moves_rows:
        return [*events]
    mine = {(t.schema, t.name) for t in context.tables()}
    out = {id(event) for event in without(events, tables_left_out(context, context.source))[1]}
    return [event for event in events if id(event) not in out or event.table in mine]


def left_out_now(context: Context, source: Session) -> LeftOut:
    """As the caller's transaction on the source shows it."""
    left_out = _with(context, {})
    if context.moves_rows and not context.in_place:
        mine = {(t.schema, t.name) for t in context.journal.tables.of(context.journal.run)}  # also those of other jobs
        tables = catalog.oids_of(source, [name for name in tables_left_out(context, source) if name not in mine])
        needing = source.execute(queries("ddl_log")["needing"], {"tables": [*tables.values()]}).fetchall()
        for kind, oid, schema, name, identity, *needs in needing:
            left_out.add((kind, oid), (schema, name), identity, (needs[0], needs[1]))
    return left_out


def left_out_before(context: Context, ddl: DdlJournal) -> LeftOut:
    """As the events that the journal has leave it. A run that an older version began has not noted it: what is left out
    by now then."""
    recorded = ddl.left_out()
    if recorded is None:
        return left_out_now(context, context.looking)
    return _with(context, recorded)


def _with(context: Context, recorded: LeftOutJson) -> LeftOut:
    extensions = context.looking.execute(queries("catalog")["extension_tables"]).fetchall()
    return LeftOut.from_json(recorded, frozenset(extensions), lambda *what: _is_on_target(context, *what))


def _is_on_target(context: Context, kind: str, name: Name, identity: str | None) -> bool:
    """A function by its identity, where one is given; what is neither a relation, a function nor a type is not looked
    for."""
    target = context.target
    if kind == "pg_class":
        return catalog.oid_of(target, *name) is not None
    if kind == "pg_proc":
        row = target.execute(queries("ddl_events")["function_exists"], [*name, identity, identity]).fetchone()
    elif kind == "pg_type":
        row = target.execute(queries("ddl_events")["type_exists"], list(name)).fetchone()
    else:
        return False
    return bool(row and row[0])
