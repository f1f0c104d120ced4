"""ddl: what a person sees of captured DDL, and decides about it.

A decision does not take the pipeline's lock, so that a stage may be at work meanwhile: the event's row is locked, and
its status looked at again. Only `retry` applies anything, and is a run of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal

from airflow_provider_pgddl.engine.apply.captured_events import apply_captured
from airflow_provider_pgddl.engine.capture import ddl_log
from airflow_provider_pgddl.engine.ddl.events import is_own_schema
from airflow_provider_pgddl.engine.ddl.redact import lost_without_secrets
from airflow_provider_pgddl.engine.ddl.scope import Rules
from airflow_provider_pgddl.engine.errors import UsageError, no_such_exception
from airflow_provider_pgddl.engine.failpoints import failpoint
from airflow_provider_pgddl.engine.following.copies_ddl import is_about_copies
from airflow_provider_pgddl.engine.following.old_server import kept_closed
from airflow_provider_pgddl.engine.job.same_config import require_same_config
from airflow_provider_pgddl.engine.journal.actions import Actions
from airflow_provider_pgddl.engine.journal.ddl import STATUSES, DdlDetails, DdlJournal, DdlRow
from airflow_provider_pgddl.engine.journal.lease import Lease
from airflow_provider_pgddl.engine.journal.pipelines import Journal
from airflow_provider_pgddl.engine.journal.schema import SchemaJournal
from airflow_provider_pgddl.engine.pipeline.model import Pipeline
from airflow_provider_pgddl.engine.pipeline.names import written
from airflow_provider_pgddl.engine.pipeline.selection import matches
from airflow_provider_pgddl.engine.rights.trust import is_trusted, powers
from airflow_provider_pgddl.engine.schema.table_versions import table_diff
from airflow_provider_pgddl.engine.server import catalog
from airflow_provider_pgddl.engine.server.connect import Session, connect
from airflow_provider_pgddl.engine.sql import queries

OPEN = ("pending", "awaiting_approval", "applying", "unhandled", "failed")
"""Not over."""
HELD = ("awaiting_approval", "unhandled", "failed")
"""Not over, and a person is waited for."""
LOST = "exception "
"""How the id of an event begins that the source could not record (DdlJournal.record_lost); then its number there."""

_Q = queries("ddl_commands")
_TODO = {
    "pending": "nothing: the next run of a stage applies it",
    "applying": "nothing: a run is at it, or the next one finds out how it ended",
    "awaiting_approval": "`pgddl ddl show {id}`; then `pgddl ddl approve {id}`, or `pgddl ddl skip {id} --note …`",
    "failed": "put right what the server says, then `pgddl ddl retry`; or do it by hand, then `pgddl ddl resolve {id} "
    "--note …`; or leave it out: `pgddl ddl skip {id} --note …`",
    "unhandled": "`pgddl ddl show {id}`; do it by hand on the target, then `pgddl ddl resolve {id} --note …`; or leave "
    "it out: `pgddl ddl skip {id} --note …`",
}


@contextmanager
def _journal(pipeline: Pipeline, target_dsn: str) -> Iterator[DdlJournal]:
    with connect(target_dsn, purpose="ddl", pipeline=pipeline.pipeline) as target:
        yield DdlJournal(target, pipeline.pipeline, Journal(target, pipeline.pipeline).run)


# --- looking --------------------------------------------------------------------------------------------------------


def listed(pipeline: Pipeline, target_dsn: str, statuses: Sequence[str] | None) -> dict[str, Any]:
    """The run's captured events, all or of some statuses, in commit order."""
    with _journal(pipeline, target_dsn) as ddl:
        return events(ddl, statuses)


def events(ddl: DdlJournal, statuses: Sequence[str] | None) -> dict[str, Any]:
    """The same, over a session that is open."""
    first = _first_in_the_way(ddl)
    return _overview(ddl) | {"events": [_event(row, first) for row in ddl.list(statuses)]}


def _first_in_the_way(ddl: DdlJournal) -> DdlRow | None:
    """The event behind which all others wait."""
    journal = Journal(ddl.conn, ddl.pipeline)
    held = (row for row in ddl.waiting() if row.status in HELD)
    return next((row for row in held if not journal.passes_over(row.status, row.object_kind)), None)


def _overview(ddl: DdlJournal) -> dict[str, Any]:
    counts = ddl.counts()
    return {
        "pipeline": ddl.pipeline,
        "run": ddl.run,
        "counts": {status: counts.get(status, 0) for status in STATUSES},
        "waiting_for_a_person": [row.id for row in ddl.list(HELD)],
    }


