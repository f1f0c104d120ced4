"""The change log by a logical slot: the same log tables, on the target, filled from the source's WAL.

What a slot yields is written into the logs and committed there together with how far it has been read; only then is
it confirmed. So the source keeps no more WAL than since the last reading, however long a backfill takes, a change is
in the log exactly once, and a window takes those of it that its snapshot shows (C1)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace

from psycopg import errors as pg
from psycopg import sql

from airflow_provider_pgddl.engine.capture import change_log
from airflow_provider_pgddl.engine.capture.change_log import log_name, log_table, publication_name
from airflow_provider_pgddl.engine.capture.key_rows import CapturedLeaf, KeyRows, NotVisibleYet
from airflow_provider_pgddl.engine.capture.pgoutput import Item, decode, format_lsn, parse_lsn
from airflow_provider_pgddl.engine.capture.slot_stream import SlotStream, create_slot, marker
from airflow_provider_pgddl.engine.capture.snapshot_visibility import Snapshot
from airflow_provider_pgddl.engine.errors import (
    GaveWay,
    PreflightRefused,
    ReadBeyond,
    Retry,
    SlotLost,
    StageFailed,
    no_logical_slot,
    slot_in_use,
    slot_of_others,
)
from airflow_provider_pgddl.engine.failpoints import failpoint
from airflow_provider_pgddl.engine.journal import lease
from airflow_provider_pgddl.engine.journal.lease import Fence
from airflow_provider_pgddl.engine.journal.tables import TableRow
from airflow_provider_pgddl.engine.model.tables import Leaf, Table
from airflow_provider_pgddl.engine.server import catalog
from airflow_provider_pgddl.engine.server.connect import Session
from airflow_provider_pgddl.engine.server.turns import one_at_a_time
from airflow_provider_pgddl.engine.sql import queries

_Q = queries("slot_log")
COLUMN_LISTS = 150_000  # the first version whose publications have them
GENERATED = 180_000  # the first whose lists may have generated columns, and that asks for those of an identity
UNREAD_TIMEOUT = "5s"  # a status is asked for again and again
LOGS_SNAPSHOTS = 160_000  # from which version on a record of what is in progress can be asked for


def slot_name(pipeline: str) -> str:
    return publication_name(pipeline)


# --- capture ----------------------------------------------------------------------------------------------------------


def start_slot(source: Session, target: Session, pipeline: str, failover: bool) -> None:
    """The publication first, for decoding looks that up as of each change; the tables join it one by one (C2). Does
    nothing where the slot is there. StageFailed where it was there once and is gone, or is of no use."""
    name = slot_name(pipeline)
    _publish_nothing(source, name)
    if received(target, pipeline) is None:
        failpoint("setup.before_rows_slot", source)
        # A run that died has perhaps made one without noting it: no table was captured by it yet.
        _drop_slot(source, name)
        start = _create_slot(source, name, failover)
        failpoint("setup.before_rows_slot_noted", target)
        target.execute(_Q["set_received"], [start, pipeline])
    refuse_lost(source, target, pipeline)


def _publish_nothing(source: Session, name: str) -> None:
    """Makes the publication where it is not there; the tables join it one by one."""
    row = source.execute(_Q["publication_exists"], [name]).fetchone()
    if not (row and row[0]):
        source.execute(sql.SQL("CREATE PUBLICATION {}").format(sql.Identifier(name)))


def _drop_slot(source: Session, name: str) -> None:
    """Where there is one of ours. Retry where somebody reads it."""
    try:
        source.execute(_Q["drop_slot"], [name])
    except pg.ObjectInUse as error:
        raise slot_in_use(error) from None


def _create_slot(source: Session, name: str, failover: bool) -> str:
    """Where it begins."""
    try:
        create_slot(source, name, failover=failover)
    except pg.ObjectNotInPrerequisiteState as error:
        raise no_logical_slot(error, "capture.rows: change_log") from None
    except pg.DuplicateObject:
        raise _somebody_elses(name) from None
    row = source.execute(_Q["slot"], [name]).fetchone()
    assert row is not None
    return str(row[3])


def begin_anew(source: Session, target: Session, pipeline: str, failover: bool, fence: Fence) -> None:
    """A new slot in place of one that was lost; every log says that it does not know what has changed. Nobody may
    trust a snapshot that is older than the end of all transactions that are in progress now."""
    name = slot_name(pipeline)
    _publish_nothing(source, name)  # decoding looks it up as of each change
    _drop_slot(source, name)
    failpoint("slot.before_anew", source)
    start = _create_slot(source, name, failover)
    with lease.fenced(target, fence, "slot.before_anew_commit"):
        for log, leaf in sorted({leaf.log: oid for oid, leaf in _captured(source, pipeline).items()}.items()):
            target.execute(sql.SQL(_Q["lost_track"]).format(log=log_table(log)), [leaf])
        target.execute(_Q["set_received"], [start, pipeline])


def go_on(target: Session, pipeline: str, begins: str) -> None:
    """From where the slot goes on, in the caller's transaction, which sees to it that what was before is not missed."""
    target.execute(_Q["go_on"], [begins, pipeline])


