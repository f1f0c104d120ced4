"""The swap across clusters: fence if asked, drain, sequences, foreign keys and all else that writers meet, done."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from psycopg import errors as pg
from psycopg import sql

from airflow_provider_pgddl.engine import catalog
from airflow_provider_pgddl.engine.capture import change_log
from airflow_provider_pgddl.engine.connect import Session
from airflow_provider_pgddl.engine.ddl.apply import apply_events
from airflow_provider_pgddl.engine.ddl.foreign_key import constraint_name, is_not_valid, not_valid
from airflow_provider_pgddl.engine.journal import EventRow, TableRow
from airflow_provider_pgddl.engine.sql import queries
from airflow_provider_pgddl.engine.stages.context import Context
from airflow_provider_pgddl.engine.stages.exchange import validation
from airflow_provider_pgddl.engine.stages.locks import lock_all, with_tries
from airflow_provider_pgddl.engine.stages.replay import catch_up

_Q = queries("swap")


def run(context: Context, tables: Sequence[TableRow]) -> dict[str, Any]:
    """Returns the figures: how long the fence stood until the target was ready, keys drained behind it, sequences
    set."""
    catch_up(context, tables)
    started = time.monotonic()
    with _fence(context, tables):
        windows = catch_up(context, tables, until_quiet=context.pipeline.swap.fence != "none")
        sequences = _set_sequences(context)
        keys = _add_foreign_keys(context)
        # A view that takes long to fill must not keep applications waiting.
        events = context.journal.events(context.row().run, ["finish"])
        finish = [e for e in events if e.event["tag"] != "REFRESH MATERIALIZED VIEW"]
        apply_events(context.target, context.name, context.fence(), finish)
        with context.fenced():
            context.journal.set_state("swapped", [t.id for t in tables])
            context.journal.set_cut_over()
        fenced_ms = round((time.monotonic() - started) * 1000)
    context.say(f"cut over: applications belong on the target now ({fenced_ms} ms after the fence went up)")
    _refresh_views(context)
    return {
        "fenced_ms": fenced_ms,
        "drained": sum(w.keys for w in windows),
        "sequences": sequences,
        "foreign_keys": keys,
    }


@contextmanager
def _fence(context: Context, tables: Sequence[TableRow]) -> Iterator[None]:
    """`read_only`: writes fail from here on, and go on failing. `lock`: writes wait until the target is ready; what
    then still arrives on the source is counted. `none`: writes go on, and are counted."""
    kind = context.pipeline.swap.fence
    if kind == "read_only":
        with_tries(context.pipeline.swap, "fence", lambda: _raise_fence(context, tables))
        yield
    elif kind == "lock":
        session = context.session("source", "fence")
        with_tries(context.pipeline.swap, "fence", lambda: _hold(context, session, tables))
        try:
            yield
        finally:
            session.rollback()
    else:
        yield


def _raise_fence(context: Context, tables: Sequence[TableRow]) -> None:
    """All tables in one transaction: no application sees some of them closed and others open."""
    relations = fenced_relations(context.source, tables)
    with context.source.transaction():
        lock_all(context.source, relations, "SHARE ROW EXCLUSIVE", context.pipeline.swap.lock_timeout)
        for schema, name in relations:
            change_log.raise_fence(context.source, context.name, schema, name)
        context.check_fence()


def fenced_relations(source: Session, tables: Sequence[TableRow]) -> list[tuple[str, str]]:
    """The tables and, of partitioned ones, every part: a statement on a leaf does not fire its root's trigger."""
    found = []
    for table in tables:
        tree = source.execute(_Q["partitions_of"], [table.oid]).fetchall()
        found += tree or [(table.schema, table.name)]
    return [(schema, name) for schema, name in found]


def _hold(context: Context, session: Session, tables: Sequence[TableRow]) -> None:
    """EXCLUSIVE lets readers, and our own windows, go on."""
    session.execute("BEGIN")
    try:
        names = [(t.schema, t.name) for t in tables]
        lock_all(session, names, "EXCLUSIVE", context.pipeline.swap.lock_timeout)
    except pg.Error:
        session.rollback()
        raise


def _set_sequences(context: Context) -> int:
    """Every sequence of the source that the target has too stands where the source's stands."""
    here = set(context.target.execute(queries("catalog")["sequences"]).fetchall())
    there = context.source.execute(queries("catalog")["sequences"]).fetchall()
    common = [name for name in there if name in here]
    with context.fenced():
        for name in common:
            row = context.source.execute(
                sql.SQL("SELECT last_value, is_called FROM {}").format(sql.Identifier(*name))
            ).fetchone()
            assert row is not None
            context.target.execute(
                "SELECT pg_catalog.setval(%s::pg_catalog.regclass, %s, %s)",
                [sql.Identifier(*name).as_string(context.target), *row],
            )
    return len(common)


def _add_foreign_keys(context: Context) -> int:
    """NOT VALID, which takes no time; they are validated once applications run."""
    events = context.journal.events(context.row().run, ["foreign_key"])
    partitioned = _partitioned(context.target, events)
    major = catalog.server(context.target).major
    for event in events:
        schema, table = event.event["table"]
        # A partitioned table takes NOT VALID foreign keys from 18 on; before, they are checked at once (C23).
        later = major >= 18 or (schema, table) not in partitioned
        statement = not_valid(event.statement) if later else event.statement
        if later and not is_not_valid(event.statement):
            name = constraint_name(event.statement)
            context.journal.add_validation(context.row().run, validation(context.target, schema, table, name))
        changed = EventRow(event.id, event.table_id, event.event, statement)
        apply_events(context.target, context.name, context.fence(), [changed])
    return len(events)


def _partitioned(target: Session, events: Sequence[EventRow]) -> set[tuple[str, str]]:
    tables = {name: t.kind for name, t in catalog.describe_all(target).items()}
    return {tuple(e.event["table"]) for e in events if tables.get(tuple(e.event["table"])) == "p"}


def _refresh_views(context: Context) -> None:
    """Materialized views that had rows on the source get theirs; in the order in which they were made there."""
    empty = {(schema, name) for schema, name, filled in context.target.execute(_Q["materialized_views"]) if not filled}
    for schema, name, filled in context.source.execute(_Q["materialized_views"]).fetchall():
        if filled and (schema, name) in empty:
            context.target.execute(sql.SQL("REFRESH MATERIALIZED VIEW {}").format(sql.Identifier(schema, name)))
