"""What a rewrite in place asks for, and what its swap could not keep."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from psycopg import errors as pg
from psycopg import sql

from airflow_provider_pgddl.engine.apply import dependents
from airflow_provider_pgddl.engine.ddl.partitioned_copy import new_type
from airflow_provider_pgddl.engine.ddl.relocate import copy_schema, old_schema
from airflow_provider_pgddl.engine.ddl.rewrite_actions import alter_actions, dropped_columns
from airflow_provider_pgddl.engine.errors import PgddlError
from airflow_provider_pgddl.engine.model.names import Name
from airflow_provider_pgddl.engine.pipeline.names import column_name, table_name, written
from airflow_provider_pgddl.engine.preflight.facts import (
    Facts,
    actions,
    brought,
    foreign_keys,
    free_name,
    out_of_the_way,
    recorded,
)
from airflow_provider_pgddl.engine.preflight.findings import Finding
from airflow_provider_pgddl.engine.preflight.partitioning import partition_findings
from airflow_provider_pgddl.engine.rights import as_owner
from airflow_provider_pgddl.engine.rows.chunk_layout import UNINDEXED_RANGES
from airflow_provider_pgddl.engine.server import catalog
from airflow_provider_pgddl.engine.sql import queries

_ENDS = "let that end (stage cleanup), or take it away: pgddl reset of pipeline {!r}"


def alterations(facts: Facts) -> Iterator[Finding]:
    """`rewrite.alter` names columns that there are, and drops none that something else needs."""
    columns: dict[int, set[str]] = {}
    for oid, column in facts.source.rows("columns", oids=list(facts.names)):
        columns.setdefault(oid, set()).add(column)
    for key, rewrite in facts.pipeline.rewrite.items():
        table = table_name(key)
        if table not in facts.oids:
            continue
        dropped: list[str] = []
        for number, text in enumerate(rewrite.alter):
            place = facts.pipeline.where("rewrite", key, "alter", number)
            try:
                named = [action.column for action in alter_actions([text]) if action.column]
                dropped += dropped_columns([text])
            except PgddlError as error:
                yield Finding("error", "alter", "pipeline", written(*table), f"{place}: {error.what}", error.todo)
                continue
            for column in named:
                if column not in columns.get(facts.oids[table], ()):
                    what = f"{place}: there is no column {written(column)}"
                    yield Finding("error", "alter", "pipeline", written(*table), what)
        place = facts.pipeline.where("rewrite", key, "alter")
        retyped = [action.column for action in actions(facts, table) if action.kind == "TYPE"]
        for column, made, virtual in facts.source.rows("generated_from", oid=facts.oids[table], columns=retyped):
            what = f"{place}: column {written(column)} gets no other type, {written(made)} is generated from it"
            alter, name = f"ALTER TABLE {facts.source.name(*table)}", facts.source.name(made)
            fix = f"{alter} ALTER COLUMN {name} DROP EXPRESSION;"
            if virtual:  # it has no values that could stay
                fix = f"{alter} DROP COLUMN {name};\n-- after the swap: {alter} ADD COLUMN {virtual};"
            yield Finding("error", "alter", "pipeline", written(*table), what, fix)
        for column, user in facts.source.rows("column_users", oid=facts.oids[table], columns=dropped):
            what = f"{place}: column {written(column)} cannot be dropped, {user} needs it"
            fix = "drop that first, or leave the column"
            yield Finding("error", "alter", "pipeline", written(*table), what, fix)


def narrower(facts: Facts) -> Iterator[Finding]:
    """What is left behind where a number gets a wider type: it would work, up to the old type's last value."""
    retyped = [
        (oid, action.column, new_type(action))
        for oid, table in facts.names.items()
        for action in actions(facts, table)
        if action.kind == "TYPE" and action.column
    ]
    oids, columns, types = zip(*retyped, strict=True) if retyped else ((), (), ())
    args = {"oids": list(oids), "columns": list(columns), "types": list(types)}
    for oid, what, fix in facts.source.conn.execute(queries("narrower_numbers")["narrower"], args).fetchall():
        yield Finding("warning", "narrower", "source", facts.written(oid), what, fix)


