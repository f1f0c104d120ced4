"""Runs that are born complete, by the cut-over of another pipeline: void until their source has the mark of it.

A pipeline has one row, whatever its run. While a run is unborn its row is kept beside it, to be put back where the
cut-over does not come about."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from psycopg.types.json import Jsonb

from airflow_provider_pgddl.engine.journal.pipelines import Journal, exists
from airflow_provider_pgddl.engine.model.births import Birth
from airflow_provider_pgddl.engine.model.tables import Server
from airflow_provider_pgddl.engine.server.connect import Session
from airflow_provider_pgddl.engine.server.encodings import as_is
from airflow_provider_pgddl.engine.sql import queries

_Q = queries("births")


@dataclass(frozen=True, slots=True)
class Run:
    """The present run of a pipeline. `unborn`: it is void. `of`: the pipeline by whose cut-over it was born, None for
    one that a setup began."""

    run: int
    unborn: bool
    of: str | None
    cut_over: bool
    finished: bool


def way_back_that_lives(conn: Session, pipeline: str) -> str | None:
    """The pipeline that is the way back of this one's cut-over and lives, whatever a file says by now. None where the
    journal here is another role's, in which nothing of ours can be."""
    if conn.execute(_Q["may_read"], prepare=True).fetchone() != (True,):
        return None
    row = conn.execute(_Q["living"], [pipeline], prepare=True).fetchone()
    return str(row[0]) if row else None


def is_fed_back(conn: Session, pipeline: str) -> bool | None:
    """Whether rows come back here from where this pipeline has moved to, or are about to: its way back lives, or is
    being born. None where the journal here is not ours to read."""
    may_read = conn.execute(_Q["may_read"], prepare=True).fetchone()
    if may_read != (True,):
        return False if may_read is None else None
    row = conn.execute(_Q["feeding"], [pipeline], prepare=True).fetchone()
    return bool(row and row[0])


class Births:
    """Of one pipeline, over one session; whoever calls decides on transactions."""

    def __init__(self, conn: Session, pipeline: str):
        self.conn, self.pipeline = conn, pipeline

    def find(self) -> Run | None:
        """None where the journal does not know the pipeline."""
        row = self.conn.execute(_Q["known"], [self.pipeline], prepare=True).fetchone() if exists(self.conn) else None
        return Run(row[0], row[1] is not None, row[2], row[3], row[4]) if row else None

    def make_unborn(self, config: Mapping[str, Any], source: Server, of: str) -> int:
        """Begins a run that is void; returns its number."""
        args = {"pipeline": self.pipeline, "config": as_is(config), "system": source.system,
                "timeline": source.timeline, "database": source.database_oid, "of": of}  # fmt: skip
        row = self.conn.execute(_Q["make_unborn"], args).fetchone()
        assert row is not None
        return int(row[0])

    def be_born(self, birth: Birth) -> None:
        """From here on the run is one like any other: its copies are complete, and it has behind it what the cut-over
        had."""
        args = {"pipeline": self.pipeline, "position": birth.position, "lsn": birth.lsn}
        self.conn.execute(_Q["be_born"], args)

    def unmake(self, run: int) -> None:
        """Forgets a run that was not born; the one before it is the pipeline's again."""
        for name in ("unmake_events", "unmake_versions", "unmake_stage_runs", "unmake_tables"):
            self.conn.execute(_Q[name], [self.pipeline, run])
        row = self.conn.execute(_Q["known"], [self.pipeline]).fetchone()
        if row is not None and row[1] == {}:
            Journal(self.conn, self.pipeline).purge()
        else:
            self.conn.execute(_Q["unmake"], {"pipeline": self.pipeline})

    def stages_done(self, run: int, stages: Sequence[str], token: int, of: str) -> None:
        """What others have done for the run by the time that it is born."""
        for stage in stages:
            result = {"stage": stage, "pipeline": self.pipeline, "run": run, "state": "done", "tables": {},
                      "blocked": [], "figures": {"born_of": of}}  # fmt: skip
            job = f"birth {self.pipeline} {run} {stage}"
            self.conn.execute(_Q["stage_done"], [job, self.pipeline, run, stage, token, Jsonb(result)])

    def end_gone_back(self) -> None:
        """Applications are on the run's source again."""
        self.conn.execute(_Q["end_gone_back"], [self.pipeline])
