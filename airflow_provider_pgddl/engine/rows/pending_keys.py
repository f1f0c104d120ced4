"""Keys that wait to be read again: pending keys, keys that a session stages, and the rows that leave the copy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from psycopg import errors as pg
from psycopg import sql

from airflow_provider_pgddl.engine.capture import change_log, slot_log
from airflow_provider_pgddl.engine.journal.tables import TableRow
from airflow_provider_pgddl.engine.model.plan import Plan
from airflow_provider_pgddl.engine.rights import as_owner
from airflow_provider_pgddl.engine.rows import archive, copy_only_columns, foreign_keys_and_triggers
from airflow_provider_pgddl.engine.rows.adopted_rows import but_extra, compare_anew, drop_extra, forget_extra
from airflow_provider_pgddl.engine.rows.change_log_reading import Logs, batches, log_keys
from airflow_provider_pgddl.engine.rows.copy_files import note_emptied
from airflow_provider_pgddl.engine.rows.transfer import copy_between, read_statement, write_statement
from airflow_provider_pgddl.engine.server.connect import Session
from airflow_provider_pgddl.engine.sql import queries

_Q = queries("windows")


def pending_table(table_id: int) -> sql.Identifier:
    return sql.Identifier("pgddl", f"pending_{table_id}")


def create_pending(target: Session, *tables: TableRow) -> None:
    """The tables of pending keys; REPLICA IDENTITY FULL keeps someone else's FOR ALL TABLES publication from failing
    our deletes."""
    statements = []
    for table in tables:
        parts = {"pending": pending_table(table.id), "keys": table.plan.key.list()}
        definitions = table.plan.key.definitions("k", not_null=True)
        statements += [
            sql.SQL(_Q["create_pending"]).format(definitions=definitions, **parts),
            sql.SQL(_Q["pending_replica_identity"]).format(pending=parts["pending"]),
        ]
    if statements:
        target.execute(sql.SQL(";\n").join(statements))


def drop_pending(target: Session, table: TableRow) -> None:
    target.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(pending_table(table.id)))


def forget_keys(target: Session, table: TableRow) -> None:
    """All that the target keeps of a table by key: pending keys, values of columns that its copy alone has, and the
    log that a slot fills."""
    drop_pending(target, table)
    copy_only_columns.drop_kept(target, table)
    if table.plan.adopted or table.plan.extra:
        drop_extra(target, table.id)
    target.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(change_log.log_table(table.log_table)))  # by a slot


def add_pending(target: Session, table_id: int, plan: Plan, staging: sql.Identifier) -> None:
    parts = {"pending": pending_table(table_id), "keys": plan.key.list(), "staging": staging}
    target.execute(sql.SQL(_Q["add_pending"]).format(**parts))


def leave_pending(target: Session, tables: Sequence[TableRow], staged: Mapping[int, int]) -> None:
    for table in tables:
        if table.id in staged:
            add_pending(target, table.id, table.plan, staging_table(target, "ingest", table.plan, table.id))


def take_pending(conn: Session, plan: Plan, table_id: int, staging: sql.Identifier, limit: int) -> int:
    parts = {"pending": pending_table(table_id), "keys": plan.key.list(), "staging": staging}
    return conn.execute(sql.SQL(_Q["take_pending"]).format(limit=sql.Literal(limit), **parts)).rowcount


def count_pending(conn: Session, tables: Sequence[TableRow]) -> dict[int, int]:
    """Pending keys a table; tables without any are left out."""
    found: dict[int, int] = {}
    for batch in batches([t for t in tables if not t.keyless]):
        query = sql.SQL(" UNION ALL ").join(
            sql.SQL(_Q["count_pending"]).format(id=sql.Literal(t.id), pending=pending_table(t.id)) for t in batch
        )
        found |= {table_id: n for table_id, n in conn.execute(query) if n}
    return found


def staging_table(conn: Session, purpose: str, plan: Plan, table_id: int) -> sql.Identifier:
    """A session's temporary table of keys, empty at the start of each transaction."""
    # A session outlives a change of the key, and IF NOT EXISTS would find the one for its old types.
    staging = sql.Identifier("pg_temp", f"pgddl_{purpose}_{table_id}_{plan.key.digest}")
    conn.execute(sql.SQL(_Q["create_staging"]).format(staging=staging, definitions=plan.key.definitions("k")))
    return staging


