"""The schema gate: looks at both catalogs itself, records what it finds, and says which tables are blocked."""

from __future__ import annotations

from typing import Any

from airflow_provider_pgddl.engine import catalog
from airflow_provider_pgddl.engine.capture import change_log
from airflow_provider_pgddl.engine.connect import Session, connect
from airflow_provider_pgddl.engine.ddl.actions import alter_actions
from airflow_provider_pgddl.engine.journal import Journal, TableRow
from airflow_provider_pgddl.engine.pipeline import Pipeline
from airflow_provider_pgddl.engine.rows.windows import lost_track
from airflow_provider_pgddl.engine.schema.drift import AGAIN, drift
from airflow_provider_pgddl.engine.schema.match import mismatches

KEYLESS = "has no key, so its changes cannot be followed: give it a primary key, or leave it out (tables.exclude)"


def gate(pipeline: Pipeline, source_dsn: str, target_dsn: str) -> dict[str, list[str]]:
    """`schema.table` → findings of every table that must not go on; {} where the gate is open.

    What was blocked and is right again is recorded as compatible. Nothing is judged before setup or after the swap.
    """
    name = pipeline.pipeline
    with (
        connect(source_dsn, purpose="gate", pipeline=name) as source,
        connect(target_dsn, purpose="gate", pipeline=name) as target,
    ):
        journal = Journal(target, name)
        row = journal.find()
        if row is None or row.cut_over_at is not None:
            return {}
        stuck, blocked = journal.stuck_tables(), journal.mismatches()
        for table in journal.tables(row.run):
            if table.qualified in stuck:
                continue  # the journal says what it waits for
            with source.transaction(), target.transaction():
                findings = _findings(pipeline, source, target, table, blocked=table.qualified in blocked)
                journal.set_status(table, "mismatch" if findings else "compatible", findings)
        return journal.mismatches()


def _findings(pipeline: Pipeline, source: Session, target: Session, table: TableRow, *, blocked: bool) -> list[str]:
    now = catalog.describe(source, [table.oid], change_log.trigger_names(pipeline.pipeline)).get(table.oid)
    findings = drift(table.version, table.physical, now)
    if findings and now is not None and pipeline.capture.ddl != "off":
        # The next replay applies what was captured, or stops the table; one that it has stopped is looked at again.
        indexed = table.state == "indexed"
        again = judge(pipeline, now.structure(), target, table, key=indexed) if now.key else [KEYLESS]
        return again if blocked else []
    if findings or now is None:
        return findings
    if lost_track(source, table):
        return [f"a key column changed while rows were written; {AGAIN}"]
    return judge(pipeline, now.structure(), target, table) if table.state == "indexed" else []


def judge(
    pipeline: Pipeline, structure: dict[str, Any], target: Session, table: TableRow, *, key: bool = True
) -> list[str]:
    """The source's structure against the copy as it is now; without `key` where the copy is not indexed yet."""
    plan = table.plan
    oid = catalog.oid_of(target, plan.copy_schema, plan.copy_name)
    copy = catalog.describe(target, [oid]).get(oid) if oid else None
    if copy is None:
        return ["its copy is gone"]
    rewrite = pipeline.rewrites.get((table.schema, table.name))
    altered = {a.column for a in alter_actions(rewrite.alter) if a.column} if rewrite else set()
    recorded = table.version["columns"]
    skipped = {c for c in recorded if c not in plan.columns and not recorded[c]["generated"]}
    here = copy.structure()
    if not key:
        here["key"] = structure["key"]
    return mismatches(structure, here, altered=altered, skipped=skipped)
