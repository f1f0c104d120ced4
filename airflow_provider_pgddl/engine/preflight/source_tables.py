"""The tables on the source: rights, keys, and what hides rows."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import psycopg
from psycopg import errors as pg
from psycopg import sql

from airflow_provider_pgddl.engine.capture.fence import FOLLOW, closed, fenced, left_to, old_since
from airflow_provider_pgddl.engine.errors import OPEN, PgddlError
from airflow_provider_pgddl.engine.journal.births import way_back_that_lives
from airflow_provider_pgddl.engine.model import tables
from airflow_provider_pgddl.engine.model.plan import equal
from airflow_provider_pgddl.engine.pipeline.names import written
from airflow_provider_pgddl.engine.preflight.facts import KINDS, Facts, foreign_keys, memberships
from airflow_provider_pgddl.engine.preflight.findings import Finding
from airflow_provider_pgddl.engine.progress import amount
from airflow_provider_pgddl.engine.rights import as_owner
from airflow_provider_pgddl.engine.rights.foreign_code import NOTHING, survey
from airflow_provider_pgddl.engine.server import catalog

KEYLESS_TOLD = 3  # tables that are told one by one
LOOK_MS = 2000  # how long rows of one table are looked through for advice
LOOKS_SECONDS = 10.0  # after which no further foreign key's rows are looked through


def missing_tables(facts: Facts) -> Iterator[Finding]:
    for schema, name in facts.tables:
        kind = facts.kinds.get((schema, name))
        if kind is None:
            yield Finding("error", "no_table", "source", written(schema, name), "there is no such table")
        elif kind not in "rp":
            what = f"is {KINDS.get(kind, 'not a table')}, not a table that pgddl can move"
            yield Finding("error", "no_table", "source", written(schema, name), what)


def left(facts: Facts) -> Iterator[Finding]:
    """Where the fence of a cut-over stands, applications are no more: whatever is read there is old."""
    for name in sorted({*fenced(facts.source.conn, facts.pipeline.pipeline)} & {*facts.tables}):
        what = "refuses writes since a cut-over of this pipeline: its rows here are older than the target's"
        fix = "pgddl reset, which takes the fence down for applications that are to come back to this server"
        yield Finding("error", "left", "source", written(*name), what, fix)
    for name, by in left_to(facts.source.conn, facts.pipeline.pipeline, facts.tables, certainly=False):
        yield Finding("error", "left", "source", written(*name), old_since(by), FOLLOW.format(by=by))


def closed_to_rewrites(facts: Facts) -> Iterator[Finding]:
    """A table that takes such a one's place would be open, and what is written to it seen by nobody."""
    for name, by in closed(facts.source.conn, facts.tables):
        if facts.pipeline.pipeline != way_back_that_lives(facts.source.conn, by):
            what = f"refuses writes for the cut-over of pipeline {by!r}: rewriting it in place would open it again"
            fix = f"do so on the server that {by} has moved to; {OPEN.format(by=by)}"
            yield Finding("error", "left", "source", written(*name), what, fix)


def source_rights(facts: Facts) -> Iterator[Finding]:
    """Triggers that fire always are the owner's to make; rows and sequences are read."""
    side = facts.source
    if side.server["superuser"]:
        return
    role = side.server["role"]
    if not facts.pipeline.moves_rows:
        if unreadable := [name for (name,) in side.rows("unreadable")]:
            more = f" and {len(unreadable) - 1} more" if len(unreadable) > 1 else ""
            what = f"role {role} may not read {unreadable[0]}{more}, which pg_dump locks"
            yield Finding("error", "rights", "source", None, what, f"GRANT pg_read_all_data TO {side.role};")
        return
    for owner in sorted({relation.owner for relation in facts.relations if not relation.owned}):
        of_owner = [relation for relation in facts.relations if relation.owner == owner]
        others = f" and {len(of_owner) - 1} more" if len(of_owner) > 1 else ""
        what = f"role {role} needs the rights of the owner, {owner}, to make triggers on {of_owner[0].written}{others}"
        fix = f"GRANT {side.name(owner)} TO {side.role};"
        yield Finding("error", "rights", "source", of_owner[0].written, what, fix)
    for schema in sorted({relation.schema for relation in facts.relations if not relation.can_use_schema}):
        what = f"role {role} may not use schema {written(schema)}"
        yield Finding(
            "error", "rights", "source", None, what, f"GRANT USAGE ON SCHEMA {side.name(schema)} TO {side.role};"
        )
    for relation in facts.relations:
        if not relation.can_select:
            what, fix = f"role {role} may not read it", f"GRANT SELECT ON {relation.quoted} TO {side.role};"
            yield Finding("error", "rights", "source", relation.written, what, fix)
    for (sequence,) in side.rows("sequences") if facts.target is not None else []:
        what = f"role {role} may not read sequence {sequence}"
        fix = f"GRANT SELECT ON SEQUENCE {sequence} TO {side.role};"
        yield Finding("error", "rights", "source", None, what, fix)


