"""Failpoints: named places at which a test ends, fails or holds an application of the engine.

Every border between two commits has a name, and so has every other moment at which tests have to step in. A failpoint
does nothing unless a test has turned it on in its own process, or `PGDDL_FAILPOINTS` has for an application's:

    PGDDL_FAILPOINTS="/tmp/marks replay.before_source_commit=kill@2 backfill.before_chunk_commit=lose"

First a folder, in which each failpoint that has struck leaves a file of its name: it strikes once, in whichever process
of the application comes there first, and a test can tell that it has. Then names with what they do:

kill          ends the process as `kill -9` does
lose          cuts the connections that are about to commit, and raises what psycopg raises of them
error:NAME    raises this class of `engine.errors` or `psycopg.errors`
wait          holds the process until there is a file NAME.go in the folder, for no longer than WAIT_AT_MOST

`@2` is the second time that a process comes there. The variable is read from the environment of the operating system's
process and from nowhere else: no pipeline file, no job file and no argument of an operator can set it."""

from __future__ import annotations

import os
import shlex
import signal
import socket
import time
from collections.abc import Callable, Mapping
from itertools import count
from pathlib import Path
from typing import Any

import psycopg

from airflow_provider_pgddl.engine import errors
from airflow_provider_pgddl.engine.errors import PgddlError, Retry, UsageError

VARIABLE = "PGDDL_FAILPOINTS"
WAIT_AT_MOST = 120.0  # seconds, so that no process of a test that has died is left

Connections = tuple[psycopg.Connection[Any], ...]
Act = Callable[[Connections], object]

