"""Whether the source's schema is still the one that the snapshot took: what nobody carried over must not vanish."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from airflow_provider_pgddl.engine.connect import Session
from airflow_provider_pgddl.engine.errors import PreflightRefused
from airflow_provider_pgddl.engine.journal import TableRow
from airflow_provider_pgddl.engine.sql import queries
from airflow_provider_pgddl.engine.stages.context import Context
from airflow_provider_pgddl.engine.stages.snapshot import dump_events

NAMED = 5  # statements that are named in the refusal


class SchemaGuard:
    """Compares by dumping again, which takes a second; a digest tells, under a lock, that nothing came since."""

    def __init__(self, context: Context, tables: Sequence[TableRow]):
        self._context = context
        self._oids = [t.oid for t in tables] if context.in_place else None
        self._digest: str | None = None

    def refuse_changed(self) -> None:
        """PreflightRefused where the source has statements that the snapshot had not, or lacks some that it had."""
        now = self._digest_by(self._context.source)
        if now == self._digest:
            return
        recorded = Counter(self._context.journal.dumped_statements(self._context.row().run))
        dumped = Counter(e.statement for e in dump_events(self._context) if e.phase != "noise")
        added, gone = dumped - recorded, recorded - dumped
        if added or gone:
            listed = [f"new: {_first_line(s)}" for s in added] + [f"gone: {_first_line(s)}" for s in gone]
            more = f"; and {len(listed) - NAMED} more" if len(listed) > NAMED else ""
            raise PreflightRefused(
                f"the source's schema changed since the snapshot: {'; '.join(listed[:NAMED])}{more}",
                todo="undo the change on the source, or `pgddl reset` (--tables, where one table is concerned) and "
                "run again from setup; nothing has been swapped",
            )
        self._digest = now

    def unchanged(self, conn: Session) -> bool:
        """Whether nothing has changed since `refuse_changed`; for a transaction that keeps further changes out."""
        return self._digest_by(conn) == self._digest

    def _digest_by(self, conn: Session) -> str | None:
        row = conn.execute(queries("catalog")["schema_digest"], {"oids": self._oids}).fetchone()
        return str(row[0]) if row else None


def _first_line(statement: str) -> str:
    line = " ".join(statement.split())
    return line if len(line) <= 120 else line[:117] + "..."