def row_security(facts: Facts) -> Iterator[Finding]:
    """Policies would hide rows from the copy, and from the checksum by the same role as well (C7)."""
    for relation in facts.relations:
        if relation.hides_rows:
            what = f"row security would hide rows from role {facts.source.server['role']}"
            fix = f"ALTER ROLE {facts.source.role} BYPASSRLS;"
            yield Finding("error", "row_security", "source", relation.written, what, fix)
    if facts.target is None or facts.target.server["bypasses_row_security"]:
        return
    secured = [relation for relation in facts.relations if relation.row_security]
    members = memberships(facts, {relation.owner for relation in secured})
    for relation in secured:
        if relation.forced or not members.get(relation.owner):
            what = f"its row security would hide rows on the target from role {facts.target.server['role']}"
            fix = f"ALTER ROLE {facts.target.role} BYPASSRLS;"
            yield Finding("error", "row_security", "target", relation.written, what, fix)


def keys(facts: Facts) -> Iterator[Finding]:
    """Every row needs a key: unique, not null, whole, checked at once, and equal only to itself."""
    if facts.pipeline.capture.rows == "none":
        return
    side = facts.source
    at_swap = facts.pipeline.tables.keyless == "copy_at_swap"
    sizes: dict[int, int] = dict(side.rows("table_sizes", oids=facts.row_oids)) if at_swap else {}
    described = catalog.describe(side.conn, facts.row_oids)
    nullable = dict(side.rows("not_null_candidates", oids=facts.row_oids))
    keyless = list[tuple[tables.Table, str]]()
    collations: dict[int, dict[str, str]] = {}
    for oid, column, collation in side.rows("key_collations", oids=facts.row_oids):
        collations.setdefault(oid, {})[column] = collation
    for oid, table in described.items():
        quoted = side.name(table.schema, table.name)
        if table.key is None and at_swap:
            what = (
                f"has no key: its {amount(sizes.get(oid, 0))}B are copied whole and compared at the swap, and its"
                " writers wait for that; a pipeline that never swaps never copies it"
            )
            yield Finding("warning", "keyless", "source", facts.written(oid), what)
            continue
        if table.key is None:
            keyless.append((table, _new_key(facts, oid, table, nullable.get(oid))))
            continue
        types = {column.name: column.base_type for column in table.columns}
        for column in table.key.columns:
            if column in facts.pipeline.skipped_columns.get((table.schema, table.name), ()):
                what = f"column {written(column)} is in skip_columns and part of the key"
                yield Finding(
                    "error", "key", "pipeline", facts.written(oid), what, "leave it out of tables.skip_columns"
                )
            if types[column] == '"char"' and any(s.version >= 180_000 for s in facts.sides):
                what = (
                    f'key column {written(column)} is of type "char", of which Postgres 18 plans no comparison by order'
                    ' ("cache lookup failed for collation 0")'
                )
                alter = f"ALTER TABLE {quoted} ALTER COLUMN {side.name(column)} TYPE text;"
                yield Finding("error", "key", "source", facts.written(oid), what, alter)
            if collation := collations.get(oid, {}).get(column):
                what = f"key column {written(column)} is under {collation}, by which different texts are equal"
                fix = f'ALTER TABLE {quoted} ALTER COLUMN {side.name(column)} TYPE text COLLATE pg_catalog."C";'
                yield Finding("error", "key", "source", facts.written(oid), what, fix)
    stay = catalog.still_without_key(side.conn, [table.oid for table, _ in keyless])
    yield from _without_key(facts, [(table, fix) for table, fix in keyless if table.oid in stay])


