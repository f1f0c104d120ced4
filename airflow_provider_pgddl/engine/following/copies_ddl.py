"""Captured statements for copies that stand beside the tables which they are to replace."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from airflow_provider_pgddl.engine.ddl.captured_events import CapturedEvent
from airflow_provider_pgddl.engine.ddl.decision import Decision
from airflow_provider_pgddl.engine.ddl.events import DdlEvent
from airflow_provider_pgddl.engine.ddl.parse import kind_of, parse, quoted, statement_node
from airflow_provider_pgddl.engine.ddl.relocate import copy_schema, moving, relocate
from airflow_provider_pgddl.engine.errors import StageFailed
from airflow_provider_pgddl.engine.job.context import Context
from airflow_provider_pgddl.engine.journal.ddl_rows import DdlRow
from airflow_provider_pgddl.engine.journal.tables import TableRow
from airflow_provider_pgddl.engine.model.names import Name
from airflow_provider_pgddl.engine.pipeline.model import Pipeline
from airflow_provider_pgddl.engine.pipeline.selection import matches
from airflow_provider_pgddl.engine.server.connect import Session
from airflow_provider_pgddl.engine.sql import queries

LATER = "tables.existing: replace: its table came after setup, and comes with the next setup and snapshot"
# Of these all that they lock is a copy's.
_ABOUT_TABLES = {"ALTER TABLE", "CREATE INDEX", "ALTER INDEX", "DROP INDEX", "CREATE STATISTICS", "ALTER STATISTICS"}


def is_about_copies(pipeline: Pipeline, row: DdlRow) -> bool:
    """Whether a captured event acts on copies and nothing else, so that what else it locked would be a mistake."""
    if pipeline.in_place:
        return True
    return pipeline.replaces and row.tag in _ABOUT_TABLES and all(copy_schema("") in s for s in row.statements)


def about_late_tables(pipeline: Pipeline, event: CapturedEvent, known: Collection[Name]) -> set[Name]:
    """Tables of the pipeline that came after its setup: whatever bears such a name on the target is another table."""
    names = [(meta["schema"], meta["name"]) for meta in event["tables"].values() if meta["kind"] in ("r", "p")]
    names += [(d["schema"] or "", d["name"] or "") for d in event["dropped"] if d["type"] == "table"]
    late = [name for name in names if name not in known]
    return {*matches(pipeline, late, strict=False).rows} if late else set()


def late_tables(decision: Decision, late: Collection[Name], touched: Sequence[TableRow]) -> Decision:
    """What becomes of an event that is about these."""
    if not touched:
        return decision.skipped(LATER)
    why = f"{quoted(next(iter(late)))} came after setup, and this is about tables from before as well"
    return replace(decision, verdict="unhandled", rule=why, statements=())


def for_copies(context: Context, event: CapturedEvent, statements: Sequence[str]) -> list[str]:
    """The statements with all names of the pipeline's tables, and of what belongs to them, taken to the copies.
    StageFailed where one would act on a table that is still live."""
    names = _moving(context, event)
    if context.in_place:
        return [relocate(statement, names) for statement in statements]
    return [_for_replacing(context.target, event, statement, names) for statement in statements]


def _moving(context: Context, event: CapturedEvent) -> dict[Name, str]:
    """Where the names of a statement are to be found: with the copies."""
    run_no = context.journal.run
    tables = {(t.schema, t.name) for t in context.journal.tables.of(run_no)}
    events = [DdlEvent.from_json(row.event) for row in context.journal.dump_events.recorded(run_no)]
    names = moving(events, tables, serials=not context.in_place)
    owners = {m["oid"]: (m["schema"], m["name"]) for m in event["tables"].values()}
    kinds = ("index", "statistics object") if context.in_place else ("index", "statistics object", "sequence")
    for made in event["objects"]:
        if made["type"] in kinds and owners.get(made["table"] or 0) in tables:
            names[made["schema"] or "", made["name"] or ""] = copy_schema(made["schema"] or "")
    for gone in event["dropped"]:
        # An index's table is not told, but the statement names none of other tables any more.
        if gone["type"] == "index":
            names[gone["schema"] or "", gone["name"] or ""] = copy_schema(gone["schema"] or "")
    return names


def _for_replacing(target: Session, event: CapturedEvent, statement: str, names: dict[Name, str]) -> str:
    node = statement_node(parse(statement))
    is_function = kind_of(node) == "CreateFunctionStmt"
    try:
        moved = relocate(statement, names, serials=True)
    except StageFailed:
        if is_function and not node.HasField("sql_body"):
            return statement  # its text is looked at when it runs, which is behind the swap
        raise
    if {*_schemas(moved)} <= {*_schemas(statement)}:
        return moved
    if (is_function and node.replace) or (kind_of(node) == "ViewStmt" and _reads_live(target, node)):
        raise StageFailed(
            f"the target's own {event['tag'].removeprefix('CREATE ').lower()} stays as it is until the swap",
            todo="skip it here, and run it on the target behind the swap",
        )
    return moved


def _schemas(statement: str) -> list[str]:
    return [word for word in statement.replace('"', " ").replace(".", " ").split() if word.startswith(copy_schema(""))]


def _reads_live(target: Session, node: object) -> bool:
    """Whether the target has a view of this name that was not made over copies."""
    view = node.view  # type: ignore[attr-defined]
    row = target.execute(queries("dependents")["view_text"], [view.schemaname, view.relname]).fetchone()
    return row is not None and copy_schema("") not in row[0]
