"""What a swap in place makes for the new tables, made before there are any: on empty twins of their shape, in a
transaction that is rolled back.

Nothing of it evaluates anybody's code (C28): the twins have columns and no more, the statements are parsed and
analysed, and what a literal would run is refused as it is at the swap. No lock is taken on a live table but to read."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

import psycopg
from psycopg import errors as pg
from psycopg import sql

from airflow_provider_pgddl.engine.apply import dependents
from airflow_provider_pgddl.engine.ddl.parse import (
    Node,
    deparse,
    kind_of,
    parse,
    relation,
    statement_node,
    texts,
    unwrap,
    walk,
)
from airflow_provider_pgddl.engine.ddl.partitioned_copy import with_key
from airflow_provider_pgddl.engine.ddl.relocate import try_schema
from airflow_provider_pgddl.engine.errors import StageFailed
from airflow_provider_pgddl.engine.model.names import Name
from airflow_provider_pgddl.engine.pipeline.names import column_name, written
from airflow_provider_pgddl.engine.preflight.facts import Facts, actions, split_tables
from airflow_provider_pgddl.engine.preflight.findings import Finding
from airflow_provider_pgddl.engine.rights.alter_as_owner import alter
from airflow_provider_pgddl.engine.sql import queries

_Q = queries("swap_rehearsal")
ROW_FILTERS = 150_000  # from here on publications have them


class _Made(NamedTuple):
    """Something that the swap makes: whose it is (an oid, or 0), what, by which statement, and how it is put right."""

    table: int
    what: str
    statement: str
    fix: str


def broken(facts: Facts) -> Iterator[Finding]:
    """What the new types and keys break: made on twins of the tables as they will be it fails, as they are it does
    not."""
    types = {
        (table, action.column): action.suffix
        for table in facts.oids
        for action in actions(facts, table)
        if action.kind == "TYPE" and action.column
    }
    keys = {table: column_name(by.column) for table, by in split_tables(facts)}
    if not types and not keys:
        return
    made, carried = _all_made(facts, types)
    twins = _twins(facts, carried)
    try:
        failed = _failures(facts, _with_keys(_retyped(twins, types), keys), made)
        anyway = _failures(facts, twins, made) if failed else {}
    except StageFailed:
        return  # what cannot be read as SQL cannot be made here; the swap runs it as it is
    told = {(one.table, one.what) for one in anyway}
    news = " and ".join([*(["types"] if types else []), *(["key"] if keys else [])])
    for one, error in failed.items():
        if (one.table, one.what) in told and not isinstance(error, StageFailed):
            continue  # it is only here that it cannot be made
        told.add((one.table, one.what))
        why = error.what if isinstance(error, StageFailed) else error.diag.message_primary
        if isinstance(error, pg.DatatypeMismatch):
            why = ": ".join(filter(None, [why, error.diag.message_detail]))
        table = facts.written(one.table) if one.table else None
        what = f"the swap cannot make {one.what} for the new {news}: {why}"
        yield Finding("error", "new_types", "source", table, what, one.fix)


def said_of_plain_tables(facts: Facts) -> Iterator[Finding]:
    """What nothing refuses to make, and what goes wrong each time that it runs: SQL that reads ONLY a table that is
    going to be partitioned finds no row, and an ON CONFLICT without the partition key no index."""
    keys = {table: column_name(by.column) for table, by in split_tables(facts)}
    for one in _all_made(facts, {})[0] if keys else ():
        try:
            nodes = [*walk(parse(one.statement))]
        except StageFailed:
            continue
        alone = {relation(node) for node in nodes if kind_of(node) == "RangeVar" and not node.inh}
        inserts = [(relation(node.relation), _inferred(node)) for node in nodes if kind_of(node) == "InsertStmt"]
        for table, key in keys.items():
            inferred = [columns for name, columns in inserts if name == table and columns and key not in columns]
            if table in alone:
                what = "reads ONLY it, which has no rows of its own once it is partitioned"
            elif inferred:
                what = f"has ON CONFLICT ({', '.join(inferred[0])}), which is no key of it once it is partitioned"
            else:
                continue
            fix = one.fix.split("  -- ")[0] + "  -- and create it again without that"
            yield Finding("error", "plain", "source", written(*table), f"{one.what} {what}", fix)


def _inferred(insert: Node) -> list[str]:
    """The columns by which ON CONFLICT finds its index."""
    return [unwrap(element).name for element in insert.on_conflict_clause.infer.index_elems]


def _all_made(facts: Facts, types: Collection[tuple[Name, str]]) -> tuple[list[_Made], dependents.Carried]:
    changed = {oid: [c for name, c in types if name == table] for oid, table in facts.names.items()}
    asked = facts.pipeline.swap.recreate_materialized_views
    carried = dependents.read(facts.source.conn, list(facts.names), changed, materialized=asked)
    of_others = [*(one.statements[0] for one in reversed(carried.made)), *carried.again]
    again = "  -- and create it again after the swap, for the new table"
    conn, oids = facts.source.conn, {"oids": list(facts.names)}
    keys = [_Made(*row) for row in conn.execute(_Q["keys"], oids).fetchall()]
    queried = ["own", *(["row_filters"] if facts.source.version >= ROW_FILTERS else [])]
    own = [_Made(*row) for query in queried for row in conn.execute(_Q[query], oids).fetchall()]
    own += [_Made(oid, what, _bare(text), fix) for oid, what, text, fix in conn.execute(_Q["indexes"], oids).fetchall()]
    own = [one._replace(fix=one.fix + again) for one in own]
    others = [_Made(0, _called(s), s, "drop it, and create it again after the swap") for s in of_others]
    return keys + own + others, carried


def _bare(index: str) -> str:
    """CREATE INDEX with no more than its columns, so that nothing is evaluated, under no name that is taken."""
    tree = parse(index)
    node = statement_node(tree)
    for field in ("idxname", "where_clause", "unique", "nulls_not_distinct", "table_space"):
        node.ClearField(field)
    return deparse(tree)


def _called(statement: str) -> str:
    words = statement.split("(", 1)[0].split()
    return " ".join(words[1:]).split(" AS ", 1)[0].removeprefix("OR REPLACE ")


def _twins(facts: Facts, carried: dependents.Carried) -> dict[Name, str]:
    """CREATE TABLE for the tables, for others whose policies and rules are told anew, and for those at the other end of
    a foreign key."""
    others = facts.source.conn.execute(_Q["other_ends"], {"oids": list(facts.names)}).fetchall()
    names = sorted({*facts.oids, *carried.tables, *((schema, name) for schema, name in others)})
    args = {"schemas": [s for s, _ in names], "names": [n for _, n in names]}
    rows = facts.source.conn.execute(_Q["twins"], args).fetchall()
    return {(schema, name): statement for schema, name, statement in rows}


def _with_keys(twins: Mapping[Name, str], keys: Mapping[Name, str]) -> dict[Name, str]:
    return {table: with_key(text, keys[table]) if table in keys else text for table, text in twins.items()}


def _retyped(twins: Mapping[Name, str], types: Mapping[tuple[Name, str], str]) -> dict[Name, str]:
    """The same with the new types: ALTER TABLE would load the domains that it meets, whose CHECKs are code."""
    found = {}
    for table, statement in twins.items():
        tree = parse(statement)
        for column in map(unwrap, statement_node(tree).table_elts):
            suffix = types.get((table, column.colname)) if kind_of(column) == "ColumnDef" else None
            if suffix is None:
                continue
            new = unwrap(getattr(unwrap(statement_node(parse(f"ALTER TABLE t {suffix}")).cmds[0]), "def"))
            column.type_name.CopyFrom(new.type_name)
            column.ClearField("coll_clause")
            if new.HasField("coll_clause"):
                column.coll_clause.CopyFrom(new.coll_clause)
        found[table] = deparse(tree)
    return found


def _failures(
    facts: Facts, twins: Mapping[Name, str], made: Sequence[_Made]
) -> dict[_Made, psycopg.Error | StageFailed]:
    """What cannot be made with these twins, and why."""
    conn = facts.source.conn
    moved: set[Name] = set(twins)
    failed: dict[_Made, psycopg.Error | StageFailed] = {}
    schemas = {schema for schema, _ in twins} | {schema for one in made for schema, _ in _makes(one.statement)}
    whole = [_Made(facts.oids.get(name, 0), "the table", text, "ask for another type") for name, text in twins.items()]
    try:
        with conn.transaction(force_rollback=True):
            conn.execute("SET LOCAL lock_timeout = '3s'")  # of other tables, that a view reads
            conn.execute("SET LOCAL check_function_bodies = off")
            for schema in sorted(schemas):
                conn.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(try_schema(schema))))
            for one in (*whole, *made):
                try:
                    statement = _moved(one.statement, moved)
                except StageFailed:
                    continue  # which cannot be printed with other names
                try:
                    with conn.transaction():
                        alter(conn, statement, facts.pipeline.trusted_roles)
                        moved |= _makes(one.statement)
                except psycopg.OperationalError:
                    raise
                except (psycopg.Error, StageFailed) as error:
                    failed[one] = error
                    if one in whole and one.table:
                        return failed  # of the other end of a foreign key that key tells, with either twins
    except pg.InsufficientPrivilege:
        return {}  # told of our rights
    return failed


def _makes(statement: str) -> set[Name]:
    node = statement_node(parse(statement))
    kind = kind_of(node)
    if kind == "ViewStmt":
        return {relation(node.view)}
    if kind == "CreateTableAsStmt":
        return {relation(node.into.rel)}
    return {(parts[0], parts[1])} if kind == "CreateFunctionStmt" and len(parts := texts(node.funcname)) == 2 else set()


def _moved(statement: str, names: set[Name]) -> str:
    """The statement about the twins, and about what has been made for them."""
    if statement.startswith("ALTER POLICY"):
        statement = "CREATE" + statement.removeprefix("ALTER")
    tree = parse(statement)
    own = _makes(statement)
    for node in walk(tree):
        kind = kind_of(node)
        if kind == "RangeVar" and relation(node) in names | own:
            node.schemaname = try_schema(node.schemaname)
        else:
            for field in _NAMES.get(kind, ()):
                _move(getattr(node, field), names | own)
    return deparse(tree)


_NAMES = {
    "TypeName": ("names",),
    "FuncCall": ("funcname",),
    "CreateFunctionStmt": ("funcname",),
}


def _move(parts: Sequence[Node], names: set[Name]) -> None:
    listed = texts(parts)
    if len(listed) >= 2 and (listed[0], listed[1]) in names:
        unwrap(parts[0]).sval = try_schema(listed[0])
