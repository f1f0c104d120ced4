"""Whether a pipeline file is still what setup recorded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow_provider_pgddl.engine.errors import UsageError
from airflow_provider_pgddl.engine.pipeline.model import Pipeline


def require_same_config(pipeline: Pipeline, recorded: Mapping[str, Any]) -> Pipeline:
    """Once setup has recorded the file, only free keys may change (`pipeline.later`); returned with the defaults of
    then. UsageError names the command that takes up the others."""
    from airflow_provider_pgddl.engine.pipeline.reading import as_set_up, changed_keys
    from airflow_provider_pgddl.engine.preflight.findings import refuse
    from airflow_provider_pgddl.engine.preflight.unsupported_keys import unsupported

    refuse(unsupported(pipeline), under_way=True)  # a key that may change can still ask for what is not built
    pipeline = as_set_up(pipeline, recorded)
    changed = changed_keys(recorded, pipeline.to_json())
    if changed:
        refuse_reset_keys(pipeline, changed)
        raise UsageError(
            f"{', '.join(changed)} changed since setup recorded pipeline {pipeline.pipeline!r}",
            todo=f"`pgddl reconfigure -p {pipeline.origin.name}` takes it up, with --dry-run it says what that "
            "does; or put the old value back",
        )
    return pipeline


def refuse_reset_keys(pipeline: Pipeline, changed: Sequence[str]) -> None:
    """UsageError for keys that nothing takes up but a new beginning."""
    from airflow_provider_pgddl.engine.pipeline.later import later_of

    if stays := [f"{key} ({later_of(key).why})" for key in changed if later_of(key).how == "reset"]:
        raise UsageError(
            f"{', '.join(stays)} changed since setup recorded pipeline {pipeline.pipeline!r}, and no run under way can "
            "take that up",
            todo="put the old value back, or `pgddl reset` the pipeline and start again",
        )
