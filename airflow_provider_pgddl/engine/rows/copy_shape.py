"""The shape of a copy: its columns stay what the plan was made for while rows are written to it.

Somebody may alter the copy between two of our transactions. Bytes that were made for the columns as they were would
then fail at best; a binary value goes into another type of its width without an error, as another value."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from psycopg import sql

from airflow_provider_pgddl.engine.errors import NO_SUCH_RELATION, copy_gone_meanwhile
from airflow_provider_pgddl.engine.journal.tables import TableRow
from airflow_provider_pgddl.engine.model.plan import Plan
from airflow_provider_pgddl.engine.rights import foreign_code
from airflow_provider_pgddl.engine.server.connect import Session
from airflow_provider_pgddl.engine.sql import queries

COPY_ALTERED = "its copy was altered, so nothing is written to it before it has been compared with the source again"


def copy_digests(conn: Session, tables: Iterable[TableRow]) -> dict[int, str]:
    """Table id → digest of its copy's columns (`Plan.copy_attributes`), which every ALTER of one changes; a copy that
    is not there is left out."""
    return _digests(conn, {t.id: t.plan for t in tables})


def hold_copies(conn: Session, plans: Mapping[int, Plan]) -> set[int]:
    """Keeps everybody from altering these copies until the transaction ends; returns the ids of those that are not
    what their plans were made for.

    GaveWay where somebody is altering one just now. Plans without `copy_attributes` are passed over."""
    checked = {i: plan for i, plan in plans.items() if plan.copy_attributes}
    there = _digests(conn, checked)
    if there:
        try:
            foreign_code.lock(conn, [(_relation(checked[i]), checked[i]) for i in there], "writer")
        except NO_SUCH_RELATION:
            raise copy_gone_meanwhile() from None
    return altered_copies(conn, plans)


def altered_copies(conn: Session, plans: Mapping[int, Plan]) -> set[int]:
    """As `hold_copies`, and nobody is kept from anything."""
    checked = {i: plan for i, plan in plans.items() if plan.copy_attributes}
    there = _digests(conn, checked)
    return {i for i, plan in checked.items() if there.get(i) != plan.copy_attributes}


def _relation(plan: Plan) -> sql.Composable:
    """With its partitions, where somebody could alter one whom we do not trust."""
    whole = plan.keepers.writer and (plan.partitioned or plan.split)
    return plan.copy if whole else sql.SQL("ONLY {}").format(plan.copy)


def _digests(conn: Session, plans: Mapping[int, Plan]) -> dict[int, str]:
    if not plans:
        return {}
    args = [list(plans), [p.copy_schema for p in plans.values()], [p.copy_name for p in plans.values()]]
    return dict(conn.execute(queries("windows")["copy_digests"], args).fetchall())
