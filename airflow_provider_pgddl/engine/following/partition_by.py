"""rewrite.partition_by: a plain table's copy is partitioned, its partitions are made ahead of the rows, and move with
it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from psycopg import errors as pg
from psycopg import sql

from airflow_provider_pgddl.engine.ddl.events import DdlEvent
from airflow_provider_pgddl.engine.ddl.partitioned_copy import (
    added_foreign_keys,
    constraint_of_comment,
    partitioned,
    sets_access_method,
)
from airflow_provider_pgddl.engine.ddl.rewrite_actions import alter_actions
from airflow_provider_pgddl.engine.errors import StageFailed
from airflow_provider_pgddl.engine.following.plans import split_of
from airflow_provider_pgddl.engine.job.context import Context
from airflow_provider_pgddl.engine.journal.tables import TableRow
from airflow_provider_pgddl.engine.model.names import Name
from airflow_provider_pgddl.engine.pipeline.rewrite import PartitionBy
from airflow_provider_pgddl.engine.rights import as_owner
from airflow_provider_pgddl.engine.rows import partition_cells
from airflow_provider_pgddl.engine.rows.copy_files import note_made
from airflow_provider_pgddl.engine.rows.partition_cells import Cell
from airflow_provider_pgddl.engine.server.connect import Session
from airflow_provider_pgddl.engine.sql import queries

_Q = queries("partition_cells")
# From here on a partitioned table takes a foreign key that is NOT VALID.
NOT_VALID_KEYS = 180_000
# From here on a partitioned table has an access method.
ACCESS_METHODS = 170_000
# From here on a publication can name a schema.
PUBLISHED_SCHEMAS = 150_000


class Shaper:
    """A dump's statements as the copies of tables take them that are going to be partitioned."""

    def __init__(self, context: Context, events: Iterable[DdlEvent]):
        self._context = context
        self._late_keys = context.target.info.server_version < NOT_VALID_KEYS
        self._keys: dict[Name, set[str]] = {}
        for event in events:
            if event.phase == "foreign_key" and event.table and split_of(context.pipeline, event.table):
                self._keys.setdefault(event.table, set()).update(added_foreign_keys([event.statement]))

    def shaped(self, event: DdlEvent, statement: str) -> str:
        """`statement` is the event's, on its copy."""
        pipeline = self._context.pipeline
        by = split_of(pipeline, event.table) if event.table else None
        if by is None or event.table is None:
            return statement
        return partitioned(statement, by.method, by.column, alter_actions(pipeline.rewrites[event.table].alter))

    def is_of_partitions(self, event: DdlEvent) -> bool:
        """Whether it gives the table an access method that before 17 partitions alone have, which are made with it."""
        if event.table is None or self._context.target.info.server_version >= ACCESS_METHODS:
            return False
        return split_of(self._context.pipeline, event.table) is not None and sets_access_method(event.statement)

    def comes_later(self, event: DdlEvent) -> bool:
        """Whether it is about a foreign key that the table has only once its partitions have it (before 18)."""
        if not self._late_keys or event.table not in self._keys:
            return False
        return constraint_of_comment(event.statement) in self._keys[event.table]


# --- partitions -------------------------------------------------------------------------------------------------------


def make_partitions(context: Context, tables: Sequence[TableRow]) -> None:
    """The first ones, which the rows that are there decide. In place, before a row is copied."""
    for table in tables:
        if table.plan.split is None or partition_cells.made_partitions(context.target, table.plan):
            continue
        by = _asked(context, table)
        cells = _first_cells(context.source, table, by)  # before the copy is locked: this may read the whole table
        with context.fenced("snapshot.before_partitions_commit", table):
            made = partition_cells.make(context.target, table.plan, cells)
        context.say(f"{table.qualified}: {len(made)} partitions, {made[0]} to {made[-1]}" if made else
                    f"{table.qualified}: its partitions are made as rows come")  # fmt: skip


def _asked(context: Context, table: TableRow) -> PartitionBy:
    by = context.pipeline.rewrites[table.schema, table.name].partition_by
    assert by is not None
    return by


def _first_cells(source: Session, table: TableRow, by: PartitionBy) -> list[Cell]:
    plan, cells = table.plan, list[Cell]()
    assert plan.split is not None
    if by.hash is not None:
        cells = partition_cells.hashed(by.hash)
    elif by.range is not None:
        first, last, others = partition_cells.edges(source, plan)
        if others and not by.default_partition:
            raise StageFailed(
                f"column {plan.split.column} has values such as infinity, which no partition takes",
                table=table.qualified, todo="set rewrite.partition_by.default_partition: true, or change these rows",
            )  # fmt: skip
        cells = partition_cells.range_cells(source, plan, first, last, by.ahead)
    elif by.list is True:
        rows = partition_cells.values(plan, sql.SQL("FROM {} AS t").format(plan.source))
        query = sql.SQL(_Q["values_of"]).format(rows=rows)
        found = as_owner.fetch_held(source, plan, "reader", query, ["text"])
        cells = [partition_cells.list_cell([text]) for (text,) in found]
        if len(cells) > partition_cells.MOST:
            raise partition_cells.too_many(plan, f"{len(cells)} values")
    else:
        assert isinstance(by.list, tuple)
        cells = [partition_cells.list_cell([_text(value) for value in entry]) for entry in by.list]
    return [*cells, partition_cells.DEFAULT_CELL] if by.default_partition else cells


