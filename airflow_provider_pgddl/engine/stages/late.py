"""Tables that DDL has sent back: through the stages that all others have passed already."""

from __future__ import annotations

from importlib import import_module

from airflow_provider_pgddl.engine.stages.context import Context
from airflow_provider_pgddl.engine.stages.ddl import captures_ddl

_BEFORE = {"backfill": ("created",), "schema_sync": ("created", "backfilled")}


def bring_late(context: Context, *stages: str) -> None:
    """Takes tables that DDL has sent back through the stages that they have not passed, where the others have."""
    run_no = context.row().run
    for stage in stages:
        late = context.healthy(context.tables(), *_BEFORE[stage])
        if late and captures_ddl(context) and context.journal.stage_done(run_no, stage):
            context.say(f"{', '.join(t.qualified for t in late)}: {stage} first")
            import_module(f"airflow_provider_pgddl.engine.stages.{stage}").run(context)
