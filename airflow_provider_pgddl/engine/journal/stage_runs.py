"""Stages that ran, with their results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from psycopg.types.json import Jsonb

from airflow_provider_pgddl.engine.journal.section import JournalSection
from airflow_provider_pgddl.engine.server.connect import Session
from airflow_provider_pgddl.engine.sql import queries

KEPT = 1000  # of each stage, at least


@dataclass(frozen=True, slots=True)
class StageRun:
    """Times are aware datetimes; what is under way has neither an end nor a result."""

    stage: str
    started_at: datetime
    finished_at: datetime | None
    result: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class LongestWait:
    """The longest that a writer may have waited for a lock of a run (ms), and the stage that took it."""

    ms: int
    stage: str


def stage_result(conn: Session, job_id: str) -> dict[str, Any] | None:
    """The recorded result of a job; None while there is none."""
    row = conn.execute(queries("journal")["stage_result"], [job_id]).fetchone()
    return row[0] if row else None


class StageRuns(JournalSection):
    def untold(self, run: int, stage: str, job_id: str, last_told: str | None) -> dict[str, dict[str, Any]] | None:
        """`schema.table` → what the results say of it, for the tables that a job has changed, those that came right
        before it, and those changed by jobs since `last_told`, the last of whose tables somebody was told. None: any
        may have changed, as by a job that was killed."""
        found, mine, known = dict[str, dict[str, Any]](), dict[str, dict[str, Any]](), set[str]()
        for job, result in self.conn.execute(self._Q["results"], [self.pipeline, run, stage]).fetchall():
            if result is None:
                return None
            if job == last_told:
                known = set(result["tables"])
                break
            if job == job_id:
                mine = result["tables"]
            found = {n: t for n, t in result["tables"].items() if stage != "replay" or "keys" in t} | found
        else:
            if last_told is not None:  # longer ago than the journal remembers, or in another run
                return None
        return {n: t for n, t in mine.items() if n not in known} | found

    def start(self, job_id: str, run: int, stage: str, token: int) -> None:
        self._write("start_stage", [job_id, self.pipeline, run, stage, token])

    def finish(self, job_id: str, run: int, stage: str, result: Mapping[str, Any]) -> None:
        """Also forgets what a pipeline that follows for months would only pile up."""
        self._write("finish_stage", [Jsonb(result), job_id])
        self._write("forget_stages", {"pipeline": self.pipeline, "run": run, "stage": stage, "kept": KEPT})

    def done(self, run: int, stage: str) -> bool:
        return bool(self._value("stage_done", [self.pipeline, run, stage]))

    def finished(self, run: int, stage: str) -> bool:
        """Whether it has come to its end, also where an earlier run that was killed had left it nothing to do."""
        return bool(self._value("stage_finished", [self.pipeline, run, stage]))

    def last_done(self, run: int, stage: str, *, within: float | None = None) -> dict[str, Any] | None:
        """The result of the last time that a stage had something to do and did it; `within` so many seconds."""
        args = {"pipeline": self.pipeline, "run": run, "stage": stage, "within": within}
        result: dict[str, Any] | None = self._value("last_done", args)
        return result

    def latest(self, run: int) -> list[StageRun]:
        """The last run of each stage."""
        return self._rows(StageRun, "stages", [self.pipeline, run])

    def longest_wait(self, run: int) -> LongestWait | None:
        return self._row(LongestWait, "longest_wait", [self.pipeline, run])
