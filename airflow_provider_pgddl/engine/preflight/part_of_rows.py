"""`tables.where` and `tables.transform`: whether the source can do what they say, whenever it is asked; and what that
means for keys, foreign keys and the stream of a slot."""

from __future__ import annotations

from collections.abc import Iterator

from airflow_provider_pgddl.engine.capture.slot_log import COLUMN_LISTS
from airflow_provider_pgddl.engine.model.names import Name
from airflow_provider_pgddl.engine.model.tables import Table
from airflow_provider_pgddl.engine.pipeline.expressions import Expression, RowsRead, renamed, terms
from airflow_provider_pgddl.engine.pipeline.key_positions import KeyPath
from airflow_provider_pgddl.engine.pipeline.names import column_name, table_name, written
from airflow_provider_pgddl.engine.preflight.facts import Facts, foreign_keys
from airflow_provider_pgddl.engine.preflight.findings import Finding
from airflow_provider_pgddl.engine.rights.expression_code import Unfit, examine
from airflow_provider_pgddl.engine.schema.casts import judge_cast
from airflow_provider_pgddl.engine.schema.table_model import TableModel
from airflow_provider_pgddl.engine.server import catalog, schema_reading
from airflow_provider_pgddl.engine.sql import queries


def told(facts: Facts) -> Iterator[Finding]:
    for table, read in _read(facts):
        yield Finding("warning", "part_of_rows", "pipeline", written(*table), f"on the target: {read}")


def expressions(facts: Facts) -> Iterator[Finding]:
    side, trusted = facts.source, facts.pipeline.trusted_roles
    reads = dict(_read(facts))
    described = {(t.schema, t.name): t for t in catalog.describe(side.conn, [facts.oids[t] for t in reads]).values()}
    models = schema_reading.read(side.conn, list(described)).tables
    for path, name, column, one in _each(facts):
        table, model = described.get(name), models.get(name)
        if table is None or model is None:
            continue
        types = {c.name: c.type for c in table.columns}
        if not {*one.columns, *([column] if column else [])} <= types.keys():
            continue  # told of the file's columns
        place = f"{facts.pipeline.where(*path)}: {one.sql}"
        becomes = types[column] if column else None
        if column and (why := _not_to_be_transformed(facts, table, model, column, one)):
            yield Finding("error", "expression", "pipeline", written(*name), f"{place}: {why}")
            continue
        try:
            found = examine(side.conn, {c: types[c] for c in sorted(one.columns)}, one, becomes, trusted)
        except Unfit as error:
            yield Finding("error", "expression", "pipeline", written(*name), f"{place}: {error}")
            continue
        to = model.column(column) if column else None
        if to is not None and not one.literal and judge_cast(found, to.type).kind not in ("same", "safe"):
            what = f"{place}: is of type {found.text}, and its column of type {to.type.text}"
            yield Finding("error", "expression", "pipeline", written(*name), what, f"({one.sql})::{to.type.text}")


def _not_to_be_transformed(facts: Facts, table: Table, model: TableModel, column: str, one: Expression) -> str | None:
    of = next(c for c in table.columns if c.name == column)
    if table.key and column in table.key.columns:
        return f"column {written(column)} is part of the key, by which rows are found again"
    if of.generated:
        return f"column {written(column)} is generated: its value follows from the others"
    if (column,) in facts.source.rows("partition_columns", oid=table.oid):
        return f"column {written(column)} is part of the partition key, and rows would be in other partitions"
    there = model.column(column)
    if one.sql == "NULL" and there is not None and there.not_null:
        return f"column {written(column)} is NOT NULL"
    return None


def streamed(facts: Facts) -> Iterator[Finding]:
    """A slot's stream has whole rows of a table that is its own replica identity, and before 15 of every table."""
    side = facts.source
    masked = {facts.oids[t]: t for t, read in _read(facts) if read.transform}
    if not facts.pipeline.by_slot or not masked:
        return
    instead = "capture: {rows: change_log}"
    for table in catalog.describe(side.conn, list(masked)).values():
        whole = side.conn.execute(queries("slot_log")["whole_rows"], [[leaf.oid for leaf in table.leaves]]).fetchall()
        if side.version < COLUMN_LISTS:
            why = f"Postgres {side.version // 10_000} streams whole rows"
        elif table.kind == "p":
            why = "a partition that comes with REPLICA IDENTITY FULL is streamed whole"
        elif whole:
            why = f"{written(*whole[0])} has REPLICA IDENTITY FULL, and is streamed whole"
        else:
            continue
        what = f"{why}, so values that tables.transform keeps on the source would leave it in the slot's stream"
        yield Finding("error", "expression", "source", written(*masked[table.oid]), what, instead)


def dangling(facts: Facts) -> Iterator[Finding]:
    """Foreign keys to tables of which only part is on the target."""
    if not facts.pipeline.tables.where:
        return
    side, keys = facts.source, foreign_keys(facts)
    compared = catalog.compared_columns(side.conn, [key["key"] for key in keys]) if keys else {}
    columns = {oid: {pk: fk for pk, _, fk in pairs} for oid, pairs in compared.items()}
    for key in keys:
        child = (key["referencing_schema"], key["referencing_name"])
        parent = (key["referenced_schema"], key["referenced_name"])
        there = facts.pipeline.rows_read.get(parent, RowsRead()).condition
        if not there or child not in facts.rows or key["key"] not in columns:
            continue
        here = facts.pipeline.rows_read.get(child, RowsRead()).condition
        fits = renamed(there, columns[key["key"]])
        if fits is not None and here and terms(fits) <= terms(here):
            continue
        what = (
            f"its foreign key {side.name(key['name'])} leads to {written(*parent)}, of which tables.where leaves rows"
            " out: where a row of it refers to one of those, the key is NOT VALID behind the swap"
        )
        if fits is not None:
            fix = f'tables: {{where: {{{written(*child)}: "{fits if not here else f"({here}) AND ({fits})"}"}}}}'
        else:
            fix = (
                f"-- no condition over {written(*child)} says the same, as its foreign key has not the columns of"
                f" {there}: leave {written(*parent)} whole, leave {written(*child)} out (tables.exclude), or give it"
                " that column, and the foreign key too"
            )
        yield Finding("warning", "foreign_key", "source", written(*child), what, fix)


CHECKS = [told, expressions, streamed, dangling]


def _read(facts: Facts) -> list[tuple[Name, RowsRead]]:
    return [(table, read) for table, read in facts.pipeline.rows_read.items() if table in facts.oids]


def _each(facts: Facts) -> Iterator[tuple[KeyPath, Name, str | None, Expression]]:
    """Every expression of the file, with its place; of a value the column that it stands for."""
    tables, read = facts.pipeline.tables, facts.pipeline.rows_read
    for name in tables.where:
        one = read[table_name(name)].where
        if one is not None:
            yield ("tables", "where", name), table_name(name), None, one
    for name, values in tables.transform.items():
        for column in values:
            made = read[table_name(name)].transform[column_name(column)]
            yield ("tables", "transform", name, column), table_name(name), column_name(column), made
