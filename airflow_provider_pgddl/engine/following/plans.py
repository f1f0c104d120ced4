"""From a verdict to a plan: what is copied of a table from here on, and which columns have no values yet."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from psycopg import sql

from airflow_provider_pgddl.engine.ddl.parse import kind_of, parse, statement_node, texts, walk
from airflow_provider_pgddl.engine.ddl.partitioned_copy import settings
from airflow_provider_pgddl.engine.ddl.relocate import copy_schema
from airflow_provider_pgddl.engine.ddl.rewrite_actions import AlterAction, alter_actions
from airflow_provider_pgddl.engine.errors import UsageError
from airflow_provider_pgddl.engine.following.rows_read import made_sql, read_of
from airflow_provider_pgddl.engine.model.names import Name
from airflow_provider_pgddl.engine.model.plan import ColumnChoice, Plan, Split, make_plan
from airflow_provider_pgddl.engine.model.tables import Table
from airflow_provider_pgddl.engine.pipeline.model import Pipeline
from airflow_provider_pgddl.engine.pipeline.names import column_name, written
from airflow_provider_pgddl.engine.schema.table_model import TableModel
from airflow_provider_pgddl.engine.schema.verdict import Verdict


def first_plan(pipeline: Pipeline, table: Table, left_out_before: Mapping[str, str] | None = None) -> Plan:
    """The plan while there is no copy: what the pipeline file alone says, and, once it is recorded, what was left out
    of the table until now. Its log is made for the key in it."""
    numbers = {c.name: c.attnum for c in table.columns}
    skipped = skipped_columns(pipeline, (table.schema, table.name), numbers, left_out_before or {})
    return _plan(pipeline, table, skipped, None, None, "")


def plan_for(
    pipeline: Pipeline, table: Table, verdict: Verdict, copy: TableModel, skipped: Mapping[str, str], digest: str
) -> Plan:
    """The plan that follows from comparing the table with its copy. `skipped` is `skipped_columns`, `digest` that of
    the copy's columns (`copy_digests`)."""
    return _plan(pipeline, table, skipped, verdict, copy, digest)


def skipped_columns(
    pipeline: Pipeline, table: Name, attnums: Mapping[str, int], before: Mapping[str, str]
) -> dict[str, str]:
    """attnum (as text) → ``schema.table.column`` as the file names it, of what the file skips of a table of the source.

    A column stays skipped when it, or its table, gets another name: `before` is what was left out until now."""
    found = {}
    if before:
        names = {written(*t, column) for t, columns in pipeline.skipped_columns.items() for column in columns}
        found = {number: name for number, name in before.items() if name in names and int(number) in attnums.values()}
    here = pipeline.skipped_columns.get(table, ())
    return found | {str(attnums[c]): written(*table, c) for c in here if c in attnums}


def values_missing(old: Plan, new: Plan, recorded: Collection[int], brought: Collection[int]) -> str | None:
    """Why rows that were copied before have to be read again; None where they have every value.

    `recorded` are the source's columns when `old` was made, `brought` those that applied DDL has added to the copy
    since, with the values that old rows show on the source.
    """
    known = {copy: (source, _is_cast(old, name)) for name, (source, copy, _) in old.columns.pairs.items()}
    expressions = dict(zip(old.columns.names, old.columns.expressions, strict=True))
    for name, (source, copy, _) in new.columns.pairs.items():
        before, was_cast = known.get(copy, (-1, False))
        if before != source:
            if source in brought and source not in recorded:
                continue
            return f"column {name} has no values of the source yet" if source else f"column {name} becomes NULL"
        if was_cast and expressions.get(name) != _expression(new, name):
            return f"column {name} was cast until now"
    return None


def made_otherwise(old: Plan, new: Plan) -> bool:
    """Whether the pipeline file makes other values than it did, or of other columns."""
    names = {*old.transformed, *new.transformed}
    made = [dict(zip(plan.columns.names, plan.columns.expressions, strict=True)) for plan in (old, new)]
    return any(made[0].get(name) != made[1].get(name) for name in names)


def names_read(plan: Plan) -> set[str]:
    """The names in all that says what is copied, as in `names_in`."""
    return names_in([*plan.columns.expressions, *([plan.where] if plan.where else [])])


