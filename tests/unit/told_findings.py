"""One finding of each kind, as the requirement has them, and reports that tell of them."""

from __future__ import annotations

from rich.cells import cell_len

from airflow_provider_pgddl.engine.schema import report
from airflow_provider_pgddl.engine.schema.table_model import ColumnModel, TableModel, TypeModel
from airflow_provider_pgddl.engine.schema.verdict import OR, Choice, SchemaFinding, TableReport

ADDED = SchemaFinding(
    "source_added_column",
    "mismatch",
    "Source has new column 'phone_number' not in target",
    "phone_number",
    impact="If sync continues, phone_number data will be LOST",
    source="varchar",
    fix=("ALTER TABLE public.users ADD COLUMN phone_number varchar;",),
    choices=(
        Choice(
            "Or explicitly skip this column (NOT RECOMMENDED - data loss)", "--skip-columns=public.users.phone_number"
        ),
        Choice("Or allow all source-only columns (DANGEROUS)", "--allow-schema-drift=source_superset --force"),
    ),
)
RETYPED = SchemaFinding(
    "type_mismatch",
    "mismatch",
    "Type mismatch on public.products.price: numeric(10,2) on the source, integer on the target",
    "price",
    impact="Casting would lose precision (19.99 → 20)",
    source="numeric(10,2)",
    target="integer",
    fix=("ALTER TABLE public.products ALTER COLUMN price TYPE numeric(10,2);",),
    choices=(
        Choice("Or explicitly allow cast (DATA LOSS)", "--allow-type-cast=public.products.price:integer --force"),
    ),
    reason="type_mismatch",
)
WIDENED = SchemaFinding(
    "safe_cast",
    "info",
    "Type difference on public.users.id: integer on the source, bigint on the target",
    "id",
    impact="Safe widening cast - continuing",
    source="integer",
    target="bigint",
)
EXTRA = SchemaFinding(
    "target_added_column",
    "warning",
    "Target has extra column 'created_by_system' (nullable)",
    "created_by_system",
    impact="This column will be NULL for all synced rows\nThis is OK for audit/metadata columns",
    target="text",
)
REMOVED = SchemaFinding(
    "source_removed_column",
    "mismatch",
    "Target has column 'legacy_id' that no longer exists in source",
    "legacy_id",
    fix=("ALTER TABLE public.users DROP COLUMN legacy_id;",),
    choices=(
        Choice("Keep existing values, stop updating", "--preserve-columns=public.users.legacy_id"),
        Choice("Set to NULL on all synced rows", "--null-removed-columns=public.users.legacy_id --force"),
    ),
    reason="source_removed",
)
REQUIRED = SchemaFinding(
    "target_added_column",
    "mismatch",
    "Target has new column 'created_by_system' (NOT NULL, no DEFAULT)",
    "created_by_system",
    impact="Cannot insert rows - column requires a value.",
    fix=(
        "ALTER TABLE public.users ALTER COLUMN created_by_system DROP NOT NULL;",
        OR,
        "ALTER TABLE public.users ALTER COLUMN created_by_system SET DEFAULT 'pgddl';",
    ),
    reason="target_not_null",
)


def told(*findings: SchemaFinding, table: str = "public.users") -> TableReport:
    status = "mismatch" if any(f.severity == "mismatch" for f in findings) else "warning" if findings else "compatible"
    return TableReport(table, status, findings, 15, 14, resolution=report.resolution(findings))


def inside(box: str) -> list[str]:
    """The lines within a box, without its frame and empty lines."""
    lines = [line.strip("║").rstrip() for line in box.splitlines() if line.startswith("║")]
    return [line[1:] for line in lines if line]


def assert_framed(box: str) -> None:
    lines = box.splitlines()
    assert len({cell_len(line) for line in lines}) == 1
    assert [(line[0], line[-1]) for line in lines[:3]] == [("╔", "╗"), ("║", "║"), ("╠", "╣")]
    assert (lines[-1][0], lines[-1][-1]) == ("╚", "╝")
    assert all(line[0] + line[-1] in ("║║", "╟╢") for line in lines[3:-1])


def column(name: str, type_: str, *, not_null: bool = False, default: str | None = None) -> ColumnModel:
    model = TypeModel(type_.partition("(")[0], type_, "base")
    return ColumnModel(1, name, model, not_null, default, "", "", None)


def table(*columns: ColumnModel) -> TableModel:
    return TableModel(1, "public", "users", "r", columns, ("id",))
