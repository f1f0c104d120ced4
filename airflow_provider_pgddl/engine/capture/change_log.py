"""The change log by triggers: which keys of a table changed since capture began, one log table a captured table.

Row triggers on every leaf (a statement on a leaf does not fire its parent's), ENABLE ALWAYS so that sessions in
replica role are seen too, and one for TRUNCATE. A log row holds the key before and after; a window deletes exactly
the log rows that its snapshot shows, so there is no position to keep and no order to rely on.

Which keys a changed row leaves is said by `pgddl.make_capture`, in the newest number of `sql/core` that defines it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from psycopg import errors as pg
from psycopg import sql

from airflow_provider_pgddl.engine.errors import NO_SUCH_RELATION, Retry, TableChanged, UsageError
from airflow_provider_pgddl.engine.failpoints import failpoint
from airflow_provider_pgddl.engine.model import tables
from airflow_provider_pgddl.engine.model.births import Birth
from airflow_provider_pgddl.engine.model.plan import is_user_type
from airflow_provider_pgddl.engine.model.tables import Leaf, Table
from airflow_provider_pgddl.engine.server import catalog
from airflow_provider_pgddl.engine.server.connect import Session
from airflow_provider_pgddl.engine.server.lock_timeout import limit_lock_wait
from airflow_provider_pgddl.engine.sql import queries

_Q = queries("capture")
SCHEMA = "pgddl"
TOGETHER = 50  # tables of one transaction: fewer cost more each, and the server needs locks for what is made
FENCE_VERSION = 1  # of the core set: the fence's function, and three tables with nothing in them without capture


class LateChanges(Exception):
    """A log that was to be dropped still holds changes."""


def trigger_names(pipeline: str) -> tuple[str, str]:
    """(row trigger, truncate trigger)"""
    return f"pgddl_row_{pipeline}", f"pgddl_truncate_{pipeline}"


def publication_name(pipeline: str) -> str:
    """Of the publication, and the slot, that fill the logs where triggers do not."""
    return f"pgddl_rows_of_{pipeline}"


def capture_names(pipeline: str) -> tuple[str, ...]:
    """The triggers, and the publication: where a leaf has lost the one or left the other, changes were missed (C9)."""
    return *trigger_names(pipeline), publication_name(pipeline)


def of_new(pipeline: str) -> str:
    """As what the new tables of a swap are captured on the target, where these replace others: no pipeline can have
    that name. A slot's logs are on the target as well, under the pipeline's own, by the oids of the source."""
    return f"{pipeline}-new"


def log_name(pipeline: str, root: int) -> str:
    return f"log_{pipeline}_{root}"


def function_name(pipeline: str, leaf: int) -> str:
    return f"capture_{pipeline}_{leaf}"


def log_table(name: str) -> sql.Identifier:
    return sql.Identifier(SCHEMA, name)


def window_no(source: Session, pipeline: str) -> int | None:
    row = source.execute(_Q["window_no"], [pipeline]).fetchone()
    return int(row[0]) if row else None


def acknowledge(source: Session, pipeline: str, number: int) -> None:
    """Notes the window whose log rows the caller's transaction forgets."""
    source.execute(_Q["set_window_no"], [number, pipeline])


def register_pipeline(source: Session, pipeline: str, journal: str) -> None:
    """Claims the pipeline's name on the source for one journal (see `journal_name`).

    A change log is taken away as it is read, so two targets that read one log would lose rows to each other.
    """
    try:
        source.execute(_Q["register_pipeline"], [pipeline, journal])
    except pg.UndefinedTable:
        raise Retry("the last pipeline of this source has just taken its capture away", todo="run it again") from None
    refuse_other_journal(source, pipeline, journal)


def refuse_other_journal(source: Session, pipeline: str, journal: str) -> None:
    if journal_of(source, pipeline) not in (None, journal):
        raise UsageError(
            f"a pipeline named {pipeline!r} captures on this source for another target already",
            todo="give this pipeline another name, or `pgddl reset` the other one with its own target first",
        )


def journal_of(source: Session, pipeline: str) -> str | None:
    """The `journal_name` for which the source captures; None where it does not know the pipeline."""
    exists = source.execute("SELECT pg_catalog.to_regclass('pgddl.captures') IS NOT NULL").fetchone()
    row = source.execute(_Q["journal_of"], [pipeline]).fetchone() if exists and exists[0] else None
    return str(row[0]) if row else None


def journal_name(target: tables.Server) -> str:
    """What tells one journal's database from every other."""
    return f"{target.system}/{target.database_oid}"


