"""The swap in place: lock, drain, move, give the new table all that the old one had, record, commit. One session, one
transaction."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from psycopg import sql

from airflow_provider_pgddl.engine.apply import dependents
from airflow_provider_pgddl.engine.apply.dump_events import run_event
from airflow_provider_pgddl.engine.capture import direct_function
from airflow_provider_pgddl.engine.ddl.relocate import old_schema
from airflow_provider_pgddl.engine.ddl.rewrite_actions import dropped_columns, retyped_columns
from airflow_provider_pgddl.engine.errors import PreflightRefused, StageFailed
from airflow_provider_pgddl.engine.failpoints import failpoint
from airflow_provider_pgddl.engine.following import partition_by
from airflow_provider_pgddl.engine.following.catch_up import catch_up
from airflow_provider_pgddl.engine.following.copies_replaced import any_replaced_since_look
from airflow_provider_pgddl.engine.following.ddl import captures_ddl
from airflow_provider_pgddl.engine.following.row_comparison import sides_of
from airflow_provider_pgddl.engine.job.context import Context
from airflow_provider_pgddl.engine.journal import lease
from airflow_provider_pgddl.engine.journal.dump_events import EventRow
from airflow_provider_pgddl.engine.journal.pipelines import Journal
from airflow_provider_pgddl.engine.journal.tables import TableRow
from airflow_provider_pgddl.engine.model.names import Name
from airflow_provider_pgddl.engine.pipeline.model import Pipeline
from airflow_provider_pgddl.engine.preflight import what_a_swap_breaks, what_new_types_break
from airflow_provider_pgddl.engine.preflight.findings import Finding, refuse
from airflow_provider_pgddl.engine.rows.change_log_reading import Logs
from airflow_provider_pgddl.engine.rows.keyless_tables import analyze, copy_all
from airflow_provider_pgddl.engine.rows.partition_cells import NoPartition
from airflow_provider_pgddl.engine.rows.pending_keys import count_pending
from airflow_provider_pgddl.engine.rows.windows import stopped_by_drift
from airflow_provider_pgddl.engine.rows.windows_in_place import LostTrack, drain, prepare_drain
from airflow_provider_pgddl.engine.server import catalog
from airflow_provider_pgddl.engine.server.connect import Session, plans_kept
from airflow_provider_pgddl.engine.server.lock_timeout import limit_lock_wait
from airflow_provider_pgddl.engine.server.strong_locks import lock_all, lock_unseen, with_tries, writers_wait
from airflow_provider_pgddl.engine.sql import queries
from airflow_provider_pgddl.engine.swapping.dry_run import rehearsed
from airflow_provider_pgddl.engine.swapping.readiness import NotYet, refuse_unready
from airflow_provider_pgddl.engine.swapping.schema_guard import ChangedJustNow, SchemaGuard
from airflow_provider_pgddl.engine.swapping.signals import BlockerWatch, blockers_signalled
from airflow_provider_pgddl.engine.swapping.way_back import WayBack

_Q = queries("swap")


@dataclass(frozen=True, slots=True)
class ForeignKey:
    """A foreign key from or to a table that is swapped, with what makes it again."""

    oid: int
    name: str
    table_oid: int
    referenced_oid: int
    schema: str
    table: str
    referenced_schema: str
    referenced: str
    columns: list[str]
    definition: str
    validated: bool
    comment: str | None


# (schema, name, column, type) of a serial's sequence.
Serial = tuple[str, str, str, str]


@dataclass(frozen=True, slots=True)
class _Parts:
    """What of a table moves by statements of its own: the sequences of its columns, and extended statistics."""

    sequences: list[tuple[str, str, str, str, str, Any]]
    statistics: list[Name]
    copy_oid: int | None
    copy_statistics: list[Name]


@dataclass(frozen=True, slots=True)
class _Found:
    """What stands on the tables beside them, by which the swap is made. Under the locks it has to be the same."""

    keys: list[ForeignKey]
    carried: dependents.Carried
    parts: dict[int, _Parts]

    @classmethod
    def read(cls, context: Context, conn: Session, tables: Sequence[TableRow]) -> _Found:
        keys = foreign_keys(conn, [t.oid for t in tables])
        return cls(keys, read_dependents(context.pipeline, conn, tables), {t.id: _parts(conn, t) for t in tables})


def _what_new_types_break(context: Context, tables: Sequence[TableRow]) -> list[Finding]:
    """Told by the server under locks on what it prints, which an ALTER TABLE in the queue may keep from us."""
    with context.source.transaction():
        limit_lock_wait(context.source, context.pipeline.swap.lock_timeout)
        return what_new_types_break(context.pipeline, context.source, [(t.schema, t.name) for t in tables])


def run(context: Context, tables: Sequence[TableRow]) -> dict[str, Any]:
    """Tries until the locks are there and little is left to drain; returns the figures of the swap."""
    look = partial(_what_new_types_break, context, tables)
    refuse(with_tries(context.pipeline.swap, "looking at the new types", look), under_way=True)
    create_old_schemas(context, tables)
    partition_by.prepare(context, tables)
    conn = context.session("source", "swap")
    guard, way_back, watch = SchemaGuard(context), WayBack(context), blockers_signalled(context)

    def attempt() -> dict[str, Any]:
        with guard.trying():
            return try_once()

    def try_once() -> dict[str, Any]:
        guard.refuse_changed()
        failpoint("swap.after_schema_look")
        catch_up(context)
        refuse_unready(context)
        way_back.prepare(context.tables())
        return _exchange(context, conn, context.tables(), guard, way_back, watch)

    figures = with_tries(context.pipeline.swap, "swap", attempt, again=(NotYet, ChangedJustNow))
    context.say(f"{len(tables)} table(s) swapped; locked for {figures['locked_ms']} ms")
    return figures


def create_old_schemas(context: Context, tables: Sequence[TableRow]) -> None:
    for schema in sorted({old_schema(t.schema) for t in tables}):
        with context.fenced("swap.before_old_schemas_commit"):
            context.target.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(schema)))
            context.target.execute(
                sql.SQL("COMMENT ON SCHEMA {} IS {}").format(
                    sql.Identifier(schema), sql.Literal(f"pgddl: what pipeline {context.name} replaced")
                )
            )


def _exchange(
    context: Context,
    conn: Session,
    tables: Sequence[TableRow],
    guard: SchemaGuard,
    way_back: WayBack,
    watch: BlockerWatch,
) -> dict[str, Any]:
    journal = Journal(conn, context.name)
    events = journal.dump_events.to_apply(context.journal.run, ["finish"])
    found = _Found.read(context, conn, tables)
    keys, carried = found.keys, found.carried
    rewrites = context.pipeline.rewrites
    dropped = {t.oid: dropped_columns(rewrites[t.schema, t.name].alter) for t in tables}
    lost = [k for k in keys if set(k.columns).intersection(dropped.get(k.table_oid, ()))]
    broken = what_a_swap_breaks(context.pipeline, conn, [(t.schema, t.name) for t in tables])
    without_key = [t for t in tables if t.keyless]
    sides = sides_of(conn, context.target, without_key, in_place=True)
    keyless = [(t, sides[t.id]) for t in without_key]
    wanted = sorted({*involved(tables, keys), *carried.tables})
    # Writers hold the table when they come to a copy that they write to themselves.
    written = direct_function.modes(conn, context.name)
    unseen = [(t.plan.copy_schema, t.plan.copy_name) for t in tables if t.oid not in written]

    def refuse_changed() -> None:
        with plans_kept(conn):
            _refuse_changed(context, conn, tables, broken)
            if _Found.read(context, conn, tables) != found:
                raise NotYet("what stands on the tables changed just now")
            if not guard.unchanged(conn) or not way_back.is_ready(conn, tables):
                raise NotYet("the schema changed just now")
            wait_out_old_snapshots(conn)

    # Once before the locks: nobody waits for what cannot be, and the session knows by then how to find all that out.
    with conn.transaction():
        prepare_drain(conn, tables)  # first: a session's first temporary table makes a schema, which forgets all plans
        refuse_changed()
        lease.check(conn, context.fence())
    with writers_wait(later=True) as from_here, rehearsed(context, conn, conn.transaction()):
        lock_unseen(conn, unseen, context.pipeline.swap.lock_timeout)
        partition_by.move_ahead(conn, [t for t in tables if t.oid not in written])
        from_here()
        with watch(conn):
            failpoint("swap.before_lock", conn)
            carried.lock_views(conn)
            lock_all(conn, wanted, "ACCESS EXCLUSIVE", context.pipeline.swap.lock_timeout)
        locked = time.monotonic()
        failpoint("swap.after_lock", conn)
        refuse_changed()
        drained = drain_all(context, conn, [t for t in tables if not t.keyless])
        copied = copy_all(conn, conn, keyless) if keyless else {}
        for root in direct_function.modes(conn, context.name):
            direct_function.write_to_log(conn, context.name, root)  # what is replaced has no copy to write to any more
        for key in keys:
            conn.execute(drop_statement(key))
        carried.take_away(conn)
        serials = [(table, _move(conn, table, found.parts[table.id])) for table in tables]
        for key in keys:
            if key not in lost:
                add_foreign_key(context, journal, key)
        carried.put_back(conn, replaced_names(tables), context.pipeline.trusted_roles)
        _finish(context, journal, conn, tables, events)  # after the foreign keys: it may comment on one
        partition_by.own(conn, tables)
        for table, sequences in serials:
            own_sequences(conn, table, sequences)  # after the owner: they must have the same
        for name in sorted({parent for _, parent in carried.children} | {(t.schema, t.name) for t, _ in keyless}):
            # A copy is analyzed alone: what a parent and its children have in common is counted once they are one, and
            # what was copied just now only when nobody waits for it.
            journal.follow_ups.add(context.journal.run, analyze(conn, sql.Identifier(*name)))
        with plans_kept(conn):
            refuse_left_behind(conn, [t.oid for t in tables])
        way_back.start(conn, tables, {t.oid: [asdict(k) for k in lost if k.table_oid == t.oid] for t in tables})
        journal.tables.set_state("swapped", [t.id for t in tables])
        journal.set_cut_over()
        lease.check(conn, context.fence())
        failpoint("swap.before_commit", conn)
    failpoint("swap.after_commit", conn)
    return {"locked_ms": round((time.monotonic() - locked) * 1000), "drained": drained, "foreign_keys": len(keys),
            **copied}  # fmt: skip


def read_dependents(
    pipeline: Pipeline, conn: Session, tables: Sequence[TableRow], oids: Sequence[int] | None = None
) -> dependents.Carried:
    """What a swap carries over beside the tables; refused where it cannot. `oids`: those that bear the tables' names
    now, in their order, where these are not the ones that were rewritten."""
    by_oid = dict(zip(oids or [t.oid for t in tables], tables, strict=True))
    changed = {oid: retyped_columns(pipeline.rewrites[t.schema, t.name].alter) for oid, t in by_oid.items()}
    asked = pipeline.swap.recreate_materialized_views
    found = dependents.read(conn, list(by_oid), changed, materialized=asked)
    refused = [Finding("error", r.code, "source", by_oid[r.table].qualified, r.what, r.fix) for r in found.refused]
    refuse(refused, under_way=True)
    return found


def replaced_names(tables: Sequence[TableRow]) -> dict[tuple[str, str], tuple[str, str]]:
    """What each table that was replaced is called behind the move."""
    return {(t.schema, t.name): (old_schema(t.schema), t.name) for t in tables}


def refuse_left_behind(conn: Session, oids: Sequence[int], but_not: Collection[int] = ()) -> None:
    """Nothing was seen that is not carried, so this is a mistake of ours: better found before the commit."""
    left = dependents.still_referring(conn, oids, but_not)
    if left:
        raise StageFailed(
            f"after the swap {left[0]} would still refer to the table that was replaced; nothing was changed",
            todo="drop it, run this again, and create it again",
        )


def foreign_keys(conn: Session, oids: Sequence[int]) -> list[ForeignKey]:
    """Those from and to these tables."""
    return [ForeignKey(*row) for row in conn.execute(_Q["foreign_keys"], {"oids": list(oids)})]


def involved(tables: Sequence[TableRow], keys: Sequence[ForeignKey]) -> list[Name]:
    """What the swap locks: the tables, and those at the other end of a foreign key (C15)."""
    return sorted(
        {(t.schema, t.name) for t in tables}
        | {(k.schema, k.table) for k in keys}
        | {(k.referenced_schema, k.referenced) for k in keys}
    )


def _refuse_changed(
    context: Context, conn: Session, tables: Sequence[TableRow], broken: Callable[[], list[Finding]]
) -> None:
    """Under the lock nothing can change any more; what changed just before is seen here."""
    refuse(broken(), under_way=True)
    _, stopped = stopped_by_drift(conn, Journal(conn, context.name), tables)
    if any_replaced_since_look(context, conn, tables):
        raise NotYet("a copy was emptied or written anew just now")
    if stopped:
        if captures_ddl(context):
            raise NotYet("a table changed just now")  # the next try follows it, or finds it blocked
        table = next(t for t in tables if t.id in stopped)
        raise PreflightRefused(
            "; ".join(stopped[table.id]), table=table.qualified, todo="run stage replay to record it"
        )


def wait_out_old_snapshots(conn: Session) -> None:
    """A REPEATABLE READ transaction that is older than the swap would find the new table without the rows written since
    its snapshot. It cannot be told from a statement with a snapshot inside a longer transaction, which ends soon."""
    row = conn.execute(_Q["old_snapshots"]).fetchone()
    if row and row[0]:
        raise NotYet(f"a transaction with an older snapshot is open (process {row[0]})")


def drain_all(context: Context, conn: Session, tables: Sequence[TableRow]) -> int:
    """The last window, with a fresh snapshot under the lock, in the same session (C16)."""
    limit = context.pipeline.replay.window_rows
    drained = 0
    if Logs(conn).at_most(tables, context.log_rows).ends:
        raise NotYet("too much was written just now")
    for table in tables:
        try:
            keys, _ = drain(conn, table, limit - drained)
        except LostTrack as lost:
            raise StageFailed(str(lost), table=table.qualified) from None
        except NoPartition as none:  # the next try's window makes it, and nobody waits for that
            raise NotYet(str(none)) from None
        drained += keys
        if drained >= limit:
            raise NotYet("too much was written just now")
    if count_pending(conn, tables):
        raise NotYet("too much was written just now")
    return drained


def drop_statement(key: ForeignKey) -> sql.Composed:
    """Left on the old table it would break "delete the order, then its customer" (C15)."""
    table = sql.Identifier(key.schema, key.table)
    return sql.SQL("ALTER TABLE {} DROP CONSTRAINT {}").format(table, sql.Identifier(key.name))


def add_statement(key: ForeignKey) -> sql.Composed:
    """NOT VALID, which takes no time."""
    not_valid = "" if key.definition.endswith(" NOT VALID") else " NOT VALID"
    table, definition = sql.Identifier(key.schema, key.table), sql.SQL(key.definition + not_valid)
    return sql.SQL("ALTER TABLE {} ADD CONSTRAINT {} {}").format(table, sql.Identifier(key.name), definition)


def _parts(conn: Session, table: TableRow) -> _Parts:
    copy_oid = catalog.oid_of(conn, table.plan.copy_schema, table.plan.copy_name)
    return _Parts(
        conn.execute(_Q["owned_sequences"], [table.oid]).fetchall(),
        conn.execute(_Q["statistics_of"], [table.oid]).fetchall(),
        copy_oid,
        conn.execute(_Q["statistics_of"], [copy_oid]).fetchall(),
    )


def _move(conn: Session, table: TableRow, parts: _Parts) -> list[Serial]:
    """Old away, copy in. Indexes, constraints, types and owned sequences go along under their names (C21).

    Returns the sequences of serials, which stay where they are and belong to nobody for now.
    """
    live, copy_name = sql.Identifier(table.schema, table.name), table.plan.copy
    home, old = sql.Identifier(table.schema), sql.Identifier(old_schema(table.schema))
    copy_schema = table.plan.copy_schema
    # That of a column which the copy does not have goes away with the old table.
    serials = [row for row in parts.sequences if row[0] == "a" and row[3] in table.plan.columns.names]
    for _, schema, name, _, _, _ in serials:
        conn.execute(sql.SQL("ALTER SEQUENCE {} OWNED BY NONE").format(sql.Identifier(schema, name)))
    copied = {name for _, name in parts.copy_statistics}
    for schema, name in parts.statistics:
        if schema != table.schema and name not in copied:
            continue  # nothing takes its name there, and a revert finds it where it was
        conn.execute(sql.SQL("ALTER STATISTICS {} SET SCHEMA {}").format(sql.Identifier(schema, name), old))
    conn.execute(sql.SQL("ALTER TABLE {} SET SCHEMA {}").format(live, old))
    conn.execute(sql.SQL("ALTER TABLE {} SET SCHEMA {}").format(copy_name, home))
    partition_by.move(conn, table)
    homes = {name: sql.Identifier(schema) for schema, name in parts.statistics}
    for schema, name in parts.copy_statistics:
        if schema == copy_schema:
            conn.execute(
                sql.SQL("ALTER STATISTICS {} SET SCHEMA {}").format(sql.Identifier(schema, name), homes.get(name, home))
            )
    for kind, _, name, column, _, _ in parts.sequences:
        if kind == "i":  # moved with the old table, and locked by that: nobody can draw from it any more
            carry_identity(conn, parts.copy_oid, (old_schema(table.schema), name), column)
    return [(schema, name, column, type_) for _, schema, name, column, type_, _ in serials]


def own_sequences(
    conn: Session, table: TableRow, sequences: Sequence[Serial], types: Mapping[str, str] | None = None
) -> None:
    """A serial's sequence goes on under the table that has the name now: as wide as its column where that has another
    type than in the table that is replaced; with `types`, by the sequence's name, as these say."""
    if not sequences:
        return
    oid = catalog.oid_of(conn, table.schema, table.name)
    described = catalog.describe(conn, [oid, table.oid] if oid else [])
    types_of = {of: {c.name: c.type for c in one.columns} for of, one in described.items()}
    now, before = types_of.get(oid or 0, {}), types_of.get(table.oid, {})
    for schema, name, column, type_ in sequences:
        if column in now:
            sequence = sql.Identifier(schema, name)
            conn.execute(sql.SQL("ALTER SEQUENCE {} OWNED BY {}").format(
                sequence, sql.Identifier(table.schema, table.name, column)))  # fmt: skip
            wanted = now[column] if now[column] != before.get(column) else type_
            if types is not None:
                wanted = types.get(name, type_)
            if wanted in ("smallint", "integer", "bigint") and wanted != type_:
                conn.execute(sql.SQL("ALTER SEQUENCE {} AS {}").format(sequence, sql.SQL(wanted)))


