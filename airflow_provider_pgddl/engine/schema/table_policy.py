"""A table's policy: what the pipeline file says of its schema, the file's overrides taken in. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from airflow_provider_pgddl.engine.model.names import Name
from airflow_provider_pgddl.engine.pipeline.model import (
    Overrides,
    Pipeline,
    SourceAdded,
    SourceRemoved,
    TargetAdded,
    TargetConstraints,
    TypeMismatches,
    Validation,
)
from airflow_provider_pgddl.engine.pipeline.names import (
    column_name,
    exact_columns,
    table_column_name,
    table_name,
)


@dataclass(frozen=True, slots=True)
class TablePolicy:
    """What the pipeline says about one table, its overrides and `allow_schema_drift` counted in.

    `skip` are columns of the source that are not copied, `preserve` and `null` columns of the target that the source
    has lost; `allow_type_cast` is column → the target's type as the file writes it; `migrate` are the kinds of
    `auto_migrate`, `approved` whether they wait for nobody."""

    table: Name
    validation: Validation = "strict"
    source_added: SourceAdded = "stop"
    target_added: TargetAdded = "allow"
    source_removed: SourceRemoved = "stop"
    target_constraints: TargetConstraints = "stop"
    type_mismatches: TypeMismatches = "stop"
    safe_casts_allowed: bool = True
    allow_type_cast: Mapping[str, str] = field(default_factory=dict)
    skip: frozenset[str] = frozenset()
    preserve: frozenset[str] = frozenset()
    null: frozenset[str] = frozenset()
    migrate: frozenset[str] = frozenset()
    approved: bool = False
    in_place: bool = False

    @classmethod
    def of(cls, pipeline: Pipeline, table: Name, *, skip: Collection[str] = ()) -> TablePolicy:
        """`skip`: columns that are left out beside those that the pipeline names."""
        # allow_schema_drift loosens what stops; what the pipeline or the table says beside that stays.
        schema = pipeline.schema_
        own = next((o for name, o in schema.overrides.items() if table_name(name) == table), Overrides())
        drift = {*schema.allow_schema_drift}
        if "all" in drift:
            drift = {"source_superset", "target_superset", "type_casts"}
        added, removed = schema.source_added_columns, schema.source_removed_columns
        if added == "stop" and "source_superset" in drift:
            added = "skip"
        if removed == "stop" and "target_superset" in drift:
            # A column that the source has lost is one more that only the target has.
            removed = "preserve"
        casts = {table_column_name(name): to for name, to in schema.allow_type_cast.items()}
        own_casts = {column_name(name): to for name, to in (own.allow_type_cast or {}).items()}
        safe = own.safe_casts_allowed
        return cls(
            table,
            validation=own.validation or schema.validation,
            source_added=own.source_added_columns or added,
            target_added=own.target_added_columns
            or ("allow" if "target_superset" in drift else schema.target_added_columns),
            source_removed=removed if own.source_removed_columns == "inherit" else own.source_removed_columns,
            target_constraints=own.target_added_constraints
            or ("allow" if "all" in schema.allow_schema_drift else schema.target_added_constraints),
            type_mismatches=own.type_mismatches or ("cast_always" if "type_casts" in drift else schema.type_mismatches),
            safe_casts_allowed=schema.safe_casts_allowed if safe is None else safe,
            allow_type_cast={column: to for (name, column), to in casts.items() if name == table} | own_casts,
            skip=frozenset({*skip, *pipeline.skipped_columns.get(table, ())}),
            preserve=frozenset(exact_columns(schema.preserve_columns).get(table, ())),
            null=frozenset(exact_columns(schema.null_removed_columns).get(table, ())),
            migrate=frozenset(schema.auto_migrate.types),
            approved=schema.auto_migrate.approval == "auto",
            in_place=pipeline.in_place,
        )

    @property
    def lenient(self) -> bool:
        """Whether rows go on wherever they can."""
        return self.validation != "strict"
