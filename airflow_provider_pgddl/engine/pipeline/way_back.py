"""The pipeline that leads back from a cut-over: the same tables and policies, the other way."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from airflow_provider_pgddl.engine.model.names import Name
from airflow_provider_pgddl.engine.pipeline.key_positions import ORIGIN
from airflow_provider_pgddl.engine.pipeline.model import Pipeline
from airflow_provider_pgddl.engine.pipeline.names import exact_columns, written
from airflow_provider_pgddl.engine.pipeline.reading import load_pipeline


def way_back_of(
    pipeline: Pipeline,
    only_there: Mapping[Name, Collection[str]] | None = None,
    retyped: Mapping[Name, Mapping[str, str]] | None = None,
) -> Pipeline:
    """`swap.way_back` of a pipeline as a pipeline of its own, whose way back is that one again.

    `only_there` are columns that the target alone has, which have no place to go back to; `retyped` those that have
    another type on the source, with that type. What was left out on the way there is left out on the way back, so the
    source keeps its values, as a target its own columns', nulled ones too."""
    name = pipeline.swap.way_back
    assert name is not None
    tree = pipeline.to_json()
    del tree[ORIGIN]
    tree["pipeline"], tree["source"], tree["target"] = name, tree["target"], tree["source"]
    tree["swap"]["way_back"] = pipeline.pipeline
    if others := pipeline.ddl.other_roles:
        tree["ddl"]["missing_role"] = {there: here for here, there in others.items()}
    schema = tree["schema"]
    for overrides in schema["overrides"].values():
        overrides.pop("skip_columns", None)  # all of them are in tables.skip_columns here
        overrides.pop("allow_type_cast", None)
    skipped = {table: {*columns} for table, columns in pipeline.skipped_columns.items()}
    for table, columns in (only_there or {}).items():
        skipped.setdefault(table, set()).update(columns)
    tree["tables"]["skip_columns"] = _written(skipped)
    casts = {written(*table, column): to for table, types in (retyped or {}).items() for column, to in types.items()}
    schema["allow_type_cast"] = dict(sorted(casts.items()))
    if casts:
        schema["force"] = True  # of a value that the old type cannot hold the table stops, by its key
    _keep_columns(pipeline, schema)
    return load_pipeline(tree)


def of_a_birth(pipeline: Pipeline) -> Pipeline:
    """As a run reads its file that was born by a cut-over: what was made NULL on the way there has been its server's
    own since, and keeps what applications have written there."""
    tree = pipeline.to_json()
    _keep_columns(pipeline, tree["schema"])
    return load_pipeline(tree)


def _keep_columns(pipeline: Pipeline, schema: dict[str, Any]) -> None:
    """Columns that are to become NULL are kept instead."""
    kept = {table: {*columns} for table, columns in exact_columns(pipeline.schema_.preserve_columns).items()}
    for table, columns in exact_columns(pipeline.schema_.null_removed_columns).items():
        kept.setdefault(table, set()).update(columns)
    schema["preserve_columns"], schema["null_removed_columns"] = _written(kept), {}
    for place in (schema, *schema["overrides"].values()):
        if place.get("source_removed_columns") == "null":
            place["source_removed_columns"] = "preserve"


def _written(columns: Mapping[Name, Collection[str]]) -> dict[str, list[str]]:
    """Exact names as a file writes them."""
    return {written(*table): sorted(map(written, listed)) for table, listed in sorted(columns.items()) if listed}
