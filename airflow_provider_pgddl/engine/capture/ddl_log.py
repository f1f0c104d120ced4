"""The DDL log: what the event triggers of a source have recorded, in commit order.

Two transports with the same JSON. `queue`: rows of `pgddl.ddl_queue`, read at the window's snapshot like the change
log. `wal`: transactional logical messages, read through a slot of the pipeline's own.

A position is a snapshot: a read returns the events that the caller's snapshot shows and the position does not."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Literal, cast

import psycopg
from psycopg import errors as pg
from psycopg import sql

from airflow_provider_pgddl.engine.capture import granted
from airflow_provider_pgddl.engine.capture.pgoutput import format_lsn, logical_messages
from airflow_provider_pgddl.engine.capture.slot_stream import create_slot
from airflow_provider_pgddl.engine.ddl.captured_events import CapturedEvent, TableMeta
from airflow_provider_pgddl.engine.ddl.nested_commands import in_order
from airflow_provider_pgddl.engine.errors import (
    Retry,
    StageFailed,
    UsageError,
    no_logical_slot,
    no_such_exception,
    slot_in_use,
    slot_of_others,
)
from airflow_provider_pgddl.engine.failpoints import failpoint
from airflow_provider_pgddl.engine.server.connect import Session
from airflow_provider_pgddl.engine.server.lock_timeout import limit_lock_wait
from airflow_provider_pgddl.engine.sql import queries

_Q = queries("ddl_log")
PREFIX = "pgddl"
HOLD_WAIT = 2.0  # seconds that DDL may queue behind us while somebody else's is under way
HELD_AT_MOST = 60  # seconds that DDL waits for a dump or a try of a swap; then the server lets it go on
OLDER_TRANSACTIONS_WAIT = 60.0  # seconds; then a retryable error names who is in the way
Transport = Literal["queue", "wal"]
EVENT_TRIGGERS = ("pgddl_1_client", "pgddl_2_command", "pgddl_2_drop", "pgddl_2_rewrite")


@dataclass(frozen=True, slots=True)
class Read:
    """What one read found. Redelivery is normal: events are known by their ids."""

    events: list[CapturedEvent]
    """Transactions in the order of their commits, inside one by `seq`."""
    position: str
    """The caller's snapshot: the next read starts from it, once these events are in the journal."""
    lsn: str
    """The source's insert position after the snapshot: all of these events were written below it."""
    confirm_lsn: str | None
    """How far the slot may be advanced once these events are in the journal; None for the queue."""
    lost: list[dict[str, Any]]
    """Unresolved rows of pgddl.exceptions of transactions that the position did not show: changes that were not, or
    not wholly, recorded. Nothing may be taken for followed until a person has looked at them."""
    types: dict[int, str]
    """What the caller's snapshot shows of each enum and composite type, by oid; nothing for the queue, which tells."""


def start(source: Session, pipeline: str, transport: Transport, *, failover: bool = False) -> None:
    """Makes the event triggers and turns the pipeline's capture on; does nothing where that is so. `failover`: standbys
    keep the slot in step.

    A transaction with a snapshot older than this call's commit may still run commands that are not recorded: wait for
    these (setup does) before the schema is read.
    """
    if transport == "wal":
        _start_slot(source, pipeline, failover)
    with source.transaction():
        source.execute(_Q["lock_captures"])
        in_use = bool(_row(source, "still_wanted")[0])
        if source.execute(_Q["set_transport"], {"pipeline": pipeline, "transport": transport}).rowcount == 0:
            raise UsageError(f"pipeline {pipeline!r} is not registered on this source", todo="run setup")
        if in_use:
            _refuse_gaps(source)
        else:
            _create_event_triggers(source)
        failpoint("setup.before_event_triggers_commit", source)
    _speak_english(source)
    if _row(source, "identities_kept")[0]:
        # Each in a transaction of its own: an event trigger does not wait for it.
        for (oid,) in source.execute(_Q["unidentified"]).fetchall():
            failpoint("setup.before_identity", source)
            source.execute(_Q["identify"], [oid])


