"""Windows: one step of replay, at one snapshot T of the source.

Ingest: every key that the change log shows under T is deleted from the copy and becomes pending; only then are
exactly those log rows acknowledged. Fill: the rows that T shows for pending keys are inserted. Between the two, and
after any number of half-done windows, the copy is a subset of the source at T, so no unique index on it can fail;
with nothing pending it equals the source at T. Doing any part twice does no harm, and the order of changes never
matters."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import datetime

from psycopg import errors as pg
from psycopg import sql

from airflow_provider_pgddl.engine import catalog, lease
from airflow_provider_pgddl.engine.capture import change_log
from airflow_provider_pgddl.engine.connect import Session, connect
from airflow_provider_pgddl.engine.ddl_journal import DdlJournal
from airflow_provider_pgddl.engine.errors import StageFailed
from airflow_provider_pgddl.engine.journal import Journal, TableRow
from airflow_provider_pgddl.engine.lease import Fence
from airflow_provider_pgddl.engine.rows import kept, split, ties
from airflow_provider_pgddl.engine.rows.flush import flush
from airflow_provider_pgddl.engine.rows.logs import Logs, batches, log_keys, summaries
from airflow_provider_pgddl.engine.rows.plan import Plan
from airflow_provider_pgddl.engine.rows.shape import COPY_ALTERED, hold_copies
from airflow_provider_pgddl.engine.rows.skipped import count_partial, count_refusal
from airflow_provider_pgddl.engine.rows.split import NoPartition
from airflow_provider_pgddl.engine.rows.ties import Ties
from airflow_provider_pgddl.engine.rows.transfer import REFUSALS, copy_between, read_statement, refusal, write_statement
from airflow_provider_pgddl.engine.rows.yielding import Watch, lock_nowait
from airflow_provider_pgddl.engine.schema.drift import AGAIN, drift
from airflow_provider_pgddl.engine.sql import queries

_Q = queries("windows")
TYPE_ALTERED = "a type was altered just now"
NAMED = 10  # rows that an error names
FILL = "fill"  # the purpose of a worker's session on the target


@dataclass
class Window:
    """What one window did. `stopped` maps a table's id to why it could not take part; its log rows are kept.

    `lsn` is where the source's WAL was at its snapshot.
    `snapshot` is the exported one, across databases and while the window is open; `number` is known once its writes
    are done."""

    taken_at: datetime
    lsn: str
    snapshot: str | None = None
    number: int = 0
    keys: int = 0
    rows: int = 0
    pending: int = 0
    seconds: float = 0.0
    stopped: dict[int, list[str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Replica:
    """One pipeline's sessions for windows: `source` holds the snapshot, `target` writes, `watcher` watches the
    source."""

    pipeline: str
    run: int
    source: Session
    target: Session
    watcher: Session
    fence: Fence
    in_place: bool
    receive: Callable[[], None] | None = None
    """Where a slot fills the change logs: brings them, on the target, to what the source has committed by now."""


def logs_of(replica: Replica) -> Logs:
    """As the snapshot of the source's transaction shows them."""
    if replica.receive is None:
        return Logs(replica.source)
    shown = catalog.current_snapshot(replica.source)
    replica.receive()  # after the snapshot: every commit that it shows is below what is read now
    return Logs(replica.target, shown)


# What a fill did: rows, and why tables whose copy refused one have to stop.
Filled = tuple[int, dict[int, list[str]]]
# Given the exported snapshot and the tables with pending keys, fills up to `limit` of them elsewhere.
FillElsewhere = Callable[[str, Sequence[TableRow], int], Filled]


def pending_table(table_id: int) -> sql.Identifier:
    return sql.Identifier("pgddl", f"pending_{table_id}")


def create_pending(target: Session, table: TableRow) -> None:
    """The pending keys' table; REPLICA IDENTITY FULL keeps someone else's FOR ALL TABLES publication from failing our
    deletes."""
    parts = {"pending": pending_table(table.id), "keys": table.plan.key_list()}
    definitions = table.plan.key_definitions("k", not_null=True)
    statements = [
        sql.SQL(_Q["create_pending"]).format(definitions=definitions, **parts),
        sql.SQL(_Q["pending_replica_identity"]).format(pending=parts["pending"]),
    ]
    target.execute(sql.SQL(";\n").join(statements))


def drop_pending(target: Session, table: TableRow) -> None:
    target.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(pending_table(table.id)))


def forget_keys(target: Session, table: TableRow) -> None:
    """All that the target keeps of a table by key: pending keys, values of columns that its copy alone has, and the
    log that a slot fills."""
    drop_pending(target, table)
    kept.drop(target, table)
    target.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(change_log.log_table(table.log_table)))  # by a slot


