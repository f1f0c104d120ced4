"""Tables of which the target keeps what the source deletes (`tables.operations`): archives from their first window on.

Until then a copy is filled like any other: its blocks may bring a row twice, of two moments, and what has changed
meanwhile leaves. So what an archive keeps are rows that were there when its indexes had been built, or came later."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from airflow_provider_pgddl.engine.job.context import Context
from airflow_provider_pgddl.engine.journal.tables import TableRow
from airflow_provider_pgddl.engine.rows import adopted_rows, archive
from airflow_provider_pgddl.engine.server import catalog


def begin(context: Context, followed: Sequence[TableRow]) -> None:
    """Before a window: what has come to be followed is an archive from here on. A table that cannot be one stops."""
    operations = context.pipeline.archives
    tables = [t for t in followed if operations and not t.plan.operations]
    if not tables:
        return
    if unfit := _unfit(context, tables):
        context.block(unfit)
    for table in (t for t in tables if t.id not in unfit):
        with context.fenced("archive.before_begun_commit", table):
            adopted_rows.drop_extra(context.target, table.id)
            plan = replace(table.plan, extra=adopted_rows.create_extra(context.target, table), operations=operations)
            context.journal.tables.set_copy(replace(table, plan=plan))


def _unfit(context: Context, tables: Sequence[TableRow]) -> dict[int, list[str]]:
    names = {(t.plan.copy_schema, t.plan.copy_name): t for t in tables}
    there = {oid: names[name] for name, oid in catalog.oids_of(context.target, names).items()}
    keys: Mapping[int, Sequence[str]] = {oid: table.plan.key.columns for oid, table in there.items()}
    found = dict[int, list[str]]()
    for oid, why in archive.unfit(context.target, keys):
        found.setdefault(there[oid].id, []).append(why)
    return found