def is_on(source: Session, pipeline: str) -> bool:
    """Whether this pipeline's DDL is captured here."""
    row = source.execute(_Q["transport"], [pipeline]).fetchone() if _row(source, "registered")[0] else None
    return bool(row and row[0] != "off")


def may_make_event_triggers(source: Session) -> bool:
    """Tried, and rolled back: managed servers let roles make them that are no superusers."""
    try:
        with source.transaction(force_rollback=True):
            source.execute(_Q["probe_function"])
            source.execute(_Q["probe_trigger"])
    except pg.InsufficientPrivilege:
        return False
    return True


def are_there(source: Session) -> bool:
    """Whether all event triggers are there, enabled, though none of ours: an administrator has made them."""
    known = dict(source.execute(_Q["known_event_triggers"]).fetchall())
    return all(known.get(name) in ("O", "A") for name in EVENT_TRIGGERS)


def _create_event_triggers(source: Session) -> None:
    try:
        with source.transaction():
            for name, _ in source.execute(_Q["known_event_triggers"]).fetchall():
                source.execute(sql.SQL("DROP EVENT TRIGGER {}").format(sql.Identifier(name)))
            source.execute(_Q["event_triggers"])
    except pg.InsufficientPrivilege as error:
        if granted.is_granted(source) and are_there(source):
            return
        raise StageFailed(
            f"event triggers cannot be made: {error.diag.message_primary}",
            todo="have an administrator run what `pgddl check --admin-sql` prints, or set capture.ddl: off",
        ) from None


def _refuse_gaps(source: Session) -> None:
    """Where somebody took an event trigger away, what was run meanwhile is recorded nowhere: never made anew in
    silence."""
    known = dict(source.execute(_Q["known_event_triggers"]).fetchall())
    missing = [name for name in EVENT_TRIGGERS if name not in known]
    disabled = [name for name in EVENT_TRIGGERS if known.get(name) in {"D", "R"}]
    if missing or disabled:
        raise StageFailed(
            f"event triggers of DDL capture were {'dropped' if missing else 'disabled'} by hand"
            f" ({', '.join(missing or disabled)}): what was run meanwhile is not recorded",
            todo="compare the schemas, then "
            + ("`pgddl reset` the pipelines of this source" if missing else "enable them and run this again"),
            sql="\n".join(f"ALTER EVENT TRIGGER {name} ENABLE;" for name in disabled) or None,
        )


def _start_slot(source: Session, pipeline: str, failover: bool) -> None:
    """Before any message is sent, so that none comes too early for it; publication first, for the slot's decoding looks
    that up as of each message."""
    name = ddl_slot_name(pipeline)
    if not _row(source, "publication_exists", name)[0]:
        source.execute(sql.SQL("CREATE PUBLICATION {}").format(sql.Identifier(name)))
    failpoint("setup.before_ddl_slot", source)
    row = source.execute(_Q["transport"], [pipeline]).fetchone()
    if source.execute(_Q["slot"], [name]).fetchone() is None and not (row and row[0] == "wal"):
        try:
            create_slot(source, name, failover=failover)
        except pg.ObjectNotInPrerequisiteState as error:
            raise no_logical_slot(error, "capture.ddl: queue") from None
    _refuse_lost_slot(source, name)


def _refuse_lost_slot(source: Session, name: str) -> None:
    row = source.execute(_Q["slot"], [name]).fetchone()
    if row is None or row[2] == "lost":
        raise StageFailed(
            f"replication slot {name!r} {'was dropped' if row is None else 'has lost WAL that it needs'}:"
            " schema changes since its last read cannot be read any more",
            todo="compare the schemas, then `pgddl reset` this pipeline; capture.ddl: queue keeps no WAL back",
        )
    if row[0] != "pgoutput" or not row[1]:
        raise slot_of_others(name, f" (plugin {row[0]}, this database: {row[1]})")


