"""The one door to the journal: schema `pgddl` in the target database."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from psycopg.types.json import Jsonb

from airflow_provider_pgddl.engine.ddl.captured_events import CapturedEvent
from airflow_provider_pgddl.engine.ddl.decision import WITHIN_REBUILT
from airflow_provider_pgddl.engine.ddl.events import DdlEvent
from airflow_provider_pgddl.engine.errors import UsageError
from airflow_provider_pgddl.engine.journal.schema import SchemaJournal
from airflow_provider_pgddl.engine.model import tables
from airflow_provider_pgddl.engine.model.names import Name
from airflow_provider_pgddl.engine.model.plan import Keepers, Plan
from airflow_provider_pgddl.engine.model.ranges import Bound
from airflow_provider_pgddl.engine.model.tables import Leaf, Server, Table
from airflow_provider_pgddl.engine.schema.verdict import SchemaFinding, stopped
from airflow_provider_pgddl.engine.server.connect import Session
from airflow_provider_pgddl.engine.sql import queries

_Q = queries("journal")
# Why a statement needs nothing of its own any more.
REPLACED = "a later dump took its place"
SHOWN = "the snapshot shows it already"
WAITS = "the dump that is taken when its time has come shows it"
WAS_THERE = "IF NOT EXISTS has added nothing"
STAGE_RUNS_KEPT = 1000  # of each stage, at least
# Commands for what a swap takes from its own dump, in scope or not.
_DUMPED = [
    *(
        f"{verb} {what}"
        for what in ("INDEX", "STATISTICS", "TRIGGER", "POLICY", "RULE") for verb in ("CREATE", "ALTER", "DROP")
    ),
    "GRANT", "REVOKE", "COMMENT", "SECURITY LABEL",
]  # fmt: skip
_QUEUEABLE = ("view", "materialized view", "function", "procedure", "aggregate", "routine")


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
    reverted_at: datetime | None


@dataclass(frozen=True, slots=True)
class TableRow:
    """One table of a run: its plan, the schema version that the plan was made for, and how far it has come.

    `removed_columns`: those that the source had once. `copy_physical`: the copy's files and attribute versions, as
    `Table.physical`, when the plan was made."""

    id: int
    schema: str
    name: str
    oid: int
    log_table: str
    plan: Plan
    version: dict[str, Any]
    fingerprint: str
    physical: dict[str, list[Any]]
    state: str
    planned: bool
    removed_columns: tuple[str, ...] = ()
    copy_physical: dict[str, list[Any]] = field(default_factory=dict)

    @property
    def qualified(self) -> str:
        return f"{self.schema}.{self.name}"

    @property
    def keyless(self) -> bool:
        """Whether no change of it is followed, so that it is copied whole at the swap."""
        return not self.plan.key

    @property
    def has_user_types(self) -> bool:
        """Whether a column's type is not built in: those are named with their schemas."""
        return any("." in column["type"] for column in self.version["columns"].values())


@dataclass(frozen=True, slots=True)
class Reverse:
    """The way back of a swapped table: `row` is like a table of the pipeline, from the new table into the old one.

    `facts` is the new table's definition when it was swapped in; `foreign_keys` what the old one had and the new one
    cannot have (`exchange.ForeignKey` as JSON); `silenced` the old one's triggers and rules that were switched off
    ([kind, name, state]), None before that."""

    table_id: int
    row: TableRow
    facts: list[str]
    foreign_keys: list[dict[str, Any]]
    silenced: list[list[str]] | None


@dataclass(frozen=True, slots=True)
class EventRow:
    id: int
    table_id: int | None
    event: dict[str, Any]
    statement: str


# What a person can do about an event, by its status.
_COMMANDS = {
    "failed": ("show {id}", "retry {id}", "skip {id} --note WHY"),
    "unhandled": ("show {id}", "resolve {id} --note WHAT", "skip {id} --note WHY"),
    "awaiting_approval": ("show {id}", "approve {id}", "skip {id} --note WHY"),
}


