"""What the journal gives out of a captured DDL event."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from airflow_provider_pgddl.engine.ddl.captured_events import CapturedEvent, TableMeta
from airflow_provider_pgddl.engine.model.names import Name

EventStatus = Literal[
    "pending", "awaiting_approval", "applying", "applied", "skipped", "unhandled", "failed", "resolved"
]
STATUSES: tuple[EventStatus, ...] = (
    "pending", "awaiting_approval", "applying", "applied", "skipped", "unhandled", "failed", "resolved",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class DdlRow:
    """One captured event as recorded; `event` is ddl/events.py's JSON of its first statement."""

    id: int
    captured_id: str
    seq: int
    lsn: str | None
    event: dict[str, Any]
    status: EventStatus
    statements: tuple[str, ...]
    rule: str | None
    notes: tuple[str, ...]
    object_kind: str | None
    touches: tuple[Name, ...]
    rebuilt: bool
    concurrently: bool
    note: str | None
    """Why it failed, or what a person wrote."""
    recorded_at: datetime | None
    started_at: datetime | None
    applied_at: datetime | None

    @property
    def tag(self) -> str:
        return str(self.event["tag"])

    def to_json(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "captured_id": self.captured_id,
            "status": self.status,
            "tag": self.tag,
            "kind": self.object_kind,
            "touches": [".".join(part for part in name if part) for name in self.touches],
            "statements": list(self.statements),
            "rule": self.rule,
            "notes": list(self.notes),
            "note": self.note,
            "rebuilt": self.rebuilt,
            "concurrently": self.concurrently,
            "lsn": self.lsn,
            **{k: as_text(getattr(self, k)) for k in ("recorded_at", "started_at", "applied_at")},
        }


@dataclass(frozen=True, slots=True)
class DdlDetails:
    """All that is known of one event; times as text."""

    row: DdlRow
    captured: CapturedEvent
    previous_version: Mapping[str, TableMeta] | None
    previous_mask: Mapping[str, Sequence[int]] | None
    mask: Mapping[str, Sequence[int]] | None
    attempts: Sequence[Mapping[str, Any]]
    killed: Sequence[Mapping[str, Any]]

    def to_json(self) -> dict[str, Any]:
        return {
            **self.row.to_json(),
            "captured": dict(self.captured),
            "previous_version": self.previous_version,
            "previous_mask": self.previous_mask,
            "mask": self.mask,
            "attempts": list(self.attempts),
            "killed": list(self.killed),
        }


@dataclass(frozen=True, slots=True)
class Attempt:
    number: int
    interrupted: bool
    """An earlier one was ended by force: what it did outside of transactions may be there in part."""


def as_row(
    *, statements: list[str] | None, notes: list[str] | None, touches: list[list[str]] | None, **columns: Any
) -> DdlRow:
    names = tuple((schema, name) for schema, name in touches or ())
    return DdlRow(statements=tuple(statements or ()), notes=tuple(notes or ()), touches=names, **columns)


def as_text(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime) else value
