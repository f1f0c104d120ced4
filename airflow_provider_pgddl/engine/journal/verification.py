"""Ranges that source and copy are compared in, and what came of each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from psycopg.rows import kwargs_row
from psycopg.types.json import Jsonb

from airflow_provider_pgddl.engine.journal.section import JournalSection
from airflow_provider_pgddl.engine.model.ranges import Bound


@dataclass(frozen=True, slots=True)
class RangeRow:
    """A range of a table's key, from `low` on and below `high`; None has no end."""

    id: int
    table_id: int
    low: Bound | None
    high: Bound | None


def _range_row(*, id: int, table_id: int, low: list[str] | None, high: list[str] | None) -> RangeRow:  # noqa: A002
    return RangeRow(id, table_id, None if low is None else tuple(low), None if high is None else tuple(high))


@dataclass(frozen=True, slots=True)
class TableVerification:
    """Of a table's last verification: ranges that are not compared yet, rows compared, keys that differ."""

    table_id: int
    ranges_left: int
    rows: int
    differ: int


@dataclass(frozen=True, slots=True)
class _TakenRange:
    table_id: int
    job_id: str
    last_no: int


class Verification(JournalSection):
    def add(self, job: str, ranges: Iterable[tuple[int, int, Bound | None, Bound | None]]) -> None:
        """(table id, number, low, high)"""
        rows = [
            [table_id, job, number, *(None if bound is None else list(bound) for bound in bounds)]
            for table_id, number, *bounds in ranges
        ]
        self._write_many("insert_range", rows)

    def forget_others(self, ids: Sequence[int], job: str) -> None:
        """What jobs before this one have compared of these tables says nothing once this one has ranges of them."""
        self._write("forget_other_verifications", [list(ids), job])

    def left(self, ids: Sequence[int], job: str) -> list[RangeRow]:
        """Ranges that have not been compared."""
        return self._ranges("ranges_left", ids, job)

    def differing(self, ids: Sequence[int], job: str) -> list[RangeRow]:
        """Ranges that were compared and differ."""
        return self._ranges("ranges_differing", ids, job)

    def _ranges(self, query: str, ids: Sequence[int], job: str) -> list[RangeRow]:
        with self.conn.cursor(row_factory=kwargs_row(_range_row)) as cursor:
            return cursor.execute(self._Q[query], [list(ids), job]).fetchall()

    def compare_again(self, range_id: int) -> None:
        self._write("compare_again", [range_id])

    def cut(self, range_id: int, bounds: Iterable[tuple[Bound | None, Bound | None]]) -> None:
        """Others in the place of one that has not been compared."""
        taken = self._row(_TakenRange, "take_range", [range_id])
        assert taken is not None
        numbered = enumerate(bounds, taken.last_no + 1)
        self.add(taken.job_id, [(taken.table_id, number, low, high) for number, (low, high) in numbered])

    def tables(self, job: str) -> set[int]:
        """The ids of those that have ranges."""
        return set(self._values("tables_with_ranges", [job]))

    def set_done(self, results: Iterable[tuple[int, int, Sequence[str]]]) -> None:
        """(range id, rows, keys that differ)"""
        self._write_many("range_done", [[rows, Jsonb(list(differ)), range_id] for range_id, rows, differ in results])

    def of_tables(self, ids: Sequence[int]) -> dict[int, TableVerification]:
        return {one.table_id: one for one in self._rows(TableVerification, "verification", [self.pipeline, list(ids)])}

    def differing_keys(self, table_id: int) -> list[str]:
        """A hundred at most."""
        return self._value("differing", [table_id]) or []

    def forget(self, table_id: int) -> None:
        self._write("forget_verification", [table_id])
