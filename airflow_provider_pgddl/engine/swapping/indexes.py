"""Indexes, statistics and what an index is marked for that came, went or changed without an applied event, and names of
indexes that the target's server has chosen: done on the copies before a swap."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from psycopg import sql

from airflow_provider_pgddl.engine.apply.dump_events import apply_events
from airflow_provider_pgddl.engine.ddl.events import DdlEvent
from airflow_provider_pgddl.engine.ddl.relocate import copy_schema
from airflow_provider_pgddl.engine.following.waiting_statements import definition_on_server, replace_pending
from airflow_provider_pgddl.engine.job.context import Context
from airflow_provider_pgddl.engine.model.names import Name
from airflow_provider_pgddl.engine.rights.alter_as_owner import alter
from airflow_provider_pgddl.engine.server import catalog
from airflow_provider_pgddl.engine.server.connect import Session
from airflow_provider_pgddl.engine.sql import queries

# What a name has while it changes hands, in one transaction.
_BETWEEN = "pgddl renames {}"

# Kinds of statements about what an index is to its table.
_MARKS = ("cluster", "replica identity")

# "index" or "statistics", its name on the source, and its table's schema, with which it is on a copy.
Built = tuple[str, Name, str]


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
        copy = built and definition_on_server(context.target, built[0], _on_copy(context, built))
        if built and copy and (built not in now or copy != definition_on_server(context.source, *built[:2])):
            with context.fenced("swap.before_index_drop_commit"):
                name = sql.Identifier(*_on_copy(context, built))
                context.target.execute(sql.SQL("DROP {} {}").format(sql.SQL(built[0].upper()), name))
    missing = {
        built
        for event in added
        if event.phase == "index" and (built := _built(event))
        if definition_on_server(context.target, built[0], _on_copy(context, built)) is None
    }
    wanted = [e for e in added if e.phase == "index" and _built(e) in missing]
    if not wanted:
        return
    replace_pending(context, wanted, ["index"])
    pending = context.journal.dump_events.to_apply(context.journal.run, ["index"])
    trusted = context.pipeline.trusted_roles
    count = apply_events(context.target, context.name, context.fence(), pending, trusted, copies_only=context.in_place)
    context.say(f"{count} index(es) built that came after the snapshot")


def carry_late(context: Context, dumped: Sequence[DdlEvent]) -> None:
    """What belongs to no table and waited for one that has its indexes by now, or that is gone: a view that groups by a
    key. Before anything is locked."""
    there = {event.statement for event in dumped}
    waiting = [
        event
        for event in context.journal.dump_events.to_apply(context.journal.run, ["index"])
        if event.table_id is None and _built(DdlEvent.from_json(event.event)) is None
        if event.event["statement"] in there
    ]
    apply_events(context.target, context.name, context.fence(), waiting, context.pipeline.trusted_roles)


def carry_marks(context: Context, added: Sequence[DdlEvent], gone: Sequence[DdlEvent]) -> None:
    """Replica identity and CLUSTER's index, where the dump shows another one: CLUSTER … USING sets its mark without an
    event. Behind the indexes, which they name."""
    for table in dict.fromkeys(e.table for e in [*gone, *added] if e.table and e.kind in _MARKS):
        copy = (copy_schema(table[0]), table[1]) if context.beside else table
        there = _marks(context.target, copy)
        for wanted in _marks(context.source, table) - there if there else ():
            with context.fenced("swap.before_mark_commit"):
                statement = sql.SQL("ALTER TABLE {} {}").format(sql.Identifier(*copy), sql.SQL(wanted))
                alter(context.target, statement.as_string(), context.pipeline.trusted_roles)


def _marks(conn: Session, table: Name) -> set[str]:
    """As actions of an ALTER TABLE; empty where there is no such table."""
    return {action for row in conn.execute(queries("catalog")["marks"], table) for action in row}


def name_as_on_source(context: Context) -> None:
    """Gives the indexes of partitions the names that they have on the source.

    Which of two on the same columns gets which is decided by the order in which the indexes of the parent came to be,
    and by the names of columns at that moment; what is built late has another order."""
    for table in context.tables() if not context.in_place else ():
        if not table.plan.partitioned:
            continue
        names = (table.schema, table.name), (table.plan.copy_schema, table.plan.copy_name)
        source, copy = (_of_partitions(c, n) for c, n in zip((context.source, context.target), names, strict=True))
        for level in sorted({level for level, *_ in copy}):
            # A level's names are known once those above bear the source's.
            copy = _of_partitions(context.target, names[1])
            here = {at: name for at, name in copy.items() if at[0] == level}
            _rename_all(context, {(at[1], name): source[at] for at, name in here.items() if at in source})


def _of_partitions(conn: Session, table: Name) -> dict[tuple[int, str, str, str], str]:
    rows = conn.execute(queries("catalog")["partition_indexes"], table).fetchall()
    return {(level, schema, partition, parent): name for level, schema, partition, parent, name in rows}


def _rename_all(context: Context, wanted: Mapping[Name, str]) -> None:
    renames = {old: new for old, new in wanted.items() if old[1] != new}
    while taken := [old for old, new in renames.items() if not _is_free(context, (old[0], new), renames)]:
        renames = {old: new for old, new in renames.items() if old not in taken}
    if not renames:
        return
    rename = sql.SQL("ALTER INDEX {} RENAME TO {}")
    with context.fenced("swap.before_names_commit"):
        for number, (schema, old) in enumerate(renames):
            between = sql.Identifier(_BETWEEN.format(number))
            context.target.execute(rename.format(sql.Identifier(schema, old), between))
        for number, ((schema, _), new) in enumerate(renames.items()):
            between = sql.Identifier(schema, _BETWEEN.format(number))
            context.target.execute(rename.format(between, sql.Identifier(new)))
    context.say(f"{len(renames)} index(es) of partitions renamed as they are on the source")


def _is_free(context: Context, name: Name, renamed: Collection[Name]) -> bool:
    return name in renamed or catalog.oid_of(context.target, *name) is None


def _rename(context: Context, was: Built, candidates: Sequence[Name]) -> None:
    """Where one of the same definition has come in its place: a constraint's cannot be dropped."""
    copy = definition_on_server(context.target, "index", _on_copy(context, was))
    for name in candidates if copy else ():
        there = definition_on_server(context.target, "index", _on_copy(context, ("index", name, name[0])))
        if there is None and definition_on_server(context.source, "index", name) == copy:
            rename = sql.SQL("ALTER INDEX {} RENAME TO {}")
            with context.fenced("swap.before_rename_commit"):
                old = sql.Identifier(*_on_copy(context, was))
                context.target.execute(rename.format(old, sql.Identifier(name[1])))
            return


def _built(event: DdlEvent) -> Built | None:
    if event.index:
        return "index", event.index, event.index[0]
    if event.kind == "statistics" and event.name:
        name = event.schema or "", event.name
        return "statistics", name, event.table[0] if event.table else name[0]
    return None


def _on_copy(context: Context, built: Built) -> Name:
    _, (schema, name), home = built
    return (copy_schema(home), name) if context.beside else (schema, name)
