"""What OpenLineage is told of a task: which tables rows come from and go to, column by column. Without its provider
nothing here does anything."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from psycopg import sql

from airflow_provider_pgddl.assets import place
from airflow_provider_pgddl.connections import lookup_in_task, refuse_commands, secrets
from airflow_provider_pgddl.engine.job.stage_names import STAGES
from airflow_provider_pgddl.engine.journal.pipelines import Journal
from airflow_provider_pgddl.engine.journal.tables import TableRow
from airflow_provider_pgddl.engine.pipeline.expressions import expression
from airflow_provider_pgddl.engine.pipeline.model import Pipeline
from airflow_provider_pgddl.engine.pipeline.reading import load_pipeline
from airflow_provider_pgddl.engine.server.connect import Session, connect
from airflow_provider_pgddl.engine.sql import queries

MOVES = frozenset(("snapshot", "backfill", "schema_sync", "replay", "swap", "revert"))


@dataclass(frozen=True, slots=True)
class ColumnEdge:
    """A column of the target: its type, the source's columns that its values are made of, and how; "" as they are."""

    name: str
    type: str
    made_of: tuple[str, ...]
    how: str = ""


@dataclass(frozen=True, slots=True)
class TableEdge:
    """Names are (namespace, `database.schema.table`). `rows` that were moved; None where that is not known."""

    source: tuple[str, str]
    target: tuple[str, str]
    source_columns: tuple[tuple[str, str], ...]
    columns: tuple[ColumnEdge, ...]
    rows: int | None


@dataclass(frozen=True, slots=True)
class Lineage:
    """`role` is what becomes of the tables."""

    edges: tuple[TableEdge, ...]
    role: Literal["moves", "compares", "reads"]


class TellsLineage:
    """What OpenLineage's provider asks of an operator. A task's end is told by what the task itself has found."""

    pipeline: Any
    lineage_found: Lineage | None = None

    @property
    def lineage_stages(self) -> Sequence[str]:
        raise NotImplementedError

    def get_openlineage_facets_on_start(self) -> Any:
        return facets(self._look())

    def get_openlineage_facets_on_complete(self, _ti: Any) -> Any:
        return facets(self.lineage_found or self._look())

    def get_openlineage_facets_on_failure(self, ti: Any) -> Any:
        return self.get_openlineage_facets_on_complete(ti)

    def _look(self) -> Lineage | None:
        """None before the first setup, and where that cannot be told now: no task waits or fails for it."""
        task: Any = self
        try:
            pipeline = load_pipeline(self.pipeline, base=Path(task.dag.folder))
            refuse_commands(pipeline)
            found = secrets(pipeline, lookup_in_task, os.environ)
            source, target = found["source"], found.get("target", found["source"])
            with connect(target, purpose="lineage", pipeline=pipeline.pipeline) as conn:
                return lineage(conn, pipeline, source, target, self.lineage_stages)
        except Exception as error:  # noqa: BLE001
            task.log.info("OpenLineage is told nothing of the tables: %s", type(error).__name__)
            return None


def is_wanted() -> bool:
    """Whether OpenLineage's provider is there and has somewhere to tell it."""
    try:
        from airflow.providers.openlineage.conf import is_disabled
    except ImportError:
        return False
    return not is_disabled()


def lineage(
    target: Session, pipeline: Pipeline, source_dsn: str, target_dsn: str, stages: Sequence[str],
    results: Sequence[Mapping[str, Any]] = (),
) -> Lineage | None:  # fmt: skip
    """By the journal, over a session on the target; None where the pipeline is not set up. `results` of the stages say
    how many rows each table got."""
    journal = Journal(target, pipeline.pipeline)
    row = journal.find()
    if row is None:
        return None
    tables, last = journal.tables.of(row.run), max(stages, key=lambda s: STAGES.index(s) if s in STAGES else 99)
    copied = dict[int, int]()
    if "backfill" in stages and results:
        copied = dict(target.execute(queries("lineage")["rows_copied"], [[t.id for t in tables]]).fetchall())
    rows = {name: figures for result in results for name, figures in dict(result.get("tables", {})).items()}
    edges = []
    for table in tables:
        figures = rows.get(table.qualified, {})
        count = copied.get(table.id, figures.get("rows", figures.get("keys")))
        edges.append(_edge(table, source_dsn, target_dsn, last, pipeline=pipeline, rows=count))
    role: Literal["moves", "compares", "reads"] = "compares" if last == "verify" else "reads"
    return Lineage(tuple(edges), "moves" if MOVES & set(stages) else role)


