"""What was compared of a copy, and whether it still says anything: somebody may have replaced its file, or a crash have
emptied it. What others only write to it, row by row, no catalog tells: the next comparison does."""

from __future__ import annotations

from collections.abc import Sequence

from psycopg import sql

from airflow_provider_pgddl.engine.capture import direct_function
from airflow_provider_pgddl.engine.job.context import Context
from airflow_provider_pgddl.engine.journal.tables import TableRow
from airflow_provider_pgddl.engine.rows.copy_files import CopyFile, copy_files, elsewhere, is_elsewhere
from airflow_provider_pgddl.engine.server import catalog
from airflow_provider_pgddl.engine.server.connect import Session

REPLACED = "its copy was emptied or written anew by somebody (TRUNCATE, VACUUM FULL): what was compared of it is over"
UNLOGGED = "its copy is UNLOGGED, and a crash of the server since it was compared would have emptied it"


def any_replaced(conn: Session, tables: Sequence[TableRow]) -> bool:
    """Whether somebody has put a copy's rows into another file since all was looked at, as a session of the target
    finds it."""
    return bool(elsewhere(conn, tables))


def any_replaced_since_look(context: Context, conn: Session, tables: Sequence[TableRow]) -> bool:
    """The same under a swap's lock, an instant behind such a look: what a direct trigger has emptied since is as the
    source is. Before that it does not count as an excuse, as VACUUM FULL gives the source another file as well."""
    found = elsewhere(conn, tables)
    return bool(found) and {t.id for t in found} != _emptied_directly(context, conn, found)


def _emptied_directly(context: Context, conn: Session, tables: Sequence[TableRow]) -> set[int]:
    """The ids of those that were truncated under a direct trigger, which empties the copy in the client's transaction
    and cannot write to the journal there: the source's rows are in another file then, too."""
    if context.pipeline.capture.rows != "direct_trigger":
        return set()
    files = direct_function.files(conn, context.name)
    return {
        t.id for t in tables
        if any(leaf in t.physical and t.physical[leaf][0] != file for leaf, file in files.get(t.oid, {}).items())
    }  # fmt: skip


def note_copy(context: Context, table: TableRow, fresh: TableRow) -> None:
    """What a copy is by now, where nothing of its columns concerns a row."""
    replaced = is_elsewhere(table, fresh.copy_physical)
    if replaced and context.journal.verification.of_tables([table.id]):
        context.say(f"{table.qualified}: {REPLACED}")
    with context.fenced("settle.before_copy_commit", table):
        if replaced:
            context.journal.tables.set_copy_anew(fresh)
        else:
            context.journal.tables.set_copy(fresh)


def made_unlogged(context: Context, tables: Sequence[TableRow]) -> list[tuple[TableRow, CopyFile]]:
    """Those whose copies, or partitions of them, are UNLOGGED while the source's table is not: a crash of the target's
    server would take rows that the source's leaves. No swap takes them."""
    found, made = copy_files(context.target, tables), list[tuple[TableRow, CopyFile]]()
    for table in tables:
        of = {copy: int(oid) for oid, copy in table.plan.copies.items()}
        files = [
            (file, of.get((file.schema, file.name), table.oid)) for file in found[table.id].values() if file.unlogged
        ]
        logged = catalog.logged(context.source, [oid for _, oid in files]) if files else set()
        made += [(table, file) for file, oid in files if oid in logged]
    return made


def set_logged(conn: Session, file: CopyFile) -> str:
    return sql.SQL("ALTER TABLE {} SET LOGGED;").format(sql.Identifier(file.schema, file.name)).as_string(conn)


def unlogged(context: Context, tables: Sequence[TableRow]) -> set[int]:
    """The ids of those of which a crash of the target's server empties the copy, while no catalog shows that it has. It
    ends every session as well, so a run knows of its own comparisons that there was none."""
    files = copy_files(context.target, tables)
    return {table_id for table_id, found in files.items() if any(file.unlogged for file in found.values())}
