"""The schema gate: closed while a recorded mismatch between source and target stands."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
from airflow.sdk import BaseSensorOperator
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from airflow_provider_pgddl.connections import lookup_in_task, secrets
from airflow_provider_pgddl.engine.errors import PgddlError, from_postgres
from airflow_provider_pgddl.engine.job import names
from airflow_provider_pgddl.engine.pipeline import load_pipeline

if TYPE_CHECKING:
    from airflow.sdk import Context


class PgddlSchemaSensor(BaseSensorOperator):  # type: ignore[misc]
    """Waits until no table of the pipeline has a mismatch; it looks at both databases itself.

    :param pipeline: path of the pipeline file (a relative one counts from the DAG's folder), its YAML text, or a dict
    :param tables: look at these tables only (`schema.table`)

    A gate that opens by failing is none: soft_fail, never_fail and silent_fail are refused.
    """

    template_fields: Sequence[str] = ("pipeline", "tables")
    ui_color = "#fef3c7"

    def __init__(
        self,
        *,
        pipeline: str | os.PathLike[str] | Mapping[str, Any],
        tables: Sequence[str] | None = None,
        retries: int = 3,
        **kwargs: Any,
    ) -> None:
        for option, effect in (
            ("soft_fail", "turns a failed gate into a skipped one, and rows go on past it"),
            ("never_fail", "turns a failed gate into a skipped one, and rows go on past it"),
            ("silent_fail", "hides that the databases could not be looked at"),
        ):
            if kwargs.get(option):
                raise ValueError(f"PgddlSchemaSensor refuses {option}: it {effect}")
        super().__init__(retries=retries, **kwargs)
        self.pipeline = os.fspath(pipeline) if isinstance(pipeline, os.PathLike) else pipeline
        self.tables = tables
        self._said: dict[str, list[str]] = {}

    def poke(self, context: Context) -> bool:
        from airflow_provider_pgddl.engine import stages  # a DAG file is parsed far more often than it runs

        try:
            pipeline = load_pipeline(self.pipeline, base=Path(context["dag"].folder))
            found = secrets(pipeline, lookup_in_task, os.environ)
            mismatches = stages.gate(pipeline, found["source"], found.get("target", found["source"]))
        except (PgddlError, psycopg.Error) as error:
            failure = error if isinstance(error, PgddlError) else from_postgres(error, doing="looking at the schemas")
            kind = AirflowException if failure.retryable else AirflowFailException
            raise kind(str(failure)) from None
        if (tables := names(self.tables)) is not None:
            mismatches = {table: lines for table, lines in mismatches.items() if table in tables}
        self._say(mismatches)
        return not mismatches

    def _say(self, mismatches: Mapping[str, list[str]]) -> None:
        """Each table's mismatches once, and again only when they change: a gate may stand closed for days."""
        for table, lines in mismatches.items():
            if self._said.get(table) != lines:
                self.log.warning("closed: %s:\n  %s", table, "\n  ".join(lines))
        for table in self._said.keys() - mismatches.keys():
            self.log.info("%s: no mismatch any more", table)
        self._said = {table: list(lines) for table, lines in mismatches.items()}