def captured_roots(source: Session, pipeline: str) -> dict[int, str]:
    """Root oid → log table of what is captured already."""
    return {root: log for root, _, log, _ in source.execute(_Q["captured"], [pipeline])}


def root_of(source: Session, pipeline: str, leaf: int) -> int | None:
    """The root as a part of which a relation is captured; None where it is not."""
    row = source.execute(_Q["captured_leaf"], [pipeline, leaf]).fetchone()
    return int(row[0]) if row else None


@dataclass(frozen=True, slots=True)
class Prepared:
    """A table that log and functions were made for, and what tells whether it still is what it was then."""

    table: Table
    log: str
    as_read: str


def prepare(source: Session, pipeline: str, oids: Iterable[int], lock_timeout: float) -> dict[int, Prepared]:
    """Makes the logs and the trigger functions of tables, TOGETHER in a transaction, without a lock that writers meet.
    Left out is a table that is gone, has no key, or is captured already as a part of another.

    Whoever attaches a partition may meet us at what says that it is captured: LockNotAvailable when `lock_timeout`
    (seconds) runs out."""
    left, found = list(oids), dict[int, Prepared]()
    while left:
        found |= _prepare(source, pipeline, left[:TOGETHER], lock_timeout)
        del left[:TOGETHER]
    return found


def _prepare(source: Session, pipeline: str, oids: Sequence[int], lock_timeout: float) -> dict[int, Prepared]:
    with source.transaction():
        source.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")  # roots and leaves of one moment
        limit_lock_wait(source, lock_timeout)
        described = {oid: t for oid, t in catalog.describe(source, oids).items() if t.key is not None}
        captured = {leaf for _, leaf, *_ in source.execute(_Q["captured"], [pipeline])}
        parts = {leaf.oid for table in described.values() if table.kind == "p" for leaf in table.leaves}
        for oid in [*described]:
            if oid in parts or not captured.isdisjoint(leaf.oid for leaf in described[oid].leaves):
                del described[oid]
        as_read = catalog.as_read(source, described)
        _create_logs(source, pipeline, described.values())
        # A leaf may have its columns at other positions than its root.
        leaves = [leaf.oid for table in described.values() for leaf in table.leaves if leaf.oid != table.oid]
        _create_functions(source, pipeline, described, described | (catalog.describe(source, leaves) if leaves else {}))
        failpoint("capture.before_log_commit", source)
    return {oid: Prepared(table, log_name(pipeline, oid), as_read[oid]) for oid, table in described.items()}


def start(source: Session, pipeline: str, prepared: Prepared, lock_timeout: float) -> Table:
    """Creates the triggers in one transaction; returns the table with them as it is under their lock.

    CREATE TRIGGER takes SHARE ROW EXCLUSIVE, which waits for every writer, so no write escapes both the log and the
    chunks (C2). `lock_timeout` (seconds) bounds how long writers can queue behind us; LockNotAvailable when it runs
    out. TableChanged where the table is no longer what the functions were made for.
    """
    failpoint("capture.before_start_lock", source)
    table = prepared.table
    with source.transaction():
        limit_lock_wait(source, lock_timeout)
        _lock(source, table)
        if catalog.as_read(source, [table.oid]).get(table.oid) != prepared.as_read:
            table = _still_the_same(source, table)
        create_triggers(source, pipeline, table)
        captured = catalog.leaves_now(source, table, capture_names(pipeline))  # with the triggers
        failpoint("capture.before_triggers_commit", source)
        return captured


def _still_the_same(source: Session, prepared: Table) -> Table:
    """As it is now, where what has changed of it is nothing that functions were made for (another index, a right)."""
    now = catalog.describe(source, [prepared.oid]).get(prepared.oid)
    if now is None or now.structure() != prepared.structure() or prepared.kind == "p":
        raise _changed(prepared)
    if (now.key, now.columns) != (prepared.key, prepared.columns):
        raise _changed(prepared)
    return now


def create_triggers(source: Session, pipeline: str, now: Table) -> None:
    """The triggers of a table that `prepare` has made log and functions for, in the caller's transaction, which keeps
    writers out."""
    for leaf in now.leaves:
        source.execute(sql.SQL(";\n").join(trigger_statements(pipeline, leaf)))


def lock_against_writers(table: Table) -> sql.Composed:
    """Of a partitioned table with its partitions; of any other without what inherits from it."""
    only = sql.SQL("" if table.kind == "p" else "ONLY ")
    return sql.SQL("LOCK TABLE {}{} IN SHARE ROW EXCLUSIVE MODE").format(only, sql.Identifier(table.schema, table.name))


