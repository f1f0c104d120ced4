"""What comes after a swap by which tables of the target gave way to copies (`tables.existing: replace`): they come
back, or they are dropped for good."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from psycopg import sql

from airflow_provider_pgddl.engine.apply import dependents
from airflow_provider_pgddl.engine.capture import change_log
from airflow_provider_pgddl.engine.ddl.events import DdlEvent
from airflow_provider_pgddl.engine.ddl.relocate import copy_schema, old_schema
from airflow_provider_pgddl.engine.errors import GaveWay, PreflightRefused, StageFailed
from airflow_provider_pgddl.engine.failpoints import failpoint
from airflow_provider_pgddl.engine.following.table_capture import drop_schema_if_empty, forget_capture
from airflow_provider_pgddl.engine.following.unseen_writes import refuse_unseen_writes, unseen_writes
from airflow_provider_pgddl.engine.job.context import Context
from airflow_provider_pgddl.engine.journal import lease, migrations
from airflow_provider_pgddl.engine.journal.tables import TableRow
from airflow_provider_pgddl.engine.journal.ways_back import Reverse
from airflow_provider_pgddl.engine.model.plan import is_user_type
from airflow_provider_pgddl.engine.preflight import what_opens_a_closed_table
from airflow_provider_pgddl.engine.preflight.findings import Finding, refuse
from airflow_provider_pgddl.engine.preflight.replaced_tables import retyped
from airflow_provider_pgddl.engine.rights import foreign_code
from airflow_provider_pgddl.engine.rows.change_log_reading import Logs, count_changes
from airflow_provider_pgddl.engine.server import catalog
from airflow_provider_pgddl.engine.server.connect import Session, plans_kept
from airflow_provider_pgddl.engine.server.lock_timeout import limit_lock_wait
from airflow_provider_pgddl.engine.server.strong_locks import lock_all, lock_unseen, with_tries, writers_wait
from airflow_provider_pgddl.engine.sql import queries
from airflow_provider_pgddl.engine.swapping.in_place import (
    ForeignKey,
    add_foreign_key,
    drop_statement,
    foreign_keys,
    refuse_left_behind,
    wait_out_old_snapshots,
)
from airflow_provider_pgddl.engine.swapping.readiness import NotYet
from airflow_provider_pgddl.engine.swapping.replacing import homes_of_copies, move
from airflow_provider_pgddl.engine.swapping.way_back import Back, are_copies_again, refuse_changed_since

_Q = queries("replaced_tables")
_INTEGERS = {"smallint", "integer", "bigint"}
_KEEP = (
    "set tables.keep_extra: true leaves these tables there, false drops them with their rows; then run cleanup again"
)


# --- back -------------------------------------------------------------------------------------------------------------


def run(context: Context) -> dict[str, Any]:
    """The target's own tables get their names again, with all that refers to these; the new ones are copies once more
    and follow the source. Refused where anything was written to them since: the source has not got it."""
    backs = _ways_back(context)
    refuse_changed_since(context.target, backs)
    _refuse_written(context, backs)
    for schema in sorted({copy_schema(t.schema) for t, _ in backs}):
        with context.fenced("replace.before_copy_schemas_commit"):
            context.target.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(schema)))
    figures = with_tries(context.pipeline.swap, "revert", lambda: _exchange(context, backs), again=NotYet)
    context.say(f"{len(backs)} table(s) are back; locked for {figures['locked_ms']} ms")
    return figures


def _ways_back(context: Context) -> list[Back]:
    """All tables or none."""
    ways = {way.table_id: way for way in context.journal.ways_back.of(context.journal.run)}
    for table in context.tables():
        if table.id not in ways:
            raise PreflightRefused(
                "cleanup has begun, and dropped what it would go back to", table=table.qualified,
                todo="run stage cleanup, which ends the pipeline",
            )  # fmt: skip
    return [(t, ways[t.id]) for t in context.tables()]


def _refuse_written(context: Context, backs: Sequence[Back]) -> None:
    """Going back, what applications have written to the new tables would be on neither side; nor is it known where what
    logs that was off for a while."""
    conn = context.target
    changes = count_changes(Logs(conn), [way.row for _, way in backs])
    written = {t.qualified: (changes[way.row.id], way) for t, way in backs if changes.get(way.row.id)}
    if written:
        listed = ", ".join(f"{name}: {count}" for name, (count, _) in written.items())
        raise StageFailed(
            f"the new tables were written to since the swap ({listed}); going back would lose those changes",
            todo="carry them over to the source by hand (the logs name their keys), empty the logs on the target, then "
            "run this again",
            sql="\n".join(
                sql.SQL("DELETE FROM {};").format(change_log.log_table(way.row.log_table)).as_string()
                for _, way in written.values()
            ),
        )
    refuse_unseen_writes(
        unseen_writes(conn, change_log.of_new(context.name), [way.row for _, way in backs]),
        of="reverses", where="target",
        carry="see what was written to the new table since the swap, and carry it over to the source by hand",
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Found:
    """What stands on the new tables; under the locks it has to be the same."""

    old: dict[int, int]
    keys: list[ForeignKey]
    carried: dependents.Carried
    ours: set[int]


def _read(context: Context, backs: Sequence[Back]) -> _Found:
    conn = context.target
    names = {(old_schema(t.schema), t.name): t.id for t, _ in backs}
    old = {names[name]: oid for name, oid in catalog.oids_of(conn, names).items()}
    new = [way.row.oid for _, way in backs]
    pairs = {way.row.oid: old[t.id] for t, way in backs if t.id in old}
    asked = context.pipeline.swap.recreate_materialized_views
    ours = _made_over_copies(context)
    carried = dependents.read(conn, list(pairs), retyped(conn, conn, pairs), materialized=asked, but_not=ours)
    return _Found(old, foreign_keys(conn, new), carried, ours)


def _made_over_copies(context: Context) -> set[int]:
    """Views and functions of the source that the pipeline has made over the copies: they stay with these."""
    applied = [DdlEvent.from_json(one.event) for one in context.journal.dump_events.applied(context.journal.run)]
    kinds = ("view", "materialized view", "function", "procedure")
    made = {(e.schema, e.name) for e in applied if e.tag.startswith("CREATE ") and e.kind in kinds}
    args = {"schemas": [schema for schema, _ in made], "names": [name for _, name in made]}
    return {oid for (oid,) in context.target.execute(_Q["made"], args)}


def _exchange(context: Context, backs: Sequence[Back]) -> dict[str, Any]:
    conn, journal, tables = context.target, context.journal, [t for t, _ in backs]
    found, new, timeout = _read(context, backs), {way.row.oid for _, way in backs}, context.pipeline.swap.lock_timeout
    by_oid = {way.row.oid: t.qualified for t, way in backs}
    refuse(
        [Finding("error", r.code, "target", by_oid[r.table], r.what, r.fix) for r in found.carried.refused],
        under_way=True,
    )
    gone = {(t.schema, t.name) for t in tables if t.id not in found.old}
    for key in found.keys:
        if key.table_oid not in new and (key.referenced_schema, key.referenced) in gone:
            raise PreflightRefused(
                f"foreign key {key.name} of {key.schema}.{key.table} refers to it, which was not there before",
                table=f"{key.referenced_schema}.{key.referenced}", sql=f"{drop_statement(key).as_string(conn)};",
                todo="drop it, then run revert again",
            )  # fmt: skip
    ends = {(k.schema, k.table) for k in found.keys} | {(k.referenced_schema, k.referenced) for k in found.keys}
    own = [ForeignKey(**key) for _, way in backs for key in way.foreign_keys]
    ends |= {(k.referenced_schema, k.referenced) for k in own}
    there = [*catalog.oids_of(conn, {*ends, *((t.schema, t.name) for t in tables), *found.carried.tables})]
    with writers_wait(later=True) as from_here, context.fenced("replace.before_back_commit"):
        lock_unseen(conn, [(old_schema(t.schema), t.name) for t in tables if t.id in found.old], timeout)
        from_here()
        failpoint("replace.before_back_lock", conn)
        found.carried.lock_views(conn)
        lock_all(conn, there, "ACCESS EXCLUSIVE", timeout)
        locked = time.monotonic()
        with plans_kept(conn):
            refuse_changed_since(conn, backs)
            names = [(t.schema, t.name) for t in tables]
            refuse(what_opens_a_closed_table(context.pipeline, conn, names), under_way=True)
            if _read(context, backs) != found:
                raise NotYet("what stands on the tables changed just now")
            wait_out_old_snapshots(conn)
        _refuse_written(context, backs)
        for key in found.keys:
            conn.execute(drop_statement(key))
        found.carried.take_away(conn)
        for table, way in backs:
            change_log.stop(conn, change_log.of_new(context.name), way.row.oid)
            for (statement,) in conn.execute(queries("way_back")["strip"], {"oid": way.row.oid}).fetchall():
                conn.execute(statement)
            move(conn, (table.schema, table.name), copy_schema(table.schema))
        for table in tables:
            if table.id in found.old:
                move(conn, (old_schema(table.schema), table.name), table.schema)
        for key in found.keys:
            if key.table_oid not in new:  # those of others, whatever they are by now
                add_foreign_key(context, journal, key)
        for key in own:
            if catalog.oid_of(conn, key.referenced_schema, key.referenced) is not None:
                add_foreign_key(context, journal, key)
        homes = homes_of_copies([t for t in tables if t.id in found.old])
        found.carried.put_back(conn, homes, context.pipeline.trusted_roles)
        with plans_kept(conn):
            refuse_left_behind(conn, [way.row.oid for t, way in backs if t.id in found.old], found.ours)
        are_copies_again(conn, journal, backs)
        for _, way in backs:
            journal.ways_back.forget(way)
        journal.tables.set_state("indexed", [t.id for t in tables])
        journal.set_reverted(tables_only=True)
    failpoint("replace.after_back_commit", conn)
    return {"locked_ms": round((time.monotonic() - locked) * 1000), "foreign_keys": len(found.keys)}


# --- or for good ------------------------------------------------------------------------------------------------------


def refuse_rows_of_old(context: Context, tables: Sequence[TableRow]) -> None:
    """Rows that only the old tables have would go with these: how many they are is counted, and somebody decides."""
    if context.pipeline.tables.keep_extra is not None:
        return
    found = {t.qualified: _counted(context, t, way) for t, way in _left(context, tables)}
    listed = [f"{name}: {_rows(count)}" for name, count in found.items() if count != 0]
    if listed:
        raise PreflightRefused(
            f"the tables that were replaced have rows that the new ones have not ({'; '.join(listed)})", todo=_KEEP
        )


def _counted(context: Context, table: TableRow, way: Reverse) -> int | None:
    conn, swap = context.target, context.pipeline.swap

    def attempt() -> int | None:
        with conn.transaction(force_rollback=True):
            limit_lock_wait(conn, swap.lock_timeout)
            return _only_old(conn, table, way, context.pipeline.trusted_roles)

    return with_tries(swap, "counting rows of what was replaced", attempt, again=GaveWay)


def drop_replaced(context: Context, tables: Sequence[TableRow]) -> None:
    """Each in a transaction of its own, with the log that its new table has had for the way back."""
    keep = context.pipeline.tables.keep_extra
    for table, way in _left(context, tables):
        with_tries(
            context.pipeline.swap,
            "dropping what was replaced",
            partial(_drop, context, table, way, keep),
            again=GaveWay,
        )
    for schema in {s(t.schema) for t in tables for s in (old_schema, copy_schema)}:
        drop_schema_if_empty(context.target, schema)
    if migrations.state(context.target, "core")["applied"]:
        forget_capture(context.target, change_log.of_new(context.name))


def _left(context: Context, tables: Sequence[TableRow]) -> list[Back]:
    ways = {way.table_id: way for way in context.journal.ways_back.of(context.journal.run)}
    return [(t, ways[t.id]) for t in tables if t.id in ways]


def _drop(context: Context, table: TableRow, way: Reverse, keep: bool | None) -> None:
    conn, old = context.target, (old_schema(table.schema), table.name)
    with writers_wait(later=True) as from_here, conn.transaction():
        limit_lock_wait(conn, context.pipeline.swap.lock_timeout)
        stays = False
        if catalog.oid_of(conn, *old) is not None:
            conn.execute(sql.SQL("LOCK TABLE ONLY {} IN ACCESS EXCLUSIVE MODE").format(sql.Identifier(*old)))
            only = _only_old(conn, table, way, context.pipeline.trusted_roles) if keep is not False else 0
            if only != 0 and keep is None:
                raise PreflightRefused(f"{_rows(only)} came to the table that was replaced", table=table.qualified,
                                       todo=_KEEP)  # fmt: skip
            stays = only != 0
            if stays:
                context.say(f"{table.qualified}: {_rows(only)} stay in {sql.Identifier(*old).as_string()}")
            else:
                conn.execute(sql.SQL("DROP TABLE {}").format(sql.Identifier(*old)))
        from_here()
        change_log.stop(conn, change_log.of_new(context.name), way.row.oid)
        context.journal.ways_back.forget(way)
        lease.check(conn, context.fence())
        failpoint("cleanup.before_replaced_commit", conn)


def _only_old(conn: Session, table: TableRow, way: Reverse, trusted: Sequence[str]) -> int | None:
    """Rows of the old table that the new one has not got, and had not at the swap; None where that cannot be told. In
    the caller's transaction."""
    old = catalog.oid_of(conn, old_schema(table.schema), table.name)
    if old is None:
        return 0
    if catalog.oid_of(conn, table.schema, table.name) != way.row.oid:
        return None  # it was renamed or dropped since
    described = catalog.describe(conn, [old, way.row.oid])
    conn.execute(  # nobody adds code to them while they are read
        sql.SQL("LOCK TABLE ONLY {}, ONLY {} IN SHARE UPDATE EXCLUSIVE MODE").format(
            sql.Identifier(old_schema(table.schema), table.name), sql.Identifier(table.schema, table.name)
        )
    )
    foreign_code.hold_schemas(conn, [old, way.row.oid])
    names = ((old_schema(table.schema), table.name), (table.schema, table.name))
    if [catalog.oid_of(conn, *name) for name in names] != [old, way.row.oid]:
        return None  # somebody renamed one of them while it was waited for, and it is not what is looked at
    surveyed = foreign_code.survey(conn, [old, way.row.oid], trusted)
    if any(one.code or one.refused for one in surveyed.values()):
        return None  # what is on them would run as us
    types = [
        {c.name: c.base_type for c in described[oid].columns} if oid in described else {} for oid in (old, way.row.oid)
    ]
    key = way.row.plan.key.columns
    with conn.transaction(force_rollback=True):
        conn.execute("SET LOCAL row_security = off")  # an error, where it would hide rows
        relation = sql.Identifier(old_schema(table.schema), table.name)
        if not all(_comparable(types[0].get(k), types[1].get(k)) for k in key):
            row = conn.execute(sql.SQL("SELECT EXISTS (SELECT FROM ONLY {})").format(relation)).fetchone()
            return None if row and row[0] else 0
        query = sql.SQL(_Q["only_old"]).format(
            old=relation, new=sql.Identifier(table.schema, table.name), log=change_log.log_table(way.row.log_table),
            same=_same(key, "n", list(key)), before=_same(key, "l", [f"old_{i}" for i, _ in enumerate(key, 1)]),
            after=_same(key, "l", [f"new_{i}" for i, _ in enumerate(key, 1)]),
        )  # fmt: skip
        found = conn.execute(query).fetchone()
        return int(found[0]) if found else 0


def _comparable(old: str | None, new: str | None) -> bool:
    """Whether the server's own = compares them, as the same value."""
    if old is None or is_user_type(old):
        return False
    return old == new or {old, new} <= _INTEGERS


def _same(key: Sequence[str], alias: str, columns: Sequence[str]) -> sql.Composed:
    return sql.SQL(" AND ").join(
        sql.SQL("o.{} OPERATOR(pg_catalog.=) {}").format(sql.Identifier(k), sql.Identifier(alias, c))
        for k, c in zip(key, columns, strict=True)
    )


def _rows(count: int | None) -> str:
    return (
        "rows that cannot be told apart from the new table's"
        if count is None
        else f"{count:,} row{'s' if count > 1 else ''}"
    )
