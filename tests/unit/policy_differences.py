"""Differences between two tables made by hand, and what a policy makes of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from airflow_provider_pgddl.engine.pipeline.reading import load_pipeline
from airflow_provider_pgddl.engine.schema.casts import judge_cast
from airflow_provider_pgddl.engine.schema.compatibility import compare_tables
from airflow_provider_pgddl.engine.schema.difference import Difference
from airflow_provider_pgddl.engine.schema.policy import judge
from airflow_provider_pgddl.engine.schema.table_model import ColumnModel, TableModel, TypeModel
from airflow_provider_pgddl.engine.schema.table_policy import TablePolicy
from airflow_provider_pgddl.engine.schema.verdict import SchemaFinding, Verdict

USERS = ("public", "users")
SKIP = {"source_added_columns": "skip", "force": True}


def type_of(text: str) -> TypeModel:
    name, _, modifiers = text.partition("(")
    numbers = [int(number) for number in modifiers.rstrip(")").split(",") if number]
    # As pg_attribute has them: precision and scale of numeric, else a length, each behind the header's 4.
    typmod = (numbers[0] << 16 | numbers[1]) + 4 if len(numbers) == 2 else numbers[0] + 4 if numbers else -1
    return TypeModel(name, text, "base", typmod)


def column(name: str, type_: str = "text", **more: Any) -> ColumnModel:
    fixed: dict[str, Any] = {"not_null": False, "default": None, "generated": "", "identity": "", "collation": None}
    return ColumnModel(1, name, type_of(type_), **(fixed | more))


ID = column("id", "integer", not_null=True)


def table(*columns: ColumnModel, key: tuple[str, ...] = ("id",)) -> TableModel:
    return TableModel(1, *USERS, "r", (ID, *columns) if key == ("id",) else columns, key)


def policy(skip: Iterable[str] = (), **schema: Any) -> TablePolicy:
    tables = {"include": ["public.*"], "skip_columns": {"public.users": list(skip)} if skip else {}}
    content = {"pipeline": "p", "source": {"conn_id": "a"}, "target": {"conn_id": "b"}, "tables": tables}
    return TablePolicy.of(load_pipeline({**content, "schema": schema}), USERS)


def added(name: str = "phone", **more: Any) -> Difference:
    what = f"Source has new column '{name}'. Target does not have this column"
    fix = (f"ALTER TABLE public.users ADD COLUMN {name} text;",)
    return Difference(
        SchemaFinding("source_added_column", "mismatch", what, name, fix=fix), source=column(name, **more)
    )


def extra(there: ColumnModel) -> Difference:
    refuses = there.not_null and there.default is None
    what = f"Target has extra column: '{there.name}'"
    return Difference(
        SchemaFinding("target_added_column", "mismatch" if refuses else "warning", what, there.name), target=there
    )


def removed(there: ColumnModel) -> Difference:
    fix = (f"ALTER TABLE public.users DROP COLUMN {there.name};",)
    what = f"Target has column '{there.name}' that no longer exists in source"
    finding = SchemaFinding("source_removed_column", "mismatch", what, there.name, fix=fix, reason="source_removed")
    return Difference(finding, target=there)


def retyped(was: ColumnModel, there: ColumnModel, *, key: bool = False) -> Difference:
    cast = judge_cast(was.type, there.type, key=key)
    fix = (f"ALTER TABLE public.users ALTER COLUMN {was.name} TYPE {was.type.text};",)
    if cast.kind == "safe":
        finding = SchemaFinding("safe_cast", "info", "Safe widening cast", was.name)
    else:
        finding = SchemaFinding(
            "type_mismatch", "mismatch", "Casting would lose", was.name, fix=fix, reason="type_mismatch"
        )
    return Difference(finding, was, there, cast)


def on_column(kind: Any, was: ColumnModel, there: ColumnModel, severity: Any = "mismatch") -> Difference:
    return Difference(SchemaFinding(kind, severity, f"{kind} of '{was.name}'", was.name), was, there)


def of_table(kind: Any, severity: Any = "mismatch") -> Difference:
    return Difference(SchemaFinding(kind, severity, f"It has a {kind}"))


def only(verdict: Verdict) -> SchemaFinding:
    (finding,) = verdict.findings
    return finding


PRICE = column("price", "numeric(10,2)")


def found(source: TableModel, target: TableModel, asked: TablePolicy, **more: Any) -> Verdict:
    return judge(source, target, compare_tables(source, target, frozenset(), names=(USERS, USERS), **more), asked)
