"""What comparing two schemas comes to: findings, a verdict, and what becomes of each column. Pure data.

Findings travel as JSON: in the journal, to the sensor, the command line and the metrics, which all show the same."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Severity = Literal["info", "warning", "mismatch"]
VerdictStatus = Literal["compatible", "warning", "mismatch"]
FindingKind = Literal[
    "source_added_column", "target_added_column", "source_removed_column", "renamed_column", "column_case",
    "type_mismatch", "safe_cast", "missing_type", "generated", "identity", "collation", "not_null",
    "target_constraint", "key", "missing_on_target", "missing_on_source", "not_a_table", "privileges",
    "expression", "unlogged", "stopped",
]  # fmt: skip
# Why a table is blocked, as metrics say it.
Reason = Literal[
    "data_loss_risk", "type_mismatch", "target_not_null", "source_removed", "target_constraint", "missing_table",
    "privileges", "ddl", "lost_commits", "stopped",
]  # fmt: skip

OR = "-- OR --"
"""Stands between two statements of a fix of which one is enough."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Another way out than the fix: what it means, and the flag of the command line that asks for it."""

    label: str
    flag: str


@dataclass(frozen=True, slots=True)
class SchemaFinding:
    """One difference between source and target. `what` is a sentence that stands by itself; `impact` what would happen;
    `fix` SQL for the target, a statement each; `statement` DDL that waits, and `commands` what pgddl can be told
    about it; `source` and `target` the two sides in a word or two; `metric` the
    label under which `mismatches_total` counts it."""

    kind: FindingKind
    severity: Severity
    what: str
    column: str | None = None
    impact: str | None = None
    source: str | None = None
    target: str | None = None
    fix: tuple[str, ...] = ()
    choices: tuple[Choice, ...] = ()
    statement: str | None = None
    commands: tuple[str, ...] = ()
    reason: Reason = "data_loss_risk"
    metric: str = ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"metric": self.metric or self.kind}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> SchemaFinding:
        fields = dict(value)
        fields["fix"] = tuple(fields.get("fix") or ())
        fields["commands"] = tuple(fields.get("commands") or ())
        fields["choices"] = tuple(Choice(**choice) for choice in fields.get("choices") or ())
        return cls(**fields)


def stopped(what: str, reason: Reason = "stopped") -> SchemaFinding:
    """What stops a table and is no difference of two schemas: a refused row, a lost log, DDL that waits."""
    return SchemaFinding("stopped", "mismatch", what, reason=reason)


@dataclass(frozen=True, slots=True)
class AutoMigration:
    """A change of the target that the policy lets us make by ourselves."""

    kind: Literal["add_column", "safe_type_change", "drop_column"]
    column: str
    statements: tuple[str, ...]
    approved: bool


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the policy makes of the differences, and what becomes of each column from here on.

    `skip`: columns of the source that are not copied. `casts`: column → expression over the source's columns, in SQL,
    where the value is not the column as it is. `retyped`: columns whose types differ, so cannot travel in binary.
    `nulls`: columns of the target that are written as NULL. `taken`: generated columns of the source whose values are
    copied. `keep`: columns of the target that nobody writes, and whose values stay."""

    status: VerdictStatus
    findings: tuple[SchemaFinding, ...] = ()
    skip: frozenset[str] = frozenset()
    casts: Mapping[str, str] = field(default_factory=dict)
    retyped: frozenset[str] = frozenset()
    nulls: tuple[str, ...] = ()
    taken: frozenset[str] = frozenset()
    keep: tuple[str, ...] = ()
    migrations: tuple[AutoMigration, ...] = ()

    @property
    def mismatches(self) -> tuple[SchemaFinding, ...]:
        return tuple(f for f in self.findings if f.severity == "mismatch")


@dataclass(frozen=True, slots=True)
class TableReport:
    """One table as the gate, `pgddl schema validate` and the sensor show it. `since` is an ISO time, `resolution` a
    short sentence that says how to get on; `new` says that this mismatch has not been announced to anybody yet."""

    table: str
    status: VerdictStatus
    findings: tuple[SchemaFinding, ...] = ()
    source_columns: int = 0
    target_columns: int = 0
    since: str | None = None
    resolution: str | None = None
    new: bool = False
    held_back: int | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "table": self.table,
            "status": "schema_mismatch" if self.status == "mismatch" else self.status,
            "error": next((f.what for f in self.findings if f.severity == "mismatch"), None),
            "sync_stopped_at": self.since if self.status == "mismatch" else None,
            "resolution": self.resolution,
            "since": self.since,
            "held_back": self.held_back,
            "source_columns": self.source_columns,
            "target_columns": self.target_columns,
            "findings": [f.to_json() for f in self.findings],
        }