def keep_writers_out(source: Session, prepared: Table, lock_timeout: float) -> Table:
    """SHARE ROW EXCLUSIVE on the table for the caller's transaction, which waits for every writer; returns the table
    as it is under the lock. LockNotAvailable when `lock_timeout` (seconds) runs out, TableChanged where the table is no
    longer what was prepared."""
    limit_lock_wait(source, lock_timeout)
    _lock(source, prepared)
    now = catalog.describe(source, [prepared.oid]).get(prepared.oid)
    if now is None or now.structure() != prepared.structure():
        raise _changed(prepared)
    return now


def _lock(source: Session, table: Table) -> None:
    try:
        source.execute(lock_against_writers(table))
    except NO_SUCH_RELATION:
        raise TableChanged("was dropped or renamed just now", table=table.qualified, todo="run it again") from None


def _changed(table: Table) -> TableChanged:
    return TableChanged("was changed just now", table=table.qualified, todo="run setup again, which looks anew")


def key_columns(table: Table, user_types: str | None = None) -> sql.Composed:
    """The definitions of a log's key columns: old_1, old_2, …, new_1, new_2, …; `user_types` in place of those that
    are not built in."""
    assert table.key is not None
    types = {c.name: user_types if user_types and is_user_type(c.base_type) else c.base_type for c in table.columns}
    return sql.SQL(", ").join(
        sql.SQL("{} {}").format(sql.Identifier(f"{prefix}{i}"), sql.SQL(types[k]))
        for prefix in ("old_", "new_")
        for i, k in enumerate(table.key.columns, 1)
    )


def _create_logs(source: Session, pipeline: str, found: Collection[Table]) -> None:
    """Anew where one is left that nothing writes to: that of a table that has been a partition of another meanwhile."""
    names = [log_name(pipeline, table.oid) for table in found]
    left = {name for (name,) in source.execute(_Q["unused_logs"], {"pipeline": pipeline, "logs": names})}
    parts = [sql.SQL("DROP TABLE {}").format(log_table(name)) for name in sorted(left)]
    for table, name in zip(found, names, strict=True):
        parts += [
            sql.SQL(_Q["log_table"]).format(log=log_table(name), keys=key_columns(table)),
            sql.SQL(_Q["log_replica_identity"]).format(log=log_table(name)),
        ]
    if parts:
        source.execute(sql.SQL(";\n").join(parts))


def _create_functions(
    source: Session, pipeline: str, found: Mapping[int, Table], as_leaves: Mapping[int, Table]
) -> None:
    rows = []
    for oid, table in found.items():
        assert table.key is not None
        for leaf in table.leaves:
            by_name = {c.name: c for c in as_leaves[leaf.oid].columns}
            keys = [by_name[k] for k in table.key.columns]
            rows.append((pipeline, oid, leaf.oid, log_name(pipeline, oid), function_name(pipeline, leaf.oid),
                         [k.attnum for k in keys], [k.name for k in keys], [k.type_oid for k in keys]))  # fmt: skip
    with source.cursor() as cursor:
        cursor.executemany(_Q["register"], rows)
    source.execute(_Q["make_functions"], [pipeline, [leaf for _, _, leaf, *_ in rows]])


def trigger_statements(pipeline: str, leaf: Leaf) -> Iterator[sql.Composed]:
    """What creates a leaf's triggers."""
    function = sql.Identifier(SCHEMA, function_name(pipeline, leaf.oid))
    for kind, trigger in zip(("row_trigger", "truncate_trigger"), trigger_names(pipeline), strict=True):
        parts = {"trigger": sql.Identifier(trigger), "relation": sql.Identifier(leaf.schema, leaf.name)}
        yield sql.SQL(_Q[kind]).format(function=function, **parts)
        yield sql.SQL(_Q["enable_always"]).format(**parts)


def lock_root(source: Session, root: int, mode: str) -> None:
    """Locks a table for the caller's transaction, with its partitions; nothing where it is gone. Bound the wait."""
    row = source.execute(_Q["lockable"], [root]).fetchone()
    if row is not None:
        schema, name, partitioned = row
        only = sql.SQL("" if partitioned else "ONLY ")
        source.execute(sql.SQL("LOCK TABLE {}{} IN {} MODE").format(only, sql.Identifier(schema, name), sql.SQL(mode)))