# In the order of the lifecycle, each with what is committed there and what is not. "Before the commit" is inside of the
# transaction, with all that it does done. docs/reference/failpoints.md is this list.
NAMES: Mapping[str, str] = {
    # Every stage.
    "stage.before_nothing_to_do_commit": "A finished pipeline: that the stage had nothing to do is not recorded yet.",
    "stage.before_token": "The lock is held; whatever an older run has under way may still commit.",
    "stage.before_start_commit": "Nothing of the stage is done, and that it has begun is not recorded.",
    "stage.before_result_commit": "All of the stage is done and committed, its result is not recorded.",
    "stage.after_result_commit": "The result is recorded, and whoever waits for the process has not got it.",
    # setup
    "migrations.before_up_commit": "A set of objects (journal, core, injector) is made as a whole or not at all.",
    "setup.before_core": "The journal is there, and nothing on the source.",
    "setup.before_injector": "Journal and core are there, what keeps identities is not.",
    "setup.before_name": "All sets are there; the source does not know the pipeline.",
    "setup.before_pipeline_commit": "The source knows the pipeline, the journal does not.",
    "setup.before_ddl_slot": "`capture.ddl: wal`: the publication is there, its slot is not.",
    "setup.before_event_triggers_commit": "Event triggers, and that the pipeline's capture of DDL is on.",
    "setup.before_language_commit": "DDL is captured; what functions run is told in the server's language.",
    "setup.before_identity": "DDL is captured; a table's injected identity is not made yet.",
    "setup.before_rows_slot": "`capture.rows: wal`: the publication is there, its slot is not.",
    "setup.before_rows_slot_noted": "The slot is there; the journal does not know where it begins.",
    "capture.before_log_commit": "Logs and functions of tables are made, without a trigger.",
    "capture.before_start_lock": "A table has its log and functions; writers go on without its triggers.",
    "capture.before_triggers_commit": "The triggers are made under the lock that keeps writers out.",
    "capture.before_slot_log_commit": "`capture.rows: wal`: a table's log is made on the target.",
    "capture.before_published_commit": "The table joins the publication under the lock that keeps writers out.",
    "setup.before_table_commit": "Tables are captured, the journal does not know them.",
    "capture.before_keyless_commit": "A table without a key is noted for the swap.",
    "setup.before_older_transactions": "All tables are captured and recorded; transactions may be older than capture.",
    # snapshot
    "snapshot.before_look": "The dump's snapshot is exported, and no table has been looked at by it.",
    "snapshot.before_pg_dump": "The dump's snapshot is exported, and nothing is dumped.",
    "snapshot.after_pg_dump": "The schema is dumped, and nothing is recorded.",
    "follow.before_flush": "Events are read that a crash of the source could still lose; nothing is recorded.",
    "follow.after_flush": "The source cannot lose the events that were read; nothing is recorded.",
    "follow.before_lost_track_commit": "A leaf was truncated that the copy has otherwise: its log asks for all rows.",
    "follow.before_events_commit": "Events and the position behind them go into the journal.",
    "snapshot.before_versions_commit": "Events that the dump shows are recorded, the first versions of tables are not.",
    "follow.before_confirm": "The journal has the events, and the source keeps them still.",
    "follow.before_confirm_commit": "`capture.ddl: wal`: the slot has moved on, the source's own mark has not.",
    "snapshot.before_statements_commit": "The dump's statements go into the journal; none is applied.",
    "apply.before_statement_commit": "A recorded statement is run and marked.",
    "apply.before_group_commit": "A group of recorded statements is run and marked.",
    "apply.before_skipped_commit": "A schema was there already; its statement is to be marked as skipped.",
    "apply.before_failed_commit": "A statement was rolled back; that it failed is not recorded.",
    "snapshot.before_copies_commit": "Copies are made, no row may come: their tables become created.",
    "snapshot.before_partitions_commit": "A copy is planned; its first partitions are made.",
    # backfill
    "backfill.before_look_commit": "Whatever changed since the snapshot is followed; tables are looked at.",
    "backfill.before_chunks_commit": "The chunks of a group of tables are laid out.",
    "backfill.before_chunk": "A chunk is claimed and none of its rows is read.",
    "backfill.before_chunk_commit": "A chunk's rows and its mark are written.",
    "backfill.before_split_commit": "A chunk was rolled back; the partitions that its rows need are made.",
    "backfill.before_restart_commit": "A table's file was replaced: its copy is emptied, its chunks are forgotten.",
    "backfill.before_finished_commit": "All chunks are done; their tables become backfilled.",
    # Tables that keep what the source deletes.
    "archive.before_begun_commit": "From its first window on, a table's copy keeps what the source deletes.",
    # Tables that the target had before.
    "adopt.before_noted_commit": "Tables of the target are to be taken as they are; no statement is recorded yet.",
    "adopt.before_undecided_commit": "What an earlier try was to keep of a table is not known as kept any more.",
    "adopt.before_extra_commit": "A table of keys is made for rows of the target that are to stay.",
    "adopt.before_compared_commit": "What differs has left, and tables become such as were compared.",
    # schema_sync
    "waiting.before_drop_commit": "An index of the copy that only bears the name of one of the source's is dropped.",
    "waiting.before_statements_commit": "Statements that wait are replaced by those of a later dump.",
    "schema_sync.before_analyze": "Indexes are built, the copies are not analyzed.",
    "schema_sync.before_indexed_commit": "All is built; tables become indexed, and their verdicts are recorded.",
    "direct.before_hand_over_commit": "A log is drained, and writers are to write to the copy themselves.",
    "direct.after_hand_over": "Writers write to the copy, and no window has been since.",
    "direct.before_take_back_commit": "Writers are to write to the log again.",
    # replay, and every window of other stages
    "sequences.before_ahead_commit": "The target's sequences move ahead of the source's.",
    "replay.before_lock": "A window has begun and knows its tables' names, without a lock and without a snapshot.",
    "replay.after_lock": "The tables are locked, the snapshot is not taken.",
    "replay.after_snapshot": "The snapshot is taken, the logs are not read.",
    "replay.before_flush": "Keys have left the copies and rows have come; the source could still lose their commits.",
    "replay.before_target_commit": "All of a window is written to the target; the log is as it was.",
    "replay.before_acknowledge": "The target has committed a window whose rows are still in the log.",
    "replay.before_source_commit": "Log rows are deleted and the window's number is noted; in place all of the window.",
    "replay.before_fill_commit": "A share of pending keys is taken out and its rows have come.",
    "replay.before_fold_commit": "What windows have counted is summed up.",
    "slot.before_received_commit": "`capture.rows: wal`: changes are written into the logs, with how far they reach.",
    "slot.before_confirm": "The logs have the changes, and the slot keeps them still.",
    "slot.before_anew": "`capture.on_slot_lost`: the lost slot is dropped, no new one is made.",
    "slot.before_lost_changes_commit": "A slot has let go of changes that no log has; nothing is recorded of that.",
    "slot.before_anew_commit": "A new slot is there; every log is to say that it does not know what changed.",
    # DDL that follows
    "ddl.before_event": "Events are recorded; the next one is not begun.",
    "ddl.before_whole_room_commit": "Before DDL: a copy whose log is gone, or is another's, is emptied.",
    "ddl.before_block_room_commit": "Before DDL: changed rows leave a copy that is read by blocks.",
    "ddl.before_room_commit": "Before DDL: changed rows leave their copies and become pending.",
    "ddl.before_attempt_commit": "An attempt at an event is noted as begun.",
    "sequences.before_reach_commit": "Sequences go to where DDL about them finds them on the source, or back.",
    "ddl.before_commit": "An event's statements are run and marked.",
    "ddl.before_concurrently": "`applying` is recorded; a statement that refuses a transaction is not begun.",
    "ddl.before_repair": "What such a statement has left in part is there.",
    "ddl.before_concurrently_commit": "Such a statement is through; it is to be marked.",
    "ddl.before_failed_commit": "An event was rolled back; that it failed is not recorded.",
    "ddl.before_skipped_commit": "An event has nothing to run here; that is not recorded.",
    "ddl.before_put_off_commit": "An event did not get its locks; that it waits is not recorded.",
    "schema.before_alterations": "What is to be altered of a table is known; nothing is locked.",
    "schema.before_approved_commit": "A person has approved what auto_migrate would do; nothing of it is run.",
    "sync.before_request_commit": "A person asks for a schema sync; no stage has heard of it.",
    "sync.before_ended_commit": "A stage has seen to the request; that it has is not recorded.",
    "schema.before_alterations_commit": "What the policy, or schema sync --apply, alters of one table.",
    "settle.before_dropped_commit": "The capture of a dropped table is gone, the journal still has the table.",
    "settle.before_attached_commit": "The capture of what became a partition is gone, the journal still has the table.",
    "settle.before_later_part_commit": "A table has become a partition of one that nobody follows yet.",
    "settle.before_capture_again": "A table's capture is gone, and no new one is made.",
    "capture.before_stop_lock": "A table is captured, and writers go on.",
    "capture.before_unpublish_lock": "The same, where a slot captures it.",
    "capture.before_stop_commit": "A table's triggers, functions and log are dropped.",
    "capture.before_release_commit": "The triggers of a partition that is its table's no longer are dropped.",
    "settle.before_plan": "A changed table is looked at, and captured anew where that is needed; the old plan stands.",
    "settle.before_plan_commit": "A new plan goes into the journal.",
    "settle.before_emptied_commit": "The copy is emptied, and its table is to be read by blocks again.",
    "settle.before_reload_commit": "The copy is emptied, all keys are pending, the new plan is recorded.",
    "settle.before_part_commit": "`tables.where` has changed: rows that come or go are pending, by a new plan.",
    "settle.before_copy_commit": "What a copy is now goes into the journal.",
    "settle.before_keyless_commit": "What a table without a key is now goes into the journal.",
    "settle.before_verdicts_commit": "Plans are recorded, the verdicts on all tables are not.",
    "settle.before_block_commit": "A window or chunk has met what stops a table; that is not recorded.",
    "late.before_capture": "A table that came after the snapshot has its copy and is not captured.",
    "late.before_table_commit": "A table that came after the snapshot is captured, the journal does not know it.",
    "late.before_taken_in": "Such a table is captured and recorded, and none of its rows is pending.",
    "settle.before_late_copy_commit": "Such a table without a key has its copy, and is noted for the swap.",
    "late.before_keyless_stop_commit": "Such a table without a key is stopped before it begins.",
    "late.before_stop_commit": "Such a table is captured and stopped before a row is read.",
    "late.before_statuses_commit": "Such tables are taken in; what stops others is not recorded.",
    # what a failover has lost
    "failover.before_lost_windows_commit": "The target has lost windows; that it needs a verification is not recorded.",
    "failover.before_in_place_commit": "In place: the new timeline is not recorded.",
    "failover.before_database_commit": "The source is another database than it was; which one is not recorded.",
    "failover.before_timeline_commit": "Slot and DDL go back to where the timeline was left, which is recorded.",
    # the gate
    "gate.before_forgotten_commit": "What stopped a table that is none of the run is over, and still recorded.",
    "gate.before_verdicts_commit": "Both catalogs are compared, the verdicts are not recorded.",
    # verify
    "verify.before_ranges_commit": "Ranges are cut and not recorded.",
    "verify.before_window": "Ranges are to be compared, at the snapshot of the window that comes next.",
    "verify.before_compared_commit": "Ranges are compared, what was found is not recorded.",
    "verify.before_cut_commit": "A range took too long; shorter ones take its place.",
    "verify.before_mend_commit": "--mend: the keys of a range leave the copy and become pending.",
    "verify.before_over_commit": "All tables are compared; that a verification was needed is still recorded.",
    # follow.finish
    "finish.before_definitions_commit": "Foreign keys, policies, grants and the like come and go on the target.",
    "finish.before_noted_commit": "They are on the target, what came is not recorded.",
    "finish.before_refresh_commit": "A materialized view is filled.",
    "finish.before_refreshed_commit": "Views are filled, up to which refresh is not recorded.",
    # swap, in place and across
    "swap.before_rehearsal_commit": "A swap was rehearsed and rolled back; what it found is not recorded.",
    "swap.before_drift_commit": "A changed schema keeps the swap from going on; the stopped tables are not recorded.",
    "swap.before_index_drop_commit": "An index or statistics that the source has no longer are dropped from a copy.",
    "swap.before_rename_commit": "An index of a copy gets the name that it has got on the source.",
    "swap.before_names_commit": "Indexes of partitions get the names that they have on the source.",
    "swap.before_mark_commit": "A replica identity, or the index of CLUSTER, becomes the source's.",
    "swap.before_old_schemas_commit": "In place: where the old tables go is made.",
    "swap.before_partitions_commit": "In place: partitions are made in advance.",
    "swap.after_schema_look": "In place: the schema is looked at; the last windows, and the locks, are to come.",
    "swap.before_way_back_stop_commit": "In place: the log that a killed swap made of a copy is dropped.",
    "swap.before_lock": "In place: all is ready, and nobody waits yet.",
    "swap.after_lock": "In place: the tables are locked; nothing is moved.",
    "swap.before_commit": "In place: the tables have moved and the swap is recorded.",
    "swap.after_commit": "In place: the new tables are live; what follows up is not done.",
    "cut_over.after_schema_look": "Across: the schema is looked at; the last windows, and the fence, are to come.",
    "way_back.before_unmade_commit": "Across: nothing is captured for a way back that is void; its journal has it.",
    "way_back.before_unborn_commit": "Across: the old server's journal gets the run of the way back, which is void.",
    "way_back.before_table_commit": "Across: a copy is captured for the way back, whose journal does not know it.",
    "way_back.before_statements_commit": "Across: what the old server has goes into the way back's journal.",
    "way_back.before_indexed_commit": "Across: the way back has its plans; its tables become indexed.",
    "way_back.before_prepared_commit": "Across: the way back is prepared, its stages are not recorded as done.",
    "cut_over.before_fence": "Across: the copies are as near as windows bring them, writers go on.",
    "cut_over.before_fence_lock": "Across: nothing is locked yet for the fence, and writers go on.",
    "cut_over.before_fence_commit": "Across: the fence is made on all tables.",
    "cut_over.behind_fence": "Across: the fence stands, the last windows are to come.",
    "cut_over.before_target": "Across: the copies equal the source; sequences and foreign keys are not there.",
    "replace.before_log_stop_commit": "Where copies replace: the log that a killed swap made of a copy is dropped.",
    "replace.before_lock": "`tables.existing: replace`: the fence stands, and the target's tables serve yet.",
    "replace.after_lock": "`tables.existing: replace`: the target's tables are locked; nothing is moved.",
    "cut_over.before_commit": "Across: all that writers will meet is on the target, and the cut-over is recorded.",
    "cut_over.after_commit": "Across: applications belong on the target; what follows up is not done.",
    "cut_over.before_look": "Across: it ended behind its fence; whether it has cut over is not known.",
    "way_back.before_lost_fence_commit": "Across: the old server has lost the fence by a failover; nobody is told yet.",
    "cut_over.before_closed_again_commit": "Across: a fence that a failover had taken away is up again.",
    "way_back.before_birth_commit": "Across: applications are on the target, the way back does not know yet.",
    "cut_over.before_fence_down_commit": "Across: a fence without a cut-over goes down.",
    "swap.before_follow_up_commit": "A foreign key is validated, a view filled, a table analyzed, and that is marked.",
    # revert
    "revert.before_silenced_commit": "The triggers of an old table are switched off before windows write to it.",
    "revert.before_schemas_commit": "The old tables have caught up; where the new ones go is made.",
    "revert.before_lock": "All is ready, and nobody waits yet.",
    "revert.before_commit": "The old tables are back and the revert is recorded.",
    "revert.after_commit": "The old tables are live; what follows up is not done.",
    "replace.before_copy_schemas_commit": "Where copies replaced: where the new tables go back to is made.",
    "replace.before_back_lock": "Where copies replaced: all is ready to go back, and nobody waits yet.",
    "replace.before_back_commit": "Where copies replaced: the target's old tables are back and that is recorded.",
    "replace.after_back_commit": "Where copies replaced: the old tables are live; the source's fence stands.",
    "way_back.before_gone_back_commit": "Across: applications are back; the pipeline that they went by is not over.",
    # cleanup, and the end of reset
    "cleanup.before_ddl_only_commit": "`ddl.ddl_only`: the end of the pipeline is not recorded.",
    "cleanup.before_way_back": "Nothing that was refused stands in the way; the way back is still there.",
    "cleanup.before_way_back_commit": "The way back is given up.",
    "cleanup.before_let_go_commit": "Across: the capture of a way back that nobody has gone is off, and not recorded.",
    "cleanup.before_capture": "The way back is gone, and all is still captured.",
    "cleanup.before_unpublished_commit": "`capture.rows: wal`: a table leaves the publication.",
    "cleanup.after_capture": "Nothing is captured; the journal does not say so.",
    "cleanup.before_replaced_commit": "What a copy replaced, and the new table's log, are dropped.",
    "cleanup.before_old_table_commit": "In place: an old table whose capture was gone before is dropped.",
    "forget.before_schema": "In place: a schema of ours is empty.",
    "cleanup.before_finished_commit": "Pending keys are dropped, and the pipeline is recorded as finished.",
    "cleanup.before_forget": "The pipeline is finished, and the source still knows it.",
    "forget.before_event_triggers_commit": "DDL is captured no longer; event triggers go with the last pipeline.",
    "forget.before_ddl_publication": "`capture.ddl: wal`: the slot is dropped, its publication is not.",
    "forget.before_older_transactions": "Event triggers are gone; a transaction may still use their functions.",
    "forget.before_rows_slot": "`capture.rows: wal`: DDL is captured no longer, the slot of rows is there.",
    "forget.before_rows_publication": "That slot is dropped, its publication is not.",
    "forget.before_name_commit": "The source forgets the pipeline.",
    "forget.before_core_down": "It was the last pipeline; the sets on the source are there.",
    "forget.before_injector_down": "The core is down, what keeps identities is not.",
    "migrations.before_down_commit": "A set of objects is taken down as a whole or not at all.",
    # reconfigure, and the setup behind it
    "reconfigure.before_look_again_commit": "--drop: follow.finish is to look again; nothing is dropped.",
    "reconfigure.before_taken_commit": "A changed file is recorded, and tables that it takes out are forgotten.",
    "reconfigure.before_release": "A table is taken out, and still captured.",
    "reconfigure.before_done_commit": "All that follows from a changed file is done, and not recorded as done.",
    # reset
    "reset.before_capture": "A table is still captured, and all behind it.",
    "reset.before_finished_commit": "A definition that follow.finish has brought is taken back.",
    "reset.before_undo_commit": "What the pipeline made on the target is dropped, and its event is pending again.",
    "reset.before_table_commit": "--tables: a copy and its keys are dropped, and its table is forgotten.",
    "reset.before_copy": "In place: a copy is there, with no capture.",
    "reset.before_keys": "What was made is gone; pending keys are there.",
    "reset.before_journal_commit": "The journal forgets the pipeline.",
    "reset.before_forget": "The journal has forgotten the pipeline, the source still knows it.",
    "reset.before_journal_down": "It was the last pipeline; the journal is there.",
    # commands of a person
    "ddl.before_approved_commit": "pgddl ddl approve: events are let through.",
    "ddl.before_decided_commit": "pgddl ddl resolve, skip: an event is over; an exception of the source is not.",
}

