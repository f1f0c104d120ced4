"""Task groups: a whole pipeline in one line of a DAG."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from airflow.sdk import BaseOperator, TaskGroup, chain

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
    again: bool | str = False,
    reconfigure: bool | str = False,
    approve_swap: bool | Mapping[str, Any] = False,
    approve_ddl: bool | Mapping[str, Any] = False,
    default_args: Mapping[str, Any] | None = None,
    **spark: Any,
) -> TaskGroup:
    """setup → snapshot → backfill → schema_sync → replay → gate → catch_up → verify → swap → cleanup.

    `gate` is for the sensor (on_mismatch, notify, deferrable, timeout, poke_interval, mode ...), `again` and
    `reconfigure` for setup, `default_args` for every task, everything else for the operators (what
    SparkSubmitOperator takes). Task ids are `<group_id>.<stage>`.

    With `approve_swap` two tasks stand before the swap: `rehearse`, and `approve`, which shows a person what the
    rehearsal has found and waits for the answer (from Airflow 3.3 on without a worker or a triggerer). Rejected, the
    run ends there, and capture stays on. A mapping is for that task: assigned_users, notifiers, response_timeout ...

    With `approve_ddl` a task `approve_ddl` stands before the gate: where DDL waits for approval, or a change of the
    target that `auto_migrate` makes, it shows a person the statements and waits. `catch_up` applies what is approved.
    What comes later fails verify, as ever: clear `approve_ddl` and all behind it. A mapping is for that task.

    Tasks before the gate go on without tables that are blocked, and the gate closes for them. A table that is blocked
    behind the gate fails verify (on_blocked). A swap that is done but left something to a person, such as a foreign key
    that rows violate, is shown as skipped, and cleanup goes on. So is cleanup while a way back lives (`swap.way_back`).
    The gate is deferrable, which takes a triggerer, unless its mode is given.
    """
    with TaskGroup(group_id=group_id, default_args=dict(default_args or {})) as group:
        begin = {"again": again, "reconfigure": reconfigure}
        verify, swap = _until_swap(pipeline, gate, begin, approve_swap, approve_ddl, spark)
        # Behind a swap that is shown as skipped, but not behind one that was skipped with all before it.
        cleanup = PgddlCleanupOperator(
            task_id="cleanup",
            trigger_rule="none_failed_min_one_success",
            **{"pipeline": pipeline, "on_blocked": "skip", **spark},
        )
        swap >> cleanup
        verify >> cleanup
    return group


def follow(
    *,
    pipeline: str | os.PathLike[str] | Mapping[str, Any],
    group_id: str = "follow",
    gate: Mapping[str, Any] | None = None,
    gate_first: bool = False,
    approve_ddl: bool | Mapping[str, Any] = False,
    reconfigure: bool | str = False,
    default_args: Mapping[str, Any] | None = None,
    **spark: Any,
) -> TaskGroup:
    """setup → snapshot → backfill → schema_sync → replay → gate, for a DAG that runs again and again.

    The first run copies what is there. In every other run the first four tasks have nothing to do, except for tables
    that came since, and submit nothing. Replay brings DDL and rows of every healthy table until it is less than
    `replay.until_lag` behind. The gate then reports the tables that replay had to leave out, and is skipped. With
    `gate_first` the gate stands before replay and waits, so all tables are brought or none; replay is skipped where it
    had to leave tables out. `approve_ddl` then stands before the gate, as in `lifecycle`. Without `gate_first` a person
    who is waited for would hold up every table, so there PgddlDdlApproval belongs into a DAG of its own. With
    `reconfigure` setup takes up a pipeline file that has changed. The DAG needs a schedule, a start_date and
    max_active_runs=1. Arguments and task ids are as for `lifecycle`.
    """
    if approve_ddl is not False and not gate_first:
        raise ValueError(
            "follow(approve_ddl=...) needs gate_first=True: while a person is waited for, no table would be followed. "
            "Put PgddlDdlApproval(pipeline=...) into a DAG of its own"
        )
    with TaskGroup(group_id=group_id, default_args=dict(default_args or {})) as group:
        before: dict[str, Any] = {"pipeline": pipeline, "on_blocked": "go_on", **spark}
        chain(
            PgddlSetupOperator(task_id="setup", reconfigure=reconfigure, **before),
            PgddlSnapshotOperator(task_id="snapshot", **before),
            PgddlBackfillOperator(task_id="backfill", **before),
            schema_sync := PgddlSchemaSyncOperator(task_id="schema_sync", **before),
        )
        if gate_first:
            live = PgddlReplayOperator(task_id="replay", pipeline=pipeline, target_is_live=True, **spark)
            chain(schema_sync, *_approve_ddl(pipeline, approve_ddl), _gate(pipeline, gate), live)
        else:
            reports = _gate(pipeline, {"on_mismatch": "report", **(gate or {})})
            chain(schema_sync, PgddlReplayOperator(task_id="replay", target_is_live=True, **before), reports)
    return group


def reversible(
    *,
    pipeline: str | os.PathLike[str] | Mapping[str, Any],
    group_id: str = "reversible",
    gate: Mapping[str, Any] | None = None,
    again: bool | str = False,
    reconfigure: bool | str = False,
    approve_swap: bool | Mapping[str, Any] = False,
    approve_ddl: bool | Mapping[str, Any] = False,
    default_args: Mapping[str, Any] | None = None,
    **spark: Any,
) -> TaskGroup:
    """`lifecycle` without its cleanup, for whoever may want to go back.

    With `swap.way_back` capture, fence and journal are needed until that pipeline's cleanup lets go of the old server.
    The way back is followed in a DAG of its own (`follow`), and gone by that pipeline's verify and swap (`go_back`).

    In place, and with `tables.existing: replace`, `PgddlRevertOperator` takes the swap back until
    `PgddlCleanupOperator` has run: each in a DAG of its own."""
    with TaskGroup(group_id=group_id, default_args=dict(default_args or {})) as group:
        begin = {"again": again, "reconfigure": reconfigure}
        _until_swap(pipeline, gate, begin, approve_swap, approve_ddl, spark)
    return group


def go_back(
    *,
    pipeline: str | os.PathLike[str] | Mapping[str, Any],
    group_id: str = "go_back",
    default_args: Mapping[str, Any] | None = None,
    **spark: Any,
) -> TaskGroup:
    """replay → verify → swap of a pipeline that is the way back of another: applications return to its target."""
    with TaskGroup(group_id=group_id, default_args=dict(default_args or {})) as group:
        behind: dict[str, Any] = {"pipeline": pipeline, "on_blocked": "fail", **spark}
        chain(
            PgddlReplayOperator(task_id="replay", **behind),
            PgddlVerifyOperator(task_id="verify", **behind),
            PgddlSwapOperator(task_id="swap", **{**behind, "on_blocked": "skip"}),
        )
    return group


def _until_swap(
    pipeline: str | os.PathLike[str] | Mapping[str, Any],
    gate: Mapping[str, Any] | None,
    begin: Mapping[str, bool | str],
    approve_swap: bool | Mapping[str, Any],
    approve_ddl: bool | Mapping[str, Any],
    spark: Mapping[str, Any],
) -> tuple[PgddlVerifyOperator, PgddlSwapOperator]:
    """setup … swap, in the group that is open; returns the last two."""
    before: dict[str, Any] = {"pipeline": pipeline, "on_blocked": "go_on", **spark}
    behind: dict[str, Any] = {"pipeline": pipeline, "on_blocked": "fail", **spark}
    chain(
        PgddlSetupOperator(task_id="setup", **begin, **before),
        PgddlSnapshotOperator(task_id="snapshot", **before),
        PgddlBackfillOperator(task_id="backfill", **before),
        PgddlSchemaSyncOperator(task_id="schema_sync", **before),
        PgddlReplayOperator(task_id="replay", **before),
        *_approve_ddl(pipeline, approve_ddl),
        _gate(pipeline, gate),
        # Commits that a failover lost block all tables until they are compared, which is what comes next.
        PgddlReplayOperator(task_id="catch_up", **before),
        verify := PgddlVerifyOperator(task_id="verify", **behind),
    )
    swap = PgddlSwapOperator(task_id="swap", **{**behind, "on_blocked": "skip"})
    if approve_swap is False:
        verify >> swap
    else:
        from airflow_provider_pgddl.operators.approval import PgddlRehearsalOperator, PgddlSwapApproval

        rehearse = PgddlRehearsalOperator(task_id="rehearse", **behind)
        given = {} if approve_swap is True else dict(approve_swap)
        chain(verify, rehearse, PgddlSwapApproval(task_id="approve", rehearsal=rehearse.task_id, **given), swap)
    return verify, swap


def _approve_ddl(
    pipeline: str | os.PathLike[str] | Mapping[str, Any], asked: bool | Mapping[str, Any]
) -> list[BaseOperator]:
    """Before the gate, which stays closed for DDL that waits: a person behind it would never be asked."""
    if asked is False:
        return []
    from airflow_provider_pgddl.operators.approval import PgddlDdlApproval

    given = {} if asked is True else dict(asked)
    return [PgddlDdlApproval(task_id="approve_ddl", pipeline=pipeline, **given)]


def _gate(
    pipeline: str | os.PathLike[str] | Mapping[str, Any], settings: Mapping[str, Any] | None
) -> PgddlSchemaSensor:
    """Without a mode of its own it waits in the triggerer: it may stay closed for days, and would hold a worker."""
    given = dict(settings or {})
    return PgddlSchemaSensor(task_id="gate", pipeline=pipeline, **{"deferrable": "mode" not in given, **given})
