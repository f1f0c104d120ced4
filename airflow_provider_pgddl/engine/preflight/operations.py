"""`tables.operations`: what keeps a table from being an archive."""

from __future__ import annotations

from collections.abc import Iterator

from airflow_provider_pgddl.engine.preflight.facts import Facts
from airflow_provider_pgddl.engine.preflight.findings import Finding
from airflow_provider_pgddl.engine.rows import archive
from airflow_provider_pgddl.engine.server import catalog


def unfit(facts: Facts) -> Iterator[Finding]:
    if not facts.pipeline.archives:
        return
    described = catalog.describe(facts.source.conn, facts.row_oids)
    keys = {oid: table.key.columns for oid, table in described.items() if table.key is not None}
    for oid, why in archive.unfit(facts.source.conn, keys):
        yield Finding("error", "operations", "source", facts.written(oid), why, "leave it out (tables.exclude)")
