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
    """`plan` has the copy's name, `was` the partitions that were known of it."""
    found = missing_partitions(target, now, plan)
    return found if pipeline.capture.ddl != "off" else found + partitions_left(target, now, plan, was)


def missing_partitions(target: Session, now: Table, plan: Plan) -> list[SchemaFinding]:
    """A finding for each; none where the copy is partitioned in another way, or takes every row by default."""
    if now.kind != "p":
        return []
    args = [plan.copy_schema, plan.copy_name]
    row = target.execute(queries("catalog")["partitioned_as"], args).fetchone()
    if row is None or row[0] != now.partition_key or row[1]:
        return []
    there = catalog.oids_of(target, [(leaf.schema, leaf.name) for leaf in now.leaves])
    parent, nested = sql_name(*args), row[2]  # a bound is said of the next parent, which need not be the root
    return [
        SchemaFinding(
            "missing_on_target",
            "mismatch",
            f"Source has partition {leaf.schema}.{leaf.name}, and the target has none of this name",
            impact="Its rows have nowhere to go",
            fix=() if nested else (_create(leaf, parent),),
            reason="missing_table",
        )
        for leaf in now.leaves
        if leaf.bound is not None and (leaf.schema, leaf.name) not in there
    ]


def partitions_left(target: Session, now: Table, plan: Plan, was: Plan) -> list[SchemaFinding]:
    """A finding for each that the source has dropped or detached since that plan was made, and the copy still has: what
    was in it went without a row trigger. For where DDL is not followed; else whoever leaves it out has said so."""
    gone = [name for leaf, name in was.copies.items() if int(leaf) not in {leaf.oid for leaf in now.leaves}]
    copy = (plan.copy_schema, plan.copy_name)
    if now.kind != "p" or not gone or (oid := catalog.oids_of(target, [copy]).get(copy)) is None:
        return []
    there = target.execute(queries("swap")["partitions_of"], [oid]).fetchall()
    row = target.execute(queries("catalog")["partitioned_as"], list(copy)).fetchone()
    nested = row is None or row[2]
    return [
        SchemaFinding(
            "missing_on_source",
            "mismatch",
            f"Source has partition {'.'.join(name)} no more, and the target still has it",
            impact="Its rows would stay on the target, where the source has none of them",
            fix=() if nested else (f"ALTER TABLE {sql_name(*copy)} DETACH PARTITION {sql_name(*name)};",),
            reason="source_removed",
        )
        for name in gone
        if name in there
    ]


def _create(leaf: Leaf, parent: str) -> str:
    return f"CREATE TABLE {sql_name(leaf.schema, leaf.name)} PARTITION OF {parent} {leaf.bound};"