def _event(row: DdlRow, first: DdlRow | None) -> dict[str, Any]:
    todo = _TODO.get(row.status)
    if row.status == "pending" and first is not None and first.seq < row.seq:
        todo = f"nothing: it waits behind event {first.id}"
    return row.to_json() | {
        "statement": ";\n".join(row.statements) or str(row.event["statement"]),
        "reason": (row.note or row.rule) if row.status in ("failed", "unhandled") else None,
        "todo": todo.format(id=row.id) if todo else None,
    }


def show(pipeline: Pipeline, target_dsn: str, event_id: int) -> dict[str, Any]:
    """One event: as captured, as decided, what it changed on the source, each attempt, whom it signalled."""
    with _journal(pipeline, target_dsn) as ddl:
        details = ddl.show(event_id)
        event = details.to_json() | _event(details.row, _first_in_the_way(ddl)) | {"changes": _changes(details)}
    return {"pipeline": ddl.pipeline, "run": ddl.run, "event": event}


def _changes(details: DdlDetails) -> list[dict[str, Any]]:
    """By table, between its versions before and behind the event; only where something changed.

    A table that is there without a version from before was made by the event, or nothing is known of it."""
    before = details.previous_version or {}
    after = details.captured.get("tables") or {}
    gone = {str(d["objid"]) for d in details.captured.get("dropped") or () if d["classid"] == "pg_class"}
    made = {str(o["objid"]) for o in details.captured.get("objects") or () if o["tag"].startswith("CREATE ")}
    found = [table_diff(before.get(oid), meta) for oid, meta in after.items() if oid in before or oid in made]
    found += [table_diff(meta, None) for oid, meta in before.items() if oid not in after and oid in gone]
    return [one.to_json() for one in found if one]


# --- deciding -------------------------------------------------------------------------------------------------------


def approve(pipeline: Pipeline, target_dsn: str, ids: Sequence[int], who: str) -> dict[str, Any]:
    """Lets these through, or all that wait for it; the next run of a stage applies them."""
    with _journal(pipeline, target_dsn) as ddl, ddl.conn.transaction():
        approved = ddl.approve(list(dict.fromkeys(ids)) or None)
        for event_id in approved:
            ddl.add_notes(event_id, [f"approved by {who}"])
        failpoint("ddl.before_approved_commit", ddl.conn)
        return _changed(ddl, approved)


def reject(pipeline: Pipeline, target_dsn: str, ids: Sequence[int], note: str, who: str) -> None:
    """Leaves these out for good; UsageError, and none is, where one does not wait for approval any more."""
    with _journal(pipeline, target_dsn) as ddl:
        _end(ddl, ids, partial(ddl.reject, note=f"{note} ({who})"))


def _end(ddl: DdlJournal, ids: Sequence[int], end: Callable[[int], None]) -> None:
    with ddl.conn.transaction():
        for event_id in ids:
            end(event_id)
            _look_again(ddl, event_id)
        failpoint("ddl.before_decided_commit", ddl.conn)


def awaiting(pipeline: Pipeline, target_dsn: str) -> list[dict[str, Any]]:
    """What of the run waits for approval, in commit order, each with the `changes` that it made on the source. Nothing
    where the pipeline is not set up."""
    with connect(target_dsn, purpose="ddl", pipeline=pipeline.pipeline) as target:
        row = Journal(target, pipeline.pipeline).find()
        if row is None or row.finished_at is not None:
            return []
        ddl = DdlJournal(target, pipeline.pipeline, row.run)
        found = [ddl.show(waits.id) for waits in ddl.list(["awaiting_approval"])]
        return [_event(details.row, None) | {"changes": _changes(details)} for details in found]


def leave_waiting(pipeline: Pipeline, target_dsn: str, ids: Sequence[int], who: str) -> None:
    """Somebody was asked, and has decided neither way."""
    with _journal(pipeline, target_dsn) as ddl:
        for event_id in ids:
            ddl.add_notes(event_id, [f"left waiting by {who}"])


def record_decision(
    pipeline: Pipeline,
    source_dsn: str,
    target_dsn: str,
    event_id: int,
    status: Literal["resolved", "skipped"],
    note: str,
    who: str,
) -> dict[str, Any]:
    """An event is over: done by hand, or left out. With one that the source could not record its exception is."""
    with _journal(pipeline, target_dsn) as ddl:
        end = ddl.resolve if status == "resolved" else ddl.skip
        _end(ddl, [event_id], partial(end, note=f"{note} ({who})"))
        captured_id = ddl.row(event_id).captured_id
        if captured_id.startswith(LOST):
            with connect(source_dsn, purpose="ddl", pipeline=pipeline.pipeline) as source:
                _end_exception(source, pipeline, int(captured_id.removeprefix(LOST)), f"{note} ({who})")
        return _changed(ddl, [event_id])


