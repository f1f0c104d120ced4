"""Windows: one step of replay, at one snapshot T of the source.

Ingest: every key that the change log shows under T is deleted from the copy and becomes pending; only then are
exactly those log rows acknowledged. Fill: the rows that T shows for pending keys are inserted. Between the two the copy
is a subset of the source at T, so no unique index on it can fail; with nothing pending it equals the source at T. Doing
any part twice does no harm, and the order of changes never matters. So a window may take a part of a log: then the
copy has less in it than before, and a table is filled once all of its log has been taken."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from itertools import count

from psycopg import sql

from airflow_provider_pgddl.engine.capture import change_log, ddl_log
from airflow_provider_pgddl.engine.errors import GaveWay
from airflow_provider_pgddl.engine.failpoints import failpoint
from airflow_provider_pgddl.engine.journal import lease
from airflow_provider_pgddl.engine.journal.births import Births
from airflow_provider_pgddl.engine.journal.ddl import DdlJournal
from airflow_provider_pgddl.engine.journal.pipelines import Journal
from airflow_provider_pgddl.engine.journal.tables import TableRow
from airflow_provider_pgddl.engine.rights import foreign_code
from airflow_provider_pgddl.engine.rows import archive, copy_only_columns, foreign_keys_and_triggers, window_locks
from airflow_provider_pgddl.engine.rows.adopted_rows import compare_anew, spare_extra
from airflow_provider_pgddl.engine.rows.change_log_reading import Logs, summaries
from airflow_provider_pgddl.engine.rows.copy_shape import COPY_ALTERED, altered_copies, hold_copies
from airflow_provider_pgddl.engine.rows.fill import Filled, FillElsewhere, fill_tables, fill_together
from airflow_provider_pgddl.engine.rows.foreign_keys_and_triggers import Ties
from airflow_provider_pgddl.engine.rows.pending_keys import (
    count_pending,
    delete_from_copy,
    ingest_keeping,
    leave_pending,
    pending_table,
    stage_keys,
    staging_table,
    truncate_leaves,
)
from airflow_provider_pgddl.engine.rows.row_counters import count_refusal
from airflow_provider_pgddl.engine.rows.transfer import REFUSALS, refused_row
from airflow_provider_pgddl.engine.rows.truncated_leaves import PARTED_OTHERWISE, parted_otherwise
from airflow_provider_pgddl.engine.rows.wal_flush import flush
from airflow_provider_pgddl.engine.rows.window_locks import (
    TRIES,
    NotLocked,
    Replica,
    concerned,
    described,
    logs_before,
    logs_of,
    watched,
)
from airflow_provider_pgddl.engine.rows.windows_in_place import LOST_TRACK, LostTrack, drain_into_partitions
from airflow_provider_pgddl.engine.schema.drift import drift, in_same_files
from airflow_provider_pgddl.engine.server import catalog
from airflow_provider_pgddl.engine.server.connect import Session
from airflow_provider_pgddl.engine.server.giving_way import POLITE, Effort, Watch
from airflow_provider_pgddl.engine.sql import queries

_Q = queries("windows")
TYPE_ALTERED = "a type was altered just now"


@dataclass
class Window:
    """What one window did. `stopped` maps a table's id to why it could not take part; its log rows are kept.

    `lsn` is where the source's WAL was at its snapshot; `snapshot` is the exported one, across databases and while the
    window is open; `number` is known once its writes are done. `left` counts log rows that its snapshot shows and that
    it has not taken, as far as it has looked; they are what is `pending` of their tables, as to count keys may take
    long. `gives_way`: whether somebody waits for its tables. Of each table whose rows it has touched, by id: `changed`
    of `keys` are of it, and `filled` of `rows`."""

    taken_at: datetime
    lsn: str
    snapshot: str | None = None
    number: int = 0
    keys: int = 0
    pending: int = 0
    left: int = 0
    seconds: float = 0.0
    stopped: dict[int, list[str]] = field(default_factory=dict)
    gives_way: Callable[[], bool] = field(default=lambda: False, repr=False)
    changed: Counter[int] = field(default_factory=Counter)
    filled: Counter[int] = field(default_factory=Counter)

    @property
    def rows(self) -> int:
        return self.filled.total()


def window(
    replica: Replica,
    tables: Sequence[TableRow],
    *,
    fill: int,
    take: int | None = None,
    fill_elsewhere: FillElsewhere | None = None,
    inside: Callable[[Window], None] | None = None,
    reads: Collection[int] | None = None,
    whole: bool = False,
    effort: Effort = POLITE,
) -> Window:
    """One window over `tables`; `fill` is how many pending keys at most are read again (0: ingest only), `take` how
    many rows of each log at most are taken (None: all). A table whose log has more is not filled: a row that comes
    back might meet one that has to leave.

    `whole` says that these are all tables that rows are followed of: lag is counted from such a window's snapshot.

    `inside` is called at the end with the source's snapshot still held: what it sees on the source is T, and on the
    target what the window committed. It may read the tables with these ids (`reads`; None: all of them): they are
    looked at like those whose rows are moved, as code that their owners have added runs where they are read, too.
    GaveWay if somebody waits for one of the tables that are locked; nothing is lost by that."""
    started = time.monotonic()
    everything = {t.id for t in tables}
    read = everything if inside and reads is None else {*(reads or ())}
    locked = read if read == everything else read | concerned(replica, tables, logs_before(replica))
    for tried in count(1):
        try:
            with watched(replica, effort) as watch:
                window_locks.lock_tables(replica, [t for t in tables if t.id in locked], effort.wait)
                failpoint("replay.after_lock", replica.source)
                if replica.in_place:
                    done = _in_place(replica, tables, locked, read, fill, take, whole, effort.wait)
                    if inside:
                        inside(done)
                else:
                    done = _across(
                        replica, tables, locked, read, fill, take, fill_elsewhere, inside, whole, effort.wait, watch
                    )
            break
        except NotLocked as more:
            locked = locked | more.tables if tried < TRIES - 1 else everything
    done.seconds = time.monotonic() - started
    return done


def stopped_by_drift(
    conn: Session, journal: Journal, tables: Sequence[TableRow], held: Collection[int] = ()
) -> tuple[list[TableRow], dict[int, list[str]]]:
    """Tables that are still what they were recorded as, and findings for those that are not (C9). What has become of
    files is recorded of those that are `held`, by locks that are older than the snapshot; of others, which somebody may
    rewrite just now, new columns alone: a GRANT of one that nobody has noted would make the next VACUUM FULL, if years
    later, look like a rewrite."""
    now = catalog.describe(conn, [t.oid for t in tables], change_log.capture_names(journal.pipeline))
    healthy, stopped = [], {}
    for table in tables:
        findings = drift(table.version, table.physical, now.get(table.oid))
        if findings:
            stopped[table.id] = findings
        else:
            healthy.append(table)
            physical = now[table.oid].physical()
            if physical != table.physical and (table.id in held or in_same_files(table.physical, physical)):
                journal.tables.set_physical(table, physical)
    return healthy, stopped


# --- across databases -----------------------------------------------------------------------------------------------


def _across(
    replica: Replica,
    tables: Sequence[TableRow],
    locked: Collection[int],
    read: Collection[int],
    fill: int,
    take: int | None,
    fill_elsewhere: FillElsewhere | None,
    inside: Callable[[Window], None] | None,
    whole: bool,
    wait: float,
    watch: Watch,
) -> Window:
    source, target, _ = to = replica.source, replica.target, replica.pipeline
    journal = Journal(target, replica.pipeline)
    row = source.execute(_Q["take_snapshot"]).fetchone()
    assert row is not None
    snapshot, lsn, taken_at = row
    done = Window(taken_at, lsn, snapshot, gives_way=lambda: watch.gave_way)
    logs = logs_of(replica)
    at_work = _at_work(replica, tables, logs, locked)
    logs = logs.at_most([t for t in tables if t.id in at_work], take)
    with target.transaction():
        with described(replica, wait):
            healthy, done.stopped = stopped_by_drift(source, journal, tables, locked)
        position = DdlJournal(target, replica.pipeline, replica.run).position()
        if position and ddl_log.type_altered(source, replica.pipeline, position, replica.types()):
            done.stopped |= {t.id: [TYPE_ALTERED] for t in healthy if t.has_user_types}
            healthy = [t for t in healthy if t.id not in done.stopped]
        healthy = _unaltered(target, healthy, at_work.union(read), done)
        healthy, behind = _guarded(source, target, healthy, at_work.union(read), done)
        with foreign_keys_and_triggers.quiet(target, foreign_keys_and_triggers.by_id(healthy)) as firing:
            healthy, tied, waits = untied(target, healthy, firing, done)
            healthy, tied = [t for t in healthy if t.id in at_work], tied.among(at_work)
            if not tied.tied <= at_work:
                raise GaveWay(foreign_keys_and_triggers.CHANGED, todo="nothing: this is tried again")
            if both := tied.tied & behind:
                done.stopped |= {i: [foreign_keys_and_triggers.NOT_TOGETHER] for i in both}
                healthy = [t for t in healthy if t.id not in tied.tied]
                tied = Ties()
            for table in healthy:
                if table.plan.columns.kept:
                    copy_only_columns.fit(target, table)
            changed, staged = ingest_across(replica, logs, healthy, done, tied, behind)
            left = logs.left([t for t in healthy if t.id not in done.stopped], take or 1)
            done.left = sum(left.values())
            leave_pending(target, healthy, {i: staged.pop(i) for i in left if i in staged})
            if fill > 0 and tied.tied and not tied.tied & (done.stopped.keys() | left.keys()):
                rows, refused = fill_together(*to, [t for t in healthy if t.id in tied.tied])
                done.changed.update(dict.fromkeys(tied.tied if rows.total() else (), 0))
                done.filled.update(rows)
                done.stopped |= refused
            waiting = count_pending(target, [t for t in healthy if t.id not in done.stopped and t.id not in left])
            apart = {i: keys for i, keys in waiting.items() if i not in tied.tied}
            if fill > 0 and sum(apart.values()) + sum(staged.values()) <= fill:
                shares = [(t.id, t.plan) for t in healthy if apart.get(t.id) or staged.get(t.id)]
                rows, refused = fill_tables(*to, shares, fill, staged=staged, behind=behind)
                done.changed.update({table_id: 0 for table_id, _ in shares})
                done.filled.update(rows)
                done.stopped |= refused
                waiting = {table_id: keys for table_id, keys in waiting.items() if table_id not in apart}
                apart = {}
            elif staged:
                leave_pending(target, healthy, staged)
                for table_id, keys in count_pending(target, [t for t in healthy if t.id in staged]).items():
                    waiting[table_id] = apart[table_id] = keys
        done.pending = sum(waiting.values()) + waits + done.left
        if logs.on_target:
            logs.forget(changed)
        failpoint("replay.before_flush", replica.watcher)
        flush(replica.watcher, lsn)
        done.number = note_window(journal, replica, done, change_log.window_no(source, replica.pipeline) or 0, whole)
        lease.check(target, replica.fence)
        failpoint("replay.before_target_commit", target)
    failpoint("replay.before_acknowledge", source)
    if not logs.on_target:
        logs.forget(changed)
    change_log.acknowledge(source, replica.pipeline, done.number)
    if fill and apart:
        todo = [t for t in healthy if apart.get(t.id)]
        rows, refused = (fill_elsewhere or _fill_here(replica))(snapshot, todo, fill, done.gives_way)
        done.changed.update({t.id: 0 for t in todo})
        done.filled.update(rows)
        done.stopped |= refused
        healthy = [t for t in healthy if t.id not in refused]
        done.pending = sum(count_pending(target, [t for t in healthy if t.id not in left]).values()) + waits + done.left
    if inside:
        inside(done)
    return done


def untied(target: Session, tables: Sequence[TableRow], tied: Ties, done: Window) -> tuple[list[TableRow], Ties, int]:
    """The tables that can be written to with these foreign keys and triggers on them, what ties them, and how many
    others wait for one that this window has stopped: it is looked at first."""
    stopped_before = bool(done.stopped)
    stops = tied.stops([t.id for t in tables if t.plan.has_own_values], target.info.user)
    waits = set[int]()
    if stopped_before:  # a key to such a table looks like one to a table that nobody follows
        waits = {i for i in stops if i not in tied.triggers}
    done.stopped |= foreign_keys_and_triggers.told({i: why for i, why in stops.items() if i not in waits})
    out = {*stops}
    while more := {e for k in tied.inner for e in (k.parent, k.child) if e and {k.parent, k.child} & out} - out:
        waits |= more
        out |= more
    left = Ties(tuple(key for key in tied.keys if not {key.parent, key.child} & out))
    return [t for t in tables if t.id not in out], left, len(waits)


def note_window(journal: Journal, replica: Replica, done: Window, acknowledged: int, whole: bool) -> int:
    """The window into the journal; returns its number."""
    lsn = done.lsn if whole and not done.stopped else None
    return journal.windows.add(acknowledged, replica.run, done.keys, done.rows, done.pending, done.taken_at, lsn)


def _at_work(replica: Replica, tables: Sequence[TableRow], logs: Logs, locked: Collection[int]) -> set[int]:
    """Of the tables, those that this window has something to do with; NotLocked if one was not locked before T."""
    found = concerned(replica, tables, logs)
    if more := found - {*locked}:
        raise NotLocked(more)
    return found


def _unaltered(target: Session, tables: Sequence[TableRow], at_work: set[int], done: Window) -> list[TableRow]:
    """The tables whose copies are what their plans say; those that are at work stay so for this transaction."""
    altered = hold_copies(target, {t.id: t.plan for t in tables if t.id in at_work})
    altered |= altered_copies(target, {t.id: t.plan for t in tables if t.id not in at_work})
    done.stopped |= {table_id: [COPY_ALTERED] for table_id in altered}
    return [t for t in tables if t.id not in altered]


def _guarded(
    source: Session, target: Session, tables: Sequence[TableRow], at_work: set[int], done: Window
) -> tuple[list[TableRow], set[int]]:
    """The tables whose rows may be moved, and those of them whose copies are written to behind the wall."""
    plans = foreign_keys_and_triggers.by_id(t for t in tables if t.id in at_work)
    _, stops = foreign_code.code_of_live(source, plans)
    behind, refused = foreign_code.code_of_copies(target, plans)
    refused |= foreign_keys_and_triggers.closed(target, foreign_keys_and_triggers.by_id(tables))
    refused |= {t.id: why for t in tables if t.id in behind and (why := archive.not_behind_the_wall(t.plan))}
    done.stopped |= stops | refused
    return [t for t in tables if t.id not in done.stopped], behind


def ingest_across(
    replica: Replica, logs: Logs, tables: Sequence[TableRow], done: Window, tied: Ties, behind: Collection[int] = ()
) -> tuple[list[TableRow], dict[int, int]]:
    """Takes the keys of every non-empty log out of the copy; returns the tables whose log was taken, and how many keys
    of which are staged only: whoever does not fill them in the same transaction makes them pending."""
    staged = dict[int, int]()
    found = summaries(logs, tables)
    changed = _ingest_together(replica, logs, [t for t in tables if t.id in tied.tied], done, tied)
    for table in (t for t in tables if t.id not in tied.tied):
        count, lost_track, truncated = found[table.id]
        kept = table.plan.columns.kept
        if not (count or lost_track or (kept and copy_only_columns.unfollowed(replica.target, table))):
            continue
        staging = staging_table(replica.target, "ingest", table.plan, table.id)
        parted = parted_otherwise(replica.source, replica.target, table, truncated)
        keys = None if lost_track or parted else stage_keys(logs, replica.target, table, staging)
        if keys is None:
            done.stopped[table.id] = [PARTED_OTHERWISE if parted else LOST_TRACK]
            continue
        keys -= spare_extra(replica.source, replica.target, table, staging)
        if kept:
            ingest_keeping(replica.target, table, staging, moves_in_window(replica, logs, table))
        else:
            truncate_leaves(replica.target, table, truncated, behind=table.id in behind)
            delete_from_copy(replica.target, table, staging, behind=table.id in behind)
            staged[table.id] = keys
        done.keys += keys
        done.changed[table.id] += keys
        changed.append(table)
    return changed, staged


def _ingest_together(
    replica: Replica, logs: Logs, tables: Sequence[TableRow], done: Window, tied: Ties
) -> list[TableRow]:
    """The same for tables that foreign keys tie to one another, with the rows that refer to those that leave."""
    target, changed = replica.target, list[TableRow]()
    found = summaries(logs, tables)
    if any(lost for _, lost, _ in found.values()):  # the others have to wait for it: see `untied`
        done.stopped |= {i: [LOST_TRACK] for i, (_, lost, _) in found.items() if lost}
        return []
    if not any(count for count, _, _ in found.values()):
        return []
    if strange := [t.id for t in tables if parted_otherwise(replica.source, target, t, found[t.id][2])]:
        done.stopped |= {i: [PARTED_OTHERWISE] for i in strange}
        return []
    staged = {t.id: (t.plan, staging_table(target, "ingest", t.plan, t.id)) for t in tables}
    for table in tables:
        plan, staging = staged[table.id]
        count, _, truncated = found[table.id]
        if count:
            if stage_keys(logs, target, table, staging) is None:  # nothing has been deleted yet
                done.stopped[table.id] = [LOST_TRACK]
                return []
            changed.append(table)
        if truncated:
            compare_anew(target, table)
        for leaf in (plan.copies[str(oid)] for oid in truncated if plan.has_leaf(oid)):
            parts = {"staging": staging, "keys": plan.key.list(), "leaf": sql.Identifier(*leaf),
                     "columns": sql.SQL(", ").join(map(sql.Identifier, plan.key.columns))}  # fmt: skip
            target.execute(sql.SQL(_Q["stage_leaf"]).format(**parts))
    foreign_keys_and_triggers.stage_referring(target, tied, staged)
    foreign_keys_and_triggers.delete_together(target, staged.values())
    for table in tables:
        plan, staging = staged[table.id]
        parts = {"pending": pending_table(table.id), "keys": plan.key.list(), "staging": staging}
        keys = target.execute(sql.SQL(_Q["add_pending"]).format(**parts)).rowcount
        done.keys += keys
        done.changed[table.id] += keys
        target.execute(sql.SQL("TRUNCATE {}").format(staging))
    return changed


def moves_in_window(replica: Replica, logs: Logs, table: TableRow) -> copy_only_columns.Moves:
    shown = logs.shown or catalog.current_snapshot(replica.source)
    return copy_only_columns.read_moves(logs, replica.target, table, shown, partial(_birth_position, replica))


def _birth_position(replica: Replica) -> str | None:
    """Of a run that was born complete the snapshot at which its copies were."""
    found = Births(replica.target, replica.pipeline).find()
    birth = change_log.birth(replica.source, replica.pipeline) if found is not None and found.of else None
    return birth.position if birth is not None and birth.run == replica.run else None


def _fill_here(replica: Replica) -> FillElsewhere:
    """Fills in this process."""

    def fill(_: str, tables: Sequence[TableRow], limit: int, __: Callable[[], bool]) -> Filled:
        these = (replica.source, replica.target, replica.pipeline, [(t.id, t.plan) for t in tables])
        return fill_tables(*these, limit, replica.fence)

    return fill


def _in_place(
    replica: Replica,
    tables: Sequence[TableRow],
    locked: Collection[int],
    read: Collection[int],
    fill: int,
    take: int | None,
    whole: bool,
    wait: float,
) -> Window:
    conn = replica.source
    row = conn.execute("SELECT pg_catalog.pg_current_wal_insert_lsn()::text, pg_catalog.clock_timestamp()").fetchone()
    assert row is not None
    lsn, taken_at = row
    journal = Journal(conn, replica.pipeline)
    done = Window(taken_at, lsn)
    logs = logs_of(replica)
    at_work = _at_work(replica, tables, logs, locked).union(read)
    with described(replica, wait):
        healthy, done.stopped = stopped_by_drift(conn, journal, tables, locked)
    altered = altered_copies(conn, {t.id: t.plan for t in healthy if t.id not in at_work})
    done.stopped |= {table_id: [COPY_ALTERED] for table_id in altered}
    healthy = [t for t in healthy if t.id in at_work]
    logs = logs.at_most(healthy, take)
    left = logs.left(healthy, take or 1)
    for table in healthy:
        try:
            keys, rows = drain_into_partitions(conn, replica.pipeline, table, 0 if table.id in left else fill, logs)
        except LostTrack as lost:
            done.stopped[table.id] = [str(lost)]
            continue
        except REFUSALS as error:
            done.stopped[table.id] = [refused_row(error)]
            count_refusal(conn, replica.pipeline, table.plan, error)
            continue
        done.keys += keys
        done.filled[table.id] += rows
        if keys or rows:
            done.changed[table.id] += keys
    done.left = sum(rows for table_id, rows in left.items() if table_id not in done.stopped)
    done.pending = sum(count_pending(conn, [t for t in healthy if t.id not in left]).values()) + done.left
    done.number = note_window(journal, replica, done, 0, whole)
    change_log.acknowledge(conn, replica.pipeline, done.number)
    return done