def lose_track(target: Session, tables: Sequence[TableRow]) -> None:
    """These logs say from here on that they do not know what has changed: their tables are captured anew, and read
    again."""
    there = {log for (log,) in target.execute(_Q["logs_there"], [[t.log_table for t in tables]])}
    for table in (t for t in tables if t.log_table in there):
        target.execute(sql.SQL(_Q["lost_track"]).format(log=log_table(table.log_table)), [table.oid])


def _somebody_elses(name: str) -> StageFailed:
    return slot_of_others(name, ": of another plugin, or of another database")


def backlog(source: Session, target: Session, pipeline: str) -> int:
    """Bytes of the source's WAL that have not been read into the logs; below 0 where the source went back."""
    row = source.execute(_Q["backlog"], [received(target, pipeline)]).fetchone()
    return int(row[0] or 0) if row else 0


def retained(source: Session, slot: str) -> int:
    """Bytes of WAL that the source keeps for a slot; 0 where there is none."""
    row = source.execute(_Q["slot"], [slot]).fetchone()
    return int(row[5] or 0) if row else 0


def unread(source: Session, pipeline: str) -> int | None:
    """Changes of rows that the slot has and the logs do not; None where that cannot be told: somebody reads it now, or
    there is too much to decode for a question."""
    name = sql.Identifier(publication_name(pipeline)).as_string()
    try:
        with source.transaction():
            source.execute("SELECT pg_catalog.set_config('statement_timeout', %s, true)", [UNREAD_TIMEOUT])
            row = source.execute(_Q["unread"], [slot_name(pipeline), name]).fetchone()
    except (pg.ObjectInUse, pg.UndefinedObject, pg.ObjectNotInPrerequisiteState, pg.QueryCanceled):
        return None
    return int(row[0]) if row else None


def refuse_lost(source: Session, target: Session, pipeline: str) -> None:
    """StageFailed where changes are gone that the logs do not have: a lag is none of that."""
    name, known = slot_name(pipeline), received(target, pipeline)
    row = source.execute(_Q["slot"], [name]).fetchone()
    since = "changes since then are in no log"
    todo = (
        "`pgddl reset` this pipeline and start again from setup, or set capture.on_slot_lost: restart_tables, "
        "which reads every table again"
    )
    if row is None or known is None:
        raise SlotLost(f"replication slot {name!r} was dropped; {since}", todo=todo)
    if row[2] == "lost":
        what = "has lost WAL that it needs: it fell behind by more than max_slot_wal_keep_size"
        raise SlotLost(f"replication slot {name!r} {what}; {since}", todo=todo)
    if row[0] != "pgoutput" or not row[1]:
        raise _somebody_elses(name)
    if parse_lsn(row[3]) > parse_lsn(known):
        what = (
            f"begins at {row[3]}, and the target has read up to {known} only: it was failed over to an older state, or "
            "somebody else has read the slot, or made it anew"
        )
        raise ReadBeyond(f"replication slot {name!r} {what}; {since}", row[3], todo)


def received(target: Session, pipeline: str) -> str | None:
    """How far the slot has been read into the logs; None where it was not made yet."""
    row = target.execute(_Q["received"], [pipeline]).fetchone()
    return row[0] if row else None