def names_in(expressions: Iterable[str]) -> set[str]:
    """The names of the columns in SQL expressions, and another where one takes a row whole."""
    nodes = (node for text in expressions for node in walk(statement_node(parse(f"SELECT {text}"))))
    return {name for node in nodes if kind_of(node) == "ColumnRef" for name in texts(node.fields)[-1:] or ["*"]}


def _expression(plan: Plan, column: str) -> str:
    return plan.columns.expressions[plan.columns.names.index(column)]


def _is_cast(plan: Plan, column: str) -> bool:
    return _expression(plan, column) != sql.Identifier(column).as_string()


def _plan(
    pipeline: Pipeline,
    table: Table,
    skipped: Mapping[str, str],
    verdict: Verdict | None,
    copy: TableModel | None,
    digest: str,
) -> Plan:
    verdict = verdict or Verdict("compatible")
    name = (table.schema, table.name)
    skip = {c.name for c in table.columns if str(c.attnum) in skipped} | verdict.skip
    actions: list[AlterAction] = []
    if pipeline.in_place:
        actions = alter_actions(pipeline.rewrites[name].alter)
        _refuse_lossy_key(table, actions)
    # What the copy alone has is found again by its row's key.
    keep = () if pipeline.in_place or copy is None or table.key is None else verdict.keep
    read = read_of(pipeline, table)
    return make_plan(
        table,
        copy_schema=copy_schema(table.schema) if pipeline.beside else table.schema,
        choice=ColumnChoice(
            skip=skip,
            using={a.column: a.using for a in actions if a.using and a.column},
            dropped=_columns(actions, "DROP COLUMN"),
            casts=verdict.casts,
            transform={c: made_sql(table, read, c) for c in read.transform},
            retyped={*_columns(actions, "TYPE"), *verdict.retyped},
            nulls=verdict.nulls,
            taken=verdict.taken,
            kept=keep,
            kept_types=_types(copy, keep) if copy else (),
            left_out={str(c.attnum): written(*name, c.name) for c in table.columns if c.name in skip} | dict(skipped),
            pairs=_pairs(table, copy, plan_columns(table, skip, actions, verdict)) if copy else {},
        ),
        copy_attributes=digest,
        keyless=pipeline.tables.keyless == "copy_at_swap",
        split=split_of(pipeline, name),
        order=map(column_name, pipeline.rewrites[name].order_by) if pipeline.in_place else (),
        where=read.condition,
    )


def split_of(pipeline: Pipeline, table: Name) -> Split | None:
    """How `rewrite.partition_by` partitions a table's copy."""
    rewrite = pipeline.rewrites.get(table) if pipeline.in_place else None
    if rewrite is None or rewrite.partition_by is None:
        return None
    by = rewrite.partition_by
    grows = not by.default_partition and (by.range is not None or by.list is True)
    step = str(by.range) if by.range is not None else ""
    return Split(by.method, column_name(by.column), step, grows, tuple(settings(alter_actions(rewrite.alter))))


def plan_columns(table: Table, skip: Collection[str], actions: Iterable[AlterAction], verdict: Verdict) -> list[str]:
    gone = {*skip, *_columns(actions, "DROP COLUMN")}
    return [
        *(c.name for c in table.columns if c.name not in gone and (not c.generated or c.name in verdict.taken)),
        *verdict.nulls,
    ]


def _pairs(table: Table, copy: TableModel, columns: Iterable[str]) -> dict[str, list[object]]:
    numbers = {c.name: c.attnum for c in table.columns}
    here = {c.name: c for c in copy.columns}
    return {c: [numbers.get(c, 0), here[c].attnum, here[c].type.text] for c in columns if c in here}


def _types(copy: TableModel, columns: Iterable[str]) -> list[str]:
    here = {c.name: c.type.text for c in copy.columns}
    return [here[c] for c in columns]


def _columns(actions: Iterable[AlterAction], kind: str) -> list[str]:
    return [a.column for a in actions if a.kind == kind and a.column]


def _refuse_lossy_key(table: Table, actions: Iterable[AlterAction]) -> None:
    """A key that is computed on the way cannot be looked up again by its old value (C12)."""
    for action in actions:
        if action.using and table.key and action.column in table.key.columns:
            raise UsageError(
                f"rewrite.alter: USING on key column {action.column!r} is not possible",
                table=table.qualified,
                todo="give the key a type that its values convert to without USING",
            )
