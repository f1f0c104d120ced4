"""The pipeline's own row, and the one door to all that the journal keeps of it, a section a subject."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any

from airflow_provider_pgddl.engine.errors import UsageError
from airflow_provider_pgddl.engine.journal.actions import Actions
from airflow_provider_pgddl.engine.journal.blocked_tables import BlockedTables, passes_over
from airflow_provider_pgddl.engine.journal.chunks import Chunks
from airflow_provider_pgddl.engine.journal.ddl_history import DdlHistory
from airflow_provider_pgddl.engine.journal.dump_events import DumpEvents
from airflow_provider_pgddl.engine.journal.finishes import Finishes
from airflow_provider_pgddl.engine.journal.follow_ups import FollowUps
from airflow_provider_pgddl.engine.journal.reconfigurations import Reconfigurations
from airflow_provider_pgddl.engine.journal.schema import SchemaJournal
from airflow_provider_pgddl.engine.journal.section import JournalSection
from airflow_provider_pgddl.engine.journal.stage_runs import StageRuns
from airflow_provider_pgddl.engine.journal.tables import TableJournal
from airflow_provider_pgddl.engine.journal.verification import Verification
from airflow_provider_pgddl.engine.journal.ways_back import WaysBack
from airflow_provider_pgddl.engine.journal.windows import Windows
from airflow_provider_pgddl.engine.model.tables import Server
from airflow_provider_pgddl.engine.server.connect import Session
from airflow_provider_pgddl.engine.server.encodings import as_is


@dataclass(frozen=True, slots=True)
class PipelineRow:
    """The pipeline as recorded at setup; times are aware datetimes."""

    run: int
    job: str
    config: dict[str, Any]
    source_system: str
    source_timeline: int
    window_no: int
    verify_needed: str | None
    cut_over_at: datetime | None
    finished_at: datetime | None
    acknowledged: int  # the highest window that the source was seen to have acknowledged
    reverted_at: datetime | None
    born_of: str | None  # the pipeline by whose cut-over this run was born complete
    unborn: bool  # that one has not cut over yet, so the run is void
    source_database: int | None  # its oid; None where an older version has set it up, until a stage has looked


def exists(conn: Session) -> bool:
    row = conn.execute("SELECT pg_catalog.to_regclass('pgddl.pipelines') IS NOT NULL", prepare=True).fetchone()
    return bool(row and row[0])


class Journal(JournalSection):
    """The journal of one pipeline over one session; whoever calls decides on transactions."""

    def __init__(self, conn: Session, pipeline: str):
        super().__init__(conn, pipeline)
        self._exists = False
        self._run: int | None = None
        self.tables = TableJournal(conn, pipeline)

    # --- sections -----------------------------------------------------------------------------------------------

    @cached_property
    def stage_runs(self) -> StageRuns:
        return StageRuns(self.conn, self.pipeline)

    @cached_property
    def chunks(self) -> Chunks:
        return Chunks(self.conn, self.pipeline)

    @cached_property
    def dump_events(self) -> DumpEvents:
        return DumpEvents(self.conn, self.pipeline)

    @cached_property
    def ddl_history(self) -> DdlHistory:
        return DdlHistory(self.conn, self.pipeline)

    @cached_property
    def schema(self) -> SchemaJournal:
        """The verdicts of the schema gate."""
        return SchemaJournal(self.conn, self.pipeline)

    @cached_property
    def blocked_tables(self) -> BlockedTables:
        return BlockedTables(self.tables, self.schema)

    @cached_property
    def windows(self) -> Windows:
        return Windows(self.conn, self.pipeline)

    @cached_property
    def verification(self) -> Verification:
        return Verification(self.conn, self.pipeline)

    @cached_property
    def ways_back(self) -> WaysBack:
        return WaysBack(self.tables)

    @cached_property
    def follow_ups(self) -> FollowUps:
        return FollowUps(self.conn, self.pipeline)

    @cached_property
    def finishes(self) -> Finishes:
        return Finishes(self.conn, self.pipeline)

    @cached_property
    def actions(self) -> Actions:
        """What people have told it."""
        return Actions(self.conn, self.pipeline)

    @cached_property
    def reconfigurations(self) -> Reconfigurations:
        return Reconfigurations(self.conn, self.pipeline)

    # --- the pipeline's row -------------------------------------------------------------------------------------

    def find(self) -> PipelineRow | None:
        self._exists = self._exists or exists(self.conn)
        return self._row(PipelineRow, "pipeline", [self.pipeline]) if self._exists else None

    def row(self) -> PipelineRow:
        """The recorded pipeline; UsageError where setup has not run."""
        row = self.find()
        if row is None:
            raise UsageError(f"pipeline {self.pipeline!r} has not been set up here", todo="run stage setup first")
        return row

    @property
    def run(self) -> int:
        """The number of the run, asked once: only setup begins another, and no stage is under way then."""
        if self._run is None:
            self._run = self.row().run
        return self._run

    def record(self, job: str, config: Mapping[str, Any], source: Server) -> None:
        self._write("insert_pipeline", [self.pipeline, job, as_is(config), source.system, source.timeline,
                                        source.database_oid])  # fmt: skip

    def next_run(self, job: str, config: Mapping[str, Any], source: Server) -> None:
        """The passage after a finished one; the audit of earlier runs stays."""
        args = {"pipeline": self.pipeline, "job": job, "config": as_is(config),
                "system": source.system, "timeline": source.timeline, "database": source.database_oid}  # fmt: skip
        self._write("next_run", args)
        self._run = None
        self._write("forget_windows", [self.pipeline, self.run])
        self._write("forget_versions", [self.pipeline, self.run])
        self.schema.forget(*self.schema.statuses())

    def set_config(self, config: Mapping[str, Any]) -> None:
        self._write("set_config", [as_is(config), self.pipeline])

    def require_verify(self, why: str | None) -> None:
        self._write("set_verify_needed", [why, self.pipeline])

    def set_source_state(self, source: Server, acknowledged: int) -> None:
        """Which timeline the source is on, which database it is and what it knows of our windows, once what a change of
        it asks for is recorded."""
        self._write("set_source_state", [source.timeline, source.database_oid, acknowledged, self.pipeline])

    def set_source_database(self, source: Server) -> None:
        self._write("set_source_database", [source.database_oid, self.pipeline])

    def note_acknowledged(self, number: int) -> None:
        self._write("note_acknowledged", {"acknowledged": number, "pipeline": self.pipeline})

    def lock(self) -> PipelineRow:
        """The pipeline as recorded, for this transaction alone."""
        self._value("lock_cut_over", [self.pipeline])
        return self.row()

    def set_cut_over(self) -> None:
        self._write("set_cut_over", [self.pipeline])
        self._write("end_requests", ["not done: the run is past its swap", self.pipeline])

    def set_reverted(self, *, tables_only: bool = False) -> None:
        """The swap was taken back: the copies are copies again, and what acts on writers waits for the next swap; with
        `tables_only` the foreign keys too, and nothing of what is no part of a table."""
        for query in ("set_reverted", "finish_tables_again" if tables_only else "finish_again"):
            self._write(query, [self.pipeline])

    def has_cut_over_for_certain(self) -> bool:
        """Waits for whoever is just about to commit it."""
        return bool(self._value("lock_cut_over", [self.pipeline]))

    def set_finished(self) -> None:
        self._write("set_finished", [self.pipeline])

    def passes_over(self, status: str, kind: str | None) -> bool:
        """Whether rows and later DDL may go on past an event of this status."""
        return passes_over(self.row().config, status, kind)

    def purge(self) -> int:
        """Forgets the pipeline; returns how many others are left in this journal."""
        self.schema.forget_all()
        # not in an older version's
        finishes: tuple[str, ...] = ("purge_finishes", "purge_finished") if self._value("finishes_there", []) else ()
        if self._value("reconfigurations_there", []):
            finishes = (*finishes, "purge_reconfigurations")
        for query in ("purge_killed", "purge_versions", "purge_events", "purge_tables", "purge_windows",
                      "purge_stage_runs", "purge_follow_ups", *finishes, "purge_leases", "purge"):  # fmt: skip
            self._write(query, [self.pipeline])
        return self.others()

    def others(self) -> int:
        """How many pipelines are left in this journal, once this one is not in it."""
        return int(self._value("pipelines_left", []) or 0)