def ddl_slot_name(pipeline: str) -> str:
    """The slot's and the publication's."""
    return f"pgddl_{pipeline}"


def stop(source: Session, pipeline: str) -> None:
    """Takes this pipeline's DDL capture away, and the event triggers with the last one. Retry where a transaction that
    may still be in one of their functions does not end."""
    if not _row(source, "registered")[0]:
        return
    with source.transaction():
        source.execute(_Q["lock_captures"])
        source.execute(_Q["set_transport"], {"pipeline": pipeline, "transport": "off"})
        wanted = _row(source, "still_wanted")[0]
        if not wanted and not granted.is_granted(source):
            for name, _ in source.execute(_Q["known_event_triggers"]).fetchall():
                source.execute(sql.SQL("DROP EVENT TRIGGER {}").format(sql.Identifier(name)))
        source.execute(_Q["forget_passed"])
        failpoint("forget.before_event_triggers_commit", source)
    _drop_slot(source, ddl_slot_name(pipeline))
    failpoint("forget.before_older_transactions")
    if not wanted:
        _wait_for_older_transactions(source)


def _drop_slot(source: Session, name: str) -> None:
    try:
        source.execute(_Q["drop_slot"], [name])
    except pg.ObjectInUse as error:
        raise slot_in_use(error) from None
    failpoint("forget.before_ddl_publication", source)
    source.execute(sql.SQL("DROP PUBLICATION IF EXISTS {}").format(sql.Identifier(name)))


def _wait_for_older_transactions(source: Session) -> None:
    """A command that is under way may have looked up a trigger's function already, and would fail without it."""
    snapshot, _ = _row(source, "now")
    deadline = time.monotonic() + OLDER_TRANSACTIONS_WAIT
    while older := source.execute(queries("catalog")["transactions_before"], {"snapshot": snapshot}).fetchall():
        if time.monotonic() > deadline:
            who = ", ".join(f"prepared transaction {gid!r}" if gid else f"process {pid} of {user}"
                            for _, pid, user, gid in older)  # fmt: skip
            raise Retry(
                f"transactions that may still use the event triggers' functions did not end within"
                f" {OLDER_TRANSACTIONS_WAIT:.0f} s: {who}",
                todo="commit, roll back or end them, then run this again",
            )
        time.sleep(0.1)


def _speak_english(source: Session) -> None:
    """Where it may not be set, commands inside functions have no text of their own on a server that speaks another
    language, and are rebuilt."""
    with suppress(pg.InsufficientPrivilege), source.transaction():
        source.execute(_Q["english_context"])
        failpoint("setup.before_language_commit", source)


def read(
    source: Session, other: Callable[[], Session], pipeline: str, transport: Transport, position: str | None
) -> Read:
    """The events that the caller's REPEATABLE READ transaction on `source` shows and `position` does not; None shows
    nothing. `other` gives an autocommit session on the same source, where one is needed."""
    _refuse_gaps(source)
    snapshot, lsn = _row(source, "now")
    confirm_lsn = None
    if transport == "queue":
        events = [event for (event,) in source.execute(_Q["queued"], {"position": position})]
    else:
        events, confirm_lsn = _decode(other(), ddl_slot_name(pipeline), snapshot, position)
    shown = {} if transport == "queue" else _types(source)
    return Read(_completed(events), snapshot, lsn, confirm_lsn, _lost(source, position), shown)


def _types(source: Session) -> dict[int, str]:
    """A digest of each by which values that are written one way are told from such as mean something else."""
    return dict(source.execute(_Q["types"]).fetchall())