def begin_capture(
    source: Session, target: Session, fence: Fence, pipeline: str, prepared: Table, lock_timeout: float
) -> tuple[Table, str]:
    """One table's log, and its leaves into the publication; returns the table as described under their lock.

    SHARE ROW EXCLUSIVE waits for every writer: adding a table to a publication does not (C2). LockNotAvailable when
    `lock_timeout` (seconds) runs out; TableChanged where the table is no longer what was prepared for.
    """
    _refuse_unfit(source, prepared)
    log = log_name(pipeline, prepared.oid)
    with lease.fenced(target, fence, "capture.before_slot_log_commit"):
        _create_log(target, prepared, log)
    with source.transaction():
        now = change_log.keep_writers_out(source, prepared, lock_timeout)
        _refuse_unfit(source, now)  # what has become so meanwhile is not published, so no event trigger has seen to it
        as_leaves = catalog.describe(source, [leaf.oid for leaf in now.leaves])
        for leaf in now.leaves:
            _publish(source, pipeline, now, leaf, as_leaves[leaf.oid], log)
        captured = catalog.describe(source, [prepared.oid], change_log.capture_names(pipeline))[prepared.oid]
        failpoint("capture.before_published_commit", source)
        return captured, log


def _refuse_unfit(source: Session, table: Table) -> None:
    for leaf_name, what, fix in unfit(source, table):
        raise PreflightRefused(what, table=leaf_name, sql=fix)


def unfit(source: Session, table: Table) -> Iterator[tuple[str, str, str]]:
    """(relation, what is wrong with it, SQL) of each leaf that a publication does not go with: an application's UPDATE
    must not fail for it (C19), and an old key has to be in the WAL."""
    generated = [c.name for c in table.columns if c.generated]
    checked = source.info.server_version >= GENERATED
    for leaf in table.leaves:
        row = source.execute(_Q["replica_identity"], [leaf.oid]).fetchone()
        if row is None:
            continue  # dropped just now
        identity, persistence, columns = row
        key = table.key.columns if table.key else columns
        others, missing = sorted({*columns} - {*key}), [name for name in key if name not in columns]
        name = sql.Identifier(leaf.schema, leaf.name).as_string()
        ways = f"ALTER TABLE {name} REPLICA IDENTITY FULL;  -- or USING INDEX"
        if generated and checked:
            ways = f"ALTER TABLE {name} REPLICA IDENTITY USING INDEX …;  --"
        if persistence != "p":
            what, fix = "is unlogged: its changes are in no WAL", f"ALTER TABLE {name} SET LOGGED;"
        elif not checked and any(c in key for c in generated):
            what = f"has a generated column ({', '.join(generated)}) in its key, which only Postgres 18 publishes"
            fix = "-- in the pipeline file: capture: {rows: change_log}"
        elif identity == "f" and generated and checked:
            what = f"has {', '.join(generated)} in its replica identity, which is generated: its UPDATE would fail"
            fix = f"ALTER TABLE {name} REPLICA IDENTITY DEFAULT;  -- or USING INDEX one over the key"
        elif identity == "f":
            continue
        elif not columns:  # or its index was dropped, or is deferrable
            what = "has no replica identity: in a publication its UPDATE and DELETE would fail"
            fix = f"{ways} a unique one"
        elif others and source.info.server_version >= COLUMN_LISTS:
            what = f"has {', '.join(others)} in its replica identity, not in the key: published, its UPDATE would fail"
            fix = f"{ways} one over the key"
        elif missing:
            what = f"lacks {', '.join(missing)} of the key in its replica identity: the WAL would lack old keys"
            fix = f"{ways} one over the key"
        else:
            continue
        yield f"{leaf.schema}.{leaf.name}", f"{what} (capture.rows: wal)", fix


def _create_log(target: Session, table: Table, log: str) -> None:
    keys = change_log.key_columns(table, user_types="text")  # the target may not have them yet, nor a new label of one
    target.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(log_table(log)))
    target.execute(sql.SQL(_Q["log_table"]).format(log=log_table(log), keys=keys))
    target.execute(sql.SQL("ALTER TABLE {} REPLICA IDENTITY FULL").format(log_table(log)))


