"""`tables.where` and `tables.transform` against what a table has become: the file speaks of columns by name, and a name
may come to be another's."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from airflow_provider_pgddl.engine.errors import PreflightRefused
from airflow_provider_pgddl.engine.model.names import Name
from airflow_provider_pgddl.engine.model.tables import Table
from airflow_provider_pgddl.engine.pipeline.expressions import RowsRead
from airflow_provider_pgddl.engine.pipeline.model import Pipeline
from airflow_provider_pgddl.engine.pipeline.names import written
from airflow_provider_pgddl.engine.schema.table_model import TableModel
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
        elif version is not None and _other_type(version["columns"].get(column), there.type.text):
            yield (
                column,
                f"{text} is of type {there.type.text} now: give it back that which it had, or {reset}",
            )
    for column in sorted(read.transform):
        made = source.column(column)
        if column in (source.key or ()):
            yield column, f"Column {written(column)} is in tables.transform and part of the key"
        elif made is not None and made.generated:
            yield column, f"Column {written(column)} is in tables.transform and generated"


def _other_type(recorded: Mapping[str, Any] | None, now: str) -> bool:
    return recorded is not None and _MODIFIER.sub("", recorded["type"]) != _MODIFIER.sub("", now)


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
