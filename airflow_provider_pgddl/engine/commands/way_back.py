"""way-back: the pipeline file of `swap.way_back`."""

from __future__ import annotations

from typing import Any

from airflow_provider_pgddl.engine.errors import UsageError
from airflow_provider_pgddl.engine.journal.births import Births
from airflow_provider_pgddl.engine.journal.pipelines import Journal
from airflow_provider_pgddl.engine.pipeline.key_positions import ORIGIN
from airflow_provider_pgddl.engine.pipeline.model import Pipeline
from airflow_provider_pgddl.engine.pipeline.reading import load_pipeline
from airflow_provider_pgddl.engine.pipeline.way_back import way_back_of
from airflow_provider_pgddl.engine.server.connect import connect


def way_back_file(pipeline: Pipeline, source_dsn: str, _target_dsn: str) -> dict[str, Any]:
    """The content of the file: what the journal on the source recorded where the cut-over has prepared it, else what
    follows from this pipeline's file. Without secrets, and without what is a default."""
    name = pipeline.swap.way_back
    if name is None:
        raise UsageError(
            f"pipeline {pipeline.pipeline!r} has no way back",
            todo="give its file swap: {way_back: NAME}, before the cut-over",
        )
    with connect(source_dsn, purpose="look", pipeline=pipeline.pipeline) as source:
        found = Births(source, name).find()
        mine = found is not None and found.of == pipeline.pipeline
        back = load_pipeline(Journal(source, name).row().config) if mine else way_back_of(pipeline)
    tree = back.to_json()
    del tree[ORIGIN]
    return _said(tree, load_pipeline({"pipeline": name, **_ends(tree)}).to_json())


def _ends(tree: dict[str, Any]) -> dict[str, Any]:
    return {"source": tree["source"], "target": tree["target"], "tables": {"include": ["*.*"]}}


def _said(tree: dict[str, Any], plain: dict[str, Any]) -> dict[str, Any]:
    """Without what a file that says nothing of it would mean as well."""
    said = {}
    for key, value in tree.items():
        if key in ("source", "target"):
            said[key] = {k: v for k, v in value.items() if v is not None}
        elif isinstance(value, dict):
            if inner := _said(value, plain.get(key) or {}):
                said[key] = inner
        elif value != plain.get(key) or key in ("pipeline", "include"):
            said[key] = value
    return said
