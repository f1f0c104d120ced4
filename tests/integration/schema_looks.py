"""What the gate reads of a table on a server, and what differs between two."""

from __future__ import annotations

from typing import Any

from airflow_provider_pgddl.engine.model.names import Name
from airflow_provider_pgddl.engine.schema.compatibility import compare_tables
from airflow_provider_pgddl.engine.schema.difference import Difference
from airflow_provider_pgddl.engine.schema.table_model import ColumnModel, Schemas, TableModel
from airflow_provider_pgddl.engine.server import schema_reading
from airflow_provider_pgddl.engine.server.connect import connect

T: Name = ("public", "t")


def look(dsn: str, *names: Name) -> Schemas:
    with connect(dsn, purpose="test") as conn:
        return schema_reading.read(conn, names or [T])


def table(dsn: str, name: Name = T) -> TableModel:
    return look(dsn, name).tables[name]


def column(dsn: str, name: str) -> ColumnModel:
    found = table(dsn).column(name)
    assert found is not None
    return found


def differences(source: str, target: str, name: Name = T, **more: Any) -> list[Difference]:
    there, here = look(source, name), look(target, name)
    more = {"names": (name, name), "major": here.major, **more}
    return compare_tables(there.tables.get(name), here.tables.get(name), here.types, **more)