def partitions(facts: Facts) -> Iterator[Finding]:
    """`rewrite.partition_by` (C23)."""
    for key, rewrite in facts.pipeline.rewrite.items():
        table = table_name(key)
        if facts.kinds.get(table) == "r":
            side = facts.source
            free = partial(free_name, side)
            yield from partition_findings(side.conn, table, facts.oids[table], rewrite, side.name, free)


def orders(facts: Facts) -> Iterator[Finding]:
    """`rewrite.order_by`: columns that have an order, and an index that finds the rows in it."""
    side = facts.source
    for key, rewrite in facts.pipeline.rewrite.items():
        table, names = table_name(key), [column_name(column) for column in rewrite.order_by]
        if facts.kinds.get(table) != "r" or not names:
            continue
        described = catalog.describe(side.conn, [facts.oids[table]])[facts.oids[table]]
        first = next((c for c in described.columns if c.name == names[0]), None)
        if first is None:
            continue  # told of the file's columns
        probe = sql.SQL(queries("ordered_chunks")["probe"]).format(
            source=sql.Identifier(*table),
            first=sql.Identifier(first.name),
            type=sql.SQL(first.type),
            columns=sql.SQL(", ").join(sql.Identifier("t", name) for name in names),
        )
        try:
            with side.conn.transaction():
                as_owner.execute(side.conn, facts.surveyed[described.oid].role, probe)
        except (pg.UndefinedFunction, pg.AmbiguousFunction) as error:
            place = facts.pipeline.where("rewrite", key, "order_by")
            what = f"{place}: these columns have no order: {error.diag.message_primary}"
            yield Finding("error", "order_by", "pipeline", written(*table), what, "order by other columns")
            continue
        if not side.conn.execute(queries("ordered_chunks")["leading_index"], [described.oid, first.attnum]).fetchone():
            what = (
                f"no index begins with {written(first.name)}: backfill reads all of the table for each of up to "
                f"{UNINDEXED_RANGES} ranges of it, and a range is one transaction"
            )
            fix = f"CREATE INDEX CONCURRENTLY ON {side.name(*table)} ({side.name(first.name)});"
            yield Finding("warning", "order_by", "source", written(*table), what, fix)


def swap_rights(facts: Facts) -> Iterator[Finding]:
    """The swap moves tables within their schemas and makes foreign keys of both directions anew."""
    side = facts.source
    if side.server["superuser"]:
        return
    role = side.server["role"]
    for schema in sorted({relation.schema for relation in facts.relations if not relation.can_create_in_schema}):
        what = f"role {role} may not create in schema {written(schema)}, where the new table goes"
        yield Finding(
            "error", "rights", "source", None, what, f"GRANT CREATE ON SCHEMA {side.name(schema)} TO {side.role};"
        )
    for oid, what, fix in dependents.lacking(side.conn, list(facts.names)):
        if not fix.endswith(f" TO {side.role};") or not fix.startswith("GRANT CREATE"):  # that was said just now
            yield Finding("error", "rights", "source", facts.written(oid), what, fix)
    for key in foreign_keys(facts):
        for end, other in (("referencing", "referred to by"), ("referenced", "refers to")):
            if not key[f"owns_{end}"] and key[f"{end}_oid"] not in facts.names:
                table = key["referenced_oid"] if end == "referencing" else key["referencing_oid"]
                far = written(key[f"{end}_schema"], key[f"{end}_name"])
                owner = key[f"{end}_owner"]
                what = f"is {other} {far}" if end == "referencing" else f"{other} {far}"
                what += f", whose foreign key the swap makes anew: role {role} needs the rights of its owner, {owner}"
                fix = f"GRANT {side.name(owner)} TO {side.role};"
                yield Finding("error", "rights", "source", facts.written(table), what, fix)


