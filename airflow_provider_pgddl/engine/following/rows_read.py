"""`tables.where` and `tables.transform` against what a table has become: the file speaks of columns by name, and a name
may come to be another's."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from psycopg import sql

from airflow_provider_pgddl.engine.ddl.parse import dotted_names
from airflow_provider_pgddl.engine.errors import PreflightRefused
from airflow_provider_pgddl.engine.model.names import Name
from airflow_provider_pgddl.engine.model.plan import Plan, is_user_type
from airflow_provider_pgddl.engine.model.tables import Table
from airflow_provider_pgddl.engine.pipeline.expressions import RowsRead, is_plain
from airflow_provider_pgddl.engine.pipeline.model import Pipeline
from airflow_provider_pgddl.engine.pipeline.names import written
from airflow_provider_pgddl.engine.schema.table_model import ColumnModel, TableModel
from airflow_provider_pgddl.engine.schema.verdict import SchemaFinding, Verdict

NOTHING = RowsRead()
LATE = (
    "came after setup, and tables.where or tables.transform names it: what they say was looked at with another table of"
    " this name. `pgddl reset` the pipeline and run again from setup, or rename the table"
)
DETACHED = (
    "was a partition of a table of which tables.where or tables.transform takes only part, and by itself would come as"
    " it is: ATTACH it again, or leave it out (tables.exclude) and take its rows off the target"
)
DETACHED_WITH_KEPT = (
    "was a partition of a table with rows that the target alone has (tables.existing), and would be read again without"
    " them: ATTACH it again, or leave it out (tables.exclude)"
)
NOT_TOLD_THERE = (
    "has rows on the target, and tables.where does not tell by built-in comparisons of columns that are copied as they"
    " are which of them may be the source's"
)
TELL_THERE = "simplify the condition, or set tables.keep_extra: false, which removes what only the target has"
_MODIFIER = re.compile(r"\([^)]*\)")


def made_sql(table: Table, read: RowsRead, column: str) -> str:
    """What stands for a column: of its own type in any case, so that both sides print it alike."""
    type_ = next(c.type for c in table.columns if c.name == column)
    return f"CAST({read.transform[column].sql} AS {type_})"


def read_of(pipeline: Pipeline, table: Table) -> RowsRead:
    """What the file says of a table's rows; PreflightRefused where the table has not the columns for it."""
    read = pipeline.rows_read.get((table.schema, table.name), NOTHING)
    present = {c.name for c in table.columns}
    if lacking := sorted(read.columns - present):
        raise PreflightRefused(
            f"has no column {written(lacking[0])}, which tables.where or tables.transform names", table=table.qualified,
            todo="correct the pipeline file",
        )  # fmt: skip
    if in_key := sorted({*read.transform} & {*(table.key.columns if table.key else ())}):
        raise PreflightRefused(
            f"column {written(in_key[0])} is part of the key, by which rows are found again", table=table.qualified,
            todo="leave it out of tables.transform",
        )  # fmt: skip
    return read


def condition_there(plan: Plan, source: Mapping[str, str], target: Mapping[str, str]) -> str:
    """`tables.where` for rows that the target had before the pipeline, by the types of either side's columns; "" where
    there is none, or where it would take more than the server's own operators over columns that both have of one
    built-in type and that are copied as they are."""
    copied = zip(plan.columns.names, plan.columns.expressions, strict=True)
    as_they_are = {c for c, value in copied if value == sql.Identifier(c).as_string()}
    same = {c for c in as_they_are if c in source and source[c] == target.get(c) and not is_user_type(source[c])}
    return plan.where if plan.where and is_plain(plan.where, same) else ""


def unreadable(
    pipeline: Pipeline, name: Name, source: TableModel, version: Mapping[str, Any] | None
) -> tuple[SchemaFinding, ...]:
    """Why the rows of a table, recorded by this name, must not be read as the file says; `version` is the one recorded,
    None where there is none."""
    return tuple(
        SchemaFinding(
            "expression", "mismatch", what, column,
            impact="Nothing of it is read until that is settled; its changes are kept", reason="stopped",
        )
        for column, what in _changes(pipeline, name, source, version)
    )  # fmt: skip


def _changes(
    pipeline: Pipeline, name: Name, source: TableModel, version: Mapping[str, Any] | None
) -> Iterator[tuple[str | None, str]]:
    now = (source.schema, source.name)
    read = pipeline.rows_read.get(name, NOTHING)
    reset = "`pgddl reset` the pipeline and correct its file"
    back = f"rename it back, or {reset}"
    if pipeline.rows_read.get(now, NOTHING) != read:
        what = f"Table {written(*name)} is called {written(*now)} now, for which tables.where and tables.transform"
        yield None, f"{what} say something else: {back}"
        return
    for column in sorted(read.columns):
        there, text = source.column(column), f"Column {written(column)}, which tables.where or tables.transform names,"
        if there is None:
            yield column, f"{text} is gone from the source or has another name: {back}"
        elif version is not None and version.get("attnums", {}).get(column, there.attnum) != there.attnum:
            yield column, f"{text} is another column than it was: {back}"
        elif version is not None and (now_of := _other_type(version["columns"].get(column), there)):
            yield column, f"{text} is of type {now_of} now: give it back that which it had, or {reset}"
    for column in sorted(read.transform):
        made = source.column(column)
        if column in (source.key or ()):
            yield column, f"Column {written(column)} is in tables.transform and part of the key"
        elif made is not None and made.generated:
            yield column, f"Column {written(column)} is in tables.transform and generated"


def _other_type(recorded: Mapping[str, Any] | None, now: ColumnModel) -> str | None:
    """What a column is of now, if not of the type, or not under the collation, that is recorded: an expression may mean
    something else by it. A version that an older release has recorded may not have the latter."""
    if recorded is None:
        return None
    if _MODIFIER.sub("", recorded["type"]) != _MODIFIER.sub("", now.type.text):
        return now.type.text
    if "collation" not in recorded or recorded["collation"] == _collation(now):
        return None
    collation = now.collation or 'pg_catalog."default"'
    return f"{now.type.text} COLLATE {collation}"


def _collation(column: ColumnModel) -> str | None:
    """As versions have it: without quotes, and that of `name`, which is not the database's, as well."""
    if column.collation is None:
        return "pg_catalog.C" if column.type.stored.name in ("name", "name[]") else None
    return ".".join(next(dotted_names(column.collation)))


def beside_the_expressions(read: RowsRead, verdict: Verdict) -> tuple[SchemaFinding, ...]:
    """What the policy would read of a table beside the file's own expressions, and must not."""
    found = list[SchemaFinding]()
    for column in sorted({*read.transform} & {*verdict.casts}):
        what = f"Column {written(column)} is in tables.transform, and of another type on the target"
        found.append(SchemaFinding("expression", "mismatch", what, column, impact="Values would be cast twice"))
    if read.transform:
        for column in sorted(verdict.taken):
            what = (
                f"Column {written(column)} is generated on the source, from values that may not leave it, and is not on"
            )
            found.append(SchemaFinding("expression", "mismatch", f"{what} the target", column))
    return tuple(found)
