"""Chunks: how far the blocks of each table have been read. Workers claim them in `rows.chunks`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from airflow_provider_pgddl.engine.journal.section import JournalSection


@dataclass(frozen=True, slots=True)
class ChunksLeft:
    """Of a table: chunks that are not done, and their bytes."""

    table_id: int
    chunks: int
    bytes: int


@dataclass(frozen=True, slots=True)
class ChunkProgress:
    """`at_table` has the first chunk that is not done: they are claimed in their order."""

    chunks: int
    chunks_done: int
    rows_done: int
    bytes: int
    bytes_done: int
    at_table: int | None


@dataclass(frozen=True, slots=True)
class _TableBytes:
    table_id: int
    bytes: int


class Chunks(JournalSection):
    def left(self, ids: Sequence[int]) -> dict[int, ChunksLeft]:
        """Per table that has any chunks, done or not."""
        return {left.table_id: left for left in self._rows(ChunksLeft, "chunks_left", [list(ids)])}

    def analyze(self) -> None:
        """Without statistics a claim would sort all chunks that are left, each time; autovacuum may take a minute."""
        self._write("analyze_chunks", [])

    def bytes(self, ids: Sequence[int]) -> dict[int, int]:
        """Those of each table's chunks; a table without any is left out."""
        return {one.table_id: one.bytes for one in self._rows(_TableBytes, "chunk_bytes", [list(ids)])}

    def progress(self, ids: Sequence[int]) -> ChunkProgress:
        progress = self._row(ChunkProgress, "chunk_progress", [list(ids)])
        assert progress is not None
        return progress


def multirange(numbers: Iterable[int]) -> str:
    """`{[1,4),[7,8)}` for 1, 2, 3 and 7."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and runs[-1][1] == number:
            runs[-1][1] += 1
        else:
            runs.append([number, number + 1])
    return "{" + ",".join(f"[{first},{end})" for first, end in runs) + "}"
