"""Both servers, and what the run needs of them."""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterator
from typing import Any

from psycopg import sql

from airflow_provider_pgddl.engine.capture import ddl_log, granted, slot_log
from airflow_provider_pgddl.engine.capture.namesakes import namesake
from airflow_provider_pgddl.engine.capture.slot_stream import FAILOVER
from airflow_provider_pgddl.engine.ddl.events import events_from_dump
from airflow_provider_pgddl.engine.ddl.relocate import copy_schema, old_schema
from airflow_provider_pgddl.engine.errors import PgddlError, StageFailed
from airflow_provider_pgddl.engine.journal import migrations
from airflow_provider_pgddl.engine.pipeline.names import written
from airflow_provider_pgddl.engine.pipeline.selection import matches
from airflow_provider_pgddl.engine.preflight.facts import Facts, Side, cannot_create, free_name, split_tables
from airflow_provider_pgddl.engine.preflight.findings import Finding
from airflow_provider_pgddl.engine.preflight.partitioning import expected_partitions
from airflow_provider_pgddl.engine.server import catalog, credentials
from airflow_provider_pgddl.engine.server.connections import OWN_SESSIONS, room, sessions_of_a_worker
from airflow_provider_pgddl.engine.server.pg_dump import dump_schema, find_pg_dump
from airflow_provider_pgddl.engine.server.pooler import shares_sessions
from airflow_provider_pgddl.engine.sql import queries

_Q = queries("preflight")
LOCKS_A_TABLE = 12  # measured, with two indexes: 9 on the source, 12 on the target
LOCKS_A_PARTITION = 8  # with two indexes, as it is made


def standby(facts: Facts) -> Iterator[Finding]:
    for side in facts.sides:
        if side.server["standby"]:
            what = "this server is a standby, and pgddl writes on both sides"
            yield Finding("error", "standby", side.where, None, what, "point the connection at the primary")


def hiding_damage(facts: Facts) -> Iterator[Finding]:
    for side in facts.sides:
        yield from settings_that_hide_damage(side)


def settings_that_hide_damage(side: Side) -> Iterator[Finding]:
    """Rows of a damaged page would be none for chunks, windows and comparisons alike."""
    for name, source in side.rows("hiding_damage"):
        database = side.name(side.server["database"])
        reset = {
            "user": f"ALTER ROLE {side.role} RESET {name};",
            "database": f"ALTER DATABASE {database} RESET {name};",
            "database user": f"ALTER ROLE {side.role} IN DATABASE {database} RESET {name};",
            "client": f"take {name} out of the options of the connection",
        }
        system = f"ALTER SYSTEM SET {name} = off;\nSELECT pg_reload_conf();"
        what = f"{name} is on: rows of a damaged page would be missing, and nothing would say so"
        yield Finding("error", "hiding_damage", side.where, None, what, reset.get(source, system))


def event_triggers(facts: Facts) -> Iterator[Finding]:
    """Postgres lets only a superuser make event triggers (C25), managed servers others as well: so it is tried. Those
    that an administrator has made will do."""
    side, capture = facts.source, facts.pipeline.capture
    if capture.ddl == "off" or side.server["standby"] or ddl_log.may_make_event_triggers(side.conn):
        return
    journal = facts.target is None or facts.pipeline.swap.way_back is not None
    sets = ["core", *(["injector"] if capture.identities else []), *(["journal"] if journal else [])]
    made = granted.is_granted(side.conn) and ddl_log.are_there(side.conn)
    role = side.server["role"]
    if not made:
        what = f"capture.ddl: {capture.ddl} needs event triggers, which role {role} may not make"
    elif any(migrations.state(side.conn, name)["pending"] for name in sets):
        what = "what an administrator has made in schema pgddl is older than this package"
    elif capture.rows == "direct_trigger":
        what = "capture.rows: direct_trigger needs event triggers of our own, and these are an administrator's"
        fix = "capture: {rows: change_log}"
        yield Finding("error", "event_triggers", "pipeline", None, what, fix)
        return
    else:
        return
    fix = f"pgddl check -p FILE --admin-sql  -- prints what a superuser runs once for {role}; or set capture.ddl: off"
    yield Finding("error", "event_triggers", "source", None, what, fix)


def namesakes(facts: Facts) -> Iterator[Finding]:
    """What we know by the pipeline's name would be another's as well."""
    assert facts.target is not None
    name = facts.pipeline.pipeline
    if what := namesake(facts.source.conn, facts.target.conn, name):
        fix = f"pipeline: {name[:36]}_too"
        yield Finding("error", "name", "pipeline", None, what, fix)


