"""What differs between a table on the source and its copy on the target, and the SQL that ends it. Pure.

What is only on the source in the way of constraints and indexes is no difference: these come with later stages. Nor is
the order of columns."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from types import MappingProxyType

from airflow_provider_pgddl.engine.model.names import Name
from airflow_provider_pgddl.engine.schema.columns import column_definition, column_differences
from airflow_provider_pgddl.engine.schema.constraints import constraint_differences, key_differences
from airflow_provider_pgddl.engine.schema.difference import Difference
from airflow_provider_pgddl.engine.schema.names import comma_joined, plain_name, sql_name
from airflow_provider_pgddl.engine.schema.new_types import Types
from airflow_provider_pgddl.engine.schema.table_model import TableModel
from airflow_provider_pgddl.engine.schema.table_pair import Pair
from airflow_provider_pgddl.engine.schema.verdict import SchemaFinding

_NONE: Mapping[str, str] = MappingProxyType({})
_TABLES = ("r", "p")
_RELATIONS = {  # pg_class.relkind, and the word of its ALTER
    "v": ("a view", "VIEW"),
    "m": ("a materialized view", "MATERIALIZED VIEW"),
    "f": ("a foreign table", "FOREIGN TABLE"),
    "S": ("a sequence", "SEQUENCE"),
    "i": ("an index", "INDEX"),
    "I": ("an index", "INDEX"),
    "c": ("a composite type", "TYPE"),
    "t": ("a TOAST table", "TABLE"),
}


def compare_tables(
    source: TableModel | None,
    target: TableModel | None,
    target_types: frozenset[str],
    *,
    removed: Collection[str] = (),
    renamed: Mapping[str, str] = _NONE,
    altered: Collection[str] = (),
    keyed: bool = True,
    names: tuple[Name, Name],
    major: int = 18,
    role: str = "",
) -> list[Difference]:
    """All that differs, with the severity that it has where no policy says otherwise.

    `target_types` are the types that the target knows beside the system's own (`Schemas.types`). `removed` are columns
    that the source had once; `renamed` is old → new name of those that it renamed. `altered` columns have another
    shape on purpose. Without `keyed` the target has no indexes yet. `names` are those of the two tables, `major` is the
    target's version, `role` is whom a missing right is to be granted. The fixes of two findings may begin with the same
    CREATE TYPE: once is enough."""
    there, here = plain_name(names[0]), sql_name(*names[1])
    if source is None:
        return [_missing_on_source(there, here)]
    if source.relkind not in _TABLES:
        return [Difference(_not_a_table(there, source.relkind, "source"))]
    if target is None:
        return [_missing_on_target(source, target_types, major, names)]
    if target.relkind not in _TABLES:
        rename = f"ALTER {_RELATIONS[target.relkind][1]} {here} RENAME TO {sql_name(names[1][1] + '_before_pgddl')};"
        return [Difference(_not_a_table(there, target.relkind, "target", rename))]
    pair = Pair(source, target, target_types, major, names, renamed, {*removed, *renamed}, altered)
    found = [Difference(finding) for finding in _privileges(source, target, names, role)]
    if target.unlogged and not source.unlogged:
        found.append(_unlogged(there, here))
    found += column_differences(pair)
    if keyed:
        found += key_differences(pair)
    return found + list(constraint_differences(pair, keyed=keyed))


def _missing_on_source(there: str, here: str) -> Difference:
    return Difference(
        SchemaFinding(
            "missing_on_source",
            "mismatch",
            f"Table {there} was dropped on the source, or renamed",
            impact="There are no rows to read; what the target has stays as it is",
            fix=(f"-- if nobody is to find it there any more, with its rows: ALTER TABLE {here} SET SCHEMA ...;",),
            reason="missing_table",
        )
    )


def _missing_on_target(
    source: TableModel, target_types: frozenset[str], major: int, names: tuple[Name, Name]
) -> Difference:
    types = Types(target_types)
    types.need_schema(sql_name(names[1][0]))
    columns = [column_definition(column, major) for column in source.columns]
    if source.key:
        columns.append(f"PRIMARY KEY ({comma_joined(map(sql_name, source.key))})")
    create = f"CREATE TABLE {sql_name(*names[1])} (\n  " + ",\n  ".join(columns) + "\n);"
    for column in source.columns:
        types.need(column.type)
    return Difference(
        SchemaFinding(
            "missing_on_target",
            "mismatch",
            f"Table {plain_name(names[0])} does not exist on the target" + types.sentence(),
            impact="Its rows have nowhere to go",
            fix=(*types.statements, create),
            reason="missing_table",
        )
    )


def _not_a_table(there: str, relkind: str, side: str, *fix: str) -> SchemaFinding:
    return SchemaFinding(
        "not_a_table",
        "mismatch",
        f"{there} is {_RELATIONS[relkind][0]} on the {side}, where a table is expected",
        impact="Rows can only be copied from a table to a table",
        fix=fix,
        reason="missing_table",
    )


def _unlogged(there: str, here: str) -> Difference:
    return Difference(
        SchemaFinding(
            "unlogged",
            "warning",
            f"Table {there} is UNLOGGED on the target only: a crash of that server empties it. No swap takes it so",
            source="logged",
            target="UNLOGGED",
            fix=(f"ALTER TABLE {here} SET LOGGED;",),
        )
    )


def _privileges(source: TableModel, target: TableModel, names: tuple[Name, Name], role: str) -> Iterator[SchemaFinding]:
    who = sql_name(role) if role else "our_role"
    sides = (
        ("source", [r for r in source.missing if r in ("USAGE", "SELECT")], names[0]),
        ("target", list(target.missing), names[1]),
    )
    for side, missing, name in sides:
        grants = [f"GRANT USAGE ON SCHEMA {sql_name(name[0])} TO {who};"] if "USAGE" in missing else []
        rights = comma_joined(right for right in missing if right != "USAGE")
        if rights:
            grants.append(f"GRANT {rights} ON TABLE {sql_name(*name)} TO {who};")
        if grants:
            told = rights + (", " if rights and "USAGE" in missing else "")
            told += f"USAGE of schema {name[0]}" if "USAGE" in missing else ""
            yield SchemaFinding(
                "privileges",
                "mismatch",
                f"Our role lacks {told} on {plain_name(names[0])} of the {side}",
                impact="Its rows cannot be " + ("read" if side == "source" else "written"),
                fix=tuple(f"-- on the source: {grant}" for grant in grants) if side == "source" else tuple(grants),
                reason="privileges",
            )