def exists(conn: Session) -> bool:
    row = conn.execute("SELECT pg_catalog.to_regclass('pgddl.pipelines') IS NOT NULL").fetchone()
    return bool(row and row[0])


def stage_result(conn: Session, job_id: str) -> dict[str, Any] | None:
    """The recorded result of a job; None while there is none."""
    row = conn.execute(_Q["stage_result"], [job_id]).fetchone()
    return row[0] if row else None


class Journal:
    """The journal of one pipeline over one session; whoever calls decides on transactions."""

    def __init__(self, conn: Session, pipeline: str):
        self.conn, self.pipeline = conn, pipeline
        self._exists = False
        self._run: int | None = None
        # Where rows are moved: whose each table and its copy are, as a stage has found them.
        self.keepers_of: Callable[[Sequence[TableRow]], Mapping[int, Keepers]] | None = None

    # --- pipeline -----------------------------------------------------------------------------------------------

    def find(self) -> PipelineRow | None:
        self._exists = self._exists or exists(self.conn)
        if not self._exists:
            return None
        row = self.conn.execute(_Q["pipeline"], [self.pipeline]).fetchone()
        return PipelineRow(*row) if row else None

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
        self.conn.execute(_Q["insert_pipeline"], [self.pipeline, job, Jsonb(config), source.system, source.timeline])

    def next_run(self, job: str, config: Mapping[str, Any], source: Server) -> None:
        """The passage after a finished one; the audit of earlier runs stays."""
        args = {"pipeline": self.pipeline, "job": job, "config": Jsonb(config),
                "system": source.system, "timeline": source.timeline}  # fmt: skip
        self.conn.execute(_Q["next_run"], args)
        self._run = None
        self.conn.execute(_Q["forget_windows"], [self.pipeline, self.run])
        self.conn.execute(_Q["forget_versions"], [self.pipeline, self.run])
        self.schema.forget(*self.schema.statuses())

    def set_config(self, config: Mapping[str, Any]) -> None:
        self.conn.execute(_Q["set_config"], [Jsonb(config), self.pipeline])

    def require_verify(self, why: str | None) -> None:
        self.conn.execute(_Q["set_verify_needed"], [why, self.pipeline])

    def set_timeline(self, timeline: int) -> None:
        """Of the source, once what its change asks for is recorded."""
        self.conn.execute(_Q["set_timeline"], [timeline, self.pipeline])

    def lock(self) -> PipelineRow:
        """The pipeline as recorded, for this transaction alone."""
        self.conn.execute(_Q["lock_cut_over"], [self.pipeline])
        return self.row()

    def set_cut_over(self) -> None:
        self.conn.execute(_Q["set_cut_over"], [self.pipeline])

    def set_reverted(self) -> None:
        """The swap was taken back: the copies are copies again, and what acts on writers waits for the next swap."""
        for name in ("set_reverted", "finish_again"):
            self.conn.execute(_Q[name], [self.pipeline])

    def has_cut_over_for_certain(self) -> bool:
        """Waits for whoever is just about to commit it."""
        row = self.conn.execute(_Q["lock_cut_over"], [self.pipeline]).fetchone()
        return bool(row and row[0])

    def set_finished(self) -> None:
        self.conn.execute(_Q["set_finished"], [self.pipeline])

    # --- stages -------------------------------------------------------------------------------------------------

    def start_stage(self, job_id: str, run: int, stage: str, token: int) -> None:
        self.conn.execute(_Q["start_stage"], [job_id, self.pipeline, run, stage, token])

    def finish_stage(self, job_id: str, stage: str, result: Mapping[str, Any]) -> None:
        """Also forgets what a pipeline that follows for months would only pile up."""
        self.conn.execute(_Q["finish_stage"], [Jsonb(result), job_id])
        args = {"pipeline": self.pipeline, "run": self.run, "stage": stage, "kept": STAGE_RUNS_KEPT}
        self.conn.execute(_Q["forget_stages"], args)

    def stage_done(self, run: int, stage: str) -> bool:
        row = self.conn.execute(_Q["stage_done"], [self.pipeline, run, stage]).fetchone()
        return bool(row and row[0])

    def stage_finished(self, run: int, stage: str) -> bool:
        """Whether it has come to its end, also where an earlier run that was killed had left it nothing to do."""
        row = self.conn.execute(_Q["stage_finished"], [self.pipeline, run, stage]).fetchone()
        return bool(row and row[0])

    def last_done(self, run: int, stage: str) -> dict[str, Any] | None:
        """The result of the last time that a stage had something to do and did it."""
        row = self.conn.execute(_Q["last_done"], [self.pipeline, run, stage]).fetchone()
        return row[0] if row else None

    def stages(self, run: int) -> list[dict[str, Any]]:
        names = ("stage", "started_at", "finished_at", "result")
        return [dict(zip(names, row, strict=True)) for row in self.conn.execute(_Q["stages"], [self.pipeline, run])]

    def longest_wait(self, run: int) -> tuple[int, str] | None:
        """The longest that a writer may have waited for a lock of this run (ms), and the stage that took it."""
        row = self.conn.execute(_Q["longest_wait"], [self.pipeline, run]).fetchone()
        return (row[0], row[1]) if row else None

    # --- tables -------------------------------------------------------------------------------------------------

    def tables(self, run: int) -> list[TableRow]:
        return self._with_keepers([
            TableRow(
                i, schema, name, oid, log, Plan.from_json(plan), version, fingerprint, physical, state, planned,
                tuple(removed), copy_physical,
            )
            for i, schema, name, oid, log, plan, version, fingerprint, physical, state, planned, removed, copy_physical
            in self.conn.execute(_Q["tables"], [self.pipeline, run])
        ])  # fmt: skip

    def _with_keepers(self, rows: list[TableRow]) -> list[TableRow]:
        found = self.keepers_of(rows) if self.keepers_of else {}
        return [replace(r, plan=replace(r.plan, keepers=found[r.id])) if r.id in found else r for r in rows]

    def add_table(self, run: int, table: Table, log_table: str, plan: Plan) -> None:
        args = [self.pipeline, run, table.schema, table.name, table.oid, log_table, Jsonb(plan.to_json()),
                Jsonb(table.version()), tables.fingerprint(table.structure()), Jsonb(table.physical())]  # fmt: skip
        self.conn.execute(_Q["insert_table"], args)

    def replan(self, fresh: TableRow) -> None:
        """The table as it is from here on; what was compared of it is over."""
        args = {"id": fresh.id, "schema": fresh.schema, "name": fresh.name, "log": fresh.log_table,
                "state": fresh.state, "plan": Jsonb(fresh.plan.to_json()), "version": Jsonb(fresh.version),
                "physical": Jsonb(fresh.physical), "fingerprint": fresh.fingerprint,
                "removed": Jsonb(list(fresh.removed_columns)), "copy": Jsonb(fresh.copy_physical)}  # fmt: skip
        self.conn.execute(_Q["replan_table"], args)
        self.conn.execute(_Q["forget_verification"], [fresh.id])
        self.conn.execute(_Q["forget_chunks"], [fresh.id, [int(leaf) for leaf in fresh.physical]])

    def rename_chunks(self, fresh: TableRow, leaves: Iterable[Leaf]) -> None:
        """The names that a table's leaves have by now."""
        for leaf in leaves:
            self.conn.execute(_Q["rename_chunks"], [leaf.schema, leaf.name, fresh.id, leaf.oid])

    def set_state(self, state: str, ids: Iterable[int]) -> None:
        self.conn.execute(_Q["set_state"], [state, list(ids)])

    def set_planned(self, table_id: int, physical: Mapping[str, Any]) -> None:
        self.conn.execute(_Q["set_planned"], [Jsonb(physical), table_id])

    def unplan(self, table_id: int) -> None:
        """Forgets a table's chunks, so that they are laid out anew."""
        self.conn.execute(_Q["delete_chunks"], [table_id])
        self.conn.execute(_Q["unplan"], [table_id])

    def set_physical(self, table_id: int, physical: Mapping[str, Any]) -> None:
        self.conn.execute(_Q["set_physical"], [Jsonb(physical), table_id])

    def forget_verification(self, table_id: int) -> None:
        self.conn.execute(_Q["forget_verification"], [table_id])

    def set_copy(self, table: TableRow) -> None:
        """What the copy is by now, where nothing of it concerns a row."""
        self.conn.execute(_Q["set_copy"], [Jsonb(table.plan.to_json()), Jsonb(table.copy_physical), table.id])

    # --- the way back of a swap in place ------------------------------------------------------------------------

    def add_reverse(self, table_id: int, live: Table, log_table: str, plan: Plan, facts: Sequence[str],
                    foreign_keys: Sequence[Mapping[str, Any]]) -> None:  # fmt: skip
        args = [table_id, live.oid, log_table, Jsonb(plan.to_json()), Jsonb(live.version()), Jsonb(live.physical()),
                Jsonb(list(facts)), Jsonb(list(foreign_keys))]  # fmt: skip
        self.conn.execute(_Q["insert_reverse"], args)

    def knows_reverses(self) -> bool:
        """Not where a journal was made by an older version and no setup has run since."""
        row = self.conn.execute(_Q["reverses_there"]).fetchone()
        return bool(row and row[0])

    def reverses(self, run: int) -> list[Reverse]:
        found = list[Reverse]()
        if not self.knows_reverses():
            return found
        for (table_id, reverse_id, schema, name, oid, log, plan, version, physical, facts, foreign_keys,
             silenced) in self.conn.execute(_Q["reverses"], [self.pipeline, run]):  # fmt: skip
            made_for = {k: v for k, v in version.items() if k != "attnums"}
            row = TableRow(
                reverse_id, schema, name, oid, log, Plan.from_json(plan), version, tables.fingerprint(made_for),
                physical, "indexed", True,
            )  # fmt: skip
            (row,) = self._with_keepers([row])
            found.append(Reverse(table_id, row, facts, foreign_keys, silenced))
        return found

    def set_silenced(self, reverse: Reverse, silenced: Sequence[Sequence[str]]) -> None:
        self.conn.execute(_Q["set_silenced"], [Jsonb([list(s) for s in silenced]), reverse.row.id])

    def forget_reverse(self, reverse: Reverse) -> None:
        self.conn.execute(_Q["forget_reverse"], [reverse.row.id])

    def captured_statements(self, run: int, oid: int) -> list[tuple[CapturedEvent, list[str]]]:
        """(captured event, what was run of it) of every applied event that a relation of the source is in; without
        those that found a column of the same name on the target."""
        args = [self.pipeline, run, str(oid), WAS_THERE]
        return self.conn.execute(_Q["captured_statements"], args).fetchall()

    def forget_table(self, table: TableRow) -> None:
        self.conn.execute(_Q["delete_table"], [table.id])
        self.schema.forget((table.schema, table.name))

    # --- chunks -------------------------------------------------------------------------------------------------

    def chunks_left(self, ids: Sequence[int]) -> dict[int, tuple[int, int]]:
        """Per table: chunks not done, and their bytes."""
        return {row[0]: (row[1], int(row[2])) for row in self.conn.execute(_Q["chunks_left"], [list(ids)])}

    def analyze_chunks(self) -> None:
        """Without statistics a claim would sort all chunks that are left, each time; autovacuum may take a minute."""
        self.conn.execute(_Q["analyze_chunks"])

    def chunk_bytes(self, ids: Sequence[int]) -> dict[int, int]:
        """The bytes of each table's chunks; a table without any is left out."""
        return dict(self.conn.execute(_Q["chunk_bytes"], [list(ids)]).fetchall())

    def chunk_progress(self, ids: Sequence[int]) -> tuple[int, int, int, int, int]:
        """(chunks, chunks done, rows done, bytes, bytes done)"""
        row = self.conn.execute(_Q["chunk_progress"], [list(ids)]).fetchone()
        assert row is not None
        return row[0], row[1], row[2], row[3], row[4]

    # --- the snapshot's DDL events; those captured live are in ddl_journal.py -------------------------------------

    def events(self, run: int, phases: Sequence[str]) -> list[EventRow]:
        return [EventRow(*row) for row in self.conn.execute(_Q["events_to_apply"], [self.pipeline, run, list(phases)])]

    def event_status(self, event_id: int, status: str, note: str | None = None) -> None:
        self.conn.execute(_Q["event_status"], [status, note, status, event_id])

    def event_failed(self, event_id: int, note: str) -> None:
        """Unless the same task, started once more, has done it meanwhile."""
        self.conn.execute(_Q["event_failed"], [note, event_id])

    def lock_events(self, ids: Sequence[int]) -> set[int]:
        """Those of the events that are to be done, for this transaction alone (C29)."""
        return {row[0] for row in self.conn.execute(_Q["lock_events"], [list(ids)])}

    def events_applied(self, ids: Sequence[int]) -> None:
        self.conn.execute(_Q["events_applied"], [list(ids)])

    def applied_events(self, run: int) -> list[tuple[int, dict[str, Any]]]:
        """(id, event) of what was applied, last first."""
        return self.conn.execute(_Q["applied_events"], [self.pipeline, run]).fetchall()

    def all_events(self, run: int) -> list[tuple[int, int | None, dict[str, Any], str, str | None]]:
        """(id, table id, event, status, note) of what the run's snapshots recorded, first to last."""
        return self.conn.execute(_Q["all_events"], [self.pipeline, run]).fetchall()

    def queue_behind(self, run: int, first: int, last: int) -> None:
        """Puts what was pending before event number `first` behind `last`, in its order."""
        args = {"pipeline": self.pipeline, "run": run, "first": first, "by": last + 1}
        self.conn.execute(_Q["queue_behind"], args)

    def dumped_events(self, run: int) -> list[DdlEvent]:
        """What the source's dumps showed, as it stood there; without what a later dump has replaced, and without
        indexes that are still to be built: a swap that died may have been about to."""
        rows = self.conn.execute(_Q["dumped_events"], [self.pipeline, run, REPLACED])
        return [DdlEvent.from_json(row[0]) for row in rows]

    def waiting_statements(self, run: int, phases: Sequence[str]) -> list[tuple[int, int | None, dict[str, Any], str]]:
        """(id, table id, event, statement) of what waits for its stage."""
        return self.conn.execute(_Q["waiting_statements"], [self.pipeline, run, list(phases)]).fetchall()

    def captured_touches(self, run: int) -> tuple[set[tuple[str, str]], set[tuple[str, str]], set[tuple[str, str]]]:
        """(what captured events were about, of that what one was about that the scope left out, and what one that a
        person resolved)."""
        args = {"pipeline": self.pipeline, "run": run, "carried": [SHOWN, WAITS, WITHIN_REBUILT], "dumped": _DUMPED}
        rows = self.conn.execute(_Q["captured_touches"], args).fetchall()
        left_out, resolved = ({(s, n) for s, n, *is_so in rows if is_so[at]} for at in (0, 1))
        return {(s, n) for s, n, *_ in rows}, left_out, resolved

    def tables_with_events(self, run: int) -> set[int]:
        return {row[0] for row in self.conn.execute(_Q["tables_with_events"], [self.pipeline, run])}

    def replace_skipped(self, run: int, tables: Iterable[int]) -> None:
        """What an earlier dump showed of tables that were blocked then."""
        self.conn.execute(_Q["replace_skipped"], [REPLACED, self.pipeline, run, list(tables)])

    def next_seq(self, run: int) -> int:
        row = self.conn.execute(_Q["next_seq"], [self.pipeline, run]).fetchone()
        return int(row[0]) if row else 0

    def event_counts(self, run: int) -> dict[str, int]:
        return dict(self.conn.execute(_Q["event_counts"], [self.pipeline, run]).fetchall())

    # --- schema status ------------------------------------------------------------------------------------------

    @property
    def schema(self) -> SchemaJournal:
        """The verdicts of the schema gate."""
        return SchemaJournal(self.conn, self.pipeline)

    def set_statuses_of_others(self, findings: Mapping[Name, Sequence[str]]) -> None:
        """What blocks tables that are none of the run yet; those that are not named any more are forgotten."""
        mine = {(t.schema, t.name) for t in self.tables(self.run)}
        self.schema.forget(*(name for name in self.schema.statuses() if name not in mine and name not in findings))
        self.schema.record_many(
            {name: ("mismatch", [stopped(w) for w in why], None, (None, None)) for name, why in findings.items()}
        )

    def mismatches(self) -> dict[str, list[str]]:
        """`schema.table` → findings of what is blocked, by itself or by DDL that waits."""
        found = {
            f"{schema}.{table}": [f.what for f in row.findings if f.severity == "mismatch"]
            for (schema, table), row in self.schema.statuses().items()
            if row.status == "mismatch"
        }
        for name, findings in self.stuck_tables().items():
            found.setdefault(name, []).extend(f.what for f in findings)
        return found

    def stuck_tables(self) -> dict[str, list[SchemaFinding]]:
        """What DDL that waits for a person is about, or waits behind such: `schema.name` → findings."""
        found: dict[str, list[SchemaFinding]] = {}
        first: int | None = None
        for event_id, tag, status, note, touches, kind, statement in self.conn.execute(_Q["stuck"], [self.pipeline]):
            if status in ("failed", "unhandled", "awaiting_approval"):
                if self.passes_over(status, kind):
                    continue
                first = first or event_id
                what = f"DDL event {event_id} ({tag}) is {status.replace('_', ' ')}: {note or 'see pgddl ddl show'}"
                commands = tuple(f"ddl {command}" for command in _COMMANDS[status])
            elif first is not None:
                what, commands = f"DDL event {event_id} ({tag}) waits behind event {first}", ("ddl list",)
            else:
                continue
            commands = tuple(command.format(id=event_id) for command in commands)
            finding = replace(stopped(what, "ddl"), statement=statement, commands=commands)
            names = {f"{schema}.{name}" if schema else name for schema, name in touches or [["", tag.lower()]]}
            if tag == "ALTER TYPE":
                names |= self._with_user_types()
            for name in sorted(names):
                found.setdefault(name, []).append(finding)
        return found

    def _with_user_types(self) -> set[str]:
        """Tables that hold values of types which are not built in. A label or an attribute that has another name means
        something else in a row, also within a domain, an array or a composite of the altered type."""
        return {t.qualified for t in self.tables(self.run) if t.has_user_types}

    def passes_over(self, status: str, kind: str | None) -> bool:
        """Whether rows and later DDL may go on past a failed event: views and functions, where the pipeline says so."""
        return status == "failed" and self.row().config["ddl"]["on_failure"] == "queue" and kind in _QUEUEABLE

    def was_dropped(self, run: int, oid: int) -> bool:
        """Whether an event that dropped this relation on the source has been applied."""
        row = self.conn.execute(_Q["was_dropped"], [self.pipeline, run, oid]).fetchone()
        return bool(row and row[0])

    def detached(self, run: int) -> set[int]:
        """The relations that an applied event has made partitions no more."""
        return {row[0] for row in self.conn.execute(_Q["detached"], [self.pipeline, run])}

    def born_as_partitions(self, run: int, oids: Sequence[int]) -> set[int]:
        """Those of the relations that were partitions from their creation on, so were captured while empty."""
        return {row[0] for row in self.conn.execute(_Q["born_as_partitions"], [list(oids), self.pipeline, run])}

    # --- windows ------------------------------------------------------------------------------------------------

    def add_window(
        self, after: int, run: int, keys: int, rows: int, pending: int, taken_at: datetime, lsn: str | None = None
    ) -> int:
        """Notes a window under the next number (above `after`), late in its transaction: runs over other tables
        number theirs in the same row. Returns the number.

        `lsn`: where the source's WAL was at the snapshot of a window over all tables that rows are followed of."""
        row = self.conn.execute(_Q["next_window"], [after, self.pipeline]).fetchone()
        assert row is not None
        self.conn.execute(_Q["insert_window"], [self.pipeline, row[0], run, keys, rows, pending, taken_at, lsn])
        return int(row[0])

    def last_complete(self, run: int) -> tuple[str, datetime] | None:
        """(LSN, time) of the last snapshot of the source that the target has shown the rows of in full."""
        return self.conn.execute(_Q["last_complete"], [self.pipeline, run]).fetchone()

    def last_read(self, run: int) -> str | None:
        """Where the source's WAL was at the last window's snapshot; None where that is not known."""
        row = self.conn.execute(_Q["last_read"], [self.pipeline, run]).fetchone()
        return row[0] if row else None

    def windows(self, run: int) -> dict[str, Any]:
        row = self.conn.execute(_Q["windows"], [self.pipeline, run]).fetchone()
        assert row is not None
        return {"windows": row[0], "keys": int(row[1]), "rows": int(row[2]), "last": row[3]}

    # --- verification -------------------------------------------------------------------------------------------

    def add_ranges(self, job: str, ranges: Iterable[tuple[int, int, Bound | None, Bound | None]]) -> None:
        """(table id, number, low, high)"""
        with self.conn.cursor() as cursor:
            rows = [
                [table_id, job, number, *(None if bound is None else list(bound) for bound in bounds)]
                for table_id, number, *bounds in ranges
            ]
            cursor.executemany(_Q["insert_range"], rows)

    def ranges_left(self, ids: Sequence[int], job: str) -> list[tuple[int, int, Bound | None, Bound | None]]:
        """(range id, table id, low, high)"""
        rows = self.conn.execute(_Q["ranges_left"], [list(ids), job])
        return [(range_id, table, low and tuple(low), high and tuple(high)) for range_id, table, low, high in rows]

    def ranges_differing(self, ids: Sequence[int], job: str) -> list[tuple[int, int, Bound | None, Bound | None]]:
        """The same of those that were compared and differ."""
        rows = self.conn.execute(_Q["ranges_differing"], [list(ids), job])
        return [(range_id, table, low and tuple(low), high and tuple(high)) for range_id, table, low, high in rows]

    def compare_again(self, range_id: int) -> None:
        self.conn.execute(_Q["compare_again"], [range_id])

    def cut_range(self, range_id: int, bounds: Iterable[tuple[Bound | None, Bound | None]]) -> None:
        """Others in the place of one that has not been compared."""
        row = self.conn.execute(_Q["take_range"], [range_id]).fetchone()
        assert row is not None
        table, job, last = row
        self.add_ranges(job, [(table, number, low, high) for number, (low, high) in enumerate(bounds, last + 1)])

    def tables_with_ranges(self, job: str) -> set[int]:
        return {row[0] for row in self.conn.execute(_Q["tables_with_ranges"], [job])}

    def ranges_done(self, results: Iterable[tuple[int, int, Sequence[str]]]) -> None:
        """(range id, rows, keys that differ)"""
        with self.conn.cursor() as cursor:
            rows = [[rows, Jsonb(list(differ)), range_id] for range_id, rows, differ in results]
            cursor.executemany(_Q["range_done"], rows)

    def verification(self, ids: Sequence[int]) -> dict[int, tuple[int, int, int]]:
        """Per table, of its last verification: ranges not compared yet, rows compared, keys that differ."""
        return {
            row[0]: (row[1], row[2], row[3])
            for row in self.conn.execute(_Q["verification"], [self.pipeline, list(ids)])
        }

    def differing(self, table_id: int) -> list[str]:
        row = self.conn.execute(_Q["differing"], [table_id]).fetchone()
        return row[0] if row and row[0] else []

    # --- what follows a swap -------------------------------------------------------------------------------

    def add_follow_up(self, run: int, statement: str) -> None:
        self.conn.execute(_Q["insert_follow_up"], [self.pipeline, run, statement])

    def follow_ups_left(self, run: int) -> list[tuple[str, str | None]]:
        """(statement, why it is left to a person), in their order."""
        return self.conn.execute(_Q["follow_ups_left"], [self.pipeline, run]).fetchall()

    def follow_up_failed(self, run: int, statement: str, why: str) -> None:
        self.conn.execute(_Q["follow_up_failed"], [why, self.pipeline, run, statement])

    def follow_up_done(self, run: int, statement: str) -> None:
        self.conn.execute(_Q["follow_up_done"], [self.pipeline, run, statement])

    # --- what a target gets that no swap comes to --------------------------------------------------------------

    def finish(self, run: int) -> tuple[str, int] | None:
        """(digest, captured event up to which REFRESH was followed) of the last time; None before the first."""
        return self.conn.execute(_Q["finish"], [self.pipeline, run]).fetchone()

    def finished_events(self, run: int) -> list[dict[str, Any]]:
        """The source's statements then."""
        return [row[0] for row in self.conn.execute(_Q["finished_events"], [self.pipeline, run])]

    def set_finished_events(self, run: int, digest: str, events: Sequence[Mapping[str, Any]]) -> None:
        self.conn.execute(_Q["set_finish"], [self.pipeline, run, digest])
        self.conn.execute(_Q["forget_finished"], [self.pipeline, run])
        with self.conn.cursor() as cursor:
            rows = [[self.pipeline, run, number, Jsonb(event)] for number, event in enumerate(events)]
            cursor.executemany(_Q["insert_finished"], rows)

    def refreshed_since(self, run: int) -> tuple[int, set[Name]]:
        """(last captured event, materialized views that were refreshed since the last time)"""
        row = self.conn.execute(_Q["refreshed_since"], {"pipeline": self.pipeline, "run": run}).fetchone()
        assert row is not None
        return int(row[0]), {(schema, name) for schema, name in row[1]}

    def set_refreshed(self, run: int, upto: int) -> None:
        self.conn.execute(_Q["set_refreshed"], [upto, self.pipeline, run])

    # --- the end ------------------------------------------------------------------------------------------------

    def purge(self) -> int:
        """Forgets the pipeline; returns how many others are left in this journal."""
        self.schema.forget_all()
        row = self.conn.execute(_Q["finishes_there"]).fetchone()  # not in an older version's
        finishes = ("purge_finishes", "purge_finished") if row and row[0] else ()
        for name in ("purge_killed", "purge_versions", "purge_events", "purge_tables", "purge_windows",
                     "purge_stage_runs", "purge_follow_ups", *finishes, "purge_leases", "purge"):  # fmt: skip
            self.conn.execute(_Q[name], [self.pipeline])
        return self.others()

    def others(self) -> int:
        """How many pipelines are left in this journal, once this one is not in it."""
        row = self.conn.execute(_Q["pipelines_left"]).fetchone()
        return int(row[0]) if row else 0
