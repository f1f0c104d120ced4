"""The swap across where the target has the tables already (`tables.existing: replace`): in the transaction of the
cut-over they give way to the copies that stand beside them, with all that refers to them.

Until then they serve as ever. What is carried over is read before the fence and once more under the locks. The old
tables wait under their names in a schema of their own: `revert` puts them back, cleanup drops them. From the commit on
a log tells what is written to the new ones, as nobody could bring that back to the source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from psycopg import errors as pg
from psycopg import sql

from airflow_provider_pgddl.engine.apply import dependents
from airflow_provider_pgddl.engine.apply.dump_events import run_event
from airflow_provider_pgddl.engine.capture import change_log
from airflow_provider_pgddl.engine.ddl.events import DdlEvent, events_from_dump
from airflow_provider_pgddl.engine.ddl.relocate import copy_schema, old_schema
from airflow_provider_pgddl.engine.errors import StageFailed, gone_or_keyless
from airflow_provider_pgddl.engine.failpoints import failpoint
from airflow_provider_pgddl.engine.following.replacing_dump import is_right, live_tables
from airflow_provider_pgddl.engine.job.context import Context
from airflow_provider_pgddl.engine.journal import migrations
from airflow_provider_pgddl.engine.journal.dump_events import EventRow
from airflow_provider_pgddl.engine.journal.tables import TableRow
from airflow_provider_pgddl.engine.model.names import Name
from airflow_provider_pgddl.engine.model.tables import Table
from airflow_provider_pgddl.engine.preflight import what_opens_a_closed_table, what_replacing_breaks
from airflow_provider_pgddl.engine.preflight.findings import refuse
from airflow_provider_pgddl.engine.preflight.replaced_tables import retyped
from airflow_provider_pgddl.engine.rows.copy_shape import copy_digests
from airflow_provider_pgddl.engine.server import catalog
from airflow_provider_pgddl.engine.server.connect import Session, plans_kept
from airflow_provider_pgddl.engine.server.lock_timeout import limit_lock_wait
from airflow_provider_pgddl.engine.server.pg_dump import dump_sections
from airflow_provider_pgddl.engine.server.strong_locks import lock_all, lock_unseen
from airflow_provider_pgddl.engine.sql import queries
from airflow_provider_pgddl.engine.swapping.in_place import (
    ForeignKey,
    add_foreign_key,
    create_old_schemas,
    drop_statement,
    foreign_keys,
    refuse_left_behind,
    replaced_names,
    revoke_defaults,
    wait_out_old_snapshots,
)
from airflow_provider_pgddl.engine.swapping.readiness import NotYet
from airflow_provider_pgddl.engine.swapping.way_back import facts

_Q = queries("swap")


@dataclass(frozen=True, slots=True)
class Standing:
    """What stands on the target's own tables, and what these and the copies are. Under the locks it has to be the
    same."""

    old: dict[Name, int]
    keys: list[ForeignKey]
    carried: dependents.Carried
    defined: dict[int, list[str]]
    digests: dict[int, str]
    sequences: set[Name]

    def locked(self) -> list[Name]:
        """The target's own tables that are locked against everybody."""
        ends = {(k.schema, k.table) for k in self.keys} | {(k.referenced_schema, k.referenced) for k in self.keys}
        return sorted({*self.old, *ends, *self.carried.tables})

    def of_others(self) -> list[ForeignKey]:
        """The foreign keys that are made again: the others leave with the old tables."""
        return [key for key in self.keys if key.table_oid not in self.old.values()]


