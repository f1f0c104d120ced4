"""view: what a page shows of a pipeline, as the journal alone knows it, so that a source that is down hides nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, TypeVar

import psycopg
from psycopg.rows import class_row

from airflow_provider_pgddl.engine.commands import ddl, sync_requests
from airflow_provider_pgddl.engine.commands.status import state_of, status
from airflow_provider_pgddl.engine.errors import from_postgres
from airflow_provider_pgddl.engine.job.stage_names import STAGES
from airflow_provider_pgddl.engine.journal.control import Control, control_status
from airflow_provider_pgddl.engine.journal.ddl import DdlJournal
from airflow_provider_pgddl.engine.journal.pipelines import Journal
from airflow_provider_pgddl.engine.journal.stage_runs import StageRun
from airflow_provider_pgddl.engine.journal.tables import TableRow
from airflow_provider_pgddl.engine.pipeline.model import Pipeline
from airflow_provider_pgddl.engine.schema.verdict import SchemaFinding
from airflow_provider_pgddl.engine.server.connect import Session, connect
from airflow_provider_pgddl.engine.sql import queries

_Q = queries("view")
_Row = TypeVar("_Row")
NOT_SET_UP = "not set up"
NOT_BEGUN = "not begun"
LOOK_WITHIN = "5s"  # of one query: a page asks again


@dataclass(frozen=True, slots=True)
class CopiedSoFar:
    """Of a table's first copy: `lately` are the bytes of the last minute."""

    table_id: int
    chunks: int
    chunks_done: int
    rows_done: int
    bytes: int
    bytes_done: int
    lately: int

    @property
    def rows(self) -> int | None:
        """How many there may be in all, by those that are done; None before the first."""
        return round(self.rows_done * self.bytes / self.bytes_done) if self.bytes_done else None

    @property
    def seconds_left(self) -> float | None:
        """At the last minute's pace; None where nothing is left, or nothing moves."""
        left = self.bytes - self.bytes_done
        return 60 * left / self.lately if left and self.lately else None


@dataclass(frozen=True, slots=True)
class Minute:
    """Windows that ended in one minute: the worst lag (seconds), keys and rows."""

    at: datetime
    seconds: float
    keys: int
    rows: int


@dataclass(frozen=True, slots=True)
class SettledEvent:
    """A DDL event that is over, with what people and decisions said of it."""

    id: int
    tag: str
    status: str
    statement: str
    note: str | None
    notes: Sequence[str]
    applied_at: datetime | None


def view(pipeline: str, target_dsn: str) -> dict[str, Any]:
    """Plain values but for times, `copied`, `settled`, `minutes`, `actions` and `rehearsal`. Errors as `connect` has
    them, and those of a journal that is not this version's or does not answer a query in time."""
    try:
        with connect(target_dsn, purpose="page", pipeline=pipeline) as target:
            target.execute("SELECT pg_catalog.set_config('statement_timeout', %s, false)", [LOOK_WITHIN])
            target.execute("SET default_transaction_read_only = on")
            return _view(target, pipeline)
    except psycopg.Error as error:
        raise from_postgres(error, doing="looking at the journal") from None


@dataclass(frozen=True, slots=True)
class Wait:
    """A session that waits for a lock (seconds): of ours, or because of us. `blockers` are whom it waits for."""

    pid: int
    who: str
    seconds: float
    mode: str
    relation: str | None
    blockers: Sequence[str]


def waits(pipeline: str, dsn: str) -> list[Wait]:
    """Who waits for a lock on this server now, the longest first."""
    with connect(dsn, purpose="page", pipeline=pipeline) as session:
        session.execute("SELECT pg_catalog.set_config('statement_timeout', %s, false)", [LOOK_WITHIN])
        return _rows(session, Wait, "waits", pipeline)


def both(pipeline: Pipeline, source_dsn: str, target_dsn: str) -> dict[str, Any]:
    """What it takes both servers to say: status; `syncs`, the SQL that aligns blocked tables; `exceptions` of capture
    that nobody has seen to; `waits`, by the server's end."""
    found = status(pipeline, source_dsn, target_dsn)
    if found["state"] in (NOT_SET_UP, "finished"):
        return found | {"syncs": [], "exceptions": [], "waits": {}}
    blocked = [table for table, verdict in found["schema"].items() if verdict["status"] == "mismatch"]
    captured = pipeline.capture.ddl != "off" and found["cut_over_at"] is None
    ends = {"source": source_dsn} if pipeline.in_place else {"source": source_dsn, "target": target_dsn}
    return found | {
        "syncs": [] if found["cut_over_at"] else sync_requests.shown(pipeline, source_dsn, target_dsn, blocked),
        "exceptions": ddl.exceptions(pipeline, source_dsn)["exceptions"] if captured else [],
        "waits": {end: waits(pipeline.pipeline, dsn) for end, dsn in ends.items()},
    }


