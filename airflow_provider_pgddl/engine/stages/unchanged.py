"""Whether the source's schema is still the one that the snapshot took: what nobody carried over must not vanish."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from airflow_provider_pgddl.engine.connect import Session
from airflow_provider_pgddl.engine.errors import PreflightRefused
from airflow_provider_pgddl.engine.journal import TableRow
from airflow_provider_pgddl.engine.rows.windows import stopped_by_drift
from airflow_provider_pgddl.engine.sql import queries
from airflow_provider_pgddl.engine.stages.context import Context
from airflow_provider_pgddl.engine.stages.snapshot import dump_events

NAMED = 5  # statements that are named in the refusal
LENGTH = 160  # characters of each


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
            self._refuse_drift()
            listed = changes(added, gone)
            more = f"; and {len(listed) - NAMED} more" if len(listed) > NAMED else ""
            raise PreflightRefused(
                f"the source's schema changed since the snapshot: {'; '.join(listed[:NAMED])}{more}",
                todo="undo the change on the source, or `pgddl reset` (--tables, where one table is concerned) and "
                "run again from setup; nothing has been swapped",
            )
        self._digest = now

    def _refuse_drift(self) -> None:
        """What a window would stop a table for is said in a window's words, and recorded like by one."""
        context = self._context
        tables = context.healthy(context.tables())
        _, stopped = stopped_by_drift(context.source, context.journal, tables)
        context.block(stopped)
        for table in tables:
            if table.id in stopped:
                raise PreflightRefused(
                    "; ".join(stopped[table.id]),
                    table=table.qualified,
                    todo="undo it on the source, or `pgddl reset --tables` this table and run again from setup",
                )

    def unchanged(self, conn: Session) -> bool:
        """Whether nothing has changed since `refuse_changed`; for a transaction that keeps further changes out."""
        return self._digest_by(conn) == self._digest

    def _digest_by(self, conn: Session) -> str | None:
        row = conn.execute(queries("catalog")["schema_digest"], {"oids": self._oids}).fetchone()
        return str(row[0]) if row else None


def changes(added: Iterable[str], gone: Iterable[str]) -> list[str]:
    """Statements that came and went, a line each; of one that only changed, the lines of it that did."""
    left = {_first_line(s): s for s in gone}
    listed = []
    for statement in added:
        head = _first_line(statement)
        before = left.pop(head, None)
        if before is None:
            listed.append(f"new: {_short(statement)}")
            continue
        now, then = ([line.strip().rstrip(",") for line in s.splitlines()] for s in (statement, before))
        differing = [f"+ {x}" for x in now if x not in then] + [f"- {x}" for x in then if x not in now]
        listed.append(_short(f"changed: {head} {' '.join(differing)}"))
    return listed + [f"gone: {_short(s)}" for s in left.values()]


def _first_line(statement: str) -> str:
    return statement.strip().splitlines()[0]


def _short(statement: str) -> str:
    line = " ".join(statement.split())
    return line if len(line) <= LENGTH else line[: LENGTH - 3] + "..."
