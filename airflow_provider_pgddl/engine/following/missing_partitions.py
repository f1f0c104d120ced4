"""Partitions that the source has and the copy has not: the first row for one of them would be refused."""

from __future__ import annotations

from airflow_provider_pgddl.engine.model.plan import Plan
from airflow_provider_pgddl.engine.model.tables import Leaf, Table
from airflow_provider_pgddl.engine.schema.names import sql_name
from airflow_provider_pgddl.engine.schema.verdict import SchemaFinding
from airflow_provider_pgddl.engine.server import catalog
from airflow_provider_pgddl.engine.server.connect import Session
from airflow_provider_pgddl.engine.sql import queries


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


def _create(leaf: Leaf, parent: str) -> str:
    return f"CREATE TABLE {sql_name(leaf.schema, leaf.name)} PARTITION OF {parent} {leaf.bound};"
