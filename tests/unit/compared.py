"""Tables made by hand, to be compared, and what is said of their differences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from airflow_provider_pgddl.engine.ddl.parse import split
from airflow_provider_pgddl.engine.schema.compatibility import compare_tables
from airflow_provider_pgddl.engine.schema.difference import Difference
from airflow_provider_pgddl.engine.schema.table_model import ColumnModel, ConstraintModel, TableModel, TypeModel

NAME = ("public", "users")
NAMES = (NAME, NAME)


def of(text: str, **more: Any) -> TypeModel:
    """A built-in type, named as Postgres prints it."""
    name = text.partition("(")[0] + text.partition(")")[2]
    return TypeModel(name, text, "base", 1 if "(" in text else -1, **more)


def enum(name: str, *labels: str) -> TypeModel:
    return TypeModel(name, name, "enum", builtin=False, labels=labels)


def domain(name: str, base: TypeModel, **more: Any) -> TypeModel:
    return TypeModel(name, name, "domain", builtin=False, base=base, **more)


def array(element: TypeModel) -> TypeModel:
    return TypeModel(f"{element.name}[]", f"{element.text}[]", "array", builtin=element.builtin, element=element)


def column(name: str, type_: TypeModel | str = "text", **more: Any) -> ColumnModel:
    plain = ColumnModel(1, name, of(type_) if isinstance(type_, str) else type_, False, None, "", "", None)
    return replace(plain, **more)


ID = column("id", "integer", not_null=True)
PRIMARY = ConstraintModel("users_pkey", "p", "PRIMARY KEY (id)", ("id",))


def table(*columns: ColumnModel, constraints: Sequence[ConstraintModel] = (PRIMARY,), **more: Any) -> TableModel:
    """A table with the key `id`."""
    whole = TableModel(1, *NAME, "r", (ID, *columns), ("id",), tuple(constraints))
    return replace(whole, **more)


def unique(*columns: str, kind: Any = "u", name: str = "users_key", definition: str | None = None) -> ConstraintModel:
    return ConstraintModel(name, kind, definition or f"UNIQUE ({', '.join(columns)})", columns)


def check(condition: str, *columns: str, suffix: str = "") -> ConstraintModel:
    return ConstraintModel("users_check", "c", f"CHECK (({condition})){suffix}", columns)


def differences(
    source: TableModel | None, target: TableModel | None, types: Sequence[str] = (), **more: Any
) -> list[Difference]:
    found = compare_tables(source, target, frozenset(types), **{"names": NAMES, **more})
    for difference in found:
        for statement in difference.finding.fix:
            assert len(split(statement)) <= 1, statement  # reads as SQL
    return found


def only(source: TableModel | None, target: TableModel | None, types: Sequence[str] = (), **more: Any) -> Difference:
    found = differences(source, target, types, **more)
    assert len(found) == 1, [d.finding.what for d in found]
    return found[0]


def says(difference: Difference, kind: str, severity: str, *words: str) -> None:
    finding = difference.finding
    assert (finding.kind, finding.severity) == (kind, severity)
    text = "\n".join([finding.what, finding.impact or "", *finding.fix])
    for word in words:
        assert word in text, text


MOOD = enum("public.mood", "sad", "it's ok")
