"""Changes of the target that the policy lets us make by ourselves: a column added, widened, dropped (auto_migrate)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from airflow_provider_pgddl.engine.apply.target_alterations import Alteration, Alterations, TablePlan
from airflow_provider_pgddl.engine.errors import Fenced, PgddlError
from airflow_provider_pgddl.engine.following.schema_comparison import Evaluated, evaluate, is_as_described
from airflow_provider_pgddl.engine.job.context import Context
from airflow_provider_pgddl.engine.journal.tables import TableRow
from airflow_provider_pgddl.engine.model.tables import Table
from airflow_provider_pgddl.engine.pipeline.model import Overrides, Pipeline, SchemaPolicy
from airflow_provider_pgddl.engine.schema.table_model import Schemas

_VERBS = {"add_column": "Adding", "safe_type_change": "Altering", "drop_column": "Dropping"}


def migrate(context: Context, tables: Sequence[TableRow], seen: Mapping[int, Table], schemas: Schemas | None) -> None:
    """Runs what the policy has approved, a transaction a table, with locks as captured DDL takes them. What cannot be
    done leaves its table blocked. A table that is not what it was in `seen` has DDL of its own under way."""
    if not _is_asked_for(context.pipeline):
        return
    found = evaluate(context.pipeline, context.source, context.target, tables, (), seen=schemas)
    work = Alterations(
        context.pipeline, context.target_dsn, context.target, signals=True, say=context.say, fence=context.fence()
    )
    for table in tables:
        both = found[table.schema, table.name]
        plan = _plan(table, both)
        if plan.steps and both.source is not None and is_as_described(both.source, seen[table.oid]):
            try:
                work.apply(plan)
            except Fenced:
                raise
            except PgddlError as error:
                context.say(f"{table.qualified}: {error}")


def _is_asked_for(pipeline: Pipeline) -> bool:
    places: list[SchemaPolicy | Overrides] = [pipeline.schema_, *pipeline.schema_.overrides.values()]
    return bool(pipeline.schema_.auto_migrate.types) or any(
        place.source_added_columns == "add" or place.source_removed_columns == "drop" for place in places
    )


def _plan(table: TableRow, both: Evaluated) -> TablePlan:
    steps = tuple(
        Alteration(f"{_VERBS[m.kind]} column {table.qualified}.{m.column}", m.statements)
        for m in both.verdict.migrations
        if m.approved
    )
    target = both.target
    if target is None:
        return TablePlan(table.qualified, ("", ""), (), (), "", False)
    return TablePlan(table.qualified, (target.schema, target.name), steps, (), target.owner, target.owned)