def _end_exception(source: Session, pipeline: Pipeline, exception_id: int, note: str) -> list[str]:
    """Resolved, unless it is already; or the other pipelines that have to read it first."""
    waiting = source.execute(_Q["not_seen_by"], {"id": exception_id, "pipeline": pipeline.pipeline}).fetchall()
    if not waiting and exception_id in {row["id"] for row in _exceptions(source, pipeline, False)}:
        ddl_log.resolve_exception(source, exception_id, note)
    return [name for (name,) in waiting]


def _look_again(ddl: DdlJournal, event_id: int) -> None:
    """What blocks the tables that an event is about may be over with it: the next stage finds out."""
    SchemaJournal(ddl.conn, ddl.pipeline).forget(*((schema, name) for schema, name in ddl.row(event_id).touches))


def _changed(ddl: DdlJournal, ids: Sequence[int]) -> dict[str, Any]:
    first = _first_in_the_way(ddl)
    return _overview(ddl) | {"changed": [_event(ddl.row(event_id), first) for event_id in ids]}


def retry(
    pipeline: Pipeline, source_dsn: str, target_dsn: str, event_id: int | None = None, who: str | None = None
) -> dict[str, Any]:
    """Applies failed events, all in commit order or this one, up to the first that fails again. `who`: with this name
    it is recorded that somebody has had it tried.

    Retry where a lock was not to be had in time, or another run is alive: a stage tries failed events by itself.
    """
    name = pipeline.pipeline
    with _journal(pipeline, target_dsn) as look:
        pipeline = require_same_config(pipeline, Journal(look.conn, name).row().config)
        _failed(look, event_id)
    with Lease(target_dsn, name, "ddl retry", None) as held:
        token = held.take(source_dsn)

        def session(purpose: str) -> Session:
            return connect(target_dsn, purpose=purpose, pipeline=name, token=token)

        def trusted_on_source(role: str) -> bool:
            with connect(source_dsn, purpose="ddl retry", pipeline=name) as source:
                return is_trusted(source, role, pipeline.trusted_roles)

        def powers_on_source(role: str) -> set[str]:
            with connect(source_dsn, purpose="ddl retry", pipeline=name) as source:
                return powers(source, [role]).get(role, set())

        with session("ddl retry") as target:
            held.terminate_stale(target)
            if who is not None:
                Actions(target, name).add(who, "retry", None if event_id is None else str(event_id), None)
            ddl = DdlJournal(target, name, Journal(target, name).run)
            close = kept_closed(pipeline, Journal(target, name).row(), target)
            tried = []
            for row in _failed(ddl, event_id):
                outcome = apply_captured(
                    target, lambda: session("ddl watch"), pipeline, ddl, held.fence, row,
                    trusted_on_source=trusted_on_source, powers_on_source=powers_on_source,
                    copies_only=is_about_copies(pipeline, row), then=partial(close, row) if close else None,
                )  # fmt: skip
                tried.append(row.id)
                if not outcome.over:
                    break
            return _changed(ddl, tried)


def _failed(ddl: DdlJournal, event_id: int | None) -> list[DdlRow]:
    failed = [row for row in ddl.waiting() if row.status == "failed"]
    if event_id is None:
        return failed
    row = ddl.row(event_id)
    if row.status != "failed":
        raise UsageError(f"DDL event {event_id} is {row.status}, not failed", todo="see `pgddl ddl list`")
    for earlier in ddl.waiting():
        if earlier.seq < row.seq and set(earlier.touches) & set(row.touches):
            raise UsageError(
                f"DDL event {event_id} comes behind {earlier.id}, which concerns the same and is {earlier.status}",
                todo=f"see to event {earlier.id} first (`pgddl ddl show {earlier.id}`)",
            )
    return [row]


# --- on the source --------------------------------------------------------------------------------------------------


@contextmanager
def _source(pipeline: Pipeline, source_dsn: str) -> Iterator[Session]:
    """A session on a source that captures DDL; UsageError where none is captured."""
    with connect(source_dsn, purpose="ddl", pipeline=pipeline.pipeline) as source:
        there = source.execute(_Q["is_set_up"]).fetchone()
        row = source.execute(_Q["captures_ddl"], [pipeline.pipeline]).fetchone() if there and there[0] else None
        if row is None or row[0] == "off":
            raise UsageError(
                f"no DDL is captured for pipeline {pipeline.pipeline!r}",
                todo="run stage setup first" if row is None else "capture.ddl is off: nothing follows",
            )
        yield source


def set_enabled(pipeline: Pipeline, source_dsn: str, enabled: bool) -> dict[str, Any]:
    """Whether what is run on the source from here on concerns the pipeline."""
    with _source(pipeline, source_dsn) as source:
        ddl_log.set_enabled(source, pipeline.pipeline, enabled)
    return {"pipeline": pipeline.pipeline, "enabled": enabled}


