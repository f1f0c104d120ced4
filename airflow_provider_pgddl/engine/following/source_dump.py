"""The source's schema by pg_dump, as events, and the steps that they become on the target."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from psycopg import errors as pg
from psycopg import sql

from airflow_provider_pgddl.engine.ddl.columns import going_with
from airflow_provider_pgddl.engine.ddl.events import DdlEvent, events_from_dump, without
from airflow_provider_pgddl.engine.ddl.finish_statements import key_of
from airflow_provider_pgddl.engine.ddl.parse import kind_of, parse, start_of, statement_node
from airflow_provider_pgddl.engine.ddl.partitioned_copy import fits_partitioned
from airflow_provider_pgddl.engine.ddl.relocate import copy_schema, moving, relocate
from airflow_provider_pgddl.engine.ddl.rewrite_actions import alter_actions, dropped_columns
from airflow_provider_pgddl.engine.errors import Retry, StageFailed, Unreachable, gone_meanwhile
from airflow_provider_pgddl.engine.failpoints import failpoint
from airflow_provider_pgddl.engine.following.ddl import (
    came_since,
    captures_ddl,
    ddl_held,
    follow_ddl,
    is_followed,
    read_shown,
    record_shown,
)
from airflow_provider_pgddl.engine.following.left_out import tables_left_out
from airflow_provider_pgddl.engine.following.new_rights import NewRights
from airflow_provider_pgddl.engine.following.partition_by import Shaper
from airflow_provider_pgddl.engine.following.plans import split_of
from airflow_provider_pgddl.engine.following.replacing_dump import KEEPS, Beside, copy_schemas, live_tables
from airflow_provider_pgddl.engine.following.target_dump import Arrived
from airflow_provider_pgddl.engine.following.target_roles import TargetRoles
from airflow_provider_pgddl.engine.job.context import Context
from airflow_provider_pgddl.engine.journal.tables import TableRow
from airflow_provider_pgddl.engine.model import tables
from airflow_provider_pgddl.engine.model.names import Name
from airflow_provider_pgddl.engine.rights.foreign_code import is_superuser
from airflow_provider_pgddl.engine.server import catalog
from airflow_provider_pgddl.engine.server.connect import Session
from airflow_provider_pgddl.engine.server.pg_dump import dump_sections
from airflow_provider_pgddl.engine.sql import queries

CHANGED = "the schema changed while it was dumped"
FASTER = "DDL comes faster than it is followed"
RUN_ON_SOURCE = "what an event trigger of the source runs follows by itself: here it would be run a second time"
AS_IT_IS = "the target's own table is taken as it is"
THERE = "the target has it already"
ABSENT = "it belongs to a table that the pipeline leaves out or that is blocked"
_LET_OWN = queries("rights")["let_own"]


@dataclass(frozen=True, slots=True)
class DumpStep:
    """One event with what is run for it, or why it is not."""

    event: DdlEvent
    statement: str
    status: str = "pending"
    note: str | None = None


def dump_unchanged(context: Context, late: Sequence[TableRow] | None) -> list[DdlEvent]:
    """The source's events; a table that changed since its capture is blocked."""
    if late is not None and captures_ddl(context):
        return settled_dump(context, late)
    return _until_unchanged(context, lambda: _dump_once(context, late))


class _ChangedMeanwhile(Exception):
    """What was dumped is no one moment's, and why."""


def _until_unchanged(
    context: Context, dump: Callable[[], list[DdlEvent]], before: Callable[[], None] = lambda: None
) -> list[DdlEvent]:
    """pg_dump prints parts of a schema as of now, not as of its snapshot, so where that changed while it ran, it dumps
    again (C24): with clients' DDL held from the second time on, for it may come faster than a dump takes. The first
    makes nobody wait; and what is to be done `before`, which may take long, is done before anybody waits."""
    until = time.monotonic() + context.pipeline.ddl.retry_for
    for tries in itertools.count(1):
        before()
        try:
            if tries == 1 or not captures_ddl(context):
                return dump()
            with ddl_held(context):
                before()
                return dump()
        except (_ChangedMeanwhile, pg.InternalError_) as why:
            if not isinstance(why, _ChangedMeanwhile) and not gone_meanwhile(why):
                raise
            what = str(why).splitlines()[0]
            if time.monotonic() > until:
                raise Retry(
                    f"{what}, in each of {tries} dumps", todo="run the stage again in a quieter moment"
                ) from None
            context.say(f"{what}: dumping again")
            time.sleep(min(0.1 * tries, 2.0))
    raise AssertionError("never ends but by a result or an error")


