"""A decision in the JSON that the journal keeps of every event, snapshotted or captured. Pure."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from airflow_provider_pgddl.engine.ddl.captured_events import CapturedEvent, TableMeta
from airflow_provider_pgddl.engine.ddl.dump_phases import Phase, phase_of
from airflow_provider_pgddl.engine.ddl.events import DdlEvent
from airflow_provider_pgddl.engine.ddl.parse import parse, split
from airflow_provider_pgddl.engine.ddl.redact import without_secrets, without_values
from airflow_provider_pgddl.engine.ddl.subject import subject_of
from airflow_provider_pgddl.engine.errors import StageFailed

if TYPE_CHECKING:
    from airflow_provider_pgddl.engine.ddl.decision import Decision


def event_json(decision: Decision) -> dict[str, Any]:
    """The event in the JSON of a snapshot's: of its first statement where that can be described, else of its tag."""
    statement = without_secrets(decision.event["statement"]) if not decision.statements else decision.statements[0]
    touched = next((name for name in decision.touches if all(name)), None)
    event = DdlEvent(
        seq=decision.event["seq"],
        tag=decision.event["tag"],
        kind=decision.kind,
        section=None,
        phase="create",
        statement=statement,
        schema=touched[0] if touched else None,
        name=touched[1] if touched else None,
        table=touched if decision.kind == "table" else None,
        note=None,
        source="captured",
    ).to_json()
    try:
        if len(split(statement)) != 1:
            return event
        tree = parse(statement)
        subject = subject_of(tree)
    except (StageFailed, IndexError):  # a statement of a kind that a dump has not
        return event
    if not decision.statements and subject.tag != decision.event["tag"]:
        return event  # what called the command, not the command
    phase: Phase = "create"
    with suppress(StageFailed):
        phase = phase_of(tree, "pre-data")
    return event | {
        "tag": subject.tag if decision.statements else decision.event["tag"],
        "kind": subject.kind,
        "phase": phase,
        "schema": subject.schema,
        "name": subject.name,
        "table": list(subject.table) if subject.table else None,
        "references": [list(n) for n in subject.mentions],
        "types": [list(n) for n in subject.types],
        "functions": [list(n) for n in subject.functions],
        "arguments": list(subject.arguments) if subject.arguments is not None else None,
        "roles": list(subject.roles),
        "index": list(subject.index) if subject.index else None,
        "sequence": list(subject.sequence) if subject.sequence else None,
    }


def kept(event: CapturedEvent) -> dict[str, Any]:
    """What was captured, without what may hold a secret."""
    inner = event["inner"]
    return {
        **event,
        "statement": without_secrets(event["statement"]),
        "inner": without_secrets(inner) if inner is not None else None,
    }


def without_values_of(event: CapturedEvent) -> CapturedEvent:
    """What was captured, as it is kept where values are to stay on the source."""
    inner = event["inner"]
    return {
        **event,
        "statement": without_values(event["statement"]),
        "inner": without_values(inner) if inner is not None else None,
        "tables": {oid: without_old_values(meta) for oid, meta in event["tables"].items()},
    }


def without_old_values(meta: TableMeta) -> TableMeta:
    """A version of a table without what rows show that are older than a column, which only judging its event takes."""
    return {**meta, "columns": [{**column, "missing": None} for column in meta["columns"]]}
