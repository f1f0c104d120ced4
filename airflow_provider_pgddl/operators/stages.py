"""The operators, one a stage; all that they share is in `base`."""

from __future__ import annotations

from airflow_provider_pgddl.operators.base import PgddlOperator


class PgddlSetupOperator(PgddlOperator):
    """Preflight, migrations, and the start of capture: from its end on no change is missed."""

    stage = "setup"


class PgddlSnapshotOperator(PgddlOperator):
    """The source's schema as DDL events; creates the copies."""

    stage = "snapshot"


class PgddlBackfillOperator(PgddlOperator):
    """Copies the rows that are there, chunk by chunk."""

    stage = "backfill"


class PgddlSchemaSyncOperator(PgddlOperator):
    """Takes the keys that changed out of the copy, builds its indexes and constraints, and records the verdict."""

    stage = "schema_sync"


class PgddlReplayOperator(PgddlOperator):
    """Replays changes in windows until the lag is small."""

    stage = "replay"


class PgddlVerifyOperator(PgddlOperator):
    """Compares counts and checksums, range by range, and finds the rows that differ."""

    stage = "verify"


class PgddlSwapOperator(PgddlOperator):
    """Puts the copy in the live table's place, or cuts over to the other cluster."""

    stage = "swap"


class PgddlRevertOperator(PgddlOperator):
    """Takes a swap in place back, with all that was written since; no part of `lifecycle`, and before any cleanup."""

    stage = "revert"


class PgddlCleanupOperator(PgddlOperator):
    """Drops what was needed only on the way; the audit stays."""

    stage = "cleanup"


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
