"""What the journal's subjects have in common: the rows of one pipeline, over one session."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, LiteralString, TypeVar

from psycopg.rows import class_row, scalar_row

from airflow_provider_pgddl.engine.server.connect import Session
from airflow_provider_pgddl.engine.sql import queries

T = TypeVar("T")


class JournalSection:
    """One subject of the journal; whoever calls decides on transactions."""

    _Q: ClassVar[dict[str, LiteralString]] = queries("journal")

    def __init__(self, conn: Session, pipeline: str):
        self.conn, self.pipeline = conn, pipeline

    def _write(self, query: str, args: Any) -> None:
        self.conn.execute(self._Q[query], args, prepare=True)

    def _write_many(self, query: str, rows: Sequence[Sequence[Any] | Mapping[str, Any]]) -> None:
        with self.conn.cursor() as cursor:
            cursor.executemany(self._Q[query], rows)

    def _rows(self, of: type[T], query: str, args: Any) -> list[T]:
        """Of a dataclass whose fields bear the names of the columns."""
        with self.conn.cursor(row_factory=class_row(of)) as cursor:
            return cursor.execute(self._Q[query], args, prepare=True).fetchall()

    def _row(self, of: type[T], query: str, args: Any) -> T | None:
        with self.conn.cursor(row_factory=class_row(of)) as cursor:
            return cursor.execute(self._Q[query], args, prepare=True).fetchone()

    def _values(self, query: str, args: Any) -> list[Any]:
        """Of a query with one column."""
        with self.conn.cursor(row_factory=scalar_row) as cursor:
            return cursor.execute(self._Q[query], args, prepare=True).fetchall()

    def _value(self, query: str, args: Any) -> Any:
        """The same of its first row; None where there is none."""
        with self.conn.cursor(row_factory=scalar_row) as cursor:
            return cursor.execute(self._Q[query], args, prepare=True).fetchone()
