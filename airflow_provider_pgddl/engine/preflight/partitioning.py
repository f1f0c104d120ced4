"""What keeps a plain table from becoming a partitioned one, found before anything is touched. Read-only."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import date
from decimal import Decimal
from typing import Any

from airflow_provider_pgddl.engine.ddl.partitioned_copy import new_type
from airflow_provider_pgddl.engine.ddl.rewrite_actions import AlterAction, alter_actions, dropped_columns
from airflow_provider_pgddl.engine.errors import PgddlError
from airflow_provider_pgddl.engine.model.names import Name
from airflow_provider_pgddl.engine.pipeline.names import column_name, written
from airflow_provider_pgddl.engine.pipeline.rewrite import PERIODS, PartitionBy, Rewrite
from airflow_provider_pgddl.engine.preflight.findings import Finding
from airflow_provider_pgddl.engine.rows.partition_cells import (
    LIST_TYPES,
    MOST,
    PERIOD_TYPES,
    WIDTH_TYPES,
    partition_name,
)
from airflow_provider_pgddl.engine.server.connect import Session
from airflow_provider_pgddl.engine.sql import queries

_Q = queries("partitioning")
CODE = "partition_by"
MOVES_AS_UPDATES = 150_000  # from here on foreign keys take a row that moves between partitions for one that is updated
COLUMN_LISTS = 150_000  # from here on publications can list columns


_DAYS = {"day": 1, "week": 7, "month": 30, "quarter": 91, "year": 365}


def expected_partitions(conn: Session, oid: int, by: PartitionBy) -> int:
    """About how many there will be, as far as the server's statistics of the column tell."""
    if by.hash is not None:
        return by.hash
    if isinstance(by.list, tuple):
        return len(by.list) + by.default_partition
    args = {"oid": oid, "column": column_name(by.column)}
    row: tuple[Any, ...] = conn.execute(_Q["spread"], args).fetchone() or (0, None, None)
    distinct, low, high = row
    if by.range is None:
        return min(int(distinct), MOST)
    try:
        if by.range in PERIODS:
            spread = (date.fromisoformat(high[:10]) - date.fromisoformat(low[:10])).days // _DAYS[str(by.range)]
        else:
            spread = int(Decimal(high) - Decimal(low)) // int(by.range)
    except (TypeError, ValueError, ArithmeticError):  # none are known, or some that no partition takes
        spread = 0
    return min(spread + 1 + by.ahead, MOST)


def partition_findings(
    conn: Session, table: Name, oid: int, rewrite: Rewrite, quote: Callable[..., str], free: Callable[[str, str], str]
) -> Iterator[Finding]:
    """`quote` writes names for SQL; `free` makes of a name one that nothing in the schema has."""
    by = rewrite.partition_by
    if by is None:
        return
    check = _Check(conn, table, oid, rewrite, by, quote, free)
    yield from check.findings()


