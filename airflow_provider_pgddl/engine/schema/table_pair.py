"""A table on the source and its copy on the target, column by column. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from airflow_provider_pgddl.engine.model.names import Name
from airflow_provider_pgddl.engine.schema.names import plain_name, sql_name
from airflow_provider_pgddl.engine.schema.new_types import Types
from airflow_provider_pgddl.engine.schema.table_model import ColumnModel, TableModel
from airflow_provider_pgddl.engine.schema.verdict import FindingKind


class Pair:
    """Two tables with their columns matched: `both` are those of one name, `other_names` those that the sides call
    otherwise (how, the source's, the target's), `lacking` what only the source has, `extra` what only the target has.

    `types`, `major`, `removed` and `altered` are what `compare_tables` is given; `there` is the source's table as
    people read it, `alter` how a statement begins that alters the target's."""

    def __init__(
        self,
        source: TableModel,
        target: TableModel,
        target_types: frozenset[str],
        major: int,
        names: tuple[Name, Name],
        renamed: Mapping[str, str],
        removed: Collection[str],
        altered: Collection[str],
    ):
        self.source, self.target, self.types, self.major, self.names = source, target, target_types, major, names
        self.removed, self.altered = removed, altered
        self.there, self.alter = plain_name(names[0]), f"ALTER TABLE {sql_name(*names[1])}"
        self.key_columns = {*(source.key or ())}
        mine = {c.name: c for c in source.columns}
        its = {c.name: c for c in target.columns}
        self.both = [(c, its[c.name]) for c in source.columns if c.name in its]
        lacking = {name: c for name, c in mine.items() if name not in its}
        extra = {name: c for name, c in its.items() if name not in mine}
        self.other_names: list[tuple[FindingKind, ColumnModel, ColumnModel]] = []
        for was, now in renamed.items():
            if was in extra and now in lacking:
                self.other_names.append(("renamed_column", lacking.pop(now), extra.pop(was)))
        for name in list(lacking):
            like = next((other for other in extra if other.casefold() == name.casefold()), None)
            if like is not None:
                self.other_names.append(("column_case", lacking.pop(name), extra.pop(like)))
        self.lacking, self.extra = list(lacking.values()), list(extra.values())
        # The target's names of columns and those that the source has for them.
        self.renamed = {was.name: now.name for _, now, was in self.other_names}
        self.retyped = {c.name for c, t in self.both if c.type.text != t.type.text}

    def needed_types(self) -> Types:
        """None yet, and the schema that the target's table is in is there."""
        types = Types(self.types)
        types.schemas.add(sql_name(self.names[1][0]))
        return types

    def on_retyped(self, expression: str) -> bool:
        """Whether a column is in it whose type is another one on the target, so that it is printed with other casts."""
        return any(name in expression for name in self.retyped)
