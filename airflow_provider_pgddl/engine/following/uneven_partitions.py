"""Partitions that only one side has: the first row for one of them would be refused, or rows would stay that the source
has no more."""

from __future__ import annotations

from airflow_provider_pgddl.engine.model.plan import Plan
from airflow_provider_pgddl.engine.model.tables import Leaf, Table
from airflow_provider_pgddl.engine.pipeline.model import Pipeline
from airflow_provider_pgddl.engine.schema.names import sql_name
from airflow_provider_pgddl.engine.schema.verdict import SchemaFinding
from airflow_provider_pgddl.engine.server import catalog
from airflow_provider_pgddl.engine.server.connect import Session
from airflow_provider_pgddl.engine.sql import queries


def uneven_partitions(pipeline: Pipeline, target: Session, now: Table, plan: Plan, was: Plan) -> list[SchemaFinding]:
    """`plan` has the copy's name, `was` the partitions that were known of it. None where the copy is partitioned in
    another way."""
    copy = (plan.copy_schema, plan.copy_name)
    if now.kind != "p" or (oid := catalog.oids_of(target, [copy]).get(copy)) is None:
        return []
    row = target.execute(queries("catalog")["partitioned_as"], list(copy)).fetchone()
    if row is None or row[0] != now.partition_key:
        return []
    _, takes_all, nested = row
    there = set(target.execute(queries("swap")["partitions_of"], [oid]).fetchall())
    parent = None if nested else sql_name(*copy)  # a bound is said of the next parent, which need not be the root
    found = [] if takes_all else _missing(now, there, parent)
    return found if pipeline.capture.ddl != "off" else found + _left(now, was, there, parent)


def _missing(now: Table, there: set[tuple[str, str]], parent: str | None) -> list[SchemaFinding]:
    return [
        SchemaFinding(
            "missing_on_target",
            "mismatch",
            f"Source has partition {leaf.schema}.{leaf.name}, and the target has none of this name",
            impact="Its rows have nowhere to go",
            fix=() if parent is None else (_create(leaf, parent),),
            reason="missing_table",
        )
        for leaf in now.leaves
        if leaf.bound is not None and (leaf.schema, leaf.name) not in there
    ]


def _left(now: Table, was: Plan, there: set[tuple[str, str]], parent: str | None) -> list[SchemaFinding]:
    """What the source has dropped or detached since that plan was made: its rows went without a row trigger. For where
    DDL is not followed; else whoever leaves it out has said so. One that is there anew under its name is captured anew,
    and read again."""
    oids, names = {leaf.oid for leaf in now.leaves}, {leaf.name for leaf in now.leaves}
    return [
        SchemaFinding(
            "missing_on_source",
            "mismatch",
            f"Source has partition {'.'.join(name)} no more, and the target still has it",
            impact="Its rows would stay on the target, where the source has none of them",
            fix=() if parent is None else (f"ALTER TABLE {parent} DETACH PARTITION {sql_name(*name)};",),
            reason="source_removed",
        )
        for leaf, name in was.copies.items()
        if int(leaf) not in oids and name[1] not in names and name in there
    ]


def _create(leaf: Leaf, parent: str) -> str:
    return f"CREATE TABLE {sql_name(leaf.schema, leaf.name)} PARTITION OF {parent} {leaf.bound};"