def _publish(source: Session, pipeline: str, table: Table, leaf: Leaf, as_leaf: Table, log: str) -> None:
    assert table.key is not None
    by_name = {c.name: c for c in as_leaf.columns}
    keys = [by_name[k] for k in table.key.columns]
    source.execute(
        _Q["register"], [pipeline, table.oid, leaf.oid, log, [k.attnum for k in keys], [k.type_oid for k in keys]]
    )
    publication, relation = sql.Identifier(publication_name(pipeline)), sql.Identifier(leaf.schema, leaf.name)
    row = source.execute(queries("capture")["published"], [publication_name(pipeline), leaf.oid]).fetchone()
    if row and row[0]:  # perhaps with another list
        source.execute(sql.SQL("ALTER PUBLICATION {} DROP TABLE ONLY {}").format(publication, relation))
    source.execute(publish_statement(source, pipeline, table, leaf))


def publish_statement(source: Session, pipeline: str, table: Table, leaf: Leaf) -> sql.Composed:
    """With its key's columns alone, but where its whole rows are its identity (C19)."""
    assert table.key is not None
    publication, relation = sql.Identifier(publication_name(pipeline)), sql.Identifier(leaf.schema, leaf.name)
    identity = source.execute(_Q["replica_identity"], [leaf.oid]).fetchone()
    columns: sql.Composable = sql.SQL("")
    if source.info.server_version >= COLUMN_LISTS and identity is not None and identity[0] != "f":
        columns = sql.SQL(" ({})").format(sql.SQL(", ").join(map(sql.Identifier, table.key.columns)))
    return sql.SQL("ALTER PUBLICATION {} ADD TABLE ONLY {}{}").format(publication, relation, columns)


def stop_slot(source: Session, pipeline: str) -> None:
    name = slot_name(pipeline)
    failpoint("forget.before_rows_slot", source)
    _drop_slot(source, name)
    failpoint("forget.before_rows_publication", source)
    source.execute(sql.SQL("DROP PUBLICATION IF EXISTS {}").format(sql.Identifier(name)))


# --- reading ----------------------------------------------------------------------------------------------------------


def receive_into_logs(
    source: Session,
    target: Session,
    stream: Callable[[], AbstractContextManager[SlotStream]],
    pipeline: str,
    fence: Fence,
    masked: Mapping[int, str],
    say: Callable[[str], None],
) -> None:
    """Reads the slot into the logs, up to what the source had committed when this was called. `masked` are the tables
    of which values may not leave the source, with their logs: of one that was attached to another table, whose key may
    be just these values, none is taken.

    In transactions of the target that end where one of the source's does, each with how far it has come, which is
    confirmed once it has committed. No session is in a transaction. Runs of one pipeline take turns.
    """
    name = f"pgddl rows {pipeline}"
    _let_restart_here(source)
    end = marker(source)
    with one_at_a_time(target, name, say):
        recorded, now_on = _recorded_timeline(target, pipeline), catalog.server(source).timeline
        _refuse_other_timeline(recorded, now_on)
        known = received(target, pipeline)
        refuse_lost(source, target, pipeline)
        assert known is not None
        if parse_lsn(known) >= end:
            if backlog(source, target, pipeline) < 0:
                raise Retry(
                    f"the source went back to an older state just now (its WAL was read up to {known})",
                    todo="run the stage again, which sees to it",
                )
            return  # by another run
        now = Snapshot.parse(catalog.current_snapshot(source))
        leaves = _captured(source, pipeline)
        there = {log for (log,) in target.execute(_Q["logs_there"], [list({leaf.log for leaf in leaves.values()})])}
        # Of a table that was dropped just now the log may be gone before its capture is.
        leaves = {
            oid: replace(leaf, unread=masked.get(oid, leaf.log) != leaf.log)
            for oid, leaf in leaves.items()
            if leaf.log in there
        }
        with stream() as slot:
            _refuse_other_timeline(recorded, slot.timeline)
            rows = KeyRows(leaves, now, parse_lsn(known), slot.relations)
            items = decode(rows.others(slot.messages(end)))
            over = False
            while not over:
                with lease.fenced(target, fence, "slot.before_received_commit"):
                    try:
                        over = _write_some(target, rows, items, slot)
                    except NotVisibleYet:
                        raise GaveWay(
                            "a transaction of the source that has committed is not visible yet: it waits for a standby",
                            todo="nothing: this is tried again",
                        ) from None
                    reached = end if over or rows.border is None else rows.border
                    if target.execute(_Q["set_received_of"], [format_lsn(reached), pipeline, recorded]).rowcount == 0:
                        _refuse_other_timeline(_recorded_timeline(target, pipeline), recorded)
                failpoint("slot.before_confirm")
                slot.confirm(reached)