def slots(facts: Facts) -> Iterator[Finding]:
    capture, server = facts.pipeline.capture, facts.source.server
    keys = [key for key in ("rows", "ddl") if getattr(capture, key) == "wal"]
    if not keys:
        return
    asked = " and ".join(f"capture.{key}: wal" for key in keys)
    if server["wal_level"] != "logical":
        what = f"{asked} needs wal_level logical, and it is {server['wal_level']}"
        instead = " and ".join({"rows": "capture.rows: change_log", "ddl": "capture.ddl: queue"}[key] for key in keys)
        fix = f"ALTER SYSTEM SET wal_level = 'logical';  -- and restart the server; or set {instead}"
        yield Finding("error", "wal_level", "source", None, what, fix)
    elif server["free_slots"] < len(keys):
        fix = "ALTER SYSTEM SET max_replication_slots = 20;  -- and restart the server; or drop a slot"
        what = "every replication slot is taken" if server["free_slots"] < 1 else f"{asked} need two slots, one is free"
        yield Finding("error", "slots", "source", None, what, fix)
    if not server["replication"]:
        fix = f"ALTER ROLE {facts.source.role} REPLICATION;"
        yield Finding("error", "replication", "source", None, f"{asked} needs the right to replicate", fix)
    if not server["can_create"]:
        what = (
            f"role {server['role']} may not create publications in database {server['database']}, which {asked} needs"
        )
        fix = f"GRANT CREATE ON DATABASE {facts.source.name(server['database'])} TO {facts.source.role};"
        yield Finding("error", "rights", "source", None, what, fix)
    if capture.failover:
        yield from _failover(facts)


def _failover(facts: Facts) -> Iterator[Finding]:
    """To and fro, a slot is on one server at a time: that of one may fail over although the other's cannot."""
    old = [side for side in facts.sides if side.version < FAILOVER]
    if facts.pipeline.swap.way_back is None or len(old) == len(facts.sides):
        if facts.source in old:
            what = f"capture.failover needs Postgres 17 or newer, the source is {facts.source.version // 10_000}"
            yield Finding("error", "failover", "pipeline", None, what, "capture: {failover: false}")
        return
    for side in old:
        what = (
            f"capture.failover: the {side.where} is Postgres {side.version // 10_000}, whose slots are on no standby:"
            " once that server is failed over, what reads a slot of it is at its end, or begins anew by"
            " capture.on_slot_lost. It holds for the other server"
        )
        yield Finding("warning", "failover", side.where, None, what)


def replica_identities(facts: Facts) -> Iterator[Finding]:
    """What our publication would break for applications (C19)."""
    if not facts.pipeline.by_slot:
        return
    for table in catalog.describe(facts.source.conn, facts.row_oids).values():
        if table.key is None and facts.pipeline.tables.keyless == "copy_at_swap":
            continue  # never published
        for relation, what, fix in slot_log.unfit(facts.source.conn, table):
            yield Finding("error", "replica_identity", "source", relation, what, fix)


def same_database(facts: Facts) -> Iterator[Finding]:
    """Names and system identifiers are no proof (a standby that was promoted has both); a lock that collides is."""
    assert facts.target is not None
    source, target = facts.source.server, facts.target.server
    if (source["system"], source["database"]) != (target["system"], target["database"]):
        return
    probe = secrets.randbits(62)
    if facts.source.conn.execute(_Q["lock_probe"], [probe]).fetchone() != (True,):
        return
    try:
        if facts.target.conn.execute(_Q["lock_probe"], [probe]).fetchone() == (True,):
            facts.target.conn.execute(_Q["unlock_probe"], [probe])
            return
    finally:
        facts.source.conn.execute(_Q["unlock_probe"], [probe])
    what = f"source and target are the same database, {target['database']}"
    fix = "leave target out and name the tables under rewrite: then they are rewritten in place"
    yield Finding("error", "same_database", "target", None, what, fix)


def pooler(facts: Facts) -> Iterator[Finding]:
    for side in facts.sides:
        if shares_sessions(side.conn):
            what = "a connection pooler in transaction mode stands in between: locks and settings do not last there"
            fix = "connect to the server directly, or to a pool with pool_mode = session"
            yield Finding("error", "pooler", side.where, None, what, fix)


