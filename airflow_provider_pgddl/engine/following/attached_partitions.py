"""Tables that were attached as partitions of another: whose they are from then on."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from airflow_provider_pgddl.engine.errors import StageFailed
from airflow_provider_pgddl.engine.following.table_capture import stop_capture_of
from airflow_provider_pgddl.engine.job.context import Context
from airflow_provider_pgddl.engine.journal.tables import TableRow
from airflow_provider_pgddl.engine.model.tables import Table
from airflow_provider_pgddl.engine.pipeline.names import written
from airflow_provider_pgddl.engine.rows.copy_only_columns import count_kept, put_aside
from airflow_provider_pgddl.engine.rows.pending_keys import forget_keys
from airflow_provider_pgddl.engine.schema.verdict import stopped
from airflow_provider_pgddl.engine.server import catalog
from airflow_provider_pgddl.engine.server.connect import Session
from airflow_provider_pgddl.engine.sql import queries


def refuse_values_away(target: Session, table: TableRow, root: str) -> None:
    """StageFailed while values that the target alone has wait for rows of a table that is a partition of `root` now: of
    which rows these are is known by its own log, which goes."""
    if not (rows := count_kept(target, table)):
        return
    raise StageFailed(
        f"was attached to {root}; {rows} rows of it are to be read again with that one, and the values that only the "
        f"target has of them ({_kept(table)}) would be lost",
        table=table.qualified,
        todo="detach it, and run replay, which brings these rows back with them; or put the values aside on the target,"
        " where you write them to the rows when these have come",
        sql=put_aside(table),
    )


def refuse_values_of_detached(context: Context, table: TableRow, gone: Collection[int]) -> None:
    """The same where leaves are no partitions any more: their rows would be read anew, as a table's of their own."""
    if not (gone and table.plan.columns.kept):
        return
    copies = table.plan.copies
    still = [copies[str(leaf)] for leaf in catalog.describe(context.source, gone) if str(leaf) in copies]
    there = catalog.oids_of(context.target, still)
    if there and (rows := count_kept(context.target, table, list(there.values()))):
        raise StageFailed(
            f"{', '.join(f'{s}.{n}' for s, n in sorted(there))} was detached while {rows} rows of it were away, to be"
            f" read again, and the values that only the target has of them ({_kept(table)}) would be lost",
            table=table.qualified,
            todo="attach it again, and run replay, which brings these rows back with them, before it is detached;"
            " or put the values aside on the target, where you write them to the rows when these have come",
            sql=put_aside(table, there.values()),
        )


def _kept(table: TableRow) -> str:
    return ", ".join(map(written, table.plan.columns.kept))


def forget_attached(context: Context, table: TableRow, root: Table) -> None:
    """A table that has become a partition of another: its rows are that one's, whose log says that they came."""
    refuse_values_away(context.target, table, root.qualified)
    stop_capture_of(context.source, context.pipeline, table.oid)
    with context.fenced("settle.before_attached_commit", table):
        forget_keys(context.target, table)
        context.journal.tables.forget(table)
    context.say(f"{table.qualified}: was attached to {root.qualified}, and is read with it")


def attached(context: Context, seen: Mapping[int, Table]) -> dict[int, Table]:
    """The partitions among tables, and partitioned tables that are partitions themselves, each with its root."""
    rows = context.source.execute(queries("catalog")["partition_roots"], [list(seen)]).fetchall()
    nested = {oid: seen[root] for oid, root in rows if root in seen and _leaves(seen[oid]) <= _leaves(seen[root])}
    roots = [table for table in seen.values() if table.kind == "p" and table.oid not in nested]
    return {leaf.oid: root for root in roots for leaf in root.leaves} | nested


def refuse_attached_parts(tables: Collection[TableRow], parts: Mapping[int, Table]) -> None:
    """A table of which only part is read, or of which the target keeps rows that the source has not, and that would be
    read as a part of another from here on, as it is there."""
    for table in tables:
        root = parts.get(table.oid)
        both = [t.plan for t in tables if root is not None and t.oid in (table.oid, root.oid)]
        if root is not None and any(plan.keeps_rows for plan in both):
            raise StageFailed(
                f"was attached to {root.qualified}, and would be read again with it; the target keeps rows of one of"
                " them that the source has not (tables.existing, tables.operations)",
                table=table.qualified,
                todo="copy these rows to a table of your own on the target; then `pgddl reset` the pipeline",
            )
        if table.oid in parts and table.plan.in_part:
            raise StageFailed(
                f"was attached to {parts[table.oid].qualified}, with which all of its rows would come as they are, "
                "whatever tables.where and tables.transform say of them",
                table=table.qualified,
                todo="detach it, then run the stage again",
            )


def _leaves(table: Table) -> set[int]:
    return {leaf.oid for leaf in table.leaves}


def comes_later(context: Context, root: Table) -> bool:
    """Whether a table came after the snapshot and has not been taken in yet."""
    if context.in_place or not context.journal.stage_runs.done(context.journal.run, "snapshot"):
        return False
    return not any(t.oid == root.oid and t.state != "captured" for t in context.journal.tables.of(context.journal.run))


def leave_to_new_table(context: Context, table: TableRow, now: Table, root: Table) -> None:
    """A table that has become a partition of one that nobody follows yet, and whose name that one may have. It stays
    known, by the name that it has now, until its root is read: its rows in the root's copy are nobody else's."""
    name = (now.schema, now.name)
    plan = replace(table.plan, schema=now.schema, name=now.name, copy_schema=now.schema, copy_name=now.name)
    why = stopped(f"was attached to {root.qualified}, and is read with it once that is taken in")
    with context.fenced("settle.before_later_part_commit", table):
        context.journal.schema.forget((table.schema, table.name))
        context.journal.tables.replan(replace(table, schema=now.schema, name=now.name, plan=plan))
        context.journal.schema.record_many({name: ("mismatch", [why], None, (None, None))})
