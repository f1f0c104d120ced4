"""view: what a page shows of a pipeline, as the journal alone knows it, so that a source that is down hides nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

import psycopg
from psycopg.rows import class_row

from airflow_provider_pgddl.engine.commands import ddl
from airflow_provider_pgddl.engine.commands.status import state_of
from airflow_provider_pgddl.engine.errors import from_postgres
from airflow_provider_pgddl.engine.journal.control import Control, control_status
from airflow_provider_pgddl.engine.journal.ddl import DdlJournal
from airflow_provider_pgddl.engine.journal.pipelines import Journal
from airflow_provider_pgddl.engine.journal.tables import TableRow
from airflow_provider_pgddl.engine.schema.verdict import SchemaFinding
from airflow_provider_pgddl.engine.server.connect import Session, connect
from airflow_provider_pgddl.engine.sql import queries

_Q = queries("view")
NOT_SET_UP = "not set up"
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


def view(pipeline: str, target_dsn: str) -> dict[str, Any]:
    """Plain values but for times, `copied` and `minutes`. Errors as `connect` has them, and those of a journal that is
    not this version's or does not answer a query in time."""
    try:
        with connect(target_dsn, purpose="page", pipeline=pipeline) as target:
            target.execute("SELECT pg_catalog.set_config('statement_timeout', %s, false)", [LOOK_WITHIN])
            target.execute("SET default_transaction_read_only = on")
            return _view(target, pipeline)
    except psycopg.Error as error:
        raise from_postgres(error, doing="looking at the journal") from None


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
    stuck, verdicts = journal.blocked_tables.by_ddl(), journal.schema.statuses()
    boxes: dict[str, tuple[datetime | None, list[SchemaFinding]]]
    boxes = {".".join(name): (s.since, list(s.findings)) for name, s in verdicts.items() if s.status == "mismatch"}
    for name, findings in stuck.items():
        since, known = boxes.get(name, (None, []))
        boxes[name] = (since, [*known, *findings])
    longest = journal.stage_runs.longest_wait(row.run)
    events = ddl.events(DdlJournal(target, pipeline, row.run), ddl.OPEN)
    return {
        "pipeline": pipeline,
        "state": state_of(row),
        "run": row.run,
        "job": row.job,
        "cut_over_at": row.cut_over_at,
        "finished_at": row.finished_at,
        "verify_needed": row.verify_needed,
        "control": control_status(Control(target, pipeline)),
        "stages": [
            {
                "stage": s.stage,
                "started_at": s.started_at,
                "finished_at": s.finished_at,
                "state": (s.result or {}).get("state", "unfinished"),
                "blocked": list((s.result or {}).get("blocked", ())),
            }
            for s in sorted(journal.stage_runs.latest(row.run), key=lambda s: s.started_at)
        ],
        "tables": _tables(target, journal, tables, boxes),
        "boxes": [
            {"table": name, "since": since, "findings": [f.to_json() for f in found if f.severity == "mismatch"]}
            for name, (since, found) in sorted(boxes.items())
        ],
        "ddl": events,
        "minutes": _minutes(target, pipeline, row.run),
        "longest_wait": asdict(longest) if longest else None,
    }


def _tables(
    target: Session, journal: Journal, tables: Sequence[TableRow], boxes: Mapping[str, tuple[Any, list[SchemaFinding]]]
) -> list[dict[str, Any]]:
    ids = [t.id for t in tables]
    with target.cursor(row_factory=class_row(CopiedSoFar)) as cursor:
        copied = {one.table_id: one for one in cursor.execute(_Q["chunks"], [ids])}
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


def _minutes(target: Session, pipeline: str, run: int) -> list[Minute]:
    with target.cursor(row_factory=class_row(Minute)) as cursor:
        return cursor.execute(_Q["windows"], [pipeline, run]).fetchall()