def window(
    replica: Replica,
    tables: Sequence[TableRow],
    *,
    fill: int,
    fill_elsewhere: FillElsewhere | None = None,
    inside: Callable[[Window], None] | None = None,
    whole: bool = False,
) -> Window:
    """One window over `tables`; `fill` is how many pending keys at most are read again (0: ingest only).

    `whole` says that these are all tables that rows are followed of: lag is counted from such a window's snapshot.

    `inside` is called at the end with the source's snapshot still held: what it sees on the source is T, and on the
    target what the window committed. GaveWay if somebody waits for one of the tables; nothing is lost by that."""
    started = time.monotonic()
    others = () if replica.in_place else (replica.target,)
    with replica.source.transaction():
        replica.source.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        with Watch(replica.source, replica.watcher, *others) as watch:
            lock_tables(replica, tables)
            if replica.in_place:
                done = _in_place(replica, tables, fill, whole)
                if inside:
                    inside(done)
            else:
                done = _across(replica, tables, fill, fill_elsewhere, inside, whole)
        watch.check()
        if replica.in_place:
            lease.check(replica.source, replica.fence)
    done.seconds = time.monotonic() - started
    return done


def lock_tables(replica: Replica, tables: Iterable[TableRow]) -> None:
    """Before the first query, so before the snapshot (C3): under these locks no rewrite or TRUNCATE can pass between
    the two."""
    present = [t for t in tables if t.plan]
    if present:
        names = _present(replica.watcher, present)
        if names:  # else all of them have just been dropped, which drift says
            lock_nowait(replica.source, [sql.Identifier(*name) for name in names])


def _present(watcher: Session, tables: Sequence[TableRow]) -> list[tuple[str, str]]:
    """The tables' present names, asked from the other session so that ours has no snapshot yet; a renamed one is
    stopped by drift."""
    rows = watcher.execute(queries("catalog")["relations"], {"oids": [t.oid for t in tables]})
    return [(schema, name) for _, schema, name, _, _ in rows]


def stopped_by_drift(
    conn: Session, journal: Journal, tables: Sequence[TableRow]
) -> tuple[list[TableRow], dict[int, list[str]]]:
    """Tables that are still what they were recorded as, and findings for those that are not (C9)."""
    now = catalog.describe(conn, [t.oid for t in tables], change_log.capture_names(journal.pipeline))
    healthy, stopped = [], {}
    for table in tables:
        findings = drift(table.version, table.physical, now.get(table.oid))
        if findings:
            stopped[table.id] = findings
        else:
            healthy.append(table)
            physical = now[table.oid].physical()
            if physical != table.physical:
                journal.set_physical(table.id, physical)
    return healthy, stopped


# --- across databases -----------------------------------------------------------------------------------------------


def _across(
    replica: Replica,
    tables: Sequence[TableRow],
    fill: int,
    fill_elsewhere: FillElsewhere | None,
    inside: Callable[[Window], None] | None,
    whole: bool,
) -> Window:
    source, target = replica.source, replica.target
    journal = Journal(target, replica.pipeline)
    row = source.execute(_Q["take_snapshot"]).fetchone()
    assert row is not None
    snapshot, lsn, taken_at = row
    acknowledged = change_log.window_no(source, replica.pipeline) or 0
    done = Window(taken_at, lsn, snapshot)
    logs = logs_of(replica)
    with target.transaction():
        healthy, done.stopped = stopped_by_drift(source, journal, tables)
        if _type_altered(replica):
            done.stopped |= {t.id: [TYPE_ALTERED] for t in healthy if t.has_user_types}
            healthy = [t for t in healthy if t.id not in done.stopped]
        healthy = _unaltered(target, healthy, done)
        with ties.quiet(target, ties.by_id(healthy)) as firing:
            healthy, tied, waits = _untied(target, healthy, firing, done)
            for table in healthy:
                if table.plan.keep:
                    kept.fit(target, table)
            changed, staged = _ingest_across(replica, logs, healthy, done, tied)
            if fill > 0 and tied.tied and not tied.tied & done.stopped.keys():
                together = [t for t in healthy if t.id in tied.tied]
                rows, refused = _fill_together(source, target, replica.pipeline, together)
                done.rows += rows
                done.stopped |= refused
            waiting = count_pending(target, [t for t in healthy if t.id not in done.stopped])
            apart = {table_id: keys for table_id, keys in waiting.items() if table_id not in tied.tied}
            if fill > 0 and sum(apart.values()) + sum(staged.values()) <= fill:
                shares = [(t.id, t.plan) for t in healthy if apart.get(t.id) or staged.get(t.id)]
                rows, refused = _fill(source, target, replica.pipeline, shares, fill, staged=staged)
                done.rows += rows
                done.stopped |= refused
                waiting = {table_id: keys for table_id, keys in waiting.items() if table_id not in apart}
                apart = {}
            elif staged:
                _leave_pending(target, healthy, staged)
                for table_id, keys in count_pending(target, [t for t in healthy if t.id in staged]).items():
                    waiting[table_id] = apart[table_id] = keys
        done.pending = sum(waiting.values()) + waits
        logs.forget(changed)
        flush(replica.watcher, lsn)
        done.number = _note(journal, replica, done, acknowledged, whole)
        lease.check(target, replica.fence)
    change_log.acknowledge(source, replica.pipeline, done.number, _on_source(replica, changed))
    if fill and apart:
        todo = [t for t in healthy if apart.get(t.id)]
        fill_now = fill_elsewhere or _fill_here(replica)
        rows, refused = fill_now(snapshot, todo, fill)
        done.rows += rows
        done.stopped |= refused
        healthy = [t for t in healthy if t.id not in refused]
        done.pending = sum(count_pending(target, healthy).values()) + waits
    if inside:
        inside(done)
    return done