def _dump_once(context: Context, late: Sequence[TableRow] | None) -> list[DdlEvent]:
    source = context.source
    with source.transaction():
        source.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        row = source.execute("SELECT pg_catalog.pg_export_snapshot()").fetchone()
        assert row is not None
        failpoint("snapshot.before_look", source)
        before, there = _fingerprints(context, late), _dumped(context, late)
        tables = context.healthy(context.tables() if late is None else late)
        try:
            shown = read_shown(context, source) if captures_ddl(context) else None
        except Retry as error:
            raise _ChangedMeanwhile(error.what) from None
        events = _dump(context, row[0], tables if context.in_place or late is not None else None)
    now = _fingerprints(context, late)
    if shown:
        changed = any(now.get(name, known) != known for name, known in before.items())
        if changed or came_since(context, shown.read.position, there):
            raise _ChangedMeanwhile(CHANGED)
        record_shown(context, shown)
        return events
    if now != before:
        raise _ChangedMeanwhile(CHANGED)
    follow_ddl(context, look=True)
    return events


def settled_dump(context: Context, late: Sequence[TableRow] | None = None) -> list[DdlEvent]:
    """The events of the source as it was at a moment that all applied DDL reaches, and no other. `late`: of these
    tables alone."""
    if not captures_ddl(context):
        follow_ddl(context, look=True)
        return dump_events(context)
    source = context.source
    tables = late if late is not None else context.tables() if context.in_place else None

    def dump() -> list[DdlEvent]:
        with source.transaction():
            source.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            row = source.execute(
                "SELECT pg_catalog.pg_export_snapshot(), pg_catalog.pg_current_snapshot()::text"
            ).fetchone()
            assert row is not None
            there = _dumped(context, late)
            if not is_followed(context, source, there):
                raise _ChangedMeanwhile(FASTER)
            events = _dump(context, row[0], tables)
        if came_since(context, row[1], there):
            raise _ChangedMeanwhile(CHANGED)
        return events

    return _until_unchanged(context, dump, before=lambda: follow_ddl(context, look=True))


def dump_events(context: Context) -> list[DdlEvent]:
    """The events of the pipeline's tables (in place) or of the whole schema as the source is now."""
    return _dump(context, None, context.tables() if context.in_place else None)


def _dump(context: Context, snapshot: str | None, tables: Sequence[TableRow] | None) -> list[DdlEvent]:
    """Of these tables, or of everything but what the pipeline leaves out."""
    only = _with_parts(context.source, tables) if tables is not None else None
    exclude = tables_left_out(context, context.source) if only is None else []
    major = context.source.info.server_version // 10_000
    failpoint("snapshot.before_pg_dump", context.source)
    try:
        pre, post = dump_sections(context.source_dsn, major, snapshot=snapshot, only=only, exclude=exclude)
    except Unreachable:
        raise
    except Retry as error:  # what it was about to lock is gone, or held
        if snapshot is None:
            raise
        raise _ChangedMeanwhile(error.what) from None
    failpoint("snapshot.after_pg_dump", context.source)
    return events_from_dump(pre, post)


def _dumped(context: Context, late: Sequence[TableRow] | None) -> set[int]:
    """The oids of all that the transaction on the source shows, but of relations that no dump has."""
    source = context.source
    if late is not None:
        return {t.oid for t in late} | {*catalog.oids_of(source, _with_parts(source, late)).values()}
    return catalog.user_oids(source) - {*catalog.oids_of(source, tables_left_out(context, source)).values()}


def _with_parts(source: Session, tables: Iterable[TableRow]) -> list[Name]:
    """The tables and all their partitions, which pg_dump --table does not take along."""
    names: list[Name] = []
    for table in tables:
        parts = source.execute(queries("swap")["partitions_of"], [table.oid]).fetchall()
        names += parts or [(table.schema, table.name)]
    return names


def _fingerprints(context: Context, late: Sequence[TableRow] | None) -> dict[Name, str]:
    """Of the tables that are dumped."""
    source = context.source
    found = {name: tables.fingerprint(t.structure()) for name, t in catalog.describe_all(source).items()}
    if late is not None:
        mine = {(t.schema, t.name) for t in late} | {*_with_parts(source, late)}
        return {name: known for name, known in found.items() if name in mine}
    out = {*tables_left_out(context, source)}
    return {name: known for name, known in found.items() if name not in out}


def schema_digest(context: Context, conn: Session, oids: Sequence[int] | None = None) -> str:
    """Of all that a dump of the source shows: tables that the pipeline leaves out come and go as they like. Or of these
    relations, in whatever transaction is open."""
    if oids is not None:
        return _digest_of(conn, oids, [])
    with conn.transaction():
        conn.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        return _digest_of(conn, None, [*catalog.oids_of(conn, tables_left_out(context, conn)).values()])


