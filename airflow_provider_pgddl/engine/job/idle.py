"""Stages that have nothing to do, as the journal tells: no lock is taken, and nothing need be started for them."""

from __future__ import annotations

from datetime import UTC

from airflow_provider_pgddl.engine.job.file import Job
from airflow_provider_pgddl.engine.job.result import StageResult
from airflow_provider_pgddl.engine.job.same_config import require_same_config
from airflow_provider_pgddl.engine.journal import migrations
from airflow_provider_pgddl.engine.journal.pipelines import Journal, PipelineRow
from airflow_provider_pgddl.engine.pipeline.model import Pipeline
from airflow_provider_pgddl.engine.pipeline.selection import matches
from airflow_provider_pgddl.engine.progress import say
from airflow_provider_pgddl.engine.server import catalog
from airflow_provider_pgddl.engine.server.connect import Session, connect

# What a pipeline that follows runs again and again before it replays; replay brings what comes meanwhile.
BEFORE_REPLAY = ("setup", "snapshot", "backfill", "schema_sync")
# Behind a cut-over these would bring to live tables what happens where applications are no more.
BEFORE_SWAP = (*BEFORE_REPLAY, "replay", "verify")
# These end what they began, also of a finished pipeline.
_ALWAYS = ("cleanup", "revert")


def first_idle(job: Job, source_dsn: str, target_dsn: str) -> list[StageResult]:
    """The results of its first stages, as long as they have nothing to do; as `idle`."""
    quiet: list[StageResult] = []
    for one in job.each():
        result = idle(one, source_dsn, target_dsn)
        if result is None:
            break
        quiet.append(result)
    return quiet


def idle(job: Job, source_dsn: str, target_dsn: str) -> StageResult | None:
    """The result of a stage that has nothing to do; None where it has, or may have. Connects to both servers (of a
    finished pipeline to the target only), and raises what that says, and UsageError for a file that has changed."""
    name = job.pipeline.pipeline
    with connect(target_dsn, purpose="look", pipeline=name) as target:
        journal = Journal(target, name)
        row = journal.find()
        if over := finished(job, row):
            return over
        with connect(source_dsn, purpose="look", pipeline=name) as source:
            if row is None or job.dry_run or _is_outdated(job.pipeline, source, target, row):
                return None
            if (job.reconfigure and job.stage == "setup") or journal.reconfigurations.under_way(row.run):
                return None
            require_same_config(job.pipeline, row.config)
            if row.cut_over_at is not None:
                quiet = job.stage in BEFORE_SWAP
            else:
                quiet = job.stage in BEFORE_REPLAY and _is_settled(job.pipeline, source, journal, row.run)
            if not quiet:
                return None
            say(job.stage, "nothing to do, says the journal")
            return StageResult(job.stage, name, row.run, "nothing_to_do")


def finished(job: Job, row: PipelineRow | None) -> StageResult | None:
    """A pipeline that cleanup has finished stays so until setup is asked to begin again."""
    if row is None or row.finished_at is None or job.again or job.stage in _ALWAYS:
        return None
    since = f"{row.finished_at.astimezone(UTC):%Y-%m-%d %H:%M} UTC"
    again = "`pgddl run setup --again` begins the next one"
    say(job.stage, f"run {row.run} has been finished since {since}: nothing to do; {again}")
    figures = {"finished_at": row.finished_at.astimezone(UTC).isoformat(timespec="seconds")}
    return StageResult(job.stage, job.pipeline.pipeline, row.run, "nothing_to_do", figures=figures)


def _is_outdated(pipeline: Pipeline, source: Session, target: Session, row: PipelineRow) -> bool:
    """Whether a stage has to be the one to say, or do, something about our own schemas or about another server."""
    if migrations.state(target, "journal")["pending"] or migrations.state(source, "core")["pending"]:
        return True
    now = catalog.server(source)
    known = (row.source_system, row.source_timeline, row.source_database)
    return (now.system, now.timeline, now.database_oid) != known or pipeline.capture.identities


def _is_settled(pipeline: Pipeline, source: Session, journal: Journal, run: int) -> bool:
    """Whether every table that the file names has come as far as replay, and none is stopped."""
    if (
        not all(journal.stage_runs.finished(run, stage) for stage in BEFORE_REPLAY)
        or journal.blocked_tables.mismatches()
    ):
        return False
    tables = journal.tables.of(run)
    if any(table.state != "indexed" and not table.keyless for table in tables):
        return False
    wanted = catalog.oids_of(source, matches(pipeline, catalog.table_names(source), strict=False).rows)
    return set(wanted.values()) <= {table.oid for table in tables}