def _edge(
    table: TableRow, source_dsn: str, target_dsn: str, stage: str, *, pipeline: Pipeline, rows: int | None
) -> TableEdge:
    plan = table.plan
    live, copy = place(source_dsn, table.schema, table.name), place(target_dsn, plan.copy_schema, plan.copy_name)
    if pipeline.replaces:  # by the name that it gets
        copy = place(target_dsn, table.schema, table.name)
    columns: Mapping[str, Mapping[str, Any]] = table.version["columns"]
    came_from = {attnum: name for name, attnum in table.version["attnums"].items()}
    edges = tuple(
        _column(name, how, plan.columns.pairs.get(name), columns, came_from)
        for name, how in zip(plan.columns.names, plan.columns.expressions, strict=True)
    )
    there, here = (copy, live) if pipeline.in_place and stage in ("swap", "revert") else (live, copy)
    return TableEdge(there, here, tuple((name, str(c["type"])) for name, c in columns.items()), edges, rows)


def _column(
    name: str,
    how: str,
    pair: Sequence[Any] | None,
    columns: Mapping[str, Mapping[str, Any]],
    came_from: Mapping[int, str],
) -> ColumnEdge:
    origin = came_from.get(pair[0]) if pair else None
    origin = origin or (name if name in columns else None)
    was = str(columns[origin]["type"]) if origin else ""
    becomes = str(pair[2]) if pair and len(pair) > 2 else was
    if how == "NULL":
        return ColumnEdge(name, becomes, (), "NULL")
    if origin is not None and how == sql.Identifier(origin).as_string():
        return ColumnEdge(name, becomes, (origin,), f"{was} to {becomes}" if was != becomes else "")
    try:
        used = tuple(c for c in sorted(expression(how).columns) if c in columns)
    except ValueError:  # a cast of the policy, which is none of the pipeline file's expressions
        used = ()
    return ColumnEdge(name, becomes, used or ((origin,) if origin else ()), how)


def facets(found: Lineage | None) -> Any:
    """As OpenLineage's provider takes it; None where there is nothing to tell."""
    if found is None:
        return None
    from airflow.providers.common.compat.openlineage.facet import Dataset, OutputDataset
    from airflow.providers.openlineage.extractors import OperatorLineage

    inputs = [
        Dataset(namespace=edge.source[0], name=edge.source[1], facets={"schema": _schema(edge.source_columns)})
        for edge in found.edges
    ]
    if found.role == "reads":
        return OperatorLineage(inputs=inputs)
    outputs = []
    for edge in found.edges:
        schema = _schema([(column.name, column.type) for column in edge.columns])
        if found.role == "compares":
            inputs.append(Dataset(namespace=edge.target[0], name=edge.target[1], facets={"schema": schema}))
            continue
        outputs.append(
            OutputDataset(
                namespace=edge.target[0], name=edge.target[1],
                facets={"schema": schema, "columnLineage": _column_lineage(edge)},
                outputFacets=dict(_statistics(edge)),
            )
        )  # fmt: skip
    return OperatorLineage(inputs=inputs, outputs=outputs)


def _schema(columns: Sequence[tuple[str, str]]) -> Any:
    from airflow.providers.common.compat.openlineage.facet import SchemaDatasetFacet, SchemaDatasetFacetFields

    return SchemaDatasetFacet(fields=[SchemaDatasetFacetFields(name=name, type=type_) for name, type_ in columns])


def _column_lineage(edge: TableEdge) -> Any:
    from airflow.providers.common.compat.openlineage.facet import ColumnLineageDatasetFacet, Fields, InputField

    namespace, name = edge.source
    return ColumnLineageDatasetFacet(
        fields={
            column.name: Fields(
                inputFields=[InputField(namespace=namespace, name=name, field=field) for field in column.made_of],
                transformationDescription=column.how,
                transformationType="TRANSFORMATION" if column.how else "IDENTITY",
            )
            for column in edge.columns
        }
    )


def _statistics(edge: TableEdge) -> Iterator[tuple[str, Any]]:
    from airflow.providers.common.compat.openlineage.facet import OutputStatisticsOutputDatasetFacet

    if edge.rows is not None:
        yield "outputStatistics", OutputStatisticsOutputDatasetFacet(rowCount=edge.rows)