def stage_keys(logs: Logs, target: Session, table: TableRow, staging: sql.Identifier) -> int | None:
    """The keys that the log shows, and how many; in place, and where a slot fills it, it is where the copy is.

    None where a slot's log has a key that is no value of its type any more, or none yet: from then on the log says that
    it does not know what has changed."""
    keys, names = log_keys(logs, table, staging), table.plan.key.list()
    if logs.session is target:
        insert = sql.SQL("INSERT INTO {} ({}) {}").format(staging, names, keys)
        if not (logs.on_target and table.plan.key.has_user_types):
            return target.execute(insert).rowcount
        try:
            with target.transaction():
                return target.execute(insert).rowcount
        except pg.DataError:
            slot_log.lose_track(target, [table])
            return None
    read = read_statement(keys, table.plan.key.binary)
    return copy_between(logs.session, target, read, write_statement(staging, names, table.plan.key.binary)).rows


def ingest_keys(
    target: Session, table: TableRow, staging: sql.Identifier, truncated: Sequence[int], *, behind: bool = False
) -> int:
    """Deletes the staged keys from the copy and makes them pending; returns how many keys were staged."""
    truncate_leaves(target, table, truncated, behind=behind)
    delete_from_copy(target, table, staging, behind=behind)
    add_pending(target, table.id, table.plan, staging)
    row = target.execute(sql.SQL("SELECT count(*) FROM {}").format(staging)).fetchone()
    return int(row[0]) if row else 0


def ingest_keeping(target: Session, table: TableRow, staging: sql.Identifier, moves: copy_only_columns.Moves) -> int:
    """With the values of columns that the copy alone has: they follow their rows, to which they wait by pending key."""
    if table.state == "indexed":
        copy_only_columns.forget_strays(target, table, staging, pending_table(table.id))
    copy_only_columns.save_leaves(target, table, moves.leaves)  # rows that blocks have brought since
    copy_only_columns.forget_truncated(target, table, moves.truncated)
    keys = ingest_keys(target, table, staging, moves.leaves)
    copy_only_columns.follow(target, table, moves)
    return keys


def delete_from_copy(target: Session, table: TableRow, staging: sql.Identifier, *, behind: bool = False) -> None:
    """The rows of the staged keys; `behind` the wall where the copy has code of its owner. Of an archive none leaves:
    those of keys that wait there are what they were until rows come for them."""
    plan = table.plan
    if plan.operations:
        return
    target.execute(sql.SQL("ANALYZE {}").format(staging))
    forget_extra(target, plan, staging)
    if plan.columns.kept:
        copy_only_columns.delete_keeping(target, table, staging)
        return
    delete = sql.SQL(_Q["delete_from_copy"]).format(copy=plan.copy_only, staging=staging, join=plan.key.join("c", "k"))
    as_owner.execute(target, plan.keepers.writer if behind else "", delete, staging)


def truncate_leaves(target: Session, table: TableRow, truncated: Sequence[int], *, behind: bool = False) -> None:
    plan = table.plan
    if truncated:
        compare_anew(target, table)
    # A partition that has gone since, which its table's version says: its rows went with it.
    there = [plan.copies[str(leaf)] for leaf in truncated if plan.has_leaf(leaf)]
    if there and plan.operations:
        archive.all_wait(target, plan, pending_table(table.id))
    elif there and plan.extra:
        for name in there:
            target.execute(but_extra(plan, sql.SQL("ONLY {}").format(sql.Identifier(*name))))
    elif there:
        # One statement over the set (C27). What was inserted since is in the log by key, so nothing else has to be
        # known.
        only = sql.SQL("" if plan.split else "ONLY ")
        role = plan.keepers.writer if behind else ""
        foreign_keys_and_triggers.empty(target, [only + sql.Identifier(*name) for name in there], there, role)
        note_emptied(target, table, there)


def wait_for_kept(target: Session, table: TableRow) -> None:
    """Rows that values are kept for leave the copy, and come back with them by windows: once blocks have brought all
    rows to a copy that started over. Which row a value belongs to, the next window tells. In the caller's
    transaction."""
    staging = staging_table(target, "ingest", table.plan, table.id)
    copy_only_columns.stage_kept_keys(target, table, staging)
    ingest_keys(target, table, staging, ())
    target.execute(sql.SQL("TRUNCATE {}").format(staging))


def rows_of_keys(plan: Plan, staging: sql.Identifier) -> sql.Composed:
    return sql.SQL(_Q["rows_of_keys"]).format(
        expressions=plan.columns.select_list, source=plan.rows, staging=staging, join=plan.key.join("t", "k")
    )