def _text(value: str | int) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def prepare(context: Context, tables: Sequence[TableRow]) -> None:
    """Before the swap: partitions from the oldest row to `ahead` beyond the newest and today, whatever became of both
    since the snapshot; and all that a partition does not take from its table, so that nobody has to wait for that."""
    for table in tables:
        plan = table.plan
        if plan.split is None:
            continue
        cells = list[Cell]()
        by = _asked(context, table)
        if by.range is not None:
            lowest, used = partition_cells.lowest_and_used(context.target, plan)
            try:
                cells = partition_cells.range_cells(context.target, plan, lowest or used, used or lowest, by.ahead)
            except StageFailed as error:
                context.say(f"{table.qualified}: no more partitions are made in advance: {error.what}")
        with context.fenced("swap.before_partitions_commit", table):
            made = [name for cell in cells for name in _make_beside_default(context, table, cell)]
            partition_cells.dress(context.target, plan)
            note_made(context.target, table, made)
            # An older version had moved them before the swap's transaction.
            _move_partitions(context.target, (plan.copy_schema, plan.copy_name), plan.copy_schema)
            _own_partitions(context.target, table, (plan.copy_schema, plan.copy_name))
        if made:
            context.say(f"{table.qualified}: {len(made)} more partitions, up to {made[-1]}")


def _make_beside_default(context: Context, table: TableRow, cell: Cell) -> list[str]:
    if not partition_cells.are_new(context.target, table.plan, [cell]):
        return []
    try:
        with context.target.transaction():
            return partition_cells.make(context.target, table.plan, [cell])
    except pg.CheckViolation:  # the default partition has rows that would belong into it, and keeps them
        return []


# --- the swap ---------------------------------------------------------------------------------------------------------


def move_ahead(conn: Session, tables: Sequence[TableRow]) -> None:
    """In the swap's transaction before anybody waits for it: nobody but a copy knows of its partitions. Where their
    schema is published they move with their table, or what is drained into them would be told under their names."""
    for table in tables:
        if table.plan.split is not None and not _is_published(conn, table.schema):
            _move_partitions(conn, (table.plan.copy_schema, table.plan.copy_name), table.schema)


def _is_published(conn: Session, schema: str) -> bool:
    if conn.info.server_version < PUBLISHED_SCHEMAS:
        return False
    return conn.execute(_Q["schema_is_published"], [schema]).fetchone() is not None


def move(conn: Session, table: TableRow) -> None:
    """The partitions that are not there yet; `table` is the new one already."""
    if table.plan.split is not None:
        _move_partitions(conn, (table.schema, table.name), table.schema)


def own(conn: Session, tables: Sequence[TableRow]) -> None:
    for table in tables:
        if table.plan.split is not None:
            _own_partitions(conn, table, (table.schema, table.name))


def _move_partitions(conn: Session, root: Name, home: str) -> None:
    """SET SCHEMA of their table takes no partitions along (C21)."""
    moves = [
        sql.SQL("ALTER TABLE {} SET SCHEMA {};").format(sql.Identifier(schema, name), sql.Identifier(home))
        for _, schema, name, _ in conn.execute(_Q["partitions"], root).fetchall()
        if schema != home
    ]
    if moves:
        conn.execute(sql.SQL(" ").join(moves))


def _own_partitions(conn: Session, table: TableRow, root: Name) -> None:
    """They belong to the live table's owner, and nobody else has rights on them: these are asked of the table."""
    changes = list[sql.Composed]()
    for schema, name, owner, differs, roles in conn.execute(_Q["owners"], [table.oid, *root]).fetchall():
        leaf = sql.Identifier(schema, name)
        if differs:
            changes.append(sql.SQL("ALTER TABLE {} OWNER TO {};").format(leaf, sql.Identifier(owner)))
        for role in roles:
            grantee = sql.SQL("PUBLIC") if role is None else sql.Identifier(role)
            changes.append(sql.SQL("REVOKE ALL ON {} FROM {};").format(leaf, grantee))
    if changes:
        conn.execute(sql.SQL(" ").join(changes))


def key_of_partitions(context: Context, conn: Session, table: Name, name: str, definition: str) -> list[str]:
    """Before 18 a partitioned table takes no foreign key that is NOT VALID (C23): its partitions do. Returns what is to
    be run after the commit, where each is validated and the table adopts them without a look at a row; [] where the
    key is added as any other."""
    by = split_of(context.pipeline, table)
    if by is None or conn.info.server_version >= NOT_VALID_KEYS:
        return []
    constraint, whole = sql.Identifier(name), sql.SQL(definition)
    leaves = [sql.Identifier(schema, leaf) for _, schema, leaf, _ in conn.execute(_Q["partitions"], list(table))]
    for leaf in leaves:
        conn.execute(sql.SQL("ALTER TABLE {} ADD CONSTRAINT {} {} NOT VALID").format(leaf, constraint, whole))
    validate, add = sql.SQL("ALTER TABLE {} VALIDATE CONSTRAINT {}"), sql.SQL("ALTER TABLE {} ADD CONSTRAINT {} {}")
    return [
        *(validate.format(leaf, constraint).as_string(conn) for leaf in leaves),
        add.format(sql.Identifier(*table), constraint, whole).as_string(conn),
    ]
