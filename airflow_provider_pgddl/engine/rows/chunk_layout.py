"""Laying out chunks: block ranges of each leaf, or ranges of values where the copy is to be in an order."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from psycopg import sql

from airflow_provider_pgddl.engine.errors import GaveWay
from airflow_provider_pgddl.engine.model.tables import Table
from airflow_provider_pgddl.engine.rights import as_owner
from airflow_provider_pgddl.engine.rows.chunk_rows import TableToCopy
from airflow_provider_pgddl.engine.server.connect import Session, plans_kept
from airflow_provider_pgddl.engine.sql import queries

_Q = queries("journal")
_ORDER = queries("ordered_chunks")
UNINDEXED_RANGES = 32  # of an ordered table: without an index each of them reads all of it
SAMPLED_BLOCKS = 1000


def plan_chunks(
    journal: Session, source: Session, found: Sequence[tuple[TableToCopy, Table]], chunk_bytes: int, block_size: int
) -> None:
    """Lays out the chunks of tables in the caller's transaction; TOAST and free space count into their size. Each comes
    with what it was described as before: a rewrite in between shows as another file when the chunk is read."""
    for table, now in found:
        if table.plan.order:
            _plan_ordered(journal, source, table, now, chunk_bytes)
    unordered = [(table, now) for table, now in found if not table.plan.order]
    with plans_kept(source):
        sizes = _sizes(source, unordered)
    rows = []
    for table, leaf in ((table, leaf) for table, now in unordered for leaf in now.leaves):
        blocks, total = sizes[leaf.oid]
        if blocks:
            step = max(1, round(chunk_bytes * blocks / max(total, 1)))
            size = min(step, blocks) * max(total, blocks * block_size) // blocks
            rows.append([table.id, leaf.oid, leaf.schema, leaf.name, leaf.filenode, step, blocks, size, blocks, step])
    with journal.cursor() as cursor:
        cursor.executemany(_Q["insert_chunks"], rows)


def _sizes(source: Session, found: Sequence[tuple[TableToCopy, Table]]) -> dict[int, tuple[int, int]]:
    """Blocks, and bytes with TOAST, of each leaf by its oid. Who asks for the size of a relation waits for a DROP of
    it, and is told nothing then."""
    oids = [leaf.oid for _, now in found for leaf in now.leaves]
    rows = source.execute(queries("catalog")["sizes"], {"oids": oids}).fetchall()
    sizes = {oid: (blocks, total) for oid, blocks, total in rows if blocks is not None and total is not None}
    for table, now in found:
        if any(leaf.oid not in sizes for leaf in now.leaves):
            raise GaveWay(
                "it, or a part of it, was dropped just now", table=table.plan.qualified,
                todo="run the stage again, which records it",
            )  # fmt: skip
    return sizes


def _plan_ordered(journal: Session, source: Session, table: TableToCopy, described: Table, chunk_bytes: int) -> None:
    """Ranges of the first column's values, of about a chunk's bytes each by a sample; that of NULLs comes last. Their
    limits need not be right for anything but their size: each row is in exactly one, by the column's own order."""
    plan = table.plan
    (leaf,) = described.leaves
    blocks, total = _sizes(source, [(table, described)])[leaf.oid]
    if blocks == 0:
        return
    column = next(c for c in described.columns if c.name == plan.order[0])
    count = max(1, min(round(total / chunk_bytes), blocks))
    if not source.execute(_ORDER["leading_index"], [plan.oid, column.attnum]).fetchone():
        count = min(count, UNINDEXED_RANGES)
    cuts = list[str]()
    if count > 1:
        sample = min(100.0, 100.0 * max(SAMPLED_BLOCKS, 30 * count) / blocks)
        query = sql.SQL(_ORDER["cuts"]).format(
            column=sql.Identifier(column.name), source=plan.source, sample=sql.Literal(sample), parts=sql.Literal(count)
        )
        cuts = list(dict.fromkeys(text for (text,) in as_owner.fetch_held(source, plan, "reader", query, ["text"])))
    ranges: list[tuple[str, str | None, str | None]] = [
        ("values", low, high) for low, high in pairwise([None, *cuts, None])
    ]
    if not column.not_null:
        ranges.append(("nulls", None, None))
    for kind, low, high in ranges:
        journal.execute(
            _Q["insert_ordered_chunk"],
            [table.id, leaf.oid, leaf.schema, leaf.name, leaf.filenode, total // len(ranges), kind, low, high],
        )
