"""The operators, one a stage; all that they share is in `base`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from airflow_provider_pgddl.engine.errors import UsageError
from airflow_provider_pgddl.engine.job.file import End, Job
from airflow_provider_pgddl.engine.job.stage_names import named_stages
from airflow_provider_pgddl.engine.pipeline.model import Pipeline
from airflow_provider_pgddl.operators.base import PgddlOperator, small


def _said(name: str, value: bool | str) -> bool:
    said = str(value).strip().lower()
    if said not in ("true", "false"):
        raise UsageError(f"{name} is true or false, not {value!r}")
    return said == "true"


class PgddlSetupOperator(PgddlOperator):
    """Preflight, migrations, and the start of capture: from its end on no change is missed.

    :param again: begin the next run of a pipeline that is finished. Without it such a pipeline has nothing to do. A
        bool, or a template that renders to `true` or `false`, such as `{{ params.again }}`
    :param reconfigure: take up a pipeline file that has changed since, as `pgddl reconfigure` does; without it a change
        fails the task. A bool, or a template. The copies of tables that the file takes out are left as they are
    """

    stage = "setup"
    template_fields: Sequence[str] = ("again", "reconfigure", *PgddlOperator.template_fields)

    def __init__(self, *, again: bool | str = False, reconfigure: bool | str = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.again, self.reconfigure = again, reconfigure

    def _job(self, pipeline: Pipeline, found: Mapping[End, str]) -> Job:
        again, changed = _said("again", self.again), _said("reconfigure", self.reconfigure)
        return replace(super()._job(pipeline, found), again=again, reconfigure=changed)


class PgddlSnapshotOperator(PgddlOperator):
    """Records the source's schema as DDL events, and creates the copies."""

    stage = "snapshot"


class PgddlBackfillOperator(PgddlOperator):
    """Copies the rows that are there, chunk by chunk."""

    stage = "backfill"


class PgddlSchemaSyncOperator(PgddlOperator):
    """Takes the keys that changed out of the copy, builds its indexes and constraints, and records the verdict."""

    stage = "schema_sync"


class PgddlReplayOperator(PgddlOperator):
    """Replays changes in windows until the lag is small.

    :param target_is_live: others read the target while it follows, so each table that a replay has changed is an event
        of its asset `postgres://host:port/database/schema/table`, with `keys`, how many have changed, and `window`
    """

    stage = "replay"

    def __init__(self, *, target_is_live: bool = False, **kwargs: Any) -> None:
        self.changes_live_tables = target_is_live
        super().__init__(**kwargs)


class PgddlVerifyOperator(PgddlOperator):
    """Compares counts and checksums, range by range, and finds the rows that differ.

    :param mend: read again what differs, and compare that once more: a bool, or a template that renders to one
    """

    stage = "verify"
    template_fields: Sequence[str] = ("mend", *PgddlOperator.template_fields)

    def __init__(self, *, mend: bool | str = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.mend = mend

    def _job(self, pipeline: Pipeline, found: Mapping[End, str]) -> Job:
        return replace(super()._job(pipeline, found), mend=_said("mend", self.mend))


class PgddlSwapOperator(PgddlOperator):
    """Puts the copy in the live table's place, or cuts over to the other cluster. Each table is then an event of its
    asset `postgres://host:port/database/schema/table`."""

    stage = "swap"
    changes_live_tables = True
    left = "{stage} left {tables} to you"


class PgddlRevertOperator(PgddlOperator):
    """Takes a swap in place back, with all that was written since. It comes before cleanup or not at all, so in a DAG
    beside `reversible`: `lifecycle` cleans up right behind the swap."""

    stage = "revert"


class PgddlCleanupOperator(PgddlOperator):
    """Takes capture off the source and drops what was needed only on the way; the journal stays."""

    stage = "cleanup"


class PgddlStagesOperator(PgddlOperator):
    """Several stages, one after the other, in one Spark application and one task. Each has a run and a result of its
    own in the journal; the first that fails ends the task, and a retry goes on there. `swap`, `cleanup` and `revert` do
    not follow on a stage that left tables out. The result has `stages`, one small dict for each, and `blocked`.

    :param stages: `"setup..replay"`, `"verify,swap"`, or a list of stages
    """

    stage = "stages"
    left = "the stages {stage} went on without {tables}, which is blocked"

    def __init__(self, *, stages: str | Sequence[str], **kwargs: Any) -> None:
        self.stages = named_stages(stages)
        self.stage = ", ".join(self.stages)
        self.changes_live_tables = "swap" in self.stages
        super().__init__(**kwargs)

    @property
    def lineage_stages(self) -> Sequence[str]:
        return self.stages

    def _job(self, pipeline: Pipeline, found: Mapping[End, str]) -> Job:
        first, *others = self.stages
        return replace(super()._job(pipeline, found), stage=first, then=tuple(others))

    def _tells_of(self, stage: str) -> bool:
        return stage == "swap"

    def _told(self, results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        told = [small(result) for result in results]
        return {
            "pipeline": told[-1]["pipeline"],
            "run": told[-1]["run"],
            "stages": told,
            "blocked": told[-1]["blocked"],
        }


STAGE_OPERATORS: dict[str, type[PgddlOperator]] = {
    operator.stage: operator
    for operator in (
        PgddlSetupOperator,
        PgddlSnapshotOperator,
        PgddlBackfillOperator,
        PgddlSchemaSyncOperator,
        PgddlReplayOperator,
        PgddlVerifyOperator,
        PgddlSwapOperator,
        PgddlRevertOperator,
        PgddlCleanupOperator,
    )
}
