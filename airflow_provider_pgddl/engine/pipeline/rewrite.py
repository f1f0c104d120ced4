"""The section `rewrite` of the pipeline file: what becomes of a table in place."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field

from airflow_provider_pgddl.engine.pipeline.fields import Flag, Section, Text
from airflow_provider_pgddl.engine.pipeline.names import ColumnName

PERIODS = ("day", "week", "month", "quarter", "year")


def _width(value: object) -> object:
    """What one partition of a range holds: a word for dates, a width for numbers."""
    if value is None or value in PERIODS or (isinstance(value, int) and not isinstance(value, bool) and value > 0):
        return value
    raise ValueError(f"expected {', '.join(PERIODS)}, or for numbers a width such as 1000000")


def _listed(value: object) -> object:
    """``true``, or each partition's values: one, or a list of some."""
    wanted = "expected true (a partition a value), or each partition's value or values, such as [eu, [us, ca]]"
    if value is None or value is True:
        return value
    if not isinstance(value, list | tuple) or not value:
        raise ValueError(wanted)
    entries = [tuple(entry) if isinstance(entry, list | tuple) else (entry,) for entry in value]
    if not all(entry and all(isinstance(x, str | int) for x in entry) for entry in entries):
        raise ValueError(wanted)
    texts = [str(x).lower() if isinstance(x, bool) else str(x) for entry in entries for x in entry]
    if len(set(texts)) < len(texts):
        raise ValueError("a value stands in it twice")
    return entries


class PartitionBy(Section):
    """How a table is partitioned from the swap on: by one of `range`, `list` and `hash`."""

    column: ColumnName
    """The partition key: NOT NULL, and in every unique index but the primary key, which takes it in."""
    range: Annotated[str | int | None, BeforeValidator(_width)] = None
    """By range: a partition a period of a date or timestamp (in UTC; weeks begin on Monday), or of so many numbers.
    Type: day, week, month, quarter, year, or a number.
    """
    list: Annotated[bool | tuple[tuple[str | int, ...], ...] | None, BeforeValidator(_listed)] = None
    """By list: a partition a value, or these. Type: true, or a list of values and of lists of values."""
    hash: Annotated[int | None, Field(strict=True, ge=2, le=1000)] = None
    """By hash: so many partitions."""
    ahead: Annotated[int, Field(strict=True, ge=0, le=1000)] = 3
    """Of a range: partitions made beyond the newest row, and beyond today."""
    default_partition: Flag = False
    """A partition for rows that no other takes; not beside `hash`."""

    @property
    def method(self) -> str:
        return "range" if self.range is not None else "list" if self.list is not None else "hash"


class Rewrite(Section):
    """What becomes of one table in place; all left out: the same table without its bloat."""

    alter: tuple[Text, ...] = ()
    """Actions of ALTER TABLE: ALTER COLUMN … TYPE [USING], SET and DROP NOT NULL, SET and DROP DEFAULT, SET STATISTICS,
    STORAGE, COMPRESSION, SET and RESET (…), SET TABLESPACE, DROP COLUMN. A USING goes into the copying SELECT; on a
    key column it is refused. Type: list of actions.
    """
    partition_by: PartitionBy | None = None
    order_by: tuple[ColumnName, ...] = ()
    """The order of rows on disk: that of the live table's columns, NULLs last."""