def collations(facts: Facts) -> Iterator[Finding]:
    """Rows are found by their keys' indexes, which may not lead to all of them any more: then whoever reads by such an
    index and whoever compares by it miss the same rows. By no other index does pgddl look for a row."""
    side = facts.source
    of_database = side.rows("database_collation")[0] if side.version >= 150_000 else (None, None)
    outdated: dict[tuple[str | None, str, str, str], list[tuple[int, str]]] = {}
    if facts.pipeline.capture.rows != "none":
        by_key = {oid: t.key.index for oid, t in catalog.describe(side.conn, facts.row_oids).items() if t.key}
        for oid, its_schema, index, schema, name, *versions in side.rows(
            "key_indexes", oids=[*by_key], indexes=[*by_key.values()]
        ):
            recorded, actual = versions if schema else of_database
            if recorded is not None and actual is not None and recorded != actual:
                found = outdated.setdefault((schema, name if schema else "", recorded, actual), [])
                found.append((oid, side.name(its_schema, index)))
    for (schema, name, recorded, actual), indexes in outdated.items():
        database = side.name(side.server["database"])
        whose = f"collation {side.name(schema, name)}" if schema else f"the collation of database {database}"
        others = f" and of {len(indexes) - 1} more" if len(indexes) > 1 else ""
        what = (
            f"{whose} was of version {recorded} when that was last noted, and is of {actual} now: unless it was rebuilt"
            f" since, the index of the key of {facts.written(indexes[0][0])}{others} may not lead to every row, for an"
            " application and for pgddl alike"
        )
        refresh = (
            f"ALTER COLLATION {side.name(schema, name)} REFRESH VERSION;"
            if schema else f"ALTER DATABASE {database} REFRESH COLLATION VERSION;"
        )  # fmt: skip
        reindexed = [f"REINDEX INDEX CONCURRENTLY {index};" for _, index in indexes]
        said = "  -- this alone, if all that uses it was rebuilt already; it ends the server's warnings, too"
        yield Finding("error", "collation", "source", None, what, "\n".join([*reindexed, refresh + said]))
    if 140_000 <= side.version < 140_004:
        what = (
            "Postgres 14 before 14.4 may leave rows out of an index that is built CONCURRENTLY: what is read by such an"
            " index is not all there is"
        )
        fix = "CREATE EXTENSION amcheck;  -- bt_index_check(index, true) finds such an index; REINDEX it, and upgrade"
        yield Finding("warning", "old_minor", "source", None, what, fix)


def _without_key(facts: Facts, keyless: Sequence[tuple[tables.Table, str]]) -> Iterator[Finding]:
    """Many tables are one finding: what is to be decided about them is the same."""
    lacks = "no primary key, nor a unique index over all rows and NOT NULL columns, checked at once"
    fence = "" if facts.pipeline.in_place or facts.pipeline.swap.fence != "none" else ", with swap.fence: read_only"
    instead = f"-- or leave out under tables.exclude, or set tables.keyless: copy_at_swap{fence}"
    if len(keyless) <= KEYLESS_TOLD:
        for table, fix in keyless:
            name = written(table.schema, table.name)
            yield Finding("error", "key", "source", name, f"has no key: {lacks}", f"{fix}\n{instead}")
        return
    names = ", ".join(written(table.schema, table.name) for table, _ in keyless)
    what = f"{len(keyless)} tables have no key ({lacks}): {names}"
    yield Finding("error", "key", "source", None, what, "\n".join([*(fix for _, fix in keyless), instead]))