def stop(source: Session, pipeline: str, root: int, *, only_if_empty: bool = False) -> None:
    """Takes the capture of one table away, in the caller's transaction. DROP TRIGGER is ACCESS EXCLUSIVE: bound the
    wait."""
    captured = source.execute(_Q["captured_of_root"], [pipeline, root]).fetchall()
    triggers = _triggers_of(source, [function for *_, function in captured])
    for leaf, _, function in captured:
        _let_go(source, pipeline, leaf, function, triggers.get(function, ()))
    for log in {log for _, log, function in captured if function}:
        # With the triggers gone under their lock, nothing can be written to the log any more.
        if only_if_empty and source.execute(sql.SQL("SELECT 1 FROM {} LIMIT 1").format(log_table(log))).fetchone():
            raise LateChanges(log)
        source.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(log_table(log)))
    source.execute(_Q["forget"], [pipeline, root])


def since_birth(source: Session, pipeline: str, leaves: Collection[int]) -> dict[int, set[int]]:
    """Those of the leaves whose capture nobody has touched since it began, with what lies between each and its root."""
    args = {"leaves": list(leaves), "pipeline": pipeline, "triggers": list(trigger_names(pipeline)),
            "publication": publication_name(pipeline)}  # fmt: skip
    found: dict[int, set[int]] = {}
    for leaf, between in source.execute(_Q["since_birth"], args):
        found.setdefault(leaf, set()).update([] if between is None else [between])
    return found


def release(source: Session, pipeline: str, leaf: int) -> None:
    """Takes the capture of one leaf away that its root has no longer (detached, or dropped), in the caller's
    transaction. Bound the wait for its lock. One that has come to another table since is captured as a part of that."""
    row = source.execute(_Q["captured_leaf"], [pipeline, leaf]).fetchone()
    if row is not None and source.execute(_Q["is_part_of_captured"], [pipeline, leaf]).fetchone() != (True,):
        _let_go(source, pipeline, leaf, row[1], _triggers_of(source, [row[1]]).get(row[1], ()))
        source.execute(_Q["forget_leaf"], [pipeline, leaf])


def _triggers_of(source: Session, functions: Sequence[str]) -> dict[str, list[tuple[str, str, str]]]:
    """(schema, table, trigger) by what they call. All of a table's at once, and before its first DROP: no index has
    them so, and with tens of thousands of triggers a scan for each partition is long for those who wait for us."""
    found: dict[str, list[tuple[str, str, str]]] = {}
    named = [function for function in functions if function]
    rows = source.execute(_Q["triggers_of"], [named]) if named else ()
    for function, schema, table, trigger in rows:
        found.setdefault(function, []).append((schema, table, trigger))
    return found


def _let_go(source: Session, pipeline: str, leaf: int, function: str, triggers: Iterable[tuple[str, str, str]]) -> None:
    if not function:  # captured by a slot
        publication = publication_name(pipeline)
        name = source.execute(_Q["relation_name"], [leaf]).fetchone()
        row = source.execute(_Q["published"], [publication, leaf]).fetchone()
        if name is not None and row and row[0]:
            drop = sql.SQL("ALTER PUBLICATION {} DROP TABLE ONLY {}")
            source.execute(drop.format(sql.Identifier(publication), sql.Identifier(*name)))
        return
    for schema, table, trigger in triggers:
        drop = sql.SQL("DROP TRIGGER IF EXISTS {} ON {}")
        source.execute(drop.format(sql.Identifier(trigger), sql.Identifier(schema, table)))
    source.execute(sql.SQL("DROP FUNCTION IF EXISTS {}()").format(sql.Identifier(SCHEMA, function)))


def forget_pipeline(source: Session, pipeline: str) -> tuple[int, bool]:
    """Takes the pipeline off the source's list; returns how many others capture here, and whether fences stand."""
    for (log,) in source.execute(_Q["logs_left"], [f"^log_{pipeline}_[0-9]+$"]).fetchall():
        source.execute(sql.SQL("DROP TABLE {}").format(log_table(log)))  # of a root that has lost all its partitions
    source.execute(_Q["forget_pipeline"], [pipeline])
    left = source.execute(_Q["captures_left"]).fetchone()
    fences = source.execute(_Q["fences_left"]).fetchone()
    return int(left[0]) if left else 0, bool(fences and fences[0])


def note_birth(source: Session, pipeline: str, run: int) -> None:
    """In the transaction of the cut-over, behind all that it does."""
    source.execute(_Q["note_birth"], [run, pipeline])


def birth(source: Session, pipeline: str) -> Birth | None:
    """The last one that was noted; None where there is none, or nothing of ours."""
    known = source.execute("SELECT pg_catalog.to_regclass('pgddl.captures') IS NOT NULL").fetchone()
    row = source.execute(_Q["birth"], [pipeline]).fetchone() if known and known[0] else None
    return Birth(*row) if row else None