def _untied(target: Session, tables: Sequence[TableRow], tied: Ties, done: Window) -> tuple[list[TableRow], Ties, int]:
    """The tables that can be written to with these foreign keys and triggers on them, what ties them, and how many
    others wait for one that this window has stopped: it is looked at first."""
    stopped_before = bool(done.stopped)
    stops = ties.told(tied.stops([t.id for t in tables if t.plan.keep], target.info.user))
    waits = set[int]()
    if stopped_before:  # a key to such a table looks like one to a table that nobody follows
        waits = {i for i in stops if i not in tied.triggers}
    done.stopped |= {i: why for i, why in stops.items() if i not in waits}
    out = {*stops}
    while more := {e for k in tied.inner for e in (k.parent, k.child) if e and {k.parent, k.child} & out} - out:
        waits |= more
        out |= more
    left = Ties(tuple(key for key in tied.keys if not {key.parent, key.child} & out))
    return [t for t in tables if t.id not in out], left, len(waits)


def _note(journal: Journal, replica: Replica, done: Window, acknowledged: int, whole: bool) -> int:
    """The window into the journal; returns its number."""
    lsn = done.lsn if whole and not done.stopped else None
    return journal.add_window(acknowledged, replica.run, done.keys, done.rows, done.pending, done.taken_at, lsn)


def _type_altered(replica: Replica) -> bool:
    """Whether the snapshot shows an ALTER TYPE that has not been followed: a label of another name would be taken for
    what it was before. Only the queue can tell."""
    position = DdlJournal(replica.target, replica.pipeline, replica.run).position()
    args = {"pipeline": replica.pipeline, "position": position}
    row = replica.source.execute(_Q["type_altered"], args).fetchone() if position else None
    return bool(row and row[0])


def _unaltered(target: Session, tables: Sequence[TableRow], done: Window) -> list[TableRow]:
    """The tables whose copies are what their plans say, and stay so for this transaction."""
    altered = hold_copies(target, {t.id: t.plan for t in tables})
    done.stopped |= {table_id: [COPY_ALTERED] for table_id in altered}
    return [t for t in tables if t.id not in altered]


def _on_source(replica: Replica, tables: Sequence[TableRow]) -> list[str]:
    return [] if replica.receive else [t.log_table for t in tables]


def _ingest_across(
    replica: Replica, logs: Logs, tables: Sequence[TableRow], done: Window, tied: Ties
) -> tuple[list[TableRow], dict[int, int]]:
    """Takes the keys of every non-empty log out of the copy; returns the tables whose log was taken, and how many keys
    of which are staged only: whoever does not fill them in the same transaction makes them pending."""
    staged = dict[int, int]()
    found = summaries(logs, tables)
    changed = _ingest_together(replica, logs, [t for t in tables if t.id in tied.tied], done, tied)
    for table in (t for t in tables if t.id not in tied.tied):
        count, lost_track, truncated = found[table.id]
        if lost_track:
            done.stopped[table.id] = [f"a key column changed while rows were written; {AGAIN}"]
            continue
        if count == 0 and not (table.plan.keep and kept.unfollowed(replica.target, table)):
            continue
        staging = staging_table(replica.target, "ingest", table.plan, table.id)
        keys = _stage_keys(logs, replica.target, table, staging)
        if table.plan.keep:
            _ingest_keeping(replica.target, table, staging, read_moves(replica, logs, table))
        else:
            _truncate_leaves(replica.target, table, truncated)
            delete_from_copy(replica.target, table, staging)
            staged[table.id] = keys
        done.keys += keys
        changed.append(table)
    return changed, staged


def _leave_pending(target: Session, tables: Sequence[TableRow], staged: Mapping[int, int]) -> None:
    for table in tables:
        if table.id in staged:
            add_pending(target, table.id, table.plan, staging_table(target, "ingest", table.plan, table.id))