class Replacing:
    """`prepare` before the fence; the others in the transaction of the cut-over, in their order."""

    def __init__(self, context: Context):
        self._context = context
        self._copies: dict[int, Table] = {}
        self._rights: list[DdlEvent] = []
        self._found: Standing | None = None
        self._read_for: dict[int, list[str]] | None = None

    def prepare(self, tables: Sequence[TableRow]) -> None:
        """All that takes long, and makes nobody wait: what cannot be is refused, the logs of the new tables are made,
        and what is to be carried over is read."""
        context, target = self._context, self._context.target
        names = [(t.schema, t.name) for t in tables]
        refuse(what_replacing_breaks(context.pipeline, context.source, target, names), under_way=True)
        if not context.job.dry_run:
            create_old_schemas(context, tables)
            self._make_logs(tables)
        self._found = read(context, tables)
        if self._read_for != self._found.defined:
            self._rights = _rights(context, self._found.old)
            self._read_for = self._found.defined

    def lock(self, tables: Sequence[TableRow]) -> None:
        """Readers and writers of the target wait from here on."""
        conn, found, timeout = self._context.target, self._known, self._context.pipeline.swap.lock_timeout
        wanted = found.locked()
        lock_unseen(conn, [(t.plan.copy_schema, t.plan.copy_name) for t in tables], timeout)
        failpoint("replace.before_lock", conn)
        found.carried.lock_views(conn)
        if wanted:
            lock_all(conn, wanted, "ACCESS EXCLUSIVE", timeout)
        failpoint("replace.after_lock", conn)
        with plans_kept(conn):
            closed = what_opens_a_closed_table(self._context.pipeline, conn, [(t.schema, t.name) for t in tables])
            refuse(closed, under_way=True)
            if read(self._context, tables) != found:
                raise NotYet("what stands on the target's tables changed just now")
            wait_out_old_snapshots(conn)

    def exchange(self, tables: Sequence[TableRow]) -> None:
        """Old away, copies in: indexes, constraints, types and owned sequences go along under their names."""
        conn, found = self._context.target, self._known
        for schema in {old_schema(t.schema) for t in tables} if self._context.job.dry_run else ():
            conn.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(schema)))
        for key in found.keys:
            conn.execute(drop_statement(key))
        found.carried.take_away(conn)
        for table in tables:
            if (table.schema, table.name) in found.old:
                move(conn, (table.schema, table.name), old_schema(table.schema))
        for table in tables:
            move(conn, (table.plan.copy_schema, table.plan.copy_name), table.schema)

    def standing_sequences(self) -> set[Name]:
        """Those that the target had before and that are no part of a table that is replaced: who uses them goes on to
        do so, so they are never set back."""
        return self._known.sequences

    def carry_over(self, tables: Sequence[TableRow]) -> None:
        """What referred to the old tables refers to the new ones; behind the foreign keys of the source."""
        context, conn, found = self._context, self._context.target, self._known
        for key in found.of_others():
            add_foreign_key(context, context.journal, key)
        replaced = [t for t in tables if (t.schema, t.name) in found.old]
        try:
            found.carried.put_back(conn, replaced_names(replaced), context.pipeline.trusted_roles)
        except (pg.UndefinedColumn, pg.InvalidTableDefinition, pg.DatatypeMismatch, pg.UndefinedFunction) as error:
            raise StageFailed(
                f"what stands on the target's tables does not fit the new ones: {error.diag.message_primary}",
                todo="change or drop it on the target, then run the stage again; nothing was swapped",
            ) from error

    def give_rights(self, tables: Sequence[TableRow]) -> None:
        """Who may do what stays as it was on the target: owner, grants, policies."""
        context, conn, found = self._context, self._context.target, self._known
        for table in (t for t in tables if (t.schema, t.name) in found.old):
            revoke_defaults(conn, table)
        for number, event in enumerate(self._rights):
            if event.sequence is not None and catalog.oid_of(conn, *event.sequence) is None:
                continue  # the new table has another one, or none
            row = EventRow(number, None, event.to_json(), event.statement)
            try:
                run_event(conn, row, context.pipeline.trusted_roles)
            except (pg.UndefinedColumn, pg.UndefinedObject, pg.UndefinedFunction) as error:
                raise StageFailed(
                    f"what the target's table has does not fit the new one: {error.diag.message_primary}",
                    table=".".join(event.table or ()),
                    sql=event.statement,
                    todo="take it away on the target, then run the stage again; nothing was swapped",
                ) from error

    def finish(self, tables: Sequence[TableRow]) -> None:
        """Last: nothing may refer to the old tables, and what is written to the new ones from now on is logged."""
        context, conn, found = self._context, self._context.target, self._known
        with plans_kept(conn):
            refuse_left_behind(conn, [*found.old.values()])
        if context.job.dry_run:
            return
        for table in tables:
            change_log.create_triggers(
                conn, change_log.of_new(context.name), _moved(self._copies[table.id], table.schema)
            )
        with plans_kept(conn):
            oids = [copy.oid for copy in self._copies.values()]
            now = catalog.describe(conn, oids, change_log.capture_names(change_log.of_new(context.name)))
            defined = facts(conn, oids)
        for table in tables:
            live = now[self._copies[table.id].oid]
            plan = replace(table.plan, oid=live.oid, copy_schema=old_schema(table.schema), copy_name=table.name)
            own = [asdict(k) for k in found.keys if k.table_oid == found.old.get((table.schema, table.name))]
            log = change_log.log_name(change_log.of_new(context.name), live.oid)
            context.journal.ways_back.add(table.id, live, log, plan, defined[live.oid], own)

    @property
    def _known(self) -> Standing:
        assert self._found is not None, "prepared before the fence"
        return self._found

    def _make_logs(self, tables: Sequence[TableRow]) -> None:
        """Log and trigger functions of each copy, in a set of our own on the target; anew where a copy is another than
        they were made for."""
        context, target = self._context, self._context.target
        context.check_fence()
        migrations.apply(target, "core")
        change_log.register_pipeline(
            target, change_log.of_new(context.name), change_log.journal_name(catalog.server(target))
        )
        captured = change_log.captured_roots(target, change_log.of_new(context.name))
        described = catalog.describe(target, [oid for oid in _copy_oids(target, tables).values() if oid])
        by_name = {(copy.schema, copy.name): copy for copy in described.values()}
        anew: dict[int, TableRow] = {}  # by the copy
        for table in tables:
            copy, known = by_name[table.plan.copy_schema, table.plan.copy_name], self._copies.get(table.id)
            if known is not None and (known.oid, known.structure()) == (copy.oid, copy.structure()):
                continue
            self._copies.pop(table.id, None)
            if copy.oid in captured:  # of a try before, or of a run that has died
                with target.transaction():
                    limit_lock_wait(target, context.pipeline.swap.lock_timeout)
                    change_log.stop(target, change_log.of_new(context.name), copy.oid)
                    failpoint("replace.before_log_stop_commit", target)
            anew[copy.oid] = table
        timeout = context.pipeline.swap.lock_timeout
        prepared = change_log.prepare(target, change_log.of_new(context.name), anew, timeout)
        for oid, table in anew.items():
            if oid not in prepared:
                raise gone_or_keyless(table.qualified)
            self._copies[table.id] = prepared[oid].table


