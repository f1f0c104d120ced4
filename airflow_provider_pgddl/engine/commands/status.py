"""status: what the journal knows of a pipeline, and how far the source is ahead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from airflow_provider_pgddl.engine.capture import change_log, ddl_log, slot_log
from airflow_provider_pgddl.engine.following.schema_gate import STUCK
from airflow_provider_pgddl.engine.following.table_capture import late_and_unseen
from airflow_provider_pgddl.engine.journal.control import Control, control_status
from airflow_provider_pgddl.engine.journal.ddl import DdlJournal
from airflow_provider_pgddl.engine.journal.pipelines import Journal, PipelineRow
from airflow_provider_pgddl.engine.journal.tables import TableRow
from airflow_provider_pgddl.engine.pipeline.model import Pipeline
from airflow_provider_pgddl.engine.rows.adopted_rows import count_extra
from airflow_provider_pgddl.engine.rows.change_log_reading import Logs, count_changes, logs_now
from airflow_provider_pgddl.engine.rows.pending_keys import count_pending
from airflow_provider_pgddl.engine.server.connect import Session, connect
from airflow_provider_pgddl.engine.server.lag import behind


def status(pipeline: Pipeline, source_dsn: str, target_dsn: str) -> dict[str, Any]:
    """Stages, tables with their chunks, pending keys and changes waiting in the log, captured DDL by status, windows,
    how far behind the rows are, mismatches, the cut-over, what a revert would bring back, and what holds runs."""
    name = pipeline.pipeline
    with (
        connect(source_dsn, purpose="status", pipeline=name) as source,
        connect(target_dsn, purpose="status", pipeline=name) as target,
    ):
        journal = Journal(target, name)
        row = journal.find()
        if row is None:
            return {"pipeline": name, "state": "not set up"}
        tables = journal.tables.of(row.run)
        working = [t for t in tables if t.state != "cleaned"]
        logs = set(change_log.captured_roots(source, name).values()) if row.finished_at is None else set()
        changes = count_changes(logs_now(pipeline, source, target), [t for t in working if t.log_table in logs])
        followed = [t for t in working if t.state in ("created", "backfilled", "indexed", "swapped")]
        pending = count_pending(target, followed)
        kept = count_extra(target, [t for t in tables if t.plan.operations])
        back = [way.row for way in journal.ways_back.of(row.run) if way.row.log_table in logs]
        left, longest = journal.chunks.left([t.id for t in tables]), journal.stage_runs.longest_wait(row.run)
        return {
            "pipeline": name,
            "state": state_of(row),
            "run": row.run,
            "job": row.job,
            "cut_over_at": row.cut_over_at,
            "unseen_since_cut_over": _unseen(pipeline, source, row, working),
            "changes_since_cut_over": _since_cut_over(pipeline, source, row, changes),
            "reverted_at": row.reverted_at,
            "changes_since_swap": sum(count_changes(Logs(source), back).values()) if back else None,
            "verify_needed": None if row.finished_at else row.verify_needed,
            "control": control_status(Control(target, name)),
            "stages": {
                s.stage: {
                    "started_at": s.started_at,
                    "finished_at": s.finished_at,
                    "state": (s.result or {}).get("state", "unfinished"),
                }
                for s in journal.stage_runs.latest(row.run)
            },
            "tables": {
                t.qualified: {
                    "state": t.state,
                    "copied_at_swap": t.keyless,
                    "chunks_left": left[t.id].chunks if t.id in left else 0,
                    "changes_in_log": changes.get(t.id, 0),
                    "pending_keys": pending.get(t.id, 0),
                    "lag_keys": changes.get(t.id, 0) + pending.get(t.id, 0),
                    **({"archived_rows": kept[t.qualified]} if t.qualified in kept else {}),
                }
                for t in tables
            },
            "ddl_events": DdlJournal(target, name, row.run).counts(),
            "windows": asdict(journal.windows.summary(row.run)),
            "lag": None if row.cut_over_at or row.finished_at else _lag(journal, source, row.run),
            "retained_wal_bytes": _retained_wal(pipeline, source),
            "longest_wait": asdict(longest) if longest else None,
            "schema": _verdicts(journal),
            "mismatches": {} if row.finished_at else journal.blocked_tables.mismatches(),
        }


def state_of(row: PipelineRow) -> str:
    """In a word or two."""
    if row.unborn:
        return f"void until {row.born_of} cuts over"
    if row.finished_at:
        return "finished"
    if row.cut_over_at:
        return "cut over"
    if row.verify_needed:
        return "verify needed"
    return "reverted" if row.reverted_at else "under way"


def _since_cut_over(pipeline: Pipeline, source: Session, row: PipelineRow, changes: Mapping[int, int]) -> int | None:
    """Changes on the source that no target will get any more, in the logs and not read into them yet; None where that
    cannot be told."""
    if row.cut_over_at is None or row.job != "migrate":
        return None
    unread = slot_log.unread(source, pipeline.pipeline) if pipeline.by_slot and row.finished_at is None else 0
    return None if unread is None else sum(changes.values()) + unread


def _unseen(
    pipeline: Pipeline, source: Session, row: PipelineRow, tables: Sequence[TableRow]
) -> dict[str, list[str]] | None:
    """Why the number of these changes does not tell it all: table → what became of its capture."""
    if row.cut_over_at is None or row.finished_at is not None:
        return None
    found = late_and_unseen(source, pipeline.pipeline, tables, in_place=pipeline.in_place)
    return {one.row.qualified: one.why for one in found}


def _retained_wal(pipeline: Pipeline, source: Session) -> int | None:
    """Bytes of WAL that the source keeps for its slot for rows, or for that for DDL, whichever keeps more;
    None where it has neither."""
    name, slots = pipeline.pipeline, list[str]()
    if pipeline.by_slot:
        slots.append(slot_log.slot_name(name))
    if pipeline.capture.ddl == "wal":
        slots.append(ddl_log.ddl_slot_name(name))
    return max((slot_log.retained(source, slot) for slot in slots), default=None)


def _lag(journal: Journal, source: Session, run: int) -> dict[str, Any] | None:
    """Since the last snapshot of the source that the target has shown in full, but for blocked tables; None before the
    first."""
    last = journal.windows.last_complete(run)
    if last is None:
        return None
    lag = behind(source, last.lsn, last.taken_at)
    return {"bytes": lag.bytes, "seconds": round(lag.seconds, 3)}


def _verdicts(journal: Journal) -> dict[str, dict[str, Any]]:
    """`schema.table` → the verdict as the gate tells it."""
    found = {
        ".".join(name): {"status": s.status, "since": s.since, "resolution": s.resolution}
        for name, s in journal.schema.statuses().items()
    }
    for table in journal.blocked_tables.by_ddl():
        known = found.get(table)
        since = known["since"] if known and known["status"] == "mismatch" else None
        found[table] = {"status": "mismatch", "since": since, "resolution": STUCK}
    return found
