"""news: what people are told of a pipeline without having asked, from the journal alone: a source that is down hides
nothing. The journal remembers what each of those who tell it has told."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import psycopg

from airflow_provider_pgddl.engine.commands import ddl
from airflow_provider_pgddl.engine.errors import from_postgres
from airflow_provider_pgddl.engine.journal.control import Control, control_status
from airflow_provider_pgddl.engine.journal.ddl import DdlJournal
from airflow_provider_pgddl.engine.journal.pipelines import Journal, PipelineRow
from airflow_provider_pgddl.engine.journal.schema import SchemaJournal
from airflow_provider_pgddl.engine.schema import report as reports
from airflow_provider_pgddl.engine.schema.verdict import TableReport
from airflow_provider_pgddl.engine.server.connect import Session, connect
from airflow_provider_pgddl.engine.sql import queries

Event = Literal["mismatch", "ddl", "verification", "swap", "lag"]
EVENTS: tuple[Event, ...] = ("mismatch", "ddl", "verification", "swap", "lag")
SHOWN_KEYS = 20
_WITHIN = "within its limit"
_Q = queries("news")


@dataclass(frozen=True, slots=True)
class News:
    """`subject` is a line, `message` says what to do. The same `event` about the same, in the same `state`, is none."""

    event: Event
    about: str
    state: str
    subject: str
    message: str
    table: str | None = None


def claim(
    pipeline: str, target_dsn: str, who: str, events: Collection[Event] = EVENTS, lag_limit: float | None = None
) -> Iterator[News]:
    """What `who` has not told yet, one after the other: once it comes from here it has been, whoever else looks at the
    same time, and what is behind it has not; so a process that ends meanwhile takes one with it at most. `lag_limit` in
    seconds; None tells of no lag. Nothing where the pipeline is not set up. Errors as `connect` has them."""
    try:
        with connect(target_dsn, purpose="news", pipeline=pipeline) as target:
            journal = Journal(target, pipeline)
            row = journal.find()
            if row is None:
                return
            for one in [one for event in EVENTS if event in events for one in _LOOKS[event](journal, row, lag_limit)]:
                if not _shown(target, pipeline, who, one) and one.state != _WITHIN:
                    yield one
    except psycopg.Error as error:
        raise from_postgres(error, doing="looking at the journal") from None


def give_back(pipeline: str, target_dsn: str, who: str, untold: Collection[News]) -> None:
    """What was claimed and nobody could be told of is news again."""
    with connect(target_dsn, purpose="news", pipeline=pipeline) as target:
        for one in untold:
            SchemaJournal(target, pipeline).shown(_place(who, one), "")


def _shown(target: Session, pipeline: str, who: str, one: News) -> bool:
    return SchemaJournal(target, pipeline).shown(_place(who, one), _hash(one.state))


def _place(who: str, one: News) -> str:
    return f"{who}/{one.event}/{one.about}"


def _mismatches(journal: Journal, row: PipelineRow, _: float | None) -> Iterator[News]:
    if row.cut_over_at is not None or row.finished_at is not None:
        return
    name = journal.pipeline
    for place, status in journal.schema.statuses().items():
        if status.status != "mismatch":
            continue
        table, report = ".".join(place), TableReport(".".join(place), "mismatch", status.findings)
        stops = [f for f in status.findings if f.severity == "mismatch"]
        why = stops[0].what.partition("\n")[0] if stops else "mismatch"
        standing = f"Table {table} of pipeline {name} is stopped since {status.since:%Y-%m-%d %H:%M} UTC."
        safe = "Its changes wait on the source, and none is lost. Other tables go on."
        state = json.dumps([row.run, status.since.isoformat(), [f.to_json() for f in stops]])
        message = "\n".join([f"{standing} {safe}", "", *reports.lines(report)])
        yield News("mismatch", table, state, f"pgddl {name}: {table} is stopped: {why}", message, table)


def _ddl(journal: Journal, row: PipelineRow, _: float | None) -> Iterator[News]:
    for event in ddl.events(DdlJournal(journal.conn, journal.pipeline, row.run), ddl.HELD)["events"]:
        why = event["reason"]
        what = f"DDL event {event['id']} ({event['tag']}) is {event['status'].replace('_', ' ')}"
        said = [f"{what}. What it is about waits, and so does DDL behind it.", "", f"    {event['statement']}", ""]
        said += [f"Why: {why}", ""] if why else []
        message = "\n".join([*said, f"To do: {event['todo']}"])
        state = json.dumps([event["status"], why])
        yield News("ddl", f"{row.run}/{event['id']}", state, f"pgddl {journal.pipeline}: {what}", message)


def _verification(journal: Journal, row: PipelineRow, _: float | None) -> Iterator[News]:
    if row.finished_at is not None:
        return
    tables = {table.id: table.qualified for table in journal.tables.of(row.run)}
    for table_id, compared in journal.verification.of_tables(list(tables)).items():
        if not compared.differ:
            continue
        table, keys = tables[table_id], journal.verification.differing_keys(table_id)
        rows = "1 row differs" if compared.differ == 1 else f"{compared.differ} rows differ"
        told = [f"Verification of {table}: {rows} between source and copy; no swap while that is so. Keys:"]
        told += ["", *(f"    {key}" for key in keys[:SHOWN_KEYS]), *(["    …"] if compared.differ > SHOWN_KEYS else [])]
        told += ["", "To do: find out who writes to the copy; `pgddl run verify --mend` then reads these rows again."]
        state = json.dumps([row.run, compared.rows, keys])
        yield News("verification", table, state, f"pgddl {journal.pipeline}: {table}: {rows}", "\n".join(told), table)


def _swap(journal: Journal, row: PipelineRow, _: float | None) -> Iterator[News]:
    if row.cut_over_at is None:
        return
    result: Mapping[str, Any] = journal.stage_runs.last_done(row.run, "swap") or {}
    longest, name = journal.stage_runs.longest_wait(row.run), journal.pipeline
    told = [f"Pipeline {name}, run {row.run}: swapped at {row.cut_over_at:%Y-%m-%d %H:%M:%S} UTC."]
    told += [f"No writer waited for longer than {longest.ms} ms (in {longest.stage})."] if longest else []
    told += ["Applications belong on the target from now on."] if row.job == "migrate" else []
    told += [f"Left to you: {entry['table']}: {entry['reason']}" for entry in result.get("blocked", ())]
    at = row.cut_over_at.isoformat()
    yield News("swap", str(row.run), at, f"pgddl {name}: the swap is done", "\n".join(told))


def _lag(journal: Journal, row: PipelineRow, limit: float | None) -> Iterator[News]:
    last = None if limit is None else journal.windows.last_complete(row.run)
    if limit is None or last is None or row.cut_over_at is not None or row.finished_at is not None:
        return
    found = journal.conn.execute(_Q["seconds_since"], [last.taken_at]).fetchone()
    seconds = float(found[0]) if found else 0.0
    if seconds <= limit:
        yield News("lag", str(row.run), _WITHIN, "", "")
        return
    name, control = journal.pipeline, control_status(Control(journal.conn, journal.pipeline))
    at_work = ", ".join(one["stage"] for one in control["under_way"]) or "no stage"
    throttled = control["throttled"] or {}
    held = control["paused_because"] or throttled.get("why")
    shows = f"The target of pipeline {name} shows the source as it was at {last.taken_at:%Y-%m-%d %H:%M:%S} UTC,"
    told = [f"{shows} {seconds:.0f} s ago. Changes wait on the source, and none is lost."]
    told += [f"Under way: {at_work}.", *([f"Held: {held}."] if held else [])]
    told += ["To do: see that the DAG runs and is not paused; `pgddl status` says who waits for what."]
    subject = f"pgddl {name}: {seconds:.0f} s behind, and {limit:.0f} s is the limit"
    yield News("lag", str(row.run), "over", subject, "\n".join(told))


_LOOKS = {"mismatch": _mismatches, "ddl": _ddl, "verification": _verification, "swap": _swap, "lag": _lag}


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
