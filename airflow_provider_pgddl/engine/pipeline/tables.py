"""The keys under `tables`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from airflow_provider_pgddl.engine.pipeline.expressions import Condition, Value
from airflow_provider_pgddl.engine.pipeline.fields import Flag, Section
from airflow_provider_pgddl.engine.pipeline.names import ColumnName, Pattern, TableName


class Tables(Section):
    include: tuple[Pattern, ...] = ()
    """What moves, rows and structure. In place: leave it out."""
    exclude: tuple[Pattern, ...] = ()
    """Taken away from `include` and `schema_only`."""
    schema_only: tuple[Pattern, ...] = ()
    """Structure moves, rows do not."""
    skip_columns: dict[TableName, tuple[ColumnName, ...]] = Field(default_factory=dict)
    """The columns are made on the target and left at their default; so they must take NULL or have one. None of a key.
    """
    where: dict[TableName, Condition] = Field(default_factory=dict)
    """Only these rows of a table are on the target: one that comes to fulfil the condition appears there, one that
    ceases to leaves ([part of the rows](../how-to/part-of-the-rows.md)). Not in place. Type: table: SQL over its
    columns, immutable.
    """
    transform: dict[TableName, dict[ColumnName, Value]] = Field(default_factory=dict)
    """Other values than the source has, of columns that are in no key: made on the source, which the values themselves
    never leave. Not in place. Type: table: {column: SQL over its columns, immutable}.
    """
    operations: tuple[Literal["insert", "update", "delete"], ...] = ("insert", "update", "delete")
    """What of the source's changes comes to its tables' rows on the target. Without `delete` a row stays there that the
    source has deleted; without `update` as well a row that is there stays as it is
    ([an archive](../how-to/archive.md)). Not in place. Type: list; `[insert, update]` or `[insert]`, or all three.
    """
    existing: Literal["refuse", "adopt", "replace"] = "refuse"
    """A table of the source is on the target already: refuse, take it as it is and bring its rows in line, or build a
    copy beside it that replaces it at the swap ([existing tables](../how-to/existing-tables.md)). Not in place.
    """
    keep_extra: Flag | None = None
    """Rows that only the target's own table has. Adopted: true keeps them, false removes them; left out, they are
    counted and nothing is brought in line before it is decided. Replaced: true keeps the whole old table at cleanup,
    false drops it with them; left out, cleanup counts them and drops nothing.
    """
    keyless: Literal["refuse", "copy_at_swap"] = "refuse"
    """A table without a key: refuse it, or copy it whole at the swap, while its writers wait. To a target
    `copy_at_swap` needs a `swap.fence`.
    """