def _ingest_together(
    replica: Replica, logs: Logs, tables: Sequence[TableRow], done: Window, tied: Ties
) -> list[TableRow]:
    """The same for tables that foreign keys tie to one another, with the rows that refer to those that leave."""
    target, changed = replica.target, list[TableRow]()
    found = summaries(logs, tables)
    if any(lost for _, lost, _ in found.values()):  # the others have to wait for it: see `_untied`
        done.stopped |= {
            i: [f"a key column changed while rows were written; {AGAIN}"] for i, (_, lost, _) in found.items() if lost
        }
        return []
    if not any(count for count, _, _ in found.values()):
        return []
    staged = {t.id: (t.plan, staging_table(target, "ingest", t.plan, t.id)) for t in tables}
    for table in tables:
        plan, staging = staged[table.id]
        count, _, truncated = found[table.id]
        if count:
            _stage_keys(logs, target, table, staging)
            changed.append(table)
        for leaf in (plan.copies[str(oid)] for oid in truncated if str(oid) in plan.copies):
            parts = {"staging": staging, "keys": plan.key_list(), "leaf": sql.Identifier(*leaf),
                     "columns": sql.SQL(", ").join(map(sql.Identifier, plan.key))}  # fmt: skip
            target.execute(sql.SQL(_Q["stage_leaf"]).format(**parts))
    ties.stage_referring(target, tied, staged)
    ties.delete_together(target, staged.values())
    for table in tables:
        plan, staging = staged[table.id]
        parts = {"pending": pending_table(table.id), "keys": plan.key_list(), "staging": staging}
        done.keys += target.execute(sql.SQL(_Q["add_pending"]).format(**parts)).rowcount
        target.execute(sql.SQL("TRUNCATE {}").format(staging))
    return changed


def _fill_together(source: Session, target: Session, pipeline: str, tables: Sequence[TableRow]) -> Filled:
    """All pending keys of tables that foreign keys tie to one another, in one statement; none where one is refused."""
    waiting = count_pending(target, tables)
    todo = [t for t in tables if waiting.get(t.id)]
    arrived: list[tuple[Plan, sql.Identifier]] = []
    counts: list[int] = []
    try:
        with source.transaction(), target.transaction():
            for table in todo:
                arrivals = kept.create_arrivals(target, table.plan, table.id)
                counts.append(fill_across(source, target, table.plan, table.id, waiting[table.id], into=arrivals)[1])
                arrived.append((table.plan, arrivals))
            if arrived:
                ties.insert_together(target, arrived)
            for (plan, arrivals), rows in zip(arrived, counts, strict=True):
                count_partial(target, pipeline, plan, rows)
                target.execute(sql.SQL("DROP TABLE {}").format(arrivals))
    except REFUSALS as error:
        at = {(t.plan.copy_schema, t.plan.copy_name): t for t in todo}
        name = (error.diag.schema_name or "", error.diag.table_name or "")
        refused = [at[name]] if name in at else todo
        for table in refused:
            count_refusal(target, pipeline, table.plan, error)
        return 0, {t.id: [refusal(error)] for t in refused}
    return sum(counts), {}


def _ingest_keeping(target: Session, table: TableRow, staging: sql.Identifier, moves: kept.Moves) -> int:
    """With the values of columns that the copy alone has: they follow their rows, to which they wait by pending key."""
    if table.state == "indexed":
        kept.forget_strays(target, table, staging, pending_table(table.id))
    kept.save_leaves(target, table, moves.leaves)  # rows that blocks have brought since
    kept.forget_truncated(target, table, moves.truncated)
    keys = ingest_keys(target, table, staging, moves.leaves)
    kept.follow(target, table, moves)
    return keys


def read_moves(replica: Replica, logs: Logs, table: TableRow) -> kept.Moves:
    shown = logs.shown or catalog.current_snapshot(replica.source)
    return kept.read_moves(logs.session, replica.target, table, logs.of(table), shown)


def clear_changed(replica: Replica, tables: Sequence[TableRow]) -> None:
    """Ingest alone, before DDL is applied: every row that has changed leaves its copy and becomes pending.

    What is left has not changed since the last window, so it was there when the source ran the statement and checked
    it: SET NOT NULL, ADD UNIQUE, ATTACH succeed on it as they did there. Also of tables that DDL has changed by now,
    since log and copy still are what the plan says. One whose log does not know its keys is emptied: it is read again.

    Where blocks are still being copied the keys stay in the log: a block can bring such a row once more.
    """
    others = () if replica.in_place else (replica.target,)
    with replica.source.transaction():
        replica.source.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        with Watch(replica.source, replica.watcher, *others) as watch:
            lock_tables(replica, tables)
            tables = _emptied_where_captured_anew(replica, tables)
            _forget_changed(replica, [t for t in tables if t.state == "created"])
            tables = [t for t in tables if t.state != "created"]
            if replica.in_place:
                for table in tables:
                    try:
                        with replica.source.transaction():
                            drain(replica.source, table, 0)
                    except LostTrack:
                        _empty(replica, table)
            else:
                _clear_across(replica, tables)
        watch.check()
        if replica.in_place:
            lease.check(replica.source, replica.fence)