def _recorded_timeline(target: Session, pipeline: str) -> int:
    row = target.execute(_Q["recorded_timeline"], [pipeline]).fetchone()
    assert row is not None
    return int(row[0])


def _refuse_other_timeline(recorded: int, found: int) -> None:
    """LSNs of two timelines are of two histories: what is known of one says nothing of the other (C33)."""
    if recorded != found:
        raise Retry(
            f"the source was failed over just now (timeline {recorded} → {found})",
            todo="run the stage again, which sees to it",
        )


def go_back(source: Session, target: Session, pipeline: str, tables: Sequence[TableRow], switch: str | None) -> None:
    """To where the source's timeline was left (None: not known) or the slot begins, in the caller's transaction, which
    records the new one. What the logs have from behind there is of transactions that never were, whose ids come again:
    no snapshot tells them apart, so every window takes these keys, and reads them as they are; nothing was truncated.
    """
    row = source.execute(_Q["slot"], [slot_name(pipeline)]).fetchone()
    known = received(target, pipeline)
    if row is None or row[3] is None or known is None:
        return  # told by whoever reads it
    reached = max(row[3], switch or row[3], key=parse_lsn)
    if parse_lsn(known) <= parse_lsn(reached):
        return
    there = {log for (log,) in target.execute(_Q["logs_there"], [[t.log_table for t in tables]])}
    for table in (t for t in tables if t.log_table in there):
        old, new = table.plan.key.list("old_"), table.plan.key.list("new_")
        to_new = sql.SQL(", ").join(
            sql.SQL("{} = {}").format(sql.Identifier(f"old_{n}"), sql.Identifier(f"new_{n}"))
            for n in range(1, len(table.plan.key.columns) + 1)
        )
        for name in ("keep_old_keys", "keep_new_keys", "forget_never_was"):
            statement = sql.SQL(_Q[name]).format(
                log=log_table(table.log_table), old=old, new=new, to_new=to_new, switch=sql.Literal(reached)
            )
            target.execute(statement)
    target.execute(_Q["set_received"], [reached, pipeline])


def _let_restart_here(source: Session) -> None:
    """A slot is read from the last record of what was in progress, which the server writes every 15 s by itself: all
    WAL since then would be decoded again by the next reader. Before 16, and without the right, it is."""
    if source.info.server_version >= LOGS_SNAPSHOTS and source.execute(_Q["may_log_snapshot"]).fetchone() == (True,):
        source.execute(_Q["log_snapshot"])


def _captured(source: Session, pipeline: str) -> dict[int, CapturedLeaf]:
    return {
        leaf: CapturedLeaf(log, key, types, dict(zip(numbers, names, strict=True)), dropped)
        for leaf, log, key, types, numbers, names, dropped in source.execute(_Q["captured"], [pipeline]).fetchall()
    }


def _write_some(target: Session, rows: KeyRows, items: Iterator[Item], slot: SlotStream) -> bool:
    """Up to a border behind enough lines; whether that was the end. A transaction of any size takes little memory."""
    written = False
    for item in items:
        at_border = rows.take(item, slot.at)
        if rows.full:
            _write(target, rows)
            written = True
        if at_border and written:
            _write(target, rows)
            return False
    _write(target, rows)
    return True


def _write(target: Session, rows: KeyRows) -> None:
    rows.settle()
    for log, lines in rows.lines.items():
        if lines:
            with target.cursor().copy(sql.SQL("COPY {} FROM STDIN").format(log_table(log))) as copy:
                copy.write(b"\n".join(lines) + b"\n")
    rows.clear()