class _Check:
    def __init__(
        self,
        conn: Session,
        table: Name,
        oid: int,
        rewrite: Rewrite,
        by: PartitionBy,
        quote: Callable[..., str],
        free: Callable[[str, str], str],
    ):
        self.conn, self.table, self.oid, self.by, self.quote, self.free = conn, table, oid, by, quote, free
        self.column = column_name(by.column)
        self.alter = f"ALTER TABLE {quote(*table)}"
        try:
            self.actions: list[AlterAction] = alter_actions(rewrite.alter)
            self.dropped = dropped_columns(rewrite.alter)
        except PgddlError:  # told by the check of rewrite.alter
            self.actions, self.dropped = [], []

    def rows(self, query: str, **args: Any) -> list[tuple[Any, ...]]:
        return self.conn.execute(_Q[query], {"oid": self.oid, "column": self.column, **args}).fetchall()

    def error(self, what: str, fix: str | None = None) -> Finding:
        return Finding("error", CODE, "source", written(*self.table), f"cannot be partitioned: {what}", fix)

    def warning(self, what: str, fix: str | None = None) -> Finding:
        return Finding("warning", CODE, "source", written(*self.table), what, fix)

    def findings(self) -> Iterator[Finding]:
        found = self.rows("column")
        shown = written(self.column)
        if not found or self.column in self.dropped:
            where = "rewrite.alter drops" if found else "it has no"
            yield self.error(f"{where} column {shown}", "choose another partition_by.column")
            return
        attnum, type_, not_null, generated, is_enum, unlogged, typed = found[0]
        if generated:
            yield self.error(f"column {shown} is generated", "choose another partition_by.column")
        if typed:
            yield self.error("it is a table OF a type", f"{self.alter} NOT OF;")
        if unlogged:
            yield self.error("it is UNLOGGED", f"{self.alter} SET LOGGED;")
        if not not_null:
            yield self.error(
                f"column {shown} may be NULL, and every partitioned table's key takes the partition key in",
                f"{self.alter} ALTER COLUMN {self.quote(self.column)} SET NOT NULL;",
            )
        yield from self.type(type_, is_enum)
        yield from self.keys(attnum)
        yield from self.rest()
        yield from self.names()
        if self.by.hash is None and not self.by.default_partition:
            beyond = f"beyond `ahead` ({self.by.ahead})" if self.by.range is not None else "of another value"
            yield self.warning(
                f"after the swap a row {beyond} is refused until somebody makes its partition",
                "make partitions in time, or set default_partition: true",
            )

    def type(self, type_: str, is_enum: bool) -> Iterator[Finding]:
        for action in self.actions:
            if action.kind == "TYPE" and action.column == self.column:
                row = self.conn.execute(_Q["named_type"], [new_type(action)]).fetchone()
                type_, is_enum = (row[0] if row and row[0] else type_), False
        by = self.by
        if by.range is not None:
            dates = by.range in PERIODS
            if type_ not in (PERIOD_TYPES if dates else WIDTH_TYPES):
                wanted = "a date or a timestamp" if dates else "an integer or numeric"
                yield self.error(f"range: {by.range} needs {wanted}, and column {written(self.column)} is {type_}")
        elif by.list is not None and not (is_enum or type_ in LIST_TYPES):
            yield self.error(f"list takes no column of type {type_}: {written(self.column)}")

    def keys(self, attnum: int) -> Iterator[Finding]:
        shown, column = written(self.column), self.quote(self.column)
        for index, kind, columns in self.rows("unique", attnum=attnum):
            if kind == "p":
                yield self.warning(
                    f"its primary key ({columns}) becomes ({columns}, {shown}): after the swap ON CONFLICT ({columns}) "
                    "and new foreign keys to it are refused, and the same key may stand in two partitions"
                )
                continue
            drop = f"{self.alter} DROP CONSTRAINT {self.quote(index)};"
            if not kind:
                drop = f"DROP INDEX {self.quote(self.table[0], index)};"
            yield self.error(
                f"its unique {'constraint' if kind else 'index'} {written(index)} ({columns or 'an expression'}) is "
                f"without the partition key {shown}, so it cannot hold over all partitions",
                f"{drop}\n-- or one with {column} in it, or partition by a column of it",
            )
        server = self.conn.info.server_version
        for publication, fix in self.rows("listed_columns", attnum=attnum) if server >= COLUMN_LISTS else ():
            yield self.error(
                f"publication {written(publication)} lists its columns without {shown}, which is in its key then: "
                "every UPDATE and DELETE would fail",
                f"{fix}  -- once its subscribers have the column",
            )
        for name, equal in self.rows("exclusions", attnum=attnum):
            if server < 170_000 or not equal:
                why = "before Postgres 17" if server < 170_000 else f"without {shown} WITH ="
                yield self.error(
                    f"its exclusion constraint {written(name)} cannot be kept {why}",
                    f"{self.alter} DROP CONSTRAINT {self.quote(name)};",
                )
        for name, referring, definition, with_column, follows in self.rows("referring", attnum=attnum):
            drop = f"ALTER TABLE {referring} DROP CONSTRAINT {self.quote(name)};"
            refers = f"{referring} refers to it by {definition} ({written(name)})"
            if not with_column:
                yield self.error(f"{refers}, and its key alone is unique no more", drop)
            elif follows and server < MOVES_AS_UPDATES:
                moved = "to another partition, which is a DELETE to the foreign key before Postgres 15"
                yield self.error(f"{refers}, which acts where an UPDATE moves a row {moved}", drop)
        for name, why, action in self.rows("unpartitionable", attnum=attnum):
            yield self.error(
                f"its constraint {written(name)} is {why}", f"{self.alter} {action.replace('%s', self.quote(name))};"
            )
        if server < 180_000:
            for (name,) in self.rows("not_valid"):
                yield self.error(
                    f"its foreign key {written(name)} is NOT VALID, which a partitioned table cannot have before "
                    "Postgres 18",
                    f"{self.alter} VALIDATE CONSTRAINT {self.quote(name)};",
                )

    def rest(self) -> Iterator[Finding]:
        for (index,) in self.rows("clustered"):
            yield self.error(
                f"it is marked for CLUSTER ON {written(index)}, which a partitioned table cannot be",
                f"{self.alter} SET WITHOUT CLUSTER;",
            )
        triggers = self.rows("triggers")
        for name, transition, before in triggers:
            if transition:
                yield self.error(
                    f"its row trigger {written(name)} has transition tables",
                    f"DROP TRIGGER {self.quote(name)} ON {self.quote(*self.table)};  -- or make it FOR EACH STATEMENT",
                )
            elif before:
                yield self.warning(
                    f"its trigger {written(name)} fires before a row is written: if it changes "
                    f"{written(self.column)} so that the row belongs to another partition, the write fails"
                )
        if fire := ", ".join(written(name) for name, transition, _ in triggers if not transition):
            yield self.warning(
                f"an UPDATE of {written(self.column)} that moves a row to another partition is a DELETE and an INSERT "
                f"to its row triggers, and no UPDATE to those that fire after it: {fire}",
            )
        for (publication,) in self.rows("publications"):
            yield self.error(
                f"publication {written(publication)} would publish its partitions under their own names",
                f"ALTER PUBLICATION {self.quote(publication)} SET (publish_via_partition_root = true);",
            )

    def names(self) -> Iterator[Finding]:
        taken = self.rows("taken", pattern=self._pattern())
        if taken:
            schema, named = self.table[0], ", ".join(written(name) for name, _ in taken[:3])
            yield self.error(
                f"{named} has a name that one of its partitions could get",
                "\n".join(
                    f"ALTER {kind} {self.quote(schema, name)} RENAME TO {self.quote(self.free(schema, f'old_{name}'))};"
                    for name, kind in taken
                ),
            )

    def _pattern(self) -> str:
        """Of the names that partitions get, cut or not."""
        endings = r"p_.*" if self.by.list is not None else r"pm?\d.*"
        stems = {
            self.table[1],
            *(partition_name(self.table[1], "x" * n).removesuffix("_" + "x" * n) for n in range(4, 32)),
        }
        return f"^({'|'.join(map(re.escape, sorted(stems)))})_({endings}|default.*)$"