def pg_dump(facts: Facts) -> Iterator[Finding]:
    """One that reads the newer server: the snapshot dumps the source, and where rows are moved a swap, what is there
    already and follow.finish ask the target for its dump."""
    dumped = facts.sides if facts.pipeline.moves_rows else [facts.source]
    newer = max(dumped, key=lambda side: side.version // 10_000)
    try:
        find_pg_dump(newer.version // 10_000)
    except PgddlError as error:
        yield Finding("error", "pg_dump", newer.where, None, error.what, error.todo)


def dump(facts: Facts) -> Iterator[Finding]:
    """What the snapshot would meet with capture on: a statement that is not understood, rights that pg_dump lacks."""
    side, pipeline = facts.source, facts.pipeline
    if facts.target is None:
        parts = queries("swap")["partitions_of"]
        found = [side.conn.execute(parts, [oid]).fetchall() or [name] for oid, name in facts.names.items()]
        choice: dict[str, Any] = {"only": [name for names in found for name in names]}
    else:
        there = catalog.table_names(side.conn)
        chosen = matches(pipeline, there, strict=False)
        choice = {"exclude": sorted({*there} - {*chosen.rows, *chosen.schema_only})}
    dsn = credentials.dsn_of(side.conn)
    try:
        events_from_dump(dump_schema(dsn, side.version // 10_000, section=None, **choice), "")
    except StageFailed as error:
        yield Finding("error", "dump", "source", None, error.what, error.sql or error.todo)


def connections(facts: Facts) -> Iterator[Finding]:
    for side in facts.sides:
        each = sessions_of_a_worker(side.where, in_place=facts.target is None)
        needed = each * facts.pipeline.backfill.workers + OWN_SESSIONS
        there = room(side.conn)
        if there.free < needed:
            whose = "" if there.of == "server" else f" to the {there.of}"
            what = (
                f"{max(0, there.free)} connections are free{whose}, and up to {needed} are needed ({OWN_SESSIONS} and "
                f"{each} a worker): with fewer there are fewer workers"
            )
            raised = there.limit + needed - there.free
            fix = {
                "server": f"ALTER SYSTEM SET max_connections = {raised};  -- and restart the server; or",
                "database": f"ALTER DATABASE {side.name(side.server['database'])} CONNECTION LIMIT {raised};  -- or",
                "role": f"ALTER ROLE {side.role} CONNECTION LIMIT {raised};  -- or",
            }[there.of]
            fix += " lower backfill.workers"
            yield Finding("warning", "connections", side.where, None, what, fix)


def locks(facts: Facts) -> Iterator[Finding]:
    """Of the server's lock table, which all sessions share: a window over tables that have all changed needs most."""
    split = [(facts.oids[table], by) for table, by in split_tables(facts)]
    parts = sum(expected_partitions(facts.source.conn, oid, by) for oid, by in split)
    needed = LOCKS_A_TABLE * len(facts.rows) + LOCKS_A_PARTITION * parts
    made = f", or {parts} partitions are made and moved," if parts else ""
    for side in facts.sides:
        each, sessions = side.server["locks_a_session"], side.server["sessions"]
        if each * sessions < needed:
            what = (
                f"there is room for about {each * sessions} locks, and where all of {len(facts.rows)} tables change "
                f'within one window{made} it takes up to {needed}: it would fail with "out of shared memory"'
            )
            raised = math.ceil(needed / sessions)
            fix = f"ALTER SYSTEM SET max_locks_per_transaction = {raised};  -- and restart the server"
            yield Finding("warning", "locks", side.where, None, what, fix)


def prepared(facts: Facts) -> Iterator[Finding]:
    for gid, owner, since in facts.source.rows("prepared_transactions"):
        what = f"prepared transaction {gid} of {owner} is open since {since}; setup waits until it has ended"
        fix = f"ROLLBACK PREPARED {sql.Literal(gid).as_string(facts.source.conn)};  -- or COMMIT PREPARED"
        yield Finding("warning", "prepared_transaction", "source", None, what, fix)


def our_schemas(facts: Facts) -> Iterator[Finding]:
    """`pgddl` and, in place, the schemas of copies and of what they replace: absent, or ours by their comment."""
    live = sorted({schema for schema, _ in facts.rows}) if facts.target is None else []
    for side in facts.sides:
        wanted = ["pgddl", *(made(schema) for schema in live for made in (copy_schema, old_schema))]
        present = {row[0]: row[1:] for row in side.rows("schemas", schemas=wanted)}
        for schema, (comment, usable, owner, ledger) in present.items():
            ours = (comment or "").startswith("pgddl") and (schema != "pgddl" or ledger)
            if not ours:
                quoted = side.name(schema)
                what = f"schema {written(schema)} (owner {owner}) exists and is not pgddl's"
                aside = side.name(free_name(side, None, f"not_{schema}"))
                fix = f"ALTER SCHEMA {quoted} RENAME TO {aside};"
                yield Finding("error", "foreign_schema", side.where, None, what, fix)
            elif not usable:
                what = f"role {side.server['role']} may not create in schema {written(schema)}"
                fix = f"GRANT USAGE, CREATE ON SCHEMA {side.name(schema)} TO {side.role};"
                yield Finding("error", "rights", side.where, None, what, fix)
        if not side.server["can_create"] and not all(schema in present for schema in wanted):
            yield from cannot_create(side)


def publications(facts: Facts) -> Iterator[Finding]:
    """A subscriber to everything stops at the first row of a table of ours (C20)."""
    for side in facts.sides:
        for name, schemas, tables, options in side.rows("for_all_tables"):
            quoted = side.name(name)
            what = f"publication {written(name)} is FOR ALL TABLES: its subscribers would stop at pgddl's own tables"
            scope = f" FOR TABLE {tables}" if tables else ""
            if side.version >= 150_000 and schemas:
                scope = f" FOR TABLES IN SCHEMA {schemas}"
            fix = f"DROP PUBLICATION {quoted};\nCREATE PUBLICATION {quoted}{scope} WITH ({options});"
            yield Finding("error", "publication", side.where, None, what, fix)
