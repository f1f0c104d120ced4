"""revert: the way back from a swap in place. The old table catches up by the change log that the swap has begun on the
new one, and takes its place again in one short transaction; the new one is the copy again, and the run goes on."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from psycopg import sql

from airflow_provider_pgddl.engine.apply.dependents import Carried
from airflow_provider_pgddl.engine.capture import change_log
from airflow_provider_pgddl.engine.ddl.relocate import copy_schema, old_schema
from airflow_provider_pgddl.engine.errors import PreflightRefused, StageFailed, UsageError, about_whole_pipeline
from airflow_provider_pgddl.engine.failpoints import failpoint
from airflow_provider_pgddl.engine.following.catch_up import no_shorter
from airflow_provider_pgddl.engine.following.sequences import positions
from airflow_provider_pgddl.engine.following.table_capture import refuse_late_changes
from airflow_provider_pgddl.engine.following.unseen_writes import refuse_unseen_writes, unseen_writes
from airflow_provider_pgddl.engine.following.window_lines import WindowsLeft
from airflow_provider_pgddl.engine.job.context import Context, insistently
from airflow_provider_pgddl.engine.job.result import StageResult
from airflow_provider_pgddl.engine.journal import lease
from airflow_provider_pgddl.engine.journal.ddl import DdlJournal
from airflow_provider_pgddl.engine.journal.pipelines import Journal
from airflow_provider_pgddl.engine.journal.tables import TableRow
from airflow_provider_pgddl.engine.journal.ways_back import Reverse
from airflow_provider_pgddl.engine.preflight import what_a_swap_breaks
from airflow_provider_pgddl.engine.preflight.findings import Finding, refuse
from airflow_provider_pgddl.engine.rows import copy_only_columns
from airflow_provider_pgddl.engine.rows.change_log_reading import Logs
from airflow_provider_pgddl.engine.rows.pending_keys import create_pending, forget_keys
from airflow_provider_pgddl.engine.rows.transfer import REFUSALS
from airflow_provider_pgddl.engine.rows.windows import Window, stopped_by_drift, window
from airflow_provider_pgddl.engine.server import catalog
from airflow_provider_pgddl.engine.server.connect import Session
from airflow_provider_pgddl.engine.server.giving_way import Effort
from airflow_provider_pgddl.engine.server.strong_locks import lock_all, lock_unseen, with_tries, writers_wait
from airflow_provider_pgddl.engine.sql import queries
from airflow_provider_pgddl.engine.swapping import replaced_back
from airflow_provider_pgddl.engine.swapping.fence import lower_own_fences
from airflow_provider_pgddl.engine.swapping.follow_ups import follow_up
from airflow_provider_pgddl.engine.swapping.in_place import (
    ForeignKey,
    Serial,
    add_foreign_key,
    carry_identity,
    drain_all,
    drop_statement,
    foreign_keys,
    involved,
    own_sequences,
    read_dependents,
    refuse_left_behind,
    wait_out_old_snapshots,
)
from airflow_provider_pgddl.engine.swapping.readiness import NotYet
from airflow_provider_pgddl.engine.swapping.refused_rows import refusal_of_rows
from airflow_provider_pgddl.engine.swapping.signals import BlockerWatch, blockers_signalled
from airflow_provider_pgddl.engine.swapping.way_back import Back, are_copies_again, refuse_changed_since, why_not

_Q = queries("way_back")
_LARGEST = {"smallint": 2**15 - 1, "integer": 2**31 - 1, "bigint": 2**63 - 1}


def run(context: Context) -> StageResult:
    if context.job.tables is not None:
        raise about_whole_pipeline("revert")
    if not context.beside:
        raise UsageError(
            "revert takes back a swap in place; a cut-over to another cluster has no way back",
            todo="`pgddl reset` this one, which opens the old cluster, and move the rows back by a pipeline of its own",
        )
    row = context.row()
    if row.finished_at is not None:
        raise UsageError("the pipeline is finished: cleanup has dropped the old tables")
    if row.cut_over_at is None:
        if row.reverted_at is None:
            raise UsageError("nothing has been swapped", todo="run stage swap first")
        if context.pipeline.replaces:
            lower_own_fences(context, context.source, context.target, context.tables())
        followed = follow_up(context)
        state = "done" if followed.done else "nothing_to_do"
        return followed.noted(context.result(state, validated=followed.done))
    if context.pipeline.replaces:
        figures = replaced_back.run(context)
        lower_own_fences(context, context.source, context.target, context.tables())
        followed = follow_up(context)
        states = {t.qualified: {"state": t.state} for t in context.tables()}
        return followed.noted(context.result("done", states, validated=followed.done, **figures))
    backs = _ways_back(context)
    refuse_changed_since(context.source, backs)
    _dependents(context, context.source, backs)
    _refuse_sequences_beyond(context.source, backs)
    refuse_late_changes(context.source, context.logs, context.name, [t for t, _ in backs], in_place=True)
    backs = _made_ready(context, backs)
    windows = _catch_up(context, backs)
    figures = _go_back(context, backs)
    # A value that only the old table knows may refer to a row that was deleted since: its key stays NOT VALID.
    followed = follow_up(context)
    return followed.noted(context.result(
        "done", {t.qualified: {"state": t.state} for t in context.tables()}, validated=followed.done,
        windows=len(windows), keys=sum(w.keys for w in windows), rows=sum(w.rows for w in windows), **figures,
    ))  # fmt: skip


# --- what keeps it from happening -------------------------------------------------------------------------------------


def _ways_back(context: Context) -> list[Back]:
    """All tables or none."""
    if not context.pipeline.swap.keep_old:
        raise UsageError("swap.keep_old is false: nothing is kept to go back to")
    ways = {r.table_id: r for r in context.journal.ways_back.of(context.journal.run)}
    captured = change_log.captured_roots(context.source, context.name)
    for table in context.tables():
        if table.id in ways and ways[table.id].row.oid in captured:
            continue
        oid = catalog.oid_of(context.source, table.schema, table.name)
        now = catalog.describe(context.source, [oid] if oid else [])
        why = next((why_not(table, new) for new in now.values()), None)
        raise PreflightRefused(
            why or "what was written since the swap has not been logged: the swap was made by an older version, or "
            "cleanup has begun", table=table.qualified, todo="run stage cleanup, which ends the pipeline",
        )  # fmt: skip
    return [(t, ways[t.id]) for t in context.tables()]


def _dependents(context: Context, conn: Session, backs: Sequence[Back]) -> Carried:
    """What refers to the new tables by their oids, and goes back with the names."""
    return read_dependents(context.pipeline, conn, [t for t, _ in backs], [way.row.oid for _, way in backs])


def _refuse_sequences_beyond(conn: Session, backs: Sequence[Back]) -> None:
    """A sequence that has left what the old column can hold would hand out values that no row can have."""
    for table, way in backs:
        types = {c: facts_["type"] for c, facts_ in table.version["columns"].items()}
        for _, schema, name, column, _, now in _owned_sequences(conn, way.row.oid):
            if types.get(column) == now:
                continue  # the column is what it was, and so is what it makes of the sequence
            largest = _LARGEST.get(types.get(column, ""))
            sequence = catalog.oid_of(conn, schema, name)
            at = positions(conn, {(schema, name): sequence})[schema, name].last if sequence else 0
            if largest is not None and abs(at) > largest:
                raise StageFailed(
                    f"sequence {schema}.{name} stands at {at}, beyond what column {column} can hold as {types[column]}",
                    table=table.qualified,
                    todo="set it to a value that the old column can hold, then run revert again; the new table stays "
                    "live meanwhile",
                    sql=sql.SQL("SELECT pg_catalog.setval({}, …);")
                    .format(sql.Literal(sql.Identifier(schema, name).as_string()))
                    .as_string(),
                )


def _owned_sequences(conn: Session, oid: int) -> list[tuple[str, str, str, str, str, str]]:
    return conn.execute(queries("swap")["owned_sequences"], [oid]).fetchall()


# --- the old table catches up -----------------------------------------------------------------------------------------


def _made_ready(context: Context, backs: Sequence[Back]) -> list[Back]:
    """Where keys wait; and nothing of the old table acts on what windows write to it."""
    conn, ready = context.source, []
    for table, way in backs:
        silenced = way.silenced
        old = sql.Identifier(old_schema(table.schema), table.name)
        with context.fenced("revert.before_silenced_commit"):
            create_pending(conn, way.row)
            copy_only_columns.fit(conn, way.row)
            if silenced is None:
                silenced = [list(row) for row in conn.execute(_Q["noisy"], {"oid": table.oid})]
                for kind, name, _ in silenced:
                    disable = sql.SQL(f"ALTER TABLE {{}} DISABLE {kind.upper()} {{}}")
                    conn.execute(disable.format(old, sql.Identifier(name)))
                context.journal.ways_back.set_silenced(way, silenced)
        ready.append((table, replace(way, silenced=silenced)))
    return ready


def _catch_up(context: Context, backs: Sequence[Back]) -> list[Window]:
    """Windows from the new tables into the old ones, until little is left for the locks."""
    rows, fill = [way.row for _, way in backs], context.pipeline.replay.window_rows
    windows, left, border, take = (
        list[Window](),
        WindowsLeft(lambda: {way.row.id: table.qualified for table, way in backs}),
        context.border(),
        context.log_rows,
    )

    def attempt(effort: Effort) -> Window:
        return window(context.replica, rows, fill=effort.of(fill), take=effort.of(take), effort=effort)

    while True:
        border.wait()
        done = insistently(context, attempt)
        windows.append(done)
        rest = left.after(done)
        if done.keys or done.rows or done.pending or len(windows) == 1:
            context.say(f"window {done.number}: {done.keys} keys, {done.rows} rows, {done.pending} pending{rest}")
        if not done.stopped.keys().isdisjoint(way.row.id for _, way in backs):
            _refuse_unseen_writes(context, backs)
        for table, way in backs:
            if way.row.id in done.stopped:
                raise refusal_of_rows(context, [(table, way)], "; ".join(done.stopped[way.row.id]))
        if not done.pending and (done.seconds <= context.pipeline.replay.until_lag or no_shorter(windows)):
            return windows


def _refuse_unseen_writes(context: Context, backs: Sequence[Back]) -> None:
    refuse_unseen_writes(
        unseen_writes(context.source, context.name, [way.row for _, way in backs]),
        of="reverses",
        where="source",
        carry="the new table stays live, and nothing is lost. Go on with it (stage cleanup), or see what was written to"
        " it unseen, and write that once more: UPDATE rows to what they are, insert and delete again what is gone",
    )


# --- the swap goes back -----------------------------------------------------------------------------------------------


def _go_back(context: Context, backs: Sequence[Back]) -> dict[str, Any]:
    """Tries until the locks are there and little is left to drain; returns the figures."""
    conn, watch = context.session("source", "revert"), blockers_signalled(context)
    for schema in sorted({copy_schema(t.schema) for t, _ in backs}):
        with context.fenced("revert.before_schemas_commit"):
            context.source.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(schema)))

    def attempt() -> dict[str, Any]:
        try:
            return _exchange(context, conn, backs, watch)
        except REFUSALS as error:
            raise refusal_of_rows(context, backs, str(error.diag.message_primary)) from error
        except NotYet:
            _catch_up(context, backs)
            raise

    figures = with_tries(context.pipeline.swap, "revert", attempt, again=NotYet)
    context.say(f"{len(backs)} table(s) are back; locked for {figures['locked_ms']} ms")
    return figures


def _exchange(context: Context, conn: Session, backs: Sequence[Back], watch: BlockerWatch) -> dict[str, Any]:
    journal, tables = Journal(conn, context.name), [t for t, _ in backs]
    keys = foreign_keys(conn, [way.row.oid for _, way in backs])
    lost = [ForeignKey(**key) for _, way in backs for key in way.foreign_keys]
    broken = what_a_swap_breaks(context.pipeline, conn, [(t.schema, t.name) for t in tables])
    carried, new = _dependents(context, conn, backs), [way.row.oid for _, way in backs]
    wanted = {*involved(tables, (*keys, *lost)), *carried.tables}
    with writers_wait(later=True) as from_here, conn.transaction():
        lock_unseen(conn, [(old_schema(t.schema), t.name) for t in tables], context.pipeline.swap.lock_timeout)
        from_here()
        failpoint("revert.before_lock", conn)
        with watch(conn):
            carried.lock_views(conn)
            lock_all(conn, sorted(wanted), "ACCESS EXCLUSIVE", context.pipeline.swap.lock_timeout)
        locked = time.monotonic()
        _refuse_changed_now(conn, journal, backs, keys, broken)
        if _dependents(context, conn, backs) != carried:
            raise NotYet("what depends on the tables changed just now")
        wait_out_old_snapshots(conn)
        drained = drain_all(context, conn, [way.row for _, way in backs])
        refuse_late_changes(conn, Logs(conn), context.name, tables, in_place=True)
        for key in keys:
            conn.execute(drop_statement(key))
        carried.take_away(conn)
        for _, way in backs:
            change_log.stop(conn, context.name, way.row.oid)
            for (statement,) in conn.execute(_Q["strip"], {"oid": way.row.oid}).fetchall():
                conn.execute(statement)
        serials = [(table, way, _move(conn, table, way)) for table, way in backs]
        for key in (*keys, *lost):
            add_foreign_key(context, journal, key)
        copies = {(t.schema, t.name): (copy_schema(t.schema), t.name) for t in tables}
        carried.put_back(conn, copies, context.pipeline.trusted_roles)
        for table, way, sequences in serials:
            own_sequences(conn, table, sequences, way.row.plan.reverse.serials)
        refuse_left_behind(conn, new)
        for table, way in backs:
            _wake(conn, table, way)
            forget_keys(conn, way.row)
            journal.ways_back.forget(way)
        _refuse_another(conn, journal, tables)
        are_copies_again(conn, journal, backs)
        journal.tables.set_state("indexed", [t.id for t in tables])
        journal.set_reverted()
        _pass_over_ddl(context, conn)
        lease.check(conn, context.fence())
        failpoint("revert.before_commit", conn)
    failpoint("revert.after_commit", conn)
    return {"locked_ms": round((time.monotonic() - locked) * 1000), "drained": drained, "foreign_keys": len(keys)}


def _refuse_changed_now(
    conn: Session,
    journal: Journal,
    backs: Sequence[Back],
    keys: Sequence[ForeignKey],
    broken: Callable[[], list[Finding]],
) -> None:
    """Under the lock nothing can change any more; what changed just before is seen here."""
    refuse(broken(), under_way=True)
    refuse_changed_since(conn, backs)
    if stopped_by_drift(conn, journal, [way.row for _, way in backs])[1]:
        raise NotYet("a table changed just now")  # the next window says how
    if foreign_keys(conn, [way.row.oid for _, way in backs]) != list(keys):
        raise NotYet("foreign keys changed while the locks were taken")


def _move(conn: Session, table: TableRow, way: Reverse) -> list[Serial]:
    """New away, to where it was as a copy, and old back under its name; see `exchange`. Returns the serials'
    sequences."""
    home, old, away = table.schema, old_schema(table.schema), copy_schema(table.schema)
    sequences = _owned_sequences(conn, way.row.oid)
    serials = [row for row in sequences if row[0] == "a"]
    for _, schema, name, _, _, _ in serials:
        conn.execute(sql.SQL("ALTER SEQUENCE {} OWNED BY NONE").format(sql.Identifier(schema, name)))
    statistics = queries("swap")["statistics_of"]
    mine = conn.execute(statistics, [way.row.oid]).fetchall()
    homes = {name: schema for schema, name in mine}  # not always the table's own
    for schema, name in mine:
        _set_schema(conn, "STATISTICS", (schema, name), away)
    _set_schema(conn, "TABLE", (home, table.name), away)
    for schema, name in conn.execute(statistics, [table.oid]).fetchall():
        if schema == old:
            _set_schema(conn, "STATISTICS", (schema, name), homes.get(name, home))
    _set_schema(conn, "TABLE", (old, table.name), home)
    for kind, _, name, column, _, _ in sequences:
        if kind == "i":  # moved with the table, and locked by that: nobody can draw from it any more
            carry_identity(conn, table.oid, (away, name), column)
    return [(schema, name, column, type_) for _, schema, name, column, type_, _ in serials]


def _set_schema(conn: Session, kind: str, name: tuple[str, str], schema: str) -> None:
    move = sql.SQL(f"ALTER {kind} {{}} SET SCHEMA {{}}")
    conn.execute(move.format(sql.Identifier(*name), sql.Identifier(schema)))


def _wake(conn: Session, table: TableRow, way: Reverse) -> None:
    """The old table's triggers and rules, each as it was."""
    modes = {"O": "", "R": "REPLICA ", "A": "ALWAYS "}
    for kind, name, state in way.silenced or ():
        enable = sql.SQL(f"ALTER TABLE {{}} ENABLE {modes[state]}{kind.upper()} {{}}")
        conn.execute(enable.format(sql.Identifier(table.schema, table.name), sql.Identifier(name)))


def _refuse_another(conn: Session, journal: Journal, tables: Sequence[TableRow]) -> None:
    """The old table has to be what it was when it was swapped away, and captured all the time."""
    _, stopped = stopped_by_drift(conn, journal, tables)
    for table in tables:
        if table.id in stopped:
            raise PreflightRefused(
                f"the old table was altered since the swap: {'; '.join(stopped[table.id])}", table=table.qualified,
                todo=f"undo that on the table in {old_schema(table.schema)}, then run revert again",
            )  # fmt: skip


def _pass_over_ddl(context: Context, conn: Session) -> None:
    """What was run on the new tables until now was undone or is refused above, and is none of the old ones'."""
    ddl = DdlJournal(conn, context.name, context.journal.run)
    if ddl.position() is not None:
        row = conn.execute(
            "SELECT pg_catalog.pg_current_snapshot()::text, pg_catalog.pg_current_wal_insert_lsn()::text"
        ).fetchone()
        assert row is not None
        ddl.set_position(*row)