def read(context: Context, tables: Sequence[TableRow]) -> Standing:
    """What stands on the target's own tables now."""
    conn = context.target
    old = live_tables(conn, [(t.schema, t.name) for t in tables])
    copies = {old[t.schema, t.name]: oid for t in tables if (t.schema, t.name) in old
              if (oid := catalog.oid_of(conn, t.plan.copy_schema, t.plan.copy_name))}  # fmt: skip
    asked = context.pipeline.swap.recreate_materialized_views
    carried = dependents.read(conn, [*old.values()], retyped(conn, conn, copies), materialized=asked)
    owned = {
        (schema, name) for oid in old.values() for _, schema, name, *_ in conn.execute(_Q["owned_sequences"], [oid])
    }
    standing = {(schema, name) for schema, name, *_ in conn.execute(queries("sequences")["sequences"])} - owned
    return Standing(
        old,
        foreign_keys(conn, [*old.values()]),
        carried,
        facts(conn, old.values()),
        copy_digests(conn, tables),
        standing,
    )


def _copy_oids(conn: Session, tables: Sequence[TableRow]) -> Mapping[Name, int]:
    return catalog.oids_of(conn, [(t.plan.copy_schema, t.plan.copy_name) for t in tables])


def _moved(copy: Table, schema: str) -> Table:
    return replace(copy, schema=schema, leaves=tuple(replace(leaf, schema=schema) for leaf in copy.leaves))


def _rights(context: Context, old: Mapping[Name, int]) -> list[DdlEvent]:
    """As the target's own dump says them: behind the move the same words mean the new tables."""
    if not old:
        return []
    major = context.target.info.server_version // 10_000
    events = events_from_dump(*dump_sections(context.target_dsn, major, only=[*old]))
    return [e for e in events if e.table in old and e.phase != "noise" and is_right(e)]


def move(conn: Session, name: Name, schema: str) -> None:
    """A table to another schema, with the extended statistics that are where it is."""
    query = sql.SQL("ALTER {} {} SET SCHEMA {}")
    home, oid = sql.Identifier(schema), catalog.oid_of(conn, *name)
    for where, statistics in conn.execute(_Q["statistics_of"], [oid]).fetchall():
        if where == name[0]:
            conn.execute(query.format(sql.SQL("STATISTICS"), sql.Identifier(where, statistics), home))
    conn.execute(query.format(sql.SQL("TABLE"), sql.Identifier(*name), home))


def homes_of_copies(tables: Sequence[TableRow]) -> dict[Name, Name]:
    """What each new table is called once it is a copy again."""
    return {(t.schema, t.name): (copy_schema(t.schema), t.name) for t in tables}
