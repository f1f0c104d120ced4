"""What takes an applied event of a dump away again; None where nothing is left to do once later ones are undone.
Pure."""

from __future__ import annotations

from psycopg import sql

from airflow_provider_pgddl.engine.ddl.events import DdlEvent

_DROPS = {
    "CREATE TABLE": "TABLE",
    "CREATE FOREIGN TABLE": "FOREIGN TABLE",
    "CREATE VIEW": "VIEW",
    "CREATE MATERIALIZED VIEW": "MATERIALIZED VIEW",
    "CREATE SEQUENCE": "SEQUENCE",
    "CREATE TYPE": "TYPE",
    "CREATE DOMAIN": "DOMAIN",
    "CREATE SCHEMA": "SCHEMA",
}


def undo(event: DdlEvent) -> str | None:
    """A DROP … IF EXISTS, never CASCADE."""
    kind = _DROPS.get(event.tag)
    if kind is None:
        return None
    names = [
        n for n in ((event.schema, event.name) if event.tag != "CREATE SCHEMA" else (event.schema or event.name,)) if n
    ]
    return f"DROP {kind} IF EXISTS {sql.Identifier(*names).as_string()}"
