"""The tables of a run: each one's plan, the version of it that the plan was made for, and how far it has come."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from psycopg.types.json import Jsonb
from psycopg.types.string import TextLoader

from airflow_provider_pgddl.engine.journal.schema import SchemaJournal
from airflow_provider_pgddl.engine.journal.section import JournalSection
from airflow_provider_pgddl.engine.model import tables
from airflow_provider_pgddl.engine.model.plan import Keepers, Plan
from airflow_provider_pgddl.engine.model.tables import Leaf, Table
from airflow_provider_pgddl.engine.server.connect import Session
from airflow_provider_pgddl.engine.server.encodings import as_is


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


def _table_row(
    *, plan: str, version: str, physical: str, removed_columns: str, copy_physical: str, **columns: Any
) -> TableRow:
    return TableRow(
        plan=Plan.from_json(json.loads(plan)), version=json.loads(version), physical=json.loads(physical),
        removed_columns=tuple(json.loads(removed_columns)), copy_physical=json.loads(copy_physical), **columns,
    )  # fmt: skip


def _planned(table: TableRow) -> dict[str, Any]:
    return {
        "id": table.id,
        "schema": table.schema,
        "name": table.name,
        "log": table.log_table,
        "state": table.state,
        "plan": as_is(table.plan.to_json()),
        "version": as_is(table.version),
        "physical": Jsonb(table.physical),
        "fingerprint": table.fingerprint,
        "removed": Jsonb(list(table.removed_columns)),
        "copy": Jsonb(table.copy_physical),
    }


class TableJournal(JournalSection):
    def __init__(self, conn: Session, pipeline: str):
        super().__init__(conn, pipeline)
        # Where rows are moved: whose each table and its copy are, as a stage has found them.
        self.keepers_of: Callable[[Sequence[TableRow]], Mapping[int, Keepers]] | None = None
        # What was made of each table's row, by id: a stage reads all of them again and again, and few have changed.
        self._made: dict[int, tuple[tuple[Any, ...], TableRow]] = {}
        self._kept: dict[int, tuple[TableRow, Keepers, TableRow]] = {}

    def of(self, run: int) -> list[TableRow]:
        """In the order of their names."""
        with self.conn.cursor() as cursor:
            cursor.adapters.register_loader("jsonb", TextLoader)  # to be compared
            cursor.execute(self._Q["tables"], [self.pipeline, run], prepare=True)
            names = [column.name for column in cursor.description or ()]
            return self.with_keepers([self._row_of(names, values) for values in cursor.fetchall()])

    def _row_of(self, names: Sequence[str], values: tuple[Any, ...]) -> TableRow:
        made = self._made.get(values[0])
        if made is None or made[0] != values:
            made = self._made[values[0]] = values, _table_row(**dict(zip(names, values, strict=True)))
        return made[1]

    def with_keepers(self, rows: list[TableRow]) -> list[TableRow]:
        found = self.keepers_of(rows) if self.keepers_of else {}
        return [self._with(r, found[r.id]) if r.id in found else r for r in rows]

    def _with(self, row: TableRow, keepers: Keepers) -> TableRow:
        kept = self._kept.get(row.id)
        if kept is None or kept[0] is not row or kept[1] != keepers:
            kept = self._kept[row.id] = row, keepers, replace(row, plan=replace(row.plan, keepers=keepers))
        return kept[2]

    def add(self, run: int, table: Table, log_table: str, plan: Plan) -> None:
        self.add_many(run, [(table, log_table, plan)])

    def add_many(self, run: int, found: Iterable[tuple[Table, str, Plan]]) -> None:
        """Tables with their logs and plans."""
        rows = [
            [self.pipeline, run, table.schema, table.name, table.oid, log_table, as_is(plan.to_json()),
             as_is(table.version()), tables.fingerprint(table.structure()), Jsonb(table.physical())]
            for table, log_table, plan in found
        ]  # fmt: skip
        self._write_many("insert_table", rows)

    def plan(self, tables: Iterable[TableRow]) -> None:
        """Tables as they are from here on, of which no row has been read yet."""
        self._write_many("replan_table", [_planned(table) for table in tables])

    def replan(self, fresh: TableRow) -> None:
        """The table as it is from here on; what was compared of it is over."""
        self._write("replan_table", _planned(fresh))
        self._write("forget_verification", [fresh.id])
        self._write("forget_chunks", [fresh.id, [int(leaf) for leaf in fresh.physical]])

    def rename_chunks(self, fresh: TableRow, leaves: Iterable[Leaf]) -> None:
        """The names that a table's leaves have by now."""
        for leaf in leaves:
            self._write("rename_chunks", [leaf.schema, leaf.name, fresh.id, leaf.oid])

    def set_state(self, state: str, ids: Iterable[int]) -> None:
        self._write("set_state", [state, list(ids)])

    def set_planned(self, physical: Mapping[int, Mapping[str, Any]]) -> None:
        """The chunks of these tables are laid out, which were then so, by id."""
        self._write_many("set_planned", [[Jsonb(now), table_id] for table_id, now in physical.items()])

    def unplan(self, table_id: int) -> None:
        """Forgets a table's chunks, so that they are laid out anew."""
        self._write("delete_chunks", [table_id])
        self._write("unplan", [table_id])

    def set_physical(self, table: TableRow, physical: Mapping[str, Any]) -> None:
        """Of a table, or of a way back, whose row is like one."""
        self._write("set_physical_back" if table.plan.reverse.echo else "set_physical", [Jsonb(physical), table.id])

    def set_copy(self, *tables: TableRow) -> None:
        """What the copies are by now, where nothing of it concerns a row."""
        rows = [[as_is(table.plan.to_json()), Jsonb(table.copy_physical), table.id] for table in tables]
        self._write_many("set_copy", rows)

    def set_copy_anew(self, table: TableRow) -> None:
        """The same of a copy that nobody knows the rows of any more: what was compared of it is over."""
        self.set_copy(table)
        self._write("forget_verification", [table.id])

    def forget(self, table: TableRow) -> None:
        self._write("delete_table", [table.id])
        SchemaJournal(self.conn, self.pipeline).forget((table.schema, table.name))
