"""What comparing two tables tells of each thing that differs. Pure data."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_pgddl.engine.schema.casts import Cast
from airflow_provider_pgddl.engine.schema.table_model import ColumnModel
from airflow_provider_pgddl.engine.schema.verdict import SchemaFinding


@dataclass(frozen=True, slots=True)
class Difference:
    """One finding with the columns that it is about (None where a side has none) and, where their types differ, the
    cast between them."""

    finding: SchemaFinding
    source: ColumnModel | None = None
    target: ColumnModel | None = None
    cast: Cast | None = None
