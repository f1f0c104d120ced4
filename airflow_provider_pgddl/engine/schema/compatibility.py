"""What differs between a table on the source and its copy on the target, and the SQL that ends it. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from airflow_provider_pgddl.engine.schema.casts import Cast
from airflow_provider_pgddl.engine.schema.model import ColumnModel, Name, TableModel
from airflow_provider_pgddl.engine.schema.verdict import Finding

_NONE: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Difference:
    """One finding with the columns that it is about (None where a side has none) and, where their types differ, the
    cast between them."""

    finding: Finding
    source: ColumnModel | None = None
    target: ColumnModel | None = None
    cast: Cast | None = None


def compare(
    source: TableModel | None, target: TableModel | None, target_types: frozenset[str], *,
    removed: Collection[str] = (), renamed: Mapping[str, str] = _NONE, altered: Collection[str] = (),
    keyed: bool = True, names: tuple[Name, Name],
) -> list[Difference]:  # fmt: skip
    return []