_on: dict[str, Act] = {}


def failpoint(name: str, *connections: psycopg.Connection[Any]) -> None:
    """One of NAMES is reached; `connections` are those whose commit is next."""
    if _on and (act := _on.get(name)) is not None:
        act(connections)


def turn_on(name: str, act: Act) -> None:
    """`act` is called at each pass, with the connections. For tests, in their own process."""
    if name not in NAMES:
        raise UsageError(f"there is no failpoint {name!r}", todo="docs/reference/failpoints.md lists them")
    _on[name] = act


def turn_off(name: str) -> None:
    _on.pop(name, None)


def kill(_: Connections) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def lose(connections: Connections) -> None:
    """The connections end as if the network did: the server finds out by itself."""
    if not connections:
        raise UsageError("no connection is about to commit at this failpoint", todo="use kill or error")
    for connection in connections:
        with socket.socket(fileno=os.dup(connection.fileno())) as cut:
            cut.shutdown(socket.SHUT_RDWR)
    for connection in connections:
        connection.execute("SELECT 1")
    raise AssertionError("a connection that was cut has answered")


def failing(class_name: str) -> Act:
    """What raises this class; UsageError where there is none of the name."""
    kind = getattr(errors, class_name, None) or getattr(psycopg.errors, class_name, None)
    if not (isinstance(kind, type) and issubclass(kind, (PgddlError, psycopg.Error))):
        raise UsageError(f"{VARIABLE}: there is no error {class_name!r}", todo="name one of errors or psycopg.errors")

    def fail(_: Connections) -> None:
        raise kind(f"{class_name}, by a failpoint")

    return fail