def _digest_of(conn: Session, oids: Sequence[int] | None, out: Sequence[int]) -> str:
    row = conn.execute(queries("catalog")["schema_digest"], {"oids": oids, "out": out}).fetchone()
    return str(row[0]) if row else ""


def steps_across(context: Context, events: Sequence[DdlEvent]) -> Iterable[DumpStep]:
    _, out = without(events, _absent(context))
    notes = {e.seq: ABSENT for e in out}
    # What is there already is not ours to make, nor to take away again.
    extensions = {row[0] for row in context.target.execute("SELECT extname FROM pg_catalog.pg_extension")}
    roles, rights = TargetRoles(context), NewRights(context.target, events)
    there = _There(context) if context.pipeline.tables.existing != "refuse" else None
    beside = _beside(context, events) if context.pipeline.replaces else None
    if beside is not None:
        others = context.pipeline.ddl.other_roles
        for tag, schema, statement in copy_schemas(context.target, context.name, events, beside.tables, others):
            yield DumpStep(_ours(statement, tag, schema), statement)
    for event in map(rights.in_time, events):
        if event.phase == "noise":
            continue
        fitted = roles.fitted(event)
        if event.seq in notes:
            yield DumpStep(event, event.statement, "skipped", notes[event.seq])
        elif event.kind == "event trigger" and not context.moves_rows:
            yield DumpStep(event, event.statement, "skipped", RUN_ON_SOURCE)
        elif event.kind == "extension" and event.name in extensions:
            yield DumpStep(event, event.statement, "skipped", "the target has this extension already")
        elif beside is not None and beside.keeps(event):
            yield DumpStep(event, event.statement, "skipped", KEEPS)
        elif there is not None and not (beside and beside.is_own(event)) and (note := there.has(fitted.event)):
            yield DumpStep(event, event.statement, "skipped", note)
        elif not fitted.is_left:
            yield _missing_role(context, event, fitted.missing)
        else:
            if fitted.missing:
                context.say(f"cut out, the target has no role {', '.join(fitted.missing)}: {start_of(event.statement)}")
            # The event keeps the source's words: later dumps are compared with it.
            statement = fitted.event.statement if beside is None else beside.statement(fitted.event)
            yield DumpStep(replace(event, grantor=fitted.event.grantor), statement)


def _beside(context: Context, events: Sequence[DdlEvent]) -> Beside:
    tables = {(t.schema, t.name) for t in context.healthy(context.tables())}
    return Beside(events, tables, live_tables(context.target, tables))


class _There:
    """What the target has of the source, where tables of it are adopted or replaced: nothing that is there is made
    again, and an adopted table stays as it is, with the indexes and constraints that it has."""

    def __init__(self, context: Context):
        adopted = context.adopted()
        self._tables = {(t.schema, t.name) for t in adopted} | {*_with_parts(context.source, adopted)}
        self._arrived = Arrived(context)

    def has(self, event: DdlEvent) -> str | None:
        """Why an event is not run. Foreign keys, triggers, policies, grants and comments that it lacks come with the
        swap: a run that lost its journal had not brought them."""
        if event.table in self._tables and event.phase in ("create", "index"):
            return AS_IT_IS
        if event.phase == "create" and _identity(event) in self._identities:
            return THERE
        by_name = {key_of(event), event.index} - {None}
        return THERE if by_name & self._named or self._arrived.has(event) else None

    @cached_property
    def _named(self) -> set[object]:
        return {name for event in self._arrived.events for name in (key_of(event), event.index) if name}

    @cached_property
    def _identities(self) -> set[tuple[object, ...]]:
        return {_identity(event) for event in self._arrived.events}


def _identity(event: DdlEvent) -> tuple[object, ...]:
    return event.tag, event.kind, event.schema, event.name, event.table, event.arguments


def _absent(context: Context) -> set[Name]:
    blocked = {(t.schema, t.name) for t in context.tables()} - {
        (t.schema, t.name) for t in context.healthy(context.tables())
    }
    return {*tables_left_out(context, context.source), *blocked}


def _missing_role(context: Context, event: DdlEvent, missing: Sequence[str]) -> DumpStep:
    if context.pipeline.ddl.missing_role == "ignore":
        context.say(f"skipped, the target has no role {', '.join(missing)}: {event.statement.splitlines()[0][:120]}")
        return DumpStep(event, event.statement, "skipped", f"the target has no role {', '.join(missing)}")
    raise StageFailed(
        f"the target has no role {', '.join(missing)}",
        table=".".join(event.table) if event.table else None,
        todo="create it there, map it in ddl.missing_role, or set ddl.missing_role: ignore",
        sql="\n".join(f"CREATE ROLE {sql.Identifier(r).as_string()};" for r in missing),
    )