def config(pipeline: str, target_dsn: str) -> dict[str, Any]:
    """The pipeline as setup has recorded it; UsageError where it has not run."""
    with connect(target_dsn, purpose="page", pipeline=pipeline) as target:
        return Journal(target, pipeline).row().config


def _view(target: Session, pipeline: str) -> dict[str, Any]:
    journal = Journal(target, pipeline)
    row = journal.find()
    if row is None:
        return {"pipeline": pipeline, "state": NOT_SET_UP}
    tables = journal.tables.of(row.run)
    stuck, verdicts = ({}, {}) if row.finished_at else (journal.blocked_tables.by_ddl(), journal.schema.statuses())
    boxes: dict[str, tuple[datetime | None, list[SchemaFinding]]]
    boxes = {".".join(name): (s.since, list(s.findings)) for name, s in verdicts.items() if s.status == "mismatch"}
    for name, findings in stuck.items():
        since, known = boxes.get(name, (None, []))
        boxes[name] = (since, [*known, *findings])
    longest = journal.stage_runs.longest_wait(row.run)
    told = _tables(target, journal, tables, boxes)
    copied = [one["copied"] for one in told if one["copied"]]
    events = ddl.events(DdlJournal(target, pipeline, row.run), ddl.OPEN)
    return {
        "pipeline": pipeline,
        "state": state_of(row),
        "run": row.run,
        "job": row.job,
        "cut_over_at": row.cut_over_at,
        "finished_at": row.finished_at,
        "verify_needed": None if row.finished_at else row.verify_needed,
        "control": control_status(Control(target, pipeline)),
        "stages": _stages(journal.stage_runs.latest(row.run)),
        "tables": told,
        "bytes": sum(one.bytes for one in copied),
        "bytes_done": sum(one.bytes_done for one in copied),
        "boxes": [
            {"table": name, "since": since, "findings": [f.to_json() for f in found if f.severity == "mismatch"]}
            for name, (since, found) in sorted(boxes.items())
        ],
        "ddl": events,
        "settled": _rows(target, SettledEvent, "settled", pipeline, row.run),
        "minutes": _rows(target, Minute, "windows", pipeline, row.run),
        "longest_wait": asdict(longest) if longest else None,
        "actions": journal.actions.latest(),
        "rehearsal": journal.actions.rehearsal(),
    }


def _stages(latest: Sequence[StageRun]) -> list[dict[str, Any]]:
    """In the order of the lifecycle, those that have not begun as well."""
    runs = {s.stage: s for s in latest}
    told = []
    for stage in [*STAGES, *(s for s in runs if s not in STAGES)]:
        run = runs.get(stage)
        result = (run.result if run else None) or {}
        told.append(
            {
                "stage": stage,
                "started_at": run and run.started_at,
                "finished_at": run and run.finished_at,
                "state": result.get("state", "unfinished") if run else NOT_BEGUN,
                "blocked": list(result.get("blocked", ())),
                "longest_wait_ms": result.get("figures", {}).get("longest_wait_ms"),
            }
        )
    return told


def _tables(
    target: Session, journal: Journal, tables: Sequence[TableRow], boxes: Mapping[str, tuple[Any, list[SchemaFinding]]]
) -> list[dict[str, Any]]:
    ids = [t.id for t in tables]
    copied = {one.table_id: one for one in _rows(target, CopiedSoFar, "chunks", ids)}
    compared = journal.verification.of_tables(ids)
    found = []
    for table in tables:
        verified = compared.get(table.id)
        found.append(
            {
                "table": table.qualified,
                "state": table.state,
                "copied": copied.get(table.id),
                "blocked": [f.what for f in boxes.get(table.qualified, (None, []))[1] if f.severity == "mismatch"],
                "verified": verified,
                "differing": journal.verification.differing_keys(table.id) if verified and verified.differ else [],
            }
        )
    return found


def _rows(target: Session, kind: type[_Row], query: str, *values: object) -> list[_Row]:
    with target.cursor(row_factory=class_row(kind)) as cursor:
        return cursor.execute(_Q[query], list(values)).fetchall()