def exceptions(pipeline: Pipeline, source_dsn: str, *, resolved: bool = False) -> dict[str, Any]:
    """What went wrong while capturing and nobody has seen to (`resolved`: also what somebody has)."""
    with _source(pipeline, source_dsn) as source:
        found = _exceptions(source, pipeline, resolved)
    left = [row for row in found if row["resolved_at"] is None]
    return {"pipeline": pipeline.pipeline, "exceptions": found, "unresolved": len(left)}


def _exceptions(source: Session, pipeline: Pipeline, resolved: bool) -> list[dict[str, Any]]:
    names = ("id", "happened_at", "tag", "role", "sqlstate", "what", "statement", "relation", "resolved_at", "note")
    args = {"pipeline": pipeline.pipeline, "resolved": resolved}
    rows, in_part = source.execute(_Q["exceptions"], args), bool(pipeline.rows_read)
    return [lost_without_secrets(dict(zip(names, row, strict=True)), in_part=in_part) for row in rows]


def resolve_exception(
    pipeline: Pipeline, source_dsn: str, target_dsn: str, exception_id: int, note: str, who: str
) -> dict[str, Any]:
    """Somebody has seen to it; the event that the journal may have for it is resolved as well."""
    note = f"{note} ({who})"
    with _source(pipeline, source_dsn) as source:
        if exception_id not in {row["id"] for row in _exceptions(source, pipeline, False)}:
            raise no_such_exception(exception_id)
        with _journal(pipeline, target_dsn) as ddl:
            args = [ddl.pipeline, ddl.run, f"{LOST}{exception_id}"]
            for (event_id,) in ddl.conn.execute(_Q["lost_event"], args).fetchall():
                ddl.resolve(event_id, note)
        if waiting := _end_exception(source, pipeline, exception_id, note):
            raise UsageError(
                f"pipeline {', '.join(waiting)} has not read exception {exception_id} yet",
                todo="run its next stage first; what this pipeline had recorded of it is resolved",
            )
        left = len(_exceptions(source, pipeline, False))
    return {"pipeline": pipeline.pipeline, "resolved": exception_id, "unresolved": left}


# --- the scope ------------------------------------------------------------------------------------------------------


def preview(pipeline: Pipeline, source_dsn: str) -> dict[str, Any]:
    """What `ddl` in the pipeline file matches of the source as it is now. Needs no setup, and changes nothing."""
    ddl = pipeline.ddl
    with connect(source_dsn, purpose="ddl", pipeline=pipeline.pipeline) as source:
        there = catalog.table_names(source)
        names = [name for (name,) in source.execute(_Q["schemas"]).fetchall() if not is_own_schema(name)]
    selection = matches(pipeline, there, strict=False)
    own = sorted([*selection.rows, *selection.schema_only])
    rules = Rules.of(pipeline, own)
    schemas = [name for name in names if rules.has_schema(name)]
    tables = own if rules.narrow else sorted(t for t in there if t[0] in schemas and rules.takes(t))
    others = sorted(t for t in there if t not in tables)
    return {
        "pipeline": pipeline.pipeline,
        "capture": pipeline.capture.ddl,
        "scope": ddl.scope,
        "pattern": ddl.schemas if ddl.scope == "schemas" else None,
        "in_place": pipeline.in_place,
        "by_table": rules.narrow,
        "schemas": [written(name) for name in schemas],
        "other_schemas": [written(name) for name in names if name not in schemas],
        "tables": [written(*table) for table in tables],
        "other_tables": [written(*table) for table in others],
        "create_tags": list(ddl.create_tags or ()),
        "drop_tags": list(ddl.drop_tags or ()),
        "blocked_tags": list(ddl.blocked_tags),
        "exclude_alter_table_subcommands": list(ddl.exclude_alter_table_subcommands),
    }


# --- signalled sessions ---------------------------------------------------------------------------------------------


def killed(pipeline: Pipeline, target_dsn: str, *, reported: bool = False, report: bool = False) -> dict[str, Any]:
    """Sessions of the target that were signalled because they stood in the way, those not reported yet; `report` marks
    exactly those that are returned."""
    with _journal(pipeline, target_dsn) as ddl:
        found = ddl.killed(unreported=not reported)
        marked = ddl.mark_reported([row["id"] for row in found]) if report else 0
    return {"pipeline": ddl.pipeline, "killed": found, "reported": marked}


__all__ = [
    "HELD",
    "OPEN",
    "approve",
    "exceptions",
    "killed",
    "listed",
    "preview",
    "record_decision",
    "resolve_exception",
    "retry",
    "set_enabled",
    "show",
]  # fmt: skip