def _new_key(facts: Facts, oid: int, table: tables.Table, nullable: Sequence[str] | None) -> str:
    """What gives a table a key, as its rows are now."""
    side, quoted = facts.source, facts.source.name(table.schema, table.name)
    columns = [column.name for column in table.columns]
    # From 18 on NOT NULL can be NOT VALID or NO INHERIT: no primary key goes with that.
    odd = {column: (name, valid) for column, name, valid in side.rows("odd_not_null", oid=oid)}

    def not_null(wanted: Sequence[str]) -> list[str]:
        return [
            f"VALIDATE CONSTRAINT {side.name(odd[column][0])}"
            if column in odd and not odd[column][1] else f"ALTER COLUMN {side.name(column)} SET NOT NULL"
            for column in wanted
        ]  # fmt: skip

    if nullable:
        fits = _fit_for_key(facts, oid, table, nullable, unique=True)
        if fits is not False:
            actions = ", ".join(not_null(nullable))
            return f"ALTER TABLE {quoted} {actions};" + ("" if fits else "  -- fails while a row has NULL there")
    primary = [column for (column,) in side.rows("primary_key", oid=oid)]
    if primary and _fit_for_key(facts, oid, table, primary, unique=False) is not False:
        add = f"ALTER TABLE {quoted} ADD UNIQUE ({', '.join(map(side.name, primary))});"
        return f"{add}  -- checked at once, beside its primary key, which is not or holds for periods"
    of_partitions = [name for (name,) in side.rows("partition_columns", oid=oid)]
    if not primary and "id" in columns and None not in of_partitions:
        key = list(dict.fromkeys(["id", *of_partitions]))
        fits = _fit_for_key(facts, oid, table, key, unique=False)
        if fits is not False:
            unproven = [c.name for c in table.columns if c.name in key and not c.not_null]
            added = [f"ADD PRIMARY KEY ({', '.join(side.name(column) for column in key)})"]
            if odd.keys() & {*key}:
                added = [added[0].replace("PRIMARY KEY", "UNIQUE", 1), *not_null(unproven)]
            add = f"ALTER TABLE {quoted} {', '.join(added)};"
            return add + ("" if fits else "  -- fails while two rows are the same there, or one has NULL")
    if table.kind == "p":
        return f"-- {quoted}: ADD PRIMARY KEY takes columns that hold its partition key and are unique together"
    name = next(name for name in ("id", "row_id", *(f"row_id_{n}" for n in range(2, 2000))) if name not in columns)
    # No identity, which a table with children cannot get; these get the column with it, and are to be asked for it too.
    return (
        f"ALTER TABLE {quoted} ADD COLUMN IF NOT EXISTS {side.name(name)} bigserial,"
        f" ADD {'UNIQUE' if primary else 'PRIMARY KEY'} ({side.name(name)});"
        "  -- no column of it is a key now; this rewrites it, and keeps everybody out meanwhile"
    )


def _fit_for_key(facts: Facts, oid: int, table: tables.Table, columns: Sequence[str], *, unique: bool) -> bool | None:
    """Whether these columns of all rows have values (`unique`: which are known to differ). None where that would run
    somebody's code, or takes too long to find out."""
    surveyed = facts.surveyed[oid]
    if surveyed.role or surveyed.code:
        return None
    relation, listed = sql.Identifier(table.schema, table.name), [sql.Identifier(column) for column in columns]
    nulls = sql.SQL(" OR ").join(sql.SQL("{} IS NULL").format(column) for column in listed)
    query = sql.SQL("SELECT EXISTS (SELECT FROM {} WHERE {})").format(relation, nulls)
    if not unique:
        query += sql.SQL(" OR EXISTS (SELECT FROM {} GROUP BY {} HAVING count(*) > 1)").format(
            relation, sql.SQL(", ").join(listed)
        )
    try:
        with facts.source.conn.transaction():
            facts.source.conn.execute(f"SET LOCAL statement_timeout = {LOOK_MS}")
            return facts.source.conn.execute(query).fetchone() == (False,)
    except pg.UndefinedFunction:  # values that cannot be compared, such as json
        return False
    except psycopg.Error:  # it took too long, or cannot be read: other checks tell why
        if facts.source.conn.closed:
            raise
        return None


def foreign_tables(facts: Facts) -> Iterator[Finding]:
    for relation in facts.relations:
        if relation.kind == "f" and relation.oid != relation.root:
            what = f"its partition {relation.written} is a foreign table, whose changes no trigger of ours sees"
            fix = f"ALTER TABLE {facts.source.name(*facts.names[relation.root])} DETACH PARTITION {relation.quoted};"
            yield Finding("error", "foreign_table", "source", facts.written(relation.root), what, fix)


def partitioned_foreign_keys(facts: Facts) -> Iterator[Finding]:
    """Before 18, a partitioned table takes no foreign key NOT VALID: validation would lock both tables (C23). Across
    servers its partitions get it first."""
    side = facts.source
    if facts.target is not None or side.version >= 180_000:
        return
    for key in foreign_keys(facts):
        if key["referencing_kind"] == "p":
            referencing, name = (key["referencing_schema"], key["referencing_name"]), side.name(key["name"])
            what = f"partitioned, its foreign key {name} cannot be added NOT VALID before Postgres 18"
            fix = f"ALTER TABLE {side.name(*referencing)} DROP CONSTRAINT {name};"
            yield Finding("error", "partitioned_foreign_key", side.where, written(*referencing), what, fix)


