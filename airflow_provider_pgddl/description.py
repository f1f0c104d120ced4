"""What a task says of its pipeline in the DAG that Airflow keeps, so that the page finds it: names, and no secret."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from airflow_provider_pgddl.engine.errors import PgddlError
from airflow_provider_pgddl.engine.pipeline.reading import load_pipeline, refuse_literal_secrets
from airflow_provider_pgddl.retrying import give_up

FIELD = "pgddl"
"""Of a serialized task: JSON, as Airflow reads no dict there back."""


LEFT_OUT = "(left out, as it cannot be read or holds a secret)"


class Described:
    """A task with a `pipeline`, before its class of Airflow's: it is serialized with what it says of that, and keeps
    secrets out of what is rendered."""

    pipeline: Any

    @property
    def pgddl(self) -> str | None:
        """What FIELD holds."""
        told = describe(self)
        return None if told is None else json.dumps(told)

    @classmethod
    def get_serialized_fields(cls) -> frozenset[str]:
        fields: frozenset[str] = super().get_serialized_fields()  # type: ignore[misc]
        return frozenset(fields) | {FIELD}

    def _do_render_template_fields(self, parent: Any, *args: Any, **kwargs: Any) -> None:
        """A mapped task is rendered by this alone. What is rendered is sent to Airflow's database next, so a secret
        in it is refused here, and is in the field no more: a task that has failed may be sent as well."""
        super()._do_render_template_fields(parent, *args, **kwargs)  # type: ignore[misc]
        if parent is not self:
            return
        try:
            refuse_literal_secrets(self.pipeline)
        except PgddlError as error:
            self.pipeline = LEFT_OUT
            give_up(error)


def describe(task: Any) -> dict[str, Any] | None:
    """`file` is its path as the DAG has it, None where it is written in the DAG. `source` and `target` are ids of
    Airflow connections, None where the file gives a dsn. None for a pipeline that cannot be told while the DAG is
    parsed: a run says what is wrong with it."""
    given: str | os.PathLike[str] | Mapping[str, Any] = task.pipeline
    try:
        pipeline = load_pipeline(given, base=Path(task.dag.folder) if task.has_dag() else None)
    except PgddlError:
        return None
    return {
        "pipeline": pipeline.pipeline,
        "file": None if isinstance(given, Mapping) else os.fspath(given),
        "source": pipeline.source.conn_id,
        "target": (pipeline.target or pipeline.source).conn_id,
        "in_place": pipeline.target is None,
    }
