"""The files that a copy's rows are in: by them one sees what has become of its rows without a change of any column.

TRUNCATE leaves an empty one, VACUUM FULL and CLUSTER another with the same rows, and nobody can tell which it was."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from psycopg.types.json import Jsonb

from airflow_provider_pgddl.engine.journal.tables import TableRow
from airflow_provider_pgddl.engine.model.names import Name
from airflow_provider_pgddl.engine.server import catalog
from airflow_provider_pgddl.engine.server.connect import Session
from airflow_provider_pgddl.engine.sql import queries

_Q = queries("windows")


class CopyFile(NamedTuple):
    """What holds rows of a copy: a table, or a partition. `unlogged`: a crash of the server empties it."""

    schema: str
    name: str
    filenode: int
    unlogged: bool


def copy_files(conn: Session, tables: Sequence[TableRow]) -> dict[int, dict[str, CopyFile]]:
    """By table id, and by oid as text; of a copy that is not there none."""
    found: dict[int, dict[str, CopyFile]] = {t.id: {} for t in tables}
    if tables:
        args = [list(found), [t.plan.copy_schema for t in tables], [t.plan.copy_name for t in tables]]
        for table_id, oid, *file in conn.execute(_Q["copy_files"], args):
            found[table_id][oid] = CopyFile(*file)
    return found


def elsewhere(conn: Session, tables: Iterable[TableRow]) -> list[TableRow]:
    """Those whose copies' rows are in other files than the ones that were recorded when all was looked at."""
    followed = [t for t in tables if not t.keyless]
    found = copy_files(conn, followed)
    return [t for t in followed if is_elsewhere(t, {oid: [file.filenode] for oid, file in found[t.id].items()})]


def is_elsewhere(table: TableRow, now: Mapping[str, Sequence[Any]]) -> bool:
    """The same of one: `now` is what `Table.physical` says of its copy."""
    known = {oid: facts[0] for oid, facts in table.copy_physical.items()}
    return known != {oid: facts[0] for oid, facts in now.items()}


def note_emptied(target: Session, table: TableRow, emptied: Iterable[Name]) -> None:
    """These we have emptied as the source was: that says nothing against what was compared of the others."""
    listed = list(emptied)
    args = {"id": table.id, "schemas": [s for s, _ in listed], "names": [n for _, n in listed]}
    target.execute(_Q["note_emptied"], args)


def note_made(target: Session, table: TableRow, made: Iterable[str]) -> None:
    """Partitions of these names we have made: one that somebody else attaches may hold rows."""
    parts = catalog.oids_of(target, [(table.plan.copy_schema, name) for name in made])
    if parts:
        files = {
            oid: facts
            for part in catalog.describe(target, parts.values()).values()
            for oid, facts in part.physical().items()
        }
        target.execute(_Q["note_made"], [Jsonb(files), table.id])
