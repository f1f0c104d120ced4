"""Indexes and statistics that came, went or changed without an applied event: done on the copies before a swap."""

from __future__ import annotations

from collections.abc import Sequence

from psycopg import sql

from airflow_provider_pgddl.engine.connect import Session
from airflow_provider_pgddl.engine.ddl.apply import apply_events
from airflow_provider_pgddl.engine.ddl.events import DdlEvent
from airflow_provider_pgddl.engine.ddl.parse import Name
from airflow_provider_pgddl.engine.ddl.relocate import copy_schema
from airflow_provider_pgddl.engine.sql import queries
from airflow_provider_pgddl.engine.stages.context import Context
from airflow_provider_pgddl.engine.stages.pending import replace_pending

Built = tuple[str, Name]  # "index" or "statistics", and its name on the source


def carry_indexes(
    context: Context, dumped: Sequence[DdlEvent], added: Sequence[DdlEvent], gone: Sequence[DdlEvent]
) -> None:
    """They are outside of the default scope, and a swap must lose none. Before anything is locked."""
    now = {built for event in dumped if (built := _built(event))}
    for event in gone:
        built = _built(event)
        if built and built[0] == "index" and built not in now:
            _rename(context, built, [e.index for e in added if e.index and e.table == event.table])
    for built in dict.fromkeys(_built(e) for e in [*gone, *added] if e.kind in ("index", "statistics")):
        copy = built and _definition(context.target, built[0], _on_copy(context, built))
        if built and copy and (built not in now or copy != _definition(context.source, *built)):
            with context.fenced():
                name = sql.Identifier(*_on_copy(context, built))
                context.target.execute(sql.SQL("DROP {} {}").format(sql.SQL(built[0].upper()), name))
    missing = {
        built
        for event in added
        if event.phase == "index" and (built := _built(event))
        if _definition(context.target, built[0], _on_copy(context, built)) is None
    }
    wanted = [e for e in added if e.phase == "index" and _built(e) in missing]
    if not wanted:
        return
    replace_pending(context, wanted, ["index"])
    pending = context.journal.events(context.row().run, ["index"])
    count = apply_events(context.target, context.name, context.fence(), pending, copies_only=context.in_place)
    context.say(f"{count} index(es) built that came after the snapshot")


def _rename(context: Context, was: Built, candidates: Sequence[Name]) -> None:
    """Where one of the same definition has come in its place: a constraint's cannot be dropped."""
    copy = _definition(context.target, "index", _on_copy(context, was))
    for name in candidates if copy else ():
        there = _definition(context.target, "index", _on_copy(context, ("index", name)))
        if there is None and _definition(context.source, "index", name) == copy:
            rename = sql.SQL("ALTER INDEX {} RENAME TO {}")
            with context.fenced():
                old = sql.Identifier(*_on_copy(context, was))
                context.target.execute(rename.format(old, sql.Identifier(name[1])))
            return


def _built(event: DdlEvent) -> Built | None:
    if event.index:
        return "index", event.index
    if event.kind == "statistics" and event.name:
        return "statistics", (event.schema or "", event.name)
    return None


def _on_copy(context: Context, built: Built) -> Name:
    _, (schema, name) = built
    return (copy_schema(schema), name) if context.in_place else (schema, name)


def _definition(conn: Session, kind: str, name: Name) -> str | None:
    """What it is, whatever its table is called; None where there is none."""
    row = conn.execute(queries("catalog")[f"{kind}_definition"], name).fetchone()
    return str(row[0]) if row else None
