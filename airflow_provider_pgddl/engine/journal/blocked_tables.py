"""What keeps tables from going on: a verdict of the schema gate, or DDL that waits for a person."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from airflow_provider_pgddl.engine.journal.schema import SchemaJournal
from airflow_provider_pgddl.engine.journal.section import JournalSection
from airflow_provider_pgddl.engine.journal.tables import TableJournal
from airflow_provider_pgddl.engine.model.names import Name
from airflow_provider_pgddl.engine.schema.verdict import SchemaFinding, stopped

_QUEUEABLE = ("view", "materialized view", "function", "procedure", "aggregate", "routine")
# What a person can do about an event, by its status.
_COMMANDS = {
    "failed": ("show {id}", "retry {id}", "skip {id} --note WHY"),
    "unhandled": ("show {id}", "resolve {id} --note WHAT", "skip {id} --note WHY"),
    "awaiting_approval": ("show {id}", "approve {id}", "skip {id} --note WHY"),
}


@dataclass(frozen=True, slots=True)
class _StuckEvent:
    id: int
    tag: str
    status: str
    note: str | None
    touches: list[list[str]] | None
    object_kind: str | None
    statement: str
    run: int
    config: dict[str, Any]


class BlockedTables(JournalSection):
    def __init__(self, tables: TableJournal, schema: SchemaJournal):
        super().__init__(tables.conn, tables.pipeline)
        self._tables, self._schema = tables, schema

    def set_statuses_of_others(self, run: int, findings: Mapping[Name, Sequence[str]]) -> None:
        """What blocks tables that are none of the run yet; those that are not named any more are forgotten."""
        mine = {(t.schema, t.name) for t in self._tables.of(run)}
        self._schema.forget(*(name for name in self._schema.statuses() if name not in mine and name not in findings))
        self._schema.record_many(
            {name: ("mismatch", [stopped(w) for w in why], None, (None, None)) for name, why in findings.items()}
        )

    def mismatches(self) -> dict[str, list[str]]:
        """`schema.table` → findings of what is blocked, by itself or by DDL that waits."""
        found = {
            f"{schema}.{table}": [f.what for f in row.findings if f.severity == "mismatch"]
            for (schema, table), row in self._schema.mismatches().items()
        }
        for name, findings in self.by_ddl().items():
            found.setdefault(name, []).extend(f.what for f in findings)
        return found

    def by_ddl(self) -> dict[str, list[SchemaFinding]]:
        """What DDL that waits for a person is about, or waits behind such: `schema.name` → findings."""
        found: dict[str, list[SchemaFinding]] = {}
        first: int | None = None
        for event in self._rows(_StuckEvent, "stuck", [self.pipeline]):
            if event.status in _COMMANDS:
                if passes_over(event.config, event.status, event.object_kind):
                    continue
                first = first or event.id
                asked_for = event.status == "awaiting_approval"
                why = " (ddl.approval: required)" if asked_for else f": {event.note or 'see pgddl ddl show'}"
                what = f"DDL event {event.id} ({event.tag}) is {event.status.replace('_', ' ')}{why}"
                commands = tuple(f"ddl {command}" for command in _COMMANDS[event.status])
            elif first is not None:
                what, commands = f"DDL event {event.id} ({event.tag}) waits behind event {first}", ("ddl list",)
            else:
                continue
            commands = tuple(command.format(id=event.id) for command in commands)
            finding = replace(stopped(what, "ddl"), statement=event.statement, commands=commands)
            touches = event.touches or [["", event.tag.lower()]]
            names = {f"{schema}.{name}" if schema else name for schema, name in touches}
            if event.tag == "ALTER TYPE":
                names |= self._with_user_types(event.run)
            for name in sorted(names):
                found.setdefault(name, []).append(finding)
        return found

    def _with_user_types(self, run: int) -> set[str]:
        """Tables that hold values of types which are not built in. A label or an attribute that has another name means
        something else in a row, also within a domain, an array or a composite of the altered type."""
        return {t.qualified for t in self._tables.of(run) if t.has_user_types}


def passes_over(config: Mapping[str, Any], status: str, kind: str | None) -> bool:
    """Whether rows and later DDL may go on past a failed event: views and functions, where the pipeline says so."""
    return status == "failed" and config["ddl"]["on_failure"] == "queue" and kind in _QUEUEABLE