def unproven_foreign_keys(facts: Facts) -> Iterator[Finding]:
    """Of a key that was validated only reading its rows tells: they may have come since, past its triggers."""
    side, keys = facts.source, foreign_keys(facts)
    broken = _broken_keys(facts, keys)
    for key in keys:
        name, table = side.name(key["name"]), side.name(key["referencing_schema"], key["referencing_name"])
        referencing = written(key["referencing_schema"], key["referencing_name"])
        if not key["validated"] and key["enforced"]:  # one that is NOT ENFORCED says so itself
            what = f"its foreign key {name} is NOT VALID: rows may violate it, and it stays NOT VALID behind the swap"
            fix = f"ALTER TABLE {table} VALIDATE CONSTRAINT {name};  -- tells whether any do"
            yield Finding("warning", "foreign_key", "source", referencing, what, fix)
        elif rows := broken.get(key["key"]):
            what = f"rows of it violate its foreign key {name}: left as they are, it is NOT VALID behind the swap"
            yield Finding("warning", "foreign_key", "source", referencing, what, f"{rows};  -- shows them")


def _broken_keys(facts: Facts, keys: Sequence[dict[str, Any]]) -> dict[int, str]:
    """By oid, what shows the rows that violate a key which claims to be valid: as far as a short look finds any."""
    side, moved = facts.source, set(facts.row_oids)
    by_oid = {key["key"]: key for key in keys if facts.target is None or key["referencing_oid"] in moved}
    ends = {key[end] for key in by_oid.values() for end in ("referencing_oid", "referenced_oid")}
    surveyed = survey(side.conn, ends, facts.pipeline.trusted_roles)
    found, until = dict[int, str](), time.monotonic() + LOOKS_SECONDS
    compared = catalog.compared_columns(side.conn, by_oid) if by_oid else {}
    for oid, match_full in side.rows("enforced_keys", keys=list(compared)) if compared else ():
        key = by_oid[oid]
        of_ends = [surveyed.get(key[end], NOTHING) for end in ("referencing_oid", "referenced_oid")]
        roles = {of_end.role for of_end in of_ends if of_end.role}
        if any(of_end.code or of_end.refused for of_end in of_ends) or len(roles) > 1:
            continue
        rows = _rows_without(key, match_full, compared[oid])
        try:
            with side.conn.transaction(force_rollback=True):
                side.conn.execute(f"SET LOCAL statement_timeout = {LOOK_MS}; SET LOCAL lock_timeout = {LOOK_MS}")
                query = sql.SQL("SELECT EXISTS ({})").format(rows)
                if as_owner.fetch(side.conn, max(roles, default=""), query, ["boolean"]) == [(True,)]:
                    found[oid] = rows.as_string(side.conn)
        except (psycopg.Error, PgddlError):  # it took too long, or cannot be read: other checks tell why
            if side.conn.closed:
                raise
        if time.monotonic() > until:
            break
    return found


def _rows_without(key: Mapping[str, Any], match_full: bool, columns: Sequence[Sequence[str]]) -> sql.Composed:
    """The rows of the referring table that a foreign key would refuse."""
    only = {end: sql.SQL("" if key[f"{end}_kind"] == "p" else "ONLY ") for end in ("referencing", "referenced")}
    child, parent = (sql.Identifier(key[f"{e}_schema"], key[f"{e}_name"]) for e in ("referencing", "referenced"))
    there = [sql.SQL("{} IS NOT NULL").format(sql.Identifier("c", column)) for _, _, column in columns]
    same = [equal(op, sql.Identifier("p", pk), sql.Identifier("c", column)) for pk, op, column in columns]
    return sql.SQL("SELECT * FROM {}{} c WHERE ({}) AND NOT EXISTS (SELECT FROM {}{} p WHERE {})").format(
        only["referencing"], child, sql.SQL(" OR " if match_full else " AND ").join(there),
        only["referenced"], parent, sql.SQL(" AND ").join(same),
    )  # fmt: skip


def subscribed(facts: Facts, severity: Literal["error", "warning"] = "warning") -> Iterator[Finding]:
    """A fence is a statement trigger, and apply workers fire none: what they write would be left behind."""
    if facts.pipeline.swap.fence != "read_only" and facts.pipeline.tables.keyless != "copy_at_swap":
        return
    side, by_oid = facts.source, {relation.oid: relation for relation in facts.relations}
    for oid, subscription in side.rows("subscribed", oids=list(by_oid)):
        what = f"subscription {written(subscription)} writes into it, and the fence does not stop that"
        fix = f"ALTER SUBSCRIPTION {side.name(subscription)} DISABLE;  -- before stage swap, which refuses otherwise"
        yield Finding(severity, "subscription", "source", by_oid[oid].written, what, fix)
