"""pause, resume and cancel: what the shell tells the runs of a pipeline, which obey at their next border."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from airflow_provider_pgddl.engine.journal.actions import Actions
from airflow_provider_pgddl.engine.journal.control import Control, control_status
from airflow_provider_pgddl.engine.journal.pipelines import Journal
from airflow_provider_pgddl.engine.pipeline.model import Pipeline
from airflow_provider_pgddl.engine.server.connect import connect


def pause(pipeline: Pipeline, target_dsn: str, why: str | None, who: str | None = None) -> dict[str, Any]:
    """Holds runs, those under way and those to come, until `resume`; `why` is shown to whoever asks. `who`: with this
    name it is recorded that somebody has, here and below.

    Returns what `status` shows as "control". UsageError where setup has not run, here and below."""
    with _control(pipeline, target_dsn) as control:
        control.pause(why)
        _record(control, who, "pause", why)
        return {"pipeline": pipeline.pipeline, **control_status(control)}


def resume(pipeline: Pipeline, target_dsn: str, who: str | None = None) -> dict[str, Any]:
    """Lets paused runs go on. `was_paused` says whether there was a pause."""
    with _control(pipeline, target_dsn) as control:
        _record(control, who, "resume")
        return {"pipeline": pipeline.pipeline, "was_paused": control.resume(), **control_status(control)}


def cancel(pipeline: Pipeline, target_dsn: str, who: str | None = None) -> dict[str, Any]:
    """Ends the runs that have begun by now. `cancelled` lists their stages: none where nothing was under way."""
    with _control(pipeline, target_dsn) as control:
        control.cancel()
        _record(control, who, "cancel")
        return {"pipeline": pipeline.pipeline, "cancelled": control_status(control)["under_way"]}


def _record(control: Control, who: str | None, action: str, note: str | None = None) -> None:
    if who is not None:
        Actions(control.conn, control.pipeline).add(who, action, None, note)


@contextmanager
def _control(pipeline: Pipeline, target_dsn: str) -> Iterator[Control]:
    with connect(target_dsn, purpose="control", pipeline=pipeline.pipeline) as session, session.transaction():
        Journal(session, pipeline.pipeline).row()  # UsageError where there is none
        yield Control(session, pipeline.pipeline)