def _emptied_where_captured_anew(replica: Replica, tables: Sequence[TableRow]) -> list[TableRow]:
    """The tables without those that are gone, and those whose log is no longer the one that the plan was made for:
    these are going to be read as a whole."""
    now = catalog.describe(replica.source, [t.oid for t in tables], change_log.capture_names(replica.pipeline))
    left = []
    for table in tables:
        leaves = now[table.oid].leaves if table.oid in now else ()
        if any(x.triggers != table.physical[str(x.oid)][2] for x in leaves if str(x.oid) in table.physical):
            with replica.target.transaction():
                if _keepable(replica.target, [table]):
                    _empty(replica, table)
                lease.check(replica.target, replica.fence)
        elif leaves:
            left.append(table)
    return left


def _forget_changed(replica: Replica, tables: Sequence[TableRow]) -> None:
    if not tables:
        return
    logs = logs_of(replica)
    with replica.target.transaction():
        tables = _keepable(replica.target, tables)
        with ties.quiet(replica.target, ties.by_id(tables)) as tied:
            for table in (t for t in tables if t.id not in tied.triggers):
                count, lost_track, _ = summaries(logs, [table])[table.id]
                if lost_track:
                    _empty(replica, table)
                elif count:
                    staging = staging_table(replica.target, "ingest", table.plan, table.id)
                    _stage_keys(logs, replica.target, table, staging)
                    delete_from_copy(replica.target, table, staging)
                    replica.target.execute(sql.SQL("TRUNCATE {}").format(staging))
        lease.check(replica.target, replica.fence)


def _stage_keys(logs: Logs, target: Session, table: TableRow, staging: sql.Identifier) -> int:
    """The keys that the log shows, and how many; in place, and where a slot fills it, it is where the copy is."""
    keys, names = log_keys(logs, table), table.plan.key_list()
    if logs.session is target:
        return target.execute(sql.SQL("INSERT INTO {} ({}) {}").format(staging, names, keys)).rowcount
    read = read_statement(keys, table.plan.key_binary)
    return copy_between(logs.session, target, read, write_statement(staging, names, table.plan.key_binary)).rows


def _clear_across(replica: Replica, tables: Sequence[TableRow]) -> None:
    source, target = replica.source, replica.target
    row = source.execute(_Q["take_snapshot"]).fetchone()
    assert row is not None
    _, lsn, taken_at = row
    acknowledged = change_log.window_no(source, replica.pipeline) or 0
    done = Window(taken_at, lsn)
    logs = logs_of(replica)
    with target.transaction():
        tables = _keepable(target, tables)
        with ties.quiet(target, ties.by_id(tables)) as firing:
            tables, tied, _ = _untied(target, tables, firing, Window(taken_at, lsn))
            changed, staged = _ingest_across(replica, logs, tables, done, tied)
            _leave_pending(target, tables, staged)
            for table in tables:
                if table.id in done.stopped:
                    _empty(replica, table)
        logs.forget(changed)
        flush(replica.watcher, lsn)
        journal = Journal(target, replica.pipeline)
        done.pending = done.keys
        done.number = _note(journal, replica, done, acknowledged, False)
        lease.check(target, replica.fence)
    change_log.acknowledge(source, replica.pipeline, done.number, _on_source(replica, changed))


def _keepable(target: Session, tables: Sequence[TableRow]) -> list[TableRow]:
    """Without those whose copy was altered and has values to keep, which might not fit any more. Of others rows are
    only deleted by key, whatever became of their copies: a run that died between an event and the plan that follows
    from it has left such, and DDL still wants room."""
    altered = hold_copies(target, {t.id: t.plan for t in tables if t.plan.keep})
    return [t for t in tables if t.id not in altered]


def _empty(replica: Replica, table: TableRow) -> None:
    """Not where foreign keys or triggers would fire: what wants room is tried again, and the table is read again."""
    target, plan = replica.target, table.plan
    with ties.quiet(target, {table.id: plan}) as tied:
        if tied.tied or tied.triggers:
            return
        kept.save_all(target, table)
        ties.empty(target, [plan.copy_only], [(plan.copy_schema, plan.copy_name)])
        target.execute(sql.SQL("TRUNCATE {}").format(pending_table(table.id)))


def fill_across(
    source: Session,
    target: Session,
    plan: Plan,
    table_id: int,
    limit: int,
    *,
    staged: int = 0,
    into: sql.Identifier | None = None,
) -> tuple[int, int]:
    """Takes up to `limit` pending keys and inserts the rows that the source's snapshot shows for them, or leaves them
    in the table `into`; returns (keys, rows). Where keys were `staged` by this transaction's ingest, together with
    those.

    In the caller's transactions: the keys leave the pending set if and only if their rows arrive.
    """
    taken = staging_table(target, "ingest" if staged else "fill", plan, table_id)
    keys = staged + _take_pending(target, plan, table_id, taken, limit - staged)
    if keys == 0:
        return 0, 0
    wanted = staging_table(source, "fill", plan, table_id)
    copy_between(
        target, source,
        read_statement(sql.SQL("SELECT {} FROM {}").format(plan.key_list(), taken), plan.key_binary),
        write_statement(wanted, plan.key_list(), plan.key_binary),
    )  # fmt: skip
    source.execute(sql.SQL("ANALYZE {}").format(wanted))
    keeping = plan.keep and into is None
    arrivals = kept.create_arrivals(target, plan, table_id) if keeping else into or plan.copy
    rows = copy_between(
        source, target,
        read_statement(_rows_of_keys(plan, wanted), plan.binary),
        write_statement(arrivals, plan.column_list, plan.binary),
    ).rows  # fmt: skip
    if keeping:
        kept.put_back(target, plan, table_id, taken)
    for conn, staging in ((source, wanted), (target, taken)):
        conn.execute(sql.SQL("TRUNCATE {}").format(staging))
    return keys, rows