def carry_identity(conn: Session, copy_oid: int | None, live: tuple[str, str], column: str) -> None:
    """The copy's own identity sequence goes on where the live one stands, and a little further."""
    row = conn.execute(_Q["identity_copy"], [copy_oid, column]).fetchone()
    if row is not None:
        parts = {"copy": sql.Literal(sql.Identifier(*row).as_string(conn)), "live": sql.Identifier(*live)}
        conn.execute(sql.SQL(_Q["carry_identity"]).format(**parts))


def revoke_defaults(conn: Session, table: TableRow) -> None:
    """What ALTER DEFAULT PRIVILEGES gave the copy when it was made, so that only the old table's grants come back."""
    for relation, role in conn.execute(_Q["granted_by_default"], {"schema": table.schema, "name": table.name}):
        grantee = sql.SQL("PUBLIC") if role is None else sql.Identifier(role)
        conn.execute(sql.SQL("REVOKE ALL ON {} FROM {}").format(sql.SQL(relation), grantee))


def _finish(
    context: Context, journal: Journal, conn: Session, tables: Sequence[TableRow], events: Sequence[EventRow]
) -> None:
    """Owner, grants, policies, triggers, comments: with their original text, which now means the new table (C21)."""
    ids = {t.id for t in tables}
    for table in tables:
        revoke_defaults(conn, table)
    for event in events:
        if event.table_id in ids:
            run_event(conn, event, context.pipeline.trusted_roles)
            journal.dump_events.set_status(event.id, "applied")