def _decode(other: Session, slot: str, snapshot: str, position: str | None) -> tuple[list[CapturedEvent], str]:
    """The slot's events that `snapshot` shows and `position` does not, and how far it may be confirmed: a commit can be
    decoded before snapshots show it (C1), so never past the first one that this snapshot does not show."""
    _refuse_lost_slot(other, slot)
    (upto,) = _row(other, "marker")
    (token,) = _row(other, "token")
    try:
        rows = other.execute(_Q["peek"], {"slot": slot, "upto": upto, "publication": f'"{slot}"'}).fetchall()
    except pg.ObjectInUse as error:
        raise Retry(f"{error.diag.message_primary}", todo="end that process, or wait for it") from None
    found = [
        (m.commit_lsn, m.content[len(token) :])
        for m in logical_messages(data for (data,) in rows)
        if m.prefix == PREFIX and m.content.startswith(token.encode())
    ]
    texts = _texts(other, [content for _, content in found])
    decoded = [(lsn, cast(CapturedEvent, json.loads(text))) for (lsn, _), text in zip(found, texts, strict=True)]
    xids = list({event["xid"] for _, event in decoded})
    shown = _shown(other, xids, snapshot)
    known = _shown(other, xids, position) if position is not None else set()
    hidden = [lsn for lsn, event in decoded if event["xid"] not in shown]
    events = [event for _, event in decoded if event["xid"] in shown and event["xid"] not in known]
    return events, format_lsn(min(hidden)) if hidden else upto


def _texts(session: Session, contents: Sequence[bytes]) -> Sequence[bytes | str]:
    """What messages say: nobody converts their bytes from the database's encoding on the way."""
    if not contents or session.info.parameter_status("server_encoding") == "UTF8":
        return contents
    return [text for (text,) in session.execute(_Q["texts"], [list(contents)])]


def _shown(session: Session, xids: list[str], snapshot: str) -> set[str]:
    return {xid for (xid,) in session.execute(_Q["shown"], {"xids": xids, "snapshot": snapshot})}


def _completed(events: list[CapturedEvent]) -> list[CapturedEvent]:
    """With the statement and its words where only the first command of a long string has brought them; behind what made
    the objects that they are about; and with `seq` from 1 in each transaction (the source numbers them by a sequence,
    which cannot be set back)."""
    first = dict[tuple[str, str], CapturedEvent]()
    for event in events:
        key = (event["xid"], event["batch"])
        if cast(str | None, event["statement"]) is None:
            _inherit(event, first.get(key))
        first[key] = event
    events = in_order(events)
    seen = Counter[str]()
    for event in events:
        seen[event["xid"]] += 1
        event["seq"] = seen[event["xid"]]
    return events


def _inherit(event: CapturedEvent, before: CapturedEvent | None) -> None:
    """From the command before it: the string, and its words as that command and this one have changed them."""
    event["statement"] = before["statement"] if before else ""
    for key, catalogs in (("names", {"pg_class", "pg_type"}), ("functions", {"pg_proc"})):
        words = dict[str, str](before[key]) if before else {}  # type: ignore[literal-required]
        for gone in event["dropped"]:
            if gone["classid"] in catalogs and gone["name"] is not None and words.get(gone["name"]) == gone["schema"]:
                del words[gone["name"]]
        path = {schema: n for n, schema in enumerate(event["path"])}
        for made in event["objects"]:
            name, schema = made["name"], made["schema"]
            if made["classid"] not in catalogs or made["objsubid"] or name is None or schema not in path:
                continue
            if path[schema] <= path.get(words.get(name, ""), len(path)):
                words[name] = schema
        event[key] = words | event[key]  # type: ignore[literal-required]  # a nested command's own were looked up


def _lost(source: Session, position: str | None) -> list[dict[str, Any]]:
    cursor = source.execute(_Q["lost"], {"position": position})
    keys = ("id", "tag", "what", "statement", "relation", "role", "happened_at")
    return [dict(zip(keys, row, strict=True)) for row in cursor]


