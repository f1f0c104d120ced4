"""What would keep the way back of a cut-over (`swap.way_back`) from being gone, as far as the two servers and the file
tell before there is a copy: rows are to come back to the tables that the source has now."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping

import psycopg
from psycopg import sql

from airflow_provider_pgddl.engine.capture import change_log
from airflow_provider_pgddl.engine.capture.namesakes import namesake
from airflow_provider_pgddl.engine.errors import UsageError
from airflow_provider_pgddl.engine.journal.births import Births
from airflow_provider_pgddl.engine.model.names import Name
from airflow_provider_pgddl.engine.pipeline.names import written
from airflow_provider_pgddl.engine.preflight.facts import Facts
from airflow_provider_pgddl.engine.preflight.findings import Finding
from airflow_provider_pgddl.engine.rights import foreign_code
from airflow_provider_pgddl.engine.rows import foreign_keys_and_triggers
from airflow_provider_pgddl.engine.schema.casts import judge_cast
from airflow_provider_pgddl.engine.schema.table_model import Schemas, TypeModel
from airflow_provider_pgddl.engine.schema.table_policy import TablePolicy
from airflow_provider_pgddl.engine.server import catalog, schema_reading

Copy = tuple[Name, Collection[str]]  # its name, and the columns that are copied
_TYPES = "pgddl_type"  # a temporary table


def what_comes_back_differs(was: TypeModel, becomes: TypeModel) -> bool:
    """Whether values of the source's type, there and back, need not be what they were."""
    there, back = judge_cast(was, becomes).kind, judge_cast(becomes, was).kind
    return there not in ("same", "safe") or back == "impossible"


def said(column: str, was: TypeModel, becomes: TypeModel) -> str:
    return (
        f"the way back: column {written(column)} is {was.text} on the source and {becomes.text} on the target, so what"
        " comes back need not be what was there"
    )


TODO = "leave swap.way_back out, or give both sides the same type"


def casts(facts: Facts) -> Iterator[Finding]:
    """Of the types that the file names for the target."""
    of = {table: TablePolicy.of(facts.pipeline, table).allow_type_cast for table in facts.rows}
    wanted = {table: casts for table, casts in of.items() if casts}
    if not wanted:
        return
    models = schema_reading.read(facts.source.conn, list(wanted)).tables
    for table, named in wanted.items():
        for name, to in named.items():
            column = models[table].column(name) if table in models else None
            becomes = _type(facts, to) if column else None
            if column and becomes and what_comes_back_differs(column.type, becomes):
                what = said(name, column.type, becomes)
                yield Finding("error", "way_back", "pipeline", written(*table), what, TODO)


def _type(facts: Facts, text: str) -> TypeModel | None:
    """As the source knows it; None where it does not."""
    conn = facts.source.conn
    table = sql.Identifier("pg_temp", _TYPES)
    try:
        with conn.transaction(force_rollback=True):
            conn.execute(sql.SQL("CREATE TEMPORARY TABLE {} (c {})").format(table, sql.SQL(text)))
            return schema_reading.read_temporary(conn, _TYPES).columns[0].type
    except psycopg.ProgrammingError:
        return None


def triggers(facts: Facts) -> Iterator[Finding]:
    """Windows keep all others from firing."""
    conn, there = facts.source.conn, dict(enumerate(facts.rows))
    for number, fired in foreign_keys_and_triggers.read_ties(conn, there).as_replica.items():
        for relation, names in fired:
            for name in names:
                what = (
                    f"for the way back: its trigger {written(name)}, enabled ALWAYS or REPLICA, would fire for each row"
                    " that comes back"
                )
                fix = f"ALTER TABLE {relation} ENABLE TRIGGER {facts.source.name(name)};  -- for applications alone"
                yield Finding("error", "firing", "source", written(*there[number]), what, fix)


def rules(facts: Facts) -> Iterator[Finding]:
    """Of tables whose owner nobody trusts: rows that come back would set them off."""
    theirs = {facts.names[oid]: found.role for oid, found in facts.surveyed.items() if found.role}
    for table, trap in foreign_code.rules_on(facts.source.conn, theirs):
        what = f"for the way back: {trap} would run where rows come back to it"
        fix = f"-- drop it, or in the pipeline file:\ntrusted_roles: [{theirs[table]}]"
        yield Finding("error", "foreign_code", "source", written(*table), what, fix)


def name(facts: Facts) -> Iterator[Finding]:
    """Somebody else's pipeline may have it, on either server."""
    assert facts.target is not None
    way_back = str(facts.pipeline.swap.way_back)
    found = Births(facts.source.conn, way_back).find()
    what = ""
    if found is not None and not found.finished and found.of != facts.pipeline.pipeline:
        what = f"the source has a pipeline {way_back!r} already, which is under way"
    try:
        journal = change_log.journal_name(catalog.server(facts.source.conn))
        change_log.refuse_other_journal(facts.target.conn, way_back, journal)
    except UsageError as error:
        what = error.what
    what = what or namesake(facts.target.conn, facts.source.conn, way_back) or ""
    if what:
        fix = f"swap: {{way_back: {way_back[:36]}_too}}"
        yield Finding("error", "way_back", "pipeline", None, f"for the way back: {what}", fix)


CHECKS: list[Callable[[Facts], Iterator[Finding]]] = [name, casts, triggers, rules]
UNDER_WAY = [name, triggers, rules]


def retyped(source: Schemas, target: Schemas, copies: Mapping[Name, Copy]) -> Iterator[Finding]:
    """`casts` of the types that copies have by now."""
    for table, (copy, copied) in copies.items():
        old, new = source.tables.get(table), target.tables.get(copy)
        for column in old.columns if old and new else ():
            becomes = new.column(column.name) if new and column.name in copied else None
            if becomes and becomes.type != column.type and what_comes_back_differs(column.type, becomes.type):
                what = said(column.name, column.type, becomes.type)
                yield Finding("error", "way_back", "target", written(*table), what, TODO)