def _fill_here(replica: Replica) -> FillElsewhere:
    """Fills in this process."""

    def fill(_: str, tables: Sequence[TableRow], limit: int) -> Filled:
        shares = [(t.id, t.plan) for t in tables]
        return _fill(replica.source, replica.target, replica.pipeline, shares, limit, replica.fence)

    return fill


def _fill(
    source: Session,
    target: Session,
    pipeline: str,
    tables: Sequence[tuple[int, Plan]],
    limit: int,
    fence: Fence | None = None,
    *,
    staged: Mapping[int, int] | None = None,
) -> Filled:
    """Fills one table after the other until `limit` keys are used up; with a fence in a transaction each, without one
    in the caller's, which holds the copies and has perhaps `staged` keys.

    A table whose copy refuses a row, or was altered, keeps its keys, which are pending then, and the others go on.
    """
    filled: int = 0
    refused: dict[int, list[str]] = {}
    for table_id, plan in tables:
        if limit <= 0:
            break
        try:
            with source.transaction(), lease.fenced(target, fence) if fence else target.transaction():
                if fence and hold_copies(target, {table_id: plan}):
                    refused[table_id] = [COPY_ALTERED]
                    continue
                with ties.quiet(target, {table_id: plan}) if fence else nullcontext(Ties()) as tied:
                    if tied.tied or tied.triggers:
                        continue  # they came just now: the next window sees to it
                    here = (staged or {}).get(table_id, 0)
                    keys, rows = fill_across(source, target, plan, table_id, limit, staged=here)
                count_partial(target, pipeline, plan, rows)
        except REFUSALS as error:
            refused[table_id] = [refusal(error)]
            if staged and table_id in staged:
                add_pending(target, table_id, plan, staging_table(target, "ingest", plan, table_id))
            count_refusal(target, pipeline, plan, error)
            continue
        limit -= keys
        filled += rows
    return filled, refused


@dataclass(frozen=True, slots=True)
class FillPart:
    """One worker's share of a fill at an exported snapshot."""

    source_dsn: str
    target_dsn: str
    pipeline: str
    snapshot: str
    fence: Fence
    tables: tuple[tuple[int, Plan], ...]
    limit: int


def fill_part(part: FillPart) -> Filled:
    """Runs in a Spark task: imports the window's snapshot, locks without waiting, fills."""
    token = part.fence.token
    source = connect(part.source_dsn, purpose="read", pipeline=part.pipeline, token=token)
    target = connect(part.target_dsn, purpose=FILL, pipeline=part.pipeline, token=token)
    watcher = connect(part.source_dsn, purpose="watch", pipeline=part.pipeline, token=token)
    plans = [plan for _, plan in part.tables]
    with source, target, watcher, at_snapshot(source, watcher, target, part.snapshot, plans):
        return _fill(source, target, part.pipeline, part.tables, part.limit, part.fence)


@contextmanager
def at_snapshot(
    source: Session, watcher: Session, target: Session, snapshot: str, plans: Sequence[Plan]
) -> Iterator[None]:
    """A transaction at a window's exported snapshot, in which the tables are locked without waiting, and let go of as
    soon as somebody waits for them. No relation is replaced under the snapshot: the window's own locks keep everybody
    out."""
    with source.transaction():
        source.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        source.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(snapshot)))
        with Watch(source, watcher, target) as watch:
            lock_nowait(source, [sql.Identifier(plan.schema, plan.name) for plan in plans])
            yield
        watch.check()


# --- in place -------------------------------------------------------------------------------------------------------


def _in_place(replica: Replica, tables: Sequence[TableRow], fill: int, whole: bool) -> Window:
    conn = replica.source
    row = conn.execute("SELECT pg_catalog.pg_current_wal_insert_lsn()::text, pg_catalog.clock_timestamp()").fetchone()
    assert row is not None
    lsn, taken_at = row
    journal = Journal(conn, replica.pipeline)
    done = Window(taken_at, lsn)
    healthy, done.stopped = stopped_by_drift(conn, journal, tables)
    for table in healthy:
        try:
            keys, rows = _drain_into_partitions(conn, replica.pipeline, table, fill)
        except LostTrack as lost:
            done.stopped[table.id] = [str(lost)]
            continue
        except REFUSALS as error:
            done.stopped[table.id] = [refusal(error)]
            count_refusal(conn, replica.pipeline, table.plan, error)
            continue
        done.keys += keys
        done.rows += rows
    done.pending = sum(count_pending(conn, healthy).values())
    done.number = _note(journal, replica, done, 0, whole)
    change_log.acknowledge(conn, replica.pipeline, done.number, [])
    return done


