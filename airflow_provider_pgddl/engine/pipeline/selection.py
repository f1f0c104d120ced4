"""The pipeline file against a database's names."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from airflow_provider_pgddl.engine.model.names import Name
from airflow_provider_pgddl.engine.pipeline.expressions import expression
from airflow_provider_pgddl.engine.pipeline.key_positions import KeyPath, refused
from airflow_provider_pgddl.engine.pipeline.model import Pipeline, column_lists
from airflow_provider_pgddl.engine.pipeline.names import column_name, fits, table_column_name, table_name, written

# Never part of a pipeline, whatever the patterns say.
_SYSTEM_SCHEMA = re.compile(r"pg_.*|information_schema|pgddl|pgddl_.*", re.DOTALL)

_NONE: Mapping[Name, Name] = MappingProxyType({})


@dataclass(frozen=True)
class Selection:
    """What a pipeline's patterns choose: tables whose rows travel, and tables of which only the structure does."""

    rows: list[Name]
    schema_only: list[Name]


def matches(
    pipeline: Pipeline, names: Iterable[Name], *, strict: bool = True, partitions: Mapping[Name, Name] = _NONE
) -> Selection:
    """The tables of `names` that the pipeline takes, sorted. `names` comes without extensions' tables, and without
    `partitions`, which are told from names that mean nothing: each with the table that it is of.

    A pattern, or a table named elsewhere in the file, that matches nothing is a PipelineFileError, unless `strict`
    is off (tables may well be dropped once a pipeline runs). System schemas and pgddl's own never match.
    """
    known = sorted({table for table in names if not _SYSTEM_SCHEMA.fullmatch(table[0])})
    tables = pipeline.tables
    problems: list[tuple[KeyPath, str]] = []

    def chosen(key: str, patterns: tuple[str, ...]) -> set[Name]:
        found: set[Name] = set()
        for number, pattern in enumerate(patterns):
            matched = {table for table in known if fits(pattern, table)}
            if not matched:
                part = next((part for part in partitions if fits(pattern, part)), None)
                told = f": {_part(part, partitions)}" if part else _similar(pattern, known)
                problems.append((("tables", key, number), f"{pattern} matches no table{told}"))
            found |= matched
        return found

    if pipeline.in_place:
        selected, structure = set(pipeline.rewrites) & set(known), set[Name]()
    else:
        structure = chosen("schema_only", tables.schema_only)
        selected = chosen("include", tables.include) | structure
        excluded = chosen("exclude", tables.exclude)
        selected, structure = selected - excluded, structure - excluded
        if not pipeline.moves_rows:
            structure = selected
    for path, name in _named_tables(pipeline):
        table = table_name(name)
        if table in partitions:
            problems.append((path, _part(table, partitions)))
        elif table not in known:
            problems.append((path, f"there is no table {written(*table)}{_similar(name, known)}"))
        elif table not in selected:
            problems.append((path, f"{written(*table)} is not among the tables of this pipeline"))
    for key, listed in _of_rows(pipeline):
        problems += [
            (("tables", key, name), f"no row of {name} moves: it is in schema_only")
            for name in listed
            if table_name(name) in structure
        ]
    if strict and problems:
        raise refused(problems, pipeline.origin)
    if strict and not selected:
        raise refused([(("tables", "exclude"), "no table is left")], pipeline.origin)
    return Selection(rows=sorted(selected - structure), schema_only=sorted(structure))


def _part(table: Name, partitions: Mapping[Name, Name]) -> str:
    whole = written(*partitions[table])
    return f"{written(*table)} is a partition of {whole}, and goes with it: a table is named as a whole"


def _named_tables(pipeline: Pipeline) -> Iterator[tuple[KeyPath, str]]:
    for name in pipeline.rewrite:
        yield ("rewrite", name), name
    for path, listed in column_lists(pipeline):
        for name in listed:
            yield (*path, name), name
    for name in pipeline.schema_.overrides:
        yield ("schema", "overrides", name), name
    for key, tables in _of_rows(pipeline):
        for name in tables:
            yield ("tables", key, name), name
    for name in pipeline.schema_.allow_type_cast:
        yield ("schema", "allow_type_cast", name), written(*table_column_name(name)[0])


def _of_rows(pipeline: Pipeline) -> tuple[tuple[str, Mapping[str, object]], ...]:
    return (("where", pipeline.tables.where), ("transform", pipeline.tables.transform))


def _similar(pattern: str, known: Collection[Name]) -> str:
    """What was probably meant: other capitals first, then the nearest spelling."""
    plain = pattern.replace('"', "")
    if set(plain) & set("*?"):
        schema, _, rest = plain.partition(".")
        near = difflib.get_close_matches(schema, sorted({schema for schema, _ in known}), n=1)
        return f"; did you mean {written(near[0])}.{rest}?" if near and near[0] != schema else ""
    names = {f"{schema}.{table}": written(schema, table) for schema, table in known}
    for name, text in names.items():
        if name.lower() == plain.lower():
            return f"; did you mean {text}?"
    near = difflib.get_close_matches(plain, list(names), n=1, cutoff=0.75)
    return f"; did you mean {names[near[0]]}?" if near else ""


def check_columns(pipeline: Pipeline, columns: Mapping[Name, Collection[str]]) -> None:
    """Refuses the file where it names a column that its table (a key of `columns`) does not have."""
    problems: list[tuple[KeyPath, str]] = []

    def need(path: KeyPath, table: Name, column: str) -> None:
        if table in columns and column not in columns[table]:
            near = difflib.get_close_matches(column, list(columns[table]), n=1)
            hint = f"; did you mean {written(near[0])}?" if near else ""
            problems.append((path, f"{written(*table)} has no column {written(column)}{hint}"))

    for name, listed in pipeline.tables.skip_columns.items():
        for number, column in enumerate(listed):
            need(("tables", "skip_columns", name, number), table_name(name), column_name(column))
    for name in pipeline.schema_.allow_type_cast:
        need(("schema", "allow_type_cast", name), *table_column_name(name))
    for name, overrides in pipeline.schema_.overrides.items():
        path = ("schema", "overrides", name)
        for column in overrides.allow_type_cast or ():
            need((*path, "allow_type_cast", column), table_name(name), column_name(column))
        for number, column in enumerate(overrides.skip_columns or ()):
            need((*path, "skip_columns", number), table_name(name), column_name(column))
    for name, condition in pipeline.tables.where.items():
        for column in sorted(expression(condition).columns):
            need(("tables", "where", name), table_name(name), column)
    for name, values in pipeline.tables.transform.items():
        for column, value in values.items():
            for one in sorted({column_name(column), *expression(value).columns}):
                need(("tables", "transform", name, column), table_name(name), one)
    for name, rewrite in pipeline.rewrite.items():
        for number, column in enumerate(rewrite.order_by):
            need(("rewrite", name, "order_by", number), table_name(name), column_name(column))
        if rewrite.partition_by is not None:
            column = column_name(rewrite.partition_by.column)
            need(("rewrite", name, "partition_by", "column"), table_name(name), column)
    if problems:
        raise refused(problems, pipeline.origin)
