"""CREATE INDEX, which the server builds as the table's owner: whose code it would call there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext

from postgast import ParseResult
from psycopg import errors as pg
from psycopg import sql

from airflow_provider_pgddl.engine.ddl.parse import (
    Node,
    deparse,
    kind_of,
    parse,
    relation,
    statement_node,
    unwrap,
)
from airflow_provider_pgddl.engine.errors import StageFailed
from airflow_provider_pgddl.engine.rights import foreign_code
from airflow_provider_pgddl.engine.server.connect import Session
from airflow_provider_pgddl.engine.sql import queries

_Q = queries("rights")

# Whatever an expression yields, a view can have a column of whether it is NULL.
_INDEXED = "CREATE TEMPORARY VIEW pg_temp.pgddl_probe AS SELECT (c) IS NULL AS c FROM ONLY t AS t"


def refuse_index(
    conn: Session,
    statement: str,
    trusted: Sequence[str],
    seen: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> None:
    """StageFailed for a CREATE INDEX that calls code whose author gains rights where the server builds it, as the
    table's owner. What it calls is looked up anew on the target and on a copy: another function may fit its names, or a
    column's new type, better than the source's. `seen`: as whoever runs it sees these names."""
    node = statement_node(parse(statement))
    if kind_of(node) != "IndexStmt":
        return
    expressions = computed(map(unwrap, node.index_params), node)
    if expressions and foreign_code.anybody(conn, trusted):
        try:
            code = _code_over(conn, node.relation, expressions, trusted, seen)
        except pg.InsufficientPrivilege:
            if seen is nullcontext:
                raise
            code = _code_over(conn, node.relation, expressions, trusted)  # a client that may make nothing temporary
        called = [one for one in code if one.kind == "expression"]
        _refuse_in_index(conn, node, called, statement, trusted, seen)


def refuse_built(
    conn: Session,
    statement: str,
    trusted: Sequence[str],
    seen: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> None:
    """The same of what has been built, in the transaction that is to be rolled back then: what could be found when we
    looked need not be what was found."""
    node = statement_node(parse(statement))
    if kind_of(node) != "IndexStmt" or not _may_call_code(node) or not foreign_code.anybody(conn, trusted):
        return
    table = _table_of(conn, node, seen)
    found = foreign_code.foreign_code(conn, [table], trusted).get(table, ())
    _refuse_in_index(conn, node, [code for code in found if code.kind == "index"], statement, trusted, seen)


def _refuse_in_index(
    conn: Session,
    node: Node,
    code: Sequence[foreign_code.Code],
    statement: str,
    trusted: Sequence[str],
    seen: Callable[[], AbstractContextManager[None]],
) -> None:
    if not code:
        return
    table = _table_of(conn, node, seen)
    role = foreign_code.survey(conn, [table], trusted).get(table, foreign_code.NOTHING).role
    others = [one for one in code if one.author != role]  # its owner's own, nested too, is built as its author
    for stranger in foreign_code.strangers(conn, others, role):
        raise StageFailed(foreign_code.refusal(stranger, role), table=".".join(relation(node.relation)), sql=statement)


def _may_call_code(index: Node) -> bool:
    """Whether it says more than which columns: what orders these by themselves is a superuser's."""
    elements = [unwrap(element) for element in index.index_params]
    return bool(computed(elements, index)) or any(element.opclass for element in elements)


def computed(elements: Iterable[Node], index: Node) -> list[Node]:
    """The expressions of an index's elements, and its predicate."""
    predicate = [index.where_clause] if index.HasField("where_clause") else []
    return [element.expr for element in elements if element.HasField("expr")] + predicate


def _table_of(conn: Session, node: Node, seen: Callable[[], AbstractContextManager[None]]) -> int:
    name = sql.Identifier(*(part for part in relation(node.relation) if part)).as_string(conn)
    with conn.transaction(force_rollback=True), seen():
        row = conn.execute("SELECT %s::pg_catalog.regclass::pg_catalog.oid", [name]).fetchone()
    assert row is not None
    return int(row[0])


def _code_over(
    conn: Session,
    table: Node,
    expressions: Sequence[Node],
    trusted: Sequence[str],
    seen: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> list[foreign_code.Code]:
    """What of roles that are not trusted expressions over a table call that is there; one may be over its whole row."""
    view = parse(_INDEXED)
    select = unwrap(statement_node(view).query)
    read = unwrap(select.from_clause[0])
    read.relname, read.schemaname, read.alias.aliasname = table.relname, table.schemaname, table.relname
    target = select.target_list.pop()
    for number, expression in enumerate(expressions, 1):
        unwrap(target).name = f"c{number}"
        unwrap(unwrap(target).val).arg.CopyFrom(expression)
        select.target_list.append(target)
    return code_of_probes(conn, [view], trusted, seen)


def code_of_probes(
    conn: Session,
    made: Sequence[ParseResult],
    trusted: Sequence[str],
    seen: Callable[[], AbstractContextManager[None]],
) -> list[foreign_code.Code]:
    with conn.transaction(force_rollback=True):
        with seen():
            for each in made:
                conn.execute(deparse(each))
        args = {"oids": [oid for (oid,) in conn.execute(_Q["probe"])], "trusted": list(trusted)}
        return [foreign_code.Code(*code) for _, *code in conn.execute(_Q["foreign_code"], args).fetchall()]