def in_place_steps(context: Context, events: Sequence[DdlEvent]) -> Iterable[DumpStep]:
    """The tables' own statements on their copies, each with the changes that were asked for right behind its CREATE
    TABLE.

    What acts on writers, and the owner once more, comes after the move, with its original text (C21). A serial's
    sequence is kept and goes on under the new table; foreign keys of both directions are read from the catalog at the
    swap."""
    tables = {(t.schema, t.name) for t in context.healthy(context.tables())}
    names = moving(events, tables)
    shaper = Shaper(context, events)
    for schema in sorted({s for s, _ in tables}):
        create = sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(copy_schema(schema))).as_string()
        comment = sql.SQL("COMMENT ON SCHEMA {} IS {}").format(
            sql.Identifier(copy_schema(schema)), sql.Literal(f"pgddl: copies of pipeline {context.name}")
        )
        for statement, tag in ((create, "CREATE SCHEMA"), (comment.as_string(context.target), "COMMENT")):
            yield DumpStep(_ours(statement, tag, schema), statement)
        if not is_superuser(context.target):  # else whoever is to own a copy needs this
            for (grant,) in context.target.execute(_LET_OWN, [copy_schema(schema), schema]).fetchall():
                yield DumpStep(_ours(grant, "GRANT", schema), grant)
    owners: dict[Name, list[DdlEvent]] = {}
    for event in events:
        if event.kind == "owner" and event.tag == "ALTER TABLE" and event.table is not None:
            owners.setdefault(event.table, []).append(event)
    gone = {id(event) for name in tables for event in _gone(context, events, name)}
    for event in events:
        if event.phase == "noise" or event.table not in tables:
            continue
        if id(event) in gone:
            yield DumpStep(event, event.statement, "skipped", "it goes with a column that rewrite.alter drops")
        elif event.kind == "owner" or _owns_statistics(event):
            yield DumpStep(replace(event, phase="finish"), event.statement)
        elif event.phase == "finish" and shaper.comes_later(event):
            yield DumpStep(event, event.statement, "skipped", "it comes with the foreign key, behind the swap")
        elif event.phase == "finish":
            yield DumpStep(event, event.statement)
        elif shaper.is_of_partitions(event):
            yield DumpStep(event, event.statement, "skipped", "the partitions are made with it")
        elif event.kind == "sequence":
            yield DumpStep(event, event.statement, "skipped", "the sequence is kept and goes on under the new table")
        elif event.phase == "foreign_key":
            yield DumpStep(event, event.statement, "skipped", "foreign keys are read from the catalog at the swap")
        else:
            yield DumpStep(event, shaper.shaped(event, relocate(event.statement, names)))
        if event.tag == "CREATE TABLE":
            # From the start: what Postgres does with its code it does as its owner. No section: the dump has shown the
            # statement once, and the guard of the swap counts what it has shown.
            for owner in owners.get(event.table, ()):
                yield DumpStep(replace(owner, phase="create", section=None), relocate(owner.statement, names))
            yield from _alter(context, event)
    # What a table was set to comes behind its CREATE TABLE, in statements of its own, and must not have the last word.
    for event in events:
        if event.tag == "CREATE TABLE" and event.table in tables and event.phase != "noise":
            yield from _alter(context, event, again=True)


def _owns_statistics(event: DdlEvent) -> bool:
    """Like a table's: whoever is to own it needs CREATE on the schema that it is in, and has it where it is going."""
    return event.tag == "ALTER STATISTICS" and kind_of(statement_node(parse(event.statement))) == "AlterOwnerStmt"


def _gone(context: Context, events: Iterable[DdlEvent], name: Name) -> list[DdlEvent]:
    dropped = dropped_columns(context.pipeline.rewrites[name].alter)
    return going_with([e for e in events if e.table == name and e.phase != "noise"], dropped) if dropped else []


def _alter(context: Context, created: DdlEvent, *, again: bool = False) -> Iterable[DumpStep]:
    """`again`: of the actions only those that a dump has statements for."""
    assert created.table is not None
    schema, name = created.table
    split = split_of(context.pipeline, created.table)
    for action in alter_actions(context.pipeline.rewrites[created.table].alter):
        if split is not None and not fits_partitioned(action, split.column):
            continue
        if again and not action.is_setting:
            continue
        statement = action.on(copy_schema(schema), name, only=split is None)
        # A default that does not fit the new type would refuse the change; it is set after this, by its own event.
        yield DumpStep(replace(created, tag="ALTER TABLE", kind="rewrite", statement=statement), statement)


def _ours(statement: str, tag: str, schema: str) -> DdlEvent:
    return DdlEvent(
        seq=0,
        tag=tag,
        kind="schema",
        section=None,
        phase="create",
        statement=statement,
        schema=schema,
        name=None,
        table=None,
    )
