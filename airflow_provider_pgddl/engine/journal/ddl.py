"""The captured DDL events in the journal: recorded in commit order, with their attempts, versions and what was killed.

Whoever calls decides on transactions. A row's statements run in order, all or none.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, cast

from psycopg.rows import kwargs_row
from psycopg.types.json import Jsonb

from airflow_provider_pgddl.engine.ddl.captured_events import CapturedEvent, TableMeta
from airflow_provider_pgddl.engine.ddl.decision_json import event_json, kept, without_values_of
from airflow_provider_pgddl.engine.ddl.parse import dotted_names
from airflow_provider_pgddl.engine.ddl.redact import lost_without_secrets, without_secrets
from airflow_provider_pgddl.engine.errors import UsageError
from airflow_provider_pgddl.engine.journal.ddl_rows import (
    STATUSES,
    Attempt,
    DdlDetails,
    DdlRow,
    EventStatus,
    as_row,
    as_text,
)
from airflow_provider_pgddl.engine.server.connect import Session
from airflow_provider_pgddl.engine.server.encodings import Verbatim, as_is
from airflow_provider_pgddl.engine.sql import queries

if TYPE_CHECKING:
    from airflow_provider_pgddl.engine.ddl.decision import Decision

__all__ = ["STATUSES", "Attempt", "DdlDetails", "DdlJournal", "DdlRow", "EventStatus"]

_Q = queries("ddl_events")

KEPT_ATTEMPTS = 100  # of each event, beside the first
MAY_TELL = "it may hold a secret, which is not kept here: do it on the target by hand"

# What each status may be changed to by a person or a run; `applying` is left by the run that repairs it.
_FROM: Mapping[str, tuple[EventStatus, ...]] = {
    "pending": ("awaiting_approval", "failed", "applying"),
    "applying": ("pending", "failed", "applying"),
    "applied": ("applying",),
    "failed": ("applying",),
    "skipped": ("pending", "awaiting_approval", "unhandled", "failed", "applying"),
    "resolved": ("pending", "awaiting_approval", "unhandled", "failed"),
}


LeftOutJson = Mapping[str, Sequence[str]]


class DdlJournal:
    """The captured events of one pipeline and run over one session."""

    def __init__(self, conn: Session, pipeline: str, run: int):
        self.conn, self.pipeline, self.run = conn, pipeline, run

    def _read(self, query: str, args: Any) -> list[DdlRow]:
        with self.conn.cursor(row_factory=kwargs_row(as_row)) as cursor:
            return cursor.execute(_Q[query], args, prepare=True).fetchall()

    # --- recording ----------------------------------------------------------------------------------------------

    def record(
        self,
        decision: Decision,
        *,
        approval: Literal["auto", "required"] = "auto",
        masks: Mapping[int, Sequence[int]] | None = None,
        in_part: bool = False,
    ) -> int | None:
        """Writes an event behind all others, once: None where it is known already.

        What is saved of its tables is kept with it as what was before. `masks`: its tables, by oid, with the attnums of
        the columns that are replicated from here on; they are saved as versions at its LSN, what it drops as gone.
        `in_part`: values of rows are to stay on the source.
        """
        if in_part:
            decision = replace(decision, event=without_values_of(decision.event))
        event, lsn = decision.event, decision.event["lsn"]
        gone = {d["objid"] for d in event["dropped"] if d["classid"] == "pg_class" and d["objsubid"] == 0}
        row = self.conn.execute(
            _Q["record"],
            self._decided(decision, approval)
            | {
                "pipeline": self.pipeline,
                "run": self.run,
                "captured_id": event["id"],
                "captured": Jsonb(kept(event)),
                "lsn": lsn,
                "oids": [*{int(oid) for oid in event["tables"]} | gone],
                "mask": Jsonb({str(oid): list(mask) for oid, mask in (masks or {}).items()}),
            },
        ).fetchone()
        if row is None:
            return None
        if masks is not None:
            for oid, meta in event["tables"].items():
                if int(oid) in masks:
                    self.save_version(int(oid), lsn, meta, masks[int(oid)])
            for dropped in gone:
                self.forget_version(dropped, lsn)
        return int(row[0])

    def record_lost(self, lost: Mapping[str, Any], *, in_part: bool = False) -> int | None:
        """A command that the source could not record: nobody can say what it was but a person who looks."""
        relation = next(dotted_names(lost.get("relation") or ""), None)
        lost = lost_without_secrets(lost, in_part=in_part)
        event = {"seq": 0, "tag": lost.get("tag") or "unknown", "kind": "unknown", "section": None, "phase": "create",
                 "statement": lost["statement"] or "", "source": "captured"}  # fmt: skip
        args = {
            "pipeline": self.pipeline,
            "run": self.run,
            "captured_id": f"exception {lost['id']}",
            "event": Jsonb(event),
            "statement": event["statement"],
            "rule": f"exception {lost['id']} on the source: {lost['what']}",
            "captured": Jsonb({key: as_text(value) for key, value in lost.items()} | {"statement": event["statement"]}),
            "touches": Jsonb([relation] if relation else []),
        }
        row = self.conn.execute(_Q["record_lost"], args).fetchone()
        return int(row[0]) if row else None

    def redecide(self, event_id: int, decision: Decision, *, approval: Literal["auto", "required"] = "auto") -> bool:
        """Replaces what was decided on an event that is still to be done; whether it was."""
        args = self._decided(decision, approval) | {"id": event_id, "pipeline": self.pipeline}
        return self.conn.execute(_Q["redecide"], args).fetchone() is not None

    def _decided(self, decision: Decision, approval: Literal["auto", "required"]) -> dict[str, Any]:
        if any(without_secrets(statement) != statement for statement in decision.statements):
            decision = replace(decision, verdict="unhandled", rule=MAY_TELL, statements=())
        told = list(decision.statements) or [without_secrets(decision.event["statement"])]
        return {
            "event": Jsonb(event_json(decision)),
            "statement": Verbatim(";\n".join(told)),
            "status": decision.status(approval),
            "statements": as_is(list(decision.statements)),
            "rule": decision.rule,
            "notes": Jsonb(list(decision.notes)),
            "rebuilt": decision.rebuilt,
            "concurrently": decision.concurrently,
            "kind": decision.kind,
            "touches": Jsonb([list(name) for name in decision.touches]),
        }

    def known(self, captured_ids: Collection[str]) -> set[str]:
        """Those of the events that are recorded already."""
        args = [self.pipeline, self.run, list(captured_ids)]
        return {row[0] for row in self.conn.execute(_Q["known"], args)}

    # --- reading ------------------------------------------------------------------------------------------------

    def waiting(self) -> Sequence[DdlRow]:
        """What is not done yet, in commit order."""
        return self._read("waiting", [self.pipeline, self.run])

    def list(self, status: str | Collection[str] | None = None) -> Sequence[DdlRow]:
        """All captured events of the run, or those in one of these statuses, in commit order."""
        wanted = [status] if isinstance(status, str) else status
        if unknown := set(wanted or ()) - {*STATUSES}:
            raise UsageError(f"there is no status {min(unknown)!r}", todo=f"one of: {', '.join(STATUSES)}")
        return self._rows([*wanted] if wanted is not None else None, None)

    def counts(self) -> dict[str, int]:
        return dict(self.conn.execute(_Q["status_counts"], [self.pipeline, self.run]).fetchall())

    def row(self, event_id: int) -> DdlRow:
        found = self._rows(None, event_id)
        if not found:
            raise self._unknown(event_id)
        return found[0]

    def captured(self, event_id: int) -> CapturedEvent:
        """What was recorded of the command on the source."""
        return cast(CapturedEvent, self._details(event_id)[0])

    def show(self, event_id: int) -> DdlDetails:
        row = self.row(event_id)
        names = ("number", "started_at", "finished_at", "outcome", "message")
        attempts = [
            {k: as_text(v) for k, v in zip(names, r, strict=True)}
            for r in self.conn.execute(_Q["attempts"], [event_id])
        ]
        return DdlDetails(row, *self._details(event_id), attempts, self.killed(event_id))

    def _rows(self, statuses: Sequence[str] | None, event_id: int | None) -> Sequence[DdlRow]:
        args = {"pipeline": self.pipeline, "run": self.run, "statuses": statuses, "id": event_id}
        return self._read("list", args)

    def _details(self, event_id: int) -> tuple[Any, Any, Any, Any]:
        found = self.conn.execute(_Q["details"], [event_id, self.pipeline]).fetchone()
        if found is None:
            raise self._unknown(event_id)
        return found[0], found[1], found[2], found[3]

    def _unknown(self, event_id: int) -> UsageError:
        return UsageError(f"there is no captured DDL event {event_id}", todo="see `pgddl ddl list`")

    # --- changing -----------------------------------------------------------------------------------------------

    def set_status(self, event_id: int, status: EventStatus, note: str | None = None) -> None:
        """UsageError where the event's status now does not allow it: somebody else was there first."""
        with self.conn.transaction():
            if (now := self._lock(event_id)) not in _FROM[status]:
                raise UsageError(
                    f"DDL event {event_id} is {now} and cannot become {status}",
                    todo=f"this is for events that are {' or '.join(_FROM[status])}",
                )
            self.conn.execute(_Q["set_status"], {"id": event_id, "status": status, "note": note})

    def _lock(self, event_id: int) -> EventStatus:
        """Its status, which nobody else changes before the transaction ends."""
        found = self.conn.execute(_Q["lock_status"], [event_id, self.pipeline]).fetchone()
        if found is None:
            raise self._unknown(event_id)
        status: EventStatus = found[0]
        return status

    def approve(self, event_ids: Iterable[int] | None = None) -> Sequence[int]:
        """Lets these events through, or all that wait for it; UsageError for one that does not."""
        waiting = [row.id for row in self.list(["awaiting_approval"])]
        chosen = sorted(waiting) if event_ids is None else list(event_ids)
        with self.conn.transaction():
            for event_id in chosen:
                self._require_waiting(event_id)
                self.set_status(event_id, "pending")
        return chosen

    def reject(self, event_id: int, note: str) -> None:
        """It is left out for good; UsageError for one that does not wait for approval any more."""
        with self.conn.transaction():
            self._require_waiting(event_id)
            self.set_status(event_id, "skipped", note)

    def _require_waiting(self, event_id: int) -> None:
        if (status := self._lock(event_id)) != "awaiting_approval":
            raise UsageError(f"DDL event {event_id} is {status}, not awaiting approval")

    def retry(self, event_id: int) -> None:
        """A failed event is to be tried again."""
        with self.conn.transaction():
            if (status := self._lock(event_id)) != "failed":
                raise UsageError(f"DDL event {event_id} is {status}, not failed")
            self.set_status(event_id, "pending")

    def resolve(self, event_id: int, note: str) -> None:
        """A person did it by hand."""
        self.set_status(event_id, "resolved", note)

    def skip(self, event_id: int, note: str) -> None:
        """It is left out for good. What a run is applying right now is not."""
        with self.conn.transaction():
            if self._lock(event_id) == "applying":
                raise UsageError(f"DDL event {event_id} is being applied", todo="wait for the run, or stop it first")
            self.set_status(event_id, "skipped", note)

    def add_notes(self, event_id: int, notes: Sequence[str]) -> None:
        if notes:
            self.conn.execute(_Q["add_notes"], [Jsonb(list(notes)), event_id])

    # --- attempts -----------------------------------------------------------------------------------------------

    def start_attempt(self, event_id: int) -> Attempt | None:
        """`applying`, and a new attempt; None where a person has dealt with the event in the meantime. What every run
        of weeks has tried, the newest attempts tell, and the first one."""
        with self.conn.transaction():
            found = self.conn.execute(_Q["lock_status"], [event_id, self.pipeline]).fetchone()
            if found is None or found[0] not in _FROM["applying"]:
                return None
            self.conn.execute(_Q["interrupt_attempts"], [event_id])
            self.conn.execute(_Q["set_status"], {"id": event_id, "status": "applying", "note": None})
            row = self.conn.execute(_Q["start_attempt"], {"id": event_id}).fetchone()
            assert row is not None
            self.conn.execute(_Q["forget_attempts"], [event_id, row[0] - KEPT_ATTEMPTS])
            return Attempt(int(row[0]), found[0] == "applying")

    def finish_attempt(
        self,
        event_id: int,
        attempt: Attempt,
        outcome: Literal["applied", "failed", "skipped"],
        message: str | None = None,
        notes: Sequence[str] = (),
    ) -> None:
        """The attempt's end, and the event's status with it."""
        with self.conn.transaction():
            self.set_status(event_id, outcome, message)
            self.conn.execute(_Q["finish_attempt"], [outcome, message, event_id, attempt.number])
            self.add_notes(event_id, notes)

    def put_off(self, event_id: int, attempt: Attempt, message: str, status: EventStatus = "pending") -> None:
        """To be tried again; still `applying` where the attempt has left something that it could not clear away."""
        with self.conn.transaction():
            self.set_status(event_id, status)
            self.conn.execute(_Q["finish_attempt"], ["put off", message, event_id, attempt.number])

    # --- schema versions ----------------------------------------------------------------------------------------

    def save_version(self, source_oid: int, lsn: str, version: TableMeta, mask: Sequence[int]) -> None:
        """A table as it is from `lsn` on, and the attnums of its replicated columns."""
        args = [self.pipeline, self.run, source_oid, lsn, as_is(version), Jsonb(list(mask))]
        self.conn.execute(_Q["save_version"], args)

    def forget_version(self, source_oid: int, lsn: str) -> None:
        """From `lsn` on there is no such relation; nothing is noted of one that was never saved."""
        args = {"pipeline": self.pipeline, "run": self.run, "oid": source_oid, "lsn": lsn}
        self.conn.execute(_Q["forget_version"], args)

    def load_versions(self, lsn: str | None = None) -> dict[int, TableMeta]:
        """By the source's oid, each table's newest version at or below the LSN (None: the newest of all)."""
        return {oid: version for oid, version, _ in self._versions(lsn)}

    def load_masks(self, lsn: str | None = None) -> dict[int, Sequence[int]]:
        """By the source's oid, the attnums of each table's replicated columns in that version."""
        return {oid: mask for oid, _, mask in self._versions(lsn)}

    def _versions(self, lsn: str | None) -> Sequence[tuple[int, TableMeta, Sequence[int]]]:
        return self.conn.execute(_Q["load_versions"], [self.pipeline, self.run, lsn, lsn]).fetchall()

    def prune_versions(self, lsn: str | None = None) -> int:
        """Deletes what load_versions will not need from this LSN on (None: from the position's); returns how many."""
        lsn = lsn or self.lsn()
        if lsn is None:
            return 0
        args = {"pipeline": self.pipeline, "run": self.run, "lsn": lsn}
        return self.conn.execute(_Q["prune_versions"], args).rowcount

    # --- position -----------------------------------------------------------------------------------------------

    def position(self) -> str | None:
        """The source's snapshot, as text, that was read last; None: none yet."""
        return self._position()[0]

    def lsn(self) -> str | None:
        """The source's LSN at the position."""
        return self._position()[1]

    def _position(self) -> tuple[str | None, str | None]:
        row = self.conn.execute(_Q["position"], [self.pipeline], prepare=True).fetchone()
        return (row[0], row[1]) if row else (None, None)

    def behind(self, position: str | None) -> Sequence[tuple[int, str, str]]:
        """(id, captured id, LSN) of each event whose transaction the position does not show; None shows none."""
        args = {"pipeline": self.pipeline, "run": self.run, "position": position}
        return self.conn.execute(_Q["behind"], args).fetchall()

    def never_was(self, event_ids: Collection[int], why: str) -> Sequence[int]:
        """The source has lost these, and may give their ids away again: a person has to undo those that were applied,
        whose ids are returned; the others are over."""
        args = {"pipeline": self.pipeline, "run": self.run, "ids": list(event_ids), "why": why}
        self.conn.execute(_Q["forget_versions_of"], args)
        rows = self.conn.execute(_Q["never_was"], args).fetchall()
        return [event_id for event_id, status in rows if status == "unhandled"]

    def forget_versions(self, lsn: str) -> None:
        """Those from behind there."""
        self.conn.execute(_Q["forget_versions"], [self.pipeline, self.run, lsn])

    def set_position(self, position: str | None, lsn: str | None) -> None:
        """In the transaction that records what was read."""
        self.conn.execute(_Q["set_position"], [position, lsn, self.pipeline])

    def left_out(self) -> LeftOutJson | None:
        """What the target does not have, since it needs a table that the pipeline leaves out; None: not known yet."""
        row = self.conn.execute(_Q["left_out"], [self.pipeline]).fetchone()
        return cast(LeftOutJson | None, row[0]) if row else None

    def set_left_out(self, left_out: LeftOutJson | None) -> None:
        """In the transaction that records what was read."""
        self.conn.execute(_Q["set_left_out"], [None if left_out is None else Jsonb(left_out), self.pipeline])

    # --- signalled sessions -------------------------------------------------------------------------------------

    def killed(self, event_id: int | None = None, *, unreported: bool = False) -> Sequence[dict[str, Any]]:
        """The sessions that were signalled for this event (None: for any), those not reported yet only if asked."""
        names = ("id", "event_id", "pid", "usename", "application_name", "client_addr", "state", "query", "xact_start",
                 "signal", "succeeded", "message", "signalled_at", "reported", "reported_at")  # fmt: skip
        args = {"pipeline": self.pipeline, "event": event_id, "all": not unreported}
        rows = self.conn.execute(_Q["killed"], args)
        return [{k: as_text(v) for k, v in zip(names, row, strict=True)} for row in rows]

    def mark_reported(self, ids: Collection[int] | None = None) -> int:
        """These (None: all) have been told to whom they concern; returns how many were not before."""
        args = {"pipeline": self.pipeline, "ids": None if ids is None else list(ids)}
        return self.conn.execute(_Q["mark_reported"], args).rowcount
