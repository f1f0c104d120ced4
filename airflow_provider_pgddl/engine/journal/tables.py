"""The tables of a run: each one's plan, the version of it that the plan was made for, and how far it has come."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from psycopg.rows import kwargs_row
from psycopg.types.json import Jsonb

from airflow_provider_pgddl.engine.journal.schema import SchemaJournal
from airflow_provider_pgddl.engine.journal.section import JournalSection
from airflow_provider_pgddl.engine.model import tables
from airflow_provider_pgddl.engine.model.plan import Keepers, Plan
from airflow_provider_pgddl.engine.model.tables import Leaf, Table
from airflow_provider_pgddl.engine.server.connect import Session


@dataclass(frozen=True, slots=True)
class TableRow:
    """One table of a run.

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


def _table_row(*, plan: dict[str, Any], removed_columns: Iterable[str], **columns: Any) -> TableRow:
    return TableRow(plan=Plan.from_json(plan), removed_columns=tuple(removed_columns), **columns)


class TableJournal(JournalSection):
    def __init__(self, conn: Session, pipeline: str):
        super().__init__(conn, pipeline)
        # Where rows are moved: whose each table and its copy are, as a stage has found them.
        self.keepers_of: Callable[[Sequence[TableRow]], Mapping[int, Keepers]] | None = None

    def of(self, run: int) -> list[TableRow]:
        """In the order of their names."""
        with self.conn.cursor(row_factory=kwargs_row(_table_row)) as cursor:
            return self.with_keepers(cursor.execute(self._Q["tables"], [self.pipeline, run]).fetchall())

    def with_keepers(self, rows: list[TableRow]) -> list[TableRow]:
        found = self.keepers_of(rows) if self.keepers_of else {}
        return [replace(r, plan=replace(r.plan, keepers=found[r.id])) if r.id in found else r for r in rows]

    def add(self, run: int, table: Table, log_table: str, plan: Plan) -> None:
        args = [self.pipeline, run, table.schema, table.name, table.oid, log_table, Jsonb(plan.to_json()),
                Jsonb(table.version()), tables.fingerprint(table.structure()), Jsonb(table.physical())]  # fmt: skip
        self._write("insert_table", args)

    def replan(self, fresh: TableRow) -> None:
        """The table as it is from here on; what was compared of it is over."""
        args = {
            "id": fresh.id,
            "schema": fresh.schema,
            "name": fresh.name,
            "log": fresh.log_table,
            "state": fresh.state,
            "plan": Jsonb(fresh.plan.to_json()),
            "version": Jsonb(fresh.version),
            "physical": Jsonb(fresh.physical),
            "fingerprint": fresh.fingerprint,
            "removed": Jsonb(list(fresh.removed_columns)),
            "copy": Jsonb(fresh.copy_physical),
        }
        self._write("replan_table", args)
        self._write("forget_verification", [fresh.id])
        self._write("forget_chunks", [fresh.id, [int(leaf) for leaf in fresh.physical]])

    def rename_chunks(self, fresh: TableRow, leaves: Iterable[Leaf]) -> None:
        """The names that a table's leaves have by now."""
        for leaf in leaves:
            self._write("rename_chunks", [leaf.schema, leaf.name, fresh.id, leaf.oid])

    def set_state(self, state: str, ids: Iterable[int]) -> None:
        self._write("set_state", [state, list(ids)])

    def set_planned(self, table_id: int, physical: Mapping[str, Any]) -> None:
        self._write("set_planned", [Jsonb(physical), table_id])

    def unplan(self, table_id: int) -> None:
        """Forgets a table's chunks, so that they are laid out anew."""
        self._write("delete_chunks", [table_id])
        self._write("unplan", [table_id])

    def set_physical(self, table_id: int, physical: Mapping[str, Any]) -> None:
        self._write("set_physical", [Jsonb(physical), table_id])

    def set_copy(self, table: TableRow) -> None:
        """What the copy is by now, where nothing of it concerns a row."""
        self._write("set_copy", [Jsonb(table.plan.to_json()), Jsonb(table.copy_physical), table.id])

    def forget(self, table: TableRow) -> None:
        self._write("delete_table", [table.id])
        SchemaJournal(self.conn, self.pipeline).forget((table.schema, table.name))
