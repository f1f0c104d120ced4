"""The way back of each table that was swapped in place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from psycopg.rows import kwargs_row
from psycopg.types.json import Jsonb

from airflow_provider_pgddl.engine.journal.section import JournalSection
from airflow_provider_pgddl.engine.journal.tables import TableJournal, TableRow
from airflow_provider_pgddl.engine.model.plan import Plan
from airflow_provider_pgddl.engine.model.tables import Table, fingerprint
from airflow_provider_pgddl.engine.server.encodings import as_is


@dataclass(frozen=True, slots=True)
class Reverse:
    """The way back of a swapped table: `row` is like a table of the pipeline, from the new table into the old one.

    `facts` is the new table's definition when it was swapped in; `foreign_keys` what the old one had and the new one
    cannot have (`in_place.ForeignKey` as JSON); `silenced` the old one's triggers and rules that were switched off
    ([kind, name, state]), None before that."""

    table_id: int
    row: TableRow
    facts: list[str]
    foreign_keys: list[dict[str, Any]]
    silenced: list[list[str]] | None


def _reverse(
    *,
    table_id: int,
    plan: dict[str, Any],
    version: dict[str, Any],
    facts: list[str],
    foreign_keys: list[dict[str, Any]],
    silenced: list[list[str]] | None,
    **columns: Any,
) -> Reverse:
    made_for = {k: v for k, v in version.items() if k != "attnums"}
    row = TableRow(
        plan=Plan.from_json(plan),
        version=version,
        fingerprint=fingerprint(made_for),
        state="indexed",
        planned=True,
        **columns,
    )
    return Reverse(table_id, row, facts, foreign_keys, silenced)


class WaysBack(JournalSection):
    def __init__(self, tables: TableJournal):
        super().__init__(tables.conn, tables.pipeline)
        self._tables = tables

    def add(
        self,
        table_id: int,
        live: Table,
        log_table: str,
        plan: Plan,
        facts: Sequence[str],
        foreign_keys: Sequence[Mapping[str, Any]],
    ) -> None:
        args = [table_id, live.oid, log_table, as_is(plan.to_json()), as_is(live.version()), Jsonb(live.physical()),
                Jsonb(list(facts)), Jsonb(list(foreign_keys))]  # fmt: skip
        self._write("insert_reverse", args)

    def are_known(self) -> bool:
        """Not where a journal was made by an older version and no setup has run since."""
        return bool(self._value("reverses_there", []))

    def of(self, run: int) -> list[Reverse]:
        if not self.are_known():
            return []
        with self.conn.cursor(row_factory=kwargs_row(_reverse)) as cursor:
            found = cursor.execute(self._Q["reverses"], [self.pipeline, run]).fetchall()
        rows = [self._tables.with_keepers([reverse.row])[0] for reverse in found]
        return [replace(reverse, row=row) for reverse, row in zip(found, rows, strict=True)]

    def set_silenced(self, reverse: Reverse, silenced: Sequence[Sequence[str]]) -> None:
        self._write("set_silenced", [Jsonb([list(s) for s in silenced]), reverse.row.id])

    def forget(self, reverse: Reverse) -> None:
        self._write("forget_reverse", [reverse.row.id])
