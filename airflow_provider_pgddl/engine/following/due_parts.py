"""What of a decision about captured DDL is due now, and what waits for its stage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from airflow_provider_pgddl.engine.ddl.captured_events import CapturedEvent, ConstraintMeta, TableMeta
from airflow_provider_pgddl.engine.ddl.decision import Decision
from airflow_provider_pgddl.engine.ddl.deferred_parts import not_null, run_now
from airflow_provider_pgddl.engine.ddl.dump_phases import Phase
from airflow_provider_pgddl.engine.ddl.relocate import drop_statistics_of_copies
from airflow_provider_pgddl.engine.errors import StageFailed
from airflow_provider_pgddl.engine.following.copies_ddl import about_late_tables, for_copies, late_tables
from airflow_provider_pgddl.engine.job.context import Context
from airflow_provider_pgddl.engine.journal.ddl_history import SHOWN, WAITS
from airflow_provider_pgddl.engine.journal.tables import TableRow
from airflow_provider_pgddl.engine.model.names import Name
from airflow_provider_pgddl.engine.server import catalog
from airflow_provider_pgddl.engine.sql import queries

PUBLISHED = "in place: it has happened already, and the swap reads from the catalog what publishes a table"
ELSEWHERE = "in place: it is about no table of the pipeline, and has happened already"


def take_names(known: dict[Name, TableRow], rows: Mapping[int, TableRow], metas: Mapping[Any, TableMeta]) -> None:
    """The journal's tables by the names that they have at an event. Its own are of the last plan, which an event that
    waits, and one that was read just before, are ahead of."""
    for oid, meta in metas.items():
        name = meta["schema"], meta["name"]
        if int(oid) in rows:
            known[name] = rows[int(oid)]
        else:
            known.pop(name, None)


def due(context: Context, decision: Decision, tables: Mapping[Name, TableRow]) -> Decision:
    """What of a decision is run now: the rest waits for its stage, and in place it means the copies. `tables` by the
    names that they have at the event."""
    if context.in_place and decision.event["tag"] == "DROP STATISTICS" and decision.rule.startswith("in place"):
        gone = [(d["schema"] or "", d["name"] or "") for d in decision.event["dropped"] if d["original"]]
        return replace(decision, verdict="apply", statements=drop_statistics_of_copies(gone))
    if decision.verdict != "apply":
        return decision
    if context.in_place and decision.event["tag"].endswith(" PUBLICATION"):
        return decision.skipped(PUBLISHED)
    touched = [tables[name] for name in decision.touches if name in tables]
    if context.in_place and not touched:
        return decision.skipped(ELSEWHERE)
    if context.pipeline.replaces and (late := about_late_tables(context.pipeline, decision.event, tables)):
        return late_tables(decision, late, touched)
    if touched and all(t.state == "captured" and not _has_copy(context, t) for t in touched):
        return decision.skipped(SHOWN)  # their copies are made from a dump that is still to be taken
    waiting: set[Phase] = {"foreign_key", "finish"} if context.moves_rows else set()
    if any(_comes_by_blocks(context, t) for t in touched):
        waiting.add("index")
    event = _with_not_null(context, decision.event) if "index" in waiting else decision.event
    cut = [run_now(statement, event, waiting, brought=context.finishes) for statement in decision.statements]
    statements = [statement for statement in cut if statement is not None]
    if not statements:
        return decision.skipped(WAITS)
    if context.beside:
        try:
            statements = for_copies(context, decision.event, statements)
        except StageFailed as error:
            return replace(decision, verdict="unhandled", rule=error.what, statements=())
    return replace(decision, statements=tuple(statements))


def _comes_by_blocks(context: Context, table: TableRow) -> bool:
    """Whether the copy gets its rows by blocks, and its indexes behind them. A table whose copy an event has made, key
    and all, gets its rows by windows from the start: no later stage would build its indexes."""
    if table.state != "captured" or table.id in context.journal.dump_events.tables(context.journal.run):
        return table.state in ("captured", "created", "backfilled")
    copy = catalog.oid_of(context.target, table.plan.copy_schema, table.plan.copy_name)
    return copy is None or catalog.describe(context.target, [copy])[copy].key is None


def _with_not_null(context: Context, event: CapturedEvent) -> CapturedEvent:
    """With the constraints that an event does not tell of: those that say NOT NULL, as the source has them now."""
    if event["tag"] != "ALTER TABLE" or min(c.info.server_version for c in (context.source, context.target)) < 180_000:
        return event
    tables = {oid: meta | {"constraints": [*meta["constraints"]]} for oid, meta in event["tables"].items()}
    query = queries("catalog")["not_null_constraints"]
    for relation, oid, name, attnum, validated in context.looking.execute(query, [[int(oid) for oid in tables]]):
        meta = tables[str(relation)]
        for definition in (not_null(c["name"]) for c in meta["columns"] if c["attnum"] == attnum):
            known = ConstraintMeta(
                oid=oid, name=name, type="n", definition=definition, validated=validated, local=True, references=None
            )
            meta["constraints"].append(known)
    return event | {"tables": tables}


def _has_copy(context: Context, table: TableRow) -> bool:
    return catalog.oid_of(context.target, table.plan.copy_schema, table.plan.copy_name) is not None