def earlier_copies(facts: Facts) -> Iterator[Finding]:
    """A table of that name in the copy's or the old table's schema that this run has not made itself, or one that
    another pipeline is to make there."""
    side, made = facts.source, recorded(facts, facts.source)
    others = {
        live: by
        for live, by in brought(facts.source, facts.rows).items()
        if by.since == "under way" and by.pipeline != facts.pipeline.pipeline
    }
    for made_in, what in ((copy_schema, "a copy"), (old_schema, "what an earlier rewrite replaced")):
        names = {(made_in(schema), name): (schema, name) for schema, name in facts.rows}
        present = side.rows("named", schemas=[s for s, _ in names], names=[t for _, t in names])
        for schema, name, oid, kind in present:
            live = names[(schema, name)]
            if oid is None or made.get(live):
                continue
            text = f"{written(schema, name)} exists: {what} that belongs to no run of this pipeline"
            fix = out_of_the_way(side, (schema, name), kind, oid)
            if by := others.pop(live, None):
                text += f", but to {by}"
                fix = _ENDS.format(by.pipeline)
            yield Finding("error", "earlier_copy", "source", written(*live), text, fix)
    for live, by in others.items():
        if by.beside:  # its copy is still to be made, or was put aside
            what = f"{by}, is to have its copy in {written(copy_schema(live[0]))}"
            yield Finding("error", "earlier_copy", "source", written(*live), what, _ENDS.format(by.pipeline))


def unmovable(facts: Facts) -> Iterator[Finding]:
    """Partitioning, inheritance, labels, extensions: kinds of tables that the swap does not take yet."""
    side = facts.source
    for oid, (schema, name) in facts.names.items():
        own = next((r for r in facts.relations if r.oid == oid and r.root == oid), None)
        if own is not None and own.kind == "p":
            what = "is partitioned; rewriting it in place is not built yet"
            yield Finding("error", "partitioned", "source", written(schema, name), what, "leave it out")
        elif own is not None and own.is_partition:
            what = "is a partition; rewriting one in place is not built yet"
            yield Finding("error", "partitioned", "source", written(schema, name), what, "leave it out")
    for child_oid, *_, child, ps, pn, parent in side.rows("inheritance", oids=list(facts.names)):
        if child_oid in facts.names:
            what = f"inherits from {written(ps, pn)}; rewriting a child in place is not built yet"
            fix = f"ALTER TABLE {child} NO INHERIT {parent};  -- queries of {parent} lose the rows of {child} by it"
            yield Finding("error", "inheritance", "source", facts.written(child_oid), what, fix)
    for oid, provider in side.rows("security_labels", oids=list(facts.names)):
        what = f"has a security label of {provider}, which would stay with the old table"
        label = f"SECURITY LABEL FOR {side.name(provider)} ON TABLE {side.name(*facts.names[oid])}"
        fix = f"{label} IS NULL;  -- and again after the swap"
        yield Finding("error", "security_label", "source", facts.written(oid), what, fix)
    for oid, extension in side.rows("extension_members", oids=list(facts.names)):
        what = f"belongs to extension {written(extension)}"
        fix = f"ALTER EXTENSION {side.name(extension)} DROP TABLE {side.name(*facts.names[oid])};"
        yield Finding("error", "extension_member", "source", facts.written(oid), what, fix)
    for oid, sequence, own, identity, other, column in side.rows("shared_sequences", oids=list(facts.names)):
        dropped = [a.column for a in actions(facts, facts.names[oid]) if a.kind == "DROP COLUMN"]
        if not identity and own not in dropped:
            continue  # a serial's goes on under the new table, the same for all
        what = f"shares sequence {sequence} with {other}.{column}, which would go on with the old table's"
        fix = f"ALTER TABLE {other} ALTER COLUMN {column} DROP DEFAULT;  -- and give it a sequence of its own"
        yield Finding("error", "shared_sequence", "source", facts.written(oid), what, fix)


def unkept(facts: Facts) -> Iterator[Finding]:
    """What would be lost in silence, as it is of a table that is dumped and restored."""
    for oid, what, fix in facts.source.rows("unkept", oids=list(facts.names)):
        yield Finding("error", "unkept", "source", facts.written(oid), what, fix)


