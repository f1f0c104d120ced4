"""Rows that arrived without a column, or that a copy refused, as the metrics count them."""

from __future__ import annotations

import psycopg

from airflow_provider_pgddl.engine.journal.schema import SchemaJournal
from airflow_provider_pgddl.engine.model.plan import Plan
from airflow_provider_pgddl.engine.server.connect import Session

_COUNTER = "rows_skipped"


def count_partial(conn: Session, pipeline: str, plan: Plan, rows: int) -> None:
    """Rows written without columns that the pipeline leaves out; in the transaction that writes them."""
    if plan.columns.left_out and rows:
        SchemaJournal(conn, pipeline).count((plan.schema, plan.name), _COUNTER, "column_mismatch", rows)


def count_refusal(conn: Session, pipeline: str, plan: Plan, error: psycopg.Error) -> None:
    """The row at which a copy stopped its table; once the transaction that met it is over."""
    for kind, label in ((psycopg.DataError, "cast_error"), (psycopg.IntegrityError, "constraint_violation")):
        if isinstance(error, kind):
            SchemaJournal(conn, pipeline).count((plan.schema, plan.name), _COUNTER, label)