def _drain_into_partitions(conn: Session, pipeline: str, table: TableRow, fill: int) -> tuple[int, int]:
    """`drain`, and the partitions that its rows need, in the caller's transaction."""
    while True:
        try:
            with conn.transaction():
                keys, rows = drain(conn, table, fill)
                count_partial(conn, pipeline, table.plan, rows)
                return keys, rows
        except NoPartition as none:
            try:
                with conn.transaction():
                    split.make(conn, table.plan, none.cells)
            except StageFailed as error:  # there are too many
                raise LostTrack(error.what) from None


class LostTrack(Exception):
    """The log of a table does not say what changed, or its copy is not what its plan was made for."""


class Unproven(LostTrack):
    """Rows would not be the same again. `keys` are theirs as text (the first ones), `columns` where they differ."""

    def __init__(self, keys: Sequence[str], columns: Sequence[str]):
        self.keys, self.columns = keys, columns
        super().__init__(f"{', '.join(columns)} of row(s) {', '.join(keys)} would have another value")


def drain(conn: Session, table: TableRow, fill: int) -> tuple[int, int]:
    """Ingest and fill in one transaction of one session: windows in place, and the last one under the swap's lock.

    Returns (keys taken from the log, rows inserted). The log rows go in the same transaction, so there is nothing to
    acknowledge. NoPartition where rows need partitions first: roll back, make them, and do it again."""
    plan = table.plan
    keys = _drain_log(conn, table)
    rows = _drain_pending(conn, table, fill) if fill else 0
    if plan.echo:
        conn.execute(sql.SQL(_Q["forget_echo"]).format(log=change_log.log_table(plan.echo)))
    return keys, rows


def prepare_drain(conn: Session, tables: Sequence[TableRow]) -> None:
    """What the first `drain` of a session makes for itself, where others shall not wait for that."""
    for table in tables:
        for purpose in ("ingest", "fill"):
            staging_table(conn, purpose, table.plan, table.id)


def _drain_log(conn: Session, table: TableRow) -> int:
    plan, logs = table.plan, Logs(conn)
    if plan.keep:
        kept.fit(conn, table)
    count, lost_track, truncated = summaries(logs, [table])[table.id]
    if lost_track:
        raise LostTrack(f"a key column changed while rows were written; {AGAIN}")
    if count == 0:
        return 0
    staging = staging_table(conn, "ingest", plan, table.id)
    _stage_keys(logs, conn, table, staging)
    moves = None
    if plan.keep:
        moves = kept.read_moves(conn, conn, table, logs.of(table), catalog.current_snapshot(conn))
    conn.execute(sql.SQL("DELETE FROM {}").format(change_log.log_table(table.log_table)))
    if moves is None:
        keys = ingest_keys(conn, table, staging, truncated)
    else:
        keys = _ingest_keeping(conn, table, staging, moves)
    conn.execute(sql.SQL("TRUNCATE {}").format(staging))
    return keys


def _drain_pending(conn: Session, table: TableRow, fill: int) -> int:
    plan = table.plan
    if hold_copies(conn, {table.id: plan}):
        raise LostTrack(COPY_ALTERED)
    taken = staging_table(conn, "fill", plan, table.id)
    if _take_pending(conn, plan, table.id, taken, fill) == 0:
        return 0
    conn.execute(sql.SQL("ANALYZE {}").format(taken))
    arrivals = kept.create_arrivals(conn, plan, table.id) if plan.keep else plan.copy
    rows = _insert_rows(conn, plan, taken, arrivals)
    if plan.keep:
        kept.put_back(conn, plan, table.id, taken)
    if plan.proof:
        _refuse_unproven(conn, plan, taken)
    conn.execute(sql.SQL("TRUNCATE {}").format(taken))
    return rows