def waiting_for(go: Path) -> Act:
    """What holds until this file is there. Retry where it does not come."""

    def wait(_: Connections) -> None:
        until = time.monotonic() + WAIT_AT_MOST
        while not go.exists():
            if time.monotonic() > until:
                raise Retry(f"nobody made {go} within {WAIT_AT_MOST:.0f} s", todo="the test has to, or to end this")
            time.sleep(0.01)

    return wait


def once(act: Act, mark: Path, nth: int = 1) -> Act:
    """`act` at the nth pass of a process, unless `mark` is there, which it makes."""
    passes = count(1)

    def strike(connections: Connections) -> None:
        if next(passes) == nth:
            try:
                mark.touch(exist_ok=False)
            except FileExistsError:
                return
            act(connections)

    return strike


def parse(text: str) -> dict[str, Act]:
    """What a value of the variable turns on; UsageError where it cannot be read."""
    folder_name, *entries = shlex.split(text) or [""]
    folder = Path(folder_name)
    if not folder.is_dir():
        raise UsageError(f"{VARIABLE} begins with {folder_name!r}, which is no folder", todo="name one for the marks")
    found = dict[str, Act]()
    for entry in entries:
        name, _, what = entry.partition("=")
        action, _, nth = what.partition("@")
        verb, _, argument = action.partition(":")
        if name not in NAMES or not (nth or "1").isdecimal() or verb not in ("kill", "lose", "error", "wait"):
            raise UsageError(f"{VARIABLE}: {entry!r} is no failpoint", todo="docs/reference/failpoints.md lists them")
        act = {"kill": kill, "lose": lose, "wait": waiting_for(folder / f"{name}.go")}.get(verb) or failing(argument)
        found[name] = once(act, folder / name, int(nth or 1))
    return found


if os.environ.get(VARIABLE):
    _on.update(parse(os.environ[VARIABLE]))
