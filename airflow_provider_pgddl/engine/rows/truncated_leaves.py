"""TRUNCATE of a partition of the source: what its copy loses by that, where both are parted alike.

A copy that the target had before (`tables.existing: adopt`), or one that a person has parted otherwise, may have other
rows in a partition of that name, or none of that name. Then nobody knows which rows have gone."""

from __future__ import annotations

import re
from collections.abc import Collection

from airflow_provider_pgddl.engine.journal.tables import TableRow
from airflow_provider_pgddl.engine.model.names import Name
from airflow_provider_pgddl.engine.server.connect import Session
from airflow_provider_pgddl.engine.sql import queries

_Q = queries("catalog")
_NUMBER = re.compile(r"'(-?\d+)'")  # a bound is printed with quotes as a bigint, and without as an integer
PARTED_OTHERWISE = "a partition was truncated that the copy has with other bounds, or not at all"


def parted_otherwise(source: Session, target: Session, table: TableRow, truncated: Collection[int]) -> bool:
    """Whether one of these leaves holds other rows on the source than that of its name in the copy."""
    plan = table.plan
    leaves = [leaf for leaf in truncated if plan.has_leaf(leaf)]
    if not plan.partitioned or not leaves:
        return False
    here = {oid: path for oid, _, path in _paths(source, (table.schema, table.name))}
    copy = {name: path for _, name, path in _paths(target, (plan.copy_schema, plan.copy_name))}
    return any(here.get(leaf) is None or here[leaf] != copy.get(plan.copies[str(leaf)]) for leaf in leaves)


def _paths(conn: Session, table: Name) -> list[tuple[int, Name, str]]:
    rows = conn.execute(_Q["leaf_paths"], table).fetchall()
    return [(oid, (schema, name), _NUMBER.sub(r"\1", path)) for oid, schema, name, path in rows]