def _refuse_unproven(conn: Session, plan: Plan, taken: sql.Identifier) -> None:
    """Whether each row that has just been written yields the row that it was made from: what a type cannot hold it may
    round or cut off without an error."""

    def value(alias: str, column: str, number: bool) -> sql.Composable:
        # Equal by its type's own equality may still be another value, but for numbers.
        return sql.SQL("{}" if number else '{}::text COLLATE "C"').format(sql.Identifier(alias, column))

    differ = {
        column: sql.SQL("{} IS DISTINCT FROM {}").format(value("c", column, number), value("m", column, number))
        for column, (_, _, number) in plan.proof.items()
    }
    rows = conn.execute(
        sql.SQL(_Q["unproven"]).format(
            keys=sql.SQL("pg_catalog.concat_ws(', ', {})").format(
                sql.SQL(", ").join(sql.Identifier("k", f"k{i}") for i in range(1, len(plan.key) + 1))
            ),
            columns=sql.SQL(", ").join(
                sql.SQL("CASE WHEN {} THEN {} END").format(condition, sql.Literal(column))
                for column, condition in differ.items()
            ),
            staging=taken, source=plan.source, of_source=plan.key_join("c", "k"),
            expressions=sql.SQL(", ").join(
                sql.SQL("CAST({} AS {}) AS {}").format(sql.SQL(made), sql.SQL(type_), sql.Identifier(column))
                for column, (made, type_, _) in plan.proof.items()
            ),
            copy=plan.copy_only, of_copy=plan.key_join("t", "k"),
            differ=sql.SQL(" OR ").join(differ.values()), limit=sql.Literal(NAMED),
        )
    ).fetchall()  # fmt: skip
    if rows:
        raise Unproven([f"({key})" for key, _ in rows], sorted({c for _, columns in rows for c in columns}))


def _insert_rows(conn: Session, plan: Plan, taken: sql.Identifier, into: sql.Identifier) -> int:
    insert = sql.SQL(_Q["insert_rows"]).format(copy=into, columns=plan.column_list, rows=_rows_of_keys(plan, taken))
    if plan.split is None:
        return conn.execute(insert).rowcount
    try:
        with conn.transaction():
            return conn.execute(insert).rowcount
    except pg.CheckViolation as error:
        if not split.has_no_partition(plan, error):
            raise
        rows = sql.SQL(_Q["from_keys"]).format(source=plan.source, staging=taken, join=plan.key_join("t", "k"))
        cells = split.cells_of(conn, plan, split.values(plan, rows))
        if not split.are_new(conn, plan, cells):
            raise
        raise NoPartition(cells) from None


# --- both -----------------------------------------------------------------------------------------------------------


def ingest_keys(target: Session, table: TableRow, staging: sql.Identifier, truncated: Sequence[int]) -> int:
    """Deletes the staged keys from the copy and makes them pending; returns how many keys were staged."""
    _truncate_leaves(target, table, truncated)
    delete_from_copy(target, table, staging)
    add_pending(target, table.id, table.plan, staging)
    row = target.execute(sql.SQL("SELECT count(*) FROM {}").format(staging)).fetchone()
    return int(row[0]) if row else 0


def add_pending(target: Session, table_id: int, plan: Plan, staging: sql.Identifier) -> None:
    parts = {"pending": pending_table(table_id), "keys": plan.key_list(), "staging": staging}
    target.execute(sql.SQL(_Q["add_pending"]).format(**parts))


def _truncate_leaves(target: Session, table: TableRow, truncated: Sequence[int]) -> None:
    plan = table.plan
    # A partition that has gone since, which its table's version says: its rows went with it.
    there = [plan.copies[str(leaf)] for leaf in truncated if str(leaf) in plan.copies]
    if there:
        # One statement over the set (C27). What was inserted since is in the log by key, so nothing else has to be
        # known.
        only = sql.SQL("" if plan.split else "ONLY ")
        ties.empty(target, [only + sql.Identifier(*name) for name in there], there)


def delete_from_copy(target: Session, table: TableRow, staging: sql.Identifier) -> None:
    """The rows of the staged keys."""
    plan = table.plan
    target.execute(sql.SQL("ANALYZE {}").format(staging))
    if plan.keep:
        kept.delete_from_copy(target, table, staging)
        return
    target.execute(
        sql.SQL(_Q["delete_from_copy"]).format(copy=plan.copy_only, staging=staging, join=plan.key_join("c", "k"))
    )


def wait_for_kept(target: Session, table: TableRow) -> None:
    """Rows that values are kept for leave the copy, and come back with them by windows: once blocks have brought all
    rows to a copy that started over. Which row a value belongs to, the next window tells. In the caller's
    transaction."""
    staging = staging_table(target, "ingest", table.plan, table.id)
    kept.stage_keys(target, table, staging)
    ingest_keys(target, table, staging, ())
    target.execute(sql.SQL("TRUNCATE {}").format(staging))


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
    staging = sql.Identifier("pg_temp", f"pgddl_{purpose}_{table_id}_{plan.key_digest}")
    conn.execute(sql.SQL(_Q["create_staging"]).format(staging=staging, definitions=plan.key_definitions("k")))
    return staging


def _take_pending(conn: Session, plan: Plan, table_id: int, staging: sql.Identifier, limit: int) -> int:
    parts = {"pending": pending_table(table_id), "keys": plan.key_list(), "staging": staging}
    return conn.execute(sql.SQL(_Q["take_pending"]).format(limit=sql.Literal(limit), **parts)).rowcount


def _rows_of_keys(plan: Plan, staging: sql.Identifier) -> sql.Composed:
    return sql.SQL(_Q["rows_of_keys"]).format(
        expressions=plan.select_list, source=plan.source, staging=staging, join=plan.key_join("t", "k")
    )
