"""check: preflight, and the state of our migrations. Reads only."""

from __future__ import annotations

from typing import Any

from airflow_provider_pgddl.engine.journal import migrations
from airflow_provider_pgddl.engine.journal.pipelines import Journal
from airflow_provider_pgddl.engine.pipeline.contradictions import refuse_names
from airflow_provider_pgddl.engine.pipeline.model import Pipeline
from airflow_provider_pgddl.engine.pipeline.selection import check_columns, matches
from airflow_provider_pgddl.engine.preflight.findings import Finding
from airflow_provider_pgddl.engine.server import catalog
from airflow_provider_pgddl.engine.server.connect import connect


def check(pipeline: Pipeline, source_dsn: str, target_dsn: str) -> dict[str, Any]:
    """`{"findings": […], "migrations": […], "tables": […]}`; of a pipeline that is under way only those are asked again
    that are about its swap in place, or about its way back, since what else preflight refuses (a table on the target,
    our own schemas) is then its own work. Those of one that is finished are about its next run."""
    from airflow_provider_pgddl.engine.following.adopted_tables import different
    from airflow_provider_pgddl.engine.preflight import (  # only setup and swap read it
        before_the_cut_over,
        preflight,
        what_new_types_break,
    )

    with (
        connect(source_dsn, purpose="check", pipeline=pipeline.pipeline) as source,
        connect(target_dsn, purpose="check", pipeline=pipeline.pipeline) as target,
    ):
        described = catalog.describe_all(source)
        selection = matches(pipeline, sorted(described), partitions=catalog.partitions(source))
        check_columns(pipeline, {name: [c.name for c in t.columns] for name, t in described.items()})
        row = Journal(target, pipeline.pipeline).find()
        under_way = row is not None and row.finished_at is None
        findings = list[Finding]()
        if row is None or not under_way:
            refuse_names(pipeline)
            findings = [*preflight(pipeline, source, target, selection.rows)]
            findings += different(pipeline, source, target, selection.rows)
        elif row.cut_over_at is None and pipeline.in_place:
            findings = what_new_types_break(pipeline, source, selection.rows)
        elif row.cut_over_at is None and pipeline.swap.way_back is not None and row.born_of is None:
            tables = [t for t in Journal(target, pipeline.pipeline).tables.of(row.run) if t.state != "captured"]
            copies = {
                (t.schema, t.name): ((t.plan.copy_schema, t.plan.copy_name), t.plan.columns.names) for t in tables
            }
            complete = all(t.state == "indexed" for t in tables)
            findings = before_the_cut_over(pipeline, source, target, copies, complete=complete)
        sets = [(source, "source", "core"), (source, "source", "injector"), (target, "target", "journal")]
        return {
            "under_way": under_way,
            "finished_at": row and row.finished_at,
            "findings": [finding.to_json() for finding in findings],
            "tables": [f"{schema}.{name}" for schema, name in selection.rows],
            "migrations": [{"where": where, **migrations.state(conn, name)} for conn, where, name in sets],
        }
