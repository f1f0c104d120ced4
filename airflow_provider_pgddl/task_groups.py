"""Task groups: a whole pipeline in one line of a DAG."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from airflow.sdk import TaskGroup, chain

from airflow_provider_pgddl.operators.stages import (
    PgddlBackfillOperator,
    PgddlCleanupOperator,
    PgddlReplayOperator,
    PgddlSchemaSyncOperator,
    PgddlSetupOperator,
    PgddlSnapshotOperator,
    PgddlSwapOperator,
    PgddlVerifyOperator,
)
from airflow_provider_pgddl.sensors.schema import PgddlSchemaSensor


def lifecycle(
    *,
    pipeline: str | os.PathLike[str] | Mapping[str, Any],
    group_id: str = "lifecycle",
    gate: Mapping[str, Any] | None = None,
    default_args: Mapping[str, Any] | None = None,
    **spark: Any,
) -> TaskGroup:
    """setup → snapshot → backfill → schema_sync → replay → gate → catch_up → verify → swap → cleanup.

    `gate` is for the sensor (on_mismatch, notify, deferrable, timeout, poke_interval, mode ...), `default_args` for
    every task, everything else for the operators (what SparkSubmitOperator takes). Task ids are `<group_id>.<stage>`.
    """
    with TaskGroup(group_id=group_id, default_args=dict(default_args or {})) as group:
        common: dict[str, Any] = {"pipeline": pipeline, **spark}
        chain(
            PgddlSetupOperator(task_id="setup", **common),
            PgddlSnapshotOperator(task_id="snapshot", **common),
            PgddlBackfillOperator(task_id="backfill", **common),
            PgddlSchemaSyncOperator(task_id="schema_sync", **common),
            PgddlReplayOperator(task_id="replay", **common),
            PgddlSchemaSensor(task_id="gate", pipeline=pipeline, **(gate or {})),
            PgddlReplayOperator(task_id="catch_up", **common),
            PgddlVerifyOperator(task_id="verify", **common),
            PgddlSwapOperator(task_id="swap", **common),
            PgddlCleanupOperator(task_id="cleanup", **common),
        )
    return group


def follow(
    *,
    pipeline: str | os.PathLike[str] | Mapping[str, Any],
    group_id: str = "follow",
    gate: Mapping[str, Any] | None = None,
    default_args: Mapping[str, Any] | None = None,
    **spark: Any,
) -> TaskGroup:
    """setup → snapshot → backfill → schema_sync → gate → replay, for a DAG that runs again and again.

    The first run copies what is there. In every other one the first four have nothing to do but for tables that came
    since, and replay brings DDL and rows until it is less than `replay.until_lag` behind. The DAG needs a schedule and
    max_active_runs=1. Arguments and task ids are as for `lifecycle`.
    """
    with TaskGroup(group_id=group_id, default_args=dict(default_args or {})) as group:
        common: dict[str, Any] = {"pipeline": pipeline, **spark}
        chain(
            PgddlSetupOperator(task_id="setup", **common),
            PgddlSnapshotOperator(task_id="snapshot", **common),
            PgddlBackfillOperator(task_id="backfill", **common),
            PgddlSchemaSyncOperator(task_id="schema_sync", **common),
            PgddlSchemaSensor(task_id="gate", pipeline=pipeline, **(gate or {})),
            PgddlReplayOperator(task_id="replay", **common),
        )
    return group