@contextmanager
def held(session: Session, *, everything: bool = False) -> Iterator[None]:
    """Keeps clients' DDL that may change a dump, or all that a dump shows, from starting, by a transaction of
    `session`, which is for this alone.

    It waits before it has locked anything, so nobody queues behind it. Without effect where such DDL of somebody else
    is under way for long, and once HELD_AT_MOST has passed: then the events tell what came."""
    session.execute("BEGIN")
    try:
        with suppress(pg.LockNotAvailable, pg.DeadlockDetected, pg.UndefinedTable, pg.InsufficientPrivilege):
            limit_lock_wait(session, HOLD_WAIT)
            session.execute(_Q["hold_limit"], [f"{HELD_AT_MOST}s"])
            session.execute(_Q["hold_all" if everything else "hold_what_changes_dumps"])
        yield
    finally:
        with suppress(psycopg.Error):  # the server has ended it
            session.rollback()


def is_held(source: Session) -> bool:
    """Whether clients' DDL waits for a pipeline just now, whichever it is."""
    return source.execute(_Q["is_held"]).fetchone() == (True,)


def confirm(other: Session, pipeline: str, read: Read) -> None:
    """Once the journal has committed these events and the position: the source may forget them."""
    failpoint("follow.before_confirm", other)
    if read.confirm_lsn is not None:
        other.execute(_Q["advance"], {"slot": ddl_slot_name(pipeline), "upto": read.confirm_lsn})
    with other.transaction():
        other.execute(_Q["confirm"], [read.position, pipeline])
        other.execute(_Q["forget_passed"])
        failpoint("follow.before_confirm_commit", other)


def confirmed(source: Session, pipeline: str) -> str | None:
    """The position that a journal has confirmed last, as the source knows it; None: none."""
    row = source.execute(_Q["confirmed"], [pipeline]).fetchone()
    return row[0] if row else None


def is_confirmed_beyond(source: Session, pipeline: str, position: str | None) -> bool:
    """Whether a journal has confirmed a later position of the queue than this one (C11). Positions are confirmed only
    where there was something to read, and in the journal first."""
    row = source.execute(_Q["confirmed_beyond"], {"pipeline": pipeline, "position": position}).fetchone()
    return bool(row and row[0])


def set_enabled(source: Session, pipeline: str, enabled: bool) -> None:
    """Whether the pipeline's events are to be applied. They are recorded all the same, and say that it was off."""
    if source.execute(_Q["set_enabled"], [enabled, pipeline]).rowcount == 0:
        raise UsageError(f"pipeline {pipeline!r} captures nothing on this source", todo="run setup")


def resolve_exception(source: Session, number: int, note: str) -> None:
    """A person has seen to what an exception told of."""
    if source.execute(_Q["resolve_exception"], [note, number]).rowcount == 0:
        raise no_such_exception(number)


def describe_relations(source: Session, relations: list[int]) -> dict[int, TableMeta]:
    """Relations and their descendants as an event would show them now, by oid."""
    (described,) = source.execute(_Q["describe"], [relations]).fetchone() or ({},)
    return {int(oid): cast(TableMeta, meta) for oid, meta in described.items()}


def _row(session: Session, name: str, *args: object) -> tuple[Any, ...]:
    row: tuple[Any, ...] | None = session.execute(_Q[name], args or None).fetchone()
    assert row is not None
    return row


def type_altered(source: Session, pipeline: str, position: str, followed: Mapping[int, str]) -> bool:
    """Whether the snapshot shows an ALTER TYPE that has not been followed: a label of another name would be taken for
    what it was before. The queue tells; where DDL comes by a slot, the `types` of the last read."""
    row = source.execute(_Q["type_altered"], {"pipeline": pipeline, "position": position}).fetchone()
    if row and row[0]:
        return True
    return bool(followed) and any(followed.get(oid, now) != now for oid, now in _types(source).items())