def add_foreign_key(context: Context, journal: Journal, key: ForeignKey) -> None:
    """NOT VALID, which reads no row; what was validated is so again once the lock is gone."""
    conn = journal.conn
    if statements := partition_by.key_of_partitions(context, conn, (key.schema, key.table), key.name, key.definition):
        for statement in statements:
            journal.follow_ups.add(context.journal.run, statement)
        if key.comment:
            journal.follow_ups.add(context.journal.run, _comment(key).as_string(conn))
        return
    conn.execute(add_statement(key))
    if key.comment:
        conn.execute(_comment(key))
    if key.validated:
        journal.follow_ups.add(context.journal.run, validate_statement(conn, key.schema, key.table, key.name))


def _comment(key: ForeignKey) -> sql.Composed:
    return sql.SQL("COMMENT ON CONSTRAINT {} ON {} IS {}").format(
        sql.Identifier(key.name), sql.Identifier(key.schema, key.table), sql.Literal(key.comment)
    )


def validate_statement(conn: Session, schema: str, table: str, constraint: str) -> str:
    """The statement that validates a constraint later."""
    statement = sql.SQL("ALTER TABLE {} VALIDATE CONSTRAINT {}")
    return statement.format(sql.Identifier(schema, table), sql.Identifier(constraint)).as_string(conn)