def referring(facts: Facts) -> Iterator[Finding]:
    """What refers to the table by oid goes over with the swap; not what cannot be told anew (C21)."""
    if not facts.names:
        return
    changed = {
        oid: [action.column for action in actions(facts, table) if action.kind == "TYPE" and action.column]
        for table, oid in facts.oids.items()
    }
    asked = facts.pipeline.swap.recreate_materialized_views
    for refused in dependents.read(facts.source.conn, list(facts.names), changed, materialized=asked).refused:
        yield Finding("error", refused.code, "source", facts.written(refused.table), refused.what, refused.fix)


def values_by_oid(facts: Facts) -> Iterator[Finding]:
    """A name in a column is kept as an oid, which the old table takes along."""
    if not facts.names:
        return
    for schema, table, column, type_, array in facts.source.rows("values_by_oid"):
        what = (
            f"column {written(column)} holds {type_} values, which are oids: one that names a table rewritten in place"
            " names the old one from the swap on, and none once that is dropped"
        )
        name, at = facts.source.name(schema, table), facts.source.name(column)
        fix = f"-- between swap and cleanup, where a value begins with pgddl_old_: change it in {name}"
        if not array:
            renamed = [
                (facts.source.name(*table) + more, facts.source.name(old_schema(table[0]), table[1]) + more)
                for table in sorted(facts.names.values())
                for more in (("", "[]") if type_ == "regtype" else ("",))
            ]
            fix = "\n".join(
                f"UPDATE {name} SET {at} = '{_literal(now)}'::{type_} WHERE {at} = '{_literal(old)}'::{type_};"  # noqa: S608 - for a person
                for now, old in renamed
            )
            fix += "  -- between swap and cleanup; and so for indexes that are named"
        yield Finding("warning", "oids", "source", written(schema, table), what, fix)


def _literal(name: str) -> str:
    return name.replace("'", "''")


def children(facts: Facts) -> Iterator[Finding]:
    """Children go on under the new table, which must have the columns that they have."""
    for oid, _, _, schema, name, *_ in facts.source.rows("children", oids=list(facts.names)):
        kinds = {action.kind for action in actions(facts, facts.names[oid])}
        wrong = sorted(kinds & {"TYPE", "DROP COLUMN", "SET NOT NULL", "DROP NOT NULL"})
        if _is_split(facts, facts.names[oid]):
            wrong.append("partition_by")
        if wrong:
            what = f"{written(schema, name)} inherits from it, and would not have the same columns: {wrong[0]}"
            child, parent = facts.source.name(schema, name), facts.source.name(*facts.names[oid])
            fix = f"ALTER TABLE {child} NO INHERIT {parent};  -- queries of {parent} lose the rows of {child} by it"
            yield Finding("error", "inheritance", "source", facts.written(oid), what, fix)


def published(facts: Facts) -> Iterator[Finding]:
    """Subscribers know a table by its name, and of a partitioned one they would be told the leaves'."""
    split = [oid for oid, table in facts.names.items() if _is_split(facts, table)]
    for oid, publication in facts.source.rows("published_by_leaf", oids=split):
        what = f"publication {written(publication)} would tell subscribers of its partitions, not of it"
        fix = f"ALTER PUBLICATION {facts.source.name(publication)} SET (publish_via_partition_root = true);"
        yield Finding("error", "publication", "source", facts.written(oid), what, fix)


def _is_split(facts: Facts, table: Name) -> bool:
    rewrite = facts.pipeline.rewrites.get(table)
    return rewrite is not None and rewrite.partition_by is not None


def replicated(facts: Facts) -> Iterator[Finding]:
    """An apply worker knows its tables by oid, and leaves out what comes for one that it does not know."""
    for oid, subscription in facts.source.rows("written_by", oids=list(facts.names)):
        what = f"subscription {written(subscription)} writes into it, and would write nothing into the new table"
        fix = "rewrite it while it is published elsewhere: leave it out of that publication, and\n"
        fix += f"ALTER SUBSCRIPTION {facts.source.name(subscription)} REFRESH PUBLICATION;"
        yield Finding("error", "subscription", "source", facts.written(oid), what, fix)
